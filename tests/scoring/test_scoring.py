"""`onnxperf validate MODEL` and `--data` with measurement files: what is compared with what, and what is refused."""

import gzip
import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import gpu_specs
import onnxperf
from onnxperf.calibrate.matching import joined
from onnxperf.graph import Note
from onnxperf.ground.errors import UsageError
from onnxperf.ground.tables import put as put_tables
from onnxperf.measure.environment import processor
from onnxperf.measure.record import OperatorTime, Place, Subject
from onnxperf.measure.series import Series
from onnxperf.scoring import one_model, show
from onnxperf.scoring.own_measurements import OwnMeasurements, Row
from tests.goldens import exactly
from tests.scoring.conftest import HOSTILE, L4, PROCESSOR, Run, made_up, put


@pytest.mark.slow
def test_a_model_is_measured_and_predicted_for_this_processor(run: Run, small: Path, tmp_path: Path) -> None:
    asked = ("validate", small, "--provider", "cpu", "--batch", 4, "--iterations", 7)
    code, out, err = run(*asked, "--json", "-")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["device"]["figures"] == one_model.NOMINAL and "not-calibrated" in {
        w["code"] for w in found["warnings"]
    }
    assert (found["batch"], found["measured"]["runs"], found["runtime"]) == (4, 7, "ort-cpu")
    assert found["measured"]["seconds"] > 0 and found["predicted"]["seconds"] > 0
    assert found["error"] == pytest.approx(found["predicted"]["seconds"] / found["measured"]["seconds"] - 1)
    assert {"FusedMatMul", "Softmax"} <= {x["type"] for x in found["operators"]["by_type"]}
    device = tmp_path / "mine.toml"
    device.write_text(PROCESSOR.format(processor().name), encoding="utf-8")
    code, out, err = run(*asked, "--gpu", device, "--json", tmp_path / "out.json")
    assert (code, err) == (0, "") and "By operator type" in out and "not-calibrated" not in out
    again = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert again["device"] == {"name": processor().name, "id": "mine", "figures": "mine.toml"}


@pytest.mark.parametrize(
    "factor, limit, code", [(1.3, "20%", 1), (1.3, "0.25", 0), (0.8, "20 %", 1), (0.8, "30%", 0), (1.3, "0", 1)]
)
def test_a_limit_holds_on_either_side(
    run: Run, small: Path, tmp_path: Path, factor: float, limit: str, code: int
) -> None:
    path = put(tmp_path / "taken.json", made_up(small, factor))
    got, out, err = run("validate", path, "--fail-above", limit, "--json", "-")
    assert got == code and json.loads(out)["error"] == pytest.approx(1 / factor - 1, rel=1e-4)
    assert ("over the limit" in err) == bool(code)
    assert run("validate", "--data", tmp_path, "--fail-above", limit)[0] == code


@pytest.mark.parametrize("text", ["15", "-0", "-1%", "nan", "inf%", "1e-3", "", "15%%"])
def test_a_limit_that_is_no_share_is_refused(run: Run, text: str) -> None:
    code, _, err = run("validate", "x.json", "--fail-above", text)
    assert code == 2 and "15%" in err


def test_a_recorded_model_is_predicted_as_the_model_itself(small: Path) -> None:
    c = one_model.compare(made_up(small, 1.1), gpu_specs.load("l4"), one_model.CATALOGUE)
    p = onnxperf.predict(small, gpu="l4", batch=8)
    assert (c.prediction.seconds, c.prediction.low_seconds) == (p.seconds, p.low_seconds)
    assert c.in_range is (p.low_seconds <= 1.1 * p.seconds <= p.high_seconds)
    measured = sum(o.median_s for o in c.measurement.operators)
    told = c.to_dict()["operators"]
    assert sum(x["measured_seconds"] for x in told["by_type"]) == pytest.approx(measured)
    assert sum(x["predicted_seconds"] for x in told["by_type"]) == pytest.approx(p.sum_seconds)
    assert [r.name for r in c.only_measured] == [HOSTILE] and not c.only_predicted
    assert told["unmatched"] == {"predicted_seconds": 0, "measured_seconds": 1e-6}


def test_what_the_runtime_spends_counts_to_the_operators_of_a_processor(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "cpu.toml"
    path.write_text(PROCESSOR.format("some CPU"), encoding="utf-8")
    device = gpu_specs.read(path)
    c = one_model.compare(made_up(small, 1.0, Place("cpu", "", "some CPU", 0, 1), device), device, "cpu.toml")
    predicted = sum(r.predicted_s or 0.0 for r in c.rows)
    assert c.prediction.sum_seconds < predicted <= c.prediction.seconds * (1 + 1e-9)


def test_a_measurement_without_a_profile_is_compared_end_to_end(run: Run, small: Path, tmp_path: Path) -> None:
    path = put(tmp_path / "taken.json", made_up(small, 1.1, operators=(), profiled=None))
    code, out, _ = run("validate", path)
    assert code == 0 and "predicted" in out and "By operator type" not in out
    assert json.loads(run("validate", path, "--json", "-")[1])["operators"] is None


def test_which_device_a_measurement_is_predicted_for(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(PROCESSOR.format("some CPU"), encoding="utf-8")
    files = [("mine.toml", gpu_specs.read(mine))]
    assert one_model.device_of(L4) == (gpu_specs.load("l4"), one_model.CATALOGUE)
    assert one_model.device_of(Place("cpu", "", "some CPU", 0, 1), files) == files[0][::-1]
    assert one_model.device_of(processor())[1] == one_model.NOMINAL
    calibrated = [("l4-here.toml", replace(gpu_specs.load("l4"), id="l4-here"))]
    assert one_model.device_of(L4, calibrated)[1] == "l4-here.toml"
    assert one_model.device_of(replace(L4, id=""))[1] == one_model.CATALOGUE
    shutil.copy(Path(gpu_specs.__file__).parent / "cards" / "l4.toml", tmp_path / "l4.toml")
    path = str(tmp_path / "l4.toml")
    others = [
        Place("gpu", i, n, 0) for i in ("", "l5", path) for n in ("NVIDIA L4-Z", path, path.replace("/", chr(92)))
    ]
    for place in (Place("cpu", "", "some CPU", 0, 1), *others):
        with pytest.raises(UsageError, match="onnxperf calibrate"):
            one_model.device_of(place)


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("{small}", "--data", "{folder}"), "not both"),
        (("{small}", "--markdown"), "not both"),
        (("{taken}", "--batch", "2"), "has been measured already: batch"),
        (("{taken}", "--provider", "cpu"), "has been measured already: provider"),
        (("{taken}", "--gpu", "{cpu}"), "is some CPU: name the device it ran on"),
        (("{taken}", "--gpu", "nothing-like-it"), "unknown gpu"),
        (("{taken}", "--json", "{taken}"), "would overwrite"),
        (("{small}", "--provider", "cpu", "--gpu", "l4"), "not a device of the cpu provider"),
        (("--batch", "2"), "without MODEL"),
        (("--gpu", ""), "without MODEL"),
        (("{taken}", "--gpu", ""), "unknown gpu"),
        (("--fail-above", "10%"), "of your own"),
        (("",), "is empty"),
        (("{folder}/none.json",), "no such file"),
        (("--data", "{folder}", "--json", "{taken}"), "would overwrite"),
    ],
)
def test_requests_that_contradict_themselves(
    run: Run, small: Path, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    put(tmp_path / "taken.json", made_up(small, 1.0))
    (tmp_path / "cpu.toml").write_text(PROCESSOR.format("some CPU"), encoding="utf-8")
    places = {"small": small, "folder": tmp_path, "taken": tmp_path / "taken.json", "cpu": tmp_path / "cpu.toml"}
    code, out, err = run("validate", *(a.format(**places) for a in arguments))
    assert (code, out) == (2, "") and says in err


def test_another_card_than_the_one_it_ran_on_is_remarked(run: Run, small: Path, tmp_path: Path) -> None:
    code, out, _ = run("validate", put(tmp_path / "taken.json", made_up(small, 1.0)), "--gpu", "t4")
    assert code == 0 and "other-device" in out and "measured on NVIDIA L4" in out


@pytest.mark.parametrize(
    "change, says",
    [
        ({"device": Series((0.0,)), "operators": ()}, "measured time is 0"),
        ({"place": Place("cpu", "", "NVIDIA L4", 0, 1)}, "can't run under ort-cuda"),
        ({"subject": Subject("m", "", 20, "stored", b"no model")}, ""),
    ],
)
def test_measurements_that_contradict_themselves(
    run: Run, small: Path, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    (tmp_path / "cpu.toml").write_text(PROCESSOR.format("NVIDIA L4"), encoding="utf-8")
    m = replace(made_up(small, 1.0), **change)
    gpu = ("--gpu", tmp_path / "cpu.toml") if m.place.kind == "cpu" else ()
    code, out, err = run("validate", put(tmp_path / "taken.json", m), *gpu)
    assert code in (2, 3) and not out and says in err and err.count("\n") == 1


@pytest.fixture
def folder(small: Path, tmp_path: Path) -> Path:
    """Good files, unusable ones, and names that mean no good."""
    place = tmp_path / "data"
    place.mkdir()
    (place / "cpu.toml").write_text(PROCESSOR.format("some CPU"), encoding="utf-8")
    (place / "twice.toml").write_text(PROCESSOR.format("some CPU"), encoding="utf-8")
    (place / "broken.toml").write_text("name = ", encoding="utf-8")
    put(place / "slow.json", made_up(small, 1.25))
    put(place / "fast.json", made_up(small, 0.8))
    cpu = Place("cpu", "", "some CPU", 0, 1)
    put(place / "own.json", made_up(small, 1.0, cpu, gpu_specs.read(place / "cpu.toml"), operators=()))
    put(place / "elsewhere.json", made_up(small, 1.0, Place("gpu", "", HOSTILE, 0)))
    subject = replace(made_up(small, 1.0).subject, name=HOSTILE)
    put(place / "hostile.json", made_up(small, 1.0, subject=subject))
    (place / "later.json").write_text('{"schema_version": 2}', encoding="utf-8")
    (place / "text.json").write_text("no JSON", encoding="utf-8")
    (place / "scores.json").write_text('{"schema_version": 1, "scores": []}', encoding="utf-8")
    (place / "folder.json").mkdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(place / "pipe.json")
    return place


def test_files_of_a_folder_are_scored_and_the_others_listed(run: Run, folder: Path) -> None:
    code, out, err = run("validate", "--data", folder, "--json", "-")
    assert (code, err) == (0, "")
    found = json.loads(out)["measurements"]
    errors = {f["file"]: round(f["error"], 4) for f in found["files"]}
    assert errors == {"slow.json": -0.2, "fast.json": 0.25, "own.json": 0, "hostile.json": 0}
    assert found["mape"] == pytest.approx(0.45 / 4, abs=1e-4)
    assert {f["file"]: f["figures"] for f in found["files"]}["own.json"] == "cpu.toml"
    by = {d["name"]: d for d in found["devices"]}
    assert by["NVIDIA L4"]["count"] == 3 and by["NVIDIA L4"]["mape"] == pytest.approx(0.15, abs=1e-4)
    assert by["some CPU"]["coverage"] == 1
    why = {r["file"]: r["reason"] for r in found["rejected"]}
    assert "schema_version is 2" in why["later.json"] and "not JSON" in why["text.json"]
    assert "not a regular file" in why["folder.json"] and "onnxperf calibrate" in why["elsewhere.json"]
    assert "cpu.toml describes some CPU already" in why["twice.toml"] and "broken.toml" in why and "scores.json" in why
    code, out, _ = run("validate", "--data", folder)
    assert code == 0 and "Your measurements by device" in out and "Files that can't be used" in out
    assert "\x1b" not in out and "\x07" not in out and "[red]" in out
    _, out, _ = run("validate", "--data", folder, "--markdown")
    table = out.partition("Your measurements:\n\n")[2].partition("\n\n")[0].splitlines()
    assert len(table) == 2 + 4 and len({line.count("|") for line in table}) == 1
    assert "\x1b" not in out and "roofline" not in out


def test_files_stand_beside_open_tables(run: Run, small: Path, tmp_path: Path) -> None:
    tables = tmp_path / "fp32_torch"
    tables.mkdir()
    gemm = "op,device,split,b,m,k,n,latency_ms,kernels\nlinear,Tesla T4,test,1,4096,1024,1024,2.5,0\n"
    (tables / "kernels_gemm.csv.gz").write_bytes(gzip.compress(gemm.encode()))
    (tables / "kernel_names.csv.gz").write_bytes(gzip.compress(b"id,name\n"))
    put(tmp_path / "taken.json", made_up(small, 1.1))
    code, out, _ = run("validate", "--data", tmp_path, "--json", "-")
    found = json.loads(out)
    assert code == 0 and found["scores"] and [f["file"] for f in found["measurements"]["files"]] == ["taken.json"]
    code, out, _ = run("validate", "--data", tmp_path)
    assert code == 0 and "Your measurements" in out and "GEMM with bias" in out


def test_a_folder_of_unusable_files_says_why(run: Run, tmp_path: Path) -> None:
    (tmp_path / "later.json").write_text('{"schema_version": 2}', encoding="utf-8")
    code, out, err = run("validate", "--data", tmp_path)
    assert (code, out) == (2, "") and "holds no measurements" in err and "later.json: schema_version is 2" in err


def test_interrupted_measurements_are_told_apart(run: Run, small: Path, tmp_path: Path) -> None:
    path = put(tmp_path / "half.json", made_up(small, 1.1, complete=False))
    assert "interrupted" in run("validate", path)[1]
    for command in (("validate", "--data", tmp_path), ("calibrate", "--from", tmp_path, "-o", tmp_path / "l4.toml")):
        code, _, err = run(*command)
        assert code == 2 and "interrupted before it was complete" in err
    assert not (tmp_path / "l4.toml").exists()


@pytest.mark.parametrize("precision", ["tf32", "fp8"])
def test_a_processor_has_no_tensor_types(small: Path, tmp_path: Path, precision: str) -> None:
    (tmp_path / "cpu.toml").write_text(PROCESSOR.format("mine"), encoding="utf-8")
    with pytest.raises(UsageError, match=precision.upper()):
        onnxperf.predict(small, gpu=tmp_path / "cpu.toml", batch=8, precision=precision)


def drawn(show: Callable[[Console], None]) -> str:
    out = Console(file=io.StringIO(), width=110, highlight=False)
    show(out)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_the_tables_look_as_they_did(small: Path) -> None:
    c = one_model.compare(made_up(small, 1.0), gpu_specs.load("l4"), one_model.CATALOGUE)
    kernels = tuple(replace(k, seconds=1e-5 * (i + 1)) for i, k in enumerate(c.prediction.kernels))
    p = replace(c.prediction, seconds=1.2e-4, low_seconds=9e-5, high_seconds=1.5e-4, kernels=kernels)
    times = tuple(OperatorTime(k.name, k.op, "CUDA", 20, 1.5e-5, 1.4e-5) for k in kernels[:-1])
    odd = OperatorTime(HOSTILE, "Identity", "CUDA", 20, 2e-6, 2e-6)
    m = replace(c.measurement, device=Series((1.6e-4,) * 7), operators=(*times, odd))
    fixed = replace(c, measurement=m, prediction=p, rows=joined(m.operators, p), notes=(Note("unstable", HOSTILE),))
    exactly("validate-model.txt", drawn(lambda out: show.show(out, fixed)))


def test_the_tables_of_files_look_as_they_did() -> None:
    rows = tuple(
        Row(f"{i}.json", HOSTILE, device, figures, "ort-cuda", "tf32", 8, 1e-3, 1e-3 * e, 8e-4, 1.2e-3, e - 1, e < 1.2)
        for i, (device, figures, e) in enumerate((("NVIDIA L4", "catalogue", 1.1), ("my CPU", one_model.NOMINAL, 1.3)))
    )
    t = OwnMeasurements(rows, (("x.json", f"it is {HOSTILE}"),))
    exactly("validate-files.txt", drawn(lambda out: put_tables(out, show.files(t))))
    assert any(one_model.NOMINAL in remark for remark in show.file_notes(t))
    assert OwnMeasurements().error is None and show.file_notes(OwnMeasurements()) == []


@pytest.mark.parametrize(("slower", "told"), [(1.0, False), (20.0, True)])
def test_operators_that_take_longer_than_the_model_are_told(
    small: Path, tmp_path: Path, run: Run, slower: float, told: bool
) -> None:
    m = made_up(small, 1.0)
    operators = tuple(replace(o, median_s=slower * o.median_s, least_s=slower * o.least_s) for o in m.operators)
    code, out, err = run("validate", put(tmp_path / "m.json", replace(m, operators=operators)))
    assert ("longer than the model's runs" in " ".join(out.split())) == told, (code, err)

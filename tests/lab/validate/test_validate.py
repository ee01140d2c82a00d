"""`onnxperf validate`: what is scored, how, and what becomes of tables that can't be believed."""

import csv
import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest

import onnxperf
from onnxperf import cli
from onnxperf.lab.constants import left_out
from onnxperf.lab.datasets import SAMPLE, Table
from onnxperf.lab.datasets.draw import draw
from onnxperf.lab.datasets.reading import located
from onnxperf.lab.datasets.reading import read as records
from onnxperf.lab.datasets.runs import MeasuredRun
from onnxperf.lab.datasets.sources import fp32_torch, ort_cuda, tensorrt, timm
from onnxperf.lab.validate import Report, Score, kernels, models, plot, scored, show, sources, validate
from onnxperf.lab.validate import report as report_of
from onnxperf.scoring import score as scores
from op_models import Gemm, Work
from tests import pages

#: Of one card, which has no order.
ALONE = {
    "FP8 GEMM, known scales", "DeepBench FP16 recurrent", "batched GEMM, other library",
    "GEMM with bias, other library",
}  # fmt: skip
ASIDE = "GEMM with bias, other library"
FULL = Path(__file__).parents[4] / "shared" / "data"
(EAGER, TRAINING, _), (ORT, *WITH_GRAPHS) = fp32_torch.DATASET.models, ort_cuda.DATASET.models
(TENSORRT, _), (AUTOCAST, COMPILED, TRAINED) = tensorrt.DATASET.models, timm.DATASET.models
#: All runs of these models are scored: they order cards.
ON_TWO_CARDS = {"bert-large-qa", "BERT 6L-768 distilled QA", "SqueezeNet1_0"}
#: How many runs these models have, by their heading.
THEIRS = {
    "ONNX Runtime, over 5 ms": 6, "transformers with their graph, dle-bert-6l-768": 12, "TensorRT, FP32": 4,
    "TensorRT, FP16": 3,
}  # fmt: skip
GEMM = "op,device,split,b,m,k,n,latency_ms,kernels"
E2E = "device,model,seqlen,batch,mode,option,measured_ms,neusight_ms,roofline_ms,habitat_ms,micro_ms,sum_gpu_ops_ms"


#: Of the runs under a heading the first ones are scored, and from then on each 72nd: more take minutes, and
#: tell no more of whether each heading, card and method has its scores.
FIRST, EACH = 2, 72


FURTHER = {
    "A100 scan of torchvision models": 1, "ViT-S on RTX 5000 Ada": 1, "dle-bert-4l-312": 6, "mlperf-bert": 3,
    "mlperf-resnet50": 2, "pr12670": 5, "pr8698": 2, "transformer-deploy": 7,
}  # fmt: skip


#: Of each release, precision and card, those in the sample.
ON_H200 = {
    "ONNX Runtime, FP16": 5, "ONNX Runtime, TF32": 11, "eager PyTorch, BF16": 44, "eager PyTorch, FP16 autocast": 72,
    "eager PyTorch, FP32": 45, "torch.compile, BF16": 8, "torch.compile, FP16 autocast": 36, "torch.compile, FP32": 17,
    "training, eager PyTorch, FP16 autocast": 10, "training, eager PyTorch, FP32": 6,
    "training, torch.compile, FP16 autocast": 4, "training, torch.compile, FP32": 4,
}  # fmt: skip
ON_H100 = {
    "ONNX Runtime, FP16": 12, "ONNX Runtime, TF32": 12, "eager PyTorch, FP16 autocast": 19, "eager PyTorch, FP32": 5,
    "torch.compile, FP16 autocast": 7, "torch.compile, FP32": 6, "training, eager PyTorch, FP16 autocast": 4,
    "training, eager PyTorch, FP32": 2,
}  # fmt: skip
ENGINE_ROWS = {
    "release 8.4, INT8, a100-sxm4-80gb": 6,
    **{f"release {r}, {p}, a100-sxm4-80gb": 1 for r in ("8.2", "8.4") for p in ("FP16", "FP32 or TF32")},
    **{f"release 7.2, {p}, t4": 1 for p in ("FP16", "FP32 or TF32", "INT8")},
}


def scored_of(heading: str, runs: int) -> int:
    """How many of the runs under a heading are scored."""
    others = runs - (theirs := THEIRS.get(heading, 0))
    return theirs + min(others, FIRST) + max(others - 1, 0) // EACH


def folder(root: Path, gemm: list[str] | None = None, e2e: list[str] | None = None) -> Path:
    """A folder of measurements with these rows."""
    (root / "fp32_torch").mkdir(parents=True, exist_ok=True)
    (root / "fp32_torch" / "kernel_names.csv.gz").write_bytes(gzip.compress(b"id,name\n"))
    if gemm is not None:
        (root / "fp32_torch" / "kernels_gemm.csv.gz").write_bytes(gzip.compress("\n".join([GEMM, *gemm]).encode()))
    if e2e is not None:
        (root / "fp32_torch" / "e2e.csv").write_text("\n".join([E2E, *e2e]), encoding="utf-8")
    return root


@pytest.fixture
def onnxperf_cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple]:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["onnxperf", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def report() -> Report:
    """What the sample that ships says of whole models (of all that ran in eager FP32, and of the others of some under
    each heading), of all rows of one table and of a few of the others, by the default method with the card left out,
    and by the roofline.
    """
    tables, runs, dropped = pages.whole_sample()
    runs = [*runs]
    headings = Counter[str]()
    for i, (of, run) in reversed([*enumerate(runs)]):
        if of is EAGER or run.model in ON_TWO_CARDS:
            continue
        headings[of.heading(run)] += 1
        if (at := headings[of.heading(run)] - 1) >= FIRST and at % EACH:
            del runs[i]
    few = pages.sample()[0]
    some = [t if kernels.reported(t) == ASIDE else thin for t, thin in zip(tables, few, strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_of, "read", lambda *_: (some, runs, dropped))
        return validate(method=scored.ROOFLINE)


@pytest.fixture(scope="module")
def few() -> Report:
    """What every method says of a few rows of each table, and of a run of each source of models."""
    return pages.thinned()


def only(report: Report, **wanted: str) -> list[Score]:
    return [s for s in report.scores if all(getattr(s, k) == v for k, v in wanted.items())]


def test_scores_are_what_their_names_say() -> None:
    def pairs(gpu: str, measured: list[float], predicted: list[float], test: list[bool]) -> scores.Pairs:
        m, p = np.array(measured), np.array(predicted)
        return scores.Pairs("x", gpu, "tile-wave", np.arange(len(m)), m, p, p / 1.25, p * 1.25, np.array(test))

    found = scores.score("kernels", [
        pairs("t4", [1.0, 2.0, 4.0], [1.1, 2.0, 2.0], [True, True, True]),
        pairs("p4", [1.0], [1.5], [True]),
        pairs("p4", [1.0, 1.0], [0.9, 0.9], [False, True]),
    ])  # fmt: skip
    by = {(s.gpu, s.rows): s for s in found}
    t4, p4, mean = by["t4", "test"], by["p4", "test"], by["", "test"]
    assert (t4.count, t4.mape) == (3, pytest.approx(0.6 / 3))
    assert t4.bias == pytest.approx(0.0) and t4.coverage == pytest.approx(2 / 3)
    assert t4.half_width == pytest.approx((1.25 - 0.8) / 2)
    assert (p4.count, p4.mape, p4.coverage) == (2, pytest.approx(0.3), 0.5)
    assert p4.bias == pytest.approx((1.5 * 0.9) ** 0.5 - 1)
    assert (mean.count, mean.mape) == (5, pytest.approx((0.2 + 0.3) / 2))  # cards count alike, however many rows
    assert by["p4", "rest"].count == by["", "rest"].count == 1


def test_order_counts_pairs_of_cards_that_are_close() -> None:
    def pairs(gpu: str, keys: list[int], measured: list[float], predicted: list[float]) -> scores.Pairs:
        m, p = np.array(measured), np.array(predicted)
        return scores.Pairs("x", gpu, "sum", np.array(keys), m, p, p, p, np.ones(len(m), dtype=bool))

    found = scored.order("kernels", [
        pairs("t4", [1, 2, 3, 4], [1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 2.0]),
        pairs("p4", [4, 3, 2, 7], [1.5, 1.5, 2.5, 1.0], [3.0, 1.0, 9.0, 1.0]),
    ])  # fmt: skip
    # 4 is right, 3 a tie; 2 is right, but too far apart for a close pair; 1 and 7 are alone
    assert found == [scored.Order("kernels", "x", "sum", 2, 0.75, pytest.approx(2 / 3))]


def test_a_card_left_out_is_predicted_without_its_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def spy(without: str = "") -> onnxperf.latency.Constants:  # type: ignore[name-defined]
        asked.append(without)
        c = left_out(without)
        own = {"p4": 1e-3, "t4": 2e-3, "other": 3e-3}
        return c.having({"rig": {"gemm": {"torch": own}}})

    monkeypatch.setattr(kernels, "left_out", spy)
    w = Work(Gemm(1, 512, 512, 512), "float32", "fp32", 1 << 21, 1 << 20, 0, 2 * 512**3)
    none = np.full((1, 2), "", dtype=object)
    t = Table("linear", "torch", (w,), ("p4", "t4"), np.full((1, 2), 0.01), np.array([True]), none, {})
    found = {(p.gpu, p.method): float(p.predicted[0]) for p in kernels.pairs(t)}
    assert set(asked) == {"GP104", "TU104", ""}
    inside, outside = found["p4", scored.SHIPPED], found["p4", scored.LEFT_OUT]
    assert 1e-3 < inside < 2e-3 and 3e-3 < outside < 4e-3  # its clock's overhead too is what others have
    assert 2e-3 < found["t4", scored.ROOFLINE] < 3e-3


@pytest.mark.slow
def test_every_class_card_and_model_of_the_sample_is_scored(report: Report, few: Report) -> None:
    assert {s.name for s in only(report, kind="kernels")} == set(kernels.classes())
    assert len({s.gpu for s in only(report, kind="kernels")} - {""}) == 26
    assert {s.method for s in only(few, kind="kernels")} == set(scored.OF_KERNELS)
    whole = only(report, kind="models", gpu="")
    eager = {(s.method, s.count) for s in whole if s.name == EAGER.reported}
    ours = (scored.LEFT_OUT, scored.ROOFLINE)
    assert eager == {(m, 31) for m in (*ours, *(models.PUBLISHED + m for m in EAGER.published))}
    runtime = {(s.name, s.count) for s in whole if s.method == scored.LEFT_OUT and not EAGER.heads(s.name)}
    assert runtime == {(name, scored_of(name, runs)) for name, runs in {
        ("ONNX Runtime, up to 5 ms", 67), ("ONNX Runtime, over 5 ms", 29),
        ("transformers with their graph, dle-bert-6l-768", 12), ("transformers with their graph, llama2-decode", 6),
        ("transformers with their graph, llama2-prefill", 6),
        ("convolutional networks with their graph, A100 scan of torchvision models", 2),
        ("convolutional networks with their graph, deepinsight/insightface", 2),
        ("convolutional networks with their graph, roatienza/benchmark", 5),
        *((f"further models with their graph, {source}", n) for source, n in FURTHER.items()),
        *((f"TensorRT engines, {which}", n) for which, n in ENGINE_ROWS.items()),
        ("TensorRT, FP32", 22), ("TensorRT, FP16", 18), ("TensorRT, graphs in parts", 36),
        ("eager PyTorch, FP16 autocast, nchw", 28), ("eager PyTorch, FP16 autocast, nhwc", 28),
        (f"{COMPILED.reported}, PyTorch 2.4.0", 14), (f"{COMPILED.reported}, PyTorch 2.9.1", 13),
        (f"{TRAINED.reported}, nchw", 10), (f"{TRAINED.reported}, nhwc", 10),
        *((f"{TRAINING.reported}, {part}", 3) for part in fp32_torch.PARTS),
        *((f"several GPUs, training, FP32, {plan}", 1) for plan in fp32_torch.PLANS.values()),
        *((f"kernels of models on H200, {which}", n) for which, n in ON_H200.items()),
        *((f"kernels of models on H100, {which}", n) for which, n in ON_H100.items()),
    }}  # fmt: skip
    published = {models.PUBLISHED + "neusight"}
    assert {s.method for s in whole if TRAINING.heads(s.name)} == {*ours, *published}
    by_all = only(few, kind="models", gpu="")
    assert {s.method for s in by_all if TRAINING.heads(s.name)} == {*scored.OF_MODELS, *published}
    assert {s.method for s in by_all if not EAGER.heads(s.name)} == {*scored.OF_MODELS, *published}
    sources = {s.name: s.count for s in only(report, kind="source", method=scored.LEFT_OUT)}
    assert sources["TensorRT, PaddlePaddle/PaddleClas@d178931f"] == (
        scored_of("TensorRT, FP32", 22) + scored_of("TensorRT, FP16", 18)
    ), "without graphs in parts"
    assert sources["eager PyTorch, FP16 autocast, timm"] == 2 * scored_of("", 28)
    assert sum(n for name, n in sources.items() if name.startswith("ONNX Runtime, ")) == (
        scored_of("ONNX Runtime, over 5 ms", 29) + scored_of("", 67)
    )
    assert len({s.name for s in only(report, kind="model")}) == 47  # not every model of the sample
    with_graphs = {WITH_GRAPHS[0].reported, WITH_GRAPHS[2].reported, TENSORRT.reported, AUTOCAST.reported}
    assert {o.name for o in report.order} == {EAGER.reported, ORT.reported, *with_graphs, *kernels.classes()} - ALONE
    published = {s.gpu: s.mape for s in only(report, kind="models", method="published neusight")}
    expected = {"a100-pcie-40gb": 4.9, "v100-pcie-32gb": 5.2, "p100-pcie-16gb": 7.1, "t4": 18.5, "p4": 27.1}
    assert {g: round(100 * published[g], 1) for g in expected} == expected  # as the source says of itself


@pytest.mark.slow
def test_a_report_has_finite_numbers_only_and_says_what_it_left_out(report: Report) -> None:
    again = json.loads(report.to_json())
    assert again["interval"] == 0.8 and again["data"] == "sample"
    assert len(again["scores"]) == len(report.scores)
    assert all(s.coverage is None for s in report.scores if s.method.startswith("published"))
    timed = [s for s in only(report, method=scored.LEFT_OUT) if s.kind != "watts"]  # which are without a range
    assert all(0 <= s.coverage <= 1 and s.half_width for s in timed)
    assert ("DeepBench recurrent", "no positive time", 53) in report.dropped
    aside = {(s.gpu, s.count) for s in report.scores if s.name == ASIDE and s.gpu}
    assert aside == {("p4", 974)}  # all that were kept back of P4


@pytest.mark.slow
def test_the_accuracy_page_has_every_table(few: Report) -> None:
    """And is what would be printed now."""
    assert not pages.check([pages.SCORES])
    text = show.markdown(few)
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert sum(line.startswith("| LayerNorm | ") for line in tables) == 3  # kept back, the rest, and cards in order
    headings = [text.splitlines()[i - 1] for i, line in enumerate(text.splitlines()) if line.startswith("| ---")]
    assert len(headings) == 18  # and every line has all cells of the heading above it
    assert {line.count("|") for line in tables} == {line.count("|") for line in headings}


@pytest.mark.slow
def test_rows_that_cannot_be_are_counted(tmp_path: Path) -> None:
    good = "linear,Tesla T4,train,1,4096,1024,1024,{},0"
    gemm = [
        good.format(2.5), good.format("nan"), good.format(1e-5), good.format(1e9), good.format(0.02),
        "linear,Tesla T4,train,1,0,1024,1024,2.5,0", "linear,/dev/zero,train,1,64,64,64,2.5,0",
        "\x1b[31mfoo,Tesla T4,train,1,4096,1024,1024,2.5,0", "linear,Tesla T4",
    ]  # fmt: skip
    model = "Tesla T4,bert_large,{},8,inference,,{},,,,,"
    e2e = [model.format(512, 694), model.format(512, 694), model.format(512, 0), model.format(256, 1e-3)]
    e2e += [model.format(128, 1e12), model.format(100000, 694), "Tesla T4,switch,512,8,inference,,5,,,,,"]
    found = validate(folder(tmp_path, gemm, e2e))
    dropped = {(table, why.partition(":")[0]): n for table, why, n in found.dropped}
    assert dropped["GEMM with bias", "unknown card"] == 1
    assert dropped["GEMM with bias", "no such shape"] == 2
    assert dropped["GEMM with bias", "no positive time"] == 1
    assert dropped["GEMM with bias", "faster than physics"] == 2
    assert dropped["GEMM with bias", "too slow to be in the unit of its column"] == 1
    assert dropped[EAGER.reported, "measured twice"] == dropped[EAGER.reported, "no positive time"] == 1
    assert dropped[EAGER.reported, "no sample of this model"] == 1
    assert dropped[EAGER.reported, "faster than physics"] == 1
    assert dropped[EAGER.reported, "too slow to be in the unit of its column"] == 1
    (ours,) = only(found, kind="models", gpu="t4", method=scored.SHIPPED)
    assert ours.count == 1


@pytest.mark.parametrize(
    "content, says",
    [
        (None, "no folder of measurements"),
        ({}, "holds no measurements to score"),
        ({"fp32_torch/kernels_gemm.csv.gz": b"\x00\x01\x02"}, "can't be read as a table"),
        ({"fp32_torch/kernels_gemm.csv.gz": gzip.compress(b"a,b\n1,2\n")}, "has no column"),
        ({"fp32_torch/kernels_gemm.csv.gz": gzip.compress(GEMM.encode())}, "holds no measurements to score"),
        ({"fp32_torch/kernels_gemm.csv.gz": gzip.compress(GEMM.encode() * 99)[:-9]}, "can't be read as a table"),
        ({"fp32_torch/kernels_gemm.csv.gz": gzip.compress(b"\xff\xfe")}, "can't be read as a table"),
        ({"fp32_torch/e2e.csv": b"device,model\nx,y\n"}, "has no column"),
    ],
)
def test_a_folder_that_is_none_ends_in_one_sentence(
    onnxperf_cli: Callable[..., tuple], tmp_path: Path, content: dict[str, bytes] | None, says: str
) -> None:
    place = tmp_path / "data"
    if content is not None:
        folder(place)
        for name, data in content.items():
            (place / name).write_bytes(data)
    code, out, err = onnxperf_cli("validate", "--data", str(place))
    assert (code, out) == (2, "") and says in err and err.count("\n") == 1


def test_the_command_prints_tables_or_json(onnxperf_cli: Callable[..., tuple], tmp_path: Path) -> None:
    place = folder(tmp_path / "data", ["linear,Tesla T4,test,1,4096,1024,1024,2.5,0"])
    code, out, err = onnxperf_cli("validate", "--data", str(place))
    assert (code, err) == (0, "")
    assert "GEMM with bias" in out and "t4" in out and "tile-wave with the card left out" in out
    code, out, _ = onnxperf_cli("validate", "--data", str(place), "--json", "-")
    assert code == 0 and {s["name"] for s in json.loads(out)["scores"]} == {"GEMM with bias"}
    code, out, _ = onnxperf_cli("validate", "--data", str(place), "--markdown", "--json", str(tmp_path / "x.json"))
    assert code == 0 and "| GEMM with bias |" in out and json.loads((tmp_path / "x.json").read_text())["scores"]
    code, _, err = onnxperf_cli("validate", "--data", str(place), "--json", str(sources(place)[0]))
    assert code == 2 and "overwrite" in err
    assert onnxperf_cli("validate", "--data", "")[0] == 2


@pytest.mark.slow
def test_whole_models_are_drawn_each_with_its_runtime(few: Report) -> None:
    image = plot.plot(few.runs, "a.svg").decode()
    for runtime, count in Counter(r.runtime for r in few.runs).items():
        assert f">{runtime}: {count} rows, " in image
    assert image == plot.plot(few.runs, "a.svg").decode() and plot.plot(few.runs, "a.png").startswith(b"\x89PNG")
    by_hand = {s.count for s in few.scores if s.kind == "models" and s.method == scored.LEFT_OUT}
    assert len(few.runs) >= max(by_hand) and all(r.low_s <= r.predicted_s <= r.high_s for r in few.runs)


def test_a_picture_that_can_not_be_drawn_is_told_of(onnxperf_cli: Callable[..., tuple], tmp_path: Path) -> None:
    place = folder(tmp_path / "data", ["linear,Tesla T4,test,1,4096,1024,1024,2.5,0"])
    for arguments, says in (
        (["--plot", "a.pdf"], "must end with .svg or .png"),
        (["model.onnx", "--plot", "a.svg"], "--data, --markdown and --plot, not both"),
        (["--data", str(place), "--plot", str(tmp_path / "a.svg")], "no whole model was scored"),
    ):
        code, _, err = onnxperf_cli("validate", *arguments)
        assert (code, list(tmp_path.glob("a.*"))) == (2, []) and says in err


def test_whole_models_are_found_and_bound() -> None:
    run = MeasuredRun(
        "t4", "bert-large", {"batch": 8, "sequence": 512}, 0.7, 0.77, {"neusight": 0.94, "micro": float("nan")}
    )
    found = {p.method: p for p in models.pairs(run, EAGER)}
    assert set(found) == {*scored.OF_MODELS, "published neusight"}
    assert found["published neusight"].predicted[0] == 0.94
    assert found["roofline"].predicted[0] < found["tile-wave"].predicted[0]


def test_the_sample_is_small_and_says_whose_it_is() -> None:
    assert sum(f.stat().st_size for f in SAMPLE.rglob("*")) < 3e6
    assert "MIT License" in (SAMPLE / "fp32_torch" / "LICENSE.NeuSight").read_text(encoding="utf-8")
    assert "Apache License, Version 2.0" in (SAMPLE / "NOTICE").read_text(encoding="utf-8")
    assert all(f.exists() for f in sources(SAMPLE))


def read(path: Path) -> list[list[str]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as f:
        return list(csv.reader(f))


@pytest.mark.slow
def test_drawing_from_a_sample_changes_nothing_and_is_the_same_each_time(tmp_path: Path) -> None:
    draw(SAMPLE, tmp_path / "once")
    draw(SAMPLE, tmp_path / "twice")
    for file in sources(SAMPLE):
        name = file.relative_to(SAMPLE)
        assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "twice" / name).read_bytes()
        assert read(tmp_path / "once" / name) == read(file)


def of_these_sizes(full: Path, head: list[str], rows: list[list[str]], to: Path) -> Path:
    """Those rows of a full Parquet table that have the sizes of one of `rows`: others need not be made text."""
    from pyarrow import parquet

    table = parquet.read_table(full)
    sizes = [(i, name) for i, name in enumerate(head) if str(table.schema.field(name).type).startswith("int")]
    base = np.uint64(1_000_003)

    def digest(columns: Iterable[np.ndarray]) -> np.ndarray:
        """A number that equal sizes have in common, and few others."""
        return sum(column.astype(np.uint64) * base**i for i, column in enumerate(columns))

    wanted = digest(np.array([row[i] for row in rows], dtype=np.int64) for i, _ in sizes)
    there = digest(table.column(name).to_numpy() for _, name in sizes)
    parquet.write_table(table.filter(np.isin(there, wanted)), to / full.name)
    return to / full.name


@pytest.mark.skipif(not FULL.is_dir(), reason="the full tables are not here")
@pytest.mark.slow
def test_every_row_of_the_sample_is_one_of_the_full_tables(tmp_path: Path) -> None:
    """The tables have grown since the sample was drawn, so a new draw has other rows as well."""
    for file in (f for f in sources(SAMPLE) if f.parent.name not in ("h200", "h100")):  # which are whole in the package
        head, *rows = read(file)
        full = located(FULL / file.relative_to(SAMPLE))
        if full.suffix == ".parquet":
            full = of_these_sizes(full, head, rows, tmp_path)
        missing = {*map(tuple, rows)}
        missing.difference_update(map(itemgetter(*head), records(full, head)))
        assert not missing, file

"""Runs that files tell of: traces and profiles of ONNX Runtime, read back and compared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from math import fsum
from pathlib import Path
from random import Random
from typing import Any

import pytest

import onnxperf
from onnxperf.ground.errors import LimitExceeded, UsageError
from onnxperf.scoring import run_files
from onnxperf.scoring.run_files import diff_runs, is_run, read
from onnxperf.scoring.timed_runs import Timed, TimedRun, difference, keep, of
from tests.measure.test_profile import model_run, node
from tests.scoring.conftest import PROCESSOR, Run

CUDA = "CUDAExecutionProvider"
SCENARIOS: tuple[dict[str, Any], ...] = (
    {}, {"include_transfers": True, "streams": 2}, {"cuda_graph": True, "fix_dims": True}, {"method": "sum"},
    {"gpu": "cpu"},
)  # fmt: skip


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Events, or lines, as ONNX Runtime writes them: each on a line of its own."""

    def write(*events: dict[str, Any] | str) -> Path:
        path = tmp_path / "profile.json"
        lines = [e if isinstance(e, str) else json.dumps(e) for e in events]
        path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
        return path

    return write


def kernel(parent: str, begin: float, lasts: float, type: str = "Conv") -> dict[str, Any]:
    args = {"op_name": type, "parent_name": f"{parent}_kernel_time", "stream": "7"}
    return {"cat": "Kernel", "name": "sm80_xmma", "ts": begin, "dur": lasts, "ph": "X", "args": args}


def run(*operators: tuple[str, str, float], measured: bool = False, beside: float = 1e-6) -> TimedRun:
    """A run of operators: name, type, seconds."""
    made = tuple(Timed(name, type, seconds) for name, type, seconds in operators)
    return TimedRun("a run", measured, fsum(o.seconds for o in made) + beside, made)


@pytest.mark.parametrize("terms", SCENARIOS, ids=str)
def test_a_trace_read_back_is_the_prediction(terms: dict[str, Any], small: Path, tmp_path: Path) -> None:
    if terms.get("gpu") == "cpu":
        (tmp_path / "cpu.toml").write_text(PROCESSOR.format("A CPU"), encoding="utf-8")
        terms = {"gpu": str(tmp_path / "cpu.toml")}
    p = onnxperf.predict(small, batch=64, **{"gpu": "l4", **terms})
    path = tmp_path / "trace.json"
    path.write_text(p.to_trace() + "\n", encoding="utf-8")
    back, own = read(path), of(p)
    assert is_run(path) and not back.measured and back.name == own.name
    assert back.seconds == pytest.approx(own.seconds, abs=1e-9)

    def by_name(r: TimedRun) -> list[tuple[str, str, tuple[str, ...], Any]]:
        return sorted((o.name, o.type, o.nodes, pytest.approx(o.seconds, abs=2e-9)) for o in r.operators)

    assert by_name(own) == [(*x[:3], x[3].expected) for x in by_name(back)]
    d = diff_runs(path, p)
    assert abs(d.seconds) < 2e-9 and all(len(x.a) == len(x.b) == 1 for x in d.pairs)


def test_a_profile_is_the_median_of_all_runs_but_the_first(written: Callable[..., Path]) -> None:
    events = [
        e for i, lasts in enumerate((500, 30, 20, 40))
        for e in (node("a", 1000 * i, lasts), node("b", 1000 * i + lasts, 5, "Relu"), model_run(1000 * i, lasts + 9))
    ]  # fmt: skip
    found = read(written({"cat": "Session", "name": "x", "ts": 0, "dur": 1, "ph": "X", "args": {}}, *events))
    assert (found.measured, found.runs, found.seconds) == (True, 3, pytest.approx(39e-6))
    assert found.operators == (
        Timed("a", "Conv", pytest.approx(30e-6)), Timed("b", "Relu", pytest.approx(5e-6)),
    )  # fmt: skip
    assert not found.notes
    assert read(written(*events[:3])).operators[0].seconds == pytest.approx(500e-6)


def test_times_of_kernels_count_where_there_are_any(written: Callable[..., Path]) -> None:
    gpu = {"provider": CUDA}
    events = [node("a", 0, 5, **gpu), node("view", 6, 5, "Reshape", **gpu), node("c", 12, 4, "Shape"),
              model_run(0, 90)]  # fmt: skip
    launches = read(written(*events))
    assert [o.name for o in launches.operators] == ["a", "view", "c"] and "CUDA_LAUNCH_BLOCKING" in launches.notes[0]
    found = read(written(*events, kernel("a", 20, 30.5), kernel("a", 60, 10)))
    assert [(o.name, o.type) for o in found.operators] == [("a", "Conv"), ("c", "Shape")] and not found.notes
    assert found.operators[0].seconds == pytest.approx(40.5e-6)


def test_a_run_that_the_cpu_did_is_told_before_any_figure(small: Path, written: Callable[..., Path], run: Run) -> None:
    cpu, gpu = {"provider": "CPUExecutionProvider"}, {"provider": CUDA}
    path = written(node("a", 0, 5, **cpu), node("b", 6, 5, "Relu", **cpu), model_run(0, 90))
    code, out, err = run("diff", small, path, "--gpu", "l4", "--batch", "64")
    assert (code, err) == (0, "") and out.startswith("B ran on the CPU: the provider of every operator is CPUExecution")
    code, out, _ = run("diff", path, small, "--gpu", "l4", "--batch", "64", "--json", "-")
    assert code == 0 and json.loads(out)["notes"][0].startswith("A ran on the CPU")
    names = [f"n{i}" for i in range(10)]
    written(node("a", 0, 5, **gpu), *(node(n, 6, 5, "Shape", **cpu) for n in names), model_run(0, 90))
    told = diff_runs(onnxperf.predict(small, gpu="l4", batch=64), path).on_cpu
    assert told == (f"B ran 10 operators on the CPU: {', '.join(names[:8])} and 2 more",)


def test_runs_of_processors_need_no_word_of_the_cpu(small: Path, written: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "cpu.toml").write_text(PROCESSOR.format("A CPU"), encoding="utf-8")
    path = written(node("a", 0, 5), model_run(0, 90))
    assert diff_runs(onnxperf.predict(small, gpu=str(tmp_path / "cpu.toml"), batch=64), path).on_cpu == ()
    assert diff_runs(path, path).on_cpu == ()


def test_operators_are_matched_by_name_and_add_up() -> None:
    a = run(("conv1", "Conv", 5e-6), ("gone", "Tanh", 1e-6), ("relu", "Relu", 2e-6))
    b = run(("relu", "Relu", 1e-6), ("conv1", "Conv", 9e-6), ("new", "Gemm", 3e-6), measured=True, beside=2e-6)
    for left, right, sign in ((a, b, 1), (b, a, -1)):
        d = difference(left, right)
        names = {(tuple(o.name for o in x.a), tuple(o.name for o in x.b)) for x in d.pairs}
        assert {x if sign > 0 else x[::-1] for x in names} == {
            (("conv1",), ("conv1",)), (("relu",), ("relu",)), (("gone",), ()), ((), ("new",)),
        }  # fmt: skip
        assert fsum(x.seconds for x in d.pairs) + d.rest_seconds == pytest.approx(d.seconds)
        assert d.seconds == pytest.approx(sign * 6e-6) and d.rest_seconds == pytest.approx(sign * 1e-6)
        assert d.largest[0].type == "Conv" and next(iter(d.by_type)) == "Conv"
        assert json.loads(d.to_json())["operators"][0]["seconds"] == pytest.approx(sign * 4e-6)
    keep(difference(a, b), 1.0)
    with pytest.raises(LimitExceeded, match=r"by 66\.7%, over the limit of 50%; most of it: Conv \+4 us, Gemm \+3 us"):
        keep(difference(a, b), 0.5)


def test_several_measured_operators_of_one_kernel_are_added() -> None:
    fused = TimedRun("p", False, 9e-6, (Timed("conv", "Conv", 8e-6, ("conv", "relu")),))
    parts = run(("conv", "Conv", 5e-6), ("relu", "Relu", 2e-6), measured=True)
    (pair,) = difference(fused, parts).pairs
    assert [o.name for o in pair.b] == ["conv", "relu"] and pair.seconds == pytest.approx(-1e-6)
    (pair,) = difference(parts, fused).pairs
    assert [o.name for o in pair.a] == ["conv", "relu"] and pair.seconds == pytest.approx(1e-6)


RUN = json.dumps(model_run(0, 9))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nonsense", "line 2 is not an event"),
        ('{"ph": "X", "cat": ', "line 2 is not an event.*truncated"),
        ("[" * 100_000, "line 2 is not an event"),
        ("[17]", "line 2 is not a trace event: 17"),
        ('{"traceEvents": []}', "line 2 is not a trace event: an object"),
        (RUN.replace('"dur": 9', '"dur": NaN'), "line 2 is not an event"),
        (
            RUN.replace('"dur": 9', '"dur": -9'),
            "line 2: dur must be microseconds from 0 to 1,000,000,000,000,000, not -9",
        ),
        (RUN.replace('"dur": 9', '"dur": 1e400'), "line 2: dur must be microseconds"),
        (
            RUN.replace('"dur": 9', '"dur": "9"'),
            'line 2: dur must be microseconds from 0 to 1,000,000,000,000,000, not "9"',
        ),
        (RUN.replace('"dur": 9', '"dur": true'), "line 2: dur must be"),
        (RUN.replace('"dur": 9', '"dur": 0'), "its runs took no time"),
        (RUN.replace('"model_run"', "17"), "line 2: name must be text of at most 10,000 characters, not 17"),
        (RUN.replace('"args": {}', '"args": []'), "line 2: args must be an object, not a list"),
        (json.dumps(node("a" * 10_001, 0, 1)), "line 2: name must be text of at most 10,000"),
        (json.dumps(node("a", 0, 1, nodes=["b", 1])), "line 2: nodes must be a list of names, not a list"),
        (json.dumps(node("a", 0, 1, nodes={})), "line 2: nodes must be a list of names, not an object"),
        (json.dumps(node("a", 0, 1)), "it has no complete run"),
        ("x" * (1 << 20), "line 2 is longer than 1 MiB"),
    ],
    ids=range(18),
)
def test_a_hostile_file_is_an_error_that_says_where(line: str, says: str, written: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match=f"profile.json: {says}") as error:
        read(written(line))
    assert len(str(error.value)) < 500


def test_a_damaged_trace_is_read_or_refused(small: Path, tmp_path: Path) -> None:
    text = onnxperf.predict(small, gpu="l4", batch=2).to_trace()
    chance, path, refused = Random(0), tmp_path / "trace.json", 0
    for _ in range(200):
        broken = bytearray(text.encode())
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(broken))
            broken[at : at + chance.randint(0, 9)] = chance.choice(
                (b"", b"]", b"{", b"-", b"9e99", b"null", b"\xff", b"[]")
            )
        path.write_bytes(bytes(broken))
        try:
            assert read(path).seconds > 0
        except UsageError as e:
            refused += 1
            assert str(e).startswith(str(path))
    assert 20 < refused < 200


def test_sizes_of_files_are_limited(written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(*(node(f"a{i}", i, 1, f"T{i}") for i in range(8)), model_run(0, 99))
    assert len(read(path).operators) == 8
    for limit, says in (("MAX_EVENTS", "more than 7 events"), ("MAX_OPERATORS", "more than 7 operators"),
                        ("MAX_TYPES", "or 7 types"), ("MAX_BYTES", "is larger than 0 MiB")):  # fmt: skip
        with monkeypatch.context() as patch, pytest.raises(UsageError, match=says):
            patch.setattr(run_files, limit, 7)
            read(path)


def test_the_command_takes_models_and_runs(small: Path, tmp_path: Path, run: Run) -> None:
    trace, measured = tmp_path / "trace.json", tmp_path / "measured.json"
    assert run("predict", small, "--gpu", "l4", "--batch", "64", "--trace", trace)[0] == 0
    p = onnxperf.predict(small, gpu="t4", batch=64)
    measured.write_text(p.to_trace().replace("onnxperf_version", "x"), encoding="utf-8")
    code, out, err = run("diff", trace, measured)
    assert (code, err) == (0, "")
    assert out.startswith("A: small.onnx on NVIDIA L4 under ort-cuda (predicted)\nB: measured.json (measured, median")
    assert "launch overhead and gaps" in out and "Softmax" in out
    code, out, err = run("diff", trace, small, "--gpu", "t4", "--batch", "64", "--json", "-")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["b"]["seconds"] == p.seconds and not answer["b"]["measured"]
    assert run("diff", small, trace, "--gpu", "l4", "--batch", "64", "--fail-above", "1%")[0] == 0
    code, out, err = run("diff", trace, measured, "--fail-above", "1%", "--top", "0")
    assert code == 1 and "over the limit of 1%" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--gpu names the card to predict"),
        (("--gpu", "l4", "--batch", "2", "--fit"), "--fit could choose different batches"),
    ],
)
def test_what_a_model_needs(arguments: tuple[str, ...], says: str, small: Path, written: Any, run: Run) -> None:
    code, out, err = run("diff", written(model_run(0, 9)), small, *arguments)
    assert (code, out) == (2, "") and says in err


def test_runs_that_are_over_take_no_terms(written: Callable[..., Path], run: Run) -> None:
    path = written(node("a", 0, 5), model_run(0, 9))
    code, out, err = run("diff", path, path, "--gpu", "l4", "--batch", "2")
    assert (code, out) == (2, "") and "leave --gpu, --batch out" in err
    assert run("diff", path, path)[0] == 0


def test_hostile_names_are_plain_text_on_a_terminal(written: Any, tmp_path: Path, run: Run) -> None:
    name = "[red]\x1b[31m\u202e\n<b>" + "x" * 9_000
    path = written(node(name, 0, 5, "\x1b]0;T\x07"), model_run(0, 9)).rename(tmp_path / "a.json")
    code, out, _ = run("diff", path, written(node(name, 0, 7, "\x1b]0;T\x07"), model_run(0, 9)))
    assert code == 0 and "\x1b" not in out and "\u202e" not in out and "[red]" in out
    other = path.with_name("a\x1b[31m.json")
    path.rename(other)
    code, out, err = run("diff", other, path.with_name("none.json"))
    assert code == 2 and "\x1b" not in out + err


#: As trtexec 8.4 wrote them, without medians, and a later release with (layers of published files, shortened).
OLDER = """[
  { "count" : 625 }
, { "name" : "Reformatting CopyNode for Input Tensor 0 to Conv_0 + PWN(Clip_3)", "timeMs" : 36.6844, "averageMs" : 0.058695, "percentage" : 46.8 }
, { "name" : "Conv_0 + PWN(Clip_3)", "timeMs" : 41.4232, "averageMs" : 0.0662771, "percentage" : 53.2 }
, { "name" : "Reformatting CopyNode for Input Tensor 0 to Conv_8", "timeMs" : 0, "averageMs" : 0, "percentage" : 0 }
]
"""  # noqa: E501
LATER = """[
  { "count" : 41400 }
, { "name" : "/conv1/Conv + /act1/Relu", "timeMs" : 1160.78, "averageMs" : 0.0280382, "medianMs" : 0.027872, "percentage" : 100 }
]
"""  # noqa: E501


def layers(tmp_path: Path, text: str) -> TimedRun:
    path = tmp_path / "layers.json"
    path.write_text(text, encoding="utf-8")
    assert is_run(path)
    return read(path)


def test_a_profile_of_trtexec_is_its_layers_by_the_nodes_that_they_do(tmp_path: Path) -> None:
    old, new = layers(tmp_path, OLDER), layers(tmp_path, LATER)
    assert [(o.name, o.type, o.nodes) for o in old.operators] == [
        ("Reformatting CopyNode for Input Tensor 0 to Conv_0 + PWN(Clip_3)", "Reformat", ()),
        ("Conv_0 + PWN(Clip_3)", "Conv", ("Conv_0", "Clip_3")),
    ]
    assert (old.measured, old.on_gpu, old.runs) == (True, True, 625)
    assert old.seconds == old.sum_seconds == pytest.approx(124.9721e-6)
    assert [(o.type, o.nodes) for o in new.operators] == [("Conv", ("/conv1/Conv", "/act1/Relu"))]
    assert (new.seconds, new.runs) == (pytest.approx(27.872e-6), 41400)  # the median
    assert new.notes == (run_files.LAYERS_ONLY,)


def test_a_predicted_profile_of_layers_read_back_is_the_prediction(small: Path, tmp_path: Path) -> None:
    p = onnxperf.predict(small, gpu="t4", runtime="tensorrt", batch=64)
    path = tmp_path / "layers.json"
    p.to_layer_profile(path)
    d = diff_runs(path, p)
    assert all(len(x.a) == len(x.b) == 1 for x in d.pairs) and len(d.pairs) == len(p.kernels)
    assert max(abs(x.seconds) for x in d.pairs) < 2e-9
    assert d.rest_seconds == pytest.approx(p.seconds - p.sum_seconds, abs=1e-8)


def test_layers_of_tensorrt_belong_to_the_kernels_that_do_the_same_nodes() -> None:
    kernels = TimedRun("predicted", False, 1.0, (
        Timed("b", "FusedConv", 1e-6, ("/m/conv/Conv", "/m/act/Sigmoid", "/m/act/Mul")),
        Timed("c", "Concat", 1e-6, ("/m/Concat",)),
    ))  # fmt: skip
    names = ("/m/Concat", "Reformatting CopyNode for Input Tensor 0 to /m/conv/Conv", "/m/conv/Conv",
             "PWN(PWN(/m/act/Sigmoid), /m/act/Mul)")  # fmt: skip
    measured = TimedRun("trtexec", True, 1.0, tuple(Timed(name, "", 1e-6) for name in names))
    matched = {tuple(o.name for o in x.a): [o.name for o in x.b] for x in difference(kernels, measured).pairs}
    assert matched == {("b",): [*names[2:]], ("c",): ["/m/Concat"], (): [names[1]]}


@pytest.mark.parametrize(("layer", "says"), [
    ('{ "name" : "Conv", "averageMs" : "1" }', "line 3: averageMs must be milliseconds from 0"),
    ('{ "name" : 3, "averageMs" : 1 }', "line 3: name must be text"),
    ('{ "count" : -1 }', "line 3: count must be a number from 0"),
    ('{ "name" : "Conv", "averageMs" : 0 }', "no complete run"),
])  # fmt: skip
def test_a_profile_of_trtexec_that_is_broken_is_told_with_its_line(layer: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        layers(tmp_path, f'[\n  {{ "count" : 1 }}\n, {layer}\n]\n')


def test_which_kernels_of_eager_pytorch_became_one() -> None:
    path = Path(__file__).parents[2] / "samples" / "resnet50.onnx"
    eager, compiled = (
        onnxperf.predict(path, gpu="l4", batch=8, precision="amp", runtime=r) for r in ("torch-eager", "torch-compile")
    )
    d = difference(of(eager), of(compiled))
    (fused,) = {tuple(o.type for o in p.a) for p in d.pairs if p.b and p.b[0].name.endswith("add_relu_15")}
    assert Counter(fused) == {"BatchNormalization": 2, "Add": 1, "Relu": 1}
    back = difference(of(compiled), of(eager))
    assert back.seconds == -d.seconds and len(back.pairs) == len(d.pairs)

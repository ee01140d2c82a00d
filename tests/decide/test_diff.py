"""What two models differ in: every kernel has its place, and what the differences cost adds up."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import fsum
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import onnxperf
from onnxperf.answer.kernel_timeline import KernelPrediction
from onnxperf.answer.predict import predict
from onnxperf.answer.prediction import Prediction
from onnxperf.decide import diff
from onnxperf.decide.diff import CAUSES, Change, Difference, difference, in_order, total
from onnxperf.decide.two_models import compare, signed, slower
from onnxperf.ground.errors import UsageError
from onnxperf.ground.tables import percent
from onnxperf.running.pipeline import Request
from onnxperf.views.difference import verdict
from op_models import Conv, Gemm, Move, Pointwise, Rows, Size, Transfer, Work
from tests.decide.models import model_of
from tests.goldens import golden
from tests.test_cli import SAMPLES, run

RESNET, KERAS = str(SAMPLES / "resnet50.onnx"), str(SAMPLES / "keras-resnet50.onnx")


@pytest.fixture
def onnxperf_cli(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    return lambda *arguments: run(capsys, monkeypatch, *arguments)


@cache
def some_prediction() -> Prediction:
    return predict(RESNET, gpu="t4")


def side(
    kernels: Sequence[tuple[str, Size, float]], prefix: str = "k", *, factor: float = 1.0, beside: float = 1e-5
) -> Prediction:
    """A run of these kernels (operator type, size, seconds), with some time beside them."""
    like = some_prediction()
    rows = tuple(
        replace(like.kernels[0], name=f"{prefix}{i}", op=op, seconds=seconds, repeat=1, work=_work(size))
        for i, (op, size, seconds) in enumerate(kernels)
    )
    added = fsum(k.seconds for k in rows)
    return replace(like, kernels=rows, seconds=added + beside, sum_seconds=added, power_factor=factor)


def _work(size: Size) -> Work:
    return Work(size, "float32", "fp32", 800, 400, 0)


def counterparts(d: Difference) -> Counter[tuple[str | None, str | None, str]]:
    return Counter((c.a and c.a.name, c.b and c.b.name, c.cause) for c in d.changes)


SOFTMAX = ("Softmax", "com.microsoft::BiasSoftmax")
sizes = st.one_of(
    st.builds(
        Conv, st.just(1), st.sampled_from((3, 8)), st.sampled_from((8, 16)), st.sampled_from((49, 196)),
        st.sampled_from((1, 9)), st.just(1), st.sampled_from((1, 4)),
    ).map(lambda s: ("Conv", s)),
    st.builds(Gemm, st.just(1), st.sampled_from((1, 128)), st.sampled_from((64, 128)), st.just(64)).map(
        lambda s: ("MatMul", s)
    ),
    st.tuples(st.sampled_from(("Relu", "Add", "com.microsoft::FastGelu")), st.builds(Pointwise, st.integers(1, 3))),
    st.tuples(st.sampled_from(SOFTMAX), st.builds(Rows, st.integers(1, 3), st.just(8))),
    st.tuples(st.just("Transpose"), st.builds(Move, st.integers(1, 2), st.just(1))),
    st.tuples(st.just("Transfer"), st.builds(Transfer, st.just(64), st.sampled_from(("h2d", "d2h")))),
)  # fmt: skip
kernels = st.lists(st.tuples(sizes, st.floats(1e-7, 1e-2)).map(lambda x: (*x[0], x[1])), max_size=25)
factors = st.sampled_from((1.0, 1.25))


@settings(deadline=None)
@given(kernels, kernels, factors)
def test_every_kernel_has_one_place_and_all_adds_up(a, b, factor) -> None:
    left, right = side(a, "a"), side(b, "b", factor=factor)
    d = difference(left, right)
    assert Counter(c.a for c in d.changes if c.a) == Counter(left.kernels)
    assert Counter(c.b for c in d.changes if c.b) == Counter(right.kernels)
    for c in d.changes:
        assert c.cause in CAUSES and (c.a is None) == (c.cause == "added") and (c.b is None) == (c.cause == "removed")
    own, other = ([k.seconds for k in s.kernels] for s in (left, right))
    assert total(d.changes) == fsum([*other, *(-x for x in own)])
    assert total(d.changes) + d.launch_and_gaps_seconds == pytest.approx(d.seconds, rel=1e-12, abs=1e-15)
    assert sum(len(changes) for changes in d.groups.values()) + len(d.of("same")) == len(d.changes)


@settings(deadline=None)
@given(kernels, kernels, factors)
def test_the_other_way_round_it_is_the_same_with_the_signs_changed(a, b, factor) -> None:
    left, right = side(a, "a"), side(b, "b", factor=factor)
    turned = {"added": "removed", "removed": "added", "slower": "faster", "faster": "slower"}
    there, back = difference(left, right), difference(right, left)
    assert counterparts(back) == Counter({(y, x, turned.get(c, c)): n for (x, y, c), n in counterparts(there).items()})
    assert back.seconds == -there.seconds
    assert back.launch_and_gaps_seconds == pytest.approx(-there.launch_and_gaps_seconds, rel=1e-12, abs=1e-15)


@settings(deadline=None)
@given(kernels)
def test_nothing_differs_from_itself(a) -> None:
    d = difference(side(a), side(a))
    assert counterparts(d) == Counter((f"k{i}", f"k{i}", "same") for i in range(len(a)))
    assert (d.seconds, d.launch_and_gaps_seconds, d.ratio) == (0, 0, 1)


def longest(a: Sequence[tuple[str]], b: Sequence[tuple[str]]) -> int:
    """The length of a longest common subsequence, by its definition."""
    row = [0] * (len(b) + 1)
    for x in a:
        before = [*row]
        for j, y in enumerate(b):
            row[j + 1] = before[j] + 1 if x == y else max(before[j + 1], row[j])
    return row[-1]


letters = st.lists(st.sampled_from("abc").map(lambda c: (c,)), max_size=20)


@settings(deadline=None)
@given(letters, letters)
def test_an_alignment_is_a_longest_common_subsequence(a, b) -> None:
    pairs = in_order(a, b)
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(i < k and j < n for (i, j), (k, n) in pairwise(pairs))
    assert len(pairs) == longest(a, b)
    assert sorted((j, i) for i, j in pairs) == in_order(b, a)


@settings(max_examples=20, deadline=None)
@given(kernels, kernels)
def test_runs_too_long_to_align_are_matched_all_the_same(a, b) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diff, "CELLS", 0)
        d = difference(side(a, "a"), side(b, "b"))
    assert len([c for c in d.changes if c.a]) == len(a) and len([c for c in d.changes if c.b]) == len(b)
    same = Counter(x[:2] for x in a) & Counter(x[:2] for x in b)
    assert len(d.of("same", "slower", "faster")) >= sum(same.values())


def test_thousands_of_kernels_of_a_side() -> None:
    def kernel(i: int) -> tuple[str, Size, float]:
        return "Relu", Pointwise(1 + i * i % 37), 1e-6

    a, b = side([kernel(i) for i in range(5_000)], "a"), side([kernel(i + 3) for i in range(5_100, 0, -1)], "b")
    d = difference(a, b)
    assert len([c for c in d.changes if c.a]) == 5_000 and len([c for c in d.changes if c.b]) == 5_100
    assert len(d.of("added", "removed")) == 100


RELU, CONV = ("Relu", Pointwise(100), 2e-6), ("Conv", Conv(1, 8, 8, 49, 9, 1, 1), 9e-6)


def one(a: tuple[str, Size, float], b: tuple[str, Size, float], **terms: float) -> Change:
    """What becomes of one kernel on each side."""
    (found,) = difference(side([a]), side([b], **terms)).changes
    return found


def test_what_counts_as_the_same_work() -> None:
    assert one(CONV, ("com.microsoft::FusedConv", *CONV[1:])).cause == "same"
    assert one(("MatMul", Gemm(1, 2, 3, 4), 1e-6), ("Gemm", Gemm(1, 2, 3, 4, tb=True), 1e-6)).cause == "same"
    slower = one(CONV, ("com.microsoft::FusedConv", CONV[1], 1e-5))
    assert (slower.cause, slower.what, slower.operator) == ("slower", "operator Conv -> FusedConv", "Conv")
    assert slower.seconds == pytest.approx(1e-6)


def test_the_power_limit_makes_no_kernel_differ() -> None:
    assert one(RELU, (*RELU[:2], 2.5e-6), factor=1.25).cause == "same"
    assert one(RELU, (*RELU[:2], 2.5e-6)).cause == "slower"
    copy = ("Transfer", Transfer(64, "h2d"), 2e-6)
    assert one(copy, copy, factor=1.25).cause == "same"  # the bus knows no such limit


def test_a_layer_with_another_size_is_changed() -> None:
    strided = one(CONV, ("Conv", Conv(1, 8, 8, 49, 9, 1, 4), 5e-6))
    assert (strided.cause, strided.what) == ("changed", "product of strides 1 -> 4")
    assert one(RELU, ("Sigmoid", *RELU[1:])).what == "operator Relu -> Sigmoid"
    halves = difference(side([RELU]), side([("Transpose", Move(100, 1), 1e-6)]))
    assert Counter(c.cause for c in halves.changes) == {"removed": 1, "added": 1}


def test_an_inserted_layer_is_the_one_that_was_added() -> None:
    block = [CONV, RELU, ("Add", Pointwise(100), 1e-6)]
    before, after = side(block * 3, "a"), side([*block, ("Softmax", Rows(4, 8), 3e-6), *block * 2], "b")
    assert [c.b.name for c in difference(before, after).of("added") if c.b] == ["b3"]


def requests(a: str | bytes, b: str | bytes, gpu: str = "t4", **given: object) -> tuple[Request, Request, str]:
    return Request(a, **given), Request(b, **given), gpu  # type: ignore[arg-type]


def test_resnet_of_two_frameworks_differs_where_the_stride_stands() -> None:
    """PyTorch strides the 3x3 convolution of a block, Keras the 1x1 before it."""
    d = compare(*requests(RESNET, KERAS))
    convolutions = [c for c in d.changes if c.operator == "Conv"]
    assert len(convolutions) == 53 and {c.cause for c in convolutions} == {"same", "changed"}
    changed = [c for c in convolutions if c.cause == "changed"]
    assert len(changed) == 6 and all("product of strides" in c.what for c in changed)
    # the image arrives with its channels last and leaves as probabilities
    assert sorted(c.operator for c in d.of("added")) == ["Softmax", "Transpose"] and not d.of("removed")


@pytest.mark.parametrize("gpu", ["t4", "l4", "a100"])
def test_the_same_network_of_two_frameworks_takes_the_same_time(gpu: str) -> None:
    a, b = (str(SAMPLES / name) for name in ("mobilenetv2.onnx", "keras-mobilenetv2.onnx"))
    d = compare(*requests(a, b, gpu))
    assert d.ratio == pytest.approx(1, abs=0.05)
    assert {c.cause for c in d.changes if c.a} == {"same"}
    assert sorted(c.operator for c in d.of("added")) == ["Softmax", "Transpose"]


def model(name: str, *types: str, dim: str | int = "n", batch: int = 1) -> bytes:
    """A chain of operators on a tensor [batch, dim, 64]."""
    nodes = [helper.make_node(t, [f"t{i}"], [f"t{i + 1}"], name=f"{name}{i}") for i, t in enumerate(types)]
    ends = [helper.make_tensor_value_info(f"t{i}", TensorProto.FLOAT, [batch, dim, 64]) for i in (0, len(types))]
    graph = helper.make_graph(nodes, name, ends[:1], ends[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(made)
    return made.SerializeToString()


def elements(k: KernelPrediction | None) -> int:
    assert k
    return k.bytes_written // 4


def test_each_model_takes_the_sizes_that_it_has_a_name_for() -> None:
    static, open_n, open_m = model("a", "Relu", dim=5), model("b", "Relu"), model("c", "Relu", dim="m")
    (c,) = compare(*requests(static, open_n, dims={"n": 7})).changes
    assert (elements(c.a), elements(c.b)) == (5 * 64, 7 * 64)
    (c,) = compare(*requests(open_m, open_n, dims={"n": 7, "m": 3})).changes
    assert (elements(c.a), elements(c.b)) == (3 * 64, 7 * 64)
    (c,) = compare(*requests(open_n, open_n, dims={"n": 9})).changes
    assert (elements(c.a), elements(c.b)) == (9 * 64, 9 * 64)
    (c,) = compare(*requests(open_m, open_n, shapes={"t0": (1, 2, 64)})).changes
    assert (elements(c.a), elements(c.b)) == (2 * 64, 2 * 64)


def test_a_size_that_neither_model_has_a_name_for() -> None:
    static, open_n = model("a", "Relu", dim=5), model("b", "Relu")
    with pytest.raises(UsageError, match="model A: the model has no dimension 'k'"):
        compare(*requests(open_n, open_n, dims={"k": 7, "n": 2}))
    with pytest.raises(UsageError, match="model A: --shapes names 'k'"):
        compare(*requests(static, static, shapes={"k": (7,)}))
    with pytest.raises(UsageError, match="model B: input 't0' has a dynamic dimension 'n'"):
        compare(*requests(static, open_n))
    with pytest.raises(UsageError, match=r"^unknown gpu"):
        compare(*requests(static, static, gpu="none"))


def test_table(onnxperf_cli) -> None:
    code, out, err = onnxperf_cli("diff", RESNET, KERAS, "--gpu", "t4")
    assert (code, err) == (0, "")
    golden("diff.txt", out)


def test_json_adds_up_and_stands_alone(onnxperf_cli, tmp_path: Path) -> None:
    code, out, _ = onnxperf_cli("diff", RESNET, KERAS, "--gpu", "l4", "--precision", "fp16", "--json", "-")
    d = json.loads(out)
    assert code == 0 and d["precision"] == "fp16"
    assert d["a"]["model"] == "resnet50.onnx" and d["b"]["model"] == "keras-resnet50.onnx"
    assert d["a"]["seconds"] == predict(RESNET, gpu="l4", precision="fp16").seconds
    parts = [d["matched"]["seconds"], d["launch_and_gaps_seconds"]]
    parts += [c["seconds"] for cause in ("changed", "added", "removed") for c in d[cause]]
    assert fsum(parts) == pytest.approx(d["seconds"], rel=1e-9) == pytest.approx(d["b"]["seconds"] - d["a"]["seconds"])
    assert d["added"] and all(c["a"] is None and c["b"]["nodes"] for c in d["added"])
    target = tmp_path / "d.json"
    assert onnxperf_cli("diff", RESNET, KERAS, "--gpu", "l4", "--precision", "fp16", "--json", str(target))[0] == 0
    assert json.loads(target.read_text()) == d


def test_a_limit_on_how_much_slower(onnxperf_cli) -> None:
    mobile, keras = (str(SAMPLES / name) for name in ("mobilenetv2.onnx", "keras-mobilenetv2.onnx"))
    assert onnxperf_cli("diff", mobile, keras, "--gpu", "t4", "--fail-above", "5%")[0] == 0
    release = ("--gpu", "t4", "--ort-version", "1.20")  # whose host takes less of the time
    code, out, err = onnxperf_cli("diff", mobile, keras, *release, "--fail-above", "0.1%")
    assert code == 1 and "B is" in out
    assert "over the limit of 0.1%" in err and "1 Transpose (only in B)" in err and err.count("\n") == 1
    assert onnxperf_cli("diff", keras, mobile, "--gpu", "t4", "--fail-above", "0.1%")[0] == 0  # faster is no reason


def test_a_limit_of_nothing_is_for_anything_slower(onnxperf_cli, tmp_path: Path) -> None:
    """The same model is no slower, the same run at a clock that is a little lower is."""
    assert onnxperf_cli("diff", RESNET, RESNET, "--gpu", "t4", "--fail-above", "0%")[0] == 0
    fast, slow = (str(tmp_path / f"{mhz}.json") for mhz in (1590.0, 1589.9))
    for trace in (fast, slow):
        card = ("--gpu", "t4", "--clock", Path(trace).stem)
        assert onnxperf_cli("predict", RESNET, *card, "--trace", trace)[0] == 0
    assert onnxperf_cli("diff", slow, fast, "--fail-above", "0")[0] == 0
    code, _, err = onnxperf_cli("diff", fast, slow, "--fail-above", "0")
    assert code == 1 and re.search(r"slower than A by 0\.0+\d%, over the limit of 0%", err)
    assert not slower(1e-9, 0.0) and slower(1e-5, 0.0) and not slower(0.05, 0.05)
    assert [percent(x, "+") for x in (0.0, -1e-9, 3.21e-5, -2e-6, 0.0512)] == [
        "+0.0%", "+0.0%", "+0.003%", "-0.0002%", "+5.1%"
    ]  # fmt: skip


def test_what_does_not_fit_is_over_any_limit(onnxperf_cli, tmp_path: Path) -> None:
    """A row of a table of 40 GB is read fast, but the table is in no memory of 24 GB."""
    large, trace = str(tmp_path / "large.onnx"), str(tmp_path / "trace.json")
    text = "g (int64[1] i) => (float[1,100000] y) { y = Gather(w, i) }"
    onnx.save(model_of(text, {"w": (100_000, 100_000)}), large)
    code, _, err = onnxperf_cli("diff", RESNET, large, "--gpu", "l4", "--fail-above", "5%")
    assert code == 1 and "B does not fit into the card's memory: it needs 40.4 GB of 24.2 GB; A does" in err
    code, _, err = onnxperf_cli("diff", large, large, "--gpu", "l4", "--fail-above", "5%")
    assert code == 1 and "24.2 GB; neither does A" in err
    assert onnxperf_cli("diff", large, RESNET, "--gpu", "l4", "--fail-above", "9999999%")[0] == 0
    assert onnxperf_cli("diff", RESNET, large, "--gpu", "l4")[0] == 0  # no limit was asked for
    assert onnxperf_cli("predict", RESNET, "--gpu", "l4", "--trace", trace)[0] == 0
    code, _, err = onnxperf_cli("diff", trace, large, "--gpu", "l4", "--fail-above", "5%")
    assert code == 1 and "B does not fit" in err


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        ((RESNET, KERAS, "--gpu", "t4", "--fit"), 2, "--batch"),
        ((RESNET, "missing.onnx", "--gpu", "t4"), 2, "model B: no such file: missing.onnx"),
        (("gone.onnx", "missing.onnx"), 2, "no such file: gone.onnx"),
        ((RESNET, KERAS), 2, "--gpu names the card to predict"),
        (("", KERAS, "--gpu", "t4"), 2, "empty"),
        ((RESNET, "--gpu", "t4"), 2, "Missing argument 'B'"),
        ((RESNET, __file__, "--gpu", "t4"), 3, "test_diff.py is not an ONNX model"),
        ((RESNET, KERAS, "--gpu", "t4", "--fail-above", "much"), 2, "not a percentage or fraction"),
        ((RESNET, KERAS, "--gpu", "t4", "--json", KERAS), 2, "would overwrite"),
    ],
)
def test_bad_input_is_told_in_a_sentence(onnxperf_cli, arguments: tuple[str, ...], code: int, says: str) -> None:
    given_code, out, err = onnxperf_cli("diff", *arguments)
    assert (given_code, out) == (code, "")
    assert says in err and "Traceback" not in err


def test_two_predictions_are_compared_as_they_are() -> None:
    eager, compiled = (predict(RESNET, gpu="t4", runtime=f"torch-{how}") for how in ("eager", "compile"))
    d = onnxperf.diff(eager, compiled)
    assert isinstance(d, onnxperf.RunDifference) and d == onnxperf.diff_runs(eager, compiled)
    assert d.seconds == compiled.seconds - eager.seconds
    ask: Any = onnxperf.diff
    for a, b, terms, says in (
        (eager, RESNET, {"gpu": "t4"}, "two predictions without gpu and terms, or two models"),
        (eager, compiled, {"gpu": "t4"}, "two predictions without gpu and terms, or two models"),
        (RESNET, KERAS, {}, "name the card: diff"),
    ):
        with pytest.raises(UsageError, match=says):
            ask(a, b, **terms)


def test_names_of_strangers_are_safe_to_show(onnxperf_cli, tmp_path: Path) -> None:
    for file, data in (("a.onnx", model("\x1b[31m[bold]", "Relu", dim=5)), ("b.onnx", model("b\n", "Exp", dim=4))):
        (tmp_path / file).write_bytes(data)
    code, out, _ = onnxperf_cli("diff", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "--gpu", "t4")
    assert code == 0 and "\x1b" not in out and "[bold]" in out


def test_batches_that_differ_are_told(onnxperf_cli, tmp_path: Path) -> None:
    for file, batch in (("a.onnx", 8), ("b.onnx", 2)):
        (tmp_path / file).write_bytes(model("m", "Relu", dim=5, batch=batch))
    files = [str(tmp_path / file) for file in ("a.onnx", "b.onnx")]
    code, out, _ = onnxperf_cli("diff", *files, "--gpu", "t4", "--method", "sum")
    assert code == 0 and "batch 8 in A, 2 in B" in out
    assert "elements 2560 -> 640" in out
    code, out, _ = onnxperf_cli("diff", *files, "--gpu", "t4", "--method", "sum", "--batch", "4")
    assert code == 0 and "batch 4," in out and "A and B take the same time" in out


@pytest.mark.parametrize(
    ("seconds", "says"), [(2.23e-12, "0"), (-9e-10, "0"), (1.5e-9, "+1.5 ns"), (-3e-6, "-3 us"), (0.0, "0")]
)
def test_less_than_a_nanosecond_is_no_difference(seconds: float, says: str) -> None:
    assert signed(seconds) == says


def test_a_difference_that_does_not_matter_is_called_none() -> None:
    sizes = [("Relu", Pointwise(4), 1e-3)], [("Relu", Pointwise(4), 1e-3 + 77e-9)], [("Relu", Pointwise(4), 1.02e-3)]
    a, b, c = (side(kernels, name) for kernels, name in zip(sizes, "abc", strict=True))
    assert verdict(difference(a, b)).startswith("A and B take the same time, 1.01 ms and 1.01 ms")
    assert verdict(difference(a, c)).startswith("B is 20 us slower than A")
    assert verdict(difference(c, a)).startswith("B is 20 us faster than A")

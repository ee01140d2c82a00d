"""Files that are fixed to a batch, at another: what is changed, what stays, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.parser import parse_model

import onnxperf
from onnxperf.graph import Graph, load, opened, rebatch
from onnxperf.ground.errors import UsageError
from onnxperf.ground.rules import work_or_bytes
from onnxperf.measure.job import Job
from onnxperf.measure.plan import prepare

HEAD = '<ir_version: 10, opset_import: ["" : 18]>'
SAMPLES = Path(__file__).parents[2] / "samples"


def model(text: str, batch: int = 1, weights: dict[str, Sequence[int]] | None = None) -> ModelProto:
    """A model for a batch: `N` stands for it in the text. `weights` are stored without data."""
    sized = re.sub(r"\bN\b", str(batch), text).replace("BB", str(2 * batch)).replace("TT", str(5 * batch))
    made = parse_model(f"{HEAD} g {sized}")
    made.graph.initializer.extend(
        TensorProto(name=name, data_type=1, dims=[batch if d == 0 else d for d in dims])
        for name, dims in (weights or {}).items()
    )
    return made


def target(name: str, *sizes: Any) -> str:
    return f"{name} = Constant<value = int64[{len(sizes)}] {{{', '.join(map(str, sizes))}}}>()"


def shapes(graph: Graph) -> list[Any]:
    """Operators with the shapes they read and write, and their FLOPs."""
    return [
        (o.type, [t.shape for t in o.present], [t.shape for t in o.outputs], work_or_bytes(o)[0].flops)
        for o in graph.operators
    ]


def rebatched(graph: Graph) -> tuple[str, ...] | None:
    """The nodes that the note names; None without one."""
    return next((n.nodes for n in graph.notes if n.code == "rebatched"), None)


ATTENTION = f"""(float[N, 9, 8] x) => (float[N, 9, 8] y) {{
    {target("s", "N", 9, 2, 4)} {target("m", "N", 9, 8)}
    q0 = MatMul(x, wq) q1 = Reshape(q0, s) q = Transpose<perm = [0, 2, 1, 3]>(q1)
    k0 = MatMul(x, wk) k1 = Reshape(k0, s) k = Transpose<perm = [0, 2, 3, 1]>(k1)
    a = MatMul(q, k) p = Softmax<axis = -1>(a)
    z0 = MatMul(p, q) z1 = Transpose<perm = [0, 2, 1, 3]>(z0) z = Reshape(z1, m) y = Add(z, x) }}"""
WINDOWS = f"""(float[N, 8, 8, 4] x) => (float[N, 8, 8, 4] y) {{
    {target("s", "N", 2, 4, 2, 4, 4)} {target("w", -1, 16, 4)} {target("v", "N", 4, 16, 4)}
    {target("u", "N", 2, 2, 4, 4, 4)} {target("t", "N", 8, 8, 4)}
    a = Reshape(x, s) b = Transpose<perm = [0, 1, 3, 2, 4, 5]>(a) c = Reshape(b, w) d = MatMul(c, wk)
    e = Reshape(d, v) f = Add(e, mask) g = Reshape(f, u) h = Transpose<perm = [0, 1, 3, 2, 4, 5]>(g)
    y = Reshape(h, t) }}"""
HEADS = f"""(float[N, 6, 8] x) => (float[N, 6, 8] y) {{
    {target("s", "N", 6, 2, 4)} {target("m", "-1", 6, 4)} {target("v", "N", 2, 6, 4)} {target("o", "N", 6, 8)}
    a = Reshape(x, s) b = Transpose<perm = [0, 2, 1, 3]>(a) c = Reshape(b, m) d = Transpose<perm = [0, 2, 1]>(c)
    e = MatMul(c, d) f = MatMul(e, c) g = Reshape(f, v) h = Transpose<perm = [0, 2, 1, 3]>(g) y = Reshape(h, o) }}"""
TOKEN = f"""(float[N, 5, 8] x) => (float[N, 6, 8] y) {{
    {target("s", "N", 1, 8)} c = Expand(token, s) j = Concat<axis = 1>(c, x) y = Add(j, position) }}"""
SHUFFLE = f"""(float[N, 6, 4, 4] x) => (float[N, 6, 4, 4] y) {{
    {target("s", "N", 2, 3, 4, 4)} {target("t", "N", 6, 4, 4)}
    a = Reshape(x, s) b = Transpose<perm = [0, 2, 1, 3, 4]>(a) y = Reshape(b, t) }}"""
RESIZE = f"""(float[N, 3, 4, 4] x) => (float[N, 3, 8, 8] y) {{
    {target("s", "N", 3, 8, 8)} y = Resize<mode = "nearest">(x, , , s) }}"""
MASKED = """(float[N, 4, 6] x) => (float[N, 4, 6] y) {
    s = Shape<start = 0, end = 1>(x) f = Constant<value = int64[2] {4, 6}>() t = Concat<axis = 0>(s, f)
    o = ConstantOfShape<value = float[1] {1.0}>(t) y = Mul(x, o) }"""
#: PyTorch's MultiheadAttention: two Reshapes that merge the batch with what is behind, or with what is before it.
SECOND = f"""(float[N, 5, 8] x) => (float[N, 5, 8] y) {{
    {target("s", 5, "BB", 4)} {target("m", "TT", 8)} {target("o", 5, "N", 8)}
    a = Transpose<perm = [1, 0, 2]>(x) b = Reshape(a, s) c = Transpose<perm = [1, 0, 2]>(b)
    d = Transpose<perm = [0, 2, 1]>(c) e = MatMul(c, d) f = MatMul(e, c) g = Transpose<perm = [1, 0, 2]>(f)
    h = Reshape(g, m) i = MatMul(h, w) j = Reshape(i, o) y = Transpose<perm = [1, 0, 2]>(j) }}"""
OLD_HEADS = HEADS.replace("{-1, 6, 4}", "{2, -1, 4}")  # right for one sample alone, and no error for others

RIGHT: dict[str, tuple[str, dict[str, Sequence[int]]]] = {
    "attention": (ATTENTION, {"wq": (8, 8), "wk": (8, 8)}),
    "windows": (WINDOWS, {"wk": (4, 4), "mask": (1, 4, 16, 4)}),
    "heads": (HEADS, {}),
    "token": (TOKEN, {"token": (1, 1, 8), "position": (1, 6, 8)}),
    "shuffle": (SHUFFLE, {}),
    "resize": (RESIZE, {}),
    "masked": (MASKED, {}),
    "second": (SECOND, {"w": (8, 8)}),
}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize(("old", "new"), [(1, 3), (1, 16), (2, 6), (3, 1), (4, 2)])
def test_the_model_of_another_batch_comes_out(name: str, old: int, new: int) -> None:
    text, weights = RIGHT[name]
    found, own = load(model(text, old, weights), batch=new), load(model(text, new, weights))
    assert shapes(found) == shapes(own)
    assert (found.batch, found.inputs[0].shape) == (new, own.inputs[0].shape)
    assert rebatched(own) is None
    assert (rebatched(found) is not None) == (name != "masked")


def test_a_target_that_merges_the_batch_elsewhere_is_not_believed() -> None:
    """[2, -1, 4] would make one long sequence of all samples: it runs at any batch, and is another model."""
    own = load(model(HEADS, 3))
    assert shapes(load(model(OLD_HEADS), batch=3))[2] == shapes(own)[2]
    assert shapes(load(model(OLD_HEADS), batch=3)) == shapes(own)


def test_an_axis_that_nothing_tells_from_another_is_refused() -> None:
    text = f"(float[N, 5, 8] x) => (float[N, 5, 8] y) {{ {target('s', 5, 'BB', 4)} {target('o', 5, 'N', 8)}"
    text += " a = Transpose<perm = [1, 0, 2]>(x) b = Reshape(a, s) c = Relu(b) d = Reshape(c, o)"
    with pytest.raises(UsageError, match=r"node 'Reshape_3' \(Reshape\) does not tell which axis"):
        load(model(text + " y = Transpose<perm = [1, 0, 2]>(d) }"), batch=3)


def test_a_large_model_is_not_tried_in_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way takes as long as reading the model: 24 of them on 40,000 nodes would take minutes."""
    text, weights = RIGHT["second"]
    load(model(text, 1, weights), batch=3)
    monkeypatch.setattr("onnxperf.graph.rebatch.MOST_TRIED", 20)
    with pytest.raises(UsageError, match=r"does not tell .* operators not every way can be tried; export the model"):
        load(model(text, 1, weights), batch=3)


def test_the_note_says_what_was_done() -> None:
    graph = load(model(ATTENTION, 1, RIGHT["attention"][1]), batch=16)
    (note,) = [n for n in graph.notes if n.code == "rebatched"]
    assert note.nodes == ("Reshape_3", "Reshape_6", "Reshape_12")
    assert "the file has batch 1" in note.message and "batch 16" in note.message and "Reshape_3" in note.message
    assert rebatched(load(model(ATTENTION, 1, RIGHT["attention"][1]))) is None


TWICE = "(float[N, 6, 4] x) => (float[N, 24] y) { BEFORE " + target("s", "N", 24) + " y = Reshape(z, s) AFTER }"
FLAT = "Constant<value = int64[1] {0}>()"
#: What a node does to the batch, between two that hold it in a constant.
MIXING = {
    "adds up": f"o = {FLAT} m = ReduceMean<keepdims = 1>(x, o) z = Sub(x, m)",
    "takes shares": "z = Softmax<axis = 0>(x)",
    "one sample": "i = Constant<value = int64 {0}>() p = Gather<axis = 0>(x, i) z = Add(x, p)",
    "samples": f"i = {FLAT} z = Gather<axis = 0>(x, i)",
    "part": f"i = {FLAT} e = Constant<value = int64[1] {{1}}>() z = Slice(x, i, e, i)",
    "drops": f"i = {FLAT} p = Squeeze(x, i) z = Unsqueeze(p, i)",
    "drops what is 1": f"i = {FLAT} p = Squeeze(x) z = Unsqueeze(p, i)",
    "itself": "f = Flatten<axis = 1>(x) t = Transpose(f) p = MatMul(f, t) w = MatMul(p, f) "
    + target("b", 1, 6, 4) + " z = Reshape(w, b)",
    "accumulates": "i = Constant<value = int64 {0}>() z = CumSum(x, i)",
    "pairs": f"o = Constant<value = int64[1] {{1}}>() a = Unsqueeze(x, o) p = Sub(a, x) q = {FLAT} z = ReduceSum(p, q)",
    "normalises": "z = MeanVarianceNormalization<axes = [0, 1]>(x)",
    "diagonal": 'z = Einsum<equation = "nij,mij->mij">(x, x)',
    "splits": "z = Split<axis = 0, num_outputs = 1>(x)",
    "scatters": "i = Constant<value = int64[1, 1] {0}>() u = Neg(x) z = ScatterND(x, i, u)",
}  # fmt: skip


@pytest.mark.parametrize("what", MIXING)
def test_what_is_no_batch_is_refused(what: str) -> None:
    text = TWICE.replace("BEFORE", MIXING[what]).replace("AFTER", "")
    assert load(model(text)).batch == 1
    with pytest.raises(
        UsageError, match=r"--batch 3 can't be used, the model is made for batch 1: .*node '.*dynamic batch$"
    ):
        load(model(text), batch=3)


def test_what_no_constant_fixes_is_predicted_as_it_runs() -> None:
    """Samples that are all compared with each other: the file's own graph at the larger batch."""
    text = "(float[N, 8] x) => (float[N, N] y) { t = Transpose(x) y = MatMul(x, t) }"
    assert load(model(text), batch=5).outputs[0].shape == (5, 5)
    assert rebatched(load(model(text), batch=5)) is None


def test_sizes_of_one_that_are_no_batch_stay() -> None:
    text = f"""(float[N, 1, 1, 8] x, float[5, 1] grid) => (float[N, 1, 8] y) {{
        {target("s", "N", 1, 8)} a = Add(x, bias) b = Reshape(a, s) g = ReduceSum<keepdims = 0>(grid)
        y = Add(b, g) }}"""
    graph = load(model(text, 1, {"bias": (1, 1, 1, 8)}), batch=4)
    assert shapes(graph) == shapes(load(model(text, 4, {"bias": (1, 1, 1, 8)})))
    assert [t.shape for t in graph.inputs] == [(4, 1, 1, 8), (5, 1)]


def test_an_output_without_an_axis_for_the_batch_is_refused() -> None:
    text = f"(float[N, 6, 4] x) => (float[6, 4] y) {{ {target('s', 6, 4)} y = Reshape(x, s) }}"
    with pytest.raises(UsageError, match=r"output 'y' has no axis of its own for the batch; export"):
        load(model(text), batch=3)


def test_constants_that_may_differ_from_sample_to_sample_are_not_repeated() -> None:
    text = "(float[N, 4] x) => (float[N, 6] y) { y = Concat<axis = 1>(x, w) }"
    with pytest.raises(UsageError, match=r"'Concat_0'.*constant 'w' \(2x2\) can't be compared.*its data are not there"):
        load(model(text, 2, {"w": (2, 2)}), batch=4)
    assert load(model(text, 1, {"w": (1, 2)}), batch=4).operators[-1].out.shape == (4, 6)


def test_indices_that_count_the_samples_go_on_counting() -> None:
    """As the masks of transformers are read: mask[sample, position], with a constant for both."""
    text = """(int64[N, 4] mask, float[N, 1, 4, 4] x) => (float[N, 1, 4, 4] y) {
        c = Cast<to = 1>(mask) g = GatherND(c, where) y = Add(x, g) }"""

    def masked(batch: int) -> ModelProto:
        made, at = model(text, batch), [(n, k) for n in range(batch) for k in range(4)]
        where = helper.make_tensor("where", TensorProto.INT64, [batch, 1, 1, 4, 2], [i for pair in at for i in pair])
        made.graph.initializer.append(where)
        return made

    for old in (1, 2):
        assert shapes(load(masked(old), batch=6)) == shapes(load(masked(6)))


def stored(made: ModelProto, **arrays: Any) -> ModelProto:
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return made


@pytest.mark.parametrize("new", [1, 2, 5])
@pytest.mark.parametrize("positions", [4, 2000])
def test_indices_into_samples_and_what_they_hold_go_on_counting(new: int, positions: int) -> None:
    """As exporters write mask[sample, position]: flat, and by tuples, also where they are too many to be kept."""

    def masked(batch: int) -> ModelProto:
        text = f"""(float[N, {positions}] x) => (float[N, 1, {positions}, 1] y, float[N, 1, {positions}] z) {{
            f = Flatten<axis = 2>(x) y = Gather(f, flat)
            one = Constant<value = int64[1] {{-1}}>() r = Unsqueeze(rows, one) c = Unsqueeze(columns, one)
            at = Concat<axis = -1>(r, c) z = GatherND(x, at) }}"""
        rows, columns = np.broadcast_arrays(np.arange(batch)[:, None, None], np.arange(positions))
        return stored(model(text, batch), rows=rows, columns=columns, flat=rows * positions + columns)

    assert shapes(load(masked(4), batch=new)) == shapes(load(masked(new)))


def test_indices_into_other_samples_are_refused() -> None:
    text = "(float[N, 6] x) => (float[N, 6, 1] y) { f = Flatten<axis = 2>(x) y = Gather(f, at) }"
    at = np.arange(24).reshape(4, 6)
    for wrong in (at[::-1], at % 6, at + 1 - 6 * (at > 22)):
        with pytest.raises(UsageError, match=r"\(Gather\): its indices are those of samples"):
            load(stored(model(text, 4), at=np.ascontiguousarray(wrong)), batch=1)


def test_a_column_of_numbers_of_samples_goes_on_counting() -> None:
    """As exporters write x[arange(batch), ids], with the ids known in the run alone."""

    def picked(batch: int, numbers: Any, then: str = "GatherND(x, at)") -> ModelProto:
        text = f"""(float[N, 6, 8] x, int64[N, 1] ids) => (float[N, 8] y)
            {{ at = Concat<axis = -1>(numbers, ids) y = {then} }}"""
        return stored(model(text, batch), numbers=numbers)

    def numbers(n: int) -> Any:
        return np.arange(n)[:, None]

    for new in (1, 3):
        assert shapes(load(picked(4, numbers(4)), batch=new)) == shapes(load(picked(new, numbers(new))))
    with pytest.raises(UsageError, match=r"constant 'numbers' \(4x1\) differs from sample to sample"):
        load(picked(4, numbers(4)[::-1].copy()), batch=1)
    with pytest.raises(UsageError, match=r"\(Cast\) can't be shown to .*: it reads the numbers of samples"):
        load(picked(4, numbers(4), "Cast<to = 1>(at)"), batch=1)


def test_a_constant_that_is_spread_over_the_batch_is_repeated() -> None:
    """As exporters write the first states of an LSTM."""
    text = f"""(float[7, N, 8] x) => (float[7, N, 8] y) {{
        one = Constant<value = int64[1] {{1}}>() two = Constant<value = int64[1] {{2}}>()
        b = Shape<start = 1, end = 2>(x) {target("w", 8)} s = Concat<axis = 0>(one, b, w)
        h = Expand(zeros, s) y = Add(x, h) }}"""

    def spread(batch: int, value: Any) -> ModelProto:
        made = stored(model(text, batch), zeros=value)
        made.graph.node.append(helper.make_node("LSTM", ["x", "lw", "lr"], ["u"], hidden_size=4))
        made.graph.output.append(helper.make_tensor_value_info("u", 1, None))
        return stored(made, lw=np.zeros((1, 16, 8), np.float32), lr=np.zeros((1, 16, 4), np.float32))

    for new in (1, 3):
        zeros = [np.zeros((1, n, 8), np.float32) for n in (4, new)]
        assert shapes(load(spread(4, zeros[0]), batch=new)) == shapes(load(spread(new, zeros[1])))
    with pytest.raises(UsageError, match=r"\(Expand\): its constant 'zeros' \(1x4x8\) differs from sample to sample"):
        load(spread(4, np.arange(32, dtype=np.float32).reshape(1, 4, 8)), batch=2)


def test_a_squeeze_of_all_ones_leaves_a_batch_of_one() -> None:
    text = "(float[N, 8, 1, 1] x) => (float[N, 5] y) { s = Squeeze(x) y = Gemm(s, w) }"
    graph = load(model(text, 4, {"w": (8, 5)}), batch=1)
    assert [o.out.shape for o in graph.operators] == [(1, 8), (1, 5)]
    assert rebatched(graph) == ("Squeeze_0",)


def lstm(batch: int, first: bool, lengths: bool, last: bool = False) -> ModelProto:
    """A fixed LSTM with states of its own; `first`: a Transpose in front, as PyTorch's batch_first makes one.

    `last`: only its last state is read.
    """
    shape = [batch, 12, 8] if first else [12, batch, 8]
    inputs = [("x", 1, shape), ("h", 1, [2, batch, 4]), ("c", 1, [1, batch, 4]), ("lens", TensorProto.INT32, [batch])]
    kept = [helper.make_tensor_value_info(*i) for i in inputs if lengths or i[0] != "lens"]
    bounds = [helper.make_tensor(n, 7, [1], [v]) for n, v in (("zero", 0), ("one", 1))]
    stored = [TensorProto(name=n, data_type=1, dims=[1, 16, k]) for n, k in (("w", 8), ("r", 4))]
    flat = helper.make_tensor("flat", 7, [3 - last], [batch, 4] if last else [12, batch, 4])
    reads = ["t" if first else "x", "w", "r", "", "lens" if lengths else "", "h0", "c"]
    nodes = [
        helper.make_node("Slice", ["h", "zero", "one", "zero"], ["h0"]),
        helper.make_node("LSTM", reads, ["", "y"] if last else ["y"], hidden_size=4),
        helper.make_node("Reshape", ["y", "flat"], ["z"]),
    ]  # fmt: skip
    if first:
        nodes.insert(0, helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]))
    graph = helper.make_graph(nodes, "g", kept, [helper.make_tensor_value_info("z", 1, None)], [*stored, *bounds, flat])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("lengths", [True, False])
@pytest.mark.parametrize("last", [True, False])
def test_recurrent_operators_have_the_batch_in_other_axes(first: bool, lengths: bool, last: bool) -> None:
    found, own = load(lstm(1, first, lengths, last), batch=6), load(lstm(6, first, lengths, last), batch=6)
    assert [t.shape for t in found.inputs] == [t.shape for t in own.inputs]
    assert shapes(found) == shapes(own)
    assert found.batch == own.batch == 6
    assert load(lstm(1, first, lengths)).batch == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit-base-16", "bert-base", "gpt2", "keras-efficientnetb0"])
def test_samples_that_are_fixed_take_any_batch(name: str) -> None:
    graph, one = load(SAMPLES / f"{name}.onnx", batch=16), load(SAMPLES / f"{name}.onnx")
    assert rebatched(graph)
    work = [sum(work_or_bytes(o)[0].matrix_flops for o in g.operators) for g in (graph, one)]
    assert work[0] == 16 * work[1]


def test_everything_that_takes_a_batch_takes_it() -> None:
    fixed = model(ATTENTION, 1, RIGHT["attention"][1])
    fitting = onnxperf.predict(fixed, gpu="t4", fit=True, max_ms=0.2)
    assert fitting.scenario.batch > 8
    assert fitting.seconds == onnxperf.predict(fixed, gpu="t4", batch=fitting.scenario.batch).seconds
    assert "rebatched" in {w.code for w in fitting.warnings}
    ranked = onnxperf.compare(fixed, gpu=["t4", "l4"], by="throughput")
    assert ranked.to_dict()["fixed_batch"] == ""
    assert all(c.best and c.best.batch > 1 for c in ranked.cards)


def test_the_file_is_followed_once_for_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    read, followed = opened(model(ATTENTION, 1, RIGHT["attention"][1])), list[int]()
    whole = rebatch._followed
    monkeypatch.setattr(rebatch, "_followed", lambda at, old, new: (followed.append(new), whole(at, old, new))[1])
    graphs = [load(read, batch=n) for n in (2, 5, 9)]
    assert [g.outputs[0].shape[0] for g in graphs] == [2, 5, 9]
    assert followed == [2]


def test_an_input_whose_shape_is_given_is_no_batch() -> None:
    text = "(float[N, 6, 4] x, float[1, 4] scale) => (float[N, 24] y) { z = Mul(x, scale) " + target("s", "N", 24)
    fixed = model(text + " y = Reshape(z, s) }")
    with pytest.raises(UsageError, match="node 'Mul_0'"):
        load(fixed, batch=3)
    graph = load(fixed, batch=3, shapes={"scale": (1, 4)})
    assert [t.shape for t in graph.inputs] == [(3, 6, 4), (1, 4)]
    assert graph.outputs[0].shape == (3, 24)
    assert shapes(load(fixed, shapes={"x": (3, 6, 4)})) == shapes(graph), "or all others are given"


def test_a_measurement_runs_the_file_as_it_is() -> None:
    with pytest.raises(UsageError, match="a file is measured as it is, and node 'Reshape_3' has another batch"):
        prepare(Job(model(ATTENTION, 1, RIGHT["attention"][1]), "cpu", batch=2))


@pytest.mark.parametrize(("nodes", "says"), [(1, "in constants of 1 node: Resh"), (2, "in constants of 2 nodes: ")])
def test_the_note_counts_nodes_in_plain_english(nodes: int, says: str) -> None:
    more = f"{target('u', 'N', 24)} y = Reshape(a, u)" if nodes == 2 else "y = Identity(a)"
    text = f"(float[N, 6, 4] x) => (float[N, A, B] y) {{ {target('s', 'N', 4, 6)} a = Reshape(x, s) {more} }}"
    made = model(text)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    [note] = [n for n in load(made, batch=3).notes if n.code == "rebatched"]
    assert says in note.message


def test_an_empty_batch_is_not_followed() -> None:
    """Its sizes tell nothing, and nothing is divided by them: what is stored for it stays, or contradicts the rest."""
    head = '<ir_version: 9, opset_import: ["" : 20]> g (float[0, 3] x) => (float[n, 3] y) <float[0, 3] none = {}>'
    model = parse_model(f"{head} {{ k = Identity(none) y = Concat <axis = 0> (x, k) }}")
    assert load(model, batch=8).outputs[0].shape == (8, 3)
    with pytest.raises(onnxperf.Error, match="0x3"):
        load(parse_model(f"{head} {{ y = Add(x, none) }}"), batch=8)

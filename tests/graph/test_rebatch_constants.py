"""Constants of a file that is fixed to a batch: which hold the same for every sample, and can be repeated for more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, save_model
from onnx.reference import ReferenceEvaluator

from onnxperf import predict
from onnxperf.graph import load, stored_data
from onnxperf.ground.errors import UsageError
from tests.graph.test_rebatch import model, shapes, target


def test_constants_that_are_the_same_for_each_sample_are_repeated(tmp_path: Path) -> None:
    """Of any size, inside the file or beside it; others are refused for what they hold."""
    text = "(float[N, 2048, 4] x) => (float[N, 2048, 4] y) { y = Add(x, w) }"
    same = np.repeat(np.random.default_rng(0).random((1, 2048, 4), np.float32), 2, 0)
    other = same.copy()
    other[1, 2047, 3] += 1
    for data in (same, other):
        made = model(text, 2)
        made.graph.initializer.append(numpy_helper.from_array(data, "w"))
        typed = model(text, 2)
        typed.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, data.shape, data.ravel()))
        inside = made.SerializeToString()
        save_model(made, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
        for given in (inside, typed, tmp_path / "m.onnx"):
            if data is same:
                assert shapes(load(given, batch=6)) == shapes(load(model(text, 6, {"w": (6, 2048, 4)})))
                continue
            with pytest.raises(UsageError, match=r"'Add_0' \(Add\): its constant 'w' \(2x2048x4\) differs from sample"):
                load(given, batch=6)
    for damage in (lambda f: f.write_bytes(f.read_bytes()[:-1]), Path.unlink):
        damage(tmp_path / "w.bin")
        with pytest.raises(UsageError, match="can't be compared from sample to sample because its data are not there"):
            load(tmp_path / "m.onnx", batch=6)


@pytest.mark.parametrize("piece", [1, 24, 1000])
def test_data_are_compared_piece_by_piece(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_data, "PIECE", piece)
    rng = np.random.default_rng(1)
    for outer, inner in ((1, 7), (3, 5), (4, 1)):
        same = np.repeat(rng.integers(0, 9, (outer, 1, inner), np.int16), 3, 1)
        assert stored_data.differing(numpy_helper.from_array(same), None, outer, 3) == ""
        for at in np.ndindex(same.shape):
            other = same.copy()
            other[at] += 1
            assert stored_data.differing(numpy_helper.from_array(other), None, outer, 3) == stored_data.DIFFERS


COMPUTED = {
    "ConstantOfShape": f"{target('s', 'N', 40, 64)} c = ConstantOfShape(s)",
    "Expand, through other operators": f"""{target("s", "N", 1, 40, 64)} {target("f", "N", 40, 64)}
        e = Expand(w, s) a = Add(e, v) g = Sigmoid(a) c = Reshape(g, f)""",
    "Tile": f"{target('s', 'N', 1, 1)} t = Tile(w, s) yes = Greater(v, v) c = Where(yes, t, v)",
    "rows that the samples share": """ids = Constant<value = int64[N, 40] {IDS}>() c = Gather(table, ids)""",
}


@pytest.mark.parametrize("case", COMPUTED)
def test_computed_constants_that_are_the_same_for_each_sample_are_repeated(case: str) -> None:
    text = f"(float[N, 40, 64] x) => (float[N, 40, 64] y) {{ {COMPUTED[case]} y = Add(x, c) }}"

    def made(batch: int) -> ModelProto:
        ids = ", ".join(str(i) for _ in range(batch) for i in range(40))
        sized = text.replace("IDS", ids)
        return model(sized, batch, {"w": (1, 40, 64), "v": (40, 64), "table": (100, 64)})

    graph = load(made(2), batch=6)
    assert {t.shape for o in graph.operators for t in (*o.inputs, *o.outputs) if t} == {(6, 40, 64)}


def test_computed_constants_that_may_differ_are_refused() -> None:
    """Rows of a table by ids of their own; what adds a stored weight whose data are not there."""
    ids = ", ".join(map(str, range(80)))
    texts = {
        f"ids = Constant<value = int64[2, 40] {{{ids}}}>() c = Gather(table, ids)": "'Gather_1'",
        f"{target('s', 'N', 40, 64)} e = ConstantOfShape(s) c = Add(e, w)": "'Add_2'",
    }
    for made, name in texts.items():
        text = f"(float[N, 40, 64] x) => (float[N, 40, 64] y) {{ {made} y = Add(x, c) }}"
        with pytest.raises(UsageError, match=f"'c'.*because it is computed by node {name}"):
            load(model(text, 2, {"w": (2, 40, 64), "table": (100, 64)}), batch=6)


def test_a_tile_leaves_each_sample_its_own_repeats() -> None:
    """Twice along the axis that holds the batch: the whole batch, and then once more."""
    text = f"""(float[N, 4] x) => (float[N, 2, 4] y) {{
        twice = Constant<value = int64[2] {{2, 1}}>() {target("s", 2, "N", 4)}
        a = Tile(x, twice) b = Reshape(a, s) y = Transpose<perm = [1, 0, 2]>(b) }}"""
    for old, new in ((2, 6), (3, 4)):
        made = model(text, old)
        graph = load(made, batch=new)
        assert shapes(graph) == shapes(load(model(text, new)))
        assert [o.out.shape for o in graph.operators] == [(2 * new, 4), (2, new, 4), (new, 2, 4)]
        x = np.random.default_rng(old).random((old, 4), np.float32)
        [y] = ReferenceEvaluator(made).run(None, {"x": x})
        assert (y == x[:, None]).all(), "each sample stands beside its own copy alone"
    mixed = text.replace(target("s", 2, "N", 4), target("s", "N", 2, 4)).replace("[1, 0, 2]", "[0, 1, 2]")
    with pytest.raises(UsageError, match="in which the batch has no axis"):  # each sample would stand beside another
        load(model(mixed, 3), batch=6)


def test_a_list_that_begins_empty_is_followed() -> None:
    """What makes it reads nothing, neither what repeats itself nor anything else."""
    text = """(float[N, 4] x) => (float[N, 4] y) { zero = Constant<value = int64 {0}>()
        none = SequenceEmpty() one = SequenceInsert(none, x) y = SequenceAt(one, zero) }"""
    assert load(model(text, 2), batch=6).outputs[0].shape == (6, 4)
    assert predict(model(text, 2), gpu="l4").report()  # which looks for what a larger batch would bring

"""Indices beyond their table: refused where they are known before the run, as ONNX Runtime refuses them in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from click.testing import CliRunner
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

import onnxperf
from onnxperf import ModelError, UsageError
from onnxperf.cli import cli
from onnxperf.graph import load

HEAD = '<ir_version: 10, opset_import: ["" : 18]> g (int64[1, S] ids) => (float[A, B, C] y)'
POSITIONS = """ zero = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>()
    axis = Constant<value = int64[1] {0}>() two = Constant<value = int64[2] {2, 1}>()
    s = Shape<start = 1>(ids) n = Squeeze(s) r = Range(zero, n, one) """
CASES = {
    "positions": "u = Unsqueeze(r, axis) y = Gather(table, u)",
    "an offset": "o = Constant<value = int64 {-1}>() m = Range(one, n, one) a = Add(m, o) b = Add(a, one) "
    "u = Unsqueeze(b, axis) y = Gather(table, u)",
    "other operators": "t = Unsqueeze(r, axis) c = Cast<to = 6>(t) e = Tile(c, two) y = Gather(table, e)",
    "another axis": "w = Transpose<perm = [1, 0]>(table) u = Unsqueeze(r, axis) y = Gather<axis = 1>(w, u)",
    "backwards": "k = Neg(n) l = Constant<value = int64 {-1}>() b = Range(l, k, l) c = Add(b, l) "
    "u = Unsqueeze(b, axis) v = Unsqueeze(c, axis) y1 = Gather(table, u) y = Gather(table, v)",
}


def model(nodes: str, rows: int) -> ModelProto:
    made = parse_model(f"{HEAD} {{ {POSITIONS} {nodes} }}")
    made.graph.initializer.append(numpy_helper.from_array(np.ones((rows, 4), np.float32), "table"))
    return made


def runs(made: ModelProto, size: int) -> bool:
    """Whether ONNX Runtime runs it on the CPU; its errors name the bounds."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds: dict[str, Any] = {"ids": np.zeros((1, size), np.int64)}
    try:
        session.run(None, feeds)
    except Exception as e:  # several kinds, none of which is exported
        assert "out of data bounds" in str(e)
        return False
    return True


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rows", [7, 5000])  # of so many, the values themselves are not known
def test_a_sequence_longer_than_its_table(case: str, rows: int) -> None:
    made = model(CASES[case], rows)
    for size in (rows - 1, rows, rows + 1, rows + 2):
        if runs(made, size):
            assert load(made, dims={"S": size}).operators
            continue
        with pytest.raises(UsageError, match=rf"reads index .* has {rows:,} .* at these sizes .*S={size}"):
            load(made, dims={"S": size})


def test_every_command_refuses_it(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model(CASES["positions"], 8).SerializeToString())
    long, right = ("--gpu", "l4", "--dim", "S=9"), ("--gpu", "l4", "--dim", "S=8")
    for command in (("predict", path), ("predict", path, "--fit"), ("check", path, "--max-latency", "1s")):
        asked = list(map(str, command))
        assert CliRunner().invoke(cli, [*asked, *right]).exit_code == 0
        run = CliRunner().invoke(cli, [*asked, *long])
        assert run.exit_code and "reads index 8 of 'table', which has 8 rows" in f"{run.output} {run.exception}"
    run = CliRunner().invoke(cli, ["sweep", str(path), "--gpu", "l4", "--dim", "S=8,9"])
    assert run.output.count("reads index 8 of 'table'") == 1


def test_constants_of_the_file_itself() -> None:
    text = "i = Constant<value = int64[1, 2] {{3, {}}}>() f = Cast<to = 1>(ids) t = Mul(table, f) y = Gather(t, i)"
    for last in (3, -4):
        assert load(model(text.format(last), 4), dims={"S": 4}).operators
    for last in (4, -5):
        made = model(text.format(last), 4)
        made.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 4
        with pytest.raises(ModelError, match=f"'Gather_.*reads index {last} of 't', which has 4 rows"):
            load(made)


def test_what_may_not_run_is_not_refused() -> None:
    """A node that no output depends on, which a prediction leaves out, and the branch of an If."""
    dead = "u = Unsqueeze(r, axis) f = Cast<to = 1>(ids) w = Unsqueeze(f, axis) z = Gather(table, u) y = Relu(w)"
    assert "Gather" not in {o.type for o in load(model(dead, 4), dims={"S": 9}).operators}
    branches = """long = Cast<to = 9>(n) u = Unsqueeze(r, axis) f = Cast<to = 1>(ids) w = Unsqueeze(f, axis)
        c = ReduceMax<keepdims = 0>(ids) d = Cast<to = 9>(c) y = If(d) <
            then_branch = t () => (float[A, B, C] p) { p = Gather(table, u) },
            else_branch = e () => (float[A, B, C] q) { q = Relu(w) }>"""
    assert onnxperf.predict(model(branches, 4), gpu="l4", dims={"S": 9}).seconds > 0

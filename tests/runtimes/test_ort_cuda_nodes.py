"""Nodes that ONNX Runtime's CUDA provider runs as several kernels, or as a slower one than others have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpu_specs
from onnxperf.latency import alone, shipped
from onnxperf.lowering.lower import lower
from onnxperf.runtimes import RUNTIMES
from op_models import Move, Operator, Tensor, Work, work_of

CARDS = [gpu_specs.load(i) for i in gpu_specs.ids() if gpu_specs.load(i).kind == "gpu"]


def kernels(run: Any, text: str, **how: Any) -> list[tuple[str, int]]:
    return [(k.op.rpartition("::")[2], k.repeat) for k in lower(run(text, **how), RUNTIMES["ort-cuda"]).rows]


def seconds(*works: Work) -> Any:
    return alone(works, CARDS, shipped(), budget=False).seconds


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(("axis", "opset", "turned"), [(1, 20, True), (-1, 20, False), (2, 13, False), (1, 12, False)])
def test_a_softmax_over_another_axis_than_the_last_is_turned(
    run: Any, kind: str, axis: int, opset: int, turned: bool
) -> None:
    text = f"(float[8,100,64] x) => (float[8,100,64] y) {{y={kind}<axis={axis}>(x)}}"
    rows = lower(run(text, opset=opset), RUNTIMES["ort-cuda"]).rows
    assert [k.op for k in rows] == (["Transpose", kind, "Transpose"] if turned else [kind])
    assert [k.visited for k in rows] == [True, False, False][: len(rows)], "one node"
    if turned:
        assert (rows[1].work.size.rows, rows[1].work.size.width) == (8 * 64, 100)  # type: ignore[union-attr]
        assert kernels(run, text, runtime="torch-eager") == [(kind, 1)], "torch's spatial kernel"


def test_each_class_of_each_image_is_suppressed_by_itself(run: Any) -> None:
    """The host waits for the number of winners of each, so that no CUDA graph can be captured either."""
    text = (
        "(float[2,1000,4] b, float[2,80,1000] s) => (int64[N,3] y) <int64 m={100}, float i={0.5}>"
        "{y=NonMaxSuppression(b,s,m,i)}"
    )
    rows = lower(run(text), RUNTIMES["ort-cuda"]).rows
    assert [(k.op, k.repeat) for k in rows[:-1]] == [
        ("TopK", 160), ("NonMaxSuppression", 160), ("Compress", 160), ("MemcpyToHost", 160),
    ]  # fmt: skip
    assert rows[-1].op == "Concat" and [k.blocks for k in rows] == [False, False, False, True, False]
    assert rows[1].work.vector_flops == 22 * 1000 * 999 // 2, "boxes of one class, every two of them"


def test_a_cumulative_sum_is_a_loop_in_each_thread(run: Any) -> None:
    text = "(float[8,%d] x) => (float[8,%d] y) <int64 a={1}> {y=CumSum(x,a)}"
    short, long = (work_of(run(text % (n, n)).operators[0]) for n in (256, 4096))
    assert (short.vector_flops, long.vector_flops) == (8 * 256 * 257 // 2, 8 * 4096 * 4097 // 2)
    (one,), (other,) = alone([short], CARDS, shipped()).seconds, alone([long], CARDS, shipped()).seconds
    assert (other - one > (4096 - 256) * 4 / 3e9).all(), "4 clocks at least for a step"
    scan = work_of(run(text % (4096, 4096), runtime="torch-eager").operators[0])
    assert scan.vector_flops == 8 * 4096, "torch has a parallel scan"


def transposed(*shape: int, perm: tuple[int, ...]) -> Work:
    x = Tensor("x", "float32", shape)
    out = Tensor("y", "float32", tuple(shape[i] for i in perm))
    return work_of(Operator("t", "Transpose", (x,), (out,), {"perm": perm}))


def test_matrices_are_turned_by_tiles_at_the_rate_of_a_copy() -> None:
    """A square in shared memory makes both sides contiguous; other permutations have no such kernel."""
    copy = Work(Move(1 << 24, 1 << 24), "float32", "fp32", 1 << 26, 1 << 26, 0)
    least, plain, stacked, thin, mixed = seconds(
        copy,
        transposed(4096, 4096, perm=(1, 0)), transposed(16, 1024, 1024, perm=(0, 2, 1)),
        transposed(1 << 23, 2, perm=(1, 0)), transposed(64, 512, 512, perm=(2, 1, 0)),
    )  # fmt: skip
    assert (plain < 1.3 * least).all() and (stacked < 1.3 * least).all()
    assert (thin > 1.5 * plain).any() and (mixed > 1.5 * plain).any()


def test_indices_are_read_as_they_lie() -> None:
    """A GatherElements fetches whole sectors for single elements, but wider indices cost no more than their bytes."""
    x, y = (Tensor(name, "float32", (16384, 4096)) for name in "xy")
    indices = [Tensor("i", dtype, x.shape) for dtype in ("int32", "int64")]
    narrow, wide = seconds(*(work_of(Operator("g", "GatherElements", (x, i), (y,), {"axis": 1})) for i in indices))
    more_bytes = np.array([4 * x.size / (0.7 * d.bandwidth_Bps) for d in CARDS])
    assert (wide > narrow).all() and (wide - narrow < more_bytes).all()


@pytest.mark.parametrize(("kind", "waits"), [("Loop", True), ("Scan", False)])
def test_the_host_waits_for_every_run_of_a_loop(run: Any, kind: str, waits: bool) -> None:
    """It reads the condition, which the body may have made on the device; a Scan knows how often it runs."""
    body = "body = b (int64 i, bool c, float[64] v) => (bool d, float[64] w) {d=Identity(c) u=Neg(v) w=Abs(u)}"
    node = f"y=Loop<{body}>(n,t,x)"
    if kind == "Scan":
        node = "y=Scan<num_scan_inputs=1, body = b (float[64] v, float[1] e) => (float[64] w) {u=Neg(v) w=Abs(u)}>(x,s)"
    text = f"(float[64] x, float[50,1] s) => (float[64] y) <int64 n={{50}}, bool t={{1}}> {{{node}}}"
    rows = lower(run(text), RUNTIMES["ort-cuda"]).rows
    assert [(k.op, k.repeat, k.blocks) for k in rows[:2]] == [("Neg", 50, False), ("Abs", 50, waits)]
    assert not any(k.blocks for k in rows[2:])

"""Kernels: what they wait for, what the host spends before each, what crosses the bus."""

from __future__ import annotations

import pytest

from gpu_specs import HOSTS
from onnxperf.fusions import placement
from onnxperf.graph import Graph
from onnxperf.latency import HostProcessor, shipped
from onnxperf.lowering.lower import lower
from onnxperf.runtimes import RUNTIMES, of_version
from op_models import Operator, Tensor

ORT = RUNTIMES["ort-cuda"]
HOST = ORT.host
CPU = HostProcessor(HOSTS["server-2020"], shipped())
ONE = HOST.node_s + HOST.launch_s


def tensor(name: str, *shape: int, dtype: str = "float32") -> Tensor:
    return Tensor(name, dtype, shape or (2, 2), "input" if name == "x" else "weight" if name == "w" else "activation")


def op(name: str, type: str, inputs: str, outputs: str, place: str = "gpu") -> Operator:
    """An operator on tensors named by letters."""
    ins, outs = (tuple(map(tensor, s.split())) for s in (inputs, outputs))
    return Operator(name, type, ins, outs, nodes=(name,), place=place)


def graph(*operators: Operator, outputs: str = "y") -> Graph:
    return Graph("g", operators, (tensor("x"),), tuple(map(tensor, outputs.split())))


def test_edges_lead_through_views_and_the_host() -> None:
    rows = lower(
        graph(
            op("a", "Relu", "x", "a"),
            op("v", "Reshape", "a", "v", "free"),
            op("h", "Abs", "v", "h", "host"),
            op("b", "Relu", "x", "b"),
            op("c", "Add", "h b", "c"),
            op("d", "Add", "c a", "y"),
        ),
        ORT,
    ).rows
    assert [(k.name, k.after) for k in rows] == [("a", ()), ("b", ()), ("c", (0, 1)), ("d", (0, 2))]
    assert not any(k.blocks for k in rows)


@pytest.mark.parametrize(
    ("version", "k", "n", "pipe"),
    [
        ("1.6", 768, 50257, "fp16_sums"), ("1.6", 129, 64, "fp16_sums"), ("1.6", 768, 50264, "tensor_fp16_sums"),
        ("1.7", 768, 50257, "tensor_fp16_sums"), ("1.8", 768, 50257, "tensor_fp16"),
    ],
)  # fmt: skip
def test_until_1_7_products_are_summed_in_fp16_and_until_1_6_not_on_tensor_cores_where_sizes_are_odd(
    version: str, k: int, n: int, pipe: str
) -> None:
    a, b, y = (Tensor(name, "float16", shape) for name, shape in (("x", (3, k)), ("b", (k, n)), ("y", (3, n))))
    g = Graph("g", (Operator("p", "MatMul", (a, b), (y,)),), (a, b), (y,))
    assert lower(g, of_version(ORT, version)).rows[0].work.pipe == pipe


def test_host_time_is_spent_before_the_launch_that_follows() -> None:
    kernels = lower(
        graph(
            op("v", "Reshape", "x", "v", "free"),
            op("a", "Relu", "v", "a"),
            op("h", "Abs", "a", "h", "host"),
            op("b", "Relu", "a", "y"),
            op("w", "Reshape", "y", "z", "free"),
        ),
        ORT,
    )
    assert [k.name for k in kernels.rows] == ["a", "b"]
    launches, tail = kernels.host_seconds(HOST, CPU)
    assert launches == pytest.approx([HOST.walk_s + ONE, HOST.walk_s + HOST.host_op_s + ONE])
    assert tail == pytest.approx(HOST.walk_s)


def test_a_copy_to_the_host_makes_the_host_wait() -> None:
    to, back = op("t", "MemcpyToHost", "x", "t", "copy"), op("f", "MemcpyFromHost", "h", "f", "copy")
    kernels = lower(graph(to, op("h", "Abs", "t", "h", "host"), back, op("a", "Relu", "f", "y")), ORT)
    rows = kernels.rows
    assert [(k.name, k.blocks, k.way, k.after) for k in rows] == [
        ("t", True, "d2h", ()), ("f", False, "h2d", (0,)), ("a", False, "", (1,)),
    ]  # fmt: skip
    launches, _ = kernels.host_seconds(HOST, CPU)
    assert launches[1] == pytest.approx(HOST.walk_s + HOST.host_op_s + HOST.copy_s)


def test_transfers_of_inputs_and_outputs() -> None:
    operators = (op("s", "Shape", "x", "s", "host"), op("a", "Relu", "x", "y"))
    kernels = lower(graph(*operators, outputs="y s x"), ORT, include_transfers=True)
    assert [(k.name, k.after) for k in kernels.rows] == [("x.h2d", ()), ("a", (0,)), ("y.d2h", (1,)), ("x.d2h", (0,))]
    first, _, back, _ = kernels.rows
    assert (first.work.bytes_written, first.work.bytes_read) == (16, 0)
    assert (back.work.bytes_written, back.work.bytes_read) == (0, 16)
    assert len(lower(graph(*operators), ORT).rows) == 1
    view = op("v", "Reshape", "a", "y", "free")
    late = lower(graph(op("a", "Relu", "x", "a"), view), ORT, include_transfers=True)
    launches, tail = late.host_seconds(HOST, CPU)
    assert (tail, launches[-1]) == (0, pytest.approx(HOST.walk_s + HOST.copy_s))


def test_what_the_host_alone_reads_is_not_copied_to_the_device() -> None:
    x, shape, y = Tensor("x", "float32", (4, 5), "input"), Tensor("k", "int64", (2,), "input"), tensor("y", 5, 4)
    g = Graph("g", (Operator("r", "Reshape", (x, shape), (y,)),), (x, shape), (y,))
    rows = lower(placement.place(g), ORT, include_transfers=True).rows
    assert [k.name for k in rows] == ["x.h2d", "r", "y.d2h"]


def test_names_stay_apart() -> None:
    rows = lower(graph(op("x.h2d", "Relu", "x", "a"), op("y.d2h", "Relu", "a", "y")), ORT, include_transfers=True).rows
    assert len({k.name for k in rows}) == len(rows) == 4


def test_weights_are_counted_once() -> None:
    kernels = lower(graph(op("a", "Add", "x w", "a"), op("b", "Add", "a w", "y")), ORT)
    assert kernels.stored_bytes == 16
    assert [k.work.weight_bytes for k in kernels.rows] == [16, 16]


def test_an_operator_without_a_rule_costs_its_bytes() -> None:
    (row,) = lower(graph(op("a", "there::Unheard", "x w", "y")), ORT).rows
    assert row.assumed == "no rule fits there::Unheard"
    assert (row.work.bytes_read, row.work.bytes_written, row.work.flops) == (32, 16, 0)


def test_an_operator_that_its_rule_does_not_understand_costs_its_bytes() -> None:
    (row,) = lower(graph(op("a", "Conv", "x", "y")), ORT).rows
    assert row.assumed.startswith("the rule conv for Conv failed with TypeError: ")
    assert (row.work.bytes_read, row.work.bytes_written, row.work.flops) == (16, 16, 0)


def test_a_graph_without_operators_has_no_kernels() -> None:
    assert lower(graph(), ORT).rows == ()

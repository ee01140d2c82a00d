"""What ONNX Runtime leaves on the host, and the copies that this needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onnxperf.graph import Graph, load
from onnxperf.runtimes import RUNTIMES, run_graph

SAMPLES = Path(__file__).parents[2] / "samples"
OPEN = "(float[N,4] x) => "


def places(graph: Graph) -> list[tuple[str, str]]:
    return [(o.type, o.place) for o in graph.operators]


def test_shape_arithmetic_stays_on_the_host_and_needs_no_copy(run: Any) -> None:
    text = OPEN + "(float[M] y) <int64[1] k = {-1}> {s=Shape(x) p=ReduceProd<keepdims=1>(s) y=Reshape(x,p)}"
    assert places(run(text)) == [("Shape", "host"), ("ReduceProd", "host"), ("Reshape", "free")]


def test_a_static_model_has_no_shape_arithmetic(run: Any) -> None:
    text = "(float[3,4] x) => (float[12] y) {s=Shape(x) p=ReduceProd<keepdims=1>(s) y=Reshape(x,p)}"
    assert places(run(text)) == [("Reshape", "free")]


def test_a_tensor_crosses_to_the_device_once(run: Any) -> None:
    text = "(float[N,4] x, int64[2] i) => (int64[2] y, int64[2] z){s=Shape(x) y=Add(s,i) z=Mul(s,i)}"
    graph = run(text)
    assert places(graph) == [("Shape", "host"), ("MemcpyFromHost", "copy"), ("Add", "gpu"), ("Mul", "gpu")]
    copy, add, mul = graph.operators[1:]
    assert copy.present[0].name == "s"
    assert {add.present[0].name, mul.present[0].name} == {copy.out.name}
    assert copy.nodes == ("Add_1",), "a copy is answered for by the node that asks for it"


def test_a_shape_made_on_the_device_crosses_to_the_host(run: Any) -> None:
    text = "(float[3,4] x, int64[2] i) => (float[4,3] y, float[4,3] z) {k=Abs(i) y=Reshape(x,k) z=Expand(x,k)}"
    graph = run(text.replace("z=Expand(x,k)", "z=Reshape(x,k)"))
    assert places(graph) == [("Abs", "gpu"), ("MemcpyToHost", "copy"), ("Reshape", "free"), ("Reshape", "free")]
    assert graph.operators[1].out.name == graph.operators[2].present[1].name


def test_stored_shapes_need_no_copy(run: Any) -> None:
    text = "(float[3,4] x) => (float[4,3] y) <int64[2] k = {4,3}> {y=Reshape(x,k)}"
    assert places(run(text)) == [("Reshape", "free")]


def test_an_output_made_on_the_host_needs_no_copy(run: Any) -> None:
    assert places(run(OPEN + "(int64[2] y) {y=Shape(x)}")) == [("Shape", "host")]


@pytest.mark.parametrize("sample", ["gpt2-dynamic", "distilbert-dynamic"])
@pytest.mark.parametrize("batch", [1, 3])
def test_dynamic_samples_copy_each_tensor_once(sample: str, batch: int) -> None:
    graph = run_graph(load(SAMPLES / f"{sample}.onnx", dims={"sequence": 32, "batch": batch}), RUNTIMES["ort-cuda"])
    copies = [o for o in graph.operators if o.type.startswith("Memcpy")]
    assert 0 < len(copies) < 8
    assert len({(o.type, o.present[0].name) for o in copies}) == len(copies)
    host = {t.name for o in graph.operators if o.place == "host" for t in o.outputs}
    for o in graph.operators:
        if o.place == "gpu":
            assert not host & {t.name for t in o.present} or o.type in ("Range", "Expand", "Slice")
        if o.place == "host":
            assert all(t.stored or t.name in host or o.type in ("Shape", "Size") for t in o.present)

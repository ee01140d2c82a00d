"""ONNX Runtime's `prefer_nhwc`: where Transposes stay, and what refuses a layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import onnxperf
from onnxperf.graph import Graph, load
from onnxperf.ground.errors import UsageError
from onnxperf.runtimes import RUNTIMES, of_layout, run_graph
from op_models import Conv, work_of

SAMPLES = Path(__file__).parents[2] / "samples"
LAST = of_layout(RUNTIMES["ort-cuda"], "nhwc")


@pytest.fixture
def nhwc(make: Callable[..., object]) -> Callable[..., Graph]:
    """A small model as ONNX Runtime runs it in NHWC."""
    return lambda text, **weights: run_graph(load(make(text, weights)), LAST)


def own(graph: Graph) -> list[str]:
    return [o.type.removeprefix("com.ms.internal.") for o in graph.operators if o.place != "free"]


def test_a_chain_is_turned_at_its_ends_alone(nhwc: Callable[..., Graph]) -> None:
    text = """(float[2,4,8,8] x) => (float[2,4,8,8] y)
    { a=Conv(x,w) r=Relu(a) b=Conv(r,w) s=Add(b,x) p=MaxPool<kernel_shape=[3,3],pads=[1,1,1,1]>(s) y=Sqrt(p) }"""
    graph = nhwc(text, w=(4, 4, 1, 1))
    assert Counter(own(graph)) == Counter({
        "Transpose": 2, "nhwc::Conv": 2, "Relu": 1, "Add": 1, "nhwc::MaxPool": 1, "Sqrt": 1
    }), "before the first convolution, which serves the sum as well, and at the end"  # fmt: skip
    assert [t.shape for t in graph.outputs] == [(2, 4, 8, 8)]
    (conv,) = {work_of(o).size for o in graph.operators if o.type.endswith("::Conv")}
    assert conv == Conv(2, 4, 4, 64, 1, 1, 1, last=True)


def test_what_can_not_be_moved_through_stops_a_transpose(nhwc: Callable[..., Graph]) -> None:
    text = """(float[2,4,8,8] x) => (float[2,4,64] y)
    <int64[3] to={2,4,64}> { a=Conv(x,w) b=Reshape(a,to) y=Relu(b) }"""
    assert own(nhwc(text, w=(4, 4, 1, 1))) == ["Transpose", "nhwc::Conv", "Transpose", "Relu"]


@pytest.mark.parametrize(("model", "transposes"), [("resnet50", 2), ("mobilenetv2", 2), ("unet", 2), ("convnext-t", 1)])
def test_models_keep_their_products(model: str, transposes: int) -> None:
    first, last = (run_graph(load(SAMPLES / f"{model}.onnx"), r) for r in (RUNTIMES["ort-cuda"], LAST))
    products = [
        Counter(w._replace(last=True) for o in g.operators if isinstance(w := work_of(o).size, Conv))
        for g in (first, last)
    ]
    assert products[0] == products[1]
    assert sum(o.type == "Transpose" for o in last.operators) == transposes


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"runtime": "tensorrt", "layout": "nhwc"}, "TensorRT takes no layout, it chooses itself"),
        ({"runtime": "ort-cpu", "layout": "nchw"}, "ONNX Runtime takes no layout"),
        ({"ort_version": "1.12", "layout": "nhwc"}, "ONNX Runtime 1.12 takes no layout"),
        ({"layout": "NCWH"}, "unknown layout 'NCWH': it is one of nchw, nhwc"),
    ],
)
def test_layouts_that_are_refused(terms: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        onnxperf.predict(SAMPLES / "mobilenetv2.onnx", gpu="t4", **terms)


def test_a_layout_is_in_the_answer() -> None:
    p = onnxperf.predict(SAMPLES / "mobilenetv2.onnx", gpu="t4", runtime="torch-eager", layout="nhwc")
    assert p.to_dict()["layout"] == "nhwc" and "with images as nhwc" in p.scope
    assert {k.work.size.last for k in p.kernels if isinstance(k.work.size, Conv)} == {True}
    assert "layout" not in onnxperf.predict(SAMPLES / "mobilenetv2.onnx", gpu="t4").to_dict()

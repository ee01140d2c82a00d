"""ONNX Runtime's blocks of channels on small graphs: what it takes in and what stays outside, as it does itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from onnxperf.graph import Graph
from op_models import work_of

NCHWC = "com.microsoft.nchwc::"
PLAIN = "{a=Conv(x,w) y=%s}"
TWO = "{a=Conv(x,w) b=Conv(x,v) %s}"
TURNED = "(float[1,8,8,%d] x) => (float[1,8,8,32] y) {t=Transpose<perm=[0,3,1,2]>(x) %s}"
BACK = "y=Transpose<perm=[0,2,3,1]>"
HALF = "kernel_shape=[2,2],strides=[2,2]"


def image(c: int = 32, out: int | None = None, side: int = 8, more: str = "") -> str:
    return f"(float[1,{c},8,8] x{more}) => (float[1,{out or c},{side},{side}] y) "


def full(number: float, *shape: int) -> np.ndarray[Any, Any]:
    """Weights unlike others, or equal operators were merged."""
    return np.full(shape, number, np.float32)


W: dict[str, Any] = {"w": full(1, 32, 32, 1, 1)}
V: dict[str, Any] = {**W, "v": full(2, 32, 32, 1, 1), "u": full(3, 32, 32, 1, 1)}


def graphs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, text and weights."""
    for cin, cout in ((32, 32), (3, 32), (3, 10), (12, 16), (24, 24), (18, 16), (20, 18), (16, 3)):
        yield f"{cin} to {cout} channels", image(cin, cout) + "{y=Conv(x,w)}", {"w": (cout, cin, 1, 1)}
    for c, out, group in ((32, 32, 32), (24, 24, 24), (18, 18, 18), (16, 32, 16), (32, 64, 2), (48, 48, 2)):
        name, weight = f"{c} to {out} channels in {group}", {"w": (out, c // group, 1, 1)}
        yield name, image(c, out) + f"{{y=Conv<group={group}>(x,w)}}", weight
    yield "weights that are given", image(more=", float[32,32,1,1] w") + "{y=Conv(x,w)}", {}
    yield "a bias that is given", image(more=", float[32] b") + "{a=Conv(x,w,b) y=Add(a,x)}", W
    yield "one axis", "(float[1,32,8] x) => (float[1,32,8] y) {y=Conv(x,w)}", {"w": (32, 32, 1)}
    for op in ("Relu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "LeakyRelu", "Elu", "Gelu", "Softplus", "Mish"):
        yield f"{op} behind", image() + PLAIN % f"{op}(a)", W
        yield f"{op} behind a sum", image() + TWO % f"s=Add(a,b) y={op}(s)", V
    yield "SiLU", image() + "{a=Conv(x,w) s=Sigmoid(a) y=Mul(a,s)}", W
    yield "clip", image() + PLAIN % "Clip(a,l,h)", {**W, "l": 0.0, "h": 6.0}
    yield "clip behind a sum", image() + TWO % "s=Add(a,b) y=Clip(s,l,h)", {**V, "l": 0.0, "h": 6.0}
    for op in ("Add(a,b)", "Sum(a,b)", "Sum(a,b,a)", "Mul(a,b)", "Sub(a,b)"):
        yield op, image() + TWO % f"y={op}", V
    yield "twice the same", image() + "{a=Conv(x,w) y=Add(a,a)}", W
    yield "a sum with the input", image() + "{a=Conv(x,w) y=Add(a,x)}", W
    yield "a residual", image() + "{a=Conv(x,w) b=Conv(a,v) s=Add(a,b) y=Relu(s)}", V
    yield "a residual, activated", image() + "{a=Conv(x,w) b=Conv(a,v) c=Relu(b) s=Add(a,c) y=Relu(s)}", V
    yield "two sums", image() + TWO % "c=Conv(x,u) d=Add(a,b) y=Add(d,c)", V
    yield "two sums of two", image() + TWO % "c=Relu(a) d=Add(c,b) e=Add(d,a) y=Relu(e)", V
    yield "a sum that is used", image() + TWO % "s=Add(a,b) r=Relu(s) y=Mul(r,s)", V
    for op in ("Add(a,g)", "Sum(g,a)", "Mul(a,g)"):
        yield f"{op} of other shapes", image() + f"{{a=Conv(x,w) g=GlobalAveragePool(a) y={op}}}", W
    yield "a sum with one channel", image() + TWO % "y=Add(a,b)", {**W, "v": (1, 32, 1, 1)}
    squeezed = "{a=Conv(x,w) g=GlobalAveragePool(a) b=Conv(g,v) s=Sigmoid(b) y=Mul(a,s)}"
    yield "squeeze and excitation", image() + squeezed, V
    for c, op in ((32, "MaxPool"), (32, "AveragePool"), (24, "MaxPool"), (24, "AveragePool")):
        yield f"{op} of {c}", image(c, side=4) + f"{{y={op}<{HALF}>(x)}}", {}
        yield f"{op} of {c} behind", image(32, c, 4) + PLAIN % f"{op}<{HALF}>(a)", {"w": (c, 32, 1, 1)}
    for c, op in ((32, "Average"), (32, "Max"), (24, "Average")):
        yield f"{op} of all {c}", image(32, c, 1) + PLAIN % f"Global{op}Pool(a)", {"w": (c, 32, 1, 1)}
    for how in ("ceil_mode=1", "ceil_mode=1,count_include_pad=1"):
        yield f"an average, {how}", image(side=4) + PLAIN % f"AveragePool<{HALF},{how}>(a)", W
    yield "an average of the input", image(side=1) + "{y=GlobalAveragePool(x)}", {}
    yield "an average outside", image(side=1) + "{r=Neg(x) y=GlobalAveragePool(r)}", {}
    indices = "(float[1,32,8,8] x) => (float[1,32,4,4] y, int64[1,32,4,4] i) "
    yield "a pool with indices", indices + f"{{a=Conv(x,w) y,i=MaxPool<{HALF}>(a)}}", W
    yield "joined", image(32, 64) + TWO % "y=Concat<axis=1>(a,b)", V
    yield "joined with 24", image(32, 56) + TWO % "y=Concat<axis=1>(a,b)", {"w": (24, 32, 1, 1), "v": V["v"]}
    yield "joined with the input", image(32, 64) + "{a=Conv(x,w) y=Concat<axis=1>(a,x)}", W
    yield "stacked", "(float[1,32,8,8] x) => (float[1,32,16,8] y) {a=Conv(x,w) y=Concat<axis=2>(a,a)}", W
    norm = "{a=Conv(x,w) r=Relu(a) b=BatchNormalization(r,s,s,s,s) %s}"
    for c in (32, 24):
        yield f"normalised {c}", image(32, c) + norm % "y=Relu(b)", {"w": (c, 32, 1, 1), "s": (c,)}
    yield "normalised and added", image() + norm % "y=Add(r,b)", {**W, "s": (32,)}
    for op in ("Mul(r,s)", "Mul(s,r)", "Mul(r,t)", "Mul(r,one)", "Div(r,s)", "Add(r,s)"):
        scale = {**W, "s": (1, 32, 1, 1), "t": (32, 1, 1), "one": 2.0}
        yield f"{op} of channels", image() + f"{{a=Conv(x,w) r=Relu(a) m={op} y=Relu(m)}}", scale
    for c in (32, 24, 18, 3):
        yield f"channels last, {c}", TURNED % (c, f"a=Conv(t,w) {BACK}(a)"), {"w": (32, c, 1, 1)}
    yield "channels last, read twice", TURNED % (32, f"a=Conv(t,w) b=Conv(t,v) c=Mul(a,b) {BACK}(c)"), V
    yield "channels last, read outside", TURNED % (32, f"a=Conv(t,w) b=Neg(t) c=Mul(a,b) {BACK}(c)"), V
    yield "another order", TURNED % (32, "a=Conv(t,w) y=Transpose<perm=[0,3,2,1]>(a)"), V
    yield "both orders", TURNED.replace("y)", "y, float[1,32,8,8] a)") % (32, f"a=Conv(t,w) {BACK}(a)"), W
    yield "outside in between", image() + "{a=Conv(x,w) c=Softmax<axis=1>(a) y=Conv(c,v)}", V
    for how in (
        'mode="linear"', 'mode="linear",coordinate_transformation_mode="pytorch_half_pixel"', 'mode="nearest"',
        'mode="nearest",coordinate_transformation_mode="asymmetric",nearest_mode="floor"', 'mode="cubic"',
    ):  # fmt: skip
        for side in (16, 12, 4):
            by = {**W, "s": np.array([1, 1, side / 8, side / 8], np.float32)}
            yield f"to {side}, {how}", image(side=side) + f"{{a=Conv(x,w) y=Resize<{how}>(a,,s)}}", by
    residual: dict[str, Any] = {
        "w": full(1, 18, 18, 1, 1), "v": full(2, 18, 18, 1, 1), "b": (18,), "l": 0.0, "h": 6.0
    }  # fmt: skip
    for body in (
        "a=Conv(x,w,b) y=Add(a,x)", "a=Conv(x,w) y=Add(a,x)", "a=Conv(x,w,b) s=Add(x,a) y=Relu(s)",
        "a=Conv(x,w,b) s=Add(x,a) y=Clip(s,l,h)", "a=Conv(x,w,b) s=Add(x,a) y=Elu(s)", "a=Conv(x,w,b) y=Sum(x,a)",
        "a=Conv(x,w,b) c=Conv(a,v,b) s=Add(a,c) y=Relu(s)", "a=Conv(x,w,b) c=Relu(a) s=Add(c,x) y=Relu(s)",
        "g=GlobalAveragePool(x) a=Conv(x,w,b) y=Add(a,g)",
    ):  # fmt: skip
        yield f"outside: {body}", image(18) + f"{{{body}}}", residual


GRAPHS = {name: (text, weights) for name, text, weights in graphs()}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_are_those_of_onnx_runtime(make: Any, oracle: Any, rules: Any, name: str) -> None:
    model = make(*GRAPHS[name])
    assert rules(model, "all") == oracle(model, "all")


RESIDUAL = image(3, 32) + "{a=Conv(x,w) b=Relu(a) c=Conv(b,v) d=Add(c,b) y=Relu(d)}"


def residual(run: Any, **more: Any) -> Graph:
    graph: Graph = run(RESIDUAL, w=full(1, 32, 3, 1, 1), v=full(2, 32, 32, 1, 1), **more)
    return graph


def test_a_sum_is_read_by_the_convolution_that_it_went_into(run: Any) -> None:
    first, second, border = residual(run, runtime="ort-cpu").operators
    assert [o.type for o in (first, second)] == [f"{NCHWC}Conv"] * 2
    assert [o.attrs["activation"] for o in (first, second)] == ["Relu", "Relu"]
    x, weight, bias, summand = second.inputs
    assert x == summand == first.out and bias is None and weight is not None and weight.name == "v"
    assert work_of(second).vector_flops == 2 * second.out.size
    assert border.type == f"{NCHWC}ReorderOutput" and border.present == (second.out,) and border.out.name == "y"


def test_every_node_and_product_is_still_there(run: Any) -> None:
    plain, blocked = (residual(run, runtime="ort-cpu", level=level) for level in ("disabled", "all"))
    assert {n for o in blocked.operators for n in o.nodes} == {n for o in plain.operators for n in o.nodes}
    assert sum(work_of(o).matrix_flops for o in blocked.operators) == sum(
        work_of(o).matrix_flops for o in plain.operators
    )


def test_only_the_cpu_provider_at_the_highest_level_has_the_layout(run: Any) -> None:
    for runtime, level in (("ort-cuda", "all"), ("ort-cpu", "extended")):
        assert not any(o.type.startswith(NCHWC) for o in residual(run, runtime=runtime, level=level).operators)


def test_a_tensor_is_reordered_once_for_all_who_read_it(run: Any) -> None:
    graph = run(image() + TWO % "c=Neg(a) d=Abs(a) e=Add(c,d) y=Mul(e,b)", runtime="ort-cpu", **V)
    reorders = [(o.type.removeprefix(NCHWC), o.present[0].name) for o in graph.operators if "Reorder" in o.type]
    assert reorders == [("ReorderInput", "x"), ("ReorderOutput", "a#nchwc"), ("ReorderOutput", "b#nchwc")]


def test_operators_come_after_what_they_read(run: Any) -> None:
    for text, weights in GRAPHS.values():
        graph = run(text, runtime="ort-cpu", **weights)
        made = {t.name for t in graph.inputs}
        for o in graph.operators:
            assert {t.name for t in o.present if not t.stored} <= made
            made.update(t.name for t in o.outputs)
        assert graph.output_names <= made


def test_an_empty_image_is_resized_outside(run: Any) -> None:
    text = '(float[0,32,8,8] x) => (float[0,32,16,16] y) {a=Conv(x,w) y=Resize<mode="linear">(a,,s)}'
    graph = run(text, runtime="ort-cpu", **W, s=np.array([1, 1, 2, 2], np.float32))
    assert [o.type for o in graph.operators][-1] == "Resize"

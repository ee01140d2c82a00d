"""The rules of `ort-cpu` against ONNX Runtime itself: as many operators of each type, at every level.

Left out are views, which cost nothing (`VIEWS` in conftest); everything else is compared, Transpose too.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from onnxperf.fusions.engine import DISABLED, optimise
from onnxperf.fusions.ort_transformers import RULES
from onnxperf.graph import load
from tests.shallow import shallow

ROOT = Path(__file__).parents[2]
LEVELS = ["basic", "extended", "all"]
KERAS = [f"keras-{s}" for s in ("resnet50", "mobilenetv2", "efficientnetb0", "densenet121", "inceptionv3")]
FILES = [*(f"samples/{s}.onnx" for s in ("resnet50", "mobilenetv2", "bert-base", "gpt2", "vit-base-16", *KERAS)),
         "tests/data/keras_cnn.onnx"]  # fmt: skip

X = "(float[2,3,4] x) => (float[2,3,4] y) "
TWO = "(float[2,3,4] x, float[2,3,4] z) => (float[2,3,4] y) "
IMAGE = "(float[1,3,8,8] x) => (float[1,4,6,6] y) "
PADDED = "(float[1,3,8,8] x) => (float[1,4,8,8] y) "
FLAT = "(float[3,4] x) => (float[3,5] y) "
CUT = "(float[2,6] x) => (float[2,3] y, float[2,3] z) {r=Relu(x) "
W: dict[str, Any] = {"w": (4, 3, 3, 3)}
P: dict[str, Any] = {**W, "p": [0, 0, 1, 1, 0, 0, 1, 1]}
NORM = "LayerNormalization<axis=-1>(c,s,s)"
PUSHED = "{a=Transpose<perm=[0,2,1]>(x) %s y=Transpose<perm=[0,2,1]>(r)}"


def tiny() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, text and weights: every rule where it applies and where it just does not."""
    for op in ("Add(r,c)", "Add(c,r)", "Sub(r,c)", "Sub(c,r)", "Mul(r,c)", "Div(r,c)", "Div(c,r)"):
        for number in (0.0, 1.0):
            yield f"{op} of {number}", X + f"{{r=Sigmoid(x) a={op} y=Relu(a)}}", {"c": number}
    yield "x + 0 of the input", X + "{a=Add(x,c) y=Relu(a)}", {"c": 0.0}
    for rank in (1, 2, 3, 4):
        text = X if rank < 4 else X.replace("[2,3,4] y", "[1,2,3,4] y")
        yield (
            f"x + 0 of rank {rank}",
            text + "{r=Sigmoid(x) a=Add(r,c) y=Relu(a)}",
            {"c": np.zeros((1,) * rank, np.float32)},
        )
    yield "x + zeros", X + "{r=Sigmoid(x) a=Add(r,c) y=Relu(a)}", {"c": np.zeros(4, np.float32)}
    yield "x times 1, an output", X + "{r=Sigmoid(x) y=Mul(r,c)}", {"c": 1.0}
    for end in (3, 2**63 - 1):
        yield f"slice to {end}", X + "{r=Sigmoid(x) a=Slice(r,s,e,i) y=Relu(a)}", {"s": [0], "e": [end], "i": [1]}
    for shape in ([2, 3, 4], [1, 1, 1]):
        yield f"expand to {shape}", X + "{r=Sigmoid(x) a=Expand(r,s) y=Relu(a)}", {"s": shape}
    for inner, outer in ((11, 1), (10, 1), (7, 1)):
        yield f"cast {inner} {outer}", X + f"{{a=Cast<to={inner}>(x) b=Cast<to={outer}>(a) y=Relu(b)}}", {}
    yield "cast used", "(float[4] x) => (float[4] y, double[4] a) {a=Cast<to=11>(x) y=Cast<to=1>(a)}", {}
    yield "cast of bool", "(bool[4] x) => (float[4] y) {a=Cast<to=7>(x) b=Cast<to=1>(a) y=Abs(b)}", {}
    for a, b, more in (("Relu(x)", "Relu(x)", ""), ("Elu<alpha=0.1>(x)", "Elu<alpha=0.2>(x)", ""),
                       ("Relu(x)", "Relu(x)", ", float[2,3] a")):  # fmt: skip
        yield f"twice {a} {b} {more}", f"(float[2,3] x) => (float[2,3] y{more}) {{a={a} b={b} y=Add(a,b)}}", {}
    yield "equal constants", "(float[2,3] x) => (float[2,3] y) {a=Mul(x,c) b=Mul(x,d) y=Add(a,b)}", {"c": 2.0, "d": 2.0}
    yield "larger equal constants", X + "{a=Mul(x,c) b=Mul(x,d) y=Add(a,b)}", {"c": (3, 4), "d": (3, 4)}
    yield "operands swapped", TWO + "{a=Add(x,z) b=Add(z,x) y=Mul(a,b)}", {}
    yield "random", "() => (float[3] y) {a=RandomNormal<shape=[3]>() b=RandomNormal<shape=[3]>() y=Add(a,b)}", {}
    for low in (0.0, -1.0):
        yield f"relu, clip from {low}", X + "{c=Relu(x) y=Clip(c,l,h)}", {"l": low, "h": 6.0}
    yield "not, where", "(bool[4] m, float[4] x) => (float[4] y) {n=Not(m) y=Where(n,x,c)}", {"c": 0.0}
    yield "hard swish", X + "{y=HardSwish(x)}", {}
    yield "mish", X + "{y=Mish(x)}", {}
    for after in ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Elu", "Softplus", "Softsign", "Selu", "Clip"):
        yield f"conv {after}", IMAGE + f"{{c=Conv(x,w) y={after}(c)}}", W
        yield f"gemm {after}", FLAT + f"{{c=Gemm(x,w,b) y={after}(c)}}", {"w": (4, 5), "b": (5,)}
        yield f"matmul {after}", FLAT + f"{{c=MatMul(x,w) y={after}(c)}}", {"w": (4, 5)}
    yield "conv clip", IMAGE + "{c=Conv(x,w) y=Clip(c,l,h)}", {**W, "l": 0.0, "h": 6.0}
    yield "conv clip of an input", IMAGE.replace("x)", "x, float l)") + "{c=Conv(x,w) y=Clip(c,l)}", W
    yield "conv add relu", IMAGE.replace("x)", "x, float[1,4,6,6] z)") + "{c=Conv(x,w) d=Add(c,z) y=Relu(d)}", W
    yield "conv used", IMAGE.replace("y)", "y, float[1,4,6,6] c)") + "{c=Conv(x,w) y=Relu(c)}", W
    yield "stack relu", X + "{c=MatMul(x,w) d=Add(c,b) y=Relu(d)}", {"w": (4, 4), "b": (4,)}
    for given in ("x,w", "x,w,b"):
        yield f"gemm({given}) sum", FLAT + f"{{c=Gemm({given}) y=Sum(c,b)}}", {"w": (4, 5), "b": (5,)}
        yield (f"gemm({given}) transposed", f"(float[3,4] x) => (float[5,3] y) {{c=Gemm({given}) y=Transpose(c)}}",
               {"w": (4, 5), "b": (5,)})  # fmt: skip
    yield "gemm of transposed", "(float[4,3] x) => (float[3,5] y) {t=Transpose(x) y=Gemm(t,w)}", {"w": (4, 5)}
    yield (
        "gemm of transposed, used",
        "(float[4,3] x) => (float[3,5] y, float[3,4] z) {t=Transpose(x) y=Gemm(t,w) z=Relu(t)}", {"w": (4, 5)},
    )  # fmt: skip
    bn = "BatchNormalization(u,s,s,s,s)"
    yield "matmul norm", FLAT + f"{{u=MatMul(x,w) y={bn}}}", {"w": (4, 5), "s": (5,)}
    yield "matmul add norm", FLAT + f"{{t=MatMul(x,w) u=Add(t,s) y={bn}}}", {"w": (4, 5), "s": (5,)}
    for window in ("Conv(t,w)", 'Conv<auto_pad="SAME_UPPER">(t,w)'):
        shape = "8,8" if "auto" not in window else "10,10"
        yield f"pad {window}", PADDED.replace("4,8,8", f"4,{shape}") + f"{{t=Pad(x,p) y={window}}}", P
    for pool in ("MaxPool<kernel_shape=[3,3]>", "AveragePool<kernel_shape=[3,3]>"):
        yield f"pad {pool}", PADDED.replace("4,8,8", "3,8,8") + f"{{t=Pad(x,p) y={pool}(t)}}", P
    yield "pad of ones", PADDED + "{t=Pad(x,p,v) y=Conv(t,w)}", {**P, "v": 1.0}
    yield "pad of reflections", PADDED + '{t=Pad<mode="reflect">(x,p) y=Conv(t,w)}', P
    yield (
        "pad of channels",
        PADDED.replace("3,8", "2,8") + "{t=Pad(x,p) y=Conv(t,w)}",
        {**W, "p": [0, 0, 1, 1, 0, 1, 1, 1]},
    )
    yield "pad used", PADDED.replace("y)", "y, float[1,3,10,10] z)") + "{t=Pad(x,p) y=Conv(t,w) z=Relu(t)}", P
    yield "transposed back", X + "{a=Transpose<perm=[0,2,1]>(x) b=Transpose<perm=[0,2,1]>(a) y=Relu(b)}", {}
    yield "to itself", X + "{r=Relu(x) a=Transpose<perm=[0,1,2]>(r) y=Sigmoid(a)}", {}
    for what in ("r=Relu(a)", "r=Add(a,c)", "r=Softmax<axis=1>(a)", "r=LayerNormalization(a,c)", "b=Relu(a) r=Tanh(b)"):
        yield f"pushed {what}", X + PUSHED % what, {"c": (3,)}
    yield (
        "two pushed",
        "(float[2,3,4] x, float[2,3,4] z) => (float[2,4,3] y)"
        "{a=Transpose<perm=[0,2,1]>(x) b=Transpose<perm=[0,2,1]>(z) y=Add(a,b)}", {},
    )  # fmt: skip
    yield (
        "one of two",
        "(float[2,3,4] x, float[2,4,3] z) => (float[2,4,3] y) {a=Transpose<perm=[0,2,1]>(x) y=Add(a,z)}",
        {},
    )
    yield (
        "one of two, and back",
        "(float[2,3,4] x, float[2,4,3] z) => (float[2,3,4] y)"
        "{a=Transpose<perm=[0,2,1]>(x) b=Add(a,z) y=Transpose<perm=[0,2,1]>(b)}",
        {},
    )
    yield (
        "mean of channels last",
        "(float[1,8,7,7] x) => (float[1,8] y) {a=Transpose<perm=[0,2,3,1]>(x) y=ReduceMean<keepdims=0>(a,i)}",
        {"i": [1, 2]},
    )
    yield (
        "pad of channels last",
        "(float[1,8,8,3] x) => (float[1,10,10,3] y)"
        "{a=Transpose<perm=[0,3,1,2]>(x) b=Pad(a,p) y=Transpose<perm=[0,2,3,1]>(b)}", {"p": P["p"]},
    )  # fmt: skip
    yield (
        "concatenated",
        "(float[2,3,4] x, float[2,3,4] z) => (float[2,6,4] y) {a=Transpose<perm=[0,2,1]>(x)"
        "b=Transpose<perm=[0,2,1]>(z) c=Concat<axis=2>(a,b) y=Transpose<perm=[0,2,1]>(c)}", {},
    )  # fmt: skip
    yield "silu", X + "{s=Sigmoid(x) y=Mul(s,x)}", {}
    yield "silu inside", X + "{b=Relu(x) s=Sigmoid(b) y=Mul(b,s)}", {}
    yield "quick gelu", X + "{m=Mul(x,c) s=Sigmoid(m) y=Mul(x,s)}", {"c": 1.702}
    yield "quick gelu of a vector", X + "{m=Mul(x,c) s=Sigmoid(m) y=Mul(x,s)}", {"c": (4,)}
    yield "sigmoid used", X.replace("y)", "y, float[2,3,4] s)") + "{s=Sigmoid(x) y=Mul(x,s)}", {}
    yield "silu of doubles", "(double[4] x) => (double[4] y) {s=Sigmoid(x) y=Mul(x,s)}", {}
    yield "skip of doubles", TWO.replace("float", "double") + f"{{c=Add(x,z) y={NORM}}}", {"s": np.ones(4)}
    for bias in ("b=Add(x,v) c=Add(b,z)", "b=Add(v,x) c=Add(z,b)", "b=Add(x,z) c=Add(b,v)"):
        yield f"skip {bias}", TWO + f"{{{bias} y={NORM}}}", {"s": (4,), "v": np.ones(4, np.float32)}
    for a, b, c, d in ((0, 3, 3, 6), (0, 2, 3, 6), (0, 3, 2, 6), (-6, -3, 3, 2**63 - 1)):
        cut = {"a": [a], "b": [b], "c": [c], "d": [d], "i": [1]}
        sized = CUT.replace("[2,3] y", f"[2,{b - a}] y").replace("[2,3] z", f"[2,{6 - c}] z")
        yield f"cut {a} {b} {c} {d}", sized + "y=Slice(r,a,b,i) z=Slice(r,c,d,i)}", cut
    yield (
        "cut by twos",
        CUT + "y=Slice(r,a,d,i,t) z=Slice(r,b,d,i,t)}",
        {"a": [0], "b": [1], "d": [6], "i": [1], "t": [2]},
    )
    yield (
        "cut, and read otherwise",
        CUT.replace("z)", "z, float[2,3] u, float[2,6] v)")
        + "u=Slice(r,a,d,i,t) y=Slice(r,a,b,i) z=Slice(r,b,d,i) v=Tanh(r)}",
        {"a": [0], "b": [3], "d": [6], "i": [1], "t": [2]},
    )
    for at in (1, -1):
        text = "(float[2,2,4] x) => (float[2,4] y, float[2,4] z) {y=Gather<axis=1>(x,a) z=Gather<axis=1>(x,b)}"
        yield f"gathered {at}", text, {"a": np.array(0), "b": np.array(at)}
    kept = "(float[2,3,4] x) => (float[2,3,4] y) {n=LayerNormalization(x,s,s) q=MatMul(n,w) q1=Add(q,s) k=MatMul(n,z)"
    kept += " k1=Sub(k,s) v=MatMul(n,u) v1=Tanh(v) a=Mul(q1,k1) b=Mul(a,v1) o=MatMul(b,w) o1=Add(o,s) y=Add(n,o1)}"
    yield (
        "kept for attention",
        kept,
        {"w": (4, 4), "z": np.ones((4, 4), np.float32), "u": np.eye(4, dtype=np.float32), "s": (4,)},
    )


def of_bytes() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The same of 8-bit convolutions, which have channels last at the highest level."""
    conv, after = "QLinearConv<pads=[1,1,1,1]>(x,s,z,w,s,n,t,u)", "QLinearConv(%s,s,z,v,s,n,t,u)"
    pool, own = "MaxPool<kernel_shape=[2,2],strides=[2,2]>(%s)", "com.microsoft.QLinear"
    values = np.arange(576).reshape(8, 8, 3, 3) % 19 - 9
    grid = {"s": np.float32(0.1), "t": np.float32(0.2), "z": np.uint8(3), "u": np.uint8(4), "n": np.int8(0)}
    weights = {**grid, "w": values.astype(np.int8), "v": values[..., :1, :1].astype(np.int8)}
    for side, body in (
        (8, f"y={conv}"), (8, f"a={conv} y={after % 'a'}"), (4, f"a={conv} y={pool % 'a'}"), (4, f"y={pool % 'x'}"),
        (4, f"p={pool % 'x'} y={after % 'p'}"), (8, f"a={conv} y={own}Add(a,s,z,x,s,z,t,u)"),
        (8, f"a={conv} b={after % 'a'} y={own}Mul(a,s,z,b,s,z,t,u)"), (8, f"a={conv} y={own}Sigmoid(a,s,z,t,u)"),
        (8, f"a={conv} b={own}LeakyRelu(a,s,z,t,u) y={after % 'b'}"),
        (1, f"a={conv} y={own}GlobalAveragePool(a,s,z,t,u)"),
    ):  # fmt: skip
        yield body, f"(uint8[1,8,8,8] x) => (uint8[1,8,{side},{side}] y) {{{body}}}", weights
    line = "(uint8[1,8,8] x) => (uint8[1,8,8] y) {y=QLinearConv(x,s,z,v,s,n,t,u)}"
    yield "bytes along one axis", line, {**weights, "v": weights["v"][..., 0]}


TINY = {name: (text, weights) for name, text, weights in (*tiny(), *of_bytes())}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", TINY)
def test_tiny_models(make: Any, oracle: Any, rules: Any, name: str, level: str) -> None:
    text, weights = TINY[name]
    model = make(text, weights)
    assert rules(model, level) == oracle(model, level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("file", FILES)
def test_whole_models(oracle: Any, rules: Any, file: str, level: str) -> None:
    """Of transformers three layers, the first, the last and one between."""
    many = file in ("samples/bert-base.onnx", "samples/gpt2.onnx", "samples/vit-base-16.onnx")
    model = shallow(Path(file).stem, 3) if many else onnx.load(ROOT / file, load_external_data=False)
    assert rules(model, level) == oracle(model, level)


def exported(model: Any, dynamo: bool, **inputs: Any) -> ModelProto:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)  # exporters leave out a bias of zeros
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if dynamo:
            return torch.onnx.export(model.eval(), (), kwargs=inputs, dynamo=True, verbose=False).model_proto

        class Positional(torch.nn.Module):  # type: ignore[misc,name-defined]
            """What TorchScript's exporter can call."""

            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, *tensors: Any) -> Any:
                return self.model(**dict(zip(inputs, tensors, strict=True)), return_dict=False)

        file = BytesIO()
        torch.onnx.export(Positional().eval(), tuple(inputs.values()), file, dynamo=False, opset_version=17)
        return onnx.load_from_string(file.getvalue())


@pytest.fixture(scope="module")
def t5() -> ModelProto:
    hf, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    config = hf.T5Config(d_model=64, d_ff=128, d_kv=16, num_heads=4, num_layers=2, vocab_size=96)
    return exported(hf.T5EncoderModel(config), True, input_ids=torch.ones(1, 16, dtype=torch.int64))


@pytest.mark.parametrize("level", LEVELS)
def test_t5(oracle: Any, rules: Any, t5: ModelProto, level: str) -> None:
    found = rules(t5, level)
    assert found == oracle(t5, level)
    assert found["Softmax"] == 2, "the whole encoder"


CNN = (
    "(float[1,3,16,16] x) => (float[1,10] y) {a=Conv<pads=[1,1,1,1]>(x,w1,b1) b=Relu(a) c=Conv<pads=[1,1,1,1]>(b,w2,b2)"
    "d=Clip(c,lo,hi) e=Add(b,d) f=MaxPool<kernel_shape=[2,2],strides=[2,2]>(e) g=Conv<strides=[2,2]>(f,w3)"
    "k=Sigmoid(g) m=Mul(g,k) h=GlobalAveragePool(m) i=Flatten(h) y=Gemm<transB=1>(i,w4,b4)}"
)
CNN_WEIGHTS: dict[str, Any] = {
    "w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 8, 3, 3), "b2": (8,), "w3": (16, 8, 3, 3), "w4": (10, 16), "b4": (10,),
    "lo": 0.0, "hi": 6.0,
}  # fmt: skip
LAYER = (
    "(float[2,6,16] x) => (float[2,6,16] y) {q0=MatMul(x,wq) q=Add(q0,bq) k0=MatMul(x,wk) k=Add(k0,bk) v0=MatMul(x,wv)"
    "v=Add(v0,bv) q1=Reshape(q,s) q2=Transpose<perm=[0,2,1,3]>(q1) k1=Reshape(k,s) k2=Transpose<perm=[0,2,3,1]>(k1)"
    "v1=Reshape(v,s) v2=Transpose<perm=[0,2,1,3]>(v1) a=MatMul(q2,k2) c=Div(a,r) p=Softmax<axis=-1>(c) o=MatMul(p,v2)"
    "o1=Transpose<perm=[0,2,1,3]>(o) o2=Reshape(o1,t) o3=MatMul(o2,wo) o4=Add(o3,bo) d=Add(x,o4)"
    "n=LayerNormalization<axis=-1>(d,g,g) f=MatMul(n,w1) f1=Add(f,b1) f2=Div(f1,r2) e=Erf(f2) e1=Add(e,one)"
    "m=Mul(f1,e1) m1=Mul(m,half) h=MatMul(m1,w2) h1=Add(h,b2) y=Add(n,h1)}"
)
LAYER_WEIGHTS: dict[str, Any] = {
    **{f"w{n}": (16, 16) for n in "qkvo"}, **{f"b{n}": (16,) for n in "qkvo"}, "g": (16,), "w1": (16, 32), "b1": (32,),
    "w2": (32, 16), "b2": (16,), "s": np.array([0, 0, 2, 8]), "t": np.array([0, 0, 16]), "r": 2.8284,
    "r2": 1.41421356, "one": 1.0, "half": 0.5,
}  # fmt: skip
SMALL = {"cnn": (CNN, CNN_WEIGHTS, (1, 3, 16, 16)), "layer": (LAYER, LAYER_WEIGHTS, (2, 6, 16))}


def spread(weights: dict[str, Any]) -> dict[str, Any]:
    """Random numbers in place of shapes: quantisation looks at them."""
    random = np.random.default_rng(0)
    return {
        n: (0.1 * random.standard_normal(w)).astype(np.float32) if isinstance(w, tuple) else w
        for n, w in weights.items()
    }


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("how", ["QUInt8 QInt8", "QInt8 QInt8", "QUInt8 QUInt8", "operators", "dynamic"])
@pytest.mark.parametrize("name", SMALL)
def test_quantised_models(make: Any, oracle: Any, rules: Any, tmp_path: Path, name: str, how: str, level: str) -> None:
    q = pytest.importorskip("onnxruntime.quantization")
    text, weights, shape = SMALL[name]
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(make(text, spread(weights), 17), source)

    class Samples(q.CalibrationDataReader):  # type: ignore[misc]
        """Three random inputs."""

        def __init__(self) -> None:
            random = np.random.default_rng(1)
            self.left = [{"x": random.standard_normal(shape).astype(np.float32)} for _ in range(3)]

        def get_next(self) -> dict[str, Any] | None:
            return self.left.pop() if self.left else None

    if how == "dynamic":
        q.quantize_dynamic(source, target)
    elif how == "operators":
        q.quantize_static(source, target, Samples(), quant_format=q.QuantFormat.QOperator)
    else:
        x, w = (q.QuantType[t] for t in how.split())
        q.quantize_static(source, target, Samples(), activation_type=x, weight_type=w, per_channel=x == w)
    model = onnx.load(target)
    found = rules(model, level)
    assert found == oracle(model, level)
    assert any("Quantize" in type or "QLinear" in type for type in found)


def offline(path: Path, kind: str, **size: int) -> Counter[str]:
    """What the offline optimizer makes of a model, constants folded by our own front door as in every graph."""
    optimizer = pytest.importorskip("onnxruntime.transformers.optimizer")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = optimizer.optimize_model(
            str(path), kind, opt_level=0, use_gpu=True, optimization_options=optimizer.FusionOptions(kind), **size
        )
    return count(done.model, ())


def count(model: ModelProto, rules: Any) -> Counter[str]:
    graph = optimise(load(model), {DISABLED: rules}, DISABLED)
    views = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"}
    return Counter(t for o in graph.operators if (t := o.type.rpartition("::")[2]) not in views)


@pytest.fixture(scope="module")
def encoders() -> dict[str, ModelProto]:
    """Small models of each architecture, from both exporters."""
    hf, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    ids = {"input_ids": torch.ones(1, 16, dtype=torch.int64)}
    tokens = {**ids, "attention_mask": torch.ones(1, 16, dtype=torch.int64)}
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    bert = hf.BertModel(hf.BertConfig(**sizes, vocab_size=96, attn_implementation="eager"))
    gpt2 = hf.GPT2Config(
        n_embd=32,
        n_layer=2,
        n_head=4,
        vocab_size=96,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )
    vit = hf.ViTConfig(**sizes, image_size=32, attn_implementation="eager")
    return {
        "bert": exported(bert, True, **tokens),
        "bert from TorchScript": exported(bert, False, **tokens),
        "gpt2": exported(hf.GPT2Model(gpt2), True, **tokens),
        "vit": exported(hf.ViTForImageClassification(vit), True, pixel_values=torch.ones(1, 3, 32, 32)),
    }


@pytest.mark.parametrize("name", ["bert", "bert from TorchScript", "gpt2", "vit"])
def test_offline_optimizer(encoders: dict[str, ModelProto], tmp_path: Path, name: str) -> None:
    onnx.save(encoders[name], tmp_path / "m.onnx")
    found = count(encoders[name], RULES)
    assert found == offline(tmp_path / "m.onnx", name.split()[0])
    assert found["SkipLayerNormalization"] >= 4 and found["BiasGelu"] + found["FastGelu"] == 2


#: A scale, and a mask as BERT wrote it until 2024, none, or one already added up outside.
MASKS = {
    "none": ("", "c", ""),
    "counted": (
        "u=Unsqueeze(mask,a1) u2=Unsqueeze(u,a2) uf=Cast<to=1>(u2) ub=Sub(one,uf) um=Mul(ub,low) cm=Add(c,um)", "cm",
        ", int64[2,6] mask",
    ),
    "added": ("cm=Add(c,mask)", "cm", ", float[2,1,1,6] mask"),
}  # fmt: skip


@pytest.mark.parametrize("scale", ["Div(a,r)", "Mul(a,r)"])
@pytest.mark.parametrize("mask", MASKS)
def test_offline_attention(make: Any, tmp_path: Path, mask: str, scale: str) -> None:
    between, scores, more = MASKS[mask]
    text = LAYER.replace("16] x)", f"16] x{more})").replace("c=Div(a,r)", f"c={scale} {between}")
    text = text.replace("Softmax<axis=-1>(c)", f"Softmax<axis=-1>({scores})").replace("q0=", "x1=Relu(x) q0=")
    text = text.replace("(x,", "(x1,")
    masked = {"low": -10000.0, "a1": [1], "a2": [2]} if mask == "counted" else {}
    model = make(text, spread({**LAYER_WEIGHTS, **masked}), 17)
    onnx.save(model, tmp_path / "m.onnx")
    found = count(model, RULES)
    assert found == offline(tmp_path / "m.onnx", "bert")
    assert found["Attention"] == (scale == "Div(a,r)" and mask != "added")

"""Gradient rules of ONNX Runtime Training: the nodes that its gradient builder adds for each operator.

They follow orttraining/core/graph/gradient_builder.cc; tests compare them with the graphs that onnxruntime-training
1.19.2 writes. Rules are of the form that `onnxperf.passes.gradients` describes; operators whose gradient consists of
the same nodes as PyTorch's kernels have the same rules.
"""

from __future__ import annotations

from onnxperf.passes import gradients
from onnxperf.passes.gradients import Found, Rule, number
from onnxperf.passes.tape import Tape
from op_models import Operator, Tensor

MS = "com.microsoft::"
#: Operators with one node for their gradient, and whether that reads the result instead of the input.
ONE_NODE: dict[str, tuple[str, bool]] = {
    "Gelu": (MS + "GeluGrad", False),
    MS + "FastGelu": (MS + "FastGeluGrad", False),
    MS + "Gelu": (MS + "GeluGrad", False),
    MS + "QuickGelu": (MS + "QuickGeluGrad", False),
    "LeakyRelu": (MS + "LeakyReluGrad", True),
    "LogSoftmax": (MS + "LogSoftmaxGrad_13", True),
    "Relu": (MS + "ReluGrad", True),
    "Sigmoid": (MS + "SigmoidGrad", True),
    "Softmax": (MS + "SoftmaxGrad_13", True),
    "Tanh": (MS + "TanhGrad", True),
}
#: Functions whose derivative is computed from x (or y, where True) in several nodes, before one that multiplies the
#: gradient by it.
CHAINS: dict[str, tuple[tuple[str, ...], bool]] = {
    "Abs": (("Sign",), False),
    "Cos": (("Sin", "Sub"), False),
    "Erf": (("Mul", "Neg", "Exp", "Mul"), False),
    "Reciprocal": (("Mul", "Neg"), True),
    "Sin": (("Cos",), False),
    "Sqrt": (("Div",), True),
}


def one_node(t: Tape, o: Operator, g: Tensor) -> Found:
    """One node that reads the gradient and the input or the result."""
    type, by_result = ONE_NODE[o.type]
    attrs = {"axis": o.attrs.get("axis", -1)} if "oftmax" in o.type else {}
    yield 0, t.add(o, type, (g, o.out if by_result else o.present[0]), g.shape, attrs=attrs)


def chain(t: Tape, o: Operator, g: Tensor) -> Found:
    """The derivative in several nodes, times the gradient."""
    types, by_result = CHAINS[o.type]
    x = o.out if by_result else o.present[0]
    for type in types:
        x = t.add(o, type, (x, *([number(o, x)] if type in ("Mul", "Sub", "Div") else [])), x.shape)
    yield 0, t.add(o, "Mul", (g, x), g.shape)


def logarithm(t: Tape, o: Operator, g: Tensor) -> Found:
    """Divided by x."""
    yield 0, t.add(o, "Div", (g, o.present[0]), g.shape)


def identity(t: Tape, o: Operator, g: Tensor) -> Found:
    """The same operator applied to the gradient."""
    yield 0, t.add(o, MS + o.type, (g, *o.inputs[1:]), o.present[0].shape, attrs=o.attrs)


def bias_gelu(t: Tape, o: Operator, g: Tensor) -> Found:
    """The gradient of x + b, which is summed for b."""
    x, b = o.present[:2]
    gradient = t.add(o, o.type + "Grad_dX", (g, x, b), g.shape)
    yield 0, gradient
    if t.wants(b):
        yield 1, t.reduced(o, gradient, b)


def division(t: Tape, o: Operator, g: Tensor) -> Found:
    """One node for both gradients."""
    a, b = o.present[:2]
    if t.wants(b):
        gradients = t.several(o, MS + "DivGrad", (g, a, b), (a, b))
        yield from ((i, gradients[i]) for i, _ in t.wanted(o))
    elif t.wants(a):
        yield 0, t.reduced(o, t.add(o, "Div", (g, b), g.shape), a)


def extreme(t: Tape, o: Operator, g: Tensor) -> Found:
    """Max and Min: the gradient in equal parts to the operands that equal the result."""
    masks = []
    for x in o.present:
        same = t.add(o, "Equal", (x, o.out), g.shape, dtype="bool")
        masks.append(t.add(o, "Cast", (same,), g.shape, dtype=g.dtype))
    share = t.add(o, "Div", (g, t.add(o, "Sum", masks, g.shape)), g.shape) if len(masks) > 1 else g
    for i, x in t.wanted(o):
        yield i, t.reduced(o, t.add(o, "Mul", (share, masks[i]), g.shape), x)


def clip(t: Tape, o: Operator, g: Tensor) -> Found:
    """The gradient where x lies within the bounds."""
    x, bounds = o.present[0], [b for b in o.inputs[1:] if b is not None]
    masks = [t.add(o, type, (x, b), g.shape, dtype="bool")
             for b, type in zip(reversed(bounds), ("LessOrEqual", "GreaterOrEqual"), strict=False)]  # fmt: skip
    inside = t.add(o, "And", masks, g.shape) if len(masks) > 1 else masks[0] if masks else None
    factor = None if inside is None else t.add(o, "Cast", (inside,), g.shape, dtype=g.dtype)
    yield 0, g if factor is None else t.add(o, "Mul", (g, factor), g.shape)


def mean(t: Tape, o: Operator, g: Tensor) -> Found:
    """A mean's gradient is divided and then spread."""
    x, kept = o.present[0], gradients.kept_shape(o)
    if o.type != "ReduceSum":
        g = t.add(o, MS + "Scale", (g, number(o, g)), g.shape)
    if g.shape != kept:
        g = t.add(o, "Reshape", (g,), kept)
    yield 0, t.add(o, "Expand", (g,), x.shape)


def norm_two(t: Tape, o: Operator, g: Tensor) -> Found:
    """x (g / y), with 0 where y is 0."""
    x, kept = o.present[0], gradients.kept_shape(o)
    zero = t.add(o, "Equal", (o.out, number(o, o.out)), g.shape, dtype="bool")
    scaled = t.add(o, "Where", (zero, number(o, g), t.add(o, "Div", (g, o.out), g.shape)), g.shape, dtype=g.dtype)
    if scaled.shape != kept:
        scaled = t.add(o, "Reshape", (scaled,), kept)
    yield 0, t.add(o, "Mul", (x, scaled), x.shape)


def power(t: Tape, o: Operator, g: Tensor) -> Found:
    """y x^(y - 1), times the gradient. An exponent is taken as fixed."""
    x = o.present[0]
    less = t.add(o, "Pow", (x, number(o, x)), x.shape)
    yield 0, t.add(o, "Mul", (t.add(o, "Mul", (less, number(o, x)), x.shape), g), g.shape)


def product(t: Tape, o: Operator, g: Tensor) -> Found:
    """As in PyTorch."""
    yield from gradients.product(t, o, g, "Gemm", MS + "FusedMatMul")


def convolution(t: Tape, o: Operator, g: Tensor) -> Found:
    """One node for the image, the weights and the bias."""
    wanted = t.wanted(o)
    gradients = t.several(o, f"{MS}{o.type}Grad", (g, *o.present[:2]), (p for _, p in wanted), attrs=o.attrs)
    yield from zip((i for i, _ in wanted), gradients, strict=True)


def normalisation(t: Tape, o: Operator, g: Tensor) -> Found:
    """One node for the gradients of the input, the scale and the bias."""
    kinds = {MS + "BatchNormInternal": "BatchNormalization", "RMSNormalization": "SimplifiedLayerNormalization"}
    name = kinds.get(o.type, o.type)
    x, scale = o.present[:2]
    operands = o.present[:2] if name.startswith("Simplified") else o.present[:3]
    attrs = {"axis": o.attrs.get("axis", -1)} if name.endswith("LayerNormalization") else {}
    gradients = t.several(o, f"{MS}{name}Grad", (g, x, scale, *o.outputs[-2:]), operands, attrs=attrs)
    yield from ((i, gradients[i]) for i, _ in t.wanted(o) if i < len(gradients))


def dropout(t: Tape, o: Operator, g: Tensor) -> Found:
    """One node that reads the mask; without a mask it was the identity."""
    yield 0, t.add(o, MS + "DropoutGrad", (g, o.outputs[1]), g.shape) if len(o.outputs) > 1 else g


def lookup(t: Tape, o: Operator, g: Tensor) -> Found:
    """The gradient's elements are added to zeros at the places they came from."""
    x, ids = o.present[:2]
    if o.type == "GatherElements":
        yield 0, t.add(o, MS + "GatherElementsGrad", (g, ids), x.shape)
    else:
        yield 0, t.add(o, f"{MS}{o.type}Grad", (ids, g), x.shape, dtype=g.dtype)


def chosen(t: Tape, o: Operator, g: Tensor) -> Found:
    """The largest elements' gradients are added to zeros where they were found."""
    yield 0, t.add(o, MS + "GatherElementsGrad", (g, o.outputs[1]), o.present[0].shape)


def split(t: Tape, o: Operator, *grads: Tensor | None) -> Found:
    """The gradients of the parts that have one, one behind the other."""
    parts = [g for g in grads if g is not None]
    yield 0, t.add(o, "Concat", parts, o.present[0].shape, attrs={"axis": o.attrs.get("axis", 0)})


def cut(t: Tape, o: Operator, g: Tensor) -> Found:
    """A slice's gradient is copied into zeros, that of padding cut out."""
    x = o.present[0]
    yield 0, t.add(o, MS + "SliceGrad" if o.type == "Slice" else "Pad", (g,), x.shape)


def concatenation(t: Tape, o: Operator, g: Tensor) -> Found:
    """The gradient in parts."""
    gradients = t.several(o, MS + "SplitTraining", (g,), o.present, attrs={"axis": o.attrs.get("axis", 0)})
    yield from ((i, gradients[i]) for i, _ in t.wanted(o))


def pooling(t: Tape, o: Operator, g: Tensor) -> Found:
    """One node that reads the indices of the largest elements; of a mean every element gets a part."""
    read = (g, *o.outputs[1:]) if o.type == "MaxPool" else (g,)
    yield 0, t.add(o, o.type + "Grad", read, o.present[0].shape)


def resize(t: Tape, o: Operator, g: Tensor) -> Found:
    """Each element is added to those that it was interpolated from."""
    yield 0, t.add(o, MS + "ResizeGrad", (g,), o.present[0].shape)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"), gradients.view),
    **dict.fromkeys(ONE_NODE, one_node), **dict.fromkeys(CHAINS, chain),
    **dict.fromkeys(("Add", "Sub"), gradients.addition), "Mul": gradients.multiplication, "Div": division,
    **dict.fromkeys(("Max", "Min"), extreme), "Where": gradients.selection, "Clip": clip, "Pow": power,
    "Neg": gradients.negation, "Exp": gradients.exponential, "Log": logarithm, "Trilu": identity,
    MS + "BiasGelu": bias_gelu, MS + "BiasFastGelu": bias_gelu,
    **dict.fromkeys(("MatMul", "Gemm"), product), **dict.fromkeys(("Conv", "ConvTranspose"), convolution),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", MS + "BatchNormInternal"), normalisation),
    "Dropout": dropout,
    **dict.fromkeys(("Gather", "GatherElements", "GatherND"), lookup), "TopK": chosen,
    **dict.fromkeys(("MaxPool", "AveragePool"), pooling), "Resize": resize,
    **dict.fromkeys(("ReduceMean", "ReduceSum", "GlobalAveragePool"), mean), "ReduceL2": norm_two,
    **dict.fromkeys(("Slice", "Pad"), cut), MS + "ConcatTraining": concatenation, "Split": split,
    "Cast": gradients.cast, "Expand": gradients.expand, "Transpose": gradients.transpose,
}  # fmt: skip

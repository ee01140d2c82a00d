"""Gradient rules: what PyTorch's autograd launches in the backward pass of each operator.

A rule gets the tape, the operator as it ran, and the gradients of its outputs (None where nothing asks for one); it
yields the position of each input with its gradient. Formulas are those of tools/autograd/derivatives.yaml and
ATen/native of PyTorch 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from onnxperf.ground.errors import UsageError
from onnxperf.passes.exchanges import EXCHANGES, exchanged
from onnxperf.passes.tape import Tape
from op_models import Operator, Tensor

Found = Iterator[tuple[int, Tensor]]
Rule = Callable[..., Found]

#: Elementwise operators with one kernel for their gradient, and whether that reads the result instead of the input.
ONE_KERNEL: dict[str, tuple[str, bool]] = {
    "Clip": ("torch::clamp_backward", False),
    "Elu": ("com.microsoft::EluGrad", True),
    "Gelu": ("com.microsoft::GeluGrad", False),
    "com.microsoft::Gelu": ("com.microsoft::GeluGrad", False),
    "HardSigmoid": ("com.microsoft::HardSigmoidGrad", False),
    "HardSwish": ("torch::hardswish_backward", False),
    "LeakyRelu": ("com.microsoft::LeakyReluGrad", False),
    "Mish": ("torch::mish_backward", False),
    "Relu": ("com.microsoft::ReluGrad", True),
    "Sigmoid": ("com.microsoft::SigmoidGrad", True),
    "Softplus": ("torch::softplus_backward", False),
    "Swish": ("torch::silu_backward", False),
    "Tanh": ("com.microsoft::TanhGrad", True),
}
#: Functions whose derivative autograd computes from x in several kernels, the last of which multiplies by the gradient.
CHAINS: dict[str, tuple[str, ...]] = {
    "Abs": ("Sign",),
    "Cos": ("Sin", "Neg"),
    "Erf": ("Pow", "Neg", "Exp", "Mul"),
    "Log": ("Reciprocal",),
    "Reciprocal": ("Mul", "Neg"),
    "Sin": ("Cos",),
    "Sqrt": ("Mul", "Reciprocal"),
}
#: Passed through: the gradient of the first input is that of the output, in the input's shape.
VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")


def view(t: Tape, o: Operator, g: Tensor) -> Found:
    """The same elements in the input's shape."""
    x = o.present[0]
    yield 0, t.add(o, "Reshape", (g,), x.shape) if g.shape != x.shape else g


def transpose(t: Tape, o: Operator, g: Tensor) -> Found:
    """The inverse permutation."""
    x = o.present[0]
    perm = o.attrs.get("perm") or tuple(reversed(range(x.rank)))
    back = tuple(sorted(range(x.rank), key=perm.__getitem__))
    yield 0, t.add(o, "Transpose", (g,), x.shape, attrs={"perm": back})


def cast(t: Tape, o: Operator, g: Tensor) -> Found:
    """Back to the input's type."""
    x = o.present[0]
    yield 0, t.add(o, "Cast", (g,), x.shape, dtype=x.dtype)


def expand(t: Tape, o: Operator, g: Tensor) -> Found:
    """The sum over what was spread."""
    yield 0, t.reduced(o, g, o.present[0])


def reduce(t: Tape, o: Operator, g: Tensor) -> Found:
    """A sum's gradient is spread by a view, a mean's divided as well."""
    x, kept = o.present[0], kept_shape(o)
    if g.shape != kept:
        g = t.add(o, "Reshape", (g,), kept)
    wide = t.add(o, "Expand", (g,), x.shape)
    yield 0, wide if o.type == "ReduceSum" else t.add(o, "Div", (wide, number(o, wide)), x.shape)


def norm(t: Tape, o: Operator, g: Tensor) -> Found:
    """x (gradient / norm) of a Euclidean norm: a kernel by rows, one by elements."""
    x, kept = o.present[0], kept_shape(o)
    rows = (r if r.shape == kept else t.add(o, "Reshape", (r,), kept) for r in (g, o.out))
    shares = t.add(o, "Div", rows, kept)
    yield 0, t.add(o, "Mul", (x, shares), x.shape, dtype=shares.dtype)


def kept_shape(o: Operator) -> tuple[int, ...]:
    """The shape of what a reduction gives, with 1 for the axes that are gone."""
    x = o.present[0]
    axes = o.attrs.get("axes") or (o.inputs[1].value if len(o.inputs) > 1 and o.inputs[1] is not None else None)
    if o.type == "GlobalAveragePool":
        axes = range(2, x.rank)
    gone = {int(axis) % max(x.rank, 1) for axis in (range(x.rank) if axes is None else axes)}
    return tuple(1 if axis in gone else d for axis, d in enumerate(x.shape))


def elementwise(t: Tape, o: Operator, g: Tensor) -> Found:
    """One kernel that reads the gradient and the input or the result."""
    type, by_result = ONE_KERNEL[o.type]
    yield 0, t.add(o, type, (g, o.out if by_result else o.present[0]), g.shape)


def chain(t: Tape, o: Operator, g: Tensor) -> Found:
    """The derivative in several kernels, times the gradient."""
    x = o.present[0]
    for type in CHAINS[o.type]:
        x = t.add(o, type, (x, *([number(o, x)] if type in ("Pow", "Mul") else [])), x.shape)
    yield 0, t.add(o, "Mul", (g, x), g.shape)


def negation(t: Tape, o: Operator, g: Tensor) -> Found:
    """The gradient negated."""
    yield 0, t.add(o, "Neg", (g,), g.shape)


def chosen(t: Tape, o: Operator, g: Tensor) -> Found:
    """The largest elements' gradients are added to zeros, in place, where they were found."""
    x = o.present[0]
    t.add(o, "ConstantOfShape", (), x.shape, dtype=x.dtype)
    yield 0, t.add(o, "torch::scatter_add", (g, o.outputs[1]), x.shape)


def exponential(t: Tape, o: Operator, g: Tensor) -> Found:
    """Times the result."""
    yield 0, t.add(o, "Mul", (g, o.out), g.shape)


def power(t: Tape, o: Operator, g: Tensor) -> Found:
    """y x^(y - 1), times the gradient: three kernels. An exponent is taken as fixed."""
    x = o.present[0]
    less = t.add(o, "Pow", (x, number(o, x)), x.shape)
    yield 0, t.add(o, "Mul", (g, t.add(o, "Mul", (less, number(o, x)), x.shape)), g.shape)


def addition(t: Tape, o: Operator, g: Tensor) -> Found:
    """The gradient itself, negated for what is subtracted, summed for what was spread."""
    for i, x in t.wanted(o):
        gradient = t.add(o, "Neg", (g,), g.shape) if o.type == "Sub" and i else g
        yield i, t.reduced(o, gradient, x)


def multiplication(t: Tape, o: Operator, g: Tensor) -> Found:
    """Times the other factor; addcmul adds a product to its first operand."""
    first = 1 if o.type == "torch::addcmul" else 0
    for i, x in t.wanted(o):
        other = None if i < first else o.inputs[2 * first + 1 - i] if first == 0 else o.inputs[3 - i]
        yield i, t.reduced(o, g if other is None else t.add(o, "Mul", (g, other), g.shape), x)


def division(t: Tape, o: Operator, g: Tensor) -> Found:
    """1 / b, and -(a / b) / b: one kernel, and four."""
    a, b = o.present[:2]
    if t.wants(a):
        yield 0, t.reduced(o, t.add(o, "Div", (g, b), g.shape), a)
    if t.wants(b):
        back = t.add(o, "Div", (t.add(o, "Div", (a, b), g.shape), b), g.shape)
        yield 1, t.reduced(o, t.add(o, "Mul", (t.add(o, "Neg", (g,), g.shape), back), g.shape), b)


def selection(t: Tape, o: Operator, g: Tensor) -> Found:
    """Where, Max and Min: the gradient where an operand was taken, else 0."""
    for i, x in t.wanted(o):
        asked = o.inputs[0] if o.type == "Where" else x
        yield i, t.reduced(o, t.add(o, "Where", (asked, g, number(o, g)), g.shape, dtype=g.dtype), x)


def product(t: Tape, o: Operator, g: Tensor, matrices: str = "MatMul", batches: str = "MatMul") -> Found:
    """dA = dC B^T, dB = A^T dC, and the sum over all rows for a bias. A 2-D weight sees all rows as one matrix."""
    types = (matrices, batches)  # of products of two matrices, and of others
    a, b = o.present[:2]
    ta, tb = bool(o.attrs.get("transA")), bool(o.attrs.get("transB"))
    if a.rank < 2 or b.rank < 2:
        raise unknown(o)
    if b.rank == 2 and not ta and a.rank > 2:
        a2 = t.add(o, "Reshape", (a,), (a.size // a.shape[-1], a.shape[-1])) if t.wants(b) else a
        g2 = t.add(o, "Reshape", (g,), (g.size // g.shape[-1], g.shape[-1])) if t.wants(b) else g
    else:
        a2, g2 = a, g
    if t.wants(a):
        left, right, flags = (b, g, (tb, True)) if ta else (g, b, (False, not tb))
        shape = (*g.shape[:-2], *a.shape[-2:]) if b.rank > 2 else a.shape
        yield 0, t.reduced(o, multiplied(t, o, types, left, right, flags, shape), a)
    if t.wants(b):
        left, right, flags = (g2, a2, (True, ta)) if tb else (a2, g2, (not ta, False))
        shape = (*g2.shape[:-2], *b.shape[-2:])
        yield 1, t.reduced(o, multiplied(t, o, types, left, right, flags, shape), b)
    if len(o.inputs) > 2 and (bias := o.inputs[2]) is not None and t.wants(bias):
        yield 2, t.reduced(o, g, bias)


def multiplied(
    t: Tape, o: Operator, types: tuple[str, str], a: Tensor, b: Tensor, flags: tuple[bool, bool], shape: tuple[int, ...]
) -> Tensor:
    """A product of a and b, each transposed where its flag says so."""
    attrs = {"transA": int(flags[0]), "transB": int(flags[1])}
    return t.add(o, types[0 if a.rank == b.rank == 2 else 1], (a, b), shape, attrs=attrs)


def einsum(t: Tape, o: Operator, g: Tensor) -> Found:
    """The same sum with the gradient in an operand's place."""
    left, _, right = str(o.attrs.get("equation", "")).replace(" ", "").partition("->")
    terms = left.split(",")
    if not right or len(terms) != 2:
        raise unknown(o)
    for i, x in t.wanted(o):
        attrs = {"equation": f"{right},{terms[1 - i]}->{terms[i]}"}
        yield i, t.add(o, "Einsum", (g, o.present[1 - i]), x.shape, attrs=attrs)


def convolution(t: Tape, o: Operator, g: Tensor) -> Found:
    """The transposed convolution for the image, as many FLOPs for the weights, and a sum for the bias."""
    x, w, transposed = o.present[0], o.present[1], o.type == "ConvTranspose"
    kept = {k: v for k, v in o.attrs.items() if k in ("group", "strides", "dilations", "memory_format")}
    if t.wants(x):
        yield 0, t.add(o, "Conv" if transposed else "ConvTranspose", (g, w), x.shape, attrs=kept)
    if t.wants(w):
        group = {k: v for k, v in kept.items() if k in ("group", "strides")} | {"transposed": int(transposed)}
        yield 1, t.add(o, "torch::convolution_weight_gradient", (g, x), w.shape, attrs=group)
    if len(o.inputs) > 2 and (bias := o.inputs[2]) is not None and t.wants(bias):
        axes = tuple(i for i in range(g.rank) if i != 1)
        yield 2, t.add(o, "ReduceSum", (g,), bias.shape, attrs={"axes": axes})


def softmax(t: Tape, o: Operator, g: Tensor) -> Found:
    """Softmax multiplies gradient and result first; LogSoftmax is one kernel. Both write the type of the input, also
    where the result is wider.
    """
    log, axis = o.type == "LogSoftmax", {"axis": o.attrs.get("axis", -1)}
    first = g if log else t.add(o, "Mul", (g, o.out), g.shape)
    yield 0, t.add(o, "com.microsoft::LogSoftmaxGrad" if log else "com.microsoft::SoftmaxGrad", (first, o.out),
                   g.shape, dtype=o.present[0].dtype, attrs=axis)  # fmt: skip


def normalisation(t: Tape, o: Operator, g: Tensor) -> Found:
    """A kernel for the input, one for scale and bias together."""
    x, groups = o.present[0], o.attrs.get("num_groups")
    if o.type == "torch::batch_norm_training":
        yield from enumerate(t.several(o, "torch::batch_norm_backward", (g, x), o.present))
        return
    if t.wants(x):
        rows = x.shape[1] if o.type == "InstanceNormalization" and x.rank > 1 else groups
        if rows:
            yield 0, t.add(o, "torch::group_norm_backward", (g, x), x.shape, attrs={"num_groups": rows})
        else:
            read = (g, x, *o.outputs[1:])
            yield 0, t.add(o, "torch::layer_norm_backward", read, x.shape, attrs={"axis": o.attrs.get("axis", -1)})
    parameters = [(i, p) for i, p in t.wanted(o) if i]
    if parameters:
        read = (g, x, *o.outputs[1:])
        gradients = t.several(o, "torch::layer_norm_weight_gradient", read, (p for _, p in parameters))
        yield from zip((i for i, _ in parameters), gradients, strict=True)


def dropout(t: Tape, o: Operator, g: Tensor) -> Found:
    """grad mask scale in one kernel, as nothing differentiates it again; without a mask it was the identity."""
    yield 0, t.add(o, "torch::dropout_backward", (g, o.outputs[1]), g.shape) if o.type == "torch::dropout" else g


def lookup(t: Tape, o: Operator, g: Tensor) -> Found:
    """Zeros of the table's size, and the rows added to them in place."""
    x, ids = o.present[:2]
    t.add(o, "ConstantOfShape", (), x.shape, dtype=x.dtype)
    type = "torch::scatter_add" if o.type == "GatherElements" else "torch::embedding_backward"
    yield 0, t.add(o, type, (g, ids), x.shape)


def placed(t: Tape, o: Operator, g: Tensor) -> Found:
    """Zeros where something was placed, in a copy; what was placed there is gathered."""
    x, ids, updates = o.present[:3]
    attrs = {"axis": o.attrs.get("axis", 0)}
    if t.wants(x):
        yield 0, t.add(o, "ScatterElements", (g, ids, updates), x.shape, attrs=attrs)
    if t.wants(updates):
        yield 2, t.add(o, "GatherElements", (g, ids), updates.shape, attrs=attrs)


def cut(t: Tape, o: Operator, g: Tensor) -> Found:
    """A slice's gradient is copied into zeros; that of padding is a slice; those of the rest are the same movement."""
    x = o.present[0]
    if o.type == "Slice":
        t.add(o, "ConstantOfShape", (), x.shape, dtype=x.dtype)
        yield 0, t.add(o, "torch::slice_backward", (g,), x.shape)
    else:
        yield 0, t.add(o, "Pad", (g,), x.shape)


def concatenation(t: Tape, o: Operator, g: Tensor) -> Found:
    """Views of the gradient."""
    for i, x in t.wanted(o):
        yield i, t.add(o, "Identity", (g,), x.shape, attrs={"part": 1})


def split(t: Tape, o: Operator, *grads: Tensor | None) -> Found:
    """The gradients of all parts, one behind the other."""
    parts = [g or t.add(o, "ConstantOfShape", (), out.shape, dtype=out.dtype)
             for g, out in zip(grads, o.outputs, strict=True)]  # fmt: skip
    yield 0, t.add(o, "Concat", parts, o.present[0].shape, attrs={"axis": o.attrs.get("axis", 0)})


def roll(t: Tape, o: Operator, g: Tensor) -> Found:
    """Rolled back."""
    yield 0, t.add(o, o.type, (g,), g.shape, attrs=o.attrs)


def pooling(t: Tape, o: Operator, g: Tensor) -> Found:
    """The largest element of a window gets the gradient among zeros; of a mean every element gets a part."""
    x, window = o.present[0], {name: o.attrs[name] for name in ("kernel_shape", "strides") if name in o.attrs}
    if o.type == "MaxPool":
        t.add(o, "ConstantOfShape", (), x.shape, dtype=x.dtype)
        yield 0, t.add(o, "com.microsoft::MaxPoolGrad", (g, *o.outputs[1:]), x.shape, attrs=window)
    else:
        yield 0, t.add(o, "com.microsoft::AveragePoolGrad", (g,), x.shape, attrs=window)


def resize(t: Tape, o: Operator, g: Tensor) -> Found:
    """Each element is added to those that it was interpolated from."""
    x = o.present[0]
    t.add(o, "ConstantOfShape", (), x.shape, dtype=x.dtype)
    yield 0, t.add(o, "torch::upsample_backward", (g,), x.shape)


def attention(t: Tape, o: Operator, g: Tensor) -> Found:
    """One kernel for all gradients."""
    wanted = t.wanted(o)
    attrs = {k: v for k, v in o.attrs.items() if k in ("is_causal", "q_num_heads", "kv_num_heads")}
    gradients = t.several(o, "torch::attention_backward", (g, *o.inputs), (x for _, x in wanted), attrs=attrs)
    yield from zip((i for i, _ in wanted), gradients, strict=True)


RECURRENT_INPUTS = 8  # behind which an operator reads nothing


def recurrent(t: Tape, o: Operator, g: Tensor) -> Found:
    """As long as two runs of the layer: one for the gradients of its inputs, one for those of its weights."""
    wanted = t.wanted(o)
    read = (*o.inputs, *[None] * (RECURRENT_INPUTS - len(o.inputs)), g)
    gradients = t.several(o, o.type, read, (*o.outputs, *(x for _, x in wanted)), attrs=o.attrs, times=2)
    yield from zip((i for i, _ in wanted), gradients[len(o.outputs) :], strict=True)


def unknown(o: Operator) -> UsageError:
    """The error for a form of an operator that its rule does not cover."""
    return UsageError(f"no gradient is defined for node {o.name!r} ({o.type}) as it is used here")


def number(o: Operator, like: Tensor) -> Tensor:
    """A single number, which no kernel makes."""
    return Tensor(f"{o.name}#number", like.dtype, (), "constant", (2.0,))


RULES: dict[str, Rule] = {
    **dict.fromkeys(EXCHANGES, exchanged), **dict.fromkeys(VIEWS, view),
    **dict.fromkeys(ONE_KERNEL, elementwise), **dict.fromkeys(CHAINS, chain),
    **dict.fromkeys(("Add", "Sub", "Sum"), addition), **dict.fromkeys(("Mul", "torch::addcmul"), multiplication),
    **dict.fromkeys(("Where", "Max", "Min"), selection), **dict.fromkeys(("MatMul", "Gemm"), product),
    **dict.fromkeys(("Conv", "ConvTranspose"), convolution), **dict.fromkeys(("Softmax", "LogSoftmax"), softmax),
    **dict.fromkeys((f"{norm}Normalization" for norm in ("Group", "Instance", "Layer", "RMS")), normalisation),
    **dict.fromkeys(("Dropout", "torch::dropout"), dropout),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND"), lookup), "MaxPool": pooling, "AveragePool": pooling,
    **dict.fromkeys(("GlobalAveragePool", "ReduceMean", "ReduceSum"), reduce), **dict.fromkeys(("Slice", "Pad"), cut),
    **dict.fromkeys(("Resize", "Upsample"), resize), **dict.fromkeys(("GRU", "LSTM", "RNN"), recurrent),
    "Attention": attention, "Cast": cast, "Concat": concatenation, "Div": division, "Einsum": einsum,
    "Exp": exponential, "Expand": expand, "Neg": negation, "Pow": power, "ReduceL2": norm, "ScatterElements": placed,
    "Split": split, "TopK": chosen, "Transpose": transpose, "torch::batch_norm_training": normalisation,
    "torch::roll": roll,
}  # fmt: skip

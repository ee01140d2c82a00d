"""How AOTAutograd differentiates for torch.compile: gradients as the elementwise operators, reductions and calls that
Inductor gets.

Formulas are those of torch/_decomp/decompositions.py of PyTorch 2.13, named there as the operator that they belong to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from onnxperf.passes import parts, torch_training
from onnxperf.passes.autocast import MARK
from onnxperf.passes.gradients import ONE_KERNEL, RULES, Found, Rule, kept_shape, number
from onnxperf.passes.parts import ATEN_NAME, BATCH_NORM, INDEX_PUT, LOG_SOFTMAX, RETURNED, SINGLE, TANGENT
from onnxperf.passes.tape import Tape
from op_models import Operator, Tensor

#: ATen's names of gradients that have those of ONNX Runtime.
ATEN = {
    "EluGrad": "elu_backward", "GeluGrad": "gelu_backward", "HardSigmoidGrad": "hardsigmoid_backward",
    "LeakyReluGrad": "leaky_relu_backward", "ReluGrad": "threshold_backward", "SigmoidGrad": "sigmoid_backward",
    "TanhGrad": "tanh_backward",
}  # fmt: skip


def in_training(o: Operator) -> Operator:
    """An operator as it runs in training, with what its gradient reads of it."""
    with_parts = parts.in_training(o)
    return torch_training.in_training(o) if with_parts is o else with_parts


def _wide(t: Tape, o: Operator, x: Tensor) -> Tensor:
    return x if x.dtype == SINGLE else t.add(o, "Cast", (x,), x.shape, dtype=SINGLE)


def _times(t: Tape, o: Operator, a: Tensor, b: Tensor, type: str = "Mul") -> Tensor:
    """Two tensors joined elementwise, the second spread over the first."""
    return t.add(o, type, (a, b), a.shape)


def _sum(t: Tape, o: Operator, x: Tensor, axes: Sequence[int], keep: bool = True) -> Tensor:
    """A sum along axes."""
    shape = tuple(1 if i in axes else d for i, d in enumerate(x.shape) if keep or i not in axes)
    return t.add(o, "ReduceSum", (x,), shape, attrs={"axes": tuple(axes)})


def batch_norm(t: Tape, o: Operator, g: Tensor) -> Found:
    """native_batch_norm_backward."""
    x, (mean, inv_std), scale = o.present[0], o.outputs[1:3], o.present[1]
    axes, n = [i for i in range(x.rank) if i != 1], number(o, mean)

    def column(v: Tensor) -> Tensor:
        return t.add(o, "Reshape", (v,), tuple(d if i == 1 else 1 for i, d in enumerate(x.shape)))

    g, means = _wide(t, o, g), column(mean)
    total = _sum(t, o, g, axes, keep=False)
    centred = t.add(o, "Sub", (_wide(t, o, x), means), x.shape)
    dot = _sum(t, o, _times(t, o, g, centred), axes, keep=False)
    mean_g = column(_times(t, o, total, n))
    share = column(_times(t, o, _times(t, o, dot, n), _times(t, o, inv_std, inv_std)))
    factor = column(_times(t, o, inv_std, scale))
    z = _times(t, o, g, _times(t, o, centred, share), "Sub")
    z = _times(t, o, _times(t, o, z, mean_g, "Sub"), factor)
    yield 0, t.add(o, "Cast", (z,), x.shape, dtype=x.dtype) if x.dtype != SINGLE else z
    yield 1, _times(t, o, dot, inv_std)
    yield 2, total


def row_norm(t: Tape, o: Operator, g: Tensor) -> Found:
    """native_layer_norm_backward, and _fused_rms_norm_backward."""
    x, (_, inv_std, normalised) = o.present[0], o.outputs[1:]
    axis, n = o.attrs.get("axis", -1) % x.rank, number(o, inv_std)
    inner, outer = list(range(axis, x.rank)), list(range(axis))
    g = _wide(t, o, g)
    if t.wants(x):
        scaled = _times(t, o, g, o.present[1]) if len(o.present) > 1 else g
        if o.type == "RMSNormalization":
            dot = _sum(t, o, _times(t, o, normalised, scaled), inner)
            z = _times(t, o, scaled, _times(t, o, _times(t, o, normalised, n), dot), "Sub")
            z = _times(t, o, z, inv_std)
        else:
            each = _times(t, o, scaled, n)
            total = _sum(t, o, scaled, inner)
            dot = _sum(t, o, _times(t, o, scaled, normalised), inner)
            z = _times(t, o, normalised, dot)
            z = _times(t, o, _times(t, o, each, total, "Sub"), z, "Sub")
            z = _times(t, o, z, _times(t, o, inv_std, n, "Div"))
        yield 0, t.add(o, "Cast", (z,), x.shape, dtype=x.dtype) if x.dtype != SINGLE else z
    for i, p in t.wanted(o):
        if i:
            product = _times(t, o, g, normalised) if i == 1 else g
            summed = _sum(t, o, product, outer, keep=False)
            yield i, summed if summed.shape == p.shape else t.add(o, "Reshape", (summed,), p.shape)


def group_norm(t: Tape, o: Operator, g: Tensor) -> Found:
    """native_group_norm_backward."""
    x, (mean, inv_std, wide) = o.present[0], o.outputs[1:]
    (images, groups, _), channels = wide.shape, x.shape[1]
    each, n = channels // groups, number(o, mean)
    g, x32, spots = _wide(t, o, g), _wide(t, o, x), (images, channels, prod(x.shape[2:]))
    dot = _sum(t, o, t.add(o, "Reshape", (_times(t, o, g, x32),), spots), [2], keep=False)
    total = _sum(t, o, t.add(o, "Reshape", (g,), spots), [2], keep=False)
    scale = o.present[1]
    grouped = (images, groups, each)
    if t.wants(x):
        by_group = [
            _sum(t, o, t.add(o, "Reshape", (_times(t, o, s, scale),), grouped), [2]) for s in (dot, total)
        ]  # fmt: skip
        first = t.add(o, "Mul", (inv_std, t.add(o, "Reshape", (scale,), (1, groups, each))), grouped)
        second = _times(t, o, _times(t, o, by_group[1], mean), by_group[0], "Sub")
        for _ in range(3):
            second = _times(t, o, second, inv_std)
        second = _times(t, o, second, n)
        third = t.add(o, "Neg", (second,), mean.shape)
        third = _times(t, o, _times(t, o, third, mean), _times(t, o, by_group[1], inv_std), "Sub")
        whole = (images, groups, each, spots[2])
        factors = [t.add(o, "Reshape", (f,), (*f.shape[:2], f.shape[2], 1)) for f in (first, second, third)]
        z = _times(t, o, t.add(o, "Reshape", (g,), whole), factors[0])
        z = _times(t, o, z, _times(t, o, t.add(o, "Reshape", (x32,), whole), factors[1]), "Add")
        z = t.add(o, "Reshape", (_times(t, o, z, factors[2], "Add"),), x.shape)
        yield 0, t.add(o, "Cast", (z,), x.shape, dtype=x.dtype) if x.dtype != SINGLE else z
    for i, p in t.wanted(o):
        if i == 1:
            parts = [t.add(o, "Reshape", (s,), grouped) for s in (dot, total)]
            product = _times(t, o, _times(t, o, parts[0], _times(t, o, parts[1], mean), "Sub"), inv_std)
            yield i, t.add(o, "Reshape", (_sum(t, o, product, [0], keep=False),), p.shape)
        elif i == 2:
            yield i, _sum(t, o, total, [0], keep=False)


def shares(t: Tape, o: Operator, g: Tensor) -> Found:
    """_softmax_backward_data: g y - y sum(g y); _log_softmax_backward_data: g - exp(y) sum(g)."""
    x, y, axis = o.present[0], o.out, o.attrs.get("axis", -1) % max(o.out.rank, 1)
    g, y = _wide(t, o, g), _wide(t, o, y)
    if o.type != "Softmax":
        each = t.add(o, "Exp", (y,), y.shape)
        first = g
    else:
        each, first = y, _times(t, o, g, y)
    z = _times(t, o, first, _times(t, o, each, _sum(t, o, first, [axis])), "Sub")
    yield 0, t.add(o, "Cast", (z,), x.shape, dtype=x.dtype) if x.dtype != SINGLE else z


def masked(t: Tape, o: Operator, g: Tensor) -> Found:
    """The gradient where a condition on input or result holds, which is what is kept: relu, clamp, leaky_relu and
    hardsigmoid.
    """
    read = o.out if o.type == "Relu" else o.present[0]
    mask = t.add(o, "LessOrEqual", (read, number(o, read)), read.shape, dtype="bool")
    if o.type == "LeakyRelu":
        yield 0, t.add(o, "Where", (mask, g, _times(t, o, g, number(o, g))), g.shape, dtype=g.dtype)
    else:
        yield 0, t.add(o, "Where", (mask, number(o, g), g), g.shape, dtype=g.dtype)


def elementwise(t: Tape, o: Operator, g: Tensor) -> Found:
    """One operator in float32 that reads the gradient and the input or the result."""
    type, by_result = ONE_KERNEL[o.type]
    z = t.add(o, type, (_wide(t, o, g), _wide(t, o, o.out if by_result else o.present[0])), g.shape)
    yield 0, t.add(o, "Cast", (z,), g.shape, dtype=g.dtype) if z.dtype != g.dtype else z


def lookup(t: Tape, o: Operator, g: Tensor) -> Found:
    """embedding_dense_backward: zeros of the table's size, to which rows are added where they were read."""
    x, ids = o.present[:2]
    if ids.size == 1:  # select_backward
        axis = o.attrs.get("axis", 0) % max(x.rank, 1)
        row = t.add(o, "Reshape", (g,), tuple(1 if i == axis else d for i, d in enumerate(x.shape)))
        yield 0, t.add(o, "Pad", (row,), x.shape)
        return
    g = _wide(t, o, g)
    zeros = t.add(o, "ConstantOfShape", (), x.shape, dtype=g.dtype)
    total = t.add(o, INDEX_PUT, (zeros, ids, g), x.shape)
    yield 0, t.add(o, "Cast", (total,), x.shape, dtype=x.dtype) if x.dtype != total.dtype else total


def cut(t: Tape, o: Operator, g: Tensor) -> Found:
    """slice_backward: zeros around; that of padding is a slice."""
    yield 0, t.add(o, "Pad", (g,), o.present[0].shape)


def concatenation(t: Tape, o: Operator, g: Tensor) -> Found:
    """Parts of the gradient."""
    parts = t.several(o, "Split", (g,), o.present, attrs={"axis": o.attrs.get("axis", 0)})
    yield from ((i, part) for i, part in enumerate(parts) if t.wants(o.present[i]))


def pooling(t: Tape, o: Operator, g: Tensor) -> Found:
    """max_pool2d_with_indices_backward and avg_pool2d_backward."""
    x, window = o.present[0], {name: o.attrs[name] for name in ("kernel_shape", "strides") if name in o.attrs}
    if o.type == "AveragePool":
        yield 0, t.add(o, "com.microsoft::AveragePoolGrad", (g,), x.shape, attrs=window)
        return
    images = prod(x.shape[:2])
    zeros = t.add(o, "ConstantOfShape", (), (images, x.size // max(images, 1)), dtype=SINGLE)
    rows = (images, g.size // max(images, 1))
    places, g = (t.add(o, "Reshape", (v,), rows) for v in (o.outputs[1], g))
    total = t.add(o, "Reshape", (t.add(o, INDEX_PUT, (zeros, places, _wide(t, o, g)), zeros.shape),), x.shape)
    yield 0, t.add(o, "Cast", (total,), x.shape, dtype=x.dtype) if x.dtype != SINGLE else total


def mean(t: Tape, o: Operator, g: Tensor) -> Found:
    """A sum's gradient is spread, a mean's divided as well."""
    x, kept = o.present[0], kept_shape(o)
    g = t.add(o, "Reshape", (g,), kept) if g.shape != kept else g
    wide = t.add(o, "Expand", (g,), x.shape)
    wide = wide if o.type == "ReduceSum" else _times(t, o, wide, number(o, wide), "Div")
    yield 0, t.add(o, "Cast", (wide,), x.shape, dtype=x.dtype) if x.dtype != wide.dtype else wide


def attention(t: Tape, o: Operator, g: Tensor) -> Found:
    """One call for all gradients, which reads the result and its sums of exponentials as well."""
    wanted = t.wanted(o)
    attrs = {k: v for k, v in o.attrs.items() if k in ("is_causal", "q_num_heads", "kv_num_heads")}
    read = (g, *o.present[:3], o.inputs[3] if len(o.inputs) > 3 else None, *o.outputs)
    gradients = t.several(o, "torch::attention_backward", read, (x for _, x in wanted), attrs=attrs)
    yield from zip((i for i, _ in wanted), gradients, strict=True)


def _named(rule: Rule, name: str = "") -> Rule:
    """A rule whose kernels have the name of an operator of ATen."""

    def write(t: Tape, o: Operator, *grads: Tensor | None) -> Iterator[tuple[int, Tensor]]:
        first = len(t.operators)
        gradients = list(rule(t, o, *grads))
        if name:
            t.operators[first:] = [replace(p, attrs={**p.attrs, ATEN_NAME: name}) for p in t.operators[first:]]
        yield from gradients

    return write


def loss(y: Tensor, name: str, nodes: tuple[str, ...]) -> Iterator[Operator]:
    """A loss of `y`, as part of what is compiled: minus the mean of what the log of the softmax is at the targets."""
    if name != "cross-entropy":
        target = Tensor(f"{y.name}#target", y.dtype, y.shape, "input")
        away, square = replace(y, name=f"{y.name}#away"), replace(y, name=f"{y.name}#square")
        yield Operator(away.name, "Sub", (y, target), (away,), {MARK: SINGLE}, 0, nodes)
        yield Operator(square.name, "Mul", (away, away), (square,), {}, 0, nodes)
        result = Tensor(f"{y.name}#loss", y.dtype, ())
        yield Operator(result.name, "ReduceMean", (square,), (result,), {RETURNED: 1}, 0, nodes)
        return
    target = Tensor(f"{y.name}#target", "int64", (*y.shape[:-1], 1), "input")
    shares = replace(y, name=f"{y.name}#log_softmax")
    yield Operator(shares.name, LOG_SOFTMAX, (y,), (shares,), {"axis": -1}, 13, nodes)
    wide = replace(y, name=f"{y.name}#single", dtype=SINGLE)
    yield Operator(wide.name, "Cast", (shares,), (wide,), {}, 13, nodes)
    picked = replace(wide, name=f"{y.name}#picked", shape=target.shape)
    yield Operator(picked.name, "GatherElements", (wide, target), (picked,), {"axis": -1}, 13, nodes)
    counted = replace(target, name=f"{y.name}#counted", dtype="float32", kind="activation")
    yield Operator(counted.name, "Cast", (target,), (counted,), {}, 13, nodes)
    total, count = (Tensor(f"{t.name}#sum", SINGLE, ()) for t in (picked, counted))
    yield Operator(total.name, "ReduceSum", (picked,), (total,), {}, 13, nodes)
    yield Operator(count.name, "ReduceSum", (counted,), (count,), {}, 13, nodes)
    result = replace(total, name=f"{y.name}#loss")
    yield Operator(result.name, "Div", (total, count), (result,), {RETURNED: 1}, 13, nodes)


def loss_gradient(loss: Sequence[Operator], tape: Tape) -> None:
    """The gradient of a loss by what it was computed from."""
    first, last = loss[0], loss[-1]
    y = first.present[0]
    start = tape.add(last, TANGENT, (), (), dtype=SINGLE)
    if first.type == "Sub":
        z = tape.add(first, "Mul", (first.out, start), first.out.shape)
        z = tape.add(first, "Cast", (z,), y.shape, dtype=y.dtype) if z.dtype != y.dtype else z
        tape.gradients[y.name] = z
        return
    share = tape.add(last, "Div", (start, last.present[1]), ())
    target = loss[2].present[1]
    hit = tape.add(first, "Equal", (target,), y.shape, dtype="bool")
    g = tape.add(first, "Where", (hit, share, number(first, share)), y.shape, dtype=SINGLE)
    if first.out.dtype != SINGLE:
        g = tape.add(first, "Cast", (g,), y.shape, dtype=first.out.dtype)
    ((_, gradient),) = _named(shares, "nll_loss_backward")(tape, first, g)
    tape.gradients[y.name] = gradient


def _rules() -> dict[str, Rule]:
    """Eager's rules, but for operators that AOTAutograd decomposes."""
    whole: dict[str, tuple[Rule, str]] = {
        BATCH_NORM: (batch_norm, "native_batch_norm_backward"),
        **dict.fromkeys(("LayerNormalization", "RMSNormalization"), (row_norm, "native_layer_norm_backward")),
        **dict.fromkeys(("GroupNormalization", "InstanceNormalization"), (group_norm, "native_group_norm_backward")),
        "Softmax": (shares, "_softmax_backward_data"), "LogSoftmax": (shares, "_log_softmax_backward_data"),
        "Relu": (masked, "threshold_backward"), "Clip": (masked, "hardtanh_backward"),
        "LeakyRelu": (masked, "leaky_relu_backward"), "HardSigmoid": (masked, "hardsigmoid_backward"),
        "Gather": (lookup, "embedding_dense_backward"), "Slice": (cut, "slice_backward"),
        "Concat": (concatenation, "slice"), "MaxPool": (pooling, "max_pool2d_with_indices_backward"),
        "AveragePool": (pooling, "avg_pool2d_backward"), "Attention": (attention, ""),
        **dict.fromkeys(("GlobalAveragePool", "ReduceMean", "ReduceSum"), (mean, "div")),
    }  # fmt: skip
    names = {type: name.rpartition("::")[2] for type, (name, _) in ONE_KERNEL.items()}
    single = {type: (elementwise, name if "_" in name else ATEN[name]) for type, name in names.items()}
    return {**RULES, **{type: _named(rule, name) for type, (rule, name) in (single | whole).items()}}


#: Gradients are added to those before them by autograd's engine, and the optimiser is not compiled.
COMPILED = replace(
    torch_training.TORCH, describe="torch.compile", rules=_rules(), in_training=in_training, loss=loss,
    loss_gradient=loss_gradient, start=TANGENT, holds=False,
)  # fmt: skip

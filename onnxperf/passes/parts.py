"""The parts that an operator of the forward pass is made of under torch.compile in training: what its gradient reads of
it are further results of the operator, and Inductor gets elementwise operators and reductions.

Source: torch/_decomp/decompositions.py of PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from onnxperf.passes.tape import PHASE, phase_of
from op_models import Operator, Tensor

#: Attribute with ATen's name of the operator that a part belongs to.
ATEN_NAME = "aten"
#: Attribute of a part whose result eager PyTorch has contiguous, however its operands lie.
CONTIGUOUS = "contiguous"
#: Variance and mean along axes; the maximum along an axis and the sum of exponentials below it.
VAR_MEAN, MAX_SUM = "torch::var_mean", "torch::prepare_softmax_online"
#: Adds rows to those of a table in memory that indices name.
INDEX_PUT = "torch::index_put"
#: That of a loss, which autocast does not see: it stays in the type of what it reads.
LOG_SOFTMAX = "torch::log_softmax"
#: The gradient that the backward graph starts from, which lies in memory.
TANGENT = "torch::tangent"
#: Attribute of an operator of a loss whose result a compiled function returns, and the model's outputs no more.
RETURNED = "returned"
BATCH_NORM = "torch::batch_norm_training"
NORMS = frozenset({"GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization"})
#: Activations that are computed in float32, whose gradient reads what they were computed from.
IN_SINGLE = frozenset({
    "Celu", "Elu", "FastGelu", "Gelu", "HardSwish", "LeakyRelu", "Mish", "QuickGelu", "Selu", "Softplus", "Swish",
})  # fmt: skip
HALF = frozenset({"float16", "bfloat16"})
SINGLE = "float32"
#: Pools of windows of more elements are a library's (lowering.py).
WIDEST_WINDOW = 25


def in_training(o: Operator) -> Operator:
    """An operator as it runs in training, with the parts of it that its gradient reads as further results."""
    x = o.present[0] if o.present else None
    if x is None:
        return o
    if o.type == "BatchNormalization" and x.rank > 1:
        parts = (_like(o, name, x.shape[1:2]) for name in ("mean", "inv_std", "running_mean", "running_var"))
        outputs = (o.out, *parts, Tensor(f"{o.out.name}#batches", "int64", ()))
        return replace(o, type=BATCH_NORM, inputs=o.inputs[:3], outputs=outputs, attrs={})
    if o.type in NORMS and x.rank > 1:
        rows, wide = _rows(o)
        return replace(o, outputs=(o.out, *(_like(o, name, rows) for name in ("mean", "inv_std")),
                                   _like(o, "normalised", wide)))  # fmt: skip
    if o.type == "Attention" and len(o.outputs) == 1 and o.out.rank > 1:
        return replace(o, outputs=(o.out, _like(o, "logsumexp", o.out.shape[:-1])))
    if o.type == "MaxPool" and len(o.outputs) == 1:
        small = prod(o.attrs.get("kernel_shape", (1,))) <= WIDEST_WINDOW
        indices = replace(o.out, name=f"{o.out.name}#indices", dtype="int8" if small else "int64")
        return replace(o, outputs=(o.out, indices))
    return o


def _like(o: Operator, name: str, shape: tuple[int, ...]) -> Tensor:
    return Tensor(f"{o.out.name}#{name}", SINGLE, shape)


def _rows(o: Operator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of the statistics of a norm of rows, and of what it normalises."""
    x = o.present[0]
    if o.type in ("LayerNormalization", "RMSNormalization"):
        axis = o.attrs.get("axis", -1) % x.rank
        return (*x.shape[:axis], *(1 for _ in x.shape[axis:])), x.shape
    groups = o.attrs.get("num_groups", x.shape[1])
    wide = (x.shape[0], groups, prod(x.shape[1:]) // max(groups, 1))
    return (*wide[:2], 1), wide


class Parts:
    """The parts that an operator of the forward pass is made of, in order."""

    def __init__(self, o: Operator, aten: str, **attrs: object) -> None:
        self.o, self.operators = o, list[Operator]()
        self.attrs = {**attrs, ATEN_NAME: aten, PHASE: phase_of(o)}

    def add(self, type: str, inputs: Sequence[Tensor | None], like: Tensor, name: str = "", **attrs: object) -> Tensor:
        """A part that writes one tensor, under a name if that is read elsewhere."""
        out = replace(like, name=name or f"{self.o.name}#part{len(self.operators)}", kind="activation", value=None)
        return self.several(type, inputs, (out,), **attrs)[0]

    def several(
        self, type: str, inputs: Sequence[Tensor | None], outputs: tuple[Tensor, ...], **attrs: object
    ) -> tuple[Tensor, ...]:
        """A part that writes these tensors."""
        name, o = f"{self.o.name}#{len(self.operators)}", self.o
        kept = {**attrs, **self.attrs}
        self.operators.append(Operator(name, type, tuple(inputs), outputs, kept, 0, o.nodes, "gpu", o.repeat))
        return outputs

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """A tensor in a type, itself where it has that."""
        return x if x.dtype == dtype else self.add("Cast", (x,), replace(x, dtype=dtype))

    def viewed(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A tensor in a shape, itself where it has that."""
        return x if x.shape == shape else self.add("Reshape", (x,), replace(x, shape=shape))


def decomposed(o: Operator) -> Sequence[Operator]:
    """The parts of an operator of the forward pass, whose results have the names of its own; itself where it is one."""
    if o.type == BATCH_NORM and len(o.outputs) > 1:
        return _batch_norm(o)
    if o.type in NORMS and len(o.outputs) > 1:
        return _norm(o)
    if o.type in IN_SINGLE and o.present[0].dtype in HALF:
        p = Parts(o, "")
        z = p.add(o.type, (p.cast(o.present[0], SINGLE), *o.inputs[1:]), replace(o.out, dtype=SINGLE), **o.attrs)
        p.add("Cast", (z,), o.out, o.out.name)
        return p.operators
    return _shares(o) if o.type in ("Softmax", "LogSoftmax", LOG_SOFTMAX) and o.present[0].rank else (o,)


def _batch_norm(o: Operator) -> Sequence[Operator]:
    """Mean and variance of channels, the elements by them, and the running statistics."""
    p, x, (y, mean, inv_std, running_mean, running_var, counted) = Parts(o, "batch_norm"), o.present[0], o.outputs
    axes = tuple(i for i in range(x.rank) if i != 1)
    wide, like = p.cast(x, SINGLE), replace(x, dtype=SINGLE)
    column = tuple(d if i == 1 else 1 for i, d in enumerate(x.shape))
    spread = tuple(Tensor(f"{y.name}#{name}", SINGLE, column) for name in ("var", "means"))
    var, means = p.several(VAR_MEAN, (wide,), spread, axes=axes)
    scale = p.add("torch::rsqrt", (var,), var)
    z = p.add("Mul", (p.add("Sub", (x, means), like), scale), like)
    p.add("Reshape", (means,), mean, mean.name)
    p.add("Reshape", (scale,), inv_std, inv_std.name)
    for t, part in ((mean, running_mean), (p.viewed(var, mean.shape), running_var)):
        p.add("torch::lerp", (t,), part, part.name)
    for t, type in zip(o.present[1:], ("Mul", "Add"), strict=False):
        z = p.add(type, (z, p.viewed(t, column[1:])), like)
    p.add("torch::count", (), counted, counted.name)
    p.add("Cast" if y.dtype != SINGLE else "Identity", (z,), y, y.name)
    return p.operators


def _norm(o: Operator) -> Sequence[Operator]:
    """The statistics of rows, the elements by them, then scale and shift."""
    by_channel = o.type in ("GroupNormalization", "InstanceNormalization")
    p = Parts(o, "native_group_norm" if by_channel else "native_layer_norm", **{CONTIGUOUS: 1})
    x, (y, mean, inv_std, normalised) = o.present[0], o.outputs
    wide = p.viewed(p.cast(x, SINGLE), normalised.shape)
    axes = tuple(i for i, (a, b) in enumerate(zip(wide.shape, mean.shape, strict=True)) if a != b)
    if o.type == "RMSNormalization":
        square = p.add("Mul", (wide, wide), wide)
        p.add("torch::rsqrt", (p.add("ReduceMean", (square,), mean, axes=axes),), inv_std, inv_std.name)
        z = p.add("Mul", (wide, inv_std), wide, normalised.name)
    else:
        var, _ = p.several(VAR_MEAN, (wide,), (replace(mean, name=f"{y.name}#var"), mean), axes=axes)
        p.add("torch::rsqrt", (var,), inv_std, inv_std.name)
        z = p.add("Mul", (p.add("Sub", (wide, mean), wide), inv_std), wide, normalised.name)
    z = p.viewed(z, x.shape)
    for t, type in zip(o.present[1:], ("Mul", "Add"), strict=False):
        t = p.viewed(t, (t.size, *(1 for _ in x.shape[2:]))) if by_channel else t
        z = p.add(type, (z, t), replace(z, dtype=SINGLE))
    p.add("Cast" if y.dtype != SINGLE else "Identity", (z,), y, y.name)
    return p.operators


def _shares(o: Operator) -> Sequence[Operator]:
    """exp(x - maximum) / sum along an axis, or x - maximum - log sum."""
    log = o.type != "Softmax"
    p, x, y = Parts(o, "_log_softmax" if log else "_softmax"), o.present[0], o.out
    axis = o.attrs.get("axis", -1) % x.rank
    wide = p.cast(x, SINGLE)
    row = Tensor(f"{y.name}#max", SINGLE, tuple(1 if i == axis else d for i, d in enumerate(x.shape)))
    most, total = p.several(MAX_SUM, (wide,), (row, replace(row, name=f"{y.name}#sum")), axis=axis)
    z = p.add("Sub", (wide, most), wide)
    if log:
        z = p.add("Sub", (z, p.add("Log", (total,), total)), wide, y.name if y.dtype == SINGLE else "")
    else:
        z = p.add("Div", (p.add("Exp", (z,), wide), total), wide, y.name if y.dtype == SINGLE else "")
    if y.dtype != SINGLE:
        p.add("Cast", (z,), y, y.name)
    return p.operators

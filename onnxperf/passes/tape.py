"""What gradient rules write to: operators of a backward pass, and the gradients found so far."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from op_models import FLOATS, Operator, Tensor

#: Attribute of an operator that says which part of a training step it belongs to, and the parts after the forward pass.
PHASE = "phase"
PHASES = FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
#: Attribute with the names of tensors that are kept until an operator is done, though it does not read them.
HELD = "held"
#: Attribute of a kernel that belongs to the node before it: the host launches it without the cost of another node.
WITHIN = "within"
#: Attribute of a kernel of the backward pass that the framework's engine launches, whatever compiled the rest.
ENGINE = "engine"


@dataclass(slots=True)
class Tape:
    """The operators of a backward pass in order, and the gradient of each tensor by the tensor's name.

    needs: names of the tensors whose gradient is wanted; only those are computed. at_once: the gradients of a tensor
    with several uses are added up by one operator when the sum is asked for, instead of one after the other. parts:
    those that are not added up yet.
    """

    needs: Collection[str]
    operators: list[Operator] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    kernels: int = 0
    at_once: bool = False
    parts: dict[str, list[Tensor]] = field(default_factory=dict)

    def wants(self, t: Tensor | None) -> bool:
        """Whether a tensor's gradient is wanted."""
        return t is not None and t.name in self.needs

    def wanted(self, o: Operator) -> Sequence[tuple[int, Tensor]]:
        """The inputs of an operator whose gradients are wanted, each with its position."""
        return [(i, t) for i, t in enumerate(o.inputs) if t is not None and t.name in self.needs]

    def add(
        self, o: Operator, type: str, inputs: Iterable[Tensor | None], shape: tuple[int, ...], *, dtype: str = "",
        attrs: Mapping[str, Any] | None = None,
    ) -> Tensor:  # fmt: skip
        """Append a kernel that belongs to the gradient of `o`; what it makes, in the type of its first input."""
        read = tuple(inputs)
        if type in ("Reshape", "Expand"):  # which read the shape that they make
            read = (*read, Tensor(f"{o.name}#shape{self.kernels}", "int64", (len(shape),), "constant", tuple(shape)))
        dtype = dtype or next((t.dtype for t in read if t is not None), o.out.dtype)
        return self.several(o, type, read, (Tensor("", dtype, tuple(shape)),), attrs=attrs)[0]

    def several(
        self, o: Operator, type: str, inputs: Iterable[Tensor | None], like: Iterable[Tensor], *,
        attrs: Mapping[str, Any] | None = None, times: int = 1,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """The same of a kernel that makes several tensors, each in the type and shape of another one, such as the input
        that it is the gradient of; and that may run several times as often as `o`.
        """
        read = tuple(inputs)
        self.kernels += 1
        name = f"{o.name}#{BACKWARD}{self.kernels}"
        outputs = tuple(Tensor(f"{name}.{k}" if k else name, t.dtype, t.shape) for k, t in enumerate(like))
        kept = {**(attrs or {}), PHASE: BACKWARD}
        self.operators.append(Operator(name, type, read, outputs, kept, o.version, o.nodes, "gpu", o.repeat * times))
        return outputs

    def accumulate(self, o: Operator, t: Tensor, gradient: Tensor) -> None:
        """Add to the gradient of a tensor, in whose type it is: a kernel for every further use of it.

        A gradient in another type is cast before it is added up, as PyTorch's engine does (validate_outputs in
        torch/csrc/autograd/engine.cpp), so that an operator before a sum in float32 is differentiated in its own type.
        """
        if gradient.dtype != t.dtype:
            gradient = self.add(o, "Cast", (gradient,), gradient.shape, dtype=t.dtype)
        before = self.gradients.get(t.name)
        if before is not None and self.at_once:
            self.parts.setdefault(t.name, [before]).append(gradient)
            return
        if before is not None:
            gradient = self.add(o, "Add", (before, gradient), gradient.shape)
        self.gradients[t.name] = gradient

    def gradient(self, o: Operator, t: Tensor) -> Tensor | None:
        """The whole gradient of a tensor that `o` makes or reads, None where nothing asks for one."""
        if parts := self.parts.pop(t.name, None):
            self.gradients[t.name] = self.add(o, "Sum", parts, parts[0].shape)
        return self.gradients.get(t.name)

    def reduced(self, o: Operator, gradient: Tensor, t: Tensor) -> Tensor:
        """The gradient of an operand that was spread over the axes of a result: summed over these."""
        if gradient.shape == t.shape:
            return gradient
        kept = gradient.shape[gradient.rank - t.rank :] if t.rank else ()
        summed = tuple(a if a == b else 1 for a, b in zip(t.shape, kept, strict=True))
        first = gradient.rank - t.rank
        axes = (*range(first), *(first + i for i, (a, b) in enumerate(zip(summed, kept, strict=True)) if a != b))
        total = gradient
        if t.size != gradient.size:
            total = self.add(o, "ReduceSum", (gradient,), summed, attrs={"axes": axes})
        return total if total.shape == t.shape else self.add(o, "Reshape", (total,), t.shape)


def phase_of(o: Operator) -> str:
    """The part of a training step that an operator belongs to."""
    return str(o.attrs.get(PHASE, FORWARD))


def is_float(t: Tensor) -> bool:
    """Whether a tensor can have a gradient by its type."""
    return t.dtype in FLOATS


def renamed(o: Operator, names: Mapping[str, Tensor], name: str) -> Operator:
    """An operator under another name that reads and writes the tensors that stand for its own."""
    inputs = tuple(names.get(t.name, t) if t is not None else None for t in o.inputs)
    outputs = tuple(names.get(t.name, t) for t in o.outputs)
    return replace(o, name=name, inputs=inputs, outputs=outputs)


def with_statistics(o: Operator) -> Operator:
    """A norm of rows with what its gradient reads of each row, in float32: mean and inverse deviation, of an RMS norm
    the latter alone. Other operators as they are.
    """
    if o.type not in ("LayerNormalization", "RMSNormalization") or len(o.outputs) > 1:
        return o
    axis = o.attrs.get("axis", -1) % max(o.out.rank, 1)
    rows = (*o.out.shape[:axis], *(1 for _ in o.out.shape[axis:]))
    names = ("mean", "inv_std") if o.type == "LayerNormalization" else ("inv_std",)
    saved = (replace(o.out, name=f"{o.out.name}#{name}", shape=rows, dtype="float32") for name in names)
    return replace(o, outputs=(o.out, *saved))

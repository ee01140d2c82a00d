"""The dtype and the static shape of a tensor that a node makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onnx import TypeProto, ValueInfoProto

from onnxperf.graph.bind import declared_dims
from onnxperf.graph.core import UNKNOWN_LENGTH, Note
from onnxperf.graph.open_dims import reopened
from onnxperf.graph.proto import DTYPES, Dims, Shape, closed, dims_of, dtype_of, plain, static, times
from onnxperf.graph.sequences import Elements, element_type, unknown
from onnxperf.graph.state import State
from onnxperf.graph.values import Array
from onnxperf.ground.errors import ModelError, UsageError
from op_models import FLOATS, Tensor
from op_models.steps import PIECES

Inputs = Sequence[Any]  # tensors or None; at least one None at the end


def _selected(output: int, inputs: Inputs, attrs: Mapping[str, Any]) -> Shape:
    """Unique and Compress select at most all elements, or all slices along an axis; a mask no more than its length."""
    x, mask, axis = inputs[0], inputs[1], attrs.get("axis")
    if axis is None or output:
        return (min(x.size if axis is None else x.shape[axis], mask.size if mask else x.size),)
    at = axis % x.rank
    return (*x.shape[:at], min(x.shape[at], mask.size if mask else x.size), *x.shape[at + 1 :])


def _selected_boxes(output: int, inputs: Inputs, attrs: Mapping[str, Any]) -> Shape:
    """NonMaxSuppression selects for each image and class as many boxes as its third input allows."""
    boxes, scores, most = inputs[0].shape, inputs[1].shape, inputs[2]
    each = 0 if most is None else int(most.value[0]) if most.value else boxes[1]
    return (boxes[0] * scores[1] * max(min(each, boxes[1]), 0), 3)


#: The largest shape of outputs whose shape depends on the data.
UPPER_BOUNDS: dict[str, Callable[[int, Inputs, Mapping[str, Any]], Shape]] = {
    "NonZero": lambda output, inputs, attrs: (inputs[0].rank, inputs[0].size),
    "Unique": _selected,
    "Compress": _selected,
    "NonMaxSuppression": _selected_boxes,
    "Slice": lambda output, inputs, attrs: inputs[0].shape,
    "TopK": lambda output, inputs, attrs: inputs[0].shape,
}


def upper_bound(type: str, output: int, inputs: Sequence[Tensor | None], attrs: Mapping[str, Any]) -> Shape | None:
    """The largest shape of output number `output` where it depends on the data; None for operators without a bound."""
    try:
        return UPPER_BOUNDS[type](output, [*inputs, None], attrs) if type in UPPER_BOUNDS else None
    except (ArithmeticError, AttributeError, IndexError, ValueError):  # inputs that the operator can't have
        return None


def pattern_of(type: str, output: int, first: Tensor | None, attrs: Mapping[str, Any]) -> Tensor | None:
    """The tensor whose shape output number `output` takes where nothing tells it: the first input; of text that is
    split one axis longer, by as many pieces as there are at most, or are assumed.
    """
    if type != "StringSplit" or output or first is None:
        return first
    most = attrs.get("maxsplit")
    return replace(first, shape=(*first.shape, PIECES if most is None else min(max(int(most), 0) + 1, PIECES)))


def define_output(
    state: State, out: str, label: str, like: Tensor | None, type: TypeProto | None,
    kind: str = "activation", *, value: Array | None = None, assumed: bool = False, at_most: Shape | None = None,
    session_types: Mapping[str, TypeProto] | None = None, held: Elements | None = None,
) -> Tensor:  # fmt: skip
    """Define the tensor `out`, which the node `label` makes and for which onnx infers this `type`.

    `value` is what it holds, where that is known, `held` what it does as a sequence: without it, what `like` holds. A
    map or optional is passed along as it is. `session_types` are those that a session infers of a node where it lacks
    some of its shapes. See `_resolve` for the other parameters.
    """
    if type is not None and element_type(type) is not None:
        return _define_sequence(state, out, label, like, type, kind, assumed, held)
    if type is not None and type.WhichOneof("value") not in (None, "tensor_type"):
        return state.define_opaque(out, type, kind)
    if like is not None and like.name in state.sequences:  # one element
        like = replace(like, shape=state.sequences[like.name].largest or ())
    info = state.declared.get(out) or state.declared_in_bodies.get(out)
    types = (type, info.type if info is not None else None)
    number = next((n for t in types if t is not None and (n := t.tensor_type.elem_type)), 0)
    dtype = dtype_of(number) if number else like.dtype if like else "float32"
    if not number and dtype not in FLOATS:  # such as the ids that an operator of one's own embeds
        dtype = state.demands.of(out, like.shape if like else ()).dtype or dtype
    dims = dims_of(type)
    inferred = dims if value is None else value.shape
    shape = _resolve(state, out, label, like, inferred, info, assumed, at_most)
    assumed = out in state.assumed
    if state.binding.dynamic:
        shape = state.open_shapes.opened(out, shape, like, assumed, state.tensors) if kind == "activation" else shape
    elif (session_types is not None or assumed) and (info is None or static(info.type) is None):
        shape = reopened(shape, dims_of(session_types.get(out) if session_types is not None else type), assumed)
    exact = dims == shape and type is not None and type.tensor_type.elem_type in DTYPES
    return state.define(out, dtype, shape, kind, value, type if exact else None)


def _define_sequence(
    state: State, out: str, label: str, like: Tensor | None, type: TypeProto, kind: str, assumed: bool,
    held: Elements | None,
) -> Tensor:  # fmt: skip
    """Define a sequence that holds these elements, or those of `like`; where neither is known, as one element."""
    if held is None and like is not None:
        held = state.sequences.get(like.name)
    if held is None:
        note_unknown(state, out, label)
        held = unknown(type)
    if assumed:
        state.assumed.add(out)
    return state.define_sequence(out, type, kind, held)


def note_unknown(state: State, sequence: str, label: str) -> None:
    """Note that nothing says how many tensors a sequence holds that the node `label` makes."""
    says = f"how many tensors the sequence {plain(sequence)!r} holds is not known before the run; assumed one"
    says = f"{says}: the run may need far more memory and time"
    state.notes.append(Note(UNKNOWN_LENGTH, says, (label,) if label else ()))


def _resolve(
    state: State, out: str, label: str, like: Tensor | None, inferred: Dims | None, info: ValueInfoProto | None,
    assumed: bool, at_most: Shape | None,
) -> Shape:  # fmt: skip
    """The static shape of the tensor `out`, which the node `label` makes.

    The shape is the one that --shapes gives, else the `inferred` one, else the one that the file declares (`info`),
    else an assumption, which is noted: the upper bound `at_most`, or the shape of `like`, the node's first input.
    Where the shapes of the inputs are `assumed`, the declared shape precedes the inferred one.
    Raises UsageError where --shapes contradicts the inferred shape, ModelError where the file contradicts itself.
    """
    declared = state.binding.declared(info) if info is not None else None
    request = state.given_shapes.get(out)
    if request is not None:
        if inferred is not None and not assumed and clash(request, inferred):
            reason = f"but node {label!r} makes it {times(inferred)}"
            raise UsageError(f"--shapes gives {out!r} the shape {times(request)}, {reason}")
        return request
    if assumed:
        if (shape := closed(declared)) is not None:
            return shape
        state.assumed.add(out)
    elif inferred is not None and info is not None and declared != inferred:
        _check_declared(state, out, label, inferred, info)
    dims = inferred if inferred is not None else declared
    if inferred is not None and declared is not None and len(declared) == len(inferred):
        dims = tuple(d if i is None else i for i, d in zip(inferred, declared, strict=True))
    if (shape := closed(dims)) is not None:
        return shape
    shape = _assumed_shape(dims, like, at_most)
    why, limit = ("can't be inferred", "") if at_most is None else ("depends on the data", ", its upper bound")
    if at_most is None:
        solved = state.demands.solved(out, dims, like.shape if like is not None else ())
        if solved is not None and solved != shape:
            shape, limit = solved, ", which what reads it needs"
    taken = f"assumed {times(shape)}{limit} (set it with --shapes {plain(out)}:...)"
    state.assume(out, f"the shape of {out!r} {why}; {taken}", label)
    return shape


def _check_declared(state: State, out: str, label: str, inferred: Dims, info: ValueInfoProto) -> None:
    """Refuse a file that declares another shape than is inferred; open dimensions contradict none.

    Where sizes in the file can be out of date (a graph with open dimensions, the body of a loop) it is only noted.
    """
    claimed = declared_dims(info)
    sizes = [d if isinstance(d, int) else None for d in claimed or ()]
    if claimed is None or state.binding.refusal or not clash(sizes, inferred):
        return
    both = f"the file says {times(claimed)}, its inputs make it {times(inferred)}"
    if not (state.binding.dynamic or out in state.declared_in_bodies):
        raise ModelError(f"tensor {out!r}, made by node {label!r}, contradicts itself: {both}")
    state.notes.append(Note("stale-shape", f"tensor {out!r}: {both}, which is used", (label,)))


def _assumed_shape(dims: Dims | None, like: Tensor | None, at_most: Shape | None) -> Shape:
    """A shape with the known ones of `dims`, and otherwise those of its upper bound or of the node's first input.

    Where that has another number of axes, all its elements lie along the first open axis.
    """
    if at_most is not None and (dims is None or len(dims) == len(at_most)):
        return tuple(m if d is None else d for d, m in zip(dims or (None,) * len(at_most), at_most, strict=True))
    shape = like.shape if like is not None else ()
    if dims is None:
        return shape
    if len(dims) == len(shape):
        return tuple(s if d is None else d for d, s in zip(dims, shape, strict=True))
    size = like.size if like is not None else 1
    first = dims.index(None)
    return tuple((size if i == first else 1) if d is None else d for i, d in enumerate(dims))


def clash(dims: Dims, other: Dims) -> bool:
    """Whether two shapes can't belong to the same tensor; an open dimension fits every size."""
    return len(dims) != len(other) or any(a != b for a, b in zip(dims, other, strict=True) if None not in (a, b))

"""How an axis that is divided among GPUs goes through an operator, for those that need no more than a part of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from op_models import Operator
from op_models.pointwise import SIMPLE, SPECIALS

FEW = 3  # of an axis that stands for queries, keys and values, which no GPU divides
Axis = int | None


class Divided(Exception):
    """An operator needs all of an axis. size: heads that can't be divided for their number, "" otherwise."""

    def __init__(self, size: str = ""):
        super().__init__(size)
        self.size = size


@dataclass(frozen=True, slots=True)
class Whole:
    """The divided axis of each output, and of those inputs that are divided because of the others, by position."""

    outputs: tuple[Axis, ...]
    inputs: Mapping[int, int] = field(default_factory=dict)


Rule = Callable[[Operator, Sequence[Axis], Sequence[bool], int], Whole]


def follow(o: Operator, axes: Sequence[Axis], own: Sequence[bool], ranks: int) -> Whole:
    """Where an operator leaves a divided axis.

    axes: of each input, None where every GPU has all of it; own: whether a GPU can read a part of an input alone.
    Raises Divided where it needs the whole axis, or has no rule.
    """
    if o.type not in RULES:
        raise Divided
    try:
        return RULES[o.type](o, axes, own, ranks)
    except (IndexError, TypeError, ValueError, ZeroDivisionError):  # forms that the operator can't have
        raise Divided from None


def spread(o: Operator, axes: Sequence[Axis], own: Sequence[bool], ranks: int, behind: int = 0) -> Whole:
    """Operands are spread over each other's axes, counted from the last; `behind` the last ones stay apart."""
    rank, at = o.out.rank, set[int]()
    for t, axis in zip(o.inputs, axes, strict=True):
        if t is not None and axis is not None:
            at.add(axis + rank - t.rank)
    if len(at) != 1 or (where := at.pop()) >= rank - behind:
        raise Divided
    parts: dict[int, int] = {}
    for i, (t, axis) in enumerate(zip(o.inputs, axes, strict=True)):
        if t is None or axis is not None or (place := where - rank + t.rank) < 0 or t.shape[place] == 1:
            continue
        if not own[i]:
            raise Divided
        parts[i] = place
    return Whole((where,) * len(o.outputs), parts)


def expand(o: Operator, axes: Sequence[Axis], own: Sequence[bool], ranks: int) -> Whole:
    """Spread over a shape."""
    return spread(replace(o, inputs=o.inputs[:1]), axes[:1], own[:1], ranks)


def first(o: Operator, axes: Sequence[Axis], own: Sequence[bool], ranks: int) -> Whole:
    """The output is like the first input; the others are parameters."""
    if axes[0] is None:
        raise Divided
    return Whole((axes[0],) * len(o.outputs))


def apart(default: int) -> Rule:
    """Operators that compute along one axis, or from it to the last."""

    def rule(o: Operator, axes: Sequence[Axis], own: Sequence[bool], ranks: int) -> Whole:
        x, axis = o.present[0], axes[0]
        along = int(o.attrs.get("axis", default)) % x.rank
        if axis is None or axis == along or (o.type.endswith("Normalization") and axis > along):
            raise Divided
        return Whole((axis, *(axis if t.rank == x.rank else None for t in o.outputs[1:])))

    return rule


def reduction(o: Operator, axes: Sequence[Axis], own: Sequence[bool], ranks: int) -> Whole:
    """Axes that go, or become 1."""
    x, axis = o.present[0], axes[0]
    told = o.attrs.get("axes") or (o.inputs[1].value if len(o.inputs) > 1 and o.inputs[1] is not None else None)
    gone = {int(a) % x.rank for a in told} if told else set(range(x.rank))
    if axis is None or axis in gone:
        raise Divided
    return Whole((axis - (0 if o.attrs.get("keepdims", 1) else sum(a < axis for a in gone)),))


def reshape(o: Operator, axes: Sequence[Axis], own: Sequence[bool], ranks: int) -> Whole:
    """The same elements in the same order: the axis may fall into several, or be part of a larger one.

    Where it falls into several the first that is more than queries, keys and values is divided, which are the heads.
    """
    x, axis = o.present[0], axes[0]
    if axis is None:
        raise Divided
    begin = prod(x.shape[:axis])
    end, at = begin * x.shape[axis], 1
    for b, size in enumerate(o.out.shape):
        inside = begin <= at < end and (end % (at * size) == 0 or at * size >= end)
        around = at <= begin and at * size >= end
        if (around and size > 1) or (inside and size > FEW):
            if size % ranks:
                raise Divided(f"{size:,} heads" if inside and not around else "")
            return Whole((b,))
        at *= size
    raise Divided


def transpose(o: Operator, axes: Sequence[Axis], own: Sequence[bool], ranks: int) -> Whole:
    """A permutation."""
    perm = o.attrs.get("perm") or tuple(reversed(range(o.out.rank)))
    return Whole((list(perm).index(axes[0]),))


def pieces(o: Operator, axes: Sequence[Axis], own: Sequence[bool], ranks: int) -> Whole:
    """Split and Slice: pieces of the divided axis are divided themselves."""
    axis = axes[0]
    if axis is None:
        raise Divided
    for t in o.outputs:
        if t.shape[axis] % ranks:
            raise Divided
    return Whole((axis,) * len(o.outputs))


def concatenation(o: Operator, axes: Sequence[Axis], own: Sequence[bool], ranks: int) -> Whole:
    """Along another axis; caches of the past are divided as what is added to them."""
    at = {axis for axis in axes if axis is not None}
    if len(at) != 1 or (where := at.pop()) == int(o.attrs.get("axis", 0)) % o.out.rank:
        raise Divided
    if any(axis is None and not own[i] for i, axis in enumerate(axes)):
        raise Divided
    return Whole((where,), {i: where for i, axis in enumerate(axes) if axis is None})


def gather(o: Operator, axes: Sequence[Axis], own: Sequence[bool], ranks: int) -> Whole:
    """Along another axis, by the same indices everywhere."""
    x, ids = o.present[:2]
    along, axis = int(o.attrs.get("axis", 0)) % x.rank, axes[0]
    if axis is None or axis == along or axes[1] is not None:
        raise Divided
    return Whole((axis if axis < along else axis + ids.rank - 1,))


def product(o: Operator, axes: Sequence[Axis], own: Sequence[bool], ranks: int) -> Whole:
    """A product of activations: stacks of matrices are divided, as heads are, or the rows of the first."""
    a, b = o.present[:2]
    p, q, rank = axes[0], axes[1], o.out.rank
    if min(a.rank, b.rank) < 2 or o.type == "Gemm":
        raise Divided
    if p == a.rank - 2 and q is None:
        return Whole((rank - 2,))
    if q == b.rank - 1 and p is None:
        return Whole((rank - 1,))
    return spread(o, axes, own, ranks, behind=2)


def attention(o: Operator, axes: Sequence[Axis], own: Sequence[bool], ranks: int) -> Whole:
    """Attention in one operator: queries, keys and values by heads, those of the past, and masks with heads."""
    heads, of_keys = divide_heads(o, ranks)
    parts: dict[int, int] = {}
    for i, (t, axis) in enumerate(zip(o.inputs, axes, strict=True)):
        if t is None or t.rank not in (3, 4):
            continue
        by_head = 1 if t.rank == 4 else 2
        if axis is None and i < FEW:
            raise Divided
        if axis not in (None, by_head):
            raise Divided
        if axis is None and t.rank == 4 and t.shape[1] in (heads, of_keys):
            if not own[i]:
                raise Divided
            parts[i] = 1
    return Whole(tuple(1 if t.rank == 4 else 2 for t in o.outputs), parts)


def latent_attention(o: Operator, axes: Sequence[Axis], own: Sequence[bool], ranks: int) -> Whole:
    """Queries by heads; every GPU has the whole cache, whose vectors all heads share."""
    if axes[0] != 1 or any(axis is not None for axis in axes[1:]):
        raise Divided
    if o.present[0].shape[1] % ranks:
        raise Divided(f"{o.present[0].shape[1]:,} heads")
    return Whole((1, *(None for _ in o.outputs[1:])))


def divide_heads(o: Operator, ranks: int) -> tuple[int, int]:
    """The heads of queries, and those of keys and values, of an attention. Raises Divided where they don't come out."""
    heads = int(o.attrs.get("num_heads") or o.attrs.get("q_num_heads") or o.present[0].shape[1])
    of_keys = int(o.attrs.get("kv_num_heads") or (o.present[1].shape[1] if o.present[1].rank == 4 else heads))
    for n in (heads, of_keys):
        if n % ranks:
            raise Divided(f"{n:,} heads")
    return heads, of_keys


def measured(o: Operator, axes: Sequence[Axis], own: Sequence[bool], ranks: int) -> Whole:
    """Shape and Size: known before the run."""
    return Whole((None,) * len(o.outputs))


RULES: Mapping[str, Rule] = {
    **dict.fromkeys((
        *SIMPLE, *SPECIALS, "Max", "Min", "Mean", "Mod", "Pow", "PRelu", "Sum", "Where",
        "com.microsoft::BiasGelu", "com.microsoft::FastGelu",
    ), spread),
    **dict.fromkeys((
        "Cast", "CastLike", "Celu", "Clip", "Dropout", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "Identity",
        "IsNaN", "LeakyRelu", "Mish", "Neg", "Relu", "Selu", "Sigmoid", "Softplus", "Swish", "Tanh",
        "com.microsoft::Gelu", "com.microsoft::QuickGelu", "com.microsoft::RotaryEmbedding",
    ), first),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), reshape),
    **dict.fromkeys((
        "Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization",
    ), apart(-1)),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"), reduction),
    **dict.fromkeys(("Split", "Slice"), pieces),
    **dict.fromkeys(("Shape", "Size"), measured),
    **dict.fromkeys((
        "Attention", "com.microsoft::MultiHeadAttention", "com.microsoft::GroupQueryAttention",
    ), attention),
    "onnxperf::LatentAttention": latent_attention,
    "Concat": concatenation,
    "Expand": expand,
    "Gather": gather,
    "Gemm": product,
    "MatMul": product,
    "Transpose": transpose,
}  # fmt: skip

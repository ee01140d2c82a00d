"""The stored matrices of operators that contain products, and the part of them that one of several GPUs has.

Weights of 4 and 8 bits (MatMulNBits) are divided by columns and rows as plain ones are, with their scales. A mixture of
experts is a pair of products in one operator: every GPU has a part of the width of every expert, and what they make is
added up. com.microsoft::Attention contains the product that makes queries, keys and values: it is divided by heads.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import ceil

from onnxperf.passes.experts import FIRST_WEIGHTS, MIXTURES
from op_models import Operator, Tensor

PLAIN = ("MatMul", "Gemm")
PACKED = "com.microsoft::MatMulNBits"
WITH_PRODUCT = "com.microsoft::Attention"
Inputs = list[Tensor | None]


def matrix(o: Operator) -> tuple[int, int] | None:
    """The contracted size and the columns of a product with a stored matrix; None for others."""
    if len(o.inputs) < 2 or (w := o.inputs[1]) is None or not w.stored or o.attrs.get("transA"):
        return None
    if o.type == PACKED:
        k, n = o.attrs.get("K"), o.attrs.get("N")
        return (k, n) if isinstance(k, int) and isinstance(n, int) and min(k, n) > 0 and w.rank == 3 else None
    if o.type not in PLAIN or w.rank != 2:
        return None
    return (w.shape[1], w.shape[0]) if o.attrs.get("transB") else (w.shape[0], w.shape[1])


def rows_divide(o: Operator, k: int, ranks: int) -> bool:
    """Whether the contracted size can be divided: blocks of packed weights stay whole."""
    return k % ranks == 0 and (o.type != PACKED or o.present[1].shape[1] % ranks == 0)


def width(o: Operator) -> int:
    """The width of a mixture's experts, in stored elements of its second weight, 0 where it has none."""
    found = [t for t in o.present[FIRST_WEIGHTS:] if t.rank == 3]
    second = next((t for t in found[1:] if t.dtype == found[0].dtype), None)
    if second is None:
        return 0
    return second.shape[2] if second.shape[1:2] == o.present[0].shape[-1:] else second.shape[1]


def part(t: Tensor, axis: int, ranks: int) -> Tensor:
    """A GPU's part of a tensor; the last part may be padded."""
    shape = (*t.shape[:axis], ceil(t.shape[axis] / ranks), *t.shape[axis + 1 :])
    return replace(t, shape=shape, value=None)


def by_columns(o: Operator, inputs: Inputs, ranks: int) -> Operator:
    """A product, or an attention with one, with a part of the columns, and of the bias and scales that are theirs."""
    attrs = dict(o.attrs)
    if o.type == PACKED:
        attrs["N"] = ceil(o.attrs["N"] / ranks)
        return replace(o, inputs=_divided(inputs, range(1, 6), 0, ranks), attrs=attrs)
    if o.type == WITH_PRODUCT and isinstance(sizes := o.attrs.get("qkv_hidden_sizes"), tuple):
        attrs["qkv_hidden_sizes"] = tuple(n // ranks for n in sizes)
    inputs = list(_divided(inputs, (1,), 0 if o.attrs.get("transB") else 1, ranks))
    if len(inputs) > 2 and (bias := inputs[2]) is not None and bias.rank and bias.shape[-1] > 1:
        inputs[2] = part(bias, bias.rank - 1, ranks)
    return replace(o, inputs=tuple(inputs), attrs=attrs)


def by_rows(o: Operator, inputs: Inputs, ranks: int) -> Operator:
    """A product with a part of what it sums up over, or a mixture with a part of the width of its experts."""
    if o.type in MIXTURES:
        return replace(o, inputs=_narrower(o, inputs, ranks))
    if o.type != PACKED:
        return replace(o, inputs=_divided(inputs, (1,), 1 if o.attrs.get("transB") else 0, ranks))
    attrs = {**o.attrs, "K": o.attrs["K"] // ranks}
    flat = [i for i in (2, 3) if i < len(inputs) and (t := inputs[i]) is not None and t.rank == 1]
    inputs = list(_divided(inputs, flat, 0, ranks))
    return replace(o, inputs=_divided(inputs, [i for i in (1, 2, 3) if i not in flat], 1, ranks), attrs=attrs)


def _divided(inputs: Inputs, at: Collection[int], axis: int, ranks: int) -> tuple[Tensor | None, ...]:
    """The inputs, some of which are divided along an axis, if they are there and have it."""
    return tuple(
        part(t, axis, ranks) if t is not None and i in at and t.rank > axis else t for i, t in enumerate(inputs)
    )


def _narrower(o: Operator, inputs: Inputs, ranks: int) -> tuple[Tensor | None, ...]:
    """The inputs of a mixture: weights, scales and biases of the first product and a gate by their outputs, those of
    the second by what it sums up over.
    """
    packed, hidden, found = o.type != MIXTURES[0], o.present[0].shape[-1], list(inputs)
    each = 3 if packed else 2  # weights, scales and biases, or weights and biases
    for i, t in enumerate(inputs[FIRST_WEIGHTS:], FIRST_WEIGHTS):
        which, what = divmod(i - FIRST_WEIGHTS, each)
        if t is None or which > 2 or t.rank < 2:
            continue
        second = which == 1
        if t.rank == 2:  # a bias, or a scale for each output
            found[i] = t if second else part(t, 1, ranks)
        elif what == 0 and not packed and t.shape[1 + second] == hidden and t.shape[2 - second] != hidden:
            found[i] = part(t, 2 - second, ranks)  # stored the other way round
        else:
            found[i] = part(t, 1 + second, ranks)
    return tuple(found)

"""Einstein sums: two operands are a matrix multiplication, more are a chain of them from left to right.

A label that only one operand has is summed before the multiplication, as runtimes do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from functools import partial
from itertools import accumulate, chain
from math import prod

from op_models.axes import Axes, Names
from op_models.core import Gemm, Move, Operator, Pointwise, Rows, Tensor, Work, work
from op_models.rules import op


def labels(term: str, rank: int) -> tuple[str, ...]:
    """One label per axis; the axes of an ellipsis are numbered from the last one, as they broadcast."""
    before, dots, after = term.partition("...")
    hidden = range(rank - len(before) - len(after), 0, -1) if dots else ()
    return (*before, *map(str, hidden), *after)


def parse(equation: str, ranks: list[int]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """The labels of each operand and of the output; without an arrow, the output has those that occur once, sorted."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = [labels(t, rank) for t, rank in zip(left.split(","), ranks, strict=True)]
    hidden = sorted({x for t in terms for x in t if x.isdecimal()}, key=int, reverse=True)
    if arrow:
        return terms, labels(right, len(hidden) + len(right.replace("...", "")))
    counted = Counter(x for t in terms for x in t if not x.isdecimal())
    return terms, (*hidden, *sorted(x for x, n in counted.items() if n == 1))


def label_sizes(axes: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The size of every label; an axis of size 1 is broadcast to that of other operands."""
    sides: dict[str, int] = {}
    for label, side in axes:
        sides[label] = side if sides.get(label, 1) == 1 else sides[label]
    return sides


def combinations(sides: Mapping[str, int], chosen: Set[str]) -> int:
    """The number of combinations of indices of the chosen labels."""
    return prod(sides[x] for x in chosen)


def einsum_axes(op: Operator, *operands: Tensor, equation: str) -> Axes:
    """Its own letters; of a diagonal, and of axes of 1 that are broadcast, none."""
    terms, result = parse(equation, [t.rank for t in operands])
    pairs = (zip(term, t.shape, strict=True) for term, t in zip(terms, operands, strict=True))
    sides = label_sizes(chain.from_iterable(pairs))
    twice = {x for term in (*terms, result) for x in term if term.count(x) > 1}

    def names(term: tuple[str, ...], shape: tuple[int, ...]) -> Names:
        return tuple(() if x in twice or d != sides[x] else (x,) for x, d in zip(term, shape, strict=True))

    inputs = tuple(names(term, t.shape) for term, t in zip(terms, operands, strict=True))
    return Axes(inputs, (names(result, tuple(sides[x] for x in result)),), "adds up, or takes a diagonal of, {}")


@op("Einsum", axes=einsum_axes)
def einsum(op: Operator, *operands: Tensor, equation: str) -> Work:
    """2 per combination of a pair's labels, 1 where nothing is summed; a chain has the size of its largest pair."""
    terms, out = parse(equation, [t.rank for t in operands])
    axes = [list(zip(term, t.shape, strict=True)) for term, t in zip(terms, operands, strict=True)]
    sides = label_sizes(chain.from_iterable(axes))
    volume = partial(combinations, sides)
    # an axis of size 1 that is broadcast is left out
    left, *others = ({x for x, side in axis if side == sides[x]} for axis in axes)
    matrix = vector = 0
    products = []
    # the labels that are read after each pair
    wanted = [*accumulate(reversed(others[1:]), set.union, initial=set(out))][::-1]
    for i, (right, later) in enumerate(zip(others, wanted, strict=False), 1):
        for single, other in ((left, right), (right, left)):
            if single - other - later:
                vector += volume(single)
                single &= other | later
        summed = (left & right) - later
        m, n = left - right, right - left
        size = Gemm(volume(left & right & later), volume(m), volume(n), volume(summed))
        flops = prod(size[:4])
        if summed:
            ta, tb = i == 1 and not m.isdisjoint(terms[0][-1:]), not summed.isdisjoint(terms[i][-1:])
            products.append((flops, size._replace(ta=ta, tb=tb)))
            matrix += 2 * flops
        else:
            vector += flops
        left = (left | right) - summed
    if products:
        return work(op, max(products)[1], matrix=matrix, vector=vector)
    if len(operands) > 1:
        return work(op, Pointwise(op.out.size), vector=vector)
    if left <= set(out):
        return work(op, Move(op.out.size, 1))
    return work(op, Rows(volume(left & set(out)), volume(left - set(out))), vector=volume(left))

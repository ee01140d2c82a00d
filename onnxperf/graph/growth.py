"""Loops that carry tensors which grow from run to run, such as the keys of a decoder: some of the runs stand for all.

Where every carried shape grows by the same in each run, sizes, FLOPs and bytes of a run are products of numbers linear
in the number of the run. Runs are chosen, each with the number of runs that it stands for, so that sums over them are
exact for polynomials of up to the third degree; the first and the last are always among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import isqrt

from onnxperf.graph.control_node import Runs
from onnxperf.graph.proto import Shape, tensor_type
from op_models import Tensor

MOST_RUNS = 16  # that stand for themselves alone
MAX_GRAPH = 50_000  # operators, or nodes, of the chosen runs


def all_runs(runs: Runs, start: int, trips: int) -> list[Tensor] | None:
    """Add the other runs of a node, whose operators stand from number `start` on; the results of the last run. None
    where they would make too large a graph, and where they are many, and shapes change otherwise than by the same in
    each run.
    """
    results, state = runs.results, runs.node.state
    nodes = next(len(a.g.node) for a in runs.node.node.attribute if a.name == runs.attribute)
    if len(chosen(trips)) * max(len(state.operators) - start, nodes) > MAX_GRAPH:
        return None
    if trips <= MOST_RUNS:
        for number in range(1, trips):
            results = _add(runs, number, [t.shape for t in runs.after(results)], results, 1)
        return results
    first, second = ([t.shape for t in tensors] for tensors in (runs.carried, runs.after(results)))
    if any(len(a) != len(b) for a, b in zip(first, second, strict=True)):
        return None
    mark = len(state.operators), len(state.notes)
    third = [t.shape for t in runs.after(_add(runs, 1, second, results, 1))]
    del state.operators[mark[0] :], state.notes[mark[1] :]
    if third != _shapes(first, second, 2):
        return None
    (_, stands_for), *others = chosen(trips)
    runs.node.repeat(start, stands_for)
    for number, stands_for in others:
        results = _add(runs, number, _shapes(first, second, number), results, stands_for)
    return results


def _add(runs: Runs, number: int, shapes: Sequence[Shape], before: Sequence[Tensor], stands_for: int) -> list[Tensor]:
    """Add a run whose carried tensors have these shapes, behind the run with the results `before`; its results."""
    state, part = runs.node.state, runs.node.inside(f"run{number}")
    runs.node.trips.parts[part.label] = runs.node.label
    body = part.body(runs.attribute)
    carried = runs.after(before)
    types = list(runs.types)
    for k, (t, shape) in enumerate(zip(carried, shapes, strict=True)):
        types[runs.read + k] = state.types[t.name] if t.name in state.sequences else tensor_type(t.dtype, shape)
    likes = [*runs.likes[: runs.read], *carried, *runs.likes[runs.read + len(carried) :]]
    start, notes = len(state.operators), len(state.notes)
    at = next(i for i, t in enumerate(runs.node.inputs) if t is runs.likes[runs.read])
    inputs = runs.node.inputs
    part.enter(body, types, likes, reads=[*inputs[:at], *carried, *inputs[at + len(carried) :]])
    state.made_together.update((t.name, carried[0].name) for t in before)  # the next run reads them
    results = part.run(body)
    part.repeat(start + 1, stands_for)
    del state.notes[notes:]  # those of the first run
    return results


def _shapes(first: Sequence[Shape], second: Sequence[Shape], number: int) -> list[Shape]:
    """Shapes in a run, by those of the first two."""
    pairs = zip(first, second, strict=True)
    return [tuple([p + number * (q - p) for p, q in zip(a, b, strict=True)]) for a, b in pairs]


def chosen(trips: int) -> list[tuple[int, int]]:
    """Runs that stand for all of so many, each with how many it stands for; see the module. They lie in pairs about
    the middle, whose squared distances add up to those of all runs: the outermost as often as it fits, then others.
    """
    if trips <= MOST_RUNS:
        return [(number, 1) for number in range(trips)]
    half, odd = divmod(trips, 2)
    last: int = half if odd else half - 1
    # of an even number the distances are k + 1/2, whose squares are 2 k (k + 1) / 2 + 1/4
    square: Callable[[int], int] = (lambda k: k * k) if odd else (lambda k: k * (k + 1) // 2)
    rest = half * (half + 1) * (2 * half + 1) // 6 if odd else half * (half * half - 1) // 6
    pairs = Counter[int]()
    pairs[last], rest = divmod(rest, square(last))
    while rest:
        k = isqrt(rest) if odd else (isqrt(8 * rest + 1) - 1) // 2
        pairs[k] += 1
        rest -= square(k)
    left = half - pairs.total()
    runs = Counter[int]({half: 2 * left + 1} if odd else {half - 1: left, half: left})
    for k, count in pairs.items():
        runs.update({(half if odd else half - 1) - k: count, half + k: count})
    return sorted((number, count) for number, count in runs.items() if count)

"""Random programs at two batches: the file for one of them, rebatched, is the file for the other, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, helper, numpy_helper

from onnxperf.graph import Graph, load
from onnxperf.ground.errors import ModelError, UsageError
from onnxperf.ground.rules import work_or_bytes

Draw = Callable[[Any], Any]
NEW = 6


@dataclass
class Program:
    """A graph that is written for any batch.

    `shape` is that of the newest tensor for a batch of 1. Its axis `at` is as many times as large as the batch, in
    `parts` which hold the batch each; None: the shape is the same for every batch. `over`: it is in several axes.
    `twins`: a Reshape has put it beside an axis of 1. From a file for one sample nobody can tell which of them it is
    in, and what would compute across the batch may be what computes along the other: then no step does.
    """

    shape: list[int]
    at: int | None = 0
    parts: int = 1
    over: bool = False
    twins: bool = False
    nodes: list[Any] = field(default_factory=list)
    stored: list[Callable[[int], Any]] = field(default_factory=list)
    name: str = "x"

    def __post_init__(self) -> None:
        self.lead = list(self.shape)

    def sizes(self, batch: int) -> list[int]:
        return [d * batch if i == self.at else d for i, d in enumerate(self.shape)]

    def constant(self, value: Callable[[int], Any] | Any) -> str:
        self.stored.append(value if callable(value) else lambda batch: value)
        return f"c{len(self.stored) - 1}"

    def weight(self, *shape: int) -> str:
        return self.constant(np.full(shape, 0.5, np.float32))

    def add(self, type: str, *inputs: str, shape: list[int], at: int | None, **attrs: Any) -> None:
        new = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(type, [self.name, *inputs], [new], name=f"n{len(self.nodes)}", **attrs))
        self.name, self.shape, self.at = new, shape, at

    def model(self, batch: int) -> ModelProto:
        inputs = [helper.make_tensor_value_info("x", 1, [batch, *self.lead[1:]])]
        outputs = [helper.make_tensor_value_info(self.name, 1, None)]
        stored = [numpy_helper.from_array(np.asarray(f(batch)), f"c{i}") for i, f in enumerate(self.stored)]
        graph = helper.make_graph(self.nodes, "program", inputs, outputs, stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def some_axis(p: Program, draw: Draw) -> int:
    """An axis to compute along."""
    return int(draw(st.sampled_from([i for i in range(len(p.shape)) if i != p.at or not p.twins] or [0])))


def split_in(draw: Draw, size: int) -> list[int]:
    """A size as a product of up to three."""
    found = []
    for _ in range(draw(st.integers(0, 2))):
        found.append(draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0])))
        size //= found[-1]
    return [*found, size]


def relu(p: Program, draw: Draw) -> None:
    p.add("Relu", shape=p.shape, at=p.at)


def spread(p: Program, draw: Draw) -> None:
    """A parameter that is the same for every sample, of some axes."""
    shape = [d if draw(st.booleans()) and i != p.at else 1 for i, d in enumerate(p.shape)]
    first = draw(st.integers(0, len(p.shape)))
    p.add(draw(st.sampled_from(["Add", "Mul"])), p.weight(*shape[first:]), shape=p.shape, at=p.at)


def turn(p: Program, draw: Draw) -> None:
    perm = draw(st.permutations(range(len(p.shape))))
    at = None if p.at is None else perm.index(p.at)
    p.add("Transpose", shape=[p.shape[i] for i in perm], at=at, perm=perm)


def linear(p: Program, draw: Draw) -> None:
    if len(p.shape) > 1 and p.at != len(p.shape) - 1:
        p.add("MatMul", p.weight(p.shape[-1], 5), shape=[*p.shape[:-1], 5], at=p.at)


def reshape(p: Program, draw: Draw) -> None:
    """Axes are cut and merged; the batch stays alone, or is merged with what stands before or behind it.

    No axis of 1 stands beside a merged one: a file for one sample can't tell it from an axis of the batch's own.
    """
    at = p.at
    outer = prod(p.shape[:at]) * p.parts if at is not None else 1
    before = split_in(draw, outer)
    behind = split_in(draw, prod(p.shape) // outer)
    how = draw(st.sampled_from(["alone", "alone", "before", "behind"]))
    parts, inner = before.pop() if how == "before" else 1, behind.pop(0) if how == "behind" else 1
    ones = draw(st.booleans()) and how == "alone"
    before, behind = ([d for d in sizes if d > 1 or ones] for sizes in (before, behind))
    shape = [*before, parts * inner, *behind]
    open_at = draw(st.integers(0, len(shape) - 1)) if draw(st.integers(0, 3)) == 0 else None
    held = len(before) if at is not None else None

    def target(batch: int) -> Any:
        sizes = [d * batch if i == held else d for i, d in enumerate(shape)]
        return np.array([-1 if i == open_at else d for i, d in enumerate(sizes)])

    p.add("Reshape", p.constant(target), shape=shape, at=held)
    p.parts = parts
    p.twins |= sum(d == 1 for d in shape) > 1


def join(p: Program, draw: Draw) -> None:
    """A constant for every sample, in front of what is there, as a class token."""
    axis = some_axis(p, draw)
    p.over |= axis == p.at
    shape, at = [2 if i == axis else d for i, d in enumerate(p.shape)], p.at
    token = p.constant(lambda n: np.full([d * n if i == at != axis else d for i, d in enumerate(shape)], 0.5, "f4"))
    p.add("Concat", token, shape=[d + 2 * (i == axis) for i, d in enumerate(p.shape)], at=p.at, axis=axis)


def shares(p: Program, draw: Draw) -> None:
    p.add("Softmax", shape=p.shape, at=p.at, axis=some_axis(p, draw))


def without(p: Program, axis: int, keep: bool = False) -> tuple[list[int], int | None]:
    """The shape and the axis of the batch where an axis goes, or becomes 1."""
    shape = [1 if i == axis else d for i, d in enumerate(p.shape) if keep or i != axis]
    return shape, None if p.at is None or p.at == axis else p.at - (not keep and axis < p.at)


def reduce(p: Program, draw: Draw) -> None:
    axis, keep = some_axis(p, draw), draw(st.booleans())
    shape, at = without(p, axis, keep)
    p.add("ReduceMean", p.constant(np.array([axis])), shape=shape, at=at, keepdims=int(keep))


def cut(p: Program, draw: Draw) -> None:
    """The first, all that there are by number, or all."""
    axis, end = some_axis(p, draw), draw(st.sampled_from([1, None, 2**62]))
    at, size = p.at, p.shape[axis]
    last = p.constant(lambda batch: np.array([(size * batch if axis == at else size) if end is None else end]))
    shape = [1 if i == axis and end == 1 else d for i, d in enumerate(p.shape)]
    bounds = [p.constant(np.array([0])), last, p.constant(np.array([axis]))]
    p.add("Slice", *bounds, shape=shape, at=None if axis == at and end == 1 else at)


def pick(p: Program, draw: Draw) -> None:
    """One slice; the first, some times over; or each, by its number."""
    axis, how = some_axis(p, draw), draw(st.sampled_from(["one", "first", "each"]))
    at, size, count = p.at, p.shape[axis], draw(st.integers(1, 3))

    def indices(batch: int) -> Any:
        each = np.arange(size * batch if axis == at else size)
        return {"one": np.array(0), "first": np.zeros(count, int), "each": each}[how]

    shape, left = without(p, axis)
    if how != "one":
        shape = [*p.shape[:axis], count if how == "first" else size, *p.shape[axis + 1 :]]
        left = None if axis == at and how == "first" else at
    p.add("Gather", p.constant(indices), shape=shape, at=left, axis=axis)


def widen(p: Program, draw: Draw) -> None:
    at = draw(st.integers(0, len(p.shape)))
    shape = [*p.shape[:at], 1, *p.shape[at:]]
    p.add("Unsqueeze", p.constant(np.array([at])), shape=shape, at=None if p.at is None else p.at + (at <= p.at))


def narrow(p: Program, draw: Draw) -> None:
    """An axis of 1 that is dropped: where it is the batch's, the file for a larger one can't run."""
    if ones := [i for i, d in enumerate(p.shape) if d == 1 and (i != p.at or not p.twins)]:
        axis = draw(st.sampled_from(ones))
        shape, at = without(p, axis)
        p.add("Squeeze", p.constant(np.array([axis])), shape=shape, at=at)


def scores(p: Program, draw: Draw) -> None:
    """All against all: of the rows of each sample, or of the samples."""
    if (rank := len(p.shape)) > 1 and (not p.twins or (p.at or 0) < rank - 2):
        perm = [*range(rank - 2), rank - 1, rank - 2]
        p.nodes.append(helper.make_node("Transpose", [p.name], [f"{p.name}T"], name=f"{p.name}T", perm=perm))
        p.over |= p.at == rank - 2
        p.add("MatMul", f"{p.name}T", shape=[*p.shape[:-1], p.shape[-2]], at=None if p.at == rank - 1 else p.at)


def repeat(p: Program, draw: Draw) -> None:
    axis, times = some_axis(p, draw), draw(st.integers(1, 2))
    repeats = [times if i == axis else 1 for i in range(len(p.shape))]
    p.parts *= times if axis == p.at else 1
    p.add("Tile", p.constant(np.array(repeats)), shape=[d * r for d, r in zip(p.shape, repeats, strict=True)], at=p.at)


def stretch(p: Program, draw: Draw) -> None:
    """Axes of 1 that are spread over 3; the batch is written down."""
    shape = [3 if d == 1 and i != p.at and draw(st.booleans()) else d for i, d in enumerate(p.shape)]
    at = p.at
    target = p.constant(lambda n: np.array([d * n if i == at else d for i, d in enumerate(shape)]))
    p.add("Expand", target, shape=shape, at=at)


def flat(p: Program, draw: Draw) -> None:
    axis, at = draw(st.integers(0, len(p.shape))), p.at
    shape = [prod(p.shape[:axis]), prod(p.shape[axis:])]
    if at is not None:
        p.parts = prod(p.shape[:at]) * p.parts // (shape[0] if at >= axis else 1)
    p.add("Flatten", shape=shape, at=None if at is None else int(at >= axis), axis=axis)


#: Those that hold the batch in a constant, or keep it apart, are drawn more often.
EVERY = (*(reshape, turn, linear) * 3, *(join, scores, stretch) * 2, relu, spread, shares, reduce, repeat, cut, pick,
         narrow, flat, widen)  # fmt: skip


@st.composite
def programs(draw: Draw) -> Program:
    p = Program([1, *draw(st.lists(st.sampled_from([2, 3, 4, 6, 1]), min_size=1, max_size=3))])
    for step in draw(st.lists(st.sampled_from(EVERY), min_size=2, max_size=9)):
        if p.shape and not p.over and prod(p.shape) < 10_000 and not (p.twins and p.shape == [1]):
            step(p, draw)
    assume(p.nodes)
    return p


def signature(graph: Graph) -> list[Any]:
    """Operators with their sizes, and their FLOPs.

    Of several axes of 1 side by side a file for one sample does not tell which is the batch's: axes are sorted.
    """

    def sizes(tensors: Any) -> list[list[int]]:
        return [sorted(d for d in t.shape if d != 1) for t in tensors]

    return [(o.type, sizes(o.present), sizes(o.outputs), work_or_bytes(o)[0].flops) for o in graph.operators]


#: The same programs at every run: rarely, what a file for one sample leaves open shows in the shape of a Flatten.
FIND = settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip


@pytest.mark.slow
@FIND
@given(program=programs(), old=st.sampled_from([1, 1, 2]))
def test_the_file_for_another_batch_comes_out_or_a_refusal(program: Program, old: int) -> None:
    try:
        own = load(program.model(NEW))
        load(program.model(old))
    except ModelError:  # there is no such file for one of the batches
        event("no file")
        return
    try:
        graph = load(program.model(old), batch=NEW)
    except UsageError as e:
        alone = "no input has a dimension for it" in str(e)  # an image of one channel that an Unsqueeze gives a batch
        assert alone or "node '" in str(e) or "output '" in str(e) or "tensor '" in str(e)
        event("refused")
        return
    event("changed" if any(n.code == "rebatched" for n in graph.notes) else "as it is")
    assert signature(graph) == signature(own)

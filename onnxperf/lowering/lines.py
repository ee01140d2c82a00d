"""The kernels of a model at many batches: between two of these, whole numbers of each work grow by equal steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onnxperf.graph import Graph
from onnxperf.graph.lines import NoLine, between
from onnxperf.lowering.lower import HostNode, Kernel, Kernels
from op_models import Steps, Work

#: A placed graph at a batch, and its kernels.
Lowered = tuple[Graph, Kernels]


@dataclass(frozen=True, slots=True)
class KernelLine:
    """The line through the kernels of a placed graph at two batches, low and high.

    works: of every work at the lower batch, by its identity, both; operators: of each kernel the index of its operator
    among the graph's, None for a copy.
    """

    low: Lowered
    high: Lowered
    works: dict[int, tuple[Work, Work]]
    operators: tuple[int | None, ...]

    def at(self, graph: Graph) -> Kernels:
        """The kernels of the graph at another batch; NoLine where a work has no whole number there."""
        works = {key: self._work(a, b, graph.batch) for key, (a, b) in self.works.items()}

        def node(n: HostNode) -> HostNode:
            return n if n.work is None else n._replace(work=works[id(n.work)])

        def kernel(k: Kernel, at: int | None) -> Kernel:
            return Kernel(
                k.name, k.op, k.nodes, works[id(k.work)], k.after, k.assumed, k.blocks, k.repeat, k.rank,
                tuple(map(node, k.skipped)) if k.skipped else (), k.visited, k.at_most, k.phase,
                None if at is None else graph.operators[at],
            )  # fmt: skip

        low, stored = self.low[1], (self.low[1].stored_bytes, self.high[1].stored_bytes)
        rows = tuple(map(kernel, low.rows, self.operators))
        return Kernels(rows, tuple(map(node, low.tail)), self._number(*stored, graph.batch))

    def _work(self, a: Work, b: Work, batch: int) -> Work:
        if a == b:
            return a
        if (type(a.size), a.dtype, a.pipe) != (type(b.size), b.dtype, b.pipe):
            raise NoLine
        sizes, steps = self._numbers(a.size, b.size, batch), self._numbers(a.steps, b.steps, batch)
        read, written, stored, matrix, vector = self._numbers(_counts(a), _counts(b), batch)
        size = type(a.size)(*sizes)
        return Work(size, a.dtype, a.pipe, read, written, stored, matrix, vector, Steps(*steps))

    def _numbers(self, a: Sequence[Any], b: Sequence[Any], batch: int) -> list[Any]:
        return [self._number(x, y, batch) for x, y in zip(a, b, strict=True)]

    def _number(self, a: Any, b: Any, batch: int) -> Any:
        """What is between two values, which must be whole numbers where they differ."""
        if a == b and type(a) is type(b):
            return a
        if not (isinstance(a, int) and isinstance(b, int)) or bool in (type(a), type(b)):
            raise NoLine
        return between(a, b, self.low[0].batch, self.high[0].batch, batch)


def _counts(w: Work) -> tuple[int, ...]:
    """The bytes and FLOPs of a work."""
    return w.bytes_read, w.bytes_written, w.weight_bytes, w.matrix_flops, w.vector_flops


def kernel_line(lowered: Sequence[Lowered]) -> KernelLine | None:
    """The line through the first two of these, on which the others are; None where there is none."""
    low, high, *others = lowered
    both = [*zip(_works(low[1]), _works(high[1]), strict=False)]
    works = {id(a): (a, b) for a, b in both if a is not None and b is not None}
    index = {id(o): i for i, o in enumerate(low[0].operators)}
    operators = tuple(None if k.operator is None else index[id(k.operator)] for k in low[1].rows)
    through = KernelLine(low, high, works, operators)
    try:
        return through if all(through.at(graph) == kernels for graph, kernels in (high, *others)) else None
    except (NoLine, KeyError):  # a node that computes at one batch and not at another
        return None


def _works(kernels: Kernels) -> list[Work | None]:
    """The works of all kernels, and of the nodes that the host passes."""
    passed = (*(n for k in kernels.rows for n in k.skipped), *kernels.tail)
    return [*(k.work for k in kernels.rows), *(n.work for n in passed)]

"""Graphs at many batches are those that are read at each, though few are read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onnxperf.graph import Graph, load, opened
from onnxperf.graph.lines import along, line
from onnxperf.ground.errors import Error
from tests.decide.models import model_of, net


def reader(model: object) -> tuple[Callable[[int], Graph], list[int]]:
    """What reads a model at a batch, and the batches at which it did."""
    held, read = opened(model), list[int]()  # type: ignore[arg-type]

    def at(batch: int) -> Graph:
        read.append(batch)
        return load(held, batch=batch)

    return at, read


def content(graph: Graph) -> object:
    """All that stages read of a graph."""
    operators = [(o.name, o.type, o.inputs, o.outputs, o.attrs, o.nodes, o.place) for o in graph.operators]
    return operators, graph.inputs, graph.outputs, graph.batch


#: Its second dimension is 12, which a batch of 12 equals by chance.
FLAT = "g (float[batch,12,5] x) => (float[rows,60] y) { s = Constant<value = int64[2] {-1, 60}>() y = Reshape(x, s) }"

#: Positions of each sample, which are known before the run.
POSITIONS = """g (float[batch,5] x) => (int64[batch,5] y) {
    s = Shape(x) p = Constant<value = int64[1,5] {0, 1, 2, 3, 4}>() e = Expand(p, s) y = Add(e, e)
}"""


#: Each sample's index, which is known before the run and goes on where there are more.
INDICES = """g (float[batch,5] x) => (int64[rows] y) {
    s = Shape(x) z = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>() n = Gather(s, z)
    i = Range(z, n, one) y = Add(i, i)
}"""


@pytest.mark.parametrize(
    "model",
    [net(), net(8), model_of(FLAT, {}), model_of(POSITIONS, {}), model_of(INDICES, {})],
    ids=["open", "fixed", "flat", "positions", "indices"],
)
def test_every_graph_is_the_one_that_is_read(model: object) -> None:
    batches = list(range(1, 33))
    at, read = reader(model)
    each = list(along(at, batches, line))
    assert len(read) < len(batches) / 2
    for batch, graph in zip(batches, each, strict=True):
        assert isinstance(graph, Graph) and content(graph) == content(reader(model)[0](batch))


def test_a_size_that_another_equals_by_chance_is_read() -> None:
    at, read = reader(model_of(FLAT, {}))
    list(along(at, [1, 2, 3, 10, 11, 12, 13, 31, 32], line))
    assert sorted(read) == [1, 2, 12, 32]


def test_where_graphs_differ_in_more_than_sizes_each_is_read() -> None:
    model = model_of("g (float[batch,8] x) => (float[batch,8] y) { y = Relu(x) }", {})
    large = model_of("g (float[batch,8] x) => (float[batch,8] y) { y = Tanh(x) }", {})
    relu, tanh = reader(model)[0], reader(large)[0]
    each = list(along(lambda batch: (relu if batch <= 20 else tanh)(batch), range(1, 65), line))
    types = [g.operators[0].type for g in each if isinstance(g, Graph)]
    assert types == ["Relu"] * 20 + ["Tanh"] * 44


def test_a_batch_that_can_not_be_says_why() -> None:
    fixed = model_of("g (float[4,8] x) => (float[8,4] y) { y = Transpose(x) }", {})
    each = list(along(reader(fixed)[0], range(1, 9), line))
    assert [isinstance(x, Error) for x in each] == [isinstance(x, Error) for x in map(_tried(fixed), range(1, 9))]


def _tried(model: object) -> Callable[[int], Graph | Error]:
    def at(batch: int) -> Graph | Error:
        try:
            return reader(model)[0](batch)
        except Error as e:
            return e

    return at

"""What is done to a model in a process or on a machine of its own: read it; predict it at one point of the grid."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpu_specs import Device
from onnxperf.answer.outline import Outline
from onnxperf.decide.bindings import Names, has, names_of
from onnxperf.decide.choices import Choice, choice_of, on_each_of
from onnxperf.export import source
from onnxperf.graph import Graph, Opened, opened
from onnxperf.graph import load as load_graph
from onnxperf.graph.bind import shapes_of
from onnxperf.graph.lines import graphs_at
from onnxperf.graph.skeleton import skeleton
from onnxperf.ground.errors import Error
from onnxperf.running.pipeline import Request
from onnxperf.running.terms import Bindings
from onnxperf.sweeps.edition import edition
from onnxperf.sweeps.grid import Point


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model without its weights, which predicts the same: small enough to be sent to where it is predicted.

    digest: a hash of all that predictions read of it, small values in files beside it included; names: of those that
    bindings give to dimensions, tensors and loops, the ones that it has; shapes: of example inputs, if there were any.
    """

    name: str
    data: bytes
    digest: str
    names: Names
    shapes: Mapping[str, tuple[int, ...]]


TOGETHER = 8192  # operators of all graphs that are held at once, at least one graph
#: Precisions, and the cards that each is asked for on.
Asked = tuple[tuple[str, tuple[Device, ...]], ...]
#: What an answer is: the edition of onnxperf that gave it, and for each point, in each precision, a choice for each
#: card, or why there is none.
Answer = tuple[str, list[list[Choice | Error]]]


def prepare(model: Any, example_inputs: Any, open_batch: bool, named: Mapping[str, Iterable[str]]) -> Prepared | Error:
    """Read a model's file, or export a framework's model, or say why it can't be; named: what bindings name."""
    try:
        read, examples = source(model, example_inputs, None, open_batch)
        first = opened(read)
        shapes = {n: tuple(map(int, shape)) for n, shape in shapes_of(first.proto, examples).items()}
        data = skeleton(first.proto, first.folder)
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        every = names_of(first)
        names = {what: {name for name in bound if has(every[what], name)} for what, bound in named.items()}
        return Prepared(first.name, data, digest, names, shapes)
    except Error as e:
        return e


def predicted(
    data: bytes, asked: Sequence[tuple[Point, Asked]], shapes: Mapping[str, Sequence[int]],
    trip_counts: Mapping[str, int] | None, terms: Mapping[str, Any],
) -> Answer:  # fmt: skip
    """Predict a prepared model at points that differ in the batch alone, in some precisions and on the cards asked for
    in each.
    """
    model, trains = _read(data), terms.get("mode") == "training"

    def at(point: Point) -> Graph:
        sizes: Bindings = {"shapes": shapes, "dims": dict(point.dims), "batch": point.batch, "trip_counts": trip_counts}
        return load_graph(model, **sizes, trains=trains)

    points: dict[Any, Point] = {point.batch: point for point, of_point in asked if of_point}
    answers, waiting = dict[tuple[Any, str], list[Choice | Error]](), dict[Any, Graph]()
    of_batch = {point.batch: of_point for point, of_point in asked}
    for batch, graph in zip(points, graphs_at(lambda batch: at(points[batch]), list(points)), strict=True):
        if isinstance(graph, Error):
            answers |= {(batch, precision): [graph] * len(devices) for precision, devices in of_batch[batch]}
            continue
        waiting[batch] = graph
        if sum(len(g.operators) for g in waiting.values()) >= TOGETHER:
            answers |= _answered(waiting, of_batch, trip_counts, terms)
            waiting.clear()
    answers |= _answered(waiting, of_batch, trip_counts, terms)
    cells = [[x for name, _ in of_point for x in answers[point.batch, name]] for point, of_point in asked]
    return edition(), cells


def _answered(
    graphs: Mapping[Any, Graph], asked: Mapping[Any, Asked], trip_counts: Mapping[str, int] | None,
    terms: Mapping[str, Any],
) -> dict[tuple[Any, str], list[Choice | Error]]:  # fmt: skip
    """What is asked of the graphs at some batches, by batch and precision; those on the same cards are run together."""
    together: dict[tuple[str, tuple[Device, ...]], list[Any]] = {}
    for batch in graphs:
        for pair in asked[batch]:
            together.setdefault(pair, []).append(batch)
    answers: dict[tuple[Any, str], list[Choice | Error]] = {}
    for (precision, devices), batches in together.items():
        terms = {**terms, "precision": precision}
        requests = [Request(graphs[batch], trip_counts=trip_counts, terms=terms) for batch in batches]
        for batch, outlined in zip(batches, on_each_of(requests, devices), strict=True):
            answers[batch, precision] = [choice_of(x) if isinstance(x, Outline) else x for x in outlined]
    return answers


@lru_cache(maxsize=1)
def _read(data: bytes) -> Opened:
    """A model is asked for with one set of sizes after the other: read once, it serves them all."""
    return opened(data)

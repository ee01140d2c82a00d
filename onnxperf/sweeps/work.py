"""What is done to a model in a process or on a machine of its own: read it; predict it at one point of the grid."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from gpu_specs import Device
from onnxperf.answer.outline import Outline
from onnxperf.decide.at_batches import at_batches
from onnxperf.decide.bindings import Names, has, names_of
from onnxperf.decide.choices import EMPTY, Choice, choice_of
from onnxperf.export import source
from onnxperf.graph import Graph, Opened, opened
from onnxperf.graph import load as load_graph
from onnxperf.graph.bind import shapes_of
from onnxperf.graph.skeleton import skeleton
from onnxperf.ground.errors import Error, UsageError
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
    by_batch, read = {point.batch: point for point, _ in asked}, dict[Any, Graph | Error]()

    def graph(batch: Any) -> Graph:
        point = by_batch[batch]
        sizes: Bindings = {"shapes": shapes, "dims": dict(point.dims), "batch": batch, "trip_counts": trip_counts}
        if batch not in read:
            try:
                loaded = load_graph(model, **sizes, trains=trains)
                read[batch] = loaded if loaded.batch else UsageError(EMPTY)
            except Error as e:
                read[batch] = e
        if isinstance(of_batch := read[batch], Error):
            raise of_batch
        return of_batch

    def request(precision: str, batch: Any) -> Request:
        return Request(graph(batch), trip_counts=trip_counts, terms={**terms, "precision": precision})

    together: dict[tuple[str, tuple[Device, ...]], list[Any]] = {}
    for point, of_point in asked:
        for pair in of_point:
            together.setdefault(pair, []).append(point.batch)
    answers: dict[tuple[Any, str], list[Choice | Error]] = {}
    for (precision, devices), batches in together.items():
        each = at_batches(partial(request, precision), batches, devices)
        for batch, outlined in zip(batches, each, strict=True):
            answers[batch, precision] = [choice_of(x) if isinstance(x, Outline) else x for x in outlined]
    cells = [[x for name, _ in of_point for x in answers[point.batch, name]] for point, of_point in asked]
    return edition(), cells


@lru_cache(maxsize=1)
def _read(data: bytes) -> Opened:
    """A model is asked for with one set of sizes after the other: read once, it serves them all."""
    return opened(data)

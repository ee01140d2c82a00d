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
from onnxperf.decide.choices import Choice, choice_of, on_each
from onnxperf.export import source
from onnxperf.graph import Opened, opened
from onnxperf.graph import load as load_graph
from onnxperf.graph.bind import shapes_of
from onnxperf.graph.skeleton import skeleton
from onnxperf.ground.errors import Error
from onnxperf.running.pipeline import Request
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


#: A precision, and the cards that it is asked for on.
Asked = tuple[tuple[str, tuple[Device, ...]], ...]
#: What an answer is: the edition of onnxperf that gave it, and for each precision a choice for each card, or why not.
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
    data: bytes, point: Point, shapes: Mapping[str, Sequence[int]], trip_counts: Mapping[str, int] | None,
    terms: Mapping[str, Any], asked: Asked,
) -> Answer:  # fmt: skip
    """Predict a prepared model at a point, in some precisions and on the cards asked for in each."""
    try:
        graph = load_graph(
            _read(data), shapes=shapes, dims=dict(point.dims), batch=point.batch, trip_counts=trip_counts
        )
    except Error as e:
        return edition(), [[e] * len(devices) for _, devices in asked]
    columns = list[list[Choice | Error]]()
    for precision, devices in asked:
        request = Request(graph, trip_counts=trip_counts, terms={**terms, "precision": precision})
        columns.append([choice_of(x) if isinstance(x, Outline) else x for x in on_each(request, devices)])
    return edition(), columns


@lru_cache(maxsize=1)
def _read(data: bytes) -> Opened:
    """A model is asked for at one point after the other: read once, it serves them all."""
    return opened(data)

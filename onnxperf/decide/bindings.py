"""Several models under one request: each takes the bindings that it has a name for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from onnxperf.graph import Graph, Opened, opened
from onnxperf.graph.bind import declared_dims
from onnxperf.graph.proto import LOOPS, graphs_in, nodes_in
from onnxperf.ground.errors import Error
from onnxperf.running.pipeline import Request

#: The bindings of a request that name a part of its model.
NAMED = ("dims", "shapes", "trip_counts")
Names = Mapping[str, set[str]]


def narrowed(requests: Sequence[Request]) -> list[Request]:
    """Requests with the same bindings, each without those that only other models have a name for.

    What no model has a name for is kept, to be refused; a model that can't be read has no names.
    """
    if len(requests) < 2 or not any(getattr(r, what) for r in requests for what in NAMED):
        return list(requests)
    bound = [_names(r) for r in requests]
    every: Names = {what: set().union(*(names[what] for names in bound)) for what in NAMED}
    return [replace(r, **_kept(r, of_model, every)) for r, of_model in zip(requests, bound, strict=True)]


def _kept(r: Request, of_model: Names, every: Names) -> dict[str, Any]:
    """The bindings of a request that its own model has a name for, or no model."""
    return {
        what: {n: v for n, v in (getattr(r, what) or {}).items() if has(of_model[what], n) or not has(every[what], n)}
        for what in NAMED
    }


def _names(r: Request) -> Names:
    """The names of a request's dimensions, tensors and loops; none where its model can't be read."""
    if not isinstance(r.model, Graph):
        with suppress(Error):  # it is told where the model is predicted
            return names_of(opened(r.model))
    return {what: set() for what in NAMED}


def names_of(model: Opened) -> Names:
    """The names of a model's dimensions, tensors and loops."""
    top = model.proto.graph
    infos = [i for g in (top, *graphs_in(top.node)) for i in (*g.input, *g.value_info, *g.output)]
    nodes = [*nodes_in(top.node)]
    return {
        "dims": {d for i in infos for d in declared_dims(i) or () if isinstance(d, str)},
        "shapes": {i.name for i in infos} | {o for n in nodes for o in n.output},
        "trip_counts": {n.name for n in nodes if n.op_type in LOOPS},
    }


def has(names: set[str], wanted: str) -> bool:
    """True for a name, and for one inside the body of a node: it stands behind that node's and a slash."""
    return any(wanted == name or (name and wanted.endswith(f"/{name}")) for name in names)

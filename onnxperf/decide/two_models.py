"""Two models under one request: each takes the bindings that it has a name for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onnxperf.decide.diff import CAUSES, Difference, difference, total
from onnxperf.errors import LimitExceeded, UsageError
from onnxperf.graph import Graph, opened
from onnxperf.pipeline import Gpu, Request, find, run_of
from onnxperf.prediction import Prediction, summarise
from onnxperf.tables import duration, shortened

ROUNDED = 1e-12  # seconds: what sums leave behind when they are rounded


def compare(a: Request, b: Request, gpu: Gpu) -> Difference:
    """Predict both requests, which have the same terms and bindings, on a card, and say what the models differ in.

    A dimension, shape or trip count that one model alone has a name for is given to that one. Raises what `predict`
    raises; a UsageError says whose it is.
    """
    find(gpu)  # an unknown card is no model's fault
    own, other = _names(a), _names(b)
    return difference(_side(_narrowed(a, own, other), gpu, "A"), _side(_narrowed(b, other, own), gpu, "B"))


def keep(d: Difference, share: float) -> None:
    """Raise LimitExceeded where B is slower than A by more than that share."""
    if d.ratio > 1 + share:
        over = f"B is slower than A by {d.ratio - 1:.1%}, over the limit of {100 * share:.4g}%"
        raise LimitExceeded(f"{over}; most of it: {blame(d)}")


def blame(d: Difference, count: int = 3) -> str:
    """What B takes longer for, for a message: the groups that cost most, and what no kernel accounts for."""
    costs = [
        (x, f"{len(c)} {shortened(o)} ({CAUSES[cause]})") for (o, cause), c in d.groups.items() if (x := total(c)) > 0
    ]
    costs.append((d.launch_and_gaps_seconds, "launches and gaps"))
    most = sorted(((x, what) for x, what in costs if x > 0), reverse=True)[:count]
    return ", ".join(f"{what} {signed(x)}" for x, what in most)


def signed(seconds: float) -> str:
    """A difference with its sign; what sums leave behind when they are rounded is none."""
    return f"{'-' if seconds < 0 else '+'}{duration(abs(seconds))}" if abs(seconds) >= ROUNDED else "0"


def _side(r: Request, gpu: Gpu, name: str) -> Prediction:
    try:
        return summarise(run_of(r, gpu))
    except UsageError as e:
        raise UsageError(f"model {name}: {e}") from None


def _names(r: Request) -> dict[str, set[str]]:
    """The names of a model's dimensions, tensors and loops, where any binding asks for one."""
    if isinstance(r.model, Graph) or not (r.dims or r.shapes or r.trip_counts):
        return {"dims": set(), "shapes": set(), "trip_counts": set()}
    from onnxperf.graph.bind import declared_dims
    from onnxperf.graph.proto import LOOPS, graphs_in, nodes_in

    top = opened(r.model).proto.graph
    infos = [i for g in (top, *graphs_in(top.node)) for i in (*g.input, *g.value_info, *g.output)]
    nodes = [*nodes_in(top.node)]
    return {
        "dims": {d for i in infos for d in declared_dims(i) or () if isinstance(d, str)},
        "shapes": {i.name for i in infos} | {o for n in nodes for o in n.output},
        "trip_counts": {n.name for n in nodes if n.op_type in LOOPS},
    }


def _narrowed(r: Request, own: Mapping[str, set[str]], other: Mapping[str, set[str]]) -> Request:
    """A request without what the other model alone has a name for; what neither has is kept, to be refused."""

    def kept(what: str) -> dict[str, Any]:
        return {n: v for n, v in (getattr(r, what) or {}).items() if _has(own[what], n) or not _has(other[what], n)}

    return replace(r, dims=kept("dims"), shapes=kept("shapes"), trip_counts=kept("trip_counts"))


def _has(names: set[str], wanted: str) -> bool:
    """True for a name, and for one inside the body of a node: it stands behind that node's and a slash."""
    return any(wanted == name or (name and wanted.endswith(f"/{name}")) for name in names)

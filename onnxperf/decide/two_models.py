"""Two models under one request: each takes the bindings that it has a name for."""

from __future__ import annotations

import math
from typing import Any, Unpack, overload

from onnxperf.answer.prediction import Prediction, summarise
from onnxperf.decide.bindings import narrowed
from onnxperf.decide.diff import CAUSES, Difference, difference, total
from onnxperf.ground.door import DOOR
from onnxperf.ground.errors import LimitExceeded, UsageError, speaking_of_arguments
from onnxperf.ground.tables import LEAST_SHARE, duration, percent, shortened, size
from onnxperf.running.pipeline import Gpu, Request, find, request_for, run_of
from onnxperf.running.terms import Bound

LEAST_S = 1e-9  # less is no difference: it is what sums leave behind, or a billionth of what was timed


@overload
def diff(a: Prediction, b: Prediction) -> Any: ...


@overload
def diff(a: Any, b: Any, *, gpu: Gpu, **terms: Unpack[Bound]) -> Difference: ...


def diff(a: Any, b: Any, *, gpu: Gpu | None = None, **terms: Unpack[Bound]) -> Any:
    """Predict two models with the same terms on a card, and say what they differ in and what that costs.

    a, b, gpu and terms are what `onnxperf.predict` takes. A dimension, shape or trip count that one model alone has a
    name for is given to that one. Two predictions, such as of one model under two runtimes, are compared as they are,
    without gpu and terms, by the names of their operators: the answer is then that of `onnxperf.diff_runs`. Raises what
    `predict` raises; a UsageError says whose it is.
    """
    predictions = [isinstance(x, Prediction) for x in (a, b)]
    if all(predictions) and gpu is None and not terms:
        return DOOR["diff_runs"](a, b)
    if any(predictions):
        raise UsageError("diff takes two predictions without gpu and terms, or two models with them")
    if gpu is None:
        raise UsageError('name the card: diff(a, b, gpu="l4")')
    with speaking_of_arguments():
        return compare(request_for(a, **terms), request_for(b, **terms), gpu)


def compare(a: Request, b: Request, gpu: Gpu) -> Difference:
    """Predict both requests, which have the same terms and bindings, on a card, and say what the models differ in.

    A dimension, shape or trip count that one model alone has a name for is given to that one. Raises what `predict`
    raises; a UsageError says whose it is.
    """
    find(gpu)  # an unknown card is no model's fault
    to_a, to_b = narrowed([a, b])
    return difference(_side(to_a, gpu, "A"), _side(to_b, gpu, "B"))


def keep(d: Difference, share: float) -> None:
    """Raise LimitExceeded where B is slower than A by more than that share; where there is a limit, also where B
    does not fit into the card's memory, so that it would not run at all.
    """
    if share < math.inf:
        keep_room(d.b, "neither does A" if not d.a.memory.fits else "A does")
    if slower(d.ratio - 1, share):
        over = f"B is slower than A by {percent(d.ratio - 1)}, over the limit of {100 * share:.4g}%"
        raise LimitExceeded(f"{over}; most of it: {blame(d)}")


def slower(change: float, share: float) -> bool:
    """Whether a time grew by more than that share of it; with 0 by anything but rounding."""
    return change > share + LEAST_SHARE


def keep_room(b: Prediction, other: str = "") -> None:
    """Raise LimitExceeded where B does not fit into the card's memory; `other` says whether A does."""
    m = b.memory
    if not m.fits:
        needs = f"it needs {size(m.total_bytes + m.context_bytes)} of {size(m.capacity_bytes)}"
        raise LimitExceeded(f"B does not fit into the card's memory: {needs}{f'; {other}' if other else ''}")


def blame(d: Difference, count: int = 3) -> str:
    """What makes B slower, or where it is faster what does, for a message: the groups of kernels that differ most, and
    what no kernel accounts for.
    """
    costs = [(total(c), f"{len(c)} {shortened(o)} ({CAUSES[cause]})") for (o, cause), c in d.groups.items()]
    costs.append((d.launch_and_gaps_seconds, "launch overhead and gaps"))
    alike = [(x, what) for x, what in costs if x * d.seconds > 0]
    most = sorted(alike, key=lambda cost: -abs(cost[0]))[:count]
    return ", ".join(f"{what} {signed(x)}" for x, what in most)


def signed(seconds: float) -> str:
    """A difference with its sign; less than a nanosecond is none."""
    return f"{'-' if seconds < 0 else '+'}{duration(abs(seconds))}" if abs(seconds) >= LEAST_S else "0"


def _side(r: Request, gpu: Gpu, name: str) -> Prediction:
    try:
        return summarise(run_of(r, gpu))
    except UsageError as e:
        raise UsageError(f"model {name}: {e}") from None

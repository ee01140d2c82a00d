"""ONNX Runtime's profile: the operators that ran, and how long each took."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import inf
from statistics import median
from typing import Any, NamedTuple

from onnxperf.ground.errors import EnvironmentFailure
from onnxperf.measure.record import OperatorTime
from onnxperf.measure.series import Series

MICROSECOND = 1e-6
MAX_BYTES = 1 << 30  # of a profile that are read
MAX_LINE = 1 << 20  # of an event, each of which is a line of its own
ENDING = "_kernel_time"  # of the names of nodes' events
PRODUCTS = frozenset({"Gemm", "FusedGemm", "MatMul", "FusedMatMul"})  # their times follow from their shapes alone
SHAPED = ("op_name", "provider", "input_type_shape", "output_type_shape", "parameter_size")
BODIES = frozenset({"If", "Loop", "Scan"})  # their times include those of the nodes inside them

Event = dict[str, Any]
Key = tuple[str, str, str]  # an operator's name, type and provider


class Call(NamedTuple):
    """One execution of an operator; both times in microseconds."""

    key: Key
    begin: float
    lasts: float


def parse(path: str | os.PathLike[str], skip: int = 0) -> tuple[tuple[OperatorTime, ...], Series]:
    """The operators of a profile in the order they ran, and the runs' own times; the first `skip` runs are left out.

    An operator's time is that of all its calls in a run, without the time of the nodes in its body (If, Loop, Scan).
    Matrix products of equal type and shapes share their least time: of twelve equal layers, one is sooner left alone by
    other programs. A profile that ends in the middle counts up to its last whole run.

    Raises EnvironmentFailure where it can't be read or holds no whole run.
    """
    runs: list[float] = []
    times: dict[Key, list[float]] = defaultdict(list)
    alike: dict[Key, str] = {}  # operator -> its type and shapes
    for index, (events, whole) in enumerate(_runs(path)):
        if index < skip:
            continue
        runs.append(whole["dur"] * MICROSECOND)
        for key, seconds in own_seconds(Call(_key(e), e["ts"], e["dur"]) for e in events).items():
            times[key].append(seconds)
        if not alike:
            products = (e for e in events if _key(e)[1] in PRODUCTS)
            alike = {_key(e): json.dumps([e["args"].get(k) for k in SHAPED]) for e in products}
    if not runs:
        raise EnvironmentFailure("ONNX Runtime's profile has no complete run: it ended early")
    least: dict[str, float] = {}
    for key, s in times.items():
        kind = alike.get(key, str(key))
        least[kind] = min(least.get(kind, inf), *s)
    operators = (OperatorTime(*key, len(s), median(s), least[alike.get(key, str(key))]) for key, s in times.items())
    return tuple(operators), Series(tuple(runs))


def merged(passes: Sequence[Sequence[OperatorTime]]) -> tuple[OperatorTime, ...]:
    """The operators of several profiles of one model, in the order of the first: medians of medians, least of all."""
    times: dict[Key, list[OperatorTime]] = defaultdict(list)
    for o in chain.from_iterable(passes):
        times[o.name, o.type, o.provider].append(o)
    return tuple(
        OperatorTime(*key, sum(o.runs for o in at), median(o.median_s for o in at), min(o.least_s for o in at))
        for key, at in times.items()
    )


def _runs(path: str | os.PathLike[str]) -> Iterator[tuple[list[Event], Event]]:
    """For each whole run the events of its nodes, and its own event, which is written behind them."""
    nodes: list[Event] = []
    for event in _events(path):
        if event["name"] == "model_run":
            yield nodes, event
            nodes = []
        elif event["cat"] == "Node" and event["name"].endswith(ENDING):
            nodes.append(event)


def _events(path: str | os.PathLike[str]) -> Iterator[Event]:
    """The events that can be read; a line that is cut off, or no event, is passed over."""
    left = MAX_BYTES
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            while left > 0 and (line := file.readline(MAX_LINE)):
                left -= len(line)
                try:
                    event = json.loads(line.strip().rstrip(","))
                except (ValueError, RecursionError):
                    continue
                if _is_event(event):
                    yield event
    except OSError as e:
        raise EnvironmentFailure(f"ONNX Runtime's profile can't be read: {e.strerror or e}") from None


def _is_event(event: Any) -> bool:
    if not isinstance(event, dict) or not all(isinstance(event.get(k), str) for k in ("cat", "name")):
        return False
    args = event.get("args", {})
    texts = isinstance(args, dict) and all(isinstance(args.get(k, ""), str) for k in ("op_name", "provider"))
    return texts and all(type(event.get(k)) is int and event[k] >= 0 for k in ("ts", "dur"))


def _key(event: Event) -> Key:
    args = event.get("args", {})
    return event["name"].removesuffix(ENDING), args.get("op_name", ""), args.get("provider", "")


def own_seconds(calls: Iterable[Call]) -> dict[Key, float]:
    """Seconds of each operator in a run, without those of the nodes in its body."""
    seconds: dict[Key, float] = {}
    around: list[tuple[float, Key]] = []  # bodies that run: when each ends, and whose it is
    for key, begin, lasts in sorted(calls, key=lambda c: (c.begin, -c.lasts)):
        seconds[key] = seconds.get(key, 0.0) + lasts * MICROSECOND
        while around and begin >= around[-1][0]:
            around.pop()
        if around:
            outer = around[-1][1]
            seconds[outer] = max(seconds[outer] - lasts * MICROSECOND, 0.0)
        if key[1] in BODIES:
            around.append((begin + lasts, key))
    return seconds

"""Reads runs from files: traces of `onnxperf predict --trace` and profiles of ONNX Runtime, which have one format, and
the profiles of layers that trtexec writes with --exportProfile.

Files come from strangers: sizes are limited, and whatever is no event is an error that says where it stands.
"""

from __future__ import annotations

import json
import os
import re
import stat
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import fsum
from statistics import median
from typing import Any, NoReturn

from gpu_specs.toml_file import figure
from onnxperf.answer.prediction import Prediction
from onnxperf.calibrate.matching import nodes_of_layer
from onnxperf.ground.codec import shown
from onnxperf.ground.errors import UsageError, printable, speaking_of_arguments, unreadable
from onnxperf.measure.profile import ENDING, MICROSECOND, Call, Event, Key, own_seconds
from onnxperf.scoring.timed_runs import RunDifference, Timed, TimedRun, difference, of, title

MAX_BYTES, MAX_LINE = 1 << 28, 1 << 20
MAX_EVENTS, MAX_OPERATORS, MAX_TYPES, MAX_TEXT = 1_000_000, 50_000, 1_000, 10_000
MAX_TIME = 1e15  # microseconds
ON_CPU = "CPUExecutionProvider"
LAUNCHES_ONLY = (
    "the profile has no times of kernels: those of nodes on the GPU are of their launches, unless the process ran with"
    " CUDA_LAUNCH_BLOCKING=1"
)
LAYERS_ONLY = (
    "a profile of trtexec has no time of whole runs: here it is that of all layers together, without the gaps between"
    " them"
)
TYPE = re.compile(r"([A-Za-z]\w*?)(?:_\d+)*$")  # in the last part of a node's name: Conv in /model.0/conv/Conv_1
NO_TYPE = "Layer"


@dataclass(slots=True)
class _Events:
    """What was read: runs as begin, end and arguments; calls of nodes; kernels as begin, lasts, parent and type; layers
    of TensorRT, and the number of runs that they were timed in.
    """

    runs: list[tuple[float, float, Event]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    kernels: list[tuple[float, float, str, str]] = field(default_factory=list)
    layers: list[Timed] = field(default_factory=list)
    count: int = 0
    nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by the name of an operator
    keys: dict[Key, Key] = field(default_factory=dict)  # of operators, so that equal ones are held once


def diff_runs(a: Prediction | str | os.PathLike[str], b: Prediction | str | os.PathLike[str]) -> RunDifference:
    """What two runs differ in, each a prediction or the path of a file that tells of one: operators matched by name.

    Such a file is a trace of `Prediction.to_trace`, or a profile of ONNX Runtime or trtexec. Raises UsageError where it
    is none.
    """
    with speaking_of_arguments():
        return difference(*(of(x) if isinstance(x, Prediction) else read(x) for x in (a, b)))


def is_run(path: object) -> bool:
    """Whether something is the path of a file with a list or an object of JSON, which no model is."""
    if not isinstance(path, (str, os.PathLike)):
        return False
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # reading a pipe or a device might never end
            return False
        with open(path, "rb") as file:
            return file.read(64).lstrip()[:1] in (b"[", b"{")
    except (OSError, ValueError):
        return False  # who reads it as a model says why it can't


def read(path: str | os.PathLike[str]) -> TimedRun:
    """The run in a file: the only one of a trace, medians over the runs of a profile, its first left out of several.

    The layers of TensorRT in a profile of trtexec count once in a run. Raises UsageError, which names the file and the
    line, where it is none of these.
    """
    name, events = printable(os.fspath(path)), _Events()
    try:
        if os.stat(path).st_size > MAX_BYTES:
            raise UsageError(f"it is larger than {MAX_BYTES >> 20} MiB; profile fewer runs")
        for where, event in _events(path):
            _take(events, event, where)
        return _run(os.path.basename(name), events)
    except OSError as e:
        raise unreadable(name, e) from None
    except UsageError as e:
        raise UsageError(f"{name}: {e}") from None


def _events(path: str | os.PathLike[str]) -> Iterator[tuple[str, Any]]:
    """Each event of a file with the place where it stands."""
    count = 0
    with open(path, "rb") as file:
        for number in range(1, MAX_BYTES):
            line = file.readline(MAX_LINE + 1)
            if not line:
                return
            where, text = f"line {number}", line.decode("utf-8", "replace").strip().strip(",").strip()
            if len(line) > MAX_LINE:
                raise UsageError(f"{where} is longer than {MAX_LINE >> 20} MiB; ONNX Runtime writes an event a line")
            if text in ("", "[", "]"):
                continue
            try:
                data = json.loads(text, parse_constant=_refuse)
            except (ValueError, RecursionError):
                raise UsageError(
                    f"{where} is not an event: a profile of ONNX Runtime and a trace of onnxperf have one per line"
                    " (is the file truncated?)"
                ) from None
            for event in data if isinstance(data, list) else (data,):
                count += 1
                if count > MAX_EVENTS:
                    raise UsageError(f"{where}: it has more than {MAX_EVENTS:,} events; profile fewer runs")
                yield where, event


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def _take(events: _Events, event: Any, where: str) -> None:
    """Add an event to what was found, if it tells of a run, a node or a kernel."""
    if isinstance(event, dict) and ("averageMs" in event or [*event] == ["count"]):
        return _take_layer(events, event, where)
    if not isinstance(event, dict) or "ph" not in event:
        raise UsageError(f"{where} is not a trace event: {shown(event)}")
    if event["ph"] != "X":
        return
    cat, name = (_text(event, key, where) for key in ("cat", "name"))
    begin, lasts = (_time(event, key, where) for key in ("ts", "dur"))
    args = event.get("args", {})
    if not isinstance(args, dict):
        raise UsageError(f"{where}: args must be an object, not {shown(args)}")
    if name == "model_run":
        events.runs.append((begin, begin + lasts, args))
    elif cat == "Kernel":
        parent = _text(args, "parent_name", where, name).removesuffix(ENDING)
        events.kernels.append((begin, lasts, parent, _text(args, "op_name", where, "Kernel")))
        _keep_nodes(events, parent, args, where)
    elif cat == "Node" and name.endswith(ENDING):
        operator = name.removesuffix(ENDING)
        key = operator, _text(args, "op_name", where, ""), _text(args, "provider", where, "")
        events.calls.append(Call(events.keys.setdefault(key, key), begin, lasts))
        _keep_nodes(events, operator, args, where)


def _take_layer(events: _Events, event: Event, where: str) -> None:
    """Add a layer of TensorRT, or the number of runs that trtexec counts before them; layers without time didn't run.

    Older releases tell means alone, later ones medians too.
    """
    if "count" in event:
        events.count = int(_time(event, "count", where, "a number"))
        return
    key = "medianMs" if "medianMs" in event else "averageMs"
    name, seconds = _text(event, "name", where), _time(event, key, where, "milliseconds") / 1e3
    nodes = nodes_of_layer(name)
    named = TYPE.search(nodes[0].rpartition("/")[2]) if nodes else None
    type = named[1] if named else NO_TYPE if nodes else "Reformat"
    if seconds > 0:
        events.layers.append(Timed(name, type, seconds, nodes))


def _text(holder: Event, key: str, where: str, default: str | None = None) -> str:
    value = holder.get(key, default)
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise UsageError(f"{where}: {key} must be text of at most {MAX_TEXT:,} characters, not {shown(value)}")
    return printable(value)


def _time(event: Event, key: str, where: str, unit: str = "microseconds") -> float:
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < MAX_TIME:
        raise UsageError(f"{where}: {key} must be {unit} from 0 to {figure(MAX_TIME)}, not {shown(value)}")
    return float(value)


def _keep_nodes(events: _Events, name: str, args: Event, where: str) -> None:
    """Keep the names of the nodes that an operator of a trace stands for."""
    if "nodes" in args and name not in events.nodes:
        nodes = args["nodes"]
        if not isinstance(nodes, list) or not all(isinstance(n, str) and len(n) <= MAX_TEXT for n in nodes):
            raise UsageError(f"{where}: nodes must be a list of names, not {shown(nodes)}")
        events.nodes[name] = tuple(map(printable, nodes))


def _run(name: str, events: _Events) -> TimedRun:
    """The run that the events tell of."""
    if events.layers:
        seconds = fsum(layer.seconds for layer in events.layers)
        return TimedRun(
            name, True, seconds, tuple(events.layers), max(events.count, 1), notes=(LAYERS_ONLY,), on_gpu=True
        )
    if not events.runs:
        raise UsageError("it has no complete run (no event `model_run`): is it a profile of ONNX Runtime or trtexec?")
    runs = sorted(events.runs, key=lambda r: r[:2])
    facts = runs[0][2]
    measured = "onnxperf_version" not in facts
    first = 1 if len(runs) > 1 else 0  # a session's first run makes what later ones find
    operators = _operators(events, runs, first)
    if len(operators) > MAX_OPERATORS or len({o.type for o in operators}) > MAX_TYPES:
        raise UsageError(f"it has more than {MAX_OPERATORS:,} operators, or {MAX_TYPES:,} types of them")
    if (seconds := median(end - begin for begin, end, _ in runs[first:]) * MICROSECOND) <= 0:
        raise UsageError("its runs took no time")
    launches = measured and not events.kernels and any(provider not in ("", ON_CPU) for *_, provider in events.keys)
    if not measured:
        model, device, runtime = (_text(facts, key, "model_run", "?") for key in ("model", "device", "runtime"))
        name = title(model, device, runtime)
    on_cpu = dict.fromkeys(operator for operator, _, provider in events.keys if measured and provider == ON_CPU)
    on_gpu = bool(events.kernels) or any(provider not in ("", ON_CPU) for *_, provider in events.keys)
    notes = (LAUNCHES_ONLY,) if launches else ()
    return TimedRun(name, measured, seconds, operators, len(runs) - first, notes, on_gpu, tuple(on_cpu))


def _operators(events: _Events, runs: list[tuple[float, float, Event]], first: int) -> tuple[Timed, ...]:
    """The operators of the runs from number `first` on, each with the median of its times in a run.

    Where there are times of kernels these count, and of other nodes only those on the CPU: nodes without a kernel are
    views.
    """
    begins = [begin for begin, *_ in runs]
    calls, kernels = defaultdict[int, list[Call]](list), defaultdict[int, dict[Key, float]](dict)
    for call in events.calls:
        i = bisect_right(begins, call.begin) - 1
        if i >= first and call.begin <= runs[i][1]:
            calls[i].append(call)
    for begin, lasts, name, type in events.kernels:
        if (i := bisect_right(begins, begin) - 1) >= first:
            kernels[i][name, type, ""] = kernels[i].get((name, type, ""), 0.0) + lasts * MICROSECOND
    times: dict[Key, list[float]] = defaultdict(list)
    for i in range(first, len(runs)):
        on_host = own_seconds(calls[i]).items()
        for key, seconds in (*kernels[i].items(), *(x for x in on_host if not events.kernels or x[0][2] == ON_CPU)):
            times[key].append(seconds)
    return tuple(Timed(name, type, median(s), events.nodes.get(name, ())) for (name, type, _), s in times.items())

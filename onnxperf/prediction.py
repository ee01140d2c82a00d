"""`Prediction`: the answer, frozen; the summary of a `Run` on one of its devices, from which every view is drawn."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_specs import Device
from onnxperf.graph import Note
from onnxperf.latency import BOUNDS
from onnxperf.latency.intervals import COVERAGE
from onnxperf.memory import Memory
from onnxperf.notes import notes
from onnxperf.passes import AMP
from onnxperf.run import Run
from onnxperf.scenario import PLATFORMS, Scenario
from onnxperf.schedule import STALLS
from op_models import Work

if TYPE_CHECKING:
    import networkx

SCHEMA_VERSION = 1
BOUND_BY = ("compute", "memory", "latency", "launch", "transfer", "communication")
#: What of a kernel the JSON holds.
OF_A_KERNEL = (
    "name", "nodes", "op", "seconds", "low_seconds", "high_seconds", "flops", "bytes_read", "bytes_written", "bound_by",
    "source", "start_seconds", "stream",
)  # fmt: skip


def _of(holder: object, *names: str) -> dict[str, Any]:
    """Some attributes by name."""
    return {name: getattr(holder, name) for name in names}


@dataclass(frozen=True, slots=True)
class KernelPrediction:
    """One kernel of the answer. Times in seconds.

    Beside what the JSON holds: `work`, that of one repeat; `after`, the names of the kernels it waits for;
    `variant`, the tile or algorithm; `stalled_on`, what its start waited for last (stream, host or copies);
    `repeat`, how often it runs: times, FLOPs and bytes are those of all repeats together.
    """

    name: str
    nodes: tuple[str, ...]
    op: str
    seconds: float
    low_seconds: float
    high_seconds: float
    flops: int
    bytes_read: int
    bytes_written: int
    bound_by: str
    source: str
    start_seconds: float
    stream: str
    work: Work
    after: tuple[str, ...] = ()
    variant: str = ""
    stalled_on: str = "stream"
    repeat: int = 1

    def to_dict(self) -> dict[str, Any]:
        """The kernel as it stands in the JSON."""
        return _of(self, *OF_A_KERNEL) | {"nodes": list(self.nodes)}


@dataclass(frozen=True, slots=True)
class Phase:
    """Kernels in a row after which the same thing sets the pace: how long that took, and how long the card idled.

    An empty `first` is the start of the run.
    """

    first: str
    last: str
    kernels: int
    seconds: float
    idle_seconds: float
    stalled_on: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Time without any kernel, between the ends of two; an empty name stands for the start or the end of the run."""

    before: str
    after: str
    seconds: float
    stalled_on: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long one run of a model takes on a card, how sure that is, and what it is spent on.

    seconds: steady-state median of one run in `scope`; low_seconds, high_seconds: a range that holds `interval` of
    measurements; sum_seconds: all kernels added; critical_path_seconds: the longest path with unlimited streams;
    lower_bound_seconds: that path at physical peak; shares: `bound_by` as pairs; totals: `work` as pairs;
    power_factor: what the card's power limit multiplied kernels by. run: every stage behind the answer, of which this
    is device number `column`.
    """

    scenario: Scenario
    seconds: float
    low_seconds: float
    high_seconds: float
    interval: float
    scope: str
    sum_seconds: float
    critical_path_seconds: float
    lower_bound_seconds: float
    throughput_per_second: float
    shares: tuple[tuple[str, float], ...]
    totals: tuple[tuple[str, int], ...]
    memory: Memory
    kernels: tuple[KernelPrediction, ...]
    warnings: tuple[Note, ...]
    power_factor: float
    run: Run = field(repr=False, compare=False)
    column: int = field(repr=False, compare=False)

    @property
    def device(self) -> Device:
        """The card or processor that it is for, as it is set."""
        return self.run.devices[self.column]

    @property
    def bound_by(self) -> dict[str, float]:
        """What bounds the run: shares of `seconds` that add to 1."""
        return dict(self.shares)

    @property
    def work(self) -> dict[str, int]:
        """FLOPs and bytes of all kernels together."""
        return dict(self.totals)

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain data, as `prediction.schema.json` describes it."""
        s = self.scenario
        paths = ("critical_path_seconds", "lower_bound_seconds")
        of_memory = ("weights_bytes", "activations_bytes", "workspace_bytes", "total_bytes", "capacity_bytes", "fits")
        return {
            "schema_version": SCHEMA_VERSION,
            **_of(s, "model", "gpu", "runtime", *(["ort_version"] if s.ort_version else []), "precision"),
            **_of(s, *(["layout"] if s.layout else []), "method"),
            "latency": _of(self, "seconds", "low_seconds", "high_seconds", "interval", "scope"),
            **_of(self, "sum_seconds", *paths, "throughput_per_second", "bound_by", "work"),
            "memory": _of(self.memory, *of_memory),
            "kernels": [k.to_dict() for k in self.kernels],
            "warnings": [{**_of(w, "code", "message"), "nodes": list(w.nodes)} for w in self.warnings],
        }

    def to_json(self, indent: int | None = 2) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @property
    def graph(self) -> networkx.DiGraph[str]:
        """The kernels as a networkx DAG: nodes are kernel names with the kernel as attribute `kernel`."""
        import networkx

        dag: networkx.DiGraph[str] = networkx.DiGraph(name=self.scenario.model)
        for k in self.kernels:
            dag.add_node(k.name, kernel=k, seconds=k.seconds)
            dag.add_edges_from(((before, k.name) for before in k.after), seconds=k.seconds)
        return dag

    @property
    def critical_path(self) -> tuple[str, ...]:
        """Names of the kernels on the longest path, in order."""
        import networkx

        dag = self.graph
        roots = [name for name, waits in dag.in_degree() if not waits]
        dag.add_edges_from(("", name, {"seconds": dag.nodes[name]["seconds"]}) for name in roots)
        return tuple(networkx.dag_longest_path(dag, weight="seconds", default_weight=0))[1:]

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The run as phases with one bottleneck each, in order: the host, the stream, or copies.

        From one kernel's start to the next one's, the pace is set by what held that next one back; before the first
        it is the host, behind the last start the stream.
        """
        found: list[Phase] = []
        ordered = sorted(self.kernels, key=lambda k: k.start_seconds)
        reach = now = 0.0
        for k, behind in zip((None, *ordered), (*ordered, None), strict=True):
            if k is not None:
                reach = max(reach, k.start_seconds + k.seconds)
            then = behind.start_seconds if behind else self.seconds
            held = behind.stalled_on if behind else "stream" if ordered else "host"
            idle, name = max(0.0, then - max(now, reach)), k.name if k else ""
            s = Phase(name, name, int(k is not None), then - now, idle, held)
            if found and found[-1].stalled_on == held:
                b = found.pop()
                s = Phase(b.first, name, b.kernels + s.kernels, b.seconds + s.seconds, b.idle_seconds + idle, held)
            found.append(s)
            now = then
        return tuple(found)

    @property
    def launch_bound(self) -> tuple[Phase, ...]:
        """The phases in which the card waits for the host, those that cost most first."""
        return tuple(sorted((s for s in self.phases if s.stalled_on == "host"), key=lambda s: -s.idle_seconds))

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The times without any kernel, the longest first."""
        found: list[Gap] = []
        reach, last = 0.0, ""
        for k in sorted(self.kernels, key=lambda k: k.start_seconds):
            if k.start_seconds > reach:
                found.append(Gap(last, k.name, k.start_seconds - reach, k.stalled_on))
            if (end := k.start_seconds + k.seconds) >= reach:
                reach, last = end, k.name
        if self.seconds > reach and self.run.method.scheduled:
            found.append(Gap(last, "", self.seconds - reach, "host"))
        return tuple(sorted(found, key=lambda gap: -gap.seconds))


def summarise(run: Run, j: int = 0) -> Prediction:
    """The prediction of a run for device j."""
    e, timeline, total = run.estimates, run.timeline, float(run.timeline.total_s[j])
    rows = _kernels(run, j)
    busy = min(_busy(rows), total)
    low, high = _interval(run, j, total, busy)
    bound = float(timeline.lower_bound_s[j])
    works = [(k.repeat, k.work) for k in run.kernels.rows]
    matrix, vector = sum(n * w.matrix_flops for n, w in works), sum(n * w.vector_flops for n, w in works)
    read, written = sum(k.bytes_read for k in rows), sum(k.bytes_written for k in rows)
    return Prediction(
        scenario=run.scenario_on(j), seconds=total, low_seconds=max(low, bound), high_seconds=high, interval=COVERAGE,
        scope=_scope(run, j), sum_seconds=float(e.seconds[:, j].sum()),
        critical_path_seconds=float(timeline.critical_path_s[j]), lower_bound_seconds=bound,
        throughput_per_second=run.graph.batch / total, shares=_shares(rows, busy, total),
        totals=(
            ("matrix_flops", matrix), ("vector_flops", vector), ("flops", matrix + vector),
            ("bytes_read", read), ("bytes_written", written),
        ),
        memory=run.memory(j), kernels=rows, warnings=notes(run, j), power_factor=float(e.power_factor[j]),
        run=run, column=j,
    )  # fmt: skip


def _kernels(run: Run, j: int) -> tuple[KernelPrediction, ...]:
    """Every kernel of device j."""
    e, timeline, rows = run.estimates, run.timeline, run.kernels.rows
    seconds, width = e.seconds[:, j], e.half_width[:, j]
    low, high = np.maximum(seconds * np.exp(-width), e.floor_s[:, j]), seconds * np.exp(width)
    columns = (
        seconds, low, high, e.bound[:, j], e.transfer, e.source[:, j], e.variant[:, j],
        timeline.start_s[:, j], timeline.streams[:, j], timeline.stalled_on[:, j],
    )  # fmt: skip
    return tuple(
        KernelPrediction(
            name=k.name, nodes=k.nodes, op=k.op, seconds=s, low_seconds=least, high_seconds=most,
            flops=k.repeat * k.work.flops, bytes_read=k.repeat * k.work.bytes_read,
            bytes_written=k.repeat * k.work.bytes_written, bound_by="transfer" if transfer else BOUNDS[bound],
            source=source, start_seconds=start, stream=stream, work=k.work,
            after=tuple(rows[i].name for i in k.after), variant=variant, stalled_on=STALLS[stall], repeat=k.repeat,
        )
        for k, s, least, most, bound, transfer, source, variant, start, stream, stall in zip(
            rows, *(c.tolist() for c in columns), strict=True
        )
    )  # fmt: skip


def _interval(run: Run, j: int, total: float, busy: float) -> tuple[float, float]:
    """The range of a run.

    The time `busy` with kernels errs as their sum does; the rest, the host's, errs on its own, as its pace does where
    that is assumed; and so does the run as a whole, for what neither knows (clocks, versions). Where measured runs err
    less than their kernels' ranges say, these are scaled by `share`. Of methods with an error class of their own none
    of this is known: their ranges are the kernels'.
    """
    half_width, known = float(run.estimates.run_half_width[j]), run.constants.interval
    if not run.method.error_class:
        kind = next(k for k in (run.kind(j), run.scenario.runtime, "other") if k in known["run"])
        idle = (total - busy) * float(np.hypot(known["host"], run.cpu.half_width))
        inside = known["share"].get(kind, 1.0) * np.hypot(busy * half_width, idle) / total
        half_width = float(np.hypot(inside, known["run"][kind]))
    return total * float(np.exp(-half_width)), total * float(np.exp(half_width))


def _busy(rows: tuple[KernelPrediction, ...]) -> float:
    """Seconds in which any kernel runs."""
    busy = reach = 0.0
    for k in sorted(rows, key=lambda k: k.start_seconds):
        end = k.start_seconds + k.seconds
        busy += max(0.0, end - max(k.start_seconds, reach))
        reach = max(reach, end)
    return busy


def _shares(rows: tuple[KernelPrediction, ...], busy: float, total: float) -> tuple[tuple[str, float], ...]:
    """What bounds the run: each kernel's time to its own bound, time without a kernel to launch.

    Where streams overlap, the kernels' parts are scaled to the time in which any of them ran.
    """
    parts = dict.fromkeys(BOUND_BY, 0.0)
    for k in rows:
        parts[k.bound_by] += k.seconds
    together = sum(parts.values())
    shares = {name: part * (busy / together if together else 0.0) / total for name, part in parts.items()}
    shares["launch"] += max(0.0, 1 - sum(shares.values()))
    return tuple(shares.items())


def _scope(run: Run, j: int) -> str:
    """What is inside the time, and what is not."""
    s, under = run.scenario, run.runtime.describe
    copies = "inputs and outputs stay on the device"
    if s.include_transfers:
        copies = f"with copies of inputs and outputs, {'pageable' if s.pageable else 'pinned'} memory"
    if not run.method.scheduled:
        power = "" if run.method.power_limit else "no power budget, "
        left_out = f"no launch gaps, no host time, {power}no streams and no CUDA graph"
        return f"the sum of all kernels by the {s.method} method; {left_out}; {copies}"
    if PLATFORMS[run.devices[j].kind].launches:
        launch = "one replay of a CUDA graph" if s.cuda_graph else "kernels, launch gaps and host dispatch of one run"
        host = f"launched by {run.cpu.describe} ({'assumed' if run.cpu.source == 'assumed' else 'measured'})"
        terms = f"{' in FP16 autocast' * (s.precision == AMP)}{f' with images as {s.layout}' if s.layout else ''}"
        inside = f"{launch} under {under.split(',')[0]}{terms}, {host}; {copies}"
    else:
        inside = f"one run of an undisturbed core under {under}, with what the runtime spends on each operator"
    return f"steady state, {inside}; session start and warm-up excluded"

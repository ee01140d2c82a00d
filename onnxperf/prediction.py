"""`Prediction`: the answer, frozen; every report is drawn from it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxperf.graph import Graph, Note
from onnxperf.latency import KINDS, Estimates, shipped
from onnxperf.latency.intervals import COVERAGE
from onnxperf.lower import Kernels
from onnxperf.memory import Memory
from onnxperf.schedule import HELD_BY, Timeline

if TYPE_CHECKING:
    import networkx

SCHEMA_VERSION = 1
BOUND_BY = ("compute", "memory", "latency", "launch", "transfer", "communication")


@dataclass(frozen=True, slots=True)
class Scenario:
    """What was asked: a model on a card under a runtime. `gpu` is the card's id, `inputs` the bound shapes.

    host: the processor that launches kernels, of HOSTS; power_limit_W, clock_Hz: None leaves the card's own; pageable:
    inputs and outputs lie in memory that is not pinned; ort_transformers: onnxruntime.transformers fuses first.
    """

    model: str
    gpu: str
    runtime: str = "ort-cuda"
    opt_level: str = "all"
    precision: str = "keep"
    method: str = "tile-wave"
    batch: int = 1
    streams: int = 1
    cuda_graph: bool = False
    include_transfers: bool = False
    pageable: bool = False
    ort_transformers: bool = False
    host: str = "server"
    power_limit_W: float | None = None
    clock_Hz: float | None = None
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    trip_counts: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class KernelPrediction:
    """One kernel of the answer. Times in seconds.

    Beside what the JSON holds: `after`, the names of the kernels it waits for; `choice`, the tile or algorithm;
    `held_by`, what its start waited for last (stream, host or copies); `repeat`, how often it runs: times, FLOPs and
    bytes are those of all repeats together.
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
    after: tuple[str, ...] = ()
    choice: str = ""
    held_by: str = "stream"
    repeat: int = 1

    def to_dict(self) -> dict[str, Any]:
        """The kernel as it stands in the JSON."""
        return {
            k: list(v) if isinstance(v, tuple) else v
            for k, v in asdict(self).items()
            if k not in ("after", "choice", "held_by", "repeat")
        }


@dataclass(frozen=True, slots=True)
class Stretch:
    """Kernels in a row after which the same thing sets the pace: how long that took, and how long the card idled.

    An empty `first` is the start of the run.
    """

    first: str
    last: str
    kernels: int
    seconds: float
    idle_seconds: float
    held_by: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Time without any kernel, between the ends of two; an empty name stands for the start or the end of the run."""

    before: str
    after: str
    seconds: float
    held_by: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long one run of a model takes on a card, how sure that is, and what it is spent on.

    seconds: steady-state median of one run in `scope`; low_seconds, high_seconds: a range that holds `interval` of
    measurements; sum_seconds: all kernels added; critical_path_seconds: the longest path with unlimited streams;
    lower_bound_seconds: that path at physical peak; shares: `bound_by` as pairs; totals: `work` as pairs;
    power_factor: what the card's power limit multiplied kernels by.
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
    power_factor: float = field(default=1.0)

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
        s, m = self.scenario, self.memory
        return {
            "schema_version": SCHEMA_VERSION,
            "model": s.model,
            "gpu": s.gpu,
            "runtime": s.runtime,
            "precision": s.precision,
            "method": s.method,
            "latency": {
                "seconds": self.seconds,
                "low_seconds": self.low_seconds,
                "high_seconds": self.high_seconds,
                "interval": self.interval,
                "scope": self.scope,
            },
            "sum_seconds": self.sum_seconds,
            "critical_path_seconds": self.critical_path_seconds,
            "lower_bound_seconds": self.lower_bound_seconds,
            "throughput_per_second": self.throughput_per_second,
            "bound_by": self.bound_by,
            "work": self.work,
            "memory": {
                "weights_bytes": m.weights_bytes,
                "activations_bytes": m.activations_bytes,
                "workspace_bytes": m.workspace_bytes,
                "total_bytes": m.total_bytes,
                "capacity_bytes": m.capacity_bytes,
                "fits": m.fits,
            },
            "kernels": [k.to_dict() for k in self.kernels],
            "warnings": [{"code": w.code, "message": w.message, "nodes": list(w.nodes)} for w in self.warnings],
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
    def stretches(self) -> tuple[Stretch, ...]:
        """The run as stretches with one bottleneck each, in order: the host, the stream, or copies.

        From one kernel's start to the next one's, the pace is set by what held that next one back; before the first
        it is the host, behind the last start the stream.
        """
        found: list[Stretch] = []
        ordered = sorted(self.kernels, key=lambda k: k.start_seconds)
        reach = now = 0.0
        for k, behind in zip((None, *ordered), (*ordered, None), strict=True):
            if k is not None:
                reach = max(reach, k.start_seconds + k.seconds)
            then = behind.start_seconds if behind else self.seconds
            held = behind.held_by if behind else "stream" if ordered else "host"
            idle, name = max(0.0, then - max(now, reach)), k.name if k else ""
            s = Stretch(name, name, int(k is not None), then - now, idle, held)
            if found and found[-1].held_by == held:
                b = found.pop()
                s = Stretch(b.first, name, b.kernels + s.kernels, b.seconds + s.seconds, b.idle_seconds + idle, held)
            found.append(s)
            now = then
        return tuple(found)

    @property
    def launch_bound(self) -> tuple[Stretch, ...]:
        """The stretches in which the card waits for the host, those that cost most first."""
        return tuple(sorted((s for s in self.stretches if s.held_by == "host"), key=lambda s: -s.idle_seconds))

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The times without any kernel, the longest first."""
        found: list[Gap] = []
        reach, last = 0.0, ""
        for k in sorted(self.kernels, key=lambda k: k.start_seconds):
            if k.start_seconds > reach:
                found.append(Gap(last, k.name, k.start_seconds - reach, k.held_by))
            if (end := k.start_seconds + k.seconds) >= reach:
                reach, last = end, k.name
        if self.seconds > reach and self.scenario.method == "tile-wave":
            found.append(Gap(last, "", self.seconds - reach, "host"))
        return tuple(sorted(found, key=lambda gap: -gap.seconds))


def conclude(
    scenario: Scenario, graph: Graph, kernels: Kernels, estimates: Estimates, timeline: Timeline, memory: Memory,
    notes: tuple[Note, ...], scope: str,
) -> Prediction:  # fmt: skip
    """Put the answer for the first device together."""
    seconds, total = estimates.seconds[:, 0], float(timeline.total_s[0])
    width = estimates.half_width[:, 0]
    rows = tuple(
        KernelPrediction(
            name=k.name,
            nodes=k.nodes,
            op=k.op,
            seconds=float(seconds[i]),
            low_seconds=max(float(seconds[i] * np.exp(-width[i])), float(estimates.floor_s[i, 0])),
            high_seconds=float(seconds[i] * np.exp(width[i])),
            flops=k.repeat * k.work.flops,
            bytes_read=k.repeat * k.work.bytes_read,
            bytes_written=k.repeat * k.work.bytes_written,
            bound_by="transfer" if estimates.transfer[i] else KINDS[estimates.kind[i, 0]],
            source=estimates.source[i],
            start_seconds=float(timeline.start_s[i, 0]),
            stream=str(timeline.streams[i, 0]),
            after=tuple(kernels.rows[j].name for j in k.after),
            choice=str(estimates.choice[i, 0]),
            held_by=HELD_BY[timeline.held[i, 0]],
            repeat=k.repeat,
        )
        for i, k in enumerate(kernels.rows)
    )
    busy = min(_busy(rows), total)
    low, high = _interval(total, busy, float(estimates.run_half_width[0]), scenario.runtime)
    works = [(k.repeat, k.work) for k in kernels.rows]
    matrix, vector = sum(n * w.matrix_flops for n, w in works), sum(n * w.vector_flops for n, w in works)
    return Prediction(
        scenario=scenario,
        seconds=total,
        low_seconds=max(low, float(timeline.lower_bound_s[0])),
        high_seconds=high,
        interval=COVERAGE,
        scope=scope,
        sum_seconds=float(seconds.sum()),
        critical_path_seconds=float(timeline.critical_path_s[0]),
        lower_bound_seconds=float(timeline.lower_bound_s[0]),
        throughput_per_second=graph.batch / total,
        shares=_shares(rows, busy, total),
        totals=(
            ("matrix_flops", matrix),
            ("vector_flops", vector),
            ("flops", matrix + vector),
            ("bytes_read", sum(n * w.bytes_read for n, w in works)),
            ("bytes_written", sum(n * w.bytes_written for n, w in works)),
        ),
        memory=memory,
        kernels=rows,
        warnings=notes,
        power_factor=float(estimates.factor[0]),
    )


def _interval(total: float, busy: float, half_width: float, runtime: str) -> tuple[float, float]:
    """The range of a run: of the time `busy` with kernels as their sum's; the rest, the host's, errs on its own; and so
    does the run, for what neither knows (clocks, versions).
    """
    beside = shipped().interval["run"]
    idle = (total - busy) * shipped().interval["host"]
    width = float(np.hypot(np.hypot(busy * half_width, idle) / total, beside.get(runtime, beside["other"])))
    return total * float(np.exp(-width)), total * float(np.exp(width))


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

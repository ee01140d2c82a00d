"""`Prediction`: the answer, frozen; every report is drawn from it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onnxperf.graph import Note
from onnxperf.memory import Memory
from onnxperf.run import Run
from onnxperf.scenario import Scenario
from op_models import Work

if TYPE_CHECKING:
    import networkx

SCHEMA_VERSION = 1
BOUND_BY = ("compute", "memory", "latency", "launch", "transfer", "communication")


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
        return {name: getattr(self, name) for name in JSON_FIELDS} | {"nodes": list(self.nodes)}


#: What of a kernel the JSON holds.
JSON_FIELDS = (
    "name", "nodes", "op", "seconds", "low_seconds", "high_seconds", "flops", "bytes_read", "bytes_written", "bound_by",
    "source", "start_seconds", "stream",
)  # fmt: skip


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
            **({"ort_version": s.ort_version} if s.ort_version else {}),
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

"""`Prediction`: the answer, frozen; the summary of a `Run` on one of its devices, from which every view is drawn."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpu_specs import Device
from onnxperf.answer.accuracy import Accuracy, accuracy
from onnxperf.answer.cpu_operators import CpuOperator, on_cpu
from onnxperf.answer.kernel_timeline import (
    OF_A_KERNEL,
    Gap,
    KernelPrediction,
    Phase,
    gaps,
    kernels,
    part_of,
    phases,
)  # fmt: skip
from onnxperf.answer.notes import notes, scope
from onnxperf.answer.outline import outline
from onnxperf.answer.several_gpus import parallel
from onnxperf.graph import Note
from onnxperf.ground.codec import Document, data_frame, plain
from onnxperf.ground.door import DOOR
from onnxperf.ground.errors import UsageError
from onnxperf.ground.output import write_file, written
from onnxperf.ground.tables import duration
from onnxperf.ground.version import VERSION
from onnxperf.latency.intervals import COVERAGE
from onnxperf.passes.tape import PHASES
from onnxperf.running.memory import Memory
from onnxperf.running.run import Run
from onnxperf.running.scenario import Scenario, training_of, usual_host

if TYPE_CHECKING:
    import networkx
    import pandas
    from onnx import ModelProto

    from onnxperf.answer.first_run import FirstRun
    from onnxperf.answer.trtexec import TrtexecSummary

Path = str | os.PathLike[str]
SCHEMA_VERSION = 1
BOUND_BY = ("compute", "memory", "latency", "launch", "cpu", "transfer", "communication")


@dataclass(frozen=True, slots=True)
class Prediction(Document):
    """How long one run of a model takes on a card, how sure that is, and what it is spent on.

    seconds: steady-state median of one run in `scope`; low_seconds, high_seconds: a range that holds `interval` of
    measurements; sum_seconds: all kernels added; critical_path_seconds: the longest path with unlimited streams;
    lower_bound_seconds: that path at physical peak, or all bytes and FLOPs at the card's rates if that takes longer;
    shares: `bound_by` as pairs; totals: `work` as pairs;
    power_factor: what the card's power limit multiplied kernels by; watts: what the card draws on average, None for a
    processor. run: every stage behind the answer, of which this
    is device number `column`. first_run: what comes before the steady state, None where that was not asked for.
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
    cpu_operators: tuple[CpuOperator, ...]
    warnings: tuple[Note, ...]
    power_factor: float
    watts: float | None
    run: Run = field(repr=False, compare=False)
    column: int = field(repr=False, compare=False)
    first_run: FirstRun | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        s, times = self.scenario, (self.low_seconds, self.high_seconds)
        low, high = map(duration, times)
        return (
            f"<{s.model} on {s.gpu} under {s.runtime}: {duration(self.seconds)}, {self.interval:.0%} {low} to {high}>"
        )

    @property
    def device(self) -> Device:
        """The card or processor that it is for, as it is set."""
        return self.run.devices[self.column]

    @property
    def accuracy(self) -> Accuracy:
        """Whether runs like it were measured: on this card, in this precision, under this release."""
        return accuracy(self.run, self.column)

    @property
    def bound_by(self) -> dict[str, float]:
        """What bounds the run: shares of `seconds` that add to 1."""
        return dict(self.shares)

    @property
    def work(self) -> dict[str, int]:
        """Bytes of all kernels together, and FLOPs of these and of what the CPU computes."""
        return dict(self.totals)

    @property
    def joules(self) -> float | None:
        """What the card spends on one run; None for a processor."""
        return None if self.watts is None else self.watts * self.seconds

    @property
    def joules_per_sample(self) -> float | None:
        """The same for each sample of the batch; None where that is empty."""
        spent = None if self.joules is None else self.joules * self.run.plan.gpus
        return spent / self.scenario.samples if spent is not None and self.scenario.batch else None

    @property
    def training(self) -> dict[str, Any] | None:
        """Of a training step: its loss, optimiser and recomputing, seconds of its parts, which add to `seconds`, and
        bytes of gradients and of what the optimiser keeps; None in inference.
        """
        step, run = training_of(self.scenario), self.run
        if step is None:
            return None
        from onnxperf.passes.training import kept_by_training

        parts = dict.fromkeys(PHASES, 0.0)
        end = self.seconds
        for phase in reversed(PHASES[1:]):
            start = min((k.start_seconds for k, row in zip(self.kernels, run.kernels.rows, strict=True)
                         if row.phase == phase), default=end)  # fmt: skip
            parts[phase], end = end - start, start
        parts[PHASES[0]] = end
        return {
            "loss": step.loss or None, "optimizer": step.optimizer, "recompute": step.recompute,
            "accumulate": step.accumulate,
            **{f"{phase}_seconds": seconds for phase, seconds in parts.items()},
            **kept_by_training(run.typed_graph, run.run_graph),
        }  # fmt: skip

    @property
    def parallel(self) -> dict[str, Any] | None:
        """Of several GPUs: their plan, what joins them, how long they exchange data, stages; None for one."""
        return parallel(self.run, self.column)

    @property
    def trtexec(self) -> TrtexecSummary | None:
        """What trtexec's performance summary would say, with pinned copies whether they were asked for or not; None
        where TensorRT does not run the whole on one GPU.
        """
        if self.scenario.runtime != "tensorrt":  # the most common runs read no module for this
            return None
        from onnxperf.answer.trtexec import trtexec_summary

        return trtexec_summary(self.run, self.column)

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain data, as `prediction.schema.json` describes it."""
        s = self.scenario
        paths = ("critical_path_seconds", "lower_bound_seconds")
        of_memory = ("weights_bytes", "activations_bytes", "workspace_bytes", "total_bytes", "capacity_bytes", "fits")
        held = {"process_bytes": self.memory.reserved_bytes, **plain(self.memory, "context_bytes", "host_bytes")}
        return {
            "schema_version": SCHEMA_VERSION,
            "onnxperf_version": VERSION,
            **plain(s, "model", "gpu", "runtime", *(["ort_version"] if s.ort_version else []), "precision"),
            **plain(s, *(["layout"] if s.layout else []), *(["power_mode"] if s.power_mode else [])),
            "method": self.run.method.name,
            **plain(s, "batch", "streams", "cuda_graph"),
            "inputs": [{"name": name, "shape": list(shape)} for name, shape in s.inputs],
            "device_name": self.device.name,
            **({"device_file": self.device.file} if self.device.file else {}),
            "host": s.host or usual_host(self.device),
            "latency": plain(self, "seconds", "low_seconds", "high_seconds", "interval", "scope"),
            **plain(self, "accuracy"),
            **plain(self, "sum_seconds", *paths, "throughput_per_second", "bound_by", "work"),
            "memory": plain(self.memory, *of_memory) | held,
            "energy": None if self.watts is None else plain(self, "watts", "joules", "joules_per_sample"),
            **({} if self.training is None else {"training": self.training}),
            **({} if self.parallel is None else {"parallel": self.parallel}),
            **({} if self.trtexec is None else plain(self, "trtexec")),
            **({} if self.first_run is None else plain(self, "first_run")),
            "gaps": [plain(gap, "before", "after", "seconds", "stalled_on") for gap in self._gaps()],
            **plain(self, "kernels", "cpu_operators"),
            "warnings": [plain(w, "code", "message", "nodes") for w in self.warnings],
        }

    def __str__(self) -> str:
        return self.report().rstrip("\n")

    def report(self, *, detail: bool = False) -> str:
        """What `onnxperf predict` prints, with `detail` what `--detail` adds; without colours."""
        drawn: str = DOOR["report"](self, detail=detail)
        return drawn

    def to_trace(self, path: Path | None = None) -> str:
        """A timeline for ui.perfetto.dev, JSON with the fields of ONNX Runtime's profiles; with a path also written
        there, as `--trace` does. This and what follows raise UsageError or EnvironmentFailure where a file can't be
        written.
        """
        return written(DOOR["trace"](self), path)

    def to_netron(self, path: Path | None = None) -> str:
        """What each node costs, JSON that Netron opens beside the model; with a path also written there."""
        return written(DOOR["netron"](self), path)

    def to_model_explorer(
        self, model: str | os.PathLike[str] | bytes | ModelProto, value: str = "time", path: Path | None = None
    ) -> str:
        """What each node of the predicted model costs, JSON that Google's Model Explorer opens as custom node data;
        with a path also written there. value: time, flops, bytes or bound_by: such data have one for each node.
        """
        return written(DOOR["model_explorer"](self, model, value), path)

    def annotated(self, model: str | os.PathLike[str] | bytes | ModelProto) -> bytes:
        """What `--netron FILE.onnx` writes: a copy of the predicted model with each node's cost in its metadata.

        Raises UsageError or ModelError where the model can't be read.
        """
        drawn: bytes = DOOR["annotated"](self, model)
        return drawn

    def to_layer_profile(self, path: Path | None = None) -> str:
        """JSON as by trtexec's --exportProfile; with a path also written there, as `--profile` does."""
        return written(DOOR["layer_profile"](self), path)

    def plot(self, to: Path = "svg") -> bytes:
        """The roofline as an image: svg, png, or the path of a file with one of these endings, which is written as
        `--plot` does. Raises EnvironmentFailure without matplotlib.
        """
        target = os.fspath(to)
        stem, dot, format = target.rpartition(".")
        drawn: bytes = DOOR["plot"](self, format)
        if stem or dot:
            write_file(target, drawn)
        return drawn

    def _repr_html_(self) -> str:
        """What a notebook shows: a small table."""
        drawn: str = DOOR["notebook"](self)
        return drawn

    def to_html(self, at_batch: Callable[[int], Prediction] | None = None, path: Path | None = None) -> str:
        """A page that explains the prediction; with a path also written there, as `--html` does. `onnxperf.html` says
        what `at_batch` is.
        """
        return written(DOOR["html"](self, at_batch), path)

    def by_operator(self) -> dict[str, float]:
        """Seconds of kernels by operator type, the largest first; times without any kernel are in `gaps`."""
        totals: dict[str, float] = {}
        for k in self.kernels:
            totals[k.op] = totals.get(k.op, 0.0) + k.seconds
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def by_module(self, depth: int = 2) -> dict[str, float]:
        """Seconds of kernels by the module that they were exported from, the largest first.

        depth: how many names of a module's path count, 2 for layer1.0. Kernels of no module stand under "", which are
        all where the exporter wrote no paths of modules into the file; a fused kernel counts for the module of its
        first node. Raises UsageError where depth is below 1.
        """
        if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
            raise UsageError(f"depth must be a whole number of at least 1, not {depth!r}")
        totals: dict[str, float] = {}
        for k in self.kernels:
            name = part_of(k.module, depth)
            totals[name] = totals.get(name, 0.0) + k.seconds
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def to_dataframe(self) -> pandas.DataFrame:
        """The kernels as a pandas DataFrame, a row each, with the columns of the JSON. Raises EnvironmentFailure where
        pandas is not installed.
        """
        return data_frame([k.to_dict() for k in self.kernels], OF_A_KERNEL)

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
        """The run as phases with one bottleneck each, in order: the host, the stream, or copies."""
        return phases(self.kernels, self.seconds)

    @property
    def launch_bound(self) -> tuple[Phase, ...]:
        """The phases in which the card waits for the host, those that cost most first."""
        return tuple(sorted((s for s in self.phases if s.stalled_on == "host"), key=lambda s: -s.idle_seconds))

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The times without any kernel, the longest first."""
        return tuple(sorted(self._gaps(), key=lambda gap: -gap.seconds))

    def _gaps(self) -> tuple[Gap, ...]:
        until = float(self.run.one_timeline.total_s[self.column])  # of one microbatch
        return gaps(self.kernels, until if self.run.method.scheduled else 0.0)


def summarise(run: Run, j: int = 0, before: bool = False) -> Prediction:
    """The prediction of a run for device j; `before` says whether with what comes before the steady state."""
    e, timeline, outlined = run.estimates, run.timeline, outline(run, j)
    rows, total, cpu_operators = kernels(run, j), outlined.seconds, on_cpu(run, j)
    works = [(k.repeat, k.work) for k in run.kernels.all_work if k.work is not None]
    matrix, vector = sum(n * w.matrix_flops for n, w in works), sum(n * w.vector_flops for n, w in works)
    read, written = sum(k.bytes_read for k in rows), sum(k.bytes_written for k in rows)
    return Prediction(
        scenario=outlined.scenario, seconds=total, low_seconds=outlined.low_seconds, high_seconds=outlined.high_seconds,
        interval=COVERAGE, scope=scope(run, j), sum_seconds=float(run.seconds[:, j].sum()),
        critical_path_seconds=float(timeline.critical_path_s[j]), lower_bound_seconds=float(timeline.lower_bound_s[j]),
        throughput_per_second=outlined.scenario.samples / total,
        shares=_shares(rows, outlined.busy_seconds, total, sum(o.seconds for o in cpu_operators),
                       outlined.exposed_seconds),
        totals=(
            ("matrix_flops", matrix), ("vector_flops", vector), ("flops", matrix + vector),
            ("bytes_read", read), ("bytes_written", written),
        ),
        memory=outlined.memory, kernels=rows, cpu_operators=cpu_operators, warnings=notes(run, j),
        power_factor=float(e.power_factor[j]), watts=outlined.watts, run=run, column=j,
        first_run=_before(run, j) if before else None,
    )  # fmt: skip


def _before(run: Run, j: int) -> FirstRun:
    """What comes before the steady state, which few ask for."""
    from onnxperf.answer.first_run import first_run

    return first_run(run, j)


def _shares(
    rows: tuple[KernelPrediction, ...], busy: float, total: float, on_cpu_s: float = 0.0, exposed: float = 0.0
) -> tuple[tuple[str, float], ...]:
    """What bounds the run: each kernel's time to its own bound, time without a kernel to the operators that the CPU
    computes, for `on_cpu_s` seconds, and what is left to launch.

    Where streams overlap, the kernels' parts are scaled to the time in which any of them ran. Exchanges between GPUs
    count for the time `exposed` in which nothing else ran.
    """
    parts = dict.fromkeys(BOUND_BY, 0.0)
    for k in rows:
        parts[k.bound_by] += k.seconds
    parts["communication"] = 0.0
    together = sum(parts.values())
    shares = {name: part * ((busy - exposed) / together if together else 0.0) / total for name, part in parts.items()}
    shares["communication"] = exposed / total
    idle = max(0.0, 1 - sum(shares.values()))
    shares["cpu"] = min(idle, on_cpu_s / total)
    shares["launch"] += idle - shares["cpu"]
    return tuple(shares.items())

"""From a `Run` to the `Prediction` of one of its devices."""

from __future__ import annotations

import numpy as np

from onnxperf.latency import BOUNDS
from onnxperf.latency.intervals import COVERAGE
from onnxperf.notes import notes
from onnxperf.prediction import BOUND_BY, KernelPrediction, Prediction
from onnxperf.run import Run
from onnxperf.runtimes import HOSTS
from onnxperf.scenario import PLATFORMS
from onnxperf.schedule import STALLS


def summarise(run: Run, j: int = 0) -> Prediction:
    """The prediction of a run for device j."""
    e, timeline, total = run.estimates, run.timeline, float(run.timeline.total_s[j])
    rows = _kernels(run, j)
    busy = min(_busy(rows), total)
    low, high = _interval(run, j, total, busy)
    bound = float(timeline.lower_bound_s[j])
    works = [(k.repeat, k.work) for k in run.kernels.rows]
    matrix, vector = sum(n * w.matrix_flops for n, w in works), sum(n * w.vector_flops for n, w in works)
    return Prediction(
        scenario=run.scenario_on(j),
        seconds=total,
        low_seconds=max(low, bound),
        high_seconds=high,
        interval=COVERAGE,
        scope=_scope(run, j),
        sum_seconds=float(e.seconds[:, j].sum()),
        critical_path_seconds=float(timeline.critical_path_s[j]),
        lower_bound_seconds=bound,
        throughput_per_second=run.graph.batch / total,
        shares=_shares(rows, busy, total),
        totals=(
            ("matrix_flops", matrix),
            ("vector_flops", vector),
            ("flops", matrix + vector),
            ("bytes_read", sum(n * w.bytes_read for n, w in works)),
            ("bytes_written", sum(n * w.bytes_written for n, w in works)),
        ),
        memory=run.memory(j),
        kernels=rows,
        warnings=notes(run, j),
        power_factor=float(e.power_factor[j]),
        run=run,
        column=j,
    )


def _kernels(run: Run, j: int) -> tuple[KernelPrediction, ...]:
    """Every kernel of device j."""
    e, timeline, rows = run.estimates, run.timeline, run.kernels.rows
    seconds, width = e.seconds[:, j], e.half_width[:, j]
    low, high = np.maximum(seconds * np.exp(-width), e.floor_s[:, j]), seconds * np.exp(width)
    columns = (
        e.source[:, j], seconds, low, high, e.bound[:, j], e.transfer, e.variant[:, j],
        timeline.start_s[:, j], timeline.streams[:, j], timeline.stalled_on[:, j],
    )  # fmt: skip
    return tuple(
        KernelPrediction(
            name=k.name,
            nodes=k.nodes,
            op=k.op,
            seconds=s,
            low_seconds=least,
            high_seconds=most,
            flops=k.repeat * k.work.flops,
            bytes_read=k.repeat * k.work.bytes_read,
            bytes_written=k.repeat * k.work.bytes_written,
            bound_by="transfer" if transfer else BOUNDS[bound],
            source=source,
            start_seconds=start,
            stream=stream,
            work=k.work,
            after=tuple(rows[i].name for i in k.after),
            variant=variant,
            stalled_on=STALLS[stall],
            repeat=k.repeat,
        )
        for k, source, s, least, most, bound, transfer, variant, start, stream, stall in zip(
            rows, *(c.tolist() for c in columns), strict=True
        )
    )


def _interval(run: Run, j: int, total: float, busy: float) -> tuple[float, float]:
    """The range of a run.

    The time `busy` with kernels errs as their sum does; the rest, the host's, errs on its own; and so does the run as a
    whole, for what neither knows (clocks, versions). Of methods with an error class of their own the last two are not
    known: their ranges are the kernels'.
    """
    half_width, known = float(run.estimates.run_half_width[j]), run.constants.interval
    if not run.method.error_class:
        beside = known["run"].get(run.runtime.name, known["run"]["other"])
        idle = (total - busy) * known["host"]
        half_width = float(np.hypot(np.hypot(busy * half_width, idle) / total, beside))
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
    s, runtime = run.scenario, run.runtime
    if not PLATFORMS[run.devices[j].kind].launches:
        under = f"one run of an undisturbed core under {runtime.describe}"
        return (
            f"steady state, {under}, with what the runtime spends on each operator; session start and warm-up excluded"
        )
    memory = "pageable" if s.pageable else "pinned"
    copies = "inputs and outputs stay on the device"
    if s.include_transfers:
        copies = f"with copies of inputs and outputs, {memory} memory"
    if not run.method.scheduled:
        left_out = "no launch gaps, no host time, no power budget, no streams and no CUDA graph"
        return f"the sum of all kernels by the {s.method} method; {left_out}; {copies}"
    launch = "one replay of a CUDA graph" if s.cuda_graph else "kernels, launch gaps and host dispatch of one run"
    under = runtime.describe.split(",")[0]
    host = f"launched by {HOSTS[s.host].describe} (assumed)"
    return f"steady state, {launch} under {under}, {host}; {copies}; session start and warm-up excluded"

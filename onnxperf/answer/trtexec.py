"""A prediction as trtexec's performance summary, so that the two can lie side by side.

The names and what they mean are those of TensorRT's samples/common/sampleReporting.cpp and sampleInference.cpp, and of
https://docs.nvidia.com/deeplearning/tensorrt/latest/reference/command-line-programs.html. trtexec copies inputs and
outputs from and to pinned memory on streams of their own, and enqueues each query while the one before it runs: copies
and the host's work overlap with other queries, in Throughput, but not in Latency.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onnxperf.ground.codec import Document, plain
from onnxperf.lowering.lower import TO_DEVICE, TO_HOST
from onnxperf.running.run import Run


@dataclass(frozen=True, slots=True)
class TrtexecSummary(Document):
    """Seconds of a query, which is one run of the whole batch.

    enqueue_seconds: the host's, to enqueue the kernels without the copies; gpu_compute_seconds: from the first kernel's
    start to the last one's end, with the gaps between them; h2d_seconds, d2h_seconds: the copies of all inputs, and of
    all outputs.
    """

    enqueue_seconds: float
    h2d_seconds: float
    gpu_compute_seconds: float
    d2h_seconds: float

    @property
    def latency_seconds(self) -> float:
        """H2D Latency + GPU Compute Time + D2H Latency."""
        return self.h2d_seconds + self.gpu_compute_seconds + self.d2h_seconds

    @property
    def throughput_qps(self) -> float:
        """Queries a second: what takes longest of each sets the pace, for all else overlaps with other queries."""
        each = (self.enqueue_seconds, self.h2d_seconds, self.gpu_compute_seconds, self.d2h_seconds)
        return 1 / max(*each, 1e-12)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Names and figures in trtexec's order and units."""
        yield "Throughput", f"{self.throughput_qps:.6g} qps"
        names = ("Latency", "Enqueue Time", "H2D Latency", "GPU Compute Time", "D2H Latency")
        keys = ("latency", "enqueue", "h2d", "gpu_compute", "d2h")
        for name, key in zip(names, keys, strict=True):
            yield name, f"{getattr(self, f'{key}_seconds') * 1e3:.4g} ms"

    def to_dict(self) -> dict[str, float]:
        """The summary as plain data: seconds, and queries a second."""
        keys = ("latency", "enqueue", "h2d", "gpu_compute", "d2h")
        return plain(self, "throughput_qps", *(f"{key}_seconds" for key in keys))


def trtexec_summary(run: Run, j: int) -> TrtexecSummary | None:
    """What trtexec would report of a run of TensorRT on device j; None without a host or on several GPUs."""
    if run.plan.gpus > 1 or not run.method.scheduled:
        return None
    s = run.scenario
    copying = run.under(include_transfers=True, pageable=False)
    copies = {TO_DEVICE: 0.0, TO_HOST: 0.0}
    for k, seconds in zip(copying.kernels.rows, copying.seconds[:, j].tolist(), strict=True):
        if k.way:
            copies[k.way] += seconds
    computing = run.under(include_transfers=False, pageable=False)
    costs = computing.host_costs[j]
    launches, tail = computing.kernels.host_seconds(costs, computing.processors[j])
    timeline, seconds = computing.timeline, computing.seconds[:, j]
    start = timeline.start_s[:, j]
    enqueue = costs.replay_s if s.cuda_graph else costs.run_s + sum(launches) + tail
    span = float((start + seconds).max() - start.min()) if len(start) else 0.0
    if s.streams == 1 and not s.cuda_graph:  # the host is ahead by a query, unless it is the slower of the two
        repeats = sum(k.repeat for k in computing.kernels.rows)
        span = max(float(seconds.sum()) + costs.gap_s * max(repeats - 1, 0), enqueue)
    return TrtexecSummary(enqueue, copies[TO_DEVICE], span, copies[TO_HOST])

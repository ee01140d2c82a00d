"""What single runs of a generation are spent on: every kernel of a prefill and of a decode step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxperf.answer.kernel_timeline import KernelPrediction
from onnxperf.answer.prediction import BOUND_BY, Prediction, summarise
from onnxperf.ground.errors import counted
from onnxperf.language.engines import Engine
from onnxperf.language.served import changes
from onnxperf.language.steps import Steps

PREFILL = "prefill"


@dataclass(frozen=True, slots=True)
class Step:
    """A run by its name and in words: its prediction, with kernels as its engine runs them; what is left of `seconds`
    beside them is the host's, and gaps between them.
    """

    name: str
    title: str
    engine: Engine
    prediction: Prediction

    @property
    def own_host(self) -> bool:
        """Whether the engine's host takes time of its own, beside that of ONNX Runtime."""
        return self.engine.joined

    @property
    def rest(self) -> float:
        """Seconds without a kernel: of the host, and gaps."""
        return max(0.0, self.prediction.seconds - sum(k.seconds for k in self.prediction.kernels))


def step_of(steps: Steps, name: str, batch: int, new: int, past: int) -> Step:
    """A run of `new` tokens of each of `batch` samples after `past` ones, of all layers. Its time is that of
    `Steps.seconds`, which may be predicted from few layers.
    """
    engine, whole = steps.engine, steps.seconds(batch, new, past)
    p = summarise(steps.whole(batch, new, past))
    kernels, shares = p.kernels, p.shares
    if engine.joined:
        kernels = _as_run(p.kernels, changes(p.run, engine))
        shares = _shares(kernels, whole.seconds)
    p = replace(
        p, seconds=whole.seconds, low_seconds=whole.low_seconds, high_seconds=whole.high_seconds, kernels=kernels,
        shares=shares,
        throughput_per_second=batch * steps.groups / whole.seconds,
        scenario=replace(p.scenario, cuda_graph=p.scenario.cuda_graph and name != PREFILL),
    )  # fmt: skip
    tokens = counted(new, "token") + (f" after {past:,}" if past else "")
    each = f" of each of {steps.groups} groups" if steps.groups > 1 else ""
    return Step(name, f"{name}: {tokens}, batch {batch}{each}", engine, p)


def _shares(kernels: Sequence[KernelPrediction], seconds: float) -> tuple[tuple[str, float], ...]:
    """What bounds a step of so many seconds: each kernel's time to its own bound, and the rest to launch."""
    parts = dict.fromkeys(BOUND_BY, 0.0)
    for k in kernels:
        parts[k.bound_by] += k.seconds / seconds
    parts["launch"] += max(0.0, 1 - sum(parts.values()))
    return tuple(parts.items())


def _as_run(kernels: Sequence[KernelPrediction], changes: Sequence[float]) -> tuple[KernelPrediction, ...]:
    """Kernels that an engine changes by so many seconds each, and those behind them, which start earlier or later.
    What has gone into another kernel is left out.
    """
    moved, later = list[KernelPrediction](), 0.0
    for k, change in zip(kernels, changes, strict=True):
        scale = max(k.seconds + change, 0.0) / k.seconds if k.seconds else 1.0
        if scale:
            low, high = scale * k.low_seconds, scale * k.high_seconds
            start = k.start_seconds + later
            moved.append(replace(k, seconds=scale * k.seconds, low_seconds=low, high_seconds=high, start_seconds=start))
        later += change
    return tuple(moved)

"""Whether runs like a predicted one were measured, and how far predictions were from them.

`accuracy.json` lists what was measured: whole runs, or their kernels, of a runtime, in a range of its releases, of a
kind of run, in a precision, on a card, with the mean error and the page that has it. It is made of the datasets and
their pages by `python -m onnxperf.lab.validate.measured`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

import gpu_specs
from gpu_specs import Corrections, Device
from onnxperf.graph import Graph
from onnxperf.ground.codec import Document
from onnxperf.ground.names import QUANTISED
from onnxperf.ground.releases import Release, release, there
from onnxperf.lowering.runtime import Runtime
from onnxperf.running.run import Run
from onnxperf.running.scenario import Scenario

MEASURED, INFERRED, NOT_VALIDATED = "measured", "inferred", "not validated"
PAGE, OF_CALIBRATION = "onnxperf/lab/validate/accuracy.md", "onnxperf/calibrate/accuracy.md"
OF_GENERATION = "onnxperf/language/accuracy.md"
#: What was timed: whole runs, their kernels alone, servers with a constant number of requests, a prompt or one step.
RUNS, KERNELS, LOOPS, STEPS = "runs", "kernels", "closed loops", "single runs"
#: Of kinds of runs, beside the modes.
SEVERAL, GENERATION, EXPERTS = " on several GPUs", "generation", " with experts"
#: How an error is told, by what was timed.
TOLD = {
    RUNS: "{error:.0%} off in {rows} runs", KERNELS: "{error:.0%} off in the kernels of {rows} runs",
    LOOPS: "time per output token {error:.0%} off in the median of {rows} closed loops",
    STEPS: "prefills and decode steps by themselves, {error:.0%} off in {rows}",
}  # fmt: skip
#: The types that generation was measured in under a runtime by itself, and under engines.
HALF, WHOLE = "16 bits", "16 or 8 bits"
#: Precisions by the type that most stored values have.
STORED = {
    "": "fp32", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8", "uint8": "int8",
    "float8e4m3fn": "fp8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Accuracy(Document):
    """Whether runs like this one were measured.

    status: `measured`; `inferred` where others of this runtime and kind were, but none on this card, in this precision
    or of this release; `not validated` where none was, or none in this precision of 8 bits on any card, and where the
    runtime does not run on the card. error: of such runs, the mean of |predicted / measured - 1|, None where none was
    measured; why: of which it is, or what was measured instead; page: a file of this repository, which has the figures.
    """

    status: str
    error: float | None
    why: str
    page: str = PAGE

    def __str__(self) -> str:
        return f"{self.status} ({self.why}): {self.page}"


@dataclass(frozen=True, slots=True)
class Measured:
    """Runs that were measured. kind: a mode, or that on several GPUs, or generation of tokens; since, until: releases,
    "" for those to come; of: what was timed, such as RUNS; rows: how many there are; error: the mean one, of LOOPS the
    median one of the time per output token.
    """

    runtime: str
    kind: str
    precision: str
    gpu: str
    since: str
    until: str
    of: str
    rows: int
    error: float
    page: str = PAGE

    def holds(self, at: Release | None) -> bool:
        """Whether a release is one of these; None for today's."""
        return there(self.since, self.until, at)


@cache
def measured() -> tuple[Measured, ...]:
    """All that was measured."""
    text = files("onnxperf.answer").joinpath("accuracy.json").read_text(encoding="utf-8")
    return tuple(Measured(**row) for row in json.loads(text))


def accuracy(run: Run, j: int = 0) -> Accuracy:
    """Whether runs like this one were measured on device j."""
    s, device = run.scenario, run.devices[j]
    if calibrated := _calibrated(device):
        if run.plan.gpus == 1:
            return calibrated
        why = f"{calibrated.why}; exchanges between GPUs were not measured"
        return replace(calibrated, status=INFERRED, why=why)
    if why := run.runtime.unsupported(device) or run.unmeasured:
        return Accuracy(NOT_VALIDATED, None, why)
    kind = s.mode + SEVERAL * (run.plan.gpus > 1)
    precision = precision_of(s, run.runtime, device, run.kept(stored_type, run.graph))
    newest = release(run.runtime.releases.newest) if run.runtime.releases else None
    return of_kind(s.runtime, kind, precision, _named(device), run.runtime.release or newest)


def _calibrated(device: Device) -> Accuracy | None:
    """What is said of runs on a device whose file `onnxperf calibrate` wrote, None of another device."""
    if device.corrections == Corrections():
        return None
    return Accuracy(MEASURED, None, "calibrated on this device", OF_CALIBRATION)


def _named(device: Device) -> str:
    """The id of a card that is as it ships, under which it may have been measured; else what another one is."""
    shipped = gpu_specs.load(device.id) if device.id in gpu_specs.ids() else None
    if shipped is not None and replace(device, file=shipped.file) == shipped:
        return device.id
    return device.file or f"{device.id} as it is set here"


def of_generation(
    engine: str, device: Device, types: str, *, several: bool, experts: bool, draft: bool, cached: bool,
    pools: bool = False,
) -> Accuracy:  # fmt: skip
    """Whether generation of tokens was measured under an engine, or a runtime by itself, on a card; types: of
    weights, keys and values, such as HALF; several: whether on several GPUs, as loops under serving engines were;
    experts: whether of a mixture of experts; draft, cached, pools: whether these take part, which no measurement has.

    Calibration counts as for single runs where generation is their sum: on one device, under a runtime by itself. It
    measures neither an engine's scheduler, host and fused kernels nor what GPUs exchange.
    """
    parts = {"speculative decoding": draft, "prefix caches": cached, "pools": pools}
    if any(parts.values()):
        return Accuracy(NOT_VALIDATED, None, " and ".join(name for name, x in parts.items() if x), OF_GENERATION)
    looped = any(m.runtime == engine and m.of == LOOPS for m in measured())
    if not (looped or several) and (calibrated := _calibrated(device)):
        return calibrated
    kind = GENERATION + EXPERTS * experts + SEVERAL * (several and not looped)
    return of_kind(engine, kind, types, _named(device))


def of_kind(runtime: str, kind: str, precision: str, gpu: str, at: Release | None = None) -> Accuracy:
    """Whether runs of a kind were measured, in a precision, on a card, under a release, None for today's."""
    alike = [m for m in measured() if (m.runtime, m.kind) == (runtime, kind)]
    lacking, narrow = "" if alike else kind, precision in QUANTISED and not kind.startswith(GENERATION)
    if narrow and precision not in {m.precision for m in alike}:
        lacking = precision if kind == "inference" else f"{kind} in {precision}"
    if lacking:
        page = OF_GENERATION if kind.startswith(GENERATION) else PAGE
        return Accuracy(NOT_VALIDATED, None, f"{lacking} under {runtime}", page)
    here = [m for m in alike if m.gpu == gpu]
    exact = [m for m in here if m.precision == precision]
    held = [m for m in exact if m.holds(at)]
    if held:
        best = max(held, key=lambda m: (m.of != KERNELS, m.rows))
        told = TOLD[best.of].format(error=best.error, rows=best.rows) + f" of models{EXPERTS}" * (EXPERTS in kind)
        return Accuracy(MEASURED, best.error, told, best.page)
    pages = Counter(m.page for m in exact or here or alike)
    what = f"{kind} under {runtime}" if kind.startswith("training") else runtime + EXPERTS * (EXPERTS in kind)
    why = _instead(what, here, exact, gpu)
    return Accuracy(INFERRED, None, why, pages.most_common(1)[0][0])


def _instead(what: str, here: Sequence[Measured], exact: Sequence[Measured], gpu: str) -> str:
    """What was measured in place of a run; what: the runtime, of which models, and whether in training."""
    if not here:
        return f"{what} was not measured on {gpu}"
    if not exact:
        return f"measured on {gpu} in {', '.join(_distinct(m.precision for m in here))}"
    spans = _distinct(m.since if m.since == m.until else f"{m.since} to {m.until}" for m in exact)
    return f"measured on {gpu} under {' and '.join(spans)}"


def _distinct(words: Iterable[str]) -> list[str]:
    return [*dict.fromkeys(words)]


def precision_of(s: Scenario, runtime: Runtime, device: Device, stored: str) -> str:
    """What a run's products are computed in, as measured runs are told apart: the precision that was asked for, that of
    most stored values, `stored`, where they are kept; tf32 for fp32 where the card and the runtime's products take it.
    """
    named = STORED.get(stored, stored) if s.precision == "keep" else s.precision
    taken = s.precision == "tf32" or (s.precision == "keep" and "Gemm" in runtime.policy.tf32)
    if named in ("fp32", "tf32"):
        return "tf32" if taken and "tensor_tf32" in device.dense_flops else "fp32"
    return named


def stored_type(graph: Graph) -> str:
    """The type of most stored values of a graph, "" where it has none."""
    stored = {t.name: t for o in graph.operators for t in o.present if t.stored}
    sizes = Counter[str]()
    for t in stored.values():
        sizes[t.dtype] += t.size
    return sizes.most_common(1)[0][0] if sizes else ""

"""The first lines of a prediction: what was asked, how long it takes, what limits it, and what would help most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from onnxperf.answer.accuracy import stored_type
from onnxperf.answer.prediction import Prediction
from onnxperf.decide.changes import Change, nothing, tries
from onnxperf.ground.errors import printable
from onnxperf.ground.names import precision_label
from onnxperf.ground.tables import duration, number, size
from onnxperf.running.scenario import PLATFORMS, usual_host
from onnxperf.running.terms import USUAL_METHOD
from onnxperf.views.on_cpu import wholly_on_cpu

ALIKE = 1.02  # of the fastest change's time: the first change within it is named, which asks for least
DOES_NOT_FIT = "does-not-fit"  # the note that stands in the headline
SEEN = 0.005  # shares below this one are left out
Changes = Sequence[Change]


@dataclass(frozen=True, slots=True)
class Headline:
    """The words of the answer, safe to print: why it does not fit, if so; what was asked; how long that takes, with its
    range and rate; the memory; the limit; the best change, and how many others there are. What there is not is "".
    """

    misfit: str
    asked: tuple[str, ...]
    time: str
    interval: str
    rate: str
    memory: str
    limit: str
    best: str
    others: int


def words(p: Prediction, changes: Changes) -> Headline:
    """The answer in words; changes: the same run under other terms."""
    shares = largest_shares(p)
    return Headline(
        misfit=next((printable(note.message) for note in p.warnings if note.code == DOES_NOT_FIT), ""),
        asked=tuple(map(printable, (p.scenario.model, *_where(p), *terms(p)))),
        time=duration(p.seconds),
        interval=f"{p.interval:.0%} interval {duration(p.low_seconds)} to {duration(p.high_seconds)}",
        rate=f"{number(p.throughput_per_second, 4)} samples/s",
        memory=f"{size(p.memory.reserved_bytes)} of {size(p.memory.capacity_bytes)}",
        limit=_limit(p, shares[0][0]) if shares else "",
        best=_best(p, changes),
        others=max(0, len(changes) - 1),
    )


def headline(p: Prediction, changes: Changes, dot: str, untried: bool = False) -> Text:
    """The answer on a terminal; dot: what stands between the terms that were asked; untried: there are other changes,
    which were not looked for.
    """
    text, h = Text(), words(p, changes)
    if h.misfit:
        text.append(f"DOES NOT FIT: {h.misfit}\n", style="bold red")
    text.append(dot.join(h.asked) + "\n", style="bold")
    text.append(h.time, style="bold green")
    text.append("".join(f"   {x}" for x in (h.interval, h.rate, h.memory)))
    more = "more: --detail" if untried else f"{h.others} more: --detail" if h.others else ""
    text.append("\n" + "; ".join(filter(None, (h.limit, h.best, more))))
    return text


def scope(p: Prediction) -> str:
    """What the time covers, in a few words; `Prediction.scope` says all of it."""
    whole = p.run.method.scheduled
    if not launches(p):
        return f"{'steady state, with' if whole else 'sum of kernels, without'} the runtime's overhead"
    what = "steady state, kernels and launch gaps" if whole else "sum of kernels, no launch gaps"
    return f"{what}, {'with' if p.scenario.include_transfers else 'no'} copies of inputs and outputs"


def _best(p: Prediction, changes: Changes) -> str:
    """The easy change that gains most; or why none gains anything."""
    if not changes:
        return nothing(p) if tries(p) else ""
    easy = [c for c in changes if c.small] or changes
    fastest = min(c.seconds for c in easy)
    c = next(c for c in easy if c.seconds <= ALIKE * fastest)
    return f"{c.what}: {c.why or duration(c.seconds)} ({gain(p, c)})"


def _where(p: Prediction) -> Iterator[str]:
    """The device; where a card computes nothing, that the CPU does all, and which that is."""
    if wholly_on_cpu(p):
        yield f"wholly on the CPU, {p.run.cpus[p.column].title}"
        yield f"{p.device.name} unused"
    else:
        yield p.device.name


def terms(p: Prediction) -> Iterator[str]:
    """What was asked: the runtime, the precision, the batch, and what else is not the default."""
    s = p.scenario
    runtime = (p.run.runtime.title or s.runtime) + (f" {s.ort_version}" if s.ort_version else "")
    fused = " after onnxruntime.transformers" if s.ort_transformers else ""
    able = "tensor_tf32" in p.device.dense_flops  # on other cards the runtime's choice changes nothing
    tf32 = " (TF32 on)" if able and any("tf32" in k.work.pipe for k in p.kernels) else ""
    said = (
        f"{runtime}{fused}", _precision(p) + tf32, s.layout or "",
        f"batch {s.batch}", "" if s.mode == "inference" else "training",
        f"{p.run.plan.gpus} GPUs, {p.run.plan}" if p.run.plan.gpus > 1 else "",
        s.method if s.method != USUAL_METHOD else "",
        f"{s.opt_level} optimisations" if s.opt_level != "all" else "",
        s.compile_mode or "CUDA graph" if s.cuda_graph else "",
        f"{s.streams} streams" if s.streams > 1 else "",
        f"with H2D/D2H copies{' from pageable memory' if s.pageable else ''}" if s.include_transfers else "",
        f"{s.host} host" if s.host != usual_host(p.device) else "",
        f"power mode {s.power_mode}" if s.power_mode else "",
        f"power limit {s.power_limit_W:g} W" if s.power_limit_W else "",
        f"clock {s.clock_Hz / 1e6:g} MHz" if s.clock_Hz else "",
    )  # fmt: skip
    return filter(None, said)


_TYPES = {"float16": "FP16", "bfloat16": "BF16", "float64": "FP64", "int8": "INT8", "uint8": "INT8"}


def _precision(p: Prediction) -> str:
    """The precision that was asked for; where that is as stored, with the type of most weights, if not FP32."""
    s = p.scenario
    most = stored_type(p.run.graph) if s.precision == "keep" else ""
    named = _TYPES.get(most, most.upper() if most.startswith("float8") else "")
    return f"{named} {'FP32' if s.precision == 'tf32' else precision_label(s.precision)}".lstrip()


def _limit(p: Prediction, bound: str) -> str:
    """What the run is bound by, in the word of `bound_by`, and by which part of that where it is not the usual one."""
    arithmetic = [k for k in p.kernels if k.bound_by == "compute"]
    issue = sum(k.seconds for k in arithmetic if k.limit != k.bound_by) > sum(k.seconds for k in arithmetic) / 2
    part = {"compute": "instruction issue"} if issue else {}
    part |= {} if launches(p) else ON_A_CORE
    return f"{'CPU' if bound == 'cpu' else bound}-bound" + (f" ({part[bound]})" if bound in part else "")


#: What bounds are on a processor, which launches no kernels.
ON_A_CORE = {"latency": "arithmetic below peak", "launch": "the runtime's overhead of each operator"}


def gain(p: Prediction, c: Change) -> str:
    return f"{'up to ' if c.most else ''}{p.seconds / c.seconds:.2f}x"


def largest_shares(p: Prediction) -> list[tuple[str, float]]:
    """What bounds the run with its share of the time, the largest first."""
    return sorted(((name, share) for name, share in p.bound_by.items() if share >= SEEN), key=lambda x: -x[1])


def launches(p: Prediction) -> bool:
    """True on a card, where a host launches kernels; a processor computes them itself."""
    return PLATFORMS[p.device.kind].launches

"""What would make a run faster: the same run under other terms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpu_specs import HOSTS, Device
from onnxperf.answer.prediction import Prediction
from onnxperf.ground.errors import Error
from onnxperf.ground.names import AMP, QUANTISED
from onnxperf.ground.tables import duration
from onnxperf.passes.precision import lacks_unit
from onnxperf.passes.precision import precision as in_precision
from onnxperf.running.run import Run
from onnxperf.running.scenario import PLATFORMS
from onnxperf.running.terms import TERMS, having
from onnxperf.runtimes import RUNTIMES, Runtime
from op_models import Work

WORTH = 0.98  # of the time: a change that saves less is not named
COMPILED, UNCOMPILED = "torch-compile", "torch-eager"
SMALL = frozenset(
    {"precision", "layout", "cuda_graph", "compile_mode", "fix_dims"}
)  # terms that leave what runs the model as it is
LARGER = 8  # times the batch
#: Inputs and outputs of all operators, beyond which no other terms are tried: each of these takes as long again.
MAX_TENSORS = 10_000
#: Half precision, TF32, or nothing: what a precision can give way to on a card, the first that is the fastest.
LIGHTER = {"fp32": ("fp16", "bf16", "tf32"), "keep": ("fp16", "bf16"), "tf32": ("fp16", "bf16")}
#: The same where PyTorch trains: weights stay in FP32, and autocast computes in half precision.
TRAINED = {"fp32": (AMP, "tf32"), "keep": (AMP,), "tf32": (AMP,)}
QUANTISES = "tensorrt"  # the runtime under which 8-bit precisions are tried
#: Terms of one runtime that are not asked of another.
USUAL = {term.name: term.default for term in (*having(acts="graph"), TERMS["layout"], TERMS["fix_dims"])}
#: Shares of a run below which a term that acts on it is not tried.
LAUNCHES, FALLBACK = 0.05, 0.01

#: What makes the prediction at another batch; raises Error where the model has no other.
AtBatch = Callable[[int], Prediction]


@dataclass(frozen=True, slots=True)
class Change:
    """The same samples under other terms: as options (`what`), and how long they then take.

    samples: how many `seconds` are for, the batch of the run now. small: runtime, host and batch stay as they are, and
    nothing is quantised. most: no such run was predicted, the time is what is left of this one at best. why: where the
    batch is another, the time of each sample then and now. run_seconds: of a whole run under these terms.
    """

    what: str
    seconds: float
    samples: int
    small: bool = True
    most: bool = False
    why: str = ""
    run_seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The change as `prediction.schema.json` describes a suggestion."""
        each = self.seconds / self.samples if self.samples else None
        return {"change": self.what, "seconds": self.seconds, "seconds_per_sample": each, "at_best": self.most}


def changes(now: Prediction, at_batch: AtBatch | None = None) -> list[Change]:
    """The same run under other terms, where they save 2% or more, those that ask for least first.

    at_batch: where given, a larger batch is tried too. Nothing is tried for a graph of more than MAX_TENSORS.
    """
    if not tries(now) or is_long(now):
        return []
    run, candidates = now.run.alone(now.column), list[Change]()
    best = _alike(now, run, candidates)
    replays = bool(best.get("cuda_graph") or best.get("compile_mode"))
    for terms in runtimes(run):
        if terms["runtime"] != COMPILED or run.runtime.name == UNCOMPILED:  # who runs a file has left PyTorch
            _tried(now, run, {**terms, **(replayed(RUNTIMES[terms["runtime"]]) if replays else {})}, candidates)
    for precision in precisions(run):
        if precision in QUANTISED:
            _tried(now, run, {**best, "precision": precision}, candidates)
    fastest = min(HOSTS.values(), key=lambda host: host.pace)
    if fastest.pace < run.cpus[0].pace and now.bound_by["launch"] + now.bound_by["cpu"] > LAUNCHES:
        _tried(now, run, {"host": fastest.name}, candidates)
    candidates += [c for c in (without_fallback(now), batched(now, at_batch)) if c is not None]
    return _worth(now, candidates)


def small_changes(now: Prediction) -> list[Change]:
    """Those of `changes` that are small, in a small part of the time: no other change takes the place of one."""
    if not tries(now) or is_long(now):
        return []
    candidates = list[Change]()
    _alike(now, now.run.alone(now.column), candidates)
    return _worth(now, candidates)


def _alike(now: Prediction, run: Run, candidates: list[Change]) -> dict[str, Any]:
    """Try what leaves the runtime, the host and the batch; the terms that help together."""
    best = dict[str, Any]()
    for terms in _single(run, now):
        best |= _tried(now, run, terms, candidates)
    if len(best) > 1:
        _tried(now, run, best, candidates)
    if best and "layout" not in best and _takes_layout(run):  # tensor cores of half precision gain more from it
        _tried(now, run, {**best, "layout": "nhwc"}, candidates)
    return best


def together(now: Prediction, run: Run) -> dict[str, Any]:
    """The terms that leave the runtime, the host and the batch and help most together; none where one helps alone."""
    tried = list[Change]()
    best = _alike(now, run, tried)
    if best and "layout" not in best and _takes_layout(run):
        last = {**best, "layout": "nhwc"}
        if tried[-1].what == options(last) and tried[-1].seconds <= min(c.seconds for c in tried):
            return last
    return best if len(best) > 1 else {}


def _worth(now: Prediction, candidates: Sequence[Change]) -> list[Change]:
    """The changes that save enough, and of which no part saves as much."""
    return [c for c in candidates if c.seconds < WORTH * now.seconds and not any(_less(d, c) for d in candidates)]


def _options(c: Change) -> frozenset[str]:
    return frozenset(c.what.removeprefix("--").split(" --"))


def _less(a: Change, b: Change) -> bool:
    """Whether a asks for a part of what b does, and b saves no more for it."""
    return _options(a) < _options(b) and b.seconds > WORTH * a.seconds


def tries(now: Prediction) -> bool:
    """Whether there is anything to try: only where kernels are launched and laid out in time."""
    return now.run.method.scheduled and PLATFORMS[now.device.kind].launches


def is_long(now: Prediction) -> bool:
    """Whether other terms are not tried for that many inputs and outputs of operators."""
    return sum(len(o.inputs) + len(o.outputs) for o in now.run.graph.operators) > MAX_TENSORS


def nothing(now: Prediction) -> str:
    """Why no change helps, by how near the run is to what the card can do and what it is bound by; or is tried."""
    if is_long(now):
        many = f"the operators have more than {MAX_TENSORS:,} inputs and outputs"
        return f"no suggestions are computed: {many}"
    most, share = max(now.bound_by.items(), key=lambda x: x[1])
    near = now.lower_bound_seconds / now.seconds
    least = f"the speed-of-light bound is {near:.0%} of it"
    return f"no change gains more than {1 - WORTH:.0%}: {share:.0%} of the time is bound by {most}; {least}"


def _single(run: Run, now: Prediction) -> Iterator[dict[str, Any]]:
    """One term at a time that leaves the runtime and the batch."""
    s, shares = run.scenario, now.bound_by
    for precision in _lighter(run):
        yield {"precision": precision}
    if _takes_layout(run):
        yield {"layout": "nhwc"}
    if run.has_open_dims and not s.fix_dims:
        yield {"fix_dims": True}
    if not s.cuda_graph and s.streams == 1 and shares["launch"] > LAUNCHES:
        yield replayed(run.runtime)


def replayed(runtime: Runtime) -> dict[str, Any]:
    """How a runtime is asked to replay a CUDA graph."""
    return {"compile_mode": "reduce-overhead"} if runtime.modes else {"cuda_graph": True}


def precisions(run: Run) -> tuple[str, ...]:
    """The other precisions that are tried under the run's own runtime: of fewer bits, with units on the card."""
    return (*_lighter(run), *(_quantised(run) if run.runtime.name == QUANTISES else ()))


def lacking(run: Run) -> tuple[str, ...]:
    """Precisions of fewer bits that are not tried because the card has no units for them."""
    s, card = run.scenario, run.devices[0]
    fewer = (*LIGHTER.get(s.precision, ()), *(() if s.precision in QUANTISED else QUANTISED))
    return tuple(name for name in fewer if _lacks(card, name))


def runtimes(run: Run) -> Iterator[dict[str, Any]]:
    """The other runtimes that are tried, each at the run's own precision and at those of fewer bits; of a training step
    those that train.
    """
    for name in others(run):
        if not RUNTIMES[name].unsupported(run.devices[0]):
            quantised = _quantised(run) if name == QUANTISES else ()
            for precision in (run.scenario.precision, *_lighter(run), *quantised):
                if precision != AMP or RUNTIMES[name].autocast is not None:
                    yield {"runtime": name, "precision": precision, **USUAL}


def others(run: Run) -> list[str]:
    """The other runtimes for cards, of a training step those that train."""
    return [n for n in RUNTIMES if n != run.scenario.runtime and _for_cards(n) and _trains(RUNTIMES[n], run)]


def _trains(runtime: Runtime, run: Run) -> bool:
    """Whether a runtime can run what is run: a training step takes one that differentiates, if in another release."""
    return run.scenario.mode != "training" or not (runtime.autograd is None and runtime.training is None)


def _for_cards(name: str) -> bool:
    """Whether a runtime runs on cards; not one that somebody added and that can't be loaded."""
    with suppress(Error):
        return RUNTIMES[name].kind == "gpu"
    return False


def _takes_layout(run: Run) -> bool:
    """Whether the runtime can be told to keep the images of this model channels last."""
    images = any(o.type == "Conv" for o in run.graph.operators)
    return images and "nhwc" in run.runtime.layouts and run.scenario.layout is None


def _lighter(run: Run) -> Iterator[str]:
    """Precisions of fewer bits that the card has units for; of two half precisions the first."""
    half, trains = False, run.scenario.mode == "training" and run.runtime.autocast is not None
    for name in (TRAINED if trains else LIGHTER).get(run.scenario.precision, ()):
        if not _lacks(run.devices[0], name) and not (half and name == "bf16"):
            half |= name == "fp16"
            yield name


def _lacks(card: Device, precision: str) -> bool:
    return lacks_unit(card, precision) or (precision == "tf32" and "tensor_tf32" not in card.dense_flops)


def _quantised(run: Run) -> Iterator[str]:
    """The 8-bit precisions that the card has units for, where they change anything."""
    for name in () if run.scenario.precision in QUANTISED else QUANTISED:
        supported = not lacks_unit(run.devices[0], name)
        if supported and run.kept(in_precision, run.own_graph, name).operators != run.own_graph.operators:
            yield name


def _tried(now: Prediction, run: Run, terms: Mapping[str, Any], candidates: list[Change]) -> Mapping[str, Any]:
    """The terms if they help, else none; `candidates` gets what they give."""
    with suppress(Error):  # such as that a CUDA graph can't be captured
        seconds = float(run.under(**terms).timeline.total_s[0])
        changed = {k: v for k, v in terms.items() if v != getattr(run.scenario, k)}
        small = changed.keys() <= SMALL and changed.get("precision") not in QUANTISED
        candidates.append(Change(options(changed), seconds, now.scenario.batch, small))
        return terms if seconds < WORTH * now.seconds else {}
    return {}


def options(terms: Mapping[str, Any]) -> str:
    """Terms of a scenario as they are given on the command line; those that are None or False are not given."""
    flags = ((f"--{name.replace('_', '-')}", value) for name, value in terms.items() if value not in (None, False))
    return " ".join(flag if value is True else f"{flag} {value}" for flag, value in flags)


def without_fallback(now: Prediction) -> Change | None:
    """What is left of the run where the card computes what the CPU does now, without copies: at best, for each of these
    takes as long as it takes to launch, and at the card's highest rates.
    """
    fallen = {n for note in now.warnings if note.code == "host-fallback" for n in note.nodes}
    if not fallen or now.bound_by["cpu"] < FALLBACK or for_processors_only(now):
        return None
    copies = sum(k.seconds for k in now.kernels if k.op.startswith("Memcpy"))
    costs, card = now.run.host_costs[now.column], now.device
    fastest = max(card.dense_flops.values())
    instead = sum(
        n.repeat * max(costs.node_s + costs.launch_s, *_at_most(n.work, card.bandwidth_Bps, fastest))
        for n in now.run.kernels.on_host
    )
    left = now.seconds * (1 - now.bound_by["cpu"]) - copies + instead
    seconds = max(left, now.lower_bound_seconds)
    return Change("all operators on the GPU", seconds, now.scenario.batch, most=True)


def for_processors_only(now: Prediction) -> bool:
    """Whether some operator that the CPU computes is one that no GPU has: on strings and maps, or of ai.onnx.ml."""
    on_host = (o for o in now.run.run_graph.operators if o.place == "host")
    return any(
        o.type.startswith("ai.onnx.ml::") or any(t.dtype == "string" for t in (*o.present, *o.outputs)) for o in on_host
    )


def _at_most(work: Work | None, bandwidth: float, flops: float) -> tuple[float, float]:
    """Seconds that the bytes and the FLOPs of an operator take at these rates."""
    return (0.0, 0.0) if work is None else (work.bytes / bandwidth, work.flops / flops)


def batched(now: Prediction, at_batch: AtBatch | None) -> Change | None:
    """A larger batch, by the time of as many samples as a run has now."""
    batch = now.scenario.batch
    if at_batch is None or not tries(now):
        return None
    with suppress(Error):
        then = at_batch(LARGER * batch)
        if then.memory.fits and then.scenario.batch > batch:
            larger, seconds = then.scenario.batch, then.seconds * batch / then.scenario.batch
            why = each_sample(now, then)
            return Change(f"--batch {larger}", seconds, batch, small=False, why=why, run_seconds=then.seconds)
    return None


def each_sample(now: Prediction, then: Prediction) -> str:
    """The time of each sample at another batch, and now."""
    new, old = (duration(p.seconds / p.scenario.batch) for p in (then, now))
    return f"{new} per sample, not {old}"

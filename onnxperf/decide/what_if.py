"""What each change would bring: the same samples under other terms, or by a changed graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Unpack

from gpu_specs import HOSTS
from onnxperf.answer.accuracy import Accuracy
from onnxperf.answer.kernel_timeline import KernelPrediction, part_of
from onnxperf.answer.prediction import Prediction, summarise
from onnxperf.decide.changes import (
    AtBatch,
    each_sample,
    lacking,
    options,
    others,
    precisions,
    replayed,
    runtimes,
    together,
    without_fallback,
)
from onnxperf.decide.edits import padded, unaligned, without
from onnxperf.fusions.engine import NEAR
from onnxperf.ground.codec import Document, plain
from onnxperf.ground.errors import Error, UsageError, speaking_of_arguments
from onnxperf.running.pipeline import Gpu, read_once, request_for, run_of, with_batch
from onnxperf.running.run import Run
from onnxperf.running.scenario import PLATFORMS
from onnxperf.running.terms import Bound, Examples
from onnxperf.runtimes import RUNTIMES
from op_models import Move, Pointwise

BATCHES = (4, 16)  # times the batch
PARTS = 5  # modules that are left out, those that take most time
FUSIONS = 6  # kinds of fusions that nearly matched
PART, FUSION = 0.05, 0.02  # of the time: parts and fusions that concern less are not tried
WHOLE = 0.5  # of the time: a part that takes more is as good as the model
DEEPEST = 3  # names in the path of a module


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One change, and how long the same samples take with it.

    kind: precision, runtime, launch, layout, together (several of these), batch, host, fallback, fusion, padding or
    part; what: the options that ask for it, or words; seconds and their range; at_best: the time is a bound of what the
    change can bring; run_seconds: of a whole run where its batch is another. Where the change can't be made or has no
    effect on what is run, seconds is None and `why` says so; else `why` is what speaks for it, and `accuracy` whether
    runs like the changed one were measured, None of a bound.
    """

    kind: str
    what: str
    seconds: float | None
    low_seconds: float | None = None
    high_seconds: float | None = None
    at_best: bool = False
    why: str = ""
    run_seconds: float | None = None
    accuracy: Accuracy | None = None


@dataclass(frozen=True, slots=True)
class WhatIfs(Document):
    """A prediction, and what each change would bring, the fastest first; those that can't be made last."""

    ROWS = "changes"

    now: Prediction
    changes: tuple[WhatIf, ...]

    def to_dict(self) -> dict[str, Any]:
        """The changes as plain data: `gain` is the time now by the time then."""
        s, now = self.now.scenario, self.now.seconds
        changes = [{**asdict(c), "gain": now / c.seconds if c.seconds else None} for c in self.changes]
        return {**plain(s, "model", "gpu", "runtime", "precision", "batch"), "seconds": now, "changes": changes}


def whatif(model: Any, example_inputs: Examples = None, *, gpu: Gpu, **terms: Unpack[Bound]) -> WhatIfs:
    """What each change would bring to a model on a card: precision, runtime, CUDA graph, batch, layout, a faster host,
    fusions that nearly matched, operators on the CPU, padded dimensions, parts that are left out.

    Each is a prediction of its own. Arguments are those of `onnxperf.predict`. Raises what `predict` raises.
    """
    with speaking_of_arguments():
        request = read_once(request_for(model, example_inputs, **terms))
        now = summarise(run_of(request, gpu))
        return what_if(now, lambda batch: summarise(run_of(with_batch(request, batch), gpu)))


def what_if(now: Prediction, at_batch: AtBatch | None = None) -> WhatIfs:
    """What each change would bring to a predicted run; at_batch: where given, the prediction at another batch is tried
    too. It raises Error where the model has no other.
    """
    if not (now.run.method.scheduled and PLATFORMS[now.device.kind].launches):
        raise UsageError("changes are predicted on cards, with the method tile-wave")
    run = now.run.alone(now.column)
    changes = [*_terms(now, run), *_fallback(now), *_fusions(now, run), *_padded(run), *_parts(now, run)]
    changes += _batches(now, at_batch) if at_batch is not None else ()
    order = sorted(changes, key=lambda c: (c.seconds is None, c.seconds or 0.0))
    return WhatIfs(now, tuple(order))


def _terms(now: Prediction, run: Run) -> Iterator[WhatIf]:
    """One term of the scenario at a time, and other precisions under another runtime."""
    s = run.scenario
    for name in precisions(run):
        yield _under(now, run, "precision", {"precision": name})
    for name in lacking(run):
        yield WhatIf("precision", f"--precision {name}", None, why=f"{run.devices[0].name} has no unit for it")
    for name in others(run):
        if why := RUNTIMES[name].unsupported(run.devices[0]):
            yield WhatIf("runtime", f"--runtime {name}", None, why=why)
    yield _under(now, run, "launch", replayed(run.runtime)) if not s.cuda_graph else _without_graph(now, run)
    if run.has_open_dims and not s.fix_dims:
        yield _under(now, run, "launch", {"fix_dims": True})
    if "nhwc" in run.runtime.layouts and s.layout is None and any(o.type == "Conv" for o in run.graph.operators):
        yield _under(now, run, "layout", {"layout": "nhwc"})
    if run.runtime.offline and not s.ort_transformers:
        yield _under(now, run, "fusion", {"ort_transformers": True})
    if both := together(now, run):
        yield _under(now, run, "together", both)
    for terms in runtimes(run):
        yield _under(now, run, "runtime", terms)
    fastest = min(HOSTS.values(), key=lambda host: host.pace)
    if fastest.pace < run.cpus[0].pace:
        yield _under(now, run, "host", {"host": fastest.name}, f"{fastest.describe}, for {run.cpus[0].describe}")


def _without_graph(now: Prediction, run: Run) -> WhatIf:
    return replace(_under(now, run, "launch", {"cuda_graph": False, "compile_mode": None}), what="no CUDA graph")


def _under(now: Prediction, run: Run, kind: str, terms: Mapping[str, Any], why: str = "") -> WhatIf:
    """The run under other terms."""
    changed = {k: v for k, v in terms.items() if v != getattr(run.scenario, k)}
    return _predicted(kind, options(changed), lambda: summarise(run.under(**terms)), why)


def _predicted(kind: str, what: str, then: Callable[[], Prediction], why: str = "", at_best: bool = False) -> WhatIf:
    """The change that makes a prediction, or why it can't be made."""
    try:
        p = then()
    except Error as e:
        return WhatIf(kind, what, None, why=str(e))
    return WhatIf(
        kind, what, p.seconds, p.low_seconds, p.high_seconds, at_best, why, accuracy=None if at_best else p.accuracy
    )


def _batches(now: Prediction, at_batch: AtBatch) -> Iterator[WhatIf]:
    """Larger batches, by the time of as many samples as a run has now."""
    for batch in (times * now.scenario.batch for times in BATCHES if now.scenario.batch):
        what, share = f"--batch {batch}", now.scenario.batch / batch
        try:
            then = at_batch(batch)
        except Error as e:
            yield WhatIf("batch", what, None, why=str(e))
            return
        if not then.memory.fits:
            yield WhatIf("batch", what, None, why="does not fit into the card's memory")
            return
        times = (then.seconds * share, then.low_seconds * share, then.high_seconds * share)
        yield WhatIf(
            "batch", what, *times, why=each_sample(now, then), run_seconds=then.seconds, accuracy=then.accuracy
        )


def _fallback(now: Prediction) -> Iterator[WhatIf]:
    if (change := without_fallback(now)) is not None:
        why = "the operators now on the CPU run on the GPU, without copies"
        yield WhatIf("fallback", change.what, change.seconds, at_best=True, why=why)


def _fusions(now: Prediction, run: Run) -> Iterator[WhatIf]:
    """Fusions that nearly matched, as if the movement and elementwise kernels in their way cost nothing. Not of
    training steps, where a node stands for kernels of its gradient as well, which are not in the way.
    """
    if now.scenario.mode == "training":
        return
    near = dict[tuple[str, str], set[str]]()
    for note in now.warnings:
        if note.code == NEAR:
            rule, _, why = note.message.partition(" did not apply: ")
            near.setdefault((rule, why), set()).update(note.nodes)
    costs = list[tuple[float, str, str, set[str]]]()
    for (rule, why), named in near.items():
        replaced = [k for k in now.kernels if k.nodes and named.issuperset(k.nodes) and _light(k)]
        if (seconds := sum(k.seconds for k in replaced)) >= FUSION * now.seconds:
            costs.append((seconds, rule, why, {n for k in replaced for n in k.nodes}))
    for _, rule, why, nodes in sorted(costs, key=lambda x: -x[0])[:FUSIONS]:
        then = replace(run, placed=without(run.run_graph, nodes))
        yield _predicted("fusion", rule, partial(summarise, then), f"nearly matched: {why}", True)


def _light(k: KernelPrediction) -> bool:
    return isinstance(k.work.size, (Pointwise, Move))


def _padded(run: Run) -> Iterator[WhatIf]:
    """Dimensions of products padded to what tensor cores are aligned to."""
    for size, to in list(unaligned(run.graph))[:PARTS]:
        then = replace(run, graph=padded(run.graph, size, to))
        why = "every dimension of that size; only tiles are modelled, not unaligned loads"
        yield _predicted("padding", f"dimension {size} padded to {to}", partial(summarise, then), why)


def _parts(now: Prediction, run: Run) -> Iterator[WhatIf]:
    """The model without one of its modules, those that take most time first."""
    modules, times = run.graph.modules, dict[str, float]()
    for depth in range(1, DEEPEST + 1):
        times = {}
        for k in now.kernels:
            if name := part_of(k.module, depth):
                times[name] = times.get(name, 0.0) + k.seconds
        if len(times) > 1 and max(times.values()) <= WHOLE * now.seconds:
            break
    tried = (n for n, s in times.items() if PART * now.seconds <= s <= WHOLE * now.seconds)
    for name in sorted(tried, key=lambda n: -times[n])[:PARTS]:
        nodes = {node for node, module in modules.items() if part_of(module, depth) == name}
        with suppress(Error):  # such as that nothing is left
            then = summarise(replace(run, graph=without(run.graph, nodes)))
            range_ = (then.seconds, then.low_seconds, then.high_seconds)
            why = "the time of the rest: this module costs the difference"
            yield WhatIf("part", f"without {name}", *range_, why=why, accuracy=then.accuracy)

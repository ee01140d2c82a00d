"""What the HTML report is drawn from, as plain data: columns rather than objects, so that a page stays small.

Names come from model files and may hold anything, at any length: all are shortened, control characters replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnxperf.answer.kernel_timeline import KernelPrediction
from onnxperf.answer.prediction import BOUND_BY, Prediction
from onnxperf.decide.changes import AtBatch, is_long, nothing
from onnxperf.decide.choices import batches
from onnxperf.decide.what_if import WhatIf, what_if
from onnxperf.ground.errors import UsageError, printable
from onnxperf.ground.output import Progress
from onnxperf.ground.tables import short_type, shortened
from onnxperf.ground.version import VERSION
from onnxperf.latency import pipe_on
from onnxperf.lowering.lower import TRANSFER
from onnxperf.running.microbatches import fullest, stage_of
from onnxperf.views.headline import Changes, largest_shares, launches, words
from onnxperf.views.prediction import facts, meanings
from onnxperf.views.roofline import roofs, unit

KERNELS = 20_000  # listed, those that take most time
NAME, MESSAGE = 160, 1_000  # characters of a name and of a sentence
NODES = 6  # named of those that a note is about


def data(p: Prediction, changes: Changes, at_batch: AtBatch | None, tell: Progress | None) -> dict[str, Any]:
    """Everything that the page shows. Times in seconds, sizes in bytes, of numbers the digits that can be seen.

    changes: the same run under other terms; at_batch: the prediction at another batch, where one can be made.
    """
    h, s = words(p, changes), p.scenario
    return {
        "version": VERSION,
        **run_data(p),
        "head": {
            "misfit": h.misfit[:MESSAGE], "asked": [short_name(x) for x in h.asked], "time": h.time,
            "interval": h.interval, "rate": h.rate, "memory": h.memory, "limit": h.limit, "best": h.best[:MESSAGE],
            "others": h.others,
        },
        "batch": s.batch,
        "inputs": [f"{short_name(name)} {'x'.join(map(str, shape))}" for name, shape in s.inputs][:NODES],
        "memory": _memory(p), "batches": _batches(p, at_batch, tell), "what_ifs": _what_ifs(p, changes, at_batch, tell),
        "facts": [[label, printable(text)[:MESSAGE]] for label, text in facts(p)],
        "notes": [
            [note.code, sentence(note.message), [short_name(n) for n in note.nodes[:NODES]], len(note.nodes)]
            for note in p.warnings
        ],
        "scope": sentence(p.scope), "accuracy": sentence(str(p.accuracy)),
    }  # fmt: skip


def run_data(p: Prediction) -> dict[str, Any]:
    """The run itself: its time, what bounds it, and its kernels, for the roofline, the timeline and their table."""
    told, means, (kinds, kernels) = dict(facts(p)), meanings(p), _kernels(p)
    return {
        "seconds": digits(p.seconds), "low": digits(p.low_seconds), "high": digits(p.high_seconds),
        "bounds": list(BOUND_BY),
        "shares": [[name, digits(share), printable(means[name])] for name, share in largest_shares(p)],
        "kinds": kinds, "kernels": kernels, "count": len(p.kernels),
        "roofs": _roofs(p), "pace": printable(told.get("pace", "")), "gaps": printable(told.get("gaps", "")),
        "card": launches(p), "laid_out": p.run.method.scheduled,
    }  # fmt: skip


def short_name(text: str) -> str:
    """A name as it may be shown."""
    return shortened(text, NAME)


def sentence(text: str) -> str:
    """A sentence as it may be shown."""
    return printable(text if len(text) <= MESSAGE else f"{text[: MESSAGE - 3]}...")


def digits(value: float, most: int = 5) -> float:
    """A number with the digits that can be seen."""
    return float(f"{value:.{most}g}")


class _Index(dict[str, int]):
    """Texts that many rows share, in the order in which they are first asked for."""

    def __missing__(self, text: str) -> int:
        return self.setdefault(text, len(self))


def _kernels(p: Prediction) -> tuple[dict[str, Any], dict[str, Any]]:
    """Kernels of equal work and time once, as columns, and every kernel as columns, with the index of its kind."""
    kinds = dict[tuple[Any, ...], int]()
    most = sorted(range(len(p.kernels)), key=lambda i: -p.kernels[i].seconds)[:KERNELS]
    rows = [(i, p.kernels[i]) for i in sorted(most)]
    kind = [kinds.setdefault(_kind(p, k), len(kinds)) for _, k in rows]
    names = ("op", "seconds", "low", "high", "flops", "read", "written", "bound", "unit", "variant", "source", "repeat")
    columns = zip(*kinds, strict=True) if kinds else ((),) * len(names)
    streams, modules, t = _Index(), _Index(), p.run.timeline
    return dict(zip(names, map(list, columns), strict=True)), {
        "name": [short_name(k.name) for _, k in rows],
        "kind": kind,
        "start": [digits(k.start_seconds, 8) for _, k in rows],
        "launch": [digits(t.launch_s[i, p.column], 8) for i, _ in rows],
        "launched": [digits(t.launched_s[i, p.column], 8) for i, _ in rows],
        "stream": [streams[k.stream] for _, k in rows],
        "module": [modules[short_name(k.module)] for _, k in rows],
        "streams": list(streams),
        "modules": list(modules),
    }


def _kind(p: Prediction, k: KernelPrediction) -> tuple[Any, ...]:
    used = unit(pipe_on(p.device, k.work.pipe)) if k.flops else ""
    times = map(digits, (k.seconds, k.low_seconds, k.high_seconds))
    bound = BOUND_BY.index(k.bound_by)
    op = short_name(short_type(k.op))
    return (op, *times, k.flops, k.bytes_read, k.bytes_written, bound, used, short_name(k.variant), k.source, k.repeat)


def _roofs(p: Prediction) -> dict[str, list[list[Any]]]:
    """What no kernel exceeds on this device: bytes/s of its memories, and FLOP/s of the units that the kernels use."""
    memories, units = ([[roof.name, digits(roof.rate)] for roof in kind] for kind in roofs(p))
    return {"memory": memories, "compute": units}


def _memory(p: Prediction) -> dict[str, Any]:
    """What the card's memory is taken by, and the bytes of activations over time, where they change."""
    m = p.memory
    times, alive = list[float](), list[int]()
    for at, now in _alive(p):
        if times and times[-1] == at:
            alive[-1] = max(alive[-1], now)
        elif not alive or alive[-1] != now:
            times.append(at)
            alive.append(now)
    held = (m.weights_bytes, m.activations_bytes, m.workspace_bytes, m.context_bytes)
    surplus = max(0, m.reserved_bytes - sum(held))
    names = ("weights", "activations", "workspace", "CUDA context", "allocator slack")
    return {
        "parts": [[name, size] for name, size in zip(names, (*held, surplus), strict=True) if size],
        "held": m.reserved_bytes, "capacity": m.capacity_bytes, "fits": m.fits, "host": m.host_bytes,
        "peak": m.activations_bytes, "times": times, "alive": alive,
    }  # fmt: skip


def _alive(p: Prediction) -> Iterator[tuple[float, int]]:
    """The start of the run and of each operator, and the bytes of activations that are alive then.

    An operator that launches nothing counts from the kernel before it; every other one has a kernel, in its order. Of
    a pipeline it is the stage that holds most, its operators, and the update of its weights behind them.
    """
    launched, now, end = (k for k in p.kernels if k.op != TRANSFER), 0.0, 0.0
    before, *during = p.run.footprint.alive
    yield now, before
    left, pipeline = iter(during), p.run.plan.pp > 1
    stage = fullest(p.run.stage_footprints) if pipeline else 0
    for o in p.run.run_graph.operators:
        if o.place not in ("free", "host"):
            k = next(launched)
            now, done = max(now, k.start_seconds), k.start_seconds + k.seconds  # exchanges run beside others
        else:
            done = now
        if not pipeline or stage_of(o, p.run.stage_of) == stage:
            end = max(end, done)
            yield digits(now, 8), next(left)
    yield from ((digits(end, 8), held) for held in left)


def _batches(p: Prediction, at_batch: AtBatch | None, tell: Progress | None) -> dict[str, Any]:
    """The run at other batches, as columns, and why there are none, if so."""
    tried, fixed = batches(p, at_batch, tell) if at_batch else batches(p, _no_other)
    return {
        "batch": [c.batch for c in tried],
        "seconds": [digits(c.seconds) for c in tried],
        "low": [digits(c.low_seconds) for c in tried],
        "high": [digits(c.high_seconds) for c in tried],
        "held": [c.process_bytes for c in tried],
        "fits": [c.fits for c in tried],
        "fixed": sentence(fixed),
    }


def _no_other(batch: int) -> Prediction:
    raise UsageError("other batches were not requested: to_html(at_batch=...) predicts them")


def _what_ifs(
    p: Prediction, changes: Changes, at_batch: AtBatch | None, tell: Progress | None
) -> dict[str, Any]:  # fmt: skip
    """What each change would bring, with those of several terms that help; and why none was tried, if so."""
    if is_long(p):
        return {"changes": [], "why": nothing(p)}
    if tell:
        tell("what if", 0, 0)
    try:
        alone = what_if(p, at_batch).changes
    except UsageError as e:
        return {"changes": [], "why": sentence(str(e))}
    names = {c.what for c in alone}
    together = [WhatIf("", c.what, c.seconds, at_best=c.most, why=c.why) for c in changes if c.what not in names]
    ranked = sorted((*alone, *together), key=lambda c: (c.seconds is None, c.seconds or 0.0))
    return {"changes": [_change(c) for c in ranked], "why": ""}


def _change(c: WhatIf) -> list[Any]:
    times = [None if x is None else digits(x) for x in (c.seconds, c.low_seconds, c.high_seconds)]
    return [sentence(c.what), *times, c.at_best, sentence(c.why)]

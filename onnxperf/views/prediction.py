"""A prediction on a terminal: ten lines by default, every part of it with `detail`. Drawn from a `Prediction` alone.

Names come from model files and may hold anything: they are printed as plain text, control characters replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from io import StringIO
from textwrap import shorten
from typing import TypeVar

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from onnxperf.answer.kernel_timeline import Gap, KernelPrediction, Phase, part_of
from onnxperf.answer.prediction import Prediction
from onnxperf.decide.changes import Change, changes, nothing, small_changes, tries
from onnxperf.graph import UNKNOWN_LENGTH, Note
from onnxperf.ground.errors import counted, printable
from onnxperf.ground.tables import (
    WIDTH,
    bare,
    duration,
    listed,
    number,
    shortened,
    size,
    stacked,
    tabulate,
    two_columns,
)
from onnxperf.views.headline import ON_A_CORE, SEEN, Changes, gain, headline, largest_shares, launches, scope
from onnxperf.views.on_cpu import advice, waits

BAR = 24
GAPS = 10  # phases and gaps listed
OPERATORS = 8  # types listed before the rest is summed up
BRIEF_OPERATORS = 4  # the same on the short screen
MATTERS = 0.01  # of the time: notes about less are not counted
QUIET = frozenset({"not-fused"})  # notes for those who ask for detail
#: Notes that the short screen shows.
URGENT = (
    "unsupported-card",
    "no-dtype",
    "failed-fusion",
    "unvalidated",
    "body-not-counted",
    "assumed-operator",
    "unknown-work",
    "other-device",
    "host-fallback",
    "unfused-quantisation",
    "general-resize",
    "weights-written-out",
    "assumed-trip-count",
    UNKNOWN_LENGTH,
    "gpu-alias",
    "release",
)
BRIEF_NOTES = 3  # of these at most
GROWING = ("powers of two", "doubling")  # arenas of ONNX Runtime, which arena_extend_strategy can have otherwise
MESSAGE = 120  # characters of such a note
NO_MODULES = "no times by module: this file has no module paths from its exporter"
NAMED = 6  # nodes of a note on the detailed screen

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", KernelPrediction, Phase)


def show(
    out: Console, p: Prediction, *, top: int | None = None, detail: bool = False, changes: Changes = (),
    depth: int | None = None, untried: bool = False,
) -> None:  # fmt: skip
    """Print a prediction: ten lines, or with `detail` everything that is known of it.

    `top` is how many different kernels to list: by default none, with `detail` all. `changes` are the same run under
    other terms, and `untried` says that there are more of them; `depth` is that of the modules by which time is summed
    up, if it is.
    """
    parts: list[RenderableType] = [headline(p, changes, " - " if out.options.ascii_only else " · ", untried)]
    if detail:
        from onnxperf.explanation import explain_run
        from onnxperf.views.explanation import causes

        parts += [_shares(out, p), two_columns(facts(p)), causes(out, explain_run(p.run)), _by_operator(out, p)]
        parts.append(_changes(out, p, changes))
        if p.run.method.scheduled:
            parts += [_phases(out, p), _gaps(out, p)]
    else:
        parts.append(two_columns(_brief(p)))
    if p.first_run is not None:
        from onnxperf.views.first_run import starting

        parts.append(starting(out, p.first_run))
    if depth is not None:
        named = any(k.module for k in p.kernels)
        parts.append(_by_module(out, p, depth) if named else Text(NO_MODULES, style="dim"))
    parts.append(_kernels(out, _alike(p.kernels)[: None if detail and top is None else top or 0]))
    parts.append(_notes(p.warnings) if detail else urgent(p.warnings))
    parts.append(Text(printable(p.scope) if detail else "", style="dim"))
    out.print(stacked(parts), end="")


def report(p: Prediction, *, detail: bool = False) -> str:
    """What `show` prints, as text of WIDTH characters a line without colours."""
    text = StringIO()
    small = [] if detail else small_changes(p)
    out = Console(file=text, width=WIDTH, highlight=False, color_system=None)
    show(out, p, detail=detail, changes=small or changes(p), untried=bool(small))
    return bare(text.getvalue())


def _brief(p: Prediction) -> Iterator[tuple[str, str]]:
    """What bounds the run, which operators take the time, the memory, and how many notes there are."""
    if shares := largest_shares(p):
        yield "bound by", ", ".join(f"{name} {share:.0%}" for name, share in shares)
        if shares[0][0] == "cpu":
            yield "", advice(p)
    if p.kernels:
        yield "operators", _brief_operators(p)
    yield "memory", _memory(p)
    yield "scope", scope(p)
    yield "accuracy", str(p.accuracy)
    loud = _loud(p)
    quiet = sum(note.code in QUIET for note in p.warnings)
    near = f", and {quiet} on missed fusions" if quiet else ""
    yield "notes", f"{loud}{near}; --detail shows {'them and ' if p.warnings else ''}every kernel"


def _loud(p: Prediction) -> int:
    """How many notes are worth a look: not on fusions, nor about kernels that take less than MATTERS of the time."""
    kernels_of: dict[str, list[int]] = {}  # by the node
    for i, k in enumerate(p.kernels):
        for node in k.nodes:
            kernels_of.setdefault(node, []).append(i)

    def matters(note: Note) -> bool:
        concerned = {i for node in note.nodes for i in kernels_of.get(node, ())}
        return not concerned or sum(p.kernels[i].seconds for i in concerned) >= MATTERS * p.seconds

    return sum(note.code not in QUIET and matters(note) for note in p.warnings)


def _brief_operators(p: Prediction) -> str:
    """The types of operators that take most of the time, and the time without any, as shares of the run."""
    ranked = [(_short(op), _seconds(kernels)) for op, kernels in _grouped(p.kernels, lambda k: k.op)]
    on_cpu = [(f"{_short(op)} on the CPU", s) for op, s in waits(p).items()]
    ranked += on_cpu
    ranked.sort(key=lambda part: -part[1])
    rest = ranked[BRIEF_OPERATORS:]
    parts = [*ranked[:BRIEF_OPERATORS], (counted(len(rest), "other type"), sum(s for _, s in rest))]
    if p.run.method.scheduled:
        idle = sum(gap.seconds for gap in p.gaps) - sum(s for _, s in on_cpu)
        parts.append(("idle" if launches(p) else "between operators", idle))
    return ", ".join(f"{name} {s / p.seconds:.0%}" for name, s in parts if s / p.seconds >= SEEN)


def urgent(notes: Sequence[Note]) -> Text:
    """The notes that change how an answer is to be read: one for each code, and long ones cut."""
    lines = []
    for code in URGENT:
        if alike := [note for note in notes if note.code == code]:
            more = f" (and {len(alike) - 1} more)" if len(alike) > 1 else ""
            lines.append((code, shorten(printable(alike[0].message), MESSAGE, placeholder=" ...") + more, ""))
    return listed(lines[:BRIEF_NOTES])


def _grouped(items: Iterable[T], by: Callable[[T], K]) -> list[tuple[K, list[T]]]:
    """Kernels or phases by what they have in common, those first that take most time together."""
    groups: dict[K, list[T]] = {}
    for x in items:
        groups.setdefault(by(x), []).append(x)
    return sorted(groups.items(), key=lambda group: -_seconds(group[1]))


def _seconds(items: Iterable[KernelPrediction | Phase]) -> float:
    return sum(x.seconds for x in items)


def _shares(out: Console, p: Prediction) -> Table:
    full = "#" if out.options.ascii_only else "█"
    means = meanings(p)
    rows = [(n, f"{share:.0%}", full * max(1, round(share * BAR)), means[n]) for n, share in largest_shares(p)]
    return tabulate(out, ("!name", "!share", "!bar", "meaning"), rows, spare=("bar",), heads=False)


def meanings(p: Prediction) -> dict[str, str]:
    """What it means that a run is bound by something, and what helps, on that kind of device."""
    replayed = {"launch": "launch overhead of kernels; larger batches help"} if p.scenario.cuda_graph else {}
    return {**_MEANING, "cpu": advice(p), **(replayed if launches(p) else _ON_A_CORE)}


_MEANING = {
    "compute": "arithmetic or instruction issue; fusion or a lower precision helps",
    "memory": "DRAM or L2 bandwidth; a lower precision or larger batches help",
    "latency": "too little parallel work to fill the GPU; larger batches help",
    "launch": "launch overhead of kernels; larger batches or a CUDA graph help",
    "transfer": "H2D and D2H copies",
    "communication": "communication with other GPUs",
}
_ON_A_CORE = {
    "latency": f"{ON_A_CORE['latency']}: elementwise loops, short rows, partly filled vector registers",
    "launch": ON_A_CORE["launch"],
}


def _memory(p: Prediction) -> str:
    """How much memory tensors take, of what kind, and whether the card holds them with CUDA's context."""
    m = p.memory
    weights, activations, workspace = map(size, (m.weights_bytes, m.activations_bytes, m.workspace_bytes))
    training = p.scenario.mode == "training"
    held = "weights, optimizer states" if training else "weights"
    live = "activations, gradients" if training else "activations"
    parts = f"{held} {weights}, {live} {activations}, workspace {workspace}"
    return f"tensors {size(m.total_bytes)}: {parts}; {'fits' if m.fits else 'DOES NOT FIT'}"


def facts(p: Prediction) -> Iterator[tuple[str, str]]:
    m, w = p.memory, p.work
    added, path, least = map(duration, (p.sum_seconds, p.critical_path_seconds, p.lower_bound_seconds))
    yield "kernels", f"{len(p.kernels)}: {added} sum of kernels, {path} critical path, {least} speed-of-light bound"
    products, others = number(w["matrix_flops"] / 1e9, 4), number(w["vector_flops"] / 1e9)
    flops = f"{products} GFLOP in GEMM and convolution, {others} in other operators"
    yield "work", f"{flops}; {size(w['bytes_read'])} read, {size(w['bytes_written'])} written"
    yield "memory", _memory(p)
    home = f"; {size(m.host_bytes)} of host memory" if m.host_bytes else ""
    context = "CUDA context and " if m.context_bytes else ""
    growing = p.run.runtime.policy.arena in GROWING
    exact = f"; some {size(m.as_requested_bytes)} with arena_extend_strategy kSameAsRequested" if growing else ""
    yield "", f"GPU memory use {size(m.reserved_bytes)}, incl. {context}allocator slack{exact}{home}"
    if p.kernels and p.run.method.scheduled and launches(p):
        yield "pace", _pace(p)
        idle = sum(gap.seconds for gap in p.gaps)
        yield "gaps", f"{duration(idle)} without a kernel, in {len(p.gaps)} gaps; the longest {_gap(p.gaps[0])}"
    for i, (name, figure) in enumerate(p.trtexec.lines() if p.trtexec else ()):
        yield "" if i else "trtexec", f"{name}: {figure}"
    if p.watts is not None and p.joules_per_sample is not None:
        slowed = f"; the power limit slows every kernel by {p.power_factor - 1:.0%}" if p.power_factor > 1.01 else ""
        yield "power", f"{p.watts:.0f} W on average, {number(p.joules_per_sample)} J per sample{slowed}"
    yield "accuracy", str(p.accuracy)


def _pace(p: Prediction) -> str:
    """Whether kernels, the host or copies set the pace, for which share of the time, and where for longest."""
    parts = []
    for held, phases in _grouped(p.phases, lambda phase: phase.stalled_on):
        share, longest = _seconds(phases) / p.seconds, max(phases, key=lambda phase: phase.seconds)
        if share < SEEN:
            continue
        first = shortened(longest.first) or "the start"
        where = f"from {first} to {shortened(longest.last)}" if longest.first != longest.last else f"at {first}"
        parts.append(f"{_PACE[held]} {share:.0%} of the time (longest {where})")
    return "; ".join(parts)


_PACE = {"stream": "GPU-bound", "host": "host-bound", "copies": "copy-bound", "communication": "communication-bound"}


def _gap(gap: Gap) -> str:
    if not gap.after:
        return f"{duration(gap.seconds)} at the end, until the host is notified"
    return f"{duration(gap.seconds)} before {shortened(gap.after)} ({_WAITS[gap.stalled_on]})"


_WAITS = {"stream": "between kernels", "host": "host-bound", "copies": "copies", "communication": "communication"}


def _phases(out: Console, p: Prediction) -> Table:
    """The phases of the run that take longest, with what sets their pace."""
    names = ("~phase from", "~to", "#kernels", "#time", "#idle", "!pace")
    rows = []
    for s in sorted(p.phases, key=lambda s: -s.seconds)[:GAPS]:
        first, last = (kernel or "(start)" for kernel in (s.first, s.last))
        rows.append((first, last, str(s.kernels), duration(s.seconds), duration(s.idle_seconds), _PACE[s.stalled_on]))
    return tabulate(out, names, rows, spare=("idle",))


def _gaps(out: Console, p: Prediction) -> Table:
    """The gaps that cost most."""
    names = ("~gap after", "~before", "#time", "!waiting for")
    rows = [(g.before or "(start)", g.after or "(end)", duration(g.seconds), g.stalled_on) for g in p.gaps[:GAPS]]
    return tabulate(out, names, rows)


def _by_operator(out: Console, p: Prediction) -> Table:
    """A line for each type of operator."""
    groups = _grouped(p.kernels, lambda k: k.op)
    lines = [_line(p, _short(op), kernels) for op, kernels in groups[:OPERATORS]]
    if rest := [k for _, kernels in groups[OPERATORS:] for k in kernels]:
        lines.append(_line(p, "(others)", rest))
    for op, s in waits(p).items():
        times = sum(o.op == op for o in p.cpu_operators)
        lines.append((f"{_short(op)} on the CPU", str(times), duration(s), f"{s / p.seconds:.1%}", "cpu"))
    names = ("operator", "#kernels", "#time", "#share", "mostly bound by")
    return tabulate(out, names, lines, spare=("mostly bound by", "kernels"))


def _by_module(out: Console, p: Prediction, depth: int) -> Table:
    """A line for each module of this depth that nodes were exported from."""
    groups = _grouped(p.kernels, lambda k: part_of(k.module, depth))
    lines = [_line(p, module or "(no module)", kernels) for module, kernels in groups]
    names = ("~module", "#kernels", "#time", "#share", "mostly bound by")
    return tabulate(out, names, lines, spare=("mostly bound by", "kernels"))


def _line(p: Prediction, name: str, kernels: Sequence[KernelPrediction]) -> tuple[str, ...]:
    """What kernels have in common, how many they are, their time, its share, and what bounds most of it."""
    seconds, (mostly, _) = _seconds(kernels), _grouped(kernels, lambda k: k.limit)[0]
    return name, str(sum(k.repeat for k in kernels)), duration(seconds), f"{seconds / p.seconds:.1%}", _word(mostly)


def _word(limit: str) -> str:
    """What bounds a kernel, in a narrow column."""
    return limit.rpartition(" ")[2]


def _short(op: str) -> str:
    """An operator's type without its domain."""
    return shortened(op.rpartition("::")[2])


def _alike(kernels: Iterable[KernelPrediction]) -> list[list[KernelPrediction]]:
    """Kernels of equal work and time together, those that take most time first."""
    groups = _grouped(kernels, lambda k: (k.op, k.seconds, k.repeat, k.flops, k.bytes_read, k.bound_by))
    return [alike for _, alike in groups]


def _kernels(out: Console, groups: Iterable[Sequence[KernelPrediction]]) -> Table:
    """A row for each group of kernels with equal work."""
    names = ("~kernel", "operator", "#times", "#each", "#80% interval", "#GFLOP", "#bytes", "!bound by", "!source")
    rows = []
    for k, *others in groups:
        times = k.repeat * (1 + len(others))
        each, low, high = (duration(s / k.repeat) for s in (k.seconds, k.low_seconds, k.high_seconds))
        gflop = number(k.flops / k.repeat / 1e9) if k.flops else ""
        moved = size((k.bytes_read + k.bytes_written) / k.repeat)
        named = (k.name, _short(k.op), f"{times} x")
        rows.append((*named, each, f"{low} - {high}", gflop, moved, _word(k.limit), k.source))
    return tabulate(out, names, rows, spare=("80% interval", "source", "GFLOP", "bytes", "operator", "bound by"))


def _changes(out: Console, p: Prediction, changes: Changes) -> Table:
    rows = [(_with_reason(c), duration(c.run_seconds or c.seconds), gain(p, c)) for c in changes]
    rows += [] if rows or not tries(p) else [(nothing(p), "", "")]
    return tabulate(out, ("suggestions", "#time", "#faster"), rows)


def _with_reason(c: Change) -> str:
    return f"{c.what}: {c.why}" if c.why else c.what


def _notes(notes: Iterable[Note]) -> Text:
    """Every note with the first nodes that it is about; the JSON has all."""
    return listed((note.code, note.message, _first_names(note.nodes)) for note in notes)


def _first_names(nodes: Sequence[str]) -> str:
    more = len(nodes) - NAMED
    shown = [printable(n) for n in (nodes if more <= 1 else nodes[:NAMED])]
    return ", ".join(shown) + (f" and {more} more nodes" if more > 1 else "")

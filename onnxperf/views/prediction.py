"""A prediction on a terminal: ten lines by default, every part of it with `detail`. Drawn from a `Prediction` alone.

Names come from model files and may hold anything: they are printed as plain text, control characters replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from onnxperf.errors import printable
from onnxperf.graph import Note
from onnxperf.prediction import Gap, KernelPrediction, Phase, Prediction
from onnxperf.scenario import PLATFORMS, usual_host
from onnxperf.tables import duration, listed, shortened, size, stacked, tabulate, two_columns

BAR = 24
GAPS = 10  # phases and gaps listed
OPERATORS = 8  # types listed before the rest is summed up
BRIEF_OPERATORS = 4  # the same on the short screen
SEEN = 0.005  # shares below this one are left out
ALIKE = 1.02  # of the fastest change's time: the first change within it is named, which asks for least
QUIET = frozenset({"not-fused"})  # notes for those who ask for detail
#: Notes that the short screen shows.
URGENT = ("failed-fusion", "assumed-operator", "host-fallback", "assumed-trip-count", "gpu-alias")
BRIEF_NOTES = 3  # of these at most
MESSAGE = 120  # characters of such a note
DOES_NOT_FIT = "does-not-fit"  # the note that stands in the headline

Changes = Sequence[tuple[str, Prediction]]
K = TypeVar("K", bound=Hashable)
T = TypeVar("T", KernelPrediction, Phase)


def show(out: Console, p: Prediction, *, top: int | None = None, detail: bool = False, changes: Changes = ()) -> None:
    """Print a prediction: ten lines, or with `detail` everything that is known of it.

    `top` is how many different kernels to list: by default none, with `detail` every kernel by itself. `changes` are
    the same run under other terms.
    """
    parts: list[RenderableType] = [_headline(p, detail=detail)]
    if detail:
        parts += [_shares(out, p), two_columns(_facts(p)), _by_operator(out, p), _changes(out, p, changes)]
        if p.run.method.scheduled:
            parts += [_phases(out, p), _gaps(out, p)]
    else:
        parts.append(two_columns(_brief(p, changes)))
    parts.append(_kernels(out, [[k] for k in p.kernels] if detail and top is None else _alike(p.kernels)[: top or 0]))
    parts.append(_notes(p.warnings) if detail else _urgent(p.warnings))
    out.print(stacked(parts), end="")


def _headline(p: Prediction, *, detail: bool) -> Text:
    """The model and the card, what was asked, how long that takes; first of all where it does not fit."""
    s = p.scenario
    text = Text()
    text.append(printable(f"{s.model} on {p.device.name} ({s.gpu})") + "\n", style="bold")
    for note in p.warnings:
        if note.code == DOES_NOT_FIT:
            text.append(f"DOES NOT FIT: {printable(note.message)}\n", style="bold red")
    text.append(f"{_terms(p)}\n", style="dim")
    text.append(f"\n{duration(p.seconds)}" if detail else duration(p.seconds), style="bold green")
    text.append(f"  ({p.interval:.0%} between {duration(p.low_seconds)} and {duration(p.high_seconds)})")
    rate = p.throughput_per_second
    text.append(f"   {rate:,.0f} samples/s" if rate >= 1000 else f"   {rate:.4g} samples/s")
    if detail:
        text.append(f"\n{p.scope}", style="dim")
    return text


def _terms(p: Prediction) -> str:
    """What was asked: the runtime, the precision, the batch, the method, and what else is not the default."""
    s = p.scenario
    runtime = s.runtime + (f" until {s.ort_version}" if s.ort_version else "")
    fused = " after onnxruntime.transformers" if s.ort_transformers else ""
    terms = (
        f"{runtime}{fused}", f"{s.precision} precision", s.layout or "", f"batch {s.batch}", s.method,
        f"{s.opt_level} optimisations" if s.opt_level != "all" else "",
        "CUDA graph" if s.cuda_graph else "",
        f"{s.streams} streams" if s.streams > 1 else "",
        f"with transfers{' of pageable memory' if s.pageable else ''}" if s.include_transfers else "",
        f"{s.host} host" if s.host != usual_host(p.device) else "",
        f"at most {s.power_limit_W:g} W" if s.power_limit_W else "",
        f"clock {s.clock_Hz / 1e6:g} MHz" if s.clock_Hz else "",
    )  # fmt: skip
    return ", ".join(filter(None, terms))


def _brief(p: Prediction, changes: Changes) -> Iterator[tuple[str, str]]:
    """What bounds the run, which operators take the time, the memory, the best change, and how many notes there are."""
    if shares := _largest_shares(p):
        yield "bound by", ", ".join(f"{name} {share:.0%}" for name, share in shares)
        yield "", f"{shares[0][0]}: {_meanings(p)[shares[0][0]]}"
    if p.kernels:
        yield "operators", _brief_operators(p)
    yield "memory", _memory(p)
    if changes:
        fastest = min(then.seconds for _, then in changes)
        what, then = next((what, then) for what, then in changes if then.seconds <= ALIKE * fastest)
        yield "faster", f"{p.seconds / then.seconds:.2f}x with {what}: {duration(then.seconds)}"
    loud = sum(note.code not in QUIET for note in p.warnings)
    near = f", and {quiet} on fusions that nearly applied" if (quiet := len(p.warnings) - loud) else ""
    yield "notes", f"{loud}{near}; --detail shows {'them and ' if p.warnings else ''}every kernel"


def _brief_operators(p: Prediction) -> str:
    """The types of operators that take most of the time, and the time without any, as shares of the run."""
    ranked = [(_short(op), _seconds(kernels)) for op, kernels in _grouped(p.kernels, lambda k: k.op)]
    rest = ranked[BRIEF_OPERATORS:]
    parts = [*ranked[:BRIEF_OPERATORS], (f"{len(rest)} other types", sum(s for _, s in rest))]
    if p.run.method.scheduled:
        parts.append(("idle" if _launches(p) else "between operators", sum(gap.seconds for gap in p.gaps)))
    return ", ".join(f"{name} {s / p.seconds:.0%}" for name, s in parts if s / p.seconds >= SEEN)


def _urgent(notes: Sequence[Note]) -> Text:
    """The notes that change how an answer is to be read: one for each code, and long ones cut."""
    lines = []
    for code in URGENT:
        if found := [note for note in notes if note.code == code]:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            message = printable(found[0].message)
            lines.append((code, f"{message if len(message) <= MESSAGE else message[: MESSAGE - 3] + '...'}{more}", ""))
    return listed(lines[:BRIEF_NOTES])


def _grouped(items: Iterable[T], by: Callable[[T], K]) -> list[tuple[K, list[T]]]:
    """Kernels or phases by what they have in common, those first that take most time together."""
    groups: dict[K, list[T]] = {}
    for x in items:
        groups.setdefault(by(x), []).append(x)
    return sorted(groups.items(), key=lambda group: -_seconds(group[1]))


def _seconds(items: Iterable[KernelPrediction | Phase]) -> float:
    return sum(x.seconds for x in items)


def _launches(p: Prediction) -> bool:
    """True on a card, where a host launches kernels; a processor computes them itself."""
    return PLATFORMS[p.device.kind].launches


def _largest_shares(p: Prediction) -> list[tuple[str, float]]:
    """What bounds the run with its share of the time, the largest first."""
    return sorted(((name, share) for name, share in p.bound_by.items() if share >= SEEN), key=lambda x: -x[1])


def _shares(out: Console, p: Prediction) -> Table:
    full = "#" if out.options.ascii_only else "█"
    means = _meanings(p)
    rows = [(n, f"{share:.0%}", full * max(1, round(share * BAR)), means[n]) for n, share in _largest_shares(p)]
    return tabulate(out, ("!name", "!share", "!bar", "meaning"), rows, spare=("bar",), heads=False)


def _meanings(p: Prediction) -> dict[str, str]:
    """What it means that a run is bound by something, and what helps, on that kind of device."""
    replayed = {"launch": "starting kernels is the limit; larger batches help"} if p.scenario.cuda_graph else {}
    return {**_MEANING, **(replayed if _launches(p) else _ON_A_CORE)}


_MEANING = {
    "compute": "arithmetic is the limit; a faster type or fewer FLOPs help",
    "memory": "reading and writing memory is the limit; a smaller type or larger batches help",
    "latency": "too little work at once to fill the card; larger batches help",
    "launch": "starting kernels is the limit; larger batches or a CUDA graph help",
    "transfer": "copies between host and card are the limit",
    "communication": "exchange with other cards is the limit",
}
_ON_A_CORE = {
    "latency": "arithmetic below its peak: elementwise loops, short rows, registers that are not full",
    "launch": "what the runtime spends on each operator",
}


def _memory(p: Prediction) -> str:
    """How much memory a run takes, of how much, whether that fits, and what it is taken by."""
    m = p.memory
    weights, activations, workspace = map(size, (m.weights_bytes, m.activations_bytes, m.workspace_bytes))
    parts = f"weights {weights}, activations {activations}, workspace {workspace}"
    return f"{size(m.total_bytes)} of {size(m.capacity_bytes)}, {'fits' if m.fits else 'DOES NOT FIT'}: {parts}"


def _facts(p: Prediction) -> Iterator[tuple[str, str]]:
    m, w = p.memory, p.work
    added, path, least = map(duration, (p.sum_seconds, p.critical_path_seconds, p.lower_bound_seconds))
    yield "kernels", f"{len(p.kernels)}: {added} added up, {path} on the longest path, {least} at physical peak"
    flops = f"{w['matrix_flops'] / 1e9:.4g} GFLOP in products, {w['vector_flops'] / 1e9:.3g} elsewhere"
    yield "work", f"{flops}; {size(w['bytes_read'])} read, {size(w['bytes_written'])} written"
    yield "memory", _memory(p)
    home = f"; {size(m.host_bytes)} on the host" if m.host_bytes else ""
    context = " and CUDA's context" if m.context_bytes else ""
    beyond = f"its allocator's surplus{context} included"
    yield "", f"the process holds {size(m.reserved_bytes)}, {beyond}{home}"
    if p.kernels and p.run.method.scheduled and _launches(p):
        yield "paced by", _pace(p)
        idle = sum(gap.seconds for gap in p.gaps)
        yield "gaps", f"{duration(idle)} without a kernel, in {len(p.gaps)}; the longest {_gap(p.gaps[0])}"
    if p.power_factor > 1.01:
        yield "power", f"the card's limit slows every kernel by {p.power_factor - 1:.0%}"


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


_PACE = {"stream": "kernels", "host": "the host", "copies": "copies"}


def _gap(gap: Gap) -> str:
    if not gap.after:
        return f"{duration(gap.seconds)} at the end, until the host knows"
    return f"{duration(gap.seconds)} before {shortened(gap.after)} ({_WAITS[gap.stalled_on]})"


_WAITS = {"stream": "between kernels", "host": "not launched yet", "copies": "copies"}


def _phases(out: Console, p: Prediction) -> Table:
    """The phases of the run that take longest, with what sets their pace."""
    names = ("phase from", "to", "#kernels", "#time", "#idle", "!pace set by")
    rows = []
    for s in sorted(p.phases, key=lambda s: -s.seconds)[:GAPS]:
        first, last = (shortened(kernel) or "(start)" for kernel in (s.first, s.last))
        rows.append((first, last, str(s.kernels), duration(s.seconds), duration(s.idle_seconds), s.stalled_on))
    return tabulate(out, names, rows, spare=("idle",))


def _gaps(out: Console, p: Prediction) -> Table:
    """The gaps that cost most."""
    names = ("gap after", "before", "#time", "!waiting for")
    rows = [
        (shortened(g.before) or "(start)", shortened(g.after) or "(end)", duration(g.seconds), g.stalled_on)
        for g in p.gaps[:GAPS]
    ]
    return tabulate(out, names, rows)


def _by_operator(out: Console, p: Prediction) -> Table:
    """A line for each type of operator."""

    def line(name: str, kernels: Sequence[KernelPrediction]) -> tuple[str, ...]:
        seconds, (mostly, _) = _seconds(kernels), _grouped(kernels, lambda k: k.bound_by)[0]
        return name, str(sum(k.repeat for k in kernels)), duration(seconds), f"{seconds / p.seconds:.1%}", mostly

    groups = _grouped(p.kernels, lambda k: k.op)
    lines = [line(_short(op), kernels) for op, kernels in groups[:OPERATORS]]
    if rest := [k for _, kernels in groups[OPERATORS:] for k in kernels]:
        lines.append(line("(others)", rest))
    names = ("operator", "#kernels", "#time", "#share", "mostly bound by")
    return tabulate(out, names, lines, spare=("mostly bound by", "kernels"))


def _short(op: str) -> str:
    """An operator's type without its domain."""
    return shortened(op.rpartition("::")[2])


def _alike(kernels: Iterable[KernelPrediction]) -> list[list[KernelPrediction]]:
    """Kernels of equal work and time together, those that take most time first."""
    groups = _grouped(kernels, lambda k: (k.op, k.seconds, k.repeat, k.flops, k.bytes_read, k.bound_by))
    return [alike for _, alike in groups]


def _kernels(out: Console, groups: Iterable[Sequence[KernelPrediction]]) -> Table:
    """A row for each group of kernels with equal work."""
    names = ("kernel", "operator", "#times", "#each", "#range", "#GFLOP", "#moved", "!bound by", "!source")
    rows = []
    for k, *others in groups:
        times = k.repeat * (1 + len(others))
        each, low, high = (duration(s / k.repeat) for s in (k.seconds, k.low_seconds, k.high_seconds))
        gflop = f"{k.flops / k.repeat / 1e9:.3g}" if k.flops else ""
        moved = size((k.bytes_read + k.bytes_written) / k.repeat)
        named = (shortened(k.name), _short(k.op), f"{times} x")
        rows.append((*named, each, f"{low} - {high}", gflop, moved, k.bound_by, k.source))
    return tabulate(out, names, rows, spare=("range", "source", "GFLOP", "moved", "operator", "bound by"))


def _changes(out: Console, p: Prediction, changes: Changes) -> Table:
    rows = [(what, duration(other.seconds), f"{p.seconds / other.seconds:.2f}x") for what, other in changes]
    return tabulate(out, ("what would make it faster", "#time", "#faster"), rows)


def _notes(notes: Iterable[Note]) -> Text:
    """Every note with all nodes that it is about."""
    return listed((note.code, note.message, ", ".join(map(printable, note.nodes))) for note in notes)

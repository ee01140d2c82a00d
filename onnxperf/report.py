"""A prediction on a terminal: ten lines by default, every part of it with `detail`. Drawn from a `Prediction` alone.

Names come from model files and may hold anything: they are printed as plain text, control characters replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from gpu_specs import Device
from onnxperf.errors import printable
from onnxperf.graph import Note
from onnxperf.prediction import Gap, KernelPrediction, Phase, Prediction
from onnxperf.scenario import PLATFORMS
from onnxperf.tables import GAP, duration, row, shortened, size, stacked, tabulate

BAR = 24
GAPS = 10  # phases and gaps listed
OPERATORS = 8  # types listed before the rest is summed up
BRIEF_OPERATORS = 4  # the same on the short screen
SEEN = 0.005  # shares below this one are left out
ALIKE = 1.02  # of the fastest change's time: the first change within it is named, which asks for least
QUIET = frozenset({"not-fused"})  # notes for those who ask for detail
URGENT = ("assumed-operator", "host-fallback", "assumed-trip-count", "gpu-alias")  # notes that the short screen shows
BRIEF_NOTES = 3  # of these at most
MESSAGE = 120  # characters of such a note
DOES_NOT_FIT = "does-not-fit"  # the note that stands in the headline

Changes = Sequence[tuple[str, Prediction]]


def show(
    out: Console, p: Prediction, device: Device, *, top: int | None = None, detail: bool = False, changes: Changes = ()
) -> None:
    """Print a prediction: ten lines, or with `detail` everything that is known of it.

    `top` is how many different kernels to list: by default none, with `detail` every kernel by itself. `changes` are
    the same run under other terms.
    """
    parts: list[RenderableType] = [_headline(p, device, detail=detail)]
    if detail:
        parts += [_shares(out, p, device), _facts(p, device), _by_operator(out, p), _changes(out, p, changes)]
        if p.run.method.scheduled:
            parts += [_phases(out, p), _gaps(out, p)]
    else:
        parts.append(_brief(p, device, changes))
    parts.append(_kernels(out, [[k] for k in p.kernels] if detail and top is None else _alike(p)[: top or 0]))
    parts.append(_notes(p.warnings) if detail else _urgent(p.warnings))
    out.print(stacked(parts), end="")


def _headline(p: Prediction, device: Device, *, detail: bool) -> Text:
    """The model and the card, what was asked, how long that takes; first of all where it does not fit."""
    s = p.scenario
    text = Text()
    text.append(printable(f"{s.model} on {device.name} ({s.gpu})") + "\n", style="bold")
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
    terms = [f"{runtime}{fused}", f"{s.precision} precision", f"batch {s.batch}", s.method]
    terms += ["CUDA graph"] if s.cuda_graph else []
    terms += [f"{s.streams} streams"] if s.streams > 1 else []
    terms += ["with transfers"] if s.include_transfers else []
    terms += [f"at most {s.power_limit_W:g} W"] if s.power_limit_W else []
    terms += [f"clock {s.clock_Hz / 1e6:g} MHz"] if s.clock_Hz else []
    return ", ".join(terms)


def _brief(p: Prediction, device: Device, changes: Changes) -> Table:
    """What bounds the run, which operators take the time, the memory, the best change, and how many notes there are."""
    table = _two_columns()
    shares = [(name, share) for name, share in _ranked(p.bound_by) if share >= SEEN]
    if shares:
        row(table, "bound by", ", ".join(f"{name} {share:.0%}" for name, share in shares))
        row(table, "", f"{shares[0][0]}: {_meanings(p, device)[shares[0][0]]}")
    if p.kernels:
        row(table, "operators", _brief_operators(p, device))
    row(table, "memory", _memory(p))
    if changes:
        fastest = min(then.seconds for _, then in changes)
        what, then = next((what, then) for what, then in changes if then.seconds <= ALIKE * fastest)
        row(table, "faster", f"{p.seconds / then.seconds:.2f}x with {what}: {duration(then.seconds)}")
    loud = sum(note.code not in QUIET for note in p.warnings)
    near = f", and {quiet} on fusions that nearly applied" if (quiet := len(p.warnings) - loud) else ""
    row(table, "notes", f"{loud}{near}; --detail shows {'them and ' if p.warnings else ''}every kernel")
    return table


def _brief_operators(p: Prediction, device: Device) -> str:
    """The types of operators that take most of the time, and the time without any, as shares of the run."""
    seconds: dict[str, float] = {}
    for k in p.kernels:
        seconds[k.op] = seconds.get(k.op, 0.0) + k.seconds
    ranked = _ranked(seconds)
    parts = [(_short(op), s) for op, s in ranked[:BRIEF_OPERATORS]]
    parts.append((f"{len(ranked) - BRIEF_OPERATORS} other types", sum(s for _, s in ranked[BRIEF_OPERATORS:])))
    if p.run.method.scheduled:
        idle = "idle" if PLATFORMS[device.kind].launches else "between operators"
        parts.append((idle, sum(gap.seconds for gap in p.gaps)))
    return ", ".join(f"{name} {s / p.seconds:.0%}" for name, s in parts if s / p.seconds >= SEEN)


def _urgent(notes: Sequence[Note]) -> Text:
    """The notes that change how an answer is to be read: one for each code, and long ones cut."""
    lines = []
    for code in URGENT:
        if found := [note for note in notes if note.code == code]:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            message = printable(found[0].message)
            lines.append((code, f"{message if len(message) <= MESSAGE else message[: MESSAGE - 3] + '...'}{more}"))
    return _listed(lines[:BRIEF_NOTES])


def _ranked(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    """Names with their time or share, the largest first."""
    return sorted(seconds.items(), key=lambda x: -x[1])


def _two_columns() -> Table:
    """A table of labels and what stands beside them."""
    table = Table.grid(padding=(0, GAP))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _shares(out: Console, p: Prediction, device: Device) -> Table:
    full = "#" if out.options.ascii_only else "█"
    means = _meanings(p, device)
    ranked = [(name, share) for name, share in _ranked(p.bound_by) if share >= SEEN]
    rows = [(name, f"{share:.0%}", full * max(1, round(share * BAR)), means[name]) for name, share in ranked]
    return tabulate(out, ("!name", "!share", "!bar", "meaning"), rows, spare=("bar",), heads=False)


def _meanings(p: Prediction, device: Device) -> dict[str, str]:
    """What it means that a run is bound by something, and what helps, on that kind of device."""
    replayed = {"launch": "starting kernels is the limit; larger batches help"} if p.scenario.cuda_graph else {}
    return {**_MEANING, **(replayed if PLATFORMS[device.kind].launches else _ON_A_CORE)}


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


def _facts(p: Prediction, device: Device) -> Table:
    m, w = p.memory, p.work
    table = _two_columns()
    added, path, least = map(duration, (p.sum_seconds, p.critical_path_seconds, p.lower_bound_seconds))
    row(table, "kernels", f"{len(p.kernels)}: {added} added up, {path} on the longest path, {least} at physical peak")
    flops = f"{w['matrix_flops'] / 1e9:.4g} GFLOP in products, {w['vector_flops'] / 1e9:.3g} elsewhere"
    row(table, "work", f"{flops}; {size(w['bytes_read'])} read, {size(w['bytes_written'])} written")
    row(table, "memory", _memory(p))
    home = f"; {size(m.host_bytes)} on the host" if m.host_bytes else ""
    context = " and CUDA's context" if m.context_bytes else ""
    beyond = f"its allocator's surplus{context} included"
    row(table, "", f"the process holds {size(m.reserved_bytes)}, {beyond}{home}")
    if p.kernels and p.run.method.scheduled and PLATFORMS[device.kind].launches:
        row(table, "paced by", _pace(p))
        idle = sum(gap.seconds for gap in p.gaps)
        row(table, "gaps", f"{duration(idle)} without a kernel, in {len(p.gaps)}; the longest {_gap(p.gaps[0])}")
    if p.power_factor > 1.01:
        row(table, "power", f"the card's limit slows every kernel by {p.power_factor - 1:.0%}")
    return table


def _pace(p: Prediction) -> str:
    """Whether kernels, the host or copies set the pace, for which share of the time, and where for longest."""
    stalled_on: dict[str, list[Phase]] = {}
    for s in p.phases:
        stalled_on.setdefault(s.stalled_on, []).append(s)
    parts = []
    for held, phases in sorted(stalled_on.items(), key=lambda x: -sum(s.seconds for s in x[1])):
        seconds, s = sum(s.seconds for s in phases), max(phases, key=lambda s: s.seconds)
        if seconds < 0.005 * p.seconds:
            continue
        first = shortened(s.first) or "the start"
        where = f"from {first} to {shortened(s.last)}" if s.first != s.last else f"at {first}"
        parts.append(f"{_PACE[held]} {seconds / p.seconds:.0%} of the time (longest {where})")
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
    groups: dict[str, list[KernelPrediction]] = {}
    for k in p.kernels:
        groups.setdefault(k.op, []).append(k)

    def line(name: str, kernels: Sequence[KernelPrediction]) -> tuple[str, ...]:
        seconds = sum(k.seconds for k in kernels)
        bounds: dict[str, float] = {}
        for k in kernels:
            bounds[k.bound_by] = bounds.get(k.bound_by, 0.0) + k.seconds
        share = f"{seconds / p.seconds:.1%}"
        return name, str(sum(k.repeat for k in kernels)), duration(seconds), share, max(bounds, key=lambda b: bounds[b])

    ranked = sorted(groups.items(), key=lambda g: -sum(k.seconds for k in g[1]))
    lines = [line(_short(op), kernels) for op, kernels in ranked[:OPERATORS]]
    if len(ranked) > OPERATORS:
        lines.append(line("(others)", [k for _, ks in ranked[OPERATORS:] for k in ks]))
    names = ("operator", "#kernels", "#time", "#share", "mostly bound by")
    return tabulate(out, names, lines, spare=("mostly bound by", "kernels"))


def _short(op: str) -> str:
    """An operator's type without its domain."""
    return shortened(op.rpartition("::")[2])


def _alike(p: Prediction) -> list[list[KernelPrediction]]:
    """Kernels of equal work and time together, those that take most time first."""
    alike: dict[tuple[object, ...], list[KernelPrediction]] = {}
    for k in p.kernels:
        alike.setdefault((k.op, k.seconds, k.repeat, k.flops, k.bytes_read, k.bound_by), []).append(k)
    return sorted(alike.values(), key=lambda ks: -sum(k.seconds for k in ks))


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
    return _listed((note.code, printable(note.message), ", ".join(map(printable, note.nodes))) for note in notes)


def _listed(lines: Iterable[tuple[str, ...]]) -> Text:
    """A line for each note: its code, what it says and, in brackets, the names it is about."""
    text = Text()
    for code, message, *names in lines:
        text.append(f"{code}  ", style="yellow")
        text.append(message)
        text.append("".join(f" ({name})" for name in names if name) + "\n", style="dim")
    text.rstrip()
    return text


def blame(p: Prediction, count: int = 3) -> str:
    """The kernels that take most of the time, for a message."""
    worst = sorted(p.kernels, key=lambda k: -k.seconds)[:count]
    return ", ".join(f"{printable(k.name)} ({printable(k.op)}, {duration(k.seconds)})" for k in worst)

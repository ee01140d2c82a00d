"""One terminal screen: how long, how sure, why, and what to change. Drawn from a `Prediction` alone.

Names come from model files and may hold anything: they are printed as plain text, control characters replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
QUIET = frozenset({"not-fused"})  # notes for those who ask for detail


def show(
    out: Console, p: Prediction, device: Device, *, top: int = 10, detail: bool = False,
    changes: Sequence[tuple[str, Prediction]] = (),
) -> None:  # fmt: skip
    """Print a prediction: one screen, or with `detail` every kernel and note.

    `top` is how many different kernels to list; `changes` are the same run under other terms.
    """
    parts: list[RenderableType] = [
        _headline(p, device),
        _shares(out, p, device),
        _facts(p, device),
        _by_operator(out, p),
    ]
    if detail:
        parts.append(_kernels(out, [[k] for k in p.kernels]))
        if p.run.method.scheduled:
            parts += [_phases(out, p), _gaps(out, p)]
    else:
        alike: dict[tuple[object, ...], list[KernelPrediction]] = {}
        for k in p.kernels:
            alike.setdefault((k.op, k.seconds, k.repeat, k.flops, k.bytes_read, k.bound_by), []).append(k)
        ranked = sorted(alike.values(), key=lambda ks: -sum(k.seconds for k in ks))
        parts.append(_kernels(out, ranked[:top]))
    parts.append(_changes(out, p, changes))
    parts.append(_notes(p.warnings if detail else [w for w in p.warnings if w.code not in QUIET], all_nodes=detail))
    out.print(stacked(parts), end="")


def _headline(p: Prediction, device: Device) -> Text:
    s = p.scenario
    text = Text()
    text.append(printable(f"{s.model} on {device.name} ({s.gpu})") + "\n", style="bold")
    power = f", at most {s.power_limit_W:g} W" if s.power_limit_W else ""
    clock = f", clock {s.clock_Hz / 1e6:g} MHz" if s.clock_Hz else ""
    fused = " after onnxruntime.transformers" if s.ort_transformers else ""
    terms = f"{s.runtime}{fused}, {s.precision} precision, batch {s.batch}, {s.method}{power}{clock}\n"
    text.append(terms, style="dim")
    text.append(f"\n{duration(p.seconds)}", style="bold green")
    text.append(f"  ({p.interval:.0%} between {duration(p.low_seconds)} and {duration(p.high_seconds)})")
    rate = p.throughput_per_second
    text.append(f"   {rate:,.0f} samples/s\n" if rate >= 1000 else f"   {rate:.4g} samples/s\n")
    text.append(p.scope, style="dim")
    return text


def _shares(out: Console, p: Prediction, device: Device) -> Table:
    full = "#" if out.options.ascii_only else "█"
    ranked = sorted(p.bound_by.items(), key=lambda x: -x[1])
    means = {**_MEANING, **({} if PLATFORMS[device.kind].launches else _ON_A_CORE)}
    rows = [(n, f"{s:.0%}", full * max(1, round(s * BAR)), means[n]) for n, s in ranked if s >= 0.005]
    return tabulate(out, ("!name", "!share", "!bar", "meaning"), rows, spare=("bar",), heads=False)


_MEANING = {
    "compute": "arithmetic is the limit: a faster type, fewer FLOPs",
    "memory": "bytes are the limit: a smaller type, larger batches",
    "latency": "too little work at once to fill the card",
    "launch": "starting kernels is the limit: larger batches, a CUDA graph",
    "transfer": "copies between host and device",
    "communication": "other cards",
}
_ON_A_CORE = {
    "latency": "arithmetic below its peak: elementwise loops, short rows, registers that are not full",
    "launch": "what the runtime spends on each operator",
}


def _facts(p: Prediction, device: Device) -> Table:
    m, w = p.memory, p.work
    fits = "fits" if m.fits else "DOES NOT FIT"
    table = Table.grid(padding=(0, GAP))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    added, path, least = map(duration, (p.sum_seconds, p.critical_path_seconds, p.lower_bound_seconds))
    row(table, "kernels", f"{len(p.kernels)}: {added} added up, {path} on the longest path, {least} at physical peak")
    flops = f"{w['matrix_flops'] / 1e9:.4g} GFLOP in products, {w['vector_flops'] / 1e9:.3g} elsewhere"
    row(table, "work", f"{flops}; {size(w['bytes_read'])} read, {size(w['bytes_written'])} written")
    weights, activations, workspace = map(size, (m.weights_bytes, m.activations_bytes, m.workspace_bytes))
    parts = f"weights {weights}, activations {activations}, workspace {workspace}"
    row(table, "memory", f"{size(m.total_bytes)} of {size(m.capacity_bytes)}, {fits}: {parts}")
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


def _changes(out: Console, p: Prediction, changes: Sequence[tuple[str, Prediction]]) -> Table:
    rows = [(what, duration(other.seconds), f"{p.seconds / other.seconds:.2f}x") for what, other in changes]
    return tabulate(out, ("what would change it", "#time", "#faster"), rows)


def _notes(notes: Iterable[Note], *, all_nodes: bool) -> Text:
    text = Text()
    for note in notes:
        text.append(f"{note.code}  ", style="yellow")
        text.append(printable(note.message))
        if note.nodes:
            shown = note.nodes if all_nodes else note.nodes[:3]
            more = f", and {len(note.nodes) - len(shown)} more" if len(shown) < len(note.nodes) else ""
            text.append(f" ({', '.join(map(printable, shown))}{more})", style="dim")
        text.append("\n")
    text.rstrip()
    return text


def blame(p: Prediction, count: int = 3) -> str:
    """The kernels that take most of the time, for a message."""
    worst = sorted(p.kernels, key=lambda k: -k.seconds)[:count]
    return ", ".join(f"{printable(k.name)} ({printable(k.op)}, {duration(k.seconds)})" for k in worst)

"""The sections of an explanation; the waterfall has a module of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import log

from onnxperf.explanation.core import Line, Section, amount
from onnxperf.explanation.facts import KernelFacts, scalar
from onnxperf.explanation.trace import origins
from onnxperf.latency import family_of
from onnxperf.latency.family import UNMEASURED
from onnxperf.latency.intervals import class_on, distance, in_domain, thirds
from onnxperf.latency.power import available
from onnxperf.latency.terms import RUNNER_UP
from onnxperf.running.scenario import PLATFORMS
from op_models import Transfer

UNITS = {"seconds": "s", "bytes": "B", "share": "share", "efficiency": "share"}
#: The formulas of details whose name does not say it; {names} of other details are replaced by name and value.
FORMULAS = {
    "blocks": "{stack} x ceil({m} / {tile rows}) x ceil({n} / {tile columns}) x {splits}",
    "waves": "{blocks} / {SMs}",
    "counted waves": "{waves}; a partial last wave counts in part",
    RUNNER_UP: "the second fastest tile, split-K or algorithm, throttled like the kernel",
}
FACTORS = ("stack", "m", "n", "k")
TERMS = {
    "compute": "the arithmetic alone: {flops}",
    "memory": "traffic, including re-reads: {bytes}",
    "latency": "added to the arithmetic: dependent instructions, prologues, partial waves and tiles",
    "launch": "ramp-up and tail of {launches} kernel(s)",
}
#: The same for kernels without products, whose instructions are issued more slowly than their FLOPs could be computed.
TERMS_WITHOUT_PRODUCTS = TERMS | {
    "compute": "instruction issue: {work}, and address computation",
    "latency": "memory latency, dependent instructions",
}
SHORT = 40  # characters of a constant that is a list
THIRDS = ("small", "medium", "large")
#: What the distances of `latency.intervals` mean.
CARDS = {
    "measured": "kernels of this class were measured on this card",
    "known": "kernels of this class were measured on other cards of its generation",
    "new": "no kernel of this class was measured on a card of its generation",
}


def sections(x: KernelFacts) -> tuple[Section, ...]:
    """Work, card, choice, bounds, power, interval, constants; in this order."""
    parts = {
        "work": work, "card": card, "choice": choice, "bounds": bounds, "power": power, "interval": interval,
        "constants read": constants,
    }  # fmt: skip
    return tuple(Section(title, lines) for title, part in parts.items() if (lines := tuple(part(x))))


def work(x: KernelFacts) -> Iterator[Line]:
    """FLOPs, bytes, and the arithmetic intensity beside the ridge point of the card's roofline."""
    w = x.kernel.work
    rule = f"op_models, {x.kernel.op.rpartition('::')[2]}"
    if x.kernel.assumed:
        rule = "assumed: bytes only"
    if w.matrix_flops:
        yield Line("GEMM FLOPs", family_of(w).formula(w.size), float(w.matrix_flops), "FLOP", rule)
        if x.executed != w.matrix_flops:
            saved = "masked tiles are skipped, transforms (Winograd, FFT) need fewer"
            saved = f"{x.executed / w.matrix_flops:.4g} of them: {saved}"
            yield Line("executed", saved, x.executed, "FLOP", "latency")
    if w.vector_flops:
        yield Line("vector FLOPs", "elementwise, exponentials, sums", float(w.vector_flops), "FLOP", rule)
    if isinstance(w.size, Transfer):
        yield Line("copied", w.size.way, float(w.size.bytes), "B", rule)
        return
    stored = f", {amount(float(w.weight_bytes), 'B')} of it weights" if w.weight_bytes else ""
    yield Line("read", f"each operand once{stored}", float(w.bytes_read), "B", rule)
    yield Line("written", "each output once", float(w.bytes_written), "B", rule)
    if w.flops and w.bytes:
        ridge = x.rate / x.device.bandwidth_Bps
        flops, nbytes = amount(float(w.flops), "FLOP"), amount(float(w.bytes), "B")
        yield Line("intensity", f"{flops} / {nbytes}", w.flops / w.bytes, "FLOP/B")
        rate, bandwidth = amount(x.rate, "FLOP/s"), amount(x.device.bandwidth_Bps, "B/s")
        limit = "compute" if w.flops / w.bytes > ridge else "memory"
        yield Line("ridge point", f"{rate} / {bandwidth}; {limit}-bound at peak rates", ridge, "FLOP/B")


def card(x: KernelFacts) -> Iterator[Line]:
    """The figures of the card that matter."""
    d, w = x.device, x.kernel.work

    def cited(fact: str) -> str:
        at = d.source_of(fact)
        return f"{at.status}: {at.text}" if at else f"gpu_specs, {d.id}.toml"

    if isinstance(w.size, Transfer):
        yield Line("link", "PCIe or on-module, one direction", d.pcie_Bps, "B/s", cited("pcie_Bps"))
        return
    if w.flops:
        lanes = f"{d.sms} SMs x {d.lanes} lanes x 2 x {amount(d.boost_hz, 'Hz')}"
        swap = "" if w.pipe.startswith(x.pipe) else f"{x.pipe} is used: the card has no {w.pipe}, or no faster one"
        formula = "; ".join(t for t in (lanes if x.pipe == "fp32" else "", swap) if t)
        yield Line(f"peak {x.pipe}", formula, x.rate, "FLOP/s", cited(x.pipe))
    yield Line("DRAM", d.memory_kind, d.bandwidth_Bps, "B/s", cited("bandwidth_Bps"))
    l2 = float(x.cards.l2_Bps[0, 0])
    wide = f"{d.sms} SMs x {x.run.constants.l2['bytes_per_clock']:g} B x {amount(d.boost_hz, 'Hz')}"
    yield Line("L2 cache", f"{d.l2_partitions} partition(s)", float(d.l2_bytes), "B", cited("l2_bytes"))
    yield Line("L2 rate", wide, l2, "B/s", origins().get("l2.bytes_per_clock", ""))


def choice(x: KernelFacts) -> Iterator[Line]:
    """The variant (tile or algorithm), and every detail that the latency model gives: grid, waves, traffic."""
    where = f"latency, {type(x.kernel.work.size).__name__}"
    if x.predicted.variant:
        yield Line("variant", "tile and split-K, or algorithm", x.predicted.variant, "", where)
    detail = {**x.detail, "SMs": float(x.device.sms)}
    if all(f in detail for f in FACTORS):
        text = " x ".join(amount(detail[f]) for f in FACTORS)
        yield Line("GEMM", "batch x m x n x k", text, "", where)
    for name, value in x.detail.items():
        if name in FACTORS or name.endswith("efficiency"):  # those are the waterfall's steps
            continue
        formula = filled(FORMULAS.get(name, ""), detail)
        value *= x.seconds / scalar(x.terms.seconds) if name == RUNNER_UP else 1.0
        if (moved := detail.get(f"{name.removesuffix('seconds')}bytes")) and value and name.endswith("seconds"):
            formula = f"{amount(moved, 'B')} at {amount(moved / value, 'B/s')}"
        yield Line(name, formula, value, unit(name), where)
    occupancy = scalar(x.terms.occupancy)
    if not isinstance(x.kernel.work.size, Transfer):
        yield Line("SMs occupied", "share of SMs with a block, or a thread, to run", occupancy, "share", where)
    if workspace := scalar(x.terms.workspace):
        yield Line("workspace", "for partial sums of split-K, or transformed tensors", workspace, "B", where)


def filled(formula: str, values: Mapping[str, float]) -> str:
    """A formula with each {name} followed by its value; "" where one is missing."""
    try:
        return formula.format_map({name: f"{name} {amount(value, unit(name))}" for name, value in values.items()})
    except KeyError:
        return ""


def unit(name: str) -> str:
    """The unit of a detail: the last word of its name, where that is one."""
    return UNITS.get(name.rpartition(" ")[2], "")


def _moved(detail: Mapping[str, float], nbytes: float, seconds: float) -> str:
    """What goes through the memory that takes `seconds`, at what rate: of DRAM, L2 or scattered reads, if details say.

    nbytes: those of the work, where they don't.
    """
    longest = max(("DRAM", "L2", "scattered"), key=lambda name: detail.get(f"{name} seconds", 0.0))
    taken, through = detail.get(f"{longest} seconds", 0.0), detail.get(f"{longest} bytes")
    if taken < 0.99 * seconds:
        return f"{amount(nbytes, 'B')} at {amount(nbytes / seconds, 'B/s')}"
    if not through:
        return f"{longest} accesses"
    return f"{longest}, {amount(through, 'B')} at {amount(through / taken, 'B/s')}"


def _least_traffic(x: KernelFacts) -> str:
    """The bytes and the rate of the memory that the speed-of-light bound counts."""
    seconds, nbytes = scalar(x.bound.memory), float(x.kernel.work.bytes)
    through, dram_s = "the nearest cache", scalar(x.bound.detail.get("DRAM", 0.0))
    if PLATFORMS[x.device.kind].launches:
        through = "L2, which holds everything"
    if dram_s and dram_s >= seconds:
        through = "DRAM"
        if nbytes > (nbytes := min(nbytes, dram_s * x.device.bandwidth_Bps)) * 1.001:
            through = "DRAM, for weights that do not fit into L2"
    return f"{amount(nbytes, 'B')} at {amount(nbytes / seconds, 'B/s')} of {through}" if seconds else "none"


def bounds(x: KernelFacts) -> Iterator[Line]:
    """Every term, what the model makes of them, the speed-of-light bound, and which of them bounds the kernel."""
    b, least, w, method = x.terms, x.bound, x.kernel.work, x.run.method
    where = f"methods, {method.name}" if method.own_terms else f"latency, {type(w.size).__name__}"
    flops, nbytes = x.executed or w.vector_flops, x.amount if isinstance(w.size, Transfer) else w.bytes
    for name, text in (TERMS if w.matrix_flops else TERMS_WITHOUT_PRODUCTS).items():
        if seconds := scalar(getattr(b, name)):
            numbers = {
                "work": amount(float(w.vector_flops), "FLOP"),
                "flops": f"{amount(flops, 'FLOP')} at {amount(flops / seconds, 'FLOP/s')}",
                "bytes": _moved(x.detail, nbytes, seconds),
                "launches": f"{scalar(b.launches):.0f}",
            }
            yield Line(name, text.format(**numbers), seconds, "s", where)
    says = "the terms overlap in part; the launch is added"
    yield Line("combined", says, scalar(b.seconds), "s", where)
    if not isinstance(w.size, Transfer):
        peak = x.rate
        fewest = amount(scalar(least.compute) * peak, "FLOP")
        says = f"{fewest} / {amount(peak, 'FLOP/s')}, the fewest that any algorithm executes"
        yield Line("floor: FLOPs", says, scalar(least.compute), "s", "physics")
        yield Line("floor: bytes", _least_traffic(x), scalar(least.memory), "s", "physics")
        origin = origins().get("pointwise.start.late", "")
        yield Line("floor: launch", "the shortest kernel", scalar(least.launch), "s", origin)
    wins = "the floor" if scalar(least.seconds) > scalar(b.seconds) else x.predicted.limit
    yield Line("bound by", "the longest term", wins)


def power(x: KernelFacts) -> Iterator[Line]:
    """The power that the kernel draws, and by how much the card's limit slows it."""
    limited = x.run.method.power_limit and PLATFORMS[x.device.kind].launches
    if isinstance(x.kernel.work.size, Transfer) or not limited:
        return
    may = float(available(x.cards)[0, 0])
    before = x.seconds / x.factor
    constant = "tensor_pJ_per_flop" if x.pipe.startswith("tensor_") else "pJ_per_flop_12nm"
    origin = origins()
    energy = "FLOPs x energy per FLOP + DRAM bytes x energy per byte"
    yield Line("energy", energy, x.joules, "J", origin.get(f"power.{constant}", ""))
    yield Line("power draw", f"{amount(x.joules, 'J')} / {amount(before, 's')} at full clock", x.joules / before, "W")
    limit = f"limit {x.device.tdp_W:g} W, minus idle power"
    yield Line("power budget", limit, may, "W", origin.get("power.static_share", ""))
    slows = "(1 + (E / (P t))^p)^(1/p) over all kernels of the run"
    yield Line("slowdown", slows, x.factor, "", origin.get("power.norm", ""))
    yield Line("time", f"{amount(before, 's')} x {x.factor:.4g}", x.seconds, "s")


def interval(x: KernelFacts) -> Iterator[Line]:
    """Where the range comes from."""
    w, c, method = x.kernel.work, x.run.constants, x.run.method
    corrections, width = x.device.corrections, log(x.predicted.high_seconds / x.predicted.seconds)
    if corrections.half_width is not None and not x.kernel.assumed and not method.error_class:
        yield Line("half-width", "h: from t / exp(h) to t exp(h), of this device", width, "", corrections.source)
        return
    name = class_on(w, x.device)
    at = distance(x.device, name, c)
    if x.kernel.assumed or method.error_class:
        name, at = (UNMEASURED if x.kernel.assumed else method.error_class), "new"
    elif not in_domain([w], [name], c)[0]:
        says = "no kernel of about this size and type was measured: a multiple of the interval on a new card"
        yield Line("domain", says, "outside")
        at = "new"
    cards = c.interval[name].get("cards", ())
    yield Line("class", "kernels that share an error model", name)
    yield Line("card", CARDS[at], at, "", f"measured: {', '.join(cards) or 'none yet'}")
    if "thirds" in c.interval[name]:
        by = "FLOPs" if w.matrix_flops else "bytes"
        says = f"among the measured kernels of the class, by {by}; each third has its interval"
        yield Line("size", says, THIRDS[thirds([w], name, c)[0]])
    path = f"interval.{name}.{at}"
    says = "h: from t / exp(h) to t exp(h), not below the floor"
    yield Line("half-width", says, width, "", origins().get(path, ""))


def constants(x: KernelFacts) -> Iterator[Line]:
    """The constants that the estimate read, a line for each table and file."""
    groups: dict[tuple[str, str], list[str]] = {}
    for path, value in x.read.items():
        table, _, rest = path.partition(".")
        shown = f"{value:.4g}" if isinstance(value, (int, float)) else str(value)
        shown = shown if len(shown) <= SHORT else f"{len(value.split() if isinstance(value, str) else value)} of them"
        groups.setdefault((table, origins().get(path, "")), []).append(f"{rest} {shown}")
    for (table, where), values in groups.items():
        yield Line(table, ", ".join(values), "", "", where)

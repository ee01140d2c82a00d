"""What a calibration found, as JSON and as tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from math import exp
from typing import Any

from rich.console import Console
from rich.text import Text

from onnxperf.calibrate.corrections import Calibration
from onnxperf.calibrate.device_file import CORRECTIONS
from onnxperf.calibrate.kinds import KINDS
from onnxperf.calibrate.this_host import REFERENCE, REFERENCE_S, Paced
from onnxperf.ground.errors import counted, printable
from onnxperf.ground.tables import tabulate

#: Figures of a processor that a fit may change: what they are called, their unit and its name.
FIGURES = {
    "boost_hz": ("clock", 1e9, "GHz"),
    "bandwidth_Bps": ("bandwidth", 1e9, "GB/s"),
    "l3_bytes": ("shared cache", 2**20, "MiB"),
}


def as_json(found: Calibration, link: float | None) -> str:
    """The calibration as JSON text."""
    d = found.device
    data: dict[str, Any] = {
        "device": d.name,
        "corrections": {name: getattr(d.corrections, name) for name in CORRECTIONS},
        "operators": dict(d.corrections.operators),
        "left_out": dict(found.left_out),
        "half_width": d.corrections.half_width,
        "source": d.corrections.source,
        "figures": {f: getattr(d, f) for f in FIGURES},
        "host_link_Bps": link,
        "error_before": found.error(False),
        "error_after": found.error(True),
        "rows": [asdict(r) for r in found.rows],
        "dropped": [asdict(r) for r in found.dropped],
    }
    return json.dumps(data, indent=2, allow_nan=False)


def show(out: Console, found: Calibration, link: float | None) -> None:
    """Print what was found, how well it fits by operator type, and what was left out."""
    d = found.device
    out.print(Text(f"{printable(d.name)}: {counted(len(found.rows), 'row')}", style="bold"))
    out.print(tabulate(out, ("correction", "#factor", "what it means"), [*_found(found, link)]))
    out.print()
    types = sorted({r.type for r in found.rows})
    lines = [_line(found, t, str(sum(r.type == t for r in found.rows))) for t in types]
    total = ("all", str(len(found.rows)), "", f"{found.error(False):.0%}", f"{found.error(True):.0%}")
    out.print(tabulate(out, ("operator", "#rows", "#factor", "#off before", "#off after"), [*lines, total]))
    if d.corrections.half_width is not None:
        within = f"four in five rows are within a factor of {exp(d.corrections.half_width):.2f}"
        out.print(Text(f"{within}, each against its type's factor without it", style="dim"))
    for reason, count in Counter(x.reason for x in found.dropped).most_common():
        out.print(Text(f"left out: {count}: {printable(reason)}", style="dim"))


def host_as_json(found: Paced) -> str:
    """A host's pace as JSON text."""
    h = found.host
    data = {
        "host": h.describe, "pace": h.pace, "half_width": h.half_width, "bandwidth_Bps": h.bandwidth_Bps,
        "flops": h.flops, "source": h.source, "node_seconds": dict(found.node_s), "rounds": found.rounds,
    }  # fmt: skip
    return json.dumps(data, indent=2, allow_nan=False)


def show_host(out: Console, found: Paced) -> None:
    """Print what a node takes on a host, beside the reference, and the pace that follows."""
    h = found.host
    out.print(Text(f"{printable(h.describe)}: {found.rounds} rounds", style="bold"))
    lines = [(op, f"{s * 1e6:.2f} us", f"{REFERENCE_S[op] * 1e6:.2f} us") for op, s in found.node_s.items()]
    out.print(tabulate(out, ("a node of", "#here", f"#{REFERENCE.name}"), lines))
    within = f"within a factor of {exp(h.half_width):.2f} in four cases of five"
    out.print(Text(f"pace {h.pace:.2f}, {within}: 1 is a server of 2017 to 2019, {REFERENCE.name} is {REFERENCE.pace}"))
    out.print(Text("assumed: kernel launches are faster by the same factor as nodes", style="dim"))


def _found(found: Calibration, link: float | None) -> Iterator[tuple[str, str, str]]:
    d, base = found.device, found.base
    for name, means in CORRECTIONS.items():
        if name in KINDS[d.kind].spreads:
            yield name, f"{getattr(d.corrections, name):.3g}", means
    for f, (name, unit, unit_name) in FIGURES.items():
        before, after = getattr(base, f) / unit, getattr(d, f) / unit
        if before != after:
            yield name, f"{after / before:.3g}", f"{after:.3g} {unit_name}, where {before:.3g} were nominal or assumed"
    if link:
        means = f"{link / 1e9:.3g} GB/s one way; {base.pcie_Bps / 1e9:.3g} nominal"
        yield "host link", f"{link / base.pcie_Bps:.3g}", means


def _line(found: Calibration, type: str, rows: str) -> tuple[str, ...]:
    factor = found.device.corrections.operators.get(type)
    shown = "" if factor is None else f"{factor:.3g}"
    return type or "of several types", rows, shown, f"{found.error(False, type):.0%}", f"{found.error(True, type):.0%}"

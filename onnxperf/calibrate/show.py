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


def as_json(calibration: Calibration, link: float | None) -> str:
    """The calibration as JSON text."""
    d = calibration.device
    data: dict[str, Any] = {
        "device": d.name,
        "corrections": {name: getattr(d.corrections, name) for name in CORRECTIONS},
        "operators": dict(d.corrections.operators),
        "left_out": dict(calibration.left_out),
        "half_width": d.corrections.half_width,
        "source": d.corrections.source,
        "figures": {f: getattr(d, f) for f in FIGURES},
        "host_link_Bps": link,
        "error_before": calibration.error(False),
        "error_after": calibration.error(True),
        "rows": [asdict(r) for r in calibration.rows],
        "dropped": [asdict(r) for r in calibration.dropped],
    }
    return json.dumps(data, indent=2, allow_nan=False)


def show(out: Console, calibration: Calibration, link: float | None) -> None:
    """Print what was found, how well it fits by operator type, and what was left out."""
    d = calibration.device
    out.print(Text(f"{printable(d.name)}: {counted(len(calibration.rows), 'row')}", style="bold"))
    out.print(tabulate(out, ("correction", "#factor", "meaning"), [*_corrections(calibration, link)]))
    out.print()
    types = sorted({r.type for r in calibration.rows})
    lines = [_line(calibration, t, str(sum(r.type == t for r in calibration.rows))) for t in types]
    total = ("all", str(len(calibration.rows)), "", f"{calibration.error(False):.0%}", f"{calibration.error(True):.0%}")
    out.print(tabulate(out, ("operator", "#rows", "#factor", "#off before", "#off after"), [*lines, total]))
    if d.corrections.half_width is not None:
        within = f"80% of rows are within a factor of {exp(d.corrections.half_width):.2f}"
        out.print(Text(f"{within}, each with its type's factor fitted without it", style="dim"))
    for reason, count in Counter(x.reason for x in calibration.dropped).most_common():
        out.print(Text(f"not used: {count}: {printable(reason)}", style="dim"))


def host_as_json(paced: Paced) -> str:
    """A host's pace as JSON text."""
    h = paced.host
    data = {
        "host": h.describe, "pace": h.pace, "half_width": h.half_width, "bandwidth_Bps": h.bandwidth_Bps,
        "flops": h.flops, "source": h.source, "node_seconds": dict(paced.node_s), "rounds": paced.rounds,
    }  # fmt: skip
    return json.dumps(data, indent=2, allow_nan=False)


def show_host(out: Console, paced: Paced) -> None:
    """Print what a node takes on a host, beside the reference, and the pace that follows."""
    h = paced.host
    out.print(Text(f"{printable(h.describe)}: {paced.rounds} rounds", style="bold"))
    lines = [(op, f"{s * 1e6:.2f} us", f"{REFERENCE_S[op] * 1e6:.2f} us") for op, s in paced.node_s.items()]
    out.print(tabulate(out, ("a node of", "#here", f"#{REFERENCE.name}"), lines))
    within = f"within a factor of {exp(h.half_width):.2f} in 80% of cases"
    out.print(
        Text(f"pace {h.pace:.2f}, {within}: 1 is a server CPU of 2017 to 2019, {REFERENCE.name} is {REFERENCE.pace}")
    )
    out.print(Text("assumed: kernel launches scale with the same factor", style="dim"))


def _corrections(calibration: Calibration, link: float | None) -> Iterator[tuple[str, str, str]]:
    d, base = calibration.device, calibration.base
    for name, means in CORRECTIONS.items():
        if name in KINDS[d.kind].spreads:
            yield name, f"{getattr(d.corrections, name):.3g}", means
    for f, (name, unit, unit_name) in FIGURES.items():
        before, after = getattr(base, f) / unit, getattr(d, f) / unit
        if before != after:
            yield name, f"{after / before:.3g}", f"{after:.3g} {unit_name}; nominal or assumed: {before:.3g}"
    if link:
        means = f"{link / 1e9:.3g} GB/s per direction; {base.pcie_Bps / 1e9:.3g} nominal"
        yield "host link", f"{link / base.pcie_Bps:.3g}", means


def _line(calibration: Calibration, type: str, rows: str) -> tuple[str, ...]:
    factor = calibration.device.corrections.operators.get(type)
    shown = "" if factor is None else f"{factor:.3g}"
    return (
        type or "of several types",
        rows,
        shown,
        f"{calibration.error(False, type):.0%}",
        f"{calibration.error(True, type):.0%}",
    )

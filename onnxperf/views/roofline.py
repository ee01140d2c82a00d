"""The roofline of a prediction as an image: kernels by their FLOP/s and FLOPs a byte, under the peaks of the device."""

from __future__ import annotations

import io
import warnings
from collections import defaultdict
from collections.abc import Sequence
from math import log10
from typing import TYPE_CHECKING, NamedTuple

from onnxperf.answer.prediction import BOUND_BY, Prediction
from onnxperf.ground.errors import UsageError, printable
from onnxperf.ground.modules import require
from onnxperf.ground.tables import duration, number, short_type, shortened
from onnxperf.latency import pipe_on
from onnxperf.latency.cards import Cards
from onnxperf.views.headline import SEEN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("svg", "png")
DOTS, NAMED = 2000, 8  # kinds of kernels that are drawn, and at most named: those that take most time
WORTH_A_NAME, WIDE, HIGH = 0.01, 0.13, 0.035  # share of the time; what a name takes of the width and height
LARGEST = 900  # the area of a dot that takes all of the time, square points
SMALLEST = 9
#: A colour for each bound, by Okabe and Ito, whom the colour-blind can tell apart.
COLOURS = dict(
    zip(BOUND_BY, ("#d55e00", "#0072b2", "#009e73", "#e69f00", "#999999", "#cc79a7", "#56b4e9"), strict=True)
)


class Dot(NamedTuple):
    """Kernels of equal work: FLOPs a byte, FLOP/s, what bounds them, their type, and the seconds of all together."""

    intensity: float
    rate: float
    bound: str
    op: str
    seconds: float


class Roof(NamedTuple):
    """A peak of the device: bytes/s of a memory, or FLOP/s of a unit."""

    name: str
    rate: float


def plot(p: Prediction, format: str = "svg") -> bytes:
    """The roofline as an image, svg or png. Raises EnvironmentFailure where matplotlib is not installed."""
    if format not in FORMATS:
        raise UsageError(f"format must be {' or '.join(FORMATS)}, not {format!r}")
    require("matplotlib", "the plot")
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    image = io.BytesIO()
    # the same bytes for the same prediction: no random ids, no date
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.hashsalt": "onnxperf"}):
        warnings.simplefilter("ignore")  # of names in scripts that the font lacks
        figure = Figure(figsize=(9, 5.6))
        FigureCanvasAgg(figure)
        figure.subplots_adjust(left=0.075, right=0.985, bottom=0.09, top=0.94)
        _draw(figure.add_subplot(), p)
        figure.savefig(image, format=format, dpi=150, metadata={"Date": None} if format == "svg" else None)
    return image.getvalue()


def _draw(axes: Axes, p: Prediction) -> None:
    drawn, (memories, units) = dots(p), roofs(p)
    ridge = units[0].rate / memories[0].rate if units else 1.0
    rates = [d.rate for d in drawn] or [roof.rate for roof in units] or [1e9]
    low = min([d.intensity for d in drawn] + [ridge]) / 2
    high = max([d.intensity for d in drawn] + [ridge * 4]) * 2
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(min(rates) / 3, max([u.rate for u in units] + rates) * 2.5)
    top = max((u.rate for u in units), default=max(rates))
    for memory, style in zip(memories, ("-", ":"), strict=True):
        reach = [low, min(top / memory.rate, high)]
        axes.plot(reach, [x * memory.rate for x in reach], style, color="0.35", linewidth=1.2, zorder=1,
                  label=f"{memory.name}, {number(memory.rate / 1e9)} GB/s")  # fmt: skip
    for unit in units:
        axes.plot([unit.rate / memories[-1].rate, high], [unit.rate] * 2, color="0.35", linewidth=1.2, zorder=1)
        axes.annotate(f"{unit.name}, {number(unit.rate / 1e12)} TFLOP/s", (high, unit.rate), (-4, 3), ha="right",
                      textcoords="offset points", fontsize=8, color="0.25")  # fmt: skip
    total = sum(k.seconds for k in p.kernels) or 1.0
    for bound in (b for b in BOUND_BY if any(d.bound == b for d in drawn)):
        group = [d for d in drawn if d.bound == bound]
        areas = [max(SMALLEST, LARGEST * d.seconds / total) for d in group]
        axes.scatter(
            [d.intensity for d in group], [d.rate for d in group], areas, COLOURS[bound], alpha=0.65, linewidths=0.5,
            edgecolors="white", zorder=2,
            label=f"bound by {bound}, {sum(d.seconds for d in group) / total:.1%} of kernel time",
        )  # fmt: skip
    _name(axes, drawn, total)
    _label(axes, p, sum(k.seconds for k in p.kernels if not k.flops) / total)


def _name(axes: Axes, dots: Sequence[Dot], total: float) -> None:
    """Write names beside the dots that take most time, where there is room."""
    taken: list[tuple[float, float]] = []
    for d in dots[:NAMED]:
        x, y = axes.transLimits.transform((log10(d.intensity), log10(d.rate)))  # shares of the axes
        if d.seconds >= WORTH_A_NAME * total and all(abs(x - a) > WIDE or abs(y - b) > HIGH for a, b in taken):
            taken.append((x, y))
            beside, side = ((-9, -12), "right") if x > 1 - WIDE else ((7, 4), "left")  # inside of the axes
            axes.annotate(f"{d.op} {d.seconds / total:.0%}", (d.intensity, d.rate), beside, textcoords="offset points",
                          fontsize=8, parse_math=False, zorder=3, ha=side)  # fmt: skip


def _label(axes: Axes, p: Prediction, unseen: float) -> None:
    """Title, axes and legend. unseen: the share of the kernels' time that is of those without a FLOP."""
    from matplotlib.collections import PathCollection

    s = p.scenario
    asked = f"{shortened(s.model)} on {p.device.name}, {p.run.runtime.title or s.runtime}, batch {s.batch}"
    axes.set_title(f"{printable(asked)}: {duration(p.seconds)}", fontsize=10, parse_math=False)
    moving = f"; kernels without arithmetic, {unseen:.0%} of kernel time, are not shown" if unseen >= SEEN else ""
    axes.set_xlabel(f"arithmetic intensity, FLOP/byte{moving}", fontsize=9)
    axes.set_ylabel("FLOP/s", fontsize=9)
    axes.grid(True, which="major", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    for handle in axes.legend(loc="lower right", fontsize=8).legend_handles:
        if isinstance(handle, PathCollection):  # a dot, which is as large as the first one drawn
            handle.set_sizes([36])


def dots(p: Prediction) -> list[Dot]:
    """Kernels with arithmetic, those of equal work together, those first that take most time; at most DOTS."""
    together: dict[tuple[str, str, float, int, int], float] = defaultdict(float)
    for k in p.kernels:
        moved = k.bytes_read + k.bytes_written
        if k.flops and moved and k.seconds:
            together[k.op, k.bound_by, k.seconds, k.flops, moved] += k.seconds
    kinds = (
        Dot(flops / moved, flops / each, bound, shortened(short_type(op)), seconds)
        for (op, bound, each, flops, moved), seconds in together.items()
    )
    return sorted(kinds, key=lambda d: -d.seconds)[:DOTS]


def roofs(p: Prediction) -> tuple[list[Roof], list[Roof]]:
    """The memories of the device, DRAM first, and the units that the kernels use, the fastest first."""
    cards, constants = Cards([p.device], p.run.constants), p.run.constants
    (card,) = cards.devices
    near = Roof("L2", float(cards.l2_Bps[0, 0])) if cards.kind == "gpu" else None
    near = near or Roof("L1", card.sms * card.boost_hz * constants.processor["l1_bytes"])
    used = {pipe_on(card, k.work.pipe) for k in p.kernels if k.flops}
    units = (Roof(unit(name), card.dense_flops[name]) for name in used if name in card.dense_flops)
    return [Roof("DRAM", card.bandwidth_Bps), near], sorted(units, key=lambda u: -u.rate)


def unit(pipe: str) -> str:
    """An arithmetic unit by the name that people use."""
    kind, _, type = pipe.rpartition("_")
    return f"{type.upper()} tensor cores" if kind else type.upper()

"""Predicted against measured times of whole models, as an image: a dot for each row, coloured by runtime."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxperf.ground.errors import UsageError
from onnxperf.ground.modules import require
from onnxperf.lab.validate.scored import ScoredRun
from onnxperf.latency.intervals import COVERAGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".svg", ".png")
#: Runtimes in the order of the legend, in colours by Okabe and Ito that the colour-blind can tell apart.
COLOURS = {
    "ort-cuda": "#0072b2", "torch-eager": "#d55e00", "torch-compile": "#e69f00", "tensorrt": "#009e73",
    "ort-cpu": "#cc79a7",
}  # fmt: skip
BAND = 1.25  # times: what the shaded band around equal times reaches to


def check_plot(target: str) -> None:
    """Raise an error where an image can't be written to this file: UsageError for its name, EnvironmentFailure where
    matplotlib is not installed.
    """
    if Path(target).suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {target}: the name must end with {' or '.join(FORMATS)}")
    require("matplotlib", f"drawing {target}")


def plot(runs: Sequence[ScoredRun], target: str) -> bytes:
    """The image, in the format of the name `target`: milliseconds measured to the right, predicted upwards, both
    logarithmic. Raises UsageError where there are no runs.
    """
    if not runs:
        raise UsageError(f"--plot {target}: no whole model was scored, so there is nothing to draw")
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    image, format = io.BytesIO(), Path(target).suffix.lower().lstrip(".")
    # the same bytes for the same rows: no random ids, no date
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.hashsalt": "onnxperf", "svg.fonttype": "none"}):
        warnings.simplefilter("ignore")
        figure = Figure(figsize=(7, 6.4), layout="constrained")
        FigureCanvasAgg(figure)
        _draw(figure.add_subplot(), runs)
        figure.savefig(image, format=format, dpi=150, metadata={"Date": None} if format == "svg" else None)
    return image.getvalue()


def _draw(axes: Axes, runs: Sequence[ScoredRun]) -> None:
    times = [1e3 * t for r in runs for t in (r.measured_s, r.predicted_s)]
    ends = [min(times) / BAND, max(times) * BAND]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_aspect("equal")
    axes.fill_between(ends, [t / BAND for t in ends], [t * BAND for t in ends], color="0.92", linewidth=0,
                      label=f"within {BAND - 1:.0%}")  # fmt: skip
    axes.plot(ends, ends, color="0.4", linewidth=1, label="predicted = measured")
    for runtime, colour in COLOURS.items():
        if some := [r for r in runs if r.runtime == runtime]:
            inside = sum(r.low_s <= r.measured_s <= r.high_s for r in some)
            axes.scatter(
                [1e3 * r.measured_s for r in some], [1e3 * r.predicted_s for r in some], 16, colour, alpha=0.6,
                linewidths=0, label=f"{runtime}: {len(some)} rows, {inside / len(some):.0%} in their intervals",
            )  # fmt: skip
    axes.set_title(
        f"Whole models, {COVERAGE:.0%} intervals; the card, source or family scored is held out", fontsize=10
    )
    axes.set_xlabel("measured, ms", fontsize=9)
    axes.set_ylabel("predicted, ms", fontsize=9)
    axes.grid(True, which="major", color="0.88", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", fontsize=8)

"""`onnxperf validate` without a model: score every method on a folder of measurements."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from onnxperf.graph.targets import check_targets
from onnxperf.ground.errors import UsageError, counted
from onnxperf.ground.output import deliver, telling
from onnxperf.ground.tables import console
from onnxperf.lab.validate import plot, show
from onnxperf.lab.validate.report import sources, validate
from onnxperf.scoring import own_measurements
from onnxperf.scoring.command import keep

NOT_OURS = "--fail-above looks at measurements of your own: name MODEL, or a folder that holds some with --data"


def run(
    data: str | None, json_to: str | None, plot_to: str | None, markdown: bool, limit: float | None, method: str
) -> None:  # fmt: skip
    """Score the folder `data` or the sample by a method or by all, the user's own measurements there included. Print
    tables, Markdown or, where `json_to` is "-", JSON; draw whole models to the file `plot_to`.

    Raises LimitExceeded where the mean error of the user's own measurements is larger than `limit`.
    """
    if data == "":
        raise UsageError("--data needs the name of a folder")
    if limit is not None and data is None:
        raise UsageError(NOT_OURS)
    folder = None if data is None else Path(data)
    read = (*sources(folder), *(own_measurements.sources(folder) if folder else ()))
    check_targets({"--json": json_to, "--plot": plot_to}, *map(str, read))
    if plot_to is not None:
        plot.check_plot(plot_to)
    with telling() as tell:
        report = validate(folder, tell, method)
    files = report.measurements
    if limit is not None and files.error is None:
        raise UsageError(NOT_OURS)

    def screen() -> None:
        if markdown:
            print(show.markdown(report))
        else:
            show.show(console(), report)

    what = f"the mean error of {counted(len(files.rows), 'measurement')}"
    images = {} if plot_to is None else {plot_to: partial(plot.plot, report.runs, plot_to)}
    deliver(json_to, report.to_json, screen, lambda: keep(files.error, limit, what), images)

"""`onnxperf validate`: compare one model with its prediction, or score every method on a folder of measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnxperf.graph.targets import check_target
from onnxperf.ground.errors import LimitExceeded, UsageError, counted
from onnxperf.ground.output import deliver, telling
from onnxperf.ground.tables import console
from onnxperf.lab.validate import show
from onnxperf.lab.validate.report import sources, validate
from onnxperf.lab.validate.scored import ALL
from onnxperf.running.terms import USUAL_METHOD
from onnxperf.scoring import one_model
from onnxperf.scoring import own_measurements as own
from onnxperf.scoring import show as own_show

NOT_OURS = "--fail-above looks at measurements of your own: name MODEL, or a folder that holds some with --data"


def run(
    model: str | None, gpu: str | None, data: str | None, json_to: str | None, *, markdown: bool = False,
    fail_above: float | None = None, method: str | None = None, **terms: Any,
) -> None:  # fmt: skip
    """Compare `model`, measured here or recorded, with its prediction; without one, score the folder `data` or the
    sample. Print tables, Markdown or, where `json_to` is "-", JSON.

    method: that scores, ALL or None for every one; with `model`, that predicts. terms: the provider and what else a
    `Job` takes, as far as it is given. Raises LimitExceeded where the error of the model, or the mean error of the
    user's own measurements in `data`, is larger than `fail_above`.
    """
    if model is not None:
        if data is not None or markdown:
            raise UsageError("validate takes MODEL, or --data and --markdown, not both")
        if method == ALL:
            raise UsageError(f"{model} is predicted by one method: --method {ALL} goes without MODEL")
        one(model, gpu, json_to, fail_above, method or USUAL_METHOD, **terms)
    elif given := ", ".join((*(["gpu"] if gpu is not None else []), *terms)):
        raise UsageError(f"without MODEL nothing is run, and {given} would change nothing")
    else:
        scores(data, json_to, markdown, fail_above, method or ALL)


def scores(data: str | None, json_to: str | None, as_markdown: bool, limit: float | None, method: str) -> None:
    """Score the folder `data` or the sample by a method or by all, the user's own measurements there included."""
    if data == "":
        raise UsageError("--data needs the name of a folder")
    if limit is not None and data is None:
        raise UsageError(NOT_OURS)
    folder = None if data is None else Path(data)
    check_target(json_to, *map(str, (*sources(folder), *(own.sources(folder) if folder else ()))))
    with telling() as tell:
        report = validate(folder, tell, method)
    files = report.measurements
    if limit is not None and files.error is None:
        raise UsageError(NOT_OURS)

    def screen() -> None:
        if as_markdown:
            print(show.markdown(report))
        else:
            show.show(console(), report)

    what = f"the mean error of {counted(len(files.rows), 'measurement')}"
    deliver(json_to, report.to_json, screen, lambda: keep(files.error, limit, what))


def one(model: str, gpu: str | None, json_to: str | None, limit: float | None, method: str, **terms: Any) -> None:
    """Compare one model, measured on this machine or recorded (*.json), with its prediction."""
    if not model:
        raise UsageError("the path of MODEL is empty")
    check_target(json_to, *filter(None, (model, gpu)))
    if model.lower().endswith(".json"):
        if terms:
            raise UsageError(f"{model} has been measured already: {', '.join(terms)} would not change that")
        found = one_model.recorded(model, gpu, method)
    else:
        with telling() as tell:
            found = one_model.here(model, gpu, tell, method=method, **terms)
    what = f"{found.measurement.subject.name}: the error"
    deliver(
        json_to, found.to_json, lambda: own_show.show(console(), found), lambda: keep(abs(found.error), limit, what)
    )


def keep(error: float | None, limit: float | None, what: str) -> None:
    """Raise LimitExceeded where an error is larger than it may be."""
    if error is not None and limit is not None and error > limit:
        raise LimitExceeded(f"{what}, {error:.1%}, is over the limit of {100 * limit:.4g}%")

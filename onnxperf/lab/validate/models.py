"""Whole models that were measured beside what each method says of them, and what others published of the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from zlib import crc32

import numpy as np

from onnxperf.answer.outline import outline
from onnxperf.answer.prediction import summarise
from onnxperf.ground.errors import UsageError
from onnxperf.lab.constants import left_out
from onnxperf.lab.datasets import Models
from onnxperf.lab.datasets.runs import STEP, MeasuredRun
from onnxperf.lab.datasets.table import BEYOND_PHYSICS, FASTER, OTHER_UNIT, SLACK_S, SLOWER
from onnxperf.lab.validate.scored import ALL, LEFT_OUT, OF_MODELS, SCORED, ScoredRun, chosen
from onnxperf.running.run import Run
from onnxperf.scoring.score import Pairs

PUBLISHED = "published "  # before the name of a method whose predictions came with the measurements


def _part(run: Run, part: str) -> float:
    """The share of a run's time that a part of a training step has; 1 for the whole run."""
    if run.scenario.mode != "training" or part == STEP:
        return 1.0
    p = summarise(run)
    return 1.0 if p.training is None else float(p.training[f"{part}_seconds"]) / p.seconds


def scored_run(run: MeasuredRun, pairs: Iterable[Pairs]) -> ScoredRun:
    """The run beside what the default method says with the card, or whatever else is held out, left out."""
    (p,) = (p for p in pairs if p.method == LEFT_OUT)
    measured, predicted, low, high = (float(column[0]) for column in (p.measured, p.predicted, p.low, p.high))
    return ScoredRun(
        run.model, run.gpu, run.runtime, run.version, run.precision, run.scenario.mode, run.source, measured, predicted,
        low, high,
    )  # fmt: skip


def pairs(run: MeasuredRun, kind: Models, method: str = ALL) -> Iterator[Pairs]:
    """One measured run beside the answer of each method, or of one.

    Raises Error where it can't be one of this model.
    """
    prediction_run = run.run()
    key = np.array([crc32(repr((run.group, run.precision, *run.dims.items())).encode())])

    def pair(method: str, *seconds: float) -> Pairs:
        measured, predicted, low, high = (np.array([v]) for v in (run.seconds, *seconds))
        return Pairs(run.model, run.gpu, method, key, measured, predicted, low, high, np.ones(1, dtype=bool))

    for name in chosen(method, OF_MODELS):
        scored = SCORED[name]
        constants = left_out(kind.left_out(run) if scored.left_out else "")
        predicted = replace(prediction_run, baseline=scored.method, constants=constants)
        p, least_s, share = outline(predicted), float(predicted.timeline.lower_bound_s[0]), _part(predicted, run.part)
        if run.seconds < BEYOND_PHYSICS * least_s * share:
            raise UsageError(FASTER)
        if run.seconds > OTHER_UNIT * (least_s + SLACK_S):
            raise UsageError(SLOWER)
        yield pair(name, *(share * seconds for seconds in (p.seconds, p.low_seconds, p.high_seconds)))
    for method, seconds in run.published.items():
        if seconds == seconds:
            yield pair(PUBLISHED + method, seconds, np.nan, np.nan)

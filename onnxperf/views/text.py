"""Answers as the text that their commands print."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from itertools import groupby
from typing import Any

from rich.console import Console

from onnxperf.decide.compare import Comparison
from onnxperf.decide.compare_llm import LanguageComparison
from onnxperf.decide.diff import Difference
from onnxperf.decide.recommend import Recommendation
from onnxperf.decide.recommend_fleet import FleetRecommendation
from onnxperf.decide.recommend_llm import LanguageRecommendation
from onnxperf.decide.what_if import WhatIfs
from onnxperf.explanation import Explanation, RunExplanation
from onnxperf.ground.tables import WIDTH, bare
from onnxperf.language.core import Generation
from onnxperf.scoring.timed_runs import RunDifference
from onnxperf.sweeps.core import Sweep
from onnxperf.sweeps.rows import Block
from onnxperf.views import choices, choices_llm, difference, explanation, fleet, llm, sweep, two_runs


def _show_sweep(out: Console, s: Sweep) -> None:
    for (model, dims), rows in groupby(s.rows, key=lambda row: (row.model, row.dims)):
        sweep.show_grid(out, Block(model, dims, tuple(rows)))


SHOWN: dict[type, Callable[[Console, Any], None]] = {
    Comparison: choices.show_comparison, Recommendation: choices.show_recommendation, WhatIfs: choices.show_what_ifs,
    Difference: difference.show, RunDifference: two_runs.show, Explanation: explanation.show,
    RunExplanation: explanation.show_run, Generation: llm.show, Sweep: _show_sweep,
    LanguageComparison: choices_llm.show_comparison, LanguageRecommendation: choices_llm.show_recommendation,
    FleetRecommendation: fleet.show,
}  # fmt: skip


def text(answer: object) -> str:
    """What the command prints that gives this answer, in lines of WIDTH characters without colours; its `repr` where no
    command gives it.
    """
    if (show := SHOWN.get(type(answer))) is None:
        return repr(answer)
    written = StringIO()
    show(Console(file=written, width=WIDTH, highlight=False, color_system=None), answer)
    return bare(written.getvalue()).rstrip("\n")

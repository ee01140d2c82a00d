"""Every node case of ONNX's own backend tests: answered or refused with a reason, and hardly anything assumed."""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import pytest
from onnx import defs

import onnxperf
from op_models import known


class Run(NamedTuple):
    """What became of one case: an answer, or the error in its place."""

    name: str
    answer: onnxperf.Prediction | None
    error: Exception | None


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases overflow and divide by zero on purpose
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    found = []
    for case in cases:
        try:
            found.append(Run(case.name, onnxperf.predict(case.model, gpu="l4"), None))
        except Exception as e:  # every kind: the tests tell them apart
            found.append(Run(case.name, None, e))
    return found


def test_nothing_breaks(runs: list[Run]) -> None:
    assert len(runs) > 1500
    assert not [(r.name, r.error) for r in runs if r.error and not isinstance(r.error, onnxperf.Error)]


def test_few_are_refused_and_each_with_a_reason(runs: list[Run]) -> None:
    refused = {r.name: str(r.error) for r in runs if isinstance(r.error, onnxperf.Error)}
    assert len(refused) <= 0.03 * len(runs), refused
    for name, reason in refused.items():
        assert name in reason and len(reason.splitlines()) == 1


def test_every_answer_takes_time(runs: list[Run]) -> None:
    """A graph that folds away still costs the runtime's own overhead."""
    seconds = {r.name: r.answer.seconds for r in runs if r.answer}
    assert not {name: s for name, s in seconds.items() if not (math.isfinite(s) and 0 < s < 0.1)}


def test_hardly_anything_is_assumed(runs: list[Run]) -> None:
    """Operators that train, and operators behind a tensor whose shape only the run knows (`ai.onnx::`)."""
    assumed = {(r.name, k.op) for r in runs if r.answer for k in r.answer.kernels if k.source == "assumed"}
    assert {op.partition("::")[0] for _, op in assumed} <= {"ai.onnx.preview.training", "ai.onnx"}
    assert len({name for name, _ in assumed}) <= 0.03 * len(runs)


@pytest.mark.parametrize("domain", ["", "ai.onnx.ml"])
def test_every_operator_that_ever_was_has_a_rule(domain: str) -> None:
    names = {s.name for s in defs.get_all_schemas_with_history() if s.domain == domain}
    assert len(names) > 15
    assert not [n for n in names if not known(f"{domain}::{n}" if domain else n)]

"""Every node case of ONNX's own backend tests: answered or refused with a reason, hardly anything assumed, and the
shapes of a graph's outputs are those of the data that each case expects.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
from onnx import TensorProto, defs, numpy_helper

import onnxperf
from onnxperf.graph import load
from op_models import known

SHAPES_ASSUMED = {"assumed-shape", "assumed-batch"}  # what such a note stands beside may differ


class Run(NamedTuple):
    """What became of one case: an answer, or the error in its place."""

    case: Any
    answer: onnxperf.Prediction | None
    error: Exception | None

    @property
    def name(self) -> str:
        return str(self.case.name)


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases overflow and divide by zero on purpose
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    found = []
    for case in cases:
        try:
            found.append(Run(case, onnxperf.predict(case.model, gpu="l4"), None))
        except Exception as e:  # every kind: the tests tell them apart
            found.append(Run(case, None, e))
    return found


def test_nothing_breaks(runs: list[Run]) -> None:
    assert len(runs) > 1800
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


def shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of an expected output; None for sequences and optionals."""
    if isinstance(value, TensorProto):
        value = numpy_helper.to_array(value)
    return np.shape(value) if isinstance(value, (np.ndarray, np.generic)) else None


def test_shapes_are_those_of_the_expected_data(runs: list[Run]) -> None:
    compared, larger = 0, set()
    for r in runs:
        try:
            graph = r.answer.run.graph if r.answer else load(r.case.model)
        except onnxperf.ModelError as e:
            assert "older than 7" in str(e), r.name
            continue
        assumed = SHAPES_ASSUMED & {n.code for n in graph.notes}
        for _, outputs in r.case.data_sets or ():
            for t, expected in zip(graph.outputs, map(shape_of, outputs), strict=True):
                if t.dtype == "opaque" or expected is None:
                    continue
                compared += 1
                if t.shape != expected:
                    assert assumed, (r.name, t, expected)
                    assert all(a >= b for a, b in zip(t.shape, expected, strict=True)), (r.name, t, expected)
                    larger.add(r.case.model.graph.node[0].op_type)
    assert compared > 1900
    assert larger == {"Unique", "StringSplit"}


@pytest.mark.parametrize("domain", ["", "ai.onnx.ml"])
def test_every_operator_that_ever_was_has_a_rule(domain: str) -> None:
    names = {s.name for s in defs.get_all_schemas_with_history() if s.domain == domain}
    assert len(names) > 15
    assert not [n for n in names if not known(f"{domain}::{n}" if domain else n)]

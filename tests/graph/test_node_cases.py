"""ONNX's own node cases: the shapes of a graph's outputs are those of the data that each case expects."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxperf import ModelError
from onnxperf.graph import load

ASSUMED = {"assumed-shape", "assumed-batch"}  # what such a note stands beside may differ


def shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of an expected output; None for sequences and optionals."""
    if isinstance(value, TensorProto):
        value = numpy_helper.to_array(value)
    return np.shape(value) if isinstance(value, (np.ndarray, np.generic)) else None


def test_shapes_are_those_of_the_expected_data() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases overflow and divide by zero on purpose
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    assert len(cases) > 1800
    compared, larger = 0, set()
    for case in cases:
        try:
            graph = load(case.model)
        except ModelError as e:
            assert "older than 7" in str(e), case.name
            continue
        assumed = ASSUMED & {n.code for n in graph.notes}
        for _, outputs in case.data_sets or ():
            for t, expected in zip(graph.outputs, map(shape_of, outputs), strict=True):
                if t.dtype == "opaque" or expected is None:
                    continue
                compared += 1
                if t.shape != expected:
                    assert assumed, (case.name, t, expected)
                    assert all(a >= b for a, b in zip(t.shape, expected, strict=True)), (case.name, t, expected)
                    larger.add(case.model.graph.node[0].op_type)
    assert compared > 1900
    assert larger == {"Unique", "StringSplit"}

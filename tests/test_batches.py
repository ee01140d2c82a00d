"""Runs at many batches: those between are the ones that would be made, and columns of several what each is alone."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu_specs
from onnxperf.graph import opened
from onnxperf.ground.errors import Error
from onnxperf.latency import estimate_alike, form_of
from onnxperf.lowering.lines import kernel_line
from onnxperf.running.batches import runs_at, together
from onnxperf.running.pipeline import Request, run_of
from onnxperf.running.run import Run

SAMPLES = Path(__file__).parents[1] / "samples"
BATCHES = [17, 18, 19, 21, 22, 23, 25, 26, 29, 31, 33]
CASES: dict[str, dict[str, Any]] = {
    "resnet50": {"runtime": "torch-eager", "mode": "training", "precision": "amp"},
    "mobilenetv2": {"runtime": "tensorrt", "precision": "int8"},
    "bert-base": {"precision": "fp16", "include_transfers": True},
    "unet": {},
    "vit-base-16": {"runtime": "torch-compile", "precision": "amp"},
    "gpt2": {"runtime": "torch-eager", "precision": "bf16"},
    "lstm": {"runtime": "ort-cpu"},
}


def asking(name: str) -> tuple[Any, list[int]]:
    """What makes the run of a sample at a batch, on an RTX 4090, and the batches at which it did."""
    model, asked, terms = opened(SAMPLES / f"{name}.onnx"), list[int](), CASES[name]

    def run(batch: int) -> Run:
        asked.append(batch)
        return run_of(Request(model, batch=batch, terms=terms), "rtx-4090")

    return run, asked


def tensors(run: Run) -> list[Any]:
    """What is known of each tensor that an operator of a placed graph makes."""
    return [(t.name, t.dtype, t.shape, t.value) for o in run.run_graph.operators for t in o.outputs]


@pytest.mark.parametrize("name", CASES)
def test_runs_between_are_those_that_would_be_made(name: str) -> None:
    make, asked = asking(name)
    runs = list(runs_at(make, BATCHES))
    assert len(asked) <= 6
    between = [batch for batch in BATCHES if batch not in asked]

    for batch in between:
        run, alone = runs[BATCHES.index(batch)], make(batch)
        assert isinstance(run, Run) and run.scenario == alone.scenario
        assert run.kernels == alone.kernels and run.footprint == alone.footprint
        assert tensors(run) == tensors(alone)


@pytest.mark.parametrize("name", ["resnet50", "mobilenetv2", "bert-base", "lstm"])
def test_runs_together_are_what_each_is_alone(name: str) -> None:
    make, _ = asking(name)
    alone = {batch: make(batch) for batch in BATCHES}
    for batch, run in zip(BATCHES, together(deque(runs_at(make, BATCHES))), strict=True):
        assert isinstance(run, Run)
        for stage in ("estimates", "one_timeline"):
            fields = getattr(run, stage), getattr(alone[batch], stage)
            for field in fields[0].__dataclass_fields__:
                assert np.array_equal(*(getattr(x, field) for x in fields)), (batch, stage, field)


def test_devices_of_several_runs_are_columns() -> None:
    make, _ = asking("mobilenetv2")
    cards = tuple(map(gpu_specs.load, ("t4", "h100", "rtx-4090")))
    runs = [make(batch) for batch in (3, 5)]
    kernels, method, constants = [run.kernels for run in runs], runs[0].method, runs[0].constants
    assert form_of(kernels[0], method) == form_of(kernels[1], method)
    both = estimate_alike(kernels, cards, method, constants)
    assert both.seconds.shape == (len(kernels[0].rows), 6)
    for i, one in enumerate(kernels):
        alone = estimate_alike([one], cards, method, constants)
        assert np.array_equal(both.only(slice(3 * i, 3 * i + 3)).seconds, alone.seconds)


def test_kernels_that_are_not_on_a_line_have_none() -> None:
    make, _ = asking("mobilenetv2")
    lowered = [(run.run_graph, run.kernels) for run in map(make, (2, 4, 3))]
    assert kernel_line(lowered)
    assert kernel_line([*lowered[:2], (lowered[2][0], lowered[0][1])]) is None


def test_an_error_is_in_the_place_of_its_batch() -> None:
    make, _ = asking("mobilenetv2")

    def some(batch: int) -> Run:
        if batch == 18:
            raise Error("no 18")
        run: Run = make(batch)
        return run

    runs = list(together(deque(runs_at(some, BATCHES))))
    assert [str(run) for run in runs if isinstance(run, Error)] == ["no 18"]
    assert isinstance(runs[BATCHES.index(18)], Error)

"""How wide ranges of whole runs are, from runs: who counts how much, and what half-widths hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from onnxperf import predict
from onnxperf.answer.prediction import summarise
from onnxperf.lab.datasets.runs import samples
from onnxperf.lab.derive.intervals import quantile_of
from onnxperf.lab.derive.whole_runs import RunMiss, _of_dies, widths


def test_a_quantile_weighs_entries_alike() -> None:
    assert quantile_of([np.full(100, 0.1), np.array([0.5])]) == 0.5
    assert quantile_of([np.full(100, 0.1)] * 5 + [np.array([0.5])]) == 0.1


def run(model: str, off: float, known: float = 0.1) -> RunMiss:
    return RunMiss("tensorrt", model, f"here-{model}", off, known)


def test_what_runs_err_beyond_their_kernels_stands_beside() -> None:
    """Models count alike: the four runs of one no more than the run of another."""
    rows = [*(run("a", 0.05) for _ in range(4)), run("b", -0.5, 0.3), run("c", 0.05)]
    assert widths(rows) == (1.0, pytest.approx(0.4))


def test_runs_that_err_less_than_their_kernels_say_narrow_these() -> None:
    share, beside = widths([run(m, off) for m, off in zip("abcde", (0.01, -0.02, 0.03, 0.05, 0.3), strict=True)])
    assert (share, beside) == (pytest.approx(0.5), 0.0)
    assert widths([]) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("gpu", "runtime", "precision", "kind"),
    [
        ("t4", "tensorrt", "fp32", "tensorrt"),
        ("t4", "tensorrt", "fp16", "tensorrt tensor"),
        ("p100-pcie-16gb", "tensorrt", "fp16", "tensorrt"),
        ("rtx-3090", "torch-eager", "amp", "torch-eager tensor"),
        ("h100-sxm", "torch-eager", "amp", "torch-eager tensor HBM"),
        ("h100-sxm", "torch-eager", "fp32", "torch-eager"),
    ],
)
def test_runs_on_tensor_cores_are_another_kind(gpu: str, runtime: str, precision: str, kind: str) -> None:
    p = predict(samples() / "alexnet.onnx", gpu=gpu, runtime=runtime, precision=precision)
    assert p.run.kind(0) == kind


def test_without_the_only_die_with_hbm_runs_count_as_those_on_other_cards() -> None:
    kind = "torch-eager tensor HBM"
    missed = [RunMiss(kind, m, "group", off, 0.1, "GH100") for m, off in zip("abcd", (0.1, 0.2, 0.3, 0.4), strict=True)]
    values: dict[str, dict[str, float]] = {}
    _of_dies(values, missed, {"interval.run.torch-eager tensor": 0.02})
    assert values[""][f"interval.run.{kind}"] > 0.2
    assert values["GH100"] == {f"interval.run.{kind}": 0.02, f"interval.share.{kind}": 1.0}
    others: dict[str, dict[str, float]] = {}
    _of_dies(others, missed, {})
    assert not others, "no runs on other cards tell of this kind"


def test_a_range_takes_the_widths_of_its_kind_or_of_its_runtime() -> None:
    p = predict(samples() / "alexnet.onnx", gpu="t4", runtime="tensorrt", precision="fp16")

    def half_width(values: dict[str, float]) -> float:
        c = p.run.constants.having({"interval.run": {"other": 9.0}, "interval.share": {}}).having(values)
        again = summarise(replace(p.run, constants=c))
        return float(np.log(again.high_seconds / again.seconds))

    kernels = half_width({"interval.run.tensorrt": 0.0})
    assert half_width({"interval.run.tensorrt": 0.3}) == pytest.approx(np.hypot(kernels, 0.3))
    both = {"interval.run.tensorrt": 0.3, "interval.run.tensorrt tensor": 0.0, "interval.share.tensorrt tensor": 0.5}
    assert half_width(both) == pytest.approx(kernels / 2)
    assert half_width({}) > 9.0

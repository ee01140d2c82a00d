from dataclasses import replace

import pytest

from onnxperf.ground import fitting
from onnxperf.lab.datasets import SAMPLE, model_runs
from onnxperf.lab.derive import assumed, models
from onnxperf.latency import shipped

SET = models.SETS["convolution_in_models"]


@pytest.fixture(scope="module")
def told() -> list[models.Told]:
    """Three networks of the sample whose time is that of convolutions, on both cards and in both layouts."""
    wanted = ("res2next50@224", "tf_mobilenetv3_large_075@224", "resnetblur50@224")
    every = [(of, [run for run in runs if run.model in wanted], why) for of, runs, why in model_runs(SAMPLE)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "model_runs", lambda _: every)
        found = models.runs(SAMPLE, SET, shipped())
    assert {one.measured.layout for one in found} == {"nchw", "nhwc"}
    return found


@pytest.mark.slow
def test_a_fit_finds_the_constants_that_made_the_runs(told: list[models.Told]) -> None:
    truth = {"convolution.slots": 16.0, "convolution.slots_last": 12.0}
    made = [
        replace(one, measured=replace(one.measured, seconds=one.others_s + one.fitted_s(shipped().having(truth))))
        for one in told
    ]
    found = models.fit(SET, made)
    for path, value in truth.items():
        assert found[path] == pytest.approx(value, rel=0.15), path


@pytest.mark.slow
def test_a_group_left_out_has_no_part(told: list[models.Told], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "ROUNDS", 2)  # it holds on the way to the best fit as well
    (group, *_) = sorted({one.measured.group for one in told})
    wrong = [
        replace(one, measured=replace(one.measured, seconds=one.measured.seconds * 9))
        if one.measured.group == group
        else one
        for one in told
    ]
    assert models.fit(SET, wrong, group) == models.fit(SET, told, group) != models.fit(SET, wrong)
    alone = [one for one in told if one.measured.group == group]
    assert models.fit(SET, alone, group) == {p.path: p.start for p in SET.parameters}, "no other run tells"


@pytest.mark.slow
def test_an_assumed_constant_decides_its_share_of_the_time(told: list[models.Told]) -> None:
    numbers = assumed.assumed_numbers()
    assert "launch.kernel_s" in numbers and "dram.late" not in numbers, "of these the second is derived"
    run = told[0].run
    changed = {p: shipped().having({p: numbers[p] * assumed.CHANGE}) for p in ("launch.kernel_s", "clock.beyond_boost")}
    shares = {path: assumed.share(run, constants) for path, constants in changed.items()}
    assert 0 < shares["launch.kernel_s"] < 0.2
    assert 0 < shares["clock.beyond_boost"] < 1, "arithmetic is part of the time"

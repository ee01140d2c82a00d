"""Cards as their owners set them."""

from __future__ import annotations

import pytest

import gpu_specs
from gpu_specs import SpecError, limited


def test_nothing_set_changes_nothing() -> None:
    device = gpu_specs.load("l4")
    assert limited(device) is device


@pytest.mark.parametrize("id", ["l4", "h100-sxm", "t4", "rtx-4090"])
def test_rates_follow_the_clock_down(id: str) -> None:
    device = gpu_specs.load(id)
    half = limited(device, clock_hz=device.boost_hz / 2)
    assert (half.boost_hz, half.bandwidth_Bps, half.tdp_W) == (device.boost_hz / 2, device.bandwidth_Bps, device.tdp_W)
    assert half.tensor_hz <= device.tensor_hz
    for pipe, rate in device.dense_flops.items():
        published = device.tensor_hz if pipe.startswith("tensor_") else device.boost_hz
        assert half.dense_flops[pipe] == pytest.approx(rate * half.boost_hz / published)
    assert dict(limited(device, clock_hz=device.boost_hz).dense_flops) == dict(device.dense_flops)


def test_a_tensor_clock_below_the_lock_stays() -> None:
    device = next(d for d in map(gpu_specs.load, gpu_specs.ids()) if d.tensor_hz < d.boost_hz)
    between = limited(device, clock_hz=(device.tensor_hz + device.boost_hz) / 2)
    assert between.tensor_hz == device.tensor_hz
    assert between.dense_flops["tensor_fp16"] == device.dense_flops["tensor_fp16"]


@pytest.mark.parametrize("terms", [{"power_W": 6}, {"power_W": 109}, {"clock_hz": 99e6}, {"clock_hz": 2.041e9}])
def test_what_a_card_cannot_do_is_refused_with_its_range(terms: dict[str, float]) -> None:
    with pytest.raises(SpecError, match=r"^l4 (takes a power limit from 7 to 108 W|clocks from 100 to 2040 MHz), not"):
        limited(gpu_specs.load("l4"), **terms)

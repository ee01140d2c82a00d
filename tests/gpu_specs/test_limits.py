"""Cards as their owners set them."""

from __future__ import annotations

import pytest

import gpu_specs
from gpu_specs import SpecError, ids, limited, load


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


JETSONS = [card for card in map(load, ids()) if card.power_modes]


def test_a_mode_leaves_what_nvpmodel_leaves() -> None:
    nx = limited(load("orin-nx-16gb"), mode="10W")  # 2 TPCs at 612 MHz, memory at 2133 of 3200 MHz
    assert (nx.sms, nx.boost_hz, nx.tensor_hz, nx.tdp_W, nx.cpu_cores, nx.cpu_hz) == (4, 612e6, 612e6, 10, 4, 1190.4e6)
    assert nx.bandwidth_Bps == pytest.approx(68.256e9) and nx.pcie_Bps == pytest.approx(nx.bandwidth_Bps / 2)
    assert nx.dense_flops["fp32"] == pytest.approx(4 * 128 * 2 * 612e6, rel=1e-3)
    assert nx.dense_flops["tensor_fp16"] == pytest.approx(4 * 2048 * 612e6, rel=1e-3)
    assert (nx.capacity_bytes, nx.l2_bytes) == (16 * 2**30, 2 * 2**20)


def test_a_mode_is_faster_than_the_card_where_nvpmodel_lets_it() -> None:
    assert limited(load("orin-nx-16gb"), mode="MAXN_SUPER").dense_flops["fp32"] == pytest.approx(2.402e12, rel=1e-3)


@pytest.mark.parametrize("name", ["MODE_30W", "30W", "mode 30w", "30 w"])
def test_a_mode_is_found_however_it_is_spelt(name: str) -> None:
    assert limited(load("agx-orin-64gb"), mode=name).boost_hz == 612e6


@pytest.mark.parametrize("card", JETSONS, ids=lambda card: card.id)
def test_the_figures_of_a_card_are_those_of_its_first_mode(card: gpu_specs.Device) -> None:
    first = limited(card, mode=card.power_modes[0].name)
    assert dict(first.dense_flops) == pytest.approx(dict(card.dense_flops))
    for fact in ("sms", "boost_hz", "bandwidth_Bps", "pcie_Bps", "tdp_W", "cpu_cores", "cpu_hz"):
        assert getattr(first, fact) == pytest.approx(getattr(card, fact), rel=1e-3), fact
    assert len({mode.name for mode in card.power_modes}) == len(card.power_modes)
    slowest = min(mode.boost_hz for mode in card.power_modes)
    assert limited(card, mode="MAXN" if card.id.startswith("agx") else None, clock_hz=slowest).boost_hz == slowest


def test_a_mode_that_a_card_lacks_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(SpecError, match=r"^orin-nano-8gb has no power mode '10W': its power modes are 15W, 7W$"):
        limited(load("orin-nano-8gb"), mode="10W")
    with pytest.raises(SpecError, match=r"^l4 has no power mode '15W': its card lists none, which only Jetson modules"):
        limited(load("l4"), mode="15W")

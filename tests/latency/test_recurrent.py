"""What recurrent layers must show: steps one by one, tiles that few rows don't fill, inputs apart; and their fit."""

from functools import reduce
from operator import getitem

import numpy as np
import pytest

import gpu_specs
from onnxperf.lab.constants import assumed
from onnxperf.lab.datasets import Table
from onnxperf.lab.datasets.rigs import by_itself
from onnxperf.lab.derive.fit import fit, fitted_rows
from onnxperf.latency import shipped
from onnxperf.latency.families.recurrent import RECURRENT
from op_models import Recurrent, Work
from tests.latency.conftest import seconds

M40, P100, V100, L4 = (gpu_specs.load(g) for g in ("m40", "p100-pcie-16gb", "v100-sxm2-16gb", "l4"))
CARDS = (M40, P100, V100, L4)
STEP = "recurrent.step_before_cc7_s"


def layer(steps: int, batch: int, hidden: int, *, input: int = 0, gates: int = 4) -> Work:
    units, weights = steps * batch * hidden, 4 * gates * hidden * (input + hidden)
    flops = 2 * units * gates * (input + hidden)
    size = Recurrent(steps, batch, input, hidden, 1, gates)
    return Work(size, "float32", "fp32", weights + 4 * steps * batch * input, 4 * units, weights, flops, 30 * units)


@pytest.mark.parametrize("card", CARDS, ids=lambda d: d.id)
def test_a_small_step_costs_its_start_and_little_more(card: gpu_specs.Device) -> None:
    r = shipped().recurrent
    start = r[{5: "step_before_cc7_s", 6: "step_before_cc7_s", 7: "step_cc7_s"}.get(card.capability[0], "step_s")]
    assert 100 * start < seconds(layer(100, 1, 64), card) < 100 * (start + 1e-5)


@pytest.mark.parametrize("card", CARDS, ids=lambda d: d.id)
def test_twice_the_steps_take_twice_as_long(card: gpu_specs.Device) -> None:
    assert seconds(layer(200, 32, 1024), card) == pytest.approx(2 * seconds(layer(100, 32, 1024), card), rel=1e-6)


@pytest.mark.parametrize("card", [M40, P100], ids=lambda d: d.id)
def test_before_volta_a_step_of_16_rows_takes_a_tile_of_64(card: gpu_specs.Device) -> None:
    few, full, more = (seconds(layer(100, rows, 2048), card) for rows in (16, 64, 65))
    assert few == pytest.approx(full, rel=0.1)
    assert more > 1.2 * full


@pytest.mark.parametrize("card", CARDS, ids=lambda d: d.id)
def test_inputs_are_one_product_of_all_steps_which_a_layer_may_lack(card: gpu_specs.Device) -> None:
    steps, both = seconds(layer(100, 32, 1024), card), seconds(layer(100, 32, 1024, input=1024), card)
    peak = 2 * 100 * 32 * 4096 * 1024 / card.dense_flops["fp32"]
    assert peak < both - steps < 2 * peak
    assert both - steps < steps


def test_tiles_of_steps_are_no_other_products() -> None:
    own, g = shipped().recurrent["tiles"], shipped().cuda_core_tiles
    before = {kind: dict(g[kind]) for kind in ("batched", "single")}
    seconds(layer(10, 16, 256), P100)
    assert {kind: dict(g[kind]) for kind in before} == before
    assert all(before["single"].get(name) != tiles for name, tiles in own.items())


def test_every_constant_that_is_fitted_has_a_start_value() -> None:
    for p in RECURRENT.parameters:
        assert reduce(getitem, p.path.split("."), assumed().tables) == pytest.approx(p.start)


def tables(step_s: float) -> list[Table]:
    """Rows that the model itself makes: another start of a step, 10 us of overhead, 2% of noise; one is short."""
    works = (*(layer(50, rows, hidden) for rows in (16, 32, 128) for hidden in (256, 512, 1024)), layer(1, 1, 16))
    cards = (M40, P100, V100)
    made = by_itself(works, cards, assumed().having({STEP: step_s})) + 1e-5
    made *= np.exp(0.02 * np.random.default_rng(0).standard_normal(made.shape))
    test, kernel = np.ones(len(works), dtype=bool), np.full(made.shape, "", dtype=object)
    return [Table(name, "deepbench", works, tuple(d.id for d in cards), made, test, kernel, {}) for name in NAMES]


NAMES = ("deepbench rnn", "deepbench gemm")


def test_a_slice_of_rows_gives_back_the_constant_that_made_it() -> None:
    found = fit(RECURRENT, fitted_rows(tables(5e-5), RECURRENT), assumed())
    assert found.values[STEP] == pytest.approx(5e-5, rel=0.05)


def test_fits_see_recurrent_layers_that_last() -> None:
    (used,) = fitted_rows(tables(5e-5), RECURRENT)
    assert used.name == "deepbench rnn" and len(used.works) == 9
    assert np.nanmin(used.seconds) >= 1e-4 and sum(used.dropped.values()) == 3

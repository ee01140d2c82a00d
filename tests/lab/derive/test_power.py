"""The energy of a FLOP from long products."""

from __future__ import annotations

import numpy as np
import pytest

import gpu_specs
from onnxperf.lab.constants import assumed
from onnxperf.lab.datasets import Row, Table
from onnxperf.lab.datasets import tables as read
from onnxperf.lab.datasets.sources.fp32_torch import product
from onnxperf.lab.derive.fit import fit, fitted_rows
from onnxperf.latency.families.gemm import POWER
from onnxperf.latency.long_products import seconds

TRUE = {"power.pJ_per_flop_12nm": 17.0, "power.node_exponent": 0.5}
SHAPES = [(1, m, k, n) for m in (4096, 8192) for k in (4096, 6000) for n in (4096, 5000, 8192)]


def measured(name: str, rig: str, gpus: tuple[str, ...], slower: float = 1.0, test: bool = False) -> Table:
    """What cards of the TRUE energy would take, times `slower`."""
    works = [product("linear", *shape) for shape in (*SHAPES, (1, 64, 64, 64))]
    assert None not in works
    cards = [gpu_specs.load(g) for g in gpus]
    took = slower * seconds([w for w in works if w], cards, assumed().having(TRUE)) + 1e-5
    rows = [Row(name, g, w, float(took[i, j]), test) for i, w in enumerate(works) if w for j, g in enumerate(gpus)]
    (table,) = read(rows, rig, {})
    return table


def test_the_energy_that_made_the_rows_comes_back() -> None:
    rows = measured("bmm", "torch", ("p4", "t4", "a100-pcie-40gb", "v100-pcie-32gb"))
    found = fit(POWER, fitted_rows([rows], POWER), assumed())
    assert found.values["power.pJ_per_flop_12nm"] == pytest.approx(17.0, rel=0.05)
    assert found.values["power.node_exponent"] == pytest.approx(0.5, abs=0.15)


def test_of_two_labs_the_one_with_the_cooler_card_counts() -> None:
    hot, cool = measured("linear", "torch", ("t4", "p4"), slower=1.4), measured("deepbench gemm", "deepbench", ("t4",))
    kept = {(t.rig, *t.gpus) for t in fitted_rows([hot, cool], POWER)}
    assert kept == {("torch", "p4"), ("deepbench", "t4")}


def test_short_rows_and_rows_kept_back_take_no_part() -> None:
    assert not fitted_rows([measured("bmm", "torch", ("t4",), test=True)], POWER)
    (table,) = fitted_rows([measured("bmm", "torch", ("t4",))], POWER)
    assert len(table.works) == len(SHAPES)
    assert np.isfinite(table.seconds).all()
    assert not fitted_rows([measured("conv", "torch", ("t4",))], POWER)

"""Fits find the constants that made the data, lean on their priors where data are few, and ignore wild rows."""

from dataclasses import replace

import numpy as np
import pytest

import gpu_specs
from onnxperf.lab.datasets import Table, kernels
from onnxperf.lab.derive import fit as fits
from onnxperf.lab.derive import passes
from onnxperf.lab.derive.fit import Fit, fit, thinned
from onnxperf.lab.derive.intervals import Misses, intervals, quantile, widened
from onnxperf.latency import Constants, shipped
from onnxperf.latency.constants import ConstantSet, Parameter
from op_models import Pointwise, Work

GPUS = ("p4", "t4", "v100-pcie-32gb")
WORKS = tuple(Work(Pointwise(n), "float32", "fp32", 4 * n, 4 * n, 0, 0, n) for n in range(10**6, 10**8, 10**6))


def streamed(works: tuple[Work, ...], devices: list[gpu_specs.Device], c: Constants) -> np.ndarray:
    """Bytes at a share of the bandwidth, and the card's own correction: a model with one constant."""
    nbytes = np.array([w.bytes for w in works])[:, None]
    memory = np.array([[d.corrections.memory for d in devices]])
    return nbytes / np.array([[d.bandwidth_Bps for d in devices]]) / c.dram["other"] * memory


ONE = ConstantSet("one", (Parameter("dram.other", "achieved share", 0.9, 0.2, 1.0),), model=streamed)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rig's clock usually includes 10 us beside a kernel."""
    monkeypatch.setattr(fits, "overheads", lambda name: {"bench": 1e-5})


def table(share: float, noise: float = 0.02, overhead_s: float = 2e-5, works: tuple[Work, ...] = WORKS) -> Table:
    devices = [gpu_specs.load(g) for g in GPUS]
    random = np.random.default_rng(1)
    exact = streamed(works, devices, shipped().having({"dram.other": share})) + overhead_s
    seconds = exact * np.exp(noise * random.standard_normal(exact.shape))
    empty = np.full(seconds.shape, "", dtype=object)
    return Table("stream", "bench", works, GPUS, seconds, np.zeros(len(works), dtype=bool), empty, {})


def test_a_fit_finds_the_constant_and_the_overhead_that_made_the_rows() -> None:
    found = fit(ONE, [table(0.7)], shipped())
    assert found.values == {"dram.other": pytest.approx(0.7, rel=0.02)}
    for gpu in GPUS:
        assert found.overhead_s["bench", gpu] == pytest.approx(2e-5, rel=0.3)
    assert found.rows == len(WORKS) * len(GPUS)


def test_on_a_card_without_rows_the_clock_includes_the_median_or_the_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "overheads", fits.overheads)
    found = Fit({}, {}, dict(zip((("bench", g) for g in GPUS), (4e-5, 3e-5, 1e-6), strict=True)), 0)
    for usual, other in ((False, 3e-5), (True, 1e-5)):
        values = passes.overheads_of(replace(ONE, usual_overhead=usual), found)
        assert values["rig.one.bench.other"] == other and values["rig.one.bench.p4"] == 4e-5


def test_wild_rows_do_not_rule() -> None:
    wild = table(0.7)
    wild.seconds[::10] *= 5
    assert fit(ONE, [wild], shipped()).values["dram.other"] == pytest.approx(0.7, rel=0.04)


def test_few_rows_leave_the_prior_where_it_is() -> None:
    found = fit(replace(ONE, weight=0.001), [table(0.7, works=WORKS[:2])], shipped())
    assert found.values["dram.other"] == pytest.approx(0.9, rel=0.05)


def test_a_fit_is_the_same_each_time() -> None:
    assert fit(ONE, [table(0.7)], shipped()).values == fit(ONE, [table(0.7)], shipped()).values


def test_thinning_draws_the_same_rows_each_time() -> None:
    few = thinned(table(0.7), 10)
    assert len(few.works) == 10 and few.works == thinned(table(0.7), 10).works
    assert thinned(few, 10) is few


def row(name: str, die: str, miss: np.ndarray) -> Misses:
    return Misses(name, die, "known", miss, np.arange(1.0, len(miss) + 1))


def test_ranges_widen_by_what_a_die_left_out_asks() -> None:
    """Of dies that are all alike nothing; where one differs, the others' range has to reach it in four of five."""
    same = [row("linear", die, np.full(10, 0.1)) for die in "abcde"]
    assert widened(same) == pytest.approx(1)
    apart = [row("linear", die, np.full(10, size)) for die, size in zip("abc", (0.1, 0.1, 0.3), strict=True)]
    assert widened(apart) == pytest.approx(3)
    assert widened(apart[:2]) == 1  # too few to tell


def test_small_and_large_work_have_ranges_of_their_own() -> None:
    miss = np.repeat([0.3, 0.2, 0.1], 30)
    found = intervals([Misses("linear", die, "known", miss, np.arange(1.0, 91)) for die in "abc"], {"linear": {}})
    assert found["linear"]["known"] == pytest.approx([0.3, 0.2, 0.1])


def test_a_range_holds_what_it_says_of_the_rows_it_came_from() -> None:
    random = np.random.default_rng(2)
    misses = [row("linear", die, 0.1 * random.standard_normal(n)) for die, n in (("a", 50), ("b", 5000))]
    width = quantile(misses)
    held = np.mean([np.mean(np.abs(m.miss) <= width) for m in misses])  # dies count alike, however many rows they have
    assert held == pytest.approx(0.8, abs=0.02)


def test_ranges_know_what_a_card_has_in_common() -> None:
    def by_card(common: float, own: float) -> dict[str, float]:
        random = np.random.default_rng(3)
        rows = [
            row("linear", f"die{i}", common * sign + own * random.standard_normal(400))
            for i, sign in enumerate((1, -1, 1, -1))
        ]
        return intervals(rows, {"linear": {}})["linear"]

    assert by_card(0.1, 0.001)["within"] > 0.95
    assert by_card(0.001, 0.1)["within"] < 0.05


def test_a_range_leaves_out_the_die_it_is_asked_to() -> None:
    rows = [row("linear", "a", np.full(10, 0.1)), row("linear", "b", np.full(10, 0.9))]
    assert intervals(rows, {"linear": {}}, without="b")["linear"]["known"] == pytest.approx([0.1] * 3)
    assert intervals(rows, {"linear": {}})["linear"]["new"] == pytest.approx([0.9] * 3)


def test_distances_whose_widths_come_out_the_wrong_way_round_are_pooled() -> None:
    def widths(near: float, far: float) -> list[float]:
        rows = [replace(row("linear", d, np.full(10, x)), distance=at) for d, x, at in
                (("a", near, "measured"), ("b", far, "known"))]  # fmt: skip
        found = intervals(rows, {"linear": {}})["linear"]
        return [found[at][0] for at in ("measured", "known", "new")]

    assert widths(0.1, 0.3) == pytest.approx([0.1, 0.3, 0.3])
    pooled = widths(0.3, 0.1)
    assert pooled == [pooled[0]] * 3


def test_a_card_all_of_whose_rows_are_kept_back_takes_no_weight_in_a_fit() -> None:
    seconds = np.array([[1e-3, np.nan], [np.nan, 1e-3]])
    works = tuple(Work(Pointwise(n), "float32", "fp32", 4 * n, 4 * n, 0, 0, n) for n in (2**24, 2**25))
    t = Table("add", "torch", works, ("t4", "l4"), seconds, np.array([False, True]), np.full((2, 2), ""), {})
    assert kernels()["add"].open_rows(t).gpus == ("t4",)

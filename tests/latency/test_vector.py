"""What kernels without products must show: streams, rows read again, issue slots, few rows; and their fit."""

from dataclasses import replace
from functools import reduce
from operator import getitem

import numpy as np
import pytest

import gpu_specs
from onnxperf.lab.constants import assumed
from onnxperf.lab.datasets import Table, kernels
from onnxperf.lab.datasets.reading import work_of
from onnxperf.lab.derive.fit import fit, fitted_rows
from onnxperf.latency import alone, shipped
from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.families.pointwise import VECTOR
from onnxperf.latency.families.rows import rows as row_model
from op_models import Move, Pointwise, Rows, Tensor, Work
from tests.latency.conftest import seconds

P4, P100, V100, T4, A100, L4 = (
    gpu_specs.load(g) for g in ("p4", "p100-pcie-16gb", "v100-pcie-32gb", "t4", "a100-pcie-40gb", "l4")
)
CARDS = (P4, P100, V100, T4, A100, L4)
REDUCTION, LAYER_NORM, SOFTMAX = 0, 1, 2


def elementwise(n: int, flops: int = 1, operands: int = 2) -> Work:
    return Work(Pointwise(n), "float32", "fp32", 4 * n * (operands - 1), 4 * n, 0, 0, flops * n)


def rows(count: int, width: int, passes: int) -> Work:
    n = count * width
    return Work(Rows(count, width, passes), "float32", "fp32", 4 * n, 4 * n if passes else 4 * count, 0, 0, 7 * n)


@pytest.mark.parametrize("card", CARDS, ids=lambda d: d.id)
def test_a_long_stream_runs_at_the_share_of_its_generation(card: gpu_specs.Device) -> None:
    share = elementwise(10**9).bytes / seconds(elementwise(10**9), card) / card.bandwidth_Bps
    early = card in (P4, P100, T4, L4)
    assert share == pytest.approx(shipped().dram["early" if early else "late"], rel=0.05)


def test_a_stream_that_is_still_in_l2_beats_dram() -> None:
    small = elementwise(10**6)
    assert seconds(small, A100) < small.bytes / A100.bandwidth_Bps
    assert seconds(small, L4) < small.bytes / L4.bandwidth_Bps


def test_one_short_element_a_thread_leaves_bandwidth_idle_where_an_sm_has_much() -> None:
    """Halves moved one by one wait for trips to memory on A100, hardly on L4."""
    n = 10**9
    one_by_one, in_fours = (Work(Move(n, run), "float16", "fp16", 2 * n, 2 * n, 0) for run in (64, n))
    slower = [seconds(one_by_one, card) / seconds(in_fours, card) for card in (A100, V100, L4)]
    assert slower[0] > 1.2 and slower[0] > slower[1] > slower[2] < 1.1
    assert seconds(one_by_one, A100) > n / (A100.threads_per_sm * A100.sms) * shipped().pointwise["trip_s"]


@pytest.mark.parametrize(("count", "width", "took_ms"), [(65_536, 512, 0.953), (20_480, 1024, 0.594)])
def test_the_gradient_of_a_short_softmax_reads_its_rows_once(count: int, width: int, took_ms: float) -> None:
    """Behind a product, as on a V100: NeuSight's rows of BERT-large and GPT-2, less the 26 us that its clock adds."""
    t = Tensor("t", "float32", (count, width))
    gradient = work_of("com.microsoft::SoftmaxGrad", (t, t), t)
    assert gradient is not None
    both = seconds(gradient, V100) + seconds(elementwise(count * width, operands=3), V100)
    assert both == pytest.approx(took_ms * 1e-3, rel=0.06)


def test_few_threads_wait_for_memory_at_each_element() -> None:
    """A thread for each of 196 positions takes a million trips; with a thread for every one, none shows. gpu-benches'
    L40 waits 632 clocks of 2490 MHz, of which L2 answers in 276; other boards have other clocks.
    """
    n = 196 << 20
    few, many = (Work(Move(n, 14, t), "float32", "fp32", 4 * n, 4 * n, 0) for t in (196, n))
    for card in CARDS:
        assert seconds(few, card) >= (1 << 20) * (0.32e-6 if card.memory_kind.startswith("HBM") else 0.2e-6)
        assert seconds(many, card) < 0.1 * seconds(few, card)
    trips = [seconds(few, gpu_specs.load(gpu)) / (1 << 20) for gpu in ("rtx-3090", "l40", "rtx-4090")]
    assert trips == pytest.approx([288e-9, 254e-9, 242e-9], rel=0.02)


def test_an_operand_that_is_spread_costs_the_places_of_all_elements() -> None:
    """Three divisions an element: as long as the bytes on A100, little beside them on T4."""
    n = 10**9
    alike, spread = (Work(Pointwise(n, s), "float16", "fp16", 2 * n, 2 * n, 0, 0, n) for s in (False, True))
    slower = [seconds(spread, card) / seconds(alike, card) for card in (A100, T4)]
    assert slower[0] > 1.15 and slower[1] < 1.15


def test_normalisation_reads_rows_twice_where_those_in_flight_exceed_l2() -> None:
    """Three trips to DRAM in place of two: 4 MB of L2 hold 56 x 16 rows of 256 elements, and not of 8192."""
    d = Cards([P100, V100, A100], shipped())
    wide, narrow = (Works([rows(2**15, width, LAYER_NORM)], d) for width in (16384, 256))
    assert (row_model(narrow, d, np.zeros((1, 1))).detail["miss share"] < 0.02).all()
    assert (row_model(wide, d, np.zeros((1, 1))).detail["miss share"] > 0.98).all()
    for card in (P100, V100, A100):
        assert seconds(rows(2**15, 16384, LAYER_NORM), card) == pytest.approx(
            1.5 * seconds(elementwise(2**29), card), rel=0.12
        )


def test_softmax_keeps_rows_of_1024_in_registers_and_sweeps_longer_ones() -> None:
    stream = seconds(elementwise(2**28), P4)
    assert seconds(rows(2**18, 1024, SOFTMAX), P4) < 1.15 * stream
    assert seconds(rows(2**14, 16384, SOFTMAX), P4) == pytest.approx(2 * stream, rel=0.1)


def test_normalisation_falls_off_a_cliff_where_a_fourth_step_is_not_full() -> None:
    def each(width: int) -> float:
        return seconds(rows(16384, width, LAYER_NORM), P100) / width

    assert each(1556) > 1.2 * each(1536)
    assert each(1556) > 1.1 * each(2048)


def test_a_block_of_a_small_channel_waits_longer_where_memory_is_hbm() -> None:
    """cuDNN's batch norm of 7x7 positions: 165 clocks of an SM a block on an H200, by its own kernels."""
    blocks, plane = 65536, 49
    w = Work(Pointwise(blocks * plane, scaled=True, plane=plane), "float16", "fp32", 2 * blocks * plane,
             2 * blocks * plane, 0, 0, 2 * blocks * plane)  # fmt: skip
    cards = [gpu_specs.load(g) for g in ("h200-sxm", "l40")]
    clocks = [alone([w], [d], shipped()).seconds[0, 0] * d.boost_hz * d.sms / blocks for d in cards]
    assert clocks[0] == pytest.approx(165, rel=0.08)
    assert 119 < clocks[1] < 142, "RTX 3090 and 4090, by whole networks"


def test_special_functions_are_bound_by_issue_where_an_sm_has_two_schedulers() -> None:
    def slowed(card: gpu_specs.Device) -> float:
        return seconds(elementwise(10**8, flops=9), card) / seconds(elementwise(10**8), card)

    assert slowed(P100) > 1.08 > 1.06 > slowed(V100) >= 1


@pytest.mark.parametrize("card", CARDS, ids=lambda d: d.id)
def test_little_work_takes_a_launch_and_not_much_more(card: gpu_specs.Device) -> None:
    for w in (elementwise(1), rows(1, 16, SOFTMAX), rows(1, 768, LAYER_NORM), rows(1, 64, 0)):
        assert Cards([card], shipped()).start_s[0, 0] < seconds(w, card) < 4e-6
    assert seconds(rows(1, 50_000, SOFTMAX), card) > 2 * seconds(rows(1, 1000, SOFTMAX), card)


@pytest.mark.parametrize("gpu", ["a40", "l40", "h200-sxm", "rtx-4090", "a100-sxm4-40gb"])
def test_tensors_that_l2_holds_are_not_read_from_dram(gpu: str) -> None:
    """Half of L2 streams faster than DRAM can, twice L2 at DRAM's pace; a copy takes its bytes' time beside a start.
    Of two partitions the far one is slower from Hopper on: an H200 moves 8.5 TB/s of 4 MB, 6.0 of 32.
    """
    card = gpu_specs.load(gpu)
    start_s = float(Cards([card], shipped()).start_s[0, 0])

    def rate(nbytes: float) -> float:
        return nbytes / (seconds(elementwise(round(nbytes / 8)), card) - start_s)

    within, beyond = rate(card.l2_bytes / 2), rate(2 * card.l2_bytes)
    assert within > 1.1 * card.bandwidth_Bps > card.bandwidth_Bps > beyond
    nearer = rate(card.l2_bytes / 8) / within
    assert 1.2 < nearer < 1.45 if gpu == "h200-sxm" else nearer == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("passes", [0, LAYER_NORM, SOFTMAX])
def test_more_rows_never_take_less(passes: int) -> None:
    """Over eight decades of work, on every card."""
    works = [rows(2**e, 2048, passes) for e in range(24)]
    times = alone(works, [gpu_specs.load(i) for i in gpu_specs.ids()], shipped(), budget=False).seconds
    assert (times[1:] >= times[:-1]).all()


def test_short_runs_cost_more_than_a_copy() -> None:
    """The place of an element is computed: permuted copies do 190 G elements a second on an H200, plain ones 520."""
    n = 2**24
    copy, heads, single = (Work(Move(n, run), "float32", "fp32", 4 * n, 4 * n, 0) for run in (n, 64, 1))
    for card in CARDS:
        assert seconds(copy, card) <= seconds(heads, card) < 2.7 * seconds(copy, card)
        assert 2 * seconds(copy, card) < seconds(single, card) < 3 * seconds(copy, card)


def test_every_constant_that_is_fitted_has_a_start_value() -> None:
    for p in VECTOR.parameters:
        assert reduce(getitem, p.path.split("."), assumed().tables) == pytest.approx(p.start, rel=0.7)


def tables(dram: float) -> list[Table]:
    """Rows that the model itself makes, with another share of DRAM, 20 us of overhead and 2% of noise."""
    cards, c = (P4, P100, T4), assumed().having({"dram.early": dram})
    random = np.random.default_rng(0)

    def table(name: str, works: tuple[Work, ...]) -> Table:
        """The first one is kept back, the last one short."""
        made = kernels()[name].seconds(works, cards, c) + 2e-5
        made = np.vstack([made * np.exp(0.02 * random.standard_normal(made.shape)), 1e-6 * np.ones((1, len(cards)))])
        kernel, test = np.full(made.shape, "", dtype=object), np.arange(len(made)) == 0
        return Table(name, "torch", (*works, elementwise(7)), tuple(d.id for d in cards), made, test, kernel, {})

    return [
        table("add", tuple(elementwise(n) for n in range(10**7, 10**8, 10**7))),
        table("softmax", tuple(rows(2**14, w, SOFTMAX) for w in range(256, 4096, 256))),
    ]


def test_a_slice_of_rows_gives_back_the_constant_that_made_it() -> None:
    used = fitted_rows(tables(0.65), VECTOR)
    found = fit(replace(VECTOR, weight=300.0), used, assumed())
    assert found.values["dram.early"] == pytest.approx(0.65, rel=0.05)


def test_fits_see_neither_test_rows_nor_rows_shorter_than_a_launch() -> None:
    given = tables(0.7)
    for all_rows, used in zip(given, fitted_rows(given, VECTOR), strict=True):
        assert len(used.works) == len(all_rows.works) - 2
        assert not used.test.any() and np.nanmin(used.seconds) >= 1e-4
        assert sum(used.dropped.values()) == 3


@pytest.mark.parametrize("width", [2, 4, 16])
def test_a_warp_reduces_several_short_rows(width: int) -> None:
    """As many elements take about as long in short rows as in rows of a warp; more results are written."""
    for card in (P100, V100, T4, A100):
        written = seconds(elementwise(2**26 // width, 1, 1), card)
        whole = seconds(rows(2**26 // 32, 32, REDUCTION), card)
        assert seconds(rows(2**26 // width, width, REDUCTION), card) < 1.2 * whole + written

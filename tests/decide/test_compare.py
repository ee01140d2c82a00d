"""Cards side by side: every figure is that of a prediction, ranks are in order, and ties are overlaps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import gpu_specs
import onnxperf
from onnxperf import UsageError, compare, predict
from onnxperf.decide.choices import GAIN, MOST_BATCH, Choice, priced, selected
from onnxperf.decide.compare import Comparison
from onnxperf.ground.names import RANKED_BY
from onnxperf.views.choices import show_comparison
from tests.decide.models import net

CARDS = ["t4", "l4", "a10g", "a100", "h100"]


@pytest.fixture(scope="module")
def by_all() -> dict[str, Comparison]:
    model = onnxperf.load(net())
    return {by: compare(model, gpu=CARDS, by=by, prices={"a10g": 2.0}) for by in RANKED_BY}


@pytest.mark.slow
def test_each_figure_is_that_of_a_prediction(by_all: dict[str, Comparison]) -> None:
    for c in by_all["throughput"].cards:
        assert c.asked and c.best and c.price
        p, best = (predict(net(), gpu=c.device.id, batch=b) for b in (1, c.best.batch))
        assert (c.asked.seconds, c.asked.low_seconds, c.asked.watts) == (p.seconds, p.low_seconds, p.watts)
        assert c.best.throughput_per_second == pytest.approx(best.throughput_per_second)
        assert c.best.joules_per_sample == pytest.approx(best.joules_per_sample)
        hours = 1e6 / best.throughput_per_second / 3600
        assert c.usd_per_million == pytest.approx(hours * c.price.usd_per_hour)
    assert {c.device.id: c.price.usd_per_hour for c in by_all["cost"].cards if c.price}["a10g"] == 2.0


@pytest.mark.parametrize("by", RANKED_BY)
def test_ranks_are_in_order_and_ties_are_overlaps(by_all: dict[str, Comparison], by: str) -> None:
    found = by_all[by].cards
    figures = {c.device.id: c.figure for c in found}
    assert [f[1] for f in figures.values() if f] == sorted(f[1] for f in figures.values() if f)
    assert len(figures) == len(CARDS) and found[0].rank == 1
    for c in found:
        assert c.figure is not None and c.figure[0] <= c.figure[1] <= c.figure[2]
        low, _, high = c.figure
        over = {id for id, f in figures.items() if f and id != c.device.id and f[0] <= high and low <= f[2]}
        assert set(c.ties) == over
    for a, b in pairwise(found):
        assert a.rank <= b.rank
        if a.rank == b.rank:
            first = next(c for c in found if c.rank == a.rank)
            assert first.figure and b.figure and b.figure[0] <= first.figure[2]


@pytest.mark.parametrize(
    ("by", "prices", "has", "lacks"),
    [
        ("cost", True, ("80% interval", "$/hour", "$/million"), ("memory", "J/sample")),
        ("latency", True, ("80% interval", "$/hour", "$/million"), ("memory", "J/sample")),
        ("energy", True, ("80% interval", "J/sample", "memory"), ("$/hour", "$/million", "on-demand prices")),
        ("latency", False, ("80% interval", "memory"), ("$/hour", "$/million")),
    ],
)
def test_a_hundred_columns_have_room_for_what_decides(
    by: str, prices: bool, has: Sequence[str], lacks: Sequence[str]
) -> None:
    gpu = ["a100", "h100"] if prices else ["rtx-a2000-12gb", "rtx-3060"]
    out = Console(width=100, file=StringIO(), highlight=False)
    show_comparison(out, compare(net(), gpu=gpu, by=by))
    text = out.file.getvalue()
    head = next(line for line in text.splitlines() if line.startswith("rank "))
    assert len(head) <= 100 and all(name in head for name in has) and not any(name in text for name in lacks)


def test_the_best_batch_has_the_most_samples_a_second(by_all: dict[str, Comparison]) -> None:
    for c in by_all["throughput"].cards:
        assert c.best is not None
        for batch in (1, 4, min(2 * c.best.batch, MOST_BATCH)):
            other = predict(net(), gpu=c.device.id, batch=batch)
            assert other.throughput_per_second <= c.best.throughput_per_second * GAIN**2
    limited = compare(net(), gpu=["t4"], by="throughput", max_ms=0.2).cards[0]
    assert (
        limited.best and limited.best.seconds <= 0.2e-3 < predict(net(), gpu="t4", batch=2 * limited.best.batch).seconds
    )


def test_a_card_that_can_not_says_why(tmp_path: Path) -> None:
    found = compare(net(), gpu=["t4", "l4", "rtx-3060"], by="cost")
    assert [c.device.id for c in found.cards][-1] == "rtx-3060" and "--price" not in found.cards[0].why
    assert found.cards[-1].figure is None and "no price" in found.cards[-1].why
    late = compare(net(), gpu=["t4"], max_ms=1e-3, batch=1).cards[0]
    assert late.figure is None and "at batch 1, over 1 us" in late.why
    large = compare(net(), gpu=["t4", "h200"], batch=60_000).cards
    assert [c.device.id for c in large if c.asked and not c.asked.fits] == [c.device.id for c in large if c.why]


def test_the_heading_says_what_is_ranked_and_at_which_batch() -> None:
    def screen(by: str, max_ms: float | None, batch: int | None = None) -> str:
        out = Console(width=100, file=StringIO(), highlight=False)
        show_comparison(out, compare(net(), gpu=["t4", "l4"], by=by, max_ms=max_ms, batch=batch))
        return " ".join(out.file.getvalue().split())

    late = screen("latency", 0.15, 8192)
    assert "batch 8192, at most 150 us: ranked by latency no card can be ranked t4: takes " in late
    assert late.count(" at batch 8192, over 150 us") == 2
    limited = screen("cost", 0.1)
    assert ": ranked by cost per million samples at the best batch within 100 us; latency at batch 1 rank" in limited
    assert "memory best batch samples/s" in limited and "at full load and the best batch" in limited
    assert "ranked by throughput at the best batch; latency at" in screen("throughput", None)
    asked = screen("cost", 50, 64)
    assert ": ranked by cost per million samples at batch 64 within 50 ms rank" in asked and "best" not in asked
    assert "batch samples/s" in asked and "at full load and this batch" in asked


@pytest.mark.parametrize("by", RANKED_BY)
def test_a_batch_that_is_asked_for_is_the_one_that_is_ranked(by: str) -> None:
    cards = compare(net(), gpu=CARDS, by=by, batch=8).cards
    assert all(c.best == c.asked and c.asked and c.asked.batch == 8 and c.rank for c in cards)
    late = sorted(c.asked.seconds for c in cards if c.asked)[1]
    limited = compare(net(), gpu=CARDS, by=by, batch=8, max_ms=late * 1e3).cards
    able = {c.device.id for c in cards if c.asked and c.asked.seconds <= late}
    assert {c.device.id for c in limited if c.rank} == able and 0 < len(able) < len(CARDS)
    assert all(" at batch 8, over " in c.why for c in limited if not c.rank)


def test_hosts_that_differ_are_named() -> None:
    def screen(**terms: Any) -> str:
        out = Console(width=100, file=StringIO(), highlight=False)
        show_comparison(out, compare(net(), gpu=["rtx-4090", "l4", "l40s"], batch=1, **terms))
        return " ".join(out.file.getvalue().split())

    differ = "the assumed host CPUs differ: "
    assert f"{differ}desktop for rtx-4090; server-2023 for " in (usual := screen())
    assert "--host desktop ranks all on one" in usual
    assert differ not in screen(host="desktop") and differ not in screen(method="roofline")


def test_a_card_of_your_own_stands_beside_the_one_that_ships(tmp_path: Path) -> None:
    shipped = Path(gpu_specs.__file__).parent / "cards" / "l4.toml"
    own = tmp_path / "l4.toml"
    own.write_text(shipped.read_text(encoding="utf-8").replace("tdp_W = 72", "tdp_W = 50"), encoding="utf-8")
    found = compare(net(), gpu=selected(["l4", str(own)]), batch=1024).cards
    assert [c.device.tdp_W for c in found] == [72, 50] and found[0].asked and found[1].asked
    assert found[0].asked.seconds < found[1].asked.seconds


def test_a_fixed_batch_stays(by_all: dict[str, Comparison]) -> None:
    assert not by_all["latency"].fixed


def test_a_batch_that_is_given_by_its_name_is_the_one_that_is_asked_for() -> None:
    named, asked = (
        compare(net(), gpu=["t4"], by="throughput", **terms).to_dict()
        for terms in ({"dims": {"batch": 4}}, {"batch": 4})
    )
    assert named == asked and named["cards"][0]["best"]["batch"] == 4 and not named["fixed_batch"]
    with pytest.raises(UsageError, match="8 contradicts 4 given for dimension 'batch'"):
        compare(net(), gpu=["t4"], dims={"batch": 4}, batch=8)


def test_the_json_is_the_comparison(by_all: dict[str, Comparison]) -> None:
    found = json.loads(by_all["energy"].to_json())
    assert [c["gpu"] for c in found["cards"]] == [c.device.id for c in by_all["energy"].cards]
    first = found["cards"][0]
    assert first["best"]["joules_per_sample"] == pytest.approx(
        first["best"]["watts"] / first["best"]["throughput_per_second"]
    )


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"gpu": ["l4", "nope"]}, "unknown gpu 'nope'"),
        ({"gpu": ["l4"], "by": "beauty"}, "ranked by one of latency"),
        ({"gpu": ["l4"], "prices": {"l4": 0}}, "must be a positive number"),
        ({"gpu": ["l4"], "prices": {"nope": 1.0}}, "unknown gpu 'nope'"),
        ({"gpu": ["l4"], "max_ms": -1}, "must be a positive number"),
    ],
)
def test_what_is_wrong_is_named(terms: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        compare(net(), batch=1, **terms)


def test_cards_are_selected_by_memory_and_generation() -> None:
    def ids(**terms: Any) -> set[str]:
        return {device.id for device in selected(**terms) if isinstance(device, gpu_specs.Device)}

    assert ids(every=True) == set(gpu_specs.ids())
    ada = ids(generation="ada", capacity_bytes=40e9)
    assert "l40s" in ada and "l4" not in ada and "h100-sxm" not in ada
    assert ids(gpus=["l4", "t4", "l4"]) == {"l4", "t4"}
    for terms, says in (({}, "name the cards"), ({"generation": "volvo"}, "generations are Ada"),
                        ({"capacity_bytes": 1e15}, "that much")):  # fmt: skip
        with pytest.raises(UsageError, match=says):
            selected(**terms)


def test_every_shipped_price_is_of_a_card_and_dated() -> None:
    assert set(gpu_specs.prices()) <= set(gpu_specs.ids())
    assert all(p.date and p.source and p.status for p in gpu_specs.prices().values())
    assert priced({"t4": 0.2})["t4"].usd_per_hour == 0.2 and priced()["t4"].usd_per_hour != 0.2


def test_a_choice_counts_samples() -> None:
    c = Choice(8, 0.002, 0.001, 0.004, 10, True, 50.0)
    assert c.throughput_per_second == 4000 and c.joules_per_sample == pytest.approx(0.0125)
    assert c.usd_per_million(gpu_specs.Price(3.6, "x")) == pytest.approx(0.25)

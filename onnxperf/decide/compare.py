"""Which card: a model on several, ranked by latency, throughput, cost or energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from gpu_specs import Device, Price
from onnxperf.answer.accuracy import Accuracy
from onnxperf.decide.choices import Choice, Choices, choices, priced, selected, too_large
from onnxperf.ground.codec import Document, plain
from onnxperf.ground.errors import UsageError, speaking_of_arguments
from onnxperf.ground.names import RANKED_BY, choice_named
from onnxperf.ground.output import Progress
from onnxperf.running.largest import limits_of
from onnxperf.running.pipeline import Gpu, Request, request_for
from onnxperf.running.terms import Bound, Examples

Figure = tuple[float, float, float]  # what cards are ranked by: low, median and high, the lowest first


@dataclass(frozen=True, slots=True)
class Candidate(Document):
    """A card in a comparison.

    asked: the run at the batch that was asked for, or that the file has; best: the same where one was asked for, else
    at the batch with the most samples a second, where that fits and keeps the limit; accuracy: whether runs like these
    were measured; figure: what cards are ranked by, the lowest first, as low, median and high: seconds, seconds a
    sample at the best batch, US dollars for a million samples there, or joules a sample. rank: from 1, the same where
    the range overlaps that of the first of this rank; ties: ids of the cards whose ranges overlap with this one's. A
    card that is not ranked has no figure, rank 0, and says `why`.
    """

    device: Device
    asked: Choice | None
    best: Choice | None
    price: Price | None
    accuracy: Accuracy | None
    figure: Figure | None = None
    rank: int = 0
    ties: tuple[str, ...] = ()
    why: str = ""

    @property
    def usd_per_million(self) -> float | None:
        """US dollars for a million samples at the best batch; None without a price or a batch."""
        return self.best.usd_per_million(self.price) if self.best and self.price else None

    def to_dict(self) -> dict[str, Any]:
        """The card as plain data."""
        shown = plain(self, "asked", "best", "price", "accuracy", "why")
        if self.best is not None:
            shown["best"] |= plain(self.best, "throughput_per_second", "joules_per_sample")
            shown["best"] |= plain(self, "usd_per_million")
        name = {"gpu": self.device.id, "device_name": self.device.name}
        return {**name, "rank": self.rank or None, "ties_with": list(self.ties), **shown}


@dataclass(frozen=True, slots=True)
class Comparison(Document):
    """Cards, the best first and those that can't be ranked last.

    fixed: why the model's batch can't be changed, so that every card has the one that it has; "" where it can.
    as_asked: whether a batch was asked for, which all figures are of. hosts: by the card's id the processor that
    launches its kernels, where its pace counts.
    """

    ROWS = "cards"

    model: str
    runtime: str
    precision: str
    batch: int
    by: str
    max_seconds: float | None
    cards: tuple[Candidate, ...]
    fixed: str
    as_asked: bool = False
    hosts: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain data: times in seconds, sizes in bytes, prices in US dollars."""
        terms = plain(self, "model", "runtime", "precision", "batch", "by", "max_seconds")
        return {**terms, "fixed_batch": self.fixed, **plain(self, "cards")}


def compare(
    model: Any,
    example_inputs: Examples = None,
    *,
    gpu: Sequence[Gpu] | None = None,
    by: str = "latency",
    max_ms: float | None = None,
    prices: Mapping[str, float] | None = None,
    **terms: Unpack[Bound],
) -> Comparison:
    """Predict a model on several cards and rank them by latency, throughput, cost or energy.

    model, example_inputs and terms are those of `onnxperf.predict`. gpu: the cards, None for all that ship. Figures are
    those of the batch asked for, which takes at most max_ms milliseconds. Without one, latency is that of the model's
    own batch, 1 where that is open; the others are of the batch with the most samples a second that the card's memory
    holds and that keeps that limit. prices: US dollars an hour by card, instead of those that ship. Raises
    what `predict` raises.
    """
    with speaking_of_arguments():
        cards = selected(every=True) if gpu is None else gpu
        limit = limits_of(max_ms, None).seconds
        return compared(request_for(model, example_inputs, **terms), cards, by, limit, priced(prices))


def compared(
    request: Request, gpus: Sequence[Gpu], by: str, limit_s: float | None, prices: Mapping[str, Price],
    tell: Progress | None = None,
) -> Comparison:  # fmt: skip
    """`compare` of a request. Raises UsageError also where `by` is none of RANKED_BY."""
    by = choice_named(by, RANKED_BY)
    if by not in RANKED_BY:
        raise UsageError(f"cards are ranked by one of {', '.join(RANKED_BY)}, not {by!r}")
    chosen = choices(request, gpus, limit_s, tell, at_asked=True)
    candidates = _candidates(chosen, by, limit_s, prices)
    able = sorted((c for c in candidates if c.figure is not None), key=lambda c: c.figure[1] if c.figure else 0.0)
    unable = [c for c in candidates if c.figure is None]
    places = ranks([(c.device.id, c.figure) for c in able if c.figure is not None])
    ranked = (replace(c, rank=rank, ties=ties) for c, (rank, ties) in zip(able, places, strict=True))
    cards = (*ranked, *unable)
    return Comparison(chosen.model, **chosen.terms, by=by, max_seconds=limit_s, cards=cards, fixed=chosen.fixed,
                      as_asked=chosen.as_asked, hosts=chosen.hosts)  # fmt: skip


def _candidates(chosen: Choices, by: str, limit_s: float | None, prices: Mapping[str, Price]) -> list[Candidate]:
    """Every card with its figure, or why it has none."""
    candidates = []
    for card in chosen.cards:
        best, price, asked = card.best(limit_s), prices.get(card.device.id), card.asked
        figure, why = None, card.why
        if asked is not None:
            figure, why = _figure(by, asked, best, price)
            if best is None:
                why = card.lacks(limit_s)
            elif by == "latency" and not asked.fits:
                figure, why = None, too_large(asked, card.device)
            elif by == "latency" and limit_s is not None and asked.seconds > limit_s:
                figure, why = None, f"over the limit at batch {asked.batch}"
        candidates.append(Candidate(card.device, asked, best, price, card.accuracy, figure if best else None, why=why))
    return candidates


def _figure(by: str, asked: Choice, best: Choice | None, price: Price | None) -> tuple[Figure | None, str]:
    """What a card is ranked by, as low, median and high, or why there is none."""
    if by == "latency":
        return (asked.low_seconds, asked.seconds, asked.high_seconds), ""
    if best is None:
        return None, ""
    share = 1.0 / best.batch
    if by == "cost" and price is None:
        return None, "no price: give one with --price CARD=USD"
    if by == "energy" and best.watts is None:
        return None, "the power of a CPU is not modelled"
    if by == "cost" and price is not None:
        share *= 1e6 * price.usd_per_hour / 3600
    elif by == "energy" and best.watts is not None:
        share *= best.watts
    return (best.low_seconds * share, best.seconds * share, best.high_seconds * share), ""


def ranks(able: Sequence[tuple[str, Figure]]) -> list[tuple[int, tuple[str, ...]]]:
    """The rank of each card, by its id and figure, the best first, and the cards that it ties with."""
    places, rank, reach = list[tuple[int, tuple[str, ...]]](), 0, 0.0
    for i, (id, (low, _, high)) in enumerate(able):
        if not rank or low > reach:
            rank, reach = i + 1, high
        places.append((rank, tuple(o for o, (least, _, most) in able if o != id and least <= high and low <= most)))
    return places

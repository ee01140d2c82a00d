"""Which card for a language model: ranked by time per token, throughput or cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from gpu_specs import Device, Price
from onnxperf.answer.accuracy import Accuracy
from onnxperf.decide.choices import priced, selected
from onnxperf.decide.compare import Figure, ranks
from onnxperf.decide.pace import FIRST, TOKEN, Pace, pace_of
from onnxperf.ground.codec import Document, plain
from onnxperf.ground.errors import Error, UsageError, speaking_of_arguments
from onnxperf.ground.names import choice_named
from onnxperf.ground.output import Progress
from onnxperf.ground.tables import size
from onnxperf.language.arrivals import RUNNING
from onnxperf.language.core import Generation
from onnxperf.language.decoding import Decoding, Loaded, decoding_of
from onnxperf.language.steps import Seconds
from onnxperf.passes.plan import parse_plan
from onnxperf.running.pipeline import Gpu, each

RANKED_BY = ("latency", "throughput", "cost")


@dataclass(frozen=True, slots=True)
class LanguageCandidate(Document):
    """A card, or as many as the plan takes, in a comparison.

    generation: what `llm` answers, None where it can't; price: of one card. figure: what cards are ranked by, the
    lowest first, as low, median and high: seconds per output token, seconds of all cards for a token, or US dollars for
    a million tokens. rank, ties, why: as of a `Candidate`.
    """

    device: Device
    generation: Generation | None
    price: Price | None
    gpus: int = 1
    figure: Figure | None = None
    rank: int = 0
    ties: tuple[str, ...] = ()
    why: str = ""

    @property
    def first(self) -> Seconds | None:
        """Until the first token: of the batch, or of requests in the mean."""
        if (g := self.generation) is None:
            return None
        return g.batches[0].first if g.service is None else g.service.times[FIRST].mean

    @property
    def token(self) -> Seconds | None:
        """Of each further token."""
        if (g := self.generation) is None:
            return None
        return g.batches[0].token if g.service is None else g.service.times[TOKEN].mean

    @property
    def tokens_per_second(self) -> Seconds | None:
        """Tokens that all cards generate in a second, with what they are at the ends of the range.

        Of requests that arrive at a rate, the rate decides; in a closed loop of N, N / latency times the output does.
        """
        if (g := self.generation) is None:
            return None
        if (s := g.service) is None:
            return Seconds(*(g.batches[0].batch * g.lengths.output / end for end in g.batches[0].whole.ends()))
        mean, closed = s.times["latency"].mean, s.traffic.qps is None
        return Seconds(*(s.tokens_per_second * (mean.seconds / end if closed else 1.0) for end in mean.ends()))

    @property
    def usd_per_million_tokens(self) -> float | None:
        """US dollars for a million generated tokens; None without a price."""
        rate = self.tokens_per_second
        if rate is None or self.price is None:
            return None
        return 1e6 * self.gpus * self.price.usd_per_hour / 3600 / rate.seconds

    @property
    def accuracy(self) -> Accuracy | None:
        """Whether generation like it was measured."""
        return self.generation.accuracy if self.generation else None

    @property
    def needed_bytes(self) -> int | None:
        """Bytes of one card for the batch, or for as many requests as are admitted at most."""
        if (g := self.generation) is None:
            return None
        return g.batches[0].needed_bytes if g.service is None else g.service.memory_bytes

    @property
    def fits(self) -> bool:
        """Whether the memory holds the batch; requests are admitted only as it does."""
        return self.generation is not None and (self.generation.service is not None or self.generation.batches[0].fits)

    def to_dict(self) -> dict[str, Any]:
        """The card as plain data."""
        g, rate, shown = self.generation, self.tokens_per_second, dict[str, Any]()
        if g is not None and self.first is not None and self.token is not None and rate is not None:
            shown = {FIRST: self.first.to_dict(), TOKEN: self.token.to_dict(), "tokens_per_second": rate.seconds}
            shown |= {"memory_bytes": self.needed_bytes, **plain(g, "capacity_bytes", "largest_batch")}
        named = {"gpu": self.device.id, "device_name": self.device.name, "gpus": self.gpus}
        ranked = {"rank": self.rank or None, "ties_with": list(self.ties)}
        return {**named, **ranked, **shown, **plain(self, "fits", "price", "usd_per_million_tokens", "accuracy", "why")}


@dataclass(frozen=True, slots=True)
class LanguageComparison(Document):
    """Cards for a language model, the best first and those that can't be ranked last; about: the answer on the first,
    which says what was asked of all.
    """

    ROWS = "cards"

    about: Generation
    by: str
    pace: Pace
    cards: tuple[LanguageCandidate, ...]

    @property
    def runners(self) -> tuple[str, ...]:
        """What runs the model, the engine or a runtime by itself, of all cards."""
        return tuple(dict.fromkeys(c.generation.runner for c in self.cards if c.generation is not None))

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain data: times in seconds, sizes in bytes, prices in US dollars."""
        a, s = self.about, self.about.service
        requests = {"qps": s.traffic.qps, "concurrency": s.traffic.concurrency or None} if s else {}
        limits = {f"max_{TOKEN}_seconds": self.pace.token_s, f"max_{FIRST}_seconds": self.pace.first_s}
        return {
            **plain(a, "model", "engine", "runtime", "precision", "weights", "cache"), "parallel": a.plan,
            **plain(a.lengths, "prompt", "output", "chunk", "cached"), "draft": a.draft and a.draft.model,
            "pools": a.pools and f"{a.pools.prefill}:{a.pools.decode}", "batch": a.batches[0].batch, **requests,
            **plain(self, "by"), **limits, **plain(self, "cards"), "notes": list(a.notes),
        }  # fmt: skip


def compare_llm(
    model: Any = None, *, gpu: Sequence[Gpu] | None = None, by: str = "latency", tpot_ms: float | None = None,
    ttft_ms: float | None = None, prices: Mapping[str, float] | None = None, **asked: Unpack[Loaded],
) -> LanguageComparison:  # fmt: skip
    """Predict a language model on several cards and rank them by time per output token ("latency"), throughput or cost.

    model and what is asked are those of `onnxperf.llm`, with one batch, 1 by default; or with qps, requests of which
    256 or `batch` are served at a time; or with one concurrency. A card that cannot keep up with qps is not ranked.
    gpu: the cards, None for all that ship. tpot_ms, ttft_ms: what a token, and the first one, may take in milliseconds.
    prices: US dollars an hour by card. Raises what `llm` raises.
    """
    with speaking_of_arguments():
        cards = selected(every=True) if gpu is None else gpu
        decoding, pace = decoding_of(model, asked), pace_of(tpot_ms, ttft_ms)
        return compared_llm(decoding, cards, by, pace, priced(prices))


def compared_llm(
    asked: Decoding, gpus: Sequence[Gpu], by: str, pace: Pace, prices: Mapping[str, Price],
    tell: Progress | None = None,
) -> LanguageComparison:  # fmt: skip
    """`compare_llm` of what is asked. Raises UsageError also where `by` is none of RANKED_BY, and for a curve."""
    by = choice_named(by, RANKED_BY)
    if by not in RANKED_BY:
        raise UsageError(f"cards for a language model are ranked --by one of {', '.join(RANKED_BY)}, not {by!r}")
    devices, candidates, errors = [device for device, _ in each(gpus)], list[LanguageCandidate](), list[Error]()
    number = parse_plan(asked.request.terms.get("parallel"), asked.request.terms.get("gpus")).gpus
    number *= sum(asked.pools or (1,))
    for i, device in enumerate(devices):
        if tell:
            tell(device.id, i, len(devices))
        try:
            answer = asked.generation(device, RUNNING if asked.arriving["qps"] is not None else 1)
        except Error as e:
            errors.append(e)
            candidates.append(LanguageCandidate(device, None, prices.get(device.id), number, why=str(e)))
            continue
        if answer.curve:
            raise UsageError("cards are compared at one concurrency: give --concurrency one number")
        candidates.append(_with_figure(LanguageCandidate(device, answer, prices.get(device.id), number), by, pace))
    if len(errors) == len(devices):
        raise errors[0]
    able = sorted((c for c in candidates if c.figure is not None), key=lambda c: c.figure[1] if c.figure else 0.0)
    places = ranks([(c.device.id, c.figure) for c in able if c.figure is not None])
    ranked = [replace(c, rank=rank, ties=ties) for c, (rank, ties) in zip(able, places, strict=True)]
    cards = (*ranked, *(c for c in candidates if c.figure is None))
    about = next(c.generation for c in cards if c.generation is not None)
    return LanguageComparison(about, by, pace, cards)


def _with_figure(c: LanguageCandidate, by: str, pace: Pace) -> LanguageCandidate:
    """A card with what it is ranked by, or why it is not."""
    first, token, rate, g = c.first, c.token, c.tokens_per_second, c.generation
    assert first is not None and token is not None and rate is not None and g is not None
    b = g.batches[0]
    if not c.fits:
        need = f"{size(b.needed_bytes)} of {size(b.capacity_bytes)}"
        return replace(c, why=f"does not fit at batch {b.batch}: {need}")
    if why := (g.service and g.service.overload) or pace.exceeded(first, token):
        return replace(c, why=why)
    if by == "cost" and c.price is None:
        return replace(c, why="no price: give one with --price CARD=USD")
    share = 1e6 * c.gpus * c.price.usd_per_hour / 3600 if by == "cost" and c.price else 1.0
    middle, low, high = token.ends() if by == "latency" else (share / end for end in rate.ends())
    return replace(c, figure=(low, middle, high))

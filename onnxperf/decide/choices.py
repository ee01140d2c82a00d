"""A model on several cards at several batches: what a choice of cards is made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gpu_specs
from gpu_specs import Device, Price
from onnxperf.answer.accuracy import Accuracy, accuracy
from onnxperf.answer.outline import Outline, outlines
from onnxperf.answer.prediction import Prediction
from onnxperf.decide.changes import AtBatch
from onnxperf.ground.errors import Error, ModelError, UsageError
from onnxperf.ground.output import Progress
from onnxperf.ground.tables import duration, size
from onnxperf.running.pipeline import Gpu, Request, each, find, names_batch, read_once, runs, with_batch
from onnxperf.running.run import Run
from onnxperf.running.scenario import PLATFORMS

MOST_BATCH = 1024  # the largest batch that is tried
EMPTY = "there is nothing to compare: the model's batch is 0"
GAIN = 1.01  # times the throughput: a larger batch that gains less is not worth its latency


@dataclass(frozen=True, slots=True)
class Choice:
    """One batch on a card: seconds of a run with their range, what the process holds of the memory, the card's watts.

    batch: the samples of a run; watts: None for a processor.
    """

    batch: int
    seconds: float
    low_seconds: float
    high_seconds: float
    process_bytes: int
    fits: bool
    watts: float | None

    @property
    def throughput_per_second(self) -> float:
        """Samples."""
        return self.batch / self.seconds

    @property
    def joules_per_sample(self) -> float | None:
        """What the card spends on a sample; None for a processor."""
        return None if self.watts is None else self.watts * self.seconds / self.batch

    def usd_per_million(self, price: Price) -> float:
        """US dollars for a million samples, one run after the other."""
        return 1e6 * price.usd_per_hour / 3600 / self.throughput_per_second


def best(tried: Iterable[Choice]) -> Choice | None:
    """The knee of throughput: of the batches that fit the smallest whose throughput is within GAIN of the most; None
    where none fits.
    """
    able = sorted((c for c in tried if c.fits), key=lambda c: c.batch)
    most = max((c.throughput_per_second for c in able), default=0.0)
    return next((c for c in able if c.throughput_per_second * GAIN >= most), None)


def too_large(choice: Choice, device: Device) -> str:
    """That a batch does not fit into a card's memory."""
    return f"does not fit at batch {choice.batch}: {size(choice.process_bytes)} of {size(device.usable_bytes)}"


@dataclass(frozen=True, slots=True)
class Card:
    """A card with the batches that were tried on it, ascending; `asked` is the batch that the request has.

    accuracy: whether runs like these were measured; why: why nothing could be predicted: both others are None then.
    """

    device: Device
    asked: Choice | None
    tried: tuple[Choice, ...] = ()
    accuracy: Accuracy | None = None
    why: str = ""

    def best(self, limit_s: float | None = None) -> Choice | None:
        """The knee of the batches that take no longer than the limit; None where not one is left."""
        return best(c for c in self.tried if limit_s is None or c.seconds <= limit_s)

    def lacks(self, limit_s: float | None = None) -> str:
        """Why there is no best batch: what the smallest one that was tried takes too much of."""
        if not self.tried:
            return self.why
        least = self.tried[0]
        if not least.fits:
            return too_large(least, self.device)
        over = f", over {duration(limit_s)}" if limit_s is not None else ""
        return f"takes {duration(least.seconds)} at batch {least.batch}{over}"


@dataclass(frozen=True, slots=True)
class Choices:
    """Every card, in the order that they were asked for; `fixed`: why the batch can't be changed, "" where it can.

    as_asked: whether the batch that was asked for is the only one that was tried; hosts: by the card's id the processor
    that launches its kernels, where its pace counts.
    """

    model: str
    terms: Mapping[str, Any]
    cards: tuple[Card, ...]
    fixed: str = ""
    as_asked: bool = False
    hosts: Mapping[str, str] = field(default_factory=dict)


def choices(
    request: Request, gpus: Sequence[Gpu], limit_s: float | None = None, tell: Progress | None = None,
    at_asked: bool = False,
) -> Choices:  # fmt: skip
    """Predict a model on these cards, at the request's batch and at batches 1, 2, 4, ... up to MOST_BATCH.

    On a card, batches end where the memory does, where a run takes longer than `limit_s`, or where twice the batch
    gains less than GAIN. at_asked: where the request says its batch, try no other. A card that can't run the model, or
    that the runtime does not run on, says why. Raises UsageError for a card that nobody knows, and ModelError and
    UsageError where the model can't be predicted on any.
    """
    if any(request.terms.get(term) for term in ("gpus", "parallel")):
        raise UsageError("cards are compared one GPU at a time: leave --gpus and --parallel out")
    devices = [device for device, _ in each(gpus)]
    r = read_once(request)
    first = on_each(r, devices)
    errors = [e for e in first if isinstance(e, Error)]
    if len(errors) == len(devices):
        raise errors[0]
    asked = {j: p for j, p in enumerate(first) if not isinstance(p, Error)}
    example = next(iter(asked.values()))
    if not example.scenario.batch:
        raise UsageError(EMPTY)

    def predicted(batch: int, at: Sequence[int]) -> Iterable[Outline]:
        return _outlined(runs(with_batch(r, batch), [devices[j] for j in at]))

    predictable = dict(zip(asked, runs(r, [devices[j] for j in asked]), strict=True))
    accuracies = {j: accuracy(run, column) for j, (run, column) in predictable.items()}
    hosts = {
        devices[j].id: run.cpus[column].name
        for j, (run, column) in predictable.items()
        if run.method.scheduled and PLATFORMS[devices[j].kind].launches
    }
    unable = {j: str(p) for j, p in enumerate(first) if isinstance(p, Error)}
    unable |= {j: why for j, (run, _) in predictable.items() if (why := run.runtime.unsupported(devices[j]))}
    able = {j: p for j, p in asked.items() if j not in unable}
    as_asked = at_asked and names_batch(r)
    tried, fixed = _tried({} if as_asked else able, predicted, limit_s, tell)
    tried |= {j: (choice_of(p),) for j, p in able.items() if as_asked}
    terms = {what: getattr(example.scenario, what) for what in ("runtime", "precision", "batch")}
    cards = (
        Card(d, None, why=unable[j]) if j in unable else Card(d, choice_of(able[j]), tried[j], accuracies[j])
        for j, d in enumerate(devices)
    )
    return Choices(example.scenario.model, terms, tuple(cards), fixed, as_asked, hosts)


def batches(now: Prediction, at_batch: AtBatch, tell: Progress | None = None) -> tuple[tuple[Choice, ...], str]:
    """What `choices` tries for one card, ascending, and why the batch can't be changed, "" where it can.

    at_batch: the prediction at another batch; raises UsageError or ModelError where the model has no other.
    """
    tried, fixed = _tried({0: now}, lambda batch, at: [at_batch(batch) for _ in at], None, tell)
    return tried[0], fixed


def _tried(
    asked: Mapping[int, Outline | Prediction],
    on_each: Callable[[int, Sequence[int]], Iterable[Outline | Prediction]], limit_s: float | None,
    tell: Progress | None,
) -> tuple[dict[int, tuple[Choice, ...]], str]:  # fmt: skip
    """For each card that is asked for the batches that are worth a try, ascending, and why there are no others.

    on_each: the predictions at a batch for some of the cards.
    """
    tried = {j: {p.scenario.batch: choice_of(p)} for j, p in asked.items()}
    fixed, batch, active = "", 1, list(asked)
    while batch <= MOST_BATCH and active:
        if tell:
            tell(f"batch {batch}", batch.bit_length(), MOST_BATCH.bit_length())
        missing = [j for j in active if batch not in tried[j]]
        try:
            for j, p in zip(missing, on_each(batch, missing) if missing else (), strict=True):
                tried[j][batch] = choice_of(p)
        except (UsageError, ModelError) as e:
            fixed = str(e)
            break
        active = [j for j in active if _goes_on(tried[j], batch, limit_s)]
        batch *= 2
    return {j: tuple(c for _, c in sorted(of.items())) for j, of in tried.items()}, fixed


def selected(
    gpus: Iterable[str] = (), every: bool = False, capacity_bytes: float | None = None, generation: str | None = None
) -> list[Gpu]:
    """The cards that are named, or those that ship: all, those with that much memory, of that architecture.

    Raises UsageError where there is none.
    """
    named = list(gpus)
    if not named and not every and capacity_bytes is None and generation is None:
        raise UsageError("name the cards: --gpu l4,t4, --all, --gpu-memory 24GB or --generation ada")
    devices = [find(gpu)[0] for gpu in named or gpu_specs.ids()]
    generations = sorted({d.architecture for d in devices})
    if generation is not None:
        devices = [d for d in devices if d.architecture.casefold() == generation.casefold()]
        if not devices:
            raise UsageError(f"--generation {generation} matches no card: generations are {', '.join(generations)}")
    if capacity_bytes is not None:
        devices = [d for d in devices if d.capacity_bytes >= capacity_bytes]
        if not devices:
            raise UsageError(f"--gpu-memory {size(capacity_bytes)}: no card has that much memory")
    return list(dict.fromkeys(devices))


def priced(usd_by_card: Mapping[str, float] | None = None) -> dict[str, Price]:
    """Prices by the card's id: those that ship, and those that are given by a name of a card, in US dollars an hour.

    Raises UsageError for a card that nobody knows, and a price that is no positive number.
    """
    prices = gpu_specs.prices()
    for name, usd in (usd_by_card or {}).items():
        if isinstance(usd, bool) or not isinstance(usd, (int, float)) or not 0 < usd < 1e6:
            raise UsageError(f"the price of {name} must be a positive number of US dollars an hour, not {usd!r}")
        prices = {**prices, find(name)[0].id: Price(float(usd), "from --price")}
    return prices


def on_each(r: Request, devices: Sequence[Device]) -> list[Outline | Error]:
    """The outline of a request on each card, or why there is none: where a card can't be predicted, each half is asked
    for on its own.
    """
    try:
        return [*_outlined(runs(r, devices))]
    except Error as e:
        half = len(devices) // 2
        return [*on_each(r, devices[:half]), *on_each(r, devices[half:])] if half else [e]


def _outlined(placed: Sequence[tuple[Run, int]]) -> list[Outline]:
    """The outline of each of these devices of runs."""
    shared = {id(run): run for run, _ in placed}
    each = {key: outlines(run) for key, run in shared.items()}
    return [each[id(run)][j] for run, j in placed]


def choice_of(p: Outline | Prediction) -> Choice:
    """The choice that an outline is."""
    m = p.memory
    return Choice(p.scenario.samples, p.seconds, p.low_seconds, p.high_seconds, m.reserved_bytes, m.fits, p.watts)


def _goes_on(tried: Mapping[int, Choice], batch: int, limit_s: float | None) -> bool:
    """Whether a larger batch is worth a try after this one."""
    now, before = tried[batch], tried.get(batch // 2)
    gains = before is None or now.throughput_per_second >= GAIN * before.throughput_per_second
    return now.fits and gains and (limit_s is None or now.seconds <= limit_s)

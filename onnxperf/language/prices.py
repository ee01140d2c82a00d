"""How long an iteration of continuous batching takes, interpolated from predicted runs.

Requests that decode are priced as a decode step of that batch without context, and what their mean context adds to it;
prompts as one sequence, and what the positions before it add, of which there are as many as make it attend to as many
as the prompts do. Both grow linearly with context. Where both are in an iteration, weights are read once: the tokens of
both go through the products as a prompt of that many, and what the context of the decode steps adds comes on top.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from onnxperf.ground.output import Progress
from onnxperf.language.service import Price
from onnxperf.language.steps import Seconds, Steps

Prices = tuple[Price, Price, Price]  # as predicted, and by the lower and the upper ends of the ranges
SMALLEST = 16  # tokens of a prompt above one; below, a run takes as long as for one, but for what is interpolated
GROWTH = 4  # from one number of requests that decode to the next that is predicted, and of tokens of prompts to LARGE
LARGE = 256  # tokens from which on products are bound by computing, in tiles: each double number is predicted


@dataclass(frozen=True, slots=True)
class Line:
    """Values over ascending x, two at least, linear between and beyond them."""

    x: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, x: float) -> float:
        """The value at a point."""
        i = min(max(bisect_right(self.x, x) - 1, 0), len(self.x) - 2)
        share = (x - self.x[i]) / (self.x[i + 1] - self.x[i])
        return (1 - share) * self.values[i] + share * self.values[i + 1]


def grown(first: int, last: int, large: int | None = None) -> tuple[int, ...]:
    """1, then from `first` by GROWTH, from `large` on by doubling, to `last`, which ends it: two numbers at least."""
    numbers, n = [1], first if first > 1 else GROWTH
    while n < last:
        numbers.append(n)
        n *= GROWTH if large is None or n < large else 2
    return (*numbers, max(last, 2))


def prices(steps: Steps, running: int, budget: int, tell: Progress | None = None) -> Prices:
    """Prices for up to `running` requests and `budget` new tokens at a time: as predicted, and by the lower and the
    upper ends of the ranges. Contexts go up to what `steps` is made for.

    With a draft, requests that decode have `width` tokens each in the products, and what the draft runs comes on top.
    """
    longest, d = max(steps.longest, 3), steps.draft
    if d is None:
        return _prices(steps, steps, longest, running, budget, 1, 1, tell)
    main = _prices(d.verifying, steps, longest, running, budget, steps.width, 1, tell)
    beside = _prices(d.steps, d.steps, longest, running, budget, 1, d.tokens, tell)

    def both(model: Price, draft: Price) -> Price:
        def of(decoding: int, context: float, new: int, past: float) -> float:
            alone = draft(decoding, context, 0, 0.0) if decoding else 0.0
            return model(decoding, context, new, past) + alone + (draft(0, 0.0, new, past) if new else 0.0)

        return of

    first, low, high = (both(model, draft) for model, draft in zip(main, beside, strict=True))
    return first, low, high


def _prices(
    decode: Steps, read: Steps, longest: int, running: int, budget: int, width: int, times: int, tell: Progress | None
) -> Prices:  # fmt: skip
    """Prices of one model by its runs of decode steps, of `width` tokens of each request and that many `times` an
    iteration, and of prompts.
    """
    batches, tokens = grown(1, running), grown(SMALLEST, budget, LARGE)
    some, few = (sorted({each[i] for i in (0, len(each) // 2, -1)}) for each in (batches, tokens))  # with context
    done, todo = 0, len(batches) + len(some) + len(tokens) + len(few)

    def seconds(steps: Steps, runs: dict[int, tuple[int, int, int]]) -> dict[int, Seconds]:
        nonlocal done
        if tell:
            tell("iterations", done, todo)
        done += len(runs)
        steps.each_at(runs.values())
        return {x: steps.seconds(*run) for x, run in runs.items()}

    begin, end = (
        {b: s.times(times) for b, s in seconds(decode, {b: (b, width, past) for b in which}).items()}
        for which, past in ((batches, 1), (some, longest))
    )
    short, long = (seconds(read, {n: (1, n, past) for n in which}) for which, past in ((tokens, 0), (few, longest)))

    def price(which: int) -> Price:
        def line(runs: dict[int, Seconds]) -> Callable[[int], float]:
            return cache(Line(tuple(runs), tuple(s.ends()[which] for s in runs.values())).at)

        def slope(runs: dict[int, Seconds], less: dict[int, Seconds], by: int) -> Callable[[int], float]:
            more = (s.ends()[which] - less[x].ends()[which] for x, s in runs.items())
            return cache(Line(tuple(runs), tuple(max(s, 0.0) / by for s in more)).at)

        step, longer = line(begin), slope(end, begin, longest - 1)
        prompt, deeper = line(short), slope(long, short, longest)

        def of(decoding: int, context: float, new: int, past: float) -> float:
            more = longer(decoding) * (context - 1) if decoding else 0.0
            alone = step(decoding) + more
            if not new:
                return alone
            return max(prompt(new + decoding * width) + deeper(new) * past + more, alone if decoding else 0.0)

        return of

    return price(0), price(1), price(2)

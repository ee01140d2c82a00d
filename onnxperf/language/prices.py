"""How long an iteration of continuous batching takes, interpolated from predicted runs.

Requests that decode, with their mean context, are priced as a decode step of that batch; prompts, with what lies before
them, as one sequence. Where both are in an iteration, weights are read once: the tokens of both go through the products
as a prompt of that many, and what a decode step takes longer for its context than for none is added.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from onnxperf.ground.output import Progress
from onnxperf.language.service import Price
from onnxperf.language.steps import Seconds, Steps

SMALLEST = 16  # tokens of a prompt above one; below, a run takes as long as for one, but for what is interpolated


@dataclass(frozen=True, slots=True)
class Grid:
    """Values over ascending x and y, linear between and beyond them."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]

    def at(self, x: float, y: float) -> float:
        """The value at a point."""
        i, a = _place(self.x, x)
        j, b = _place(self.y, y)
        low, high = self.values[i], self.values[i + 1]
        return (1 - a) * ((1 - b) * low[j] + b * low[j + 1]) + a * ((1 - b) * high[j] + b * high[j + 1])


def _place(points: tuple[float, ...], x: float) -> tuple[int, float]:
    """The interval that holds x, and where in it."""
    i = min(max(bisect_right(points, x) - 1, 0), len(points) - 2)
    return i, (x - points[i]) / (points[i + 1] - points[i])


def doubled(first: int, last: int) -> tuple[int, ...]:
    """1, then from `first` by doubling to `last`, which ends it: two numbers at least."""
    middle = [first << i for i in range(last.bit_length()) if 1 < first << i < last]
    return (1, *middle, max(last, 2))


def prices(steps: Steps, running: int, budget: int, tell: Progress | None = None) -> tuple[Price, Price, Price]:
    """Prices for up to `running` requests and `budget` new tokens at a time: as predicted, and by the lower and the
    upper ends of the ranges. Contexts go up to what `steps` is made for.
    """
    longest = steps.longest
    batches, contexts = doubled(1, running), (1, max(longest // 2, 2), max(longest, 3))
    tokens, pasts = doubled(SMALLEST, budget), (0, max(longest, 1))
    done, todo = 0, len(batches) * len(contexts) + len(tokens) * len(pasts)

    def seconds(batch: int, new: int, past: int) -> Seconds:
        nonlocal done
        done += 1
        if tell:
            tell("iterations", done, todo)
        return steps.seconds(batch, new, past)

    decode = [[seconds(b, 1, past).ends() for past in contexts] for b in batches]
    prompt = [[seconds(1, new, past).ends() for past in pasts] for new in tokens]

    def price(end: int) -> Price:
        steps_of = Grid(batches, contexts, tuple(tuple(s[end] for s in row) for row in decode))
        prompts = Grid(tokens, pasts, tuple(tuple(s[end] for s in row) for row in prompt))

        def of(decoding: int, context: float, new: int, past: float) -> float:
            if not new:
                return steps_of.at(decoding, context)
            if not decoding:
                return prompts.at(new, past)
            longer = steps_of.at(decoding, context) - steps_of.at(decoding, contexts[0])
            return max(prompts.at(new + decoding, past) + longer, steps_of.at(decoding, context))

        return of

    return price(0), price(1), price(2)

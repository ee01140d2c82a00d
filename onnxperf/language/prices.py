"""How long an iteration of continuous batching takes, interpolated from predicted runs.

Requests that decode are priced as a decode step of that batch without context, and what their mean context adds to it;
prompts as one sequence, and what the positions before it add, of which there are as many as make it attend to as many
as the prompts do. Both grow linearly with context. Where both are in an iteration, weights are read once: the tokens of
both go through the products as a prompt of that many, and what the context of the decode steps adds comes on top.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from onnxperf.ground.output import Progress
from onnxperf.language.service import Price
from onnxperf.language.steps import Seconds, Steps

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


def prices(steps: Steps, running: int, budget: int, tell: Progress | None = None) -> tuple[Price, Price, Price]:
    """Prices for up to `running` requests and `budget` new tokens at a time: as predicted, and by the lower and the
    upper ends of the ranges. Contexts go up to what `steps` is made for.
    """
    longest = max(steps.longest, 3)
    batches, tokens = grown(1, running), grown(SMALLEST, budget, LARGE)
    some, few = (sorted({each[i] for i in (0, len(each) // 2, -1)}) for each in (batches, tokens))  # with context
    done, todo = 0, len(batches) + len(some) + len(tokens) + len(few)

    def seconds(batch: int, new: int, past: int) -> Seconds:
        nonlocal done
        done += 1
        if tell:
            tell("iterations", done, todo)
        return steps.seconds(batch, new, past)

    begin = {b: seconds(b, 1, 1) for b in batches}
    end = {b: seconds(b, 1, longest) for b in some}
    short = {n: seconds(1, n, 0) for n in tokens}
    long = {n: seconds(1, n, longest) for n in few}

    def price(which: int) -> Price:
        def line(runs: dict[int, Seconds]) -> Line:
            return Line(tuple(runs), tuple(s.ends()[which] for s in runs.values()))

        def slope(runs: dict[int, Seconds], less: dict[int, Seconds], by: int) -> Line:
            more = (s.ends()[which] - less[x].ends()[which] for x, s in runs.items())
            return Line(tuple(runs), tuple(max(s, 0.0) / by for s in more))

        step, longer = line(begin), slope(end, begin, longest - 1)
        prompt, deeper = line(short), slope(long, short, longest)

        def of(decoding: int, context: float, new: int, past: float) -> float:
            more = longer.at(decoding) * (context - 1) if decoding else 0.0
            alone = step.at(decoding) + more
            if not new:
                return alone
            return max(prompt.at(new + decoding) + deeper.at(new) * past + more, alone if decoding else 0.0)

        return of

    return price(0), price(1), price(2)

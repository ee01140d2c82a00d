"""`python -m onnxperf.lab.served DATA [--engine NAME]`: errors of time per output token and to the first token."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import log
from pathlib import Path
from statistics import median
from typing import NamedTuple

from onnxperf.ground.output import telling
from onnxperf.ground.tables import Sheet, console, put, put_notes
from onnxperf.lab.served.rows import Served, predicted, rows
from onnxperf.language.serving import Service

NAMES = ("model", "card", "engine", "#GPUs", "#rows", "#TPOT", "#bias", "#inside", "#TTFT", "#bias ")
WIDTHS = ("kind", "left out", "#groups", "#share", "#all", "#others", "#inside", "#least")
Pair = tuple[Served, Service]


def line(about: Sequence[str], pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Median errors and biases of some rows, and the share whose time per output token is inside its range."""
    cells = [*about, str(len(pairs))]
    for name, measured in (("time_per_output_token", "token_s"), ("time_to_first_token", "first_s")):
        means = [(s.times[name].mean, float(getattr(r, measured))) for r, s in pairs]
        errors = [mean.seconds / value - 1 for mean, value in means]
        cells += [f"{median(map(abs, errors)):.1%}", f"{median(errors):+.1%}"]
        if measured == "token_s":
            inside = sum(mean.low_seconds <= value <= mean.high_seconds for mean, value in means)
            cells.append(f"{inside / len(pairs):.0%}")
    return tuple(cells)


GROUPS: dict[str, Callable[[Served], str]] = {"model": lambda r: r.setup.built, "card": lambda r: r.setup.gpu}
HELD = 0.8  # share of rows of a group that nobody has seen that a range should hold


def width(groups: Sequence[Sequence[float]], share: float = HELD) -> float:
    """The absolute logarithm of errors that a share of them is within, each group of rows counting alike."""
    each = sorted((miss, 1 / len(group) / len(groups)) for group in groups for miss in group)
    below = 0.0
    for miss, weight in each:
        below += weight
        if below >= share - 1e-9:
            return miss
    return each[-1][0]


class Held(NamedTuple):
    """share: of all rows, groups counting alike, that are within `width`, and of the others within `others` on average,
    so that rows of a group that was left out are within as often as `inside` says, and of one group at least `least`.
    """

    share: float
    width: float
    others: float
    inside: float
    least: float


def holding(groups: Sequence[Sequence[float]]) -> Held:
    """The least share, in whole per cent, with which HELD of the rows of groups left out in turn are within."""
    for percent in range(int(100 * HELD), 101):
        share = percent / 100
        widths = [width([*groups[:i], *groups[i + 1 :]], share) for i in range(len(groups))]
        inside = [sum(miss <= w for miss in group) / len(group) for w, group in zip(widths, groups, strict=True)]
        if (mean := sum(inside) / len(inside)) >= HELD:
            break
    return Held(share, width(groups, share), sum(widths) / len(widths), mean, min(inside))


def left_out(pairs: Sequence[Pair]) -> list[tuple[str, ...]]:
    """For models and for cards: how many there are, and what is said in `Held`."""
    lines = list[tuple[str, ...]]()
    for what, of in GROUPS.items():
        groups = defaultdict[str, list[float]](list)
        for row, service in pairs:
            groups[of(row)].append(abs(log(service.times["time_per_output_token"].mean.seconds / row.token_s)))
        if len(groups) > 1:
            h = holding([*groups.values()])
            figures = f"{h.share:.0%}", f"{h.width:.2f}", f"{h.others:.2f}", f"{h.inside:.0%}", f"{h.least:.0%}"
            lines.append((what, str(len(groups)), *figures))
    return lines


def main() -> None:
    """Print errors by model, card, engine and number of GPUs, and widths of ranges with models and cards left out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--engine", default="")
    asked = parser.parse_args()
    measured, why = rows(asked.data)
    pairs, refused = list[Pair](), defaultdict[str, int](int)
    with telling() as tell:
        for row, service in predicted([r for r in measured if asked.engine in ("", r.setup.engine)], tell):
            if isinstance(service, str):
                refused[f"{row.setup.model}: {service}"] += 1
            else:
                pairs.append((row, service))
    groups = defaultdict[tuple[str, ...], list[Pair]](list)
    for row, service in pairs:
        s = row.setup
        groups[s.model, s.gpu, s.engine, str(s.gpus)].append((row, service))
    lines = [line(about, group) for about, group in sorted(groups.items())]
    for what in (False, True):
        if of := [p for p in pairs if p[0].setup.experts is what]:
            lines.append(line(("all with experts" if what else "all dense", "", "", ""), of))
    ranges = [
        (kind, *cells)
        for kind, experts in (("dense", False), ("experts", True))
        for cells in left_out([p for p in pairs if p[0].setup.experts is experts])
    ]
    put(
        console(),
        [
            Sheet("median errors of time per output token (TPOT) and to the first token (TTFT)", NAMES, tuple(lines)),
            Sheet("widths of ranges of TPOT, as logarithms, that hold 80% of what is left out", WIDTHS, tuple(ranges)),
        ],
    )
    put_notes(console(), [f"{n} rows: {reason}" for reason, n in {**refused, **why}.items()])


if __name__ == "__main__":
    main()

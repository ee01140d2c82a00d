"""`python -m onnxperf.lab.served DATA [--engine NAME]`: errors of time per output token and to the first token."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from onnxperf.ground.output import telling
from onnxperf.ground.tables import Sheet, console, put, put_notes
from onnxperf.lab.served.rows import Served, predicted, rows
from onnxperf.language.serving import Service

NAMES = ("model", "card", "engine", "#GPUs", "#rows", "#TPOT", "#bias", "#inside", "#TTFT", "#bias ")
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


def main() -> None:
    """Print errors by model, card, engine and number of GPUs."""
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
    put(
        console(),
        [Sheet("median errors of time per output token (TPOT) and to the first token (TTFT)", NAMES, tuple(lines))],
    )
    put_notes(console(), [f"{n} rows: {reason}" for reason, n in {**refused, **why}.items()])


if __name__ == "__main__":
    main()

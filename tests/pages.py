"""Pages that are printed from code, and whether they are still what would be printed: `python -m tests.pages`.

To print a page takes minutes, so whether one is stale is judged by a sample of what it is made of: `figures` are what
the same code says of a handful of rows of each table (of each class of kernels, each source of models, each runtime),
to six digits, and of what it makes of them in words. These are kept in `tests/golden/pages.json`, with a digest of the
page, when the page is printed: `python -m tests.pages PAGE` prints one anew, and keeps what it was made of. A change
of constants, formulas, cards, measurements or wording moves the sample's answers; a change of source alone doesn't,
as a digest of the source would have it. What it can't see is a change that moves none of the sampled rows.

Screens of README.md and docs/ are printed and compared whole ([screens](screens.py)).

Pages of runs on a machine (`onnxperf/calibrate/accuracy.md`, `tests/benchmark.md`) are records, and not held.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from onnxperf.lab.datasets import SAMPLE
from onnxperf.lab.datasets.runs import MeasuredRun
from onnxperf.lab.derive import assumed
from onnxperf.lab.validate import report, show, sources
from onnxperf.latency import shipped
from onnxperf.scoring.own_measurements import OwnMeasurements
from tests import screens

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "tests/golden/pages.json"
ROWS = 16  # of each table: enough for a line of the method `linear`


@dataclass(frozen=True)
class Page:
    """A page: prints gives its text, figures what a sample of its rows says; where: how the printed part starts."""

    path: str
    prints: Callable[[], str]
    figures: Callable[[], dict[str, Any]]
    where: str = ""

    @property
    def file(self) -> Path:
        return ROOT / self.path

    def written_by_hand(self) -> str:
        """What stands above the printed part."""
        text = self.file.read_text(encoding="utf-8")
        return text[: text.index(self.where)] if self.where else ""

    def fingerprint(self) -> dict[str, str]:
        """Digests of the page's printed part, and of each of its figures."""
        printed = self.file.read_text(encoding="utf-8").removeprefix(self.written_by_hand())
        return {"page": digest(printed), **{name: digest(value) for name, value in self.figures().items()}}

    def stale(self) -> list[str]:
        """What has changed since the page was printed."""
        before, now = kept().get(self.path, {}), self.fingerprint()
        return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))

    def print_anew(self) -> None:
        """Print the page, and keep what it is made of."""
        lines = "\n".join(line.rstrip() for line in self.prints().splitlines()) + "\n"
        self.file.write_text(self.written_by_hand() + lines, encoding="utf-8")
        prints = {**kept(), self.path: self.fingerprint()}
        KEPT.write_text(json.dumps(prints, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def kept() -> dict[str, dict[str, str]]:
    """The fingerprints of the pages as they were printed."""
    text = KEPT.read_text(encoding="utf-8") if KEPT.is_file() else "{}"
    return dict(json.loads(text))


def digest(value: Any) -> str:
    """A few characters that say whether a value is the same; floats count to six digits, which machines agree on."""

    def settled(v: Any) -> Any:
        if isinstance(v, float):
            return f"{v:.6g}"
        if isinstance(v, dict):
            return {str(k): settled(x) for k, x in v.items()}
        return [settled(x) for x in v] if isinstance(v, list | tuple) else v

    text = json.dumps(settled(value), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def whole_sample() -> tuple[Any, ...]:
    """All tables, all runs, and what is dropped."""
    return report.read(SAMPLE, OwnMeasurements())


@cache
def sample() -> tuple[Any, ...]:
    """A handful of rows of each table, one run of each source and way to run it, and what is dropped."""
    tables, runs, dropped = whole_sample()
    rows = [np.unique(np.linspace(0, len(t.works) - 1, ROWS).astype(int)) for t in tables]
    first: dict[Any, Any] = {}
    for of, run in runs:
        first.setdefault((of.reported, run.scenario.runtime), (of, run))
    return [t.take(at) for t, at in zip(tables, rows, strict=True)], list(first.values()), dropped


def sampled_runs() -> list[MeasuredRun]:
    """The measured runs of the sample."""
    return [run for _, run in sample()[1]]


@cache
def thinned() -> report.Report:
    """The report of the sample."""
    rows = sample()
    with patch.object(report, "read", lambda *_: rows):
        return report.validate()


def accuracy() -> dict[str, Any]:
    """Scores of the thinned sample by what is scored, the page of it, and the measurements themselves."""
    thin = thinned()
    scores: dict[str, list[Any]] = {}
    for s in thin.to_dict()["scores"]:
        scores.setdefault(f"{s['kind']}: {s['name']}", []).append(s)
    rest = {"order": [str(o) for o in thin.order], "dropped": list(thin.dropped), "overheads": list(thin.overhead_s)}
    files = {str(f.relative_to(SAMPLE)): hashlib.sha256(f.read_bytes()).hexdigest() for f in sources(SAMPLE)}
    return {**scores, **rest, "same without": list(thin.same_without), "words": show.markdown(thin), "rows": files}


def whole_accuracy() -> str:
    """The page of the whole sample: two minutes."""
    return show.markdown(report.validate())


def assumptions() -> dict[str, Any]:
    """Every assumed constant, and the share that each has of a run of one of the runtimes."""
    numbers = assumed.assumed_numbers()
    first: dict[str, Any] = {}
    for run in sampled_runs():
        first.setdefault(run.runtime, run)
    with patch.object(assumed, "model_runs", lambda _: [("", first.values(), "")]):
        runs = {run.scenario.runtime: run for run in assumed.runs()}
    shares: dict[str, dict[str, float]] = {name: {} for name in runs}
    for path, (name, run) in zip(numbers, cycle(runs.items()), strict=False):
        shares[name][path] = assumed.share(run, shipped().having({path: numbers[path] * assumed.CHANGE}))
    return {"constants": numbers, **shares}


def whole_assumptions() -> str:
    """The table of all runs, as the command prints it."""
    from click.testing import CliRunner

    return CliRunner().invoke(assumed.main, [], catch_exceptions=False).stdout


SCORES = Page("onnxperf/lab/validate/accuracy.md", whole_accuracy, accuracy)
ASSUMED = Page("onnxperf/lab/derive/assumed.md", whole_assumptions, assumptions, where="Means over")
PAGES = (SCORES, ASSUMED)


def check(pages: Iterable[Page] = PAGES) -> list[str]:
    """One line for each page that is stale: what moved, and the command that prints it."""
    return [
        f"{p.path} is not what would be printed now ({', '.join(stale[:4])}{' ...' if stale[4:] else ''}):"
        f" python -m tests.pages {p.path}"
        for p in pages
        if (stale := p.stale())
    ]


def check_screens(pages: Iterable[Path] = screens.PAGES) -> list[str]:
    """One line for each page with screens that are not what would be printed now, and the command that prints them."""
    return [
        f"{page.relative_to(ROOT)} has screens that are not what would be printed now ({'; '.join(stale)}):"
        f" python -m tests.pages {page.relative_to(ROOT)}"
        for page in pages
        if (stale := screens.stale(page))
    ]


def main(*paths: str) -> None:
    """Say which pages are stale; print those that are named anew."""
    for page in PAGES:
        if page.path in paths:
            page.print_anew()
    for screen in screens.PAGES:
        if str(screen.relative_to(ROOT)) in paths:
            screens.print_anew(screen)
    raise SystemExit("\n".join([*check(), *check_screens()]) or None)


if __name__ == "__main__":
    main(*sys.argv[1:])

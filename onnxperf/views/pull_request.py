"""What `check` says, as a table in Markdown for a comment on a pull request or the summary of a job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnxperf.ground.errors import counted, printable
from onnxperf.ground.tables import NOTHING, duration, size
from onnxperf.ground.version import VERSION

MOST = 60_000  # characters of a table: a comment on GitHub has at most 65,536
NAME, REASON = 150, 400  # characters of a name, and of a reason
ORDER = ("error", "over", "ok")
Line = Mapping[str, Any]


def table(lines: Sequence[Line], compared: bool) -> str:
    """The lines of `check`, those that fail first, and of these the one that lost most. compared: with what was before.

    Cards and batches have columns where they differ.
    """
    fails = sum(line["verdict"] != "ok" for line in lines)
    times = ["before", "after", "change"] if compared else ["time"]
    heads = ["verdict", "model", *_where(lines), *times, "GPU memory", "why"]
    rows = [heads, [":--", ":--", *["--:"] * (len(heads) - 3), ":--"]]
    worst_first = sorted(lines, key=lambda x: (ORDER.index(x["verdict"]), -(x.get("change") or 0.0)))
    rows += ([*_row(line, _where(lines), compared)] for line in worst_first)
    shown, room = list[str](), MOST
    for row in (f"| {' | '.join(cells)} |" for cells in rows):
        room -= len(row) + 1
        if room < 0:
            break
        shown.append(row)
    left = len(rows) - len(shown)
    says = f"{fails} of {counted(len(lines), 'prediction')} not ok" if fails else "All predictions are ok"
    cards = ", ".join(dict.fromkeys(line["gpu"] for line in lines))
    about = f"Predicted by onnxperf {VERSION} for {code(cards)}: nothing was run."
    parts = [f"**{says}**", "\n".join(shown), *([f"{left} more rows, none worse than these."] if left else []), about]
    return "\n\n".join(parts)


def _where(lines: Sequence[Line]) -> list[str]:
    """What differs between lines of one model."""
    return [what for what in ("gpu", "batch") if len({line[what] for line in lines} - {None}) > 1]


def _row(line: Line, where: Sequence[str], compared: bool) -> Iterator[str]:
    yield line["verdict"] if line["verdict"] == "ok" else f"**{line['verdict']}**"
    yield code(line["model"], NAME)
    yield from (NOTHING if line[what] is None else code(str(line[what]), NAME) for what in where)
    if compared:
        yield "new" if line["before"] is None else _time(line["before_seconds"])
    yield _time(line["seconds"])
    if compared:
        yield NOTHING if line["change"] is None else f"{line['change']:+.1%}"
    yield NOTHING if line["process_bytes"] is None else _together(size(line["process_bytes"]))
    yield code(line["reason"], REASON) if line["reason"] else ""


def _time(seconds: float | None) -> str:
    return NOTHING if seconds is None else _together(duration(seconds))


def _together(figure: str) -> str:
    """A figure that no line ends in."""
    return figure.replace(" ", "\N{NO-BREAK SPACE}")


def code(text: str, most: int = REASON) -> str:
    """Text of strangers as code, in which GitHub looks for no markup, links or mentions.

    Whatever Markdown or HTML could take for markup is an entity, also the dot of an address that would become a link.
    """
    short = printable(text if len(text) <= most else f"{text[:most]}...")
    safe = re.sub(r"[^\w ./,;'()+%-]|_", lambda m: f"&#{ord(m[0])};", short)
    return "<code>" + re.sub(r"(?i)(www)[.]", r"\1&#46;", safe) + "</code>"

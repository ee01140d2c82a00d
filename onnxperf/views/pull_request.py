"""What `check` says, as a table in Markdown for a comment on a pull request or the summary of a job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnxperf.ground.errors import counted, printable
from onnxperf.ground.tables import NOTHING, duration, percent, size
from onnxperf.ground.version import VERSION

MOST = 60_000  # characters of a table: a comment on GitHub has at most 65,536
NAME, REASON = 150, 400  # characters of a name, and of a reason
ORDER = ("error", "over", "ok")
Line = Mapping[str, Any]


def table(lines: Sequence[Line], compared: bool) -> str:
    """The lines of `check`, those that fail first, and of these the one that lost most. compared: with what was before.

    Cards and batches have columns where they differ.
    """
    times = ["before", "after", "change"] if compared else ["time"]
    where = [{"gpu": "card"}.get(what, what) for what in _where(lines)]
    heads = ["verdict", "model", *where, *times, "GPU memory", "why"]
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
    more = [f"{left} more rows, none worse than these."] if left else []
    return "\n\n".join((f"**{_verdict(lines)}**", "\n".join(shown), *more, *_about(lines)))


def _verdict(lines: Sequence[Line]) -> str:
    """How many are over a limit or can't be used, in a sentence."""
    number = {verdict: sum(line["verdict"] == verdict for line in lines) for verdict in ORDER}
    what = "prediction" if _where(lines) else "model"
    kinds = (("over", "over the limit"), ("error", "can't be used"))
    fails = ", ".join(f"{number[verdict]} {says}" for verdict, says in kinds if number[verdict])
    return f"{counted(len(lines), what)}: {fails or 'all within the limits'}"


def _about(lines: Sequence[Line]) -> Iterator[str]:
    """What predicted the times, and whether runs like these were measured on the cards."""
    cards = dict[str, dict[str, None]]()
    for line in lines:
        cards.setdefault(line["gpu"], {}).update({line["accuracy"]: None} if line["accuracy"] else {})
    yield f"Predicted by onnxperf {VERSION} for {', '.join(map(code, cards))}: nothing was run."
    if said := [f"{code(gpu)} {' or '.join(words)}" for gpu, words in cards.items() if words]:
        yield f"Accuracy: {', '.join(said)}."


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
        yield NOTHING if line["change"] is None else percent(line["change"], "+")
    yield NOTHING if line["process_bytes"] is None else _memory(line)
    yield code(why, REASON) if (why := remarks(line)) else ""


def remarks(line: Line) -> str:
    """What a line of `check` says behind its figures: why it is not ok, what a change is due to, what is assumed."""
    count = line.get("assumed_operators") or 0
    verb = "is" if count == 1 else "are"
    assumed = f"{counted(count, 'operator')} {verb} assumed: unknown work, timed by the bytes alone" if count else ""
    return "; ".join(filter(None, (line["reason"], line.get("cause"), assumed)))


def _memory(line: Line) -> str:
    """What the process holds, beside what it held where that differs."""
    after, before = size(line["process_bytes"]), line.get("before_process_bytes")
    return _together(after if before is None or size(before) == after else f"{size(before)} → {after}")


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

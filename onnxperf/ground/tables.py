"""Text and tables for a terminal or for Markdown: quantities in the unit that reads best, names that are safe to print.

Names come from model files and may hold anything: they are printed as plain text, control characters replaced.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO, cast

from rich.cells import cell_len
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from onnxperf.ground.errors import printable

WIDTH = 110  # characters of a line where no terminal says how many it has
GAP = 2  # between columns
FOLDED = 20  # characters that a column of text keeps where lines are short
NAME = 36  # characters of a name in a table
MARKS = "#!~"  # what the name of a column begins with, see `tabulate`
NOTHING = "-"  # a cell without a figure
LEAST_SHARE = 1e-6  # of a time: the same terms summed in another order differ by less


def duration(seconds: float) -> str:
    """Seconds in the unit that reads best, three digits."""
    return _in_units(seconds, {"s": 1.0, "ms": 1e-3, "us": 1e-6}) or f"{seconds * 1e9:.3g} ns"


def size(nbytes: float) -> str:
    """Bytes in decimal units."""
    return _in_units(nbytes, {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}) or f"{nbytes:.0f} B"


def number(value: float, digits: int = 3) -> str:
    """A figure of that many digits, never as a power of ten: one with more digits before its point shows them all."""
    return f"{value:,.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def percent(share: float, sign: str = "") -> str:
    """A share in per cent with one decimal, or its first digit where that comes later; sign: "+" shows one."""
    share = share if abs(share) >= LEAST_SHARE else 0.0
    digits = ".1g" if 0 < abs(share) < 0.0005 else ".1f"
    return f"{100 * share:{sign}{digits}}%"


def _in_units(value: float, units: Mapping[str, float]) -> str:
    """A value in the first of the units that is not too large for it, or nothing."""
    for unit, scale in units.items():
        if value >= scale * 0.9995:
            return f"{value / scale:.3g} {unit}" if value / scale < 1000 else f"{value / scale:,.0f} {unit}"
    return ""


def console() -> Console:
    """A console on stdout. Where that is no terminal, lines end without spaces, and are wide enough for every table
    unless COLUMNS is set.
    """
    terminal = sys.stdout.isatty()
    sized = terminal or os.environ.get("COLUMNS", "").isdigit()
    file = None if terminal else cast("TextIO", _Bare())
    return Console(highlight=False, width=None if sized else WIDTH, file=file)


def bare(text: str) -> str:
    """A text without the spaces that tables fill lines up with."""
    return re.sub(" +(?=\n)", "", text)


class _Bare:
    """stdout, but for spaces at the ends of lines; rich writes whole lines."""

    def write(self, text: str) -> int:
        """Write a text."""
        return sys.stdout.write(bare(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)


def shortened(text: str, most: int = NAME) -> str:
    """A name of a kernel or an operator, safe to print and short enough for a table; its end says most."""
    return printable(text if len(text) <= most else f"{text[:9]}...{text[12 - most :]}")


def short_type(type: str) -> str:
    """An operator's type without its domain."""
    return type.rpartition("::")[2]


def tabulate(
    out: Console, names: Sequence[str], rows: Iterable[Sequence[str]], *, spare: Sequence[str] = (), heads: bool = True
) -> Table:
    """A table that stays readable where lines are short: columns named in `spare` go, then text folds, figures never.

    A leading # marks a column of figures, aligned to the right; a leading ! one of words that are not folded; a leading
    ~ one of names, which are shortened where the other columns leave too little room.
    """
    lines = _fitted(out, names, [*rows])
    cells = {n: [*([n.lstrip(MARKS)] if heads else []), *(line[i] for line in lines)] for i, n in enumerate(names)}
    least = {n: max(map(cell_len, c), default=0) for n, c in cells.items()}
    least = {n: w if n[:1] in ("#", "!") else min(w, FOLDED) for n, w in least.items()}
    kept = [*names]
    for name in spare:
        if sum(least[n] + GAP for n in kept) - GAP <= out.width:
            break
        kept = [n for n in kept if n.lstrip(MARKS) != name]
    table = Table(box=None, padding=(0, GAP, 0, 0), header_style="bold", pad_edge=False, show_header=heads)
    for name in kept:
        whole = name[:1] in ("#", "!")
        justify: JustifyMethod = "right" if name.startswith("#") else "left"
        table.add_column(name.lstrip(MARKS), justify=justify, overflow="fold", no_wrap=whole)
    for line in lines:
        row(table, *(cell for name, cell in zip(names, line, strict=True) if name in kept))
    return table


def columns(table: Table) -> tuple[str, ...]:
    """The names of the columns that there was room for."""
    return tuple(str(column.header) for column in table.columns)


def _fitted(out: Console, names: Sequence[str], lines: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """The lines, with what stands in columns of names shortened to their part of the room, but to NAME at least."""
    widest = [
        max([cell_len(name.lstrip(MARKS)), *(cell_len(line[i]) for line in lines)]) for i, name in enumerate(names)
    ]
    taken = sum(GAP + (0 if name.startswith("~") else width) for name, width in zip(names, widest, strict=True)) - GAP
    most = max(NAME, (out.width - taken) // max(1, sum(name.startswith("~") for name in names)))
    pairs = (zip(names, line, strict=True) for line in lines)
    return [tuple(shortened(x, most) if name.startswith("~") else x for name, x in pair) for pair in pairs]


def row(table: Table, *cells: str) -> None:
    """A row of plain text: rich would read [brackets] in a string as markup."""
    table.add_row(*map(Text, cells))


def two_columns(rows: Iterable[tuple[str, str]]) -> Table:
    """Labels and what stands beside them; labels of nothing are left out."""
    table = Table.grid(padding=(0, GAP))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows:
        if text:
            row(table, label, printable(text))
    return table


def listed(lines: Iterable[tuple[str, str, str]]) -> Text:
    """A line for each note: its code, what it says and, in brackets, the names it is about."""
    text = Text()
    for code, message, names in lines:
        text.append(f"{printable(code)}  ", style="yellow")
        text.append(printable(message))
        text.append(f" ({names})\n" if names else "\n", style="dim")
    text.rstrip()
    return text


def stacked(parts: Iterable[RenderableType]) -> Group:
    """Parts of a screen, each with an empty line below it; tables without rows and empty texts are left out."""
    shown = (x for x in parts if not (isinstance(x, Table) and not x.row_count) and not (isinstance(x, Text) and not x))
    return Group(*(x for part in shown for x in (part, Text())))


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table: a title, the names of its columns, its lines, and columns that may be left out; see `tabulate`."""

    title: str
    names: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    spare: tuple[str, ...] = ()


def put(out: Console, sheets: Iterable[Sheet]) -> None:
    """Print tables, those without lines left out."""
    for sheet in sheets:
        if sheet.lines:
            out.print(Text(sheet.title, style="bold"))
            out.print(tabulate(out, sheet.names, sheet.lines, spare=sheet.spare))
            out.print()


def put_notes(out: Console, notes: Iterable[str]) -> None:
    """Print sentences on what was shown, as a list."""
    for text in notes:
        out.print(Text(f"- {text}", style="dim"))


def markdown(sheets: Iterable[Sheet], notes: Iterable[str]) -> str:
    """Tables in Markdown, those without lines left out, and the notes on them as a list."""
    parts = []
    for sheet in (s for s in sheets if s.lines):
        heads = [n.lstrip(MARKS) for n in sheet.names]
        rules = ["--:" if n.startswith("#") else "---" for n in sheet.names]
        lines = [_cells(heads), _cells(rules), *map(_cells, sheet.lines)]
        parts.append("\n".join((f"{sheet.title}:", "", *lines)))
    return "\n\n".join((*parts, "\n".join(f"- {text}" for text in notes)))


def _cells(cells: Iterable[str]) -> str:
    return f"| {' | '.join(c.replace('|', '/') for c in cells)} |"

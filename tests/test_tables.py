"""Tables on lines of any width."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from onnxperf.ground.tables import NAME, tabulate

LONG = "/".join(f"encoder{i}" for i in range(8))
OTHERS = 18  # characters of the other columns, and between columns


@pytest.mark.parametrize("width", [200, OTHERS + len(LONG), OTHERS + len(LONG) - 1, 80, 60, OTHERS + NAME])
def test_names_are_shortened_only_where_lines_are_short(width: int) -> None:
    out = StringIO()
    console = Console(file=out, width=width, color_system=None)
    console.print(tabulate(console, ("~name", "#time", "!bound by"), [(LONG, "1.5 ms", "memory"), ("x", "", "")]))
    lines = out.getvalue().splitlines()
    name = lines[1].split()[0]
    assert len(lines) == 3 and lines[1].split()[1:] == ["1.5", "ms", "memory"]
    assert len(name) == min(len(LONG), width - OTHERS)
    assert name == LONG or (name[:9] == LONG[:9] and LONG.endswith(name[12:]))

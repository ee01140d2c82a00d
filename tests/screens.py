"""Code blocks of README.md and docs/: screens are what their commands print, commands and Python run.

A block that begins with `$ onnxperf` is a screen: commands behind a `$`, and below each what it prints on a terminal of
`COLUMNS` columns, or the first N lines of it behind `| head -N`. `python -m tests.pages` says which is not what would
be printed now, `python -m tests.pages PAGE` prints a page's screens anew. `tests/test_docs.py` runs the other blocks:
`onnxperf` commands of a shell, and Python, those of a page one after the other. What stands behind
`<!-- not run: why -->` is only read. All of it runs in a folder that has `samples` and docs' `config.json`, as a reader
would have them.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from onnxperf import cli

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
COLUMNS = "100"
BLOCK = re.compile(r"^(<!-- not run: [^\n]* -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEAD = re.compile(r"^(.*?)(?: \| head -(\d+))?$", re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its language, its text, and whether it is only read."""

    language: str
    text: str
    unrun: bool


def blocks(page: Path) -> Iterator[Block]:
    """The code blocks of a page."""
    for skipped, language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        yield Block(language, text, bool(skipped))


def is_screen(text: str) -> bool:
    """Whether a block shows what a command prints."""
    return text.startswith("$ onnxperf ")


@contextmanager
def beside_the_samples() -> Iterator[Path]:
    """An empty folder to work in, but for what pages suppose to be there."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "samples").symlink_to(ROOT / "samples")
        (Path(folder) / "config.json").write_bytes((ROOT / "docs" / "config.json").read_bytes())
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def run(command: str) -> tuple[int, str]:
    """The exit code of an `onnxperf` command, and what it prints: stdout, then stderr."""
    line, lines = HEAD.fullmatch(command).groups()
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", shlex.split(line.replace("\\\n", " "))),
        patch.dict(os.environ, {"COLUMNS": COLUMNS}),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    printed = [line.rstrip() for line in (out.getvalue() + err.getvalue()).rstrip().splitlines()]
    return code, "\n".join(printed[: int(lines) if lines else None]).rstrip() + "\n"


def commands(text: str) -> list[str]:
    """The commands of a screen."""
    return [command.removesuffix("\n") for command in re.findall(r"^\$ ((?:[^\n]*\\\n)*[^\n]*\n)", text, re.MULTILINE)]


def printed_anew(text: str) -> str:
    """A screen as it would be printed now."""
    return "\n".join(f"$ {command}\n{run(command)[1]}" for command in commands(text))


def stale(page: Path) -> list[str]:
    """The commands of the page's screens that would print something else now."""
    with beside_the_samples():
        screens = [b.text for b in blocks(page) if is_screen(b.text)]
        return [commands(text)[0] for text in screens if printed_anew(text) != text]


def print_anew(page: Path) -> None:
    """Print the page's screens anew."""

    def block(found: re.Match[str]) -> str:
        return found[0].replace(found[3], printed_anew(found[3])) if is_screen(found[3]) else found[0]

    with beside_the_samples():
        page.write_text(BLOCK.sub(block, page.read_text(encoding="utf-8")), encoding="utf-8")


def commands_to_run(block: Block) -> list[str]:
    """The `onnxperf` commands of a block of a shell."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("onnxperf ")] if block.language == "sh" else []

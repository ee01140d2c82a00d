"""README.md and docs/: their commands and Python run, and the site holds together without a network.

That their screens are what commands print now, tests/test_pages.py holds.
"""

from __future__ import annotations

import html
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from unittest.mock import patch

import click
import pytest

import onnxperf
from onnxperf.cli import MODULES, cli
from op_models.rules import _RULES
from tests import screens

ROOT = Path(__file__).parents[1]
PAGES = [pytest.param(page, id=page.name) for page in screens.PAGES]


def command_of(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, name
    return command


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_commands_of_pages_run(page: Path) -> None:
    with screens.beside_the_samples():
        for block in screens.blocks(page):
            for command in screens.commands_to_run(block):
                if block.unrun:
                    name, *arguments = shlex.split(command, comments=True)[1:]
                    assert command_of(name).make_context(name, arguments)
                else:
                    code, printed = screens.run(command)
                    assert code == 0, f"{command}\n{printed}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_python_of_pages_runs(page: Path) -> None:
    code = "\n".join(b.text for b in screens.blocks(page) if b.language == "python" and not b.unrun)
    if not code:
        pytest.skip("no Python there")
    with screens.beside_the_samples(), patch.dict(_RULES), warnings.catch_warnings():  # a page may add an operator
        warnings.simplefilter("ignore")  # of frameworks, about themselves
        exec(compile(code, page.name, "exec"), {"__name__": "__main__"})


def test_blocks_are_read_as_they_are_written() -> None:
    text = "$ onnxperf predict a.onnx \\\n    --gpu l4 | head -2\nA\n$ onnxperf gpus\nB\n"
    assert screens.is_screen(text)
    assert screens.commands(text) == ["onnxperf predict a.onnx \\\n    --gpu l4 | head -2", "onnxperf gpus"]
    assert screens.run("onnxperf --version | head -1")[0] == 0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as CI builds it."""
    folder = tmp_path_factory.mktemp("site")
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(mkdocs, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_asks_no_one_else_for_anything(site: Path) -> None:
    """No font, script, style or image comes from elsewhere."""
    loaded = re.compile(
        r"""<(?:script|img|iframe)[^>]*\bsrc="(?:https?:)?//|<link[^>]*stylesheet[^>]*href="(?:https?:)?//"""
    )
    assert not [str(page) for page in site.rglob("*.html") if loaded.search(page.read_text(encoding="utf-8"))]
    styles = [f for f in site.rglob("*.css") if re.search(r"url\(['\"]?(?:https?:)?//", f.read_text(encoding="utf-8"))]
    assert not styles


@pytest.mark.slow
def test_the_reference_has_every_command_option_and_name(site: Path) -> None:
    for name in MODULES:
        page = html.unescape((site / f"reference/{name}.html").read_text(encoding="utf-8"))
        assert not [p.opts for p in command_of(name).params if p.opts[-1].startswith("-") and p.opts[-1] not in page]
    page = (site / "reference/python.html").read_text(encoding="utf-8")
    assert not [n for n in onnxperf.__all__ if not n.startswith("__") and f'id="{n.lower()}"' not in page]

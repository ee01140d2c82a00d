"""Whether printed pages are what would be printed now, judged in seconds by a sample of their rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import pages


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: Path(page.path).stem)
@pytest.mark.slow
def test_a_page_is_what_would_be_printed_now(page: pages.Page) -> None:
    assert not pages.check([page])


def test_what_moves_is_named_with_the_command_that_prints_the_page() -> None:
    page = replace(pages.PAGES[1], figures=lambda: {"constants": {"a": 1.0}, "new": [2.0]})
    (line,) = pages.check([page])
    assert "(constants, new, ort-cuda, tensorrt ...)" in line and line.endswith(f": python -m tests.pages {page.path}")
    assert pages.digest([1.0, "a"]) == pages.digest((1.0 + 1e-9, "a")) != pages.digest([1.0001, "a"])

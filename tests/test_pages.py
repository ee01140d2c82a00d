"""Printed pages and screens are what would be printed now, and what is said of one that is not.

The page of scores is held where its sample is scored, in tests/lab/validate.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import pages, screens


@pytest.mark.slow
@pytest.mark.parametrize("page", screens.PAGES, ids=lambda page: page.name)
def test_screens_are_what_their_commands_print(page: Path) -> None:
    assert not pages.check_screens([page])


@pytest.mark.slow
def test_the_page_of_assumptions_is_what_would_be_printed() -> None:
    assert not pages.check([pages.ASSUMED])


def test_what_moves_is_named_with_the_command_that_prints_the_page() -> None:
    page = replace(pages.ASSUMED, figures=lambda: {"constants": {"a": 1.0}, "new": [2.0]})
    (line,) = pages.check([page])
    assert "(constants, new, ort-cuda, tensorrt ...)" in line and line.endswith(f": python -m tests.pages {page.path}")
    assert pages.digest([1.0, "a"]) == pages.digest((1.0 + 1e-9, "a")) != pages.digest([1.0001, "a"])

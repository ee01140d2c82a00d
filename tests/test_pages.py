"""What is said of a printed page that is not what would be printed now; of today's, `python -m tests.pages` says it."""

from __future__ import annotations

from dataclasses import replace

from tests import pages


def test_what_moves_is_named_with_the_command_that_prints_the_page() -> None:
    page = replace(pages.PAGES[1], figures=lambda: {"constants": {"a": 1.0}, "new": [2.0]})
    (line,) = pages.check([page])
    assert "(constants, new, ort-cuda, tensorrt ...)" in line and line.endswith(f": python -m tests.pages {page.path}")
    assert pages.digest([1.0, "a"]) == pages.digest((1.0 + 1e-9, "a")) != pages.digest([1.0001, "a"])

"""Runs of language models are predicted once for all tests of a file: none of them changes how."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.steps_once import GRAPHS, ONCE, runs_are_predicted_once

__all__ = ["runs_are_predicted_once"]


@pytest.fixture(scope="module", autouse=True)
def runs_of_this_file() -> Iterator[None]:
    """What one file predicted is not kept for the next."""
    yield
    ONCE.clear()
    GRAPHS.clear()

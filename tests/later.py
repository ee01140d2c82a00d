"""Frameworks that tests import when they use them: to collect tests, under xdist in every process, takes none."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


class Later:
    """A module that is imported when something of it is asked for; private names are asked for by pytest alone, of all
    that it finds in a file of tests.
    """

    def __init__(self, name: str) -> None:
        self.module = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(import_module(self.module), name)


def later(name: str) -> Any:
    """The module; where it isn't installed, the tests of the file that asks for it are skipped."""
    if not find_spec(name.partition(".")[0]):
        pytest.skip(f"{name} is not installed", allow_module_level=True)
    return Later(name)

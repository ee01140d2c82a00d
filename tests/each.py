"""One test that goes through many values. A case of pytest's own costs some milliseconds before it does anything, twice
that under xdist: too much for thousands of cases that take less than one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def each(
    values: Iterable[Any], name: Callable[[Any], str] = str
) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """A decorator that makes one test of all values out of a test of one; it fails with all that fail, each by name."""
    values = [*values]

    def of_all(test: Callable[[Any], None]) -> Callable[[], None]:
        def together() -> None:
            failed = []
            for value in values:
                try:
                    test(value)
                except Exception as error:
                    error.add_note(f"This is of {name(value)}.")
                    failed.append(error)
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(values)} fail", failed)

        together.__name__, together.__doc__, together.__module__ = test.__name__, test.__doc__, test.__module__
        return together

    return of_all

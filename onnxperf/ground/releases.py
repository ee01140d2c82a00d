"""Releases of a runtime: what a number such as 1.16.3 stands for, and what is there between one release and another."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

NUMBER = re.compile(r"(\d{1,4})(?:\.(\d{1,4}))?(?:\.\d+){0,2}")
MOST = 9999  # what a minor number stays below


class Release(NamedTuple):
    """A release without its patch level; releases sort in the order in which they came."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


@lru_cache(maxsize=256)
def release(text: str, minor: int = 0) -> Release:
    """The release that a number stands for, with this minor number where it has none; ValueError for what is none."""
    match = NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.60} is no release such as 1.16")
    return Release(int(match[1]), int(match[2] or minor))


def there(since: str, until: str, at: Release | None) -> bool:
    """Whether what came with the release `since` and left after `until` is in a release; None stands for today's.

    until: "" for what is still there; a major number alone stands for all releases that have it.
    """
    if at is None:
        return not until
    return release(since or "0") <= at and (not until or at <= release(until, MOST))


def opset_in(opsets: Mapping[str, int], at: Release) -> int:
    """The highest opset that a release loads, of those listed by the first release that loads each."""
    return max(opset for first, opset in opsets.items() if release(first) <= at)

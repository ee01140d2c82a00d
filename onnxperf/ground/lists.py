"""Sizes that are asked for: one, several, or a list written as text, which may go on: 1,2,4,...,256."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import SupportsIndex

from onnxperf.ground.errors import UsageError

ON = "..."  # and so on
MOST_SIZES = 1000  # of a list
MOST_BATCH = 10**9 - 1


def whole(value: SupportsIndex, what: str) -> int:
    """A size as an int; UsageError where it is no whole number, or negative."""
    try:
        size = operator.index(value)
    except TypeError:
        size = None
    if size is None or isinstance(value, bool):
        raise UsageError(f"{what} must be a whole number, not {value!r}") from None
    if size < 0:
        raise UsageError(f"{what} can't be {size}")
    return size


def sizes_of(asked: Iterable[SupportsIndex] | SupportsIndex, what: str, most: int) -> tuple[int, ...]:
    """Sizes that are asked for as one or several, each once. Raises UsageError where there are none or one can't be."""
    try:
        each = tuple(dict.fromkeys(whole(n, what) for n in (asked if isinstance(asked, Iterable) else [asked])))
    except TypeError:
        each = ()
    if not each or not all(0 < n <= most for n in each):
        raise UsageError(f"{what} must be whole numbers from 1 to {most:,}, not {asked!r:.60}")
    return each


def parse_sizes(text: str, what: str) -> tuple[int, ...]:
    """Whole numbers with commas between; `...` goes on to the last one, by doubling or adding as those before it."""
    parts = [part.strip() for part in text.split(",")]
    gap = parts.index(ON) if ON in parts else len(parts)
    named = [part for part in parts if part != ON]
    _check_most(text, named, what)
    if not all(re.fullmatch("[1-9][0-9]{0,8}", part) for part in named) or len(named) > MOST_SIZES:
        such = "write whole numbers from 1 on, with commas between, such as 8, 1,2,4 or 1,2,4,...,64"
        raise UsageError(f"{text!r} is not a list of {what}: {such}")
    numbers = [int(part) for part in named]
    if gap == len(parts):
        return tuple(numbers)
    if gap < 3 or parts[gap:] != [ON, parts[-1]]:
        raise UsageError(f"{text!r} can't be extended: write three numbers before ... and the last one after it")
    *begun, last = numbers
    pairs = [*pairwise(begun)]
    step, times = begun[1] - begun[0], begun[1] // begun[0]
    if all(b == a * times for a, b in pairs) and times > 1:
        step = 0
    elif not all(b == a + step for a, b in pairs) or step < 1:
        raise UsageError(f"{text!r} can't be extended: the numbers before ... must grow by a constant factor or step")
    while begun[-1] < last and len(begun) < MOST_SIZES:
        begun.append(begun[-1] + step if step else begun[-1] * times)
    if begun[-1] != last:
        near = f"it continues with {begun[-2]}, {begun[-1]}" if begun[-1] > last else f"{MOST_SIZES:,} are too many"
        raise UsageError(f"{text!r} does not reach {last}: {near}")
    return tuple(begun)


def _check_most(text: str, numbers: Iterable[str], what: str) -> None:
    """Raise UsageError for a whole number with more digits than are read."""
    if any(re.fullmatch(r"\s*[1-9][0-9]{9,}\s*", n) for n in numbers):
        raise UsageError(f"{text!r} has a number that is too large: {what} go up to {MOST_BATCH:,}")


def parse_dim(text: str) -> tuple[str, tuple[int, ...]]:
    """NAME=N,N: an open dimension and its sizes."""
    name, equals, sizes = text.rpartition("=")
    if not equals or not name:
        raise UsageError(f"{text!r} is not valid: write NAME=N,N, such as sequence=128,512")
    return name, parse_sizes(sizes, f"sizes of {name!r}")


def parse_batches(text: str, what: str = "batches") -> tuple[int, ...]:
    """Batches, or other numbers, as a list, or as 1..64, which doubles from the first to the last, taken as well."""
    match = re.fullmatch(r"\s*([1-9][0-9]{0,8})\.\.([1-9][0-9]{0,8})\s*", text)
    if match is None:
        _check_most(text, text.split(".."), what)
        return parse_sizes(text, what)
    first, last = int(match[1]), int(match[2])
    if first > last:
        raise UsageError(f"{text!r} ends before it starts: write the smaller one first")
    doubled = (first << i for i in range(last.bit_length()))
    return (*(batch for batch in doubled if batch < last), last)


def batches_of(asked: Sequence[int] | int | str, most: int = MOST_BATCH) -> tuple[int, ...]:
    """The batches that are asked for, as one, several, or text such as "1,2,4" or "1..64": ascending, each once."""
    return tuple(sorted(sizes_of(parse_batches(asked) if isinstance(asked, str) else asked, "--batch", most)))

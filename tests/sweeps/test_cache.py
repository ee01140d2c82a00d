"""Files of a cache that somebody else has written, or that are no files: what they hold is predicted again."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from onnxperf.decide.choices import Choice
from onnxperf.sweeps.cache import MAX_FILE, Cache

CELL = ("keep", "a card")
CHOICE = Choice(4, 1e-3, 9e-4, 1.2e-3, 10**9, True, 70.0)


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Cache, Path]:
    """A cache, and the file of one cell in it."""
    cache, place = Cache.at(tmp_path), tmp_path / "x" / "cell.json"
    cache.write(place, {CELL: CHOICE})
    return cache, place


def changed(place: Path, name: str, value: str) -> None:
    text = place.read_text(encoding="utf-8")
    found = re.sub(rf'"{name}": [^,}}]+', f'"{name}": {value}', text)
    assert found != text
    place.write_text(found, encoding="utf-8")


def test_what_was_written_is_read(kept: tuple[Cache, Path]) -> None:
    cache, place = kept
    assert cache.read(place) == {CELL: CHOICE}


@pytest.mark.parametrize(
    ("name", "value"),
    [("seconds", v) for v in ("-5.0", "0.0", "1e-300", "1e999", "NaN", "Infinity", "1e13", '"x"', "null", "true")]
    + [("low_seconds", "0.5"), ("high_seconds", "1e-5"), ("watts", "-1.0"), ("watts", "1e300"), ("batch", "0")]
    + [("batch", "9" * 400), ("process_bytes", "-1"), ("process_bytes", "9" * 5000), ("fits", "1")],
)
def test_figures_that_no_prediction_has_are_predicted_again(kept: tuple[Cache, Path], name: str, value: str) -> None:
    cache, place = kept
    changed(place, name, value)
    assert cache.read(place) == {}


@pytest.mark.parametrize("data", [b"", b"\x80\x04", b"null", b"[" * 100_000, b'{"cells": 3}', b" " * (MAX_FILE + 1)])
def test_a_file_that_holds_something_else_is_predicted_again(kept: tuple[Cache, Path], data: bytes) -> None:
    cache, place = kept
    place.write_bytes(data)
    assert cache.read(place) == {}
    cache.write(place, {CELL: CHOICE})
    assert cache.read(place) == {CELL: CHOICE}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no such files")
@pytest.mark.parametrize("kind", ["pipe", "device", "link", "dangling"])
def test_what_is_no_file_is_neither_read_nor_waited_for(kept: tuple[Cache, Path], kind: str, tmp_path: Path) -> None:
    cache, place = kept
    other = tmp_path / "other"
    other.write_bytes(place.read_bytes())
    place.unlink()
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to({"device": "/dev/zero", "link": other, "dangling": tmp_path / "nowhere"}[kind])
    before = other.read_bytes()
    assert cache.read(place) == {}
    cache.write(place, {CELL: CHOICE})
    assert cache.read(place) == {CELL: CHOICE} and not place.is_symlink()
    assert other.read_bytes() == before and not (tmp_path / "nowhere").exists()

"""Results of sweeps on the disk: a small JSON file for each model and point, found by what its cells depend on.

A file is written aside and renamed, so that it is whole or not there: a sweep that was interrupted goes on where it
stopped. What can't be predicted is not kept. The folder can be removed at any time: what is not there, or is no file
that a sweep could have written, is predicted again.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from gpu_specs import Device, SpecError, load_host
from onnxperf.decide.choices import Choice
from onnxperf.ground.errors import EnvironmentFailure, UsageError
from onnxperf.ground.output import write_file
from onnxperf.sweeps.edition import edition
from onnxperf.sweeps.grid import Grid, Point
from onnxperf.sweeps.work import Prepared

Cells = dict[tuple[str, str], Choice]  # by precision and a card's `spec`
#: The types of a choice's fields, as they are annotated.
KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,), "float": (float,), "bool": (bool,), "float | None": (float, type(None))
}  # fmt: skip

MAX_FILE = 1 << 22  # bytes: a cell takes some 300, and there is one for each precision and card
#: The least and the most that a prediction gives, by field; in between lies all that no one has tampered with.
RANGES = {
    "batch": (1, 1 << 31), "process_bytes": (0, 1 << 60), "watts": (0.0, 1e6), "fits": (False, True),
    **dict.fromkeys(("seconds", "low_seconds", "high_seconds"), (1e-9, 1e12)),
}  # fmt: skip


def usual_folder() -> Path:
    """The folder for caches that the system names, or the usual one. Raises UsageError where the user has no home."""
    named, home = os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~")
    if not os.path.isabs(named) and not os.path.isabs(home):  # a user without a name, in a container
        raise UsageError("this user has no home folder: name one by --cache")
    return (Path(named) if os.path.isabs(named) else Path(home, ".cache")) / "onnxperf" / "sweeps"


def spec(device: Device) -> str:
    """A hash of all that a card's file says."""
    return _hash(repr(device))


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder of results."""

    folder: Path

    @classmethod
    def at(cls, folder: str | os.PathLike[str]) -> Cache:
        """The cache in a folder, which is made when something is kept. Raises UsageError where it can be none."""
        path = Path(folder)
        if not os.fspath(folder) or (os.path.exists(path) and not os.path.isdir(path)):
            raise UsageError(f"can't keep results in {os.fspath(folder)!r}: it is no folder")
        return cls(path)

    def place(self, model: Prepared, grid: Grid, point: Point) -> Path:
        """The file of a model's cells at a point."""
        terms = dict(grid.terms)
        if isinstance(host := terms.get("host"), str) and host:
            with suppress(SpecError):  # it is told where the model is predicted
                terms["host"] = repr(load_host(host))
        shapes = {**model.shapes, **(grid.shapes or {})}
        asked = [
            model.digest,
            point.dims,
            point.batch,
            sorted(shapes.items()),
            sorted((grid.trip_counts or {}).items()),
        ]
        name = _hash(json.dumps([*asked, sorted(terms.items())], default=repr))
        return self.folder / edition() / name[:2] / f"{name}.json"

    def read(self, place: Path) -> Cells:
        """The cells in a file; none where there is no such file, or it holds something else."""
        try:
            data = json.loads(_regular(place).decode("utf-8"))
            return {_key(c): _choice(c["choice"]) for c in data["cells"]}
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return {}

    def write(self, place: Path, cells: Mapping[tuple[str, str], Choice]) -> None:
        """Keep cells. Raises EnvironmentFailure where they can't be written."""
        kept = [{"precision": name, "spec": card, "choice": asdict(c)} for (name, card), c in cells.items()]
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(place) and not stat.S_ISREG(place.lstat().st_mode):  # a link, pipe or device
                place.unlink()
        except OSError as e:
            raise EnvironmentFailure(f"can't keep results in {place.parent}: {e.strerror or e}") from e
        write_file(str(place), json.dumps({"cells": kept}, allow_nan=False))


def _regular(place: Path) -> bytes:
    """The bytes of a regular file; OSError or ValueError for anything else, and for one of more than MAX_FILE bytes.

    Links are not followed, and what could be waited for is not: it is opened first, so that it can't change meanwhile.
    """
    flags = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    with os.fdopen(os.open(place, flags), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_FILE:
            raise ValueError(f"{place} is not a results file")
        return file.read(MAX_FILE)


def _key(cell: Mapping[str, Any]) -> tuple[str, str]:
    """The precision and the card of a cell; KeyError or TypeError where they are no text."""
    precision, card = cell["precision"], cell["spec"]
    if type(precision) is not str or type(card) is not str:
        raise TypeError("precision, spec")
    return precision, card


def _choice(data: Mapping[str, Any]) -> Choice:
    """A choice as it was kept; KeyError, TypeError or ValueError where it is none, or its figures can't be."""
    for f in fields(Choice):
        if type(data[f.name]) not in KINDS[str(f.type)]:
            raise TypeError(f.name)
        least, most = RANGES[f.name]
        if data[f.name] is not None and not least <= data[f.name] <= most:
            raise ValueError(f.name)
    choice = Choice(**data)
    if not choice.low_seconds <= choice.seconds <= choice.high_seconds:
        raise ValueError("seconds")
    return choice


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

"""The front door: what the package offers by name, each thing loaded from its room when it is first asked for.

The rooms are named once, in `onnxperf/__init__.py`, which hands them down here: a prediction shows itself by views that
stand above it, and imports none of them.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Door:
    """Things by name, from the modules that have them."""

    def __init__(self) -> None:
        self.rooms: dict[str, str] = {}

    def open(self, offers: Mapping[str, tuple[str, ...]]) -> None:
        """Take the names that each module offers."""
        self.rooms |= {name: room for room, names in offers.items() for name in names}

    def __contains__(self, name: object) -> bool:
        return name in self.rooms

    def __getitem__(self, name: str) -> Any:
        return getattr(import_module(self.rooms[name]), name)


DOOR = Door()

"""What the command line accepts: the choices, and quantities, shapes and counts written as text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from onnxperf.errors import UsageError

if TYPE_CHECKING:
    FloatType = click.ParamType[float]
else:
    FloatType = click.ParamType  # older versions of click take no [float]

# Written out here so that --help loads nothing; a test holds them equal to the rooms' own.
RUNTIMES = ("ort-cuda", "ort-cpu", "tensorrt", "torch-eager")
HOSTS = ("server", "desktop", "cloud", "jetson")
PRECISIONS = ("keep", "fp32", "tf32", "fp16", "bf16", "int8", "fp8")
METHODS = ("tile-wave", "sum", "roofline")
LEVELS = ("disabled", "basic", "extended", "all")
TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
SIZE_UNITS = {
    "B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30,
}  # fmt: skip


class Quantity(FloatType):
    """A positive number with a unit."""

    def __init__(self, name: str, units: dict[str, float]):
        self.name = name
        self.units = units

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([a-zA-Z]+)\s*", value)
        if match and match[2] in self.units:
            number = float(match[1]) * self.units[match[2]]
            if 0 < number < math.inf:
                return number
        example = "8ms" if "ms" in self.units else "2GB"
        self.fail(
            f"{value!r} is no {self.name}; write a number and a unit ({', '.join(self.units)}), such as {example}",
            param,
            ctx,
        )


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """NAME:1x3x224x224, also with commas or brackets, split at the last colon; an empty shape is a scalar."""
    name, colon, sizes = text.rpartition(":")
    body = sizes.strip().strip("[]()").strip()
    parts = [p for p in re.split(r"[x,\s]+", body) if p]
    if not colon or not name or not all(re.fullmatch(r"[0-9]{1,18}", p) for p in parts):
        raise UsageError(f"--shapes {text!r} is not understood: write NAME:1x3x224x224")
    return name, tuple(map(int, parts))


def parse_dim(text: str) -> tuple[str, int]:
    """name=N."""
    return _named_number(text, "--dim", "name=N, such as sequence=128")


def parse_count(text: str) -> tuple[str, int]:
    """NODE=N."""
    return _named_number(text, "--trip-count", "NODE=N, such as decode=20")


def _named_number(text: str, flag: str, form: str) -> tuple[str, int]:
    name, equals, number = text.rpartition("=")
    if not equals or not name or not re.fullmatch(r"[0-9]{1,18}", number.strip()):
        raise UsageError(f"{flag} {text!r} is not understood: write {form}")
    return name, int(number)


def unique(texts: tuple[str, ...], parse: Callable[[str], tuple[str, Any]], flag: str) -> dict[str, Any]:
    """All of a repeatable option by name; naming one twice is refused unless both say the same."""
    found: dict[str, Any] = {}
    for name, value in map(parse, texts):
        if found.setdefault(name, value) != value:
            raise UsageError(f"{flag} gives {name!r} twice, with different sizes")
    return found

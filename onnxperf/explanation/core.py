"""What an explanation is made of, and how its quantities are written."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from onnxperf.ground.codec import Document
from onnxperf.ground.tables import duration, size

SCHEMA_VERSION = 1
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "u"))
SCALED = ("FLOP", "FLOP/s", "B/s", "Hz", "J", "W")
#: The steps that are due to what can bound a kernel; all others are of its arithmetic.
STEPS_OF = {"memory": ("DRAM bytes", "memory"), "launch": ("launch",)}


@dataclass(frozen=True, slots=True)
class Line:
    """A quantity: its formula with the numbers put in, its value in SI units (or a word), and where it comes from."""

    name: str
    formula: str
    value: float | str
    unit: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Lines under a title."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A loss, or a gain, on the way from the peak to the achieved rate.

    factor: the rate with it / the rate before it. rate: FLOP/s or B/s with it; seconds: the kernel's duration with it.
    """

    name: str
    factor: float
    rate: float
    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class Explanation(Document):
    """One kernel on one card. Times in seconds, of one run of the kernel, slowed to the power limit.

    bound_by, limit: what bounds it, as in the JSON of a prediction, and in the words of the field.
    steps: the first one is the peak, with factor 1; the factors multiply to `achieved / peak`; both are in `unit`,
    FLOP/s, or B/s where a kernel has no products.
    """

    kernel: str
    op: str
    nodes: tuple[str, ...]
    gpu: str
    card: str
    terms: str
    remark: str
    seconds: float
    low_seconds: float
    high_seconds: float
    interval: float
    bound_by: str
    limit: str
    unit: str
    peak: float
    achieved: float
    sections: tuple[Section, ...]
    steps: tuple[Step, ...]

    @property
    def worst(self) -> Step | None:
        """Of the steps of what bounds the kernel the one that loses most, if any does."""
        bound = "memory" if self.bound_by == "transfer" else self.bound_by if self.bound_by in STEPS_OF else ""
        others = {name for names in STEPS_OF.values() for name in names}
        steps = [s for s in self.steps if (s.name in STEPS_OF[bound] if bound else s.name not in others)]
        return min((s for s in steps if s.factor < 1), key=lambda s: s.factor, default=None)

    @property
    def product(self) -> float:
        """All factors multiplied."""
        return prod(s.factor for s in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """The explanation as plain data.

        Keys: schema_version, the fields of `Explanation` by name, `sections` as {title, lines: [{name, formula, value,
        unit, source}]} and `steps` as [{name, factor, rate, seconds, why}]; values in SI units. Keys may be added.
        """
        return {"schema_version": SCHEMA_VERSION, **Document.to_dict(self)}


def amount(value: float | str, unit: str = "") -> str:
    """A quantity in the unit that reads best."""
    if isinstance(value, str):
        return value
    if unit == "s":
        return duration(value) if value else "0 s"
    if unit == "B":
        return size(value)
    if unit == "share":
        return f"{value:.1%}"
    if unit in SCALED:
        scale, prefix = next((s for s in PREFIXES if abs(value) >= s[0] * 0.9995), PREFIXES[4])
        return f"{value / scale:.4g} {prefix}{unit}"
    number = f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"
    return f"{number} {unit}".rstrip()

"""What the names of open dimensions say of their sizes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from onnxperf.graph.proto import Shape

EXAMPLE = 128  # a size that error messages propose


def size_of_sum(name: str | None, sizes: Mapping[str, int]) -> int | None:
    """The size of a dimension whose name is a sum or product of others and of numbers, as exporters write it: "past +
    1", "2*s0". None for another name, and where one of its parts has no size.
    """
    if not is_sum(name):
        return None
    terms = [[part.strip() for part in term.split("*")] for term in (name or "").split("+")]
    parts = {p: int(p) if p.isdecimal() and len(p) < 10 else sizes.get(p) for term in terms for p in term}
    sized = {p: size for p, size in parts.items() if size is not None}
    return sum(prod(sized[p] for p in term) for term in terms) if len(sized) == len(parts) else None


def is_sum(name: str | None) -> bool:
    """Whether the name of a dimension is a sum or product."""
    return name is not None and ("+" in name or "*" in name)


def example_size(tensor: str, name: str, symbols: Mapping[str, int], bound: Mapping[str, Shape]) -> int:
    """A size to propose for an open dimension of an input: for a mask over a decoder's cache, the tokens in the cache
    and the new ones.

    symbols: sizes by name; bound: shapes of other inputs, of which `input_ids` has the new tokens.
    """
    past = [size for d, size in symbols.items() if "past" in d and not is_sum(d)]
    if past and ("mask" in tensor or "total" in name):
        return past[0] + (bound.get("input_ids") or (1,))[-1]
    return EXAMPLE

"""What differs between the releases of a runtime, beside its rules, which say it themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnxperf.ground.errors import UsageError
from onnxperf.ground.releases import MOST, Release, release, there

Capability = tuple[int, int]  # major, minor


@dataclass(frozen=True, slots=True)
class Releases:
    """The releases of a runtime.

    opsets: the highest opset of ONNX that each loads, by the first release that loads it; the first of all is the
    oldest known. newest: today's. changed: the fields of `Runtime` that are others in a release than today. says: what
    is known of a release and what is inferred, for a note. layouts: since which release the order of images can be
    chosen, "" for all. operators: since which release an operator is taken, of a runtime that takes them one by one,
    whatever the opset of the file; none where files are refused by their opset. cards: the least and the highest
    compute capability that each runs on, by the first release that does; empty where all run on all cards.
    """

    opsets: Mapping[str, int]
    newest: str
    changed: Callable[[Release], Mapping[str, Any]]
    says: Callable[[Release], str]
    layouts: str = ""
    operators: Mapping[str, str] = field(default_factory=dict)
    cards: Mapping[str, tuple[Capability, Capability]] = field(default_factory=dict)

    def unsupported(self, capability: Capability, at: Release | None) -> str:
        """Why a release, None for today's, does not run on cards of a compute capability; "" where it does."""
        spans = [(first, span) for first, span in self.cards.items() if there(first, "", at)]
        if not spans:
            return ""
        least, most = spans[-1][1]
        if capability < least:
            return f"it needs {_dotted(least)} or higher"
        later = [first for first, (_, end) in self.cards.items() if capability <= end]
        return "" if capability <= most else f"release {later[0]} was the first to run on such cards"

    @property
    def oldest(self) -> Release:
        """The oldest release known."""
        return release(next(iter(self.opsets)))

    def named(self, number: str, runtime: str) -> Release:
        """The release that somebody named; a major number stands for its newest. Raises UsageError where none is known.

        runtime: the name of the runtime, for the message.
        """
        if not isinstance(number, str):
            raise UsageError(f'ort_version must be text such as "{self.newest}", not {number!r:.60}')
        newest = release(self.newest)
        try:
            named = release(number.strip().removeprefix("v"), MOST)
        except ValueError:
            named = None
        if named is not None and named.minor == MOST:
            listed = [r for r in map(release, (*self.opsets, self.newest)) if r.major == named.major]
            named = max(listed, default=named)
        if named is None or not self.oldest <= named <= newest:
            range_known = f"releases {self.oldest} to {newest} are known; leave the release out for today's"
            raise UsageError(f"{number!r:.60} is no known release of {runtime}: {range_known}")
        return named

    def loading(self, opset: int) -> Release | None:
        """The first release that loads an opset; None where none does."""
        return next((release(first) for first, most in self.opsets.items() if most >= opset), None)


def _dotted(capability: Capability) -> str:
    return "{}.{}".format(*capability)

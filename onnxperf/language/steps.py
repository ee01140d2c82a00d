"""Single runs of a decoder: so many new tokens after so many past ones, each predicted once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from onnxperf.errors import UsageError
from onnxperf.graph import Opened
from onnxperf.graph.decoder_dims import DecoderDims, decoder_dims
from onnxperf.notes import notes
from onnxperf.outline import Outline, outline
from onnxperf.pipeline import Gpu, Request, run_of
from onnxperf.run import Run

#: Notes of single runs that a reader of a generation's times should know: units and kernels that are not there, how
#: GPUs are joined and divide the work, what no measurement confirms.
TOLD = frozenset({
    "assumed-operator", "host-fallback", "hosted", "network", "no-dtype", "no-kernel", "no-switch", "no-unit",
    "nothing-quantised", "sharded", "unknown-operator", "unvalidated", "usual-cluster",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seconds:
    """Seconds and their 80% range.

    Predictions of one model on one card are taken to err together, as they rest on the same kernels: the range of a sum
    is the sum of the ranges.
    """

    seconds: float = 0.0
    low_seconds: float = 0.0
    high_seconds: float = 0.0

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(*(a + b for a, b in zip(self.ends(), other.ends(), strict=True)))

    def times(self, factor: float) -> Seconds:
        """Each end multiplied."""
        return Seconds(*(factor * x for x in self.ends()))

    def ends(self) -> tuple[float, float, float]:
        """The time, its lower and its upper end."""
        return self.seconds, self.low_seconds, self.high_seconds

    def to_dict(self) -> dict[str, float]:
        """As plain data."""
        return {"seconds": self.seconds, "low_seconds": self.low_seconds, "high_seconds": self.high_seconds}


@dataclass(frozen=True, slots=True)
class Steps:
    """A decoder on a card, the lengths of whose runs are chosen.

    model: continues from a cache; prompt: takes the prompt, where that is another file; longest: tokens that the cache
    of a sample is made for; asked: other open dimensions, trip counts and terms, whatever its model is; remarks: what a
    reader should know of the model.
    """

    model: Opened
    gpu: Gpu
    asked: Request
    prompt: Opened | None = None
    longest: int = 1
    remarks: tuple[str, ...] = ()
    kept: dict[tuple[int, int, int, int], Outline] = field(default_factory=dict, repr=False, compare=False)

    def at(self, batch: int, new: int, past: int) -> Outline:
        """A run of `new` tokens of each of `batch` samples after `past` ones; a prompt where `past` is 0.

        Raises UsageError where the model can't have these sizes.
        """
        key = (batch, new, past, self.longest)
        if key not in self.kept:
            self.kept[key] = outline(self._run(batch, new, past))
        return self.kept[key]

    def seconds(self, batch: int, new: int, past: int) -> Seconds:
        """How long that run takes."""
        o = self.at(batch, new, past)
        return Seconds(o.seconds, o.low_seconds, o.high_seconds)

    def over(self, batch: int, new: int, pasts: Sequence[int]) -> Seconds:
        """Runs after each of `pasts`, which ascend, one after the other: predicted at the first, the middle and the
        last of them, and interpolated linearly between.
        """
        if not pasts:
            return Seconds()
        known = sorted({pasts[0], pasts[len(pasts) // 2], pasts[-1]})
        ends = zip(*(self.seconds(batch, new, past).ends() for past in known), strict=True)
        return Seconds(*(float(np.interp(pasts, known, end).sum()) for end in ends))

    def cache_bytes_per_token(self) -> int:
        """Bytes of keys and values that a token of one sample takes, in the types that the run has."""
        dims = self._dims(self.model)
        held = sum(t.bytes for t in self._run(1, 1, 1).typed_graph.inputs if t.name in dims.caches)
        return held // (self.longest if dims.in_place else 1)

    def _run(self, batch: int, new: int, past: int) -> Run:
        """The run that `at` describes."""
        model = self.prompt if self.prompt is not None and past == 0 else self.model
        own = self._dims(model)
        dims = {**(self.asked.dims or {}), **own.bound(batch, new, past, self.longest)}
        shapes = own.shapes(batch, self.longest) or None
        return run_of(replace(self.asked, model=model, dims=dims, shapes=shapes), self.gpu)

    def notes(self, batch: int, new: int, past: int) -> tuple[str, ...]:
        """What of TOLD is said of that run, each once."""
        found = notes(self._run(batch, new, past), 0)
        return tuple(dict.fromkeys(n.message for n in found if n.code in TOLD))

    def made_for(self, longest: int) -> Steps:
        """The same with a cache of another length."""
        return replace(self, longest=longest)

    @property
    def copies(self) -> int:
        """How many of a cache lie in memory: two where a run reads one and writes a longer one."""
        return 1 if self._dims(self.model).in_place else 2

    def needed_bytes(self, runs: Iterable[tuple[int, int, int]]) -> int:
        """The most that any of these runs, of `at`'s arguments, needs of the card's memory, with CUDA's context."""
        return max(m.total_bytes + m.context_bytes for m in (self.at(*run).memory for run in runs))

    def check(self) -> None:
        """Raise UsageError where the model has no cache of past keys and values, or can't take a prompt, and where a
        size is asked for that batch and lengths decide.
        """
        dims, given = self._dims(self.model), self.asked.dims or {}
        if not isinstance(given, Mapping):
            raise UsageError(f"dims must map names to sizes; a {type(given).__name__} does not")
        if decided := [d for d in (dims.batch, dims.new, dims.past, dims.total) if isinstance(d, str) and d in given]:
            raise UsageError(f"--batch, --prompt and --output decide {decided[0]!r:.60}: leave it out of --dim")
        if not dims.caches:
            why = "it has no inputs of past keys and values, so every token would be computed anew"
            raise UsageError(f"{self.model.name} can't be continued: {why}; export it with a cache")
        if self.prompt is None and dims.new == 1:
            raise UsageError(f"{self.model.name} takes one token at a time: give the file for the prompt by --prefill")

    @staticmethod
    def _dims(model: Opened) -> DecoderDims:
        """The dimensions of a model, found once."""
        if DecoderDims not in model.kept:
            model.kept[DecoderDims] = decoder_dims(model.proto)
        found: DecoderDims = model.kept[DecoderDims]
        return found

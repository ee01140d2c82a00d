"""The run at the largest batch that a card's memory and limits allow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Real

from gpu_specs.toml_file import figure
from onnxperf.graph import Note
from onnxperf.ground.errors import UsageError
from onnxperf.passes.plan import parse_plan
from onnxperf.running.pipeline import Gpu, Request, find, read_once, run_of
from onnxperf.running.run import Run
from onnxperf.running.terms import MOST

MAX_BATCH = 65_536


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may take at most: seconds, and bytes of the card's memory that the process holds."""

    seconds: float | None = None
    bytes: float | None = None

    def left(self, run: Run) -> float:
        """The share of the scarcest of memory and limits that a run leaves; negative where it takes too much."""
        need = run.memory(0)
        shares = [(need.capacity_bytes - need.context_bytes - need.total_bytes) / need.capacity_bytes]
        if self.bytes is not None:
            shares.append((self.bytes - need.reserved_bytes) / self.bytes)
        if self.seconds is not None and min(shares) >= 0:  # else there is no need to know the time
            shares.append((self.seconds - float(run.timeline.total_s[0])) / self.seconds)
        return min(shares)


NO_LIMITS = Limits()


def limits_of(max_ms: float | None, max_gb: float | None) -> Limits:
    """Limits in seconds and bytes; UsageError where one is no positive number."""
    for what, value in (("max_ms", max_ms), ("max_gb", max_gb)):
        number = isinstance(value, Real) and not isinstance(value, bool)
        if value is not None and not (number and 0 < value < MOST):
            raise UsageError(f"{what} must be a positive number below {figure(MOST)}, not {value!r}")
    return Limits(max_ms and float(max_ms) * 1e-3, max_gb and float(max_gb) * 1e9)


def largest(request: Request, gpu: Gpu, limits: Limits = NO_LIMITS) -> Run:
    """The run at the largest batch that fits into the memory and keeps the limits, up to MAX_BATCH.

    It is the run at the least batch where not even that does: 1, or what a plan divides among several GPUs. Doubles
    until a batch is too large, then narrows down: memory and time grow nearly evenly with the batch, so that every
    other guess interpolates. The model is read once, and no guess is estimated further than the limits need. Raises
    UsageError where the model's batch can't be changed.
    """
    if request.batch is not None:
        raise UsageError("--fit takes the largest batch that fits: leave --batch out, or --fit")
    device, notes = find(gpu)
    request, terms = read_once(request), request.terms
    least = parse_plan(terms.get("parallel"), terms.get("gpus")).parts

    def at(times: int) -> tuple[Run, float]:
        """The run at so many least batches, and the share of the scarcest allowance left; negative: it is too much."""
        try:
            run = run_of(replace(request, batch=times * least), device)
        except UsageError as e:
            raise UsageError(f"the largest batch that fits can't be searched: {e}") from None
        return run, limits.left(run)

    fits, over, lack, halve = 1, 0, 0.0, False  # over: the smallest known to be too large; lack: by which share
    run, left = at(fits)
    while left >= 0 and (over - fits > 1 if over else 2 * fits * least <= MAX_BATCH):
        guess = 2 * fits
        if over:
            guess = (fits + over) // 2 if halve else fits + int((over - fits) * left / (left + lack))
            guess, halve = min(max(guess, fits + 1), over - 1), not halve
        tried, room = at(guess)
        if room >= 0:
            run, fits, left = tried, guess, room
        else:
            over, lack = guess, -room
    if left >= 0 and not over:
        notes = (*notes, Note("fit-limit", f"even a batch of {MAX_BATCH:,} fits, the largest that is tried"))
    return replace(run, device_notes=(notes,))

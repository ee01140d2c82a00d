"""Generation of text: time to the first token, time of each further one, throughput and memory by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from onnxperf.ground.codec import Document, plain
from onnxperf.ground.errors import UsageError
from onnxperf.ground.names import USUAL_ENGINE
from onnxperf.ground.output import Progress
from onnxperf.language.arrivals import cached_tokens
from onnxperf.language.pools import Flow, Pools, flow
from onnxperf.language.room import Room, room
from onnxperf.language.steps import Draft, Seconds, Steps
from onnxperf.running.largest import MAX_BATCH
from onnxperf.running.memory import Memory
from onnxperf.running.pipeline import find

TRIES = 12  # batches that are tried in search of the largest


@dataclass(frozen=True, slots=True)
class Speculation(Document):
    """What a decode step with a draft consists of, on average over the output, and what a token takes without one.

    proposal: the draft's runs; verification: the model's run; without: time per output token with no draft; speedup:
    that over the time per output token with it.
    """

    proposal: Seconds
    verification: Seconds
    without: Seconds
    speedup: float


@dataclass(frozen=True, slots=True)
class Batch(Document):
    """What a batch of samples comes to, all with the same lengths and begun together.

    first: until the first token of each sample; token: each further one, on average; begin, end: the decode step with
    the shortest and the longest context; whole: until the last token. needed_bytes: the most of the card's memory that
    any run needs, with CUDA's context, or an engine with the caches of all samples; capacity_bytes: that there are for
    it; cache_bytes: what keys, values and states take of it; longest_context: tokens of
    a sample, prompt and output, for whose cache there is room. speculation: None without a draft; with one, its weights
    and cache are in all bytes. pools: in two pools, whose instances have this batch; a token then has its part of the
    transfer of the cache.
    """

    batch: int
    output: int
    first: Seconds
    token: Seconds
    begin: Seconds
    end: Seconds
    needed_bytes: int
    cache_bytes: int
    capacity_bytes: int
    longest_context: int
    speculation: Speculation | None = None
    pools: Flow | None = None

    @property
    def fits(self) -> bool:
        """Whether the card's memory holds it."""
        return self.needed_bytes <= self.capacity_bytes

    @property
    def whole(self) -> Seconds:
        """From the prompt to the last token."""
        return self.first + self.token.times(self.output - 1)

    @property
    def tokens_per_second(self) -> float:
        """Tokens that are generated in a second, the time of the prompt included; by all instances of two pools."""
        if self.pools is not None:
            return self.output * self.pools.requests_per_second
        return self.batch * self.output / self.whole.seconds

    @property
    def decode_tokens_per_second(self) -> float:
        """The same without the time of the prompt and the token that it gives."""
        return self.batch / self.token.seconds

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "batch": self.batch, "time_to_first_token": self.first.to_dict(),
            "time_per_output_token": self.token.to_dict(), "first_decode_step": self.begin.to_dict(),
            "last_decode_step": self.end.to_dict(), "total": self.whole.to_dict(),
            **plain(self, "tokens_per_second", "decode_tokens_per_second"), "memory_bytes": self.needed_bytes,
            **plain(self, "cache_bytes", "fits", "longest_context", "speculation", "pools"),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a prompt and of the output; chunk: how many of the prompt go into one run, None for all.

    positions: the longest context that the model was made for, None where that is not known; cached: the share of the
    prompt that a prefix cache has, in blocks of `block` tokens; limit: as of `Steps`.
    """

    prompt: int
    output: int
    chunk: int | None = None
    positions: int | None = None
    cached: float = 0.0
    block: int = 1
    limit: str = ""

    def check(self, draft: Draft | None = None) -> None:
        """Raise UsageError where a length can't be, for the model or for a draft."""
        for what, value, least in (("prompt", self.prompt, 1), ("output", self.output, 2), ("chunk", self.chunk, 1)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise UsageError(f"--{what} must be a whole number of at least {least}, not {value!r:.60}")
        check_share("--cached", self.cached)
        small = (draft.positions, draft.steps.limit) if draft else (None, "")
        for who, most, limit in (("draft", *small), ("model", self.positions, self.limit)):
            if most is not None and self.longest > most:
                both = f"{self.prompt:,} + {self.output:,} tokens"
                why = limit or f"the {who} was made for {most:,}"
                raise UsageError(f"--prompt and --output come to {both}, but {why}")

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that need no run: what comes behind them attends to them."""
        return cached_tokens(self.cached, self.prompt, self.block)

    @property
    def longest(self) -> int:
        """Tokens of a whole sample."""
        return self.prompt + self.output

    @property
    def last(self) -> int:
        """The context that the last decode step continues: the prompt gives the first token of the output."""
        return self.prompt + self.output - 2

    def prompt_runs(self) -> tuple[tuple[int, int], ...]:
        """New and past tokens of each run that the prompt takes."""
        first = self.cached_tokens
        chunk = min(self.chunk or self.prompt, self.prompt - first)
        return tuple((min(chunk, self.prompt - past), past) for past in range(first, self.prompt, chunk))


def check_share(option: str, share: float) -> None:
    """Raise UsageError for what is no share."""
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise UsageError(f"{option} must be a share from 0 to 1, not {share!r:.60}")


def first_token(steps: Steps, batch: int, lengths: Lengths) -> Seconds:
    """The runs of a prompt one after the other: whole chunks, interpolated over their past, and what is left; then
    those of a draft, which needs the prompt in its cache as well.
    """
    runs = lengths.prompt_runs()
    whole = [past for new, past in runs[1:] if new == runs[0][0]]
    rest = [steps.seconds(batch, *run) for run in runs[-1:] if len(runs) > 1 and run[0] != runs[0][0]]
    read = sum(rest, steps.seconds(batch, *runs[0]) + steps.over(batch, runs[0][0], whole))
    return read if steps.draft is None else read + first_token(steps.draft.steps, batch, lengths)


def at_batch(steps: Steps, batch: int, lengths: Lengths, cache_bytes_per_token: int) -> Batch:
    """What a batch comes to: tokens of the output behind the first take a decode step each. Bytes are of one GPU."""
    samples = steps.share(batch)
    pasts = range(lengths.prompt, lengths.last + 1)
    decode = steps.decode(samples, pasts).times(1 / len(pasts))
    token = decode.times(1 / steps.per_step)
    ends = [steps.decode(samples, (past,)) for past in (pasts[0], pasts[-1])]
    m = steps.at(samples, 1, lengths.last).memory
    each, d = cache_bytes_per_token * samples, steps.draft
    kept = samples * (steps.state_bytes() + (d.resident.cache_bytes_per_token * lengths.longest if d else 0))
    needed, capacity = memory_of(steps, samples, lengths, cache_bytes_per_token)
    return Batch(
        batch=batch, output=lengths.output, first=first_token(steps, samples, lengths), token=token, begin=ends[0],
        end=ends[1], needed_bytes=needed, cache_bytes=each * (steps.room or lengths.longest) + kept,
        capacity_bytes=capacity, longest_context=longest_context(m, steps, cache_bytes_per_token, samples, lengths),
        speculation=None if d is None else speculation(steps, d, samples, pasts, token),
    )  # fmt: skip


def speculation(steps: Steps, draft: Draft, samples: int, pasts: Sequence[int], token: Seconds) -> Speculation:
    """What a step with a draft consists of, and a step without: averages over `pasts`. token: each with the draft."""
    each = draft.proposal(samples, pasts), draft.verification(samples, pasts), steps.over(samples, 1, pasts)
    proposal, verification, without = (s.times(1 / len(pasts)) for s in each)
    return Speculation(proposal, verification, without, without.seconds / token.seconds)


def engine_room(steps: Steps, batch: int, lengths: Lengths, each: int) -> Room | None:
    """How the engine divides a GPU's memory where a batch decodes, with caches of `each` bytes a token; None where no
    engine does.
    """
    if (e := steps.engine).name == USUAL_ENGINE:
        return None
    return room(steps, batch, lengths.chunk or e.tokens(find(steps.gpu)[0]), each)


def memory_of(steps: Steps, batch: int, lengths: Lengths, each: int) -> tuple[int, int]:
    """Bytes of a GPU that a batch needs, and that there are for it; each: as of `engine_room`."""
    if (r := engine_room(steps, batch, lengths, each)) is None:
        return needed_bytes(steps, batch, lengths), steps.at(batch, 1, lengths.last).memory.capacity_bytes
    held = -(-(lengths.longest + steps.width - 1) // lengths.block) * lengths.block
    return r.needed_bytes(batch * held), r.capacity_bytes


def needed_bytes(steps: Steps, batch: int, lengths: Lengths) -> int:
    """The most memory that a prompt's first and last run and the last decode step need, of the model beside what a
    draft keeps, and of the draft beside what the model keeps.
    """
    runs, d = lengths.prompt_runs(), steps.draft
    read, step = [(batch, *run) for run in {runs[0], runs[-1]}], (batch, 1, lengths.last)
    if d is None:
        return steps.needed_bytes([*read, step])
    verify = (batch, steps.width, lengths.last)
    main = max(steps.needed_bytes(read), d.verifying.needed_bytes([verify]))
    return max(
        main + d.resident.bytes(batch, lengths.longest + d.tokens),
        d.steps.needed_bytes([*read, step]) + d.main.bytes(batch, lengths.longest),
    )


def longest_context(m: Memory, steps: Steps, each: int, samples: int, lengths: Lengths) -> int:
    """Tokens for whose caches, of `each` bytes a token of a sample and a draft's, there is room beside what else a
    decode step of these lengths needs, or an engine takes; those that the model itself has room for where that is
    fixed.
    """
    if steps.room or not each:
        return steps.room or lengths.positions or lengths.longest
    if (r := engine_room(steps, samples, lengths, each)) is None:
        whole, d = steps.copies * each * samples, steps.draft
        free = m.capacity_bytes - m.context_bytes - m.total_bytes
        free += whole * (lengths.longest if steps.copies == 1 else lengths.last)
        if d is not None:
            free, whole = free - d.resident.weights_bytes, whole + samples * d.resident.cache_bytes_per_token
        most = max(0, int(free // whole))
    else:
        most = max(0, r.tokens // samples)
    return most if lengths.positions is None else min(most, lengths.positions)


def largest_batch(
    steps: Steps, tried: Sequence[Batch], lengths: Lengths, each: int, tell: Progress | None = None
) -> int:  # fmt: skip
    """The largest batch that fits, with caches of `each` bytes a token, 0 where not even one sample does.

    Memory grows nearly evenly with the batch: every guess interpolates between the two nearest batches that are known,
    and TRIES of them bound the time; the largest that was seen to fit is returned where they do not suffice. What is
    tried is how many samples each microbatch of each group of GPUs has.
    """
    parts = steps.plan.microbatches
    over = {ceil(steps.share(b.batch) / parts): b.needed_bytes - b.capacity_bytes for b in tried}

    def excess(batch: int) -> int:
        needed, capacity = memory_of(steps, batch * parts, lengths, each)
        return needed - capacity

    for batch in (1, 2):
        over[batch] = over[batch] if batch in over else excess(batch)
    for i in range(TRIES):
        if tell:
            tell("largest batch", i, TRIES)
        low = max((n for n, more in over.items() if more <= 0), default=0)
        high = min((n for n, more in over.items() if more > 0), default=MAX_BATCH + 1)
        if high - low <= 1:
            return low * steps.plan.parts
        (a, less), (b, more) = sorted(sorted(over.items(), key=lambda at: abs(at[1]))[:2])
        guess = min(max(a - int(less * (b - a) / max(more - less, 1)), low + 1), high - 1)
        over[guess] = excess(guess)
    return max((n for n, more in over.items() if more <= 0), default=0) * steps.plan.parts


def in_pools(b: Batch, lengths: Lengths, pools: Pools, gpus: int) -> Batch:
    """A batch in each instance of two pools, of `gpus` each: caches are moved behind the first token."""
    through = flow(pools, b.batch, lengths.prompt, lengths.output, b.first.seconds, b.token.seconds, gpus)
    each = through.transfer_seconds / (lengths.output - 1)
    return replace(b, token=b.token + Seconds(each, each, each), pools=through)


def by_batch(
    steps: Steps, batches: Sequence[int], lengths: Lengths, each: int, tell: Progress | None = None
) -> tuple[Batch, ...]:
    """What each batch comes to, `each` bytes of cache a token."""
    rows = []
    for i, batch in enumerate(batches):
        if tell:
            tell(f"batch {batch}", i, len(batches))
        rows.append(at_batch(steps, batch, lengths, each))
    return tuple(rows)

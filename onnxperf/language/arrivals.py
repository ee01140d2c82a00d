"""Requests that arrive over time, or as others end: with how many tokens of prompt, and how many to generate."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxperf.ground.errors import UsageError

MAX_REQUESTS, MAX_LENGTH = 100_000, 1 << 20
LEAST_QPS = 0.0001  # so that times of MAX_REQUESTS still have microseconds
USUAL_REQUESTS, USUAL_SEED = 1000, 0
RUNNING = 256  # requests that are served at a time where nobody says how many, as max_num_seqs of vLLM
MAX_CONCURRENCY = 4096
#: Requests of a closed loop for each that there is at a time, as InferenceX and genai-perf's examples take: the first
#: of them come together, so that their wait is in the mean.
ROUNDS = 10
#: Of outputs in a closed loop, of their length: in place of the moments of arrival, which vary on a real server. Chosen
#: among 1 to 10% by times to first token of served rows (onnxperf/lab/served).
SPREAD = 0.03
FORMS = "2048, uniform:100:2000 (least, most) or lognormal:2048:0.5 (median, standard deviation of the logarithm)"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: when it arrives in seconds, in a closed loop after the end of another, and its tokens; cached: of its
    prompt, those whose keys and values a prefix cache has.
    """

    seconds: float
    prompt: int
    output: int
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests that arrive independently, `qps` of them in a second on average (a Poisson process); or a closed loop,
    `concurrency` of them at all times, each replaced when it ends.

    prompts, outputs: lengths in tokens, of FORMS; the same `seed` draws the same requests; cached: the share of each
    prompt that a prefix cache has.
    """

    qps: float | None
    prompts: str
    outputs: str
    requests: int = USUAL_REQUESTS
    seed: int = USUAL_SEED
    concurrency: int = 0
    cached: float = 0.0

    def arrivals(self, positions: int | None = None, block: int = 1) -> tuple[Arrival, ...]:
        """The requests, of which none is longer than `positions`: prompts, then outputs, are cut to that; block: tokens
        of a block of the cache.

        Raises UsageError where rates, numbers or lengths can't be.
        """
        rate = self.qps
        if not self.concurrency:
            check_rate(rate)
        if type(self.requests) is not int or not 1 <= self.requests <= MAX_REQUESTS:
            raise UsageError(f"--requests must be a whole number from 1 to {MAX_REQUESTS:,}, not {self.requests!r:.60}")
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 32:
            raise UsageError(f"--seed must be a whole number from 0 to {(1 << 32) - 1:,}, not {self.seed!r:.60}")
        rng = np.random.default_rng(self.seed)
        times = np.cumsum(rng.exponential(1 / rate, self.requests)) if rate else np.zeros(self.requests)
        outputs = drawn("--output-lengths", self.outputs, self.requests, rng)
        prompts = drawn("--prompt-lengths", self.prompts, self.requests, rng)
        if positions is not None:
            outputs = np.minimum(outputs, max(positions - 1, 1))
            prompts = np.minimum(prompts, positions - outputs)
        rows = zip(times.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
        return tuple(Arrival(*row, cached_tokens(self.cached, row[1], block)) for row in rows)


def check_rate(rate: Any) -> None:
    """Raise UsageError for a rate at which requests can't arrive."""
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not LEAST_QPS <= rate < 1e6:
        least = f"from {LEAST_QPS} (one in three hours) to a million"
        raise UsageError(f"--qps must be a number of requests per second, {least}, not {rate!r:.60}")


def drawn(option: str, text: str, count: int, rng: np.random.Generator) -> NDArray[Any]:
    """`count` lengths of a form in FORMS, from 1 to MAX_LENGTH. Raises UsageError, which names the option."""
    kind, *numbers = text.split(":") if isinstance(text, str) else [""]
    if re.fullmatch(r"[0-9]{1,7}", kind) and not numbers:
        kind, numbers = "uniform", [kind, kind]
    if kind not in ("uniform", "lognormal") or len(numbers) != 2 or not all(map(is_number, numbers)):
        raise UsageError(f"{option} {text!r:.60} is not valid: write {FORMS}")
    a, b = map(float, numbers)
    if not 1 <= a <= MAX_LENGTH or not (b <= 3 if kind == "lognormal" else a <= b <= MAX_LENGTH):
        most = f"lengths are from 1 to {MAX_LENGTH:,}, standard deviations up to 3"
        raise UsageError(f"{option} {text!r:.60} is out of range: {most}")
    if kind == "uniform":
        lengths = rng.integers(int(a), int(b), count, endpoint=True)
    else:
        lengths = np.clip(np.rint(a * np.exp(b * rng.standard_normal(count))), 1, MAX_LENGTH).astype(np.int64)
    return np.asarray(lengths)


def around(length: int) -> str:
    """Lengths that vary by SPREAD around one, as a form of FORMS: equal ones keep requests of a closed loop in step,
    whose prompts then come together.
    """
    spread = round(length * SPREAD)
    return f"uniform:{length - spread}:{length + spread}" if spread else str(length)


def cached_tokens(share: float, prompt: int, block: int = 1) -> int:
    """Tokens of a prompt that a prefix cache has, of a share of it: whole blocks, and never the last token, whose
    logits give the first one of the output.
    """
    return min(int(share * prompt + 1e-9), prompt - 1) // block * block


def is_number(text: str) -> bool:
    """Whether a text is a plain number."""
    return re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,6})?", text) is not None

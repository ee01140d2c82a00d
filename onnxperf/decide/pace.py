"""How soon tokens must come: limits on the time to the first token, and on the time of each further one."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

from onnxperf.ground.errors import UsageError
from onnxperf.ground.tables import duration
from onnxperf.language.serving import PERCENTILES, Service, Spread
from onnxperf.language.steps import Seconds
from onnxperf.running.terms import MOST

FIRST, TOKEN = "time_to_first_token", "time_per_output_token"  # of `Service.times`
ENDS = {"middle": 0, "high": 2}  # of `Seconds.ends`


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds that the first token and each further one may take, None for any; in the mean of requests, or this
    percentile of them.
    """

    token_s: float | None = None
    first_s: float | None = None
    percentile: int | None = None

    def check(self) -> None:
        """Raise UsageError where a limit can't be."""
        for flag, value in (("--tpot", self.token_s), ("--ttft", self.first_s)):
            number = isinstance(value, Real) and not isinstance(value, bool)
            if value is not None and not (number and 0 < value < MOST):
                raise UsageError(f"{flag} must be a positive duration, not {value!r:.60}")
        if self.percentile is not None and self.percentile not in PERCENTILES:
            listed = ", ".join(map(str, PERCENTILES))
            raise UsageError(f"--percentile of a language model is one of {listed}, not {self.percentile!r:.60}")

    def exceeded(self, first: Seconds, token: Seconds, end: str = "middle") -> str:
        """Which limit is not kept, "" where both are; end: of the ranges, that which counts, of ENDS."""
        for time, limit, what in (
            (token, self.token_s, "per output token"),
            (first, self.first_s, "to the first token"),
        ):
            if limit is not None and time.ends()[ENDS[end]] > limit:
                return f"takes {duration(time.ends()[ENDS[end]])} {what}, over {duration(limit)}"
        return ""

    def times(self, s: Service) -> tuple[Seconds, Seconds]:
        """What is limited of requests that were served: the time to the first token, and of each further one."""
        return self._limited(s.times[FIRST]), self._limited(s.times[TOKEN])

    def _limited(self, spread: Spread) -> Seconds:
        return spread.mean if self.percentile is None else spread.at[self.percentile]


def pace_of(tpot_ms: float | None, ttft_ms: float | None, percentile: int | None = None) -> Pace:
    """Limits in milliseconds as a `Pace`. Raises UsageError where one is no positive number."""
    each = [value / 1e3 if isinstance(value, (int, float)) and not isinstance(value, bool) else value
            for value in (tpot_ms, ttft_ms)]  # fmt: skip
    pace = Pace(each[0], each[1], percentile)
    pace.check()
    return pace

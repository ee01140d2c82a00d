"""A model that runs at one batch after another: what the search for throughput asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from onnxperf.measure.child import Child, Heard
from onnxperf.measure.inputs import Feed
from onnxperf.measure.job import Job, Plan, Runs
from onnxperf.measure.prepared import Prepared, check_hosted
from onnxperf.measure.series import Series
from onnxperf.measure.session import OutOfMemory


@dataclass(slots=True)
class Bench:
    """A model at one batch after another. A session serves one batch, for its dimensions are bound, until another is
    asked for.
    """

    job: Job
    child: Child | None = None
    plan: Plan | None = None

    def at(self, batch: int, runs: int = 20) -> float | None:
        """Median seconds of a run on the device's clock; None where the batch does not fit into memory."""
        heard = self._do(batch, lambda feeds: Runs(feeds, runs, least=3, most_s=self.job.duration_s or 5.0))
        return None if heard is None else Series(tuple(d for d, _ in heard.samples)).median

    def streak(self, batch: int, seconds: float) -> tuple[int, float]:
        """Runs back to back for about so many seconds: how many, and the seconds they took."""
        heard = self._do(batch, lambda feeds: Runs(feeds, 1, streak_s=seconds))
        if heard is None:
            raise OutOfMemory(f"batch {batch} ran before, but now memory is short")
        return heard.streak

    def _do(self, batch: int, runs: Callable[[tuple[Feed, ...]], Runs]) -> Heard | None:
        """Have a batch run, in the open session if it is bound to that."""
        it, heard = Prepared.of(replace(self.job, batch=batch)), Heard()
        try:
            if self.child is None or self.plan != it.plan:
                self.close()
                self.plan, child = it.plan, Child(it.plan, heard)
                self.child = child.__enter__()
                for _ in child.hear("opened"):
                    pass
                check_hosted(self.job, it, heard.opened[1])
            self.child.heard = heard
            for _ in self.child.ask(runs(it.feeds)):
                pass
        except OutOfMemory:
            self.close()  # what is left of its memory must not count against another batch
            return None
        return heard

    def close(self) -> None:
        """End the process."""
        if self.child is not None:
            self.child.__exit__()
        self.child = None


@contextmanager
def opened(job: Job) -> Iterator[Bench]:
    """A bench for the throughput of a job at one batch after another."""
    bench = Bench(job)
    try:
        yield bench
    finally:
        bench.close()

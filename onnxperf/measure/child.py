"""The process that runs a model, seen from the outside: it is started, asked, heard, and never left behind."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onnxperf import errors
from onnxperf.errors import EnvironmentFailure, printable
from onnxperf.measure.job import Plan, Runs
from onnxperf.measure.record import Copies, Measurement, OperatorTime, Reading
from onnxperf.measure.series import Series
from onnxperf.measure.session import OutOfMemory
from onnxperf.measure.worker import main, tail

STARTING = "starting"


class Stopped(EnvironmentFailure):
    """The process that ran the model ended in the middle; `measurement` is what it had measured, or None."""

    measurement: Measurement | None = None


@dataclass(slots=True)
class Heard:
    """What the process has said so far."""

    phase: str = STARTING
    opened: tuple[Any, ...] = ()  # seconds, hosted nodes, options, place, clock, software
    first_s: float = 0.0
    warm: tuple[int, float, bool] = (0, 0.0, False)
    samples: list[tuple[float, float]] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    copies: Copies | None = None
    streak: tuple[int, float] = (0, 0.0)
    profile: str = ""
    operators: tuple[OperatorTime, ...] = ()
    profiled: Series | None = None
    unprofiled: str = ""  # why there is no profile

    def take(self, word: str, *said: Any) -> None:
        """Note what a message says; what went wrong there is raised here."""
        match word:
            case "error":
                kind, text = said
                raise {**vars(errors), OutOfMemory.__name__: OutOfMemory}.get(kind, EnvironmentFailure)(text)
            case "samples" | "readings":
                getattr(self, word).extend(*said)
            case "opened" | "warm" | "streak":
                setattr(self, word, said)
            case "phase" | "first_s" | "copies" | "profile":
                setattr(self, word, *said)


class Child:
    """The process that runs a model, with a folder for what it writes; a context, at the end of which both are gone."""

    def __init__(self, plan: Plan, heard: Heard):
        self.plan, self.heard = plan, heard

    def __enter__(self) -> Child:
        try:
            self.folder = tempfile.mkdtemp(prefix="onnxperf-")
        except OSError as e:
            raise EnvironmentFailure(f"there is no place for temporary files: {e.strerror or e}") from None
        try:
            self._start()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        plan = replace(self.plan, profile=str(Path(self.folder, "profile"))) if self.plan.profile else self.plan
        self.process = context.Process(target=main, args=(plan, theirs, self.folder), daemon=True)
        with _deaf():
            self.process.start()
        theirs.close()

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()
        self.process.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def hear(self, until: str) -> Iterator[str]:
        """Take messages, and give their first words, up to one that is `until`.

        Raises what went wrong in the process, and Stopped where it ended without a word.
        """
        word = ""
        while word != until:
            try:
                word, *said = self.connection.recv()
            except (EOFError, ConnectionError):
                raise Stopped(self._end()) from None
            self.heard.take(word, *said)
            yield word

    def ask(self, runs: Runs | None, until: str = "done") -> Iterator[str]:
        """Have it do something, and hear what it says on the way."""
        try:
            self.connection.send(runs)
        except (BrokenPipeError, ConnectionError):
            raise Stopped(self._end()) from None
        yield from self.hear(until)

    def _end(self) -> str:
        self.process.join(5)
        code, said = self.process.exitcode, [x for x in tail(self.folder).splitlines() if x.strip()]
        how = f"with exit code {code}"
        if code is not None and code < 0:
            with suppress(ValueError):
                how = f"by signal {signal.Signals(-code).name}"
        hint = "; the system may have run out of memory" if code == -9 else ""
        if self.heard.phase == STARTING:
            hint = "; a script calls measure() under `if __name__ == '__main__':`"
        last = f" (it said: {printable(said[-1].strip())[:200]})" if said else ""
        return f"{self.plan.name}: ONNX Runtime's process was ended {how} while {self.heard.phase}{hint}{last}"


@contextmanager
def _deaf() -> Iterator[None]:
    """A process started here does not hear Ctrl-C, not even while it starts; what comes meanwhile is raised after."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

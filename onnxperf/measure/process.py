"""The process that runs a model, as its parent sees it: started, listened to, asked, and never left behind."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onnxperf.ground.errors import EnvironmentFailure, printable
from onnxperf.ground.signals import held_back, uninterrupted
from onnxperf.measure.job import Plan
from onnxperf.measure.record import Copies, Measurement, Place, Reading, WarmUp
from onnxperf.measure.worker import main, tail

STARTING = "starting"


class Stopped(EnvironmentFailure):
    """The process that ran the model ended before it was done; `measurement` is what it had measured, or None."""

    measurement: Measurement | None = None


@dataclass
class ModelProcess:
    """A process that runs the model of a plan, and what it has told so far, which stays when it is gone.

    As a context it starts the process, with a folder for what that writes, and removes both in the end.

    phase: what it is doing; hosted: names and types of the nodes on the CPU beside a GPU; samples: seconds of each
    counted run, by the device's clock and by the wall's; streak: how many runs back to back, and their seconds;
    profile: the path of the profile; done: whether it has run what it was asked to. The others are named as in
    `record`; place and warm_up are there before the first sample.
    """

    plan: Plan
    phase: str = STARTING
    place: Place = field(init=False)
    clock: str = ""
    software: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    hosted: tuple[tuple[str, str], ...] = ()
    warm_up: WarmUp = field(init=False)
    samples: list[tuple[float, float]] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    copies: Copies | None = None
    streak: tuple[int, float] = (0, 0.0)
    profile: str = ""
    done: bool = False

    def __enter__(self) -> ModelProcess:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        try:
            self.folder = tempfile.mkdtemp(prefix="onnxperf-")
        except OSError as e:
            raise EnvironmentFailure(f"no directory for temporary files: {e.strerror or e}") from None
        self.process = context.Process(target=main, args=(theirs, self.folder), daemon=True)
        target = self.plan.profile_to
        try:
            with held_back():
                self.process.start()
            theirs.close()
            self._send(replace(self.plan, profile_to=str(Path(self.folder, target))) if target else self.plan)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with uninterrupted():  # whoever is impatient sends a second one
            self.connection.close()
            if self.process.pid is not None:  # it has started
                self.process.kill()
                self.process.join()
            self.process.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def listen(self, until: str, tell: Callable[[], None] = lambda: None) -> None:
        """Take what the process tells, message by message, up to the one that tells the attribute `until`.

        tell: is called after each message.

        Raises what went wrong in the process, and Stopped where it ended without a word.
        """
        facts: dict[str, Any] = {}
        while until not in facts:
            try:
                facts = self.connection.recv()
            except (EOFError, ConnectionError):
                raise Stopped(self._end()) from None
            if "error" in facts:
                raise facts["error"]
            for name, value in facts.items():
                if name in ("samples", "readings"):
                    getattr(self, name).extend(value)
                else:
                    setattr(self, name, value)
            tell()

    def ask(self, seconds: float | None) -> None:
        """Have it run back to back for about so many seconds; None has it end its session and write the profile."""
        self._send(seconds)
        self.listen("profile" if seconds is None else "done")

    def _send(self, message: Plan | float | None) -> None:
        try:
            self.connection.send(message)
        except ConnectionError:
            raise Stopped(self._end()) from None

    def _end(self) -> str:
        """How the process ended."""
        self.process.join(5)
        code, logged = self.process.exitcode, [x for x in tail(self.folder).splitlines() if x.strip()]
        how = f"with exit code {code}"
        if code is not None and code < 0:
            with suppress(ValueError):
                how = f"by signal {signal.Signals(-code).name}"
        hint = "; the system may have run out of memory" if code == -9 else ""
        if self.phase == STARTING:
            hint = "; a script calls measure() under `if __name__ == '__main__':`"
        last = f" (it said: {printable(logged[-1].strip())[:200]})" if logged else ""
        return f"{self.plan.graph.name}: the ONNX Runtime process ended {how} while {self.phase}{hint}{last}"

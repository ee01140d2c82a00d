"""What asks this process to end: when it is heard, and what it may not interrupt."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

#: Ctrl-C, the system, a terminal that is closed.
ENDINGS = tuple(s for s in signal.Signals if s.name in ("SIGINT", "SIGTERM", "SIGHUP"))


@contextmanager
def held_back() -> Iterator[None]:
    """A process started in here does not get ENDINGS, not even while it starts; what comes meanwhile is raised after.

    They stay blocked there until it unblocks them.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    try:
        resource_tracker.ensure_running()  # a process, too; starting it ends the block
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """What would be raised by a signal in here is raised after. A mask is not enough: it holds for one thread."""
    if threading.current_thread() is not threading.main_thread():  # nothing is raised in another
        yield
        return
    handlers = {s: h for s in ENDINGS if callable(h := signal.getsignal(s)) and not isinstance(h, signal.Handlers)}
    late = list[int]()
    for s in handlers:
        signal.signal(s, lambda number, _: late.append(number))
    try:
        yield
    finally:
        for s, handler in handlers.items():
            signal.signal(s, handler)
        for number in late[:1]:
            signal.raise_signal(number)


class ImportedWhole(MetaPathFinder):
    """Has packages imported `uninterrupted`: an exception in what their C++ code calls as it is loaded is lost there,
    or ends the process by a segmentation fault.
    """

    def __init__(self, *packages: str) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The specification of a package of these, whose code is run uninterrupted; None for every other module."""
        spec = PathFinder.find_spec(name, path, target) if name in self.packages else None
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                with uninterrupted():
                    run(module)

            loader.exec_module = exec_module
        return spec

    @classmethod
    def install(cls, *packages: str) -> None:
        """Import these packages whole from now on."""
        if not any(isinstance(finder, cls) for finder in sys.meta_path):
            sys.meta_path.insert(0, cls(*packages))

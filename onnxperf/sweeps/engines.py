"""Where a sweep is computed: in this process, on all cores of this machine, or on a Dask cluster.

A cluster is trusted: Dask sends tasks and results as pickles. Models are sent without their weights.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import wait
from typing import Any, NamedTuple, ParamSpec, TypeVar
from urllib.parse import urlsplit

from onnxperf.ground.errors import EnvironmentFailure, UsageError
from onnxperf.ground.modules import require
from onnxperf.ground.signals import ENDINGS, held_back, uninterrupted

P = ParamSpec("P")
T = TypeVar("T")
ANSWERS_S = 10.0  # how long a scheduler may take to answer
ASKED_S = 1.0  # how often it is asked whether it is there
KEPT = "the cache is kept; run the same command again to continue"


class Engine(NamedTuple):
    """Where models are read, where they are predicted, and how many tasks may be under way."""

    reads: Executor
    predicts: Executor
    ahead: int


class Here(Executor):
    """Does what is submitted at once."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """The finished future; what the function raises is raised here."""
        done: Future[T] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class OnDask(Executor):
    """Sends what is submitted to a cluster. Its futures end where Dask's own executor's can wait for ever: when the
    scheduler is gone.
    """

    def __init__(self, client: Any):
        self.client = client

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """The future of the result; CancelledError or OSError where the scheduler is gone."""
        return _Far(self.client, self.client.submit(fn, *args, **kwargs, pure=False))


class _Far(Future[T]):
    """A future on a cluster."""

    def __init__(self, client: Any, far: Any):
        super().__init__()
        self.client, self.far = client, far

    def result(self, timeout: float | None = None) -> T:
        """The result; what the task raised is raised here."""
        while True:
            try:
                return self.far.result(timeout=ASKED_S)  # type: ignore[no-any-return]
            except TimeoutError:
                if self.far.status == "error":
                    raise
                if self.client.status == "closed":
                    raise CancelledError from None


@contextmanager
def engine(models: int, scheduler: str | None = None) -> Iterator[Engine]:
    """An engine for so many models: one alone is read and predicted here, several on all cores; where a scheduler is
    named they are predicted on its cluster.

    Raises EnvironmentFailure where no scheduler answers, and where it or processes are lost on the way.
    """
    workers = cores()
    with ExitStack() as stack:
        here = Here() if models == 1 or workers == 1 else stack.enter_context(_pool(min(workers, models)))
        if scheduler is None:
            yield Engine(here, here, 0 if isinstance(here, Here) else 4 * workers)
        else:
            yield stack.enter_context(_cluster(scheduler, here))


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _pool(workers: int) -> Iterator[Executor]:
    context = multiprocessing.get_context("spawn")  # this process has threads, which a fork would not survive
    with held_back():
        pool = _Pool(workers, context, initializer=_start)
    try:
        yield pool
    except BrokenExecutor:
        ended = "a worker process was killed, perhaps out of memory"
        raise EnvironmentFailure(f"{ended}; {KEPT}") from None
    except KeyboardInterrupt:
        with uninterrupted():  # whoever is impatient sends a second one
            for worker in multiprocessing.active_children():
                worker.kill()
            pool.shutdown(cancel_futures=True)
        raise
    finally:
        pool.shutdown(cancel_futures=True)


class _Pool(ProcessPoolExecutor):
    """Processes that are started one by one, as there is work, and that Ctrl-C does not reach."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """The future of the result."""
        with held_back():
            return super().submit(fn, *args, **kwargs)


def _start() -> None:
    """Let a worker leave what asks the whole group to end to the process that started it, and end with that one."""
    for ending in ENDINGS:
        if ending != signal.SIGTERM:  # by which the pool ends workers
            signal.signal(ending, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


@contextmanager
def _cluster(scheduler: str, here: Executor) -> Iterator[Engine]:
    """An engine on a Dask cluster. Its tasks are run again where a worker is lost."""
    _check_answers(scheduler)
    require("distributed", "--dask")
    import distributed

    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what is lost is said below
    lost = f"lost the connection to the Dask scheduler at {scheduler}; {KEPT}"
    try:
        client: Any = distributed.Client(scheduler, timeout=ANSWERS_S, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as e:
        raise EnvironmentFailure(f"no Dask scheduler answers at {scheduler}: {e}") from None
    try:
        threads = sum(client.nthreads().values())
        if not threads:
            raise EnvironmentFailure(f"the Dask scheduler at {scheduler} has no workers: start some with `dask worker`")
        yield Engine(here, OnDask(client), 4 * threads)
    except distributed.scheduler.KilledWorker:
        raise EnvironmentFailure(f"workers of {scheduler} keep dying at the same task; {KEPT}") from None
    except ImportError as e:
        raise EnvironmentFailure(f"workers of {scheduler} can't run this: {e}; install onnxperf there") from None
    except (CancelledError, asyncio.CancelledError, OSError) as e:
        if isinstance(e, OSError) and client.status == "running":
            raise
        raise EnvironmentFailure(lost) from None
    finally:
        client.close(timeout=ANSWERS_S)


def _check_answers(scheduler: str) -> None:
    """Raise UsageError where this is no address, EnvironmentFailure where nothing answers there."""
    try:
        parts = urlsplit(scheduler)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or parts.scheme not in ("tcp", "tls"):
        raise UsageError(f"--dask {scheduler}: write the address of a scheduler, such as tcp://10.0.0.1:8786")
    try:
        socket.create_connection((host, port), timeout=ANSWERS_S).close()
    except OSError as e:
        raise EnvironmentFailure(f"no Dask scheduler answers at {scheduler}: {e.strerror or e}") from None

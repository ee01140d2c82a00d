"""Silence while frameworks export: they print, warn and log a lot, and libraries of theirs do so past Python."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress

LEVEL = "TF_CPP_MIN_LOG_LEVEL"  # set by tf2onnx where it is imported


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing is printed, warned or logged inside; all that is as before in the end."""
    before, disabled = os.environ.get(LEVEL), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(redirect_stdout(io.StringIO()))
            stack.enter_context(redirect_stderr(io.StringIO()))
            stack.enter_context(_nowhere(2))
            yield
    finally:
        logging.disable(disabled)
        os.environ.pop(LEVEL, None)
        os.environ.update({} if before is None else {LEVEL: before})


@contextmanager
def _nowhere(descriptor: int) -> Iterator[None]:
    """What is written to a file descriptor is lost; one that is closed stays so."""
    kept = None
    with suppress(OSError):
        kept = os.dup(descriptor)
    if kept is None:
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)

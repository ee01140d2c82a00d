"""Keeps frameworks quiet while they export: they print, warn and log a lot, their C++ libraries straight to stderr."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress

LEVEL = "TF_CPP_MIN_LOG_LEVEL"  # which tf2onnx sets when it is imported


@contextmanager
def quiet() -> Iterator[None]:
    """Discard everything that is printed, warned or logged inside; afterwards all is set as it was before."""
    before, disabled = os.environ.get(LEVEL), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(redirect_stdout(io.StringIO()))
            stack.enter_context(redirect_stderr(io.StringIO()))
            stack.enter_context(_discard(2))
            yield
    finally:
        logging.disable(disabled)
        os.environ.pop(LEVEL, None)
        os.environ.update({} if before is None else {LEVEL: before})


@contextmanager
def _discard(descriptor: int) -> Iterator[None]:
    """Discard what is written to a file descriptor; a closed one stays closed."""
    kept = None
    with suppress(OSError):
        kept = os.dup(descriptor)
    if kept is None:
        yield
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
    try:
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)

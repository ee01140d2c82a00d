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
    with ExitStack() as stack:
        stack.callback(_set_level, os.environ.get(LEVEL))
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(redirect_stdout(io.StringIO()))
        stack.enter_context(redirect_stderr(io.StringIO()))
        with suppress(OSError):  # a closed stderr stays closed
            kept = os.dup(2)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, 2)
            with open(os.devnull, "wb") as null:
                os.dup2(null.fileno(), 2)
        yield


def _set_level(before: str | None) -> None:
    os.environ.pop(LEVEL, None)
    os.environ.update({} if before is None else {LEVEL: before})

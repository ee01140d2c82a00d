"""Every error a caller can cause, each with the exit code of the command line."""

from __future__ import annotations


class Error(Exception):
    """Base of all errors a caller can cause. The message is one clear sentence: what, where, what to do."""

    exit_code = 2


class LimitExceeded(Error):
    """A gate, budget or threshold was not met."""

    exit_code = 1


class BudgetExceeded(LimitExceeded):
    """A model takes longer, or more memory, than it may; the message names the operators that it goes to."""


class UsageError(Error):
    """The request can't be understood: an unknown GPU, dimension or tensor, a missing file, an open dimension."""

    exit_code = 2


class ModelError(Error):
    """The model can't be used: unreadable, empty, contradictory, or reaching outside its folder."""

    exit_code = 3


class EnvironmentFailure(Error):
    """The environment lacks what the request needs: memory, space on the disk, an extra that is not installed."""

    exit_code = 4


def printable(text: str) -> str:
    """Text from a stranger's file, safe to show: no control characters, no escape sequences, one line."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)

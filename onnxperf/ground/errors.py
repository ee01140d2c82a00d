"""Every error a caller can cause, each with the exit code of the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from heapq import nlargest
from itertools import takewhile
from operator import eq

from gpu_specs.toml_file import missing

MAX_COMPARED = 200  # names, and characters of each, among which a similar one is looked for
INTERRUPTED = 130  # the exit code after Ctrl-C, which is no error of the caller
#: Options whose arguments have other names.
OTHERWISE = {
    "dim": "dims", "trip-count": "trip_counts", "power-limit": "power_limit_W", "clock": "clock_Hz", "tpot": "tpot_ms",
    "ttft": "ttft_ms",
}  # fmt: skip


def _entries(options: str) -> list[str]:
    """The entries of a dict that are the same as some --dim NAME=N, or as some --shapes NAME:1x3x224x224."""
    entries = re.findall(r"--(dim|shapes) (\S+)[=:](\w+)", options)
    return [f'"{name}": {n}' if flag == "dim" else f'"{name}": [{n.replace("x", ", ")}]' for flag, name, n in entries]


#: Options of the command line in messages, and the arguments of Python that are the same.
ARGUMENTS = (
    (r"--dim [^\s=]+=\w+(?: --dim [^\s=]+=\w+)*", lambda m: f"dims={{{', '.join(_entries(m[0]))}}}"),
    (r"--trip-count ([^\s=]+)=(\w+)", lambda m: f'trip_counts={{"{m[1]}": {m[2]}}}'),
    (r"--shapes \S+:\d+(?:x\d+)*(?: --shapes \S+:\d+(?:x\d+)*)*", lambda m: f"shapes={{{', '.join(_entries(m[0]))}}}"),
    (r"export the model with a dynamic batch(?!,)", lambda m: f"{m[0]}, or give a framework's to load with batch=N"),
    (r"--shapes (\S+):\.\.\.", lambda m: f'shapes={{"{m[1]}": ...}}'),
    (r"--batch (\d+|N)\b", lambda m: f"batch={m[1]}"),
    (r"--(dim|trip-count|power-limit|clock|tpot|ttft)\b", lambda m: OTHERWISE[m[1]]),
    (r"--([a-z][a-z-]*[a-z])\b", lambda m: m[1].replace("-", "_")),
)


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


def unreadable(path: str | os.PathLike[str], e: Exception) -> UsageError:
    """The error of a file that can't be read: it is not there, or what the system or Python says of it."""
    name = os.fspath(path)
    if isinstance(e, FileNotFoundError):
        return UsageError(missing(name))
    return UsageError(f"can't read {name}: {getattr(e, 'strerror', None) or e}")


def printable(text: str) -> str:
    """Text from a stranger's file, safe to show: no control characters, no escape sequences, one line."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def counted(n: int, thing: str, things: str = "") -> str:
    """A number of things, in words: 1 node, 2 nodes; `things` where an s is not enough."""
    return f"{n:,} {thing if n == 1 else things or thing + 's'}"


def as_arguments(said: str) -> str:
    """A message with the arguments of Python where it names options of the command line, but for whole commands."""
    parts = said.split("`")  # every second one is a command
    for option, argument in ARGUMENTS:
        parts[::2] = [re.sub(option, argument, part) for part in parts[::2]]
    return "`".join(parts)


def near_names(name: str, names: Iterable[str], n: int = 1, cutoff: float = 0.6) -> list[str]:
    """The `n` names that are most similar to one that is not among them, as `difflib.get_close_matches` finds them.

    As that takes long for many names and for long ones, it is given the MAX_COMPARED that begin and end
    most alike, and none of more than MAX_COMPARED characters.
    """
    if len(name) > MAX_COMPARED:
        return []

    def alike(other: str) -> tuple[int, int]:
        ends = ((name, other), (name[::-1], other[::-1]))
        same = sum(1 for first, two in ends for _ in takewhile(lambda pair: eq(*pair), zip(first, two, strict=False)))
        return min(same, len(name)), -abs(len(name) - len(other))

    short = (other for other in dict.fromkeys(names) if len(other) <= MAX_COMPARED)
    return get_close_matches(name, nlargest(MAX_COMPARED, short, key=alike), n=n, cutoff=cutoff)


@contextmanager
def speaking_of_arguments() -> Iterator[None]:
    """Let errors name arguments of Python where they name options of the command line."""
    try:
        yield
    except Error as e:
        said = as_arguments(str(e))
        raise (e if said == str(e) else type(e)(said)) from None

"""Where answers go: the standard streams, which may be closed, full or ASCII, and the file that a user names."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from onnxperf.ground.errors import EnvironmentFailure, Error, UsageError, printable

#: Where the name is at fault, not the system.
MISNAMED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG})
#: Told what is being done, how much of it is done, and how much there is to do, 0 where nobody knows.
Progress = Callable[[str, int, int], None]
STREAM = re.compile(r"/(?:dev|proc/self)/(?:stdin|stdout|stderr|fd/([0-9]{1,4}))")


def prepare_streams() -> None:
    """Make stdout and stderr replace characters that they can't encode, rather than fail."""
    # A closed one would leave its number to the next file that is opened: check before any is.
    if sys.stdout is None:
        raise EnvironmentFailure("stdout is closed: the answer can't be written")
    if sys.stderr is None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.set_inheritable(nowhere, True)  # a process that is started has a stderr, too
        sys.stderr = os.fdopen(nowhere, "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def settle_streams() -> None:
    """Flush what is left; a stream that fails is closed off, so that the interpreter's own last flush does not fail."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def telling() -> Iterator[Progress]:
    """A bar on stderr, where that is a terminal, for as long as something takes."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    err = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    above = sys.stdout.isatty()  # what is printed meanwhile goes above the bar, unless it goes elsewhere
    with Bar(*columns, console=err, transient=True, redirect_stdout=above, disable=not err.is_terminal) as bar:
        task = bar.add_task("reading")
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total or None)


def deliver(
    json_to: str | None, as_json: Callable[[], str], show: Callable[[], None], gate: Callable[[], None] = lambda: None,
    files: Mapping[str, Callable[[], str | bytes]] | None = None,
) -> None:  # fmt: skip
    """Give a user the result of a command: JSON alone on stdout where `json_to` is "-"; else JSON to the file
    `json_to`, if it is named, and what `show` prints. files: what else is written, by the path of its file.

    gate: raises LimitExceeded where the result breaks a limit; it is asked last, and also where whoever reads stdout
    stops before the end (`onnxperf predict ... | head`).
    """
    every = dict(files or {})
    if json_to and json_to != "-":
        every[json_to] = lambda: as_json() + "\n"
    failed = list[Error]()
    for target, content in every.items():
        try:
            write_file(target, content())
        except Error as e:  # the other files are written, and the result is shown all the same
            failed.append(e)
    try:
        if json_to == "-":
            print(as_json(), flush=True)
        else:
            show()
    except (BrokenPipeError, SystemExit):  # rich exits by itself where a pipe is broken
        if not failed:
            gate()
            raise
    if failed:
        raise type(failed[0])("; ".join(map(str, failed)))
    gate()


def json_text(answer: object) -> str:
    """JSON text as commands write it."""
    return json.dumps(answer, indent=2, allow_nan=False)


def write_file(target: str, content: str | bytes) -> None:
    """Write a file by way of `aside`, so that it is never half there; a stream or device is written to directly.

    Text is written as UTF-8.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    check_name(target)
    try:
        if opened := _stream(target):
            with opened as f:
                f.write(data)
        else:
            with aside(target) as path:
                path.write_bytes(data)
    except OSError as e:
        raise _unwritten(target, e) from e


def written(text: str, path: str | os.PathLike[str] | None) -> str:
    """A text, which is also written to the file of this path if there is one."""
    if path is not None:
        write_file(os.fspath(path), text + "\n")
    return text


@contextmanager
def aside(target: str) -> Iterator[Path]:
    """A path in a temporary folder beside a file. At the end what was written there takes the file's place, and files
    that were written beside it go where it lies. A file that was there before leaves its permissions.
    """
    folder, place = _beside(target), Path(os.path.realpath(target))
    try:
        yield folder / place.name
        for file in sorted(folder.iterdir(), key=lambda f: f.name == place.name):  # itself after what it refers to
            if place.with_name(file.name).exists():
                shutil.copymode(place.with_name(file.name), file)
            os.replace(file, place.with_name(file.name))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _beside(target: str) -> Path:
    """A new folder beside a file that can be written; UsageError or EnvironmentFailure where it can't."""
    check_name(target)
    place = Path(os.path.realpath(target))
    if place.exists() and not place.is_file():
        raise UsageError(f"can't write {target}: it is not a regular file")
    try:
        if place.exists() and not os.access(place, os.W_OK):  # what may not be written is not replaced either
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return Path(tempfile.mkdtemp(prefix=".onnxperf-", dir=place.parent))
    except OSError as e:
        raise _unwritten(target, e) from e


def check_writable(target: str) -> None:
    """Raise, before there is anything to write, what `write_file` would; streams and devices are not tried."""
    if not STREAM.fullmatch(target) and (os.path.isfile(target) or not os.path.exists(target)):
        _beside(target).rmdir()


def check_name(target: str) -> None:
    """Refuse a name that no system takes."""
    if "\0" in target:
        raise UsageError(f"can't write {printable(target)}: the name has a NUL character")


def _unwritten(target: str, e: OSError) -> Error:
    kind = UsageError if e.errno in MISNAMED else EnvironmentFailure
    return kind(f"can't write {target}: {e.strerror or e}")


def _stream(target: str) -> BinaryIO | None:
    """The target opened for writing where it is not a regular file or names one of our own streams, else None."""
    if named := STREAM.fullmatch(target):
        number = int(named[1] or ("stdin", "stdout", "stderr").index(target.rpartition("/")[2]))
        sys.stdout.flush()
        return os.fdopen(os.dup(number), "wb")  # shares its place in the file with the stream
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        if target.endswith(("/", os.sep)):
            raise
        return None
    return None if stat.S_ISREG(mode) else open(target, "wb")

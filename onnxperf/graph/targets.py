"""The files that answers go to, which may be none that is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from onnxperf.ground.errors import UsageError
from onnxperf.ground.output import check_name, check_writable


def check_target(target: str | None, *sources: str, option: str = "--json") -> None:
    """Refuse, before any work is done, to write without a name, outside any folder, over one, over a source, or where
    nothing can be written.

    target: as an option gives it: None where it is not given; of --json, "-" for stdout. sources: files that are read,
    and models, which may be folders.
    """
    if target is None or (target == "-" and option == "--json"):
        return
    if target == "-":
        raise UsageError(
            f"{option} - would write a file of that name: only --json - prints; name it ./- if you mean it"
        )
    if not target:
        raise UsageError(f"{option} needs the name of a file{', or - for stdout' if option == '--json' else ''}")
    check_name(target)
    if os.path.isdir(target):
        raise UsageError(f"can't write {target}: it is a folder")
    if not os.path.isdir(folder := os.path.dirname(target) or "."):
        raise UsageError(f"can't write {target}: there is no folder {folder}")
    if os.path.isfile(target):
        for source in sources:
            if (held := _held(target, source)) is not None:
                raise UsageError(f"{option} {target} would overwrite {held}: name another file")
    check_writable(target)


def check_targets(targets: Mapping[str, str | None], *sources: str) -> None:
    """`check_target` for each file that an option names, and a UsageError where two options name the same one."""
    named: dict[str, str] = {}
    for option, target in targets.items():
        check_target(target, *sources, option=option)
        if target is None or (target == "-" and option == "--json"):
            continue
        if (other := named.setdefault(os.path.realpath(target), option)) != option:
            raise UsageError(f"{other} and {option} would both write {target}: name two files")


def _held(target: str, source: str) -> str | None:
    """What of a source a file is: itself, part of the folder that it is, or the weights beside it; else None."""
    if _same(target, source):
        return f"{source}, which is read"
    if os.path.isdir(source):
        inside = Path(os.path.realpath(target)).is_relative_to(os.path.realpath(source))
        return f"a file of {source}, which is read" if inside else None
    if os.path.isfile(source):
        from onnxperf.graph.read import external_files

        if any(_same(target, path) for path in external_files(source)):
            return f"weights of {source}"
    return None


def _same(target: str, path: str | Path) -> bool:
    with suppress(OSError, ValueError):  # ValueError: a name that no system takes
        return os.path.samefile(target, path)
    return False

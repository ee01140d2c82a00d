"""Finds what each module of a package offers, such as a runtime: a module is part of it by being there."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import TypeVar

from onnxperf.errors import Error

T = TypeVar("T")


def modules_of(path: Iterable[str]) -> tuple[str, ...]:
    """The modules of a package, given its `__path__`, in order; none of them is loaded."""
    return tuple(sorted(m.name for m in iter_modules(path)))


def offered(package: str, path: Iterable[str], what: str, kind: type[T]) -> tuple[T, ...]:
    """The object called `what` of each module of a package, in the order of the modules' names.

    An object that has a name must be called as its file is, with - for _: the command line knows names from files.
    Raises Error, which says which file is wrong, where the object is missing, is no `kind`, or is called otherwise.
    """
    found = []
    for module in modules_of(path):
        try:
            loaded = import_module(f"{package}.{module}")
        except Exception as e:  # a module that somebody added may hold anything
            raise Error(f"{package}.{module} can't be loaded: {type(e).__name__}: {e}") from e
        thing, file = getattr(loaded, what, None), loaded.__file__
        if not isinstance(thing, kind):
            has = f"its {what} is of type {type(thing).__name__}" if hasattr(loaded, what) else f"it has no {what}"
            raise Error(f"{file} can't be used: {has}; a module of {package} defines {what} = {kind.__name__}(...)")
        named = module.replace("_", "-")
        if (name := getattr(thing, "name", named)) != named:
            raise Error(f"{file} can't be used: its {what} is called {name!r}, which must be {named!r} as the file is")
        found.append(thing)
    return tuple(found)

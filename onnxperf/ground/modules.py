"""Finds what each module of a package offers, such as a runtime: a module is part of it by being there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from traceback import extract_tb
from typing import TypeVar

from onnxperf.ground.errors import EnvironmentFailure, Error

T = TypeVar("T")


#: The extra of onnxperf that installs each package.
EXTRAS = {"distributed": "dask", "matplotlib": "plot", "mcp": "mcp", "pyarrow": "parquet", "scipy": "fit"}


def require(package: str, what: str) -> None:
    """Raise EnvironmentFailure where a package is not installed; `what` needs it."""
    if find_spec(package) is None:
        raise EnvironmentFailure(f"{what} needs {package}: pip install 'onnxperf[{EXTRAS[package]}]'")


def modules_of(path: Iterable[str]) -> tuple[str, ...]:
    """The modules of a package, given its `__path__`, in order; none of them is loaded."""
    return tuple(sorted(m.name for m in iter_modules(path)))


def offered(package: str, path: Iterable[str], what: str, kind: type[T]) -> tuple[T, ...]:
    """The object called `what` of each module of a package, in the order of the modules' names.

    An object that has a name must be called as its file is, with - for _: the command line knows names from files.
    Raises Error, which says which file is wrong, where the object is missing, is no `kind`, or is called otherwise.
    """
    return tuple(_offer(package, module, what, kind) for module in modules_of(path))


class Offered(Mapping[str, T]):
    """The same by name. A module is loaded, and its errors raised, when its object is asked for."""

    def __init__(self, package: str, path: Iterable[str], what: str, kind: type[T]):
        self._modules = {module.replace("_", "-"): module for module in modules_of(path)}
        self._package, self._what, self._kind = package, what, kind

    def __getitem__(self, name: str) -> T:
        return _offer(self._package, self._modules[name], self._what, self._kind)

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


def _offer(package: str, module: str, what: str, kind: type[T]) -> T:
    """The object called `what` of one module; Error as of `offered`."""
    try:
        loaded = import_module(f"{package}.{module}")
    except Exception as e:  # a module that somebody added may hold anything
        raise Error(unloadable(e) or f"{package}.{module} can't be loaded: {type(e).__name__}: {e}") from e
    thing, file = getattr(loaded, what, None), loaded.__file__
    if not isinstance(thing, kind):
        has = f"its {what} is of type {type(thing).__name__}" if hasattr(loaded, what) else f"it has no {what}"
        raise Error(f"{file} can't be used: {has}; a module of {package} defines {what} = {kind.__name__}(...)")
    named = module.replace("_", "-")
    if (name := getattr(thing, "name", named)) != named:
        raise Error(f"{file} can't be used: its {what} is called {name!r}, which must be {named!r} as the file is")
    return thing


def unloadable(e: Exception) -> str:
    """Where and why a module could not be loaded, if that is what an exception tells of; else "".

    The place is the line of the module that was being run, or that Python can't read.
    """
    if isinstance(e, SyntaxError) and e.filename:
        return f"{e.filename}, line {e.lineno}, can't be loaded: {type(e).__name__}: {e.msg}"
    run = [frame for frame in extract_tb(e.__traceback__) if frame.name == "<module>"]
    return f"{run[-1].filename}, line {run[-1].lineno}, can't be loaded: {type(e).__name__}: {e}" if run else ""

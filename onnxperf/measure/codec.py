"""Frozen dataclasses as plain data for JSON and back, by the types of their fields.

A field of type `bool`, `int`, `float`, `str`, `bytes`, `Literal[...]`, `X | None`, `tuple[X, ...]` or of another such
dataclass becomes a value of JSON; `tuple[tuple[str, X], ...]` becomes an object that keeps its order, and bytes become
base64 of zlib. Whole numbers count things: they start at 0 unless a `Range` says otherwise. A field's key is its name
with `_s` written out as `_seconds`, or what its metadata give as "key".

A dataclass may name properties in `DERIVED`, by their keys: they are written for whoever reads the file without this
program, and ignored when it is read back. What is read comes from strangers and is not trusted: whatever the types do
not allow raises UsageError, which says where it stands and what belongs there.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from types import NoneType
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from onnxperf.errors import UsageError, printable

MAX_BYTES = 1 << 26  # of `bytes`, unpacked
MAX_ITEMS = 1_000_000  # in a list or an object
MAX_TEXT = 10_000
MAX_COUNT = 2**63 - 1
MAX_NUMBER = 1e12

Dump = Callable[[Any], Any]  # value -> plain data
Load = Callable[[Any, str], Any]  # plain data, where they stand -> value


@dataclass(frozen=True, slots=True)
class Range:
    """What `Annotated` adds to a number's type: the least value that is allowed, and how many digits are written."""

    least: float
    digits: int | None = None


@cache
def members(kind: Any) -> dict[str, tuple[str, Any]]:
    """Name and type of each field of a dataclass, by its key."""
    hints = get_type_hints(kind, include_extras=True)
    return {f.metadata.get("key") or _spelled(f.name): (f.name, hints[f.name]) for f in fields(kind)}


@cache
def derived(kind: Any) -> dict[str, tuple[str, Any]]:
    """Name and type of each property of a dataclass that is written, by its key."""
    found: dict[str, str] = getattr(kind, "DERIVED", {})
    getters = {key: getattr(kind, name).fget for key, name in found.items()}
    return {key: (found[key], get_type_hints(f, include_extras=True)["return"]) for key, f in getters.items()}


def _spelled(name: str) -> str:
    return f"{name.removesuffix('_s')}_seconds" if name.endswith("_s") else name


def to_plain(value: Any) -> dict[str, Any]:
    """A dataclass as plain data, numbers rounded as their types say."""
    kind: Any = type(value)
    told = derived(kind) | members(kind)
    return {key: _dump(hint)(getattr(value, name)) for key, (name, hint) in told.items()}


@cache
def _dump(hint: Any) -> Dump:
    """What makes plain data of a value of this type."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated and args[1].digits is not None:
        return lambda value: round(float(value), args[1].digits)
    if origin is Annotated:
        return _dump(args[0])
    if origin is tuple and get_origin(args[0]) is tuple:
        named = _dump(get_args(args[0])[1])
        return lambda pairs: {name: named(value) for name, value in pairs}
    if origin is tuple:
        one = _dump(args[0])
        return lambda items: [one(item) for item in items]
    if NoneType in args:
        some = _dump(args[0])
        return lambda value: None if value is None else some(value)
    if is_dataclass(hint):
        return to_plain
    return _packed if hint is bytes else str if origin is Literal else hint  # bool, int, float and str make themselves


def from_plain(kind: Any, data: Any, where: str = "") -> Any:
    """The dataclass that `to_plain` made plain data of. where: their place in the file, for messages.

    Raises UsageError for anything that `to_plain` does not make, derived properties aside.
    """
    if not isinstance(data, dict):
        _refuse(where, "an object", data)
    at, wanted = f"{where}." if where else "", members(kind)
    if (lacks := next((key for key in wanted if key not in data), None)) is not None:
        raise UsageError(f"it lacks {at}{lacks}")
    if (odd := next((key for key in data if key not in wanted and key not in derived(kind)), None)) is not None:
        raise UsageError(f"it has a key that no measurement has: {printable(at + odd)[:200]}")
    try:
        return kind(**{name: _load(hint)(data[key], at + key) for key, (name, hint) in wanted.items()})
    except ValueError as e:
        raise UsageError(f"{where}: {e}") from None


@cache
def _load(hint: Any) -> Load:
    """What makes a value of this type of plain data."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is tuple and get_origin(args[0]) is tuple:
        return partial(_pairs, _load(get_args(args[0])[1]))
    if origin is tuple:
        return partial(_items, _load(args[0]))
    if origin is Literal:
        return partial(_choice, args)
    if NoneType in args:
        some = _load(args[0])
        return lambda value, where: None if value is None else some(value, where)
    if is_dataclass(hint):
        return partial(from_plain, hint)
    kind, limits = args if origin is Annotated else (hint, Range(0 if hint is int else -MAX_NUMBER))
    return partial({int: _count, float: _number}[kind], limits.least) if kind in (int, float) else _PLAIN[kind]


def _pairs(load: Load, value: Any, where: str) -> tuple[tuple[str, Any], ...]:
    if not isinstance(value, dict) or len(value) > MAX_ITEMS:
        _refuse(where, f"an object of at most {MAX_ITEMS:,}", value)
    return tuple((_text(key, where), load(item, f"{where}.{key}")) for key, item in value.items())


def _items(load: Load, value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list) or len(value) > MAX_ITEMS:
        _refuse(where, f"a list of at most {MAX_ITEMS:,}", value)
    return tuple(load(item, f"{where}[{i}]") for i, item in enumerate(value))


def _choice(allowed: tuple[str, ...], value: Any, where: str) -> str:
    if value not in allowed:
        _refuse(where, f"one of {', '.join(allowed)}", value)
    return str(value)


def _count(least: int, value: Any, where: str) -> int:
    if type(value) is not int or not least <= value <= MAX_COUNT:
        _refuse(where, f"a whole number from {least}", value)
    return value


def _number(least: float, value: Any, where: str) -> float:
    # whole numbers may be too large for a float, and compare all the same
    if type(value) not in (int, float) or not least <= value <= MAX_NUMBER:
        _refuse(where, f"a number from {least:g} to {MAX_NUMBER:g}", value)
    return float(value)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        _refuse(where, f"text of at most {MAX_TEXT:,} characters", value)
    return value


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        _refuse(where, "true or false", value)
    return value


def _packed(value: bytes) -> str:
    return base64.b64encode(zlib.compress(value, 9)).decode()


def _unpacked(value: Any, where: str) -> bytes:
    """What `_packed` packed, of which no more than MAX_BYTES are ever made."""
    if not isinstance(value, str):
        _refuse(where, "base64 of zlib", value)
    pump = zlib.decompressobj()
    try:
        found = pump.decompress(base64.b64decode(value, validate=True), MAX_BYTES)
    except (binascii.Error, ValueError, zlib.error):
        raise UsageError(f"{where} is no base64 of zlib: it is damaged") from None
    if not pump.eof or pump.unused_data:
        raise UsageError(f"{where} is cut off, or larger than {MAX_BYTES >> 20} MiB")
    return found


_PLAIN: dict[type, Load] = {str: _text, bool: _flag, bytes: _unpacked}


def _refuse(where: str, must: str, value: Any) -> NoReturn:
    raise UsageError(f"{printable(where)[:200] or 'it'} must be {must}, not {shown(value)}")


def shown(value: Any) -> str:
    """Plain data for a message: short, and lists and objects only by their kind."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return printable(json.dumps(value)[:40])

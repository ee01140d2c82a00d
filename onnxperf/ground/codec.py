"""Frozen dataclasses as plain data for JSON, and back by the types of their fields.

An answer is a `Document`: its `to_dict` names what the JSON holds, by `plain`, and is not read back. Files that are
read back, such as measurements, are written by `to_plain`, as follows.

A field of type `bool`, `int`, `float`, `str`, `bytes`, `Literal[...]`, `X | None`, `tuple[X, ...]` or of another such
dataclass becomes a value of JSON; `tuple[tuple[str, X], ...]` becomes an object that keeps its order, and bytes become
base64 of zlib. Whole numbers count things: they start at 0 unless a `Range` says otherwise. A field's key is its name
with `_s` written out as `_seconds`, or what its metadata give as "key".

A dataclass may name in `DERIVED` what follows from its fields: that is written for whoever reads the file without this
program, and ignored when it is read back. What is read comes from strangers and is not trusted: whatever the types do
not allow raises UsageError, which says where it stands and what belongs there.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from gpu_specs.toml_file import figure
from onnxperf.ground.door import DOOR
from onnxperf.ground.errors import EnvironmentFailure, UsageError, printable

if TYPE_CHECKING:
    import pandas

MAX_BYTES = 1 << 26  # of a file
#: Of `bytes`, unpacked: a model without its weights. Those of timm have up to 0.6 MB; what a small file unpacks to is
#: read as a model, which takes a hundred times its size.
MAX_UNPACKED = 1 << 22
MAX_ITEMS = 1_000_000  # in a list or an object
MAX_TEXT = 10_000
MAX_COUNT = 2**63 - 1
MAX_NUMBER = 1e12

Dump = Callable[[Any], Any]  # value -> plain data
Load = Callable[[Any, str], Any]  # plain data, where they stand -> value
Derived = Mapping[str, tuple[Any, Callable[[Any], Any]]]  # key -> type, and what gives the value of an object


@dataclass(frozen=True, slots=True)
class Range:
    """What `Annotated` adds to a number's type: the least value that is allowed, and how many digits are written."""

    least: float
    digits: int | None = None


@cache
def members(kind: Any) -> dict[str, tuple[str, Any]]:
    """Name and type of each field of a dataclass, by its key."""
    hints = get_type_hints(kind, include_extras=True)
    return {f.metadata.get("key") or _key(f.name): (f.name, hints[f.name]) for f in fields(kind)}


def derived(kind: Any) -> Derived:
    """What a dataclass names in `DERIVED`."""
    follows: Derived = getattr(kind, "DERIVED", {})
    return follows


class Document:
    """What a command answers: as JSON, where `to_dict` is by default all its fields by name; as the table that the
    command prints, by `str`; and as a data frame of what `ROWS` names in `to_dict`.
    """

    __slots__ = ()
    ROWS: ClassVar[str] = ""

    def __str__(self) -> str:
        shown: str = DOOR["text"](self)
        return shown

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain data: times in seconds, sizes in bytes, prices in US dollars."""
        return _fields(self)

    def to_json(self, indent: int | None = 2) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def to_dataframe(self) -> pandas.DataFrame:
        """The rows as a pandas DataFrame, with the keys of the JSON as columns, nested ones as best.seconds. Raises
        EnvironmentFailure without pandas, UsageError where the answer has no rows.
        """
        if not self.ROWS:
            raise UsageError(f"a {type(self).__name__} is no table: take its to_dict()")
        return data_frame(self.to_dict()[self.ROWS])


def data_frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> pandas.DataFrame:
    """Rows of plain data as a pandas DataFrame. Raises EnvironmentFailure where pandas is not installed."""
    try:
        import pandas
    except ImportError:
        raise EnvironmentFailure("to_dataframe needs pandas: pip install pandas") from None
    return pandas.DataFrame(rows, columns=columns) if columns else pandas.json_normalize(list(rows))


def plain(value: Any, *names: str) -> dict[str, Any]:
    """Attributes of a value by name, as plain data."""
    return {name: _plain(getattr(value, name)) for name in names}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Document):
        return value.to_dict()
    if is_dataclass(value):
        return _fields(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return list(map(_plain, value)) if isinstance(value, tuple | list) else value


def _fields(value: Any) -> dict[str, Any]:
    return plain(value, *(f.name for f in fields(value)))


def _key(name: str) -> str:
    return f"{name.removesuffix('_s')}_seconds" if name.endswith("_s") else name


def to_plain(value: Any) -> dict[str, Any]:
    """A dataclass as plain data, numbers rounded as their types say."""
    kind: Any = type(value)
    follows = {key: _codec(hint)[0](find(value)) for key, (hint, find) in derived(kind).items()}
    return follows | {key: _codec(hint)[0](getattr(value, name)) for key, (name, hint) in members(kind).items()}


def from_plain(kind: Any, data: Any, where: str = "") -> Any:
    """The dataclass that `to_plain` made plain data of. where: their place in the file, for messages.

    Raises UsageError for anything that `to_plain` does not make, derived properties aside.
    """
    _object(data, where)
    at, wanted = f"{where}." if where else "", members(kind)
    if (lacks := next((key for key in wanted if key not in data), None)) is not None:
        if not where:
            raise UsageError(f"it is not a measurement that onnxperf measure wrote: it has no {lacks}")
        raise UsageError(f"it lacks {at}{lacks}")
    if (odd := next((key for key in data if key not in wanted and key not in derived(kind)), None)) is not None:
        raise UsageError(f"it has a key that no measurement has: {printable(at + odd)[:200]}")
    try:
        return kind(**{name: _codec(hint)[1](data[key], at + key) for key, (name, hint) in wanted.items()})
    except ValueError as e:
        raise UsageError(f"{where}: {e}") from None


@cache
def _codec(hint: Any) -> tuple[Dump, Load]:
    """The function that makes plain data of a value of this type, and the one that makes a value of plain data."""
    origin, args = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return to_plain, partial(from_plain, hint)
    if NoneType in args:
        dump, load = _codec(args[0])
        return (
            lambda value: value if value is None else dump(value),
            lambda value, where: value if value is None else load(value, where),
        )
    if origin is tuple and get_origin(args[0]) is tuple:
        dump, load = _codec(get_args(args[0])[1])
        return lambda pairs: {name: dump(value) for name, value in pairs}, lambda value, where: tuple(
            (_text(key, where), load(item, f"{where}.{key}")) for key, item in _names(value, where).items()
        )
    if origin is tuple:
        dump, load = _codec(args[0])
        return lambda items: [dump(item) for item in items], lambda value, where: tuple(
            load(item, f"{where}[{i}]") for i, item in enumerate(_list(value, where))
        )
    if origin is Literal:
        return str, _checked(f"one of {', '.join(args)}", lambda value: value in args)
    if hint is bytes:
        return _packed, _unpacked
    kind, limits = args if origin is Annotated else (hint, Range(0 if hint is int else -MAX_NUMBER))
    digits = limits.digits
    dump = kind if digits is None else lambda value: round(float(value), digits)
    return dump, {int: _whole(limits.least), float: _number(limits.least), str: _text, bool: _flag}[kind]


def _checked(must: str, fine: Callable[[Any], bool], make: Dump = lambda value: value) -> Load:
    """A `Load` that refuses plain data which are not `fine`, in the words of `must`, and applies `make` to others."""

    def load(value: Any, where: str) -> Any:
        if not fine(value):
            raise UsageError(f"{printable(where)[:200] or 'it'} must be {must}, not {shown(value)}")
        return make(value)

    return load


def _whole(least: float) -> Load:
    return _checked(f"a whole number from {least}", lambda value: type(value) is int and least <= value <= MAX_COUNT)


def _number(least: float) -> Load:
    def fine(value: Any) -> bool:  # whole numbers may be too large for a float, and compare all the same
        return type(value) in (int, float) and least <= value <= MAX_NUMBER

    return _checked(f"a number from {figure(least)} to {figure(MAX_NUMBER)}", fine, float)


def _limited(kind: Any, what: str, most: int, unit: str = "") -> Load:
    return _checked(f"{what} of at most {most:,}{unit}", lambda value: isinstance(value, kind) and len(value) <= most)


_text = _limited(str, "text", MAX_TEXT, " characters")
_list = _limited(list, "a list", MAX_ITEMS)
_names = _limited(dict, "an object", MAX_ITEMS)
_object = _checked("an object", lambda value: isinstance(value, dict))
_base64 = _checked("base64 of zlib", lambda value: isinstance(value, str))
_flag = _checked("true or false", lambda value: isinstance(value, bool))


def _packed(value: bytes) -> str:
    return base64.b64encode(zlib.compress(value, 9)).decode()


def _unpacked(value: Any, where: str) -> bytes:
    """What `_packed` packed, of which no more than MAX_UNPACKED are ever made."""
    _base64(value, where)
    pump = zlib.decompressobj()
    try:
        unpacked = pump.decompress(base64.b64decode(value, validate=True), MAX_UNPACKED)
    except (binascii.Error, ValueError, zlib.error):
        raise UsageError(f"{where} is not valid base64 of zlib: it is damaged") from None
    if not pump.eof or pump.unused_data:
        raise UsageError(f"{where} is cut off, or larger than {MAX_UNPACKED >> 20} MiB unpacked, the limit")
    return unpacked


def shown(value: Any) -> str:
    """Plain data as a message shows them: lists and objects by their kind alone, others cut to 40 characters."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return printable(json.dumps(value)[:40])

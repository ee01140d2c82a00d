"""Measurements as JSON files, written and read back. What is read comes from strangers, and nothing of it is trusted.

Each part of a measurement has a `Form`, which says both ways how it looks in JSON. Statistics are written for those who
read the file without this program, and worked out anew from the samples when it is read.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import stat
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from onnxperf.errors import UsageError, printable
from onnxperf.graph import Note
from onnxperf.measure.record import (
    Copies,
    Measurement,
    OperatorTime,
    Place,
    Point,
    Reading,
    Setting,
    Subject,
    Throughput,
    WarmUp,
)
from onnxperf.measure.series import Series

SCHEMA_VERSION = 1
MAX_BYTES = 1 << 26  # of a file, and of a skeleton
MAX_ITEMS = 1_000_000  # in a list
MAX_TEXT = 10_000
MAX_COUNT = 2**63 - 1
MAX_NUMBER = 1e12
DIGITS = 9  # of seconds: nanoseconds
KINDS, WEIGHTS = ("gpu", "cpu"), ("stored", "random")


@dataclass(frozen=True, slots=True)
class Form:
    """How a value looks in JSON: `dump` makes plain data of it; `load` makes it of plain data that stand at a place.

    `load` raises UsageError for anything that `dump` does not make.
    """

    dump: Callable[[Any], Any]
    load: Callable[[Any, str], Any]


def write(measurement: Measurement) -> str:
    """The measurement as JSON text, as `measurement.schema.json` describes it; times rounded to the nanosecond.

    Raises UsageError for one that could not be read back.
    """
    rounded = MEASUREMENT.load(MEASUREMENT.dump(measurement), "")  # so that statistics are those of the samples written
    data = {"schema_version": SCHEMA_VERSION, **MEASUREMENT.dump(rounded)}
    return json.dumps(data, indent=2, allow_nan=False)


def read(path: str | os.PathLike[str]) -> Measurement:
    """The measurement in a file. Raises UsageError, which names the file and the key, where it is none."""
    name = printable(os.fspath(path))
    try:
        mode = os.stat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # reading a pipe or a device might never end
            raise UsageError(f"can't read {name}: it is no regular file")
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as e:
        raise UsageError(f"can't read {name}: {getattr(e, 'strerror', None) or e}") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name} is larger than {MAX_BYTES >> 20} MiB, which no measurement is")
    try:
        return parse(data)
    except UsageError as e:
        raise UsageError(f"{name}: {e}") from None


def parse(text: str | bytes) -> Measurement:
    """The measurement in JSON text. Raises UsageError, which names the key, where it is none."""
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as e:
        raise UsageError(f"it is no JSON: {printable(str(e))[:100]}") from None
    if not isinstance(data, dict) or "schema_version" not in data:
        raise UsageError("it is no measurement: it has no schema_version")
    version = data.pop("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise UsageError(f"schema_version is {_shown(version)}; this version of onnxperf reads {SCHEMA_VERSION}")
    found: Measurement = MEASUREMENT.load(data, "")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _fault(where: str, must: str, value: Any) -> NoReturn:
    raise UsageError(f"{printable(where)[:200] or 'it'} must be {must}, not {_shown(value)}")


def _shown(value: Any) -> str:
    """What stands there, short; lists and objects only by kind."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return printable(json.dumps(value)[:40])


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        _fault(where, f"text of at most {MAX_TEXT:,} characters", value)
    return value


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        _fault(where, "true or false", value)
    return value


def count(least: int = 0) -> Form:
    """A whole number."""

    def load(value: Any, where: str) -> int:
        if type(value) is not int or not least <= value <= MAX_COUNT:
            _fault(where, f"a whole number from {least}", value)
        return value

    return Form(int, load)


def number(least: float, digits: int | None = None) -> Form:
    """A finite number from `least`, rounded when written to as many `digits`."""

    def load(value: Any, where: str) -> float:
        # whole numbers may be beyond floats, and compare all the same
        if type(value) not in (int, float) or not least <= value <= MAX_NUMBER:
            _fault(where, f"a number from {least:g} to {MAX_NUMBER:g}", value)
        return float(value)

    return Form(lambda value: float(value) if digits is None else round(float(value), digits), load)


def choice(*allowed: str) -> Form:
    """One of a few words."""

    def load(value: Any, where: str) -> str:
        if value not in allowed:
            _fault(where, f"one of {', '.join(allowed)}", value)
        return str(value)

    return Form(str, load)


def optional(form: Form) -> Form:
    """Null for None."""
    return Form(
        lambda value: None if value is None else form.dump(value),
        lambda value, where: None if value is None else form.load(value, where),
    )


def many(form: Form) -> Form:
    """A list for a tuple."""

    def load(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > MAX_ITEMS:
            _fault(where, f"a list of at most {MAX_ITEMS:,}", value)
        return tuple(form.load(item, f"{where}[{i}]") for i, item in enumerate(value))

    return Form(lambda items: [form.dump(item) for item in items], load)


def pairs(form: Form) -> Form:
    """An object for pairs of a name and a value, in their order."""

    def load(value: Any, where: str) -> tuple[tuple[str, Any], ...]:
        if not isinstance(value, dict) or len(value) > MAX_ITEMS:
            _fault(where, f"an object of at most {MAX_ITEMS:,}", value)
        return tuple((_text(key, where), form.load(item, f"{where}.{key}")) for key, item in value.items())

    return Form(lambda items: {key: form.dump(item) for key, item in items}, load)


def record(kind: type, derived: Mapping[str, Callable[[Any], Any]] | None = None, /, **forms: Form) -> Form:
    """An object for a dataclass, its keys with units written out; `derived` ones are written, and passed over."""
    names = [f.name for f in fields(kind)]
    keys = {_key(name): name for name in names}
    extra = derived or {}

    def dump(value: Any) -> dict[str, Any]:
        told = {key: worked_out(value) for key, worked_out in extra.items()}
        return told | {key: forms[name].dump(getattr(value, name)) for key, name in keys.items()}

    def load(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            _fault(where, "an object", value)
        at = f"{where}." if where else ""
        if (lacks := next((key for key in keys if key not in value), None)) is not None:
            raise UsageError(f"it lacks {at}{lacks}")
        if (odd := next((key for key in value if key not in keys and key not in extra), None)) is not None:
            raise UsageError(f"it has a key that no measurement has: {printable(at + odd)[:200]}")
        try:
            return kind(**{name: forms[name].load(value[key], at + key) for key, name in keys.items()})
        except ValueError as e:
            raise UsageError(f"{where}: {e}") from None

    assert names == [*forms], kind
    return Form(dump, load)


def _key(name: str) -> str:
    return name.removesuffix("_s") + "_seconds" if name.endswith("_s") else RENAMED.get(name, name)


#: Where a field's name says less than a key has to.
RENAMED = {
    "subject": "model", "skeleton": "skeleton_zlib_base64", "samples": "samples_seconds",
    "device": "device_time", "wall": "wall_time", "profiled": "profiled_time",
}  # fmt: skip

TEXT, FLAG, COUNT, ONE = Form(str, _text), Form(bool, _flag), count(), count(1)
SECONDS, MORE, ANY = number(0.0, DIGITS), number(10.0**-DIGITS, DIGITS), optional(number(-MAX_NUMBER))


def _pack(skeleton: bytes) -> str:
    return base64.b64encode(zlib.compress(skeleton, 9)).decode()


def _unpack(value: Any, where: str) -> bytes:
    """The bytes of a skeleton, of which no more than MAX_BYTES are ever made."""
    if not isinstance(value, str):
        _fault(where, "base64 of zlib", value)
    pump = zlib.decompressobj()
    try:
        found = pump.decompress(base64.b64decode(value, validate=True), MAX_BYTES)
    except (binascii.Error, ValueError, zlib.error):
        raise UsageError(f"{where} is no base64 of zlib: it is damaged") from None
    if not pump.eof or pump.unused_data:
        raise UsageError(f"{where} is cut off, or larger than {MAX_BYTES >> 20} MiB")
    return found


def _statistic(name: str, digits: int) -> Callable[[Series], float]:
    return lambda s: round(getattr(s, name), digits)


def _interval(s: Series) -> list[float] | None:
    found = s.median_interval
    return None if found is None else [round(x, DIGITS) for x in found]


STATISTICS: dict[str, Callable[[Series], Any]] = {
    **{f"{n}_seconds": _statistic(n, DIGITS) for n in ("median", "mean", "std", "p90", "p95", "p99", "least")},
    "median_interval_seconds": _interval,
    **{n: _statistic(n, 6) for n in ("cv", "drift")},
}
SERIES = record(Series, STATISTICS, samples=many(SECONDS))
MEASUREMENT = record(
    Measurement,
    {"seconds": lambda m: round(m.seconds, DIGITS)},
    taken=TEXT,
    subject=record(
        Subject, name=TEXT, sha256=TEXT, opset=COUNT, weights=choice(*WEIGHTS), skeleton=Form(_pack, _unpack)
    ),
    place=record(Place, kind=choice(*KINDS), id=TEXT, name=TEXT, memory_bytes=COUNT, threads=COUNT, driver=TEXT),
    setting=record(
        Setting, runtime=TEXT, opt_level=TEXT, precision=TEXT, batch=COUNT, inputs=pairs(many(COUNT)),
        options=pairs(TEXT), software=pairs(TEXT),
    ),
    clock=TEXT,
    scope=TEXT,
    warm_up=record(WarmUp, opened_s=SECONDS, first_s=SECONDS, runs=COUNT, seconds=SECONDS, steady=FLAG),
    device=SERIES,
    wall=SERIES,
    profiled=optional(SERIES),
    operators=many(
        record(OperatorTime, name=TEXT, type=TEXT, provider=TEXT, runs=ONE, median_s=SECONDS, least_s=SECONDS)
    ),
    hosted=many(TEXT),
    copies=optional(
        record(
            Copies, to_device_s=SECONDS, from_device_s=SECONDS, to_device_bytes=COUNT, from_device_bytes=COUNT
        )
    ),
    throughput=optional(
        record(
            Throughput, {"samples_per_second": lambda t: t.samples_per_second},
            curve=many(record(Point, batch=ONE, seconds=optional(SECONDS))), batch=ONE, batches=ONE, seconds=MORE,
        )
    ),
    readings=many(
        record(Reading, at_s=SECONDS, clock_MHz=ANY, memory_MHz=ANY, power_W=ANY, temperature_C=ANY)
    ),
    warnings=many(record(Note, code=TEXT, message=TEXT, nodes=many(TEXT))),
    complete=FLAG,
)  # fmt: skip

"""Measurements as JSON files, written and read back; `record.Measurement` says what is in them.

Statistics are written for whoever reads the file without this program; reading works them out anew from the samples.
"""

from __future__ import annotations

import json
import os
import stat
from typing import NoReturn

from onnxperf.ground.codec import MAX_BYTES, from_plain, shown, to_plain
from onnxperf.ground.errors import UsageError, printable, unreadable
from onnxperf.measure.record import Measurement

SCHEMA_VERSION = 1
MAX_DIGITS = 4000  # of a whole number: Python reads no more than 4,300


def write(measurement: Measurement) -> str:
    """The measurement as JSON text, as `measurement.schema.json` describes it; times rounded to the nanosecond.

    Raises UsageError for one that could not be read back.
    """
    rounded = from_plain(Measurement, to_plain(measurement))  # so that statistics are those of the samples written
    return json.dumps({"schema_version": SCHEMA_VERSION, **to_plain(rounded)}, indent=2, allow_nan=False)


def read(path: str | os.PathLike[str]) -> Measurement:
    """The measurement in a file. Raises UsageError, which names the file and the key, where it is none."""
    name = printable(os.fspath(path))
    try:
        mode = os.stat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # reading a pipe or a device might never end
            raise UsageError(f"can't read {name}: it is not a regular file")
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as e:
        raise unreadable(name, e) from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name} is larger than {MAX_BYTES >> 20} MiB, which no measurement is")
    try:
        return parse(data)
    except UsageError as e:
        raise UsageError(f"{name}: {e}") from None


def parse(text: str | bytes) -> Measurement:
    """The measurement in JSON text. Raises UsageError, which names the key, where it is none."""
    try:
        data = json.loads(text, parse_constant=_refuse_constant, parse_int=_whole)
    except RecursionError:
        raise UsageError("its lists and objects are nested too deeply") from None
    except UnicodeDecodeError:
        raise UsageError("it is not JSON: it is not in UTF-8") from None
    except ValueError as e:
        raise UsageError(f"it is not JSON: {printable(str(e))[:100]}") from None
    if not isinstance(data, dict) or "schema_version" not in data:
        raise UsageError("it is not a measurement that onnxperf measure wrote: it has no schema_version")
    version = data.pop("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise UsageError(f"schema_version is {shown(version)}; this version of onnxperf reads {SCHEMA_VERSION}")
    measurement: Measurement = from_plain(Measurement, data)
    return measurement


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits")
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")

"""Reads a card file (TOML). Whatever is wrong with it raises a SpecError of one sentence."""

import math
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, get_args

from gpu_specs.device import PIPES, Corrections, Device, Rates, Source, SpecError, Status

MAX_BYTES: Final = 1_000_000
MAX_OPERATORS: Final = 1_000
LEAST_FACTOR: Final = 1e-3  # the smallest factor of a calibration; the largest is its inverse
MIN_NUMBER: Final = 1e-6  # wide limits around every figure in a card file's units, safe to scale to SI units
MAX_NUMBER: Final = 1e12
#: By generation: bytes per second of a lane, from GT/s and line encoding (128b/130b; 236 of a gen 6 flit's 256 bytes).
PCIE_LANE_Bps: Final = {
    3: 8e9 / 8 * 128 / 130, 4: 16e9 / 8 * 128 / 130, 5: 32e9 / 8 * 128 / 130, 6: 64e9 / 8 * 236 / 256,
}  # fmt: skip
PCIE_PAYLOAD: Final = 256 / (256 + 24)  # a packet's usual 256 bytes come with 24 of header, framing and CRC


class _Bad(Exception):
    """A value that can't be used; the message says what is needed instead."""


def _text(value: Any) -> str:
    # reports print these strings, so control characters, which could steer a terminal, are refused
    if isinstance(value, str) and value.strip() and value.isprintable():
        return value
    raise _Bad("a line of printable text")


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _Bad("a list of texts")
    return tuple(_text(item) for item in value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Bad("true or false")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not MIN_NUMBER <= value <= MAX_NUMBER:
        raise _Bad(f"a number from {MIN_NUMBER:g} to {MAX_NUMBER:g}")
    return float(value)


def _factor(value: Any) -> float:
    if not LEAST_FACTOR <= (factor := _number(value)) <= 1 / LEAST_FACTOR:
        raise _Bad(f"a factor from {LEAST_FACTOR:g} to {1 / LEAST_FACTOR:g}")
    return factor


def _factors(value: Any) -> Rates:
    if not isinstance(value, dict) or len(value) > MAX_OPERATORS:
        raise _Bad(f"a table of at most {MAX_OPERATORS:,} numbers")
    return Rates(tuple((_text(name), _factor(number)) for name, number in value.items()))


def _count(value: Any) -> int:
    if isinstance(value, float):
        raise _Bad("a whole number above 0")
    return int(_number(value))


def _times(unit: float) -> Callable[[Any], float]:
    return lambda value: _number(value) * unit


def _bytes(unit: int) -> Callable[[Any], int]:
    return lambda value: max(1, round(_number(value) * unit))


def _one_of(*choices: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in choices:
            raise _Bad(f"one of {', '.join(choices)}")
        return str(value)

    return check


def _capability(value: Any) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,2})\.([0-9])", value) if isinstance(value, str) else None
    if match is None:
        raise _Bad('a compute capability in quotes, such as "8.0"')
    return int(match[1]), int(match[2])


def _pcie(value: Any) -> float:
    """Bytes per second in one direction for { gen, lanes }, without the small share that flow control takes."""
    gens = ", ".join(map(str, PCIE_LANE_Bps))
    needed = _Bad(f"{{ gen = 4, lanes = 16 }} with gen one of {gens} and 1 to 16 lanes")
    if not isinstance(value, dict) or value.keys() != {"gen", "lanes"}:
        raise needed
    gen, lanes = value["gen"], value["lanes"]
    if type(gen) is not int or type(lanes) is not int or gen not in PCIE_LANE_Bps or not 1 <= lanes <= 16:
        raise needed
    return PCIE_LANE_Bps[gen] * lanes * PCIE_PAYLOAD


@dataclass(frozen=True, slots=True)
class _Key:
    """One key of a card file: the Device field that it fills, and how its value is converted to that field's unit."""

    field: str
    convert: Callable[[Any], Any]
    required: bool = True
    fact: bool = True  # a figure, which needs a source, and not a name or a remark


_HEAD: Final = {
    "name": _Key("name", _text, fact=False),
    "kind": _Key("kind", _one_of("gpu", "cpu"), required=False, fact=False),
    "nvml_names": _Key("nvml_names", _texts, required=False),
    "aliases": _Key("aliases", _texts, required=False, fact=False),
    "short_names": _Key("short_names", _texts, required=False, fact=False),
    "architecture": _Key("architecture", _text),
    "capability": _Key("capability", _capability),
    "node_nm": _Key("node_nm", _number),
    "notes": _Key("notes", _texts, required=False, fact=False),
}
_TABLES: Final = {
    "processor": {
        "sms": _Key("sms", _count),
        "lanes": _Key("lanes", _count),
        "base_MHz": _Key("base_hz", _times(1e6), required=False),
        "boost_MHz": _Key("boost_hz", _times(1e6)),
        "tensor_MHz": _Key("tensor_hz", _times(1e6), required=False),
        "smem_KiB": _Key("smem_bytes", _bytes(2**10)),
        "threads_per_sm": _Key("threads_per_sm", _count),
    },
    "memory": {
        "memory_kind": _Key("memory_kind", _text),
        "inline_ecc": _Key("inline_ecc", _flag, required=False),
        "memory_bus_bits": _Key("memory_bus_bits", _count, required=False),
        "memory_rate_Gbps": _Key("memory_rate_bps", _times(1e9), required=False),
        "bandwidth_GBps": _Key("bandwidth_Bps", _times(1e9)),
        "capacity_GiB": _Key("capacity_bytes", _bytes(2**30)),
        "l2_MiB": _Key("l2_bytes", _bytes(2**20)),
        "l2_partitions": _Key("l2_partitions", _count, required=False),
    },
    "dense_TFLOPS": {pipe: _Key(pipe, _times(1e12), required=pipe == "fp32") for pipe in PIPES},
    "power_and_links": {
        "tdp_W": _Key("tdp_W", _number),
        "pcie": _Key("pcie_Bps", _pcie, required=False),  # exactly one of this and the next
        "host_link_GBps": _Key("pcie_Bps", _times(1e9), required=False),
        "nvlink_GBps": _Key("nvlink_Bps", _times(1e9), required=False),
    },
}
_CPU: Final = {  # what a processor's file has in place of a card's tables
    "processor": {"cores": _TABLES["processor"]["sms"], **{k: _TABLES["processor"][k] for k in ("lanes", "boost_MHz")}},
    "memory": {k: _TABLES["memory"][k] for k in ("memory_kind", "bandwidth_GBps", "capacity_GiB", "l2_MiB")}
    | {"l3_MiB": _Key("l3_bytes", _bytes(2**20), required=False)},
    "dense_TFLOPS": _TABLES["dense_TFLOPS"],
}
_NOT_OF_A_CPU: Final = {
    "capability": (0, 0), "node_nm": 0.0, "smem_bytes": 0, "threads_per_sm": 1, "tdp_W": math.inf, "pcie_Bps": 0.0,
}  # fmt: skip
_FACTORS: Final = ("compute", "memory", "launch", "host", "power", "half_width")
_CORRECTIONS: Final = {
    **{name: _Key(name, _factor, required=False) for name in _FACTORS},
    "operators": _Key("operators", _factors, required=False),
    "source": _Key("source", _text, required=False),
}
_SOURCE: Final = {
    "status": _Key("status", _one_of(*get_args(Status))),
    "text": _Key("text", _text),
    "facts": _Key("facts", _texts),
}
_FACTS: Final = {
    key: at.field for keys in (_HEAD, *_TABLES.values(), *_CPU.values()) for key, at in keys.items() if at.fact
}
"""A fact's name in a card file, and in a Device."""


def read(path: Path) -> Device:
    """The device that a card file describes; its id is the file's stem."""
    try:
        return _device(path.stem, _parse(path))
    except _Bad as error:
        raise SpecError(f"card file {str(path)!r}: {error}") from None


def _parse(path: Path) -> dict[str, Any]:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a pipe or a device might never end
            raise _Bad("is no regular file; a TOML file is needed")
        if found.st_size > MAX_BYTES:
            raise _Bad(f"has {found.st_size:,} bytes; a card file has at most {MAX_BYTES:,}")
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise _Bad("does not exist; the path of a TOML file is needed") from None
    except OSError as error:
        raise _Bad(f"cannot be read ({error.strerror}); a readable TOML file is needed") from None
    except UnicodeDecodeError as error:
        raise _Bad(f"is not UTF-8 text (byte {error.start}); TOML is always UTF-8") from None
    except RecursionError:
        raise _Bad("is nested too deeply; a card file has tables of plain values") from None
    except ValueError as error:  # bad TOML, a number of thousands of digits, or a NUL in the path
        raise _Bad(f"is not valid TOML: {error}") from None


def _device(id: str, data: dict[str, Any]) -> Device:
    cpu = data.get("kind") == "cpu"
    head = {k: at for k, at in _HEAD.items() if not cpu or at.field not in _NOT_OF_A_CPU}
    layout = _CPU if cpu else _TABLES
    older = data.pop("effects", None)  # the name of the table in device files that were written before
    corrections, blocks = data.pop("corrections", older), data.pop("source", [])
    tables = {table: data.pop(table, {}) for table in layout}
    known = {*head, *layout, "corrections", "source"}
    fields, facts = _take(head, data, "", known), [key for key in data if key in _FACTS]
    for table, keys in layout.items():
        where = f" in [{table}]"
        taken = _take(keys, tables[table], where, keys)
        facts += tables[table]
        fields |= {"dense_flops": Rates(tuple(taken.items()))} if table == "dense_TFLOPS" else taken
    if not cpu and ("pcie" in facts) == ("host_link_GBps" in facts):
        found = "stands beside host_link_GBps; one of them" if "pcie" in facts else "is missing; it or host_link_GBps"
        raise _Bad(f"pcie in [power_and_links] {found} is needed")
    defaults = {"kind": "gpu", "base_hz": None, "tensor_hz": fields["boost_hz"], "l2_partitions": 1}
    defaults |= _NOT_OF_A_CPU if cpu else {}
    if corrections is not None:
        fields["corrections"] = Corrections(**_take(_CORRECTIONS, corrections, " in [corrections]", _CORRECTIONS))
    return Device(**{"id": id} | defaults | fields, sources=_sources(blocks, facts))


def _take(keys: Mapping[str, _Key], data: Any, where: str, known: Iterable[str]) -> dict[str, Any]:
    """The converted values of one table, in the order of `keys`, by Device field."""
    if not isinstance(data, dict):
        raise _Bad(f"{where.removeprefix(' in ')} needs to be a table")
    for key in data:
        if key not in known:
            raise _Bad(f"unknown key {key!r}{where}{_nearest(key, known)}")
    taken = {}
    for key, at in keys.items():
        if key in data:
            try:
                taken[at.field] = at.convert(data[key])
            except _Bad as needed:
                raise _Bad(f"{key}{where} is {_shown(data[key])}; it needs {needed}") from None
        elif at.required:
            raise _Bad(f"{key}{where} is missing; it is needed")
    return taken


def _sources(blocks: Any, facts: list[str]) -> tuple[Source, ...]:
    """The sources of the file, with Device fields for its keys; facts without a source come last, unverified."""
    if not isinstance(blocks, list):
        raise _Bad("source needs to be written as [[source]] blocks")
    sources, left = [], list(facts)
    for number, block in enumerate(blocks, 1):
        where = f" in [[source]] {number}"
        taken = _take(_SOURCE, block, where, _SOURCE)
        for fact in taken["facts"]:
            if fact not in facts:
                raise _Bad(f"{fact!r}{where} is no fact of this file{_nearest(fact, facts)}")
            if fact not in left:
                raise _Bad(f"{fact!r}{where} already has a source; each fact needs just one")
            left.remove(fact)
        sources.append(Source(taken["status"], taken["text"], _fields(taken["facts"])))
    if left:
        sources.append(Source("unverified", "the card file names no source", _fields(left)))
    return tuple(sources)


def _fields(facts: Iterable[str]) -> tuple[str, ...]:
    return tuple(_FACTS[fact] for fact in facts)


def _nearest(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name[:64], list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and not -MAX_NUMBER < value < MAX_NUMBER:
        return "a huge number"  # Python refuses to print integers of thousands of digits
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."

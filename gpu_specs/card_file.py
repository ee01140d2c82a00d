"""Reads a card file (TOML). Whatever is wrong with it raises a SpecError of one sentence."""

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, get_args

from gpu_specs import toml_file as toml
from gpu_specs.device import PIPES, Corrections, Device, Lines, PowerMode, Rates, Source, SpecError, Status

MAX_OPERATORS: Final = 1_000
MAX_LINES: Final = 100
MAX_MODES: Final = 20
SLOWEST_ms: Final = 1e6  # of a regression line, at no or at one operation
#: By generation: bytes per second of a lane, from GT/s and line encoding (128b/130b; 236 of a gen 6 flit's 256 bytes).
PCIE_LANE_Bps: Final = {
    3: 8e9 / 8 * 128 / 130, 4: 16e9 / 8 * 128 / 130, 5: 32e9 / 8 * 128 / 130, 6: 64e9 / 8 * 236 / 256,
}  # fmt: skip
PCIE_PAYLOAD: Final = 256 / (256 + 24)  # a packet's usual 256 bytes come with 24 of header, framing and CRC


def _factors(value: Any) -> Rates:
    if not isinstance(value, dict) or len(value) > MAX_OPERATORS:
        raise toml.Unusable(f"a table of at most {MAX_OPERATORS:,} numbers")
    return Rates(tuple((toml.text(name), toml.factor(number)) for name, number in value.items()))


def _lines(value: Any) -> tuple[tuple[str, float, float], ...]:
    """Lines by category, with b0 and b1 in milliseconds: in seconds."""
    limits = f"from 0 to {toml.figure(SLOWEST_ms)} ms"
    needed = toml.Unusable(f"a table of at most {MAX_LINES} lines, each [b0, b1]: {limits}")
    if not isinstance(value, dict) or len(value) > MAX_LINES:
        raise needed
    for pair in value.values():
        if not isinstance(pair, list) or len(pair) != 2 or any(type(b) not in (int, float) for b in pair):
            raise needed
        if not all(0 <= b <= SLOWEST_ms for b in pair):
            raise needed
    return tuple((toml.text(name), b0 / 1e3, b1 / 1e3) for name, (b0, b1) in value.items())


def _capability(value: Any) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,2})\.([0-9])", value) if isinstance(value, str) else None
    if match is None:
        raise toml.Unusable('a compute capability in quotes, such as "8.0"')
    return int(match[1]), int(match[2])


def _pcie(value: Any) -> float:
    """Bytes per second in one direction for { gen, lanes }, without the small share that flow control takes."""
    gens = ", ".join(map(str, PCIE_LANE_Bps))
    needed = toml.Unusable(f"{{ gen = 4, lanes = 16 }} with gen one of {gens} and 1 to 16 lanes")
    if not isinstance(value, dict) or value.keys() != {"gen", "lanes"}:
        raise needed
    gen, lanes = value["gen"], value["lanes"]
    if type(gen) is not int or type(lanes) is not int or gen not in PCIE_LANE_Bps or not 1 <= lanes <= 16:
        raise needed
    return PCIE_LANE_Bps[gen] * lanes * PCIE_PAYLOAD


#: DDR moves two bits a pin in each clock of the memory, which is what nvpmodel sets.
_MODE: Final = {
    "name": toml.Key("name", toml.text),
    "sms": toml.Key("sms", toml.count),
    "boost_MHz": toml.Key("boost_hz", toml.times(1e6)),
    "memory_MHz": toml.Key("memory_rate_bps", toml.times(2e6)),
    "cpu_cores": toml.Key("cpu_cores", toml.count),
    "cpu_MHz": toml.Key("cpu_hz", toml.times(1e6)),
    "tdp_W": toml.Key("tdp_W", toml.number),
}


def _modes(value: Any) -> tuple[PowerMode, ...]:
    if not isinstance(value, list) or len(value) > MAX_MODES:
        raise toml.Unusable(f"power_mode needs to be written as [[power_mode]] blocks, at most {MAX_MODES}")
    where = " in [[power_mode]] "
    return tuple(PowerMode(**toml.take(_MODE, m, f"{where}{i}", _MODE)) for i, m in enumerate(value, 1))


_HEAD: Final = {
    "name": toml.Key("name", toml.text, fact=False),
    "kind": toml.Key("kind", toml.one_of("gpu", "cpu"), required=False, fact=False),
    "nvml_names": toml.Key("nvml_names", toml.texts, required=False),
    "aliases": toml.Key("aliases", toml.texts, required=False, fact=False),
    "short_names": toml.Key("short_names", toml.texts, required=False, fact=False),
    "architecture": toml.Key("architecture", toml.text),
    "capability": toml.Key("capability", _capability),
    "node_nm": toml.Key("node_nm", toml.number),
    "notes": toml.Key("notes", toml.texts, required=False, fact=False),
}
_TABLES: Final = {
    "processor": {
        "sms": toml.Key("sms", toml.count),
        "lanes": toml.Key("lanes", toml.count),
        "base_MHz": toml.Key("base_hz", toml.times(1e6), required=False),
        "boost_MHz": toml.Key("boost_hz", toml.times(1e6)),
        "tensor_MHz": toml.Key("tensor_hz", toml.times(1e6), required=False),
        "smem_KiB": toml.Key("smem_bytes", toml.nbytes(2**10)),
        "threads_per_sm": toml.Key("threads_per_sm", toml.count),
        "cpu_cores": toml.Key("cpu_cores", toml.count, required=False),
        "cpu_MHz": toml.Key("cpu_hz", toml.times(1e6), required=False),
    },
    "memory": {
        "memory_kind": toml.Key("memory_kind", toml.text),
        "inline_ecc": toml.Key("inline_ecc", toml.flag, required=False),
        "memory_bus_bits": toml.Key("memory_bus_bits", toml.count, required=False),
        "memory_rate_Gbps": toml.Key("memory_rate_bps", toml.times(1e9), required=False),
        "bandwidth_GBps": toml.Key("bandwidth_Bps", toml.times(1e9)),
        "capacity_GiB": toml.Key("capacity_bytes", toml.nbytes(2**30)),
        "l2_MiB": toml.Key("l2_bytes", toml.nbytes(2**20)),
        "l2_partitions": toml.Key("l2_partitions", toml.count, required=False),
    },
    "dense_TFLOPS": {pipe: toml.Key(pipe, toml.times(1e12), required=pipe == "fp32") for pipe in PIPES},
    "power_and_links": {
        "tdp_W": toml.Key("tdp_W", toml.number),
        "pcie": toml.Key("pcie_Bps", _pcie, required=False),  # exactly one of this and the next
        "host_link_GBps": toml.Key("pcie_Bps", toml.times(1e9), required=False),
        "nvlink_GBps": toml.Key("nvlink_Bps", toml.times(1e9), required=False),
    },
}
_CPU: Final = {  # what a processor's file has in place of a card's tables
    "processor": {"cores": _TABLES["processor"]["sms"], **{k: _TABLES["processor"][k] for k in ("lanes", "boost_MHz")}},
    "memory": {k: _TABLES["memory"][k] for k in ("memory_kind", "bandwidth_GBps", "capacity_GiB", "l2_MiB")}
    | {"l3_MiB": toml.Key("l3_bytes", toml.nbytes(2**20), required=False)},
    "dense_TFLOPS": _TABLES["dense_TFLOPS"],
}
_NOT_OF_A_CPU: Final = {
    "capability": (0, 0), "node_nm": 0.0, "smem_bytes": 0, "threads_per_sm": 1, "tdp_W": math.inf, "pcie_Bps": 0.0,
}  # fmt: skip
_FACTORS: Final = ("compute", "memory", "launch", "host", "power")
_CORRECTIONS: Final = {
    **{name: toml.Key(name, toml.factor, required=False) for name in _FACTORS},
    "half_width": toml.Key("half_width", toml.half_width, required=False),
    "operators": toml.Key("operators", _factors, required=False),
    "source": toml.Key("source", toml.text, required=False),
}
_LINES: Final = {
    "forward_ms": toml.Key("forward", _lines, required=False),
    "backward_ms": toml.Key("backward", _lines, required=False),
    "half_width": toml.Key("half_width", toml.half_width, required=False),
    "source": toml.Key("source", toml.text),
}
_SOURCE: Final = {
    "status": toml.Key("status", toml.one_of(*get_args(Status))),
    "text": toml.Key("text", toml.text),
    "facts": toml.Key("facts", toml.texts),
}
_FACTS: Final = {
    key: at.field for keys in (_HEAD, *_TABLES.values(), *_CPU.values()) for key, at in keys.items() if at.fact
} | {"power_mode": "power_modes"}
"""A fact's name in a card file, and in a Device."""


def read(path: Path) -> Device:
    """The device that a card file describes; its id is the file's stem."""
    try:
        return _device(path.stem, toml.tables(path))
    except toml.Unusable as error:
        raise SpecError(f"card file {str(path)!r}: {error}") from None


def _device(id: str, data: dict[str, Any]) -> Device:
    cpu = data.get("kind") == "cpu"
    head = {k: at for k, at in _HEAD.items() if not cpu or at.field not in _NOT_OF_A_CPU}
    layout = _CPU if cpu else _TABLES
    older = data.pop("effects", None)  # the name of the table in device files that were written before
    corrections, blocks = data.pop("corrections", older), data.pop("source", [])
    lines, modes = data.pop("linear", None), None if cpu else data.pop("power_mode", None)
    tables = {table: data.pop(table, {}) for table in layout}
    allowed = {*head, *layout, "corrections", "linear", "source", *([] if cpu else ["power_mode"])}
    fields, facts = toml.take(head, data, "", allowed), [key for key in data if key in _FACTS]
    for table, keys in layout.items():
        where = f" in [{table}]"
        taken = toml.take(keys, tables[table], where, keys)
        facts += tables[table]
        fields |= {"dense_flops": Rates(tuple(taken.items()))} if table == "dense_TFLOPS" else taken
    if not cpu and ("pcie" in facts) == ("host_link_GBps" in facts):
        problem = "contradicts host_link_GBps; give only one" if "pcie" in facts else "is missing; it or host_link_GBps"
        raise toml.Unusable(f"pcie in [power_and_links] {problem} is needed")
    defaults = {"kind": "gpu", "base_hz": None, "tensor_hz": fields["boost_hz"], "l2_partitions": 1}
    defaults |= _NOT_OF_A_CPU if cpu else {}
    if corrections is not None:
        fields["corrections"] = Corrections(**toml.take(_CORRECTIONS, corrections, " in [corrections]", _CORRECTIONS))
    if modes is not None:
        fields["power_modes"] = _modes(modes)
        facts.append("power_mode")
    if lines is not None:
        fields["lines"] = Lines(**toml.take(_LINES, lines, " in [linear]", _LINES))
    return Device(**{"id": id} | defaults | fields, sources=_sources(blocks, facts))


def _sources(blocks: Any, facts: list[str]) -> tuple[Source, ...]:
    """The sources of the file, with Device fields for its keys; facts without a source come last, unverified."""
    if not isinstance(blocks, list):
        raise toml.Unusable("source needs to be written as [[source]] blocks")
    sources, left = [], list(facts)
    for number, block in enumerate(blocks, 1):
        where = f" in [[source]] {number}"
        taken = toml.take(_SOURCE, block, where, _SOURCE)
        for fact in taken["facts"]:
            if fact not in facts:
                raise toml.Unusable(f"{fact!r}{where} is not a fact of this file{toml.nearest(fact, facts)}")
            if fact not in left:
                raise toml.Unusable(f"{fact!r}{where} already has a source; each fact needs just one")
            left.remove(fact)
        sources.append(Source(taken["status"], taken["text"], _fields(taken["facts"])))
    if left:
        sources.append(Source("unverified", "the card file names no source", _fields(left)))
    return tuple(sources)


def _fields(facts: Iterable[str]) -> tuple[str, ...]:
    return tuple(_FACTS[fact] for fact in facts)

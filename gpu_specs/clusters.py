"""The machines that join several cards: one TOML file for each, with the source of every figure."""

from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Final, get_args

from gpu_specs import toml_file as toml
from gpu_specs.device import Cluster, Device, Source, SpecError, Status

_FOLDER: Final = Path(__file__).with_name("clusters")
MOST_GPUS: Final = 65_536
#: What joins the GPUs of a node where nobody says: NVSwitch in boards with 8 GPUs and in racks; elsewhere NVLink is a
#: bridge between two cards, or between four of an H200 NVL.
_SWITCHED: Final = ("SXM", "GB200", "GB300")
_BRIDGES: Final = {"h200-nvl": 4}
_RACK: Final = {"gb200": 72, "gb300": 72}
PER_NODE: Final = 8

_HEAD: Final = {"kind": toml.Key("kind", toml.one_of("cluster")), "name": toml.Key("describe", toml.text)}
_TABLES: Final = {
    "node": {
        "gpus": toml.Key("gpus_per_node", toml.count),
        "linked": toml.Key("linked", toml.count, required=False),
        "link_GBps": toml.Key("link_Bps", toml.times(1e9)),
        "pcie_GBps": toml.Key("pcie_Bps", toml.times(1e9)),
        "switched": toml.Key("switched", toml.flag),
        "efficiency": toml.Key("efficiency", toml.number, required=False),
    },
    "network": {
        "network_GBps": toml.Key("network_Bps", toml.times(1e9)),
        "latency_us": toml.Key("network_s", toml.times(1e-6)),
    },
}
_SOURCE: Final = {
    "status": toml.Key("status", toml.one_of(*get_args(Status))),
    "text": toml.Key("text", toml.text),
    "facts": toml.Key("facts", toml.texts),
}


@cache
def clusters() -> tuple[str, ...]:
    """The names of all clusters that ship, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def load_cluster(name: str) -> Cluster:
    """The cluster of that name, or of that file where the name ends in .toml or holds a path separator.

    Raises SpecError for a name that is not known, and for a file that can't be used.
    """
    if not name.lower().endswith(".toml") and "/" not in name and "\\" not in name:
        if name not in clusters():
            close = get_close_matches(name[:64], clusters(), n=1)
            hint = f"did you mean {close[0]}? It" if close else "it"
            choices = f"{hint} is one of {', '.join(clusters())}, or the path of a cluster's .toml file"
            raise SpecError(f"unknown cluster {name[:64]!r}: {choices}")
        return _read(_FOLDER / f"{name}.toml")
    return _read(Path(name))


def usual_cluster(device: Device) -> Cluster:
    """How several of a card are usually joined: by NVLink where the card has it, else over PCIe."""
    node = _RACK.get(device.id, PER_NODE)
    if not device.nvlink_Bps:
        return Cluster("", "PCIe", node, node, device.pcie_Bps, device.pcie_Bps, False)
    switched = any(word in device.name.replace("GB", " GB") for word in _SWITCHED) and device.capability >= (8, 0)
    whole = switched or "SXM" in device.name
    linked = node if whole else _BRIDGES.get(device.id, 2)
    what = "NVLink and NVSwitch" if switched else "NVLink" if whole else f"NVLink bridges between {linked}"
    return Cluster("", what, node, linked, device.nvlink_Bps / 2, device.pcie_Bps, switched)


@cache
def _read(path: Path) -> Cluster:
    """The cluster that a file describes; its name is the file's stem."""
    try:
        data = toml.tables(path)
        blocks, tables = data.pop("source", []), {table: data.pop(table, None) for table in _TABLES}
        fields = toml.take(_HEAD, data, "", (*_HEAD, *_TABLES, "source"))
        del fields["kind"]
        for table, keys in _TABLES.items():
            if table == "network" and tables[table] is None:
                continue
            fields |= toml.take(keys, tables[table] or {}, f" in [{table}]", keys)
        facts = [key for values in tables.values() if values for key in values]
        return Cluster(path.stem, **_checked(fields), sources=_sources(blocks, facts))
    except toml.Unusable as error:
        raise SpecError(f"cluster file {str(path)!r}: {error}") from None


def _checked(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, with all GPUs of a node linked unless the file says otherwise. Raises Unusable."""
    fields.setdefault("linked", fields["gpus_per_node"])
    if not 1 <= fields["linked"] <= fields["gpus_per_node"] <= MOST_GPUS:
        raise toml.Unusable(f"a node needs 1 to {MOST_GPUS:,} GPUs, and no more of them linked than there are")
    if not 0 < (fields.get("efficiency") or 1.0) <= 1:
        raise toml.Unusable("efficiency in [node] is a share of the link's rate: it needs a number up to 1")
    return fields


def _sources(blocks: Any, facts: list[str]) -> tuple[Source, ...]:
    """The sources of the figures. Raises Unusable where a figure has none."""
    if not isinstance(blocks, list):
        raise toml.Unusable("source needs to be written as [[source]] blocks")
    taken = [toml.take(_SOURCE, block, f" in [[source]] {i}", _SOURCE) for i, block in enumerate(blocks, 1)]
    sources = tuple(Source(**fields) for fields in taken)
    told = {fact for source in sources for fact in source.facts}
    if left := [key for key in facts if key not in told]:
        raise toml.Unusable(f"no [[source]] names {', '.join(left)}: each figure needs one")
    return sources

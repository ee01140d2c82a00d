"""Device files with what calibration found: a card's own file with its corrections, or a whole file of a processor."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files

from gpu_specs import Device, Lines
from onnxperf.calibrate.kinds import KINDS, NOMINAL
from onnxperf.ground.errors import printable

HEAD = "# Made by `onnxperf calibrate`: run it again rather than edit it.\n"
CORRECTIONS = {
    "compute": "factor on arithmetic time",
    "memory": "factor on memory traffic time",
    "launch": "factor on the launch time of a kernel on the GPU",
    "host": "factor on the host's time",
    "power": "factor on energy",
}
NOT_OF_A_COPY = re.compile(r"^(?:aliases|short_names) *= *\[[^\]]*\]\n", re.MULTILINE)  # they mean the card shipped
LINK = re.compile(r"^(?:pcie|host_link_GBps) *=.*$", re.MULTILINE)
LINK_FACT = re.compile(r'"(?:pcie|host_link_GBps)",? *')
TABLE_OF_CORRECTIONS = re.compile(
    r"^\[(?:corrections(?:\.operators)?|linear)\].*?(?=^\[(?!corrections|linear\])|\Z)", re.MULTILINE | re.DOTALL
)


def file_of(device: Device, host_link_Bps: float | None = None, left_out: Iterable[tuple[str, str]] = ()) -> str:
    """The TOML text of a device with its corrections: of a card its own file with them added, of a processor all of it.

    host_link_Bps: of a card, what its link carries by copies; left_out: corrections that were not found, and why.
    """
    body = _whole(device) if KINDS[device.kind].figures == NOMINAL else _card(device, host_link_Bps)
    missing = [f"# {name} is left out: {printable(why)}" for name, why in left_out]
    return "\n".join((body, *missing, _corrections(device), *_lines(device.lines)))


def text(value: str) -> str:
    """A TOML string; what is not printable is lost, as no device file may hold it."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in value).strip() or "unnamed"
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _number(value: float) -> str:
    return f"{value:.6g}"


def _corrections(device: Device) -> str:
    e = device.corrections
    lines = [f"{name} = {_number(getattr(e, name)):<10} # {what}" for name, what in CORRECTIONS.items()]
    if e.half_width is not None:
        lines.append(f"half_width = {_number(e.half_width)}  # logarithm; four in five operators are off by less")
    lines += [f"source = {text(e.source)}", "", "[corrections.operators]  # factors on the time of operators of a type"]
    lines += [f"{text(name)} = {_number(factor)}" for name, factor in e.operators.items()]
    return "\n".join(("[corrections]", *lines, ""))


def _lines(linear: Lines) -> list[str]:
    """What the method linear reads, in milliseconds; nothing where there are no lines."""
    if not (linear.forward or linear.backward):
        return []
    lines = ["[linear]  # of `--method linear`: [b0, b1], b0 ms + b1 ms an operation of a layer"]
    lines.append(f"source = {text(linear.source)}")
    if linear.half_width is not None:
        lines.append(f"half_width = {_number(linear.half_width)}  # of models held out of the fit")
    for name, regressions in (("forward_ms", linear.forward), ("backward_ms", linear.backward)):
        pairs = (f"{text(category)} = [{_number(1e3 * b0)}, {_number(1e3 * b1)}]" for category, b0, b1 in regressions)
        lines += [f"{name} = {{ {', '.join(pairs)} }}"] if regressions else []
    return [*lines, ""]


def _card(device: Device, host_link_Bps: float | None) -> str:
    body = (files("gpu_specs") / "cards" / f"{device.id}.toml").read_text(encoding="utf-8")
    body = TABLE_OF_CORRECTIONS.sub("", NOT_OF_A_COPY.sub("", body))
    sources = []
    if host_link_Bps:
        body = LINK_FACT.sub("", LINK.sub(f"host_link_GBps = {_number(host_link_Bps / 1e9)}  # measured", body))
        sources.append(_source("seen", device.corrections.source, ("host_link_GBps",)))
    return "\n\n".join((HEAD + body.rstrip("\n"), *(x.rstrip("\n") for x in sources), ""))


def _whole(d: Device) -> str:
    rates = [f"{pipe} = {_number(rate / 1e12)}" for pipe, rate in d.dense_flops.items()]
    names = {  # of Device fields, in a file
        "sms": "cores", "boost_hz": "boost_MHz", "bandwidth_Bps": "bandwidth_GBps", "capacity_bytes": "capacity_GiB",
        "l2_bytes": "l2_MiB", "l3_bytes": "l3_MiB",
    }  # fmt: skip
    shared = [f"l3_MiB = {_number(d.l3_bytes / 2**20)}  # what it has of the cache that cores share"]
    lines = [
        f"name = {text(d.name)}",
        f"kind = {text(d.kind)}",
        f"architecture = {text(d.architecture)}",
        "",
        "[processor]",
        f"cores = {d.sms}  # that take part",
        f"lanes = {d.lanes}  # fp32, in one core; each does one multiply-add a cycle",
        f"boost_MHz = {_number(d.boost_hz / 1e6)}",
        "",
        "[memory]",
        f"memory_kind = {text(d.memory_kind)}",
        f"bandwidth_GBps = {_number(d.bandwidth_Bps / 1e9)}  # that one core streams",
        f"capacity_GiB = {_number(d.capacity_bytes / 2**30)}",
        f"l2_MiB = {_number(d.l2_bytes / 2**20)}  # of one core",
        *(shared if d.l3_bytes else ()),
        "",
        "[dense_TFLOPS]",
        *rates,
        "",
        *(_source(s.status, s.text, [names.get(f, f) for f in s.facts if getattr(d, f, 1) != 0]) for s in d.sources),
    ]
    return "\n".join((HEAD, *lines))


def _source(status: str, says: str, facts: Iterable[str]) -> str:
    named = ", ".join(map(text, facts))
    return f"[[source]]\nstatus = {text(status)}\ntext = {text(says)}\nfacts = [{named}]\n"

"""The cards as tables and as JSON: every fact with its source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any

from rich.console import Console
from rich.text import Text

from gpu_specs import PIPES, Device, PowerMode
from onnxperf.ground.errors import printable
from onnxperf.ground.tables import number, tabulate

ROOMY = 60  # characters of a line that has room for whole ids beside the figures
#: What a Device carries that is no fact about the card with a source.
NO_FACT = frozenset(
    {"id", "name", "kind", "dense_flops", "corrections", "lines", "sources", "aliases", "short_names", "notes"}
    | {"locked", "file", "cluster"}
)
#: What modules alone have, which hold a processor as well.
OF_A_MODULE = ("cpu_cores", "cpu_hz", "power_modes")
#: What a kind of device has no figure for.
LACKED = {
    "gpu": frozenset({"l3_bytes"}),
    "cpu": frozenset({
        "capability", "node_nm", "tensor_hz", "l2_partitions", "smem_bytes", "threads_per_sm", "tdp_W", "pcie_Bps",
        "nvlink_Bps", "inline_ecc", "memory_bus_bits", "memory_rate_bps", "nvml_names", "base_hz",
        *OF_A_MODULE,
    }),
}  # fmt: skip


def facts(device: Device) -> dict[str, Any]:
    """A card's figures by name, in SI units; its rates one by one."""
    left_out = NO_FACT | LACKED[device.kind] | {name for name in OF_A_MODULE if not getattr(device, name)}
    named = {f.name: getattr(device, f.name) for f in fields(device) if f.name not in left_out}
    return {**named, **device.dense_flops}


def quantity(name: str, value: Any) -> str:
    """A figure with the unit that its name stands for."""
    if name in PIPES:
        return f"{number(value / 1e12, 4)} {'TOPS' if 'int' in name else 'TFLOPS'}"
    if value is None:
        return "not published"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "capability":
        return ".".join(map(str, value))
    if isinstance(value, tuple):
        return "; ".join(map(str, value))
    unit = name.rpartition("_")[2]
    if unit == "bytes":
        return f"{value / 2**20:,.6g} MiB" if value >= 2**20 else f"{value / 2**10:,.6g} KiB"
    if unit == "Bps":
        return f"{value / 1e9:,.5g} GB/s" if value else "none"
    units = {"hz": (1e6, "MHz"), "bps": (1e9, "Gbit/s"), "W": (1, "W"), "nm": (1, "nm"), "bits": (1, "bit")}
    scale, symbol = units.get(unit, (1, ""))
    return f"{value / scale:,.6g} {symbol}".rstrip() if isinstance(value, (int, float)) else str(value)


def show_gpus(out: Console, devices: Iterable[Device]) -> None:
    """A line a card."""
    id = "!id" if out.width >= ROOMY else "id"  # what --gpu takes
    names = (id, "name", "#SMs", "#boost", "#fp32 TF", "#fp16 TF", "#GB/s", "#memory", "#L2", "#W")
    rows = []
    for d in devices:
        half = d.dense_flops.get("tensor_fp16", d.dense_flops.get("fp16"))
        rates = (f"{d.dense_flops['fp32'] / 1e12:.1f}", number(half / 1e12, 4) if half else "")
        sizes = (f"{d.capacity_bytes / 2**30:.0f} GiB", f"{d.l2_bytes / 2**20:.4g} MiB")
        named = (d.id, d.name.removeprefix("NVIDIA "), str(d.sms), f"{d.boost_hz / 1e9:.2f} GHz")
        rows.append((*named, *rates, f"{d.bandwidth_Bps / 1e9:,.0f}", *sizes, f"{d.tdp_W:,.0f}"))
    out.print(tabulate(out, names, rows, spare=("L2", "boost", "W", "SMs", "name", "fp32 TF")))


def show_gpu(out: Console, device: Device) -> None:
    """Every fact of one card with its source."""
    out.print(Text(f"{printable(device.name)} ({printable(device.id)})", style="bold"))
    rows = []
    for name, value in facts(device).items():
        if name == "power_modes":  # lines of their own
            continue
        source = device.source_of(name)
        status, text = (source.status, source.text) if source else ("default", "not in the card file")
        rows.append((name, printable(quantity(name, value)), status, printable(text)))
    out.print(tabulate(out, ("!fact", "!value", "!status", "source"), rows, spare=("status", "source")))
    for mode in device.power_modes:
        out.print(Text(printable(f"power mode {mode}")))
    if source := device.source_of("power_modes"):
        out.print(Text(printable(f"Power modes: {source.text} ({source.status})")))
    for note in device.notes:
        out.print(Text(printable(note)))


def as_json(device: Device) -> dict[str, Any]:
    """A card as plain data, SI units."""
    specs = facts(device)
    return {
        "id": device.id,
        "name": device.name,
        "aliases": [*device.aliases, *device.short_names],
        "kind": device.kind,
        **{k: _plain(v) for k, v in specs.items() if k not in device.dense_flops},
        "dense_flops": dict(device.dense_flops),
        "sources": {name: {"status": s.status, "text": s.text} for name in specs if (s := device.source_of(name))},
        "notes": list(device.notes),
    }


def _plain(value: Any) -> Any:
    """A figure as plain data."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return asdict(value) if isinstance(value, PowerMode) else value

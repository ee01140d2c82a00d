"""The processors that launch a card's kernels: some ship under a name, any other is read from a TOML file."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpu_specs import toml_file as toml
from gpu_specs.device import Device, Rates, Source, SpecError


@dataclass(frozen=True, slots=True)
class Host:
    """A processor that launches kernels.

    pace: factor on a runtime's host costs, larger for a slower processor; half_width: of the 80% range of its natural
    logarithm. bandwidth_Bps and flops: bytes/s and FLOP/s of all cores together, for operators that run on the host.
    source: how the pace is known.
    """

    name: str
    describe: str
    pace: float
    half_width: float
    bandwidth_Bps: float
    flops: float
    source: str = "assumed"
    cores: int = 4
    hz: float = 3e9

    def clocked(self, hz: float, cores: int) -> Host:
        """The same processor with cores of another clock, or another number of them: its pace follows the clock."""
        share = hz / self.hz
        flops = self.flops * share * cores / self.cores
        return replace(self, pace=self.pace / share, flops=flops, cores=cores, hz=hz)

    @property
    def title(self) -> str:
        """What it is, how many cores are used, and whether that is assumed."""
        told = self.source if self.source == "assumed" else "measured"
        return f"{self.describe} ({self.cores} cores, {told})"

    @property
    def device(self) -> Device:
        """The same as a device that operators run on. Its caches are assumed: 1 MB of each core and 32 MB of all."""
        rates = Rates((("fp32", self.flops), ("tensor_int8", self.flops)))
        figures = ("sms", "lanes", "boost_hz", "memory_kind", "bandwidth_Bps", "l2_bytes", "l3_bytes", "fp32")
        return Device(
            id=self.name, name=self.title, kind="cpu", architecture="a host", capability=(0, 0), node_nm=0.0,
            sms=self.cores, lanes=max(int(self.flops / self.hz / self.cores / 2), 1), base_hz=None, boost_hz=self.hz,
            tensor_hz=self.hz, memory_kind="DRAM", bandwidth_Bps=self.bandwidth_Bps, capacity_bytes=MEMORY,
            l2_bytes=2**20, l2_partitions=1, smem_bytes=0, threads_per_sm=1, tdp_W=math.inf, dense_flops=rates,
            pcie_Bps=0.0, l3_bytes=2**25, sources=(Source("unverified", f"the host {self.name}, assumed", figures),),
        )  # fmt: skip


MEMORY: Final = 64 * 2**30  # of a host; assumed


#: The open measurements rarely name their processors. Assumed: rows on V100 and T4 ran on servers of 2017 to 2019,
#: whose pace is 1 (10 us for a node and its kernel). The other paces are set from launch-bound runs under ONNX
#: Runtime's CUDA provider, whose paces by run host.md in onnxperf/lab/derive lists: servers of 2020 to 2022 beside
#: A100 and A30, desktops of 2018 beside a Quadro RTX 6000, of 2020 beside an RTX 3090 and an RTX A4000, later ones
#: beside an RTX 5000 Ada, a server of 2023 beside an H200, and virtual cores at 2 GHz. Desktops of the same years
#: differ most: a Ryzen or Core at 4.6 GHz may take half of what those two took. The pace of a Jetson's Cortex A78AE at
#: 2 GHz is set from YOLO11n under PyTorch on two modules. Assumed: that a Thor's Neoverse V3AE has the pace of a server
#: of 2023 by its clock, and all half-widths, bandwidths, FLOP/s, cores and clocks. Number and clock of a Jetson's own
#: cores stand in its card.
HOSTS: Final = {
    h.name: h
    for h in (
        Host("server-2018", "a server CPU of 2017 to 2019", 1.0, 0.0, 40e9, 200e9, hz=2.9e9),
        Host("server-2020", "a server CPU of 2020 to 2022", 0.78, 0.2, 50e9, 400e9, hz=3.1e9),
        Host("server-2023", "a server CPU of 2023 or later", 0.45, 0.25, 60e9, 600e9, hz=3.4e9),
        Host("desktop-2018", "a desktop CPU of 2017 to 2019", 0.8, 0.25, 30e9, 200e9, hz=4.2e9),
        Host("desktop-2020", "a desktop CPU of 2020 to 2022", 1.1, 0.4, 35e9, 250e9, cores=6, hz=4.6e9),
        Host("desktop", "a desktop CPU at 5 GHz or more", 0.45, 0.3, 40e9, 300e9, cores=8, hz=5.2e9),
        Host("cloud", "virtual cores of an older server CPU at 2.2 to 2.7 GHz", 1.3, 0.3, 20e9, 100e9, hz=2.5e9),
        Host("jetson", "the Arm cores of a Jetson module", 1.7, 0.3, 20e9, 60e9, cores=6, hz=2.0e9),
        Host("jetson-thor", "the Arm cores of a Jetson Thor", 0.6, 0.4, 60e9, 500e9, cores=14, hz=2.6e9),
    )
}


_FILE: Final = {
    "kind": toml.Key("kind", toml.one_of("host")),
    "name": toml.Key("describe", toml.text),
    "pace": toml.Key("pace", toml.factor),
    "half_width": toml.Key("half_width", toml.half_width),
    "bandwidth_GBps": toml.Key("bandwidth_Bps", toml.times(1e9)),
    "GFLOPS": toml.Key("flops", toml.times(1e9)),
    "source": toml.Key("source", toml.text),
    "cores": toml.Key("cores", toml.count, required=False),
    "clock_GHz": toml.Key("hz", toml.times(1e9), required=False),
}


def load_host(name: str) -> Host:
    """The host of that name, or of that file where the name ends in .toml or holds a path separator.

    Raises SpecError for a name that is not known, and for a file that can't be used.
    """
    if not name.lower().endswith(".toml") and "/" not in name and "\\" not in name:
        if name not in HOSTS:
            shown = name if len(name) <= 64 else name[:64] + "..."
            raise SpecError(
                f"unknown host {shown!r}: it is one of {', '.join(HOSTS)}, or the path of a host's .toml file"
            )
        return HOSTS[name]
    try:
        fields = toml.take(_FILE, toml.tables(Path(name)), "", _FILE)
    except toml.Unusable as error:
        raise SpecError(f"host file {name!r}: {error}") from None
    del fields["kind"]
    return Host(Path(name).stem, **fields)

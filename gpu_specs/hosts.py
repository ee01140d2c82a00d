"""The processors that launch a card's kernels: some ship under a name, any other is read from a TOML file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpu_specs import toml_file as toml
from gpu_specs.device import SpecError


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


#: The open measurements don't name their processors. Assumed: rows on V100 and T4 ran on servers of 2017 to 2019, whose
#: pace is 1 (10 us for a node and its kernel), rows on A30 on a server of 2020 to 2022. The other paces are set from
#: published launch-bound runs under ONNX Runtime's CUDA provider: 7 us a kernel on servers of 2020 to 2022, 4.5 us on
#: later ones, 3 to 4.5 us on desktops, 13 us on virtual cores at 2 GHz. Assumed: the paces of older desktops (clocked a
#: third higher than servers of their years) and of a Jetson, and all half-widths, bandwidths and FLOP/s. host.md in
#: onnxperf/lab/derive says which rows had been looked at.
HOSTS: Final = {
    h.name: h
    for h in (
        Host("server-2018", "a server CPU of 2017 to 2019", 1.0, 0.0, 40e9, 200e9),
        Host("server-2020", "a server CPU of 2020 to 2022", 0.72, 0.15, 50e9, 400e9),
        Host("server-2023", "a server CPU of 2023 or later", 0.45, 0.25, 60e9, 600e9),
        Host("desktop-2018", "a desktop CPU of 2017 to 2019", 0.72, 0.25, 30e9, 200e9),
        Host("desktop-2020", "a desktop CPU of 2020 to 2022", 0.52, 0.25, 35e9, 250e9),
        Host("desktop", "a desktop CPU at 5 GHz or more", 0.38, 0.25, 40e9, 300e9),
        Host("cloud", "virtual cores of an older server CPU at 2.2 to 2.7 GHz", 1.3, 0.3, 20e9, 100e9),
        Host("jetson", "the Arm cores of a Jetson module at 2 GHz", 2.2, 0.4, 20e9, 60e9),
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

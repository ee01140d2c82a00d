"""The processors that launch kernels: how long a runtime's work on the host takes on each, relative to a server.

No row of the open measurements names its processor, so the costs derived from them are taken to be a server's, and all
figures here are assumed. A pace is the time that one thread takes on a typical processor of the kind, as a multiple of
the server's, rounded.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """A processor: `pace` multiplies a runtime's host costs; bandwidth and FLOP/s are what all its cores reach
    together, for operators that run on it.
    """

    name: str
    describe: str
    pace: float
    bandwidth_Bps: float
    flops: float


HOSTS: dict[str, Host] = {
    h.name: h
    for h in (
        Host("server", "a server processor at 3 to 3.5 GHz, 2021 or later", 1.0, 50e9, 400e9),
        Host("desktop", "a desktop processor at 5 GHz or more", 0.6, 40e9, 300e9),
        Host("cloud", "virtual cores of an older server processor at 2.2 to 2.7 GHz", 1.5, 20e9, 100e9),
        Host("jetson", "the Arm cores of a Jetson module at 2 GHz", 2.5, 20e9, 60e9),
    )
}

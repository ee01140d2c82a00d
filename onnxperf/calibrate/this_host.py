"""How fast this machine's processor launches kernels for a GPU, estimated with ONNX Runtime's CPU provider.

Between two nodes ONNX Runtime's executor runs the same code for every provider. The time of a node on this processor
over that on a reference processor is taken as the ratio of their times to prepare and launch a kernel. That is an
assumption, which only a GPU could confirm, so the range of a measured host is at least as wide as the reference's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import exp, log

import numpy as np

from gpu_specs import HOSTS, Host
from onnxperf.calibrate.device_file import text
from onnxperf.graph.microbenchmarks import SingleOperator, chain_model
from onnxperf.ground.errors import EnvironmentFailure, printable
from onnxperf.ground.output import telling
from onnxperf.measure.job import Job
from onnxperf.measure.run import measure

#: The operator of a chain's nodes, each on four elements, and the seconds of one node on the reference processor: from
#: ten rounds on a virtual core of an AMD EPYC 9004 (Zen 4, 2.6 GHz nominal), ONNX Runtime 1.31, Linux; see device.md.
REFERENCE_S = {"Reshape": 0.25e-6, "Neg": 0.18e-6, "Relu": 0.18e-6}
REFERENCE = HOSTS["server-2023"]
SHORT, LONG = 200, 1200  # nodes in two chains; the difference of their times leaves out the fixed cost of a run
RUNS = 1000  # of each chain in a round; the fastest counts
ROUNDS, MOST_ROUNDS = 3, 10  # each in new processes, whose memory lies at other addresses
AGREE = 0.1  # most by which the pace may be slower without the fastest round; beyond that the machine is busy

Round = Mapping[tuple[str, int], float]  # seconds of the fastest run of a chain, by operator and number of nodes


@dataclass(frozen=True, slots=True)
class Paced:
    """A measured host, the seconds of one node by operator, and the number of rounds it took."""

    host: Host
    node_s: Mapping[str, float]
    rounds: int


def this_host(name: str, version: str) -> Paced:
    """Measure rounds until a second one is nearly as fast as the fastest.

    name: of the processor; version: of ONNX Runtime. Raises EnvironmentFailure where after MOST_ROUNDS the fastest
    round is still faster than all others by more than AGREE.
    """
    rounds = list[Round]()
    with telling() as told:
        while len(rounds) < MOST_ROUNDS:
            told("rounds", len(rounds), MOST_ROUNDS)
            rounds.append(_round())
            if len(rounds) >= ROUNDS and disagreement(rounds) <= AGREE:
                return paced(name, version, rounds)
    raise EnvironmentFailure(
        f"this machine is busy: its fastest round is {disagreement(rounds):.0%} faster than all others, and"
        f" {AGREE:.0%} is allowed; close other programs and try again"
    )


def paced(name: str, version: str, rounds: Sequence[Round]) -> Paced:
    """The host with the pace that the rounds measured, and the other figures of the host in HOSTS whose pace is
    nearest.
    """
    node_s, pace = node_seconds(rounds), pace_of(rounds)
    like = min(HOSTS.values(), key=lambda h: abs(log(h.pace / pace)))
    spread = float(np.std([log(node_s[op] / s) for op, s in REFERENCE_S.items()]))
    each = ", ".join(f"{op} {s * 1e6:.2f}" for op, s in node_s.items())
    source = (
        f"onnxperf calibrate --host-only, {datetime.now(UTC):%Y-%m-%d}, ONNX Runtime {version}: us a node: {each};"
        f" bandwidth, GFLOPS, cores and clock are {like.name}'s, assumed"
    )
    half_width = float(np.hypot(REFERENCE.half_width, spread))
    figures = (like.bandwidth_Bps, like.flops, printable(source), like.cores, like.hz)
    return Paced(Host("this-host", printable(name), pace, half_width, *figures), node_s, len(rounds))


def node_seconds(rounds: Sequence[Round]) -> dict[str, float]:
    """Seconds of one node by operator: the fastest long chain less the fastest short one, over all rounds."""
    least = {chain: min(r[chain] for r in rounds) for chain in rounds[0]}
    return {op: max(least[op, LONG] - least[op, SHORT], 1e-9) / (LONG - SHORT) for op in REFERENCE_S}


def pace_of(rounds: Sequence[Round]) -> float:
    """The reference's pace times the geometric mean of (seconds of a node here / on the reference)."""
    node_s = node_seconds(rounds)
    return REFERENCE.pace * exp(float(np.mean([log(node_s[op] / s) for op, s in REFERENCE_S.items()])))


def disagreement(rounds: Sequence[Round]) -> float:
    """By what share the pace would be slower without the round that is fastest in total."""
    ordered = sorted(rounds, key=lambda r: sum(r.values()))
    return pace_of(ordered[1:]) / pace_of(rounds) - 1


def file_of(host: Host) -> str:
    """The TOML text that `gpu_specs.load_host` reads."""
    return "\n".join((
        "# Made by `onnxperf calibrate --host-only`: run it again rather than edit it.",
        'kind = "host"',
        f"name = {text(host.describe)}",
        f"pace = {host.pace:.4g}  # factor on the host's time; 1 is a server of 2017 to 2019",
        f"half_width = {host.half_width:.4g}  # of the 80% range of its logarithm",
        f"bandwidth_GBps = {host.bandwidth_Bps / 1e9:.4g}  # of all cores, for operators that run on the host",
        f"GFLOPS = {host.flops / 1e9:.4g}",
        f"cores = {host.cores}",
        f"clock_GHz = {host.hz / 1e9:.4g}",
        f"source = {text(host.source)}",
        "",
    ))  # fmt: skip


def _round() -> dict[tuple[str, int], float]:
    return {(op, nodes): _fastest(op, nodes) for op in REFERENCE_S for nodes in (SHORT, LONG)}


def _fastest(op: str, nodes: int) -> float:
    """Seconds of the fastest run of a chain."""
    return measure(_chain(op, nodes)).device.least


def _chain(op: str, nodes: int, profile: bool = False) -> Job:
    """The runs of a chain, without graph optimisations, which could remove nodes."""
    constants = ((1, 4),) if op == "Reshape" else ()
    chain = [SingleOperator(f"{op} {i}", op, ((1, 4),), constants=constants) for i in range(nodes)]
    return Job(chain_model(f"chain of {op}", chain), "cpu", iterations=RUNS, opt_level="disabled", profile=profile)

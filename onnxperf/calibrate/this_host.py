"""This machine's processor as the host of a card: its pace, measured with ONNX Runtime's CPU provider.

Between two nodes ONNX Runtime's executor runs the same code whichever provider computes them. A processor that is so
many times as fast in it as a reference is taken to prepare and launch kernels as many times as fast, which no
measurement here confirms: it would take a GPU. So the range of a host is no narrower than that of the reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import exp, log

import numpy as np

from gpu_specs import HOSTS, Host
from onnxperf.calibrate.device_file import text
from onnxperf.errors import EnvironmentFailure, printable
from onnxperf.graph.microbenchmarks import SingleOperator, chain_model
from onnxperf.measure.job import Job
from onnxperf.measure.run import measure
from onnxperf.measure.show import telling

#: What each node of a chain computes, on four elements, and the seconds that one takes on the reference, by ten rounds
#: on a virtual core of an AMD EPYC 9004 (Zen 4, 2.6 GHz nominal), ONNX Runtime 1.31, Linux; see device.md.
REFERENCE_S = {"Reshape": 0.25e-6, "Neg": 0.18e-6, "Relu": 0.18e-6}
REFERENCE = HOSTS["server-2023"]
SHORT, LONG = 200, 1200  # nodes of two chains, whose difference is free of what a run costs
RUNS = 1000  # of each chain in a round, the fastest of which counts
ROUNDS, MOST_ROUNDS = 3, 10  # each in processes of its own, as their memory lies elsewhere
AGREE = 0.1  # how much slower the pace may be without the fastest round: more, and the machine is busy

Round = Mapping[tuple[str, int], float]  # by operator and number of nodes: seconds of the fastest run of the chain


@dataclass(frozen=True, slots=True)
class Paced:
    """A host that was measured: seconds of a node by operator, and how many rounds it took."""

    host: Host
    node_s: Mapping[str, float]
    rounds: int


def this_host(name: str, version: str) -> Paced:
    """Measure rounds until the fastest is confirmed by another. name: the processor's; version: ONNX Runtime's.

    Raises EnvironmentFailure where MOST_ROUNDS differ by more than AGREE.
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
    """The host that some rounds tell of; bandwidth and FLOP/s are those of the named host with the nearest pace."""
    node_s, pace = node_seconds(rounds), pace_of(rounds)
    like = min(HOSTS.values(), key=lambda h: abs(log(h.pace / pace)))
    spread = float(np.std([log(node_s[op] / s) for op, s in REFERENCE_S.items()]))
    each = ", ".join(f"{op} {s * 1e6:.2f}" for op, s in node_s.items())
    source = (
        f"onnxperf calibrate --host-only, {datetime.now(UTC):%Y-%m-%d}, ONNX Runtime {version}: us a node: {each};"
        f" bandwidth and GFLOPS are {like.name}'s, assumed"
    )
    half_width = float(np.hypot(REFERENCE.half_width, spread))
    host = Host("this-host", printable(name), pace, half_width, like.bandwidth_Bps, like.flops, printable(source))
    return Paced(host, node_s, len(rounds))


def node_seconds(rounds: Sequence[Round]) -> dict[str, float]:
    """What one more node takes, by operator, from the fastest runs of both chains in any round."""
    least = {chain: min(r[chain] for r in rounds) for chain in rounds[0]}
    return {op: max(least[op, LONG] - least[op, SHORT], 1e-9) / (LONG - SHORT) for op in REFERENCE_S}


def pace_of(rounds: Sequence[Round]) -> float:
    """The reference's pace, times the mean ratio of nodes here to its own (as logarithms)."""
    node_s = node_seconds(rounds)
    return REFERENCE.pace * exp(float(np.mean([log(node_s[op] / s) for op, s in REFERENCE_S.items()])))


def disagreement(rounds: Sequence[Round]) -> float:
    """How much slower the pace would be without the round that is fastest in all."""
    ordered = sorted(rounds, key=lambda r: sum(r.values()))
    return pace_of(ordered[1:]) / pace_of(rounds) - 1


def file_of(host: Host) -> str:
    """The TOML text that `gpu_specs.load_host` reads."""
    return "\n".join((
        "# Made by `onnxperf calibrate --host-only`: run it again rather than edit it.",
        'kind = "host"',
        f"name = {text(host.describe)}",
        f"pace = {host.pace:.4g}  # factor on what the host spends; 1 is a server of 2017 to 2019",
        f"half_width = {host.half_width:.4g}  # of its logarithm, in four cases of five",
        f"bandwidth_GBps = {host.bandwidth_Bps / 1e9:.4g}  # of all cores, for operators that run on the host",
        f"GFLOPS = {host.flops / 1e9:.4g}",
        f"source = {text(host.source)}",
        "",
    ))  # fmt: skip


def _round() -> dict[tuple[str, int], float]:
    return {(op, nodes): _fastest(op, nodes) for op in REFERENCE_S for nodes in (SHORT, LONG)}


def _fastest(op: str, nodes: int) -> float:
    """Seconds of the fastest run of a chain, as written: no optimisation may take nodes out."""
    constants = ((1, 4),) if op == "Reshape" else ()
    chain = [SingleOperator(f"{op} {i}", op, ((1, 4),), constants=constants) for i in range(nodes)]
    job = Job(chain_model(f"chain of {op}", chain), "cpu", iterations=RUNS, opt_level="disabled", profile=False)
    return measure(job).device.least

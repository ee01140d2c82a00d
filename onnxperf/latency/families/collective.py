"""Exchanges between GPUs by NCCL: all-reduce, all-gather, reduce-scatter, all-to-all, and sending to one other GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gpu_specs import usual_cluster
from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.constants import ConstantSet, Parameter
from onnxperf.latency.family import KernelFamily
from onnxperf.latency.processor import joined
from onnxperf.latency.terms import Array, KernelTerms, plain_terms
from op_models import Collective

#: The kinds in which each GPU has something else for every other, or for one other.
TO_ALL = ("all_to_all", "send")
#: The most GPUs that were measured; beyond, steps are assumed to grow by the logarithm, as trees do.
MEASURED = 8
#: NCCL's channels, each of which keeps an SM, over NVLink and over PCIe, as its log has them ("24 coll channels"); from
#: memory of logs of A100 and H100 with NVSwitch, and of cards without NVLink.
CHANNELS, PCIE_CHANNELS = 24, 4
#: The share of a link that NCCL reckons with where NVSwitch adds up an all-reduce (NVLink SHARP), by major compute
#: capability (NCCL, src/tuning/nvls.cc: nvlsEfficiency); older switches add up nothing.
ADDED_UP = {9: 0.85, 10: 0.74}


def collective(works: Works, cards: Cards, dram_share: Array) -> KernelTerms:
    """seconds = a + b + overlap sqrt(a b): a, what a small message takes; b, a large one at the bandwidth it reaches.

    a = start + hop x steps^growth; a ring of n GPUs has n - 1 steps, an all-reduce twice as many, an all-to-all
    `all_to_all_steps` of them. b = message x traffic / (share x link): share is at most 1, traffic ((n - 1) / n) ^
    traffic_power, for an all-reduce 2 ((n - 1) / n) ^ reduce_power. At a power of 1 that would be what a GPU sends
    (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md); its channels copy its own part, too, which is
    the larger the fewer GPUs there are. Over PCIe the bus is slower than that copy, and traffic is what is sent. Where
    a switch adds up, an all-reduce sends less: `_gain`. The term between a and b is what messages of a middling size
    miss of the bandwidth (protocols LL, LL128 and Simple). Over a host's PCIe bus, which more than two GPUs have to
    share, the share falls by a power of their number. Between nodes, rings are held to what the network gives their
    GPUs of one node together, and latencies are those of a tree: assumed, no open measurement tells of it. Without a
    switch, an all-to-all is assumed to reach half of the link. An exchange takes b / seconds of its link while it runs:
    the rest of its time is latency.
    """
    coef = cards.constants.collective
    kinds = _kinds(works)
    to_all, reduce = np.isin(kinds, TO_ALL), kinds == "all_reduce"
    n, at, passes = np.maximum(works["ranks"], 1), _joined(works, cards), np.where(reduce, 2.0, 1.0)
    steps = passes * (np.minimum(n, MEASURED) - 1) * np.where(to_all, coef["all_to_all_steps"], 1.0)
    deeper = np.maximum(1.0, np.log2(n) / np.log2(MEASURED))
    tree_s = passes * np.log2(np.maximum(at.nodes, 1)) * at.network_s
    short_s = (coef["start_s"] + coef["hop_s"] * steps ** coef["growth"] * deeper) * cards.launch + tree_s
    reached = at.link * _share(n, kinds, at, coef)
    power = np.where(reduce, coef["reduce_power"], coef["traffic_power"])
    sent = passes * ((n - 1) / n) ** np.where(at.over_pcie, 1.0, power) / np.where(reduce, _gain(n, at), 1.0)
    out = np.where(at.nodes > 1, (n - at.in_node) / n, sent)
    rate = np.where(at.nodes > 1, np.minimum(reached, np.where(to_all, 1, at.in_node) * at.network_Bps), reached)
    long_s = works["bytes"] * np.where(kinds == "send", 1.0, np.where(to_all, out, sent)) / rate
    overlap = np.where(to_all, coef["overlap_to_all"], np.where(reduce, coef["overlap_reduce"], coef["overlap"]))
    between = overlap * np.sqrt(short_s * long_s)
    sms = np.where(at.over_pcie, PCIE_CHANNELS, CHANNELS) / cards.sms
    whole_s = short_s + long_s + between
    terms = plain_terms(0.0, long_s, between, short_s, whole_s, np.minimum(sms, 1.0))
    inside = np.minimum(works["bytes"] * np.where(kinds == "send", 1.0, sent) / reached, long_s) / whole_s
    inside, outside = np.where(at.in_node > 1, inside, 0.0), np.where(at.nodes > 1, long_s / whole_s, 0.0)
    return terms._replace(
        seconds=np.where(n > 1, whole_s, 0.0), nvlink=np.where(at.over_pcie, 0.0, inside),
        pcie=np.where(at.over_pcie, inside, 0.0), network=outside,
    )  # fmt: skip


def _share(n: Array, kinds: Array, at: _Joined, coef: Mapping[str, float]) -> Array:
    """The share of the link's rate that large messages reach [n, g]."""
    to_all = np.isin(kinds, TO_ALL)
    share = np.where(to_all, coef["all_to_all_share"], coef["share"])
    share = np.where(to_all & ~at.switched & (n > 2), share / 2, share)
    crowd = np.minimum(1.0, 2 / np.maximum(at.in_node, 1)) ** coef["pcie_crowding"]
    share = np.where(at.over_pcie, coef["pcie_share"] * crowd, share)
    return np.minimum(np.where(np.isnan(at.efficiency), share, at.efficiency), 1.0)


def _gain(n: Array, at: _Joined) -> Array:
    """How much faster a large all-reduce is where the switch adds up, and NCCL has it do that [n, g]: a GPU then sends
    its message and its part of the sum, 1 + 1 / n for 2 (n - 1) / n in a ring.
    """
    return np.maximum(np.where(at.nodes > 1, 1.0, at.added_up * 2 * (n - 1) / (n + 1)), 1.0)


def link_s(works: Works, cards: Cards) -> Array:
    """What each GPU has to send, at its link's full rate: all of a message to one other, else (n - 1) / n of it."""
    n = np.maximum(works["ranks"], 1)
    share = np.where(_kinds(works) == "send", 1.0, (n - 1) / n)
    return np.asarray(works["bytes"] * share / _joined(works, cards).link)


def _kinds(works: Works) -> Array:
    return np.array([[w.size.kind] for w in works.each if isinstance(w.size, Collective)])


class _Joined(NamedTuple):
    """How each exchange's GPUs are joined on each device [n, g]: the rate inside a node, how many of its GPUs share a
    node, how many nodes there are, whether it goes over PCIe; and of the cluster [1, g] what its fields say, NaN for an
    efficiency that is not known.
    """

    link: Array
    in_node: Array
    nodes: Array
    over_pcie: Array
    switched: Array
    efficiency: Array
    added_up: Array
    network_Bps: Array
    network_s: Array


def _joined(works: Works, cards: Cards) -> _Joined:
    clusters = [d.cluster or usual_cluster(d) for d in cards.devices]

    def column(name: str) -> Array:
        return np.array([[getattr(c, name) for c in clusters]])

    ranks, stride = np.maximum(works["ranks"], 1), np.maximum(works["stride"], 1)
    in_node = np.clip(column("gpus_per_node") // stride, 1, ranks)
    bare = ~column("switched") & (column("link_Bps") <= 1.05 * column("pcie_Bps"))
    over_pcie = bare | ((in_node - 1) * stride + 1 > column("linked"))
    return _Joined(
        np.where(over_pcie, column("pcie_Bps"), column("link_Bps")), in_node, np.ceil(ranks / in_node), over_pcie,
        column("switched"), np.array([[np.nan if c.efficiency is None else c.efficiency for c in clusters]]),
        column("switched") * np.array([[ADDED_UP.get(d.capability[0], 0.0) for d in cards.devices]]),
        np.maximum(column("network_Bps"), 1.0), column("network_s"),
    )  # fmt: skip


def processor_collective(works: Works, cards: Cards, fetch: Array) -> KernelTerms:
    """Takes no time: processors exchange nothing here."""
    return joined(works, cards, np.zeros_like(works.rate), np.zeros_like(works.rate))


SET = ConstantSet(
    "collective",
    (
        Parameter("collective.start_s", "seconds of an exchange whatever its size and number of GPUs", 5e-6, 0.3),
        Parameter("collective.hop_s", "seconds of a step from GPU to GPU", 0.5e-6, 1.0),
        Parameter("collective.growth", "the power of the number of steps by which latency grows", 1.2),
        Parameter("collective.all_to_all_steps", "an all-to-all's steps, as a share of a ring's", 0.7, 0.5),
        Parameter("collective.share", "of the link's rate: rings with large messages", 0.75, 0.3, 1.0),
        Parameter("collective.all_to_all_share", "the same of an all-to-all", 0.75, 0.3, 1.0),
        Parameter("collective.traffic_power", "the power of (n - 1) / n by which NVLink traffic grows", 0.7, 0.5, 1.0),
        Parameter("collective.reduce_power", "the same of an all-reduce", 0.7, 0.5, 1.0),
        Parameter("collective.overlap", "of the term between latency and bandwidth: rings", 1.0, 0.5),
        Parameter("collective.overlap_reduce", "the same of an all-reduce", 1.0, 0.5),
        Parameter("collective.overlap_to_all", "the same of an all-to-all", 1.0, 0.5),
        Parameter("collective.pcie_share", "of PCIe's rate: two GPUs with large messages", 0.7, 0.3, 1.0),
        Parameter("collective.pcie_crowding", "the power by which that falls with half the number of GPUs", 1.5, 0.5),
    ),
    corrections=(0.02, 0.02, 0.02),
    overhead_sd=1.0,
    usual_overhead=True,
    weight=1000.0,
)  # fmt: skip
FAMILY = KernelFamily(
    Collective, collective, processor_collective, lambda w, on_tensor: "collective", link_s=link_s, constants=(SET,)
)

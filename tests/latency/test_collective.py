"""Exchanges between GPUs: never faster than the link, and shaped as what was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpu_specs
from gpu_specs import Device
from op_models import Collective, Work
from tests.estimating import estimate
from tests.latency.conftest import kernels

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
MACHINES = ("h100-sxm", "a100-sxm4-40gb", "b200-sxm", "v100-sxm2-16gb", "gb200", "l4", "rtx-3090")


def work(kind: str, nbytes: int, ranks: int, stride: int = 1) -> Work:
    return Work(Collective(kind, nbytes, ranks, stride), "float16", "fp16", nbytes, nbytes, 0)


def seconds(w: Work, device: Device, method: str = "tile-wave") -> float:
    return float(estimate(kernels(w), [device], method).seconds[0, 0])


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(KINDS), st.integers(1, 2**34), st.integers(2, 64), st.sampled_from(MACHINES),
    st.sampled_from(("", *gpu_specs.clusters())), st.integers(1, 16), st.sampled_from(("tile-wave", "roofline")),
)  # fmt: skip
def test_no_exchange_beats_the_link(
    kind: str, nbytes: int, ranks: int, gpu: str, cluster: str, stride: int, method: str
) -> None:
    device = gpu_specs.load(gpu)
    if cluster:
        device = replace(device, cluster=gpu_specs.load_cluster(cluster))
    joined = device.cluster or gpu_specs.usual_cluster(device)
    sent = nbytes if kind == "send" else nbytes * (ranks - 1) / ranks
    took = seconds(work(kind, nbytes, ranks, stride), device, method)
    assert took >= sent / max(joined.link_Bps, joined.pcie_Bps) * (1 - 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_larger_messages_take_longer_and_reach_more_of_the_link(kind: str) -> None:
    device = gpu_specs.load("h100-sxm")
    sizes = [2**n for n in range(9, 31)]
    took = [seconds(work(kind, n, 8), device) for n in sizes]
    assert took == sorted(took)
    rates = [n / s for n, s in zip(sizes, took, strict=True)]
    assert rates == sorted(rates)


def test_an_all_reduce_sends_twice_what_an_all_gather_does() -> None:
    device = gpu_specs.load("a100-sxm4-40gb")
    ratio = seconds(work("all_reduce", 2**30, 8), device) / seconds(work("all_gather", 2**30, 8), device)
    assert 1.4 < ratio < 2.0  # and gains a little bandwidth


def test_few_gpus_reach_less_of_nvlink_and_more_of_a_shared_bus() -> None:
    """Measured: an all-gather of two A100 reaches half of the link by what they send, of eight 0.7; a bus is shared."""

    def reached(gpu: str, n: int) -> float:
        return 2**29 * (n - 1) / n / seconds(work("all_gather", 2**29, n), gpu_specs.load(gpu)) / 1e9

    two, four, eight = (reached("a100-sxm4-80gb", n) for n in (2, 4, 8))
    assert 0.45 < two / 300 < 0.55 and 0.65 < eight / 300 < 0.75 and two < four < eight
    assert reached("l40s", 2) > reached("l40s", 4) > reached("l40s", 8)


def test_a_switch_adds_up() -> None:
    """Bus bandwidth of 512 MiB in half precision, GB/s, by nccl-tests: rings on A100, and on up to 4 H200."""
    measured = {
        ("a100-sxm4-80gb", 8): 222, ("h200-sxm", 2): 317, ("h200-sxm", 4): 349, ("h200-sxm", 8): 460,
        ("b200-sxm", 4): 627, ("b200-sxm", 8): 693,
    }  # fmt: skip
    for (gpu, n), rate in measured.items():
        took = seconds(work("all_reduce", 2**29, n), gpu_specs.load(gpu))
        assert 2 * (n - 1) / n * 2**29 / took / 1e9 == pytest.approx(rate, rel=0.16)
    h200 = gpu_specs.load("h200-sxm")
    bridged = replace(h200, cluster=replace(gpu_specs.usual_cluster(h200), switched=False))
    once, twice = (seconds(work("all_reduce", 2**29, 8), d) for d in (h200, bridged))
    assert twice / once == pytest.approx(0.85 * 2 * 7 / 9, rel=0.02)


def test_groups_between_nodes_are_held_to_the_network() -> None:
    """Of 16 GPUs in two nodes eight share the way between them; groups of one GPU a node have it to themselves."""
    device = replace(gpu_specs.load("h100-sxm"), cluster=gpu_specs.load_cluster("dgx-h100"))
    message = 2**30
    inside, across = (seconds(work("all_reduce", message, n), device) for n in (8, 16))
    assert inside < across < 2 * inside
    alone = seconds(work("all_reduce", message, 2, 8), device)
    assert alone > message / 50e9


def test_a_clusters_efficiency_replaces_what_was_fitted() -> None:
    device = gpu_specs.load("l4")
    usual = gpu_specs.usual_cluster(device)
    w = work("all_reduce", 2**28, 8)
    fast, slow = (seconds(w, replace(device, cluster=replace(usual, efficiency=e))) for e in (0.8, 0.2))
    assert seconds(w, device) > slow > fast
    assert fast > 2**28 * 2 * 7 / 8 / (0.8 * usual.link_Bps)


def test_one_gpu_exchanges_nothing() -> None:
    w, device = work("all_reduce", 2**20, 1), gpu_specs.load("h100-sxm")
    assert np.isclose(seconds(w, device), seconds(work("all_gather", 2**20, 1), device))
    assert seconds(w, device) < 5e-6

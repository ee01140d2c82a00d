"""The figures of the shipped cards: they agree with each other, and each has a source."""

import re

import pytest

from gpu_specs import PIPES, ids, load
from gpu_specs.card_file import PCIE_PAYLOAD, PCIE_LANE_Bps
from tests.each import each

# dense tensor operations of one SM in one cycle, accumulating in fp32, by compute capability
GA100 = {"tf32": 1024, "fp16": 2048, "bf16": 2048, "int8": 4096, "int4": 8192}
GA10X = {"tf32": 512, "fp16": 1024, "bf16": 1024, "int8": 2048, "int4": 4096}
BLACKWELL = {"tf32": 4096, "fp16": 8192, "bf16": 8192, "fp8": 16384, "fp4": 32768}
PER_SM = {
    (3, 7): {},
    (5, 2): {},
    (6, 0): {},
    (6, 1): {},
    (7, 0): {"fp16": 1024},
    (7, 2): {"fp16": 1024, "int8": 2048},
    (7, 5): {"fp16": 1024, "int8": 2048, "int4": 4096},
    (8, 0): GA100,
    (8, 6): GA10X,
    (8, 7): GA100,
    (8, 9): GA10X | {"fp8": 2048},
    (9, 0): {"tf32": 2048, "fp16": 4096, "bf16": 4096, "fp8": 8192, "int8": 8192},
    (10, 0): BLACKWELL | {"int8": 16384},
    (10, 3): BLACKWELL | {"int8": 512, "fp4": 49152},
    (11, 0): BLACKWELL | {"int8": 16384},
    (12, 0): {"tf32": 512, "fp16": 1024, "bf16": 1024, "fp8": 2048, "int8": 2048, "fp4": 4096},
}
NO_TENSOR_CORES = {"gtx-1660", "gtx-1660-super", "gtx-1660-ti", "t1000", "t1000-8gb"}  # others of (7, 5) have them
SHARE = {"a10g": 1 / 2, "l20": 1 / 2, "l40": 1 / 2, "h20": 1 / 4}  # cards whose tensor cores do a part of that
HALVED = {"tf32", "fp16", "bf16", "fp8"}  # by GeForce cards, when they accumulate in fp32

# vector rates in units of fp32's, by compute capability; without an entry no rate is listed
FP64 = {(3, 7): 1 / 3, (5, 2): 1 / 32, (6, 0): 1 / 2, (6, 1): 1 / 32, (7, 0): 1 / 2, (7, 2): 1 / 2, (7, 5): 1 / 32}
FP64 |= {(8, 0): 1 / 2, (8, 6): 1 / 64, (8, 9): 1 / 64, (9, 0): 1 / 2}
FP64 |= {(10, 0): 1 / 2, (10, 3): 1 / 64, (11, 0): 1 / 64, (12, 0): 1 / 64}
FP16 = {(6, 0): 2, (6, 1): 1 / 64, (7, 0): 2, (7, 2): 2, (7, 5): 2, (8, 0): 4, (8, 6): 1, (8, 7): 2, (8, 9): 1}
FP16 |= {(9, 0): 2, (10, 0): 2, (10, 3): 2, (12, 0): 1}

# rates, in TFLOPS, that no such rule gives, each for its reason
EXPLAINED = {
    "h20": {"fp64": 1},  # held down for export
    "h800-sxm": {"fp64": 1},  # held down for export
    "gb300": {"fp64": 1.39, "tensor_int8": 166.7},  # a rack's rounded figures, divided
    "l20": {"tensor_int4": None},  # nobody published it
}

GIVEN = {
    *("nvml_names", "architecture", "capability", "node_nm", "sms", "lanes", "base_hz", "boost_hz"),
    *("smem_bytes", "threads_per_sm", "memory_kind", "memory_bus_bits", "memory_rate_bps", "bandwidth_Bps"),
    *("capacity_bytes", "l2_bytes", "tdp_W", "pcie_Bps"),
}

# facts that nobody published (base clocks), or that do not tell one card from another (names)
# (datasheets of workstation cards name no base clock)
NO_BASE = "quadro-rtx-4000 quadro-rtx-5000 quadro-rtx-6000 quadro-rtx-8000 t1000 t1000-8gb rtx-a2000 rtx-a2000-12gb"
NO_BASE += " rtx-a4500 rtx-a5500 rtx-4500-ada rtx-5000-ada rtx-pro-6000-max-q"
SHARED_MEMORY = {"xavier-nx", "orin-nano-8gb", "orin-nano-super-8gb", "orin-nx-16gb", "agx-orin-64gb", "thor"}
MISSING = {
    **{id: {"base_hz"} for id in NO_BASE.split()},
    **{id: {"base_hz"} for id in ("h20", "h800-sxm", "gh200", "gb200", "gb300", "thor")},
    **{id: {"nvml_names"} for id in SHARED_MEMORY - {"thor"}},
    "rtx-3080-12gb": {"nvml_names"},  # its name is also that of the card of 10 GB
}
C2C_GBps = {"gh200": 450, "gb200": 225, "gb300": 225}

each_card = each([load(id) for id in ids()], name=lambda card: card.id)
near = pytest.approx


def test_all_cards_are_there():
    first = "p100-pcie-16gb v100-pcie-32gb t4 p4 a10 a30 a100-pcie-40gb a100-pcie-80gb a100-sxm4-80gb l4 l40s"
    assert set(ids()) >= {*first.split(), "rtx-4090", "h100-sxm", "h200-sxm", "b200-sxm"}
    assert set(ids()) >= {*EXPLAINED, *MISSING, *SHARE, *NO_TENSOR_CORES, *SHARED_MEMORY, *C2C_GBps}
    assert len(ids()) >= 101


@each_card
def test_fp32_rate_is_sms_times_lanes_times_two_times_boost(card):
    assert card.dense_flops["fp32"] == near(card.sms * card.lanes * 2 * card.boost_hz, rel=0.03)


@each_card
def test_bandwidth_is_bus_times_data_rate(card):
    assert card.bandwidth_Bps == near(card.memory_bus_bits / 8 * card.memory_rate_bps, rel=0.03)


def tensor_rates(card):
    """What the architecture gives, by pipe."""
    share = SHARE.get(card.id, 1)
    for dtype, rate in PER_SM[card.capability].items() if card.id not in NO_TENSOR_CORES else ():
        half = 1 / 2 if "GeForce" in card.name and dtype in HALVED else 1
        # (10, 3) has hardly any int8 left, and what is there was not stated with the other tensor rates
        clock = card.boost_hz if (card.capability, dtype) == ((10, 3), "int8") else card.tensor_hz
        yield f"tensor_{dtype}", card.sms * rate * share * half * clock


def vector_rates(card):
    """What the architecture gives, by pipe, with how closely."""
    fp32 = card.sms * card.lanes * 2 * card.boost_hz
    for pipe, ratios, rel in (("fp64", FP64, 0.06), ("fp16", FP16, 0.04)):
        if card.capability in ratios:
            yield pipe, near(fp32 * ratios[card.capability], rel=rel)


@each_card
def test_tensor_rates_are_the_dense_rates_of_the_architecture_and_no_others(card):
    explained = EXPLAINED.get(card.id, {})
    rates = {pipe: rate for pipe, rate in tensor_rates(card) if pipe not in explained}
    listed = {pipe: rate for pipe, rate in card.dense_flops.items() if pipe.startswith("tensor_")}
    assert {pipe: rate for pipe, rate in listed.items() if pipe not in explained} == near(rates, rel=0.03)


@each_card
def test_vector_rates_keep_the_ratios_of_the_architecture(card):
    explained = EXPLAINED.get(card.id, {})
    expected = {pipe: rate for pipe, rate in vector_rates(card) if pipe not in explained}
    listed = {pipe: card.dense_flops[pipe] for pipe in ("fp64", "fp16") if pipe in card.dense_flops}
    assert {pipe: rate for pipe, rate in listed.items() if pipe not in explained} == expected


@pytest.mark.parametrize(("id", "pipe"), [(id, pipe) for id, pipes in EXPLAINED.items() for pipe in pipes])
def test_an_explained_rate_is_the_one_explained_and_no_rule_gives_it(id, pipe):
    card, published = load(id), EXPLAINED[id][pipe]
    expected = dict(vector_rates(card)) | {key: near(rate, rel=0.03) for key, rate in tensor_rates(card)}
    assert card.dense_flops.get(pipe) == (None if published is None else near(published * 1e12))
    assert card.dense_flops.get(pipe) != expected[pipe]


@each_card
def test_accumulating_in_fp16_doubles_what_a_geforce_card_halves(card):
    stated = [note for note in card.notes if note.startswith("Accumulating in fp16 gives")]
    assert bool(stated) == ("GeForce" in card.name and "tensor_fp16" in card.dense_flops)
    figures = [float(figure) for note in stated for figure in re.findall(r"[0-9]+(?:\.[0-9]+)?(?= \(|\.$| and)", note)]
    halved = [card.dense_flops[pipe] / 1e12 for pipe in ("tensor_fp16", "tensor_fp8") if pipe in card.dense_flops]
    if stated:
        assert figures == near([2 * rate for rate in halved], rel=0.02)


@each_card
def test_figures_are_in_si_units(card):
    assert 0.5e9 < (card.base_hz or card.tensor_hz) <= card.tensor_hz <= card.boost_hz < 3e9
    assert 5e10 < card.bandwidth_Bps < 1e13
    assert 4 * 2**30 <= card.capacity_bytes <= 300 * 2**30
    assert 2**19 <= card.l2_bytes < 2**28
    assert 5 <= card.node_nm <= 28
    assert 10 <= card.tdp_W <= 1400
    assert card.nvlink_Bps == 0 or 5e10 <= card.nvlink_Bps <= 1.8e12
    assert 1e10 < card.pcie_Bps <= 4.5e11
    assert 48 * 2**10 <= card.smem_bytes <= 228 * 2**10
    assert card.threads_per_sm in (1024, 1536, 2048)
    assert card.kind == "gpu"
    assert list(card.dense_flops) == [pipe for pipe in PIPES if pipe in card.dense_flops]


def test_an_l4_field_by_field():
    l4 = load("l4")
    assert (l4.id, l4.name, l4.architecture, l4.capability) == ("l4", "NVIDIA L4", "Ada", (8, 9))
    assert (l4.node_nm, l4.sms, l4.lanes, l4.threads_per_sm) == (5, 58, 128, 1536)
    assert (l4.base_hz, l4.boost_hz, l4.tensor_hz) == (795e6, 2040e6, 2040e6)
    assert (l4.memory_kind, l4.memory_bus_bits, l4.memory_rate_bps) == ("GDDR6", 192, 12.5e9)
    assert (l4.bandwidth_Bps, l4.capacity_bytes) == (300.1e9, 24 * 2**30)
    assert (l4.l2_bytes, l4.l2_partitions, l4.smem_bytes) == (48 * 2**20, 1, 100 * 2**10)
    assert (l4.tdp_W, l4.nvlink_Bps, l4.dense_flops["tensor_fp16"]) == (72, 0, 121e12)
    assert l4.pcie_Bps == near(28.8e9, rel=0.001)


def test_pcie_doubles_with_each_generation_and_stays_below_the_raw_rate():
    third, fourth, fifth = (load(id).pcie_Bps for id in ("t4", "a100", "h100"))
    assert (fourth, fifth) == (near(2 * third), near(4 * third))
    assert 13e9 < third < 8e9 * 16 / 8


@each_card
def test_what_is_no_pcie_link_is_a_c2c_link_or_a_shared_memory(card):
    if card.id in SHARED_MEMORY:
        assert card.memory_kind.startswith("LPDDR")
        assert card.pcie_Bps == near(card.bandwidth_Bps / 2, rel=0.001)
    elif card.id in C2C_GBps:
        assert card.pcie_Bps == C2C_GBps[card.id] * 1e9
    else:
        lanes = 8 if card.id in ("a2", "rtx-4060", "rtx-4060-ti", "rtx-5060-ti") else 16
        links = [PCIE_LANE_Bps[gen] * lanes * PCIE_PAYLOAD for gen in PCIE_LANE_Bps]
        assert not card.memory_kind.startswith("LPDDR")
        assert card.pcie_Bps in links


@each_card
def test_every_fact_has_exactly_one_source_and_every_source_a_fact(card):
    stated = [fact for source in card.sources for fact in source.facts]
    assert len(stated) == len(set(stated))
    assert {*GIVEN, *card.dense_flops} - set(stated) == MISSING.get(card.id, set())
    for source in card.sources:
        assert source.facts
        assert "names no source" not in source.text
        assert all(card.source_of(fact) is source for fact in source.facts)


@each_card
def test_optional_facts_are_sourced_wherever_they_are_given(card):
    assert (card.source_of("nvlink_Bps") is not None) == (card.nvlink_Bps > 0)
    assert (card.source_of("tensor_hz") is not None) == (card.tensor_hz != card.boost_hz)
    assert (card.source_of("l2_partitions") is not None) == (card.l2_partitions != 1)
    assert (card.source_of("base_hz") is not None) == (card.base_hz is not None)


@each_card
def test_general_knowledge_is_unverified(card):
    for source in card.sources:
        assert ("general knowledge" in source.text) == (source.status == "unverified")


@each_card
def test_power_modes_are_those_of_modules_and_leave_no_more_than_there_is(card):
    assert bool(card.power_modes) == (card.id in SHARED_MEMORY - {"xavier-nx", "thor"})
    assert bool(card.cpu_hz) == bool(card.cpu_cores) == (card.id in SHARED_MEMORY - {"xavier-nx"})
    for mode in card.power_modes:
        assert mode.sms <= card.sms and mode.sms % 2 == 0  # whole TPCs are switched off
        assert mode.cpu_cores <= card.cpu_cores and mode.cpu_hz <= card.cpu_hz
        assert mode.memory_rate_bps <= 1.001 * card.memory_rate_bps
        assert mode.name.removeprefix("MODE_") in (f"{mode.tdp_W:g}W", "MAXN", "MAXN_SUPER")


def test_unverified_facts_are_listed():
    assert load("v100").unverified == ("tdp_W",)
    assert load("b200").unverified == ("l2_partitions", "fp16")
    assert load("gh200").unverified == ("tdp_W", "pcie_Bps", "nvlink_Bps")
    assert load("thor").unverified == ("node_nm",)
    assert load("l4").unverified == ()
    assert load("l4").source_of("tensor_fp4") is None

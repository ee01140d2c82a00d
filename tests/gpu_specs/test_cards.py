"""The figures of the shipped cards: they agree with each other, and each has a source."""

import pytest

from gpu_specs import PIPES, ids, load

# dense tensor operations of one SM in one cycle, accumulating in fp32, by compute capability
PER_SM = {
    (6, 0): {},
    (6, 1): {},
    (7, 0): {"fp16": 1024},
    (7, 5): {"fp16": 1024, "int8": 2048, "int4": 4096},
    (8, 0): {"tf32": 1024, "fp16": 2048, "bf16": 2048, "int8": 4096, "int4": 8192},
    (8, 6): {"tf32": 512, "fp16": 1024, "bf16": 1024, "int8": 2048, "int4": 4096},
    (8, 9): {"tf32": 512, "fp16": 1024, "bf16": 1024, "fp8": 2048, "int8": 2048, "int4": 4096},
    (9, 0): {"tf32": 2048, "fp16": 4096, "bf16": 4096, "fp8": 8192, "int8": 8192},
    (10, 0): {"tf32": 4096, "fp16": 8192, "bf16": 8192, "fp8": 16384, "int8": 16384, "fp4": 32768},
}
GEFORCE = {"rtx-4090": {"tf32": 256, "fp16": 512, "bf16": 512, "fp8": 1024}}  # fp32 accumulation at half rate

# vector rates in units of fp32's, by compute capability
FP64 = {(6, 0): 1 / 2, (6, 1): 1 / 32, (7, 0): 1 / 2, (7, 5): 1 / 32, (8, 0): 1 / 2, (8, 6): 1 / 64}
FP64 |= {(8, 9): 1 / 64, (9, 0): 1 / 2, (10, 0): 1 / 2}
FP16 = {(6, 0): 2, (6, 1): 1 / 64, (7, 0): 2, (7, 5): 2, (8, 0): 4, (8, 6): 1, (8, 9): 1}
FP16 |= {(9, 0): 2, (10, 0): 2}

GIVEN = {
    *("nvml_names", "architecture", "capability", "node_nm", "sms", "lanes", "base_hz", "boost_hz"),
    *("smem_bytes", "threads_per_sm", "memory_kind", "memory_bus_bits", "memory_rate_bps", "bandwidth_Bps"),
    *("capacity_bytes", "l2_bytes", "tdp_W", "pcie_Bps"),
}

each_card = pytest.mark.parametrize("card", [load(id) for id in ids()], ids=lambda card: card.id)
near = pytest.approx


def test_the_fifteen_cards_are_there():
    first = "p100-pcie-16gb v100-pcie-32gb t4 p4 a10 a30 a100-pcie-40gb a100-pcie-80gb a100-sxm4-80gb l4 l40s"
    assert set(ids()) >= {*first.split(), "rtx-4090", "h100-sxm", "h200-sxm", "b200-sxm"}


@each_card
def test_fp32_rate_is_sms_times_lanes_times_two_times_boost(card):
    assert card.dense_flops["fp32"] == near(card.sms * card.lanes * 2 * card.boost_hz, rel=0.03)


@each_card
def test_bandwidth_is_bus_times_data_rate(card):
    assert card.bandwidth_Bps == near(card.memory_bus_bits / 8 * card.memory_rate_bps, rel=0.03)


@each_card
def test_tensor_rates_are_the_dense_rates_of_the_architecture_and_no_others(card):
    per_sm = PER_SM[card.capability] | GEFORCE.get(card.id, {})
    rates = {f"tensor_{dtype}": card.sms * rate * card.tensor_hz for dtype, rate in per_sm.items()}
    listed = {pipe: rate for pipe, rate in card.dense_flops.items() if pipe.startswith("tensor_")}
    assert listed == near(rates, rel=0.03)


@each_card
def test_vector_rates_keep_the_ratios_of_the_architecture(card):
    rates = card.dense_flops
    assert rates["fp64"] == near(rates["fp32"] * FP64[card.capability], rel=0.06)
    assert rates["fp16"] == near(rates["fp32"] * FP16[card.capability], rel=0.04)


@each_card
def test_figures_are_in_si_units(card):
    assert 0.5e9 < card.base_hz <= card.tensor_hz <= card.boost_hz < 3e9
    assert 1e11 < card.bandwidth_Bps < 1e13
    assert 8 * 2**30 <= card.capacity_bytes <= 300 * 2**30
    assert 2**21 <= card.l2_bytes < 2**28
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
def test_every_fact_has_exactly_one_source_and_every_source_a_fact(card):
    stated = [fact for source in card.sources for fact in source.facts]
    assert len(stated) == len(set(stated))
    assert {*GIVEN, *card.dense_flops} <= set(stated)
    for source in card.sources:
        assert source.facts
        assert "names no source" not in source.text
        assert all(card.source_of(fact) is source for fact in source.facts)


@each_card
def test_optional_facts_are_sourced_wherever_they_are_given(card):
    assert (card.source_of("nvlink_Bps") is not None) == (card.nvlink_Bps > 0)
    assert (card.source_of("tensor_hz") is not None) == (card.tensor_hz != card.boost_hz)
    assert (card.source_of("l2_partitions") is not None) == (card.l2_partitions != 1)


@each_card
def test_general_knowledge_is_unverified(card):
    for source in card.sources:
        assert ("general knowledge" in source.text) == (source.status == "unverified")


def test_unverified_facts_are_listed():
    assert load("v100").unverified == ("tdp_W",)
    assert load("b200").unverified == ("l2_partitions", "fp16")
    assert load("l4").unverified == ()
    assert load("l4").source_of("tensor_fp4") is None

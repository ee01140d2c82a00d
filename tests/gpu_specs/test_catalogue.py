"""Which names mean which card."""

import copy
import pickle
from dataclasses import FrozenInstanceError

import pytest

from gpu_specs import Rates, SpecError, UnknownDevice, catalogue, ids, load, resolve


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("l4", "l4"),
        ("L4", "l4"),
        ("NVIDIA L4", "l4"),
        ("Tesla P4", "p4"),
        ("Tesla T4", "t4"),
        ("T4", "t4"),
        ("Tesla P100-PCIE-16GB", "p100-pcie-16gb"),
        ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A30", "a30"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("a100_sxm4 80GB", "a100-sxm4-80gb"),
        ("l40s", "l40s"),
        ("rtx4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("h200_sxm", "h200-sxm"),
        ("NVIDIA H200", "h200-sxm"),
        ("h200", "h200-sxm"),
        ("b200_sxm", "b200-sxm"),
        ("B200 SXM", "b200-sxm"),
        ("NVIDIA B200", "b200-sxm"),
    ],
)
def test_a_name_that_means_one_card(name, id):
    assert resolve(name) == (id, None)
    assert load(name).id == id


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("a100", "a100-sxm4-80gb"),
        ("a100_sxm", "a100-sxm4-80gb"),
        ("a100_80", "a100-sxm4-80gb"),
        ("a100_40", "a100-pcie-40gb"),
        ("A100 PCIe", "a100-pcie-80gb"),
        ("h100", "h100-sxm"),
        ("V100", "v100-pcie-32gb"),
        ("P100", "p100-pcie-16gb"),
    ],
)
def test_a_short_name_is_taken_with_a_remark(name, id):
    assert resolve(name) == (id, f"gpu {name!r} taken as {id}")
    assert load(name).id == id


@pytest.mark.parametrize(
    "name",
    [
        "V100-PCIE-16GB",
        "V100-SXM2-32GB",
        "NVIDIA DGX-1 (1x V100 32GB)",
        "NVIDIA A100-SXM4-40GB",
        "NVIDIA A10G",
        "NVIDIA L40",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA H100 PCIe",
        "NVIDIA H200 NVL",
        "GH200 SXM",
        "gb200",
        "T4G",
        "NVIDIA",
        "",
    ],
)
def test_another_card_is_not_taken_for_a_near_one(name):
    with pytest.raises(UnknownDevice, match="unknown gpu"):
        resolve(name)
    with pytest.raises(UnknownDevice):
        load(name)


def test_an_unknown_name_is_answered_with_the_nearest_ids_and_how_to_list_them():
    with pytest.raises(UnknownDevice) as caught:
        load("rtx-4080")
    assert "'rtx-4080'; nearest: rtx-4090" in str(caught.value)
    assert "onnxperf gpus" in str(caught.value)
    with pytest.raises(UnknownDevice, match="a100-sxm4-80gb"):
        load("A100-SXM4-40GB")
    assert isinstance(caught.value, SpecError) and isinstance(caught.value, ValueError)
    with pytest.raises(UnknownDevice) as hopeless:
        load("quantum\x1b[31m" * 1000)
    assert "nearest" not in str(hopeless.value)
    assert len(str(hopeless.value)) < 300 and str(hopeless.value).isprintable()


def test_no_two_cards_claim_the_same_name():
    claims: dict[str, str] = {}
    for id in ids():
        card = load(id)
        for name in (card.id, *card.nvml_names, *card.aliases, *card.short_names):
            assert claims.setdefault(catalogue._key(name), id) == id, name


@pytest.mark.parametrize("id", ids())
def test_every_name_a_card_gives_leads_to_it(id):
    card = load(id)
    for name in (card.id, card.id.upper(), *card.nvml_names, *card.aliases, *card.short_names):
        assert resolve(name)[0] == id
    for name in card.short_names:
        assert resolve(name)[1] is not None
    for name in card.nvml_names:
        assert resolve(name)[1] is None


def test_an_id_needs_only_its_own_file(monkeypatch):
    read = []
    monkeypatch.setattr(catalogue, "read", lambda path: read.append(path.stem) or "a card")
    catalogue._shipped.cache_clear()
    assert catalogue.load("Tesla V100-PCIE-32GB") == "a card"
    assert catalogue.load("v100_pcie_32gb") == "a card"
    catalogue._shipped.cache_clear()
    assert read == ["v100-pcie-32gb"]


def test_a_device_is_frozen_hashable_and_fit_for_other_processes():
    card = load("a100")
    assert load("a100-sxm4-80gb") is card
    twin = pickle.loads(pickle.dumps(card))
    assert twin == card == copy.deepcopy(card)
    assert hash(twin) == hash(card)
    assert len({card, twin, load("l4")}) == 2
    with pytest.raises(FrozenInstanceError):
        card.sms = 1
    with pytest.raises(TypeError):
        card.dense_flops["fp32"] = 1e15


def test_rates_are_a_mapping():
    rates = load("a100").dense_flops
    assert rates["tensor_fp16"] == 312e12
    assert rates.get("tensor_fp8") is None and "tensor_fp8" not in rates
    assert dict(rates) == dict(rates.pairs) and len(rates) == 8
    assert rates == Rates(rates.pairs) != Rates()
    with pytest.raises(KeyError):
        rates["tensor_fp8"]

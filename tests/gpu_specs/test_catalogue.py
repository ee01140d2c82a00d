"""Which names mean which card."""

import copy
import csv
import gzip
import pickle
import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from gpu_specs import Rates, SpecError, UnknownDevice, catalogue, ids, load, resolve

DATA = Path(__file__).parents[3] / "shared" / "data"


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
        ("V100-PCIE-16GB", "v100-pcie-16gb"),
        ("Tesla V100-PCIE-16GB", "v100-pcie-16gb"),
        ("V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("NVIDIA DGX-1 (1x V100 32GB)", "v100-sxm2-32gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb"),
        ("NVIDIA A800-SXM4-80GB", "a800-sxm4-80gb"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A40", "a40"),
        ("NVIDIA L40", "l40"),
        ("Tesla K80", "k80"),
        ("Tesla M40", "m40"),
        ("Quadro M6000", "m6000"),
        ("NVIDIA GeForce GTX TITAN X", "titan-x-maxwell"),
        ("GTX TITAN X", "titan-x-maxwell"),
        ("TITAN X (Pascal)", "titan-x-pascal"),
        ("TitanX_Pascal", "titan-x-pascal"),
        ("TitanXp", "titan-xp"),
        ("1080Ti", "gtx-1080-ti"),
        ("2080 Ti", "rtx-2080-ti"),
        ("3090", "rtx-3090"),
        ("rtx3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX 5000 Ada Generation", "rtx-5000-ada"),
        ("Quadro RTX 6000", "quadro-rtx-6000"),
        ("quadro_rtx_5000", "quadro-rtx-5000"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-max-q"),
        ("NVIDIA GeForce RTX 3080 Ti", "rtx-3080-ti"),
        ("RTX 4080 Super", "rtx-4080-super"),
        ("GeForce GTX 1080", "gtx-1080"),
        ("NVIDIA GeForce GTX 1060 6GB", "gtx-1060-6gb"),
        ("NVIDIA T1000", "t1000"),
        ("NVIDIA T1000 8GB", "t1000-8gb"),
        ("NVIDIA RTX A2000 12GB", "rtx-a2000-12gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA H800", "h800-sxm"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("gb200", "gb200"),
        ("GB200 SXM", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300-sxm"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA Thor", "thor"),
        ("Jetson AGX Orin 64GB", "agx-orin-64gb"),
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
        ("a100_40", "a100-sxm4-40gb"),
        ("A100 PCIe", "a100-pcie-80gb"),
        ("h100", "h100-sxm"),
        ("V100", "v100-pcie-32gb"),
        ("P100", "p100-pcie-16gb"),
        ("v100-sxm2", "v100-sxm2-32gb"),
        ("Tesla M40 24GB", "m40"),
        ("TitanX", "titan-x-maxwell"),
        ("3080", "rtx-3080"),
        ("GTX 1060", "gtx-1060-6gb"),
        ("A2000", "rtx-a2000"),
        ("RTX 5060 Ti 8 GB", "rtx-5060-ti"),
        ("a6000", "rtx-a6000"),
        ("GH200 SXM", "gh200"),
        ("b300", "b300-sxm"),
        ("RTX PRO 6000", "rtx-pro-6000-workstation"),
        ("Orin (nvgpu)", "agx-orin-64gb"),
        ("orin", "agx-orin-64gb"),
        ("orin nano", "orin-nano-8gb"),
        ("Xavier", "xavier-nx"),
    ],
)
def test_a_short_name_is_taken_with_a_remark(name, id):
    assert resolve(name) == (id, f"gpu {name!r} taken as {id}")
    assert load(name).id == id


@pytest.mark.parametrize(
    "name",
    [
        "V100-SXM3-32GB",
        "NVIDIA A100-PG509-200",
        "NVIDIA A10M",
        "NVIDIA L40G",
        "NVIDIA H20-3e",
        "NVIDIA H800 PCIe",
        "NVIDIA GH200 144G HBM3e",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3080 Ti Laptop GPU",
        "NVIDIA GeForce RTX 4070 Ti SUPER",
        "RTX 4000",  # a Quadro or of the Ada generation, which differ
        "RTX 5000",
        "RTX 6000",
        "Quadro RTX 6000 with Max-Q Design",
        "Quadro T1000",
        "GeForce GTX 1060 3GB",
        "Jetson Orin Nano 4GB",
        "b60",
        "RX6900XT",
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


@pytest.mark.parametrize(
    "name", ["mi300x", "MI-250", "AMD Instinct MI210", "RX 7900 XTX", "gaudi3", "Intel Arc A770", "tpu-v5e", "inf2"]
)
def test_a_card_of_another_maker_has_no_near_one(name):
    with pytest.raises(UnknownDevice) as caught:
        load(name)
    assert f"unknown gpu {name!r}; GPUs here are NVIDIA's alone; `onnxperf gpus` lists" in str(caught.value)


def test_an_unknown_name_is_answered_with_the_nearest_ids_and_how_to_list_them():
    with pytest.raises(UnknownDevice) as caught:
        load("rtx-4095")
    assert "'rtx-4095'; nearest: rtx-4090" in str(caught.value)
    assert "onnxperf gpus" in str(caught.value)
    with pytest.raises(UnknownDevice, match="a100-sxm4-80gb"):
        load("A100-SXM4-60GB")
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


# the cards of the tables of measurements, and every name they have there
CARDS_OF_THE_DATA = {
    "m40": "M40",
    "titan-x-maxwell": "TitanX",
    "titan-x-pascal": "TitanX_Pascal",
    "titan-xp": "TitanXp",
    "gtx-1080-ti": "1080Ti",
    "p4": "Tesla P4",
    "t4": "T4; t4; Tesla T4",
    "p100-pcie-16gb": "P100; Tesla P100-PCIE-16GB",
    "v100-pcie-32gb": "V100; v100; Tesla V100-PCIE-32GB",
    "v100-pcie-16gb": "V100-PCIE-16GB; v100-pcie-16gb",
    "v100-sxm2-16gb": "V100-SXM2-16GB; v100-sxm2-16gb",
    "v100-sxm2-32gb": "V100-SXM2-32GB; v100-sxm2-32gb; NVIDIA DGX-1 (1x V100 32GB)",
    "quadro-rtx-6000": "quadro-rtx-6000",
    "rtx-a4000": "RTX A4000",
    "a30": "A30; a30; NVIDIA A30",
    "a40": "a40",
    "l40": "l40",
    "l40s": "l40s",
    "l4": "NVIDIA L4",
    "rtx-2060": "rtx-2060",
    "rtx-3060": "rtx-3060",
    "rtx-3080-12gb": "rtx-3080-12gb",
    "rtx-3090": "RTX 3090",
    "rtx-a5000": "rtx-a5000",
    "rtx-a6000": "rtx-a6000",
    "rtx-5000-ada": "rtx-5000-ada",
    "rtx-6000-ada": "rtx-6000-ada",
    "l20": "l20",
    "orin-nx-16gb": "orin-nx-16gb",
    "orin-nano-super-8gb": "orin-nano-super-8gb",
    "rtx-4090": "RTX 4090",
    "a100-pcie-40gb": "a100-pcie-40gb; NVIDIA A100-PCIE-40GB",
    "a100-sxm4-40gb": "a100_40; NVIDIA A100-SXM4-40GB",
    "a100-pcie-80gb": "A100 PCIe; NVIDIA A100 80GB PCIe",
    "a100-sxm4-80gb": "a100; a100_80; a100_sxm; a100-sxm-80gb; A100 SXM; A100-SXM4-80GB",
    "h100-pcie": "h100_pcie",
    "h100-sxm": "h100; h100_sxm; NVIDIA H100 80GB HBM3",
    "h20": "h20",
    "h800-sxm": "h800",
    "gh200": "GH200 SXM",
    "gb200": "gb200; GB200 SXM",
    "h200-sxm": "h200; h200_sxm; H200 SXM",
    "b200-sxm": "b200_sxm; B200 SXM",
    "b300-sxm": "b300_sxm",
    "gb300": "gb300",
    "rtx-pro-6000-server": "rtx_pro_6000_server",
}
NAMES_OF_THE_DATA = {name: id for id, names in CARDS_OF_THE_DATA.items() for name in names.split("; ")}
OTHER_MAKERS = {"b60", "RX6900XT", "rx6900xt"}
#: Cards that are not in the catalogue, names with a remark, and a remark in place of a name.
NO_NAMES = {
    "H200 143GB",
    "Tesla T4 (Kaggle)",
    "not in the excerpt (author measures on A100-SXM4-80GB, ND96amsr_A100_v4)",
}
HOW_IT_WAS_LAUNCHED = re.compile("_(gsync|graph|pt)$")  # some tables append this to the card's name


@pytest.mark.parametrize("name", NAMES_OF_THE_DATA)
def test_a_name_of_the_measurements_means_its_card(name):
    assert resolve(name)[0] == NAMES_OF_THE_DATA[name]


@pytest.mark.parametrize("name", [*sorted(OTHER_MAKERS), "l40_gsync", "a40_graph", "h200_pt"])
def test_other_makers_cards_and_ways_to_launch_are_no_names(name):
    with pytest.raises(UnknownDevice):
        resolve(name)


def names_of(table):
    """The values of a table's device columns."""
    columns = ("gpu", "device", "gpu_norm", "system")
    if table.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet", reason="reading Parquet tables needs pyarrow")
        known = [column for column in columns if column in parquet.read_schema(table).names]
        found = parquet.read_table(table, columns=known)
        return {name for column in known for name in found[column].unique().to_pylist()}
    with (gzip.open if table.suffix == ".gz" else open)(table, "rt", encoding="utf-8", newline="") as lines:
        return {row[column] for row in csv.DictReader(lines) for column in columns if column in row}


TABLES = [path for end in ("csv", "csv.gz", "parquet") for path in sorted(DATA.rglob(f"*.{end}"))]


@pytest.mark.skipif(not TABLES, reason="the tables of measurements (../shared/data) are not here")
@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.name)
def test_every_device_of_the_measurements_is_known_or_another_makers(table):
    names = {HOW_IT_WAS_LAUNCHED.sub("", name) for name in names_of(table) if name}
    assert names <= {*NAMES_OF_THE_DATA, *OTHER_MAKERS, *NO_NAMES}


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

"""Machines that join several cards: those that ship, what is usual for a card, and files that can't be used."""

from pathlib import Path

import pytest

import gpu_specs

GOOD = """
kind = "cluster"
name = "two boards"

[node]
gpus = 2
link_GBps = 25
pcie_GBps = 12
switched = false

[[source]]
status = "seen"
text = "my own"
facts = ["gpus", "link_GBps", "pcie_GBps", "switched"]
"""


@pytest.mark.parametrize("name", gpu_specs.clusters())
def test_clusters_that_ship_have_a_source_for_every_figure(name: str) -> None:
    c = gpu_specs.load_cluster(name)
    assert c.name == name and c.sources and c.network_Bps and c.linked <= c.gpus_per_node
    assert 1e9 < c.pcie_Bps <= c.link_Bps < 1e12


def test_cards_are_joined_as_they_usually_are() -> None:
    def usual(id: str) -> tuple[int, bool, float]:
        c = gpu_specs.usual_cluster(gpu_specs.load(id))
        return c.linked, c.switched, c.link_Bps / 1e9

    assert usual("a100-sxm4-40gb") == (8, True, 300) and usual("b200-sxm") == (8, True, 900)
    assert usual("gb200") == (72, True, 900) and usual("v100-sxm2-16gb") == (8, False, 150)
    assert usual("a100-pcie-40gb") == (2, False, 300) and usual("h200-nvl")[0] == 4
    linked, switched, rate = usual("l4")
    assert (linked, switched) == (8, False) and rate == pytest.approx(28.8, rel=1e-3)


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD, encoding="utf-8")
    c = gpu_specs.load_cluster(str(path))
    assert (c.name, c.gpus_per_node, c.linked, c.network_Bps) == ("mine", 2, 2, 0)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("gpus = 2", "gpus = 0", "gpus in .node. is 0; it needs a number from"),
        ("gpus = 2", "gpus = 2\nlinked = 3", "no more of them linked than there are"),
        ("gpus = 2", "gpus = 2\nefficiency = 1.5", "a number up to 1"),
        ("link_GBps = 25", "", "link_GBps in .node. is missing"),
        ("link_GBps = 25", "link_GBs = 25", "did you mean 'link_GBps'"),
        ('"link_GBps", ', "", "no ..source.. names link_GBps"),
        ('kind = "cluster"', 'kind = "host"', "kind is 'host'; it needs one of cluster"),
        ("switched = false", "switched = 1", "true or false"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, before: str, after: str, says: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(before, after, 1), encoding="utf-8")
    with pytest.raises(gpu_specs.SpecError, match=says):
        gpu_specs.load_cluster(str(path))


def test_an_unknown_name_lists_those_that_are_known() -> None:
    with pytest.raises(gpu_specs.SpecError, match=r"did you mean dgx-h100.*dgx-a100"):
        gpu_specs.load_cluster("dgx-h10")
    with pytest.raises(gpu_specs.SpecError, match=r"unknown cluster 'x': it is one of dgx-1-v100, "):
        gpu_specs.load_cluster("x")

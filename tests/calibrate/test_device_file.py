"""Device files hold what calibration found, load like any other, and can be calibrated again."""

import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpu_specs
from gpu_specs import Corrections, Device, Rates
from onnxperf.calibrate.device_file import file_of

FOUND = Corrections(
    1.11, 0.92, 1.3, 1.7, 1.05, Rates((("Conv depthwise", 0.6), ('a "b" \\ c', 2.0))), 0.21, 'made up: "x" \\ y'
)


def written(device: Device, folder: Path, link: float | None = None) -> Device:
    path = folder / "written.toml"
    path.write_text(file_of(device, link), encoding="utf-8")
    return gpu_specs.load(path)


def near(one: object, other: object) -> bool:
    """Whether figures agree to five digits, and everything else exactly."""
    if isinstance(one, Rates) and isinstance(other, Rates):
        return dict(one) == pytest.approx(dict(other), rel=1e-5)
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return one == pytest.approx(other, rel=1e-5)
    return one == other


def differing(one: Device, other: Device) -> set[str]:
    return {f.name for f in dataclasses.fields(Device) if not near(getattr(one, f.name), getattr(other, f.name))}


@pytest.mark.parametrize("id", gpu_specs.ids())
def test_a_cards_file_is_its_own_with_corrections(id: str, tmp_path: Path) -> None:
    card = replace(gpu_specs.load(id), corrections=FOUND)
    back = written(card, tmp_path)
    assert back.corrections == FOUND
    assert differing(card, back) <= {"id", "aliases", "short_names", "file"}
    assert not back.aliases and not back.short_names
    linked = written(card, tmp_path, 21.5e9)
    assert linked.pcie_Bps == 21.5e9
    source = linked.source_of("pcie_Bps")
    assert source is not None and source.text == FOUND.source
    assert differing(back, linked) <= {"pcie_Bps", "sources"}
    assert set(linked.unverified) <= set(card.unverified)


def test_a_processors_file_is_whole(nominal_cpu: Device, tmp_path: Path) -> None:
    processor = replace(nominal_cpu, corrections=FOUND)
    assert differing(processor, written(processor, tmp_path)) <= {"id", "aliases", "short_names", "file"}
    small = replace(processor, l3_bytes=0, corrections=replace(FOUND, half_width=None, operators=Rates()))
    assert differing(small, written(small, tmp_path)) <= {"id", "sources", "l3_bytes", "file"}


@given(name=st.text(max_size=40), says=st.text(max_size=40), operator=st.text(max_size=20))
@pytest.mark.slow
def test_names_of_strangers_cannot_break_the_file(
    name: str, says: str, operator: str, nominal_cpu: Device, tmp_path_factory: pytest.TempPathFactory
) -> None:
    corrections = Corrections(operators=Rates(((operator, 1.5),)), source=says)
    back = written(replace(nominal_cpu, name=name, corrections=corrections), tmp_path_factory.mktemp("card"))
    assert list(back.corrections.operators.values()) == [1.5]
    assert back.corrections.compute == 1.0 and back.name.isprintable()

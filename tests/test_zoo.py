"""The samples and their table: what is there is small, described and counted."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from tests.zoo import COUNTED, SAMPLES, zoo

__all__ = ["zoo"]  # a fixture

FILES = {path.stem: path for path in SAMPLES.glob("*.onnx")}
ROWS = re.findall(r"^\| `([^`]+)\.onnx` \|", (SAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_file_has_one_row_and_every_row_a_file() -> None:
    assert sorted(ROWS) == sorted(FILES)
    assert set(COUNTED) == {name for name in FILES if not name.startswith("keras-")}


def test_files_are_small() -> None:
    sizes = {name: path.stat().st_size for name, path in FILES.items()}
    assert max(sizes.values()) < 500_000
    assert sum(sizes.values()) < 12_000_000


@pytest.mark.parametrize("name", COUNTED)
def test_the_dimensions_counted_at_are_the_open_ones(name: str) -> None:
    graph = onnx.load(FILES[name], load_external_data=False).graph
    assert {d.dim_param for i in graph.input for d in i.type.tensor_type.shape.dim if d.dim_param} == set(
        COUNTED[name]["dims"]
    )


@pytest.mark.slow
def test_a_row_is_replaced_and_a_new_one_has_its_place(zoo: object, tmp_path: Path) -> None:
    from onnxperf.samples.make import tabulate

    readme = tmp_path / "README.md"
    readme.write_text("before\n\n| `resnet50.onnx` | old |\n| `keras-x.onnx` | kept |\n\nafter\n")
    tabulate(readme, {"gpt2": "| `gpt2.onnx` | new |\n", "resnet50": "| `resnet50.onnx` | other |\n"})
    rows = "| `resnet50.onnx` | other |\n| `gpt2.onnx` | new |\n| `keras-x.onnx` | kept |\n"
    assert readme.read_text() == f"before\n\n{rows}\nafter\n"

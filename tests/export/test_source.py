"""Which models are a framework's, told without importing any."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import onnxperf
from onnxperf import export
from onnxperf.export import framework, source
from onnxperf.ground.errors import EnvironmentFailure, UsageError


def model_of(package: str, name: str) -> Any:
    """An object whose class derives from one that a framework might define."""
    base = type(name, (), {"__module__": f"{package}.somewhere"})
    return type("Own", (base,), {"__module__": "mine"})()


@pytest.mark.parametrize(
    "package, name, extra",
    [
        ("torch", "Module", "torch"),
        ("torch", "ExportedProgram", "torch"),
        ("torch", "ONNXProgram", "torch"),
        ("keras", "Layer", "tf"),
        ("tensorflow", "GenericFunction", "tf"),
        ("tensorflow", "AutoTrackable", "tf"),
        ("torchlike", "Module", None),
        ("torch", "Tensor", None),
    ],
)
def test_classes(package: str, name: str, extra: str | None) -> None:
    assert framework(model_of(package, name)) == extra


def test_paths(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    assert framework(tmp_path / "saved") is None
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"")
    assert framework(tmp_path / "saved") == framework(str(tmp_path / "saved")) == "tf"
    assert framework(tmp_path / "m.keras") == framework("m.h5") == "tf"
    assert framework("m.onnx") is None


def test_a_path_that_gives_bytes() -> None:
    class Raw:
        def __fspath__(self) -> bytes:
            return b"m.onnx"

    assert framework(Raw()) is None


def test_a_name_that_no_file_can_have_is_the_readers_to_refuse() -> None:
    assert framework("a" * 300 + ".onnx") is None
    with pytest.raises(onnxperf.Error):
        onnxperf.predict("a" * 300 + ".onnx", gpu="l4")


@pytest.mark.parametrize("package, name, extra", [("torch", "Module", "torch"), ("keras", "Layer", "tf")])
def test_without_the_extra_it_says_what_to_install(
    package: str, name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentFailure, match=rf"pip install 'onnxperf\[{extra}\]'"):
        source(model_of(package, name), None)


def test_a_class_is_no_model() -> None:
    with pytest.raises(UsageError, match="no class"):
        onnxperf.predict(type(model_of("torch", "Module")), gpu="l4")


def test_a_file_loads_no_framework() -> None:
    sample = Path(__file__).parents[2] / "samples" / "resnet50.onnx"
    code = (
        f"import sys, onnxperf; onnxperf.predict({str(sample)!r}, gpu='l4');"
        " print({'torch', 'tensorflow', 'keras'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

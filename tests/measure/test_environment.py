"""What is here, and what is said where it is not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

from onnxperf.ground.errors import EnvironmentFailure
from onnxperf.measure import environment


@pytest.mark.parametrize(
    ("missing", "find"),
    [("onnxruntime", environment.onnx_runtime), ("cuda.bindings", environment.cuda_runtime)],
)
def test_what_is_not_installed_is_named_with_the_remedy(
    missing: str, find: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(EnvironmentFailure, match=r"pip install 'onnxperf\[measure\]'") as e:
        find()
    assert e.value.exit_code == 4


def test_no_nvml_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert environment.nvml() is None


def test_the_processor_here() -> None:
    place = environment.processor()
    assert place.kind == "cpu" and place.name and place.threads == 1 and not place.driver
    free = environment.free_bytes()
    assert free is None or 0 < free <= (place.memory_bytes or free)


@pytest.mark.parametrize(
    ("installed", "says"),
    [
        ((), ""),
        (("onnxruntime-gpu",), ""),
        (("onnxruntime", "onnxruntime-gpu"), "onnxruntime 1.0 and onnxruntime-gpu 1.0"),
    ],
)
def test_several_distributions_of_one_module_are_told(
    installed: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(environment, "version", version)
    found = environment.overlapping()
    assert found.startswith(says) and ("uninstall" in found) == bool(says)


@pytest.mark.parametrize(
    ("name", "id"), [("NVIDIA L4", "l4"), ("NVIDIA H200", "h200-sxm"), ("A card of tomorrow", ""), ("../l4.toml", "")]
)
def test_devices_by_what_they_call_themselves(name: str, id: str) -> None:
    assert environment.catalogued(name) == id

"""What all rooms share: which files are slow as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
#: Exporters, comparisons with other programs, fits and fuzz. The quick loop does not even import them.
SLOW = (
    "calibrate/test_device.py",
    "export/test_command.py",
    "export/test_from_tf.py",
    "export/test_from_torch.py",
    "op_models/test_against_torch.py",
    "runtimes/test_oracle.py",
    "runtimes/test_torch_eager.py",
    "test_conformance.py",
    "test_samples_run.py",
)


def slow(path: Path) -> bool:
    """Whether a file is one of SLOW."""
    return path.is_relative_to(TESTS) and path.relative_to(TESTS).as_posix() in SLOW


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that are slow as a whole, and with them PyTorch and TensorFlow, where slow tests are."""
    return True if config.option.markexpr == "not slow" and slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what these files hold."""
    for item in items:
        if slow(item.path):
            item.add_marker("slow")

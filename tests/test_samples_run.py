"""The scripts in samples run as they stand, in processes and folders of their own."""

import gzip
import os
import re
import subprocess
import sys
from math import prod
from pathlib import Path

import onnx
import pytest

SAMPLES = Path(__file__).parents[1] / "samples"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory in which `samples` lies."""
    (tmp_path / "samples").symlink_to(SAMPLES, target_is_directory=True)
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with these arguments in a folder, where no window is opened and no device is seen."""
    env = {**os.environ, "MPLBACKEND": "Agg", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=folder, env=env, check=False
    )


def times(text: str) -> list[float]:
    """All that is printed in milliseconds."""
    return [float(number) for number in re.findall(r"([0-9.]+) ms", text)]


def test_predict(folder: Path) -> None:
    done = run(folder, "samples/predict.py")
    assert done.returncode == 0, done.stderr
    assert "ms for one image" in done.stdout


def test_predict_torch(folder: Path) -> None:
    pytest.importorskip("torch")
    done = run(folder, "samples/predict_torch.py")
    assert done.returncode == 0, done.stderr
    t4, l4, a100 = times(done.stdout)
    assert t4 > l4 > a100 > 0


def test_predict_keras(folder: Path) -> None:
    pytest.importorskip("tensorflow")
    pytest.importorskip("tf2onnx")
    done = run(folder, "samples/predict_keras.py")
    assert done.returncode == 0, done.stderr
    assert len(times(done.stdout)) == 1 and done.stdout.count(" us ") == 5


BOTH = """
import runpy, sys
for sys.argv in (["samples/export_step.py", "mine.onnx"], ["strict.py", "over.onnx"]):
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_export_step_writes_what_keeps_the_budget_and_nothing_over_it(folder: Path) -> None:
    """The script as it stands, then in the same process, so that torch is loaded once, with a budget that can't be."""
    pytest.importorskip("torch")
    script = (SAMPLES / "export_step.py").read_text(encoding="utf-8")
    (folder / "strict.py").write_text(script.replace('"max_ms": 8', '"max_ms": 1e-3'), encoding="utf-8")
    done = run(folder, "-c", BOTH)
    assert done.stdout.count("within the budget") == 1, done.stderr
    onnx.checker.check_model(onnx.load(folder / "mine.onnx"))
    assert done.returncode == 1
    assert "over the budget: " in done.stderr and "most of it goes to" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "over.onnx").exists()


def test_latency_as_a_test(folder: Path) -> None:
    (folder / "test_latency.py").write_text((SAMPLES / "test_latency.py").read_text(encoding="utf-8"), encoding="utf-8")
    done = run(folder, "-m", "pytest", "-q", "test_latency.py")
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


def test_walkthrough_draws_its_pictures(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run(folder, "samples/walkthrough.py")
    assert done.returncode == 0, done.stderr
    assert "batch" in done.stdout and len(times(done.stdout)) == 1 + 4 * 6
    for name in ("latency-by-batch.png", "operators.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_make_tensorrt(folder: Path) -> None:
    pytest.importorskip("torch")
    name = "mmagic-SRCNN@32x32.onnx.gz"
    done = run(folder, "samples/make_tensorrt.py", ".", name)
    assert done.returncode == 0 and not done.stdout, done.stderr
    graph = onnx.load_from_string(gzip.decompress((folder / name).read_bytes())).graph
    assert sum(
        prod(t.dims) for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) != 1
    ) == (3 * 64 * 81 + 64 * 32 + 32 * 3 * 25), "the published network's weights"
    assert all(t.data_location == onnx.TensorProto.EXTERNAL for t in graph.initializer if prod(t.dims) > 256)


def test_make_tensorrt_names_the_package_that_it_lacks(folder: Path) -> None:
    pytest.importorskip("torch")
    (folder / "timm.py").write_text("raise ModuleNotFoundError('', name='timm')")
    done = run(folder, "-c", LACKING)
    name = "mmpretrain-SE-ResNet@224x224.onnx.gz"
    assert done.stdout == f"{name}: needs the package timm, which is not installed\n", done.stderr
    assert not (folder / name).exists()


LACKING = """
import runpy, sys
sys.argv = ["samples/make_tensorrt.py", ".", "mmpretrain-SE-ResNet@224x224.onnx.gz"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

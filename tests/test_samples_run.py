"""The scripts in samples run as they stand, in processes and folders of their own."""

import gzip
import json
import os
import re
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import NamedTuple

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


def test_predict_keras(folder: Path) -> None:
    pytest.importorskip("tensorflow")
    pytest.importorskip("tf2onnx")
    done = run(folder, "samples/predict_keras.py")
    assert done.returncode == 0, done.stderr
    assert len(times(done.stdout)) == 1 and done.stdout.count(" us ") == 5


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


NETWORK, UNBUILT = "mmagic-SRCNN@32x32.onnx.gz", "mmpretrain-SE-ResNet@224x224.onnx.gz"
#: Scripts that export from torch, each with what it is started with.
OF_TORCH = {
    "predict": ["samples/predict_torch.py"], "export": ["samples/export_step.py", "mine.onnx"],
    "strict": ["strict.py", "over.onnx"], "network": ["samples/make_tensorrt.py", ".", NETWORK],
    "lacking": ["samples/make_tensorrt.py", ".", UNBUILT],
}  # fmt: skip
EACH = """
import contextlib, io, json, runpy, sys, traceback
done = {}
for name, sys.argv in json.loads(sys.argv[1]).items():
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = 0
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) or stop.code is None else print(stop.code, file=err) or 1
        except BaseException:
            code = traceback.print_exc() or 1
    done[name] = code or 0, out.getvalue(), err.getvalue()
print(json.dumps(done))
"""


class Done(NamedTuple):
    """How a script ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


Ran = tuple[Path, dict[str, Done]]


@pytest.fixture(scope="module")
def of_torch(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A folder in which the scripts that export from torch have run, and how each ended: one after the other in one
    process, so that torch is loaded once.
    """
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("torch")
    (folder / "samples").symlink_to(SAMPLES, target_is_directory=True)
    script = (SAMPLES / "export_step.py").read_text(encoding="utf-8")
    (folder / "strict.py").write_text(script.replace('"max_ms": 8', '"max_ms": 1e-3'), encoding="utf-8")
    (folder / "timm.py").write_text("raise ModuleNotFoundError('', name='timm')")
    done = run(folder, "-c", EACH, json.dumps(OF_TORCH))
    assert done.returncode == 0, done.stderr
    return folder, {name: Done(*ended) for name, ended in json.loads(done.stdout).items()}


def test_predict_torch(of_torch: Ran) -> None:
    done = of_torch[1]["predict"]
    assert done.returncode == 0, done.stderr
    t4, l4, a100 = times(done.stdout)
    assert t4 > l4 > a100 > 0


def test_export_step_writes_what_keeps_the_budget_and_nothing_over_it(of_torch: Ran) -> None:
    """The script as it stands, then with a budget that can't be."""
    folder, done = of_torch
    assert done["export"].returncode == 0 and "within the budget" in done["export"].stdout, done["export"].stderr
    onnx.checker.check_model(onnx.load(folder / "mine.onnx"))
    strict = done["strict"]
    assert strict.returncode == 1 and "within the budget" not in strict.stdout
    assert "over the budget: " in strict.stderr and "most of it goes to" in strict.stderr
    assert "Traceback" not in strict.stderr
    assert not (folder / "over.onnx").exists()


def test_make_tensorrt(of_torch: Ran) -> None:
    folder, done = of_torch[0], of_torch[1]["network"]
    assert done.returncode == 0 and not done.stdout, done.stderr
    graph = onnx.load_from_string(gzip.decompress((folder / NETWORK).read_bytes())).graph
    assert sum(
        prod(t.dims) for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) != 1
    ) == (3 * 64 * 81 + 64 * 32 + 32 * 3 * 25), "the published network's weights"
    assert all(t.data_location == onnx.TensorProto.EXTERNAL for t in graph.initializer if prod(t.dims) > 256)


def test_make_tensorrt_names_the_package_that_it_lacks(of_torch: Ran) -> None:
    folder, done = of_torch[0], of_torch[1]["lacking"]
    assert done.stdout == f"{UNBUILT}: needs the package timm, which is not installed\n", done.stderr
    assert not (folder / UNBUILT).exists()

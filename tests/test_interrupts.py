"""Signals at the worst moment: a process that is starting raises them itself, so that no clock decides."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onnxperf.ground.signals import ImportedWhole, held_back, uninterrupted

ROOT = Path(__file__).parents[1]
LSTM = ROOT / "samples" / "lstm.onnx"
pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as of POSIX")

#: Python runs this as each process starts, before any of our code.
IN_WORKERS = """
import os, signal, sys
if "--multiprocessing-fork" in sys.orig_argv:
    os.kill(os.getpid(), signal.SIGHUP) if {alone} else os.killpg(0, signal.{ending})
    os.kill(os.getpid(), signal.SIGINT)
"""
IN_EXTENSION = """
import signal, sys
seen = []
def hook(event, arguments):
    if event == "import":
        seen.append(arguments[0])
        if seen[-3:-1] == ["onnx.onnx_cpp2py_export"] * 2:  # looked for, loaded: the first import that C++ asks for
            signal.raise_signal(signal.SIGINT)
sys.addaudithook(hook)
"""


def started(folder: Path, customised: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`onnxperf` in a session of its own, where every process runs `customised` first."""
    (folder / "sitecustomize.py").write_text(customised, encoding="utf-8")
    paths = os.pathsep.join([str(folder), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": paths, "XDG_CACHE_HOME": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, "-m", "onnxperf", *arguments], env=env, capture_output=True, text=True, check=False,
        start_new_session=True,
    )  # fmt: skip


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with two models, so that a sweep starts processes."""
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("a", "b"):
        shutil.copy(LSTM, folder / f"{name}.onnx")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["SIGINT", "SIGHUP", "SIGTERM"])
def test_the_whole_group_is_told_to_end_while_a_worker_starts(models: Path, ending: str) -> None:
    customised = IN_WORKERS.format(alone=False, ending=ending)
    done = started(models.parent, customised, "sweep", str(models), "--gpu", "l4", "--batch", "1")
    assert (done.returncode, done.stderr.strip()) == (130, "interrupted")


@pytest.mark.slow
def test_a_worker_that_is_starting_is_not_interrupted(models: Path) -> None:
    customised = IN_WORKERS.format(alone=True, ending="SIGINT")
    done = started(models.parent, customised, "sweep", str(models), "--gpu", "l4", "--batch", "1")
    assert (done.returncode, done.stderr) == (0, "") and "b.onnx" in done.stdout


@pytest.mark.slow
def test_an_interrupt_while_onnx_is_loaded_is_heard_after(tmp_path: Path) -> None:
    done = started(tmp_path, IN_EXTENSION, "predict", str(LSTM), "--gpu", "l4", "--batch", "1")
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "interrupted")


def test_a_package_is_imported_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import builtins, signal; signal.raise_signal(signal.SIGINT); builtins.run_to_the_end.append(__name__)"
    monkeypatch.setattr("builtins.run_to_the_end", ended := list[str](), raising=False)
    for name in ("held_package", "other_package"):
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [ImportedWhole("held_package"), *sys.meta_path])
    for name in ("held_package", "other_package"):
        with pytest.raises(KeyboardInterrupt):
            __import__(name)
    assert ended == ["held_package"]


def test_what_comes_meanwhile_is_raised_after() -> None:
    done = []
    for held in (uninterrupted, held_back):
        with pytest.raises(KeyboardInterrupt), held():
            signal.raise_signal(signal.SIGINT)  # in this thread: a mask holds for no other
            done.append(held)
    assert done == [uninterrupted, held_back]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()

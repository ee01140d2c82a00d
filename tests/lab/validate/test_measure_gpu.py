"""The script for a machine with a GPU, on the processor: every step does something, and none stops the others."""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onnx import parser
from onnxperf.samples.measure_gpu import Run

AMPLE = 10**6  # seconds: what a loaded machine takes has no part in the answers
ROOT = Path(__file__).parents[3]
MODEL = """<ir_version: 10, opset_import: ["" : 20]>
tiny (float[batch,64] x, float[64,64] w) => (float[batch,64] y) {
  h = MatMul(x, w)
  y = Relu(h)
}"""


def script(*arguments: object) -> str:
    """What the script says; it ends with 0."""
    asked = [sys.executable, str(ROOT / "samples" / "measure_gpu.py"), *map(str, arguments)]
    done = subprocess.run(asked, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    path.write_bytes(parser.parse_model(MODEL).SerializeToString())
    return path


def test_every_step_leaves_a_file_and_what_fails_is_listed(model: Path, tmp_path: Path) -> None:
    broken, out = tmp_path / "broken.onnx", tmp_path / "out"
    broken.write_bytes(b"no model")
    script(model, broken, "--provider", "cpu", "--out", out, "--budget", AMPLE, "--steps", "smoke", "graphs", "models")
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in out.iterdir()}
    assert set(found) == {"smoke", "graphs", "measurements-fp32", "summary"}
    assert [f["what"] for f in found["summary"]["failed"]] == ["broken.onnx"]
    assert {n["dtype"] for n in found["smoke"]["nodes"]} == {"float", "float16"}
    assert all(n["largest_difference"] == 0 for n in found["smoke"]["nodes"])  # of the processor from itself
    assert found["smoke"]["measurement"]["place"]["kind"] == "cpu"
    levels = [(g["level"], g["precision"]) for g in found["graphs"]]
    assert len(levels) == 6 == len(set(levels)) and levels[0] == ("all", "keep")
    assert found["graphs"][0]["ort"] == {"MatMul": 1, "Relu": 1} == found["graphs"][0]["ours"]
    assert [m["setting"]["batch"] for m in found["measurements-fp32"]["measurements"]] == [1, 8, 32]
    script("--unpack", out, "--out", tmp_path / "single")
    assert len([*(tmp_path / "single").glob("*.json")]) == 3
    asked = [sys.executable, "-m", "onnxperf", "validate", "--data", str(tmp_path / "single"), "--json", "-"]
    scored = json.loads(subprocess.run(asked, capture_output=True, check=True, cwd=ROOT).stdout)
    assert [f["model"] for f in scored["measurements"]["files"]] == ["tiny.onnx"] * 3


def test_without_time_everything_is_listed_as_not_done(model: Path, tmp_path: Path) -> None:
    script(model, "--provider", "cpu", "--out", tmp_path, "--budget", 0.01)
    found = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert {*found["seconds"]} == {"smoke", "graphs", "models", "calibrate"} and not found["measured"]
    said = " ".join(f["what"] for f in found["failed"])
    assert all(what in said for what in ("one_node", "optimised", "tiny.onnx fp32 batch 1", "calibrate"))
    assert len([*tmp_path.iterdir()]) <= 8


@pytest.mark.parametrize(
    ("what", "given", "found", "why"),
    [
        (math.sqrt, 4, [("a", 2.0), ("b", 2.0)], None),
        (math.sqrt, -1, [], "ValueError: math domain error"),
        (os._exit, 3, [], "it ended the process"),
        (time.sleep, 600, [], "it took too long"),
    ],
)
def test_a_task_that_fails_ends_or_hangs_leaves_the_others_to_be_done(
    what: Callable[..., Any], given: Any, found: list[Any], why: str | None, tmp_path: Path
) -> None:
    run = Run(tmp_path, given, [], [], end=math.inf)
    most_s = 3.0 if what is time.sleep else AMPLE  # a task that hangs is ended however slow the machine is
    assert [*run.apart(what, {"a": (), "b": ()}, most_s=most_s)] == found
    assert run.failed == ([{"what": task, "why": why} for task in "ab"] if why else [])

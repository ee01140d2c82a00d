"""ONNX Runtime's profile: of real runs, and in files that are cut off or mean no good."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnxperf.ground.errors import EnvironmentFailure
from onnxperf.measure import profile
from onnxperf.measure.profile import parse
from onnxperf.measure.record import PROFILER_S, OperatorTime
from tests.measure.conftest import CPU, CUDA


def node(name: str, begin: int, lasts: int, type: str = "Conv", **more: Any) -> dict[str, Any]:
    args = {"op_name": type, "provider": CPU, **more}
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": begin, "dur": lasts, "ph": "X", "args": args}


def model_run(begin: int, lasts: int) -> dict[str, Any]:
    return {"cat": "Session", "name": "model_run", "ts": begin, "dur": lasts, "ph": "X", "args": {}}


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Events as ONNX Runtime writes them: one on each line."""

    def write(*events: dict[str, Any], end: str = "\n]\n") -> Path:
        path = tmp_path / "profile.json"
        path.write_text("[\n" + ",\n".join(map(json.dumps, events)) + end)
        return path

    return write


def three_runs() -> list[dict[str, Any]]:
    return [
        e for i, lasts in enumerate((50, 30, 20))
        for e in (node("a", 1000 * i, lasts), node("b", 1000 * i + lasts, 5, "Relu"), model_run(1000 * i, lasts + 9))
    ]  # fmt: skip


def test_operators_and_runs(written: Callable[..., Path]) -> None:
    operators, runs = parse(written({"cat": "Session", "name": "session_initialization", "ts": 1, "dur": 9},
                                    *three_runs()))  # fmt: skip
    assert operators == (
        OperatorTime("a", "Conv", CPU, 3, pytest.approx(30e-6), pytest.approx(20e-6)),
        OperatorTime("b", "Relu", CPU, 3, pytest.approx(5e-6), pytest.approx(5e-6)),
    )
    assert runs.samples == pytest.approx((59e-6, 39e-6, 29e-6))


def test_the_first_runs_are_left_out(written: Callable[..., Path]) -> None:
    operators, runs = parse(written(*three_runs()), skip=2)
    assert [(o.runs, o.least_s) for o in operators] == [(1, pytest.approx(20e-6)), (1, pytest.approx(5e-6))]
    assert len(runs.samples) == 1
    with pytest.raises(EnvironmentFailure, match="no complete run"):
        parse(written(*three_runs()), skip=3)


def test_a_profile_that_is_cut_off_anywhere_counts_up_to_its_last_whole_run(tmp_path: Path) -> None:
    lines = [json.dumps(e) + "," for e in three_runs()]
    text, path = "[\n" + "\n".join(lines), tmp_path / "cut.json"
    ends = [len("[\n" + "\n".join(lines[: 3 * (i + 1)])) - 1 for i in range(3)]  # of each run's own event
    for cut in range(0, len(text), 7):
        path.write_text(text[:cut])
        whole = sum(cut >= end for end in ends)
        if whole:
            operators, runs = parse(path)
            assert len(runs.samples) == whole and {o.runs for o in operators} == {whole}
        else:
            with pytest.raises(EnvironmentFailure):
                parse(path)


def test_what_runs_in_a_body_is_not_counted_twice(written: Callable[..., Path]) -> None:
    path = written(
        node("inner", 12, 10, "MatMul"), node("inner", 24, 10, "MatMul"), node("if", 36, 8, "If"),
        node("deep", 38, 4, "Add"), node("loop", 10, 40, "Loop"), node("after", 50, 7), model_run(0, 90),
    )  # fmt: skip
    operators, _ = parse(path)
    times = {o.name: round(o.median_s * 1e6) for o in operators}
    assert times == {"loop": 12, "inner": 20, "if": 4, "deep": 4, "after": 7}


@pytest.mark.parametrize(
    "odd",
    [
        "null", "[]", "{}", "[" * 5000, '{"cat": "Node"}', "x" * 100, '{"cat": "Node", "name": 3, "ts": 1, "dur": 1}',
        json.dumps(node("a", -1, 5)), json.dumps(node("a", 1, 5) | {"dur": 1.5}),
        json.dumps(node("a", 1, 5) | {"args": 3}), json.dumps(node("a", 1, 5, op_name=["Conv"])),
        json.dumps(node("a", 1, 5) | {"ts": True}),
    ],
)  # fmt: skip
def test_what_is_no_event_is_passed_over(tmp_path: Path, odd: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text("\n".join([odd + ",", json.dumps(node("b", 1, 2)) + ",", json.dumps(model_run(0, 9))]))
    operators, runs = parse(path)
    assert [o.name for o in operators] == ["b"] and len(runs.samples) == 1


def test_no_more_than_a_bound_is_read(written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(*three_runs())
    monkeypatch.setattr(profile, "MAX_BYTES", path.stat().st_size // 2)
    assert len(parse(path)[1].samples) == 1


def test_a_profile_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="can't be read"):
        parse(tmp_path / "none.json")


def test_a_cpu_counts_by_its_undisturbed_run() -> None:
    assert OperatorTime("a", "Conv", CPU, 5, 9e-6, 4e-6).seconds == pytest.approx(4e-6 - PROFILER_S)
    assert OperatorTime("a", "Conv", CPU, 5, 9e-6, 1e-6).seconds == pytest.approx(1e-6 / 4)
    assert OperatorTime("a", "Conv", CUDA, 5, 9e-6, 4e-6).seconds == 9e-6

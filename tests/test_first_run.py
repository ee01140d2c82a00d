"""What comes before the steady state: what it consists of, under which runtime, and what moves it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from onnxperf import UsageError, predict
from onnxperf.answer.first_run import ALLOCATED_S, CONTEXT_S, READ_BPS, FirstRun, Part, Stage, convolutions
from onnxperf.cli import cli
from onnxperf.ground.tables import duration, size
from onnxperf.lowering.runtime import Span
from onnxperf.runtimes import RUNTIMES, StartCosts
from tests.zoo import SAMPLES

ROOT = Path(__file__).parents[1]
SCHEMA = json.loads((ROOT / "onnxperf/answer/prediction.schema.json").read_text(encoding="utf-8"))
PAGE = " ".join((ROOT / "ASSUMPTIONS.md").read_text(encoding="utf-8").split())
BERT, RESNET = SAMPLES / "bert-base.onnx", SAMPLES / "resnet50.onnx"


def network(channels: Iterable[int], side: int = 32) -> onnx.ModelProto:
    """One convolution behind the other, from and to so many channels."""
    sizes = [*channels]
    weights = [
        numpy_helper.from_array(np.zeros((b, a, 3, 3), np.float32), f"w{i}") for i, (a, b) in enumerate(pairwise(sizes))
    ]
    nodes = [
        helper.make_node("Conv", [f"x{i}", w.name], [f"x{i + 1}"], pads=[1, 1, 1, 1], name=f"conv{i}")
        for i, w in enumerate(weights)
    ]
    ends = [
        helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, (1, sizes[i], side, side)) for i in (0, len(weights))
    ]
    graph = helper.make_graph(nodes, "convolutions", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def before(model: onnx.ModelProto | Path, gpu: str = "l4", **terms: str) -> FirstRun:
    asked = predict(model, gpu=gpu, first_run=True, **terms).first_run
    assert asked is not None
    return asked


def part(stage: Stage | None, name: str) -> Part:
    assert stage is not None
    return next(p for p in stage.parts if p.name == name)


def names(stage: Stage) -> list[str]:
    return [p.name for p in stage.parts]


def test_convolutions_are_searched_at_each_new_shape_and_more_take_longer() -> None:
    few, many = before(network([8, 16, 24])), before(network([8, 16, 24, 32, 40]))
    for stage in ("first", "new_shape"):
        two, four = (part(getattr(f, stage), "convolutions") for f in (few, many))
        assert four.low_seconds == pytest.approx(2 * two.low_seconds)
        assert four.high_seconds == pytest.approx(2 * two.high_seconds)
        assert "4 convolutions" in four.assumes and "EXHAUSTIVE" in four.assumes


def test_a_transformer_has_no_search_and_a_new_shape_takes_little() -> None:
    f = before(BERT)
    assert "convolutions" not in (*names(f.first), *names(f.new_shape))
    assert names(f.new_shape) == ["run", "allocation"]
    assert f.new_shape.high_seconds < 1.1 * part(f.first, "run").high_seconds < f.first.high_seconds


def test_public_measurements_of_new_shapes_lie_in_the_range() -> None:
    """Six convolutions on an RTX 2080 Ti: 0.634 s on average and at most 1.348 s; 1.9 and 5.1 ms with HEURISTIC."""
    search = part(before(network([3, 32, 64, 96, 128, 160, 192]), "rtx-2080-ti").new_shape, "convolutions")
    assert search.low_seconds < 0.634 < 1.348 < search.high_seconds
    assert "HEURISTIC: 1.8 ms to 12 ms in all" in search.assumes


def test_equal_convolutions_are_searched_by_node_under_onnx_runtime_and_once_under_pytorch() -> None:
    alike = network([8, 8, 8, 8, 8])
    each, once = (part(before(alike, runtime=runtime).first, "convolutions") for runtime in ("ort-cuda", "torch-eager"))
    assert each.assumes.startswith("4 convolutions") and once.assumes.startswith("1 convolution,")
    assert once.high_seconds < each.high_seconds and "benchmark is off" in once.assumes
    assert len(convolutions(predict(RESNET, gpu="l4").run)) == 53


def test_an_earlier_shape_is_searched_again_from_1_20_on() -> None:
    told = {v: part(before(RESNET, ort_version=v).new_shape, "convolutions").assumes for v in ("1.19", "1.20", "1.31")}
    assert [text.endswith("; also when an earlier shape returns") for text in told.values()] == [False, True, True]


def test_tensorrt_builds_an_engine_that_sessions_load_and_times_what_is_alike_once() -> None:
    alike, different = (before(network(c), runtime="tensorrt") for c in ([8, 8, 8, 8], [8, 16, 24, 32]))
    one, three = (part(f.build, "kernels built") for f in (alike, different))
    assert three.high_seconds == pytest.approx(3 * one.high_seconds) and "timing cache" in one.assumes
    assert "engine read" in names(alike.session) and "graph" not in names(alike.session)
    assert alike.session.high_seconds < different.build.high_seconds
    another = part(different.new_shape, "another build")
    assert (another.low_seconds, another.high_seconds) == (0, different.build.high_seconds)
    assert before(RESNET).build is None and before(RESNET).stages[0][0] == "session"


def test_weights_take_what_the_disk_and_the_link_take() -> None:
    f = before(BERT)
    read, copied = part(f.session, "weights read"), part(f.session, "weights copied")
    weights = predict(BERT, gpu="l4").memory.weights_bytes
    assert read.high_seconds == pytest.approx(weights / 0.2e9, rel=0.01)
    assert copied.low_seconds == pytest.approx(weights / (0.85 * 28.8e9), rel=0.2)  # PCIe 4.0 x16
    half = part(before(BERT, precision="fp16").session, "weights copied")
    assert half.high_seconds == pytest.approx(copied.high_seconds / 2, rel=0.01)
    assert part(before(BERT, "v100-sxm2-16gb").session, "weights copied").low_seconds > copied.low_seconds


def test_a_processor_has_no_context_no_copies_and_no_search() -> None:
    f = before(RESNET, runtime="ort-cpu")
    assert names(f.session) == ["libraries", "weights read", "graph"]
    assert names(f.first) == names(f.new_shape) == ["run"]


def test_the_steady_state_is_left_as_it_is_and_the_key_is_there_where_it_was_asked_for() -> None:
    usual, asked = predict(RESNET, gpu="l4"), predict(RESNET, gpu="l4", first_run=True)
    assert usual.first_run is None and "first_run" not in usual.to_dict()
    answer = asked.to_dict()
    jsonschema.validate(answer, SCHEMA)
    stages = answer.pop("first_run")
    assert answer == usual.to_dict() and [*stages] == ["session", "first", "new_shape"]
    for stage in stages.values():
        assert 0 <= stage["low_seconds"] <= stage["high_seconds"]
        for end in ("low_seconds", "high_seconds"):
            assert stage[end] == pytest.approx(sum(p[end] for p in stage["parts"]))
    jsonschema.validate(predict(RESNET, gpu="l4", runtime="tensorrt", first_run=True).to_dict(), SCHEMA)
    with pytest.raises(UsageError, match="first_run must be True or False, not 1"):
        predict(RESNET, gpu="l4", first_run=1)


def test_the_command_prints_a_line_for_each_part(tmp_path: Path) -> None:
    asked = ["predict", str(RESNET), "--gpu", "l4", "--runtime", "tensorrt"]
    told = CliRunner().invoke(cli, [*asked, "--first-run", "--json", str(tmp_path / "answer.json")]).output
    usual = CliRunner().invoke(cli, asked).output
    assert "before the steady state" in told and "before the steady state" not in usual
    assert set(usual.splitlines()) <= set(told.splitlines())
    stages = json.loads((tmp_path / "answer.json").read_text())["first_run"]
    for title in ("engine built, once", "session creation", "first run", "first run, new shape"):
        assert f"\n{title}" in told
    for stage in stages.values():
        for p in stage["parts"]:
            assert f"\n  {p['name']}" in told


def _spans(start: StartCosts) -> Iterable[Span]:
    fields = ("library_s", "node_s", "code_s", "search_s", "quicker_s", "build_s", "cached_s", "builder_s")
    return (span for name in fields if any(span := getattr(start, name)))


@pytest.mark.parametrize("runtime", [*sorted(RUNTIMES), ""])
def test_every_range_stands_in_the_assumptions(runtime: str) -> None:
    start = RUNTIMES[runtime].start if runtime else StartCosts()
    for low, high in (*_spans(start), CONTEXT_S, ALLOCATED_S):
        assert low < high and f"{duration(low)} to {duration(high)}" in PAGE
    assert f"{size(READ_BPS[0])}/s to {size(READ_BPS[1])}/s" in PAGE

"""Sweeps: each cell is a prediction, knees are where throughput ends to grow, and nothing is computed twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import TensorProto, parser

import gpu_specs
import onnxperf
from onnxperf import ModelError, UsageError, predict, sweep
from onnxperf.decide.choices import GAIN, Choice, best
from onnxperf.ground.errors import EnvironmentFailure
from onnxperf.sweeps import stream
from onnxperf.sweeps.cache import Cache
from onnxperf.sweeps.engines import Engine, Here
from onnxperf.sweeps.grid import Grid, grid_of
from onnxperf.sweeps.rows import Block, columns
from onnxperf.sweeps.stream import Model, blocks
from onnxperf.sweeps.work import Prepared, predicted, prepare
from tests.decide.models import model_of, net

CARDS = ["t4", "p4", "h100"]
SAMPLES = Path(__file__).parents[2] / "samples"


class Counting(Here):
    """An engine's executor that keeps what it was asked for."""

    def __init__(self) -> None:
        self.points: list[Any] = []
        self.reads = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if fn is predicted:
            lacking = ((point, asked) for point, asked in args[1] if asked)
            self.points += [(p, {name: [d.id for d in devices] for name, devices in asked}) for p, asked in lacking]
        self.reads += fn is prepare
        return super().submit(fn, *args, **kwargs)


def swept(models: list[Model], grid: Grid, cache: Cache | None = None, ahead: int = 0) -> tuple[list[Block], Counting]:
    counting = Counting()
    return list(blocks(models, grid, Engine(counting, counting, ahead), cache)), counting


def seq(size: int = 64) -> onnx.ModelProto:
    """A product over a sequence that is open."""
    return model_of(f"seq (float[batch,seq,{size}] x) => (float[batch,seq,{size}] y) {{ y = MatMul(x, w) }}",
                    {"w": (size, size)})  # fmt: skip


def test_each_row_is_a_prediction() -> None:
    found = sweep(net(), gpu=CARDS, batch=[4, 1, 4], precision=["fp32", "fp16"], prices={"p4": 1.0})
    assert [(r.precision, r.gpu, r.batch) for r in found.rows] == [
        (name, card, batch) for name in ("fp32", "fp16") for card in ("t4", "p4", "h100-sxm") for batch in (1, 4)
    ]
    for r in found.rows:
        p = predict(net(), gpu=r.gpu, batch=r.batch, precision=r.precision)
        same = [p.seconds, p.low_seconds, p.high_seconds, p.watts, p.joules_per_sample]  # to the last bit
        assert [r.seconds, r.low_seconds, r.high_seconds, r.watts, r.joules_per_sample] == same
        assert (r.process_bytes, r.fits, r.why) == (p.memory.reserved_bytes, True, "")
        assert r.throughput_per_second == p.throughput_per_second
        assert (r.model, r.runtime, r.dims) == ("net", "ort-cuda", ())
    [p4] = [r for r in found.rows if r.gpu == "p4" and r.batch == 1 and r.precision == "fp32"]
    assert p4.usd_per_million == pytest.approx(1e6 * (p4.seconds or 0) / 3600)


@pytest.mark.parametrize(
    ("model", "terms"),
    [
        (net(), {"precision": "fp16", "streams": 2}),
        (net(8), {"cuda_graph": True}),
        (net(), {"runtime": "tensorrt", "precision": "int8"}),
        (net(), {"runtime": "torch-eager", "mode": "training"}),
        (net(), {"runtime": "torch-compile", "precision": "bf16"}),
        (seq(768), {"dims": {"seq": 128}}),  # 6 x 128 is 768
    ],
    ids=lambda x: " ".join(map(str, x.values())) if isinstance(x, dict) else "",
)
def test_many_batches_are_the_same_to_the_last_bit(model: onnx.ModelProto, terms: dict[str, Any]) -> None:
    asked = {"gpu": ["t4", "p100", "h100"], "batch": [1, 2, 3, 5, 6, 12, 32], **terms}
    for row in sweep(model, **asked).rows[::4]:
        p = predict(model, gpu=row.gpu, batch=row.batch, **terms)
        same = p.seconds, p.low_seconds, p.high_seconds, p.watts, p.memory.reserved_bytes, p.memory.fits
        assert (row.seconds, row.low_seconds, row.high_seconds, row.watts, row.process_bytes, row.fits) == same


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        ("mobilenetv2", {"runtime": "tensorrt", "precision": "int8"}),
        ("minilm-l6-h384", {"precision": "fp16", "dims": {"sequence": 128}}),
        ("distilbert-base", {"runtime": "torch-compile", "precision": "bf16", "dims": {"sequence": 64}}),
        ("lstm", {"runtime": "torch-eager"}),
        ("unet", {"include_transfers": True}),
        ("whisper-base-encoder", {"runtime": "ort-cpu"}),
    ],
)
def test_samples_at_many_batches_are_the_same_to_the_last_bit(name: str, terms: dict[str, Any]) -> None:
    model = SAMPLES / f"{name}.onnx"
    rows = sweep(model, gpu=["t4", "p100", "h100", "rtx-4090"], batch=[*range(1, 13), 17, 32], **terms).rows
    assert len(rows) == 56
    for row in rows[::11]:
        p = predict(model, gpu=row.gpu, batch=row.batch, **terms)
        same = p.seconds, p.low_seconds, p.high_seconds, p.watts, p.memory.reserved_bytes, p.memory.fits
        assert (row.seconds, row.low_seconds, row.high_seconds, row.watts, row.process_bytes, row.fits) == same


def choices(seconds: list[float], fits: list[bool]) -> list[Choice]:
    return [Choice(1 << i, s, s, s, 1, f, None) for i, (s, f) in enumerate(zip(seconds, fits, strict=True))]


@given(st.lists(st.tuples(st.floats(1e-6, 1), st.booleans()), min_size=1, max_size=8))
@example([(0.1, True), (0.199, True), (0.41, True)])  # twice the batch gains half a percent
def test_the_knee_is_the_smallest_batch_near_the_highest_throughput(drawn: list[tuple[float, bool]]) -> None:
    made = choices([s for s, _ in drawn], [f for _, f in drawn])
    knee, able = best(made), [c for c in made if c.fits]
    if not able:
        assert knee is None
        return
    assert knee in able
    most = max(c.throughput_per_second for c in able)
    assert knee.throughput_per_second * GAIN >= most
    assert all(c.throughput_per_second * GAIN < most for c in able if c.batch < knee.batch)


def test_the_largest_batch_is_the_largest_that_fits() -> None:
    rows = sweep(net(), gpu=["p4"], batch=[1, 64, 4096, 32768]).rows
    assert [r.fits for r in rows] == [True, True, True, False]
    assert [r.largest for r in rows] == [False, False, True, False]
    assert sum(r.knee for r in rows) == 1 and not rows[-1].knee
    assert rows[-1].why.startswith("does not fit at batch 32768: ") and rows[-1].seconds
    assert not rows[2].why


def test_what_can_not_be_predicted_says_why_and_the_rest_goes_on() -> None:
    found = sweep(net(8), gpu=["t4"], batch=[3, 8], shapes={"x": [8, 3, 32, 32]})
    refused, stored = found.rows
    assert "batch=3" in refused.why and refused.seconds is None and refused.fits is None
    assert stored.seconds and stored.knee and stored.largest and not refused.knee
    mixed = sweep(net(), gpu=["t4", "cpu"] if "cpu" in gpu_specs.ids() else ["t4"], precision=["keep"], batch=1)
    assert all(r.seconds or r.why for r in mixed.rows)
    with pytest.raises(ModelError, match="empty"):
        sweep(b"", gpu=["t4"])
    with pytest.raises(UsageError, match="batch=3"):
        sweep(net(8), gpu=["t4"], batch=[5, 3], shapes={"x": [8, 3, 32, 32]})  # of the first row, not of the first try


def test_one_card_that_can_not_does_not_keep_the_others_from_it(tmp_path: Path) -> None:
    cards = [gpu_specs.load(id) for id in ("t4", "l4", "a100", "h100", "p4")]
    weak = [replace(d, tdp_W=10.0) if d.id == "l4" else d for d in cards]
    rows = sweep(net(), gpu=weak, batch=1, power_limit_W=60.0).rows
    assert "60" in next(r for r in rows if r.gpu == "l4").why
    able = [r for r in rows if r.seconds]
    assert able and all(
        r.seconds == pytest.approx(predict(net(), gpu=r.gpu, batch=1, power_limit_W=60.0).seconds) for r in able
    )


def test_open_dimensions_have_a_column_each() -> None:
    found = sweep(seq(), gpu=["t4"], dims={"seq": [32, 64]}, batch=[1, 2])
    assert [(dict(r.dims)["seq"], r.batch) for r in found.rows] == [(32, 1), (32, 2), (64, 1), (64, 2)]
    frame = found.to_dataframe()
    assert list(frame.columns) == list(columns(("seq",))) and list(frame["dim_seq"]) == [32, 32, 64, 64]
    assert json.loads(found.to_json()) == found.to_dicts()
    assert [r.batch for r in found.knees if dict(r.dims)["seq"] == 64] in ([1], [2])


def test_a_dimension_goes_to_the_models_that_have_it() -> None:
    models = [Model(seq(), "a"), Model(net(), "b"), Model(b"", "c")]
    found, _ = swept(models, grid_of(["t4"], dims={"seq": [32, 64]}, batch=1))
    assert [(b.model, b.dims) for b in found] == [
        ("a", (("seq", 32),)), ("a", (("seq", 64),)), ("b", ()), ("c", (("seq", 32),)), ("c", (("seq", 64),)),
    ]  # fmt: skip
    assert all(r.seconds for b in found[:3] for r in b.rows) and all(
        "empty" in r.why for b in found[3:] for r in b.rows
    )
    shaped = grid_of(["t4"], shapes={"z": [5, 64]})
    other = model_of("g (float[n,64] z) => (float[n,64] y) { y = MatMul(z, w) }", {"w": (64, 64)})
    found, _ = swept([Model(net(1), "b"), Model(other, "z")], shaped)
    assert [r.batch for b in found for r in b.rows if r.seconds] == [1, 5]
    with pytest.raises(UsageError, match="no model has a dimension, tensor or loop 'sek'"):
        swept(models, grid_of(["t4"], dims={"sek": [32]}, batch=1))
    with pytest.raises(UsageError, match="did you mean 'seq'"):
        swept(models[:1], grid_of(["t4"], dims={"sek": [32]}, batch=1))


def test_an_interrupted_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    models = [Model(seq(size), f"m{size}") for size in (32, 64, 96)]
    grid, cache = grid_of(CARDS, dims={"seq": [16]}, batch=[1, 2]), Cache.at(tmp_path)
    whole, _ = swept(models, grid)
    counting = Counting()
    stopped = blocks(models, grid, Engine(counting, counting, 0), cache)
    assert next(stopped) == whole[0]
    stopped.close()
    again, rest = swept(models, grid, cache)
    assert again == whole and len(rest.points) == 4
    more = grid_of([*CARDS, "l4"], dims={"seq": [16]}, batch=[1, 2, 4], precision=["keep", "fp16"])
    _, new = swept(models[:1], more, cache)
    assert [asked for point, asked in new.points if point.batch == 1] == [
        {"keep": ["l4"], "fp16": ["t4", "p4", "h100-sxm", "l4"]}
    ]
    assert not swept(models[:1], more, cache)[1].points
    assert not swept(models, grid, cache)[1].points, "what was there stays"


def test_results_are_found_by_all_they_depend_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, weights = Cache.at(tmp_path), {"w": (64, 64)}
    text = "g (float[batch,64] x) => (float[batch,64] y) { y = MatMul(x, w) }"

    def asked(model: Any, grid: Grid) -> int:
        return len(swept([Model(model, "m")], grid, cache)[1].points)

    grid = grid_of(["l4"], batch=2)
    assert asked(model_of(text, weights), grid) == 1
    assert asked(model_of(text, weights), grid) == 0
    full = parser.parse_model('<ir_version: 9, opset_import: ["" : 17]>' + text)
    full.graph.initializer.append(onnx.numpy_helper.from_array(np.random.rand(64, 64).astype(np.float32), "w"))
    assert asked(full, grid) == 0, "weights are not read"
    assert asked(model_of(text.replace("MatMul", "Gemm"), weights), grid) == 1
    card = replace(gpu_specs.load("l4"), tdp_W=50.0)
    for other in (
        grid_of(["l4"], batch=3), grid_of(["l4"], batch=2, precision="fp16"), grid_of([card], batch=2),
        grid_of(["l4"], batch=2, cuda_graph=True), grid_of(["l4"], batch=2, host="desktop"),
    ):  # fmt: skip
        assert (asked(model_of(text, weights), other), asked(model_of(text, weights), other)) == (1, 0)
    for path in tmp_path.rglob("*.json"):
        path.write_text(path.read_text(encoding="utf-8").replace('"seconds": ', '"seconds": "no" , "x": '), "utf-8")
    assert asked(model_of(text, weights), grid) == 1, "a file that holds something else"
    for module in ("cache", "stream", "work"):
        monkeypatch.setattr(f"onnxperf.sweeps.{module}.edition", lambda: "another")
    assert asked(model_of(text, weights), grid) == 1


def test_small_values_beside_a_model_count(tmp_path: Path) -> None:
    def digest(size: int) -> str:
        model = model_of("g (float[batch,64] x) => (float[batch,a,b] y) { y = Reshape(x, s) }", {})
        shape = TensorProto(name="s", data_type=TensorProto.INT64, dims=[3], data_location=TensorProto.EXTERNAL)
        shape.external_data.add(key="location", value="s.bin")
        model.graph.initializer.append(shape)
        onnx.save(model, tmp_path / "m.onnx")
        (tmp_path / "s.bin").write_bytes(np.array([0, size, 64 // size], np.int64).tobytes())
        read = [prepare(m, None, False, {}) for m in (str(tmp_path / "m.onnx"), onnxperf.load(tmp_path / "m.onnx"))]
        (found,) = {r.digest for r in read if isinstance(r, Prepared)}
        return found

    assert digest(8) == digest(8) != digest(16)


def test_no_more_models_are_read_than_may_be_under_way() -> None:
    counting, models = Counting(), [Model(net(), f"m{i}") for i in range(16)]
    stream_of = blocks(models, grid_of(["t4"], batch=1), Engine(counting, counting, 3))
    next(stream_of)
    assert counting.reads <= 8
    assert len(list(stream_of)) == 15 and counting.reads == 16


def test_another_onnxperf_on_a_worker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "edition", lambda: "0.0.1-other")
    with pytest.raises(EnvironmentFailure, match=r"another onnxperf, .* than this one, 0\.0\.1-other"):
        swept([Model(net(), "m")], grid_of(["t4"], batch=1))


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"gpu": []}, "name the cards"),
        ({"gpu": "l4"}, "name the cards"),
        ({"gpu": ["l4", "nope"]}, "unknown gpu 'nope'"),
        ({"batch": [0]}, "whole numbers from 1 to"),
        ({"batch": []}, "whole numbers from 1 to"),
        ({"batch": ["x"]}, "batch must be a whole number"),
        ({"batch": 100_000}, "whole numbers from 1 to"),
        ({"precision": ["fp32", "fp3"]}, "unknown precision 'fp3'"),
        ({"dims": {"seq": []}}, "dimension 'seq' must be"),
        ({"dims": 3}, "dims must be a mapping"),
        ({"prices": {"l4": 0}}, "must be a positive number"),
        ({"runtime": "fast"}, "unknown runtime 'fast'"),
        ({"host": "nobody"}, "nobody"),
    ],
)
def test_what_is_wrong_is_named(terms: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        sweep(net(), **{"gpu": ["l4"], "batch": 1, **terms})


def test_batches_are_written_as_on_the_command_line() -> None:
    for written, batches in (("8", [8]), ("1,2,4", [1, 2, 4]), ("1..4", [1, 2, 4]), (2, [2])):
        assert [row.batch for row in sweep(net(), gpu=["l4"], batch=written).rows] == batches
    with pytest.raises(UsageError, match="is not a list of batches"):
        sweep(net(), gpu=["l4"], batch="some")


def test_the_package_offers_it() -> None:
    assert isinstance(onnxperf.sweep(net(), gpu=["l4"]), onnxperf.Sweep)

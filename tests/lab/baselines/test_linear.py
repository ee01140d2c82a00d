"""The method linear: operations of layers by hand, the authors' lines, lines of one's own, and what has none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx.parser
import pytest
from click.testing import CliRunner

import gpu_specs
from gpu_specs import Lines
from onnxperf import UsageError, cli, predict
from onnxperf.answer.prediction import summarise
from onnxperf.calibrate import device_file
from onnxperf.lab.baselines import compared
from onnxperf.lab.baselines.linear import Layer, layer_of
from onnxperf.lab.datasets import Table
from onnxperf.lab.datasets.sources.fp32_torch import product
from onnxperf.lab.lines import LayerRow, Line, line, lines_of, misses
from onnxperf.lab.validate.kernels import pairs
from onnxperf.lab.validate.scored import OF_KERNELS, OF_MODELS, chosen

NET = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]>
g (float[4, 8, 14, 14] x, float[16, 8, 3, 3] w, float[784, 10] v) => (float[4, 10] y)
{
    c = Conv<pads = [1, 1, 1, 1], strides = [1, 1]>(x, w)
    r = Relu(c)
    n = LRN<size = 5>(r)
    p = MaxPool<kernel_shape = [3, 3], strides = [1, 1], pads = [1, 1, 1, 1]>(n)
    q = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(p)
    f = Flatten(q)
    m = MatMul(f, v)
    y = Softmax<axis = 1>(m)
}""")
for _name, _shape in (("w", (16, 8, 3, 3)), ("v", (784, 10))):
    _weight = NET.graph.initializer.add(name=_name, dims=_shape, data_type=1, data_location=1)
    _weight.external_data.add(key="location", value="weights-not-included.bin")
POSITIONS = 4 * 14 * 14  # times batch
FORWARD = {
    "Conv": Layer("Conv/FC", "forward", 3 * 3 * 8 * 16 * POSITIONS),
    "Relu": Layer("ReLU/Drop", "forward", 3 * 16 * POSITIONS),
    "LRN": Layer("Norm", "forward", (5 * 16 + 5 - 2) * POSITIONS),
    "MaxPool": Layer("Pool S=1", "forward", 3 * 3 * 16 * POSITIONS),
    "AveragePool": Layer("Pool S>1", "forward", 2 * 2 * 16 * POSITIONS // 4),
    "MatMul": Layer("Conv/FC", "forward", 784 * 10 * 4),
    "Softmax": Layer("Loss", "forward", (4 * 10 - 1) * 4),
}


def own(model: Any = NET, gpu: Any = "m6000", **terms: Any) -> Any:
    return summarise(compared(predict(model, gpu=gpu, **terms).run, "linear"))


def test_operations_of_layers_are_those_of_the_authors() -> None:
    rows = own(opt_level="disabled").run.kernels.rows
    assert {k.op: layer_of(k) for k in rows} == FORWARD


def test_a_layer_takes_what_the_published_line_says() -> None:
    p = own(opt_level="disabled")
    known = {name: (b0, b1) for name, b0, b1 in gpu_specs.load("m6000").lines.forward}
    for k in p.kernels:
        if k.op != "Softmax":  # the authors publish no line for the loss
            b0, b1 = known[FORWARD[k.op].category]
            assert k.seconds == pytest.approx(b0 + b1 * FORWARD[k.op].operations)
    conv = next(k for k in p.kernels if k.op == "Conv")
    assert conv.seconds == pytest.approx(1e-3 * (0.183 + 3.43e-10 * 3 * 3 * 8 * 16 * POSITIONS))
    assert p.seconds == pytest.approx(sum(k.seconds for k in p.kernels)) and p.to_dict()["method"] == "linear"
    note = next(n for n in p.warnings if n.code == "other-model")
    assert "Softmax" in note.message and "Conv" not in note.message


def test_backward_layers_have_lines_of_their_own() -> None:
    model = onnx.ModelProto()
    model.CopyFrom(NET)
    del model.graph.node[2]  # autograd has no rule for LRN
    model.graph.node[2].input[0] = "r"
    p = own(model, runtime="torch-eager", mode="training")
    found = {k.op.rpartition("::")[2]: layer_of(k) for k in p.run.kernels.rows if k.phase == "backward"}
    assert found["convolution_weight_gradient"] == Layer("Conv/FC", "backward", 3 * 3 * 8 * 16 * POSITIONS, 0.5)
    assert found["ReluGrad"] == Layer("ReLU/Drop", "backward", 4 * 16 * POSITIONS)
    assert found["MaxPoolGrad"] == Layer("Pool S=1", "backward", (3 * 3 + 1) * 16 * POSITIONS)
    assert found["AveragePoolGrad"] == Layer("Pool S>1", "backward", (2 * 2 + 1) * 16 * POSITIONS // 4)
    relu = next(k for k in p.kernels if k.op.endswith("ReluGrad"))
    assert relu.seconds == pytest.approx(1e-3 * (0.0118 + 1.33e-8 * 4 * 16 * POSITIONS))


def test_a_card_without_lines_is_refused_with_the_command_that_makes_them() -> None:
    with pytest.raises(UsageError, match=r"l4 has no forward lines .*onnxperf\.lab\.lines DIR"):
        own(gpu="l4")


def test_a_line_goes_through_its_points_and_is_never_below_zero() -> None:
    x = np.array([1e6, 3e7, 2e9])
    assert line(x, 1e-5 + 2e-12 * x) == pytest.approx(Line(1e-5, 2e-12))
    assert line(x, 2 * 1e-5 + 2e-12 * x, np.array([2.0, 2.0, 2.0])) == pytest.approx(Line(1e-5, 2e-12))
    falling = line(np.array([1.0, 2.0]), np.array([2.0, 1.0]))
    assert falling.b0 > 0 and falling.b1 == 0
    steep = line(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    assert steep.b0 == 0 and steep.b1 > 0
    assert line(np.array([1.0, 2.0, 4.0]), np.array([3.0, 5.0, 9.0])).seconds(8.0) == pytest.approx(17)  # in the batch


def test_lines_take_three_rows_and_miss_by_logarithms() -> None:
    rows = [LayerRow("a", "Norm", 1, x, 1e-3 + 1e-9 * x) for x in (1e5, 1e6, 1e7)]
    assert lines_of(rows[:2]) == {}
    found = lines_of(rows)
    assert found["Norm"] == pytest.approx(Line(1e-3, 1e-9))
    twice = rows[0]._replace(seconds=2 * rows[0].seconds)
    assert misses([twice, rows[0]._replace(category="Loss")], found) == pytest.approx([np.log(2)])


def test_a_device_file_keeps_lines_and_their_range(tmp_path: Any) -> None:
    lines = Lines((("Conv/FC", 1e-5, 3e-13), ("Norm", 0.0, 1e-11)), (), 0.25, "here")
    path = tmp_path / "mine.toml"
    path.write_text(device_file.file_of(replace(gpu_specs.load("m6000"), lines=lines)), encoding="utf-8")
    found = gpu_specs.read(path).lines
    assert [name for name, *_ in found.forward] == ["Conv/FC", "Norm"], "in place of the lines that the card ships with"
    assert [b for _, *b in found.forward] == [pytest.approx(b) for _, *b in lines.forward]
    assert (found.backward, found.half_width, found.source) == ((), 0.25, "here")
    p = own(gpu=str(path), opt_level="disabled")
    conv = next(k for k in p.kernels if k.op == "Conv")
    assert np.log(conv.high_seconds / conv.seconds) == pytest.approx(0.25, rel=1e-3)
    with pytest.raises(UsageError, match="no backward lines"):
        _backward(str(path))


def _backward(gpu: str) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> g (float[4, 8] x, float[8, 8] w) => (float[4, 8] y)'
        " { h = MatMul(x, w) y = Relu(h) }"
    )
    model.graph.initializer.add(name="w", dims=(8, 8), data_type=1, raw_data=bytes(256))
    own(model, gpu=gpu, runtime="torch-eager", mode="training")


@pytest.mark.parametrize("lines", ["1", "{ Norm = 1 }", "{ Norm = [1] }", "{ Norm = [-1, 1] }", "{ Norm = [nan, 1] }"])
def test_lines_that_are_none_are_refused(tmp_path: Any, lines: str) -> None:
    text = device_file.file_of(replace(gpu_specs.load("m6000"), lines=Lines()))
    path = tmp_path / "mine.toml"
    path.write_text(f'{text}\n[linear]\nsource = "x"\nforward_ms = {lines}\n', encoding="utf-8")
    with pytest.raises(gpu_specs.SpecError, match="forward_ms"):
        gpu_specs.read(path)


def test_validate_takes_one_method_or_all(tmp_path: Any) -> None:
    assert chosen("all", OF_KERNELS) == OF_KERNELS
    assert chosen("mlp", OF_KERNELS) == ("tile-wave, left out", "mlp, left out", "mlp")
    assert chosen("linear", OF_MODELS) == ("tile-wave, left out",)
    done = CliRunner().invoke(cli.cli, ["validate", str(tmp_path / "m.onnx"), "--method", "all"])
    assert isinstance(done.exception, UsageError) and "predicted by one method" in str(done.exception)


@pytest.mark.parametrize("method", ["linear", "mlp"])
def test_a_prediction_says_what_a_method_to_compare_with_is_for(method: str) -> None:
    with pytest.raises(UsageError, match=f"the method {method} is there for `onnxperf validate` to compare with"):
        predict(NET, gpu="m6000", method=method)
    done = CliRunner().invoke(cli.cli, ["predict", "x.onnx", "--gpu", "t4", "--method", method])
    assert done.exit_code == 2 and "`onnxperf validate`" in done.output.replace("\n", " ")


def test_kernels_are_scored_by_a_line_that_they_had_no_part_in() -> None:
    works = tuple(w for i in range(4, 20) if (w := product("bmm", 8, 64 * i, 512, 512)))
    x, device = np.array([w.matrix_flops / 2 for w in works]), gpu_specs.load("t4")
    seconds = (1e-4 + 4e-13 * x)[:, None]
    test = np.arange(len(works)) >= 12
    seconds[0] *= 3  # spoils the line of its own half, by which the other half is predicted
    none = np.full(seconds.shape, "", dtype=object)
    table = Table("bmm", "torch", works, (device.id,), seconds, test, none, {})
    (own,) = (p for p in pairs(table, "linear") if p.method == "linear")
    off = np.abs(own.predicted / own.measured - 1)
    assert off[0] == pytest.approx(2 / 3) and off[2:12:2] == pytest.approx(0, abs=1e-6)
    assert (off[1:12:2] > 0.01).all() and own.test.tolist() == test.tolist()


def test_no_line_makes_a_layer_faster_than_the_card() -> None:
    card = gpu_specs.load("m6000")
    lines = tuple((name, 0.0, 1e-30) for name, _, _ in card.lines.forward)
    run = own(gpu=replace(card, lines=replace(card.lines, forward=lines))).run
    assert (run.estimates.floor_s > 0).any()
    assert (run.estimates.seconds >= run.estimates.floor_s * 0.999999).all()

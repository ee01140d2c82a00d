"""Time by module: what exporters write of a framework's modules into names and metadata."""

from __future__ import annotations

import io
import json
from pathlib import Path

import onnx
import pytest
from onnx import NodeProto, TensorProto, helper

import onnxperf
from onnxperf.cli import main
from onnxperf.graph.module_path import SCOPES, module_of
from onnxperf.graph.skeleton import skeleton
from onnxperf.ground.errors import UsageError

SAMPLES = Path(__file__).parents[1] / "samples"
KERAS = str(SAMPLES / "keras-resnet50.onnx")


@pytest.mark.parametrize(
    ("name", "scopes", "module"),
    [
        ("/layer1/layer1.0/conv1/Conv", None, "layer1.0.conv1"),
        ("/features/features.0/features.0.1/Relu", None, "features.0.1"),
        ("/encoder/layer.10/attention/self/query/MatMul", None, "encoder.layer.10.attention.self.query"),
        ("/a/ab.0/Add", None, "a.ab.0"),
        ("resnet50_1/conv1_bn_1/batchnorm/mul_1", None, "resnet50_1.conv1_bn_1.batchnorm"),
        ("/Add", None, ""),
        ("Conv_12", None, ""),
        ("", None, ""),
        ("node_relu", "['', 'layer1', 'layer1.0', 'relu']", "layer1.0"),
        ("node_mean", "['', 'mean']", ""),
        ("node_x/y", "no list", "node_x"),
    ],
)
def test_the_module_of_a_node(name: str, scopes: str | None, module: str) -> None:
    node = NodeProto(name=name)
    if scopes is not None:
        node.metadata_props.add(key="namespace", value=": m.Net/relu: aten.relu.default")
        node.metadata_props.add(key=SCOPES, value=scopes)
    assert module_of(node) == module


def scoped() -> onnx.ModelProto:
    """Relu, Relu and Neg, of which the first two say that they are of the modules a.0 and a.1."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [64]) for n in "xy")
    nodes = [helper.make_node(o, [i], [n]) for o, i, n in (("Relu", "x", "p"), ("Relu", "p", "q"), ("Neg", "q", "y"))]
    for i, node in enumerate(nodes[:2]):
        node.metadata_props.add(key=SCOPES, value=f"['', 'a', 'a.{i}', 'relu']")
        node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value="File /home/me/secret.py")
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 18)])


def test_seconds_add_up_by_module() -> None:
    p = onnxperf.predict(scoped(), gpu="l4")
    assert [k.module for k in p.kernels] == ["a.0", "a.1", ""]
    for depth, modules in ((1, {"a", ""}), (2, {"a.0", "a.1", ""}), (3, {"a.0", "a.1", ""})):
        by = p.by_module(depth)
        assert set(by) == modules and sum(by.values()) == pytest.approx(p.sum_seconds)
        assert list(by.values()) == sorted(by.values(), reverse=True)
    assert p.by_module() == p.by_module(2)
    assert [k["module"] for k in p.to_dict()["kernels"]] == ["a.0", "a.1", ""]
    for wrong in (0, "2", True):
        with pytest.raises(UsageError, match="depth must be a whole number of at least 1"):
            p.by_module(wrong)


def test_a_skeleton_keeps_the_modules_and_no_other_metadata() -> None:
    bare = skeleton(scoped())
    assert b"secret" not in bare
    assert onnxperf.predict(bare, gpu="l4").by_module() == onnxperf.predict(scoped(), gpu="l4").by_module()


def test_layers_of_keras_by_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["onnxperf", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    code, out, _ = run("predict", KERAS, "--gpu", "l4", "--by-module", "2")
    lines = out.splitlines()
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("module ")) :]
    assert code == 0 and len([line for line in table if line.startswith("resnet50_1.conv5_block1_")]) >= 4
    code, out, _ = run("predict", KERAS, "--gpu", "l4", "--json", "-")
    assert {k["module"].partition(".")[0] for k in json.loads(out)["kernels"]} == {"resnet50_1", ""}
    code, out, err = run("predict", KERAS, "--gpu", "l4", "--json", "-", "--by-module", "2")
    assert (code, out) == (2, "") and "leave --by-module out" in err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_both_exporters_of_pytorch_name_the_same_modules() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    block = [nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()) for _ in range(2)]
    model = nn.Sequential()
    model.add_module("layer1", nn.Sequential(*block))
    model.add_module("head", nn.Conv2d(8, 4, 1))
    x, file = torch.zeros(1, 8, 16, 16), io.BytesIO()
    torch.onnx.export(model.eval(), (x,), file, dynamo=False)
    new, old = onnxperf.predict(model, (x,), gpu="l4"), onnxperf.predict(file.getvalue(), gpu="l4")
    assert new.by_module() == pytest.approx(old.by_module())
    assert set(new.by_module()) == {"layer1.0", "layer1.1", "head"}
    assert set(new.by_module(1)) == {"layer1", "head"}

"""What Netron shows of a prediction: an attachment, a copy of the model, and Netron's own reader on both."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.util import find_spec
from math import fsum
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto

import onnxperf
from onnxperf.ground.errors import UsageError
from onnxperf.views.netron import annotated, costs
from tests.test_cli import SAMPLES

READER = Path(__file__).with_name("netron_reads.mjs")


@pytest.fixture(scope="module")
def netron(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Netron's own reader: what it says of the model and of every node, from the model's file and an attachment."""
    spec, node = find_spec("netron"), shutil.which("node")
    if spec is None or spec.submodule_search_locations is None or node is None:
        pytest.skip("Netron's reader needs node, and the package netron")
    folder = tmp_path_factory.mktemp("netron") / "netron"
    shutil.copytree(spec.submodule_search_locations[0], folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")

    def read(*files: Path) -> dict[str, Any]:
        done = subprocess.run(
            [node, READER, folder, *files], capture_output=True, text=True, encoding="utf-8", timeout=60
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return read


def props(holder: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in holder.metadata_props}


@pytest.mark.slow
def test_netron_reads_both(netron: Any, model: Path, tmp_path: Path) -> None:
    p = onnxperf.predict(model, gpu="l4", batch=1, runtime="tensorrt")
    attachment, copy = tmp_path / "small.json", tmp_path / "copy.onnx"
    attachment.write_text(p.to_netron(), encoding="utf-8")
    copy.write_bytes(annotated(p, model, str(copy)))
    found = netron(model, attachment)
    assert found["model"]["predicted on"] == "NVIDIA L4, TensorRT, batch 1"
    said, cost = {name: metrics for name, _, metrics in found["nodes"]}, costs(p)
    assert len(said) == 8 and cost.keys() <= said.keys()
    for name, metrics in said.items():
        if name not in cost:
            assert not metrics
        elif cost[name].fused_into:
            assert metrics == {"fused into": cost[name].fused_into}
        else:
            assert metrics["bound"] == cost[name].bound and metrics["share"] == f"{cost[name].seconds / p.seconds:.1%}"
    copied = {name: metadata for name, metadata, _ in netron(copy)["nodes"]}
    assert copied == {n.name: props(n) for n in onnx.load(copy).graph.node}
    assert float(copied["/layer0/Conv"]["onnxperf.seconds"]) == pytest.approx(cost["/layer0/Conv"].seconds, rel=1e-3)


@pytest.mark.slow
def test_netron_reads_hostile_names(netron: Any, hostile: Path, tmp_path: Path) -> None:
    p = onnxperf.predict(hostile, gpu="l4", batch=1)
    attachment = tmp_path / "small.json"
    attachment.write_text(p.to_netron(), encoding="utf-8")
    assert len(netron(hostile, attachment)["nodes"]) == 8


@pytest.mark.parametrize("terms", [{"runtime": "tensorrt"}, {}, {"include_transfers": True}], ids=str)
def test_times_of_nodes_add_up_to_those_of_kernels(terms: dict[str, Any]) -> None:
    p = onnxperf.predict(SAMPLES / "mobilenetv2.onnx", gpu="l4", **terms)
    found = costs(p)
    of_nodes = fsum(k.seconds for k in p.kernels if k.nodes) + fsum(o.seconds for o in p.cpu_operators)
    assert fsum(c.seconds for c in found.values()) == pytest.approx(of_nodes)
    assert found.keys() == {n for x in (*p.kernels, *p.cpu_operators) for n in x.nodes}
    assert all(bool(c.seconds) != bool(c.fused_into) for c in found.values())
    assert all(c.fused_into in found for c in found.values() if c.fused_into)


def test_the_attachment_names_nodes_by_their_first_line(hostile: Path) -> None:
    p = onnxperf.predict(hostile, gpu="l4", batch=1)
    text = p.to_netron()
    assert text.isascii() and json.loads(text)["signature"] == "netron:attachment"
    entries = json.loads(text)["metrics"]
    targets = {e["target"] for e in entries if e["kind"] == "node"}
    assert targets and all("\n" not in t and t.startswith("<script>") for t in targets)
    assert all(e["value"].isprintable() for e in entries)


def test_the_copy_is_the_same_model(model: Path) -> None:
    p = onnxperf.predict(model, gpu="l4", batch=2)
    data = p.annotated(model)
    again = onnxperf.annotated(onnxperf.predict(data, gpu="t4", batch=2), data)
    made, remade = onnx.load_from_string(data), onnx.load_from_string(again)
    onnx.checker.check_model(made)
    assert props(made)["onnxperf.gpu"] == "l4" and props(remade)["onnxperf.gpu"] == "t4"
    assert len(remade.metadata_props) == len(made.metadata_props)  # what was said before is replaced
    assert [len(n.metadata_props) for n in remade.graph.node] == [len(n.metadata_props) for n in made.graph.node]
    assert onnxperf.predict(data, gpu="l4", batch=2).seconds == p.seconds
    for m in (made, original := onnx.load(model)):
        for holder in (m, *m.graph.node):
            del holder.metadata_props[:]
    assert made == original


def test_nodes_without_a_name_and_inside_functions_are_found(model: Path) -> None:
    made = onnx.load(model)
    for node in made.graph.node:
        node.name = ""
    p = onnxperf.predict(made, gpu="l4", batch=1)
    nodes = onnx.load_from_string(p.annotated(made)).graph.node
    assert "onnxperf.bound" in props(nodes[0]) and not made.graph.node[0].metadata_props
    called = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20, "own" : 1]> g (float[64,64] x) => (float[64,64] y) { y = own.F(x) }'
        '<domain: "own", opset_import: ["" : 20]> F (a) => (b) { c = Tanh(a) b = Exp(c) }'
    )
    copy = onnx.load_from_string(onnxperf.predict(called, gpu="l4").annotated(called))
    assert [n.op_type for n in copy.graph.node if props(n)] == ["Tanh", "Exp"]


def test_a_copy_elsewhere_would_lose_its_weights(model: Path, tmp_path: Path) -> None:
    made = onnx.load(model)
    beside = tmp_path / "beside"
    beside.mkdir()
    onnx.save(made, beside / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    p = onnxperf.predict(beside / "m.onnx", gpu="l4", batch=1)
    with pytest.raises(UsageError, match=r"keeps weights in .m\.data., beside it"):
        annotated(p, beside / "m.onnx", str(tmp_path / "copy.onnx"))
    copy = beside / "copy.onnx"
    copy.write_bytes(annotated(p, beside / "m.onnx", str(copy)))
    held = {t.name: t.data_location for t in onnx.load(copy, load_external_data=False).graph.initializer}
    assert TensorProto.EXTERNAL in held.values()
    onnx.load(copy)  # its weights are found

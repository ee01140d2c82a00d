"""What is wrong with a file or a request is said in one line, with the right exit code, and nothing is written."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from onnx import ModelProto, NodeProto, TensorProto, defs, helper
from onnx.parser import parse_model

from onnxperf.cli import main
from onnxperf.graph.checks import misuse

SAMPLES = Path(__file__).parents[1] / "samples"
RESNET, GPT2 = SAMPLES / "resnet50.onnx", SAMPLES / "gpt2-dynamic.onnx"
SIMPLE = '<ir_version: 9, opset_import: ["" : 18]> g (float[2, 3] x) => (float[2, 3] y) { t = Abs(x) y = Neg(t) }'
USAGE, MODEL = 2, 3


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Answer]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """The command line in an empty folder, in this process; it may write nothing there."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Answer:
        before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
        monkeypatch.setattr(sys, "argv", ["onnxperf", *map(str, arguments)])
        with pytest.raises(SystemExit) as e:
            main()
        out, err = capfd.readouterr()
        assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before
        assert isinstance(e.value.code, int)
        return Answer(e.value.code, out, err)

    return run


def refused(answer: Answer, code: int) -> str:
    """Check the form of a refusal; its text."""
    assert answer.code == code, answer.err
    assert answer.out == ""
    assert answer.err.startswith("onnxperf: ")
    assert answer.err.count("\n") == 1 and answer.err.endswith("\n")
    text = answer.err[:-1]
    assert text.isprintable()
    assert "Traceback" not in text
    return text


def predict(run: Run, path: Path, *more: object) -> Answer:
    return run("predict", path, "--gpu", "l4", *more)


def changed(change: Callable[[ModelProto], object]) -> bytes:
    model = parse_model(SIMPLE)
    change(model)
    return model.SerializeToString()


def test_the_model_of_these_tests_is_sound(run: Run, tmp_path: Path) -> None:
    (tmp_path / "good.onnx").write_bytes(changed(lambda m: None))
    answer = predict(run, tmp_path / "good.onnx")
    assert (answer.code, answer.err) == (0, "")


# bytes

whole = RESNET.read_bytes()
BYTES = {
    "empty": b"",
    "text": b"This is no model.\n" * 100,
    "html": b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
    "a pointer of git-lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 102400\n",
    "zip": b"PK\x03\x04" + bytes(60),
    "pickle": b"\x80\x04\x95\x00\x00\x00",
    "zeros": bytes(1000),
    "half": whole[: len(whole) // 2],
    "all but the last byte": whole[:-1],
    "no graph": ModelProto(ir_version=9).SerializeToString(),
    "nested too deep": b"\x3a\x7f" * 5000,
    **{f"random {i}": random.Random(i).randbytes(1 << i) for i in range(4, 16)},
    **{f"cut at {i}": whole[:i] for i in range(1, len(whole), len(whole) // 20)},
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_that_are_no_model(run: Run, tmp_path: Path, name: str) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(BYTES[name])
    assert "bad.onnx" in refused(predict(run, path), MODEL)


# models

big = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2**40, 2**40])
short = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=bytes(15))
double = TensorProto(name="x", data_type=TensorProto.FLOAT, dims=[1], raw_data=bytes(4))


def add_weight(tensor: TensorProto, reader: str = "w") -> Callable[[ModelProto], None]:
    def change(m: ModelProto) -> None:
        m.graph.initializer.append(tensor)
        m.graph.node.add(op_type="Add", input=[reader, "x"], output=["z"])

    return change


def external(location: str) -> Callable[[ModelProto], None]:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return add_weight(tensor)


def attribute(**fields: object) -> Callable[[ModelProto], object]:
    return lambda m: m.graph.node.add(op_type="Softmax", input=["x"], output=["z"]).attribute.add(name="axis", **fields)


def nest(m: ModelProto) -> None:
    graph = m.graph
    for _ in range(30):
        graph = graph.node.add(op_type="If", input=["x"], output=["z"]).attribute.add(name="then_branch", type=5).g
    graph.node.add(op_type="Abs", input=["missing"], output=["z"])


def recursive(m: ModelProto) -> None:
    m.graph.node[0].op_type = m.graph.node[0].domain = "f"
    body = [helper.make_node("f", ["a"], ["b"], domain="f")]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    m.functions.append(helper.make_function("f", "f", ["a"], ["b"], body, opsets))
    m.opset_import.add(domain="f", version=1)


def doubling(m: ModelProto) -> None:
    """Sixty functions, each calling the next twice."""
    recursive(m)
    del m.functions[:]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    for i in range(60):
        name, next_one = "f" if i == 0 else f"f{i}", f"f{i + 1}"
        body = [helper.make_node(next_one, [a], [b], domain="f") for a, b in (("a", "b"), ("b", "c"))]
        m.functions.append(helper.make_function("f", name, ["a"], ["c"], body, opsets))


def dim(i: int, **fields: object) -> Callable[[ModelProto], None]:
    def change(m: ModelProto) -> None:
        m.graph.input[0].type.tensor_type.shape.dim[i].CopyFrom(
            type(m.graph.input[0].type.tensor_type.shape.dim[i])(**fields)
        )

    return change


def outputs(*names: str) -> Callable[[ModelProto], None]:
    def change(m: ModelProto) -> None:
        m.graph.node[0].output[:] = names

    return change


MODELS: dict[str, tuple[Callable[[ModelProto], object], int, str]] = {
    "no nodes": (lambda m: m.graph.ClearField("node"), MODEL, "no nodes"),
    "an empty graph": (lambda m: m.graph.Clear() or m.graph.SetInParent(), MODEL, "no nodes"),
    "no outputs": (lambda m: m.graph.ClearField("output"), MODEL, "no outputs"),
    "a cycle": (lambda m: m.graph.node[0].input.__setitem__(0, "y"), MODEL, "cycle"),
    "a node that reads itself": (lambda m: m.graph.node[0].input.__setitem__(0, "t"), MODEL, "cycle"),
    "reading nothing": (lambda m: m.graph.node[0].input.__setitem__(0, "q"), MODEL, "'q', which nothing makes"),
    "an output of nothing": (lambda m: setattr(m.graph.output[0], "name", "q"), MODEL, "'q' is made by no node"),
    "a tensor made twice": (lambda m: m.graph.node.add(op_type="Abs", input=["x"], output=["t"]), MODEL, "twice"),
    "an input twice": (lambda m: m.graph.input.append(m.graph.input[0]), MODEL, "'x' is defined twice"),
    "a weight twice": (lambda m: m.graph.initializer.extend([short, short]), MODEL, "fill|twice"),
    "a made input": (outputs("x"), MODEL, "nothing makes|twice"),
    "shapes that differ": (lambda m: m.graph.node.add(op_type="MatMul", input=["x", "t"], output=["z"]), MODEL, "2x3"),
    "a claim that is wrong": (
        lambda m: m.graph.value_info.append(helper.make_tensor_value_info("t", 1, [2, 4])), MODEL, "2x4.*2x3"),
    "a huge dimension": (dim(0, dim_value=2**62), MODEL, "overflows"),
    "huge weights": (add_weight(big), MODEL, "overflows"),
    "short data": (add_weight(short), MODEL, "do not fill"),
    "an unknown element type": (add_weight(TensorProto(name="w", data_type=77, dims=[1])), MODEL, "element type"),
    "opset 6": (lambda m: setattr(m.opset_import[0], "version", 6), MODEL, "opset 6 is older"),
    "opset 9999": (lambda m: setattr(m.opset_import[0], "version", 9999), MODEL, "pip install -U onnx"),
    "opset 2**62": (lambda m: setattr(m.opset_import[0], "version", 2**62), MODEL, "newest"),
    "no opset": (lambda m: m.ClearField("opset_import"), MODEL, "does not say which opset"),
    "IR 2": (lambda m: setattr(m, "ir_version", 2), MODEL, "IR version 2"),
    "no IR": (lambda m: m.ClearField("ir_version"), MODEL, "IR version 0"),
    "a float for an axis": (attribute(type=1, f=1.0), MODEL, "'axis' must be of type INT"),
    "a graph for an axis": (attribute(type=5), MODEL, "'axis' must be of type INT"),
    "an axis of no type": (attribute(), MODEL, "'axis' must be of type INT"),
    "an axis of an unknown type": (attribute(type=14, i=1), MODEL, "'axis' must be of type INT"),
    "an axis out of range": (attribute(type=2, i=2**63 - 1), MODEL, "out of range"),
    "a node without type": (lambda m: m.graph.node.add(input=["q"], output=["z"]), MODEL, "nothing makes"),
    "deep nesting": (nest, MODEL, "missing|nothing makes"),
    "a recursive function": (recursive, MODEL, "circle"),
    "functions that explode": (doubling, MODEL, "limit"),
    "an open dimension": (dim(1, dim_param="width"), USAGE, "--dim width="),
    "an unnamed open dimension": (dim(1), USAGE, "--shapes x:2x128"),
    "a name of many lines": (dim(1, dim_param="a\nb\x1b[2J"), USAGE, "dynamic"),
    "no shape": (lambda m: m.graph.input[0].type.tensor_type.ClearField("shape"), USAGE, "--shapes x:"),
    **{
        f"data in {where}": (external(where), MODEL, "outside the model's folder")
        for where in ("../w", "/etc/passwd", "C:\\w", "D:w", "..\\w", "\\\\host\\share\\w", "a/b/../../../w")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_that_can_not_be_used(run: Run, tmp_path: Path, name: str) -> None:
    change, code, said = MODELS[name]
    path = tmp_path / "bad.onnx"
    path.write_bytes(changed(change))
    text = refused(predict(run, path), code)
    assert len(text) < 600
    assert re.search(said, text), text


def test_names_that_are_no_text(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    for old, new in ((b"Abs", b"\xff\xfe\xff"), (b"\x01t", b"\x01\xff"), (b"\x01x", b"\x01\x80")):
        path.write_bytes(changed(lambda m: None).replace(old, new))
        assert "not valid UTF-8" in refused(predict(run, path), MODEL)


# what is fine, though it looks strange


def test_unsorted_nodes_and_unknown_operators_are_taken(run: Run, tmp_path: Path) -> None:
    def change(m: ModelProto) -> None:
        m.graph.node.append(NodeProto(op_type="Gizmo", domain="nowhere", input=["x"], output=["s"]))
        m.graph.node.insert(0, NodeProto(op_type="Add", input=["s", "t"], output=["z"]))
        m.graph.output.append(helper.make_tensor_value_info("z", 1, [2, 3]))

    path = tmp_path / "odd.onnx"
    path.write_bytes(changed(change))
    answer = predict(run, path)
    assert answer.code == 0
    assert "nowhere::Gizmo" in answer.out


# requests

REQUESTS = {
    "a misspelt dim": (["--dim", "sequense=8"], "did you mean 'sequence'"),
    "a dim left open": ([], "--dim sequence="),
    "a dim without number": (["--dim", "sequence"], "--dim 'sequence' is not valid"),
    "a negative dim": (["--dim", "sequence=-1"], "not valid"),
    "a dim twice": (["--dim", "sequence=1", "--dim", "sequence=2"], "twice"),
    "an unknown tensor": (["--dim", "sequence=8", "--shapes", "inputids:1x8"], "did you mean 'input_ids'"),
    "a wrong rank": (["--shapes", "input_ids:8"], "1 dimension, but the file declares 2"),
    "shapes that disagree": (["--shapes", "input_ids:1x8", "--shapes", "attention_mask:1x9"], "'sequence' is given as"),
    "batch and dim": (["--dim", "batch=2", "--dim", "sequence=8", "--batch", "3"], "contradicts 2"),
    "no shape": (["--shapes", "input_ids"], "not valid"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_that_can_not_be_met(run: Run, name: str) -> None:
    arguments, said = REQUESTS[name]
    assert said in refused(predict(run, GPT2, *arguments), USAGE)


def test_files_that_are_none(run: Run, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert "no such file" in refused(predict(run, tmp_path / "nowhere.onnx"), USAGE)
    assert "is a folder" in refused(predict(run, tmp_path / "folder"), USAGE)
    assert "no such file" in refused(predict(run, tmp_path / "a\nb"), USAGE)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="needs a file that can't be read")
def test_a_file_that_can_not_be_read(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "secret.onnx"
    path.touch(0)
    assert "can't read" in refused(predict(run, path), USAGE)


def test_json_is_not_written_for_a_model_that_can_not_be_used(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"")
    refused(predict(run, path, "--json", tmp_path / "out.json"), MODEL)
    refused(predict(run, path, "--json", "-"), MODEL)


# processes


@pytest.mark.slow
@pytest.mark.parametrize(("data", "code"), [(b"", MODEL), (whole[:5000], MODEL), (None, USAGE)])
def test_the_real_process(tmp_path: Path, data: bytes | None, code: int) -> None:
    path = tmp_path / "model.onnx"
    if data is not None:
        path.write_bytes(data)
    command = [sys.executable, "-W", "error", "-m", "onnxperf", "predict", str(path), "--gpu", "l4"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=env, check=False)
    refused(Answer(done.returncode, done.stdout, done.stderr), code)
    assert sorted(p.name for p in tmp_path.iterdir()) == (["model.onnx"] if data is not None else [])


@pytest.mark.parametrize("equation", ["ij1", "ij$", "ij\0", "i.j", "ij,jk->i->k", "ij-jk", "ab," * 9999 + "1"])
def test_an_einsum_whose_equation_is_no_equation_is_refused_before_it_is_inferred(equation: str) -> None:
    node = helper.make_node("Einsum", ["x"], ["y"], equation=equation)
    assert "its equation" in misuse(node, defs.get_schema("Einsum", 13))


@pytest.mark.parametrize("equation", ["ij", "i j, jk -> ik", "...ij,...jk->...ik", "ii->", "bIj,bJi"])
def test_an_einsum_with_an_equation_is_not_refused(equation: str) -> None:
    node = helper.make_node("Einsum", ["x"], ["y"], equation=equation)
    assert misuse(node, defs.get_schema("Einsum", 13)) == ""

"""`onnxperf export` and `onnxperf strip`: what the files hold, errors in one sentence, nothing overwritten."""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import onnxperf
from onnxperf import cli
from onnxperf.cli.arguments import parse_input
from onnxperf.ground.errors import UsageError
from onnxperf.ground.names import EXAMPLES

ROOT = Path(__file__).parents[2]
RESNET = ROOT / "samples" / "resnet50.onnx"

MODELS = '''
import sys
import torch
import beside

print("said while importing")


class Scaled(torch.nn.Module):
    """Two inputs, of different types."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 40)

    def forward(self, x, ids):
        return x @ self.table(ids).transpose(0, 1)


class Undecided(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def build():
    return torch.nn.Sequential(torch.nn.Linear(64, beside.WIDTH), torch.nn.Dropout(), torch.nn.Linear(beside.WIDTH, 8))


def broken():
    raise RuntimeError("no \\x1b[31mdata\\nnowhere")


def leaving():
    sys.exit(0)


def text():
    return "no model"


scaled = Scaled()
undecided = Undecided()
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with models, from which nothing stays imported."""
    pytest.importorskip("torch")
    (tmp_path / "some_models.py").write_text(MODELS)
    (tmp_path / "beside.py").write_text("WIDTH = 128\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("some_models", "beside", "onnxperf_export_some_models"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Exit code, stdout and stderr of the command line."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["onnxperf", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capfd.readouterr()
        return int(stop.value.code or 0), out, err

    return call


def kernels(path: Path | str) -> list[tuple[Any, ...]]:
    return [(k.name, k.op, k.seconds) for k in onnxperf.predict(path, gpu="t4").kernels]


@pytest.mark.parametrize("named", ["some_models:build", "some_models.py:build"])
def test_a_torch_model_with_its_weights_and_without(run, here: Path, named: str) -> None:
    code, out, err = run("export", "torch", named, "--input", "2x64", "-o", "m.onnx")
    assert (code, out) == (0, ""), err
    assert run("export", "torch", named, "--input", "2x64", "-o", "w.onnx", "--weightless")[0] == 0
    whole = onnx.load(here / "m.onnx")
    onnx.checker.check_model(whole)
    assert sum(len(t.raw_data) for t in whole.graph.initializer) >= 4 * (64 * 128 + 128 * 8)
    assert (here / "w.onnx").stat().st_size < 4_000
    assert [d.dim_value for d in whole.graph.input[0].type.tensor_type.shape.dim] == [2, 64]
    assert "RandomUniform" not in str(whole) and "Dropout" not in str(whole), "exported as it runs, not as it trains"
    assert [(op, s) for _, op, s in kernels("m.onnx")] == [(op, s) for _, op, s in kernels("w.onnx")]
    assert sorted(p.name for p in here.glob("*.onnx*")) == ["m.onnx", "w.onnx"]


def test_inputs_by_name_and_type(run, here: Path) -> None:
    arguments = ("--input", "ids:4:int64", "--input", "x:3x40:float32")
    assert run("export", "torch", "some_models:scaled", *arguments, "-o", "m.onnx")[0] == 0
    assert run("export", "torch", "some_models:scaled", *arguments, "-o", "w.onnx", "--weightless")[0] == 0
    for name in ("m.onnx", "w.onnx"):
        inputs = {i.name: i.type.tensor_type for i in onnx.load(name, load_external_data=False).graph.input}
        assert {n: [d.dim_value for d in t.shape.dim] for n, t in inputs.items()} == {"x": [3, 40], "ids": [4]}
        assert inputs["ids"].elem_type == TensorProto.INT64


def test_dimensions_that_stay_open(run, here: Path) -> None:
    arguments = ("export", "torch", "some_models:scaled", "--input", "x:1x40", "--input", "ids:4:int64")
    opened = ("--dynamic", "x:0=rows", "--dynamic", "ids:0=n")
    assert run(*arguments, *opened, "-o", "m.onnx")[:2] == (0, "")
    assert run(*arguments, *opened, "-o", "w.onnx", "--weightless")[:2] == (0, "")
    for name in ("m.onnx", "w.onnx"):
        inputs = {i.name: i.type.tensor_type.shape.dim for i in onnx.load(name, load_external_data=False).graph.input}
        assert {n: [d.dim_param or d.dim_value for d in s] for n, s in inputs.items()} == {
            "x": ["rows", 40],
            "ids": ["n"],
        }
        assert onnxperf.predict(name, gpu="l4", dims={"rows": 64, "n": 3}).scenario.inputs[0][1] == (64, 40)
    for given, says in (
        ("y:0=rows", "'y' is no input: give --input y:"),
        ("x:2=rows", "'x' has axes 0 to 1"),
        ("x=rows", "write INPUT:AXIS=NAME"),
        ("x:1=width", "--dynamic x:1=width: the model only runs at size 40 there"),
    ):
        code, _, err = run(*arguments, "--dynamic", given, "-o", "n.onnx")
        assert code in (2, 3) and says in err, err
        assert not Path("n.onnx").exists()


def test_the_weights_are_the_models_own(run, here: Path) -> None:
    import onnxruntime
    import torch

    assert run("export", "torch", "some_models:scaled", "--input", "3x40", "--input", "4:int64", "-o", "m.onnx")[0] == 0
    x, ids = torch.randn(3, 40), torch.tensor([1, 2, 3, 9])
    session = onnxruntime.InferenceSession("m.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x.numpy(), "ids": ids.numpy()})
    np.testing.assert_allclose(found, sys.modules["some_models"].scaled(x, ids).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_large_weights_lie_beside_the_file(run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    save = torch.onnx.ONNXProgram.save
    monkeypatch.setattr(torch.onnx.ONNXProgram, "save", lambda program, to: save(program, to, external_data=True))
    for _ in range(2):  # also over what an earlier run left
        assert run("export", "torch", "some_models:build", "--input", "2x64", "-o", "m.onnx")[0] == 0
    assert onnx.load(here / "m.onnx").graph.initializer[0].raw_data
    assert sorted(p.name for p in here.iterdir() if not p.name.endswith(("py", "__pycache__"))) == [
        "m.onnx", "m.onnx.data"
    ]  # fmt: skip


BAD = [
    (("some_models",), "write MODULE:FACTORY"),
    ((":build",), "write MODULE:FACTORY"),
    (("no_such_module:build",), "no_such_module can't be imported: ModuleNotFoundError: No module named"),
    (("none.py:build",), "none.py can't be imported: FileNotFoundError"),
    (("some_models:none",), "some_models has no 'none'"),
    (("some_models:broken",), "some_models:broken failed: RuntimeError: no \N{REPLACEMENT CHARACTER}[31mdata"),
    (("some_models:leaving",), "some_models:leaving failed: SystemExit: 0"),
    (("some_models:text",), "some_models:text is a str, no torch.nn.Module"),
    (("some_models:build",), "needs example inputs"),
    (("some_models:build", "--input", "2x63"), "does not run on these example inputs"),
    (("some_models:build", "--input", "2x64", "--input", "2x64"), "does not run on these example inputs"),
    (("some_models:build", "--input", "2,64"), "--input '2,64' is not valid"),
    (("some_models:build", "--input", "2x64:int4"), "--input '2x64:int4' is not valid"),
    (("some_models:build", "--input", "999999999x999999999"), "elements"),
    (("some_models:build", "--input", "a:2", "--input", "a:2"), "name every one once, or none"),
    (("some_models:build", "--input", "a:2", "--input", "2"), "name every one once, or none"),
]


@pytest.mark.parametrize("arguments, says", BAD, ids=[" ".join(a) for a, _ in BAD])
@pytest.mark.parametrize("how", [(), ("--weightless",)], ids=["whole", "weightless"])
def test_what_can_not_be_exported_is_told_in_a_sentence(run, here: Path, arguments: Any, says: str, how: Any) -> None:
    code, out, err = run("export", "torch", *arguments, "-o", "m.onnx", *how)
    told = [line for line in err.splitlines() if line != "said while importing"]
    assert (code, out) == (2, "")
    assert len(told) == 1 and told[0].startswith("onnxperf: ") and says in told[0]
    assert not list(here.glob("*.onnx*")) and not list(here.glob(".onnxperf*"))


def test_what_the_exporter_refuses_exits_with_3(run, here: Path) -> None:
    (here / "m.onnx").write_text("old")
    code, _, err = run("export", "torch", "some_models:undecided", "--input", "2", "-o", "m.onnx")
    assert code == 3
    assert "can't export Undecided" in err.splitlines()[-1]
    assert (here / "m.onnx").read_text() == "old"


@pytest.fixture(scope="module")
def keras_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Keras models in all forms, and what one of them makes of an image."""
    pytest.importorskip("tensorflow")
    pytest.importorskip("tf2onnx")
    folder = tmp_path_factory.mktemp("keras")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import keras

        layers = keras.layers
        filled = {"bias_initializer": "random_normal"}  # biases of zeros would be left out of the whole model
        model = keras.Sequential(
            [
                keras.Input((8, 8, 3), name="image"),
                layers.Conv2D(64, 3, padding="same", activation="relu", **filled),
                layers.Flatten(),
                layers.Dense(10, **filled),
            ],
            name="tiny",
        )
        for name in ("tiny.keras", "tiny.h5"):
            model.save(folder / name)
        model.export(folder / "saved", verbose=False)
        a, b = (keras.Input((None, 8), name=name) for name in "ab")
        keras.Model([a, b], layers.Dense(4, **filled)(a + b), name="sum").save(folder / "sum.keras")
        image = np.random.default_rng(0).standard_normal((1, 8, 8, 3)).astype(np.float32)
        np.savez(folder / "known.npz", image=image, answer=model(image).numpy())
    return folder


@pytest.mark.parametrize("name", ["tiny.keras", "tiny.h5", "saved"])
def test_a_keras_model_with_its_weights_and_without(run, keras_files: Path, tmp_path: Path, name: str) -> None:
    import onnxruntime

    whole, light = tmp_path / "m.onnx", tmp_path / "w.onnx"
    code, out, err = run("export", "keras", str(keras_files / name), "-o", str(whole))
    assert (code, out, err) == (0, "", "")
    assert run("export", "keras", str(keras_files / name), "-o", str(light), "--weightless") == (0, "", "")
    with np.load(keras_files / "known.npz") as stored:
        known = dict(stored)
    session = onnxruntime.InferenceSession(whole, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"image": known["image"]})
    np.testing.assert_allclose(found, known["answer"], rtol=1e-4, atol=1e-5)
    assert light.stat().st_size < 20_000 < whole.stat().st_size
    assert [(op, s) for _, op, s in kernels(whole)] == [(op, s) for _, op, s in kernels(light)]


def test_keras_models_with_functions_and_numbers_of_their_own(run, tmp_path: Path) -> None:
    """A Normalization layer holds numbers that are no variables; a depthwise convolution may be a compiled function."""
    import onnxruntime

    warnings.simplefilter("ignore")  # TensorFlow's own; pytest restores the filters
    keras = pytest.importorskip("keras")
    parts = [keras.layers.Normalization(mean=[1.0, 2.0, 3.0], variance=[4.0, 5.0, 6.0]),
             keras.layers.DepthwiseConv2D(3), keras.layers.Flatten(), keras.layers.LSTM(8)]  # fmt: skip
    parts.insert(3, keras.layers.Reshape((6, 18)))
    model = keras.Sequential([keras.Input((8, 8, 3)), *parts])
    model.save(tmp_path / "m.keras")
    assert run("export", "keras", str(tmp_path / "m.keras"), "-o", str(tmp_path / "m.onnx"))[0] == 0
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    (name,) = (i.name for i in session.get_inputs())
    x = np.random.default_rng(0).standard_normal((1, 8, 8, 3)).astype(np.float32)
    np.testing.assert_allclose(session.run(None, {name: x})[0], model(x).numpy(), rtol=1e-4, atol=1e-5)
    assert "LSTM" in {n.op_type for n in _light(tmp_path / "m.onnx").graph.node}


def test_a_file_that_can_not_run_is_not_written(run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxperf.export import from_torch

    def unknown(model: Any, examples: Any, path: Path) -> None:
        node = helper.make_node("StatefulPartitionedCall", ["x"], ["y"])
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
        onnx.save(helper.make_model(helper.make_graph([node], "g", [x], [y])), path)

    monkeypatch.setattr(from_torch, "write", unknown)
    code, out, err = run("export", "torch", "some_models:build", "--input", "2x64", "-o", "new.onnx")
    assert (code, out) == (3, "") and "can't be run" in err and "StatefulPartitionedCall" in err
    assert not Path("new.onnx").exists()


@pytest.mark.parametrize("how", [(), ("--weightless",)], ids=["whole", "weightless"])
def test_sizes_that_a_keras_model_leaves_open(run, keras_files: Path, tmp_path: Path, how: tuple[str, ...]) -> None:
    out = tmp_path / "m.onnx"
    arguments = ("export", "keras", str(keras_files / "sum.keras"), "-o", str(out), *how)
    for inputs, says in (
        ((), "give --input a:1x128x8 --input b:1x128x8, say"),
        (("2x5x8",), "the model takes 2"),
        (("a:2x5x8", "c:2x5x8"), "'c'"),
        (("2x5x7", "2x5x7"), "does not run on"),
    ):
        code, _, err = run(*arguments, *(part for text in inputs for part in ("--input", text)))
        assert code == 2 and says in err and err.count("\n") == 1
        assert not list(tmp_path.iterdir())
    assert run(*arguments, "--input", "b:2x5x8", "--input", "a:2x5x8") == (0, "", "")
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in _light(out).graph.input}
    assert shapes == {"a": [2, 5, 8], "b": [2, 5, 8]}


@pytest.mark.parametrize("how", [(), ("--weightless",)], ids=["whole", "weightless"])
def test_what_is_no_keras_model(run, keras_files: Path, tmp_path: Path, how: tuple[str, ...]) -> None:
    for name in ("broken.keras", "broken.h5"):
        (tmp_path / name).write_bytes(b"none")
    (tmp_path / "empty").mkdir()
    for name, code, says in (
        ("none.keras", 2, "no such file"),
        ("empty", 2, "nor a SavedModel folder"),
        ("broken.keras", 3, "broken.keras"),
        ("broken.h5", 3, "broken.h5"),
    ):
        found, _, err = run("export", "keras", str(tmp_path / name), "-o", str(tmp_path / "m.onnx"), *how)
        assert found == code and says in err and err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["broken.h5", "broken.keras", "empty"]


def _light(path: Path) -> ModelProto:
    return onnx.load(path, load_external_data=False)


@pytest.mark.parametrize(
    "target, says", [("m.txt", "ends with .onnx"), ("no/m.onnx", "can't write no/m.onnx"), ("d.onnx", "d.onnx")]
)
def test_where_nothing_can_be_written(run, here: Path, target: str, says: str) -> None:
    (here / "d.onnx").mkdir()
    for how in ((), ("--weightless",)):
        code, _, err = run("export", "torch", "some_models:build", "--input", "2x64", "-o", target, *how)
        assert code == 2 and says in err.splitlines()[-1]
    assert not list((here / "d.onnx").iterdir())


def test_the_input_option() -> None:
    assert parse_input("1x3x224x224") == ("", (1, 3, 224, 224), "float32")
    assert parse_input("ids:1x128:int64") == ("ids", (1, 128), "int64")
    assert parse_input("8:bool") == ("", (8,), "bool")
    assert parse_input("a:b:2x2") == ("a:b", (2, 2), "float32")
    torch = pytest.importorskip("torch")
    assert all(isinstance(getattr(torch, name), torch.dtype) for name in EXAMPLES)
    for text in ("", "x", "x:", ":2x2", "2x", "-2", "x:2x2:", "2x2:float8", "2x2:x:float32"):
        with pytest.raises(UsageError, match="is not valid"):
            parse_input(text)


def product(width: int = 64) -> ModelProto:
    """One product with a weight, a constant of as many numbers, and a small bias."""
    r = np.random.default_rng(0)

    def stored(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(r.standard_normal(shape).astype(np.float32), name)

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node("Constant", [], ["c"], name="constant", value=stored("c", width, width)),
        helper.make_node("Mul", ["p", "c"], ["q"], name="scaled"),
        helper.make_node("Add", ["q", "b"], ["y"], name="moved"),
    ]
    io = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [width, width]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", io[:1], io[1:], [stored("w", width, width), stored("b", width)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_strip_leaves_weights_out_and_says_so(run, tmp_path: Path) -> None:
    path, light, again = (tmp_path / name for name in ("m.onnx", "light.onnx", "again.onnx"))
    onnx.save(product(), path)
    before = path.read_bytes()
    code, out, err = run("strip", str(path), "-o", str(light))
    assert (code, out) == (0, "")
    assert err.count("\n") == 1 and "2 tensors, 0.0 MB left out" in err
    made = onnx.load(light, load_external_data=False)
    assert {p.key: p.value for p in made.metadata_props} == {"onnxperf.stripped": "2 tensors, 0.0 MB"}
    assert path.read_bytes() == before
    assert light.stat().st_size < 2_000
    assert kernels(light) == kernels(path)
    assert run("strip", str(light), "-o", str(again))[0] == 0
    assert again.read_bytes() == light.read_bytes()


def test_strip_counts_what_is_outside_already(run, tmp_path: Path) -> None:
    light = tmp_path / "light.onnx"
    assert run("strip", str(RESNET), "-o", str(light))[0] == 0
    (note,) = onnx.load(light, load_external_data=False).metadata_props
    stored = onnx.load(RESNET, load_external_data=False).graph.initializer
    outside = [t for t in stored if t.data_location == TensorProto.EXTERNAL]
    assert note.value == f"{len(outside)} tensors, {sum(4 * np.prod(t.dims) for t in outside) / 1e6:.1f} MB"
    assert kernels(light) == kernels(RESNET)


def test_strip_overwrites_no_source_and_tells_what_is_wrong(run, tmp_path: Path) -> None:
    path, link = tmp_path / "m.onnx", tmp_path / "link.onnx"
    onnx.save(product(), path)
    before = path.read_bytes()
    link.symlink_to(path)
    (tmp_path / "broken.onnx").write_bytes(b"none")
    for source, target, code, says in (
        (path, path, 2, "would overwrite"),
        (path, link, 2, "would overwrite"),
        (path, tmp_path / "m.bin", 2, "ends with .onnx"),
        (path, tmp_path / "no" / "m.onnx", 2, "can't write"),
        (tmp_path / "none.onnx", tmp_path / "o.onnx", 2, "no such file"),
        (tmp_path / "broken.onnx", tmp_path / "o.onnx", 3, "is not an ONNX model"),
    ):
        found, _, err = run("strip", str(source), "-o", str(target))
        assert found == code and says in err and err.count("\n") == 1
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["broken.onnx", "link.onnx", "m.onnx"]

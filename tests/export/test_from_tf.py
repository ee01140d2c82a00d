"""What models of Keras and TensorFlow become: the same model without weights, and they are as they were."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tracemalloc
import warnings
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxperf
from onnxperf.export import source
from onnxperf.ground.errors import ModelError, UsageError
from tests.estimating import predict_on
from tests.later import later

tf, keras, layers, tf2onnx = (later(name) for name in ("tensorflow", "keras", "keras.layers", "tf2onnx"))
models = later("tests.export.tf_models")
SAMPLES = Path(onnxperf.__file__).parents[1] / "samples"
X = np.zeros((2, 8), np.float32)
APPLICATIONS = {
    "keras-resnet50": "ResNet50",
    "keras-mobilenetv2": "MobileNetV2",
    "keras-efficientnetb0": "EfficientNetB0",
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Names count on from model to model; TensorFlow's own warnings are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keras.backend.clear_session(free_memory=False)  # to free it looks at all objects there are
        yield


def proto(model: Any, examples: Any = None, open_batch: bool = False) -> onnx.ModelProto:
    found, rest = source(model, examples, open_batch=open_batch)
    assert isinstance(found, onnx.ModelProto)
    assert rest is None
    return found


@cache
def application(sample: str) -> onnx.ModelProto:
    """What one of Keras' own models becomes."""
    return proto(getattr(keras.applications, APPLICATIONS[sample])(weights=None))


def inputs(model: onnx.ModelProto) -> dict[str, list[Any]]:
    shapes = {i.name: i.type.tensor_type.shape.dim for i in model.graph.input}
    return {name: [d.dim_param or d.dim_value for d in dims] for name, dims in shapes.items()}


def kernels(model: Any) -> list[tuple[Any, ...]]:
    found = model if isinstance(model, onnxperf.Prediction) else onnxperf.predict(model, gpu="l4")
    return sorted((k.op, k.flops, k.bytes_read, k.seconds) for k in found.kernels)


def distinct(model: Any) -> None:
    """Fill every weight with a number of its own: the exporter leaves out biases of zeros, and merges equal tensors."""
    for i, parameter in enumerate(model.weights):
        if parameter.dtype == "float32":
            parameter.assign(np.full(parameter.shape, (1024 + i) / 65536, np.float32))


def mlp(*more: Any) -> Any:
    return keras.Sequential(
        [keras.Input((8,), name="x"), layers.Dense(600, "relu"), layers.Dense(4), *more], name="mlp"
    )


# the same prediction as with weights


@pytest.mark.parametrize("sample", APPLICATIONS)
def test_the_kernels_are_those_of_a_model_with_weights(sample: str) -> None:
    written = SAMPLES / f"{sample}.onnx"  # tf2onnx wrote it with all weights in it
    predictions = (predict_on(["t4", "l4"], m) for m in (application(sample), written))
    for ours, theirs in zip(*predictions, strict=True):
        assert kernels(ours) == kernels(theirs)
        # The exporter goes through sets of names: it is by chance whether it leaves in a Reshape that does nothing.
        assert ours.seconds == pytest.approx(theirs.seconds, rel=0.003)


def test_mobilenet_has_the_products_of_pytorchs() -> None:
    works = [
        onnxperf.predict(m, gpu="t4").work["matrix_flops"]
        for m in (application("keras-mobilenetv2"), SAMPLES / "mobilenetv2.onnx")
    ]
    assert works[0] == works[1]
    assert works[0] / 2e9 == pytest.approx(0.3008, abs=1e-4)


def test_small_models_with_weights_of_all_sizes() -> None:
    image = keras.Input((16, 16, 3))
    x = layers.Conv2D(8, 3)(image)  # small: a constant for the exporter
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.BatchNormalization()(layers.SeparableConv2D(700, 3)(x))
    x = layers.Conv2DTranspose(32, 2, 2)(layers.Conv2D(64, 3, use_bias=False)(x))
    model = keras.Model(image, layers.Dense(10)(layers.Flatten()(x)))
    distinct(model)
    spec = [tf.TensorSpec((1, 16, 16, 3), tf.float32, name="image")]
    written, _ = tf2onnx.convert.from_keras(model, input_signature=spec, opset=18)
    assert kernels(proto(model)) == kernels(written)


def test_functions_that_are_compiled_are_opened() -> None:
    w = tf.Variable(tf.ones((8, 600)))
    inner = tf.function(lambda x: tf.nn.relu(x @ w), jit_compile=True)
    outer = tf.function(lambda x: inner(x) + 1, input_signature=[tf.TensorSpec((None, 8), name="x")])
    assert [n.op_type for n in proto(outer).graph.node] == ["MatMul", "Relu", "Add"]


def lstm(**how: Any) -> Any:
    return layers.LSTM(64, **how)


RECURRENT = {
    "the last step": lstm,
    "every step": lambda: lstm(return_sequences=True),
    "backwards": lambda: lstm(go_backwards=True),
    "without a bias": lambda: lstm(use_bias=False),
    "both directions": lambda: layers.Bidirectional(lstm(return_sequences=True)),
    "their sum": lambda: layers.Bidirectional(lstm(), merge_mode="sum"),
    "dropout": lambda: lstm(dropout=0.2, recurrent_dropout=0.2),
    "GRU": lambda: layers.GRU(64),
    "GRU of both directions": lambda: layers.Bidirectional(layers.GRU(64)),
    "GRU with one bias": lambda: layers.GRU(64, reset_after=False),
}


@pytest.mark.parametrize("case", RECURRENT)
def test_recurrent_layers(case: str) -> None:
    """As tf2onnx makes them with all weights and an open batch; what stays a loop runs as often as there are steps."""
    model = keras.Sequential([keras.Input((16, 32)), RECURRENT[case](), layers.Dense(3)])
    distinct(model)
    found = proto(model)
    recurrent = "GRU" not in case and case != "dropout"
    spec = tf.TensorSpec((None if recurrent else 1, 16, 32))
    whole = tf.function(lambda x: model(x, training=False))
    written, _ = tf2onnx.convert.from_function(whole, input_signature=[spec], opset=18)
    written.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    assert ("LSTM" in {n.op_type for n in written.graph.node}) == recurrent
    assert kernels(found) == kernels(written)
    assert repeats(found) == ({1} if recurrent else {1, 16})
    assert not any(t.raw_data for t in found.graph.initializer if np.prod(t.dims) > 4096)


def repeats(model: onnx.ModelProto) -> set[int]:
    return {op.repeat for op in onnxperf.predict(model, gpu="l4").run.run_graph.operators}


def test_masked_steps_and_states_that_stay() -> None:
    tokens = [keras.Input((16,)), layers.Embedding(1000, 32, mask_zero=True), layers.LSTM(64), layers.Dense(3)]
    assert repeats(proto(keras.Sequential(tokens))) == {1, 16}
    stateful = proto(keras.Sequential([keras.Input(batch_shape=(4, 16, 32)), layers.LSTM(64, stateful=True)]))
    assert "LSTM" in {n.op_type for n in stateful.graph.node}


def test_mixed_precision_computes_in_half() -> None:
    policy = keras.mixed_precision.DTypePolicy("mixed_float16")
    model = keras.Sequential([keras.Input((64,)), layers.Dense(128, dtype=policy), layers.Dense(128, dtype=policy)])
    found = onnxperf.predict(model, gpu="l4")
    assert sum(k.op in ("Gemm", "MatMul") for k in found.kernels) == 2
    types = {o.type.tensor_type.elem_type for o in proto(model).graph.output}
    assert types == {onnx.TensorProto.FLOAT16}


def test_weights_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    convert = tf2onnx.convert.from_graph_def

    def measured(graph: Any, *more: Any, **terms: Any) -> Any:
        sizes.append(graph.ByteSize())
        return convert(graph, *more, **terms)

    monkeypatch.setattr(tf2onnx.convert, "from_graph_def", measured)
    products = [layers.Dense(width, kernel_initializer="zeros") for width in (24576, 64)]
    model = keras.Sequential([keras.Input((4096,)), *products])
    tracemalloc.start()  # of Python and NumPy: for a placeholder TensorFlow can reserve what its tensor would take
    try:
        exported = proto(model)
        growth = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 4 * model.count_params() > 400e6  # the largest of them is 403 MB
    assert growth < 100e6
    assert exported.ByteSize() < 1e6
    assert all(size < 1e6 for size in sizes) and sizes


# every kind of model


def test_keras_models_keep_their_names_and_nothing_else_changes() -> None:
    model = mlp(layers.Dropout(0.5))
    model.compile("sgd", "mse")
    model.layers[0].trainable = False
    before = [w.numpy().copy() for w in model.weights]
    found = proto(model)
    assert found.graph.name == "mlp"
    assert inputs(found) == {"x": [1, 8]}
    assert [n.op_type for n in found.graph.node] == ["Gemm", "Relu", "Gemm"]
    assert all(np.array_equal(a, b) for a, b in zip(before, model.weights, strict=True))
    assert not model.layers[0].trainable
    assert model.compiled
    assert model.optimizer.iterations == 0


@pytest.mark.parametrize("examples", [X, [X], (X,), {"x": X}, lambda: tf.zeros((2, 8)), X.astype(np.float64)])
def test_example_inputs_set_the_batch(examples: Any) -> None:
    assert inputs(proto(mlp(), examples() if callable(examples) else examples)) == {"x": [2, 8]}


@pytest.mark.parametrize("examples", [None, X])
def test_an_open_batch(examples: Any) -> None:
    found = proto(mlp(), examples, open_batch=True)
    assert inputs(found) == {"x": ["batch", 8]}
    static, opened = (onnxperf.predict(m, gpu="l4", batch=b) for m, b in ((proto(mlp(), X), None), (found, 2)))
    assert opened.seconds == static.seconds
    assert onnxperf.predict(mlp(), gpu="l4", batch=32).throughput_per_second > static.throughput_per_second


def test_several_inputs_and_outputs() -> None:
    a, b = keras.Input((3,), name="a"), keras.Input((4,), name="b")
    joined = layers.concatenate([a, b])
    named = keras.Model({"a": a, "b": b}, {"out": joined})
    examples = {"b": np.zeros((5, 4)), "a": np.zeros((5, 3))}
    found = proto(named, examples)
    assert inputs(found) == {"a": [5, 3], "b": [5, 4]}
    assert [o.name for o in found.graph.output] == ["out"]
    listed = keras.Model([a, b], [joined, joined + 1])
    found = proto(listed, [examples["a"], examples["b"]], open_batch=True)
    assert inputs(found) == {"a": ["batch", 3], "b": ["batch", 4]}
    assert len(found.graph.output) == 2
    with pytest.raises(UsageError, match=r"\['b'\], but the model takes 2: \['a', 'b'\]"):
        proto(named, {"b": examples["b"]})


def test_a_subclassed_model_runs_for_inference() -> None:
    model = models.Branches()
    with pytest.raises(UsageError, match="give example_inputs"):
        proto(model)
    assert not model.built
    assert inputs(proto(model, X)) == {"x": [2, 8]}
    found = proto(model, {"x": X, "y": X}, open_batch=True)
    assert inputs(found) == {"x": ["batch", 8], "y": ["batch", 8]}
    assert [o.name for o in found.graph.output] == ["sum"]


def test_an_unbuilt_model_is_built_for_its_examples() -> None:
    def sequential() -> Any:
        return keras.Sequential([layers.Dense(16), keras.Sequential([layers.ReLU(), layers.Dense(4)])])

    for make in (models.Branches, sequential, lambda: layers.Dense(3)):
        model, called = make(), make()
        with pytest.raises(UsageError, match="give example_inputs"):
            proto(model)
        assert not model.built
        found = proto(model, X)
        called(X)
        assert [w.shape for w in model.weights] == [w.shape for w in called.weights]
        assert kernels(found) == kernels(proto(called, X))
        assert model(np.zeros((5, 8), np.float32)).shape == called(np.zeros((5, 8), np.float32)).shape


def test_functions() -> None:
    assert inputs(proto(models.product, X)) == {"q": [2, 8]}
    assert inputs(proto(models.product, {"q": X}, open_batch=True)) == {"q": ["batch", 8]}
    with pytest.raises(UsageError, match="'product' are not declared: give example_inputs"):
        proto(models.product)
    found = proto(models.Table())
    assert (found.graph.name, inputs(found)) == ("table", {"q": [1, 128]})
    assert [(o.name, n.op_type) for o, n in zip(found.graph.output, found.graph.node, strict=True)] == [
        ("scores", "MatMul")
    ]
    found = proto(models.product.get_concrete_function(tf.TensorSpec((None, 8))))
    assert (found.graph.name, inputs(found)) == ("product", {"q": [1, 8]})


def test_a_saved_model_is_read_without_its_weights(tmp_path: Path) -> None:
    tf.saved_model.save(models.Table(), str(tmp_path / "table"))
    loaded = tf.saved_model.load(str(tmp_path / "table"))
    assert inputs(proto(loaded.signatures["serving_default"])) == {"q": [1, 128]}
    shutil.rmtree(tmp_path / "table" / "variables")
    found = proto(tmp_path / "table", open_batch=True)
    assert (found.graph.name, inputs(found)) == ("table", {"q": ["batch", 128]})
    assert [o.name for o in found.graph.output] == ["scores"]
    assert kernels(proto(str(tmp_path / "table"))) == kernels(models.Table())


def test_what_keras_exports_is_the_same_model(tmp_path: Path) -> None:
    model = mlp()
    model.export(str(tmp_path / "served"), verbose=False)
    assert kernels(tmp_path / "served") == kernels(model)


SAVED = {
    "LSTM": lstm,
    "both directions": lambda: layers.Bidirectional(lstm()),
    "GRU": lambda: layers.GRU(16),
    "plain": lambda: layers.SimpleRNN(80),
}


@pytest.mark.parametrize("case", SAVED)
def test_recurrent_layers_of_a_saved_model_are_those_of_the_model(case: str, tmp_path: Path) -> None:
    """The loop passes on variables; SimpleRNN's is so large that its data is left out."""
    model = keras.Sequential([keras.Input((16, 8)), SAVED[case]()])
    distinct(model)
    model.export(str(tmp_path / "served"), verbose=False)
    shutil.rmtree(tmp_path / "served" / "variables")
    read, exported = proto(tmp_path / "served"), proto(model)
    assert kernels(read) == kernels(exported)
    assert repeats(read) == repeats(exported)


def test_a_loop_that_reads_rows_of_a_variable(tmp_path: Path) -> None:
    tf.saved_model.save(models.Lookup(), str(tmp_path / "lookup"))
    found = proto(tmp_path / "lookup")
    [loop] = [n for n in found.graph.node if n.op_type == "Loop"]
    assert "Gather" in {n.op_type for n in loop.attribute[0].g.node}
    assert kernels(found) == kernels(proto(models.Lookup()))


def test_a_keras_file_is_read_without_its_weights(tmp_path: Path) -> None:
    model = mlp()
    model.save(tmp_path / "whole.keras")
    model.save(tmp_path / "old.h5")
    with zipfile.ZipFile(tmp_path / "whole.keras") as whole, zipfile.ZipFile(tmp_path / "bare.keras", "w") as bare:
        bare.writestr("config.json", whole.read("config.json"))
    for name in ("whole.keras", "bare.keras", "old.h5"):
        assert kernels(tmp_path / name) == kernels(model), name


# what is refused


@pytest.mark.parametrize(
    ("examples", "says"),
    [
        (np.zeros((2, 3, 8)), r"x\[2x3x8\].*shape=\(2, 3, 8\)"),
        (np.zeros((2, 7)), r"x\[2x7\].*expected axis -1"),
        ([X, X], r"are 2, but the model takes 1: \['x'\]"),
        ({"image": X}, r"\['image'\], but the model takes 1: \['x'\]"),
        (3, "'x' is of type int: give an array"),
    ],
)
def test_inputs_that_do_not_fit(examples: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        proto(mlp(), examples)
    assert "\n" not in str(caught.value)


def test_sizes_that_the_model_leaves_open() -> None:
    model = keras.Sequential([keras.Input((None, None, 3), name="image"), layers.Conv2D(4, 3)])
    with pytest.raises(UsageError, match=r"axis 1 of 'image', axis 2 of 'image'; give --shapes image:1x128x128x3, say"):
        proto(model)
    with pytest.raises(UsageError, match=r"give shapes=\{\"image\": \[1, 128, 128, 3\]\}, say, or example_inputs$"):
        onnxperf.predict(model, gpu="l4")
    found = onnxperf.predict(model, gpu="l4", shapes={"image": [2, 9, 8, 3]})
    assert found.scenario.inputs == (("image", (2, 9, 8, 3)),)
    assert onnxperf.predict(model, gpu="l4", batch=4, shapes={"image": [4, 9, 8, 3]}).scenario.batch == 4
    assert inputs(proto(model, np.zeros((1, 9, 8, 3)))) == {"image": [1, 9, 8, 3]}


def test_what_onnx_does_not_have() -> None:
    @tf.function(input_signature=[tf.TensorSpec((4,), name="x")])
    def special(x: Any) -> Any:
        return tf.math.bessel_i0(x) + tf.math.lgamma(x)

    with pytest.raises(ModelError, match=r"'special' can't be exported.*BesselI0, Lgamma"):
        proto(special)
    lookup = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [1]), -1)
    words = tf.function(lambda x: lookup.lookup(x), input_signature=[tf.TensorSpec((4,), tf.string)])
    with pytest.raises(ModelError, match="lookup tables"):
        proto(words)
    ragged = tf.function(lambda x: x * 2, input_signature=[tf.RaggedTensorSpec((None, None), tf.float32)])
    with pytest.raises(ModelError, match="takes a RaggedTensorSpec"):
        proto(ragged)
    with pytest.raises(ModelError, match="nothing to export"):
        proto(tf.Module())


def test_a_model_that_reads_files(tmp_path: Path) -> None:
    class Reads(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((1,), name="x")])
        def __call__(self, x: Any) -> Any:
            return x + tf.io.decode_raw(tf.io.read_file(str(tmp_path / "secret")), tf.float32)

    (tmp_path / "secret").write_bytes(b"\0\0\0\0")
    tf.saved_model.save(Reads(), str(tmp_path / "reads"))
    with pytest.raises(ModelError, match="ReadFile"):
        proto(tmp_path / "reads")


def test_files_that_are_broken_or_hostile(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        proto(tmp_path / "none.keras")
    for name in ("broken.keras", "broken.h5"):
        (tmp_path / name).write_bytes(b"PK\3\4 and no more")
        with pytest.raises(ModelError, match=f"{name} (can't be used|is not a Keras model: it is a zip archive)"):
            proto(tmp_path / name)
    for text in ("{", "[]", "{}", "[" * 100_000, '{"class_name": "system", "module": "os", "config": {}}'):
        with zipfile.ZipFile(tmp_path / "config.keras", "w") as archive:
            archive.writestr("config.json", text)
        with pytest.raises(ModelError, match=r"config.keras can't be used"):
            proto(tmp_path / "config.keras")
    (tmp_path / "saved").mkdir()
    for data in (b"", b"garbage"):
        (tmp_path / "saved" / "saved_model.pb").write_bytes(data)
        with pytest.raises(ModelError, match=r"saved can't be used|no signature"):
            proto(tmp_path / "saved")


@pytest.mark.parametrize("name", ["lambda.keras", "lambda.h5"])
def test_code_in_a_file_is_not_run(tmp_path: Path, name: str) -> None:
    model = mlp(layers.Lambda(lambda t: t * 2))
    model.save(tmp_path / name)
    with pytest.raises(ModelError, match=r"brings Python code.*load the model, and give that"):
        proto(tmp_path / name)
    assert inputs(proto(model)) == {"x": [1, 8]}


def test_a_bomb_in_a_zip_is_not_unpacked(tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(tmp_path / "bomb.keras", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("config.json", "w") as file,
    ):
        for _ in range(80):
            file.write(b" " * (1 << 20))
    with pytest.raises(ModelError, match=r"bomb\.keras can't be used"):
        proto(tmp_path / "bomb.keras")


def test_nothing_is_printed_and_nothing_stays_changed(capfd: pytest.CaptureFixture[str]) -> None:
    levels = {name: logging.getLogger(name).level for name in (None, "absl", "tensorflow", "tf2onnx")}
    before = dict(os.environ), logging.root.manager.disable, warnings.filters[:]
    proto(mlp())
    with pytest.raises(UsageError):
        proto(mlp(), 3)
    assert capfd.readouterr() == ("", "")
    assert before == (dict(os.environ), logging.root.manager.disable, warnings.filters)
    assert levels == {name: logging.getLogger(name).level for name in levels}
    print("seen", file=sys.stderr)
    assert capfd.readouterr().err == "seen\n"


def test_another_backend_of_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(UsageError, match=r"Keras runs on torch here.*KERAS_BACKEND=tensorflow"):
        source(model)

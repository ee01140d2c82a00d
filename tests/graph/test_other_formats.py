"""Files that are no ONNX model are called what they are, in one sentence with what to do, and none is unpickled."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxperf import ModelError, load, predict
from onnxperf.graph.other_formats import other_format

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 243863\n"


class Trap:
    """Breaks the test where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return pytest.fail, ("a pickle was opened",)


def torch_saved(**how: bool) -> bytes:
    torch = pytest.importorskip("torch")
    file = io.BytesIO()
    torch.save({"w": torch.zeros(4), "trap": Trap()}, file, **how)
    return file.getvalue()


def zipped(**files: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.zeros(4))
    return file.getvalue()


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(4))
    return file.getvalue()


def tarred() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model.onnx"), io.BytesIO())
    return file.getvalue()


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(16)


def saved_model() -> bytes:
    """`SavedModel` of TensorFlow: schema version 1, then a meta graph whose tags are "serve"."""
    info = b"\x22\x05serve\x2a\x062.18.0"
    graph = b"\x0a" + bytes([len(info)]) + info
    return b"\x08\x01\x12" + bytes([len(graph)]) + graph


KERAS = {"config.json": b"{}", "metadata.json": b"{}", "model.weights.h5": b""}
FILES: dict[str, tuple[Callable[[], bytes], str, str]] = {
    "pointer": (lambda: LFS, "a pointer of Git LFS", "git lfs pull"),
    "page": (lambda: b"<!DOCTYPE html>\n<html><body>Not Found</body></html>", "a page of HTML", "/resolve/"),
    "page without a type": (lambda: b"\xef\xbb\xbf  <HTML><body>", "a page of HTML", "/resolve/"),
    "zip": (lambda: zipped(**{"model.onnx": b""}), "a zip archive", "unpack it"),
    "zip that is cut off": (lambda: zipped(**{"model.onnx": bytes(99)})[:80], "a zip archive", "unpack it"),
    "gzip": (lambda: gzip.compress(b"model"), "compressed by gzip", "unpack it"),
    "bzip2": (lambda: bz2.compress(b"model"), "compressed by bzip2", "unpack it"),
    "tar": (tarred, "a tar archive", "unpack it"),
    "checkpoint": (lambda: torch_saved(), "a checkpoint or model of PyTorch", "onnxperf export torch"),
    "checkpoint that is cut off": (lambda: torch_saved()[:400], "a checkpoint or model of PyTorch", "export torch"),
    "checkpoint of old": (lambda: torch_saved(_use_new_zipfile_serialization=False), "a pickled checkpoint of PyTorch",
                          "onnxperf export torch"),
    "pickle": (lambda: pickle.dumps(Trap()), "a pickled object of Python", "onnxperf export torch"),
    "safetensors": (safetensors, "a safetensors file", "onnxperf export torch"),
    "GGUF": (lambda: b"GGUF\x03\0\0\0" + bytes(64), "a GGUF file", "onnxperf llm --config"),
    "engine": (lambda: b"ptrt" + bytes(64), "an engine of TensorRT", "the ONNX file that it was built from"),
    "engine of today": (lambda: b"ftrt" + bytes(64), "an engine of TensorRT", "the ONNX file that it was built from"),
    "TFLite": (lambda: b"\x1c\0\0\0TFL3" + bytes(64), "a model of TensorFlow Lite", "tf2onnx"),
    "ORT": (lambda: b"\x1c\0\0\0ORTM" + bytes(64), "ONNX Runtime's own format", "give the .onnx file"),
    "HDF5": (lambda: b"\x89HDF\r\n\x1a\n" + bytes(64), "an HDF5 file", "onnxperf export keras"),
    "Keras": (lambda: zipped(**KERAS), "a Keras model", "onnxperf export keras"),
    "SavedModel": (saved_model, "saved_model.pb", "give the folder"),
    "arrays": (npz, "arrays of NumPy", "give the .onnx file"),
    "array": (npy, "an array of NumPy", "give the .onnx file"),
    "config": (lambda: b'{"model_type": "llama"}', "config.json of a language model", "onnxperf llm --config"),
    "JSON": (lambda: b"[1, 2]", "JSON", "give the .onnx file"),
    "XML": (lambda: b'<?xml version="1.0"?><net/>', "XML", "give the .onnx file"),
    "text": (lambda: "Größe\n".encode() * 1000, "text", "give the .onnx file"),
    "nothing": (lambda: b"", "the file is empty", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_called_what_it_is(tmp_path: Path, name: str) -> None:
    make, what, to_do = FILES[name]
    path = tmp_path / "model.onnx"
    path.write_bytes(make())
    for model in (path, path.read_bytes()):
        with pytest.raises(ModelError) as error:
            load(model)
        said = str(error.value)
        assert what in said and to_do in said and "\n" not in said
        assert name == "nothing" or "is not an ONNX model: it is" in said


@pytest.mark.parametrize(
    ("ending", "name"), [(".h5", "pointer"), (".keras", "page"), (".h5", "checkpoint"), (".h5", "JSON")]
)
def test_a_keras_file_that_is_none_is_called_what_it_is(tmp_path: Path, ending: str, name: str) -> None:
    make, what, to_do = FILES[name]
    path = tmp_path / f"model{ending}"
    path.write_bytes(make())
    with pytest.raises(ModelError) as error:
        predict(path, gpu="l4")
    assert what in str(error.value) and to_do in str(error.value)


def test_no_model_is_taken_for_anything_else() -> None:
    samples = Path(__file__).parents[2] / "samples"
    assert not [p.name for p in samples.glob("*.onnx") if other_format(p.read_bytes())]


def reshaped(folder: Path, location: str, data: bytes) -> Path:
    """A model whose target shape lies in a file beside it."""
    shape = TensorProto(name="shape", data_type=TensorProto.INT64, dims=[2], data_location=TensorProto.EXTERNAL)
    shape.external_data.add(key="location", value=location)
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in (("x", [2, 6]), ("y", None)))
    graph = helper.make_graph(nodes, "g", [x], [y], [shape])
    (folder / location).write_bytes(data)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    return folder / "m.onnx"


def test_data_beside_a_model_that_are_a_pointer_are_called_so(tmp_path: Path) -> None:
    there = reshaped(tmp_path, "there.bin", np.array([3, 4], "<i8").tobytes())
    assert predict(there, gpu="l4").seconds > 0
    with pytest.raises(ModelError, match=r"gone\.bin, which holds the data of tensor 'shape', is a pointer of Git LFS"):
        predict(reshaped(tmp_path, "gone.bin", LFS), gpu="l4")

"""What a file is that is no ONNX model: told by the bytes that its format begins with. Nothing in it is opened."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from onnxperf.ground.errors import ModelError

EXPORT_TORCH = "export the model with `onnxperf export torch`, or torch.onnx.export"
EXPORT_KERAS = "export the model with `onnxperf export keras`, or tf2onnx"
HDF5 = b"\x89HDF\r\n\x1a\n"
KERAS = {".keras": b"PK\x03\x04", ".h5": HDF5}  # what files of whole models begin with
LFS = b"version https://git-lfs.github.com/spec/v1"
PULL = "a pointer of Git LFS, not the file itself: run `git lfs pull`"
#: The number 0x1950a86a20f9469cfc6c, pickled: what torch.save began with until PyTorch 1.6.
TORCH_PICKLE = bytes.fromhex("8a0a6cfc9c46f9206aa850192e")
PICKLE_PROTOCOLS = range(2, 6)
MOST_HEADER = 100 << 20  # bytes of a safetensors file's, which is its own limit
MOST_NAMES = 4096  # files of an archive that are looked at
MOST_JSON = 1 << 24  # bytes
TEXT = 4096  # bytes by which text is told
START = {
    HDF5: f"an HDF5 file, as Keras writes (*.h5): {EXPORT_KERAS}",
    b"GGUF": "a GGUF file, which holds weights and no graph: predict its model by `onnxperf llm --config config.json`",
    b"ptrt": "an engine of TensorRT: give the ONNX file that it was built from, with --runtime tensorrt",
    b"ftrt": "an engine of TensorRT: give the ONNX file that it was built from, with --runtime tensorrt",
    b"\x93NUMPY": "an array of NumPy (*.npy): give the .onnx file",
    b"\x1f\x8b": "compressed by gzip: unpack it first, with gunzip",
    b"BZh": "compressed by bzip2: unpack it first",
    b"\xfd7zXZ\0": "compressed by xz: unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed by Zstandard: unpack it first",
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive: unpack it first",
}
#: What stands at byte 4 of a FlatBuffers file.
FLATBUFFERS = {
    b"TFL3": "a model of TensorFlow Lite (*.tflite): convert it with `python -m tf2onnx.convert --tflite`",
    b"ORTM": "a model in ONNX Runtime's own format (*.ort): give the .onnx file that it was made from",
}


class Archived(NamedTuple):
    """What a zip archive is that has files of these names."""

    has: Callable[[str], bool]
    what: str


ARCHIVES = (
    Archived(
        lambda n: n.endswith("/data.pkl") or n == "data.pkl",
        f"a checkpoint or model of PyTorch (torch.save, torch.jit.save): {EXPORT_TORCH}",
    ),
    Archived(lambda n: n == "model.weights.h5", f"a Keras model (*.keras): {EXPORT_KERAS}"),
    Archived(lambda n: n.endswith(".npy"), "arrays of NumPy (*.npz): give the .onnx file"),
)
ZIP = "a zip archive: unpack it, and give the .onnx file in it"


def other_format(data: bytes) -> str:
    """What the bytes of a file are, and what to do; "" where that is not known, as of an ONNX model."""
    for start, what in START.items():
        if data.startswith(start):
            return what
    if data.startswith(LFS):
        return PULL
    if data.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _archive(data)
    if data[4:8] in FLATBUFFERS:
        return FLATBUFFERS[data[4:8]]
    if data[:1] == b"\x80" and data[1:2] and data[1] in PICKLE_PROTOCOLS:
        is_torch = data[2:].startswith(TORCH_PICKLE)
        return f"a pickled {'checkpoint of PyTorch' if is_torch else 'object of Python'}, never opened: {EXPORT_TORCH}"
    if data[257:262] == b"ustar":
        return "a tar archive: unpack it, and give the .onnx file in it"
    if _is_saved_model(data):
        return f"the saved_model.pb of TensorFlow: give the folder that it lies in, or {EXPORT_KERAS}"
    if _is_safetensors(data):
        return f"a safetensors file, which holds weights and no graph: {EXPORT_TORCH}"
    return _text(data)


def check_fetched(tensor: str, path: Path) -> None:
    """Raise ModelError where the file of a tensor's data is a pointer of Git LFS; OSError where it can't be read."""
    with path.open("rb") as file:
        if file.read(len(LFS)) == LFS:
            raise ModelError(f"{path}, which holds the data of tensor {tensor!r}, is {PULL}")


def _archive(data: bytes) -> str:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()[:MOST_NAMES]
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):  # cut off: the list of names is at the end
        names = [data[30 : 30 + int.from_bytes(data[26:28], "little")].decode("utf-8", "replace")]
    return next((a.what for a in ARCHIVES if any(map(a.has, names))), ZIP)


def _is_saved_model(data: bytes) -> bool:
    """The version of its schema, 1, then a graph with the version of TensorFlow; of ONNX that is IR version 1."""
    return data.startswith(b"\x08\x01\x12") and b"serve" in data


def _is_safetensors(data: bytes) -> bool:
    """The length of a JSON header, 8 bytes, then that header."""
    length = int.from_bytes(data[:8], "little")
    return 2 <= length <= MOST_HEADER and data[8:9] == b"{"


def _text(data: bytes) -> str:
    """What text is, "" for bytes that are none."""
    head = data[:TEXT]
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        if e.start < len(head) - 3:  # more than the last character cut
            return ""
        text = head[: e.start].decode("utf-8-sig")
    if not text.strip() or not all(c.isprintable() or c.isspace() for c in text):
        return ""
    begins = text.lstrip().lower()
    if begins.startswith(("<!doctype html", "<html")):
        return "a page of HTML: a download gave a web page; on Hugging Face the file is at /resolve/, not /blob/"
    if begins.startswith("<?xml"):
        return "XML, as OpenVINO's *.xml: give the .onnx file that it was made from"
    if begins.startswith(("{", "[")):
        return _json(data)
    return "text: give the .onnx file"


def _json(data: bytes) -> str:
    try:
        read = json.loads(data[:MOST_JSON])
    except (ValueError, RecursionError):
        return "text that begins as JSON: give the .onnx file"
    if isinstance(read, dict) and ("architectures" in read or "model_type" in read):
        return "JSON, the config.json of a language model: predict it by `onnxperf llm --config`"
    return "JSON: give the .onnx file"

"""What models are fed with."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, TypeProto, helper

from onnxperf.graph import Graph, load
from onnxperf.ground.errors import ModelError, UsageError
from onnxperf.measure.inputs import given, objects, random, ranges
from tests.measure.conftest import ROOT, parsed


def graph(text: str, **tables: tuple[int, ...]) -> Graph:
    model = parsed(text)
    for name, shape in tables.items():
        model.graph.initializer.append(TensorProto(name=name, data_type=1, dims=shape))
    return load(model)


def of(text: str, **tables: tuple[int, ...]) -> dict[str, range]:
    return ranges(graph(text, **tables))


def test_token_ids_stay_within_the_smallest_table_that_they_index() -> None:
    text = "(int64[4] ids) => (float[4,8] y, float[4,8] z) { y=Gather(big,ids) i=Cast<to=6>(ids) z=Gather(small,i) }"
    found = of(text, big=(30, 8), small=(20, 8))
    assert found["ids"] == range(20)


def test_what_is_added_on_the_way_counts() -> None:
    shifted = "(int64[1,4] ids) => (float[1,4,8] y) { two=Constant<value_int=2>() i=Add(ids,two) y=Gather(t,i) }"
    assert of(shifted, t=(10, 8))["ids"] == range(8)


def test_the_axis_of_a_gather_counts() -> None:
    assert of("(int64[4] i) => (float[10,4] y) { y=Gather<axis=1>(t,i) }", t=(10, 3))["i"] == range(3)
    assert of("(int64[4] i) => (float[10,4] y) { y=Gather<axis=-1>(t,i) }", t=(10, 3))["i"] == range(3)


def test_a_table_that_is_gathered_from_bounds_nothing() -> None:
    found = of("(int64[6] table, int64[2] at) => (int64[2] y) { y=Gather(table,at) }")
    assert (found["table"], found["at"]) == (range(2), range(6))


def test_masks_are_ones_and_other_numbers_small() -> None:
    found = of("(int64[1,4] mask, int64[3] n) => (float[1,4] y, int64[3] m) { y=Cast<to=1>(mask) m=Identity(n) }")
    assert found["mask"] == range(1, 2)
    assert found["n"] == range(2)


@pytest.mark.parametrize(
    ("name", "dims", "bounds"),
    [
        ("roberta-base", {"sequence": 16}, {"input_ids": 50264, "attention_mask": 1}),
        ("gpt2-dynamic", {"sequence": 16}, {"input_ids": 50256, "attention_mask": 1}),
        ("opt-1.3b", {"sequence": 16}, {"input_ids": 50271}),
    ],
)
def test_vocabularies_of_the_samples(name: str, dims: dict[str, int], bounds: dict[str, int]) -> None:
    found = {name: r[-1] for name, r in ranges(load(ROOT / f"samples/{name}.onnx", dims=dims)).items()}
    assert bounds.items() <= found.items()


FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, [4, 5])
SCALAR = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
TEXT = helper.make_tensor_type_proto(TensorProto.STRING, [2, "n"])


def passing(type: TypeProto) -> ModelProto:
    """A model that hands its input on."""
    x, y = (helper.make_value_info(name, type) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])


def test_text_sequences_and_maps_are_made_up() -> None:
    words = objects(passing(TEXT), {"x": (2, 3)}, 0)["x"]
    assert words.shape == (2, 3) and words.dtype == object and {len(w) for w in words.ravel()} == {10}
    [element] = objects(passing(helper.make_sequence_type_proto(FLOATS)), {}, 0)["x"]
    assert element.shape == (4, 5) and element.dtype == np.float32
    numbers = objects(passing(helper.make_map_type_proto(TensorProto.INT64, SCALAR)), {}, 0)["x"]
    assert [*numbers] == [*range(10)] and all(isinstance(v, float) for v in numbers.values())
    named = objects(passing(helper.make_map_type_proto(TensorProto.STRING, SCALAR)), {}, 0)["x"]
    assert all(isinstance(key, str) for key in named)
    assert objects(passing(FLOATS), {"x": (4, 5)}, 0) == {}


def test_other_types_are_refused() -> None:
    sparse = TypeProto(sparse_tensor_type=TypeProto.SparseTensor(elem_type=TensorProto.FLOAT))
    with pytest.raises(ModelError, match="'x' is neither a tensor, a sequence nor a map"):
        objects(passing(sparse), {}, 0)
    odd = passing(helper.make_tensor_type_proto(TensorProto.COMPLEX64, [2]))
    with pytest.raises(ModelError, match="'x' is not a tensor of plain numbers"):
        ranges(load(odd))


@examples(st.integers(0, 1000), st.integers(0, 2**32 - 1), st.sampled_from(["int64", "int32", "uint8"]))
def test_random_numbers_stay_in_bounds(most: int, seed: int, dtype: str) -> None:
    most = min(most, 255)
    array = random((7, 5), range(most + 1), dtype, np.random.default_rng(seed))
    assert array.shape == (7, 5) and array.dtype == dtype
    assert array.min() >= 0 and array.max() <= most


def test_random_types() -> None:
    rng = np.random.default_rng(0)
    assert random((3,), range(2), "bool", rng).all()
    assert random((3,), range(2), "float16", rng).dtype == np.float16
    bits = random((1000,), range(2), "bfloat16", rng)
    assert bits.dtype == np.uint16
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    assert np.isfinite(values).all() and 0.5 < values.std() < 2


TWO = "(float[2,3] x, int64[2] i) => (float[2,3] y, int64[2] j) { y=Relu(x) j=Identity(i) }"
FINE: dict[str, Any] = {"x": np.ones((2, 3), np.float32), "i": np.array([0, 1])}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_users_own_arrays(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "in.npz", **{**FINE, "x": np.asfortranarray(FINE["x"])})
    found = given(tmp_path / "in.npz", graph(TWO))
    assert {name: (a.dtype, a.tolist()) for name, a in found.items()} == {
        name: (a.dtype, a.tolist()) for name, a in FINE.items()
    }


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({**FINE, "x": np.ones((2, 4), np.float32)}, "'x' has the shape 2x4, the model's input 2x3"),
        ({**FINE, "x": np.ones((2, 3))}, "'x' is of type float64, the model's input of float32"),
        ({"x": FINE["x"]}, "lacks the input 'i'"),
        ({**FINE, "mask": np.ones(1)}, "holds 'mask', but the model's inputs are 'x', 'i'"),
        ({**FINE, "i": np.array([{}, {}])}, "'i' is of type object"),
        ({**FINE, "x": np.ones((2**20,), np.float32)}, "is larger than the model's inputs"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    np.savez(tmp_path / "in.npz", **arrays)
    with pytest.raises(UsageError, match=says):
        given(tmp_path / "in.npz", graph(TWO))


def archive(path: Path, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in entries.items():
            z.writestr(f"{name}.npy", data)
    return path


def npy(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


HEADER = "{'descr': '<i8', 'fortran_order': False, 'shape': (2,)}\n"


@pytest.mark.parametrize(
    "entry",
    [
        b"", b"\x80\x04.", npy(HEADER), npy(HEADER) + b"\0" * 15, npy("__import__('os').abort()\n"), npy("{" * 4000),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (2,)}\n") + b"cos\nabort\n.",
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': (-2,)}\n"), npy("{'descr': 5}\n"),
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1e9,)}\n"), b"\x93NUMPY\x09\x00" + HEADER.encode(),
    ],
)  # fmt: skip
def test_hostile_archives(tmp_path: Path, entry: bytes) -> None:
    fine = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}\n") + b"\0" * 24
    with pytest.raises(UsageError):
        given(archive(tmp_path / "in.npz", x=fine, i=entry), graph(TWO))


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    bomb = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (100000000,)}\n") + b"\0" * (1 << 24)
    with pytest.raises(UsageError, match="'x' has the shape 100000000"):
        given(archive(tmp_path / "in.npz", x=bomb, i=bomb), graph(TWO))


def test_no_archive_at_all(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(UsageError, match=r"is not an \.npz file"):
        given(tmp_path / "x.npz", graph(TWO))
    with pytest.raises(UsageError, match="no such file"):
        given(tmp_path / "y.npz", graph(TWO))
    with pytest.raises(UsageError):
        given(tmp_path, graph(TWO))

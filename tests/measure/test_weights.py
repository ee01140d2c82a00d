"""Models whose weights are missing, elsewhere, or in another precision, opened by ONNX Runtime itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, load_model_from_string, numpy_helper

from onnxperf.graph import Graph
from onnxperf.ground.errors import ModelError
from onnxperf.measure.devices import Processor
from onnxperf.measure.job import Job, Plan
from onnxperf.measure.session import open_session
from onnxperf.measure.weights import absent, changed, model_and_weights, rebind
from op_models import Tensor
from tests.measure.conftest import parsed

ort = pytest.importorskip("onnxruntime")

GEMM = "(float[2,8] x) => (float[2,4] y) { y=MatMul(x,w) }"
WEIGHTS = np.arange(32, dtype=np.float32).reshape(8, 4) / 7


def external(name: str, shape: tuple[int, ...], type: int = TensorProto.FLOAT, **more: Any) -> TensorProto:
    t = TensorProto(name=name, data_type=type, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "w.bin", **more}.items():
        t.external_data.add(key=key, value=str(value))
    return t


def weightless(text: str, *tensors: TensorProto) -> ModelProto:
    m = parsed(text)
    m.graph.initializer.extend(tensors)
    return m


def plan(m: ModelProto, folder: Path | None = None, sizes: Any = (), random: bool = True, **terms: Any) -> Plan:
    job = Job(m.SerializeToString(), "cpu", **terms)
    return Plan(job, Graph("m", (), (), ()), folder, sizes=sizes, random=random)


def run(p: Plan) -> list[Any]:
    """What the model computes. In a thread of its own: a session may set it to flush denormal numbers, and no other
    test may meet that.
    """

    def opened() -> list[Any]:
        session = open_session(ort, p, Processor(), lambda: "")
        session.run()
        return list(session.binding.copy_outputs_to_cpu())

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(opened).result()


def outputs(p: Plan, **arrays: Any) -> list[Any]:
    """What the model computes, on arrays or on random inputs of these shapes."""
    shapes = {name: a if isinstance(a, tuple) else a.shape for name, a in arrays.items()}
    graph = replace(p.graph, inputs=tuple(Tensor(name, "float32", shape, "input") for name, shape in shapes.items()))
    values = {name: range(2) if isinstance(a, tuple) else a for name, a in arrays.items()}
    return run(replace(p, graph=graph, values=values))


@pytest.mark.parametrize("precision", ["keep", "fp16"])
def test_missing_weights_are_made_up(precision: str) -> None:
    m = weightless(GEMM, external("w", (8, 4)))
    assert [t.name for t in absent(m, None)] == ["w"]
    (y,) = outputs(plan(m, precision=precision), x=(2, 8))
    assert y.dtype == (np.float16 if precision == "fp16" else np.float32)
    assert np.isfinite(y).all() and y.std() > 0


@pytest.mark.parametrize("precision", ["keep", "fp16"])
@pytest.mark.parametrize("offset", [0, 64])
def test_weights_beside_the_model_are_used(tmp_path: Path, precision: str, offset: int) -> None:
    (tmp_path / "w.bin").write_bytes(b"\1" * offset + WEIGHTS.tobytes())
    m = weightless(GEMM, external("w", (8, 4), offset=offset, length=128))
    assert not absent(m, tmp_path)
    x = np.ones((2, 8), np.float32)
    (y,) = outputs(plan(m, tmp_path, precision=precision, random=False), x=x)
    np.testing.assert_allclose(y, x @ WEIGHTS, rtol=2e-3 if precision == "fp16" else 1e-6)


def test_some_there_some_missing(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    gone = external("v", (4, 3))
    gone.external_data[0].value = "gone.bin"
    m = weightless("(float[2,8] x) => (float[2,4] h, float[2,3] y) { h=MatMul(x,w) y=MatMul(h,v) }",
                   external("w", (8, 4)), gone)  # fmt: skip
    x = np.ones((2, 8), np.float32)
    h, y = outputs(plan(m, tmp_path), x=x)
    np.testing.assert_allclose(h, x @ WEIGHTS, rtol=1e-6)
    assert y.std() > 0


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(WEIGHTS.tobytes())
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "w.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelError, match="outside the model's folder"):
        absent(weightless(GEMM, external("w", (8, 4))), tmp_path / "in")


def test_weights_that_are_cut_off(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes()[:-4])
    m = weightless(GEMM, external("w", (8, 4)))
    with pytest.raises(ModelError, match="cut off: 31 of 32"):
        model_and_weights(plan(m, tmp_path, precision="fp16"))
    with pytest.raises(ModelError, match="refuses it"):
        run(plan(m, tmp_path))


def test_a_normalisation_gets_no_negative_variance() -> None:
    text = "(float[1,600,2] x) => (float[1,600,2] y) { y=BatchNormalization(x,s,b,m,v) }"
    m = weightless(text, *(external(n, (600,)) for n in "sbmv"))
    (y,) = outputs(plan(m, opt_level="disabled"), x=(1, 600, 2))
    assert np.isfinite(y).all()


def test_tables_of_numbers_and_nothing() -> None:
    text = "(float[3,2] x) => (float[500,2] y, float[0] z, bool[700] c) { y=Gather(x,i) z=Abs(e) c=Not(b) }"
    m = weightless(text, external("i", (500,), TensorProto.INT64), external("e", (0,)),
                   external("b", (700,), TensorProto.BOOL))  # fmt: skip
    y, z, c = outputs(plan(m), x=(3, 2))
    assert y.shape == (500, 2) and z.shape == (0,) and c.all()


@pytest.mark.parametrize("type", [TensorProto.BFLOAT16, TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_other_types(type: int) -> None:
    text = "(float[1] x) => (float[600] y, float[1] z) { y=Cast<to=1>(w) z=Neg(x) }"
    y, _ = outputs(plan(weightless(text, external("w", (600,), type)), opt_level="disabled"), x=(1,))
    assert np.isfinite(y).all() and y.std() > 0


def test_types_that_only_the_file_can_hold() -> None:
    text = "(float[1] x) => (float[601] y, float[1] z) { y=DequantizeLinear(w,x0) z=Neg(x) }"
    m = weightless(text, external("w", (601,), TensorProto.INT4), numpy_helper.from_array(np.float32(2), "x0"))
    m.opset_import[0].version, m.ir_version = 21, 10
    y, _ = outputs(plan(m), x=(1,))
    assert y.shape == (601,) and np.isfinite(y).all()


def test_constants_of_nodes_and_of_branches() -> None:
    m = parsed(
        """(float[300] x, bool c) => (float[300] y) {
        k=Constant<value=float[300] {0}>()
        a=Add(x,k)
        y=If(c)<then_branch = t () => (float[300] p) { p=Add(a,w) }, else_branch = e () => (float[300] q) { q=Neg(a) }>
    }""".replace("<value=float[300] {0}>", "")
    )
    m.graph.node[0].attribute.append(helper.make_attribute("value", external("k", (300,))))
    branch = next(a for a in m.graph.node[2].attribute if a.name == "then_branch").g
    branch.initializer.append(external("w", (300,)))
    assert {t.name for t in absent(m, None)} == {"k", "w"}
    for precision in ("keep", "fp16"):
        (y,) = outputs(plan(m, precision=precision), x=np.zeros(300, np.float32), c=np.array(True))
        assert (y > 0).all(), "vectors are made up positive"


def test_half_precision_converts_what_the_file_holds() -> None:
    m = parsed(GEMM)
    m.graph.initializer.append(numpy_helper.from_array(WEIGHTS, "w"))
    x = np.ones((2, 8), np.float32)
    (y,) = outputs(plan(m, precision="fp16", random=False), x=x)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, x @ WEIGHTS, rtol=2e-3)


def test_old_files_list_their_weights_among_the_inputs() -> None:
    m = parsed("(float[2,8] x, float[8,4] w) => (float[2,4] y) { y=MatMul(x,w) }")
    m.ir_version = 3
    m.graph.initializer.append(external("w", (8, 4)))
    for precision in ("keep", "fp16"):
        (y,) = outputs(plan(m, precision=precision), x=(2, 8))
        assert y.shape == (2, 4)


def test_another_batch_is_written_into_the_model() -> None:
    m = parsed("(float[1,4] x, int64[1] n) => (float[1,4] y) { h=Relu(x) y=Neg(h) }")
    assert changed(m, {"x": (1, 4), "n": (1,)}) == ()
    assert changed(m, {"x": (5, 4), "n": (1,)}) == (("x", (5, 4)),)
    (y,) = outputs(plan(m, sizes=(("x", (5, 4)),)), x=(5, 4), n=(1,))
    assert y.shape == (5, 4)


def test_open_dimensions_stay_open() -> None:
    m = parsed("(float[N,4] x) => (float[N,4] y) { y=Relu(x) }")
    assert changed(m, {"x": (5, 4)}) == ()
    rebind(m, {})
    assert m.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "N"


def test_what_stands_in_the_file_stays() -> None:
    m = parsed(GEMM)
    m.graph.initializer.append(numpy_helper.from_array(WEIGHTS, "w"))
    source, stored = model_and_weights(plan(m))
    assert isinstance(source, bytes)
    assert load_model_from_string(source) == m and not stored


def test_weights_that_are_a_pointer_of_git_lfs_are_not_run(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 128\n")
    m = weightless(GEMM, external("w", (8, 4)))
    with pytest.raises(ModelError, match=r"w\.bin, which holds the data of tensor 'w', is a pointer of Git LFS.*pull"):
        outputs(plan(m, tmp_path), x=(2, 8))

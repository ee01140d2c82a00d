"""Whole measurements on the CPU, and what may go wrong on the way."""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from onnxperf.ground.errors import EnvironmentFailure, ModelError, UsageError
from onnxperf.measure import plan
from onnxperf.measure.environment import usable_provider
from onnxperf.measure.job import Job
from onnxperf.measure.plan import check_hosted, prepare
from onnxperf.measure.process import Stopped
from onnxperf.measure.run import Interrupted, measure
from onnxperf.measure.session import OutOfMemory
from onnxperf.measure.throughput import long_run, median_s
from tests.measure.conftest import ROOT, parsed

pytest.importorskip("onnxruntime")
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


def small(text: str = "(float[N,64] x) => (float[N,64] y) { r=Relu(x) y=Neg(r) }") -> ModelProto:
    model = parsed(text)
    for i, node in enumerate(model.graph.node):
        node.name = f"node{i}"
    return model


def job(model: Any = None, **terms: Any) -> Job:
    return Job(small() if model is None else model, "cpu", **{"iterations": 4, "warm_s": 0.0, **terms})


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Neither processes nor files stay behind, whatever happens."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    yield
    assert not multiprocessing.active_children()
    assert not list((tmp_path / "tmp").iterdir())


def test_a_sample_without_weights() -> None:
    m = measure(Job(ROOT / "samples/minilm-l6-h384.onnx", "cpu", dims={"sequence": 16}, iterations=3))
    assert m.subject.name == "minilm-l6-h384.onnx" and m.subject.weights == "random" and len(m.subject.sha256) == 64
    assert m.subject.skeleton
    assert (m.place.kind, m.place.threads) == ("cpu", 1) and m.place.name
    assert m.setting.runtime == "ort-cpu" and m.setting.batch == 1
    assert dict(m.setting.inputs)["input_ids"] == (1, 16)
    assert dict(m.setting.options)["intra_op_num_threads"] == "1"
    assert {"onnxruntime", "onnxperf", "python", "platform"} <= dict(m.setting.software).keys()
    assert len(m.device.samples) == len(m.wall.samples) == 3
    assert all(t > 0 for t in (*m.device.samples, m.warm_up.first_s, m.warm_up.opened_s))
    assert m.warm_up.runs >= 10
    assert m.profiled is not None and len(m.profiled.samples) >= 5
    assert {o.provider for o in m.operators} == {"CPUExecutionProvider"}
    assert {"MatMul", "Softmax"} & {o.type for o in m.operators}
    assert not m.hosted and m.copies is None and not m.readings and m.complete


def test_bytes_and_a_proto_are_measured_alike() -> None:
    one, other = measure(job(profile=False)), measure(job(small().SerializeToString(), profile=False))
    assert one.subject.sha256 == other.subject.sha256
    assert one.subject.weights == other.subject.weights == "stored"
    assert one.profiled is None and one.operators == ()


def test_a_file_with_another_batch(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(small("(float[1,8] x) => (float[1,8] y) { y=Relu(x) }").SerializeToString())
    m = measure(job(tmp_path / "m.onnx", batch=3, profile=False))
    assert m.setting.inputs == (("x", (3, 8)),) and m.setting.batch == 3


def test_time_ends_a_measurement() -> None:
    m = measure(job(iterations=10**6, duration_s=1e-6, profile=False))
    assert len(m.device.samples) == 1 and m.complete


def test_a_users_inputs(tmp_path: Path) -> None:
    model = small("(int64[2] i, float[9,3] t) => (float[2,3] y) { y=Gather(t,i) }")
    np.savez(tmp_path / "in.npz", i=np.array([0, 99]), t=np.zeros((9, 3), np.float32))
    with pytest.raises(ModelError, match="out of"):
        measure(job(model, inputs=tmp_path / "in.npz"))
    np.savez(tmp_path / "in.npz", i=np.array([0, 8]), t=np.zeros((9, 3), np.float32))
    assert measure(job(model, inputs=tmp_path / "in.npz", profile=False)).complete


@pytest.mark.parametrize("opset", [27, 28])
def test_an_opset_that_onnx_runtime_does_not_know(opset: int) -> None:
    model = small()
    model.opset_import[0].version = opset
    try:
        measure(job(model, profile=False))
    except ModelError as e:
        says = str(e)
        assert f"opset {opset} is newer than" in says and "the newest that ONNX Runtime" in says
        assert "onnx.version_converter" in says
    else:
        pytest.skip("this ONNX Runtime knows the opset")


def test_an_operator_that_onnx_runtime_does_not_know() -> None:
    model = small("(float[2] x) => (float[2] y) { y=acme.Foo(x) }")
    model.opset_import.add(domain="acme", version=1)
    with pytest.raises(ModelError, match=r"refuses it.*acme:Foo"):
        measure(job(model))


@pytest.mark.skipif(usable_provider() == "cuda", reason="there is a CUDA device here")
def test_cuda_where_there_is_none() -> None:
    with pytest.raises(EnvironmentFailure, match=r"CUDA.*--provider cpu|cuda-bindings") as e:
        measure(Job(small(), "cuda", iterations=1))
    assert e.value.exit_code == 4


def test_more_memory_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "free_bytes", lambda: None)  # nothing tells: ONNX Runtime finds out
    model = small("(float[1,3000000] x) => (float[3000000,3000000] y) { t=Transpose<perm=[1,0]>(x) y=MatMul(t,x) }")
    with pytest.raises(EnvironmentFailure, match="out of memory"):
        measure(job(model))


def test_weights_that_do_not_fit_are_refused_before_anything_runs() -> None:
    model = small("(float[1,4] x) => (float[1,1] y) { h=MatMul(x,w) y=MatMul(h,v) }")
    for name, shape in (("w", (4, 1 << 40)), ("v", (1 << 40, 1))):
        t = model.graph.initializer.add(name=name, data_type=1, dims=shape, data_location=1)
        t.external_data.add(key="location", value="gone.bin")
    with pytest.raises(EnvironmentFailure, match=r"TB of memory, 22 TB of it for weights"):
        measure(job(model))


@pytest.mark.parametrize(("free", "fits"), [(12_000_000, True), (7_000_000, False)])
def test_activations_count_as_well(free: int, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("(float[N,1000] x) => (float[N,1000] y) { r=Relu(x) y=Neg(r) }")
    monkeypatch.setattr(plan, "free_bytes", lambda: free)
    if fits:
        assert prepare(job(model, batch=1000)).graph.batch == 1000
        return
    with pytest.raises(OutOfMemory, match=r"at least 12 MB of memory, 0 B of it for weights, and 7 MB are free"):
        prepare(job(model, batch=1000))
    assert prepare(job(model, batch=100)).graph.batch == 100


def kill_with(number: int) -> Callable[..., None]:
    """A progress callback that sends a signal to the process that runs the model, once it counts runs."""

    def kill(stage: str, done: int, of: int) -> None:
        if done:
            os.kill(multiprocessing.active_children()[0].pid or 0, number)

    return kill


@posix
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGABRT"])
def test_a_process_that_dies_leaves_its_samples(name: str) -> None:
    with pytest.raises(Stopped, match=f"by signal {name} while in a timed run") as e:
        measure(job(iterations=10**6), kill_with(getattr(signal, name)))
    assert e.value.exit_code == 4
    m = e.value.measurement
    assert m is not None and not m.complete and m.device.samples and m.profiled is None


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT interrupts, as in a shell: who starts tests in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@posix
@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_keeps_what_was_measured() -> None:
    def interrupt(stage: str, done: int, of: int) -> None:
        if done:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted) as e:
        measure(job(iterations=10**6), interrupt)
    assert e.value.measurement is not None and not e.value.measurement.complete
    assert e.value.measurement.device.samples


@posix
@pytest.mark.usefixtures("ctrl_c")
def test_a_second_ctrl_c_waits_until_all_is_cleaned_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, rmtree = tmp_path / "own", shutil.rmtree
    own.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own))

    def interrupted(folder: str, **terms: bool) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        rmtree(folder, **terms)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(job(iterations=1))
    assert not list(own.iterdir())


@posix
def test_a_closed_stderr_leaves_a_measurement_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(small("(float[4,4] x) => (float[4,4] y) { y=Relu(x) }").SerializeToString())
    command = f"exec '{sys.executable}' -m onnxperf measure m.onnx --provider cpu --iterations 1 --json - 2>&-"
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert done.returncode == 0 and '"complete": true' in done.stdout


@posix
@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_before_anything_was_measured() -> None:
    def interrupt(stage: str, done: int, of: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted) as e:
        measure(job(), interrupt)
    assert e.value.measurement is None


ALONE = """
import sys
from onnxperf.measure.job import Job
from onnxperf.measure.run import measure

if __name__ == "__main__":
    def tell(stage, done, of):
        import multiprocessing
        if done:
            print(multiprocessing.active_children()[0].pid, flush=True)
    measure(Job(sys.argv[1], "cpu", iterations=10**6, warm_s=0.0), tell)
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_the_process_ends_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(ALONE)
    (tmp_path / "m.onnx").write_bytes(small("(float[64,64] x) => (float[64,64] y) { y=Relu(x) }").SerializeToString())
    own = tmp_path / "own"
    own.mkdir()
    command = [sys.executable, str(tmp_path / "alone.py"), str(tmp_path / "m.onnx")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(own)}) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (Path(f"/proc/{child}").exists() or list(own.iterdir())):
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()
    assert not list(own.iterdir())


def test_a_script_that_measures_when_it_is_imported_is_told_how_to_call_it(tmp_path: Path) -> None:
    unguarded = ALONE[: ALONE.index("if __name__")] + 'measure(Job(sys.argv[1], "cpu", iterations=1))'
    (tmp_path / "unguarded.py").write_text(unguarded)
    own = tmp_path / "own"
    own.mkdir()
    command = [sys.executable, str(tmp_path / "unguarded.py"), str(ROOT / "samples" / "resnet50.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TMPDIR": str(own)}, timeout=120)
    said = done.stderr.splitlines()[-1]
    assert "while starting; a script calls measure() under `if __name__ == '__main__':`" in said
    assert not list(own.iterdir())


@posix
@pytest.mark.parametrize("ending", ["SIGTERM", "SIGHUP"])
def test_an_end_sent_to_the_whole_group_leaves_nothing_behind(tmp_path: Path, ending: str) -> None:
    (tmp_path / "m.onnx").write_bytes(small("(float[64,64] x) => (float[64,64] y) { y=Relu(x) }").SerializeToString())
    own = tmp_path / "own"
    own.mkdir()
    command = [sys.executable, "-m", "onnxperf", "measure", str(tmp_path / "m.onnx"), "--provider", "cpu"]
    command += ["--iterations", "1000000"]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(own)}, start_new_session=True) as measuring:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not list(own.glob("onnxperf-*")):  # Python tries the folder out before
            time.sleep(0.05)
        os.killpg(measuring.pid, getattr(signal, ending))
        assert measuring.wait(60) == 130
    assert not list(own.iterdir())


def test_the_surroundings_are_left_as_they_were() -> None:
    before = dict(os.environ)
    measure(job(iterations=1))
    assert dict(os.environ) == before


def test_each_batch_is_run_with_its_dimensions_bound_to_it() -> None:
    assert all((median_s(job(), n, 3) or math.nan) > 0 for n in (1, 4))
    runs, seconds = long_run(job(duration_s=1e-6), 4)
    assert runs >= 1 and seconds > 0


def test_open_dimensions_are_bound_as_in_a_prediction() -> None:
    model = small("(float[N,?,4] x) => (float[N,?,4] y) { y=Relu(x) }")
    m = measure(Job(model, "cpu", shapes={"x": (3, 5, 4)}, iterations=1, profile=False))
    assert m.setting.inputs == (("x", (3, 5, 4)),)
    assert ("dimension N", "3") in m.setting.options


def test_a_fixed_batch_is_opened_anew() -> None:
    fixed = job(small("(float[1,8] x) => (float[1,8] y) { y=Relu(x) }"))
    assert all((median_s(fixed, n, 3) or math.nan) > 0 for n in (1, 4))


def test_a_batch_that_does_not_fit_is_no_error() -> None:
    model = small("(float[N,1000000] x) => (float[1000000,1000000] y) { t=Transpose<perm=[1,0]>(x) y=MatMul(t,x) }")
    assert median_s(job(model), 1) is None
    with pytest.raises(OutOfMemory, match="batch 1 ran before"):
        long_run(job(model), 1)


HOSTED = "(float[2,64] x) => (float[2,64] y) { r=Relu(x) y=Neg(r) }"


@pytest.mark.parametrize("name", ["node0", "node1_fused"])
def test_a_node_on_the_cpu_that_belongs_on_the_gpu(name: str) -> None:
    asked = prepare(Job(small(HOSTED), "cuda"))
    with pytest.raises(EnvironmentFailure, match=rf"on the CPU that belong on the GPU: {name} \(Relu\)"):
        check_hosted(asked, ((name, "Relu"),))
    check_hosted(replace(asked, job=replace(asked.job, allow_host=True)), ((name, "Relu"),))


def test_shape_arithmetic_may_run_on_the_cpu() -> None:
    text = "(float[N,64] x) => (float[M] y) { s=Shape(x) p=ReduceProd<keepdims=1>(s) y=Reshape(x,p) }"
    asked = prepare(Job(small(text), "cuda", batch=2))
    check_hosted(asked, (("node0", "Shape"), ("node1", "ReduceProd"), ("", "Concat")))


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"provider": "tpu"}, "unknown provider 'tpu'"),
        ({"precision": "int8"}, "unknown precision"),
        ({"opt_level": "most"}, "unknown optimisation level"),
        ({"precision": "tf32"}, "TF32"),
        ({"include_transfers": True}, "no H2D or D2H copies"),
        ({"iterations": 0}, "iterations must be from 1 to 1,000,000"),
        ({"iterations": 10**7}, "iterations must be from 1 to 1,000,000"),
        ({"warm_s": -1.0}, "can't be negative"),
        ({"duration_s": 0.0}, "must be positive"),
        ({"duration_s": math.nan}, "must be positive"),
    ],
)
def test_jobs_that_contradict_themselves(terms: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Job(**{"model": b"", "provider": "cpu", **terms})


def test_fp32_of_a_model_that_is_stored_otherwise() -> None:
    model = small("(float16[2,64] x) => (float16[2,64] y) { y=Relu(x) }")
    with pytest.raises(UsageError, match="not stored in float32"):
        measure(Job(model, "cpu", precision="fp32"))


@pytest.mark.parametrize("name", ["text", "sequence", "map"])
def test_text_sequences_and_maps_go_in_and_come_out(name: str) -> None:
    """Inputs that can't be bound are handed over in every run, which a note says; the classifier's maps need none."""
    scalar, floats = (helper.make_tensor_type_proto(TensorProto.FLOAT, s) for s in ([], [4, 5]))
    text = helper.make_tensor_type_proto(TensorProto.STRING, [100])
    labels = {"keys_strings": ["a"], "values_int64s": [1]}
    node, given = {
        "text": (helper.make_node("LabelEncoder", ["x"], ["y"], "n", domain="ai.onnx.ml", **labels), text),
        "sequence": (
            helper.make_node("ConcatFromSequence", ["x"], ["y"], "n", axis=0), helper.make_sequence_type_proto(floats)
        ),
        "map": (
            helper.make_node("DictVectorizer", ["x"], ["y"], "n", domain="ai.onnx.ml", int64_vocabulary=[1, 2]),
            helper.make_map_type_proto(TensorProto.INT64, scalar),
        ),
    }[name]  # fmt: skip
    graph = helper.make_graph(
        [node], "g", [helper.make_value_info("x", given)], [helper.make_empty_tensor_value_info("y")]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    m = measure(job(helper.make_model(graph, ir_version=9, opset_imports=opsets)))
    assert m.complete and [o.type for o in m.operators] == [node.op_type]
    assert "handed-over" in {n.code for n in m.warnings}


def test_maps_that_a_classifier_makes_are_measured() -> None:
    node = helper.make_node("ZipMap", ["x"], ["y"], "n", domain="ai.onnx.ml", classlabels_strings=["no", "yes"])
    scalar = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.STRING, scalar))
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", 1, [10, 2])], [helper.make_value_info("y", maps)]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    m = measure(job(helper.make_model(graph, ir_version=9, opset_imports=opsets)))
    assert m.complete and [o.type for o in m.operators] == ["ZipMap"]
    assert "handed-over" not in {n.code for n in m.warnings}

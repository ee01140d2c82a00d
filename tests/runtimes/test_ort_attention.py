"""Attention as ONNX Runtime's offline optimizer finds it in older graphs, and the kernels it runs as."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest

import onnxperf
from gpu_specs import HOSTS
from onnxperf.fusions.ort_kernels import apart
from onnxperf.fusions.ort_transformers import RULES
from onnxperf.graph import Graph, load
from onnxperf.latency import HostProcessor, shipped
from onnxperf.lowering.lower import lower
from onnxperf.passes.precision import precision
from onnxperf.runtimes import LEVELS, RUNTIMES, WITHIN, of_version, run_graph
from op_models import Attention, Operator, Tensor, work_of
from tests.runtimes.test_engine import whole
from tests.runtimes.test_oracle import count, offline
from tests.zoo import zoo

__all__ = ["zoo"]  # a fixture

SAMPLES = Path(__file__).parents[2] / "samples"
CUDA = RUNTIMES["ort-cuda"]
OLDER = of_version(CUDA, "1.12")


def types(graph: Graph) -> Counter[str]:
    return Counter(o.type.rpartition("::")[2] for o in graph.operators if o.place == "gpu")


def matrix(graph: Graph) -> int:
    return sum(work_of(o).matrix_flops for o in graph.operators if o.place != "free")


@pytest.fixture(scope="module")
def gpt2() -> Graph:
    return load(SAMPLES / "gpt2-past.onnx", dims={"batch": 4, "past": 32})


@pytest.fixture(scope="module")
def minilm() -> Graph:
    return load(SAMPLES / "minilm-l6-h384.onnx", dims={"batch": 2, "sequence": 64})


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
def test_the_optimizer_finds_attention_in_the_form_of_the_samples(
    zoo: ModuleType,
    tmp_path: Path,
    masked: bool,
) -> None:
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    names = ("input_ids", "attention_mask") if masked else ("input_ids",)
    sample = zoo.Sample(
        "small", "", lambda: zoo.before.encoder("BertModel", "BertConfig", vocab_size=96, **size),
        dict.fromkeys(names, (1, 16)), ("hidden", "pooled"), "old",
    )  # fmt: skip
    model, _ = zoo.export.export(sample)
    for t in model.graph.initializer:
        if t.data_location == onnx.TensorProto.EXTERNAL:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(t.data_type)
            t.CopyFrom(onnx.numpy_helper.from_array(np.full(tuple(t.dims), 0.01, dtype), t.name))
    onnx.save(model, tmp_path / "m.onnx")
    found = count(model, RULES)
    assert found == offline(tmp_path / "m.onnx", "bert", num_heads=4, hidden_size=32)
    assert (found["Attention"], found["SkipLayerNormalization"], found["BiasGelu"]) == (2, 4, 2)


def test_states_of_the_past_go_into_attention(gpt2: Graph) -> None:
    run = run_graph(gpt2, replace(CUDA, place=lambda g: g), transformers=True)
    found = [o for o in run.operators if o.type == "com.microsoft::Attention"]
    assert len(found) == 12 and all(o.attrs["num_heads"] == 12 for o in found)
    assert [t.shape for o in found for t in (o.inputs[4], o.outputs[1]) if t][:2] == [
        (2, 4, 12, 32, 64),
        (2, 4, 12, 33, 64),
    ]
    assert matrix(run) == matrix(gpt2)
    skips = [sum(len(o.outputs) > 1 for o in run_graph(gpt2, r, transformers=True).operators if "Skip" in o.type)
             for r in (CUDA, OLDER)]  # fmt: skip
    assert skips[0] > 20 and skips[1] == 0, "the second result came after 1.12"


@pytest.mark.parametrize("runtime", [CUDA, OLDER], ids=lambda r: r.name)
@pytest.mark.parametrize("dtype", ["keep", "fp16"])
def test_an_attention_is_its_kernels(gpt2: Graph, minilm: Graph, runtime: object, dtype: str) -> None:
    for graph in (gpt2, minilm):
        before = precision(graph, dtype)
        run = run_graph(before, runtime, LEVELS["all"], True)  # type: ignore[arg-type]
        whole(run, graph)
        assert matrix(run) == matrix(before)
        assert not types(run)["Attention"]
    one = types(run)["MultiHeadAttention"]
    assert one == (6 if runtime is CUDA and dtype == "fp16" else 0)
    assert types(run)["MaskedSoftmax"] == 6 - one


@pytest.mark.parametrize("causal", [0, 1])
def test_a_fused_attention_stays_causal(causal: int) -> None:
    x, weight = Tensor("x", "float16", (2, 6, 16), "input"), Tensor("w", "float16", (16, 48), "weight")
    out, attrs = replace(x, name="y", kind="activation"), {"num_heads": 2, "unidirectional": causal}
    one = Operator("a", "com.microsoft::Attention", (x, weight), (out,), attrs, nodes=("a",), place="gpu")
    size = work_of(apart(Graph("g", (one,), (x,), (out,))).operators[-1]).size
    assert isinstance(size, Attention) and size.causal == bool(causal)


def test_the_host_walks_to_a_node_once(minilm: Graph) -> None:
    free = replace(OLDER.host, host_op_s=0.0, copy_s=0.0, launch_s=0.0, walk_s=1.0, node_s=1.0)
    run = run_graph(minilm, OLDER, LEVELS["all"], True)
    launches, tail = lower(run, OLDER).host_seconds(free, HostProcessor(HOSTS["server-2020"], shipped()))
    inside = sum(WITHIN in o.attrs for o in run.operators)
    assert inside == 6 * 6 + sum(o.type == "BiasRows" for o in run.operators)
    assert sum(launches) + tail == sum(o.place != "copy" for o in run.operators) - inside


@pytest.mark.parametrize(
    ("attrs", "shape"),
    [({}, (16, 48)), ({"num_heads": 0}, (16, 48)), ({"num_heads": 5}, (16, 48)), ({"num_heads": 2}, (48,))],
)
def test_an_attention_of_another_form_stays_one_kernel(attrs: dict[str, int], shape: tuple[int, ...]) -> None:
    x, weight = Tensor("x", "float32", (2, 6, 16), "input"), Tensor("w", "float32", shape, "weight")
    out = replace(x, name="y", kind="activation")
    one = Operator("a", "com.microsoft::Attention", (x, weight), (out,), attrs, nodes=("a",), place="gpu")
    graph = Graph("g", (one,), (x,), (out,))
    assert apart(graph).operators == graph.operators


def test_a_quantised_projection_is_no_part_of_an_attention() -> None:
    """Its kernel takes floating point only: fused, it would run on the host."""
    p = onnxperf.predict(
        SAMPLES / "minilm-l6-h384.onnx", gpu="t4", dims={"batch": 1, "sequence": 16}, precision="int8",
        ort_transformers=True,
    )  # fmt: skip
    assert "host-fallback" not in {w.code for w in p.warnings}

"""What Inductor makes of operators: by hand, and against its own code of whole models."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import onnxperf
from onnxperf import Error, predict
from onnxperf.decide.what_if import whatif
from onnxperf.graph import Graph, load
from onnxperf.lab.datasets.reading import SAMPLE
from onnxperf.runtimes import RUNTIMES, of_mode, of_version, run_graph
from tests.runtimes.conftest import without_cuda_s_choice

COMPILE = RUNTIMES["torch-compile"]
Make, Run = Callable[..., ModelProto], Callable[..., Graph]
#: Kernels in Inductor's code for CUDA, by model: torch 2.13.0 traced and lowered the modules without a GPU, for an RTX
#: 4090, under FP16 autocast at batch 8: of each kernel whether it reduces, and the bytes of the buffers that it writes.
FOLDER = Path(__file__).with_name("inductor")
KERNELS = FOLDER / "kernels.json.gz"


def kernels(graph: Graph) -> list[tuple[str, str]]:
    """The operators that do some work: kernels of Inductor by the operators in their name, calls by their type."""
    return [
        (
            o.type.removeprefix("torch::"),
            o.name.partition("_fused_")[2].rpartition("_")[0] if "triton" in o.type else "",
        )
        for o in graph.operators
        if o.place != "free"
    ]


@pytest.fixture
def compiled(run: Run) -> Callable[..., list[tuple[str, str]]]:
    """The kernels of a small model."""
    return lambda text, **weights: kernels(run(text, runtime="torch-compile", **weights))


def test_what_follows_a_convolution_is_one_kernel_and_so_is_its_bias(
    compiled: Callable[..., list[tuple[str, str]]],
) -> None:
    text = "(float[2,64,8,8] x) => (float[2,64,8,8] y) {c = Conv<pads=[1,1,1,1]>(x,w,b) r = Relu(c) y = Add(r,x)}"
    found = compiled(text, w=(64, 64, 3, 3), b=(64,))
    assert found[-2:] == [("Conv", ""), ("triton_poi", "add_relu")]
    assert Counter(kind for kind, _ in found) == {"triton_poi": 3, "Conv": 1}, "image and weights to channels_last"


def test_a_softmax_with_its_neighbours_is_one_kernel(compiled: Callable[..., list[tuple[str, str]]]) -> None:
    text = "(float[64,128] x, float[64,128] m) => (float[64,128] y) {s = Add(x,m) p = Softmax(s) y = Sqrt(p)}"
    assert compiled(text) == [("triton_per", "_softmax_add_sqrt")]
    wide = text.replace("128", "4096")
    assert compiled(wide) == [("triton_red", "_softmax_add_sqrt")]


def test_a_residual_stream_is_kept_when_it_has_read_five_buffers(run: Run) -> None:
    text = "(float[64,128] a, float[64,128] b, float[64,128] c, float[64,128] d, float[64,128] e) => (float[64,64] y) {"
    sums = "s1 = Add(a,b) s2 = Add(s1,c) s3 = Add(s2,d) s4 = Add(s3,e) "
    norms = "".join(f"n{i} = LayerNormalization(s{i},g) " for i in (1, 2, 3, 4))
    products = "".join(f"t{i} = MatMul(n{i},w) " for i in (1, 2, 3, 4))
    total = f"{products}u = Add(t1,t2) v = Add(t3,t4) y = Add(u,v)}}"
    graph = run(text + sums + norms + total, runtime="torch-compile", g=(128,), w=(128, 64))
    written = [t.name for o in graph.operators for t in o.outputs if "triton" in o.type]
    assert {"n1", "n2", "n3", "n4"} <= {*written} and "s3" not in written


def test_a_view_is_arithmetic_on_addresses(compiled: Callable[..., list[tuple[str, str]]]) -> None:
    text = """(float[4,16,32] x) => (float[4,32,16] y)
              {t = Transpose<perm=[0,2,1]>(x) s = Sigmoid(t) y = Mul(s,t)}"""
    assert compiled(text) == [("triton_poi", "silu")]


def test_a_pool_reads_memory_and_a_large_one_is_a_library_s(compiled: Callable[..., list[tuple[str, str]]]) -> None:
    text = "(float[2,8,32,32] x) => (float[2,8,16,16] y) {y = MaxPool<kernel_shape=[2,2],strides=[2,2]>(x)}"
    assert compiled(text) == [("triton_poi", "max_pool2d_with_indices")]
    large = text.replace("[2,2],strides=[2,2]", "[8,8],strides=[2,2],pads=[3,3,3,3]")
    assert compiled(large) == [("MaxPool", "")]


def test_joined_tensors_are_one_kernel_where_none_lies_in_place(compiled: Callable[..., list[tuple[str, str]]]) -> None:
    text = "(float[4,8] x, float[4,8] z) => (float[4,16] y) {a = Relu(x) b = Tanh(z) y = Concat<axis=1>(a,b)}"
    assert compiled(text) == [("triton_poi", "cat_relu_tanh")]


@pytest.mark.parametrize("text, weights, kernels", [
    ("(float[8] x) => (float[8] y) {y = LayerNormalization(x,s)}", {"s": (8,)}, [("triton_per", "native_layer_norm")]),
    (
        "(float[4,64] x) => (float[4,64] y) {y = Slice(x,start,end,axis,step)}",
        {"start": np.array([-1]), "end": np.array([-99]), "axis": np.array([1]), "step": np.array([-1])},
        [("triton_poi", "slice")],
    ),
    (
        "(float[4,64] x) => (float[4,64] y) {r = ReduceSum<noop_with_empty_axes=1>(x) y = Relu(r)}", {},
        [("triton_poi", "relu")],
    ),
])  # fmt: skip
def test_special_cases_of_operators(
    compiled: Callable[..., list[tuple[str, str]]], text: str, weights: dict[str, object],
    kernels: list[tuple[str, str]],
) -> None:  # fmt: skip
    """A norm of one axis; a slice backwards is a copy, as PyTorch has no such view; a sum along no axes is a view."""
    assert compiled(text, **weights) == kernels


def test_a_long_chain_of_views_behind_a_product(compiled: Callable[..., list[tuple[str, str]]]) -> None:
    views = " ".join(f"t{i + 1} = Transpose(t{i})" for i in range(2000))
    text = f"(float[64,64] x) => (float[64,64] y) {{t0 = Gemm(x,w,b) {views} y = Relu(t2000)}}"
    assert compiled(text, w=(64, 64), b=(64,)) == [("Gemm", ""), ("triton_poi", "add_relu")]


def test_a_result_with_fewer_axes_than_its_operand_is_predicted() -> None:
    """As a file may declare that of an operator whose shapes ONNX does not infer."""
    nodes = [helper.make_node("Affine", ["x"], ["y"])]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [3, 4, 5]), ("y", [5]))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    (kernel,) = predict(helper.make_model(graph).SerializeToString(), gpu="l4", runtime="torch-compile").kernels
    assert kernel.nodes == ("Affine_0",)


def test_weights_are_cast_in_every_run(run: Run, make: Make) -> None:
    model = make("(float[8,64] x) => (float[8,32] y) {h = MatMul(x,w) y = Relu(h)}", {"w": (64, 32)})
    graph = run_graph(load(model), COMPILE, amp=True)
    assert [kind for kind, _ in kernels(graph)] == ["triton_poi", "triton_poi", "MatMul", "triton_poi"]


def test_loops_are_turned_since_2_10(make: Make) -> None:
    text = """(float[512,64,14,14] x) => (float[512,64,1,1] y, float[512,64,14,14] u)
              {c = Conv(x,w) z = BatchNormalization(c,a,a,a,a) y = GlobalAveragePool(z) u = Conv(z,w)}"""
    model = make(text, {"w": (64, 64, 1, 1), "a": (64,)})
    today, before = (kernels(run_graph(load(model), r)) for r in (COMPILE, of_version(COMPILE, "2.9")))
    norm = "_native_batch_norm_legit_no_training"
    assert ("triton_red", f"{norm}_mean") in today and len(today) == len(before) - 1
    assert {("triton_poi", norm), ("triton_red", "mean")} <= {*before}


def test_what_ends_with_channels_stays_so_in_2_9() -> None:
    """A norm over the channels of each of 18 blocks reads a large result that ends with them. Kernels of 2.11 were
    counted on an H100; in 2.9 no product has a bias, and none reads a copy.
    """
    graph = load(gzip.decompress((SAMPLE / "h100/graphs/convnextv2_tiny@224.onnx.gz").read_bytes()), batch=32)
    counts = {
        release: Counter(kind for kind, _ in kernels(run_graph(graph, of_version(COMPILE, release), amp=True)))
        for release in ("2.9", "2.11")
    }
    kinds = ("triton_poi", "triton_per", "triton_red")
    assert [counts["2.11"][k] for k in kinds] == [132, 33, 27]
    assert [counts["2.9"][k] for k in kinds] == [132 - 2 * 18, 33, 27]


@pytest.mark.parametrize(("before", "written"), [("Sigmoid", [1, 1, 2]), ("Relu", [2])])
def test_what_a_convolution_reads_through_a_slice_is_kept_as_eager_has_it(
    make: Make, before: str, written: list[int]
) -> None:
    """In NCHW, so that each half is turned in a copy. What Relu changes in place has a view for each half, which counts
    as two readers: with a batch norm's five reads it is kept in channels_last, where cuDNN copies the halves.
    """
    text = f"""(float[2,64,8,8] x) => (float[2,32,8,8] y)
               {{ c = Conv<pads=[1,1,1,1]>(x,k) b = BatchNormalization(c,a,d,e,g) r = {before}(b)
                  s, t = Split<axis=1,num_outputs=2>(r)
                  u = Conv<pads=[1,1,1,1]>(t,w) v = Conv<pads=[1,1,1,1]>(s,w) y = Add(u,v) }}"""
    weights = {"w": (32, 32, 3, 3), "k": (64, 64, 3, 3), **dict.fromkeys("adeg", (64,))}
    graph = run_graph(load(make(text, weights)), COMPILE, amp=True)
    half = 2 * 32 * 8 * 8
    kept = (t for o in graph.operators if "triton" in o.type for t in o.outputs)
    assert sorted(t.size // half for t in kept if t.name in "rst" or "#copy" in t.name) == written
    assert [o.type for o in graph.operators].count("Contiguous") == (2 if before == "Relu" else 0)


@pytest.mark.parametrize("first", ["m = Mul(t,k)", "m = Mul(k,t)", "s, m = Split(t)", "m, s = Split(t)"])
def test_images_that_eager_has_in_channels_last_are_kept_so(make: Make, first: str) -> None:
    """Whichever operand or part of them a convolution's input is made of."""
    text = f"""(float[2,8,8,64] x) => (float[2,16,8,8] y)
               {{ t = Transpose<perm=[0,3,1,2]>(x) {first} c = Conv<pads=[1,1,1,1]>(m,w) r = Sigmoid(c)
                  a, b = Split<axis=1,num_outputs=2>(r) u = Conv(a,v) q = Conv(b,v) y = Add(u,q) }}"""
    text = text.replace("Split(t)", "Split<axis=1,num_outputs=2>(t)")
    width = 64 if "Mul" in first else 32
    model = make(text, {"k": (1, 64, 1, 1), "w": (32, width, 3, 3), "v": (16, 16, 1, 1)})
    copies = [o for o in run_graph(load(model), COMPILE, amp=True).operators if "#copy" in o.out.name]
    assert not copies


def test_what_is_tiled_joins_a_sum_s_kernel_since_2_12(make: Make) -> None:
    """Heads that lie last are added to heads that lie first, as ConViT does before it norms its scores: the addition
    goes in tiles, which no row of a sum is, until loops are indexed anew as the sum's rows.
    """
    text = """(float[8,4,96,96] x, float[8,96,96,4] z) => (float[8,4,96,1] y, float[8,4,96,96] q)
              {t = Transpose<perm=[0,3,1,2]>(z) p = Softmax(x) q = Add(p,t) y = ReduceSum(q,a)}"""
    model = make(text, {})
    model.graph.initializer.append(numpy_helper.from_array(np.array([3]), "a"))
    today, before = (kernels(run_graph(load(model), r)) for r in (COMPILE, of_version(COMPILE, "2.11")))
    assert len(today) == 1
    assert ("triton_poi", "_softmax_add") in before and len(before) > len(today)


def test_sums_of_one_element_go_in_the_order_of_others(compiled: Callable[..., list[tuple[str, str]]]) -> None:
    text = "(float[1,64,7,14] x) => (float[1,64,7,14] y) {s = Softmax<axis=0>(x) y = Softmax<axis=1>(s)}"
    assert [kind for kind, _ in compiled(text)] == ["triton_per"]


@pytest.mark.parametrize(("other", "number"), [("Mul(x,t)", 2), ("Mul(x,x)", 1)])
def test_elementwise_loops_of_other_tiles_stay_apart(make: Make, other: str, number: int) -> None:
    """Both read one tensor in a row, and another one across; torch 2.13's own Inductor: "tiling mismatch"."""
    text = f"""(float[64,96,32] x, float[96,32,64] z, float[64,32,96] w) => (float[64,96,32] u, float[64,96,32] v)
               {{s = Transpose<perm=[2,0,1]>(z) t = Transpose<perm=[0,2,1]>(w) u = Add(x,s) v = {other}}}"""
    assert len(kernels(run_graph(load(make(text, {})), COMPILE))) == number


@pytest.mark.parametrize(("width", "copies"), [(192, 0), (200, 1)])
def test_long_strides_are_aligned_and_a_product_copies_what_has_gaps(make: Make, width: int, copies: int) -> None:
    """197 rows of 200 halves are no multiple of 128 bytes: each matrix of them begins aligned, and a product, to which
    all rows are those of one matrix, reads a copy (torch 2.13's own Inductor of such a layer: 12,608 rows of 224).
    """
    text = f"""(float[8,197,{width}] x) => (float[8,197,{width}] y)
               {{n = LayerNormalization<epsilon=1e-5>(x,g,h) m = MatMul(n,w) y = Sigmoid(m)}}"""
    model = make(text, {"g": (width,), "h": (width,), "w": (width, width)})
    graph = run_graph(load(model), COMPILE, amp=True)
    assert sum("#rows#" in t.name for o in graph.operators for t in o.outputs) == copies


def test_what_a_convolution_reads_has_no_gaps(make: Make) -> None:
    """Images of 7 x 225 halves would begin aligned, and cuDNN copy them."""
    text = "(float[4,7,225] x) => (float[4,8,225] y) {p = Softmax<axis=2>(x) c = Conv(p,w) y = Relu(c)}"
    graph = run_graph(load(make(text, {"w": (8, 7, 1)})), COMPILE, amp=True)
    assert not any(o.type == "Contiguous" for o in graph.operators)


def test_attention_reads_rows_that_eager_has_and_writes_as_its_queries_lie(make: Make) -> None:
    """Heads made of a convolution's channels have eager PyTorch's positions next to each other: queries, keys and
    values are copied, though with channels last their rows would do; what reads the result turned copies that.
    """
    text = """(float[8,64,14,14] x) => (float[8,64,14,14] y)
              {a = Conv(x,k) b = Conv(x,l) c = Conv(x,m)
               d = Reshape(a,s) e = Reshape(b,s) f = Reshape(c,s)
               q = Transpose<perm=[0,1,3,2]>(d) g = Transpose<perm=[0,1,3,2]>(e) v = Transpose<perm=[0,1,3,2]>(f)
               j = Transpose<perm=[0,1,3,2]>(g) t = MatMul(q,j) h = Mul(t,z) p = Softmax(h) o = MatMul(p,v)
               u = Transpose<perm=[0,1,3,2]>(o) r = Reshape(u,i) y = Conv(r,n)}"""
    model = make(text, dict.fromkeys("klmn", (64, 64, 1, 1)))
    for name, number in (("s", [8, 2, 32, 196]), ("i", [8, 64, 14, 14]), ("z", np.float32(0.2))):
        model.graph.initializer.append(numpy_helper.from_array(np.array(number), name))
    found = [kind for kind, _ in kernels(run_graph(load(model), COMPILE, amp=True))]
    i = found.index("Attention")
    assert found[i - 3 : i] == ["triton_poi"] * 3 and found[i + 1] == "triton_poi"


def test_what_a_norm_of_half_precision_widens_lies_in_memory_once(make: Make) -> None:
    """A pool's result is kept, as half precision; its reads are not counted again where the norm widens it."""
    text = """(float16[64,64,30,30] x) => (float16[64,64,30,30] y)
              {e = Pad(x,k) p = MaxPool<kernel_shape=[3,3]>(e) r = Reshape(p,s) n = InstanceNormalization(r,g,g)
               q = Reshape(n,t) m = Mul(q,a) y = Add(m,b)}"""
    weights = {**dict.fromkeys("g", (32,)), **dict.fromkeys("ab", (64, 1, 1))}
    model = make(text, weights)
    for weight in model.graph.initializer:
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(np.float16), weight.name))
    for name, sizes in (("k", [0, 0, 1, 1, 0, 0, 1, 1]), ("s", [0, 32, -1]), ("t", [64, 64, 30, 30])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(sizes), name))
    graph = run_graph(load(model), COMPILE)
    large = [t.dtype for o in graph.operators if o.place != "free" for t in o.outputs if t.size == 64 * 64 * 900]
    assert large == ["float16", "float16"]


def test_a_mode_replays_and_a_tuned_product_takes_in_what_reads_it(make: Make) -> None:
    text = "(float[256,512] x) => (float[256,512] y) {h = MatMul(x,w) g = Gelu(h) y = Add(g,x)}"
    model = make(text, {"w": (512, 512)})
    usual, replayed, tuned = (
        predict(model, gpu="a100", runtime="torch-compile", compile_mode=m)
        for m in ("default", "reduce-overhead", "max-autotune")
    )
    assert [len(p.kernels) for p in (usual, replayed, tuned)] == [2, 2, 1]
    assert tuned.seconds < replayed.seconds < usual.seconds
    assert usual.scenario.cuda_graph is False and replayed.scenario.cuda_graph is True
    assert [p.report().split("\n")[0].endswith("reduce-overhead") for p in (usual, replayed)] == [False, True]
    assert tuned.kernels[0].op == "com.microsoft::FusedMatMulActivation"
    assert kernels(run_graph(load(model), of_mode(COMPILE, "max-autotune"))) == [
        ("com.microsoft::FusedMatMulActivation", "")
    ]


def test_modes_are_torch_compile_s(make: Make) -> None:
    model = make("(float[8] x) => (float[8] y) {y = Relu(x)}", {})
    with pytest.raises(
        Error, match="ort-cuda has no compile mode: give runtime torch-compile, or leave compile_mode out"
    ):
        predict(model, gpu="t4", compile_mode="reduce-overhead")
    changes = {c.what for c in whatif(model, gpu="t4", runtime="torch-compile").changes}
    assert "--compile-mode reduce-overhead" in changes and "--runtime torch-eager" in changes


def test_why_loops_stay_apart_is_said(make: Make) -> None:
    model = make("(float[64,128] x) => (float[64,128] y) {p = Softmax(x) y = Softmax<axis=0>(p)}", {})
    notes = [n.message for n in run_graph(load(model), COMPILE).notes if n.code == "not-fused"]
    assert any("a reduction reads the result of another one" in n for n in notes)


def test_an_eager_model_is_slower_and_has_more_kernels() -> None:
    path = SAMPLE / "timm" / "seresnet33ts@256.onnx.gz"
    graph = load(gzip.decompress(path.read_bytes()), batch=32)
    eager, fused = (predict(graph, gpu="l4", runtime=r, precision="amp") for r in ("torch-eager", "torch-compile"))
    assert fused.seconds < eager.seconds and len(fused.kernels) < len(eager.kernels)


@pytest.mark.slow
def test_kernels_are_those_of_inductor_s_code() -> None:
    """Kernels that write what a kernel of Inductor writes: nine of ten of all; of three quarters of the models nine of
    ten and more, of two fifths all. Which kernel runs an attention is chosen by PyTorch's build for CUDA, which the
    lists were made without.
    """
    traced, alike, listed, shares = without_cuda_s_choice(), 0, 0, {}
    for name, of_inductor in json.loads(gzip.decompress(KERNELS.read_bytes())).items():
        graph = load(gzip.decompress((FOLDER / f"{name}.onnx.gz").read_bytes()), batch=8)
        predicted = Counter(
            ("poi" if o.type.endswith("poi") else "red", *sorted(t.bytes for t in o.outputs))
            for o in run_graph(graph, traced, amp=True).operators
            if o.type.startswith("torch::triton")
        )
        inductor = Counter(tuple(kernel) for kernel in of_inductor)
        both, most = (predicted & inductor).total(), max(predicted.total(), inductor.total())
        alike, listed, shares[name] = alike + both, listed + most, both / most
    assert len(shares) >= 40 and alike >= 0.9 * listed, shares
    assert sum(share >= 0.9 for share in shares.values()) >= 0.75 * len(shares), shares
    assert sum(share == 1 for share in shares.values()) >= 0.4 * len(shares), shares


@pytest.mark.parametrize(
    ("precision", "kernels", "us"), [("amp", 354, 3160), ("bf16", 207, 2691), ("keep", 208, 17740)]
)
def test_a_mask_that_repeats_one_element_keeps_attention_from_fused_kernels(
    precision: str, kernels: int, us: float
) -> None:
    """BERT without padding on an H200 at batch 32, PyTorch 2.11: kernels and microseconds that CUPTI counted, which has
    .6 beside a kernel's own; two products, what is around them and one kernel that is not told are seven for one.
    """
    model = gzip.decompress((SAMPLE / "h200/graphs/bert.onnx.gz").read_bytes())
    asked = {"gpu": "h200", "runtime": "torch-compile", "batch": 32, "ort_version": "2.11"}
    compiled = predict(model, precision=precision, **asked).kernels
    assert sum(k.op == "MatMul" for k in compiled) == 2 * 12 and kernels - len(compiled) in range(14)
    assert sum(k.seconds + 0.6e-6 for k in compiled) == pytest.approx(us * 1e-6, rel=0.1)


def test_eager_pytorch_gets_no_mask_that_repeats_one_element() -> None:
    model = gzip.decompress((SAMPLE / "h200/graphs/bert.onnx.gz").read_bytes())
    graph = run_graph(load(model), RUNTIMES["torch-eager"])
    assert [len(o.present) for o in graph.operators if o.type == "Attention"] == [3] * 12


def test_a_module_is_predicted_from_python() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).eval()
    p = onnxperf.predict(module, torch.zeros(8, 64), runtime="torch-compile", gpu="l4")
    assert [k.op for k in p.kernels].count("Gemm") == 2 and any(k.op == "torch::triton_poi" for k in p.kernels)
    assert p.scenario.runtime == "torch-compile"

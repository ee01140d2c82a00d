"""Strides and hidden copies against torch itself."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import onnxperf
from onnxperf.fusions import torch_calls
from onnxperf.fusions.engine import optimise
from onnxperf.fusions.torch_strides import channels_last, contiguous, dense, multipliable, suggests_last, view
from onnxperf.graph import Graph, load
from onnxperf.lab.datasets.reading import SAMPLE, read
from onnxperf.runtimes import RUNTIMES, of_version, run_graph
from onnxperf.runtimes.torch_eager import _Placing, native, place
from op_models import Operator, Tensor, work_of
from tests.runtimes.conftest import build

torch = pytest.importorskip("torch")
SAMPLES = Path(__file__).parents[2] / "samples"
SIZES = [1, 1, 2, 2, 3, 4, 6]


def factored(draw: Any, size: int) -> tuple[int, ...]:
    """A random shape with so many elements."""
    shape = []
    while size > 1:
        d = draw(st.sampled_from([k for k in range(2, size + 1) if size % k == 0]))
        shape.append(d)
        size //= d
    for _ in range(draw(st.integers(0, 2))):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return tuple(shape)


@st.composite
def strided(draw: Any) -> Any:
    """A torch tensor after a few views."""
    x = torch.empty(draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=4)))
    for _ in range(draw(st.integers(0, 3))):
        axis = draw(st.integers(0, x.dim() - 1))
        match draw(st.sampled_from(["permute", "slice", "step", "expand"])):
            case "permute":
                x = x.permute(draw(st.permutations(range(x.dim()))))
            case "slice":
                x = x.narrow(axis, 0, draw(st.integers(1, x.shape[axis])))
            case "step":
                x = x[(slice(None),) * axis + (slice(None, None, 2),)]
            case "expand" if x.dim() < 5:
                x = x.expand(draw(st.sampled_from([1, 2, 3])), *x.shape)
    return x


def seen(shape: Any, strides: Any) -> list[int]:
    """Strides of the axes that are longer than one; the others' mean nothing."""
    return [s for d, s in zip(shape, strides, strict=True) if d != 1]


@settings(max_examples=400, deadline=None)
@given(strided(), st.data())
def test_a_view_is_what_torch_sees(x: Any, data: Any) -> None:
    new = factored(data.draw, x.numel())
    ours = view(tuple(x.shape), x.stride(), new)
    try:
        theirs = x.view(new)
    except RuntimeError:
        assert ours is None
    else:
        assert ours is not None
        assert seen(new, ours) == seen(new, theirs.stride())


@given(st.lists(st.integers(1, 5), max_size=4))
def test_row_major_strides(shape: list[int]) -> None:
    assert seen(shape, contiguous(tuple(shape))) == seen(shape, torch.empty(shape).stride())


def test_an_empty_tensor_can_be_seen_under_any_shape() -> None:
    assert view((0, 3), (3, 1), (3, 0)) is not None


STEPS = {
    "perm": "b=Transpose<perm=[1,2,0]>(x)",
    "slice": "b=Slice(x,i0,i2,i1)",
    "every second": "b=Slice(x,i0,i9,i2,i2)",
    "every second, axes left out": "b=Slice(x,i000,i999,,i112)",
    "expand": "b=Expand(w,i434)",
    "split": "b,c=Split<axis=1,num_outputs=2>(x)",
}
IN_TORCH = {
    "perm": lambda x: x.permute(1, 2, 0),
    "slice": lambda x: x[:, :2],
    "every second": lambda x: x[:, :, ::2],
    "every second, axes left out": lambda x: x[:, :, ::2],
    "expand": lambda x: x[:, :1].expand(4, 3, 4),
    "split": lambda x: x.split(2, 1)[0],
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("new", [(-1,), (4, -1), (2, 2, -1), (-1, 2)])
def test_views_of_operators_copy_where_torch_copies(run: Any, name: str, new: tuple[int, ...]) -> None:
    """A view, then a Reshape: a hidden copy stands before it exactly where torch.reshape makes one."""
    shape = (4, 3, 4) if name != "split" else (4, 4, 4)
    base = torch.empty(shape)
    x = IN_TORCH[name](base)
    if x.numel() % abs(torch.Size(new).numel()):
        pytest.skip("this shape does not hold as many elements")
    moved = x.reshape(new).data_ptr() != x.data_ptr()
    start = "w=Slice(x,i0,i1,i1)" if name == "expand" else ""
    sizes = [",".join(map(str, s)) for s in (shape, x.reshape(new).shape)]
    text = "(float[{}] x) => (float[{}] y)".format(*sizes)
    numbers = {"i0": [0], "i1": [1], "i2": [2], "i9": [9], "i000": [0, 0, 0], "i999": [9, 9, 9], "i112": [1, 1, 2]}
    numbers |= {"i434": [4, 3, 4], "to": list(new)}
    given = ", ".join(f"int64[{len(v)}] {k} = {{{', '.join(map(str, v))}}}" for k, v in numbers.items())
    graph = run(f"{text} <{given}> {{ {start} {STEPS[name]} y=Reshape(b,to) }}", runtime="torch-eager")
    assert ("Contiguous" in {o.type for o in graph.operators}) == moved
    assert all(o.place == "free" for o in graph.operators if o.type != "Contiguous")


def test_a_backward_slice_is_a_copy(run: Any) -> None:
    text = "(float[4] x) => (float[4] y) <int64[1] a={-1}, int64[1] b={-9}, int64[1] c={0}> {y=Slice(x,a,b,c,a)}"
    assert [o.place for o in run(text, runtime="torch-eager").operators] == ["gpu"]


@pytest.mark.parametrize(
    ("shape", "how", "copies"),
    [
        ((2, 3, 4), lambda x: x, 0),
        ((2, 4, 3), lambda x: x.transpose(1, 2), 0),
        ((2, 3, 5, 4), lambda x: x.transpose(1, 2), 1),
        ((1, 3, 5, 4), lambda x: x.transpose(1, 2), 0),
        ((3, 4, 2), lambda x: x.permute(2, 0, 1), 1),
    ],
)
def test_products_copy_what_cublas_cannot_read(shape: tuple[int, ...], how: Any, copies: int) -> None:
    """The left side of a batched product: axes in front must fold into one, of the last two one must be dense."""
    x = how(torch.rand(shape))
    y = torch.rand(*x.shape[:-2], x.shape[-1], 3)
    stored = sorted(range(x.dim()), key=lambda i: -x.stride()[i])
    perm = [stored.index(i) for i in range(x.dim())]
    a = Tensor("a", "float32", shape, "input")
    t, b = Tensor("t", "float32", tuple(x.shape)), Tensor("b", "float32", tuple(y.shape), "input")
    out = Tensor("y", "float32", tuple((x @ y).shape))
    transpose = Operator("t", "Transpose", (a,), (t,), {"perm": perm}, nodes=("t",))
    product = Operator("m", "MatMul", (t, b), (out,), nodes=("m",))
    placed = place(Graph("g", (transpose, product), (a, b), (out,)))
    assert sum(o.type == "Contiguous" for o in placed.operators) == copies


@pytest.mark.parametrize(
    ("shape", "strides", "readable"),
    [
        ((3, 4), (4, 1), True), ((3, 4), (1, 3), True), ((3, 4), (9, 1), True), ((3, 4), (8, 2), False),
        ((3, 4), (0, 1), False), ((3, 4), (1, 0), False), ((3, 1), (1, 7), True),
        ((1, 4), (0, 1), True), ((4,), (2,), True), ((2, 3, 4), (0, 4, 1), True),
        ((2, 2, 3, 4), (12, 48, 4, 1), False),
    ],
)  # fmt: skip
def test_matrices_that_cublas_reads_in_place(shape: tuple[int, ...], strides: tuple[int, ...], readable: bool) -> None:
    """One axis dense, the other in steps of at least its length, as torch prepares matrices for a bmm."""
    assert multipliable(Tensor("t", "float32", shape), strides) == readable


@pytest.mark.parametrize(("batch", "copies"), [(1, 1), (2, 4)])
def test_hidden_copies_of_bert_attention(batch: int, copies: int) -> None:
    """At batch 1 only the context is made contiguous; above, also queries, keys and values are before a bmm."""
    graph = load(SAMPLES / "distilbert-dynamic.onnx", dims={"batch": batch, "sequence": 16})
    types = Counter(o.type for o in run_graph(graph, RUNTIMES["torch-eager"]).operators)
    assert types["Contiguous"] == 6 * copies
    assert types["Transpose"] == 24


@pytest.mark.parametrize("batch", [1, 2])
def test_torch_makes_as_many_copies_in_its_own_attention(batch: int) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Copies(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func in (torch.ops.aten.clone.default, torch.ops.aten._reshape_copy.default)
            return func(*args, **(kwargs or {}))

    q, k, v = (torch.rand(batch, 16, 12, 8).transpose(1, 2) for _ in range(3))
    with torch.no_grad(), Copies() as copies:
        scores = torch.softmax(q @ k.transpose(2, 3), -1)
        (scores @ v).transpose(1, 2).reshape(batch, 16, 96)
    assert copies.count == (1 if batch == 1 else 4)


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("(float[2,3,4] x) => (float[2,3,5] y) {y=MatMul(x,w)}", (5, 4)),
        ("(float[2,3,4] x) => (float[2,3,5] y) {h=MatMul(x,w) y=Add(h,b)}", (5, 4)),
        ("(float[3,4] x) => (float[3,5] y) {y=Gemm(x,w,b)}", (4, 5)),
    ],
)
def test_a_linear_layer_keeps_its_matrix_transposed(run: Any, text: str, stored: tuple[int, int]) -> None:
    """What exporters turned round is turned back; addmm, which is a Gemm on two axes, reads its matrix as it is."""
    (product,) = run(text, runtime="torch-eager", w=(4, 5), b=(5,)).operators
    assert product.inputs[1].shape == stored
    assert bool(product.attrs.get("transB")) == (stored == (5, 4))
    assert work_of(product).matrix_flops == 2 * product.out.size * 4


def test_a_gelu_that_is_written_out_runs_as_it_is_written(run: Any, types: Any) -> None:
    """transformers' `gelu_new` is eight kernels; torch's own gelu, by erf, is one."""
    by_tanh = (
        "(float[2,8] x) => (float[2,8] y) {p=Pow(x,three) q=Mul(p,c) s=Add(x,q) u=Mul(s,r) t=Tanh(u) g=Add(t,one)"
        " h=Mul(x,half) y=Mul(h,g)}"
    )
    numbers = {"three": 3.0, "c": 0.044715, "r": 0.7978846, "one": 1.0, "half": 0.5}
    assert types(run(by_tanh, runtime="torch-eager", **numbers)).total() == 8
    assert types(run(by_tanh, runtime="ort-cuda", **numbers)) == {"FastGelu": 1}
    by_erf = "(float[2,8] x) => (float[2,8] y) {d=Div(x,r) e=Erf(d) g=Add(e,one) m=Mul(x,g) y=Mul(m,half)}"
    assert types(run(by_erf, runtime="torch-eager", r=1.4142135, one=1.0, half=0.5)) == {"Gelu": 1}


class Head(torch.nn.Module):  # type: ignore[misc]
    """Attention and a gelu, each a call of torch."""

    def __init__(self, approximate: str, mask: str) -> None:
        super().__init__()
        self.qkv, self.approximate, self.mask = torch.nn.Linear(16, 48), approximate, mask
        some = torch.ones(1, 1, 6, 6, dtype=torch.bool) if mask == "boolean" else torch.zeros(1, 1, 6, 6)
        self.register_buffer("added", some)

    def forward(self, x: Any) -> Any:
        q, k, v = (t.view(2, 6, 4, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mask = self.added if self.mask in ("boolean", "added") else None
        attend = torch.nn.functional.scaled_dot_product_attention
        y = attend(q, k, v, attn_mask=mask, is_causal=self.mask == "causal").transpose(1, 2).reshape(2, 6, 16)
        return torch.nn.functional.gelu(y, approximate=self.approximate)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exporter", ["TorchScript", "dynamo"])
@pytest.mark.parametrize(("approximate", "mask"), [("none", ""), ("tanh", "causal"), ("none", "boolean")])
def test_eager_kernels_do_not_depend_on_the_exporter(approximate: str, mask: str, exporter: str) -> None:
    """Before opset 20 exporters write a gelu, and attention at any, as several nodes; eager PyTorch calls one kernel.

    By TorchScript's it was 19 kernels, and 2.8 times as long on an A100.
    """
    file, net, x = BytesIO(), Head(approximate, mask).eval(), (torch.rand(2, 6, 16),)
    how = {"dynamo": exporter == "dynamo", "opset_version": 18 if exporter == "dynamo" else 17}
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        torch.onnx.export(net, x, file, **how)
    graph = run_graph(load(file.getvalue()), RUNTIMES["torch-eager"])
    types = [o.type.rpartition("::")[2] for o in graph.operators if o.place != "free"]
    assert types == ["Gemm", "Attention", "Gelu"]
    assert graph.operators[-1].attrs.get("approximate", "none") == approximate


@pytest.mark.filterwarnings("ignore")
def test_a_norm_of_half_precision_is_one_kernel_however_it_is_exported() -> None:
    """Before opset 17 TorchScript's exporter takes it apart, with what is centred cast to doubles."""
    file, net = BytesIO(), torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.ReLU()).half()
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        torch.onnx.export(net, (torch.rand(2, 6, 8).half(),), file, dynamo=False, opset_version=13)
    exported = load(file.getvalue())
    assert any(o.type == "Cast" and o.out.dtype == "float64" for o in exported.operators)
    graph = run_graph(exported, RUNTIMES["torch-eager"])
    assert [o.type for o in graph.operators if o.place != "free"] == ["LayerNormalization", "Relu"]


class Net(torch.nn.Module):  # type: ignore[misc]
    """What keeps images channels-last, and what does not."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.conv, self.norm = torch.nn.Conv2d(4, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8)
        self.rows, self.groups = torch.nn.LayerNorm(8), torch.nn.GroupNorm(2, 8)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.conv(x)))
        match self.kind:
            case "pool":
                return torch.nn.functional.max_pool2d(x, 2)
            case "sum":
                return x + x.mean((2, 3), keepdim=True)
            case "concat":
                return torch.cat([x, x * 2], 1)
            case "half of the channels":
                return x.chunk(2, 1)[0] * 2
            case "rows":
                return self.rows(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            case "tokens":
                return x.flatten(2).transpose(1, 2) * 2
            case "heads":
                return x.reshape(2, 4, 2, 36).transpose(1, 2) * 2
            case _:
                return torch.nn.functional.pad(x, (1, 1, 1, 1))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", ["pool", "sum", "concat", "half of the channels", "rows", "tokens", "heads", "pad"])
def test_results_lie_in_memory_as_in_torch(kind: str, last: bool) -> None:
    """Strides of what a module returns, and how many copies it takes, under both memory formats."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from onnxperf.export.from_torch import proto

    class Copies(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func in (torch.ops.aten.clone.default, torch.ops.aten._reshape_copy.default)
            return func(*args, **(kwargs or {}))

    memory = torch.channels_last if last else torch.contiguous_format
    net, x = Net(kind).eval().to(memory_format=memory), torch.rand(2, 4, 6, 6).contiguous(memory_format=memory)
    with torch.no_grad(), Copies() as copies:
        y = net(x)
    placing = _Placing(last, {"x": channels_last(x.shape)} if last else {})
    graph = optimise(load(proto(net, x)), torch_calls.RULES, 0)
    for o in graph.operators:
        placing.add(o)
    (out,) = graph.outputs
    assert seen(y.shape, placing.of(out)) == seen(y.shape, y.stride())
    inside = kind == "rows" and not last  # layer_norm makes that copy where no dispatch shows it
    assert sum(o.type == "Contiguous" for o in placing.placed) == copies.count + inside


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1), (1, 3, 4, 5), (1, 1, 1, 1)])
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_channels_last_is_what_torch_suggests(shape: tuple[int, ...], memory: Any) -> None:
    """A pooling writes what it takes its input for; an elementwise operator keeps the order of axes."""
    x = torch.empty(shape).contiguous(memory_format=memory)
    for t in (x, x[:, :1], x[:, :, ::2], x.transpose(2, 3)):
        pooled = torch.nn.functional.avg_pool2d(t, 1)
        lies_last = seen(t.shape, channels_last(tuple(t.shape)))
        if suggests_last(tuple(t.shape), t.stride()):
            assert seen(t.shape, pooled.stride()) == lies_last
        else:
            assert pooled.is_contiguous()
        assert seen(t.shape, dense(tuple(t.shape), t.stride())) == seen(t.shape, (t * 2).stride())


def test_a_batch_norm_that_was_folded_runs_apart() -> None:
    graph = run_graph(load(SAMPLES / "resnet50.onnx"), RUNTIMES["torch-eager"])
    types = Counter(o.type for o in graph.operators)
    assert types["Conv"] == types["BatchNormalization"] == 53
    assert not any(len(o.present) > 2 for o in graph.operators if o.type == "Conv"), "their biases are the norms'"


def test_a_pad_that_was_folded_into_a_convolution_runs_apart(run: Any) -> None:
    text = "(float[2,3,8,8] x) => (float[2,4,4,4] y) {{ y = Conv <strides=[2,2], pads={}> (x, w) }}"
    uneven = run(text.format("[0,0,1,1]"), runtime="torch-eager", w=(4, 3, 3, 3)).operators
    even = run(text.format("[1,1,1,1]"), runtime="torch-eager", w=(4, 3, 3, 3)).operators
    assert [o.type for o in uneven] == ["Pad", "Conv"] and [o.type for o in even] == ["Conv"]
    assert uneven[0].out.shape == uneven[1].present[0].shape == (2, 3, 9, 9)
    assert uneven[1].attrs["pads"] == (0, 0, 0, 0) and uneven[1].out.shape == even[0].out.shape


@pytest.mark.parametrize(
    ("result", "kernels"), [("addcmul", ["torch::addcmul"]), ("addcmul_7", ["torch::addcmul"]), ("sum", ["Mul", "Add"])]
)
def test_addcmul_is_one_kernel_where_the_exporter_names_it(run: Any, result: str, kernels: list[str]) -> None:
    """b + w x, as torch.addcmul and written out."""
    text = f"(float[2,3] x) => (float[2,3] {result}) {{m=Mul(w,x) {result}=Add(b,m)}}"
    graph = run(text, runtime="torch-eager", w=(3,), b=(3,))
    assert [o.type for o in graph.operators] == kernels


@pytest.mark.parametrize(
    ("mode", "layout", "threads"),
    [("linear", "nchw", 64), ("linear", "nhwc", 0), ("cubic", "nhwc", 64), ("nearest", "nchw", 0)],
)
def test_interpolation_has_a_thread_for_each_position(mode: str, layout: str, threads: int) -> None:
    """Which walks over all images and channels; not where channels lie last, nor nearest neighbours."""
    roi, x = Tensor("roi", "float32", (0,), "constant"), Tensor("x", "float32", (2, 16, 4, 4))
    resize = Operator("r", "Resize", (x, roi), (Tensor("y", "float32", (2, 16, 8, 8)),), {"mode": mode})
    placed = place(Graph("g", (resize,), (x,), resize.outputs), last=layout == "nhwc")
    size = work_of(placed.operators[-1]).size
    assert (size.elements, size.threads) == (2048, threads)


def test_attention_with_keys_that_several_heads_share_is_one_call(run: Any, types: Any) -> None:
    """The exporter merges the view after repeating the keys with the one before their axes are swapped."""
    graph = run(
        """(float[2,4,8,16] q, float[2,2,8,16] k, float[2,4,8,16] v) => (float[2,4,8,16] y)
    <int64[1] two={2}, int64[5] five={2,2,2,8,16}, int64[3] three={8,8,16}, int64[4] four={2,4,16,8}>
    { u=Unsqueeze(k,two) e=Expand(u,five) f=Reshape(e,three) t=Transpose<perm=[0,2,1]>(f) g=Reshape(t,four)
      a=Mul(q,s) b=Mul(g,s) m=MatMul(a,b) p=Softmax(m) y=MatMul(p,v) }""",
        runtime="torch-eager",
        s=0.5,
    )
    assert types(graph)["Attention"] == 1 and not {"Softmax", "MatMul", "Mul"} & set(types(graph))


SPLIT_QKV = """(float[3,2,4] x) => (float[2,4] y) <int64[1] o={0}, int64[1] e={1}, int64[1] z={2}, int64[1] t={3}>
    { a=Slice(h,o,e,o) b=Slice(h,e,z,o) c=Slice(h,z,t,o) p=Squeeze(a,o) q=Squeeze(b,o) r=Squeeze(c,o)
      s=Add(p,q) y=Mul(s,r) h=Relu(x) }"""


@pytest.mark.parametrize(("shape", "elements"), [((4, 196, 768), 1), ((4, 196, 64), 8), ((4, 196, 128), 4)])
def test_a_sum_of_tensors_in_other_orders_reads_one_across(run: Any, shape: tuple[int, ...], elements: int) -> None:
    """A block of 512 neighbours in the result takes so many of a sector of the other operand."""
    n, rows, columns = shape
    text = f"""(float[{n},{rows},{columns}] x, float[{n},{columns},{rows}] z) => (float[{n},{rows},{columns}] y)
               {{ t=Transpose<perm=[0,2,1]>(z) s=Add(x,t) y=Add(s,x) }}"""
    first, second = (o for o in run(text, runtime="torch-eager").operators if o.type == "Add")
    assert (first.attrs["across"], first.attrs["run"]) == (4 * n * rows * columns, elements)
    assert "across" not in second.attrs, "the sum lies as its first operand does"


def test_a_sum_across_takes_longer(make: Any) -> None:
    """Five picoseconds an element more on an H200: of 32 x 196 x 768 halves, a mixer's takes 31.4 us, 6.9 in order."""
    text = "(float16[32,196,768] x, float16[32,{0}] z) => (float16[32,196,768] y) {{ t={1}(z) y=Add(x,t) }}"
    across, straight = (
        onnxperf.predict(make(text.format(*way), {}), gpu="h200", runtime="torch-eager").kernels[0].seconds
        for way in (("768,196", "Transpose<perm=[0,2,1]>"), ("196,768", "Identity"))
    )
    assert across > 3 * straight and across == pytest.approx(31.4e-6, rel=0.25)


def test_unbind_is_one_call(run: Any) -> None:
    """Which exporters write as slices of one element each."""
    text = SPLIT_QKV.replace("{ a=", "{ h=Relu(x) a=").replace(" h=Relu(x) }", " }")
    graph = run(text, runtime="torch-eager")
    assert [o.type for o in graph.operators if o.place != "free"] == ["Relu", "Add", "Mul"]
    assert [(len(o.outputs), o.attrs["axis"]) for o in graph.operators if o.type == "Split"] == [(3, 0)]
    other = run(text.replace("int64[1] t={3}", "int64[1] t={2}").replace("h,z,t", "h,e,z"), runtime="torch-eager")
    assert not [o for o in other.operators if o.type == "Split"], "the last element is left out"


def test_roll_is_one_call(run: Any, types: Any) -> None:
    """Which exporters write as two parts that change places; other parts are joined as they are."""
    text = """(float[2,8,4] x) => (float[2,8,4] y) <int64[1] o={0}, int64[1] k={3}, int64[1] n={8}, int64[1] a={1}>
    { h=Relu(x) p=Slice(h,o,k,a) q=Slice(h,k,n,a) y=Concat<axis=1>(P) }"""
    assert types(run(text.replace("P", "q,p"), runtime="torch-eager")) == {"Relu": 1, "roll": 1}
    assert types(run(text.replace("P", "p,q"), runtime="torch-eager")) == {"Relu": 1, "Concat": 1}


@pytest.mark.parametrize(
    ("release", "mask", "kernels"),
    [
        ("2.0", False, ["Attention"]), ("2.0", True, ["Attention"]),
        ("1.13", False, ["MatMul", "Mul", "Softmax", "MatMul"]),
        ("1.12", True, ["Mul", "MatMul", "Add", "Softmax", "MatMul"]),
    ],
)  # fmt: skip
def test_attention_is_written_out_before_release_2(release: str, mask: bool, kernels: list[str]) -> None:
    """Scores are scaled, or queries where something is added to scores."""
    text = """(float[2,4,8,16] q, float[2,4,8,16] k, float[2,4,8,16] v, float[1,4,8,8] w) => (float[2,4,8,16] y)
    { t=Transpose<perm=[0,1,3,2]>(k) a=Mul(q,s) b=Mul(t,s) m=MatMul(a,b) n=Add(m,w) p=Softmax(P) y=MatMul(p,v) }"""
    model = build(text.replace("P", "n" if mask else "m").replace("n=Add(m,w) ", "n=Add(m,w) " * mask), {"s": 0.5})
    graph = run_graph(load(model), of_version(RUNTIMES["torch-eager"], release))
    operators = [o for o in graph.operators if o.place != "free"]
    assert [o.type for o in operators] == kernels
    assert operators[-1].out.shape == (2, 4, 8, 16)


@pytest.mark.parametrize("kind", ["AveragePool", "MaxPool"])
def test_gradients_of_pooling_lie_as_their_images(kind: str) -> None:
    """Channels last: of both convolutions only the last needs copies, of a gradient of ones for each of its own."""
    text = f"""(float[2,16,8,8] x) => (float[2,16,4,4] y)
    {{ c=Conv(x,w) d={kind}<kernel_shape=[2,2], strides=[2,2]>(c) y=Conv(d,w) }}"""
    model = build(text, {"w": (16, 16, 1, 1)})
    terms = {"gpu": "rtx-3090", "runtime": "torch-eager", "layout": "nhwc", "mode": "training", "optimizer": "none"}
    p = onnxperf.predict(model, **terms)
    types = Counter(k.op for k in p.kernels)
    assert types["torch::convolution_weight_gradient"] == 2 == types["Contiguous"]
    sizes = [k.work.size for k in p.kernels if k.op == "torch::convolution_weight_gradient"]
    assert all(size.last and size.direction == "weights" for size in sizes)


@pytest.mark.parametrize("sample", ["mobilenetv2", "resnet50", "vit-base-16", "distilbert-dynamic"])
def test_the_names_of_weights_change_no_answer(sample: str) -> None:
    """Of files by torch.onnx.export(dynamo=True), under every runtime."""
    model = onnx.load(SAMPLES / f"{sample}.onnx", load_external_data=False)
    renamed = onnx.ModelProto.FromString(model.SerializeToString())
    names = {t.name: f"w{i}" for i, t in enumerate(renamed.graph.initializer)}
    for t in renamed.graph.initializer:
        t.name = names[t.name]
    for node in renamed.graph.node:
        node.input[:] = [names.get(x, x) for x in node.input]
    for info in (*renamed.graph.input, *renamed.graph.value_info):
        info.name = names.get(info.name, info.name)
    dims = {"batch": 2, "sequence": 32} if "dynamic" in sample else None
    for runtime in ("ort-cuda", "torch-eager", "tensorrt"):
        before, after = (onnxperf.predict(m, gpu="l4", runtime=runtime, dims=dims) for m in (model, renamed))
        assert (after.seconds, len(after.kernels)) == (before.seconds, len(before.kernels)), runtime


def test_short_runs_of_transformers_wait_for_python_as_long_as_measured() -> None:
    """At batch 1 on a T4, whose kernels take a tenth to four fifths of these times."""
    named = {"MiniLM-L6-H384-uncased-sst2": "minilm-l6-h384", "bert-base-cased-ner-conll2003": "bert-base-cased"}
    columns = ("model", "runtime", "gpu", "dtype", "batch", "seq", "latency_ms")
    ratios = []
    for r in read(SAMPLE / "ort_cuda" / "published.csv", columns):
        if (r["runtime"], r["gpu"], r["batch"]) == ("PyTorch eager", "T4", "1.0"):
            model = SAMPLES / f"{named[r['model'].rpartition('/')[2]]}.onnx"
            dims = {"batch": 1, "sequence": int(r["seq"])}
            p = onnxperf.predict(model, gpu="t4", runtime="torch-eager", precision=r["dtype"], dims=dims)
            ratios.append(p.seconds * 1e3 / float(r["latency_ms"]))
            if r["dtype"] == "fp16":
                assert p.bound_by["launch"] > 0.7
    assert len(ratios) == 6 and all(0.75 < ratio < 1.3 for ratio in ratios)
    assert sum(abs(ratio - 1) for ratio in ratios) / 6 < 0.2


def test_python_calls_a_view_as_it_calls_a_kernel() -> None:
    calls = "(float[2,3] x) => (float[3,2] y) {a=Relu(x) y=Transpose(a)}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {calls}')
    p = onnxperf.predict(model, gpu="a100", runtime="torch-eager", host="server-2018")
    assert p.seconds > 2 * 24e-6 + 4e-6 and len(p.kernels) == 1


def test_autograd_calls_without_python() -> None:
    costs = RUNTIMES["torch-eager"].host.scaled(0.5)
    assert costs.of("forward") is costs and costs.node_s == costs.walk_s == 12e-6
    assert costs.of("backward").node_s == costs.of("update").walk_s == 2e-6
    ort = RUNTIMES["ort-cuda"].host
    assert ort.of("backward") is ort
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2,3] x) => (float[2,4] y)'
        " <float[3,4] w = {1,1,1,1,1,1,1,1,1,1,1,1}> {m=MatMul(x,w) y=Relu(m)}"
    )
    p = onnxperf.predict(model, gpu="a100", runtime="torch-eager", host="server-2018", mode="training")
    paces = {phase: [] for phase in ("forward", "backward")}
    starts = p.run.one_timeline.launch_s[:, 0]
    for row, start, after in zip(p.run.kernels.rows, starts, starts[1:], strict=False):
        paces.get(row.phase, []).append((after - start) / (1 + len(row.skipped)))
    assert min(paces["forward"]) > 20e-6 > 15e-6 > max(paces["backward"][1:])


def test_casts_of_autocast_are_no_calls_from_python() -> None:
    """At batch 1, where the host sets the pace: autocast costs it a launch for each cast."""
    fp32, amp = (
        onnxperf.predict(SAMPLES / "bert-base.onnx", gpu="h100", runtime="torch-eager", precision=p, host="server-2018")
        for p in ("fp32", "amp")
    )
    casts = len(amp.kernels) - len(fp32.kernels)
    assert casts > 150 and amp.seconds - fp32.seconds < 5e-6 * casts


def test_pytorch_has_kernels_of_its_own_for_the_depthwise_layers_that_show_them() -> None:
    """By the kernels of eager networks on an H200; those whose channels lie last all go to cuDNN."""
    layers = Counter[tuple[str, bool]]()
    for r in read(SAMPLE / "h200" / "kernels.csv.gz", ("op", "shapes", "types", "arguments", "layout")):
        name = r["op"].removeprefix("aten::")
        if name not in ("_conv_depthwise2d", "cudnn_convolution") or r["layout"] != "nchw":
            continue
        (x, w, *_), arguments = json.loads(r["shapes"]), json.loads(r["arguments"])
        dtype = {"float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16"}[
            r["types"].strip("[]").split(",")[0]
        ]
        if len(x) != 4 or w[1] != 1 or x[1] < 2 or w[2] == 7:  # ConvNeXt's images lie with channels last
            continue
        strides = json.loads(arguments[4] if name == "_conv_depthwise2d" else arguments[3])
        o = Operator("c", "Conv", (), (), {"group": x[1], "strides": strides})
        answer = native(o, Tensor("x", dtype, tuple(x)), Tensor("w", dtype, tuple(w)))
        layers[name, answer] += 1
    assert layers["_conv_depthwise2d", True] > 150 and layers["cudnn_convolution", False] > 40
    assert not layers["_conv_depthwise2d", False] and not layers["cudnn_convolution", True]

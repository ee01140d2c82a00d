"""Autocast: its lists against PyTorch's own, and what a graph becomes under them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

import onnxperf
from onnxperf.graph import Graph, load
from onnxperf.ground.errors import UsageError
from onnxperf.ground.names import AMP
from onnxperf.passes.autocast import GIVE_SINGLE, JOIN, TO_HALF, TO_SINGLE, autocast
from onnxperf.runtimes import LEVELS, RUNTIMES, run_graph
from op_models import Operator, Tensor

SAMPLES = Path(__file__).parents[2] / "samples"
#: What PyTorch calls the operators of ONNX whose names are not alike.
ATEN = {
    "Attention": "scaled_dot_product_attention", "Conv": "conv2d", "ConvTranspose": "conv_transpose2d", "Gemm": "addmm",
    "GRU": "gru_cell", "LSTM": "lstm_cell", "RNN": "rnn_tanh_cell", "GroupNormalization": "group_norm",
    "LayerNormalization": "layer_norm", "NegativeLogLikelihoodLoss": "nll_loss", "RMSNormalization": "rms_norm",
    "ReduceL1": "linalg_vector_norm", "ReduceL2": "linalg_vector_norm", "ReduceLogSumExp": "logsumexp",
    "ReduceProd": "prod", "ReduceSum": "sum", "Resize": "upsample_bilinear2d", "Upsample": "upsample_nearest2d",
    "GridSample": "grid_sampler", "SoftmaxCrossEntropyLoss": "nll_loss", "LogSoftmax": "log_softmax",
}  # fmt: skip


@pytest.fixture(scope="module")
def lists() -> Mapping[str, set[str]]:
    """PyTorch's lists by name, from the header that it is installed with."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        pytest.skip("PyTorch is not installed")
    text = (Path(torch.origin).parent / "include/ATen/autocast_mode.h").read_text(encoding="utf-8")
    found = re.findall(r"#define AT_FORALL_(\w+)\(_\)((?:.*\\\n)*.*)", text)
    return {name: set(re.findall(r"\b_\((\w+)", body)) for name, body in found}


def aten(type: str) -> str:
    return ATEN.get(type, type.lower())


def test_products_are_those_of_the_list(lists: Mapping[str, set[str]]) -> None:
    assert {aten(t) for t in TO_HALF} <= lists["LOWER_PRECISION_FP"]


def test_what_runs_in_float32_is_on_one_of_two_lists(lists: Mapping[str, set[str]]) -> None:
    alone, sums = lists["FP32"], lists["FP32_SET_OPT_DTYPE"]
    assert {aten(t) for t in TO_SINGLE} <= alone | sums
    assert {aten(t) for t in GIVE_SINGLE} <= sums


def test_what_is_on_no_list_runs_in_the_type_it_gets(lists: Mapping[str, set[str]]) -> None:
    every = set().union(*lists.values())
    assert not {"batch_norm", "mean", "max_pool2d", "relu", "silu", "gelu", "mul", "add", "cat", "sigmoid"} & every
    assert {aten(t) for t in JOIN} & every == {"grid_sampler", "sum"}, "ONNX's Sum is a chain of additions"


Amp = Callable[..., Graph]


@pytest.fixture
def amp(run: Callable[..., Graph]) -> Amp:
    """A small model under eager PyTorch's rules, then autocast."""
    return lambda text, **weights: autocast(run(text, runtime="torch-eager", **weights))


def steps(graph: Graph) -> list[str]:
    """Operators with the types of what they read and write: Add hs>s; views left out."""
    short = {"float16": "h", "float32": "s", "float64": "d"}

    def letters(tensors: tuple[Tensor, ...]) -> str:
        return "".join(short.get(t.dtype, "i") for t in tensors)

    shown = [o for o in graph.operators if o.place != "free"]
    return [f"{o.type.rpartition('::')[2]} {letters(o.present)}>{letters(o.outputs)}" for o in shown]


def test_a_layer_casts_its_input_and_its_weights(amp: Amp) -> None:
    text = "(float[2,3,4] x) => (float[2,3,5] y) {h=MatMul(x,w) y=Add(h,b)}"
    assert steps(amp(text, w=(4, 5), b=(5,))) == ["Cast s>h", "Cast s>h", "Cast s>h", "Gemm hhh>h"]


def test_a_weight_is_cast_once_in_a_run_and_an_activation_by_every_reader(amp: Amp) -> None:
    found = steps(amp("(float[3,4] x) => (float[3,4] y) {a=MatMul(x,w) s=Sqrt(x) b=MatMul(s,w) c=MatMul(s,v) "
                      "d=Add(a,b) y=Add(d,c)}", w=(4, 4), v=(4, 4)))  # fmt: skip
    assert Counter(found)["Cast s>h"] == 2 + 3, "two weights; x, and what Sqrt makes twice"


def test_norms_and_softmax_run_in_float32(amp: Amp) -> None:
    text = "(float[3,4] x) => (float[3,4] y) {a=MatMul(x,w) n=LayerNormalization(a,g,b) y=Softmax(n)}"
    assert steps(amp(text, w=(4, 4), g=(4,), b=(4,)))[3:] == ["Cast h>s", "LayerNormalization sss>s", "Softmax s>s"]
    text = "(float[3,4] x) => (float[3,4] y) {a=MatMul(x,w) y=Softmax(a)}"
    assert steps(amp(text, w=(4, 4)))[3:] == ["Softmax h>s"], "one kernel reads float16 and writes float32"


def test_batch_norm_and_pooling_run_in_the_type_they_get(amp: Amp) -> None:
    text = """(float[2,3,8,8] x) => (float[2,4,1,1] y)
    { c=Conv(x,w) n=BatchNormalization(c,g,b,m,v) r=Relu(n) y=GlobalAveragePool(r) }"""
    found = steps(amp(text, w=(4, 3, 3, 3), g=(4,), b=(4,), m=(4,), v=(4,)))
    assert found[2:] == ["Conv hh>h", "BatchNormalization hssss>h", "Relu h>h", "GlobalAveragePool h>h"]


def test_the_wider_type_wins_but_numbers_do_not_count(amp: Amp) -> None:
    """A layer scale in float32 gives float32, and so does the sum with it; half a float16 is a float16."""
    text = "(float[3,4] x) => (float[3,4] y) {a=MatMul(x,w) h=Mul(a,half) s=Mul(h,g) y=Add(h,s)}"
    assert steps(amp(text, w=(4, 4), g=(4,), half=0.5))[3:] == ["Mul hs>h", "Mul hs>s", "Add hs>s"]


def test_addcmul_gives_the_widest_type(amp: Amp) -> None:
    text = "(float[3,4] x) => (float[3,4] addcmul) {a=MatMul(x,w) m=Mul(g,a) addcmul=Add(b,m)}"
    assert steps(amp(text, w=(4, 4), g=(4,), b=(4,)))[-1] == "addcmul ssh>s"


def test_what_the_model_casts_itself_stays(amp: Amp) -> None:
    text = "(float[3,4] x) => (double[3,4] y) {a=MatMul(x,w) y=Cast<to=11>(a)}"
    graph = amp(text, w=(4, 4))
    assert steps(graph)[3:] == ["Cast h>d"]
    assert [t.dtype for t in graph.outputs] == ["float64"]


def test_outputs_have_the_type_that_is_computed(amp: Amp) -> None:
    graph = amp("(float[3,4] x) => (float[3,4] y) {y=MatMul(x,w)}", w=(4, 4))
    assert [t.dtype for t in (*graph.inputs, *graph.outputs)] == ["float32", "float16"]


def test_what_a_library_runs_otherwise_is_marked(amp: Amp) -> None:
    """The attribute `autocast` takes the place of the lists, as around timm's fast norms."""
    x, y = Tensor("x", "float32", (3, 4), "input"), Tensor("y", "float32", (3, 4))
    g = Tensor("g", "float32", (4,), "weight")
    norm = Operator("n", "LayerNormalization", (x, g, g), (y,), {"autocast": "float16"}, 20, ("n",))
    assert steps(autocast(Graph("g", (norm,), (x,), (y,)))) == ["Cast s>h", "Cast s>h", "LayerNormalization hhh>h"]


def test_only_pytorch_has_autocast() -> None:
    model = SAMPLES / "mobilenetv2.onnx"
    for runtime in ("ort-cuda", "tensorrt", "ort-cpu"):
        with pytest.raises(UsageError, match=f"{runtime} has no autocast: amp is PyTorch's; give runtime"):
            onnxperf.predict(model, gpu="t4", runtime=runtime, precision="amp")


def test_half_precision_throughout_casts_less_than_autocast() -> None:
    """The same products; autocast adds a cast for each weight, and for each norm and its reader."""
    model = SAMPLES / "convnext-t.onnx"
    amp, half = (onnxperf.predict(model, gpu="a100", runtime="torch-eager", precision=p) for p in ("amp", "fp16"))
    assert amp.work["matrix_flops"] == half.work["matrix_flops"]
    pipes = [[k.work.pipe for k in p.kernels if k.work.matrix_flops] for p in (amp, half)]
    assert pipes[0] == pipes[1] and set(pipes[0]) == {"tensor_fp16"}
    assert "Cast" not in {k.op for k in half.kernels}
    assert "in FP16 autocast" in amp.scope
    assert amp.to_dict()["precision"] == AMP


def test_every_operator_runs_in_one_list() -> None:
    assert not TO_HALF & TO_SINGLE and not (TO_HALF | TO_SINGLE) & (GIVE_SINGLE | JOIN)


def test_a_run_graph_is_cast_before_views_are_placed() -> None:
    found = run_graph(load(SAMPLES / "swin-t.onnx"), RUNTIMES["torch-eager"], LEVELS["all"], amp=True)
    assert {t.dtype for o in found.operators if o.type in ("Gemm", "MatMul", "Conv") for t in o.present} == {"float16"}

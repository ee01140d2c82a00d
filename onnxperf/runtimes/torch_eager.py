"""Eager PyTorch on CUDA: no fusion; views cost nothing until an operator needs contiguous memory.

The rules recover the calls that exporters write as several nodes (gelu, attention, a linear layer) or fold away (a
batch norm), so they apply at every optimisation level: the answer is that of the module, whichever exporter and opset
wrote the graph. A gelu by tanh that the model itself writes out (`gelu_new` of transformers) stays in its eight
operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from onnxperf.fusions import torch_calls
from onnxperf.fusions.common import NO_KERNELS, has_narrow_products
from onnxperf.fusions.torch_strides import (
    ACROSS,
    RUN,
    SECTOR,
    Strides,
    adds_columns,
    channels_last,
    contiguous,
    dense,
    in_order_of,
    lies,
    multipliable,
    of_view,
    run,
    suggests_last,
    value,
    view,
)  # fmt: skip
from onnxperf.graph import CONTROL, Graph
from onnxperf.ground.releases import MOST, Release, release
from onnxperf.lowering.releases import Releases
from onnxperf.lowering.runtime import HostCosts, Policy, Runtime, StartCosts
from onnxperf.passes.autocast import autocast
from onnxperf.passes.exchanges import SHARED
from onnxperf.passes.tape import PHASE, WITHIN, phase_of
from op_models import IN_PLACE, Operator, Tensor
from op_models.pointwise import FLOPS

if TYPE_CHECKING:
    from onnxperf.passes.training import Autograd

#: Operators that need contiguous input and write contiguous output; group_norm on CUDA too, whatever the memory format.
ROWS = frozenset({
    "DepthToSpace", "GRU", "GroupNormalization", "InstanceNormalization", "LSTM", "LayerNormalization", "LogSoftmax",
    "RMSNormalization", "RNN", "Softmax", "SpaceToDepth", torch_calls.ROLL,
})  # fmt: skip
#: The gradient of a convolution's weights.
WEIGHT_GRADIENT = "torch::convolution_weight_gradient"
#: Those whose kernels depend on whether channels lie last.
BATCH_NORMS = frozenset({"BatchNormalization", "torch::batch_norm_training", "torch::batch_norm_backward"})
#: Operators whose output has the memory format of their input, channels_last or contiguous.
IMAGES = frozenset({
    "AveragePool", "Concat", "GlobalAveragePool", "GlobalMaxPool", "LpPool", "MaxPool", "Pad", "Resize", "Upsample",
    "com.microsoft::AveragePoolGrad", "com.microsoft::MaxPoolGrad", "torch::upsample_backward",
})  # fmt: skip


def place(graph: Graph, last: bool = False) -> Graph:
    """Views are free and keep their strides; an operator that needs contiguous memory gets a copy before it.

    A Reshape copies where no view has the new shape. A product merges its leading axes, which takes a copy where they
    are permuted and the batch size is above one; matrices with one unit stride need none. A convolution runs in
    channels_last where its image or weights are, and adds its bias in a separate kernel; if `last`, inputs with four
    axes and all weights are channels_last. Elementwise operators read strided memory and keep the order of its axes.
    Shapes are Python integers and cost nothing.
    """
    images = {t.name: channels_last(t.shape) for t in graph.inputs if last and t.rank == 4}
    placing = _Placing(last, images)
    for o in graph.operators:
        placing.add(o)
    return replace(graph, operators=tuple(placing.placed))


@dataclass(slots=True)
class _Placing:
    """The operators placed so far, and the strides of tensors that are not contiguous."""

    last: bool
    strides: dict[str, Strides]
    placed: list[Operator] = field(default_factory=list)

    def of(self, t: Tensor) -> Strides:
        """The strides of a tensor."""
        usual = channels_last if self.last and torch_calls.is_parameter(t) and t.rank == 4 else contiguous
        return self.strides.get(t.name) or usual(t.shape)

    def copied(self, t: Tensor, o: Operator, strides: Strides | None = None) -> Tensor:
        """A copy of what `o` reads, contiguous or with these strides."""
        copy = replace(t, name=f"{t.name}#contiguous#{o.name}", kind="activation")
        self.strides[copy.name] = strides = strides or contiguous(t.shape)
        name, together = f"{o.name}#contiguous#{t.name}", {RUN: run(t.shape, self.of(t), strides), PHASE: phase_of(o)}
        self.placed.append(Operator(name, "Contiguous", (t,), (copy,), together, 0, o.nodes, "copy", o.repeat))
        return copy

    def lying(self, t: Tensor, o: Operator, strides: Strides) -> Tensor:
        """What `o` reads with these strides, or a copy that has them."""
        return t if lies(t.shape, self.of(t), strides) else self.copied(t, o, strides)

    def add(self, o: Operator) -> None:
        """Place an operator, and what it needs before it."""
        x = next(iter(o.present), None)
        if o.type in CONTROL:
            o = replace(o, place="host")
        elif x is None or all(t.value is not None for t in o.outputs):
            o = o if x is None else replace(o, place="free")
        elif o.type in ("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
            if (viewed := view(x.shape, self.of(x), o.out.shape)) is not None:
                self.strides[o.out.name] = viewed
            inputs = o.inputs if viewed is not None else (self.copied(x, o), *o.inputs[1:])
            o = replace(o, inputs=inputs, place="free")
        elif o.type == "Slice" and any(step < 0 for step in value(o, 4)):
            pass  # torch can only copy what it walks backwards
        elif o.type in ("Transpose", "Slice", "Split", "Expand", "Identity", "Dropout", SHARED):
            for t in o.outputs:
                self.strides[t.name] = of_view(o, x, self.of(x), t)
            o = replace(o, place="free")
        elif o.type in ("MatMul", "Gemm"):
            return self.product(o)
        elif o.type in ("Conv", "ConvTranspose"):
            return self.convolution(o, x)
        elif o.type == WEIGHT_GRADIENT:
            o = self.weight_gradient(o)
        elif o.type in ROWS:
            o = replace(o, inputs=(self.lying(x, o, contiguous(x.shape)), *o.inputs[1:]))
        elif o.type in IMAGES:
            operands = o.present if o.type == "Concat" else (x,)
            last = o.out.rank == 4 and all(suggests_last(t.shape, self.of(t)) for t in operands)
            if last:
                self.strides[o.out.name] = channels_last(o.out.shape)
            if _by_position(o, last):
                o = replace(o, attrs={**o.attrs, "threads": prod(o.out.shape[2:])})
        elif o.type.startswith("Reduce"):
            o = replace(o, attrs={**o.attrs, RUN: 1}) if adds_columns(o, self.of(x)) else o
        elif o.type == "Attention":
            self.strides[o.out.name] = dense(x.shape, self.of(x)) if x.shape == o.out.shape else contiguous(o.out.shape)
            o = replace(o, attrs={**o.attrs, torch_calls.ALONE: 1})
        elif like := next((t for t in o.present if t.shape == o.out.shape), None):
            self.strides[o.out.name] = dense(like.shape, self.of(like))
            if o.type in FLOPS:
                o = self.across(o)
            if o.type in BATCH_NORMS and suggests_last(x.shape, self.of(x)):
                o = replace(o, attrs={**o.attrs, "memory_format": "channels_last"})
            if o.type == "BatchNormalization" and x.dtype in NARROW and o.present[-1].dtype == x.dtype:
                o = self.normed(o)
        self.placed.append(o)

    def normed(self, o: Operator) -> Operator:
        """A batch norm in inference whose statistics have 16 bits as well, which cuDNN does not take: PyTorch's own,
        before which a kernel inverts the deviations (aten/src/ATen/native/cuda/Normalization.cu).
        """
        variance = o.present[-1]
        root = replace(variance, name=f"{o.name}#deviation", dtype="float32", kind="activation", value=None)
        self.placed.append(
            replace(o, name=root.name, type="Reciprocal", version=0, inputs=(variance,), outputs=(root,), attrs={})
        )
        return replace(o, inputs=(*o.inputs[:4], root))

    def across(self, o: Operator) -> Operator:
        """An elementwise operator, and how many bytes of operands lie in another order of axes than its result."""
        wanted = self.of(o.out)
        runs = {t: run(t.shape, self.of(t), wanted) for t in o.present if t.shape == o.out.shape}
        turned = [t for t, n in runs.items() if n < SECTOR and not in_order_of(t.shape, self.of(t), wanted)]
        if not turned:
            return o
        return replace(o, attrs={**o.attrs, ACROSS: sum(t.bytes for t in turned), RUN: min(runs.values())})

    def product(self, o: Operator) -> None:
        """A product; a linear layer's bias is added by a separate kernel where the input is not contiguous."""
        x, bias = o.inputs[0], o.inputs[2] if len(o.inputs) > 2 else None
        strided = x is not None and x.rank > 2 and not lies(x.shape, self.of(x), contiguous(x.shape))
        read = (t if t is None or multipliable(t, self.of(t)) else self.copied(t, o) for t in o.inputs)
        o = replace(o, inputs=tuple(read))
        if bias is not None and strided:
            o = self.apart(replace(o, inputs=o.inputs[:2]), bias)
        self.placed.append(o)

    def apart(self, o: Operator, bias: Tensor) -> Operator:
        """Place an operator without its bias, and return the in-place addition of the bias."""
        before = replace(o.out, name=f"{o.out.name}#sum")
        self.placed.append(replace(o, outputs=(before,)))
        return replace(
            o, name=f"{o.name}#bias", type="Add", version=0, inputs=(before, bias), attrs={WITHIN: 1, IN_PLACE: 1}
        )

    def convolution(self, o: Operator, x: Tensor) -> None:
        """A convolution: channels_last if it is 2-D and its image or its weights are."""
        w, bias = (*o.inputs, None, None)[1:3]
        if w is None or x.rank != 4:
            self.placed.append(replace(o, inputs=(self.lying(x, o, contiguous(x.shape)), *o.inputs[1:])))
            return
        last_w = suggests_last(w.shape, self.of(w))
        last = last_w or suggests_last(x.shape, self.of(x))
        read = self.lying(x, o, channels_last(x.shape) if last else contiguous(x.shape))
        if last and not last_w:
            w = self.copied(w, o, channels_last(w.shape))
        o = replace(o, inputs=(read, w, *o.inputs[2:]))
        if last:
            o = replace(o, attrs={**o.attrs, "memory_format": "channels_last"})
            self.strides[o.out.name] = channels_last(o.out.shape)
        elif native(o, o.out if o.type == "ConvTranspose" else x, w):
            o = replace(o, attrs={**o.attrs, "native": 1})
        if bias is not None:
            o = self.apart(replace(o, inputs=o.inputs[:2]), bias)
        self.placed.append(o)

    def weight_gradient(self, o: Operator) -> Operator:
        """The gradient of a convolution's weights, in the order of axes of its images."""
        last = o.out.rank == 4 and any(suggests_last(t.shape, self.of(t)) for t in o.present)
        order = channels_last if last else contiguous
        read = tuple(self.lying(t, o, order(t.shape)) for t in o.present)
        attrs = dict(o.attrs)
        if last:
            self.strides[o.out.name] = channels_last(o.out.shape)
            attrs["memory_format"] = "channels_last"
        elif o.out.rank == 4 and native(o, o.present[1], o.out):
            attrs["native"] = 1
        return replace(o, inputs=read, attrs=attrs)


def native(o: Operator, x: Tensor, w: Tensor) -> bool:
    """Whether PyTorch takes its own kernels for a depthwise convolution in NCHW, or for a gradient of one: for other
    types than float16, and there for what cuDNN was found slower at (aten/src/ATen/native/Convolution.cpp,
    use_cudnn_depthwise, check_cudnn_depthwise_workload_with_filter). x: the image; w: the filters, or their gradient.
    """
    channels, group = x.shape[1], o.attrs.get("group", 1)
    if group < 2 or group != channels or w.shape[0] % channels or w.shape[1] != 1:
        return False
    sides, strides = w.shape[2:], tuple(o.attrs.get("strides") or (1, 1))
    holes = any(d > 1 for d in o.attrs.get("dilations") or ())
    tried = sides[0] == sides[1] and sides[0] in (1, 3, 5) and x.shape[3] >= 7 and len(set(strides)) == 1
    if x.dtype != "float16" or channels < 32 or holes or not tried:
        return True
    return strides[0] != 1 and not (strides[0] == 2 and _quick_with_strides(x, sides[0]))


def _quick_with_strides(x: Tensor, side: int) -> bool:
    """Whether cuDNN was found faster with strides of 2 and filters of this side."""
    batch, channels, _, width = x.shape
    if batch == 1:
        return side > 1 or width <= 28
    if side == 1:
        return batch <= 16 and channels >= 128 and width <= 7
    return channels >= 512 or (channels >= 256 and width >= 28)


def _by_position(o: Operator, last: bool) -> bool:
    """Whether a Resize has one thread for each output position, which loops over all images and channels.

    upsample_linear1d, bilinear2d, bicubic2d and trilinear3d do (ATen/native/cuda/UpSample*.cu, torch 2.4). bilinear2d
    has another kernel for channels_last; nearest and antialiased kernels have threads for channels too.
    """
    mode = o.attrs.get("mode", "nearest")
    return (
        o.type in ("Resize", "Upsample")
        and not o.attrs.get("antialias")
        and (mode == "cubic" or (mode == "linear" and not last))
    )


def _autograd() -> Autograd:
    """How it differentiates, which no prediction of inference loads."""
    from onnxperf.passes.torch_training import TORCH

    return TORCH


def _autograd_until_113() -> Autograd:
    """The same until release 1.13."""
    from onnxperf.passes.torch_training import UNTIL_113

    return UNTIL_113


#: Casts from these have no kernel of their own (ATen/native/cuda/Copy.cu, torch 2.11: float16_copy_kernel_cuda and its
#: kind are for casts from float32); before release 2.0 those from float32 had none either.
NARROW = frozenset({"float16", "bfloat16"})
POLICY = Policy(tf32=frozenset({"Conv", "Recurrent"}), arena="segments", switched=NARROW)
#: Operators that PyTorch has no kernels for on a GPU: those of quantised models that ONNX Runtime runs as integers, of
#: classical models, and on strings.
INTEGERS = ("QLinear", "com.microsoft::QLinear", "com.microsoft::QGemm", "ConvInteger", "MatMulInteger")
ON_PROCESSORS = ("ai.onnx.ml::", "String", "RegexFullMatch", "TfIdfVectorizer", "com.microsoft::Tokenizer")


def refused(o: Operator) -> str:
    """Why PyTorch has no operator like one of ONNX's on a GPU and what to do, "" where it has."""
    if o.type.startswith(INTEGERS):
        return "PyTorch has no kernels for products and sums of 8-bit integers on a GPU: give --runtime ort-cuda"
    return "PyTorch has no such operator on a GPU: give --runtime ort-cuda" if o.type.startswith(ON_PROCESSORS) else ""


#: PyTorch loads no ONNX, so that no opset is too new. NEWEST: today's release.
OPSETS, NEWEST = {torch_calls.OLDEST: MOST}, "2.13"
#: Of builds of PyTorch: 2.7 is the first for Blackwell (pytorch.org, release notes; the builds in RELEASE.md);
#: 2.0 for Hopper is assumed, as the first with CUDA 11.8.
CARDS = {torch_calls.OLDEST: ((3, 5), (8, 9)), "2.0": ((3, 5), (9, 0)), "2.7": ((5, 0), (12, 9))}
LAST_BEFORE_2 = release(torch_calls.WRITES_ATTENTION)


def in_release(at: Release) -> Mapping[str, Any]:
    """What is another than today's: defaults of optimisers, and what cuDNN 8.3 turns round."""
    if at > LAST_BEFORE_2:
        return {}
    return {"autograd": _autograd_until_113, "policy": replace(POLICY, turned=True, switched=NARROW | {"float32"})}


def says(at: Release) -> str:
    """What is known of a release, and what is inferred."""
    if at > LAST_BEFORE_2:
        return f"PyTorch {at} is taken to run as 2.4 to 2.9 did"
    return (
        f"PyTorch {at}: attention is written out in products and a softmax, gradients are set to zero and optimisers"
        " take one parameter after the other, by default; kernels of cuDNN 8.3 are inferred from steps under 1.12"
    )


#: A call that Python makes, of a view as of a kernel, with the modules and the code around it, on a server of 2017 to
#: 2019: fitted to runs of three transformers that wait for the host (lab/derive/host.md). ENGINE_S: one of autograd's
#: engine, without Python; assumed.
CALL_S, ENGINE_S = 24e-6, 4e-6

EAGER = Runtime(
    name="torch-eager",
    rules=torch_calls.RULES,
    place=place,
    policy=POLICY,
    host=HostCosts(
        run_s=10e-6, walk_s=CALL_S, node_s=CALL_S, launch_s=4e-6, host_op_s=1e-6, copy_s=8e-6, sync_s=5e-6, gap_s=1e-6,
        replay_s=12e-6, replay_gap_s=0.6e-6, source="assumed", engine_s=ENGINE_S,
    ),
    title="PyTorch eager",
    describe="PyTorch, eager, CUDA, under torch.inference_mode",
    autocast=autocast,
    refused=refused,
    unmeasured=lambda run: NO_KERNELS if has_narrow_products(run) else "",
    autograd=_autograd,
    releases=Releases(OPSETS, NEWEST, in_release, says, cards=CARDS),
    start=StartCosts(
        library_s=(1.0, 8.0), search="cuDNN's heuristics choose, as torch.backends.cudnn.benchmark is off",
        searched_once=True,
    ),
)  # fmt: skip
RUNTIME = replace(EAGER, layouts={"nchw": EAGER, "nhwc": replace(EAGER, place=partial(place, last=True))})

"""ONNX Runtime's CUDA provider: what it fuses, where it places operators, what its host thread costs.

Rules and their levels follow graph_transformer_utils.cc (1.2x-1.31). Convolution and activation stay separate
kernels: ONNX Runtime runs ConvActivationFusion for the CPU provider, not for CUDA.
"""

from __future__ import annotations

from dataclasses import replace

from onnxperf.graph import Graph
from onnxperf.runtimes import patterns
from onnxperf.runtimes.engine import (
    EXTENDED,
    Fused,
    HostCosts,
    Miss,
    Policy,
    Rewriter,
    Runtime,
    fused,
    fusion,
)
from onnxperf.runtimes.patterns import next_op, scalar
from op_models import FLOATS, Operator, Tensor

FREE = frozenset(
    {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Optional", "OptionalGetElement"}
)
#: Inputs that CUDA kernels read from host memory: the target shapes, axes and sizes.
HOST_INPUTS: dict[str, slice] = {
    "Reshape": slice(1, 2), "Expand": slice(1, 2), "Tile": slice(1, 2), "ConstantOfShape": slice(0, 1),
    "Slice": slice(1, 5), "Range": slice(0, 3), "Resize": slice(1, 4), "Upsample": slice(1, 2), "Pad": slice(1, 4),
    "Unsqueeze": slice(1, 2), "Squeeze": slice(1, 2), "Split": slice(1, 2), "TopK": slice(1, 2), "Trilu": slice(1, 2),
    "OneHot": slice(1, 2), "ReduceSum": slice(1, 2), "ReduceMean": slice(1, 2), "ReduceMax": slice(1, 2),
    "ReduceMin": slice(1, 2), "ReduceProd": slice(1, 2), "If": slice(0, 1), "Loop": slice(0, 2),
}  # fmt: skip


def _channel_constant(t: Tensor, channels: int, rank: int) -> bool:
    """A stored number for each channel of an NCHW tensor, or one for all."""
    if not t.stored or t.size not in (1, channels):
        return False
    shape = (1,) * (rank - t.rank) + t.shape
    return t.size == 1 or (len(shape) == rank and shape[1] == channels)


@fusion("Conv + BatchNormalization", anchor="BatchNormalization")
def conv_batch_norm(g: Rewriter, norm: Operator) -> Fused | Miss | None:
    """The scale and shift of inference go into weights and bias."""
    conv = g.made_by(norm.inputs[0], "Conv")
    if conv is None:
        return None
    if g.only_user(conv.out) is None:
        return Miss("the convolution's result is used elsewhere as well", conv.nodes)
    if not all(t.stored for t in (*conv.present[1:], *norm.present[1:])):
        return Miss("weights or statistics are no constants", norm.nodes)
    return _conv(conv, norm, norm.present[2])


@fusion("Conv + Add / Mul", anchor=("Add", "Mul", "Sub", "Div"))
def conv_affine(g: Rewriter, affine: Operator) -> Fused | Miss | None:
    """A constant added to, or multiplied with, every channel goes into weights or bias."""
    if affine.type in ("Sub", "Div"):
        return None  # ONNX Runtime folds Add and Mul only
    for product, constant in (affine.present, affine.present[::-1]):
        conv = g.made_by(product, "Conv")
        if conv is None or not constant.stored:
            continue
        if not _channel_constant(constant, conv.out.shape[1], conv.out.rank):
            return Miss(f"the constant {list(constant.shape)} is not one number a channel", affine.nodes)
        if g.only_user(conv.out) is None:
            return Miss("the convolution's result is used elsewhere as well", conv.nodes)
        return _conv(conv, affine, constant)
    return None


def _conv(conv: Operator, last: Operator, constant: Tensor) -> Fused:
    """The convolution with what follows folded in: it has a bias now, and writes what the last one wrote."""
    bias = conv.inputs[2] if len(conv.inputs) > 2 and conv.inputs[2] is not None else None
    if bias is None:
        bias = replace(constant, name=f"{conv.name}.bias", shape=conv.out.shape[1:2], value=None)
    nodes = (*conv.nodes, *last.nodes)
    merged = replace(conv, inputs=(*conv.inputs[:2], bias), outputs=last.outputs[:1], nodes=nodes)
    return Fused((conv, last), merged)


@fusion("SkipLayerNormalization", anchor="LayerNormalization", level=EXTENDED)
def skip_layer_norm(g: Rewriter, norm: Operator) -> Fused | Miss | None:
    """A residual sum and the LayerNormalization behind it in one kernel."""
    add = g.made_by(norm.inputs[0], "Add")
    if add is None:
        return None
    x, skip = add.present
    if x.shape != skip.shape:
        return Miss(f"summands differ in shape: {list(x.shape)}, {list(skip.shape)}", add.nodes)
    if norm.attrs.get("axis", -1) not in (-1, norm.out.rank - 1):
        return Miss("the normalisation is not over the last axis alone", norm.nodes)
    if g.only_user(add.out) is None:
        return Miss("the sum is used elsewhere as well", add.nodes)
    return fused("com.microsoft::SkipLayerNormalization", norm, (add, norm), (x, skip, *norm.inputs[1:]))


@fusion("BiasGelu", anchor=("com.microsoft::Gelu", "Gelu"), level=EXTENDED)
def bias_gelu(g: Rewriter, gelu: Operator) -> Fused | Miss | None:
    """A bias and the Gelu behind it in one kernel."""
    add = g.made_by(gelu.inputs[0], "Add")
    if add is None or gelu.attrs.get("approximate", "none") != "none":
        return None
    bias = next((t for t in add.present if t.stored and t.shape == add.out.shape[-1:]), None)
    if bias is None:
        return Miss("no summand is a stored bias along the last axis", add.nodes)
    if g.only_user(add.out) is None:
        return Miss("the biased value is used elsewhere as well", add.nodes)
    x = next(t for t in add.present if t.name != bias.name)
    return fused("com.microsoft::BiasGelu", gelu, (add, gelu), (x, bias))


@fusion("MatMul + Transpose", anchor=("MatMul", "com.microsoft::FusedMatMul"), level=EXTENDED)
def matmul_transpose(g: Rewriter, matmul: Operator) -> Fused | Miss | None:
    """A transposition of the last two axes becomes a flag of the product."""
    for side, flag in ((0, "transA"), (1, "transB")):
        transpose = g.made_by(matmul.inputs[side], "Transpose")
        if transpose is None or matmul.attrs.get(flag):
            continue
        rank = transpose.out.rank
        perm = tuple(transpose.attrs.get("perm", range(rank - 1, -1, -1)))
        if rank < 2 or perm != (*range(rank - 2), rank - 1, rank - 2):
            return Miss(f"the transposition {list(perm)} moves more than the last two axes", transpose.nodes)
        if g.only_user(transpose.out) is None:
            return Miss("the transposed value is used elsewhere as well", transpose.nodes)
        inputs = tuple(transpose.inputs[0] if i == side else t for i, t in enumerate(matmul.inputs))
        return fused("com.microsoft::FusedMatMul", matmul, (transpose, matmul), inputs, {**matmul.attrs, flag: 1})
    return None


@fusion("MatMul + scale", anchor=("MatMul", "com.microsoft::FusedMatMul"), level=EXTENDED)
def matmul_scale(g: Rewriter, matmul: Operator) -> Fused | None:
    """A multiplication or division by a constant behind the product becomes its alpha."""
    scale = next_op(g, matmul, "Mul", "Div")
    if scale is None or matmul.out.dtype not in FLOATS:
        return None
    factor = next((scalar(t) for t in scale.present if scalar(t) is not None), None)
    if not factor or (scale.type == "Div" and scalar(scale.inputs[1]) is None) or scale.out.shape != matmul.out.shape:
        return None
    alpha = float(matmul.attrs.get("alpha", 1.0)) * (1 / factor if scale.type == "Div" else factor)
    return fused("com.microsoft::FusedMatMul", scale, (matmul, scale), matmul.inputs, {**matmul.attrs, "alpha": alpha})


def place(graph: Graph) -> Graph:
    """Views are free; shape arithmetic runs on the host as ONNX Runtime prefers it; copies go between the two.

    An operator stays on the host where all it reads is there already (or stored) and it makes a few integers;
    a tensor crosses only once, and shape inputs of CUDA kernels are read on the host without a copy.
    """
    host: set[str] = set()
    placed: list[Operator] = []
    copied: dict[tuple[str, str], Tensor] = {}

    def cross(t: Tensor, o: Operator, way: str) -> Tensor:
        if (t.name, way) not in copied:
            copied[t.name, way] = replace(t, name=f"{t.name}.{way}")
            name = f"{o.name}.{way}.{t.name}"
            placed.append(Operator(name, MEMCPY[way], (t,), (copied[t.name, way],), {}, 0, o.nodes, "copy"))
        return copied[t.name, way]

    for o in graph.operators:
        small = all(t.value is not None and t.dtype not in FLOATS for t in o.outputs)
        moving = [t for t in o.present if not t.stored]
        at_home = bool(moving) and all(t.name in host for t in moving)
        if o.type in ("Shape", "Size") or (small and at_home):
            o = replace(o, place="host")
            host.update(t.name for t in o.outputs)
            if o.type not in ("Shape", "Size"):
                read = [t if t is None or t.stored or t.name in host else cross(t, o, "d2h") for t in o.inputs]
                o = replace(o, inputs=tuple(read))
        else:
            on_host = range(*HOST_INPUTS.get(o.type, slice(0)).indices(len(o.inputs)))
            inputs = list(o.inputs)
            for i, t in enumerate(o.inputs):
                if t is not None and not t.stored and (t.name in host) != (i in on_host):
                    inputs[i] = cross(t, o, "d2h" if i in on_host else "h2d")
            o = replace(o, inputs=tuple(inputs), place="free" if o.type in FREE else "gpu")
        placed.append(o)
    return replace(graph, operators=tuple(placed))


MEMCPY = {"h2d": "MemcpyFromHost", "d2h": "MemcpyToHost"}

CUDA = Runtime(
    name="ort-cuda",
    fusions=(
        patterns.drop_identity,
        patterns.drop_cast,
        conv_batch_norm,
        conv_affine,
        patterns.layer_norm,
        patterns.gelu,
        patterns.matmul_add,
        patterns.fast_gelu,
        skip_layer_norm,
        bias_gelu,
        matmul_transpose,
        matmul_scale,
    ),
    place=place,
    policy=Policy(tf32=frozenset({"Gemm", "Conv"})),
    host=HostCosts(
        run_s=10e-6, node_s=1.5e-6, launch_s=3.5e-6, host_op_s=2e-6, copy_s=8e-6, sync_s=5e-6, gap_s=1e-6,
        replay_s=12e-6, replay_gap_s=0.6e-6, source="assumed: prototype",
    ),
    describe="ONNX Runtime, CUDA provider, inputs and outputs bound on the device",
)  # fmt: skip

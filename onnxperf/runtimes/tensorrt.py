"""TensorRT: an engine built for one card and one shape, which fuses most of the graph into a few kernels.

Rules follow the developer guide (layer fusion, strongly typed networks, Q/DQ processing) and the layers that published
engines list; times of releases 7 to 10 of convolutional networks were compared with them (derive/tensorrt.md). Assumed:

- the builder finds the fastest tactic, which is what `latency` estimates; shapes are static, weights stay on the card;
- a product, its bias, a residual of the output's shape before or behind an activation are one kernel; in float32, in
  depthwise convolutions and in those that read an image no activation but ReLU and Clip is (guide, "Layer Fusion");
- from 8.5 on a Transpose between products of activations is none;
- elementwise operators in a row are one kernel, as are a softmax or normalisation and those before it;
- GEMMs and convolutions of one tap that read the same tensor with equal attributes are one wider product;
- from 8.5 on attention is one kernel in half and 8-bit types with equal heads of up to 256, in float32 never;
- 8-bit networks are in 8 bits or FP16 between kernels: see `fusions.tensorrt_quantised`;
- a Concat or Split costs what `fusions.tensorrt_copies` says;
- from 7.2 on FP16 products are summed in FP16 where that is faster.

Until 7.1, activations of all kinds are part of a product, and a grouped convolution runs one kernel for each group:
published times of ResNeXt and DPN of 2020 grow at batch 1 with the number of groups, by some 10 us each, those of 7.2
do not. An engine built with the FP16 flag has float32 inputs and outputs, which is the default unless their formats are
set (trtexec --inputIOFormats). Assumed of later releases: strongly typed networks, whose inputs and outputs have the
types in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onnxperf.fusions import common, ort_basic, ort_extended
from onnxperf.fusions.common import has_narrow_products, narrow
from onnxperf.fusions.engine import DISABLED, Fused, Miss, Pass, Rewriter, folded, fused, fusion, since
from onnxperf.fusions.pattern import A, B, C, Match, X, Y, alone, call, op, pattern, scale, scaled
from onnxperf.fusions.placement import FREE
from onnxperf.fusions.tensorrt_copies import copied
from onnxperf.fusions.tensorrt_importer import NEWEST, OPSETS, SINCE, refused
from onnxperf.fusions.tensorrt_quantised import between_kernels, in_half, outside, unfused
from onnxperf.graph import CONTROL, Graph
from onnxperf.ground.releases import Release
from onnxperf.ground.rules import work_or_bytes
from onnxperf.lowering.releases import Releases
from onnxperf.lowering.runtime import HostCosts, Policy, Runtime, StartCosts
from op_models import BITS, Operator, Tensor
from op_models.pointwise import FLOPS

CONVOLUTIONS = ("Conv", "com.microsoft::FusedConv")
GEMMS = ("Gemm", "com.microsoft::FusedGemm", "MatMul", "com.microsoft::FusedMatMulActivation")
PRODUCTS = (*CONVOLUTIONS, "ConvTranspose", *GEMMS)
#: What a product of each type becomes together with its activation.
ACTIVATED = {
    "Conv": "com.microsoft::FusedConv", "com.microsoft::FusedConv": "com.microsoft::FusedConv",
    "Gemm": "com.microsoft::FusedGemm", "MatMul": "com.microsoft::FusedMatMulActivation",
    "com.microsoft::FusedMatMulActivation": "com.microsoft::FusedMatMulActivation",
}  # fmt: skip
GELUS = ("Gelu", "com.microsoft::Gelu", "com.microsoft::FastGelu", "com.microsoft::QuickGelu")
CLAMPS = ("Relu", "Clip")
IMAGE = 4  # channels at most
ACTIVATIONS = (
    "Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "Elu", "Selu", "HardSigmoid", "HardSwish", "Softplus", "Mish",
    *GELUS,
)  # fmt: skip
CHAIN = "tensorrt::Pointwise"
ELEMENTWISE = (CHAIN, *(t for t in FLOPS if "::" not in t), "Pow", "Sum", "Max", "Min", "Mean", "Clip", *GELUS)
ROWS = ("Softmax", "LogSoftmax", "LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization")
HALF = frozenset({"float16", "bfloat16", "int8", "float8e4m3fn", "float8e5m2"})
WIDEST_HEAD = 256
LONGEST_CHAIN = 64  # nodes in one kernel; assumed


PRODUCT = alone(call(("Conv", "Gemm", "MatMul"), ...))


@pattern("GEMM + residual", Y + PRODUCT)
def residual(m: Match) -> Fused | Miss:
    """What is added to a product is read by the product's kernel; of two products, by that of the second operand."""
    product, summand, add = m[PRODUCT], m[Y], m.root
    if summand.shape != product.out.shape:
        shapes = f"{list(summand.shape)} is not of the output's shape {list(product.out.shape)}"
        return Miss(f"the summand {shapes}", add.nodes)
    type = "FusedConv" if product.type == "Conv" else "FusedMatMulActivation"
    return m.fused(f"com.microsoft::{type}", (*(*product.inputs, None)[:3], summand), product.attrs)


@fusion("view after a GEMM", anchor="Reshape")
def view_last(g: Rewriter, view: Operator) -> Fused | None:
    """A Reshape between a product and an elementwise operator moves behind it; the other operands are reshaped too."""
    x, after = view.present[0], g.only_user(view.out, *ELEMENTWISE)
    if not g.made_by(x, *PRODUCTS) or after is None or after.out.shape != view.out.shape:
        return None
    if any(t.size > 1 and t.shape != view.out.shape for t in after.present):
        return None
    before, inputs = list[Operator](), list(after.inputs)
    for i, t in enumerate(after.inputs):
        if t is not None and t.name == view.out.name:
            inputs[i] = x
        elif t is not None and t.size > 1:
            seen = replace(t, name=f"{after.name}#{i}#view", shape=x.shape, kind="activation", value=None)
            before.append(replace(view, name=seen.name, inputs=(t, *view.inputs[1:]), outputs=(seen,)))
            inputs[i] = seen
    out = replace(after.out, name=f"{after.out.name}#flat", shape=x.shape)
    moved = replace(after, inputs=tuple(inputs), outputs=(out,))
    last = replace(view, inputs=(out, *view.inputs[1:]), outputs=after.outputs)
    return Fused((view, after), last, (*before, moved))


ACTIVATED_PRODUCT = call(tuple(ACTIVATED), ...)
WITH_ACTIVATION = pattern("GEMM + activation", call(ACTIVATIONS, ACTIVATED_PRODUCT, ...), start=tuple(ACTIVATED))


def _activation(m: Match) -> Fused | None:
    """A product and the activation that is its only reader are one kernel."""
    product = m[ACTIVATED_PRODUCT]
    if product.attrs.get("activation") or not (product.out.dtype == m.root.out.dtype or narrow(m.root.out)):
        return None
    attrs = {**product.attrs, "activation": m.root.type.rpartition("::")[2]}
    return m.fused(ACTIVATED[product.type], product.inputs, attrs)


def _activation_since_72(m: Match) -> Fused | Miss | None:
    """The same where the kernels apply more than a ReLU or Clip."""
    why = "" if m.root.type in CLAMPS else _clamps_alone(m[ACTIVATED_PRODUCT])
    return Miss(f"{why} apply ReLU and Clip alone", m.root.nodes) if why else _activation(m)


def _clamps_alone(product: Operator) -> str:
    """The kernels of a product that apply no other activation, "" where they do (guide, "Layer Fusion")."""
    if product.out.dtype == "float32":
        return "kernels in float32"
    if product.type not in CONVOLUTIONS:
        return ""
    channels = product.present[0].shape[1]
    if 1 < product.attrs.get("group", 1) == channels:
        return "depthwise kernels"
    return "kernels that read an image" if channels <= IMAGE else ""


activation_until_71, activation = (WITH_ACTIVATION(f) for f in (_activation, _activation_since_72))
ACTIVATED_CONV = alone(call("com.microsoft::FusedConv", ...))


@pattern("GEMM + activation + residual", Y + ACTIVATED_CONV)
def residual_behind(m: Match) -> Fused | None:
    """What is added behind a convolution's activation, in the same kernel."""
    product, summand = m[ACTIVATED_CONV], m[Y]
    if len(product.inputs) > 3 or summand.shape != product.out.shape or _clamps_alone(product):
        return None
    return m.fused(product.type, (*(*product.inputs, None)[:3], summand), product.attrs)


@fusion("elementwise operators", anchor=ELEMENTWISE)
def chain(g: Rewriter, last: Operator) -> Fused | None:
    """An elementwise operator and the one before it, which nothing else reads, are one kernel."""
    for t in last.present:
        before = g.made_by(t, *ELEMENTWISE)
        if before is None or not g.only_user(t) or len(before.outputs) > 1:
            continue
        if len(before.nodes) + len(last.nodes) > LONGEST_CHAIN:
            continue
        inputs = [i for i in (*before.present, *last.present) if i.name != t.name]
        flops = _flops(last) + _flops(before) * before.out.size // max(last.out.size, 1)
        unique = tuple({i.name: i for i in inputs}.values())
        return fused(CHAIN, last, (before, last), unique, {"flops_per_element": flops})
    return None


def _flops(o: Operator) -> int:
    return work_or_bytes(o)[0].vector_flops // max(o.out.size, 1)


BEFORE = alone(call(ELEMENTWISE, ...))


@pattern("elementwise operators + rows", call(ROWS, BEFORE, ...))
def before_rows(m: Match) -> Fused | None:
    """A softmax or normalisation and the elementwise operator before it, which nothing else reads, are one kernel."""
    before, rows = m[BEFORE], m.root
    first = next((t for t in before.present if t.shape == before.out.shape), None)
    if first is None or BITS[before.out.dtype] < 16:
        return None
    parameters = (*rows.inputs[1:], None, None)[:2]
    others = (t for t in before.present if t.name != first.name)
    flops = rows.attrs.get("flops_before", 0) + work_or_bytes(before)[0].vector_flops
    return m.merged(rows, inputs=(first, *parameters, *others), attrs={**rows.attrs, "flops_before": flops})


SCORES = alone(op.MatMul(A, B))
SCALED = alone(scale(SCORES))
MASKED = alone((SCALED | SCORES) + C)
RESCALED = alone(scale(MASKED))
SOFTMAX = op.Softmax(RESCALED | MASKED | SCALED | SCORES, ...)
ANY_SOFTMAX = op.Softmax(X, ...)


@pattern("attention", op.MatMul(SOFTMAX, Y), op.MatMul(ANY_SOFTMAX, Y))
def attention(m: Match) -> Fused | Miss | None:
    """softmax(scale Q K^T + mask) V, with the transpositions around it, in one kernel."""
    g, second = m.g, m.root
    softmax = m[SOFTMAX if SOFTMAX in m else ANY_SOFTMAX]
    if softmax.attrs.get("axis", -1) not in (-1, softmax.out.rank - 1):
        return None
    if SOFTMAX not in m:
        return Miss("its softmax is not over scaled and masked scores", softmax.nodes)
    parts = [m[c] for c in (RESCALED, MASKED, SCALED, SCORES, SOFTMAX) if c in m] + [second]
    q, k, v = (_head(g, t, parts) for t in (m[A], m[B], m[Y]))
    if k.rank not in (3, 4) or q.rank != k.rank or v.rank != k.rank:
        return Miss("its operands have other than three or four axes", m[SCORES].nodes)
    k = replace(k, shape=(*k.shape[:-2], k.shape[-1], k.shape[-2]))
    if q.dtype not in HALF:
        return Miss(f"there is no fused kernel for {q.dtype}", second.nodes)
    if q.shape[-1] != v.shape[-1]:
        return Miss(f"heads of {q.shape[-1]} and values of {v.shape[-1]} differ", second.nodes)
    if max(q.shape[-1], v.shape[-1]) > WIDEST_HEAD:
        return Miss(f"heads of {q.shape[-1]} are wider than {WIDEST_HEAD}", second.nodes)
    if k.rank == 3:  # batch and heads in one axis
        q, k, v = (replace(t, shape=(1, *t.shape)) for t in (q, k, v))
    after = g.only_user(second.out, "Transpose")
    parts += [after] if after is not None else []
    return fused("tensorrt::Attention", after or second, parts, (q, k, v, m.bindings.get(C)))


def _head(g: Rewriter, t: Tensor, parts: list[Operator]) -> Tensor:
    """The tensor that becomes an operand by scaling and transposing alone, in the operand's shape; joins `parts`."""
    x = t
    while (o := g.made_by(x, "Transpose", "Mul", "Div")) is not None and g.only_user(x):
        operand = (o.present[0], 1.0) if o.type == "Transpose" else scaled(o)
        if operand is None:
            break
        parts.append(o)
        x = operand[0]
    return replace(x, shape=t.shape)


def _siblings_until_71(graph: Graph) -> Graph:
    """Products of one tensor with stored weights and equal attributes become one product, with the columns of all.

    The parts of its output are free views. Products with a residual stay separate.
    """
    return _siblings(graph, lambda o: True)


def _siblings_since_72(graph: Graph) -> Graph:
    """The same of GEMMs and of convolutions with one tap, with ReLU, Clip or no activation."""
    return _siblings(graph, _has_one_tap)


def _siblings_before_activations(graph: Graph) -> Graph:
    """The same of convolutions with one tap before other activations, each of which then is a kernel by itself."""

    def apart(o: Operator) -> bool:
        readers = [r.type for r in graph.readers.get(o.out.name, ())]
        return len(readers) == 1 and readers[0] in ACTIVATIONS and readers[0] not in CLAMPS

    return _siblings(graph, lambda o: o.type == "Conv" and _has_one_tap(o) and apart(o))


def _has_one_tap(o: Operator) -> bool:
    return o.type not in (*CONVOLUTIONS, "ConvTranspose") or set(o.present[1].shape[2:]) == {1}


def _siblings(graph: Graph, merges: Callable[[Operator], bool]) -> Graph:
    groups: dict[object, list[Operator]] = {}
    for o in graph.operators:
        if o.type in PRODUCTS and len(o.present) > 1 and all(t.stored for t in o.present[1:]) and merges(o):
            x, w = o.present[:2]
            axis = _columns(o)
            bias = tuple(t.rank == 1 and t.size == w.shape[axis] for t in o.present[2:])
            if w.rank > 1 and o.attrs.get("group", 1) == 1 and o.out.rank > -axis - 1 and all(bias):
                others = tuple(d for i, d in enumerate(w.shape) if i != axis % w.rank)
                attrs = tuple(sorted((k, str(v)) for k, v in o.attrs.items()))
                key = (o.type, x.name, w.dtype, others, o.out.dtype, len(bias), attrs, o.repeat)
                groups.setdefault(key, []).append(o)
    instead: dict[int, list[Operator]] = {}
    for ops in groups.values():
        if len(ops) > 1:
            instead |= {id(o): [] for o in ops} | {id(ops[0]): list(_merged(ops))}
    operators = tuple(new for o in graph.operators for new in instead.get(id(o), [o]))
    return replace(graph, operators=operators) if instead else graph


def _strided(graph: Graph) -> Graph:
    """A Transpose that only products of two activations read, or of what one writes, is no kernel: they take strides.

    One of the two last axes has to lie contiguous. Kernel lists of engines have none between such products, but where
    it is part of an elementwise kernel.
    """
    readers = graph.readers

    def is_strided(o: Operator) -> bool:
        perm = o.attrs.get("perm", ())
        if o.type != "Transpose" or len(perm) < 3 or len(perm) - 1 not in perm[-2:]:
            return False
        maker = graph.made_by(o.present[0])
        written = maker is not None and _of_activations(maker) and readers[o.present[0].name] == [o]
        read = readers.get(o.out.name, [])
        inside = bool(read) and o.out.name not in graph.output_names and all(map(_of_activations, read))
        return written or inside

    operators = tuple(replace(o, place="free") if is_strided(o) else o for o in graph.operators)
    return replace(graph, operators=operators) if operators != graph.operators else graph


def _of_activations(o: Operator) -> bool:
    return o.type in ("MatMul", "com.microsoft::FusedMatMulActivation") and not any(t.stored for t in o.present[:2])


def _columns(o: Operator) -> int:
    """The axis of a product's weights along which its output's columns lie."""
    if o.type in CONVOLUTIONS:
        return 0
    return -2 if o.attrs.get("transB") else 1 if o.type == "ConvTranspose" else -1


def _wide(parts: Sequence[Tensor], axis: int) -> Tensor:
    """The tensor in which several lie side by side along an axis."""
    first = parts[0]
    at = axis % max(first.rank, 1)
    shape = tuple(sum(t.shape[at] for t in parts) if i == at else d for i, d in enumerate(first.shape))
    return replace(first, name=f"{first.name}#wide", shape=shape)


def _merged(ops: list[Operator]) -> Iterator[Operator]:
    first = ops[0]
    axis, along = _columns(first), 1 if first.type in (*CONVOLUTIONS, "ConvTranspose") else -1
    operands = zip(*(o.present[1:] for o in ops), strict=True)
    stored = (replace(_wide(ts, -1 if i else axis), value=None) for i, ts in enumerate(operands))
    out = _wide([o.out for o in ops], along)
    nodes = tuple(n for o in ops for n in o.nodes)
    yield replace(first, inputs=(first.present[0], *stored), outputs=(out,), nodes=nodes)
    parts = tuple(o.out for o in ops)
    yield Operator(f"{first.name}#parts", "Split", (out,), parts, {"axis": along}, 0, nodes, "free", first.repeat)


def _group_by_group(graph: Graph) -> Graph:
    """Grouped convolutions run one kernel for each group, but for depthwise ones, which run one in all."""

    def part(t: Tensor | None, axis: int, groups: int) -> Tensor | None:
        if t is None or t.rank <= axis:
            return t
        shape = tuple(d // groups if i == axis else d for i, d in enumerate(t.shape))
        return replace(t, shape=shape)

    def apart(o: Operator) -> Operator:
        groups = o.attrs.get("group", 1)
        if o.type not in CONVOLUTIONS or not 1 < groups < o.present[0].shape[1]:
            return o
        x, w, *others = o.inputs
        bias, residual = (*others, None, None)[:2]
        inputs = (part(x, 1, groups), part(w, 0, groups), part(bias, 0, groups), part(residual, 1, groups))
        outputs = tuple(t for y in o.outputs if (t := part(y, 1, groups)))
        attrs = {k: v for k, v in o.attrs.items() if k != "group"}
        return replace(o, inputs=inputs, outputs=outputs, attrs=attrs, repeat=o.repeat * groups)

    return replace(graph, operators=tuple(map(apart, graph.operators)))


def _single_outside(graph: Graph) -> Graph:
    """An FP16 engine has float32 inputs and outputs, converted by separate kernels."""
    half = [t for t in (*graph.inputs, *graph.outputs) if t.dtype == "float16"]
    return outside(graph, {t.name: replace(t, dtype="float32") for t in half})


def place(graph: Graph) -> Graph:
    """As until 8.4, without a kernel for a Transpose between products of activations."""
    return _until_84(_strided(graph))


def _until_84(graph: Graph) -> Graph:
    """As until 7.1; parts of a Concat or Split that need it are copied by kernels."""
    return _placed(copied(graph, frozenset((*PRODUCTS, *ACTIVATED.values())), frozenset(ELEMENTWISE)))


def _placed(graph: Graph) -> Graph:
    """Free are views; shape arithmetic, which is done when the engine is built; a Concat or Split of tensors that
    kernels write.
    """
    written: set[str] = set()
    placed = []
    for o in graph.operators:
        free = o.place == "free" or o.type in FREE or o.type in ("Shape", "Size")
        free = free or (bool(o.outputs) and all(t.value is not None and t.size <= 64 for t in o.outputs))
        free = free or (o.type in ("Concat", "Split") and all(t.name in written for t in o.present if not t.stored))
        if not free or (o.type != "Split" and any(t.name in written for t in o.present)):  # parts lie where they lie
            written.update(t.name for t in o.outputs)
        placed.append(replace(o, place="free" if free else "host" if o.type in CONTROL else "gpu"))
    notes = (*graph.notes, *unfused(graph, frozenset((*PRODUCTS, *ACTIVATED.values()))))
    return replace(graph, operators=tuple(placed), notes=notes)


def _in_int32(graph: Graph) -> Graph:
    """Integers have 32 bits, whatever the file says."""

    def narrower(t: Tensor) -> Tensor:
        return replace(t, dtype="int32") if t.dtype == "int64" else t

    def changed(o: Operator) -> Operator:
        tensors = (*o.present, *o.outputs)
        if not any(t.dtype == "int64" for t in tensors):
            return o
        inputs = tuple(t and narrower(t) for t in o.inputs)
        return replace(o, inputs=inputs, outputs=tuple(map(narrower, o.outputs)))

    inputs, outputs = (tuple(map(narrower, ts)) for ts in (graph.inputs, graph.outputs))
    return replace(graph, operators=tuple(map(changed, graph.operators)), inputs=inputs, outputs=outputs)


MERGED = "parallel GEMMs merged"
EIGHT_BITS = between_kernels(frozenset(PRODUCTS), frozenset(ELEMENTWISE), frozenset(ROWS))
#: `common.linear` once more behind EIGHT_BITS, which uncovers stored weights.
RULES = (
    Pass("integers of 32 bits", _in_int32, once=True, since="6", until="9"),
    *since("6", Pass("constants computed beforehand", folded, once=True),
           Pass("FP16 beside 8 bits", in_half, once=True), ort_basic.ELIMINATION, ort_basic.COMMON_SUBEXPRESSIONS,
           ort_basic.conv_affine, ort_basic.conv_batch_norm, ort_basic.matmul_batch_norm, common.layer_norm,
           common.rms_norm_any, common.gelu, common.fast_gelu_any, common.quick_gelu, common.softmax, common.linear),
    attention.of("8.5"), *since("6", EIGHT_BITS, common.linear, view_last),
    Pass(f"{MERGED}, activations apart", _siblings_before_activations, since="7.2"),
    activation_until_71.of("6", "7.1"), activation.of("7.2"), *since("6", residual), residual_behind.of("7.2"),
    Pass(MERGED, _siblings_until_71, since="6", until="7.1"), Pass(MERGED, _siblings_since_72, since="7.2"),
    *since("6", ort_extended.skip_layer_norm, chain, before_rows),
)  # fmt: skip


def _narrow_products(run: Graph) -> str:
    """What no measurement confirms of releases until 7.1: products in 8 bits."""
    return "8-bit networks" if has_narrow_products(run) else ""


def _floats_of_8_bits(run: Graph) -> str:
    """What no measurement confirms of later releases: products in FP8."""
    operands = (o.present[0].dtype for o in run.operators if o.type in (*PRODUCTS, *ACTIVATED.values()) and o.present)
    return "FP8 networks" if any(dtype.startswith("float8") for dtype in operands) else ""


POLICY = Policy(
    pads=True,
    tf32=frozenset({"Gemm", "Conv", "Recurrent"}),
    arena="exact",
    channels_last=True,
    planned=True,
    timed=True,
)
LAST_GROUP_BY_GROUP = Release(7, 1)


def _until_71(graph: Graph) -> Graph:
    return _single_outside(_group_by_group(_placed(graph)))


LAST_GEMM_IN_FP32 = Release(8, 4)


#: By release. NVIDIA's release notes and support matrices: 8.5 was the last with Kepler, 9.0 dropped Maxwell, 10 takes
#: Volta and later cards, 10.5 removed Volta, 10.8 came with Blackwell. Assumed, as those of CUDA: 7.1 came with Ampere,
#: 8.5 with Ada and Hopper.
CARDS = {
    "0": ((3, 5), (7, 5)), "7.1": ((3, 5), (8, 7)), "8.5": ((3, 5), (9, 0)), "8.6": ((5, 0), (9, 0)),
    "9": ((6, 0), (9, 0)), "10": ((7, 0), (9, 0)), "10.5": ((7, 5), (9, 0)), "10.8": ((7, 5), (12, 9)),
}  # fmt: skip


def in_release(at: Release) -> Mapping[str, Any]:
    """What is another than today's."""
    changed: dict[str, Any] = {}
    if at <= LAST_GEMM_IN_FP32:  # assumed: DeBERTa-large takes 4 times as long in TF32 as in FP16, as at FP32's rate
        changed["policy"] = replace(POLICY, tf32=POLICY.tf32 - {"Gemm"}, timed=at > LAST_GROUP_BY_GROUP)
        changed["place"] = _until_84
    if at <= LAST_GROUP_BY_GROUP:
        changed |= {"place": _until_71, "unmeasured": _narrow_products, "errs_as": "tensorrt of 2020"}
    return changed


def says(at: Release) -> str:
    """What is known of a release, and what is inferred."""
    imports = f"what TensorRT {at} imports is as its importer's documents say"
    if at <= LAST_GROUP_BY_GROUP:
        return f"{imports}; its kernels are inferred from times of release 6 or 7 on convolutional networks"
    return f"{imports}; its fusions and kernels are taken to be those of 8.2 to 10, whose times are known"


#: Builds that were told: EfficientNet-lite4 34.6 s, 7.7 with a timing cache, YOLOv4 109 and 9.4 s
#: (github.com/microsoft/onnxruntime/pull/14767); Mask R-CNN on an RTX 2070 SUPER 75 s in FP32, 5 min with FP16
#: (github.com/NVIDIA/TensorRT/issues/554); a detector on an Orin 9.5 min. Layers that are alike are timed once
#: (github.com/NVIDIA/TensorRT/issues/4423).
START = StartCosts(
    library_s=(0.3, 3.0), code_s=(0.05e-3, 2e-3), search_s=(0.0, 0.0), build_s=(0.2, 10.0), build="tactics are timed",
    cached_s=(0.05, 0.4), cache="a timing cache", builder_s=(1.0, 12.0),
    per_shape="none where a profile of the engine holds the shape",
)  # fmt: skip

RUNTIME = Runtime(
    name="tensorrt",
    rules={DISABLED: RULES},
    place=place,
    policy=POLICY,
    host=HostCosts(
        run_s=8e-6, walk_s=0.0, node_s=0.0, launch_s=4e-6, host_op_s=1e-6, copy_s=8e-6, sync_s=5e-6, gap_s=1.75e-6,
        replay_s=10e-6, replay_gap_s=0.5e-6, source="assumed",
    ),
    title="TensorRT",
    describe="TensorRT, an engine built for this card and these shapes",
    refused=refused, unmeasured=_floats_of_8_bits,
    releases=Releases(OPSETS, NEWEST, in_release, says, operators=SINCE, cards=CARDS),
    start=START,
)  # fmt: skip

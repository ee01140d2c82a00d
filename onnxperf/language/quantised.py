"""The products of a placed graph in the few bits in which a checkpoint stores their weights."""

from __future__ import annotations

from dataclasses import replace

from gpu_specs import Device
from onnxperf.export.decoder_quantised import Stored
from onnxperf.graph import Graph
from onnxperf.passes.precision import UNITS
from op_models import Operator, Tensor

TYPES = {"fp8": "float8e4m3fn", "int8": "int8", "fp4": "float4e2m1"}  # of activations and weights that are multiplied
FP4_UNIT, USUAL_BLOCK = "tensor_fp4", 128
PRODUCT, EXPERTS, PACKED, PACKED_EXPERTS = (
    "MatMul",
    "com.microsoft::MoE",
    "com.microsoft::MatMulNBits",
    "com.microsoft::QMoE",
)


def quantised(graph: Graph, stored: Stored | None, device: Device) -> Graph:
    """The graph with the products that `stored` does not exclude in its format.

    Where activations are quantised too, and the card has a unit for both, the product reads both in that type, and the
    kernel that quantises activations is in its time, as in the measurements its constants rest on. Else weights are
    dequantised on the way, as by Marlin's kernels. Experts that the graph has in few bits already get the scales.
    """
    if stored is None:
        return graph
    dtype = TYPES.get(stored.activations, "")
    units = {FP4_UNIT} if dtype == "float4e2m1" else UNITS.get(dtype, set())
    multiplied = bool(dtype) and not units.isdisjoint(device.dense_flops)
    operators: list[Operator] = []
    for o in graph.operators:
        w = o.inputs[1] if o.type == PRODUCT and len(o.inputs) == 2 else None
        plain = o.type == EXPERTS or (w is not None and w.stored and w.rank == 2)
        if o.type == PACKED_EXPERTS:
            operators.append(replace(o, inputs=tuple(t and _scale(t, stored) for t in o.inputs)))
        elif not plain or stored.excludes(o.name):
            operators.append(o)
        elif multiplied:
            operators += _multiplied(o, dtype, stored)
        else:
            operators.append(_packed(o, stored))
    return replace(graph, operators=tuple(operators))


def _multiplied(o: Operator, dtype: str, s: Stored) -> tuple[Operator, ...]:
    """A product of quantised operands; a view reads the scales of the weights, so that they lie in memory."""
    x = o.present[0]
    first = replace(x, name=f"{o.name}#{dtype}", dtype=dtype, kind="activation")
    weights = [t for t in o.inputs[1:] if t is not None and _of_product(o, t)]
    inputs = (first, *(replace(t, dtype=dtype) if t in weights and t is not None else t for t in o.inputs[1:]))
    scales = tuple(_scales(t, s) for t in weights)
    view = Operator(f"{o.name}#scaled", "Identity", (x, *scales), (first,), {}, 0, o.nodes, "free")
    attrs = {**o.attrs, "expert_weight_bits": 8} if o.type == EXPERTS else o.attrs
    return view, replace(o, inputs=inputs, attrs=attrs)


def _of_product(o: Operator, t: Tensor) -> bool:
    return t.stored and t.rank == (3 if o.type == EXPERTS else 2)


def _scale(t: Tensor, s: Stored) -> Tensor:
    """A scale of packed experts in the bits that the format has."""
    return replace(t, dtype=f"uint{s.scale_bits}") if t.name.endswith(".scales") else t


def _scales(t: Tensor, s: Stored) -> Tensor:
    """The scales of a weight, as bytes."""
    count = -(-t.size // s.block) if s.block else t.shape[-1]
    return Tensor(f"{t.name}#scales", "uint8", (count * s.scale_bits // 8,), "weight")


def _packed(o: Operator, s: Stored) -> Operator:
    """A product whose weights are dequantised on the way: in `s.bits`, 4 or 8."""
    bits, block = (4 if s.bits <= 4 else 8), min(s.block or USUAL_BLOCK, USUAL_BLOCK)
    if o.type == EXPERTS:
        inputs: list[Tensor | None] = list(o.inputs[:2])
        for t in o.inputs[2:]:
            if t is not None and t.rank == 3:
                e, n, k = t.shape
                inputs.append(replace(t, dtype="uint8", shape=(e, n, k * bits // 8)))
                each = -(-k // block) * s.scale_bits // 8
                inputs.append(Tensor(f"{t.name}#scales", "uint8", (e, n, each), "weight"))
                inputs.append(None)
        attrs = {**o.attrs, "expert_weight_bits": bits, "block_size": block}
        return replace(o, type=PACKED_EXPERTS, inputs=tuple(inputs), attrs=attrs)
    x, w = o.present[:2]
    k, n = w.shape
    packed = replace(w, dtype="uint8", shape=(n, -(-k // block), block * bits // 8))
    scales = _scales(w, s)
    attrs = {"K": k, "N": n, "bits": bits, "block_size": block}
    return replace(o, type=PACKED, inputs=(x, packed, scales), attrs=attrs)

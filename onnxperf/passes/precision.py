"""The precision of a prediction: `keep` and `amp` leave the dtypes of the file, others change floating tensors'.

TF32 is no dtype of tensors: with `fp32` and `tf32` they are float32, and the runtime's policy turns TF32 off or on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onnxperf.graph import Graph, Note, fresh
from onnxperf.ground.names import AMP, PRECISIONS, QUANTISED, STORED
from onnxperf.ground.rules import work_or_bytes
from op_models import Operator, Tensor

if TYPE_CHECKING:
    from gpu_specs import Device

#: The dtypes that are changed; 8-bit floats are quantised already.
CASTABLE = frozenset({"float64", "float32", "float16", "bfloat16"})
LOOPS = frozenset({"Loop", "Scan"})  # write what their bodies read once for every run, so `repeat` is not theirs
UNITS = {"bfloat16": {"tensor_bf16"}, "int8": {"tensor_int8", "int8"}, "float8e4m3fn": {"tensor_fp8"}}
#: The attribute of a QuantizeLinear that a precision has put in: the ranges of all tensors are known, not just its own.
CALIBRATED = "calibrated"
#: Operators that run quantised where they read an activation, then a stored weight.
PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})
EXPERTS = "com.microsoft::MoE"  # whose products are quantised as others are, where there is a unit
#: Operands that ONNX (to opset 24) and ONNX Runtime define in no half precision: positions of inputs, "o" of outputs.
FLOAT32_ONLY = {
    "NonMaxSuppression": "0 1 3 4", "Range": "0 1 2 o0", "Celu": "0 o0", "Resize": "2", "Upsample": "1",
    "LayerNormalization": "o1 o2", "TfIdfVectorizer": "o0", "DynamicQuantizeLinear": "0 o1", "QLinearConv": "1 4 6",
    "com.microsoft::CDist": "0 1 o0", "com.microsoft::MatMulFpQ4": "0 o0",
    "com.microsoft::GroupQueryAttention": "12 13", "onnxperf::LatentAttention": "5",
    "com.microsoft::DynamicQuantizeMatMul": "0 2 4 o0", "com.microsoft::DynamicQuantizeLSTM": "0 3 5 6 7 8 10 o0 o1 o2",
}  # fmt: skip
#: The same for bfloat16 alone.
NOT_BFLOAT16 = {"Shrink": "0 o0", "Scatter": "0 2 o0"}


def precision(graph: Graph, name: str, device: Device | None = None) -> Graph:
    """The graph in a precision of PRECISIONS, for a card (None: one that has units for every dtype).

    fp32, tf32, fp16, bf16: every floating tensor has the dtype, weights, inputs and outputs, too; operands that an
    operator defines in float32 alone stay so, between casts. int8, fp8: before GEMMs and convolutions with stored
    weights the activation is quantised, and the weights are stored quantised; their results have the dtype of the file.
    Products of two activations, and of operands that are quantised already, stay as they are.

    Where the card has no unit for the dtype, GEMMs and convolutions run between casts, which the note `no-dtype` says:
    those in bfloat16 run in float32, those in 8 bits on dequantised weights, in float16 if there is a unit for it.
    """
    if name in ("keep", AMP):
        return graph
    dtype = STORED.get(name) or QUANTISED[name]
    lacks = device is not None and lacks_unit(device, name)
    if name in STORED:
        result, moved = _retyped(graph, dtype, lacks)
        message = (
            f"{name.upper()} units: tensors are stored in {dtype}, GEMM and convolution run in float32 between casts"
        )
    elif device is None or not lacks:
        result, moved = _quantised(graph, dtype), []
    else:
        half = "tensor_fp16" in device.dense_flops
        result, moved = _dequantised(graph, dtype, half)
        how = "half precision between casts" if half else "the stored type"
        message = (
            f"{name.upper()} units: weights are stored in {dtype} and dequantised, GEMM and convolution run in {how}"
        )
    if device is None or not moved:
        return result
    nodes = tuple(dict.fromkeys(n for o in moved for n in o.nodes))
    return replace(result, notes=(*result.notes, Note("no-dtype", f"{device.id} has no {message}", nodes)))


def lacks_unit(device: Device, name: str) -> bool:
    """True where a card has no unit that multiplies in a precision, so that its products run between casts.

    False for what is no precision.
    """
    if name not in PRECISIONS:
        return False
    dtype = STORED.get(name) or QUANTISED.get(name, "")
    return dtype in UNITS and UNITS[dtype].isdisjoint(device.dense_flops)


def _retyped(graph: Graph, dtype: str, lacks: bool) -> tuple[Graph, list[Operator]]:
    """Every floating tensor in `dtype`, but for operands that must be float32; and the products that run in float32.

    These are all GEMMs and convolutions where the card `lacks` a unit for `dtype`, else none.
    """
    changed = _stored_in(graph, dtype)
    special = lacks or any(o.type in FLOAT32_ONLY or o.type in NOT_BFLOAT16 or "::" in o.type for o in graph.operators)
    if dtype == "float32" or not special:
        return changed, []
    casts, moved = Casts(changed), []
    for o in changed.operators:
        product = lacks and work_or_bytes(o)[0].matrix_flops > 0
        inputs, outputs = _all_operands(o) if product else _float32_only(o, dtype)
        if casts.around(o, inputs, outputs, "float32") and product:
            moved.append(o)
    return replace(changed, operators=tuple(casts.operators)), moved


def _stored_in(graph: Graph, dtype: str) -> Graph:
    """The graph with its floating tensors in `dtype`, but for those that a cast has made float32."""
    typed: dict[str, Tensor] = {}

    def change(t: Tensor) -> Tensor:
        if t.name not in typed:
            left = t.dtype not in CASTABLE or t.dtype == dtype or t.name.endswith("#float32")
            typed[t.name] = t if left else replace(t, dtype=dtype)
        return typed[t.name]

    operators = []
    for o in graph.operators:
        read = tuple(change(t) if t is not None else None for t in o.inputs)
        operators.append(replace(o, inputs=read, outputs=tuple(map(change, o.outputs))))
    inputs, outputs = tuple(map(change, graph.inputs)), tuple(map(change, graph.outputs))
    return replace(graph, operators=tuple(operators), inputs=inputs, outputs=outputs)


def _all_operands(o: Operator) -> tuple[Collection[int], Collection[int]]:
    """The positions of all inputs and of all outputs."""
    return range(len(o.inputs)), range(len(o.outputs))


def _float32_only(o: Operator, dtype: str) -> tuple[Collection[int], Collection[int]]:
    """The positions of the inputs and of the outputs that an operator does not define in the half precision `dtype`."""
    if o.type.startswith("ai.onnx.ml::"):
        return _all_operands(o)
    places = FLOAT32_ONLY.get(o.type, NOT_BFLOAT16.get(o.type, "") if dtype == "bfloat16" else "").split()
    return {int(p) for p in places if p[0] != "o"}, {int(p[1:]) for p in places if p[0] == "o"}


def _products(graph: Graph) -> Iterator[tuple[Operator, tuple[Tensor, Tensor] | None]]:
    """Every operator, with the activation and the weight that it multiplies where it is to run quantised, else None."""
    for o in graph.operators:
        x, w = o.inputs[:2] if o.type in PRODUCTS and len(o.inputs) > 1 and o.outputs else (None, None)
        wanted = x is not None and w is not None and w.stored and x.dtype in CASTABLE and w.dtype in CASTABLE
        maker = graph.made_by(x) if wanted else None
        quantised = maker is not None and maker.type == "DequantizeLinear"
        yield o, (x, w) if x is not None and w is not None and wanted and not quantised else None


def _quantised(graph: Graph, dtype: str) -> Graph:
    """The graph with quantised GEMMs and convolutions, whose results keep their dtype."""
    casts = Casts(graph)
    for o, operands in _products(graph):
        if operands is not None:
            x, w = operands
            scale = Tensor(f"{x.name}#scale", x.dtype, (), "constant")
            first = casts.convert(x, dtype, o, "QuantizeLinear", scale, attrs={CALIBRATED: 1})
            o = replace(o, inputs=(first, casts.stored(w, dtype), *o.inputs[2:]))
        elif o.type == EXPERTS and o.present[0].dtype in CASTABLE:
            x = o.present[0]
            scale = Tensor(f"{x.name}#scale", x.dtype, (), "constant")
            first = casts.convert(x, dtype, o, "QuantizeLinear", scale, attrs={CALIBRATED: 1})
            of_experts = (t is not None and t.stored and t.rank == 3 and t.dtype in CASTABLE for t in o.inputs)
            weights = [casts.stored(t, dtype) if t is not None and is_expert else t
                       for t, is_expert in zip(o.inputs, of_experts, strict=True)]  # fmt: skip
            o = replace(o, inputs=(first, *weights[1:]), attrs={**o.attrs, "expert_weight_bits": 8})
        casts.add(o)
    return replace(graph, operators=tuple(casts.operators))


def _dequantised(graph: Graph, dtype: str, half: bool) -> tuple[Graph, list[Operator]]:
    """The graph with GEMMs and convolutions on dequantised weights, in float16 if `half`; and these operators."""
    casts, moved = Casts(graph), []
    for o, operands in _products(graph):
        if operands is None:
            casts.add(o)
            continue
        x, w = operands
        runs = "float16" if half else x.dtype
        channels = o.out.shape[1:2] if "Conv" in o.type else o.out.shape[-1:]
        scale = Tensor(f"{w.name}#scale", runs, channels, "constant")
        weight = casts.convert(casts.stored(w, dtype), runs, o, "DequantizeLinear", scale)
        casts.around(replace(o, inputs=(x, weight, *o.inputs[2:])), *_all_operands(o), runs)
        moved.append(o)
    return replace(graph, operators=tuple(casts.operators)), moved


class Casts:
    """The operators of a new graph in execution order, with the casts between them: one for each tensor and dtype.

    An operator may read and write other dtypes than those around it.
    """

    def __init__(self, graph: Graph):
        self.taken = {t.name for o in graph.operators for t in (*o.present, *o.outputs)}
        self.operators: list[Operator] = []
        self.makers: dict[str, Operator] = {}
        self.converted: dict[tuple[str, str], Tensor] = {}

    def retyped(self, t: Tensor, dtype: str) -> Tensor:
        """The tensor in `dtype`, under a new name."""
        return replace(t, name=fresh(f"{t.name}#{dtype}", self.taken), dtype=dtype)

    def add(self, o: Operator) -> None:
        """Add an operator at the end."""
        self.operators.append(o)
        self.makers.update((t.name, o) for t in o.outputs)

    def convert(
        self, t: Tensor, dtype: str, o: Operator, type: str, scale: Tensor | None = None, again: bool = False,
        attrs: Mapping[str, Any] | None = None,
    ) -> Tensor:  # fmt: skip
        """The tensor in `dtype`; the first operator `o` that reads it so has an operator of `type` put before it, or
        every one that does (`again`).
        """
        if again or (t.name, dtype) not in self.converted:
            new = replace(self.retyped(t, dtype), kind="activation")
            maker = self.makers.get(t.name)
            repeat = 1 if maker is None else o.repeat if maker.type in LOOPS else maker.repeat
            inputs = (t, scale) if scale is not None else (t,)
            name = f"{o.name}#{type}#{t.name}"
            self.add(Operator(name, type, inputs, (new,), attrs or {}, 0, o.nodes, repeat=repeat))
            self.converted[t.name, dtype] = new
        return self.converted[t.name, dtype]

    def stored(self, t: Tensor, dtype: str) -> Tensor:
        """A weight or constant as it is if stored in `dtype`; it has one name, however many operators read it."""
        if (t.name, dtype) not in self.converted:
            self.converted[t.name, dtype] = self.retyped(t, dtype)
        return self.converted[t.name, dtype]

    def read(self, t: Tensor, dtype: str, o: Operator) -> Tensor:
        """A floating tensor as `o` reads it in `dtype`: a weight or constant is stored so, an activation is cast."""
        if t.dtype == dtype or t.dtype not in CASTABLE:
            return t
        return self.stored(t, dtype) if t.stored else self.convert(t, dtype, o, "Cast")

    def around(self, o: Operator, inputs: Collection[int], outputs: Collection[int], dtype: str) -> bool:
        """Add an operator whose floating inputs and outputs at these positions are in `dtype`, between casts.

        Returns whether any of them was in another dtype.
        """
        read = tuple(self.read(t, dtype, o) if t is not None and i in inputs else t for i, t in enumerate(o.inputs))
        back = {i: t for i, t in enumerate(o.outputs) if i in outputs and t.dtype in CASTABLE and t.dtype != dtype}
        written = list(o.outputs)
        for i, t in back.items():
            written[i] = self.converted[t.name, dtype] = self.retyped(t, dtype)
        self.add(replace(o, inputs=read, outputs=tuple(written)))
        for i, t in back.items():
            name = f"{o.name}#Cast#{written[i].name}"
            self.add(Operator(name, "Cast", (written[i],), (t,), {}, 0, o.nodes, repeat=o.repeat))
        return read != o.inputs or bool(back)

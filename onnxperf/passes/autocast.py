"""PyTorch's CUDA autocast to float16 (`amp`): which type each operator of a graph runs in, and the casts between.

The lists are those of ATen/autocast_mode.h (torch 2.4 to 2.13), by the ONNX names of these operators. Matrix products
and convolutions cast their inputs to float16. Operators that could overflow or lose precision, such as sums and
exponentials, cast their inputs to float32 or write float32. All others run in the type of their inputs; where types are
mixed, the result has the wider one, and the kernel reads both as stored. Batch normalisation, means, pooling and
activations are in no list.

A weight is cast once in a run: autocast caches casts of parameters until its context is left, and each run enters the
context anew. An activation is cast for every operator that needs it. No call from Python makes these casts: the
host's part of one is its launch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from onnxperf.graph import Graph
from onnxperf.passes.precision import CASTABLE, LOOPS, Casts
from onnxperf.passes.tape import WITHIN
from op_models import Operator, Tensor

HALF, SINGLE = "float16", "float32"
#: An attribute with the type that a library casts an operator's inputs to, which takes precedence over the lists.
MARK = "autocast"
TO_HALF = frozenset({
    "Attention", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "PRelu", "RNN",
})  # fmt: skip
TO_SINGLE = frozenset({
    "Acos", "Asin", "Cosh", "CumProd", "CumSum", "Exp", "GroupNormalization", "LayerNormalization", "Log",
    "NegativeLogLikelihoodLoss", "Pow", "RMSNormalization", "Reciprocal", "ReduceLogSumExp", "Resize", "Sinh",
    "SoftmaxCrossEntropyLoss", "Softplus", "Tan", "Upsample",
})  # fmt: skip
#: Read float16 as it is and write float32, in one kernel.
GIVE_SINGLE = frozenset({"LogSoftmax", "ReduceL1", "ReduceL2", "ReduceProd", "ReduceSum", "Softmax"})
#: The result has the widest type of all operands; other operators have their first operand's, and read the rest as is.
JOIN = frozenset({
    "Add", "Concat", "Div", "GridSample", "Max", "Mean", "Min", "Mod", "Mul", "ScatterElements", "ScatterND", "Sub",
    "Sum", "Where", "torch::addcmul",
})  # fmt: skip
#: Write the types that the file says, whatever they read.
DECLARED = LOOPS | {"Cast", "ConstantOfShape", "DequantizeLinear", "If", "SequenceMap"}


def autocast(graph: Graph) -> Graph:
    """The graph as autocast runs it: the types of all floating tensors, and casts as operators of their own."""
    casts, typed = Casts(graph), dict[str, str]()

    def now(t: Tensor) -> Tensor:
        """A tensor in the type that it has by now."""
        return replace(t, dtype=typed[t.name]) if t.name in typed else t

    for o in graph.operators:
        o = replace(o, inputs=tuple(now(t) if t is not None else None for t in o.inputs))
        wanted = str(o.attrs.get(MARK) or (HALF if o.type in TO_HALF else SINGLE if o.type in TO_SINGLE else ""))
        if wanted:
            o = replace(o, inputs=tuple(_cast(t, wanted, o, casts) if t is not None else None for t in o.inputs))
        dtype = wanted or (SINGLE if o.type in GIVE_SINGLE else _joined(o))
        if dtype and o.type not in DECLARED:
            typed.update((t.name, dtype) for t in o.outputs if t.dtype in CASTABLE - {"float64"})
        casts.add(replace(o, outputs=tuple(map(now, o.outputs))))
    return replace(graph, operators=tuple(casts.operators), outputs=tuple(map(now, graph.outputs)))


def with_fast_norms(graph: Graph) -> Graph:
    """The graph of a model of timm that runs with its `set_fast_norm`: under autocast, norms run in float16."""
    norms = ("GroupNormalization", "InstanceNormalization", "LayerNormalization")  # exporters write groups as instances
    marked = (replace(o, attrs={**o.attrs, MARK: HALF}) if o.type in norms else o for o in graph.operators)
    return replace(graph, operators=tuple(marked))


def _cast(t: Tensor, dtype: str, o: Operator, casts: Casts) -> Tensor:
    """A tensor as `o` reads it, after a cast where one is needed. float64 gets none; a scalar just changes its type."""
    if t.dtype == dtype or t.dtype not in CASTABLE - {"float64"}:
        return t
    return (
        replace(t, dtype=dtype)
        if _number(t)
        else casts.convert(t, dtype, o, "Cast", again=not t.stored, attrs={WITHIN: 1})
    )


def _joined(o: Operator) -> str:
    """The type of an operator's result: the widest floating type of its operands, "" without one. Scalars don't count
    unless all operands are scalars.
    """
    operands = o.present if o.type in JOIN else o.present[:1]
    return _widest([t for t in operands if not _number(t)]) or _widest(operands)


def _widest(tensors: Iterable[Tensor]) -> str:
    dtypes = {t.dtype for t in tensors if t.dtype in CASTABLE}
    if len(dtypes) < 2:
        return next(iter(dtypes), "")
    return "float64" if "float64" in dtypes else SINGLE


def _number(t: Tensor) -> bool:
    """True for a Python number or a scalar tensor as exporters write them: neither widens a result's type."""
    return t.stored and t.size == 1

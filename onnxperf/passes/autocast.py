"""PyTorch's CUDA autocast to float16 (`amp`): which type each operator of a graph runs in, and the casts between.

The lists are those of ATen/autocast_mode.h (torch 2.4 to 2.13), under the names that ONNX has for these operators.
Products cast what they read to float16. What sums or grows fast is cast to float32, or gives it. All else runs in the
type of what it reads; where types meet, the wider one is the result's, and the kernel reads both as they are. Batch
normalisation, means, pooling and activations are in no list.

A weight is cast once in a run: autocast keeps casts of parameters until the context is left, which is entered for every
run. Every operator casts an activation for itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from onnxperf.graph import Graph
from onnxperf.passes.precision import CASTABLE, LOOPS, Casts
from op_models import Operator, Tensor

HALF, SINGLE = "float16", "float32"
#: An attribute that says what a library casts an operator's inputs to, whatever the lists have for it.
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
#: Where types of several operands meet; others have the type of their first one, and read the rest as it is stored.
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
        given = wanted or (SINGLE if o.type in GIVE_SINGLE else _joined(o))
        if given and o.type not in DECLARED:
            typed.update((t.name, given) for t in o.outputs if t.dtype in CASTABLE - {"float64"})
        casts.add(replace(o, outputs=tuple(map(now, o.outputs))))
    return replace(graph, operators=tuple(casts.operators), outputs=tuple(map(now, graph.outputs)))


def with_fast_norms(graph: Graph) -> Graph:
    """The graph of a model of timm that runs with its `set_fast_norm`: under autocast, norms run in float16."""
    norms = ("GroupNormalization", "InstanceNormalization", "LayerNormalization")  # exporters write groups as instances
    marked = (replace(o, attrs={**o.attrs, MARK: HALF}) if o.type in norms else o for o in graph.operators)
    return replace(graph, operators=tuple(marked))


def _cast(t: Tensor, dtype: str, o: Operator, casts: Casts) -> Tensor:
    """A tensor as `o` reads it, cast before if need be; double precision, and numbers, are left alone."""
    if t.dtype == dtype or t.dtype not in CASTABLE - {"float64"}:
        return t
    return replace(t, dtype=dtype) if _number(t) else casts.convert(t, dtype, o, "Cast", again=not t.stored)


def _joined(o: Operator) -> str:
    """The type of an operator's result: the widest of its operands', "" where none floats. Numbers don't count."""
    operands = o.present if o.type in JOIN else o.present[:1]
    return _widest([t for t in operands if not _number(t)]) or _widest(operands)


def _widest(tensors: Iterable[Tensor]) -> str:
    dtypes = {t.dtype for t in tensors if t.dtype in CASTABLE}
    if len(dtypes) < 2:
        return next(iter(dtypes), "")
    return "float64" if "float64" in dtypes else SINGLE


def _number(t: Tensor) -> bool:
    """True for what exporters write for a number of Python, or for a tensor without axes: neither widens a result."""
    return t.stored and t.size == 1

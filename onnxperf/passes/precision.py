"""Who decides the dtype: `keep` leaves the stored types, the others rewrite the floating tensors.

TF32 is no storage type: `fp32` and `tf32` store float32 and the runtime's policy turns TF32 off or on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from onnxperf.graph import Graph
from op_models import Operator, Tensor

WIDE = frozenset({"float64", "float32", "float16", "bfloat16"})
STORED = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
QUANTISED = {"int8": "int8", "fp8": "float8e4m3fn"}
PRECISIONS = ("keep", *STORED, *QUANTISED)
#: Operators that run quantised: an activation, then a stored weight.
PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})


def precision(graph: Graph, name: str) -> Graph:
    """The graph in a precision of PRECISIONS.

    fp32, tf32, fp16, bf16: every floating tensor, weights, inputs and outputs too. int8, fp8: activations are
    quantised in front of GEMMs and convolutions that have stored weights, weights are stored quantised, results
    come out in the stored type; products of two activations keep their type.
    """
    if name in STORED:
        return _retyped(graph, STORED[name])
    if name in QUANTISED:
        return _quantised(graph, QUANTISED[name])
    return graph


def _retyped(graph: Graph, dtype: str) -> Graph:
    def change(t: Tensor) -> Tensor:
        return replace(t, dtype=dtype) if t.dtype in WIDE and t.dtype != dtype else t

    return map_tensors(graph, change)


def map_tensors(graph: Graph, change: Callable[[Tensor], Tensor]) -> Graph:
    """The graph with every tensor replaced by `change(tensor)`; names must stay."""
    changed: dict[str, Tensor] = {}

    def get(t: Tensor) -> Tensor:
        found = changed.get(t.name)
        if found is None:
            found = changed[t.name] = change(t)
        return found

    operators = tuple(
        replace(
            o,
            inputs=tuple(get(t) if t is not None else None for t in o.inputs),
            outputs=tuple(get(t) for t in o.outputs),
        )
        for o in graph.operators
    )
    return replace(
        graph,
        operators=operators,
        inputs=tuple(get(t) for t in graph.inputs),
        outputs=tuple(get(t) for t in graph.outputs),
    )


def _quantised(graph: Graph, dtype: str) -> Graph:
    operators: list[Operator] = []
    quantised: dict[str, Tensor] = {}
    for o in graph.operators:
        if o.type in PRODUCTS and len(o.present) > 1 and o.present[1].stored and o.present[0].dtype in WIDE:
            x, w = o.present[:2]
            if x.name not in quantised:
                quantised[x.name] = replace(x, name=f"{x.name}#{dtype}", dtype=dtype, kind="activation")
                scale = Tensor(f"{x.name}#scale", x.dtype, (), "constant")
                operators.append(
                    Operator(
                        f"{o.name}#quantize",
                        "QuantizeLinear",
                        (x, scale),
                        (quantised[x.name],),
                        {},
                        o.version,
                        o.nodes,
                    )
                )
            weight = replace(w, name=f"{w.name}#{dtype}", dtype=dtype)
            o = replace(o, inputs=(quantised[x.name], weight, *o.inputs[2:]))
        operators.append(o)
    return replace(graph, operators=tuple(operators))

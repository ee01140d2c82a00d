"""What a session knows of shapes before it runs: which sizes it only learns from its inputs, or from their content.

A tensor's shape has the sizes that are predicted. One that a session can't know is an `Open` number: costs read it like
any other, and what asks for a shape that is known beforehand, as fusions and constant folding do, can tell it apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onnxperf.graph.core import CONTROL, Graph
from op_models import Operator, Tensor

#: Operators whose result has a size that their inputs' content decides. ONNX Runtime 1.31 folds nothing whose size it
#: does not know before (constant_folding.cc).
SELECTIONS = frozenset({"NonZero", "Compress"})
#: Comparisons that onnx defines by functions in opsets 12 to 15, and whose shape it does not infer.
COMPARISONS = frozenset({"GreaterOrEqual", "LessOrEqual"})
#: Random operators; DequantizeLinear, which runtimes keep, as weights stay small in memory; and those that fill
#: sequences, as ONNX Runtime stores folded tensors alone.
NEVER_FOLDED = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
    | {"DequantizeLinear", "SequenceConstruct", "SequenceInsert", "SplitToSequence"}
)
HALF = frozenset({"float16", "bfloat16"})
#: Operators that it folds in half precision: those of which its CPU provider, which computes them, has such a kernel.
FOLDED_IN_HALF = frozenset({
    "Cast", "CastLike", "Clip", "Concat", "ConstantOfShape", "Dropout", "Expand", "Flatten", "Gather",
    "GatherElements", "GatherND", "Identity", "IsInf", "IsNaN", "LayerNormalization", "Max", "Min", "Mod", "Reshape",
    "Round", "ScatterElements", "ScatterND", "Shape", "Sign", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
})  # fmt: skip
KnownDims = tuple[int | str | None, ...]  # a size, the name of an open dimension, or None: open, without a name


class Open(int):
    """A size that the session does not know before it runs.

    symbol: the name of the dimension, "" without one; from_data: it depends on the content of inputs, not on their
    shapes, and this number is an upper bound or assumed; ranked: whether the session knows how many axes there are.
    """

    symbol: str
    from_data: bool
    ranked: bool

    def __new__(cls, size: int, symbol: str = "", from_data: bool = False, ranked: bool = True) -> Open:
        self = super().__new__(cls, size)
        self.symbol, self.from_data, self.ranked = symbol, from_data, ranked
        return self


def known_dims(t: Tensor) -> KnownDims | None:
    """The shape of a tensor as a session knows it before it runs; None where not even its rank is known."""
    if any(isinstance(d, Open) and not d.ranked for d in t.shape):
        return None
    return tuple([(d.symbol or None) if isinstance(d, Open) else d for d in t.shape])


def is_static(t: Tensor) -> bool:
    """Whether a session knows every size of a tensor before it runs."""
    return not any(isinstance(d, Open) for d in t.shape)


def depends_on_data(t: Tensor) -> bool:
    """Whether a size of a tensor depends on the content of inputs, so that the one it has is an upper bound."""
    return any(isinstance(d, Open) and d.from_data for d in t.shape)


def reopened(shape: Sequence[int], dims: Sequence[int | None] | None, from_data: bool = False) -> tuple[int, ...]:
    """A shape of which a session knows only these sizes; None: not even how many there are. from_data: the content of
    inputs decides the others.
    """
    if dims is None or len(dims) != len(shape):
        return tuple([Open(d, "", from_data, ranked=False) for d in shape])
    return tuple([d if k is not None else Open(d, "", from_data) for d, k in zip(shape, dims, strict=True)])


def shape_is_lost(type: str, opset: int) -> bool:
    """Whether a session learns the shape of an operator's result only when it runs the operator."""
    return type in COMPARISONS and 0 < opset < 16


def same_dims(dims: KnownDims, other: KnownDims) -> bool:
    """Whether a session knows two shapes, or parts of them, to be equal: in sizes, or in names of open dimensions."""
    return dims == other and None not in dims


def fixed(graph: Graph) -> Graph:
    """The graph of a session in which every size is fixed that inputs have; those that depend on content stay open.

    That is what ONNX Runtime's `add_free_dimension_override_by_name` makes of it: shape arithmetic is folded.
    """
    if all(map(is_static, graph.inputs)):
        return replace(graph)
    folded, lost = dict[str, Tensor](), set[str]()
    operators = list[Operator]()

    def closed(t: Tensor) -> Tensor:
        if t.name in lost:
            return replace(t, shape=reopened(t.shape, None))
        if t.name in folded or is_static(t):
            return folded.get(t.name, t)
        return replace(t, shape=tuple([d if not isinstance(d, Open) or d.from_data else int(d) for d in t.shape]))

    for o in graph.operators:
        inputs = tuple([None if t is None else closed(t) for t in o.inputs])
        if shape_is_lost(o.type, o.version) or any(t.name in lost for t in o.present):
            to_stored = o.type == "Reshape" and len(inputs) > 1 and inputs[1] is not None and inputs[1].stored
            lost.update(t.name for t in o.outputs if not to_stored)
        decided = o.type == "If" and all(t.stored for t in inputs if t is not None)  # its branch stands behind it
        if is_known(o.type, inputs) or decided:
            folded |= {t.name: replace(closed(t), kind="constant") for t in o.outputs}
        else:
            operators.append(replace(o, inputs=inputs, outputs=tuple(map(closed, o.outputs))))
    ins, outputs = tuple(map(closed, graph.inputs)), tuple(map(closed, graph.outputs))
    return without_unneeded(replace(graph, operators=tuple(operators), inputs=ins, outputs=outputs))


def is_known(type: str, inputs: Sequence[Tensor | None]) -> bool:
    """Whether a session computes an operator before it runs: it depends on stored tensors or known sizes alone."""
    if "::" in type or type in NEVER_FOLDED | SELECTIONS | CONTROL:
        return False
    if type not in FOLDED_IN_HALF and any(t.dtype in HALF for t in inputs if t is not None):
        return False
    if type in ("Shape", "Size") and inputs and inputs[0] is not None and is_static(inputs[0]):
        return True  # ONNX Runtime wants all sizes, whichever of them is asked for
    return all(t.stored for t in inputs if t is not None)


def without_unneeded(graph: Graph) -> Graph:
    """The graph without operators that no output depends on; those of control flow, which belong together, all stay."""
    flow = tuple(o.name for o in graph.operators if o.type in CONTROL)
    needed, live = {t.name for t in graph.outputs}, list[Operator]()
    for o in reversed(graph.operators):
        if (flow and o.name.startswith(flow)) or any(t.name in needed for t in o.outputs):
            live.append(o)
            needed.update(t.name for t in o.present)
    return replace(graph, operators=tuple(reversed(live)))

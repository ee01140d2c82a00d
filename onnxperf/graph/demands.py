"""The shape that a tensor must have for what follows it to run: it is asked where nothing says what its maker makes.

A weight that it is multiplied by, the scale of a normalisation, and the shapes that the file declares behind it say how
many axes it has and how long they are; elementwise operators and those that move data pass that on to what they read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any, NamedTuple

from onnx import GraphProto, NodeProto

from onnxperf.graph.proto import MAX_ELEMENTS, Dims, Shape, attributes, operator_type
from onnxperf.graph.values import Values, constant
from op_models import Tensor

MAX_VISITED = 256  # nodes behind one tensor, so that a file of many unknown operators takes no longer for each


class Demand(NamedTuple):
    """What is known of a shape. dims: sizes by axis, counted from the end, -1 and so on, where the rank is not known;
    size: elements of the tensor; dtype: of its elements, "" where nothing says so.
    """

    rank: int | None = None
    dims: Mapping[int, int] = {}
    size: int | None = None
    dtype: str = ""

    def of_rank(self, rank: int | None) -> Demand:
        """The same with a rank, its axes counted from the front."""
        if rank is None:
            return self
        dims = {a + rank if a < 0 else a: d for a, d in self.dims.items()}
        return self._replace(rank=rank, dims={a: d for a, d in dims.items() if 0 <= a < rank})

    def get(self, axis: int) -> int | None:
        """The size of an axis, where it is known."""
        return self.dims.get(axis + self.rank if axis < 0 and self.rank is not None else axis)

    def joined(self, other: Demand) -> Demand:
        """Both together; where they contradict each other, this one."""
        if self.rank is not None and other.rank is not None and self.rank != other.rank:
            return self
        rank = self.rank if self.rank is not None else other.rank
        a, b = self.of_rank(rank), other.of_rank(rank)
        size = a.size if a.size is not None else b.size
        return Demand(rank, {**b.dims, **a.dims}, size, a.dtype or b.dtype)

    def shape(self, first: Shape) -> Shape:
        """The whole shape, what is open of it as in that of the first input of the tensor's maker: its own axes, where
        it has as many, else its batch, those behind it as far as they divide its elements, and the last open one holds
        the rest of them, as where heads are split or joined.
        """
        demand = self.of_rank(len(first) if self.rank is None else self.rank)
        rank, dims = demand.rank or 0, dict(demand.dims)
        if len(missing := [a for a in range(rank) if a not in dims]) == 1 and demand.size is not None:
            dims[missing[0]] = demand.size // max(prod(dims.values()), 1)
        elif rank == len(first):
            dims = {**dict(enumerate(first)), **dims}
        elif first:
            dims.setdefault(0, first[0])
            for axis in missing:
                left, more = divmod(prod(first), max(prod(dims.values()), 1))
                rest = left if left and not more else 1
                divides = axis < len(first) - 1 and first[axis] and not rest % first[axis]
                dims.setdefault(axis, rest if axis == missing[-1] else first[axis] if divides else 1)
        return tuple([dims.get(a, 1) for a in range(rank)])


NOTHING = Demand()


def exactly(dims: Dims | None) -> Demand:
    """What a shape says of which some sizes may be open."""
    return NOTHING if dims is None else Demand(len(dims), {a: d for a, d in enumerate(dims) if d is not None})


class Demands:
    """What the readers of tensors demand, in the graph and in bodies, as far as it is known by now.

    graphs: that of the model and bodies, each with the names that its tensors have in the graph; tensors, values:
    those known so far; declared: what the file says of others. All grow while a model is inferred.
    """

    def __init__(
        self, graphs: Sequence[tuple[GraphProto, Mapping[str, str]]], tensors: Mapping[str, Tensor], values: Values,
        declared: Callable[[str], Dims | None],
    ):  # fmt: skip
        self._graphs, self._tensors, self._values, self._declared = graphs, tensors, values, declared
        self._entered = 0  # graphs that are looked up below
        self._readers: dict[str, list[tuple[NodeProto, int]]] = defaultdict(list)
        self._makers: dict[str, NodeProto] = {}
        self._names: dict[int, Mapping[str, str]] = {}
        self._visited = 0
        self.first: Shape = ()

    def solved(self, name: str, dims: Dims | None, first: Shape) -> Shape | None:
        """The shape that what reads a tensor needs, of which these dimensions are known; None where that says nothing.

        first: the shape of the first input of its maker.
        """
        demand = self.of(name, first)
        if demand == Demand(dtype=demand.dtype):
            return None
        shape = exactly(dims).joined(demand).shape(first)
        return shape if all(d >= 0 for d in shape) and prod(shape) <= MAX_ELEMENTS else None

    def of(self, name: str, first: Shape) -> Demand:
        """What the readers of a tensor demand of it; first: the shape of the first input of its maker, which it has
        where an operand of an elementwise operator can have it.
        """
        self._visited, self.first = 0, first
        for graph, names in self._graphs[self._entered :]:
            for node in graph.node:
                for i, read in enumerate(node.input):
                    self._readers[names.get(read, read)].append((node, i))
                self._makers.update((names.get(o, o), node) for o in node.output)
                self._names[id(node)] = names
        self._entered = len(self._graphs)
        return self.behind(name)

    def behind(self, name: str) -> Demand:
        """What a tensor is declared as, and what its readers demand."""
        demand = exactly(self._declared(name))
        for node, index in self._readers.get(name, ()):
            self._visited += 1
            if self._visited > MAX_VISITED or (demand.rank is not None and len(demand.dims) == demand.rank):
                break
            if (rule := RULES.get(operator_type(node))) is not None:
                with suppress(ArithmeticError, IndexError, TypeError, ValueError):  # a form that it can't have
                    demand = demand.joined(rule(_Reader(self, node, self._names[id(node)], index)))
        return demand

    def shape(self, name: str) -> Shape | None:
        """The shape of a tensor that is known already, or follows from stored ones alone."""
        if (tensor := self._tensors.get(name)) is not None:
            return tensor.shape
        node = self._makers.get(name)
        if node is None:
            return None
        if node.op_type == "Constant":
            content = constant(node, None)
            return content[1] if content else None
        self._visited += 1
        names = self._names[id(node)]
        if self._visited > MAX_VISITED or node.op_type not in ("Transpose", *KEEPS) or not node.input:
            return None
        shape = self.shape(names.get(node.input[0], node.input[0]))
        if node.op_type == "Transpose" and shape is not None:
            perm = attributes(node).get("perm", range(len(shape))[::-1])
            return tuple([shape[a] for a in perm]) if sorted(perm) == list(range(len(shape))) else None
        return shape

    def value(self, name: str) -> list[int] | None:
        """The whole numbers of a tensor that is known already, or a Constant."""
        value, node = self._values.get(name), self._makers.get(name)
        if value is None and node is not None and node.op_type == "Constant":
            content = constant(node, None)
            value = content[2] if content else None
        return [int(v) for v in value.ravel()] if value is not None and value.dtype.kind in "iu" else None

    def dtype(self, name: str) -> str:
        """The dtype of a tensor that is known already, "" of another."""
        return self._tensors[name].dtype if name in self._tensors else ""


class _Reader:
    """A node that reads a tensor as its input number `index`."""

    def __init__(self, demands: Demands, node: NodeProto, names: Mapping[str, str], index: int):
        self.demands, self.index, self.type = demands, index, node.op_type
        self.inputs = [names.get(i, i) for i in node.input]
        self.outputs = [names.get(o, o) for o in node.output]
        self.attrs: dict[str, Any] = attributes(node)

    def behind(self) -> Demand:
        """What is known of the first output."""
        return self.demands.behind(self.outputs[0]) if self.outputs and self.outputs[0] else NOTHING

    def shape(self, index: int) -> Shape | None:
        """The shape of an input, where it is known."""
        return self.demands.shape(self.inputs[index]) if index < len(self.inputs) else None

    def numbers(self, index: int, attribute: str) -> list[int] | None:
        """Whole numbers that an attribute or, in later opsets, an input gives."""
        if attribute in self.attrs:
            return list(self.attrs[attribute])
        return self.demands.value(self.inputs[index]) if index < len(self.inputs) else None


def _same(r: _Reader) -> Demand:
    return r.behind() if r.index == 0 else NOTHING


def _elementwise(r: _Reader) -> Demand:
    """The result's shape; where that is not known, as long as the other operands in their axes, counted from the end.

    An axis along which all other operands are 1 long is as long as the result's.
    """
    demand = r.behind()
    others = [s for i in range(len(r.inputs)) if i != r.index and (s := r.shape(i)) is not None]
    longer = {a - len(s): d for s in others for a, d in enumerate(s) if d > 1}
    highest = max(map(len, others), default=0)
    demand = demand.joined(Demand(highest if highest > 2 and demand.rank is None else None, longer))
    return NOTHING if _spreads(r.demands.first, demand) else demand


def _spreads(shape: Shape, demand: Demand) -> bool:
    """Whether an operand of this shape can be spread over a result of which this is known."""
    rank = demand.rank if demand.rank is not None else max(len(shape), *(-a for a in demand.dims), 0)
    aligned = zip(range(rank - 1, -1, -1), reversed(shape), strict=False)
    return len(shape) <= rank and all(d == 1 or demand.of_rank(rank).get(a) in (None, d) for a, d in aligned)


def _matmul(r: _Reader) -> Demand:
    places = (0, 3) if r.type == "QLinearMatMul" else (0, 1)
    if r.index not in places:
        return NOTHING
    left, other = r.index == 0, r.shape(places[r.index == 0])
    if other is None or not other:
        return NOTHING
    inner = other[-1] if len(other) == 1 or not left else other[-2]
    product = r.behind()
    rank = product.rank if len(other) > 1 and (product.rank or 0) >= len(other) else None
    kept = {a: d for a, d in product.dims.items() if rank is not None or a < 0}
    end = rank or 0
    kept.pop(end - 1 if left else end - 2, None)
    dtype = r.demands.dtype(r.inputs[places[left]])
    return Demand(rank, {**kept, (end - 1 if left else end - 2): inner}, dtype=dtype if r.type == "MatMul" else "")


def _matmul_packed(r: _Reader) -> Demand:
    """MatMulNBits and its like have the sizes of their weights as attributes."""
    product = r.behind()
    kept = {a: d for a, d in product.dims.items() if a not in (-1, (product.rank or 0) - 1)}
    inner = {(product.rank or 0) - 1: int(r.attrs["K"])} if isinstance(r.attrs.get("K"), int) else {}
    return Demand(product.rank, {**kept, **inner}) if r.index == 0 else NOTHING


def _gemm(r: _Reader) -> Demand:
    if r.index > 1:
        return NOTHING
    product, other, left = r.behind(), r.shape(1 - r.index), r.index == 0
    turned, others = (bool(r.attrs.get(a)) for a in (("transA", "transB") if left else ("transB", "transA")))
    inner = other[left == others] if other is not None and len(other) == 2 else None
    outer = product.get(0 if left else 1) if product.rank == 2 else None
    sizes = (outer, inner) if left != turned else (inner, outer)
    return exactly(sizes)._replace(dtype=r.demands.dtype(r.inputs[1 - r.index]))


def _window(r: _Reader) -> Demand:
    """Images [N, C, ...]: channels as the weights have them, positions that give as many results as are known."""
    place = {"QLinearConv": 3}.get(r.type, 1)
    weighted = r.type.endswith(("Conv", "ConvInteger", "ConvTranspose"))
    w = r.shape(place) if weighted else None
    if r.index or (weighted and w is None):
        return NOTHING
    result = r.behind()
    kernel = r.attrs.get("kernel_shape") or (w[2:] if w is not None else ())
    rank, n = (len(w) if w is not None else len(kernel) + 2), len(kernel)
    if result.rank is not None and result.rank != rank:
        result = NOTHING
    sizes: list[int | None] = [result.get(0), None if w is not None else result.get(1), *[None] * n]
    if w is not None:
        sizes[1] = w[0] if r.type == "ConvTranspose" else w[1] * int(r.attrs.get("group", 1))
    if r.type != "ConvTranspose" and result.rank is not None:
        strides, dilations = r.attrs.get("strides") or (1,) * n, r.attrs.get("dilations") or (1,) * n
        pads, auto = r.attrs.get("pads") or (0,) * 2 * n, r.attrs.get("auto_pad", "NOTSET")
        for a in range(n):
            if (count := result.get(2 + a)) is None:
                continue
            padded = pads[a] + pads[a + n] if auto == "NOTSET" else 0
            least = (count - 1) * strides[a] + (kernel[a] - 1) * dilations[a] + 1 - padded
            # of several that fit, the one that the strides divide: halved images are even
            most = least + strides[a] - 1
            sizes[2 + a] = count * strides[a] if auto.startswith("SAME") else most - most % strides[a] if (
                most - most % strides[a] >= least) else least  # fmt: skip
    return exactly(sizes)._replace(dtype=r.demands.dtype(r.inputs[place]) if r.type == "Conv" else "")


def _pooled(r: _Reader) -> Demand:
    """Global pools: the images and channels of the result."""
    result = r.behind()
    return Demand(result.rank, {a: d for a, d in result.dims.items() if a in (0, 1) and result.rank is not None})


def _normalised(r: _Reader) -> Demand:
    """As the result; the last axes are those of the scale, which is the input behind those that are added first."""
    added = 2 if r.type.startswith("Skip") else 1
    scale = r.shape(added)
    if r.index >= added:
        return NOTHING
    demand = Demand(dims={a - len(scale): d for a, d in enumerate(scale) if d > 1}) if scale else NOTHING
    return r.behind().joined(demand)


def _by_channel(r: _Reader) -> Demand:
    """As the result; the second axis is as long as the parameters."""
    scale, demand = r.shape(1), r.behind()
    if r.index or not scale or len(scale) != 1:
        return NOTHING if r.index else demand
    if demand.rank is None:
        return Demand(None, {1: scale[0]})
    return demand.joined(Demand(demand.rank, {1: scale[0]}))


def _transpose(r: _Reader) -> Demand:
    result, perm = r.behind(), r.attrs.get("perm")
    rank = len(perm) if perm is not None else result.rank
    if rank is None or result.rank not in (None, rank):
        return NOTHING
    perm = perm if perm is not None else tuple(range(rank))[::-1]
    return Demand(rank, {perm[a]: d for a, d in result.dims.items() if 0 <= a < rank}, result.size, result.dtype)


def _reshape(r: _Reader) -> Demand:
    if r.index:
        return NOTHING
    result = r.behind()
    whole = result.rank is not None and len(result.dims) == result.rank
    size = prod(result.dims.values()) if whole else None
    if r.type == "Flatten":
        axis = r.attrs.get("axis", 1)
        return Demand(None, {0: result.get(0)} if axis == 1 and result.get(0) else {}, size)  # type: ignore[dict-item]
    target = r.demands.value(r.inputs[1]) if r.type == "Reshape" and len(r.inputs) > 1 else None
    if target is not None and min(target, default=0) > 0:
        size = prod(target)
    return Demand(size=size, dtype=result.dtype)


def _unsqueeze(r: _Reader) -> Demand:
    result, axes = r.behind(), r.numbers(1, "axes")
    if r.index or axes is None or result.rank is None:
        return NOTHING
    places = {a % result.rank for a in axes}
    return exactly([result.get(a) for a in range(result.rank) if a not in places])


def _squeeze(r: _Reader) -> Demand:
    result, axes = r.behind(), r.numbers(1, "axes")
    if r.index or axes is None or result.rank is None:
        return NOTHING
    rank, sizes = result.rank + len(axes), iter(range(result.rank))
    places = {a % rank for a in axes}
    return exactly([1 if a in places else result.get(next(sizes)) for a in range(rank)])


def _concat(r: _Reader) -> Demand:
    """As the result and, but for the axis along which they are joined, as the other inputs."""
    result, axis = r.behind(), r.attrs.get("axis", 0)
    others = [r.shape(i) for i in range(len(r.inputs)) if i != r.index]
    first = next(filter(None, others), None)
    rank = result.rank if result.rank is not None else len(first) if first else None
    if rank is None or not -rank <= axis < rank:
        return NOTHING
    at, whole = axis % rank, result.get(axis % rank) if result.rank is not None else None
    dims = {a: d for a, d in (*enumerate(first or ()), *result.dims.items()) if a != at}
    if whole is not None and all(s is not None and len(s) == rank for s in others):
        dims[at] = max(whole - sum(s[at] for s in others if s is not None), 0)
    return Demand(rank, dims)


def _reduced(r: _Reader) -> Demand:
    """The axes of the result that are not reduced, where these are known and stay as axes of length 1."""
    result, axes = r.behind(), r.numbers(1, "axes")
    if r.index or axes is None or result.rank is None:
        return NOTHING
    rank = result.rank if r.attrs.get("keepdims", 1) else result.rank + len(axes)
    places, sizes = {a % rank for a in axes}, iter(range(result.rank))
    if rank == result.rank:
        return exactly([None if a in places else result.get(a) for a in range(rank)])
    return exactly([None if a in places else result.get(next(sizes)) for a in range(rank)])


def _table(types: Sequence[str], rule: Callable[[_Reader], Demand]) -> dict[str, Callable[[_Reader], Demand]]:
    return dict.fromkeys(types, rule)


#: Operators whose result has the shape of their first input.
KEEPS = (
    "Abs", "Cast", "Ceil", "Clip", "Cos", "CumSum", "DequantizeLinear", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu",
    "HardSigmoid", "HardSwish", "Hardmax", "Identity", "LRN", "LeakyRelu", "Log", "LogSoftmax", "LpNormalization",
    "MeanVarianceNormalization", "Mish", "Neg", "Not", "QuantizeLinear", "Reciprocal", "Relu", "Round", "Selu",
    "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Softsign", "Sqrt", "Swish", "Tanh", "ThresholdedRelu", "Trilu",
)  # fmt: skip
RULES: dict[str, Callable[[_Reader], Demand]] = {
    **_table(KEEPS, _same),
    **_table(("com.microsoft::BiasGelu", "com.microsoft::FastGelu", "com.microsoft::Gelu",
              "com.microsoft::QuickGelu"), _same),
    **_table(("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min",
              "Mod", "Mul", "Or", "Pow", "PRelu", "Sub", "Sum", "Where", "Xor"), _elementwise),
    **_table(("MatMul", "MatMulInteger", "QLinearMatMul"), _matmul),
    **_table(("com.microsoft::MatMulNBits", "com.microsoft::MatMulBnb4", "com.microsoft::MatMulFpQ4"), _matmul_packed),
    "Gemm": _gemm,
    **_table(("Conv", "ConvInteger", "QLinearConv", "ConvTranspose", "AveragePool", "LpPool", "MaxPool"), _window),
    **_table(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), _pooled),
    **_table(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization",
              "com.microsoft::SkipLayerNormalization", "com.microsoft::SkipSimplifiedLayerNormalization"), _normalised),
    **_table(("BatchNormalization", "InstanceNormalization", "GroupNormalization"), _by_channel),
    "Transpose": _transpose, "Reshape": _reshape, "Flatten": _reshape, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze,
    "Concat": _concat,
    **_table([f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum",
                                           "SumSquare")], _reduced),
}  # fmt: skip

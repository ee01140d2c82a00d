"""8-bit networks in TensorRT: which tensors lie in 8 bits between kernels, and what the rest is computed in.

TensorRT moves each QuantizeLinear (Q) into the kernel that writes what it reads, and each DequantizeLinear (DQ) into
the kernels that read what it writes (developer guide, "Q/DQ Layer-Placement Recommendations"). Assumed of an engine:

- it is built with the FP16 flag beside that for 8 bits (trtexec --best): what is not in 8 bits is in FP16, but for the
  network's inputs and outputs, which have the type in the file;
- a tensor lies in 8 bits where every reader quantises it; what only moves or chooses elements is done in 8 bits;
- requantisation between a product and its activation or residual is part of the product's kernel;
- `--precision int8` or `fp8` stands for a calibrated network, each tensor of which has a range: elementwise operators
  and pooling whose result is read in 8 bits run in 8 bits too, residuals included. In a file with Q and DQ a tensor
  that is read without Q, such as a residual, stays in FP16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from onnxperf.fusions.common import narrow
from onnxperf.fusions.engine import Pass
from onnxperf.fusions.ort_quantised import MOVES
from onnxperf.graph import Graph
from onnxperf.passes.precision import CALIBRATED, precision
from op_models import FLOATS, Operator, Tensor

Q, DQ = "QuantizeLinear", "DequantizeLinear"
POOLS = ("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax")
#: Operators that a Q behind them can move before: they only move or choose elements.
COMMUTING = frozenset({*MOVES, "Concat", "Split", "Pad", "DepthToSpace", "SpaceToDepth", "Slice", "Unsqueeze"})


def in_half(graph: Graph) -> Graph:
    """A network with quantised operands is otherwise computed in half precision; its inputs and outputs are converted.

    bfloat16 where the file has it, float16 in all others.
    """
    floats = {t.dtype for o in graph.operators for t in (*o.present, *o.outputs) if t.dtype in FLOATS}
    if "float32" not in floats or not any(o.type in (Q, DQ) for o in graph.operators):
        return graph
    short = "bf16" if "bfloat16" in floats else "fp16"
    return outside(precision(graph, short), {t.name: t for t in (*graph.inputs, *graph.outputs)})


def outside(graph: Graph, types: Mapping[str, Tensor]) -> Graph:
    """The graph with those of its inputs and outputs that are named in `types` as these say: a Cast converts each."""
    edge = {t.name: types.get(t.name, t) for t in (*graph.inputs, *graph.outputs)}
    inner = {t.name: replace(t, name=f"{t.name}#{t.dtype}")
             for t in (*graph.inputs, *graph.outputs) if edge[t.name].dtype != t.dtype}  # fmt: skip

    def reformat(t: Tensor, read: Tensor, written: Tensor) -> Operator:
        beside = [o for o in graph.operators if t in o.inputs or t in o.outputs]  # the layers that it is there for
        nodes = tuple(dict.fromkeys(n for o in beside for n in o.nodes))
        return Operator(f"{t.name}#reformat", "Cast", (read,), (written,), nodes=nodes)

    def inside(o: Operator) -> Operator:
        if not any(t.name in inner for t in (*o.present, *o.outputs)):
            return o
        inputs = tuple(t and inner.get(t.name, t) for t in o.inputs)
        return replace(o, inputs=inputs, outputs=tuple(inner.get(t.name, t) for t in o.outputs))

    first = (reformat(t, edge[t.name], inner[t.name]) for t in graph.inputs if t.name in inner)
    last = (reformat(t, inner[t.name], edge[t.name]) for t in graph.outputs if t.name in inner)
    inputs, outputs = (tuple(edge[t.name] for t in ts) for ts in (graph.inputs, graph.outputs))
    return replace(graph, operators=(*first, *map(inside, graph.operators), *last), inputs=inputs, outputs=outputs)


def between_kernels(products: frozenset[str], elementwise: frozenset[str], rows: frozenset[str]) -> Pass:
    """The pass that takes Q and DQ into the kernels beside them, of these types, and narrows the tensors between."""
    easy = elementwise | rows | COMMUTING | frozenset(POOLS)

    def run(graph: Graph) -> Graph:
        if not any(o.type in (Q, DQ) for o in graph.operators):
            return graph
        return _Network(graph, products, elementwise, easy).result()

    return Pass("8 bits between kernels", run)


class _Network:
    """A graph with Q and DQ, and what is found of it.

    products, elementwise: types of operators; easy: types of those that can read and write 8 bits beside products.
    narrowed: by name, the tensors that come to lie in 8 bits, with their new type.
    """

    def __init__(self, graph: Graph, products: frozenset[str], elementwise: frozenset[str], easy: frozenset[str]):
        self.graph, self.products, self.easy = graph, products, easy
        self.calibrated = any(o.attrs.get(CALIBRATED) for o in graph.operators if o.type == Q)
        self.quantising = COMMUTING | (elementwise | frozenset(POOLS) if self.calibrated else frozenset())
        self.readers: dict[str, list[Operator]] = {}
        for o in graph.operators:
            for t in o.present:
                self.readers.setdefault(t.name, []).append(o)
        quantised = [o for o in graph.operators if o.type == DQ]
        self.dequantising = {o.out.name: o for o in quantised}
        self.dequantised = {o.out.name: o.present[0] for o in quantised}
        self.narrowed: dict[str, str] = {}
        for o in reversed(graph.operators):
            self.narrowed |= {t.name: dtype for t in o.outputs if (dtype := self._quantised_as(o, t))}

    def _quantised_as(self, maker: Operator, t: Tensor) -> str:
        """The type in which a tensor comes to lie, where that is a quantised one; "" where it stays as it is."""
        readers = self.readers.get(t.name, [])
        writes = maker.type in self.products or (maker.type in self.easy and maker.type not in (Q, DQ))
        if not writes or t.dtype not in FLOATS or narrow(t) or t.name in self.graph.output_names:
            return ""
        dtypes = [self._wants(r, t) for r in readers]
        types = {dtype for dtype in dtypes if dtype}
        rest = [r for r, dtype in zip(readers, dtypes, strict=True) if not dtype]
        if len(types) != 1 or (rest and not (self.calibrated and all(r.type in self.easy for r in rest))):
            return ""
        return types.pop()

    def _wants(self, reader: Operator, t: Tensor) -> str:
        """The 8-bit type in which an operator reads a tensor, or could as its own result lies in it; "" where none."""
        if reader.type == Q:
            return reader.out.dtype if reader.inputs[0] == t and narrow(reader.out) else ""
        return self.narrowed.get(reader.out.name, "") if reader.outputs and reader.type in self.quantising else ""

    def _reads_narrow(self, o: Operator, narrowed: Callable[[Tensor], Tensor]) -> bool:
        """Whether an operator takes quantised operands as they are: a product both of its own, or none."""
        if o.type in self.products:
            return len(o.present) > 1 and all(narrow(narrowed(t)) for t in o.present[:2])
        return o.type in self.easy and not all(t.stored for t in o.present)

    def result(self) -> Graph:
        """The graph with the tensors narrowed, and the Q and DQ that are then left."""
        instead: dict[str, Tensor] = {}
        operators: list[Operator] = []

        def now(t: Tensor) -> Tensor:
            """A tensor as a kernel reads it: what it was dequantised from, and what it has become."""
            t = self.dequantised.get(t.name, t)
            return instead.get(t.name, t)

        for o in self.graph.operators:
            folds = self._reads_narrow(o, now)
            inputs = tuple(t and (now(t) if folds else instead.get(t.name, t)) for t in o.inputs)
            outputs = tuple(self._as_narrowed(t) for t in o.outputs)
            instead |= {t.name: new for t, new in zip(o.outputs, outputs, strict=True) if new is not t}
            if o.type == Q and o.present[0].name in self.narrowed and o.out.name not in self.graph.output_names:
                instead[o.out.name] = instead[o.present[0].name]
            elif inputs == o.inputs and outputs == o.outputs:
                operators.append(o)
            else:
                operators.append(replace(o, inputs=inputs, outputs=outputs, nodes=self._nodes(o, folds)))
        read = {t.name for o in operators for t in o.present} | self.graph.output_names
        rest = tuple(o for o in operators if o.type != DQ or o.out.name in read)
        return self.graph if rest == self.graph.operators else replace(self.graph, operators=rest)

    def _as_narrowed(self, t: Tensor) -> Tensor:
        dtype = self.narrowed.get(t.name)
        return t if dtype is None else replace(t, name=f"{t.name}#{dtype}", dtype=dtype)

    def _nodes(self, o: Operator, folds: bool) -> tuple[str, ...]:
        """The nodes that a kernel stands for, with those of the Q behind it and, where it `folds` DQ, before it."""
        before = [self.dequantising[t.name] for t in o.present if t.name in self.dequantised] if folds else []
        narrowed = [t for t in o.outputs if t.name in self.narrowed]
        behind = [r for t in narrowed for r in self.readers[t.name] if r.type == Q]
        return tuple(dict.fromkeys(n for part in (*before, o, *behind) for n in part.nodes))

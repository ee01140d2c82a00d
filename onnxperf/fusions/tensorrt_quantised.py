"""8-bit networks in TensorRT: which tensors lie in 8 bits between kernels, and what the rest is computed in.

TensorRT moves each QuantizeLinear (Q) into the kernel that writes what it reads, and each DequantizeLinear (DQ) into
the kernels that read what it writes (developer guide, "Q/DQ Layer-Placement Recommendations"). Assumed of an engine:

- it is built with the FP16 flag beside that for 8 bits (trtexec --best): what is not in 8 bits is in FP16, but for the
  network's inputs and outputs, which have the type in the file;
- a tensor lies in 8 bits where every reader quantises it; what only moves or chooses elements is done in 8 bits;
- what stands in the file is computed: a pair of Q and DQ between a product and its bias, residual or activation rounds
  there, so that the product writes 8 bits and the rest is another kernel (the guide's suboptimal fusion);
- a product with a residual writes what the residual has: where that is read without Q, a Q behind the sum is a kernel;
- one tensor is written in 8 bits with one scale: where readers quantise it with several, each Q is a kernel;
- `--precision int8` or `fp8` stands for a calibrated network, each tensor of which has a range: elementwise operators
  and pooling whose result is read in 8 bits run in 8 bits too, residuals included. In a file with Q and DQ a tensor
  that is read without Q, such as a residual, stays in FP16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from onnxperf.fusions.common import narrow
from onnxperf.fusions.engine import Pass
from onnxperf.fusions.ort_quantised import MOVES
from onnxperf.graph import Graph, Note
from onnxperf.ground.errors import counted
from onnxperf.passes.precision import CALIBRATED, precision
from op_models import FLOATS, Operator, Tensor

Q, DQ = "QuantizeLinear", "DequantizeLinear"
#: A DQ that parts a product from what would else be in its kernel; it is free, as its reader dequantises.
PARTING = "tensorrt::Parting"
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


def _scale(q: Operator) -> object:
    """The scale of a Q, None where only the file's weights have it."""
    return q.present[1].value if len(q.present) > 1 else None


def _several_scales(readers: Iterable[Operator]) -> bool:
    """Whether what reads a tensor quantises it with scales that are known to differ."""
    return len({scale for r in readers if r.type == Q and (scale := _scale(r)) is not None}) > 1


class _Network:
    """A graph with Q and DQ, and what is found of it.

    products, elementwise: types of operators; easy: types of those that can read and write 8 bits beside products.
    narrowed: by name, the tensors that come to lie in 8 bits, with their new type.
    """

    def __init__(self, graph: Graph, products: frozenset[str], elementwise: frozenset[str], easy: frozenset[str]):
        self.graph, self.products, self.easy = graph, products, easy
        self.calibrated = any(o.attrs.get(CALIBRATED) for o in graph.operators if o.type == Q)
        self.elementwise = elementwise
        self.quantising = COMMUTING | (elementwise | frozenset(POOLS) if self.calibrated else frozenset())
        self.readers = graph.readers
        self.makers = {t.name: o for o in graph.operators for t in o.outputs}
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
        writes = writes and (self.calibrated or not self._adds_residual(maker))
        if not writes or t.dtype not in FLOATS or narrow(t) or t.name in self.graph.output_names:
            return ""
        dtypes = [self._wants(r, t) for r in readers]
        types = {dtype for dtype in dtypes if dtype}
        rest = [r for r, dtype in zip(readers, dtypes, strict=True) if not dtype]
        if (
            len(types) != 1
            or _several_scales(readers)
            or (rest and not (self.calibrated and all(r.type in self.easy for r in rest)))
        ):
            return ""
        return types.pop()

    def _adds_residual(self, o: Operator) -> bool:
        """Whether the kernel that ends with an operator is a product to which a residual is added that has no Q."""
        while o.type in self.elementwise and o.type != "Add":
            read = [t for t in o.present if not t.stored]
            if len(read) != 1 or len(self.readers[read[0].name]) > 1 or read[0].name not in self.makers:
                return False
            o = self.makers[read[0].name]
        read = [t for t in o.present if not t.stored]
        if o.type != "Add" or len(read) != 2 or any(t.shape != o.out.shape for t in read):
            return False
        makers = [self.makers.get(t.name) for t in read]
        wholly = not any(t.name in self.dequantised for t in read)
        return wholly and any(m is not None and m.type in self.products for m in makers)

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
            t = t if t.name in instead else self.dequantised.get(t.name, t)
            return instead.get(t.name, t)

        for o in self.graph.operators:
            if o.type == DQ and (q := self._parting(o)) is not None:
                x = instead.get(o.present[0].name, o.present[0])
                instead[o.out.name] = replace(o.out, name=f"{o.out.name}#{x.dtype}", dtype=x.dtype)
                parting = replace(o, type=PARTING, place="free", nodes=(*q.nodes, *o.nodes))
                operators.append(replace(parting, inputs=(x,), outputs=(instead[o.out.name],)))
                continue
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

    def _parting(self, dq: Operator) -> Operator | None:
        """The Q that stands with a DQ between a product and what would be in the product's kernel without them."""
        q = self.makers.get(dq.present[0].name)
        maker = self.makers.get(q.present[0].name) if q is not None and q.type == Q else None
        if maker is None or maker.type not in self.products or maker.out.name not in self.narrowed:
            return None
        readers = self.readers.get(dq.out.name, [])
        return q if readers and all(r.type in self.elementwise for r in readers) else None

    def _as_narrowed(self, t: Tensor) -> Tensor:
        dtype = self.narrowed.get(t.name)
        return t if dtype is None else replace(t, name=f"{t.name}#{dtype}", dtype=dtype)

    def _nodes(self, o: Operator, folds: bool) -> tuple[str, ...]:
        """The nodes that a kernel stands for, with those of the Q behind it and, where it `folds` DQ, before it."""
        before = [self.dequantising[t.name] for t in o.present if t.name in self.dequantised] if folds else []
        narrowed = [t for t in o.outputs if t.name in self.narrowed]
        behind = [r for t in narrowed for r in self.readers[t.name] if r.type == Q]
        return tuple(dict.fromkeys(n for part in (*before, o, *behind) for n in part.nodes))


UNFUSED = "unfused-quantisation"
#: Why Q and DQ stay, with what to do and the reason.
REMEDIES = {
    "between": ("quantise behind bias, residual and activation, not before them",
                "they part a convolution or GEMM from what would be in its kernel"),
    "residual": ("put Q and DQ on the shortcut too",
                 "a residual is read without, so that it and the sum are in half precision"),
    "operand": ("quantise both operands, activations per tensor, weights per channel",
                "a convolution or GEMM has one operand that is not quantised, and runs in half precision"),
    "scales": ("give all readers of a tensor one scale",
               "one tensor is quantised with several scales"),
    "readers": ("quantise a tensor for all its readers, or for none",
                "others read the tensor without Q, so that it is in half precision"),
    "operator": ("leave Q and DQ out beside operators that have no 8 bits",
                 "what writes or reads the tensor has none"),
}  # fmt: skip


def unfused(graph: Graph, products: frozenset[str]) -> Iterator[Note]:
    """A note for each reason for which Q and DQ of a file don't become part of the kernels beside them, with what fixes
    it. Those of the network's inputs and outputs are needed and have none; products: types of operators.
    """
    left: dict[str, list[Operator]] = {}
    for o in graph.operators:
        if why := _why_left(graph, o, graph.readers, products):
            left.setdefault(why, []).append(o)
    for why, (remedy, reason) in REMEDIES.items():
        if operators := left.get(why):
            behind = [r for o in operators for r in graph.readers.get(o.out.name, [])]
            if why in ("residual", "readers"):  # what reads or adds a tensor in half precision
                behind += [r for o in operators for r in graph.readers[o.present[0].name] if r.type != Q]
                behind += [m for o in operators if (m := graph.made_by(o.present[0])) is not None and len(m.inputs) > 3]
            nodes = tuple(dict.fromkeys(n for o in (*operators, *behind) for n in o.nodes))
            yield Note(UNFUSED, f"{remedy}: {counted(len(operators), 'Q/DQ pair')} not fused, as {reason}", nodes)


def _why_left(graph: Graph, o: Operator, readers: Mapping[str, list[Operator]], products: frozenset[str]) -> str:
    """Why a Q or DQ is left, by the names of REMEDIES; "" for others, and where it has to be there."""
    if o.type == PARTING:
        return "between"
    if not o.present or not o.outputs or o.attrs.get(CALIBRATED):
        return ""
    x, behind, maker = o.present[0], readers.get(o.out.name, []), graph.made_by(o.present[0])
    added = () if maker is None or maker.type not in products else (*filter(None, maker.inputs[3:]),)
    adds = bool(added) and not any(map(narrow, (x, *added)))
    if o.type not in (Q, DQ):  # a Q may be part of the activation behind the sum
        return "residual" if adds and narrow(o.out) and o.type not in products else ""
    if any(r.type in products and not all(map(narrow, r.present[:2])) for r in _past_dequantising(behind, readers)):
        return "operand"
    if o.type == DQ:
        return "" if o.out.name in graph.output_names or maker is None else "operator"
    if maker is None or maker.type == "Cast" or o.out.name in graph.output_names:
        return ""
    if adds:
        return "residual"
    if _several_scales(readers[x.name]):
        return "scales"
    if any(r.type in products and x in r.inputs[3:] for r in readers[x.name]):
        return "residual"
    return "readers" if len(readers[x.name]) > 1 or x.name in graph.output_names else "operator"


def _past_dequantising(behind: Iterable[Operator], readers: Mapping[str, list[Operator]]) -> Iterator[Operator]:
    """The readers of a tensor, and those of what a DQ makes of it."""
    for r in behind:
        yield r
        if r.type == DQ:
            yield from readers.get(r.out.name, [])

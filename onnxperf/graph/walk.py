"""One walk over the nodes: every tensor gets its static shape, and what is known before the run is folded.

`onnx.shape_inference` infers each node from its inputs' shapes and known values; `onnx.reference` evaluates
small arithmetic on the way (see `values`). What depends on constants and weights alone is done once, ahead of
time, and leaves the graph. The bodies of control flow are walked where they stand (see `flow`).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from math import prod
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto, defs, helper, numpy_helper
from onnx.shape_inference import InferenceError, infer_node_outputs

from onnxperf.errors import ModelError, UsageError
from onnxperf.graph.bind import Binding, declared_dims
from onnxperf.graph.contrib import contributed
from onnxperf.graph.core import Note
from onnxperf.graph.flow import FLOW, Site, scoped
from onnxperf.graph.order import ordered, read_names
from onnxperf.graph.proto import (
    NUMBERS,
    Shape,
    attributes,
    captured,
    check_size,
    closed,
    dims_of,
    domain_of,
    dtype_of,
    is_tensor,
    made_in,
    misuse,
    optional_output,
    plain,
    schema_of,
    static,
    times,
)  # fmt: skip
from onnxperf.graph.shapes import assume, bound, clash, contradiction, fits, through_body
from onnxperf.graph.trips import TripCounts
from onnxperf.graph.values import MAX_VALUE, Array, Values, constant, content, evaluate, first_line, measure, numbers
from op_models import Operator, Tensor, known

#: What is random; and a DequantizeLinear, for weights stay small in memory, and runtimes keep it, too.
NEVER_FOLDED = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
    | {"DequantizeLinear"}
)
#: Elements of values in one walk, so that a file of many can't fill the memory; a number costs 40 bytes.
MAX_KEPT = 1 << 20
SMALL = 64  # elements whose value takes little more than its node, and which are always kept
FLOATS_READ = frozenset({"Resize", "Upsample", "Range"})  # shape inference needs the values of their float inputs


class Walk:
    """The state of one walk: types, tensors and values by name, and what it met on the way."""

    def __init__(
        self, model: ModelProto, binding: Binding, shapes: Mapping[str, Shape], folder: Path | None, trips: TripCounts
    ):
        self.binding = binding
        self.folder = folder
        self.overrides = {name: shape for name, shape in shapes.items() if name not in binding.inputs}
        self.opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in model.opset_import}
        self.opset_ids = list(model.opset_import)
        self.model = model
        self.declared = {i.name: i for i in (*model.graph.value_info, *model.graph.output)}
        self.schema = cache(partial(schema_of, opsets=self.opsets))
        self.tensors: dict[str, Tensor] = {}
        self.types: dict[str, TypeProto] = {}
        self.values: Values = {}
        self.room = MAX_KEPT
        self.vague: set[str] = set()  # tensors whose shape rests on an assumption: no ground to refuse a model
        self.operators: list[Operator] = []
        self.read = read_names(model.graph)
        self.notes = list(binding.notes)
        self.trips = trips
        self.labels: set[str] = set()  # of nodes
        self.depth = 0  # bodies around the node
        self.inlined = 0  # nodes of bodies
        self.costs: dict[str, tuple[int, int]] = {}  # operator -> FLOPs and bytes of one run, where branches compete
        self.together: dict[str, str] = {}  # output of control flow -> the first that its node makes

    # what the walk starts from

    def store(self, graph: GraphProto, names: ChainMap[str, str]) -> None:
        """Define the initialisers of the graph, or of a body with its `names`."""
        for tensor in graph.initializer:
            value, name = content(tensor, self.folder), names.get(tensor.name, tensor.name)
            self.define(name, dtype_of(tensor.data_type), tuple(tensor.dims), "weight", value)
        for sparse in graph.sparse_initializer:
            name = names.get(sparse.values.name, sparse.values.name)
            self.define(name, dtype_of(sparse.values.data_type), tuple(sparse.dims), "weight")

    def nodes(self, graph: GraphProto, names: ChainMap[str, str], prefix: str = "") -> None:
        """Walk the nodes of the graph, or of a body that is called `prefix` and has its own `names`."""
        for node, label in ordered(graph, None if prefix else set(self.tensors), self.labels, prefix):
            self.check_form(node, label)
            if node.op_type in FLOW and not domain_of(node):
                FLOW[node.op_type](Site(self, node, label, names))
            else:
                self.step(scoped(node, names) if prefix else node, label)

    def define(self, name: str, dtype: str, shape: Shape, kind: str, value: Array | None = None) -> Tensor:
        """Enter a tensor under its name; the graph must be in single-assignment form."""
        try:
            check_size(name, shape)
        except ModelError as e:
            raise self.refusal(str(e)) from None
        if value is not None and value.size > SMALL:
            if self.room < (cost := 2 * value.size):  # as an array and as numbers
                value = None
            else:
                self.room -= cost
        tensor = Tensor(name, dtype, shape, kind, None if value is None else numbers(value))
        self.enter(tensor, helper.make_tensor_type_proto(NUMBERS.get(dtype, 0), shape))
        if value is not None:
            self.values[name] = value
        return tensor

    def carry(self, name: str, type: TypeProto, kind: str = "activation") -> Tensor:
        """Enter a sequence, map or optional, which is passed along without cost."""
        tensor = Tensor(name, "opaque", (), kind)
        self.enter(tensor, type)
        return tensor

    def enter(self, tensor: Tensor, type: TypeProto) -> None:
        if tensor.name in self.tensors:
            raise ModelError(f"tensor {tensor.name!r} is defined twice")
        self.tensors[tensor.name] = tensor
        self.types[tensor.name] = type

    @cached_property
    def names(self) -> set[str]:
        """The names of tensors that are taken: the graph's own, and those that bodies were given."""
        return set(made_in(self.model.graph))

    # one node

    def step(self, node: NodeProto, name: str) -> None:
        """Infer one node, evaluate it where its inputs are known, and keep it where it runs."""
        domain = domain_of(node)
        schema = self.schema(node.op_type, domain)
        what = f"{domain}::{node.op_type}" if domain else node.op_type
        if what == "Constant":
            return self.constant(node, name)
        inputs = [self.operand(i, name) if i else None for i in node.input]
        outer = [self.operand(c, name) for c in dict.fromkeys(captured(node)) if c not in node.input]
        vague = any(t.name in self.vague for t in (*inputs, *outer) if t)
        attrs = attributes(node)
        ort = domain == "com.microsoft"
        types = contributed(node, attrs, inputs) if ort else self.infer(schema, node, name, outer, vague)
        ours = [dims_of(types.get(o)) for o in node.output]
        shapes = [t.shape if t is not None else None for t in inputs]
        if wrong := "" if vague or domain else contradiction(what, attrs, shapes, ours):
            raise self.refusal(f"node {name!r} ({what}) does not fit its inputs {self.signature(node)}: {wrong}")
        ahead = what in ("Shape", "Size") and not self.binding.dynamic  # known when a session starts
        folded = schema is not None and node.op_type not in NEVER_FOLDED
        folded = folded and (ahead or all(t.stored for t in inputs if t))
        if what in ("Shape", "Size") and inputs and inputs[0] is not None:
            computed = measure(node, inputs[0].shape)
        else:
            inferred = {o: static(types.get(o)) for o in node.output}
            computed = {} if domain else evaluate(node, self.values, inferred, self.opsets)
        outputs = []
        for index, out in enumerate(node.output):
            if not out or (out not in self.read and optional_output(schema, index)):
                continue  # nobody asked for it, so the kernel does not write it
            type, value = types.get(out), computed.get(out)
            if type is not None and not is_tensor(type) and type.WhichOneof("value"):
                if what == "SequenceInsert" and dims_of(type.sequence_type.elem_type) is None:  # into an empty one
                    type = TypeProto(sequence_type=TypeProto.Sequence(elem_type=self.types[node.input[1]]))
                outputs.append(self.carry(out, type, "constant" if folded else "activation"))
                continue
            most = bound(what, index, inputs, attrs)
            dtype, shape = self.resolve(out, type, value, name, inputs, vague, most)
            kind = "activation" if not folded else "weight" if prod(shape) > MAX_VALUE else "constant"
            outputs.append(self.define(out, dtype, shape, kind, value))
        if not vague:
            self.check_reshape(what, name, inputs, outputs)
        elif not domain and not all(fits(t, types.get(t.name)) for t in outputs):
            what = f"ai.onnx::{node.op_type}"  # its rule would not understand it: it is as good as unknown
        assumed = any(t.name in self.vague for t in outputs)
        if schema is None and (assumed or not known(what)):
            operator = f"{plain(domain or 'ai.onnx')}::{plain(node.op_type)}"
            says = f"{operator} is not defined in onnx; its shapes are {('as the file says', 'assumed')[assumed]}"
            self.notes.append(Note("unknown-operator", says, (name,)))
        if not folded:
            operands = (*inputs, *outer)
            while operands and operands[-1] is None:
                operands = operands[:-1]
            version = self.opsets.get(domain, 0)
            self.operators.append(Operator(name, what, operands, tuple(outputs), attrs, version, (name,)))

    def check_form(self, node: NodeProto, name: str) -> None:
        """Refuse a node of the wrong form."""
        schema = self.schema(node.op_type, domain_of(node))
        if wrong := misuse(node, schema) if schema is not None else "":
            raise ModelError(f"node {name!r} ({plain(node.op_type)}) is malformed: {wrong}")

    def operand(self, read: str, name: str) -> Tensor:
        if read not in self.tensors:  # its maker leaves this output out
            raise ModelError(f"node {name!r} reads {read!r}, which nothing makes")
        return self.tensors[read]

    def constant(self, node: NodeProto, name: str) -> None:
        """A Constant node: its value under its output's name."""
        found = constant(node, self.folder)
        if found is None:
            raise ModelError(f"node {name!r} (Constant) holds no value")
        dtype, shape, value = found
        self.define(node.output[0], dtype, shape, "weight" if prod(shape) > MAX_VALUE else "constant", value)

    def infer(
        self, schema: defs.OpSchema | None, node: NodeProto, name: str, outer: Iterable[Tensor], vague: bool
    ) -> dict[str, TypeProto]:
        """What `onnx.shape_inference` says about a node's outputs; nothing for operators it does not know."""
        if schema is None:
            return {}
        types = {i: self.types[i] for i in (*node.input, *(t.name for t in outer)) if i}
        data = {
            i: numpy_helper.from_array(value.reshape(()) if node.op_type == "Range" and value.size == 1 else value)
            for i in node.input
            if (value := self.values.get(i)) is not None and (value.dtype.kind in "iub" or node.op_type in FLOATS_READ)
        }
        try:
            found: dict[str, TypeProto] = infer_node_outputs(
                schema, node, types, data, opset_imports=self.opset_ids, ir_version=self.model.ir_version
            )
            if not schema.has_type_and_shape_inference_function and any(
                dims_of(found.get(o)) is None for o in node.output if o
            ):
                return through_body(node, types, self.opset_ids, self.model.ir_version)
            return found
        except InferenceError as e:
            why = first_line(e).rpartition("] ")[2].rpartition("): ")[2] or first_line(e)
            message = f"node {name!r} ({node.op_type}) does not fit its inputs {self.signature(node)}: {why}"
        except Exception as e:  # malformed nodes make the C++ side raise whatever it likes
            message = f"node {name!r} ({node.op_type}) is malformed: {first_line(e)}"
        if vague:
            return {}
        raise self.refusal(message)

    def signature(self, node: NodeProto) -> str:
        """The inputs of a node as text: name[1x3x224x224], ..."""
        return ", ".join(f"{plain(i)}[{times(self.tensors[i].shape)}]" for i in node.input if i) or "(none)"

    def refusal(self, message: str) -> ModelError | UsageError:
        """The error for a node that can't be: the request's fault where it changed the file's sizes."""
        why = self.binding.refusal
        return UsageError(f"{why}: {message}") if why else ModelError(message)

    def check_reshape(self, what: str, name: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """A Reshape keeps the number of elements, and must not fold a new batch into another axis."""
        if what != "Reshape" or not inputs[0] or not outputs or inputs[0].dtype == "opaque":
            return
        data, out = inputs[0], outputs[0]
        if data.size != out.size:
            raise self.refusal(f"node {name!r} (Reshape) can't make {times(out.shape)} of {times(data.shape)}")
        target = self.values.get(inputs[1].name) if len(inputs) > 1 and inputs[1] else None
        old, new = self.binding.old_batch, self.binding.batch
        if old is None or target is None or target.size < 2 or not data.shape:
            return
        if data.shape[0] == new and target.flat[0] == old:
            raise self.refusal(f"node {name!r} (Reshape) fixes the leading dimension at {old}")

    # one output

    def resolve(
        self, out: str, type: TypeProto | None, value: Array | None, name: str, inputs: Sequence[Tensor | None],
        vague: bool, most: Shape | None = None,
    ) -> tuple[str, Shape]:  # fmt: skip
        """An output's dtype and static shape: given, evaluated, inferred, declared, or assumed - in this order.

        Where the inputs' own shapes are assumed, what the file declares comes before what is inferred. `most` is the
        upper bound of a shape that depends on data.
        """
        like = next((t for t in inputs if t is not None), None)
        if like is not None and like.dtype == "opaque":  # a sequence: one element
            like = replace(like, shape=static(self.types[like.name].sequence_type.elem_type) or ())
        declared = self.declared.get(out)
        known_types = (type, declared.type if declared is not None else None)
        number = next((n for t in known_types if t is not None and (n := t.tensor_type.elem_type)), 0)
        dtype = dtype_of(number) if number else like.dtype if like else "float32"
        inferred = tuple(value.shape) if value is not None else dims_of(type)
        claimed = self.binding.declared(declared) if declared is not None else None
        given = self.overrides.get(out)
        if given is not None:
            if inferred is not None and not vague and clash(given, inferred):
                made = f"but node {name!r} makes it {times(inferred)}"
                raise UsageError(f"--shapes gives {out!r} the shape {times(given)}, {made}")
            return dtype, given
        if vague and (whole := closed(claimed)) is not None:
            return dtype, whole
        if inferred is not None and declared is not None and claimed != inferred and not vague:
            self.check_claim(out, name, inferred, declared)
        dims = inferred if inferred is not None else claimed
        if inferred is not None and claimed is not None and len(claimed) == len(inferred):
            dims = tuple(c if d is None else d for d, c in zip(inferred, claimed, strict=True))
        if vague:
            self.vague.add(out)
        if (whole := closed(dims)) is not None:
            return dtype, whole
        shape = assume(dims, like, most)
        why, limit = ("can't be inferred", "") if most is None else ("depends on the data", ", its upper bound")
        taken = f"taken as {times(shape)}{limit} (set it with --shapes {plain(out)}:...)"
        self.assume(out, f"the shape of {out!r} {why}; {taken}", name)
        return dtype, shape

    def assume(self, out: str, message: str, name: str) -> None:
        """Note that the shape of a tensor is assumed, so that nothing is refused on its ground."""
        self.vague.add(out)
        self.notes.append(Note("assumed-shape", message, (name,)))

    def check_claim(self, out: str, name: str, inferred: Sequence[int | None], info: ValueInfoProto) -> None:
        """The file's own shape of a tensor must not contradict the inferred one (open dimensions never do)."""
        claimed = declared_dims(info)
        sizes = [d if isinstance(d, int) else None for d in claimed or ()]
        if claimed is not None and not self.binding.refusal and clash(sizes, inferred):
            both = f"the file says {times(claimed)}, its inputs make it {times(inferred)}"
            if not (self.binding.dynamic or self.depth):
                raise ModelError(f"tensor {out!r}, made by node {name!r}, contradicts itself: {both}")
            self.notes.append(Note("stale-shape", f"tensor {out!r}: {both}, which is taken", (name,)))

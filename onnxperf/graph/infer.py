"""One walk over the nodes: every tensor gets its static shape, and what is known before the run is folded.

`onnx.shape_inference` infers each node from its inputs' shapes and known values; `onnx.reference` evaluates
small integer arithmetic on the way (only where the result is small, too). What depends on constants and weights
alone is done once, ahead of time, and leaves the graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    defs,
    external_data_helper,
    helper,
    numpy_helper,
)
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import InferenceError, infer_node_outputs

from onnxperf.errors import ModelError, UsageError
from onnxperf.graph.bind import Binding, check_size, declared_dims
from onnxperf.graph.core import Graph, Note
from onnxperf.graph.order import live_operators, ordered, read_names
from onnxperf.graph.proto import (
    NUMBERS,
    Shape,
    attributes,
    captured,
    dims_of,
    dtype_of,
    is_tensor,
    optional_output,
    schema_of,
    static,
    subgraphs_of,
)
from onnxperf.graph.read import first_line
from op_models import Operator, Tensor

MAX_VALUE = 4096  # elements of a tensor whose content is kept or evaluated
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
FLOATS_READ = frozenset({"Resize", "Upsample", "Range"})  # shape inference needs the values of their float inputs

Values = dict[str, np.ndarray[Any, Any]]


class Walk:
    """The state of one walk: types, tensors and values by name, and what it met on the way."""

    def __init__(self, model: ModelProto, binding: Binding, shapes: Mapping[str, Sequence[int]], folder: Path | None):
        self.binding = binding
        self.folder = folder
        self.overrides = {name: tuple(shape) for name, shape in shapes.items() if name not in binding.inputs}
        self.opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in model.opset_import}
        self.opset_ids = list(model.opset_import)
        self.ir_version = model.ir_version
        self.declared = {i.name: i for i in (*model.graph.value_info, *model.graph.output)}
        self.tensors: dict[str, Tensor] = {}
        self.types: dict[str, TypeProto] = {}
        self.values: Values = {}
        self.operators: list[Operator] = []
        self.read = read_names(model.graph)
        self.notes = list(binding.notes)

    # what the walk starts from

    def start(self, graph: GraphProto) -> tuple[Tensor, ...]:
        """Define inputs and initialisers; the inputs are returned."""
        inputs = []
        for tensor in graph.initializer:
            self.define(tensor.name, dtype_of(tensor.data_type), tuple(tensor.dims), "weight", self.content(tensor))
        for sparse in graph.sparse_initializer:
            self.define(sparse.values.name, dtype_of(sparse.values.data_type), tuple(sparse.dims), "weight")
        for info in graph.input:
            if info.name in self.tensors:
                continue
            if is_tensor(info.type):
                dtype = dtype_of(info.type.tensor_type.elem_type)
                inputs.append(self.define(info.name, dtype, self.binding.inputs[info.name], "input"))
            else:
                self.types[info.name] = info.type
                self.tensors[info.name] = Tensor(info.name, "opaque", (), "input")
        return tuple(inputs)

    def content(self, tensor: TensorProto) -> np.ndarray[Any, Any] | None:
        """The elements of a small initialiser; None where it is big, has no numbers or was not sent along."""
        check_size(tensor.name, tensor.dims)
        if prod(tensor.dims) > MAX_VALUE or tensor.data_type == TensorProto.STRING:
            return None
        try:
            if tensor.data_location == TensorProto.EXTERNAL:
                if self.folder is None or tensor.data_type not in (TensorProto.INT64, TensorProto.INT32):
                    return None
                copy = TensorProto()
                copy.CopyFrom(tensor)
                external_data_helper.load_external_data_for_tensor(copy, str(self.folder))
                tensor = copy
            return numpy_helper.to_array(tensor)
        except Exception as e:  # onnx raises many kinds here, also for files that are not there
            if tensor.data_location == TensorProto.EXTERNAL:
                return None
            raise ModelError(
                f"tensor {tensor.name!r}: its data do not fill its shape {list(tensor.dims)} ({first_line(e)})"
            ) from None

    def define(
        self, name: str, dtype: str, shape: Shape, kind: str, value: np.ndarray[Any, Any] | None = None
    ) -> Tensor:
        """Enter a tensor under its name; the graph must be in single-assignment form."""
        if name in self.tensors:
            raise ModelError(f"tensor {name!r} is defined twice")
        check_size(name, shape)
        known = None
        if value is not None:
            self.values[name] = value
            known = _tuple(value)
        tensor = Tensor(name, dtype, shape, kind, known)
        self.tensors[name] = tensor
        self.types[name] = helper.make_tensor_type_proto(NUMBERS.get(dtype, 0), shape)
        return tensor

    # one node

    def step(self, node: NodeProto, name: str) -> None:
        """Infer one node, evaluate it where its inputs are known, and keep it where it runs."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        if node.op_type == "Constant" and not domain:
            return self.constant(node, name)
        inputs = [self.tensors[i] if i else None for i in node.input]
        outer = [self.tensors[c] for c in dict.fromkeys(captured(node)) if c in self.tensors and c not in node.input]
        schema = schema_of(node.op_type, domain, self.opsets)
        types = self.infer(schema, node, name, [t.name for t in outer])
        plain = schema is not None and not any(True for a in node.attribute for _ in subgraphs_of(a))
        fixed = node.op_type in ("Shape", "Size") and not self.binding.dynamic  # known when a session starts
        stored = plain and (fixed or all(t.stored for t in inputs if t)) and node.op_type not in RANDOM
        outputs = []
        computed = self.evaluate(node, types) if plain else {}
        for index, out in enumerate(node.output):
            if not out or (out not in self.read and optional_output(schema, index)):
                continue  # nobody asked for it, so the kernel does not write it
            type = types.get(out)
            if type is not None and not is_tensor(type) and type.WhichOneof("value"):
                self.types[out] = type
                self.tensors[out] = Tensor(out, "opaque", ())
                outputs.append(self.tensors[out])
                continue
            value = computed.get(out)
            dtype, shape = self.resolve(out, type, value, node, name, inputs)
            kind = "activation" if not stored else "weight" if prod(shape) > MAX_VALUE else "constant"
            outputs.append(self.define(out, dtype, shape, kind, value))
        self.check_batch(node, name, inputs, outputs)
        if schema is None:
            self.note_unknown(node, domain, name)
        if not stored:
            type_name = f"{domain}::{node.op_type}" if domain else node.op_type
            operands = (*inputs, *outer)
            while operands and operands[-1] is None:
                operands = operands[:-1]
            self.operators.append(
                Operator(
                    name,
                    type_name,
                    operands,
                    tuple(outputs),
                    attributes(node),
                    self.opsets.get(domain, 0),
                    (name,),
                )
            )

    def constant(self, node: NodeProto, name: str) -> None:
        """A Constant node: its value under its output's name."""
        a = node.attribute[0] if node.attribute else AttributeProto()
        if a.name == "value":
            dtype, shape, value = dtype_of(a.t.data_type), tuple(a.t.dims), self.content(a.t)
        elif a.name in ("value_float", "value_floats", "value_int", "value_ints"):
            value = np.array(helper.get_attribute_value(a), dtype=np.float32 if "float" in a.name else np.int64)
            dtype, shape = str(value.dtype), value.shape
        elif a.name in ("value_string", "value_strings"):
            dtype, shape, value = "string", (len(a.strings),) if a.name == "value_strings" else (), None
        elif a.name == "sparse_value":
            dtype, shape, value = dtype_of(a.sparse_tensor.values.data_type), tuple(a.sparse_tensor.dims), None
        else:
            raise ModelError(f"node {name!r} (Constant) holds no value")
        self.define(node.output[0], dtype, shape, "weight" if prod(shape) > MAX_VALUE else "constant", value)

    def infer(
        self, schema: defs.OpSchema | None, node: NodeProto, name: str, outer: Iterable[str]
    ) -> dict[str, TypeProto]:
        """What `onnx.shape_inference` says about a node's outputs; nothing for operators it does not know."""
        if schema is None:
            return {}
        types = {i: self.types[i] for i in (*node.input, *outer) if i}
        data = {}
        for i in node.input:
            value = self.values.get(i)
            if value is not None and (value.dtype.kind in "iub" or node.op_type in FLOATS_READ):
                data[i] = numpy_helper.from_array(value)
        try:
            return infer_node_outputs(
                schema, node, types, data, opset_imports=self.opset_ids, ir_version=self.ir_version
            )
        except InferenceError as e:
            why = first_line(e).rpartition("] ")[2].rpartition("): ")[2] or first_line(e)
            message = f"node {name!r} ({node.op_type}) does not fit its inputs {self.signature(node)}: {why}"
        except Exception as e:  # malformed nodes make the C++ side raise whatever it likes
            message = f"node {name!r} ({node.op_type}) is malformed: {first_line(e)}"
        raise self.refusal(message)

    def signature(self, node: NodeProto) -> str:
        """The inputs of a node as text: name[shape], ..."""
        return ", ".join(f"{i}{list(self.tensors[i].shape)}" for i in node.input if i) or "(none)"

    def refusal(self, message: str) -> ModelError | UsageError:
        """The error for a node that can't be: the request's fault where the batch was rewritten, else the model's."""
        old = self.binding.fixed_batch
        if old is None:
            return ModelError(message)
        return UsageError(f"--batch {self.binding.batch} can't be used, the model is made for batch {old}: {message}")

    def check_batch(
        self, node: NodeProto, name: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
        """A Reshape to a literal old batch would silently fold the new batch into another axis: refuse."""
        old, new = self.binding.fixed_batch, self.binding.batch
        if old is None or node.op_type != "Reshape" or not inputs[0] or not inputs[0].shape or not outputs[0].shape:
            return
        target = self.values.get(node.input[1]) if len(node.input) > 1 else None
        if inputs[0].shape[0] == new and target is not None and target.size > 1 and target.flat[0] == old:
            raise self.refusal(f"node {name!r} (Reshape) fixes the leading dimension at {old}")

    def evaluate(self, node: NodeProto, types: Mapping[str, TypeProto]) -> Values:
        """The outputs' content where all inputs' is known and the result is small; else nothing."""
        if node.op_type == "Shape" and node.input[0] in self.tensors:
            shape = self.tensors[node.input[0]].shape
            ends = {a.name: a.i for a in node.attribute}
            return {node.output[0]: np.array(shape[ends.get("start", 0) : ends.get("end", len(shape))], dtype=np.int64)}
        if not all(i in self.values for i in node.input if i) or not node.input or node.op_type in RANDOM:
            return {}
        for out in node.output:
            size = static(types.get(out))
            if out and (size is None or prod(size) > MAX_VALUE):
                return {}
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results = ReferenceEvaluator(node, opsets=self.opsets).run(
                    None, {i: self.values[i] for i in node.input if i}
                )
        except Exception:  # the reference does not implement everything; an unknown value is no error
            return {}
        found = zip((o for o in node.output), results, strict=False)
        return {o: r for o, r in found if isinstance(r, np.ndarray) and r.size <= MAX_VALUE and r.dtype.kind in "iufb"}

    def resolve(
        self,
        out: str,
        type: TypeProto | None,
        value: np.ndarray[Any, Any] | None,
        node: NodeProto,
        name: str,
        inputs: Sequence[Tensor | None],
    ) -> tuple[str, Shape]:
        """An output's dtype and static shape: given, evaluated, inferred, declared, or assumed - in this order."""
        like = next((t for t in inputs if t is not None), None)
        declared = self.declared.get(out)
        number = type.tensor_type.elem_type if type is not None else 0
        if not number and declared is not None and is_tensor(declared.type):
            number = declared.type.tensor_type.elem_type
        dtype = dtype_of(number) if number else like.dtype if like else "float32"
        if out in self.overrides:
            return dtype, self.overrides[out]
        inferred = dims_of(type)
        claimed = self.binding.declared(declared) if declared is not None else None
        if inferred is not None and claimed is not None:
            self.check_claim(out, name, inferred, declared)
        if value is not None:
            return dtype, value.shape
        if inferred is None:
            dims = claimed
        elif claimed is not None and len(claimed) == len(inferred):
            dims = tuple(c if d is None else d for d, c in zip(inferred, claimed, strict=True))
        else:
            dims = inferred
        if dims is not None and None not in dims:
            return dtype, tuple(d for d in dims if d is not None)
        shape = _assume(dims, like)
        self.notes.append(
            Note(
                "assumed-shape",
                f"the shape of {out!r} can't be inferred; taken as {'x'.join(map(str, shape)) or 'a scalar'}"
                f" (set it with --shapes {out}:...)",
                (name,),
            )
        )
        return dtype, shape

    def check_claim(self, out: str, name: str, inferred: Sequence[int | None], info: ValueInfoProto | None) -> None:
        """The file's own shape of a tensor must not contradict the inferred one (open dimensions never do)."""
        claimed = declared_dims(info) if info is not None else None
        if claimed is None or self.binding.fixed_batch is not None or self.overrides:
            return
        clash = len(claimed) != len(inferred) or any(
            isinstance(c, int) and d is not None and c != d for c, d in zip(claimed, inferred, strict=True)
        )
        if clash:
            said, found = _text(claimed), _text(inferred)
            who = f"tensor {out!r}, made by node {name!r}, contradicts itself"
            raise ModelError(f"{who}: the file says {said}, its inputs make it {found}")

    def note_unknown(self, node: NodeProto, domain: str, name: str) -> None:
        what = f"{domain or 'ai.onnx'}::{node.op_type}"
        self.notes.append(
            Note(
                "unknown-operator",
                f"{what} is not defined in onnx; its shapes are assumed from its inputs",
                (name,),
            )
        )


def infer(
    model: ModelProto, binding: Binding, shapes: Mapping[str, Sequence[int]], name: str, folder: Path | None
) -> Graph:
    """The static, folded `Graph` of a model whose inputs are bound.

    Raises ModelError for graphs that contradict themselves and UsageError for requests they can't meet.
    """
    walk = Walk(model, binding, shapes, folder)
    inputs = walk.start(model.graph)
    for node, label in ordered(model.graph, set(walk.tensors)):
        walk.step(node, label)
    outputs = []
    for info in model.graph.output:
        if info.name not in walk.tensors:
            raise ModelError(f"output {info.name!r} is made by no node")
        outputs.append(walk.tensors[info.name])
    unknown = [t for t in walk.overrides if t not in walk.tensors]
    if unknown:
        names = ", ".join(map(repr, binding.inputs))
        raise UsageError(f"--shapes names {unknown[0]!r}, which is no tensor of the model; its inputs are {names}")
    live = live_operators(walk.operators, outputs)
    return Graph(name, live, inputs, tuple(outputs), binding.batch, tuple(walk.notes))


def _assume(dims: Sequence[int | None] | None, like: Tensor | None) -> Shape:
    """A shape for what can't be inferred: the first input's, or its size along one open axis (an upper bound)."""
    shape = like.shape if like is not None else ()
    if dims is None:
        return shape
    if len(dims) == len(shape):
        return tuple(s if d is None else d for d, s in zip(dims, shape, strict=True))
    size = like.size if like is not None else 1
    first = dims.index(None)
    return tuple((size if i == first else 1) if d is None else d for i, d in enumerate(dims))


def _tuple(value: np.ndarray[Any, Any]) -> tuple[int | float | bool, ...] | None:
    if value.dtype.kind not in "iufb":
        value = value.astype(np.float32)  # bfloat16 and the 8-bit floats
    return tuple(value.ravel().tolist())


def _text(dims: Sequence[object]) -> str:
    return "x".join("?" if d is None else str(d) for d in dims) or "a scalar"

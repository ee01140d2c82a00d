"""What is known of a model while its graph is inferred: the tensors so far, and the operators that make them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from onnxperf.graph.bind import Binding
from onnxperf.graph.core import Note
from onnxperf.graph.open_shapes import OpenShapes
from onnxperf.graph.proto import Captures, Dims, Shape, check_size, dtype_of, made_in, schema_of, tensor_type
from onnxperf.graph.sequences import Elements, element_type
from onnxperf.graph.values import MAX_VALUE, Array, Values, content, numbers
from onnxperf.ground.errors import ModelError, UsageError
from op_models import Operator, Tensor

if TYPE_CHECKING:
    from onnxperf.graph.demands import Demands

#: Elements of all known values together, so that a file of many can't fill the memory; a number costs 40 bytes.
MAX_KEPT = 1 << 20
#: Elements that evaluated nodes may read together, and what a node counts beside its own: onnx's reference takes up to
#: two microseconds for each.
MAX_EVALUATED, EACH_NODE = 1 << 20, 16
SMALL = 64  # elements whose value takes little more than its node, and which are always kept


class State:
    """The tensors of a model by name, its operators in execution order, and the notes on what was assumed.

    `tensors`, `types` and `values` grow as nodes are inferred: every tensor that is defined has a `Tensor` and an ONNX
    type, a small one whose content is known before the run has a value, too; `sequences` says what
    sequences hold. `assumed` names the tensors whose shape rests on an assumption: a model is never refused because of
    those. `read` holds the names of all tensors that a node reads or the graph returns, `labels` the names of nodes
    that are in use, `tensor_names` those of tensors.
    `folds` says whether nodes that depend on constants alone leave.
    """

    def __init__(
        self, model: ModelProto, binding: Binding, shapes: Mapping[str, Shape], folder: Path | None, folds: bool = True
    ):
        self.folds = folds
        self.open_shapes = OpenShapes(model)
        self.binding, self.folder, graph = binding, folder, model.graph
        self.given_shapes = {name: shape for name, shape in shapes.items() if name not in binding.inputs}
        self.opset_imports, self.ir_version = list(model.opset_import), model.ir_version
        self.opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in model.opset_import}
        self.schema = cache(partial(schema_of, opsets=self.opsets))
        self.declared = {i.name: i for i in (*graph.value_info, *graph.output)}
        self.declared_in_bodies: dict[str, ValueInfoProto] = {}
        self.output_names = {o.name for o in graph.output}
        self.tensors: dict[str, Tensor] = {}
        self.types: dict[str, TypeProto] = {}
        self.values: Values = {}
        self.graphs: list[tuple[GraphProto, Mapping[str, str]]] = [(graph, {})]  # and bodies, with their names in it
        self.sequences: dict[str, Elements] = {}
        self.stored: dict[str, TensorProto] = {}  # the tensors of the file, by their names here
        self.entered: dict[int, str] = {}  # the first names here of initialisers, by the id of what `stored` holds
        self.attributes: dict[tuple[bytes, ...], dict[str, Any]] = {}  # by what nodes say of theirs in the file
        self.inferred: dict[tuple[Any, ...], tuple[TypeProto | None, ...]] = {}  # types of outputs, for equal nodes
        self.room = MAX_KEPT  # elements of values that may still be kept
        self.effort = MAX_EVALUATED  # elements that evaluated nodes may still read
        self.assumed: set[str] = set()
        self.operators: list[Operator] = []
        self.notes: list[Note] = list(binding.notes)
        self.captures = Captures()
        self.read, self.labels, self.tensor_names = self.captures.read_names(graph), set[str](), set(made_in(graph))
        self.nodes_inlined = 0  # of all bodies
        self.costs: dict[str, tuple[int, int]] = {}  # FLOPs and bytes of one run, by operator in a branch
        self.made_together: dict[str, str] = {}  # an output of a control-flow node: the first output of that node

    @cached_property
    def demands(self) -> Demands:
        """What the readers of tensors demand; few models ask."""
        from onnxperf.graph.demands import Demands

        return Demands(self.graphs, self.tensors, self.values, self._declared)

    def _declared(self, name: str) -> Dims | None:
        """The shape that the file declares for a tensor."""
        info = self.declared.get(name) or self.declared_in_bodies.get(name)
        return self.given_shapes.get(name) or (self.binding.declared(info) if info is not None else None)

    def define_stored(self, graph: GraphProto, names: Mapping[str, str]) -> None:
        """Define the initialisers of the graph or, under their names in the graph, those of a body."""
        for tensor in graph.initializer:
            name, shape = names.get(tensor.name, tensor.name), tuple(tensor.dims)
            if (first := self.entered.setdefault(id(tensor), name)) != name:  # a body stands here for several runs
                self.define_same(name, self.tensors[first])
                continue
            self.define(name, dtype_of(tensor.data_type), shape, "weight", content(tensor, self.folder))
            self.stored[name] = tensor
        for sparse in graph.sparse_initializer:
            name = names.get(sparse.values.name, sparse.values.name)
            self.define(name, dtype_of(sparse.values.data_type), tuple(sparse.dims), "weight")

    def define(
        self, name: str, dtype: str, shape: Shape, kind: str, value: Array | None = None, type: TypeProto | None = None
    ) -> Tensor:
        """Define a tensor, with its ONNX type where that is at hand; a constant of over MAX_VALUE elements is a weight.

        Raises ModelError where its name is defined already or its shape can't be.
        """
        try:
            size = check_size(name, shape)
        except ModelError as e:
            raise self.refusal(str(e)) from None
        if kind == "constant" and size > MAX_VALUE:
            kind = "weight"
        if value is not None and value.size > SMALL:
            if self.room < (cost := 2 * value.size):  # as an array and as numbers
                value = None
            else:
                self.room -= cost
        tensor = Tensor(name, dtype, shape, kind, None if value is None else numbers(value))
        self._enter(tensor, tensor_type(dtype, shape) if type is None else type)
        if value is not None:
            self.values[name] = value
        return tensor

    def define_same(self, name: str, tensor: Tensor) -> Tensor:
        """Let `name` stand for a tensor that has another name: of equal weights exporters store one."""
        self._enter(replace(tensor, name=name), self.types[tensor.name])
        self.tensors[name] = tensor
        if tensor.name in self.values:
            self.values[name] = self.values[tensor.name]
        return tensor

    def define_opaque(self, name: str, type: TypeProto, kind: str = "activation") -> Tensor:
        """Define a map or optional, which is passed along without cost."""
        tensor = Tensor(name, "opaque", (), kind)
        self._enter(tensor, type)
        return tensor

    def define_sequence(self, name: str, type: TypeProto, kind: str, held: Elements) -> Tensor:
        """Define a sequence of tensors, as one tensor of all elements of those that it is known to hold.

        Raises ModelError where that can't be.
        """
        element = element_type(type)
        try:
            size = check_size(name, (held.size,))
        except ModelError as e:
            raise self.refusal(str(e)) from None
        tensor = Tensor(name, dtype_of(element.tensor_type.elem_type) if element else "opaque", (size,), kind)
        self._enter(tensor, type)
        self.sequences[name] = held
        return tensor

    def _enter(self, tensor: Tensor, type: TypeProto) -> None:
        if tensor.name in self.tensors:
            raise ModelError(f"tensor {tensor.name!r} is defined twice")
        self.tensors[tensor.name] = tensor
        self.types[tensor.name] = type

    def affords(self, node: NodeProto) -> bool:
        """Whether a node may be evaluated; where all its inputs are known, their elements are counted."""
        values = [self.values.get(i) for i in node.input if i]
        sizes = [v.size for v in values if v is not None]
        if len(sizes) == len(values):
            self.effort -= EACH_NODE + sum(sizes)
        return self.effort >= 0

    def tensor(self, name: str, label: str) -> Tensor:
        """The tensor that the node `label` reads; ModelError where no node makes it."""
        if name not in self.tensors:  # its maker leaves this output out
            raise ModelError(f"node {label!r} reads {name!r}, which nothing makes")
        return self.tensors[name]

    def assume(self, name: str, message: str, label: str) -> None:
        """Note that the shape of a tensor that the node `label` makes is assumed."""
        self.assumed.add(name)
        self.notes.append(Note("assumed-shape", message, (label,)))

    def refusal(self, message: str) -> ModelError | UsageError:
        """The error for a node that can't run: a UsageError where the request changed the sizes in the file."""
        why = self.binding.refusal
        return UsageError(f"{why}: {message}") if why else ModelError(message)

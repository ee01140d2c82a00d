"""Which sizes of a model's tensors a session knows before it runs, by the shapes that onnx infers of open inputs."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import GraphProto, ModelProto, ValueInfoProto, helper, shape_inference

from onnxperf.graph.bind import declared_dims
from onnxperf.graph.checks import misuse
from onnxperf.graph.open_dims import KnownDims, Open
from onnxperf.graph.own_sizes import give_targets
from onnxperf.graph.proto import Shape, domain_of, graphs_in, is_tensor, schema_of
from op_models import Tensor

#: Bytes above which a stored tensor is no shape, and only its type is given to the inference of open shapes.
LARGE = 1 << 12
#: Operators whose result has a shape that their inputs' content gives: none is known where onnx infers none.
BY_CONTENT = frozenset({"Reshape", "Expand", "ConstantOfShape", "Range", "Tile", "Resize", "Upsample"})


class OpenShapes:
    """What onnx infers of a model's shapes where its inputs are as open as the file leaves them, by tensor name.

    It is inferred when the first open size is met: a model whose inputs are static never asks.
    """

    def __init__(self, model: ModelProto):
        self._model = model
        self._dims: dict[str, KnownDims] | None = None
        self._read = {o: tuple(n.input) for n in model.graph.node for o in n.output}
        self._by_content = {
            o for n in model.graph.node if n.op_type in BY_CONTENT and not domain_of(n) for o in n.output
        }

    def opened(
        self, name: str, shape: Shape, like: Tensor | None, assumed: bool, tensors: Mapping[str, Tensor]
    ) -> Shape:
        """The shape of the tensor `name`, its sizes marked that a session does not know.

        like: the first input of the node that makes it; assumed: whether the shape depends on the content of inputs;
        tensors: those known so far. Where onnx infers nothing, as behind an operator of another domain, sizes that an
        input has too are the same.
        """
        if not shape:
            return shape
        if self._dims is None:
            self._dims = _inferred(self._model)
        dims = self._dims.get(name)
        if dims is not None and len(dims) == len(shape):
            pairs = zip(shape, dims, strict=True)
            return tuple([d if isinstance(k, int) else Open(d, k or "", assumed) for d, k in pairs])
        read = [t for i in self._read.get(name, ()) if (t := tensors.get(i))] or ([like] if like is not None else [])
        if name in self._by_content or not read:
            return tuple([Open(d, "", assumed, ranked=False) for d in shape])
        same = {int(d): d for t in reversed(read) for d in t.shape if isinstance(d, Open)}
        return tuple([same.get(d, Open(d, "", True) if assumed else d) for d in shape])


def input_shape(info: ValueInfoProto, shape: Shape) -> Shape:
    """The shape that an input is bound to, its sizes marked that the file leaves open."""
    dims = declared_dims(info)
    if dims is None or len(dims) != len(shape):
        return tuple([Open(d, "", ranked=dims is not None) for d in shape])
    return tuple([d if isinstance(k, int) else Open(d, k or "") for d, k in zip(shape, dims, strict=True)])


def _inferred(model: ModelProto) -> dict[str, KnownDims]:
    """The shapes that onnx infers for the model as it is, values of shape arithmetic among them; {} where it fails."""
    graph = GraphProto(name="open", input=model.graph.input)
    graph.value_info.extend(model.graph.value_info)
    names = {i.name for i in graph.input}
    for t in model.graph.initializer:
        if t.ByteSize() <= LARGE:
            graph.initializer.append(t)
        elif t.name not in names:
            graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, tuple(t.dims)))
    _add_nodes(graph, model)
    give_targets(graph)
    asked = ModelProto(ir_version=model.ir_version, graph=graph, opset_import=model.opset_import)
    asked.functions.extend(model.functions)
    try:
        result = shape_inference.infer_shapes(asked).graph
    except Exception:  # onnx raises many kinds here; then nothing is known
        return {}
    every = (*result.value_info, *result.output)
    shapes = ((i.name, declared_dims(i)) for i in every if is_tensor(i.type))
    return {name: tuple([_own_name(d) for d in dims]) for name, dims in shapes if dims is not None}


def _add_nodes(graph: GraphProto, model: ModelProto) -> None:
    """Add the nodes of a model that onnx can infer, in order: those that are well formed, all of whose inputs have a
    type. Others make its inference end the process; what they make is an input where the file says its type.
    """
    opsets = {o.domain or "": o.version for o in model.opset_import}
    declared = {i.name: i for i in (*model.graph.value_info, *model.graph.output) if is_tensor(i.type)}
    typed = {i.name for i in graph.input if is_tensor(i.type)} | {t.name for t in graph.initializer}
    for node in model.graph.node:
        inner = [n for g in graphs_in([node]) for n in g.node]
        schemas = [(n, schema_of(n.op_type, domain_of(n), opsets)) for n in (node, *inner)]
        sound = all(schema is not None and not misuse(n, schema) for n, schema in schemas)
        if sound and not inner and all(i in typed for i in node.input if i):
            graph.node.append(node)
            typed.update(o for o in node.output if o)
        else:
            outputs = [o for o in node.output if o in declared and o not in typed]
            graph.input.extend(declared[o] for o in outputs)
            typed.update(outputs)
    written = {o for n in graph.node for o in n.output}
    graph.output.extend(o for o in model.graph.output if o.name in written)


def _own_name(d: int | str | None) -> int | str | None:
    """A dimension without the names that onnx makes up for those that have none."""
    return None if isinstance(d, str) and d.startswith("unk__") else d

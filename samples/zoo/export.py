"""From an architecture to an ONNX file without its weights."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes import common
from onnxperf.samples.zoo.sample import Sample
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

WEIGHTS = "weights-not-included.bin"
INSIDE_BYTES = 1024  # smaller tensors, and tables of integers, stay: fusion and shape inference read them


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Modules built inside keep real buffers (tables of positions, masks) and have parameters on `meta`."""
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=False)
        register(module, name, parameter)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def weightless(build: Callable[[], nn.Module], train: bool = False) -> nn.Module:
    """The model with every parameter one number repeated; another number each, or equal ones would be merged."""
    with parameters_on_meta():
        model = build().train(train)
    made: dict[int, nn.Parameter] = {}  # tied parameters stay tied
    for module in model.modules():
        for name, meta in [(n, p) for n, p in module._parameters.items() if p is not None]:
            if id(meta) not in made:
                number = torch.tensor((1024 + len(made)) / 65536, dtype=meta.dtype)  # exact in fp16
                made[id(meta)] = nn.Parameter(number.expand(meta.shape), requires_grad=False)
            setattr(module, name, made[id(meta)])
    return model


def matrix_flops(sample: Sample) -> int:
    """Multiply-adds times two in convolutions and matrix products, at the inputs the file is exported at."""
    model, own = weightless(sample.build), {torch.ops.aten.mkldnn_rnn_layer: lstm_flops}
    counter = FlopCounterMode(display=False, custom_mapping=own)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), counter:
        model(**grouped(sample.tensors()))
    return int(counter.get_total_flops())


def lstm_flops(x: torch.Size, of_input: torch.Size, of_hidden: torch.Size, *_: Any, **__: Any) -> int:
    """2 T N 4H (I + H) of one layer, which the counter does not know."""
    return 2 * x[0] * x[1] * (of_input.numel() + of_hidden.numel())


def export(sample: Sample) -> tuple[onnx.ModelProto, int]:
    """The ONNX model without weights, and its number of parameters."""
    model = weightless(sample.build, train=sample.form == "training")
    inputs = sample.tensors()
    if sample.form == "script":
        return strip(traced(model.to(torch.float16), sample)), sum(p.numel() for p in model.parameters())
    names = {name: torch.export.Dim(name) for name in sample.dims}
    dims = {n: {axis: names[d] for axis, d in axes.items()} for n, axes in sample.open.items()}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model,
            (),
            kwargs=grouped(inputs),
            dynamo=True,
            verbose=False,
            external_data=False,
            input_names=list(inputs),
            output_names=list(sample.outputs),
            dynamic_shapes=grouped(dims) if names else None,
        )
    assert program is not None
    if sample.form == "old":
        as_before(program.model)
    made = strip(program.model)
    left = {d.dim_param for i in made.graph.input for d in i.type.tensor_type.shape.dim if d.dim_param}
    if closed := set(sample.dims) - left:
        raise ValueError(f"{sample.what}: the exporter has fixed {', '.join(closed)}; another size may help, 2 say")
    return made, sum(p.numel() for p in model.parameters())


class Positional(nn.Module):
    """What TorchScript's exporter can call: inputs in order, a tuple of outputs."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(**dict(zip(self.names, inputs, strict=True)), return_dict=False)


def traced(model: nn.Module, sample: Sample) -> ir.Model:
    """The model by TorchScript's exporter, its values numbered: their names hold the path of every module."""
    file, inputs = BytesIO(), sample.tensors()
    names: dict[str, Any] = {"input_names": list(inputs), "output_names": list(sample.outputs)}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        wrapped = Positional(model, list(inputs))
        names |= {"dynamic_axes": sample.open, "opset_version": 13, "dynamo": False}
        torch.onnx.export(wrapped, tuple(inputs.values()), file, **names)
    found = ir.from_proto(onnx.load_from_string(file.getvalue()))
    for i, node in enumerate(found.graph):
        node.name = f"{node.op_type}_{i}"
        for value in node.outputs:
            if not value.is_graph_output():
                value.name = f"v{i}" if len(node.outputs) == 1 else f"v{i}_{value.index()}"
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(found)
    return found


def grouped(inputs: dict[str, Any]) -> dict[str, Any]:
    """The states of the past as one argument."""
    past = {n: v for n, v in inputs.items() if n.startswith("past_")}
    rest = {n: v for n, v in inputs.items() if n not in past}
    return {**rest, "past": past} if past else rest


def as_before(model: ir.Model) -> None:
    """A mask's two new axes in two steps, as older exporters wrote it and ONNX Runtime's optimizer looks for it."""
    for node in [n for n in model.graph if n.op_type == "Unsqueeze"]:
        axes = node.inputs[1].const_value if node.inputs[1] is not None else None
        if axes is not None and axes.numpy().tolist() == [1, 2]:
            first, second = (
                ir.Value(name=n, const_value=ir.tensor([a], name=n)) for a in (1, 2) for n in [f"{node.name}_axis_{a}"]
            )
            model.graph.initializers.update({v.name: v for v in (first, second) if v.name})
            before = ir.node("Unsqueeze", [node.inputs[0], first], name=f"{node.name}_first")
            before.outputs[0].name = f"{node.name}_once"
            model.graph.insert_before(node, before)
            node.replace_input_with(0, before.outputs[0])
            node.replace_input_with(1, second)
    common.RemoveUnusedNodesPass()(model)


def strip(model: ir.Model) -> onnx.ModelProto:
    """Weights point outside, function bodies are inlined, the exporter's notes are gone."""
    common.InlinePass()(model)
    common.ClearMetadataAndDocStringPass()(model)
    model.metadata_props.clear()
    graph, offset = model.graph, 0
    graph.metadata_props.clear()
    for value in {
        *graph.inputs,
        *graph.initializers.values(),
        *(v for n in graph.all_nodes() for v in n.outputs),
    }:
        value.metadata_props.clear()
        value.doc_string = None
    for value in graph.initializers.values():
        tensor = value.const_value
        assert tensor is not None
        if tensor.nbytes > INSIDE_BYTES and tensor.dtype.is_floating_point():
            value.const_value = ir.ExternalTensor(
                WEIGHTS,
                offset,
                tensor.nbytes,
                tensor.dtype,
                shape=ir.Shape(tensor.shape.numpy()),
                name=value.name or "",
            )
            offset += tensor.nbytes
    return ir.to_proto(model)

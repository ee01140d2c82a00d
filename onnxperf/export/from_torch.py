"""Exports models of PyTorch by PyTorch's own exporter: in memory, without weights, and without changing the model."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from onnx import ModelProto
from onnx_ir.passes import common
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map

from onnxperf.export.quiet import quiet
from onnxperf.export.torch_inputs import (
    NO_AXES,
    Args,
    Axes,
    arguments_of,
    batch_of,
    empty,
    with_leading,
    with_open_axes,
    with_open_batch,
)
from onnxperf.graph.bind import declared_dims
from onnxperf.graph.proto import times
from onnxperf.graph.skeleton import INSIDE_BYTES, WEIGHTS, skeleton
from onnxperf.graph.values import MAX_VALUE, first_line
from onnxperf.ground.errors import Error, ModelError, UsageError

MAX_REASON = 200  # characters of an error of PyTorch
NOISE = re.compile("\N{REPLACEMENT CHARACTER}\\[[0-9;]*m")  # escape sequences of colours, made printable
BRANCH = "which branch it takes depends on the values of a tensor, which torch.cond could express"
TRY = "change that, or predict the model without it"


def proto(
    model: Any, example_inputs: Any = None, batch: int | None = None, open_batch: bool = False,
    dynamic: Axes = NO_AXES, train: bool = False,
) -> ModelProto:  # fmt: skip
    """The ONNX model of a torch.nn.Module, an ExportedProgram or an ONNXProgram, without weights.

    example_inputs, which a module needs: a mapping of keyword arguments, a tuple or list of positional ones, or the
    only one; nested as forward takes them. Of tensors and arrays only shapes and types are read. A module is exported
    as it runs in eval mode, with `train` its modules for dropout as in train mode. batch: replaces the leading
    dimension of the first input, and of every input that has the same one; open_batch: makes that the open dimension
    "batch". dynamic: names of open dimensions by axis, of inputs by name, for a module whose examples have names.
    Programs keep the shapes they were exported with.

    Raises UsageError where the inputs do not fit, ModelError where PyTorch can't export the model.
    """
    with _isolated():
        if isinstance(model, torch.nn.Module):
            module = getattr(model, "_orig_mod", model)  # the module inside, after torch.compile
            name = type(module).__name__
            arguments = arguments_of(example_inputs, name)
            return _stripped(_exported(module, name, arguments, batch, open_batch, dynamic, train), name)
        name = type(model).__name__
        if dynamic:
            raise UsageError(f"a {name} keeps the dimensions that it was exported with: leave --dynamic out")
        if isinstance(model, torch.export.ExportedProgram):
            exported, program = _converted(model, name), model
        else:
            exported, program = model.model.clone(), model.exported_program
        result = _stripped(exported, _root(program) or name)
    _check_fit(result, example_inputs, name)
    return result


def write(model: Any, example_inputs: Any, path: Path, dynamic: Axes = NO_AXES) -> None:
    """Write the ONNX file of a model with its weights, large ones in a file beside it; a module is put into eval mode.

    Raises what `proto` does, and whatever the exporter raises.
    """
    if not isinstance(model, torch.nn.Module):
        proto(model, example_inputs, dynamic=dynamic)  # refuses what does not fit
    with _isolated():
        if isinstance(model, torch.nn.Module):
            arguments = arguments_of(example_inputs, type(model).__name__)
            model.cpu().eval().register_forward_hook(_as_tensors)
            (args, kwargs), shapes = with_open_axes(model, arguments, dynamic)
            model = _onnx(model, (*args, kwargs), shapes)
            _check_open(model.model, dynamic)
        elif isinstance(model, torch.export.ExportedProgram):
            model = _onnx(model, ())
        model.save(path)


@contextmanager
def _isolated() -> Iterator[None]:
    """Run quietly on the CPU, without gradients and autocast; the caller's random state is the same afterwards."""
    contexts = torch.autocast("cpu", enabled=False), torch.random.fork_rng(devices=())
    with quiet(), torch.no_grad(), torch.device("cpu"), contexts[0], contexts[1]:
        yield


def _exported(
    module: torch.nn.Module, name: str, arguments: Args, batch: int | None, open_batch: bool, axes: Axes,
    train: bool = False,
) -> ir.Model:  # fmt: skip
    """The module as an ONNX model, exported with stand-ins for its weights (see `_stand_in`)."""
    if batch is not None:
        arguments = with_leading(arguments, lambda x: empty((batch, *x.shape[1:]), x.dtype))
    light = _copied(module, name, train)
    try:
        (args, kwargs), dynamic = (
            with_open_batch(light, arguments) if open_batch else with_open_axes(light, arguments, axes)
        )
        model: ir.Model = _onnx(light, (*args, kwargs), dynamic).model
    except Exception as e:  # the exporter raises many kinds
        error = _cause(e)
        if why := _refusal(light, arguments, error):
            at = "" if batch is None else f" at batch {batch}"
            raise UsageError(f"{name} does not run on these example inputs{at}: {why}") from None
        if not open_batch:
            raise ModelError(f"PyTorch can't export {name} to ONNX: {_reason(error)}; {TRY}") from None
        # raises the ModelError if the open batch is not the reason
        _exported(module, name, arguments, None, False, axes, train)
        raise _fixed_batch(name, _reason(error)) from None
    _check_open(model, axes)
    leading = [value.shape[0] for value in model.graph.inputs if value.shape]
    if open_batch and batch_of(arguments) is not None and not any(isinstance(d, ir.SymbolicDim) for d in leading):
        raise _fixed_batch(name, "it only runs at the batch of the example inputs")
    return model


def _fixed_batch(name: str, why: str) -> UsageError:
    says = f"PyTorch can't export {name} with a dynamic batch: {why}"
    return UsageError(f"{says}; give example inputs of the batch that you want, and leave batch and fit out")


def _check_open(model: ir.Model, axes: Axes) -> None:
    """Raise UsageError where an axis that is to be open is not: the exporter fixes what the model's code depends on."""
    shapes = {value.name: value.shape or () for value in model.graph.inputs}
    for name, axis, dim in ((name, axis, dim) for name, names in axes.items() for axis, dim in names.items()):
        if name in shapes and isinstance(size := shapes[name][axis], int):
            raise UsageError(f"--dynamic {name}:{axis}={dim}: the model only runs at size {size} there")


def _onnx(model: Any, args: tuple[Any, ...], dynamic: Any = None, optimize: bool = True) -> Any:
    """PyTorch's exporter, to an ONNXProgram: `args` ends with the keyword arguments."""
    return torch.onnx.export(
        model, args, dynamo=True, verbose=False, external_data=False, dynamic_shapes=dynamic, optimize=optimize
    )


def _converted(program: torch.export.ExportedProgram, name: str) -> ir.Model:
    """The program as an ONNX model; its weights, on whatever device, are replaced by stand-ins before they are read."""
    numbers = count()
    try:
        converted = _onnx(program, (), optimize=False)
        for value in converted.model.graph.initializers.values():
            tensor = getattr(value.const_value, "raw", None)
            if isinstance(tensor, torch.Tensor) and _plain(tensor):
                value.const_value = ir.tensor_adapters.TorchTensor(_stand_in(tensor, numbers), value.name)
        converted.optimize()
    except Exception as e:
        raise ModelError(f"PyTorch can't export this {name} to ONNX: {_reason(_cause(e))}; {TRY}") from None
    model: ir.Model = converted.model
    return model


def _copied(module: torch.nn.Module, name: str, train: bool) -> torch.nn.Module:
    """A copy of the module in eval mode, or with its dropout in train mode, with stand-ins for its tensors."""
    numbers, memo = count(), {}
    try:
        for part in module.modules():
            for tensors in (part._parameters, part._buffers, vars(part)):
                for tensor in tensors.values():
                    if isinstance(tensor, torch.Tensor) and id(tensor) not in memo and _plain(tensor):
                        memo[id(tensor)] = _stand_in(tensor, numbers)
        light = copy.deepcopy(module, memo).eval()
        for part in light.modules():
            if train and isinstance(part, torch.nn.modules.dropout._DropoutNd):
                part.train()
        light.register_forward_hook(_as_tensors)
    except Exception as e:  # the module's own code raises anything
        says = f"{name} can't be copied, which is done to leave it as it is: {_reason(e)}"
        raise ModelError(f"{says}; export it with torch.export.export and give the ExportedProgram") from None
    return light


def _as_tensors(_: torch.nn.Module, __: Any, outputs: Any) -> Any:
    """A forward hook that gives outputs as the exporter takes them: tensors, also those inside objects like a cache."""

    def held(x: Any) -> Any:
        if isinstance(x, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
            return x
        inside = hasattr(x, "__dict__") and not isinstance(x, (type, torch.nn.Module))
        return tree_map(held, dict(vars(x))) if inside else None

    return tree_map(held, outputs)


def _plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a single one with a shape: no wrapper subclass (as quantised ones are), and not lazy."""
    return not is_traceable_wrapper_subclass(tensor) and not torch.nn.parameter.is_lazy(tensor)


def _stand_in(tensor: torch.Tensor, numbers: Iterator[int]) -> torch.Tensor:
    """A tensor of the same shape and type that takes next to no memory of its own.

    A floating parameter becomes one number, expanded to the shape. Each parameter gets another number, as the exporter
    merges equal ones; it is exact in the type, and between 1/64 and 256. Other tensors share the values of the given
    one, as sizes may depend on them; on the meta device there are none, and zeros take their place.
    """
    if isinstance(tensor, torch.nn.Parameter) and tensor.is_floating_point():
        step, k = torch.finfo(tensor.dtype).eps, next(numbers)
        steps = round(1 / step)
        number = (1 + k % steps * step) * 2.0 ** (k // steps % 14 - 6)
        value = torch.tensor(number, dtype=tensor.dtype).expand(tensor.shape)
    elif tensor.is_meta or isinstance(tensor, FakeTensor):
        value = torch.zeros(tensor.shape, dtype=tensor.dtype)
    else:
        value = tensor.detach().cpu()
    return torch.nn.Parameter(value, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else value


def _stripped(model: ir.Model, name: str) -> ModelProto:
    """The model as a ModelProto without functions and metadata, whose weights refer to a file that does not exist."""
    common.InlinePass()(model)
    for value in (v for graph in model.graphs() for v in graph.initializers.values()):
        t = value.const_value
        if t is not None and t.nbytes > INSIDE_BYTES and (t.dtype.is_floating_point() or t.size > MAX_VALUE):
            shape, weight = ir.Shape(t.shape.numpy()), value.name or ""
            value.const_value = ir.ExternalTensor(WEIGHTS, 0, t.nbytes, t.dtype, shape=shape, name=weight)
    model.graph.name = name
    bare: ModelProto = ModelProto.FromString(skeleton(ir.to_proto(model)))
    return bare


def _root(program: torch.export.ExportedProgram | None) -> str:
    """The class of the module that a program was exported from, where a node's metadata have it; else ""."""
    for node in program.graph.nodes if program is not None else ():
        for _, kind in (node.meta.get("nn_module_stack") or {}).values():
            return str(getattr(kind, "__name__", kind)).rpartition(".")[2]
    return ""


def _check_fit(model: ModelProto, examples: Any, name: str) -> None:
    """Raise UsageError for examples of other shapes than those a program was exported with, or whose sizes it leaves
    open.
    """
    if examples is None:
        return
    inputs = {i.name: declared_dims(i) or () for i in model.graph.input}
    if any(isinstance(d, str) for dims in inputs.values() for d in dims):
        sizes = {n: times([None if isinstance(d, str) else d for d in dims]) for n, dims in inputs.items()}
        has = ", ".join(f"{n} {shape}" for n, shape in sizes.items())
        says = f"this {name} leaves dimensions open, its inputs are {has}"
        raise UsageError(f"{says}: leave example_inputs out, and give the sizes as batch, dims or shapes")
    shapes = sorted(times(x.shape) for x in tree_leaves(examples) if hasattr(x, "shape"))
    declared = sorted(map(times, inputs.values()))
    if shapes != declared:
        says = f"this {name} is made for inputs of {', '.join(declared)}, not of {', '.join(shapes)}"
        raise UsageError(f"{says}; leave example_inputs out, or export it again at these sizes")


def _refusal(module: torch.nn.Module, arguments: Args, error: BaseException) -> str:
    """The module's own error on such inputs, run on fake tensors; "" where it runs or fails otherwise than `error`."""
    module = copy.deepcopy(module)  # forward may write to buffers, which the stand-ins share with the user's own
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            args, kwargs = tree_map(lambda x: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x, arguments)
            module(*args, **kwargs)
    except Exception as e:
        return _reason(e) if type(e) is type(error) and not type(e).__module__.startswith("torch.") else ""
    return ""


def _cause(error: BaseException) -> BaseException:
    """The error that the exporter's own error was raised from."""
    while isinstance(error, torch.onnx.errors.OnnxExporterError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _reason(error: BaseException) -> str:
    """The first sentence of an error's text, cut to MAX_REASON characters."""
    if isinstance(error, Error):
        return str(error)
    if isinstance(error, GuardOnDataDependentSymNode):
        return BRANCH
    line = NOISE.sub("", first_line(error)).partition(". ")[0].rstrip(".")
    return line[:MAX_REASON] + "..." * (len(line) > MAX_REASON)


__all__ = ["proto", "write"]

"""Example inputs of PyTorch: tensors without content, and which of their dimensions stay open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from onnxperf.graph.proto import times
from onnxperf.ground.errors import UsageError

Args = tuple[tuple[Any, ...], dict[str, Any]]
Axes = Mapping[str, Mapping[int, str]]  # by the name of an input: its open dimensions, by axis
NO_AXES: Axes = {}


def arguments_of(examples: Any, name: str) -> Args:
    """Example inputs as positional and keyword arguments; tensors have only shapes and types of those given."""
    if examples is None:
        raise UsageError(f"{name} needs example inputs, whose shapes and types it is predicted at: give example_inputs")
    if isinstance(examples, Mapping):
        return (), tree_map(_example, dict(examples))
    if isinstance(examples, torch.Tensor) or hasattr(examples, "__array__"):
        examples = (examples,)
    if isinstance(examples, (tuple, list)):
        return tree_map(_example, tuple(examples)), {}
    kind = type(examples).__name__
    raise UsageError(f"example_inputs can't be of type {kind}: give tensors, by name or in the order of forward")


def _example(x: Any) -> Any:
    """An uninitialised tensor for a tensor or an array, of which only shape and type are read; all else as it is.

    An array of float64, NumPy's default, gets PyTorch's default type.
    """
    if isinstance(x, torch.Tensor):
        if x.is_nested:
            raise UsageError("an example input is a nested tensor, which has no shape: give one that is padded")
        return empty(x.shape, x.dtype)
    if not hasattr(x, "__array__"):
        return x
    array = np.asarray(x)
    if array.dtype == np.float64:
        return empty(array.shape, torch.get_default_dtype())
    try:
        return empty(array.shape, torch.from_numpy(np.empty(0, array.dtype)).dtype)
    except TypeError:
        raise UsageError(f"PyTorch has no tensors of {array.dtype}, the type of an example input") from None


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    try:
        return torch.empty(tuple(shape), dtype=dtype)
    except RuntimeError:
        raise UsageError(f"an example input of shape {times(shape)} can't be made: it is too large") from None


def with_leading(arguments: Args, change: Callable[[torch.Tensor], torch.Tensor]) -> Args:
    """The arguments, with `change` applied to the tensors whose leading dimension is that of the first tensor."""
    first = batch_of(arguments)

    def changed(x: Any) -> Any:
        return change(x) if isinstance(x, torch.Tensor) and x.ndim and x.shape[0] == first else x

    widened: Args = tree_map(changed, arguments)
    return widened


def with_open_batch(module: torch.nn.Module, arguments: Args) -> tuple[Args, Any]:
    """The arguments to export with an open batch, and the open dimensions in the form that torch.export takes."""
    shapes: Any = torch.export.ShapesCollection()  # type: ignore[no-untyped-call]
    batch = torch.export.Dim("batch")

    def opened(x: torch.Tensor) -> torch.Tensor:
        # torch.export specialises dimensions of 1, as these are broadcast: a batch of 1 would not stay open.
        x = x.new_empty(2, *x.shape[1:]) if x.shape[0] == 1 else x
        shapes[x] = {0: batch}
        return x

    args, kwargs = with_leading(arguments, opened)
    return (args, kwargs), shapes.dynamic_shapes(module, args, kwargs)


def with_open_axes(module: torch.nn.Module, arguments: Args, axes: Axes) -> tuple[Args, Any]:
    """The arguments to export with these open dimensions, and those in the form that torch.export takes."""
    if not axes:
        return arguments, None
    shapes: Any = torch.export.ShapesCollection()  # type: ignore[no-untyped-call]
    args, kwargs = arguments[0], dict(arguments[1])
    dims = {dim: torch.export.Dim(dim) for names in axes.values() for dim in names.values()}
    for name, names in axes.items():
        x = kwargs[name]  # a size of 1 would not stay open, see `with_open_batch`
        kwargs[name] = x.new_empty([max(2, d) if axis in names else d for axis, d in enumerate(x.shape)])
        shapes[kwargs[name]] = {axis: dims[dim] for axis, dim in names.items()}
    return (args, kwargs), shapes.dynamic_shapes(module, args, kwargs)


def batch_of(arguments: Args) -> int | None:
    """The leading dimension of the first tensor that has one."""
    return next((x.shape[0] for x in tree_leaves(arguments) if isinstance(x, torch.Tensor) and x.ndim), None)

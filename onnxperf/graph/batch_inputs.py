"""Which axis of an input holds the batch: the first, unless recurrent operators read it from another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnx import ModelProto, NodeProto, TensorProto

from onnxperf.graph.proto import Shape, domain_of, plain, times
from onnxperf.ground.errors import UsageError

#: Unless their layout is 1, inputs are [sequence, batch, size] and initial states [directions, batch, size].
RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
PASSED = frozenset({"Identity", "Cast", "Slice", "Split"})  # operators that leave every axis where it is
BY_ELEMENT = frozenset({"Add", "Cast", "Div", "Identity", "Mul", "Sub"})
CHANNELS = (1, 3, 4)  # of an image
MOST_NAMED = 16  # options that a message names
Dim = int | str | None  # a size, the name of an open dimension, or open without a name


def _read(node: NodeProto) -> Iterator[tuple[str, int, int]]:
    """Inputs of a recurrent operator that have the batch: the name, its axis, and how many axes there are."""
    first = any(a.name == "layout" and a.i for a in node.attribute)
    places = {0: (int(not first), 3), 4: (0, 1), 5: (int(not first), 3), 6: (int(not first), 3)}
    yield from ((node.input[i], *at) for i, at in places.items() if i < len(node.input) and node.input[i])


def batch_axes(model: ModelProto, dims: Mapping[str, tuple[Dim, ...]]) -> dict[str, int]:
    """The axis of the batch in each input that recurrent operators read, whole or in parts."""
    axes: dict[str, int] = {}
    recurrent = [n for n in model.graph.node if n.op_type in RECURRENT and not domain_of(n)]
    if not recurrent:
        return axes
    sources = {o: n.input[0] for n in model.graph.node if n.op_type in PASSED and n.input for o in n.output}
    for name, axis, rank in (read for node in recurrent for read in _read(node)):
        seen = set[str]()
        while name in sources and name not in dims and name not in seen:
            seen.add(name)
            name = sources[name]
        if len(dims.get(name, ())) == rank:
            axes[name] = axis
    return axes


def without_images(model: ModelProto, dims: Mapping[str, tuple[Dim, ...]]) -> dict[str, tuple[Dim, ...]]:
    """The inputs but for those that are one image [channels, height, width].

    What makes a batch of that is an Unsqueeze on axis 0, behind operators that treat each element by itself, as
    detectors of torchvision have it.
    """
    images = {name: name for name, shape in dims.items() if len(shape) == 3 and shape[0] in CHANNELS}
    if not images:
        return dict(dims)
    stored = [(t.name, t) for t in model.graph.initializer]
    stored += [(n.output[0], a.t) for n in model.graph.node if n.op_type == "Constant" for a in n.attribute if n.output]
    inside = {name: t for name, t in stored if t.data_type == TensorProto.INT64 and list(t.dims) == [1]}
    axis_0 = {name for name, t in inside.items() if list(t.int64_data) == [0] or t.raw_data == bytes(8)}
    batched = set[str]()
    for n in model.graph.node:
        image = next((images[i] for i in n.input if i in images), None)
        if image is None or domain_of(n):
            continue
        if n.op_type in BY_ELEMENT:
            images |= dict.fromkeys(n.output, image)
        elif n.op_type == "Unsqueeze" and (
            any(list(a.ints) == [0] for a in n.attribute) or not axis_0.isdisjoint(n.input[1:])
        ):
            batched.add(image)
    return {name: shape for name, shape in dims.items() if name not in batched}


def check_axes(model: ModelProto, dims: Mapping[str, tuple[Dim, ...]], shapes: Mapping[str, Shape], batch: int) -> None:
    """Raise UsageError where recurrent operators read the batch from an open second dimension: that has a name."""
    nodes = [n for n in model.graph.node if n.op_type in RECURRENT and not domain_of(n)]
    second = {name for n in nodes for name, axis, _ in _read(n) if axis}
    read = [name for name, shape in dims.items() if name in second and name not in shapes and len(shape) == 3]
    if all(isinstance(dims[name][1], int) for name in read):
        return
    named = dict.fromkeys(d for d in (dims[name][1] for name in read) if isinstance(d, str))
    flags = [f"--dim {plain(d)}={batch}" for d in named]
    for name in read:
        first, at, size = dims[name]
        if not isinstance(at, str):
            example = [first if isinstance(first, int) else 128, batch, size if isinstance(size, int) else 128]
            flags.append(f"--shapes {plain(name)}:{times(example)}")
    axis = f"the batch of {read[0]!r} is its second dimension, as {times(dims[read[0]])} is read"
    raise UsageError(f"--batch can't be used: {axis}; give {' '.join(flags[:MOST_NAMED])}, say")


def at_batch(
    dims: Mapping[str, tuple[Dim, ...]], axes: Mapping[str, int], shapes: Mapping[str, Shape], old: int | None
) -> dict[str, int]:
    """The axis of the batch in every input that has the static batch `old` there, and for which no shape is given.

    An input of a single dimension may be a list of parameters: unless it is known to hold the batch, it must be alone.
    """
    places: dict[str, int] = {}
    for name, shape in dims.items():
        axis = axes.get(name, 0)
        sure = len(shape) > 1 or len(dims) == 1 or name in axes
        if old is not None and name not in shapes and sure and shape[axis : axis + 1] == (old,):
            places[name] = axis
    return places

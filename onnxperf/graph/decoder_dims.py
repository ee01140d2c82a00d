"""Which dimensions of a decoder's inputs are its batch, new tokens, past and total length, whatever they are called."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnx import ModelProto, TensorProto

from onnxperf.graph.batch_inputs import Dim
from onnxperf.graph.bind import declared_dims
from onnxperf.ground.errors import UsageError

WHOLE = (TensorProto.INT32, TensorProto.INT64)
#: Operators that write a cache in place into a buffer of full length: which outputs are which inputs.
WRITTEN = {
    **dict.fromkeys(("GroupQueryAttention", "PagedAttention", "SparseAttention"), ((1, 3), (2, 4))),
    **dict.fromkeys(("LatentAttention", "SparseIndexer"), ((1, 2),)),
    "TensorScatter": ((0, 0),),
}


STATES = ("conv", "recurrent", "ssm")  # in names of what is kept of a past, beside keys and values
WINDOW = "window_"  # begins the name of a cache's length where it keeps so many positions and no more
#: What a dimension of an input can stand for.
BATCH, NEW, PAST, TOTAL = "batch", "number of new tokens", "past length", "length of the mask"


@dataclass(frozen=True, slots=True)
class DecoderDims:
    """Dimensions of a decoder's inputs, each a size or the name under which it is open.

    places: what each stands for and the dimension, of all inputs, for an exporter may have a name for each input; new:
    of the token ids. inputs: names of those whose dimensions these are; caches: of those with past keys and values;
    in_place: whether the model writes into these buffers of full length, as ONNX Runtime GenAI runs GroupQueryAttention
    on CUDA; room: the tokens that caches of a fixed length have room for, which the model gives back as long, 0 of
    others; written: caches that a model declares to be of another length as outputs, and the dimensions that these
    buffers have; states: inputs with what linear attention and convolutions keep, as much whatever the length.
    """

    places: tuple[tuple[str, Dim], ...]
    new: Dim
    inputs: tuple[str, ...]
    caches: tuple[str, ...]
    in_place: bool
    room: int = 0
    written: tuple[tuple[str, tuple[Dim, ...]], ...] = ()
    states: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which dimensions are open that a run's lengths decide."""
        return tuple(dict.fromkeys(dim for _, dim in self.places if isinstance(dim, str)))

    def shapes(self, batch: int, longest: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the caches as outputs, where these are the buffers of inputs whatever the model declares."""
        of_batch = {dim for what, dim in self.places if what == BATCH}
        return {
            name: tuple(d if isinstance(d, int) else batch if d in of_batch else longest for d in dims)
            for name, dims in self.written
        }

    def bound(self, batch: int, new: int, past: int, longest: int) -> dict[str, int]:
        """Sizes of the open dimensions for `new` tokens after `past` ones, with caches for `longest` tokens.

        Raises UsageError where the model has another size, or one name for two sizes.
        """
        if self.room and max(past + new, longest) > self.room:
            more = max(past + new, longest)
            raise UsageError(f"the model's caches have room for {self.room:,} tokens, not for {more:,}: ask for fewer")
        sizes = {BATCH: batch, NEW: new, PAST: self.room or (longest if self.in_place else past), TOTAL: past + new}
        dims: dict[str, int] = {}
        for what, dim in self.places:
            size = sizes[what]
            if what == PAST and isinstance(dim, str) and dim.startswith(WINDOW):
                size = min(size, int(dim.removeprefix(WINDOW)))
            if dim is None or dim == size or (self.room and what == TOTAL and dim == self.room):
                continue
            if isinstance(dim, int):
                raise UsageError(
                    f"the model's {what} is fixed at {dim}, it can't be {size}: export it with a dynamic one"
                )
            if dims.setdefault(dim, size) != size:
                raise UsageError(f"the model has one name, {dim!r}, for lengths that differ: {dims[dim]} and {size}")
        return dims


def decoder_dims(model: ModelProto) -> DecoderDims:
    """The dimensions of a decoder: of the integer input with two axes that is named for ids or tokens, of positions,
    of the inputs with four axes and more that are named for a past or a cache, of states, and of masks with two axes.

    Raises UsageError where the model has no such ids.
    """
    stored = {t.name for t in model.graph.initializer}
    infos = {i.name: i for i in model.graph.input if i.name not in stored}
    shapes = {name: declared_dims(i) or () for name, i in infos.items()}

    def named(name: str, parts: Iterable[str]) -> bool:
        return any(part in name.lower() for part in parts)

    pairs = [n for n, i in infos.items() if len(shapes[n]) == 2 and i.type.tensor_type.elem_type in WHOLE]
    ids = [n for n in pairs if named(n, ("ids", "token")) and not named(n, ("position", "type", "segment", "mask"))]
    if not ids:
        raise UsageError("the model is not a decoder: it has no input of token ids [batch, length], such as input_ids")
    kept = [n for n in shapes if named(n, ("past", "cache"))]
    states = tuple(n for n in kept if named(n, STATES))
    caches = tuple(n for n in kept if n not in states and len(shapes[n]) >= 4)
    masks = [n for n, shape in shapes.items() if len(shape) == 2 and "mask" in n.lower()]
    positions = [n for n in pairs if named(n, ("position",)) and shapes[n][0] != 1]
    places = [(what, d) for n in (*ids[:1], *positions) for what, d in zip((BATCH, NEW), shapes[n], strict=True)]
    places += [(BATCH, shapes[n][0]) for n in states if shapes[n]]
    places += [(what, shapes[n][at]) for n in caches for what, at in ((BATCH, -4), (PAST, -2))]
    places += [(what, d) for n in masks for what, d in zip((BATCH, TOTAL), shapes[n], strict=True)]
    in_place = bool(caches) and any(n.op_type in WRITTEN for n in model.graph.node)
    outputs = {i.name: declared_dims(i) for i in model.graph.output}
    fixed = [shapes[n][-2] for n in caches if shapes[n] in outputs.values()]
    buffers = [(n.output[o], n.input[i]) for n in model.graph.node
               for o, i in WRITTEN.get(n.op_type, ()) if o < len(n.output) and i < len(n.input)]  # fmt: skip
    written = tuple((o, shapes[i]) for o, i in buffers if i in caches and o in outputs and outputs[o] != shapes[i])
    room = fixed[0] if fixed and isinstance(fixed[0], int) else 0
    inputs = tuple(dict.fromkeys((*ids[:1], *positions, *caches, *states, *masks)))
    return DecoderDims(tuple(dict.fromkeys(places)), shapes[ids[0]][1], inputs, caches, in_place, room, written, states)

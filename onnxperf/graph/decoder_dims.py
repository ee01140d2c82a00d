"""Which dimensions of a decoder's inputs are its batch, new tokens, past and total length, whatever they are called."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnx import ModelProto, TensorProto

from onnxperf.errors import UsageError
from onnxperf.graph.batch_inputs import Dim
from onnxperf.graph.bind import declared_dims

WHOLE = (TensorProto.INT32, TensorProto.INT64)
#: Operators of ONNX Runtime that write a cache in place into a buffer of full length.
IN_PLACE = frozenset({"GroupQueryAttention", "PagedAttention", "SparseAttention"})


@dataclass(frozen=True, slots=True)
class DecoderDims:
    """Dimensions of a decoder's inputs, each a size or the name under which it is open; None where no input has it.

    batch, new: of the token ids; past: of the caches; total: of the mask. caches: names of the inputs with past keys
    and values; in_place: whether the caches are buffers of full length that the model writes into, as ONNX Runtime
    GenAI runs GroupQueryAttention on CUDA; written: those that a model declares to be of another length as outputs, and
    the dimensions that these buffers have.
    """

    batch: Dim
    new: Dim
    past: Dim
    total: Dim
    caches: tuple[str, ...]
    in_place: bool
    written: tuple[tuple[str, tuple[Dim, ...]], ...] = ()

    def shapes(self, batch: int, longest: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the caches as outputs, where these are the buffers of inputs whatever the model declares."""
        return {
            name: tuple(d if isinstance(d, int) else batch if d == self.batch else longest for d in dims)
            for name, dims in self.written
        }

    def bound(self, batch: int, new: int, past: int, longest: int) -> dict[str, int]:
        """Sizes of the open dimensions for `new` tokens after `past` ones, with caches for `longest` tokens.

        Raises UsageError where the model has another size, or one name for two sizes.
        """
        cached = longest if self.in_place else past
        found: dict[str, int] = {}
        wanted = (("batch", self.batch, batch), ("number of new tokens", self.new, new),
                  ("past length", self.past, cached), ("length of the mask", self.total, past + new))  # fmt: skip
        for what, dim, size in wanted:
            if dim is None or dim == size:
                continue
            if isinstance(dim, int):
                raise UsageError(f"the model's {what} is fixed at {dim}, it can't be {size}: export it with that open")
            if found.setdefault(dim, size) != size:
                raise UsageError(f"the model has one name, {dim!r}, for lengths that differ: {found[dim]} and {size}")
        return found


def decoder_dims(model: ModelProto) -> DecoderDims:
    """The dimensions of a decoder: of the integer input with two axes that is named for ids or tokens, of the inputs
    with four axes and more that are named for a past or a cache, and of a mask with two axes.

    Raises UsageError where the model has no such ids.
    """
    stored = {t.name for t in model.graph.initializer}
    infos = {i.name: i for i in model.graph.input if i.name not in stored}
    shapes = {name: declared_dims(i) or () for name, i in infos.items()}

    def named(name: str, parts: Iterable[str]) -> bool:
        return any(part in name.lower() for part in parts)

    ids = [n for n, i in infos.items() if len(shapes[n]) == 2 and i.type.tensor_type.elem_type in WHOLE
           and named(n, ("ids", "token")) and not named(n, ("position", "type", "segment", "mask"))]  # fmt: skip
    if not ids:
        raise UsageError("the model is no decoder: it has no input of token ids [batch, length], such as input_ids")
    caches = tuple(n for n, shape in shapes.items() if len(shape) >= 4 and named(n, ("past", "cache")))
    masks = [n for n, shape in shapes.items() if len(shape) == 2 and "mask" in n.lower()]
    batch, new = shapes[ids[0]]
    in_place = bool(caches) and any(n.op_type in IN_PLACE for n in model.graph.node)
    past = shapes[caches[0]][-2] if caches else None
    made = {i.name: declared_dims(i) for i in model.graph.output}
    pairs = [(o, i) for n in model.graph.node if n.op_type in IN_PLACE
             for o, i in zip(n.output[1:3], n.input[3:5], strict=False)]  # fmt: skip
    written = tuple((o, shapes[i]) for o, i in pairs if i in caches and o in made and made[o] != shapes[i])
    return DecoderDims(batch, new, past, shapes[masks[0]][1] if masks else None, caches, in_place, written)

"""Data movement: what matters is how many elements move, and how many at a time are contiguous (a run).

A view (Reshape, Identity, ...) has the work of a copy here; whether it is free is decided by a runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, prod

from op_models.axes import LIKE_FIRST, WHOLE, Axes, aligned, by_row, in_order, numbered, told
from op_models.core import NHWC, Maybe, Move, Operator, Tensor, Work, work
from op_models.rules import AxesRule, Like, Outputs, as_first, op, shared_caches


def moved(
    op: Operator, run: int, *, elements: int | None = None, vector: int = 0, read: dict[int, int] | None = None,
    written: dict[int, int] | None = None,
) -> Work:  # fmt: skip
    """Movement of `elements` (by default those of the outputs) in runs of `run` contiguous ones."""
    total = sum(t.size for t in op.outputs) if elements is None else elements
    return work(op, Move(total, max(run, 1)), vector=vector, read=read, written=written)


def shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Contiguous elements that shape `a` and a part of it share: trailing axes up to the first that differs."""
    run = 1
    for x, y in zip(reversed(a), reversed(b), strict=False):
        run *= min(x, y)
        if x != y:
            break
    return run


def squeezed_axes(op: Operator, x: Tensor, chosen: Maybe = None, *, axes: Sequence[int] = ()) -> Axes:
    """Axes of 1 go, those that are named or all."""
    gone = axes or (told(chosen) if chosen is not None else [k for k, d in enumerate(x.shape) if d == 1])
    names = numbered(x.rank, gone)
    return Axes((names,), (tuple(axis for axis in names if axis),), in_order=True)


def unsqueezed_axes(op: Operator, x: Tensor, chosen: Maybe = None, *, axes: Sequence[int] = ()) -> Axes:
    """New axes of 1."""
    new = axes or told(chosen)
    names = list(numbered(x.rank))
    for at in sorted(axis % (x.rank + len(new)) for axis in new):
        names.insert(at, WHOLE)
    return Axes((numbered(x.rank),), (tuple(names),), in_order=True)


def with_axis(x: Tensor, axis: Tensor) -> Outputs:
    """One more axis, of length 1."""
    if not axis.value:
        return []
    at = int(axis.value[0]) % (x.rank + 1)
    return [(x.dtype, (*x.shape[:at], 1, *x.shape[at:]))]


def without_padding(x: Tensor, counts: Tensor) -> Outputs:
    """The tokens [n, hidden], at most all of x[batch, length, hidden]; where each stood, where each sequence begins,
    and the length of the longest.
    """
    n = int(sum(counts.value)) if counts.value else prod(x.shape[:2])
    ints = (x.shape[:2], (x.shape[0] + 1,), (1,))
    return [(x.dtype, (n, *x.shape[2:])), *(("int32", shape) for shape in ints)]


def with_padding(x: Tensor, offset: Tensor) -> Outputs:
    """The tokens where the offsets [batch, length] say that each stands."""
    return [(x.dtype, (*offset.shape, *x.shape[1:]))]


VIEWS: dict[str, AxesRule] = {
    "Identity": LIKE_FIRST, "Reshape": in_order, "Flatten": in_order, "Squeeze": squeezed_axes,
    "Unsqueeze": unsqueezed_axes,
}  # fmt: skip


@op("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "BitCast", "SplitToSequence", axes=VIEWS)
@op("com.microsoft::ExpandDims", outputs=with_axis)
@op("com.microsoft::SampleOp", outputs=as_first)
@op("com.microsoft::RemovePadding", outputs=without_padding)
@op("com.microsoft::RestorePadding", outputs=with_padding)
def copy(op: Operator, x: Tensor) -> Work:
    """One contiguous copy."""
    return moved(op, x.size, elements=x.size)


def expanded_axes(op: Operator, x: Tensor) -> Axes:
    """Axes of 1 are spread over the sizes of the output."""
    return Axes((aligned(x, op.out.shape),), (numbered(op.out.rank),), spread=(0,))


def tiled_axes(op: Operator, x: Tensor) -> Axes:
    """The whole tensor again and again along each axis."""
    times = {f"times {k}": d // max(x.shape[k], 1) for k, d in enumerate(op.out.shape)}
    names = numbered(x.rank)
    return Axes((names,), (tuple((f"times {k}", *axis) for k, axis in enumerate(names)),), sizes=times)


@op("Expand", "Tile", "ConstantOfShape", "ConcatFromSequence", axes={"Expand": expanded_axes, "Tile": tiled_axes})
def fill(op: Operator) -> Work:
    """The output is written in one run; elements that repeat are read from cache."""
    return moved(op, op.out.size)


@op("SequenceConstruct")
def construct(op: Operator) -> Work:
    """A copy of each operand (sequence_op.h in ONNX Runtime)."""
    return moved(op, op.out.size // max(len(op.present), 1))


@op("SequenceAt")
def element(op: Operator) -> Work:
    """A copy of one element, as the output is a tensor of its own (sequence_op.h in ONNX Runtime)."""
    return moved(op, op.out.size, read={0: op.out.size})


@op("SequenceInsert")
def insert(op: Operator, sequence: Tensor, x: Tensor) -> Work:
    """A copy of the tensor; the other elements are shared with the old sequence (sequence_op.h in ONNX Runtime)."""
    return moved(op, x.size, elements=x.size, read={0: 0}, written={0: x.size})


@op("Shape", "Size", "EyeLike", axes=dict.fromkeys(("Shape", "Size"), "... -> |"))
def from_shape(op: Operator) -> Work:
    """Of the input only the shape is read."""
    return moved(op, op.out.size, read={0: 0})


def counted(start: Tensor, limit: Tensor, delta: Maybe = None) -> Outputs:
    """As many numbers as fit between the first and the limit, where these are known."""
    step = delta.value[0] if delta is not None and delta.value else 1
    if not start.value or not limit.value or (delta is not None and not delta.value) or not step:
        return []
    return [(start.dtype, (max(ceil((limit.value[0] - start.value[0]) / step), 0),))]


@op("com.microsoft::Range", outputs=counted)
@op("Range")
def range_(op: Operator) -> Work:
    """start + i delta: 2 per output."""
    return moved(op, op.out.size, vector=2 * op.out.size)


def one_hot_axes(op: Operator, x: Tensor, *, axis: int = -1) -> Axes:
    """One more axis."""
    names, at = numbered(x.rank), axis % (x.rank + 1)
    return Axes((names,), ((*names[:at], WHOLE, *names[at:]),))


@op("com.microsoft::Trilu", outputs=as_first)
@op("OneHot", "Trilu", axes={"OneHot": one_hot_axes, "Trilu": "* . . -> * . . | masks along {}"})
def select(op: Operator) -> Work:
    """1 comparison per output: OneHot with the index, Trilu with the diagonal."""
    return moved(op, op.out.size, vector=op.out.size)


EACH_IMAGE = "N ... -> N ..."


@op("NonZero", "Col2Im", axes={"Col2Im": EACH_IMAGE})
def every(op: Operator, x: Tensor) -> Work:
    """1 per input element: NonZero compares it, Col2Im adds it to its output."""
    return moved(op, x.size if op.type == "NonZero" else 1, elements=x.size, vector=x.size)


def turned_axes(op: Operator, x: Tensor, *, perm: Sequence[int] | None = None) -> Axes:
    """A permutation."""
    names = numbered(x.rank)
    return Axes((names,), (tuple(names[k] for k in perm or reversed(range(x.rank))),))


@op("Transpose", axes=turned_axes)
def transpose(op: Operator, x: Tensor, *, perm: Sequence[int] | None = None) -> Work:
    """A run is the trailing axes that stay in place; axes of size 1 do not count. Stacked matrices are turned by tiles
    (cublasGeam and Transpose3DKernel in ONNX Runtime)."""
    perm = tuple(range(x.rank))[::-1] if perm is None else perm
    after = [axis for axis in perm if x.shape[axis] != 1]
    run = 1
    for old, new in zip(sorted(after, reverse=True), reversed(after), strict=True):
        if old != new:
            break
        run *= x.shape[old]
    rows, columns = turned(x.shape, after)
    return work(op, Move(x.size, max(run, 1), tile=max(min(rows, columns, TILE), 1)))


TILE = 32  # side of the squares that kernels for matrices turn in shared memory


def turned(shape: tuple[int, ...], after: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of the matrices that a permutation turns where it does nothing else, or (1, 1).

    after: the axes of more than one element in their new order.
    """
    before = sorted(after)
    stays = next((i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b), len(before))
    old, new = before[stays:], list(after[stays:])
    for cut in range(1, len(old)):
        if old[cut:] + old[:cut] == new:
            return prod(shape[a] for a in old[:cut]), prod(shape[a] for a in old[cut:])
    return 1, 1


#: Channels per block in the NCHWc layout of ONNX Runtime's CPU provider, on processors with AVX-512.
BLOCK = 16


def reordered(x: Tensor, *, channels: int, channels_last: int = 0) -> Outputs:
    """The image without the channels that fill up its last block."""
    sides = x.shape[2:]
    return [(x.dtype, (x.shape[0], *sides, channels) if channels_last else (x.shape[0], channels, *sides))]


@op("com.microsoft.nchwc::ReorderInput", outputs=as_first)
@op("com.microsoft.nchwc::ReorderOutput", outputs=reordered)
def reorder(op: Operator, *, channels_last: int = 0) -> Work:
    """A run is a block of channels where the other layout is channels-last, and one element where it is NCHW."""
    return moved(op, BLOCK if channels_last else 1)


#: Operators on strings, which have no bytes that a GPU would move, and look-ups in hash tables.
LOOKUPS = (
    "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "ai.onnx.ml::CategoryMapper",
    "ai.onnx.ml::LabelEncoder", "com.microsoft::Tokenizer",
)  # fmt: skip


def windows(x: Tensor, *, size: int, dim: int = -1, step: int = 1) -> Outputs:
    """An axis as the number of its windows, which are one more axis, the last."""
    at = dim % x.rank
    return [(x.dtype, (*x.shape[:at], (x.shape[at] - size) // step + 1, *x.shape[at + 1 :], size))]


@op("com.microsoft::UnfoldTensor", outputs=windows)
@op(NHWC + "DepthToSpace", outputs=Like("DepthToSpace", channels_last=True))
@op(NHWC + "SpaceToDepth", outputs=Like("SpaceToDepth", channels_last=True))
@op(
    "DepthToSpace", "SpaceToDepth", *LOOKUPS,
    axes=dict.fromkeys(("DepthToSpace", "SpaceToDepth"), EACH_IMAGE),
)  # fmt: skip
def shuffle(op: Operator) -> Work:
    """A run is one element: neighbours in a row come from, or go to, different places."""
    return moved(op, 1)


@op("ReverseSequence")
def reverse(op: Operator, x: Tensor) -> Work:
    """A run is the axes after time and batch."""
    return moved(op, prod(x.shape[2:]))


@op("Compress")
def compress(op: Operator, x: Tensor, condition: Tensor, *, axis: int | None = None) -> Work:
    """1 per element of the condition; elements that are kept are copied in runs of the axes after `axis`."""
    run = 1 if axis is None else prod(x.shape[axis % x.rank + 1 :])
    return moved(op, run, vector=condition.size, read={0: op.out.size})


def unpooled(
    x: Tensor, indices: Tensor, output_shape: Maybe = None, *, kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Outputs:  # fmt: skip
    """The shape that is given, else that of which a MaxPool with these attributes makes x."""
    if output_shape is not None:
        return [None if output_shape.value is None else (x.dtype, tuple(map(int, output_shape.value)))]
    axes = len(kernel_shape)
    steps, around = strides or (1,) * axes, pads or (0,) * (2 * axes)
    trimmed = (around[i] + around[i + axes] for i in range(axes))
    sides = zip(x.shape[2:], steps, kernel_shape, trimmed, strict=True)
    return [(x.dtype, (*x.shape[:2], *((d - 1) * step + k - cut for d, step, k, cut in sides)))]


@op("MaxUnpool", outputs=unpooled)
def unpool(op: Operator, x: Tensor) -> Work:
    """The output is filled with zeros, then each maximum is written to its place."""
    return moved(op, 1, elements=op.out.size + x.size)


@op("TfIdfVectorizer")
def tf_idf(op: Operator, x: Tensor, *, max_gram_length: int = 1) -> Work:
    """A look-up for each n-gram that starts at an element, and 1 per output for its weight."""
    return moved(op, 1, elements=x.size * max_gram_length + op.out.size, vector=op.out.size)


def second(ids: Tensor, scores: Tensor) -> Outputs:
    """One output with the dtype and the shape of the second input."""
    return [(scores.dtype, scores.shape)]


@op("com.microsoft::NGramRepeatBlock", outputs=second)
def block_repeats(op: Operator, ids: Tensor, scores: Tensor, *, ngram_size: int) -> Work:
    """A copy of the scores, and `ngram_size` comparisons per position."""
    return moved(op, scores.size, vector=ids.size * ngram_size)


#: Control flow, whose bodies are operators of the graph themselves, and what only counts or passes on what sequences,
#: maps and optionals hold.
CARRIERS = (
    "Constant", "If", "Loop", "Optional", "OptionalGetElement", "OptionalHasElement", "Scan", "SequenceEmpty",
    "SequenceErase", "SequenceLength", "SequenceMap",
    "ai.onnx.ml::ZipMap", "com.microsoft::BeamSearch", "com.microsoft::GreedySearch", "com.microsoft::Sampling",
)  # fmt: skip


@op(*CARRIERS)
def carried(op: Operator) -> Work:
    """No work of its own: neither FLOPs nor bytes."""
    return replace(work(op, Move(0, 1)), bytes_read=0, bytes_written=0, weight_bytes=0)


def joined_axes(op: Operator, x: Tensor, *others: Maybe, axis: int = 0) -> Axes:
    """One after another along an axis."""
    names = numbered(x.rank, (axis,))
    return Axes((names,) * len(op.inputs), (names,), "joins tensors along {}")


@op("Concat", axes={"Concat": joined_axes})
def concat(op: Operator, *, axis: int = 1) -> Work:
    """A run is the axes from `axis` on of one input, as an average over the inputs."""
    return moved(op, prod(op.out.shape[axis:]) // max(len(op.present), 1))


def split_axes(op: Operator, x: Tensor, *, axis: int = 0) -> Axes:
    """Pieces along an axis."""
    names = numbered(x.rank)
    return Axes((names,), (names,) * len(op.outputs), "splits {}", pieces=frozenset(names[axis]))


@op("torch::roll")
def roll(op: Operator, x: Tensor, *, axis: int = 0) -> Work:
    """Two parts of an axis change places: a run is the axes from `axis` on, as an average of both."""
    return moved(op, prod(x.shape[axis:]) // 2)


def cut_axes(op: Operator, x: Tensor) -> Axes:
    """Pieces along those axes that have another size then."""
    cut = frozenset(str(k) for k, d in enumerate(x.shape) if d != op.out.shape[k])
    return Axes((numbered(x.rank),), (numbered(x.rank),), "takes a part of {}", pieces=cut)


@op("Split", axes=split_axes)
def split(op: Operator, x: Tensor, *, axis: int = 0) -> Work:
    """A run is the axes from `axis` on of one output, as an average over the outputs."""
    return moved(op, prod(x.shape[axis:]) // max(len(op.outputs), 1))


@op("Slice", axes=cut_axes)
def slice_(
    op: Operator, x: Tensor, starts: Maybe = None, ends: Maybe = None, axes: Maybe = None, steps: Maybe = None
) -> Work:
    """Reads only what it keeps; a run ends with the first axis that is cut, or before one that is strided."""
    run = shared(x.shape, op.out.shape)
    if steps is not None and steps.value is not None:
        chosen = axes.value if axes is not None and axes.value is not None else range(len(steps.value))
        stepped = [int(a) % max(x.rank, 1) for a, step in zip(chosen, steps.value, strict=False) if step != 1]
        run = min([run, *(prod(op.out.shape[a + 1 :]) for a in stepped)])
    return moved(op, run, read={0: op.out.size})


def padded_axes(
    op: Operator, x: Tensor, width: Maybe = None, fill: Maybe = None, chosen: Maybe = None, *, pads: Sequence[int] = ()
) -> Axes:  # fmt: skip
    """Borders before and behind along axes."""
    around, order = pads or told(width), told(chosen) if chosen is not None else range(x.rank)
    return by_row(op, x, [axis for k, axis in enumerate(order) if around[k] or around[k + len(order)]], "pads {}")


def padded(x: Tensor, pads: Tensor) -> Outputs:
    """Borders before and behind along all axes, where they are known."""
    if not pads.value:
        return []
    sides = zip(x.shape, pads.value[: x.rank], pads.value[x.rank :], strict=True)
    return [(x.dtype, tuple([d + int(before) + int(behind) for d, before, behind in sides]))]


@op("com.microsoft::Pad", outputs=padded)
@op("Pad", "CenterCropPad", "Crop", "DynamicSlice", axes={"Pad": padded_axes})
def pad(op: Operator, x: Tensor) -> Work:
    """A run is a row of the input between padding; elements that negative padding removes are not read."""
    kept = prod(min(a, b) for a, b in zip(x.shape, op.out.shape, strict=False))
    return moved(op, shared(x.shape, op.out.shape), read={0: kept})


def gathered_block(x: Tensor, indices: Tensor, scales: Tensor, *, gather_axis: int = 0, bits: int = 4) -> Outputs:
    """The shape of a Gather, its last axis unpacked."""
    shape = (*x.shape[:gather_axis], *indices.shape, *x.shape[gather_axis + 1 :])
    return [(scales.dtype, (*shape[:-1], shape[-1] * (8 // bits if x.dtype == "uint8" else 1)))]


@op("com.microsoft::GatherBlockQuantized", outputs=gathered_block)
def gather_quantised(op: Operator, x: Tensor, *, bits: int = 4, block_size: int = 128, gather_axis: int = 0) -> Work:
    """Reads only the packed elements that it gathers and their blocks' scales; 2 per output to dequantise it."""
    packed = 8 // bits if x.dtype == "uint8" else 1
    read = {0: -(-op.out.size // packed), 2: -(-op.out.size // block_size), 3: -(-op.out.size // block_size)}
    return moved(op, prod(x.shape[gather_axis % max(x.rank, 1) + 1 :]) * packed, vector=2 * op.out.size, read=read)


READS = "reads by index along {}"


def gathered_axes(op: Operator, x: Tensor, indices: Tensor, *, axis: int = 0) -> Axes:
    """The axes of the indices take the place of one of the data."""
    at = axis % x.rank
    names, by = numbered(x.rank, (at,)), tuple((f"index {k}",) for k in range(indices.rank))
    return Axes((names, by), ((*names[:at], *by, *names[at + 1 :]),), READS)


def element_axes(op: Operator, *tensors: Tensor, axis: int = 0) -> Axes:
    """Data, indices and updates along all axes but one, where all are of a size."""
    names = numbered(op.out.rank, (axis,))
    sizes = zip(*(t.shape for t in tensors), strict=True)
    same = tuple(axis if len(set(d)) == 1 else WHOLE for axis, d in zip(names, sizes, strict=True))
    return Axes((same,) * len(tensors), (same,), READS)


def tuple_axes(op: Operator, x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Axes:
    """Slices of the data by tuples of indices, which are the last axis of these."""
    by = tuple((f"index {k}",) for k in range(indices.rank - 1))
    read = range(batch_dims, batch_dims + indices.shape[-1])
    names = (*by[:batch_dims], *numbered(x.rank, read)[batch_dims:])
    return Axes((names, (*by, WHOLE)), ((*by, *names[read.stop :]),), READS)


def looked_up(table: Tensor, indices: Tensor) -> Outputs:
    """A row of the table for each index."""
    return [(table.dtype, (*indices.shape, *table.shape[1:]))]


@op("com.microsoft::TorchEmbedding", outputs=looked_up)
@op("Gather", axes=gathered_axes)
def gather(op: Operator, x: Tensor, *, axis: int = 0) -> Work:
    """Reads only what it gathers and the indices; a run is the axes after `axis`."""
    return moved(op, prod(x.shape[axis % max(x.rank, 1) + 1 :]), read={0: op.out.size})


@op("GatherElements", axes={"GatherElements": element_axes})
def gather_elements(op: Operator) -> Work:
    """Reads only what it gathers and the indices; a run is one element."""
    return moved(op, 1, read={0: op.out.size})


def slices(x: Tensor, indices: Tensor) -> Outputs:
    """A slice for each tuple of indices, which are the last axis of these."""
    return [(x.dtype, (*indices.shape[:-1], *x.shape[indices.shape[-1] :]))]


@op("com.microsoft::GatherND", outputs=slices)
@op("GatherND", axes=tuple_axes)
def gather_nd(op: Operator, x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Work:
    """Reads only what it gathers and the indices; a run is the axes without an index."""
    return moved(op, prod(x.shape[batch_dims + sum(indices.shape[-1:]) :]), read={0: op.out.size})


def scattered(op: Operator, x: Tensor, updates: Tensor, pieces: int, reduction: str = "none") -> Work:
    """A contiguous copy of the data, then the updates in `pieces`; a reduction is 1 per updated element.

    Where the result is the data's own buffer nothing is copied: the updates alone are written, and read where reduced.
    """
    vector = updates.size if reduction != "none" else 0
    if shared_caches(op):
        run, read, written = updates.size // max(pieces, 1), {0: vector}, {0: updates.size}
        return moved(op, run, elements=updates.size, vector=vector, read=read, written=written)
    elements = x.size + updates.size
    return moved(op, elements // (1 + pieces), elements=elements, vector=vector)


@op("Scatter", "ScatterElements", "ScatterND", axes={"ScatterElements": element_axes})
def scatter(op: Operator, x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Work:
    """A copy of the data, and a piece for each update (for ScatterND: for each tuple of indices)."""
    pieces = prod(indices.shape[:-1]) if op.type == "ScatterND" else updates.size
    return scattered(op, x, updates, pieces, reduction)


@op("TensorScatter", continued={0: 0})
def tensor_scatter(op: Operator, x: Tensor, updates: Tensor, *, axis: int = -2) -> Work:
    """A piece for each contiguous run of updated positions: the cache is one buffer before and behind the operator."""
    return scattered(op, x, updates, prod(updates.shape[:axis]))


#: Elements (taps) that one output of a resize reads along each axis that changes.
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}


def resized_axes(op: Operator, x: Tensor) -> Axes:
    """Axes that keep their size are left alone."""
    return by_row(op, x, [k for k, d in enumerate(x.shape) if d != op.out.shape[k]], "resizes {}")


def enlarged(x: Tensor, *, scales: Sequence[int] = ()) -> Outputs:
    """As many times the size along each axis."""
    return [(x.dtype, tuple([d * scale for d, scale in zip(x.shape, scales, strict=True)]))]


@op("com.microsoft.nchwc::Upsample", outputs=enlarged)
@op("Resize", "Upsample", axes=dict.fromkeys(("Resize", "Upsample"), resized_axes))
def resize(op: Operator, x: Tensor, *, mode: str = "nearest", antialias: int = 0, threads: int = 0) -> Work:
    """2 per tap, none for nearest; antialiasing multiplies the taps by the factor of shrinking."""
    taps, along = 1, TAPS.get(mode, 1)
    for before, after in zip(x.shape, op.out.shape, strict=False):
        if before != after:
            taps *= -(-along * max(before, after) // max(after, 1)) if antialias else along
    vector = 2 * taps * op.out.size if along > 1 else 0
    size = Move(op.out.size, max(shared(x.shape, op.out.shape), 1), threads)
    return work(op, size, vector=vector, read={0: taps * op.out.size})

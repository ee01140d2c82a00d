"""Strides in elements: which reshapes PyTorch does as views, and the memory layout of what it computes.

The rules are those of torch.Tensor.view, c10/core/MemoryFormat.h, TensorIterator and torch.matmul.
"""

from __future__ import annotations

from math import prod

from op_models import Operator, Tensor

#: An attribute of a copy: how many elements are contiguous both where it reads and where it writes.
RUN = "run"
#: An attribute of an elementwise operator: bytes of operands whose axes lie in another order than those of the result.
ACROSS = "across"
#: Elements of a block of PyTorch's elementwise kernels, 128 threads with four each, and of a sector, of 2 bytes.
BLOCK, SECTOR = 512, 16
Shape = tuple[int, ...]
Strides = tuple[int, ...]


def contiguous(shape: Shape) -> Strides:
    """Row-major strides."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def channels_last(shape: Shape) -> Strides:
    """The strides of an [N, C, H, W] tensor stored in the order [N, H, W, C]."""
    _, channels, height, width = shape
    return height * width * channels, 1, width * channels, channels


def lies(shape: Shape, strides: Strides, target: Strides) -> bool:
    """Whether strides equal `target` on all axes longer than one; on others they have no meaning."""
    return all(a == b for d, a, b in zip(shape, strides, target, strict=True) if d != 1)


def in_order_of(shape: Shape, strides: Strides, target: Strides) -> bool:
    """Whether the axes longer than one lie in the order that they have in `target`, with gaps or without."""
    steps = [s for _, s in sorted((w, s) for d, s, w in zip(shape, strides, target, strict=True) if d != 1)]
    return steps == sorted(steps)


def suggests_last(shape: Shape, strides: Strides) -> bool:
    """Whether torch takes a tensor as channels_last, with gaps or without; not if it is contiguous in NCHW as well."""
    if len(shape) != 4 or not strides[1]:
        return False
    least = 0
    for axis in (1, 3, 2, 0):
        if not shape[axis] or strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * shape[axis]
    return True


def dense(shape: Shape, strides: Strides) -> Strides:
    """The strides of an elementwise kernel's output: its operand's order of axes, without gaps."""
    if _is_dense(shape, strides):
        return strides
    if not all(s or d == 1 for d, s in zip(shape, strides, strict=True)):
        return contiguous(shape)  # broadcast
    steps, step = dict[int, int](), 1
    for axis in sorted(range(len(shape)), key=lambda i: (strides[i], -i)):
        steps[axis], step = step, step * shape[axis]
    return tuple(steps[axis] for axis in range(len(shape)))


def _is_dense(shape: Shape, strides: Strides) -> bool:
    """Whether elements fill their memory without gaps, in any order of axes."""
    step = 1
    for stride, size in sorted((s, d) for d, s in zip(shape, strides, strict=True) if d != 1):
        if stride != step:
            return False
        step *= size
    return True


def run(shape: Shape, strides: Strides, target: Strides) -> int:
    """How many elements in a row are contiguous both with `strides` and with the dense strides `target`; where none
    are, how many of a sector with `strides` one block takes, as it goes along `target`.
    """
    axes = sorted((w, s, d) for d, s, w in zip(shape, strides, target, strict=True) if d != 1)
    length, taken, room = 1, 1, BLOCK
    for step, stride, size in axes:
        if stride != step:
            break
        length *= size
    for _, stride, size in axes:
        taken *= max(1, min(size, room, SECTOR // max(stride, 1)))
        room = max(1, room // max(size, 1))
    return length if length > 1 else min(taken, SECTOR)


def view(shape: Shape, strides: Strides, new: Shape) -> Strides | None:
    """The strides of a view with a new shape; None where that needs a copy.

    Axes that follow each other without gaps merge into chunks; every chunk must split evenly into new axes
    (the rule behind torch.Tensor.view).
    """
    if prod(shape) == 0:
        return contiguous(new)
    chunks: list[tuple[int, int]] = []  # size, stride of its innermost axis
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if chunks and chunks[-1][1] == size * stride:
            chunks[-1] = (chunks[-1][0] * size, stride)
        else:
            chunks.append((size, stride))
    steps: list[int] = []
    for size in reversed(new):
        if size == 1:
            steps.append(1)
            continue
        if not chunks or chunks[-1][0] % size:
            return None
        rest, stride = chunks.pop()
        steps.append(stride)
        if rest > size:
            chunks.append((rest // size, stride * size))
    return tuple(reversed(steps))


def of_view(o: Operator, x: Tensor, strides: Strides, out: Tensor) -> Strides:
    """The strides of an output of a Transpose, Expand, Slice, Split or Identity."""
    if o.type == "Transpose":
        perm = o.attrs.get("perm", range(x.rank - 1, -1, -1))
        return tuple(strides[p] for p in perm) if len(perm) == x.rank == out.rank else contiguous(out.shape)
    if o.type == "Expand":
        old = (0,) * (out.rank - x.rank) + tuple(0 if d == 1 else s for d, s in zip(x.shape, strides, strict=True))
        return tuple(1 if d == 1 else s for d, s in zip(out.shape, old, strict=True))
    if o.type == "Slice":
        steps = dict.fromkeys(range(x.rank), 1)
        axes = value(o, 3) or tuple(range(x.rank))
        steps.update((int(a) % x.rank, int(b)) for a, b in zip(axes, value(o, 4), strict=False))
        return tuple(s * steps[i] for i, s in enumerate(strides))
    return strides


def value(o: Operator, index: int) -> tuple[float, ...]:
    """The known content of an input; empty where it is absent or unknown."""
    t = o.inputs[index] if index < len(o.inputs) else None
    return t.value or () if t is not None else ()


def adds_columns(o: Operator, strides: Strides) -> bool:
    """Whether a reduction leaves the axis whose elements lie next to each other, so that it adds up columns."""
    x = o.present[0]
    axes = {int(axis) % x.rank for axis in o.attrs.get("axes") or value(o, 1)} if x.rank else set()
    inner = min((i for i, d in enumerate(x.shape) if d > 1), key=lambda i: (strides[i], -i), default=None)
    return bool(axes) and inner is not None and inner not in axes


def multipliable(t: Tensor, strides: Strides) -> bool:
    """True where torch.matmul hands a tensor to cuBLAS without a copy."""
    if t.rank < 2:
        return True
    (rows, columns), (down, right) = t.shape[-2:], strides[-2:]
    by_rows = (right == 1 or columns == 1) and (down >= columns or rows == 1)
    by_columns = (down == 1 or rows == 1) and (right >= rows or columns == 1)
    return (by_rows or by_columns) and view(t.shape[:-2], strides[:-2], (prod(t.shape[:-2]),)) is not None

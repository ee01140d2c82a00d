"""Whether parts of a stored tensor are equal: its data are read piece by piece, however large it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import prod
from pathlib import Path

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxperf.graph.proto import dtype_of
from onnxperf.graph.values import Array, check_filled, external_file
from onnxperf.ground.errors import Error
from op_models.core import BITS

FIRST, PIECE = 64, 1 << 24  # bytes that are compared before others, and that are compared at once
MAX_COMPARED = 1 << 30  # bytes of a tensor
Read = Callable[[int, int], Array]  # the bytes from a position on, and how many


def _why_not(tensor: TensorProto, folder: Path | None, outer: int, parts: int) -> str:
    """Why the data of a tensor can't be said to be the same in each part, see `differing`."""
    if tensor.data_type == TensorProto.STRING:
        return "can't be compared from sample to sample because it holds text"
    bits = prod(tensor.dims) * BITS[dtype_of(tensor.data_type)]
    if not bits or bits % (8 * outer * parts):
        return "can't be compared from sample to sample because its samples do not begin at whole bytes"
    if bits // 8 > MAX_COMPARED:
        return f"can't be compared from sample to sample because it has more than {MAX_COMPARED >> 30} GiB"
    if tensor.data_location == TensorProto.EXTERNAL:
        if (place := external_file(tensor, folder)) is None or place[0].stat().st_size < place[1] + bits // 8:
            return NO_DATA
        path, offset = place
        with path.open("rb") as file:

            def read(start: int, count: int) -> Array:
                file.seek(offset + start)
                return np.frombuffer(file.read(count), np.uint8)

            return "" if _equal(read, outer, parts, bits // 8 // (outer * parts)) else DIFFERS
    if not check_filled(tensor, prod(tensor.dims)):
        return NO_DATA
    whole = tensor.raw_data if tensor.HasField("raw_data") else numpy_helper.to_array(tensor).tobytes()
    data = np.frombuffer(whole, np.uint8)
    return "" if _equal(lambda i, n: data[i : i + n], outer, parts, data.size // (outer * parts)) else DIFFERS


REPEATS = "onnxperf.repeats"  # of a tensor without data: its blocks and parts that are equal, such as 1x32 4x32


def noted(tensor: TensorProto, folder: Path | None, sizes: Iterable[int]) -> str:
    """What a tensor notes in REPEATS once its data are gone: for each axis that falls into one of these numbers of
    parts, blocks and parts, if these are equal; see `differing`.
    """
    blocks = _noted(tensor)
    for parts in sizes:
        for axis, size in enumerate(tensor.dims):
            block = prod(tensor.dims[:axis]), parts
            with suppress(OSError, Error):  # who reads the data tells what is wrong with them
                if size and size % parts == 0 and block not in blocks and not _why_not(tensor, folder, *block):
                    blocks.add(block)
    return " ".join(f"{outer}x{parts}" for outer, parts in sorted(blocks))


def _noted(tensor: TensorProto) -> set[tuple[int, int]]:
    """The blocks and parts that a tensor notes to be equal."""
    notes = (entry.value for entry in tensor.metadata_props if entry.key == REPEATS)
    matches = (match for note in notes for match in re.finditer(r"\b([0-9]{1,18})x([0-9]{1,18})\b", note))
    return {(int(match[1]), int(match[2])) for match in matches}


def differing(tensor: TensorProto, folder: Path | None, outer: int, parts: int) -> str:
    """Why the elements, as [outer, parts, rest], can't be said to be the same in each part; "" where they are, also
    where the tensor only notes so.

    folder: where external data lie. Raises OSError where these can't be read.
    """
    return "" if (outer, parts) in _noted(tensor) else _why_not(tensor, folder, outer, parts)


DIFFERS = "differs from sample to sample"
NO_DATA = "can't be compared from sample to sample because its data are not there (a model without weights, say)"


def _equal(read: Read, outer: int, parts: int, each: int) -> bool:
    """Whether all parts of `each` bytes are equal to the first of their block, of which there are `outer`."""
    block, start = parts * each, min(each, FIRST)
    if parts > 1 and (read(0, start) != read(each, start)).any():
        return False
    if block <= PIECE:
        most = max(1, PIECE // block)
        for i in range(0, outer, most):
            count = min(most, outer - i)
            piece = read(i * block, count * block).reshape(count, parts, each)
            if not (piece == piece[:, :1]).all():
                return False
        return True
    for start in range(0, outer * block, block):
        for at in range(start, start + each, PIECE):
            count = min(PIECE, start + each - at)
            first = read(at, count)
            if any((read(at + k * each, count) != first).any() for k in range(1, parts)):
                return False
    return True

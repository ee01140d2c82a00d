"""Whether parts of a stored tensor are equal: its data are read piece by piece, however large it is."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxperf.graph.proto import dtype_of
from onnxperf.graph.values import Array, check_filled, external_file
from op_models.core import BITS

PIECE = 1 << 24  # bytes that are compared at once
MAX_COMPARED = 1 << 30  # bytes of a tensor
Read = Callable[[int, int], Array]  # the bytes from a position on, and how many


def differing(tensor: TensorProto, folder: Path | None, outer: int, parts: int) -> str:
    """Why the elements, as [outer, parts, rest], can't be said to be the same in each part; "" where they are.

    folder: where external data lie. Raises OSError where these can't be read.
    """
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


DIFFERS = "differs from sample to sample"
NO_DATA = "can't be compared from sample to sample because its data are not there (a model without weights, say)"


def _equal(read: Read, outer: int, parts: int, each: int) -> bool:
    """Whether all parts of `each` bytes are equal to the first of their block, of which there are `outer`."""
    block = parts * each
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

"""The workspace of kernels whose algorithm or number of parts changes with the batch.

Which of several ways to compute a kernel is the fastest may change from one batch to the next, and back. Where two of
them nearly tie, the model knows less about which is chosen than about the seconds, and memory would fall and rise by
chance. So a kernel counts the ways that are the fastest at the powers of two up to its batch and at the next one:
the most bytes that any of them takes at the batch itself, which never fall where the batch grows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onnxperf.latency.families import family_of
from onnxperf.latency.terms import Array, KernelTerms
from op_models import Work


def workspaces(work_list: Sequence[Work], own: KernelTerms, of: Callable[[list[Work]], KernelTerms]) -> Array:
    """The bytes of workspace that each work counts on each device, [n, g].

    own: the terms of the works, which are kept for those whose family has no `batch`, and for a batch of one. of: gives
    the terms of other works on the same devices.
    """
    tried = [(i, p) for i, w in enumerate(work_list) for p in _powers(batch_of(w))]
    if not tried:
        return own.workspace
    at, share = np.array([i for i, _ in tried]), np.array([[batch_of(work_list[i]) / p] for i, p in tried])
    found = of([with_batch(work_list[i], p) for i, p in tried])
    needed = found.fixed_workspace + (found.workspace - found.fixed_workspace) * share
    bytes_ = own.workspace.copy()
    bytes_[[i for i in set(at.tolist()) if batch_of(work_list[i]).bit_count() > 1]] = 0  # not a power of two
    np.maximum.at(bytes_, at, needed)
    return bytes_


def batch_of(w: Work) -> int:
    """The batch of a work whose family says which field that is, else 1."""
    return int(getattr(w.size, family_of(w).batch, 1))


def with_batch(w: Work, batch: int) -> Work:
    """The same work at another batch, with which all grows but what its family says is shared."""
    factor, shared = batch / batch_of(w), min(family_of(w).shared_bytes(w), w.bytes_read)
    size: Any = w.size
    return replace(
        w, size=size._replace(**{family_of(w).batch: batch}),
        bytes_read=shared + round((w.bytes_read - shared) * factor), bytes_written=round(w.bytes_written * factor),
        matrix_flops=round(w.matrix_flops * factor), vector_flops=round(w.vector_flops * factor),
    )  # fmt: skip


def _powers(batch: int) -> list[int]:
    """The powers of two below a batch, and the next one where it is none itself; none for a batch of 1."""
    return [1 << k for k in range((batch - 1).bit_length() + 1) if 1 << k != batch] if batch > 1 else []

"""The workspace of kernels whose algorithm or number of parts changes with the batch.

Which of several ways to compute a kernel is the fastest may change from one batch to the next, and back. Where two of
them nearly tie, the model knows less about which is chosen than about the seconds, and memory would fall and rise by
chance. So a kernel counts the ways that are the fastest at the powers of two up to its batch and at the next one:
the most bytes that any of them takes at the batch itself, which never fall where the batch grows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_specs import Device
from onnxperf.latency.constants import Constants
from onnxperf.latency.estimate import Estimates, ledger
from onnxperf.latency.families import family_of
from onnxperf.latency.method import Method
from onnxperf.latency.padding import grown
from onnxperf.latency.terms import Array
from onnxperf.lowering.lower import Kernels
from op_models import Work


def workspaces(
    kernels: Kernels, estimates: Estimates, devices: Sequence[Device], method: Method, constants: Constants
) -> Array:
    """The bytes of workspace that each kernel counts on each device, [n, g].

    estimates: those of these kernels on these devices, whose workspace is kept for kernels whose family has no
    `batch`, for a batch of one, on processors, and for methods with terms of their own.
    """
    of_run = ledger(tuple(devices), constants, method.times)
    rows = dict[Work, list[int]]()
    for i, kernel in enumerate(kernels.rows):
        rows.setdefault(kernel.work, []).append(i)
    batches = {w: batch for w in rows if (batch := batch_of(w)) > 1}
    tried = [(w, p) for w, batch in batches.items() for p in _powers(batch)]
    if not tried or of_run.cards.kind != "gpu" or method.own_terms:
        return estimates.workspace
    at, (terms, *_) = of_run.rows([with_batch(w, p) for w, p in tried], [kernels.stored_bytes] * len(tried))
    fixed, share = terms.fixed_workspace[at], np.array([[batches[w] / p] for w, p in tried])
    needed = fixed + (terms.workspace[at] - fixed) * share
    bytes_ = estimates.workspace.copy()
    bytes_[[i for w, batch in batches.items() if batch.bit_count() > 1 for i in rows[w]]] = 0  # not a power of two
    first = np.cumsum([0, *(len(_powers(batch)) for batch in batches.values())])[:-1]
    most, of = np.maximum.reduceat(needed, first, axis=0), [(n, i) for n, w in enumerate(batches) for i in rows[w]]
    at_work, kernels_of = np.array(of).T
    bytes_[kernels_of] = np.maximum(bytes_[kernels_of], most[at_work])
    return bytes_


def batch_of(w: Work) -> int:
    """The batch of a work whose family says which field that is, else 1."""
    return int(getattr(w.size, family_of(w).batch, 1))


def with_batch(w: Work, batch: int) -> Work:
    """The same work at another batch, with which all grows but what its family says is shared."""
    return grown(w, family_of(w).batch, batch, family_of(w).shared_bytes(w))


def _powers(batch: int) -> list[int]:
    """The powers of two below a batch above 1, and the next one where it is none itself."""
    return [1 << k for k in range((batch - 1).bit_length() + 1) if 1 << k != batch]

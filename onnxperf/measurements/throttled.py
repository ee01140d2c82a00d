"""Which rows are not the kernel's own time: rules written down before anything was scored with them."""

from __future__ import annotations

import numpy as np

from onnxperf.measurements.core import Table

DISPATCH_S = 1e-4
PRODUCTS = ("bmm", "linear")
LONGER = 1.2  # labs differ by 3 to 12% on one shape


def kept(table: Table) -> Table:
    """The table without the rows that its family's rule takes out, and why."""
    return products(table) if table.family in PRODUCTS else table


def vector(table: Table) -> Table:
    """Without the rows that are no longer than the host took to launch them.

    An event pair around a kernel reads `start + max(kernel, dispatch)`: on these hosts that is 25 to 60 microseconds
    whatever the kernel does. Rows under 0.1 ms, which no score counts either, would tell a fit of the host.
    """
    return table.without(table.seconds < DISPATCH_S, "shorter than the host's dispatch")


def products(table: Table) -> Table:
    """Without products that took 1.2 times as long as a product that contains them: the card was slower meanwhile.

    Contains: at least as large a batch, m, n and k, by the same kernel on the same card. No tile, wave or cache makes
    the smaller one longer. Rows under 0.1 ms, which no score counts, are left alone.
    """
    sizes = np.array([w.size[:4] for w in table.works], dtype=np.int64).reshape(len(table.works), 4)
    bad = np.zeros(table.seconds.shape, dtype=bool)
    for j in range(len(table.gpus)):
        measured = np.flatnonzero(table.seconds[:, j] >= DISPATCH_S)
        for kernel in dict.fromkeys(table.kernel[measured, j]):
            rows = measured[table.kernel[measured, j] == kernel] if kernel else measured[:0]
            rows = rows[np.argsort(table.seconds[rows, j])]
            shorter = np.searchsorted(table.seconds[rows, j], table.seconds[rows, j] / LONGER)
            for row, end in zip(rows, shorter, strict=True):
                bad[row, j] = (sizes[rows[:end]] >= sizes[row]).all(axis=1).any()
    return table.without(bad, "longer than a larger product")

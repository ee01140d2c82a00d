"""Rows that do not tell what their tables are read for."""

from __future__ import annotations

import numpy as np

from onnxperf.measurements.core import Table

DISPATCH_S = 1e-4


def other_library(table: Table) -> Table:
    """Without the rows kept back by their source that ran on kernels which none of the card's other rows ran on.

    They were measured with another version of the library than the rest of the table and the whole models, and what
    one version does says little of another: P4's 974 products with a bias ran on sgemm_128x128x8_NT_vec, at .8 of
    the card's peak; its training rows on maxwell_sgemm_64x64_tn and 32x128_tn, at .2 to .4. Rows without a name stay.
    """
    alien = np.zeros(table.seconds.shape, dtype=bool)
    for j in range(len(table.gpus)):
        usual = {name for name in table.kernel[(table.seconds[:, j] > 0) & ~table.test, j] if name}
        if usual:
            names = table.kernel[:, j]
            alien[:, j] = table.test & np.array([bool(name) and name not in usual for name in names], dtype=bool)
    return table.without(alien, "on kernels of another library version than the card's other rows")


def short(table: Table) -> Table:
    """Without the rows that are no longer than the host took to launch them.

    An event pair around a kernel reads `start + max(kernel, dispatch)`: on these hosts that is 25 to 60 microseconds
    whatever the kernel does. Rows under 0.1 ms, which no score counts either, would tell a fit of the host.
    """
    return table.without(table.seconds < DISPATCH_S, "shorter than the host's dispatch")

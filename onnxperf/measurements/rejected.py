"""Rows that do not tell what their tables are read for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onnxperf.measurements.core import LEAST_S, Table

OTHER_LIBRARY = " of another library"
FEW = 0.1  # of a card's kept-back rows: so many may be on kernels that are merely rare


def by_library(table: Table) -> list[Table]:
    """The table without the rows kept back by their source that ran on kernels which none of the card's other rows ran
    on, and those rows as a table of their own: `linear of another library`.

    They were measured with another version of the library than the rest of the table and the whole models, and what
    one version does says little of another: P4's 974 products with a bias ran on sgemm_128x128x8_NT_vec, at .8 of
    the card's peak; its training rows on maxwell_sgemm_64x64_tn and 32x128_tn, at .2 to .4. Rows without a name stay,
    and cards with a tenth of such rows or fewer.
    """
    alien = np.zeros(table.seconds.shape, dtype=bool)
    for j in range(len(table.gpus)):
        usual = {name for name in table.kernel[(table.seconds[:, j] > 0) & ~table.test, j] if name}
        if usual:
            kept_back = table.test & (table.seconds[:, j] > 0)
            other = kept_back & np.array([bool(name) and name not in usual for name in table.kernel[:, j]], dtype=bool)
            alien[:, j] = other & (other.sum() > FEW * kept_back.sum())
    if not alien.any():
        return [table]
    apart = replace(
        table, family=table.family + OTHER_LIBRARY, seconds=np.where(alien, table.seconds, np.nan), dropped={}
    )
    rest = replace(table, seconds=np.where(alien, np.nan, table.seconds))
    return [rest, apart.on(g for j, g in enumerate(table.gpus) if alien[:, j].any())]


def short(table: Table) -> Table:
    """Without the rows that are no longer than the host took to launch them.

    An event pair around a kernel reads `start + max(kernel, dispatch)`: on these hosts that is 25 to 60 microseconds
    whatever the kernel does. Rows under 0.1 ms, which no score counts either, would tell a fit of the host.
    """
    return table.without(table.seconds < LEAST_S, "shorter than the host's dispatch")

"""Which tiles a library has for an architecture: read off the names of the kernels it ran there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import gpu_specs
from onnxperf.datasets import Table, kernels
from onnxperf.latency.constants import ConstantSet, Tiles


def learned(wanted: ConstantSet, every: Sequence[Table]) -> dict[str, list[list[int]]]:
    """What names of kernels tell of the tiles of a set of constants, by dotted path."""
    return {
        f"{tiles.path}.{capability}": sizes
        for tiles in wanted.tiles
        for capability, sizes in (seen(every, tiles) or tiles.unnamed).items()
        if int(capability.removeprefix("cc")) >= tiles.since
    }


def seen(every: Iterable[Table], tiles: Tiles) -> dict[str, list[list[int]]]:
    """The tiles in kernels' names by compute capability (cc75), the most frequent first.

    Rows that the source kept back tell nothing.
    """
    counts: dict[str, Counter[tuple[int, ...]]] = {}
    named = {k.name for k in kernels().values() if k.tiles == tiles.told_by}
    for t in (t for t in every if t.name in named):
        for j, gpu in enumerate(t.gpus):
            major, minor = gpu_specs.load(gpu).capability
            found = counts.setdefault(f"cc{major}{minor}", Counter())
            for name in t.kernel[(t.seconds[:, j] > 0) & ~t.test, j]:
                if match := re.search(tiles.pattern, name):
                    found[tuple(int(n) for n in match.groups())] += 1
    return {
        capability: [list(size) for size, n in found.most_common() if n >= tiles.share * found.total()]
        for capability, found in sorted(counts.items())
        if found
    }

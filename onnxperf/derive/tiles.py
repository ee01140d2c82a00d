"""Which tiles a library has for an architecture: read off the names of the kernels it ran there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import gpu_specs
from onnxperf.datasets import Table, kernels

Sizes = list[list[int]]


def capability(gpu: str) -> str:
    """A card's compute capability as constants name it: cc75."""
    major, minor = gpu_specs.load(gpu).capability
    return f"cc{major}{minor}"


def seen(every: Iterable[Table], tiles: str, pattern: str, share: float) -> dict[str, Sizes]:
    """By compute capability, the sizes that `pattern` finds in kernels' names, the most frequent first, as far as they
    are those of at least a share of the kernels with any.

    Read are tables whose kernels tell of these `tiles` (`datasets.Kernels`), but for rows that the source kept back.
    """
    counts: dict[str, Counter[tuple[int, ...]]] = {}
    named = {k.family for k in kernels().values() if k.tiles == tiles}
    for t in (t for t in every if t.family in named):
        for j, gpu in enumerate(t.gpus):
            found = counts.setdefault(capability(gpu), Counter())
            for name in t.kernel[(t.seconds[:, j] > 0) & ~t.test, j]:
                if match := re.search(pattern, name):
                    found[tuple(int(n) for n in match.groups())] += 1
    return {
        cc: [list(size) for size, n in found.most_common() if n >= share * found.total()]
        for cc, found in sorted(counts.items())
        if found
    }


def by_path(root: str, sets: dict[str, Sizes]) -> dict[str, Sizes]:
    """The sets at the dotted paths of their constants."""
    return {f"{root}.{cc}": sizes for cc, sizes in sets.items()}

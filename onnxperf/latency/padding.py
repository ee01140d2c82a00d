"""No work takes longer than a larger one that the library could run instead, padded.

Models follow what was measured, where a library picks a slow kernel for one size and a fast one for the next: cuBLAS 9
takes up to three times as long for 16 rows as for 32 on Pascal (DeepBench). A prediction assumes of the library in use
that it does not: more work never gets faster by the choice of a variant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.terms import Array, KernelTerms, choose
from op_models import Work

CHUNK = 256  # works estimated at once, as in `estimate`
MORE, SMALL, FAR = (0, 1, 2), 128, 1 << 12
LEAST_S = 1e-15
ROUNDED = 1 - 1e-9  # of seconds that are no less but for rounding


def above(size: int, times: float, near: int = 0) -> list[int]:
    """Larger sizes that are tried, up to so many times as large: the next multiples of each power of two, where tiles
    are full or parts of k change, those of 8 to SMALL, the powers to FAR and three times them, as measured residuals
    change from a factor of 8 to the next, and the next `near` whole numbers.
    """
    steps = [1 << k for k in range(size.bit_length() + 1)]
    multiples = {(-(-size // step) + more) * step for step in steps for more in MORE}
    fixed = {*range(8, SMALL + 1, 8), *(n << k for k in range(FAR.bit_length()) for n in (1, 3))}
    return sorted(n for n in multiples | fixed | set(range(size, size + near + 1)) if size < n <= size * times)


def grown(w: Work, field: str, size: int, shared: int) -> Work:
    """The same work with another size in a field, with which all grows but `shared` of the bytes that it reads."""
    old: Any = w.size
    factor, shared = size / getattr(old, field), min(shared, w.bytes_read)
    read, written = shared + round((w.bytes_read - shared) * factor), round(w.bytes_written * factor)
    matrix, vector = round(w.matrix_flops * factor), round(w.vector_flops * factor)
    return Work(old._replace(**{field: size}), w.dtype, w.pipe, read, written, w.weight_bytes, matrix, vector, w.steps)


def larger_batches(
    w: Work, times: float, field: str, shared: int, near: int = 0, most: int | None = None
) -> list[Work]:
    """The same work with larger batches, in a field of its size, up to so many times as large, and at most so many of
    them; shared: bytes that it reads whatever its batch.
    """
    batch = getattr(w.size, field)
    return [grown(w, field, size, shared) for size in above(batch, times, near)[:most]] if batch else []


def least_padded(
    times: Callable[[Works, Array], KernelTerms], larger: Callable[[Work, float], list[Work]], works: Works,
    cards: Cards, stored: Array, least_s: Array, monotone: bool = False,
) -> KernelTerms:  # fmt: skip
    """The terms of n works by a model, or those of the fastest larger work where that takes less time, [n, g].

    times: the model, of works and of the bytes of weights that their run reads [n, 1]; larger: what could run instead,
    up to so many times as large; least_s: seconds of the FLOPs at peak [n, g], which a larger work has more of.
    monotone: no work takes less time in a run that reads more weights, so that what is not faster in the one which
    reads the fewest need not be tried in the others.
    """
    alone = times(works, stored)
    most = np.max(alone.seconds / np.maximum(least_s, LEAST_S), axis=1).tolist()
    asked = [(i, w) for i, work in enumerate(works.each) for w in larger(work, most[i])]
    if asked and monotone and (stored != stored[0]).any():
        asked = _promising(asked, times, alone, cards, float(stored.min()))
    if not asked:
        return alone
    rows = np.array([i for i, _ in asked])
    unpadded = list(zip(works.each, stored[:, 0].tolist(), strict=True))
    each, instead = _once(unpadded, [(w, unpadded[i][1]) for i, w in asked])
    parts, shape = [alone, *_tried(each[len(unpadded) :], times, cards)], alone.seconds.shape
    tried = {f: _joined([getattr(t, f) for t in parts], parts, shape[1]) for f in KernelTerms._fields[:-1]}
    best, has_larger = np.zeros(shape, dtype=int), np.zeros((shape[0], 1), dtype=bool)
    has_larger[rows] = True
    for i in np.flatnonzero(has_larger).tolist():
        at = instead[rows == i]
        best[i] = at[np.argmin(tried["seconds"][at], axis=0)]
    fields: dict[str, Any] = {f: np.take_along_axis(values, best, axis=0) for f, values in tried.items()}
    chosen = KernelTerms(**fields)
    faster = has_larger & (chosen.seconds < alone.seconds)
    larger_flops = np.array([w.matrix_flops for w, _ in each], dtype=float)[best]
    share = np.where(faster, works.matrix / np.maximum(larger_flops, 1), 1.0)
    useful = chosen.compute * share
    padding = chosen.executed_share / np.maximum(share, 1e-30)
    energy = np.minimum(np.broadcast_to(alone.executed_share, shape), padding)  # zeros take little
    chosen = chosen._replace(compute=useful, latency=chosen.latency + chosen.compute - useful, executed_share=energy)
    if alone.detail and faster.all():  # somebody asks about this one, on one card
        detail = times(Works([each[best[0, 0]][0]], cards), stored).detail
        chosen = chosen._replace(detail={"padding efficiency": share, **detail})
    return choose(faster, chosen, alone)


def _tried(
    each: Sequence[tuple[Work, float]], times: Callable[[Works, Array], KernelTerms], cards: Cards
) -> list[KernelTerms]:
    """The terms of works in runs that read so many bytes of weights, in parts."""
    parts = (each[at : at + CHUNK] for at in range(0, len(each), CHUNK))
    return [times(Works([w for w, _ in part], cards), np.array([[s] for _, s in part])) for part in parts]


def _once(
    unpadded: Sequence[tuple[Work, float]], larger: Sequence[tuple[Work, float]]
) -> tuple[list[tuple[Work, float]], Array]:
    """Works, and behind them once what is larger and none of them, and at which index each of the larger ones stands:
    what several could be padded to is estimated once, also where it is one of them, as at another batch.
    """
    index = {pair: at for at, pair in enumerate(unpadded)}
    new = [pair for pair in dict.fromkeys(larger) if pair not in index]
    index |= {pair: len(unpadded) + at for at, pair in enumerate(new)}
    return [*unpadded, *new], np.array([index[pair] for pair in larger])


def _promising(
    asked: Sequence[tuple[int, Work]], times: Callable[[Works, Array], KernelTerms], alone: KernelTerms, cards: Cards,
    stored: float,
) -> list[tuple[int, Work]]:  # fmt: skip
    """Those of the larger works, each by the index of what it could run instead of, that take less time on some card in
    a run that reads as few bytes of weights as `stored`.
    """
    each, instead = _once([], [(w, stored) for _, w in asked])
    seconds = np.concatenate([t.seconds for t in _tried(each, times, cards)])
    faster = ROUNDED * seconds[instead] < alone.seconds[[i for i, _ in asked]]
    return [asked[at] for at in np.flatnonzero(faster.any(axis=1)).tolist()]


def _joined(values: list[Array], parts: list[KernelTerms], devices: int) -> Array:
    """A term of works that were estimated in parts, [n, g]."""
    shapes = [(t.seconds.shape[0], devices) for t in parts]
    return np.concatenate([np.broadcast_to(v, shape) for v, shape in zip(values, shapes, strict=True)])

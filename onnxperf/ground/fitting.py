"""One way to fit: maximum a posteriori (MAP) by least squares, for the shipped constants and for a user's own device.

Every parameter v has a log-normal prior: log v is normal around log(start) with the standard deviation `spread`. The
misfit of a row is m = log(predicted / measured). A fit minimises, with x = log(v / start) / spread,

    sum over parameters of x^2 + sum over rows of (weight s(m))^2,    s(m)^2 = 2 (sqrt(1 + (m / SOFT)^2) - 1)

The soft-L1 loss s^2 is (m / SOFT)^2 where a row is off by little and grows with |m| alone where it is off by much: rows
that went wrong do not rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
SOFT = 0.10  # what a good row is off by
ROUNDS = 40  # at most
ENOUGH = 1e-4  # of the sum of squares or of a parameter: a round that changes less is the last one
STEP = 1.5e-8  # of x, for differences: the square root of what a float can tell apart


@dataclass(frozen=True, slots=True)
class Prior:
    """What is known of a parameter before the fit: its median, the standard deviation of its logarithm, and bounds."""

    start: float
    spread: float
    least: float = 1e-30
    most: float = 1e30


def map_fit(
    priors: Sequence[Prior], misfits: Callable[[Array], Array], weights: Array | float = 1.0,
    begin: Array | None = None, step: float = STEP,
) -> Array:  # fmt: skip
    """The values [p] of the parameters that fit best.

    misfits: log(predicted / measured) of all rows [r, k] at k points of values [k, p]; weights [r]: how much a row
    counts beside the priors; begin [p]: values to begin from, for those of the priors; step: the width of differences,
    in standard deviations.
    """
    from scipy.optimize import least_squares

    start, least, most = np.log([(p.start, p.least, p.most) for p in priors]).T
    spread = np.array([p.spread for p in priors])
    weight = np.reshape(weights, (-1, 1))

    def values(x: Array) -> Array:
        return np.asarray(np.exp(np.clip(start + spread * x, least, most)))

    def rows(points: Array) -> Array:
        off = misfits(values(points))
        return np.asarray(weight * np.sign(off) * np.sqrt(2 * (np.sqrt(1 + (off / SOFT) ** 2) - 1)))

    def residuals(x: Array) -> Array:
        return np.concatenate([x, rows(x[None])[:, 0]])

    def slopes(x: Array) -> Array:
        at = rows(np.concatenate([x[None], x + step * np.eye(len(x))]))
        return np.concatenate([np.eye(len(x)), (at[:, 1:] - at[:, :1]) / step])

    x = np.zeros(len(priors)) if begin is None else (np.log(begin) - start) / spread
    done = least_squares(residuals, x, jac=slopes, max_nfev=ROUNDS, xtol=ENOUGH, ftol=ENOUGH)
    return values(done.x)

"""How sure an estimate is: half-widths of ranges that hold four measurements in five.

A half-width h is a logarithm: the range is from t / exp(h) to t exp(h). Works are grouped into error classes. A class
with measured rows has split-conformal half-widths: the quantile of |log(measured / predicted)| over rows that had no
part in the constants that predict them (Vovk et al., 2005). There is one for each third of the rows by their work, and
for each distance of the card from those with rows: `measured`, the very card has some; `known`, a card of its
generation has; `new`, none has. Only `measured` is no such quantile where its rows were fitted to. Half-widths
of classes without rows are assumed. All are constants, in the tables `interval.<class>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gpu_specs import Device
from onnxperf.ground.errors import UsageError
from onnxperf.latency.cards import Cards, pipe_on
from onnxperf.latency.constants import Constants
from onnxperf.latency.device_models import DEVICE_MODELS
from onnxperf.latency.families import family_of
from onnxperf.latency.family import UNMEASURED
from onnxperf.latency.terms import Array, summed
from op_models import Work

COVERAGE = 0.8
DISTANCES = ("measured", "known", "new")
NEEDED = (*DISTANCES, "within")  # what the table of an error class has at least
BEYOND = 4.0  # times the largest row, or part of the smallest: outside the rows' domain


def ranges_of(name: str, constants: Constants) -> Mapping[str, Any]:
    """The table of an error class.

    Raises UsageError where the constants have none of that name: a family or a method names a class of its own that
    nobody gave a half-width, measured or assumed.
    """
    table = constants.interval.get(name)
    if not isinstance(table, Mapping) or any(x not in table for x in NEEDED):
        raise UsageError(
            f"the constants have no ranges for the error class {name!r}: add a table `interval.{name}` with "
            f"{', '.join(NEEDED)}, derive it by `python -m onnxperf.lab.derive`, or leave the class {UNMEASURED!r}, "
            "whose ranges are assumed and wide"
        )
    return table


def class_on(w: Work, device: Device) -> str:
    """The error class of a work on a device: a processor has one for all works."""
    on_tensor = pipe_on(device, w.pipe).startswith("tensor_")
    return DEVICE_MODELS[device.kind].error_class or family_of(w).error_class(w, on_tensor)


def distance(device: Device, name: str, constants: Constants) -> str:
    """How far a card is from those that a class has rows of, one of DISTANCES."""
    table = ranges_of(name, constants)
    if device.id in table.get("cards", ()):
        return "measured"
    return "known" if device.capability[0] in table.get("generations", ()) else "new"


@lru_cache(maxsize=64)  # some ten classes on each set of cards
def _distances(cards: Cards, name: str) -> list[int]:
    """How far each card is from those that a class has rows of, an index into DISTANCES."""
    return [DISTANCES.index(distance(device, name, cards.constants)) for device in cards.devices]


def in_domain(work_list: Sequence[Work], names: Sequence[str], constants: Constants) -> Array:
    """Whether rows of about this size and type were measured of each work's class, [n]; True where it has no rows.

    No row has attention whose values are a part of its keys.
    """
    inside, tables = np.ones(len(work_list), dtype=bool), {name: ranges_of(name, constants) for name in set(names)}
    for i, (w, name) in enumerate(zip(work_list, names, strict=True)):
        table = tables[name]
        reach = table.get("FLOPs_and_bytes")
        if reach is not None:
            flops, nbytes = reach
            inside[i] = (
                w.dtype in table["types"]
                and not getattr(w.size, "shared", False)
                and all(
                    least / BEYOND <= value <= most * BEYOND
                    for value, (least, most) in ((w.matrix_flops + w.vector_flops, flops), (w.bytes, nbytes))
                )
            )
    return inside


def amount(w: Work) -> float:
    """What a work is sorted into thirds by: its matrix FLOPs, or its bytes where it has none."""
    return float(w.matrix_flops or w.bytes)


def thirds(work_list: Sequence[Work], name: str, constants: Constants) -> list[int]:
    """Whether each work is small, middling or large among the rows of a class: 0, 1 or 2."""
    edges: list[int] = np.searchsorted(ranges_of(name, constants).get("thirds", ()), [*map(amount, work_list)]).tolist()
    return edges


def half_widths(work_list: Sequence[Work], cards: Cards) -> Array:
    """The half-width of each work's estimate on each card, [n, g].

    Where a class has rows, its small, middling and large works have half-widths of their own. A work outside of the
    rows' domain has a multiple of that on a new card, and no less than `outside_least`.
    """
    constants = cards.constants
    names = [family_of(w).error_class(w, on_tensor) for w in work_list for on_tensor in (False, True)]
    index = {name: i for i, name in enumerate(dict.fromkeys(names))}
    plain, tensor = np.array([index[name] for name in names], dtype=int).reshape(-1, 2, 1).swapaxes(0, 1)
    classes = np.where(cards.tensor([w.pipe for w in work_list]), tensor, plain)
    widths = np.zeros(classes.shape)
    for name, i in index.items():
        rows = np.flatnonzero((classes == i).any(axis=1))
        if not len(rows):
            continue
        table, members = ranges_of(name, constants), [work_list[at] for at in rows.tolist()]
        by_distance = np.array([np.atleast_1d(table[x]) for x in DISTANCES], dtype=float)  # [distance, third]
        of_third = thirds(members, name, constants)
        outside = np.maximum(constants.interval["outside"] * by_distance[-1], constants.interval["outside_least"])
        inside = in_domain(members, [name] * len(members), constants)[:, None]
        width = np.where(inside, by_distance[np.ix_(_distances(cards, name), of_third)].T, outside[of_third][:, None])
        widths[rows] = np.where(classes[rows] == i, width, widths[rows])
    return widths


def combined(classes: Sequence[str], same: Array, seconds: Array, half_width: Array, constants: Constants) -> Array:
    """The half-width [g] of the sum of kernels of these classes [n], from their seconds and half-widths [n, g].

    An error has three parts: one that all kernels on a card share, one that a class shares, and one of the work itself;
    kernels with equal numbers in `same` [n] have the same work. Of the variance, the first two are the share `within`,
    and the first is the share `between` of these.
    """
    names = sorted(set(classes))
    members = np.array([names.index(x) for x in classes], dtype=int)
    within = np.array([ranges_of(name, constants)["within"] for name in names])[members, None]
    by_class = np.zeros((len(names), seconds.shape[1]))
    by_work = np.zeros((int(same.max(initial=-1)) + 1, seconds.shape[1]))
    np.add.at(by_class, members, seconds * half_width * np.sqrt(within))
    np.add.at(by_work, same, seconds * half_width * np.sqrt(1 - within))
    between = constants.interval["between"]
    variance = between * summed(by_class) ** 2 + (1 - between) * summed(by_class**2)
    return np.asarray(np.sqrt(variance + summed(by_work**2)) / np.maximum(summed(seconds), 1e-30))

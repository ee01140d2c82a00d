"""Kernels and models that were measured beside what each method says of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from zlib import crc32

import numpy as np

import gpu_specs
from onnxperf.calibrate import attention, conv, gemm, recurrent, tensor, tensor_conv, vector
from onnxperf.latency import Constants, estimate, shipped
from onnxperf.latency.cards import Cards
from onnxperf.latency.intervals import half_widths
from onnxperf.latency.terms import Array
from onnxperf.lower import Kernel, Kernels
from onnxperf.measurements import Table
from onnxperf.measurements.rejected import OTHER_LIBRARY
from onnxperf.measurements.torch_fp32 import ELEMENTWISE
from onnxperf.methods import METHODS as METHODS_OF_PREDICTION

#: Methods that are scored on kernels. The first takes constants that no row of the card's die had a part in.
LEFT_OUT, SHIPPED, ROOFLINE = "tile-wave, left out", "tile-wave", "roofline"
METHODS = (LEFT_OUT, SHIPPED, ROOFLINE)

#: What the families of measured kernels are reported as, in the order of the tables.
CLASSES = {
    "bmm": "batched GEMM", "linear": "GEMM with bias", f"bmm{OTHER_LIBRARY}": "batched GEMM, other library",
    f"linear{OTHER_LIBRARY}": "GEMM with bias, other library",
    **dict.fromkeys(ELEMENTWISE, "elementwise"),
    "softmax": "softmax", "ln": "LayerNorm", "conv": "convolution 3x3", "deepbench gemm": "DeepBench GEMM",
    "deepbench conv": "DeepBench convolution", "deepbench rnn": "DeepBench recurrent",
    "deepbench gemm fp16": "DeepBench FP16 GEMM", "deepbench conv fp16": "DeepBench FP16 convolution",
    "deepbench rnn fp16": "DeepBench FP16 recurrent", "gemm bfloat16": "BF16 GEMM",
    tensor.SUSTAINED: "BF16 GEMM, sustained", "gemm float16": "FP16 GEMM", "gemm fp8": "FP8 GEMM",
    "gemm fp8_block": "FP8 GEMM, scaled by block", "gemm fp8_static": "FP8 GEMM, known scales",
    "gemm sq": "INT8 GEMM", "gemm int8_wo": "GEMM, INT8 weights", "gemm int4_wo": "GEMM, INT4 weights",
    "gemm nvfp4": "FP4 GEMM", "attention encoder": "attention, encoder", "attention prefill": "attention, prefill",
    "attention decode": "attention, decode",
}  # fmt: skip

#: The family of constants behind each of them where it is not that of vector kernels.
FITTED = {
    **dict.fromkeys(("bmm", "linear", f"bmm{OTHER_LIBRARY}", f"linear{OTHER_LIBRARY}"), gemm.FAMILY),
    "deepbench gemm": gemm.FAMILY, "conv": conv.FAMILIES[0],
    "deepbench conv": conv.FAMILIES[0], "deepbench conv fp16": tensor_conv.FAMILY,
    "deepbench rnn": recurrent.FAMILY, "deepbench rnn fp16": recurrent.FAMILY,
    **{name: family for family in tensor.FAMILIES for name in family.tables},
    **dict.fromkeys(attention.NAMES, attention.FAMILY),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Score:
    """How far a method is from the rows of one operator class or model.

    gpu: the card, or "" where cards are averaged, each with the same weight. rows: "test" for those that the source
    itself kept back, "rest" for the others. mape: mean of |predicted / measured - 1|; bias: the median of predicted /
    measured, less 1; coverage: the share of rows within the stated range; half_width: the median of that range's half,
    as a share of the estimate (both None where a method states no range).
    """

    kind: str
    name: str
    gpu: str
    rows: str
    method: str
    count: int
    mape: float
    bias: float
    coverage: float | None
    half_width: float | None


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows [k] of one class or model on one card beside one method's answers; nan where no range is stated.

    keys: what was run; rows of two cards with the same key are of the same work.
    """

    name: str
    gpu: str
    method: str
    keys: Array
    measured: Array
    predicted: Array
    low: Array
    high: Array
    test: Array


def score(kind: str, pairs: Iterable[Pairs], alone: bool = True) -> list[Score]:
    """The scores of each name, card and method, then those averaged over cards; rows of all cards count alike where no
    card stands `alone`.
    """
    alike: dict[tuple[str, str, str], list[Pairs]] = {}
    for p in pairs:
        alike.setdefault((p.name, p.gpu * alone, p.method), []).append(p)
    found: list[Score] = []
    for (name, gpu, method), parts in alike.items():
        columns = (np.concatenate([getattr(p, c) for p in parts]) for c in ("measured", "predicted", "low", "high"))
        measured, predicted, low, high = columns
        test = np.concatenate([p.test for p in parts])
        for rows, taken in (("test", test), ("rest", ~test)):
            if taken.any():
                terms = _terms(measured[taken], predicted[taken], low[taken], high[taken])
                found.append(Score(kind, name, gpu, rows, method, int(taken.sum()), *terms))
    return found + over_cards(found) if alone else found


Terms = tuple[float, float, float | None, float | None]


def _terms(measured: Array, predicted: Array, low: Array, high: Array) -> Terms:
    ratio = predicted / measured
    mape, bias = float(np.mean(np.abs(ratio - 1))), float(np.exp(np.median(np.log(ratio)))) - 1
    if np.isnan(low).any():
        return mape, bias, None, None
    within = (low <= measured) & (measured <= high)
    return mape, bias, float(np.mean(within)), float(np.median((high - low) / (2 * predicted)))


def over_cards(scores: Iterable[Score]) -> list[Score]:
    """Scores of the same rows and method as one, every card with the same weight."""
    alike: dict[tuple[str, str, str, str], list[Score]] = {}
    for s in scores:
        alike.setdefault((s.kind, s.name, s.rows, s.method), []).append(s)

    def mean(values: Sequence[float | None]) -> float | None:
        stated = [v for v in values if v is not None]
        return float(np.mean(stated)) if len(stated) == len(values) else None

    return [
        Score(
            kind, name, "", rows, method, sum(s.count for s in same),
            float(np.mean([s.mape for s in same])), float(np.mean([s.bias for s in same])),
            mean([s.coverage for s in same]), mean([s.half_width for s in same]),
        )
        for (kind, name, rows, method), same in alike.items()
    ]  # fmt: skip


WITHIN = 2.0  # times: which of two cards is faster is no question where one has several times the other's rates


@dataclass(frozen=True, slots=True)
class Order:
    """For how many pairs of cards, measured less than WITHIN apart on the same work or run, a method says which is
    faster; where it says neither, half.
    """

    kind: str
    name: str
    method: str
    count: int
    right: float


def order(kind: str, pairs: Iterable[Pairs]) -> list[Order]:
    """How well each method orders cards by name, over all rows that two cards share."""
    alike: dict[tuple[str, str], list[Pairs]] = {}
    for p in pairs:
        alike.setdefault((p.name, p.method), []).append(p)
    found = []
    for (name, method), parts in alike.items():
        right: list[float] = []
        for a, b in combinations(parts, 2):
            _, i, j = np.intersect1d(a.keys, b.keys, return_indices=True)
            measured, predicted = np.log(a.measured[i] / b.measured[j]), np.log(a.predicted[i] / b.predicted[j])
            close = (np.abs(measured) < np.log(WITHIN)) & (measured != 0) & (a.gpu != b.gpu)
            right += (0.5 + 0.5 * np.sign(measured * predicted))[close].tolist()
        if right:
            found.append(Order(kind, name, method, len(right), float(np.mean(right))))
    return found


def kernels(table: Table) -> Iterator[Pairs]:
    """The rows of a table that last long enough, by card, beside each method's answers.

    What the clock of the rig includes beside the kernel is added to answers; ranges are of what the clock reads,
    as the half-widths were derived (`calibrate.constants.missed`).
    """
    table = table.take(np.flatnonzero((table.seconds > table.least_s).any(axis=1)))
    long = table.seconds > table.least_s
    name = CLASSES.get(table.family, table.family)
    for method in METHODS:
        for j, (gpu, die) in enumerate(zip(table.gpus, table.dies, strict=True)):
            at = np.flatnonzero(long[:, j])
            if not len(at):
                continue
            constants = shipped(die if method == LEFT_OUT else "")
            seconds, width = answers(table, at, gpu, method, constants)
            extra = overhead(table, gpu, constants, method == LEFT_OUT)
            read = extra + seconds
            low, high = read * np.exp(-width), read * np.exp(width)
            keys = at + (crc32(table.family.encode()) << 24)
            yield Pairs(name, gpu, method, keys, table.seconds[at, j], read, low, high, table.test[at])


def answers(table: Table, rows: Array, gpu: str, method: str, c: Constants) -> tuple[Array, Array]:
    """Seconds of some of a table's works [k] as its rig runs them on a card, and their half-widths, as logarithms."""
    works, device = [table.works[i] for i in rows], gpu_specs.load(gpu)
    if method == ROOFLINE:
        kernels = Kernels(tuple(Kernel(str(i), "", (), w) for i, w in enumerate(works)))
        found = estimate(kernels, [device], METHODS_OF_PREDICTION["roofline"], c)
        inside = vector.beside(works, c) if table.family in vector.NAMES else 0.0
        return found.seconds[:, 0] + inside, found.half_width[:, 0]
    family = FITTED.get(table.family, vector.FAMILY)
    return family.seconds(table.take(rows), [device], c)[:, 0], half_widths(works, Cards([device], c), c)[:, 0]


def overhead(table: Table, gpu: str, c: Constants, left_out: bool) -> float:
    """Seconds that the clock of a table's rig includes on a card; on one that is left out, what it does on others."""
    fitted = c.rig[FITTED.get(table.family, vector.FAMILY).name][table.rig]
    return float(fitted["other"] if left_out else fitted.get(gpu, fitted["other"]))

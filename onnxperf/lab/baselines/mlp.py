"""mlp: tiles, waves, and a utilisation that a small neural network tells of each operator class; to compare with.

Source: Lee, Phanishayee and Mahajan, "Forecasting GPU performance for deep learning training and inference" (NeuSight),
ASPLOS 2025. `python -m onnxperf.lab.derive.mlp DATA` trains the networks. Shapes: n works on g cards are [n, g].
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from onnxperf.ground.errors import UsageError
from onnxperf.latency import KernelTerms, Method
from onnxperf.latency.cards import Cards, Works, nearest
from onnxperf.latency.estimate import kernel_models
from onnxperf.latency.method import BY_FAMILY
from onnxperf.latency.power import available, energy
from onnxperf.latency.terms import Array
from op_models import Gemm, Pointwise, Rows, Work

#: The operator classes: each has networks of its own, the mean of whose outputs counts. Constants: `mlp.<class>`.
CLASSES = ("bmm", "linear", "elementwise", "softmax", "normalisation")
FEATURES, HIDDEN = 8, 16  # of each of two hidden layers
LAYERS = ((FEATURES,), (FEATURES, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 2))
BLOCK, WARPS, WARP_ROW = 512, 4, 1024  # elements of a block; short rows of a block, and how wide these are at most


class Tiled(NamedTuple):
    """Tiles [n, g]: seconds of one at an SM's share of the peak and of DRAM's bandwidth; features [n, g, f]; name."""

    waves: Array
    compute: Array
    memory: Array
    features: Array
    name: Array


def class_of(w: Work) -> str:
    """The class of a work on CUDA cores, "" where no network was trained on kernels like it."""
    if w.dtype != "float32":
        return ""
    if isinstance(w.size, Rows):
        return ("", "normalisation", "softmax")[min(w.size.passes, 2)]
    if isinstance(w.size, Gemm):
        return "linear" if w.size.batch == 1 else "bmm"
    return "elementwise" if isinstance(w.size, Pointwise) else ""


def tiled(works: Works, cards: Cards) -> Tiled:
    """The tiles and waves of works of one class.

    A product's tile is the one of the library's on the card that has the fewest padded elements in all waves; a tile of
    other kernels is a block of PyTorch's: 512 elements, four softmax rows of up to 1024, or one row. The peak is what
    the power limit sustains.
    """
    if "k" in works.fields:
        count, flops, loads, depth, name = _product(works, cards)
    else:
        depth = works.fields.get("width", np.ones_like(works.read))
        short = (depth <= WARP_ROW) & (works.fields.get("passes", 0) >= 2)
        blocks = works["rows"] / np.where(short, WARPS, 1) if "rows" in works.fields else works["elements"] / BLOCK
        count = np.ceil(np.maximum(blocks, 1)) + 0 * cards.sms
        flops, loads, name = works.vector / count, works.read / count, np.full(count.shape, "block")
    flop = Work(works.each[0].size, "float32", "fp32", 0, 0, 0, vector_flops=1)
    sustained = np.minimum(works.rate, available(cards) / energy([flop], cards, np.ones((1, 1))))
    depth, loads = np.maximum(depth, 1), np.maximum(loads, 1)
    waves, sm_Bps = np.ceil(count / cards.sms), cards.bandwidth / cards.sms
    compute, memory = flops * cards.sms / sustained, np.maximum(works.bytes, 1) / count / sm_Bps
    ratios = (
        waves, compute / memory, compute * sm_Bps / loads, depth, flops / depth + 1, loads * cards.sms / cards.l2,
    )  # fmt: skip
    logarithms = (np.log2(np.maximum(r, 1e-4)) for r in ratios)
    features = np.broadcast_arrays(*logarithms, np.where(depth % 4 == 0, 1.0, 0.0), count / (waves * cards.sms))
    return Tiled(waves, compute, memory, np.stack(features, axis=-1), name)


def _product(works: Works, cards: Cards) -> tuple[Array, Array, Array, Array, Array]:
    """The number of tiles, the FLOPs of one and the bytes that it loads [n, g], k [n, 1], the tile's name [n, g]."""
    batch, m, n, k = (np.maximum(works[f], 1) for f in ("batch", "m", "n", "k"))
    tables, columns = cards.constants.cuda_core_tiles, []
    for j, device in enumerate(cards.devices):
        kind = "batched" if batch.max() > 1 else "biased"
        sides = np.array([s[:2] for s in nearest(tables[kind], device.capability)], dtype=float)
        rows, cols = sides[:, :1], sides[:, 1:]
        count = batch.T * np.ceil(m.T / rows) * np.ceil(n.T / cols)  # [tiles, n]
        padded = np.ceil(count / cards.sms[0, j]) * rows * cols
        best = np.lexsort((-(rows * cols) + 0 * padded, padded), axis=0)[0]  # of equal ones the largest tile
        side, depth = sides[best], k[:, 0]
        flops, loads = 2 * side.prod(axis=1) * depth, side.sum(axis=1) * depth * works.width[:, 0]
        columns.append((count[best, np.arange(len(best))], flops, loads, [f"{a:.0f}x{b:.0f}" for a, b in side]))
    count, flops, loads, names = (np.stack([np.array(f[i]) for f in columns], axis=1) for i in range(4))
    return count, flops, loads, k, names


def utilisation(features: Array, waves: Array, weights: Array) -> Array:
    """alpha - beta / waves, between 0 and 1, [n, g]; weights: those of networks one after the other, each the middle
    and half the range of its features, to which these are clipped, then each layer's matrix and bias.

    alpha = sigmoid(a), beta = alpha sigmoid(b): no wave is faster than the roofline.
    """
    ends, outputs = np.cumsum([n for shape in LAYERS for n in (int(np.prod(shape)), shape[-1])]), []
    for network in weights.reshape(-1, ends[-1]):
        middle, reach, *layers = np.split(network, ends[:-1])
        h = np.clip((features - middle) / reach, -1, 1)
        for i, shape in enumerate(LAYERS[1:]):
            h = (h if i == 0 else np.tanh(h)) @ layers[2 * i].reshape(shape) + layers[2 * i + 1]
        outputs.append(h)
    share = 1 / (1 + np.exp(-np.mean(outputs, axis=0)))
    return np.asarray(share[..., 0] * (1 - share[..., 1] / waves))


@cache
def numbers(text: str) -> Array:
    """Networks' numbers, thousandths in one text."""
    return 1e-3 * np.array(text.split(), dtype=float)


def mlp(works: Works, cards: Cards, stored: Array, bound: KernelTerms) -> KernelTerms:
    """waves x the longer of a tile's compute and memory seconds / utilisation; tile-wave's model where no network was
    trained on kernels like these, as on tensor cores. Raises UsageError of processors: all training rows are of cards.
    """
    if cards.kind == "cpu":
        raise UsageError("the networks of the method mlp were trained on cards alone: take another method, or a card")
    terms = kernel_models(works, cards, stored, bound)
    kept = ("detail", "executed_share")
    values: dict[str, Any] = {f: np.array(v) for f, v in terms._asdict().items() if f not in kept}
    values["variant"] = np.full(terms.seconds.shape, BY_FAMILY, dtype="<U24")
    classes = np.array([class_of(w) for w in works.each])
    for name in (c for c in CLASSES if (classes == c).any()):
        at = np.flatnonzero(classes == name)
        t = tiled(Works([works.each[i] for i in at], cards), cards)
        share = utilisation(t.features, t.waves, numbers(cards.constants.mlp[name]))
        compute, memory = t.waves * t.compute / share, t.waves * t.memory / share
        columns: dict[str, Any] = {"compute": compute, "memory": memory, "seconds": np.maximum(compute, memory)}
        columns |= {"variant": t.name, "launches": 1, **dict.fromkeys(("latency", "launch", "workspace"), 0.0)}
        on_tensor = cards.tensor([works.pipes[i] for i in at])
        for field, column in columns.items():
            values[field][at] = np.where(on_tensor, values[field][at], column)
    return KernelTerms(**values, executed_share=terms.executed_share)


METHOD = Method(
    name="mlp",
    describe="tiles, waves and a utilisation by a neural network for each operator class (NeuSight), added up",
    times=mlp,
    error_class="mlp",
    own_terms=True,
)

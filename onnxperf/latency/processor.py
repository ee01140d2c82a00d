"""A processor's core under ONNX Runtime: each operator by itself, arithmetic and traffic one after the other.

An operator's overhead (finding it, its output, its kernel) is the host's, and no part of this. The forms were read off
single operators on one Xeon with AVX-512 (Sapphire Rapids); rates are the device's own, clocks are per core.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnxperf.latency.bounds import Array, Bounds, Columns, bounds
from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants
from op_models import Attention, Conv, Gemm, Move, Pointwise, Recurrent, Rows, Transfer


def floor(k: Columns, d: Cards, c: Constants) -> Bounds:
    """The time no operator beats: its FLOPs at peak, or its bytes at the rate of the innermost cache."""
    compute = k.matrix / k.rate
    memory = np.broadcast_to(k.bytes / (d.sms * d.hz * c.processor["l1_bytes"]), compute.shape)
    nothing = np.zeros_like(compute)
    return bounds(compute, memory, nothing, nothing, np.maximum(compute, memory))


def lanes(x: Array, c: Constants) -> Array:
    """A size rounded up to whole vector registers."""
    return np.asarray(np.ceil(np.maximum(x, 1) / c.processor["register"]) * c.processor["register"])


def per_weight_byte(stored: Array, d: Cards, c: Constants) -> Array:
    """Seconds [n, g] for a byte of the weights, of which a run reads `stored` [n, 1]: they come from the core's own
    cache, from the shared one or from memory, whichever holds them all.
    """
    p = c.processor
    own, shared = (1 / (1 + (stored / np.maximum(size, 1)) ** p["sharpness"]) for size in (d.l2, d.l3))
    clocks = own / p["l2_bytes"] + (1 - own) * shared / p["shared_bytes"]
    return np.asarray((clocks / d.hz + (1 - own) * (1 - shared) / d.bandwidth) * d.memory)


def moving(k: Columns, d: Cards, c: Constants, near: float = 1.0) -> Array:
    """Seconds for what operators hand to each other: from the core's own cache, the rest of it from the shared one.

    `near`: the part of the first term that arithmetic does not hide.
    """
    p, nbytes = c.processor, k.bytes - k.weights
    far = np.maximum(nbytes - p["resident"] * d.l2 * d.sms, 0)
    return np.asarray((near * nbytes / p["l2_bytes"] + far / p["shared_bytes"]) / (d.sms * d.hz) * d.memory)


def _joined(k: Columns, d: Cards, compute: Array, memory: Array) -> Bounds:
    """Arithmetic and traffic of one core hardly overlap. FLOPs at peak are compute, what they take longer latency."""
    compute, memory = np.broadcast_arrays(compute * d.compute, memory)
    useful = np.minimum(k.matrix / k.rate, compute)
    return bounds(useful, memory, compute - useful, np.zeros_like(compute), compute + memory)


def gemm(k: Columns, d: Cards, c: Constants, fetch: Array) -> Bounds:
    """2 m n k at peak, n in whole registers and `extra_k` more of k for each element of the result; the weights' stream
    comes on top: rows of the left operand are few enough to stay where they are.
    """
    batch, m, n, depth = (np.maximum(k[f], 1) for f in ("batch", "m", "n", "k"))
    compute = 2 * batch * m * lanes(n, c) * (depth + c.processor["extra_k"]) / k.rate
    return _joined(k, d, compute, k.weights * fetch + moving(k, d, c))


def conv(k: Columns, d: Cards, c: Constants, fetch: Array) -> Bounds:
    """The sums of products at peak, where channels come in registers; a depthwise one tap by tap on the way.

    Few registers of channels out make less of a load (`thin`); images' few channels are no register. Groups narrower
    than a register go one by one through products of little k. What bias, sum and activation ask for beyond two FLOPs
    an output takes another pass over it.
    """
    p = c.processor
    groups, out, taps = np.maximum(k["groups"], 1), k["images"] * np.maximum(k["out"], 1), np.maximum(k["taps"], 1)
    cin, cout = np.maximum(k["cin"] / groups, 1), np.maximum(k["cout"] / groups, 1)
    depth = taps * np.where(cin < p["register"], cin, lanes(cin, c)) + p["extra_k"]
    registers = np.minimum(lanes(cout, c) / p["register"], p["open"])
    thin = registers / (registers + p["thin"]) * (p["open"] + p["thin"]) / p["open"]
    dense = 2 * out * groups * lanes(cout, c) * depth / k.rate / thin
    narrow = 2 * out * groups * cout * cin * taps / (k.rate * p["narrow"])
    side, across = np.sqrt(taps), np.sqrt(np.maximum(k["out"], 1))
    edge = np.clip((side - 1) / across, 0, 1)
    depthwise = out * lanes(k["cout"], c) * (p["tap_clocks"] * taps + p["edge_clocks"] * edge) / (d.sms * d.hz)
    alone, plain = (cin == 1) & (groups > 1), (groups == 1) | (cin >= p["register"])
    compute = np.where(plain, dense, np.where(alone, depthwise, narrow))
    beyond = np.maximum(k.vector - 2 * out * np.maximum(k["cout"], 1), 0) * p["pass_clocks"] / (d.sms * d.hz)
    memory = k.weights * fetch + moving(k, d, c, 0.0) + np.where(alone, moving(k, d, c) - moving(k, d, c, 0.0), 0.0)
    return _joined(k, d, compute + beyond, memory)


def swept(k: Columns, d: Cards, c: Constants, fetch: Array) -> Bounds:
    """Elementwise operators and rows: their FLOPs, so many a clock, beside what they move."""
    start = k["rows"] * c.processor["row_clocks"] if "rows" in k.fields else 0.0
    clocks = k.vector / c.processor["vector_flops"] + start
    return _joined(k, d, clocks / (d.sms * d.hz), k.weights * fetch + moving(k, d, c))


def move(k: Columns, d: Cards, c: Constants, fetch: Array) -> Bounds:
    """Copies: every contiguous run takes a few clocks beside its bytes."""
    runs = k["elements"] / np.maximum(k["run"], 1)
    return _joined(k, d, runs * c.processor["run_clocks"] / (d.sms * d.hz), k.weights * fetch + moving(k, d, c))


def attention(k: Columns, d: Cards, c: Constants, fetch: Array) -> Bounds:
    """Two products and a softmax of the scores, which go through the caches."""
    scores = k["batch"] * k["heads"] * k["queries"] * k["keys"]
    compute = k.executed / k.rate + 5 * scores / c.processor["vector_flops"] / (d.sms * d.hz)
    return _joined(k, d, compute, moving(k, d, c))


def recurrent(k: Columns, d: Cards, c: Constants, fetch: Array) -> Bounds:
    """The arithmetic, and the recurrent weights once a step."""
    compute = k.matrix / k.rate + k.vector / c.processor["vector_flops"] / (d.sms * d.hz)
    again = np.maximum(k["steps"], 1) * k.weights / (c.processor["shared_bytes"] * d.hz) * d.memory
    return _joined(k, d, compute, k.weights * fetch + again + moving(k, d, c))


def transfer(k: Columns, d: Cards, c: Constants, fetch: Array) -> Bounds:
    """Nothing: host and device are one."""
    return _joined(k, d, np.zeros_like(k.rate), np.zeros_like(k.rate))


#: As `latency.MODELS`; the last argument is what `per_weight_byte` says.
MODELS: dict[type, Callable[[Columns, Cards, Constants, Array], Bounds]] = {
    Gemm: gemm, Conv: conv, Rows: swept, Pointwise: swept, Move: move, Attention: attention, Recurrent: recurrent,
    Transfer: transfer,
}  # fmt: skip

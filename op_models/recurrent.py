"""Recurrent layers: each step updates a state, by gates (RNN, GRU, LSTM) or by outer products (linear attention)."""

from __future__ import annotations

from math import gcd

from op_models.axes import Axes, by_pattern
from op_models.core import Gemm, Maybe, Operator, Pointwise, Recurrent, Tensor, Work, given, work
from op_models.pointwise import QUANTISE, SIGMOID, SOFTPLUS, SPECIAL
from op_models.rules import Outputs, op

#: Number of gates; vector FLOPs per unit and step without the sums in the gates: activations and state equations.
CELLS = {
    "RNN": (1, SPECIAL),  # tanh
    "GRU": (3, 2 * SIGMOID + SPECIAL + 4),  # r h before its product, n + z (h - n)
    "LSTM": (4, 3 * SIGMOID + 2 * SPECIAL + 4),  # f c + i g, o tanh(c)
}


def recurrent_axes(op: Operator, *, layout: int = 0) -> Axes:
    """[sequence, batch, size], or with layout 1 the batch first; lengths and initial states have the batch, too."""
    x, y, state = ("N . .", "N ...", "N . .") if layout else (". N .", ". . N .", ". N .")
    return by_pattern(op, f"{x}, , , , N, {state}, {state} -> {y}, {state}, {state}")


def states(x: Tensor, w: Tensor, r: Tensor) -> Outputs:
    """All states [length, directions, batch, hidden], the last one, and its cells; weights are [..., hidden, gates]."""
    last = (x.dtype, (w.shape[0], x.shape[1], r.shape[1]))
    return [(x.dtype, (x.shape[0], w.shape[0], x.shape[1], r.shape[1])), last, last]


@op("com.microsoft::DynamicQuantizeLSTM", outputs=states)
@op(*CELLS, axes=recurrent_axes)
def recurrent(
    op: Operator, x: Tensor, w: Tensor, r: Tensor, b: Maybe = None, lengths: Maybe = None, state: Maybe = None,
    cell: Maybe = None, peepholes: Maybe = None, *, layout: int = 0,
) -> Work:  # fmt: skip
    """2 directions steps batch gates hidden (input + hidden); vector: sums in the gates, default activations."""
    quantised = op.type not in CELLS
    gates, unit = CELLS["LSTM" if quantised else op.type]
    batch, steps = x.shape[:2] if layout else x.shape[1::-1]
    size = Recurrent(steps, batch, x.shape[2], r.shape[1 if quantised else 2], w.shape[0], gates)
    units = size.directions * steps * batch * size.hidden
    vector = units * (gates * (1 + 2 * given(b)) + unit + 6 * given(peepholes))
    vector += (2 + QUANTISE) * (x.size + units) * quantised  # of the input, and of each step's state
    matrix = 2 * units * gates * (size.input + size.hidden)
    return work(op, size, matrix=matrix, vector=vector, dtype=w.dtype if quantised else None)


def attended(x: Tensor, w: Tensor, r: Tensor) -> Outputs:
    """All states [steps, directions, batch, hidden], the last one and the last cell [directions, batch, hidden]."""
    steps, batch, _ = x.shape
    last = (x.dtype, (w.shape[0], batch, r.shape[2]))
    return [(x.dtype, (steps, w.shape[0], batch, r.shape[2])), last, last]


@op("com.microsoft::AttnLSTM", outputs=attended)
def attention_lstm(
    op: Operator, x: Tensor, w: Tensor, r: Tensor, b: Maybe = None, lengths: Maybe = None, state: Maybe = None,
    cell: Maybe = None, peepholes: Maybe = None, query: Maybe = None, key: Maybe = None, v: Maybe = None,
    memory: Maybe = None,
) -> Work:  # fmt: skip
    """An LSTM whose input is wider than x by what it attends to: as `recurrent`; and in every step 2 directions batch
    (hidden + 2 positions) a for a query, its scores by tanh, and the sum of a memory of so many positions."""
    steps, batch, _ = x.shape
    size = Recurrent(steps, batch, w.shape[2], r.shape[2], w.shape[0], 4)
    units, positions = size.directions * steps * batch, memory.shape[1] if memory is not None else 0
    depth = query.shape[-1] if query is not None else 0
    matrix = 2 * units * (4 * size.hidden * (size.input + size.hidden) + (size.hidden + 2 * positions) * depth)
    vector = units * (size.hidden * (4 * (1 + 2 * given(b)) + CELLS["LSTM"][1]) + positions * depth * SPECIAL)
    return work(op, size, matrix=matrix, vector=vector)


def values_and_state(
    q: Tensor, k: Tensor, v: Tensor, past: Maybe = None, *, q_num_heads: int, kv_num_heads: int
) -> Outputs:
    """Values [batch, length, hidden] of all query heads, and the state [batch, heads, dim, dim_v]."""
    heads = max(kv_num_heads, 1)
    dim, dim_v = q.shape[2] // max(q_num_heads, 1), v.shape[2] // heads
    state = (v.dtype, (v.shape[0], heads, dim, dim_v)) if past is None else (past.dtype, past.shape)
    return [(q.dtype, (*q.shape[:2], max(q_num_heads, heads) * dim_v)), state]


CHUNK = 64  # tokens of a prompt that kernels of linear attention take at a time (flash-linear-attention, mamba-ssm)


def chunked(
    steps: int, dim: int, dim_v: int, queries: int, keys: int, values: int, delta: bool = False, chunk: int = CHUNK
) -> int:
    """Matrix FLOPs of a token that heads of linear attention with states [dim, dim_v] take.

    Each state is read by a product of 2 dim dim_v for each head of results, changed by another, and with a delta rule
    read for its key as well. Of several steps, every chunk of c tokens is as attention among them: 2 c dim for queries
    by keys, 2 c dim_v for values, and with a delta rule 2 c dim for keys by keys and 2 c (dim + dim_v) for the
    triangular system that makes the updates of a chunk independent (arXiv:2412.06464; of Mamba-2 arXiv:2405.21060).
    """
    heads = max(queries, values)
    total = 2 * dim * dim_v * (heads + values * (1 + delta))
    c = min(chunk, steps) if steps > 1 else 0
    return total + 2 * c * (queries * dim + heads * dim_v + delta * (keys * dim + values * (dim + dim_v)))


def as_product(batch: int, heads: int, matrix: int, dim: int, dim_v: int) -> Gemm:
    """One product for each state [dim, dim_v], of as many rows as have these FLOPs."""
    each = 2 * batch * heads * dim * dim_v
    return Gemm(batch * heads, -(-matrix // max(each, 1)), dim_v, dim)


def linear_axes(
    op: Operator, q: Tensor, k: Tensor, v: Tensor, past: Maybe = None, decay: Maybe = None, beta: Maybe = None, *,
    q_num_heads: int, kv_num_heads: int,
) -> Axes:  # fmt: skip
    """Samples and heads by themselves; the fewer heads, of queries or of values, are shared by the others."""
    rate = "N . (h .)" if beta is None or beta.shape[-1] > 1 else "N . ."
    heads = gcd(q_num_heads, kv_num_heads)
    each = "N . (h .)"
    pattern = f"{each}, {each}, {each}, N (h .) . ., {each}, {rate} -> {each}, N (h .) . ."
    return by_pattern(op, pattern, sizes={"h": heads}, counts=dict.fromkeys(("q_num_heads", "kv_num_heads"), "h"))


@op("com.microsoft::LinearAttention", outputs=values_and_state, continued={1: 3}, axes=linear_axes)
@op("LinearAttention", continued={1: 3}, axes=linear_axes)
def linear_attention(
    op: Operator, q: Tensor, k: Tensor, v: Tensor, past: Maybe = None, decay: Maybe = None, beta: Maybe = None, *,
    q_num_heads: int, kv_num_heads: int, update_rule: str = "gated_delta", chunk_size: int = CHUNK,
) -> Work:  # fmt: skip
    """A token's products (see `chunked`); vector: decays, and rates of updates. The state is read and written."""
    batch, steps, hidden = q.shape
    dim, dim_v = hidden // max(q_num_heads, 1), v.shape[2] // max(kv_num_heads, 1)
    keys, delta = k.shape[2] // max(dim, 1), "delta" in update_rule
    each = chunked(steps, dim, dim_v, q_num_heads, keys, kv_num_heads, delta, max(chunk_size, 1))
    matrix = batch * steps * each
    vector = batch * steps * kv_num_heads * dim_v * (dim * given(decay) + 2 * given(beta))
    vector += SPECIAL * (decay.size if decay is not None else 0)
    return work(op, as_product(batch, kv_num_heads, matrix, dim, dim_v), matrix=matrix, vector=vector)


def gates(a: Tensor, bias: Tensor, scale: Tensor, b: Maybe = None) -> Outputs:
    """The decay, and the rate of updates where there is one."""
    return [(a.dtype, a.shape), *([(b.dtype, b.shape)] if b is not None else [])]


@op("com.microsoft::LinearAttentionGate", outputs=gates, axes="N . h, h, h, N . h -> N . h, N . h")
def linear_attention_gate(op: Operator, a: Tensor, bias: Tensor, scale: Tensor, b: Maybe = None) -> Work:
    """scale softplus(a + bias), and sigmoid(b)."""
    vector = a.size * (2 + SOFTPLUS) + (b.size if b is not None else 0) * SIGMOID
    return work(op, Pointwise(a.size), vector=vector)


def scanned_and_state(
    x: Tensor, dt: Tensor, b: Tensor, c: Tensor, a: Tensor, d: Tensor, bias: Tensor, past: Tensor, z: Maybe = None
) -> Outputs:
    """As x [batch, steps, heads dim], and the state in the buffer that came in.

    Of a selective state space, h = exp(A dt) h + B dt x and y = C h + D x, where A is -exp of what is stored: with A of
    each head states are [batch, heads, state, dim], and C and B of a group of heads are as queries and keys; with A of
    each channel and state they are [batch, channels, state].
    """
    return [(x.dtype, x.shape), (past.dtype, past.shape)]


def scan_axes(
    op: Operator, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, a: Tensor, d: Tensor, bias: Tensor, past: Tensor
) -> Axes:
    """Samples by themselves; heads with a group of B and C for each of theirs, or channels that share these."""
    each = "N . (h .)"
    if a.rank == 2:
        return by_pattern(op, "N . h, N . h, N . ., N . ., h ., h, h, N h ., N . h -> N . h, N h .")
    vector = "(h .)"
    vectors, groups = ", ".join([vector] * 3), b.shape[2] // max(past.shape[2], 1)
    pattern = f"{each}, {each}, {each}, {each}, {vectors}, N (h .) . ., {each} -> {each}, N (h .) . ."
    return by_pattern(op, pattern, sizes={"h": max(groups, 1)})


@op("onnxperf::StateSpace", outputs=scanned_and_state, continued={1: 7}, axes=scan_axes)
def state_space(
    op: Operator, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, a: Tensor, d: Tensor, bias: Tensor, past: Tensor,
    z: Maybe = None,
) -> Work:  # fmt: skip
    """Of Mamba-2 (A [heads]) products as `chunked`; of Mamba (A [channels, state]) 6 + exp for each state and step.
    Both: dt = softplus(dt + bias), D x, z sigmoid(z)."""
    batch, steps, _ = x.shape
    vector = dt.size * (1 + SOFTPLUS) + x.size * (3 + (SIGMOID + 2) * given(z))
    if a.rank == 2:
        vector += x.size * a.shape[1] * (6 + SPECIAL)
        return work(op, Pointwise(x.size, steps=steps), vector=vector)
    heads, dim, dim_v = past.shape[1:]
    groups = max(b.shape[2] // max(dim, 1), 1)
    matrix = batch * steps * chunked(steps, dim, dim_v, groups, groups, heads)
    vector += batch * steps * heads * (SPECIAL + dim * dim_v)
    return work(op, as_product(batch, heads, matrix, dim, dim_v), matrix=matrix, vector=vector)

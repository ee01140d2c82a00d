"""Recurrent layers: each step updates a state, by gates (RNN, GRU, LSTM) or by outer products (linear attention)."""

from __future__ import annotations

from op_models.axes import Axes, by_pattern
from op_models.core import Gemm, Maybe, Operator, Recurrent, Tensor, Work, given, work
from op_models.pointwise import QUANTISE, SIGMOID, SPECIAL
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
    dim, dim_v = k.shape[2] // heads, v.shape[2] // heads
    state = (v.dtype, (v.shape[0], heads, dim, dim_v)) if past is None else (past.dtype, past.shape)
    return [(q.dtype, (*q.shape[:2], max(q_num_heads, heads) * dim_v)), state]


@op("com.microsoft::LinearAttention", outputs=values_and_state)
@op("LinearAttention")
def linear_attention(
    op: Operator, q: Tensor, k: Tensor, v: Tensor, past: Maybe = None, decay: Maybe = None, beta: Maybe = None, *,
    q_num_heads: int, kv_num_heads: int, update_rule: str = "gated_delta",
) -> Work:  # fmt: skip
    """2 B T dim dim_v for each query head, and for each update of a state (twice that with a delta rule)."""
    batch, steps, hidden = k.shape
    dim, dim_v = hidden // max(kv_num_heads, 1), v.shape[2] // max(kv_num_heads, 1)
    products = q_num_heads + kv_num_heads * (2 if "delta" in update_rule else 1)
    size = Gemm(batch * kv_num_heads, steps * products // max(kv_num_heads, 1), dim_v, dim)
    vector = batch * steps * kv_num_heads * dim_v * (dim * given(decay) + 2 * given(beta))
    vector += SPECIAL * (decay.size if decay is not None else 0)
    return work(op, size, matrix=2 * batch * steps * products * dim * dim_v, vector=vector)

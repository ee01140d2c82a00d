"""Exchanges between GPUs, as NCCL has them: operators that a pass inserts, in a domain of their own.

Their attributes are `ranks`, how many GPUs exchange, `stride`, how far apart these are in the order of all GPUs, and
`group`, the kind of their process group (dp, tp, pp or ep), which has a stream of its own.
"""

from __future__ import annotations

from op_models.core import Collective, Move, Operator, Tensor, Work, work
from op_models.rules import op

ALL_REDUCE, ALL_GATHER, ALL_TO_ALL = "nccl::AllReduce", "nccl::AllGather", "nccl::AllToAll"
REDUCE_SCATTER, SEND = "nccl::ReduceScatter", "nccl::Send"
#: By the operator's type: the kind of its size.
KINDS = {
    ALL_REDUCE: "all_reduce", ALL_GATHER: "all_gather", ALL_TO_ALL: "all_to_all", REDUCE_SCATTER: "reduce_scatter",
    SEND: "send",
}  # fmt: skip


@op("nccl::Permute")
def permute(op: Operator, *tensors: Tensor | None) -> Work:
    """Tokens put in the order of the GPUs that they go to, once for each of their experts, and added up after it."""
    run = op.out.shape[-1] if op.out.shape else 1
    return work(op, Move(op.out.size, max(run, 1)), vector=op.present[0].size)


@op(*KINDS)
def exchange(op: Operator, *tensors: Tensor | None, ranks: int = 2, stride: int = 1) -> Work:
    """The larger of what goes in and what comes out counts, as nccl-tests do; the additions of a reduction do not."""
    message = max(sum(t.bytes for t in op.present), sum(t.bytes for t in op.outputs))
    return work(op, Collective(KINDS[op.type], message, ranks, stride))

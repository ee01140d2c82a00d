"""Data parallelism as PyTorch's DistributedDataParallel has it: gradients are averaged in buckets during backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onnxperf.passes.exchanges import Group, exchange
from onnxperf.passes.tape import BACKWARD, PHASE
from op_models import BITS, Operator, Tensor
from op_models.collectives import ALL_REDUCE

#: Bytes of the first bucket and of the others (torch/nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer).
FIRST, BUCKET = 1 << 20, 25 << 20


def averaged(
    backward: Sequence[Operator], gradients: Sequence[Tensor], ranks: int, stride: int
) -> tuple[list[Operator], list[Tensor]]:
    """The backward pass with the exchange of its gradients, and what has to be there before they can be read.

    Each gradient is copied into its bucket when it is there, and divided. A bucket is all-reduced when its last one is
    in it, while the backward pass goes on; after that pass all are copied back (gradient_as_bucket_view is off).
    """
    makers = {t.name: i for i, o in enumerate(backward) for t in o.outputs}
    ready = sorted(gradients, key=lambda t: makers.get(t.name, -1))
    buckets: list[list[Tensor]] = []
    room = 0
    for t in ready:
        if room <= 0 or buckets[-1][0].dtype != t.dtype:
            buckets.append([])
            room = BUCKET if len(buckets) > 1 else FIRST
        buckets[-1].append(t)
        room -= t.bytes
    at: dict[int, list[Operator]] = {}
    back: list[Operator] = []
    for k, bucket in enumerate(buckets):
        name = f"#bucket{k}"
        whole = Tensor(name, bucket[0].dtype, (sum(t.size for t in bucket),))
        total = replace(whole, name=f"{name}.sum")
        copy = _copies(f"{name}.in", bucket, whole)
        reduce = exchange(ALL_REDUCE, total.name, (whole,), (total,), Group("dp", ranks, stride), (), {PHASE: BACKWARD})
        at.setdefault(max(makers.get(t.name, -1) for t in bucket), []).extend((copy, reduce))
        back.append(_copies(f"{name}.out", (total, *bucket), replace(whole, name=f"{name}.done", shape=(1,))))
    merged = list(at.get(-1, []))
    for i, o in enumerate(backward):
        merged += [o, *at.get(i, ())]
    return [*merged, *back], [o.out for o in back]


def _copies(name: str, read: Sequence[Tensor], out: Tensor) -> Operator:
    """Copies of a bucket's gradients, into it or back, as one pass: what is copied back has left L2 by then."""
    elements = sum(t.size for t in read if not t.name.startswith("#bucket"))
    terms = {"elements": elements, "reads": 1, "writes": 1, "bits": BITS[out.dtype], PHASE: BACKWARD}
    return Operator(name, "torch::foreach", tuple(read), (out,), terms)

"""Operators that exchange tensors between GPUs, as passes insert them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from onnxperf.passes.tape import Tape
from op_models import Operator, Tensor
from op_models.collectives import ALL_GATHER, ALL_REDUCE, KINDS

#: A view whose gradients all GPUs of a group add up: what each reads to compute its part of a product.
SHARED = "nccl::Shared"
EXCHANGES = (*KINDS, SHARED)


class Group(NamedTuple):
    """A process group: `ranks` GPUs that are `stride` apart; kind: what they divide, one of a plan's kinds."""

    kind: str
    ranks: int
    stride: int


def exchange(
    type: str, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], group: Group, nodes: tuple[str, ...],
    more: Mapping[str, Any] | None = None,
) -> Operator:  # fmt: skip
    """An operator of `op_models.collectives`, among the GPUs of a group."""
    attrs = {"group": group.kind, "ranks": group.ranks, "stride": group.stride, **(more or {})}
    return Operator(name, type, tuple(inputs), tuple(outputs), attrs, 0, nodes)


def exchanged(t: Tape, o: Operator, g: Tensor) -> Iterator[tuple[int, Tensor]]:
    """What was added up has one gradient for all summands; of a tensor that all GPUs read it is added up over them; of
    a gathered one each has its part; what was sent comes back.
    """
    x = o.present[0]
    if o.type == ALL_REDUCE:
        yield 0, g
    elif o.type == ALL_GATHER:
        yield 0, t.add(o, "Identity", (g,), x.shape, attrs={"part": 1})
    else:
        yield 0, t.add(o, ALL_REDUCE if o.type == SHARED else o.type, (g,), x.shape, attrs=o.attrs)

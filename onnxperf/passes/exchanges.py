"""Operators that exchange tensors between GPUs, as passes insert them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from op_models import Operator, Tensor
from op_models.collectives import KINDS

#: A view whose gradients all GPUs of a group add up: what each reads to compute its part of a product.
SHARED = "nccl::Shared"


def exchange(
    type: str, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], ranks: int, stride: int,
    nodes: tuple[str, ...], more: Mapping[str, Any] | None = None,
) -> Operator:  # fmt: skip
    """An operator of `op_models.collectives`, among `ranks` GPUs that are `stride` apart."""
    attrs = {"ranks": ranks, "stride": stride, **(more or {})}
    return Operator(name, type, tuple(inputs), tuple(outputs), attrs, 0, nodes)


def is_exchange(o: Operator) -> bool:
    """Whether an operator exchanges tensors between GPUs."""
    return o.type in KINDS

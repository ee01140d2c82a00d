"""Operators made from plain shapes, for every test of the operator rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from op_models import Operator, Tensor

Spec = tuple[int, ...] | Tensor | None
Make = Callable[..., Operator]


def operator(type: str, inputs: Sequence[Spec], *outputs: Spec, version: int = 0, **attrs: object) -> Operator:
    """Shapes become float32 tensors, tensors stay what they are; no output means one like the first input."""

    def tensors(prefix: str, specs: Sequence[Spec]) -> tuple[Tensor | None, ...]:
        return tuple(Tensor(f"{prefix}{i}", "float32", s) if isinstance(s, tuple) else s for i, s in enumerate(specs))

    ins = tensors("in", inputs)
    first = next((t.shape for t in ins if t is not None), ())
    outs = tuple(t for t in tensors("out", outputs or [first]) if t is not None)
    return Operator("node", type, ins, outs, attrs, version)


@pytest.fixture(scope="session")
def make() -> Make:
    """The function that makes operators."""
    return operator

"""`op` and `work` of `op_models` for your own operator rules: what they raise is an `onnxperf.Error`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

import op_models
from onnxperf.errors import UsageError
from op_models import OpModelError, Work
from op_models.rules import OutputRule

P = ParamSpec("P")
T = TypeVar("T")


class RuleError(UsageError, OpModelError):
    """A second rule for an operator type, or work that no operator can have."""


def _with_own_errors(call: Callable[P, T]) -> Callable[P, T]:
    @wraps(call)
    def checked(*args: P.args, **terms: P.kwargs) -> T:
        try:
            return call(*args, **terms)
        except OpModelError as e:
            raise RuleError(str(e)) from None

    return checked


@wraps(op_models.op)
def op(
    *types: str, inputs: Sequence[int] = (), outputs: OutputRule | Mapping[str, OutputRule] | None = None
) -> Callable[[Callable[..., Work]], Callable[..., Work]]:
    return _with_own_errors(op_models.op(*types, inputs=inputs, outputs=outputs))


work = _with_own_errors(op_models.work)

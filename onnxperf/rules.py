"""`op` and `work` of `op_models` for your own operator rules: what they raise is an `onnxperf.Error`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps

import op_models
from onnxperf.errors import UsageError
from op_models import OpModelError, Work
from op_models.rules import OutputRule


class RuleError(UsageError, OpModelError):
    """A second rule for an operator type, or work that no operator can have."""


@contextmanager
def _own_errors() -> Iterator[None]:
    try:
        yield
    except OpModelError as e:
        raise RuleError(str(e)) from None


@wraps(op_models.op)
def op(
    *types: str, inputs: Sequence[int] = (), outputs: OutputRule | Mapping[str, OutputRule] | None = None
) -> Callable[[Callable[..., Work]], Callable[..., Work]]:
    return _own_errors()(op_models.op(*types, inputs=inputs, outputs=outputs))


work = _own_errors()(op_models.work)

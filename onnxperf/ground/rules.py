"""`op_models` for your own operator rules, and for the operators of a graph: what it raises is an `onnxperf.Error`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps

import op_models
from onnxperf.ground.errors import UsageError, printable
from op_models import OpModelError, Work
from op_models.rules import AxesRule, OutputRule


class RuleError(UsageError, OpModelError):
    """A second rule for an operator type, work that no operator can have, or a rule that fails."""


@contextmanager
def _own_errors() -> Iterator[None]:
    try:
        yield
    except OpModelError as e:
        raise RuleError(printable(str(e))) from None


@wraps(op_models.op)
def op(
    *types: str, inputs: Sequence[int] = (), outputs: OutputRule | Mapping[str, OutputRule] | None = None,
    axes: AxesRule | Mapping[str, AxesRule] | None = None, continued: Mapping[int, int] | None = None,
) -> Callable[[Callable[..., Work]], Callable[..., Work]]:  # fmt: skip
    with _own_errors():
        return _own_errors()(op_models.op(*types, inputs=inputs, outputs=outputs, axes=axes, continued=continued))


work, work_or_bytes = _own_errors()(op_models.work), _own_errors()(op_models.work_or_bytes)

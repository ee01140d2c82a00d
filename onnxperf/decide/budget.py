"""Budgets of time and memory: whether a prediction keeps them, and which operators break them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack, overload

from onnxperf.answer.cpu_operators import CpuOperator
from onnxperf.answer.kernel_timeline import KernelPrediction
from onnxperf.answer.predict import predict
from onnxperf.answer.prediction import Prediction
from onnxperf.graph import UNKNOWN_LENGTH
from onnxperf.ground.errors import BudgetExceeded, UsageError, printable, speaking_of_arguments
from onnxperf.ground.tables import duration, size
from onnxperf.running.largest import limits_of
from onnxperf.running.pipeline import Gpu
from onnxperf.running.terms import Asked, Bound, Examples


@overload
def check(model: Any, example_inputs: Examples = None, *, gpu: Gpu, **asked: Unpack[Asked]) -> Prediction: ...


@overload
def check(
    model: Any, example_inputs: Examples = None, *, gpu: Sequence[Gpu], **asked: Unpack[Asked]
) -> list[Prediction]: ...


def check(
    model: Any, example_inputs: Examples = None, *, gpu: Any, max_ms: float | None = None, max_gb: float | None = None,
    fit: bool = False, **terms: Unpack[Bound],
) -> Prediction | list[Prediction]:  # fmt: skip
    """Predict one run, and raise BudgetExceeded where it takes more than `max_ms` milliseconds or `max_gb` GB (10^9) of
    the card's memory, or does not fit into it.

    model, example_inputs, gpu and terms are those of `onnxperf.predict`; with `fit` the batch is the largest that keeps
    the budget, and BudgetExceeded says that not even batch 1 does. On a list of cards the budget must hold on
    each. The prediction, or the list of them, is given back where the budget holds. Raises UsageError where there is
    no budget, and what `predict` raises.
    """
    with speaking_of_arguments():
        if max_ms is None and max_gb is None:
            raise UsageError("a budget is max_ms, max_gb or both")
        limits = limits_of(max_ms, max_gb)
        of_fit: dict[str, Any] = {"max_ms": max_ms, "max_gb": max_gb} if fit else {}
        predicted: Prediction | list[Prediction] = predict(model, example_inputs, gpu=gpu, fit=fit, **of_fit, **terms)
        if isinstance(predicted, Prediction):
            keep(predicted, limits.seconds, limits.bytes)
            return predicted
        over = [f"on {p.scenario.gpu} {why}" for p in predicted if (why := reasons(p, limits.seconds, limits.bytes))]
        if over:
            raise BudgetExceeded("; ".join(over))
        return predicted


def keep(p: Prediction, max_seconds: float | None, max_bytes: float | None) -> None:
    """Raise BudgetExceeded where there is a limit and a prediction does not keep to it; see `reasons`."""
    if why := reasons(p, max_seconds, max_bytes):
        raise BudgetExceeded(why)


def reasons(p: Prediction, max_seconds: float | None, max_bytes: float | None) -> str:
    """Why a prediction does not keep limits: it takes longer, the process holds more of the card's memory, or, whatever
    the limits are, it does not fit into that memory, or nothing bounds what it needs of it. Empty where it keeps them,
    or where there are none.
    """
    m, why = p.memory, []
    limited = max_seconds is not None or max_bytes is not None
    if limited and not m.fits:
        need, room = size(m.total_bytes + m.context_bytes), size(m.capacity_bytes)
        why.append(f"it does not fit: {need} are needed, and the card has {room}; {_largest(p)}")
    elif limited and (open_ended := [n.message for n in p.warnings if n.code == UNKNOWN_LENGTH]):
        why.append(f"can't be checked against the limits: {open_ended[0]}")
    if max_seconds is not None and p.seconds > max_seconds:
        limit = duration(max_seconds)
        why.append(f"{duration(p.seconds)} is over the limit of {limit}; most of it goes to {blame(p)}")
    if max_bytes is not None and m.reserved_bytes > max_bytes:
        held = f"GPU memory use of {size(m.reserved_bytes)} is over the limit of {size(max_bytes)}"
        why.append(f"{held}; {_largest(p)}")
    return "; ".join(why)


def blame(p: Prediction, count: int = 3) -> str:
    """The kernels, and operators that the CPU computes, that take most of the time, for a message."""
    every: list[KernelPrediction | CpuOperator] = [*p.kernels, *p.cpu_operators]
    worst = sorted(every, key=lambda k: -k.seconds)[:count]
    return ", ".join(f"{printable(k.name)} ({printable(k.op)}, {duration(k.seconds)})" for k in worst)


def _largest(p: Prediction) -> str:
    m = p.memory
    weights = m.weights_bytes >= m.activations_bytes
    moved = [(k.bytes_read if weights else k.bytes_written, k) for k in p.kernels]
    most = sorted(moved, key=lambda x: -x[0])[:3]
    named = ", ".join(f"{printable(k.name)} ({printable(k.op)}, {size(nbytes)})" for nbytes, k in most)
    if weights:
        return f"{size(m.weights_bytes)} of it are weights; most is read by {named}"
    return f"{size(m.activations_bytes)} of it are activations, the largest written by {named}"

"""Budgets of time and memory: whether a prediction keeps them, and which operators break them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Unpack, overload

from onnxperf.answer.cpu_operators import CpuOperator
from onnxperf.answer.kernel_timeline import KernelPrediction
from onnxperf.answer.predict import check_answers, on_each
from onnxperf.answer.prediction import Prediction
from onnxperf.graph import UNKNOWN_LENGTH
from onnxperf.ground.errors import BudgetExceeded, Error, UsageError, printable, speaking_of_arguments
from onnxperf.ground.lists import batches_of
from onnxperf.ground.tables import duration, size
from onnxperf.running.largest import Limits, limits_of
from onnxperf.running.pipeline import Gpu, each, request_for
from onnxperf.running.terms import Budgeted, Examples, Unbatched

Batches = Sequence[int] | int | str | None


@overload
def check(
    model: Any, example_inputs: Examples = None, *, gpu: Gpu, batch: int | None = None, **asked: Unpack[Budgeted]
) -> Prediction: ...


@overload
def check(
    model: Any, example_inputs: Examples = None, *, gpu: Gpu, batch: Sequence[int] | str, **asked: Unpack[Budgeted]
) -> list[Prediction]: ...


@overload
def check(
    model: Any, example_inputs: Examples = None, *, gpu: Sequence[Gpu], batch: Batches = None, **asked: Unpack[Budgeted]
) -> list[Prediction]: ...


def check(
    model: Any, example_inputs: Examples = None, *, gpu: Any, batch: Batches = None, max_ms: float | None = None,
    max_gb: float | None = None, fit: bool = False, **terms: Unpack[Unbatched],
) -> Prediction | list[Prediction]:  # fmt: skip
    """Predict runs, and raise BudgetExceeded where one takes more than `max_ms` milliseconds or `max_gb` GB (10^9) of
    the card's memory, or does not fit into it.

    model, example_inputs and terms are those of `onnxperf.predict`; with `fit` the batch is the largest that keeps the
    budget, and BudgetExceeded says that not even batch 1 does. gpu and batch are one or a list of them each, batches
    also text such as "1,2,4" or "1..64": the budget must hold for each card and batch, and BudgetExceeded names the
    worst. Where it holds, the prediction is given back, and where a list was given a list of them, for each card in
    turn and on it for each batch, ascending. Raises UsageError where there is no budget, and what `predict` raises.
    """
    with speaking_of_arguments():
        if max_ms is None and max_gb is None:
            raise UsageError("a budget is max_ms, max_gb or both")
        check_answers(fit=fit)
        limits = limits_of(max_ms, max_gb)
        listed = isinstance(gpu, Sequence) and not isinstance(gpu, str | bytes)
        gpus: Sequence[Gpu] = gpu if listed else [gpu]
        each(gpus)  # a card that nobody knows is told before the first is predicted
        batches = (None,) if batch is None else batches_of(batch)
        only = batches[0] if len(batches) == 1 else None
        request = request_for(model, example_inputs, open_batch=fit or len(batches) > 1, batch=only, **terms)
        predictions = predicted(on_each(request, gpus, batches, limits if fit else None))
        keep(predictions, limits)
        return predictions if listed or isinstance(batch, Iterable) else predictions[0]


def predicted(answers: Iterable[Prediction | Error]) -> list[Prediction]:
    """The predictions. Raises the first error among them."""
    predictions = []
    for answer in answers:
        if isinstance(answer, Error):
            raise answer
        predictions.append(answer)
    return predictions


def keep(predictions: Sequence[Prediction], limits: Limits) -> None:
    """Raise BudgetExceeded where there is a limit and a prediction does not keep to it; see `reasons`."""
    over = [(excess(p, limits), why, p.scenario) for p in predictions if (why := reasons(p, limits))]
    if not over:
        return
    _, why, s = max(over, key=lambda x: x[0])
    several = f"{len(over)} of {len(predictions)} predictions over the limit, the worst on {s.gpu} at batch {s.batch}: "
    raise BudgetExceeded(several * (len(predictions) > 1) + why)


def excess(p: Prediction, limits: Limits) -> float:
    """The largest share that a prediction takes of what it may: over 1 where it does not keep limits, but for a length
    that nobody knows.
    """
    m = p.memory
    shares = [(m.total_bytes + m.context_bytes) / m.capacity_bytes]
    if limits.seconds is not None:
        shares.append(p.seconds / limits.seconds)
    if limits.bytes is not None:
        shares.append(m.reserved_bytes / limits.bytes)
    return max(shares)


def reasons(p: Prediction, limits: Limits) -> str:
    """Why a prediction does not keep limits: it takes longer, the process holds more of the card's memory, or, whatever
    the limits are, it does not fit into that memory, or nothing bounds what it needs of it. Empty where it keeps them,
    or where there are none.
    """
    m, why = p.memory, []
    max_seconds, max_bytes = limits.seconds, limits.bytes
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

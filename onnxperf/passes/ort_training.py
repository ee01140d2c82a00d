"""How ONNX Runtime Training trains: operators with what their gradients read, losses, and its fused optimisers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from onnxperf.passes.ort_gradients import MS, RULES, mean, power
from onnxperf.passes.tape import Tape, with_statistics
from onnxperf.passes.training import ACCUMULATOR, Autograd
from op_models import Operator, Tensor


def in_training(o: Operator) -> Operator:
    """An operator with the outputs that its gradient reads: masks, indices, means and deviations."""

    def saved(name: str, *shape: int, dtype: str = "") -> Tensor:
        return replace(o.out, name=f"{o.out.name}#{name}", shape=shape, dtype=dtype or o.out.dtype)

    if o.type == "Dropout" and len(o.inputs) > 2 and o.inputs[2] is not None and o.inputs[2].value == (1,):
        return replace(o, outputs=(o.out, saved("mask", *o.out.shape, dtype="bool")))
    if o.type == "MaxPool" and len(o.outputs) == 1:
        return replace(o, outputs=(o.out, saved("indices", *o.out.shape, dtype="int64")))
    if o.type == "Concat":
        return replace(o, type=MS + "ConcatTraining")
    if o.type == "BatchNormalization":
        of_channels = [saved(name, *o.inputs[1].shape) for name in ("mean", "var", "saved_mean", "saved_inv_std")
                       if o.inputs[1] is not None]  # fmt: skip
        return replace(o, type=MS + "BatchNormInternal", outputs=(o.out, *of_channels))
    return with_statistics(o)


def loss(y: Tensor, name: str, nodes: tuple[str, ...]) -> Iterator[Operator]:
    """The nodes of a loss of `y`."""
    total = Tensor(f"{y.name}#loss", y.dtype, ())
    if name == "cross-entropy":
        rows = (prod(y.shape[:-1]), y.shape[-1]) if y.rank else (1, 1)
        flat, shares = (replace(y, name=f"{y.name}#{n}", shape=rows, kind="activation") for n in ("rows", "shares"))
        labels = Tensor(f"{y.name}#labels", "int64", rows[:1], "input")
        yield Operator(flat.name, "Reshape", (y,), (flat,), {}, 14, nodes)
        yield Operator(total.name, "SoftmaxCrossEntropyLoss", (flat, labels), (total, shares), {}, 13, nodes)
        return
    target = Tensor(f"{y.name}#target", y.dtype, y.shape, "input")
    distance, square = (replace(y, name=f"{y.name}#{n}", kind="activation") for n in ("distance", "square"))
    two = Tensor(f"{y.name}#two", y.dtype, (), "constant", (2.0,))
    yield Operator(distance.name, "Sub", (y, target), (distance,), {}, 14, nodes)
    yield Operator(square.name, "Pow", (distance, two), (square,), {}, 15, nodes)
    yield Operator(total.name, "ReduceMean", (square,), (total,), {}, 13, nodes)


def loss_gradient(loss: Sequence[Operator], tape: Tape) -> None:
    """Write the gradient of a loss by what it was computed from."""
    first, last = loss[0], loss[-1]
    y = first.present[0]
    unit = Tensor(f"{y.name}#one", y.dtype, (), "constant", (1.0,))
    if last.type == "SoftmaxCrossEntropyLoss":
        flat, labels = last.present
        g = tape.add(last, MS + "SoftmaxCrossEntropyLossGrad", (unit, last.outputs[1], labels), flat.shape)
        tape.gradients[y.name] = tape.add(first, "Reshape", (g,), y.shape)
        return
    ((_, g),) = mean(tape, last, unit)
    ((_, tape.gradients[y.name]),) = power(tape, loss[1], g)


#: Its AdamW is one kernel (orttraining/training_ops/cuda/optimizer/adamw): it reads parameter, gradient and both
#: moments, and writes all but the gradient.
ORT = Autograd(
    "ONNX Runtime Training", RULES, in_training, loss, loss_gradient,
    passes={"adam": ((4, 3, 0),), "sgd": ((2, 1, 0),), "none": ()}, accumulator=ACCUMULATOR, at_once=True,
)  # fmt: skip

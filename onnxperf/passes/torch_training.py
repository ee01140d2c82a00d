"""How PyTorch trains: operators in training mode, losses, and the passes of its optimisers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from onnxperf.passes.autocast import HALF, MARK, SINGLE
from onnxperf.passes.gradients import RULES
from onnxperf.passes.tape import Tape, with_statistics
from onnxperf.passes.training import Autograd
from op_models import Operator, Tensor


def in_training(o: Operator) -> Operator:
    """An operator as it runs in training: dropout draws a mask, a batch norm takes the batch's statistics, max pooling
    keeps indices, a norm of rows their statistics.
    """
    if o.type == "Dropout" and len(o.inputs) > 2 and o.inputs[2] is not None and o.inputs[2].value == (1,):
        mask = replace(o.out, name=f"{o.out.name}#mask", dtype="bool")
        return replace(o, type="torch::dropout", inputs=o.inputs[:1], outputs=(o.out, mask), attrs={})
    if o.type == "BatchNormalization":
        return replace(o, type="torch::batch_norm_training", inputs=o.inputs[:3], outputs=o.outputs[:1], attrs={})
    if o.type == "MaxPool" and len(o.outputs) == 1:
        return replace(o, outputs=(o.out, replace(o.out, name=f"{o.out.name}#indices", dtype="int64")))
    return with_statistics(o)


def loss(y: Tensor, name: str, nodes: tuple[str, ...]) -> Iterator[Operator]:
    """The kernels of a loss of `y`. Under autocast, cross_entropy takes the logarithms in float16 and casts them: the
    kernels of an H200 show it (PyTorch 2.11), and so is what its gradient reads. That of squares is in float32.
    """
    mean = Tensor(f"{y.name}#loss", y.dtype, ())
    if name == "cross-entropy":
        shares = replace(y, name=f"{y.name}#log_softmax")
        labels = Tensor(f"{y.name}#labels", "int64", y.shape[:-1], "input")
        yield Operator(shares.name, "LogSoftmax", (y,), (shares,), {"axis": -1, MARK: HALF}, 13, nodes)
        yield Operator(mean.name, "NegativeLogLikelihoodLoss", (shares, labels), (mean,), {MARK: SINGLE}, 13, nodes)
        return
    target = Tensor(f"{y.name}#target", y.dtype, y.shape, "input")
    square = replace(y, name=f"{y.name}#square")
    yield Operator(square.name, "Sub", (y, target), (square,), {MARK: SINGLE}, 0, nodes)
    yield Operator(mean.name, "ReduceMean", (square,), (mean,), {}, 0, nodes)


def loss_gradient(loss: Sequence[Operator], tape: Tape) -> None:
    """Write the gradient of a loss by what it was computed from."""
    first, last = loss[0], loss[-1]
    y, shares = first.present[0], first.out
    if first.type == "LogSoftmax":
        gradient = tape.add(last, "ConstantOfShape", (), y.shape, dtype=last.present[0].dtype)
        if gradient.dtype != shares.dtype:
            gradient = tape.add(last, "Cast", (gradient,), y.shape, dtype=shares.dtype)
        gradient = tape.add(first, "com.microsoft::LogSoftmaxGrad", (gradient, shares), y.shape, dtype=y.dtype)
    else:
        gradient = tape.add(first, "torch::mse_loss_backward", first.present, y.shape)
    tape.gradients[y.name] = gradient


#: Gradients are set to none before a step, so that those of its first batch are added to nothing. Adam's passes are
#: those of PyTorch's foreach implementation: lerp_, mul_, addcmul_, sqrt, div_, add_, addcdiv_ (torch/optim/adam.py,
#: _multi_tensor_adam), of which sqrt makes new tensors; momentum's mul_, add_, add_, with a new sum of gradient and
#: momentum before the last as Nesterov's (torch/optim/sgd.py). A node of autograd releases what it saved and the
#: gradients that it got when it is done (torch/csrc/autograd/engine.cpp, evaluate_function).
TORCH = Autograd(
    "PyTorch", RULES, in_training, loss, loss_gradient,
    passes={"adam": ((2, 1, 0), (1, 1, 0), (2, 1, 0), (1, 1, 1), (1, 1, 0), (1, 1, 0), (3, 1, 0)),
            "sgd": ((2, 1, 0),), "momentum": ((1, 1, 0), (2, 1, 0), (2, 1, 0)),
            "nesterov": ((1, 1, 0), (2, 1, 0), (2, 1, 1), (2, 1, 0)), "none": ()},
    holds=True, scales=True,
)  # fmt: skip
#: Before release 2.0: gradients are set to zero, not to none, and optimisers work on one parameter after the other
#: (defaults of `zero_grad` and of `foreach`). The steps that were measured had no scaler.
UNTIL_113 = replace(TORCH, keeps=True, lists=False, scales=False)

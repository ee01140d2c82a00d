"""How PyTorch trains: operators in training mode, losses, and the passes of its optimisers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from onnxperf.passes.gradients import RULES
from onnxperf.passes.tape import FORWARD, PHASE, Tape
from onnxperf.passes.training import Autograd
from op_models import Operator, Tensor


def in_training(o: Operator) -> Operator:
    """An operator as it runs in training: dropout draws a mask, a batch norm takes the batch's statistics, max pooling
    keeps indices.
    """
    if o.type == "Dropout" and len(o.inputs) > 2 and o.inputs[2] is not None and o.inputs[2].value == (1,):
        mask = replace(o.out, name=f"{o.out.name}#mask", dtype="bool")
        return replace(o, type="torch::dropout", inputs=o.inputs[:1], outputs=(o.out, mask), attrs={})
    if o.type == "BatchNormalization":
        return replace(o, type="torch::batch_norm_training", inputs=o.inputs[:3], outputs=o.outputs[:1], attrs={})
    if o.type == "MaxPool" and len(o.outputs) == 1:
        return replace(o, outputs=(o.out, replace(o.out, name=f"{o.out.name}#indices", dtype="int64")))
    return o


def loss(last: Operator, y: Tensor, name: str, tape: Tape) -> Iterator[Operator]:
    """The kernels of a loss of `y`, which `last` makes."""
    phase = {PHASE: FORWARD}
    if name == "cross-entropy":
        shares = replace(y, name=f"{y.name}#log_softmax")
        yield Operator(shares.name, "LogSoftmax", (y,), (shares,), {"axis": -1, **phase}, 13, last.nodes)
        dense = tape.add(last, "ConstantOfShape", (), y.shape, dtype=y.dtype)
        tape.gradients[y.name] = tape.add(last, "com.microsoft::LogSoftmaxGrad", (dense, shares), y.shape)
        return
    target = Tensor(f"{y.name}#target", y.dtype, y.shape, "input")
    square = replace(y, name=f"{y.name}#square")
    mean = Tensor(f"{y.name}#loss", y.dtype, ())
    yield Operator(square.name, "Sub", (y, target), (square,), phase, 0, last.nodes)
    yield Operator(mean.name, "ReduceMean", (square,), (mean,), phase, 0, last.nodes)
    tape.gradients[y.name] = tape.add(last, "torch::mse_loss_backward", (y, target), y.shape)


#: Gradients are set to none before a step, so that those of its first batch are added to nothing. Adam's passes are
#: those of PyTorch's foreach implementation: lerp_, mul_, addcmul_, sqrt, div_, add_, addcdiv_ (torch/optim/adam.py,
#: _multi_tensor_adam).
TORCH = Autograd(
    "PyTorch", RULES, in_training, loss,
    passes={"adam": ((2, 1), (1, 1), (2, 1), (1, 1), (1, 1), (1, 1), (3, 1)), "sgd": ((2, 1),), "none": ()},
)  # fmt: skip

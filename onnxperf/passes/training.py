"""A training step: the forward graph with its loss, the backward pass, and the update of the parameters.

Gradients are those of the sum of the outputs, unless a loss is named. Parameters are floating-point weights; a model's
own loss counts as what it ends with. Gradients are set to none before a step, so that nothing is added to old ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, isqrt

from onnxperf.errors import UsageError
from onnxperf.graph import Graph, Note
from onnxperf.passes.data_parallel import averaged
from onnxperf.passes.gradients import RULES
from onnxperf.passes.tape import BACKWARD, FORWARD, PHASE, UPDATE, Tape, is_float, renamed
from op_models import BITS, Operator, Tensor

LOSSES = ("cross-entropy", "mse")
OPTIMIZERS = ("adam", "sgd", "none")
#: Passes of PyTorch's foreach implementations over all parameters, as tensors read and written of each; the first reads
#: the gradients. Adam: lerp_, mul_, addcmul_, sqrt, div_, add_, addcdiv_ (torch/optim/adam.py, _multi_tensor_adam).
PASSES: dict[str, tuple[tuple[int, int], ...]] = {
    "adam": ((2, 1), (1, 1), (2, 1), (1, 1), (1, 1), (1, 1), (3, 1)),
    "sgd": ((2, 1),),
    "none": (),
}
STATES = {"adam": 2, "sgd": 0, "none": 0}  # tensors that the optimiser keeps of each parameter
GRADIENTS = "#gradients"  # the operator that reads the gradients last: they stay until the next step
#: Of one launch of a foreach kernel: 320 blocks of 65,536 elements (ATen/native/cuda/MultiTensorApply.cuh).
FOREACH_ELEMENTS = 320 * 65_536
#: Operators through which no gradient goes, whatever they read.
NO_GRADIENT = frozenset({
    "And", "ArgMax", "ArgMin", "Ceil", "ConstantOfShape", "Equal", "EyeLike", "Floor", "Greater", "GreaterOrEqual",
    "IsInf", "IsNaN", "Less", "LessOrEqual", "NonZero", "Not", "OneHot", "Or", "Range", "Round", "Shape", "Sign",
    "Size", "Xor",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Training:
    """What a training step is: the loss ("" for the sum of the outputs), the optimiser, and whether activations are
    computed again in the backward pass instead of being kept; over how many GPUs, `stride` apart, gradients are
    averaged.
    """

    loss: str = ""
    optimizer: str = "adam"
    recompute: bool = False
    copies: int = 1
    stride: int = 1


def training_step(graph: Graph, step: Training) -> Graph:
    """The graph of one training step of a graph that is fused and not placed yet.

    Raises UsageError where an operator between a parameter and the loss has no gradient rule, or nothing is trained.
    """
    forward = tuple(_in_training(o) for o in graph.operators)
    needs = _needs(forward)
    ends = [t for t in graph.outputs if t.name in needs]
    if not ends:
        raise UsageError("there is nothing to train: no output depends on a floating-point weight")
    _check_rules(forward, needs)
    tape = Tape(needs)
    loss = list(_loss(forward, ends, step.loss, tape))
    _backward(forward, tape, step.recompute)
    parameters = {t.name: t for o in forward for t in o.present if is_parameter(t)}
    gradients = [tape.gradients[name] for name in parameters if name in tape.gradients]
    backward, done = tape.operators, gradients
    if step.copies > 1:
        backward, done = averaged(backward, gradients, step.copies, step.stride)
    update = _update(list(parameters.values()), gradients, step.optimizer, done)
    operators = (*forward, *loss, *backward, *update)
    return replace(graph, operators=operators, notes=(*graph.notes, *_notes(forward, step)))


def _in_training(o: Operator) -> Operator:
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


def _needs(operators: Sequence[Operator]) -> set[str]:
    """Names of the floating-point tensors that depend on a parameter, and of the parameters."""
    needs: set[str] = set()
    for o in operators:
        needs.update(t.name for t in o.present if is_parameter(t))
        if o.type not in NO_GRADIENT and any(t.name in needs for t in o.present):
            needs.update(t.name for t in o.outputs if is_float(t))
    return needs


def is_parameter(t: Tensor) -> bool:
    """Whether a tensor is trained: a floating-point weight; single numbers are constants of the code."""
    return t.kind == "weight" and is_float(t) and t.rank > 0


def _check_rules(operators: Sequence[Operator], needs: set[str]) -> None:
    """Raise UsageError for operators without a gradient rule."""
    lacking: dict[str, list[str]] = {}
    for o in operators:
        if o.type not in RULES and any(t.name in needs for t in o.outputs):
            lacking.setdefault(o.type, []).append(o.name)
    if lacking:
        named = "; ".join(f"{type} ({len(names)}: {', '.join(names[:3])})" for type, names in lacking.items())
        raise UsageError(f"no gradient is known of {named[:400]}: training can't be predicted for this model")


def _loss(forward: Sequence[Operator], ends: Sequence[Tensor], loss: str, tape: Tape) -> Iterator[Operator]:
    """The kernels of the loss; the tape gets the gradients of the outputs that it is computed from."""
    last = next(o for o in reversed(forward) if ends[0].name in {t.name for t in o.outputs})
    if not loss:
        for t in ends:
            tape.gradients[t.name] = tape.add(last, "ConstantOfShape", (), t.shape, dtype=t.dtype)
        return
    y = ends[0]
    own = {PHASE: FORWARD}
    if loss == "cross-entropy":
        shares = replace(y, name=f"{y.name}#log_softmax")
        yield Operator(shares.name, "LogSoftmax", (y,), (shares,), {"axis": -1, **own}, 13, last.nodes)
        dense = tape.add(last, "ConstantOfShape", (), y.shape, dtype=y.dtype)
        tape.gradients[y.name] = tape.add(last, "com.microsoft::LogSoftmaxGrad", (dense, shares), y.shape)
        return
    target = Tensor(f"{y.name}#target", y.dtype, y.shape, "input")
    square = replace(y, name=f"{y.name}#square")
    mean = Tensor(f"{y.name}#loss", y.dtype, ())
    yield Operator(square.name, "Sub", (y, target), (square,), own, 0, last.nodes)
    yield Operator(mean.name, "ReduceMean", (square,), (mean,), own, 0, last.nodes)
    tape.gradients[y.name] = tape.add(last, "torch::mse_loss_backward", (y, target), y.shape)


def _backward(forward: Sequence[Operator], tape: Tape, recompute: bool) -> None:
    """Write the backward pass onto the tape, one segment of the forward pass after the other, the last first.

    Where activations are computed again, a segment's forward operators stand before its backward ones and make tensors
    of their own, so that those of the forward pass are free after it; the last segment's are still there.
    """
    segments = _segments(forward) if recompute else [forward]
    for k in range(len(segments) - 1, -1, -1):
        made: dict[str, Tensor] = {}
        if k < len(segments) - 1:
            made = {t.name: replace(t, name=f"{t.name}#again") for o in segments[k] for t in o.outputs}
        again = [renamed(o, made, f"{o.name}#again") if made else o for o in segments[k]]
        if made:
            tape.operators += [replace(o, attrs={**o.attrs, PHASE: BACKWARD}) for o in again]
        for o, ran in zip(reversed(segments[k]), reversed(again), strict=True):
            _differentiate(o, ran, tape)


def _differentiate(o: Operator, ran: Operator, tape: Tape) -> None:
    """Write the backward kernels of an operator, which `ran` under other names."""
    grads = [tape.gradients.get(t.name) for t in o.outputs]
    if not any(t.name in tape.needs for t in o.present) or all(g is None for g in grads) or o.type in NO_GRADIENT:
        return
    own = {b.name: a for a, b in zip(o.present, ran.present, strict=True)}
    seen = Tape({b for b, a in own.items() if a.name in tape.needs}, tape.operators, tape.gradients, tape.made)
    rule = RULES[o.type]
    found = list(rule(seen, ran, *(grads if o.type == "Split" else grads[:1])))
    for i, gradient in found:
        x = o.inputs[i]
        if x is not None and x.name in tape.needs:
            seen.accumulate(ran, x, gradient)
    tape.made = seen.made


def _segments(forward: Sequence[Operator]) -> list[Sequence[Operator]]:
    """About the square root of the operators' number of segments, cut where least is alive."""
    last: dict[str, int] = {t.name: i for i, o in enumerate(forward) for t in o.present if not t.stored}
    alive, at = 0, [0] * len(forward)
    ends: dict[int, int] = {}
    for i, o in enumerate(forward):
        for t in o.outputs:
            if last.get(t.name, i) > i:
                alive += t.bytes
                ends[last[t.name]] = ends.get(last[t.name], 0) + t.bytes
        alive -= ends.get(i, 0)
        at[i] = alive
    count = max(1, isqrt(len(forward)))
    size = ceil(len(forward) / count)
    cuts = [0]
    for k in range(1, count):
        window = range(max(cuts[-1] + 1, k * size - size // 2), min(len(forward), k * size + size // 2))
        if window:
            cuts.append(1 + min(window, key=lambda i: at[i - 1] if i else 0) - 1)
    return [forward[a:b] for a, b in zip(cuts, [*cuts[1:], len(forward)], strict=True) if a < b]


def _update(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor], optimizer: str, ready: Sequence[Tensor]
) -> Iterator[Operator]:
    """The optimiser's passes over all parameters, each of one type at a time; then gradients are let go.

    ready: what has to be there before the first pass.
    """
    done: tuple[Tensor, ...] = tuple(ready)
    by_type: dict[str, int] = {}
    for t in parameters:
        by_type[t.dtype] = by_type.get(t.dtype, 0) + t.size
    for dtype, elements in by_type.items():
        states = tuple(
            Tensor(f"#{optimizer}.{dtype}.{k}", dtype, (elements,), "weight") for k in range(STATES[optimizer])
        )
        launches = max(1, ceil(elements / FOREACH_ELEMENTS))
        for k, (reads, writes) in enumerate(PASSES[optimizer]):
            name = f"#{optimizer}.{dtype}.pass{k}"
            terms = {"elements": ceil(elements / launches), "reads": reads, "writes": writes, "bits": BITS[dtype]}
            out = Tensor(name, dtype, (1,))
            read = (*done, *states)
            yield Operator(name, "torch::foreach", read, (out,), {PHASE: UPDATE, **terms}, 0, (), "gpu", launches)
            done = (out,)
    yield Operator(GRADIENTS, "Identity", tuple(gradients), (), {PHASE: UPDATE})


def kept_by_training(step: Graph) -> dict[str, int]:
    """Bytes that a training step keeps beside weights and activations, by what they are."""
    states = {t.name: t.bytes for o in step.operators if o.type == "torch::foreach" for t in o.present if t.stored}
    gradients = next((o.present for o in reversed(step.operators) if o.name == GRADIENTS), ())
    return {"gradient_bytes": sum(t.bytes for t in gradients), "optimizer_bytes": sum(states.values())}


def _notes(forward: Sequence[Operator], step: Training) -> Iterator[Note]:
    if not any(o.type == "torch::dropout" for o in forward):
        yield Note("no-dropout", "the graph has no dropout in training mode: export the module in train mode for it")

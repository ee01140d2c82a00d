"""A training step: the forward graph with its loss, the backward pass, and the update of the parameters.

Gradients are those of the sum of the outputs, unless a loss is named. Parameters are floating-point weights; a model's
own loss counts as what it ends with. A graph that holds its backward pass is taken as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, isqrt
from typing import Any

from onnxperf.graph import Graph, Note, is_trained
from onnxperf.ground.errors import UsageError
from onnxperf.passes.data_parallel import averaged
from onnxperf.passes.step import Training, holds_backward, is_gradient
from onnxperf.passes.tape import BACKWARD, ENGINE, HELD, PHASE, UPDATE, Tape, is_float, phase_of, renamed
from op_models import BITS, IN_PLACE, Operator, Tensor

#: What adds a gradient to those of earlier batches in place: its buffer, then the gradient.
ACCUMULATOR = "com.microsoft::InPlaceAccumulatorV2"
#: Tensors that the optimiser keeps of each parameter.
STATES = {"adam": 2, "sgd": 0, "momentum": 1, "nesterov": 1, "none": 0}
#: Of one launch of a kernel over lists of tensors: 320 blocks of 65,536 elements, in PyTorch
#: (ATen/native/cuda/MultiTensorApply.cuh) as in ONNX Runtime (providers/cuda/multi_tensor/common.cuh).
FOREACH_ELEMENTS = 320 * 65_536
#: The first input of Attention that is a mask; the axis of heads, from the end, in what is added to their scores.
ATTENTION_MASK, HEADS_AXIS = 3, 3
#: In the name of the buffer that rotary embeddings are computed from.
ROTARY = "inv_freq"
#: Operators through which no gradient goes, whatever they read.
NO_GRADIENT = frozenset({
    "And", "ArgMax", "ArgMin", "Ceil", "ConstantOfShape", "Equal", "EyeLike", "Floor", "Greater", "GreaterOrEqual",
    "IsInf", "IsNaN", "Less", "LessOrEqual", "NonZero", "Not", "OneHot", "Or", "Range", "Round", "Shape", "Sign",
    "Size", "Xor",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Autograd:
    """How a framework trains.

    rules: its gradient rules by type of operator; in_training: an operator as it runs in training; loss: the operators
    of a loss of an output, by the loss's name and the output's nodes; loss_gradient: writes the gradient of that output
    onto the tape; passes: of each optimiser the passes over all parameters, as tensors read and written of each, where
    the first reads the gradients, and how many of those written are new and stay until the last pass; accumulator: the
    operator that adds the gradients of a batch to those of earlier ones, where ACCUMULATOR also copies those of the
    first; keeps: gradients stay from step to step and are set to zero before each, so that those of its first batch are
    added to them as well; lists: the optimiser works on lists of parameters, else on one after the other; start: what
    makes the gradient of an output; at_once: see `Tape`; holds: what an operator's gradient is computed from is kept
    until its last kernel is done; scales: under autocast a scaler passes over the gradients before the optimiser;
    describe: the framework's name.
    """

    describe: str
    rules: Mapping[str, Callable[..., Iterator[tuple[int, Tensor]]]]
    in_training: Callable[[Operator], Operator]
    loss: Callable[[Tensor, str, tuple[str, ...]], Iterator[Operator]]
    loss_gradient: Callable[[Sequence[Operator], Tape], None]
    passes: Mapping[str, tuple[tuple[int, int, int], ...]]
    accumulator: str = "Add"
    keeps: bool = False
    lists: bool = True
    start: str = "ConstantOfShape"
    at_once: bool = False
    holds: bool = False
    scales: bool = False


def training_step(
    graph: Graph, step: Training, autograd: Autograd, autocast: Callable[[Graph], Graph] | None = None
) -> Graph:
    """The graph of one training step of a graph that is fused and not placed yet.

    autocast: what chooses the types of the forward pass and of the loss; backward operators have those of the forward
    ones. Raises UsageError where an operator between a parameter and the loss has no gradient rule, or nothing is
    trained.
    """
    if holds_backward(graph):
        return _as_it_is(autocast(graph) if autocast is not None else graph, step, autograd)
    loss = _loss(graph, step.loss, autograd)
    graph = replace(graph, operators=(*graph.operators, *loss))
    graph = autocast(graph) if autocast is not None else graph
    forward = tuple(autograd.in_training(o) for o in graph.operators)
    needs, of_loss = _needs(forward), {o.name for o in loss}
    _check_rules([o for o in forward if o.name not in of_loss], needs, autograd)
    tape = Tape(needs, at_once=autograd.at_once)
    if loss:
        autograd.loss_gradient([o for o in forward if o.name in of_loss], tape)
    for t in _ends(graph) if not loss else ():
        tape.gradients[t.name] = tape.add(_maker(graph, t), autograd.start, (), t.shape, dtype=t.dtype)
    _backward(forward, tape, step.recompute, autograd)
    parameters = _parameters(forward)
    gradients = {name: g for name, t in parameters.items() if (g := tape.gradient(forward[0], t)) is not None}
    sums: Sequence[Tensor] = list(gradients.values())
    at_once = step.added or autograd.keeps
    if at_once:
        tape.operators, sums = _added_at_once(tape.operators, sums)
    operators = [replace(o, repeat=o.repeat * step.accumulate) for o in (*forward, *tape.operators)]
    added = [] if autograd.keeps else [*_accumulation(sums, step.accumulate, autograd)]
    sums, ready = [o.out for o in added] or sums, list[Tensor]()
    if step.copies > 1:
        backward, ready = averaged(operators[len(forward) :], sums, step.copies, step.stride)
        operators = [*operators[: len(forward)], *backward]
    buffers = [o.present[0] for o in added if o.type == ACCUMULATOR]
    buffers += [o.present[0] for o in tape.operators if at_once and IN_PLACE in o.attrs]
    passes = _passes(step.optimizer, autograd, scaled=autocast is not None and autograd.scales)
    update = _update(
        [parameters[name] for name in gradients], ready or [*sums, *buffers], step.optimizer, passes, autograd.lists
    )
    inputs, outputs = (*graph.inputs, *buffers), (*graph.outputs, *sums)  # gradients stay until the next step
    notes = (*graph.notes, *_notes(forward))
    return replace(graph, operators=(*operators, *added, *update), inputs=inputs, outputs=outputs, notes=notes)


def _as_it_is(graph: Graph, step: Training, autograd: Autograd) -> Graph:
    """A graph that holds its backward pass, with the update that its gradients take."""
    if step.loss or step.recompute:
        raise UsageError("the model already has its backward pass, loss and recomputation: leave these options out")
    operators = with_phases(graph.operators)
    adding = [o for o in operators if o.type == ACCUMULATOR]
    buffers = [o.present[0] for o in adding]
    repeated = [replace(o, repeat=o.repeat * step.accumulate) for o in operators]
    ready, passes = [*(o.out for o in adding), *buffers], _passes(step.optimizer, autograd, scaled=False)
    update = _update(buffers, ready, step.optimizer, passes, autograd.lists)
    return replace(graph, operators=(*repeated, *update))


def with_phases(operators: Sequence[Operator]) -> list[Operator]:
    """The operators, those marked that follow from a gradient: they belong to the backward pass."""
    marked, backward = list[Operator](), set[str]()
    for o in operators:
        if phase_of(o) != BACKWARD and (is_gradient(o) or any(t.name in backward for t in o.present)):
            o = o if phase_of(o) == UPDATE else replace(o, attrs={**o.attrs, PHASE: BACKWARD})
        if phase_of(o) == BACKWARD:
            backward.update(t.name for t in o.outputs)
        marked.append(o)
    return marked


def _parameters(operators: Sequence[Operator]) -> dict[str, Tensor]:
    """The parameters by name: stored floating-point tensors but for masks of attention and tables of rotary embeddings,
    which models store or exporters compute.

    A mask is the same for all heads, which a bias of relative positions is not; a table is a factor for each position
    and feature that samples or heads share, which a layer's scale is not.
    """
    scores = {o.present[0].name for o in operators if o.type == "Softmax"}

    def constant(o: Operator, i: int, t: Tensor) -> bool:
        mask = i >= ATTENTION_MASK if o.type == "Attention" else o.type == "Add" and o.out.name in scores
        table = o.type == "Mul" and sum(d > 1 for d in t.shape) > 1 and t.size < o.out.size
        return (mask and (t.rank < HEADS_AXIS or t.shape[-HEADS_AXIS] == 1)) or table or ROTARY in t.name

    stored = [(o, i, t) for o in operators for i, t in enumerate(o.inputs) if t is not None and is_trained(t)]
    constants = {t.name for o, i, t in stored if constant(o, i, t)}
    return {t.name: t for _, _, t in stored if t.name not in constants}


def _needs(operators: Sequence[Operator]) -> set[str]:
    """Names of the floating-point tensors that depend on a parameter, and of the parameters."""
    needs = set(_parameters(operators))
    for o in operators:
        if o.type not in NO_GRADIENT and any(t.name in needs for t in o.present):
            needs.update(t.name for t in o.outputs if is_float(t))
    return needs


def _check_rules(operators: Sequence[Operator], needs: set[str], autograd: Autograd) -> None:
    """Raise UsageError for operators without a gradient rule."""
    lacking: dict[str, list[str]] = {}
    for o in operators:
        if o.type not in autograd.rules and any(t.name in needs for t in o.outputs):
            lacking.setdefault(o.type, []).append(o.name)
    if lacking:
        named = "; ".join(f"{type} ({len(names)}: {', '.join(names[:3])})" for type, names in lacking.items())
        raise UsageError(
            f"{autograd.describe}: no gradient is defined for {named[:400]}: training can't be predicted for this model"
        )


def _ends(graph: Graph) -> list[Tensor]:
    """The outputs that depend on a parameter. Raises UsageError where none does."""
    needs = _needs(graph.operators)
    if not (ends := [t for t in graph.outputs if t.name in needs and graph.made_by(t) is not None]):
        raise UsageError("no trainable parameters: no output depends on a floating-point weight")
    return ends


def _maker(graph: Graph, t: Tensor) -> Operator:
    """The operator that makes an output."""
    return next(o for o in reversed(graph.operators) if t.name in {output.name for output in o.outputs})


def _loss(graph: Graph, loss: str, autograd: Autograd) -> tuple[Operator, ...]:
    """The operators of the loss of the first output that depends on a parameter; none where no loss is named."""
    first = _ends(graph)[0]
    return tuple(autograd.loss(first, loss, _maker(graph, first).nodes)) if loss else ()


def _backward(forward: Sequence[Operator], tape: Tape, recompute: bool, autograd: Autograd) -> None:
    """Write the backward pass onto the tape, one segment of the forward pass after the other, the last first.

    Where activations are computed again, a segment's forward operators stand before its backward ones and make tensors
    of their own, so that those of the forward pass are free after it; the last segment's are still there.
    """
    segments = _segments(forward) if recompute else [forward]
    for k in range(len(segments) - 1, -1, -1):
        copies: dict[str, Tensor] = {}
        if k < len(segments) - 1:
            copies = {t.name: replace(t, name=f"{t.name}#again") for o in segments[k] for t in o.outputs}
        again = [renamed(o, copies, f"{o.name}#again") if copies else o for o in segments[k]]
        if copies:
            tape.operators += [replace(o, attrs={**o.attrs, PHASE: BACKWARD}) for o in again]
        for o, ran in zip(reversed(segments[k]), reversed(again), strict=True):
            _differentiate(o, ran, tape, autograd)


def _differentiate(o: Operator, ran: Operator, tape: Tape, autograd: Autograd) -> None:
    """Write the backward kernels of an operator, which `ran` under other names."""
    if o.type in NO_GRADIENT or not any(t.name in tape.needs for t in o.present):
        return
    grads = [tape.gradient(o, t) for t in o.outputs]
    if all(g is None for g in grads):
        return
    originals = {b.name: a for a, b in zip(o.present, ran.present, strict=True)}
    needs = {b for b, a in originals.items() if a.name in tape.needs}
    seen = replace(tape, needs=needs)
    rule, first = autograd.rules[o.type], len(tape.operators)
    gradients = list(rule(seen, ran, *(grads if o.type == "Split" else grads[:1])))
    if autograd.holds:
        tape.operators[first:] = _holding(tape.operators[first:])
    for i, gradient in gradients:
        x = o.inputs[i]
        if x is not None and x.name in tape.needs:
            seen.accumulate(ran, x, gradient)
    tape.kernels = seen.kernels


def _holding(node: Sequence[Operator]) -> Iterator[Operator]:
    """The kernels of one node of autograd, the last of which keeps what any of them reads from outside."""
    yield from node[:-1]
    for last in node[-1:]:
        inside = {t.name for o in node for t in o.outputs}
        held = dict.fromkeys(t.name for o in node for t in o.present if t.name not in inside and not t.stored)
        yield replace(last, attrs={**last.attrs, HELD: tuple(held)}) if len(node) > 1 else last


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


def _accumulation(gradients: Sequence[Tensor], batches: int, autograd: Autograd) -> Iterator[Operator]:
    """What adds the gradients of each batch to those before it."""
    times = batches if autograd.accumulator == ACCUMULATOR else batches - 1
    for g in gradients if times else ():
        buffer = Tensor(f"{g.name}#buffer", g.dtype, g.shape)
        summed = replace(buffer, name=f"{g.name}#accumulated")
        if autograd.accumulator == ACCUMULATOR:  # which adds in place, and says that it did
            summed = replace(summed, dtype="bool", shape=(1,))
        yield Operator(
            summed.name, autograd.accumulator, (buffer, g), (summed,), {PHASE: BACKWARD, ENGINE: 1}, 0, (), "gpu", times
        )


def _added_at_once(backward: Sequence[Operator], gradients: Sequence[Tensor]) -> tuple[list[Operator], list[Tensor]]:
    """The backward pass with each gradient added in place to its buffer when it is there, as part of the nodes that
    made it; and the sums.
    """
    sums = {g.name: replace(g, name=f"{g.name}#accumulated") for g in gradients}
    merged = []
    for o in backward:
        merged.append(o)
        for g in o.outputs:
            if g.name in sums:
                buffer = replace(g, name=f"{g.name}#buffer")
                total = sums[g.name]
                attrs = {PHASE: BACKWARD, IN_PLACE: 1}
                merged.append(Operator(total.name, "Add", (buffer, g), (total,), attrs, 0, o.nodes))
    return merged, [sums[g.name] for g in gradients]


def _passes(optimizer: str, autograd: Autograd, scaled: bool) -> tuple[tuple[int, int, int], ...]:
    """The passes of an optimiser, as in `Autograd`; before them, where the loss was scaled, that of the scaler, which
    divides gradients and looks for infinities (torch.amp.GradScaler: _amp_foreach_non_finite_check_and_unscale_).
    """
    if optimizer not in autograd.passes:
        raise UsageError(f"{autograd.describe} has no optimizer {optimizer}: it has {', '.join(autograd.passes)}")
    passes = autograd.passes[optimizer]
    return ((1, 1, 0), *passes) if passes and scaled else passes


def _update(
    parameters: Sequence[Tensor], ready: Sequence[Tensor], optimizer: str, passes: Sequence[tuple[int, int, int]],
    lists: bool,
) -> Iterator[Operator]:  # fmt: skip
    """The passes over all parameters, each of one type at a time; lists: over many tensors in one launch.

    ready: what has to be there before the first pass.
    """
    done: tuple[Tensor, ...] = tuple(ready)
    by_type: dict[str, list[int]] = {}
    for t in parameters:
        by_type.setdefault(t.dtype, []).append(t.size)
    for dtype, sizes in by_type.items():
        elements = sum(sizes)
        states = tuple(
            Tensor(f"#{optimizer}.{dtype}.{k}", dtype, (elements,), "weight") for k in range(STATES[optimizer])
        )
        launches = max(1, ceil(elements / FOREACH_ELEMENTS)) if lists else len(sizes)
        new = list[Tensor]()
        for k, (reads, writes, stay) in enumerate(passes):
            name = f"#{optimizer}.{dtype}.pass{k}"
            terms = {"elements": ceil(elements / launches), "reads": reads, "writes": writes, "bits": BITS[dtype]}
            out = Tensor(name, dtype, (elements, stay) if stay else (1,))
            read = (*done, *states, *new)
            yield Operator(name, "torch::foreach", read, (out,), {PHASE: UPDATE, **terms}, 0, (), "gpu", launches)
            done, new = (out,), [*new, out] if stay else new


def kept_by_training(before: Graph, step: Graph) -> dict[str, Any]:
    """Bytes that a training step keeps beside weights and activations of the graph before it, by what they are."""
    states = {t.name: t.bytes for o in step.operators if o.type == "torch::foreach" for t in o.present if t.stored}
    buffers = [o.present[0] for o in step.operators if o.type == ACCUMULATOR]
    gradients = buffers or [t for t in step.outputs if t.name not in before.output_names]
    return {"gradient_bytes": sum(t.bytes for t in gradients), "optimizer_bytes": sum(states.values())}


def _notes(forward: Sequence[Operator]) -> Iterator[Note]:
    if not any(o.type == "torch::dropout" or (o.type == "Dropout" and len(o.outputs) > 1) for o in forward):
        yield Note(
            "no-dropout", "the graph has no dropout in training mode: export the module in train mode to include it"
        )

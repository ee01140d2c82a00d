"""How If, Loop, Scan and SequenceMap are replaced by their bodies, which run as often as the node says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from onnx import TypeProto

from onnxperf.graph.control_node import Body, ControlNode, Output, Runs
from onnxperf.graph.core import SEARCHES, Note
from onnxperf.graph.outputs import note_unknown
from onnxperf.graph.proto import Shape, attributes, dtype_of, plain, tensor_type, times
from onnxperf.graph.search import inline_search
from onnxperf.graph.sequences import Elements, element_type
from onnxperf.graph.state import State
from onnxperf.graph.trip_count import runs_until_false
from onnxperf.ground.rules import work_or_bytes
from op_models import Operator, Tensor


def _inline_if(node: ControlNode) -> None:
    """The branch that a known condition picks, else the one that costs more. The node itself leaves where its condition
    is stored, not where a session only learns it from shapes when it runs.
    """
    state, branches, count = node.state, ("then_branch", "else_branch"), len(node.node.output)
    condition = node.number(node.inputs[0])
    if condition is not None:
        stored = any(t.stored for t in node.inputs if t)
        if not stored:
            node.enter()
        results = node.run(node.body(branches[not condition], 0, count))
        return node.define_outputs([Output(t) for t in results], folded=stored, with_values=True)
    node.enter()
    start, notes = len(state.operators), len(state.notes)
    runs = []
    for branch in branches:
        results = node.run(node.body(branch, 0, count))
        operators, remarks = state.operators[start:], state.notes[notes:]
        runs.append((_cost(state, operators), branch, results, operators, remarks))
        del state.operators[start:], state.notes[notes:]
    (_, branch, results, operators, remarks), (*_, others, _, _) = runs if runs[0][0] >= runs[1][0] else runs[::-1]
    state.operators += operators
    message = f"which branch {node.label!r} takes depends on the data; assumed: its {branch}, the slower one"
    state.notes += [*remarks, Note("assumed-branch", message, (node.label,))]
    differ = [k for k, (a, b) in enumerate(zip(results, others, strict=True)) if a.shape != b.shape]
    state.assumed.update(results[k].name for k in differ)
    node.define_outputs([Output(t) for t in results])
    for out in (node.names.get(name, name) for k in differ if (name := node.node.output[k])):
        shape = times(state.tensors[out].shape)
        state.assume(out, f"the shape of {out!r} depends on the branch; assumed {shape}", node.label)


def _cost(state: State, operators: Sequence[Operator]) -> tuple[int, int]:
    """FLOPs and bytes of all runs. An operator in nested branches is asked only once, however deep it stands."""
    for o in operators:
        if o.name not in state.costs:
            w, _ = work_or_bytes(o)
            state.costs[o.name] = w.flops, w.bytes
    runs = [(o.repeat, *state.costs[o.name]) for o in operators]
    return sum(n * flops for n, flops, _ in runs), sum(n * size for n, _, size in runs)


def _inline_loop(node: ControlNode) -> None:
    """As many runs as the first input says, unless a condition ends the loop earlier.

    Inputs are the limit, the first condition and the carried tensors; the body reads its number, the condition and
    the carried tensors, and gives the next condition, the carried tensors, and tensors to be stacked.
    """
    state, carried = node.state, node.inputs[2:]
    count = len(carried)
    body = node.body("body", 2 + count, 1 + max(len(node.node.output), count))
    if None in carried:
        raise node.refusal("the first value of what it carries is missing")
    # ONNX Runtime gives the body its number and the condition in the rank that the body declares
    ranks = [len(i.type.tensor_type.shape.dim) for i in body.inputs]
    types = [tensor_type(dtype, (1,) * (rank == 1)) for dtype, rank in zip(("int64", "bool"), ranks, strict=False)]
    types += [state.types[t.name] for t in carried if t]
    entered = node.enter(body, types, (None, None, *carried))
    start, notes = len(state.operators), len(state.notes)
    again, *results = node.run(body)
    fixed = _fixed_trips(node, body, again)
    trips = node.trip_count(fixed, node.number(node.inputs[0]))
    runs = Runs(node, "body", types, (None, None, *carried), [again, *results], 2, 1, entered[2:])
    _, *results = _repeated(runs, start, trips)
    if fixed == 0:
        del state.notes[notes:]
    last = [t for t in carried if t] if not trips else results[:count]
    held = [_left(node, old, new, trips, fixed) for old, new in zip(carried, results, strict=False)]
    stacked = [Output(t, tensor_type(t.dtype, (trips, *t.shape))) for t in results[count:]]
    left = [Output(t, held=elements) for t, elements in zip(last, held, strict=True)]
    node.define_outputs([*left, *stacked], folded=fixed == 0)


def _repeated(runs: Runs, start: int, trips: int) -> list[Tensor]:
    """Let a body whose first run is in the graph from operator number `start` on run so often; what its last run gives.
    Where it carries tensors that grow, runs of other sizes stand behind the first.
    """
    node = runs.node
    if trips > 1 and runs.grows():
        from onnxperf.graph.growth import all_runs

        if (results := all_runs(runs, start, trips)) is not None:
            return results
    node.repeat(start, trips)
    if trips > 1:
        node.note_changed_shapes(runs.carried, runs.after(runs.results))
    return runs.results


def _left(node: ControlNode, old: Tensor | None, new: Tensor, trips: int, fixed: int | None) -> Elements | None:
    """What a Loop leaves in a sequence that it carries: what its first run adds, as often as it runs. Where neither the
    model nor the user says how often that is, it is not known.
    """
    sequences = node.state.sequences
    if old is None or old.name not in sequences or new.name not in sequences:
        return None
    before, first = sequences[old.name], sequences[new.name]
    elements = before.after(first, trips)
    if not node.open or first.count <= before.count:
        return elements
    note_unknown(node.state, new.name, node.label)
    return replace(elements, exact=False, counted=False)


def _fixed_trips(node: ControlNode, body: Body, again: Tensor) -> int | None:
    """How often a Loop runs, where constants decide it; None where the data do."""
    limit, first, *carried = node.inputs
    most, enters = node.number(limit), 1 if first is None else node.number(first)
    if enters == 0 or (most is not None and most <= 0):
        return 0
    stays = node.number(again)
    runs = (math.inf if stays else 1) if stays is not None else _counted(node, body, carried)
    if not enters or runs is None or (limit is not None and most is None):
        return None
    runs = runs if most is None else min(runs, most)
    return int(runs) if runs < math.inf else None


def _counted(node: ControlNode, body: Body, carried: Sequence[Tensor | None]) -> float | None:
    """How often a Loop runs until its condition, where that only compares counters, is false."""
    values, names = node.state.values, body.names
    read = {i for n in body.graph.node for i in n.input} | {o.name for o in body.graph.output}
    arrays = ((i, values.get(names.get(i, i))) for i in read)
    stored = {i: float(v.flat[0]) for i, v in arrays if v is not None and v.size == 1 and v.dtype.kind in "iubf"}
    first = [values.get(t.name) if t is not None else None for t in carried]
    starts = [float(v.flat[0]) if v is not None and v.size == 1 and v.dtype.kind in "iuf" else None for v in first]
    return runs_until_false(body.graph, [i.name for i in body.inputs], starts, stored)


def _inline_scan(node: ControlNode) -> None:
    """One run for each slice of the scanned inputs; before opset 9, of each sequence in a batch.

    Inputs are the carried tensors, then the scanned ones; the body gives the carried tensors, and slices of outputs.
    """
    state, attrs = node.state, attributes(node.node)
    batched = node.version < 9  # inputs are [batch, length, ...], and their true lengths come first
    inputs = [t for t in node.inputs[batched:] if t]
    scanned = attrs.get("num_scan_inputs", 0)
    if not isinstance(scanned, int) or not 0 < scanned <= len(inputs) or len(inputs) != len(node.inputs[batched:]):
        raise node.refusal(f"{plain(str(scanned))} of its {len(inputs)} inputs are to be scanned")
    count = len(inputs) - scanned
    body = node.body("body", len(inputs), len(node.node.output))
    lead = inputs[count].shape[:1] if batched else ()
    shapes: list[Shape] = [t.shape[batched:] for t in inputs[:count]]
    lengths = set()
    for k, t in enumerate(inputs[count:]):
        axis = node.axis(attrs, "scan_input_axes", k, t.rank) if not batched else 1
        lengths.add(t.shape[axis] if axis < t.rank else 1)
        shapes.append(t.shape[2:] if batched else (*t.shape[:axis], *t.shape[axis + 1 :]))
    if len(lengths) != 1 and not node.assumed:
        raise node.refusal(f"its inputs are of different lengths: {', '.join(map(str, sorted(lengths)))}")
    length = max(lengths)
    types = [tensor_type(t.dtype, s) for t, s in zip(inputs, shapes, strict=True)]
    entered = node.enter(body, types, inputs)
    start = len(state.operators)
    runs = Runs(node, "body", types, inputs, node.run(body), 0, 0, entered[:count])
    results = _repeated(runs, start, lead[0] * length if lead else length)
    outputs = [Output(t, tensor_type(t.dtype, (*lead, *t.shape)) if batched else None) for t in results[:count]]
    for k, t in enumerate(results[count:]):
        axis = node.axis(attrs, "scan_output_axes", k, t.rank + 1) if not batched else 0
        outputs.append(Output(t, tensor_type(t.dtype, (*lead, *t.shape[:axis], length, *t.shape[axis:])), axis))
    node.define_outputs(outputs)


def _inline_sequence_map(node: ControlNode) -> None:
    """One run for each element of its first input, a sequence."""
    state, inputs = node.state, [t for t in node.inputs if t]
    body = node.body("body", len(inputs), len(node.node.output))
    types = [state.types[t.name] for t in inputs]
    held = [state.sequences.get(t.name) for t in inputs]
    for k, elements in enumerate(held):
        element = element_type(types[k])
        if elements is not None and element is not None:
            shape = elements.largest if elements.counted else None
            types[k] = element if shape is None else tensor_type(dtype_of(element.tensor_type.elem_type), shape)
    node.enter(body, types, inputs)
    start = len(state.operators)
    results = node.run(body)
    first = held[0] if held else None
    counted = first is not None and first.counted
    trips = node.trip_count(first.count if first is not None and counted else None)
    node.repeat(start, trips)
    outputs = []
    for t in results:
        type = TypeProto(sequence_type=TypeProto.Sequence(elem_type=state.types[t.name]))
        same = Elements(((t.shape, trips),) if trips else (), trips * t.size, exact=first is None or first.exact)
        outputs.append(Output(t, type, held=replace(same, counted=not node.open)))
    node.define_outputs(outputs)


#: The operators of control flow and how each is replaced by its bodies.
INLINE: dict[str, Callable[[ControlNode], None]] = {
    "If": _inline_if, "Loop": _inline_loop, "Scan": _inline_scan, "SequenceMap": _inline_sequence_map,
    **dict.fromkeys(SEARCHES, inline_search),
}  # fmt: skip

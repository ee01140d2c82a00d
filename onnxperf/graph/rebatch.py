"""A model that is fixed to one batch, at another: its nodes are followed, and the constants among them that hold the
batch are replaced.

The model is inferred as it is, and at a probing batch that no size of it equals by chance. Where an input of a node
holds the batch, the operator's rule says where its outputs do, and which of its constants must hold it. Constants are
replaced only where every sample is computed by itself, as the file computes it; the batch that was asked for is then
inferred with these, and each of its shapes compared with those at the other two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from onnx import ModelProto

from onnxperf.graph.batch_node import Edit, Guess
from onnxperf.graph.batch_place import Batch
from onnxperf.graph.batch_probe import Edits, Probe, Refusal
from onnxperf.graph.bind import Binding
from onnxperf.graph.core import Graph, Note
from onnxperf.graph.infer import InferNode, Inferred, infer
from onnxperf.graph.node import infer_node
from onnxperf.graph.proto import Shape, times
from onnxperf.graph.state import State
from onnxperf.ground.errors import ModelError, UsageError, counted, printable
from onnxperf.ground.rules import work_or_bytes
from op_models import Operator

PROBE = 251  # a prime: times as large as the file's batch is the batch that is probed
HINT = "export the model with a dynamic batch"
MOST_NAMED = 3  # nodes that the note names
MOST_WAYS = 24  # in which the batch may go through a model
MOST_TRIED = 200_000  # operators in all ways together, of which each takes some 0.1 ms


class Followed(NamedTuple):
    """A model in its own batch and in the probing one, and which of its constants hold the batch, by node."""

    original: Inferred
    probed: Inferred
    edits: Mapping[str, list[Edit]]


#: What was found of a model, by the sizes that it has beside the batch: it holds for every batch.
Memo = dict[Any, Followed | None]


def inferred(
    model: ModelProto, binding: Binding, old: int, shapes: Mapping[str, Shape], trip_counts: Mapping[str, int],
    name: str, folder: Path | None, kept: Memo,
) -> Graph:  # fmt: skip
    """The static graph of a model whose inputs are bound, changed to their batch: it is made for the
    batch `old`.

    What was found out on the way goes to `kept`, which belongs to this model. Raises UsageError, which names a node,
    where the batch can't be changed; else what `infer` raises.
    """
    new = binding.batch
    input_shapes = {tensor: shape for tensor, shape in shapes.items() if tensor in binding.inputs}

    def at(n: int, infer_one: InferNode = infer_node) -> Inferred:
        return infer(model, binding.at(n), shapes if n == new else input_shapes, trip_counts, name, folder, infer_one)

    sizes = (binding.at(old).inputs, binding.batch_axes, binding.symbols, trip_counts)
    key = tuple(tuple(sorted(each.items())) for each in sizes)
    try:
        if key not in kept:
            kept[key] = _followed(at, old, new)
        followed = kept[key]
        return at(new).graph if followed is None else _at_batch(at, followed, binding)
    except Refusal as e:
        raise UsageError(f"{binding.refusal}: {e}; {HINT}") from None
    except UsageError as e:
        raise UsageError(f"{e}; {HINT}") from None


def _followed(at: Callable[..., Inferred], old: int, new: int) -> Followed | None:
    """The model in its own batch and the probing one; `new` is the batch whose sizes an error names. None where the
    model can't be inferred in its own batch.

    Where nodes by themselves leave open which axis holds the batch, every way is tried: all but one must fail.
    """
    try:
        original = at(old)
    except (UsageError, ModelError):  # the file's own sizes contradict each other: nothing to follow, nothing to change
        return None
    results, failed = list[Followed](), list[tuple[Probe, Exception]]()
    ways, tried, open_at = [dict[Guess, bool]()], 0, ""
    while ways:
        way, tried = ways.pop(0), tried + 1
        probe = Probe(original.state, Batch(old, PROBE * old), way)
        try:
            probed = at(probe.batch.new, probe.infer_node)
            probe.conclude(probed.graph)
            results.append(Followed(original, probed, probe.edits))
        except (UsageError, ModelError) as e:
            failed.append((probe, e))
        guesses = [guess for guess in probe.guesses if guess not in way]
        open_at = open_at or next((probe.guesses[guess] for guess in guesses), "")
        ways += [{**way, **dict.fromkeys(guesses[:i], False), guess: True} for i, guess in enumerate(guesses)]
        if len(results) > 1 or tried + len(ways) > MOST_WAYS:
            raise Refusal(f"node {open_at!r} (Reshape) does not tell which axis of its output is the batch")
        if ways and (tried + 1) * len(original.graph.operators) > MOST_TRIED:
            many = f"and with {len(original.graph.operators):,} operators not every way can be tried"
            raise Refusal(f"node {open_at!r} (Reshape) does not tell which axis of its output is the batch, {many}")
    if results:
        return results[0]
    probe, error = failed[0]
    if not isinstance(error, Refusal):
        at(new, Edits(probe.edits, Batch(old, new)).infer_node)  # raises it with the sizes that were asked for
    raise error


def _at_batch(at: Callable[..., Inferred], followed: Followed, binding: Binding) -> Graph:
    """The graph at the batch of the binding; Refusal where it does not grow with the batch."""
    original, probed, edits = followed
    batch = Batch(original.graph.batch, binding.batch)
    result = at(batch.new, Edits(edits, batch).infer_node)
    if not edits:
        return result.graph
    _compare(original.state, probed.state, result.state)
    _compare_work(original.graph, result.graph)
    return replace(result.graph, notes=(*result.graph.notes, _note(edits, binding)))


def _compare(original: State, probed: State, result: State) -> None:
    """Raise Refusal where a size at the batch that was asked for is not on the line through those at the others."""
    old, new, probe = original.binding.batch, result.binding.batch, probed.binding.batch
    for name, tensor in result.tensors.items():
        a, b = original.tensors.get(name), probed.tensors.get(name)
        if a is None or b is None:  # a constant that was put there
            continue
        sizes = zip(a.shape, b.shape, tensor.shape, strict=False)
        line = all((z - x) * (probe - old) == (y - x) * (new - old) for x, y, z in sizes)
        if not line or len({len(a.shape), len(b.shape), len(tensor.shape)}) > 1:
            shapes = f"{times(a.shape)} at batch {old}, {times(tensor.shape)} at batch {new}"
            raise Refusal(f"tensor {name!r} does not grow with it ({shapes})")


def _compare_work(original: Graph, result: Graph) -> None:
    """Raise Refusal where an operator's FLOPs neither stay as they are nor grow as the batch does."""
    before = {o.name: o for o in original.operators}

    def flops(o: Operator) -> int:
        return work_or_bytes(o)[0].flops * o.repeat

    for o in result.operators:
        old, new = (flops(before[o.name]), flops(o)) if o.name in before else (0, 0)
        if new != old and new * original.batch != old * result.batch:
            says = f"{old:,} FLOPs at batch {original.batch}, {new:,} at batch {result.batch}"
            raise Refusal(f"node {o.name!r} ({o.type}) does not grow with it ({says})")


def _note(edits: Mapping[str, list[Edit]], binding: Binding) -> Note:
    """Which nodes were changed."""
    nodes = tuple(edits)
    named = ", ".join(nodes[:MOST_NAMED]) + (f" and {len(nodes) - MOST_NAMED} more" if len(nodes) > MOST_NAMED else "")
    what = f"the file has batch {binding.old_batch}: changed to batch {binding.batch} in its inputs"
    says = f"{what} ({', '.join(binding.batch_axes)}) and in constants of {counted(len(nodes), 'node')}: {named}"
    return Note("rebatched", printable(says), nodes)

"""The engine that applies a runtime's fusion rules to a graph.

A rule is tried at every operator of certain types (its anchors) and answers `Fused`, `Miss` (it nearly matched, and why
it did not) or None; most rules are patterns (see `pattern`). A `Pass` rewrites the whole graph. First, operators that
only hand on their input, such as Identity, are removed. Then the rules and passes of a level take turns, in the
runtime's order, until none applies any more, and those of the next level follow. A fusion that would remove a value
which another operator still reads is refused. Every Miss that remains becomes a note (`not-fused`). A rule that raises
something, or answers what is no change of the graph, does not apply: that note (`failed-fusion`) has the exception.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from onnxperf.graph import CONTROL, NEVER_FOLDED, Graph, Note
from onnxperf.ground import names
from onnxperf.ground.errors import ModelError, printable
from onnxperf.ground.releases import Release, there
from op_models import Operator, Tensor

DISABLED, BASIC, EXTENDED, ALL = range(4)
ROUNDS = 10  # in each level, at most: as many as ONNX Runtime makes
LEVELS = {name: level for level, name in enumerate(names.LEVELS)}


@dataclass(frozen=True, slots=True)
class Fused:
    """`operator`, and the operators `before` it that it reads, replace `replaced`.

    They stand where the last of these stood, or the first if `early`.
    """

    replaced: tuple[Operator, ...]
    operator: Operator
    before: tuple[Operator, ...] = ()
    early: bool = False

    @property
    def operators(self) -> tuple[Operator, ...]:
        """What is new, in execution order."""
        return (*self.before, self.operator)


@dataclass(frozen=True, slots=True)
class Miss:
    """A rule nearly matched; `why` it did not, and the nodes that stood in the way."""

    why: str
    nodes: tuple[str, ...] = ()


Answer = Fused | Miss | None
Attributes = Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Rule:
    """What a runtime does to a graph, by name: `since` which of its releases, and `until` which (the last one that does
    it, "" where today's does). A runtime that has releases lists no rule without `since`.
    """

    name: str
    since: str = field(default="", kw_only=True)
    until: str = field(default="", kw_only=True)

    def of(self, since: str, until: str = "") -> Self:
        """The same rule in the releases of another runtime, or in some of its own."""
        return replace(self, since=since, until=until)


@dataclass(frozen=True, slots=True)
class Fusion(Rule):
    """A rule that is tried at operators of some types."""

    anchors: tuple[str, ...]
    rule: Callable[[Rewriter, Operator], Answer]


@dataclass(frozen=True, slots=True)
class Pass(Rule):
    """A rule that rewrites the whole graph (it gives the same one back where nothing changes).

    It takes its turn among the rules of its level: in every round, or only in the first.
    """

    run: Callable[[Graph], Graph]
    once: bool = False


NEAR, FAILED = "not-fused", "failed-fusion"  # codes of notes: a rule nearly matched; it is broken
Misses = dict[tuple[str, str, str], list[str]]  # by the note's code, rule and reason, the nodes
Rules = Mapping[int, tuple[Fusion | Pass, ...]]  # of each optimisation level, in the order in which they take turns


def fusion(
    name: str, *, anchor: str | tuple[str, ...], since: str = "", until: str = ""
) -> Callable[[Callable[[Rewriter, Operator], Answer]], Fusion]:
    """Make a `Fusion` of a function that walks the graph itself, where no pattern says what it looks for.

    since, until: the first and the last release of the runtime that has it, see `Rule`.
    """
    anchors = (anchor,) if isinstance(anchor, str) else anchor
    return lambda rule: Fusion(name, anchors, rule, since=since, until=until)


def since(first: str, *rules: Fusion | Pass) -> tuple[Fusion | Pass, ...]:
    """Rules that a runtime has had since one release, and has today: what several runtimes share says here since when
    for this one.
    """
    return tuple(rule.of(first) for rule in rules)


def merged(replaced: Iterable[Operator], like: Operator, **changes: Any) -> Fused:
    """The operator `like`, with the nodes of all that it replaces and these fields changed, in place of `replaced`."""
    operators = tuple(replaced)
    nodes = tuple(dict.fromkeys(n for o in operators for n in o.nodes))
    return Fused(operators, replace(like, nodes=nodes, **changes))


def fused(
    type: str, anchor: Operator, replaced: Iterable[Operator], inputs: Iterable[Tensor | None], attrs: Attributes = None
) -> Fused:
    """One operator of `type` with the anchor's name and first output in place of `replaced`."""
    fields = {"type": type, "inputs": tuple(inputs), "attrs": attrs or {}, "outputs": anchor.outputs[:1]}
    return merged(replaced, anchor, **fields, version=0)  # the newest definition of the operator, whatever the model's


class Rewriter:
    """A graph while it is rewritten: who makes and who reads a tensor is kept up to date."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.place: dict[Operator, tuple[int, ...]] = {}  # places sort in execution order
        self.types: dict[str, dict[Operator, None]] = defaultdict(dict)
        self.makers: dict[str, Operator] = {}
        self.readers: dict[str, dict[Operator, int]] = defaultdict(dict)  # of a tensor, and how often each reads it
        for i, o in enumerate(graph.operators):
            self._enter(o, (i,))

    def made_by(self, tensor: Tensor | None, *types: str) -> Operator | None:
        """The operator that writes `tensor`, if it is of one of `types` (of any where none are given)."""
        maker = self.makers.get(tensor.name) if tensor is not None else None
        return maker if maker is not None and (not types or maker.type in types) else None

    def users(self, tensor: Tensor) -> tuple[Operator, ...]:
        """The operators that read `tensor`."""
        return tuple(self.readers[tensor.name])

    def only_user(self, tensor: Tensor, *types: str) -> Operator | None:
        """The operator that alone reads `tensor`, and once, if it is of one of `types`; None for graph outputs."""
        readers = self.readers[tensor.name]
        if len(readers) != 1 or tensor.name in self.graph.output_names:
            return None
        ((user, times),) = readers.items()
        return user if times == 1 and (not types or user.type in types) else None

    def of_types(self, types: Iterable[str]) -> list[Operator]:
        """The operators of the given types, in execution order, as they stand now."""
        return sorted((o for type in types for o in self.types[type]), key=self.place.__getitem__)

    def lost(self, change: Fused) -> Operator | None:
        """The first replaced operator that makes something which is still needed after the change."""
        outputs = {t.name for o in change.operators for t in o.outputs}
        needed = {t.name for o in change.operators for t in o.present} | self.graph.output_names
        replaced = set(change.replaced)
        losses = ((o, t) for o in change.replaced for t in o.outputs if t.name not in outputs)
        return next((o for o, t in losses if t.name in needed or not replaced.issuperset(self.users(t))), None)

    def apply(self, change: Fused) -> None:
        """Carry out what a rule answered."""
        at = (min if change.early else max)(self.place[o] for o in change.replaced)
        for o in change.replaced:
            self.forget(o)
        for i, o in enumerate(change.operators):
            self._enter(o, at if len(change.operators) == 1 else (*at, i))

    def result(self, notes: Iterable[Note] = ()) -> Graph:
        """The rewritten graph."""
        operators = tuple(sorted(self.place, key=self.place.__getitem__))
        return replace(self.graph, operators=operators, notes=(*self.graph.notes, *notes))

    def forget(self, op: Operator) -> None:
        """Take an operator out."""
        del self.place[op], self.types[op.type][op]
        for t in op.outputs:
            self.makers.pop(t.name, None)
        for t in op.present:
            self.readers[t.name].pop(op, None)

    def _enter(self, op: Operator, at: tuple[int, ...]) -> None:
        self.place[op] = at
        self.types[op.type][op] = None
        for t in op.outputs:
            self.makers[t.name] = op
        for t in op.present:
            self.readers[t.name][op] = self.readers[t.name].get(op, 0) + 1


def hands_on(op: Operator) -> Tensor | None:
    """What Identity, Dropout outside training, and a Cast to the type its input has already hand on."""
    if op.type not in ("Identity", "Dropout", "Cast"):
        return None
    if op.type == "Dropout":
        training = op.inputs[2] if len(op.inputs) > 2 else None
        off = training is None or (training.stored and not any(training.value or (1,)))
        return op.inputs[0] if len(op.outputs) == 1 and off else None
    if op.type == "Identity":  # behind a loop it can hold more than one run leaves: a sequence that grew
        return op.present[0] if op.present[0].size == op.out.size else None
    return op.present[0] if op.present[0].dtype == op.out.dtype else None


def redirected(graph: Graph, instead: Callable[[Operator], Iterable[Tensor] | None]) -> Graph:
    """Where `instead` names other tensors for an operator's outputs, its readers read those and it leaves.

    What makes an output of the graph stays. `instead` sees operators in order, their inputs redirected already.
    """
    source: dict[str, Tensor] = {}
    operators: list[Operator] = []
    last = graph.output_names
    for o in graph.operators:
        if source and any(t is not None and t.name in source for t in o.inputs):
            o = replace(o, inputs=tuple(source.get(t.name, t) if t is not None else None for t in o.inputs))
        tensors = instead(o) if last.isdisjoint([t.name for t in o.outputs]) else None
        if tensors is None:
            operators.append(o)
        else:
            source.update((t.name, tensor) for t, tensor in zip(o.outputs, tensors, strict=True))
    return replace(graph, operators=tuple(operators)) if source else graph


def folded(graph: Graph, types: Container[str] | None = None) -> Graph:
    """The graph with what operators make of stored tensors alone stored itself. types: of which operators; by default
    of all but random ones and DequantizeLinear.
    """

    def instead(o: Operator) -> tuple[Tensor, ...] | None:
        chosen = o.type not in NEVER_FOLDED | CONTROL if types is None else o.type in types
        constant = chosen and o.present and all(t.stored for t in o.present)
        return tuple([replace(t, kind="weight") for t in o.outputs]) if constant else None

    return redirected(graph, instead)


def without_identities(graph: Graph) -> Graph:
    """Readers of what hands its input on read that input itself."""
    return redirected(graph, lambda o: None if (x := hands_on(o)) is None else (x,))


def optimise(graph: Graph, rules: Rules, level: int, release: Release | None = None) -> Graph:
    """The graph after the rules of each level up to `level` that a release has; None: today's.

    The reasons for every Miss become notes.
    """
    listed = [[f for f in rules.get(stage, ()) if _is_there(f, release)] for stage in range(level + 1)]
    stages = [stage for stage in listed if stage]
    if not stages:
        return graph
    g = Rewriter(without_identities(graph))
    notes: list[Note] = []
    for stage in stages:
        misses: Misses = {}
        for turn in range(ROUNDS):
            changed = False
            misses.clear()
            for f in stage:
                if isinstance(f, Fusion):
                    changed |= _sweep(g, f, misses)
                elif turn == 0 or not getattr(f, "once", False):
                    rewritten = _rewritten(g, f, misses)
                    g, changed = rewritten, changed or rewritten is not g
            if not changed:
                break
        notes += (Note(code, f"{name} did not apply: {why}", tuple(at)) for (code, name, why), at in misses.items())
    return g.result(notes)


def _is_there(rule: object, release: Release | None) -> bool:
    """Whether a release has a rule; what is no rule at all is told later."""
    return not isinstance(rule, Rule) or there(rule.since, rule.until, release)


def _rewritten(g: Rewriter, p: Pass, misses: Misses) -> Rewriter:
    """What a pass makes of the graph; the same rewriter where it changes nothing, or fails."""
    try:
        if not isinstance(p, Pass):
            raise TypeError(f"a {type(p).__name__} is not a rule: make it one with @pattern, @fusion or Pass")
        before = g.result()
        after = p.run(before)
        if not isinstance(after, Graph):
            raise TypeError(f"it answers {type(after).__name__}, not Graph")
        return g if after is before else Rewriter(after)
    except ModelError:  # of a model that no pass can make smaller
        raise
    except Exception as e:
        misses[FAILED, getattr(p, "name", getattr(p, "__name__", repr(p))), _failed(e)] = []
        return g


def _failed(e: Exception) -> str:
    """Why a rule that raises did not apply: a prediction goes on without it."""
    return printable(f"it failed with {type(e).__name__}: {e}")


def _sweep(g: Rewriter, f: Fusion, misses: Misses) -> bool:
    """Try one rule on all its anchors; True where it changed the graph."""
    changed = False
    for op in g.of_types(f.anchors):
        if op not in g.place:
            continue  # the rule has just replaced it
        code = NEAR
        try:
            answer = _answer(g, f, op)
        except Exception as e:
            answer, code = Miss(_failed(e)), FAILED
        if isinstance(answer, Fused):
            g.apply(answer)
            changed = True
        elif answer is not None:
            misses.setdefault((code, f.name, answer.why), []).extend(answer.nodes or op.nodes)
    return changed


def _answer(g: Rewriter, f: Fusion, anchor: Operator) -> Answer:
    """A rule's answer at an anchor; a Miss where the graph would lose a value, or a loop would be taken apart."""
    answer = f.rule(g, anchor)
    if not isinstance(answer, Fused | Miss | None):
        raise TypeError(f"it answers {type(answer).__name__}, not Fused, Miss or None")
    if not isinstance(answer, Fused):
        return answer
    _check(g, answer)
    if (needed := g.lost(answer)) is not None:
        return Miss("an intermediate value has other consumers", needed.nodes)
    if len({o.repeat for o in answer.replaced}) > 1:
        return Miss("part of it runs in a loop, part of it does not", anchor.nodes)
    return answer


def _check(g: Rewriter, change: Fused) -> None:
    """Raise TypeError where a change is not made of operators and tensors, ValueError where the graph lacks a part."""
    for o in (*change.replaced, *change.operators):
        if not isinstance(o, Operator) or not isinstance(o.type, str):
            answer = f"the operator type {o.type!r}" if isinstance(o, Operator) else f"{o!r} for an operator"
            raise TypeError(f"it answers {answer:.100}")
        if odd := [t for t in (*o.inputs, *o.outputs) if not isinstance(t, Tensor | None)]:
            raise TypeError(f"it answers {odd[0]!r:.100} for a tensor of {o.type}")
    if not change.replaced or not all(o in g.place for o in change.replaced):
        raise ValueError("it replaces operators that the graph does not have")

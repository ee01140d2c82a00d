"""What two models differ in on one card: kernels matched by their work, and what each difference costs.

Names say nothing, every exporter has its own: kernels are matched by what they do and where they stand.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import fsum
from typing import Any

import numpy as np

from onnxperf.answer.kernel_timeline import KernelPrediction
from onnxperf.answer.prediction import Prediction
from onnxperf.ground.codec import Document, plain
from onnxperf.latency import family_of
from op_models import Move, Pointwise, Transfer

#: Why two kernels, or a kernel and none, don't take the same time; and how that is said.
CAUSES = {
    "same": "same work and time",
    "slower": "same work, slower in B",
    "faster": "same work, faster in B",
    "changed": "different work in B",
    "added": "only in B",
    "removed": "only in A",
}
ALIKE = 1e-2  # a share of the time: kernels with the same work that differ by less take the same
CELLS = 1 << 25  # of the table that alignment fills, two bytes each
LAYOUT = ("last", "ta", "tb")  # how an operand lies in memory is no other work
FUSED = re.compile("^(Fused|Bias|Skip|Fast|Quick)(?=[A-Z])")  # before the name of an operator that does a little more
LABELS = {"cin": "channels in", "cout": "channels out", "out": "output positions", "stride": "product of strides"}

Key = tuple[Hashable, ...]
Pairs = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Change(Document):
    """A kernel of A and its counterpart in B; None where there is none.

    operator: the class that both belong to; cause: one of CAUSES; what: in what they differ.
    """

    a: KernelPrediction | None
    b: KernelPrediction | None
    operator: str
    cause: str
    what: str = ""

    @property
    def seconds(self) -> float:
        """What B takes longer."""
        return total([self])

    def to_dict(self) -> dict[str, Any]:
        """The change as it stands in the JSON."""
        sides = {name: None if k is None else _named(k) for name, k in (("a", self.a), ("b", self.b))}
        return {"operator": self.operator, **sides, "seconds": self.seconds, "what": self.what}


@dataclass(frozen=True, slots=True)
class Difference(Document):
    """Two predictions under the same terms, and `changes`: every kernel of both, exactly once."""

    a: Prediction
    b: Prediction
    changes: tuple[Change, ...]

    @property
    def seconds(self) -> float:
        """What one run of B takes longer than one of A."""
        return self.b.seconds - self.a.seconds

    @property
    def ratio(self) -> float:
        """Time of B by time of A."""
        return self.b.seconds / self.a.seconds

    @property
    def launch_and_gaps_seconds(self) -> float:
        """What no kernel accounts for: launches, idle time between kernels, and kernels that overlap."""
        return self.seconds - total(self.changes)

    def of(self, *causes: str) -> tuple[Change, ...]:
        """The changes of these causes, those that cost or save most first."""
        return tuple(sorted((c for c in self.changes if c.cause in causes), key=lambda c: -abs(c.seconds)))

    @property
    def groups(self) -> dict[tuple[str, str], tuple[Change, ...]]:
        """What differs by operator and cause, those that cost or save most first."""
        alike: dict[tuple[str, str], list[Change]] = defaultdict(list)
        for c in self.changes:
            if c.cause != "same":
                alike[c.operator, c.cause].append(c)
        ranked = sorted(alike.items(), key=lambda g: -abs(total(g[1])))
        return {key: tuple(changes) for key, changes in ranked}

    def to_dict(self) -> dict[str, Any]:
        """The difference as plain data. All seconds are B less A, but for those of `a` and `b` themselves.

        a, b: {model, batch, seconds, low_seconds, high_seconds, sum_seconds}; gpu, runtime, precision, method: of
        both; seconds, ratio: of the runs; launch_and_gaps_seconds: the part of `seconds` that no kernel accounts for;
        matched: {kernels, seconds} with the same work on both sides, of which slower and faster list those whose time
        differs by more than the card's power limit accounts for; changed: counterparts with other work; added,
        removed: kernels in B or A alone; groups: [{operator, cause, kernels, seconds}]. A listed change is
        {operator, a, b, seconds, what}, a side of it {name, op, nodes, seconds} or null. matched, changed, added,
        removed and launch_and_gaps_seconds add up to seconds.
        """
        s, matched = self.a.scenario, self.of("same", "slower", "faster")
        return {
            "a": _summed(self.a),
            "b": _summed(self.b),
            **plain(s, "gpu", "runtime", "precision", "method"),
            **plain(self, "seconds", "ratio", "launch_and_gaps_seconds"),
            "matched": {"kernels": len(matched), "seconds": total(matched)},
            **{cause: [c.to_dict() for c in self.of(cause)] for cause in CAUSES if cause != "same"},
            "groups": [
                {"operator": operator, "cause": cause, "kernels": len(changes), "seconds": total(changes)}
                for (operator, cause), changes in self.groups.items()
            ],
        }


def total(changes: Iterable[Change]) -> float:
    """What B takes longer in all of these, in seconds, rounded once."""
    sides = [(c.a, c.b) for c in changes]
    return fsum([*(b.seconds for _, b in sides if b), *(-a.seconds for a, _ in sides if a)])


def difference(a: Prediction, b: Prediction) -> Difference:
    """Match the kernels of two runs, and say what every one that differs costs.

    First those with the same work, in the same order and then anywhere; then what is the same layer with another size;
    then what stands between the same neighbours and is of the same class, or does as much; then what is of the same
    class at all. What is left is in one of them alone.
    """
    left, right = ([_trait(k, p.power_factor) for k in p.kernels] for p in (a, b))
    pairs = in_order([x.work for x in left], [x.work for x in right])
    gap_a, gap_b = _gaps([i for i, _ in pairs], len(left)), _gaps([j for _, j in pairs], len(right))
    for key in LOOSER:
        taken_a, taken_b = {i for i, _ in pairs}, {j for _, j in pairs}
        rest_a = [(i, key(x, gap_a[i])) for i, x in enumerate(left) if i not in taken_a]
        rest_b = [(j, key(x, gap_b[j])) for j, x in enumerate(right) if j not in taken_b]
        pairs += anywhere(rest_a, rest_b)
    return Difference(a, b, tuple(_changes(left, right, pairs)))


@dataclass(frozen=True, slots=True)
class _Trait:
    """A kernel and what it is matched by: its class, all of its work, and the layer it is, where it is a product.

    work: class and amount; nominal: its seconds where the card's power limit slows nothing; facts: what is said of it.
    """

    kernel: KernelPrediction
    operator: str
    amount: Key
    layer: Key | None
    nominal: float
    facts: dict[str, Any]

    @property
    def work(self) -> Key:
        return (self.operator, *self.amount)


def _trait(k: KernelPrediction, factor: float) -> _Trait:
    """A kernel's trait, in a run whose kernels the card's power limit slows by that factor."""
    w = k.work
    kind, sizes, type_, fields = type(w.size), w.size._asdict(), k.op.rpartition("::")[2], family_of(w).layer
    name = kind.__name__ if fields else FUSED.sub("", type_)
    does = (value for field, value in sizes.items() if field not in LAYOUT)
    # A bias in a product or a softmax, or a bound of a Clip, is no other work; a whole second operand of an Add is.
    reads = round(w.bytes_read / max(w.bytes_written, 1), 1) if kind in (Pointwise, Move) else 0.0
    layer = (name, *(sizes[field] for field in fields)) if fields else None
    facts = {"operator": type_, **sizes, "type": w.dtype, "pipe": w.pipe, "times": k.repeat, "bytes": w.bytes}
    nominal = k.seconds if kind is Transfer else k.seconds / factor
    return _Trait(k, name, (kind.__name__, *does, w.dtype, k.repeat, reads), layer, nominal, facts)


#: What leftovers are paired by, one after the other; None pairs with nothing.
LOOSER: tuple[Callable[[_Trait, int], Key | None], ...] = (
    lambda x, gap: x.work,
    lambda x, gap: x.layer and (gap, *x.layer),
    lambda x, gap: x.layer,
    lambda x, gap: (gap, x.operator),
    lambda x, gap: (gap, *x.amount),
    lambda x, gap: (x.operator,),
)


def in_order(a: Sequence[Key], b: Sequence[Key]) -> Pairs:
    """A longest common subsequence, as pairs of indices; none where its table would be too large.

    Time and memory grow with the product of the lengths less what both begin and end with. Which of several
    subsequences is taken does not depend on the order of the arguments.
    """
    numbers = {key: n for n, key in enumerate(sorted({*a, *b}))}
    x, y = [numbers[k] for k in a], [numbers[k] for k in b]
    head = next((i for i, (p, q) in enumerate(zip(x, y, strict=False)) if p != q), min(len(x), len(y)))
    ends = zip(reversed(x[head:]), reversed(y[head:]), strict=False)
    tail = next((i for i, (p, q) in enumerate(ends) if p != q), min(len(x), len(y)) - head)
    n, m = len(x) - tail, len(y) - tail
    pairs = [*((i, i) for i in range(head)), *((n + i, m + i) for i in range(tail))]
    if (n - head + 1) * (m - head + 1) > CELLS:
        return pairs
    ours, other = x[head:n], np.array(y[head:m], dtype=np.int64)
    longest = np.zeros((len(ours) + 1, len(other) + 1), dtype=np.uint16)
    for i, number in enumerate(ours):
        longest[i + 1, 1:] = np.maximum.accumulate(np.maximum(longest[i, 1:], longest[i, :-1] + (other == number)))
    i, j = len(ours), len(other)
    while i and j:
        if ours[i - 1] == other[j - 1]:
            i, j = i - 1, j - 1
            pairs.append((head + i, head + j))
        else:  # of two rests that are as long, the one without the larger number: the same where a and b are swapped
            up = (longest[i - 1, j], ours[i - 1]) > (longest[i, j - 1], other[j - 1])
            i, j = (i - 1, j) if up else (i, j - 1)
    return sorted(pairs)


def anywhere(a: Iterable[tuple[int, Key | None]], b: Iterable[tuple[int, Key | None]]) -> Pairs:
    """The first of a key with the first of it, the second with the second."""
    theirs: dict[Key, list[int]] = defaultdict(list)
    for j, key in b:
        if key is not None:
            theirs[key].append(j)
    left = {key: iter(indices) for key, indices in theirs.items()}
    return [(i, j) for i, key in a if key in left for j in islice(left[key], 1)]


def _gaps(anchors: Sequence[int], count: int) -> list[int]:
    """For every index, how many of the anchors stand before it."""
    return [int(n) for n in np.searchsorted(anchors, range(count))]


def _changes(left: Sequence[_Trait], right: Sequence[_Trait], pairs: Pairs) -> list[Change]:
    """Every kernel once, in the order of A, with what is in B alone behind it."""
    partner = dict(pairs)
    met = set(partner.values())
    changes = []
    for i, x in enumerate(left):
        y = right[partner[i]] if i in partner else None
        changes.append(_change(x, y) if y else Change(x.kernel, None, x.operator, "removed"))
    return changes + [Change(None, y.kernel, y.operator, "added") for j, y in enumerate(right) if j not in met]


def _change(x: _Trait, y: _Trait) -> Change:
    if x.work != y.work:
        return Change(x.kernel, y.kernel, max(x.operator, y.operator), "changed", _what(x.facts, y.facts))
    if abs(y.nominal - x.nominal) <= ALIKE * max(x.nominal, y.nominal):
        return Change(x.kernel, y.kernel, x.operator, "same")
    cause = "slower" if y.nominal > x.nominal else "faster"
    return Change(x.kernel, y.kernel, x.operator, cause, _what(x.facts, y.facts))


def _what(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """In what two kernels differ; their bytes where there is nothing else."""
    facts = [f for f in dict.fromkeys((*a, *b)) if f in a and f in b and a[f] != b[f]]
    return ", ".join(f"{LABELS.get(f, f)} {a[f]} -> {b[f]}" for f in facts if f != "bytes" or facts == ["bytes"])


def _named(k: KernelPrediction) -> dict[str, Any]:
    return {"name": k.name, "op": k.op, "nodes": list(k.nodes), "seconds": k.seconds}


def _summed(p: Prediction) -> dict[str, Any]:
    times = {name: getattr(p, name) for name in ("seconds", "low_seconds", "high_seconds", "sum_seconds")}
    return {"model": p.scenario.model, "batch": p.scenario.batch, **times}

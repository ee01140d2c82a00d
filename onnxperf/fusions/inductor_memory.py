"""Where Inductor has each tensor while it lowers a graph, and the loops that keep tensors in memory.

A result is computed where it is read, until it has to lie in memory: a library's kernel reads it, it is an output,
several operators read it and it takes many reads itself, or it has more than some (graph.py, `run_node`; ir.py,
`StorageBox` and `ConcatKernel`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from onnxperf.fusions.inductor_loops import (
    Box,
    Key,
    Loop,
    Read,
    View,
    distinct,
    in_order,
    keys,
    merged,
    padded,
    preferred,
    splits,
    turned_last,
)
from onnxperf.fusions.torch_strides import Shape, Strides, channels_last, contiguous, dense
from onnxperf.graph import Graph
from onnxperf.passes.parts import CONTIGUOUS
from op_models import BITS, Operator, Tensor

#: Of torch/_inductor/config.py: what several operators read lies in memory from more than so many reads, and all else
#: from more than `MOST_READS` reads or so many operations on.
REUSED_READS, MOST_READS, MOST_OPERATIONS = 4, 8, 30
SIZES = frozenset({"Shape", "Size"})
HALF = frozenset({"float16", "bfloat16"})
REDUCTIONS = frozenset({
    "ArgMax", "ArgMin", "GlobalAveragePool", "GlobalMaxPool", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp",
    "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
})  # fmt: skip
#: Operators that models let change their operand in place, as `nn.ReLU(inplace=True)` does.
CHANGED = frozenset({"Clip", "Relu"})


def number(t: Tensor) -> bool:
    """Whether a tensor is a number in the code that is made, not memory."""
    return t.size == 1 and (t.stored or t.value is not None)


def parts_of(views: Iterable[View], o: Operator) -> tuple[Operator, ...]:
    """The operators that are computed with an operator, because they are computed where they are read."""
    return tuple(dict.fromkeys((*(p for v in views if not v.box.kept for p in v.box.parts), o)))


def copied(t: Tensor, x: View, o: Operator) -> Box:
    """A copy of what a view shows, as an operator reads it: one operation beside those of what is not in memory."""
    operations, flops = (0, 0.0) if x.box.kept else (x.box.operations, x.box.flops)
    return Box(t, x.loads(), operations + 1, flops, parts_of([x], o))


@dataclass(frozen=True, slots=True)
class Ways:
    """What releases of Inductor do differently.

    turns: in the end, loops go in another order where that lets them fuse (`loop_ordering_after_fusion`); reindexes:
    elementwise loops, however they are tiled, go over rows as sums do (`loop_reindexing_after_fusion`); adds_in_half:
    a bias in half precision is added by the library's product, whoever reads the sum; keeps_last: where convolutions
    run in channels_last, so lies every result of four axes that is kept because it takes many reads.
    """

    turns: bool = True
    reindexes: bool = True
    adds_in_half: bool = True
    keeps_last: bool = True


@dataclass(slots=True)
class Memory:
    """The loops and calls of libraries so far, and where each tensor is.

    all_last: all convolutions run in channels_last; inputs_last: images and weights lie so already. in_loops: the types
    of operators that are no library's; twice: of those whose decomposition reads an operand twice, the position of
    that. lying: how tensors of another graph lie. eager_last: names of tensors that are channels_last in eager PyTorch.
    """

    graph: Graph
    all_last: bool
    inputs_last: bool
    ways: Ways
    in_loops: frozenset[str]
    twice: Mapping[str, int]
    lying: Mapping[str, Strides] = field(default_factory=dict)
    items: list[Loop | Operator] = field(default_factory=list)
    seen: dict[str, View] = field(default_factory=dict)
    readers: dict[str, list[Operator]] = field(default_factory=lambda: defaultdict(list))
    clones: dict[str, View] = field(default_factory=dict)
    eager_last: set[str] = field(default_factory=set)
    gapless: set[str] = field(default_factory=set)
    copies: int = 0

    def __post_init__(self) -> None:
        if self.inputs_last:
            self.eager_last |= {t.name for t in self.graph.inputs if t.rank == 4}
        for o in self.graph.operators:
            for t in o.present if o.type not in SIZES else ():
                self.readers[t.name].append(o)
            if o.outputs and self._is_last_in_eager(o):
                self.eager_last |= {t.name for t in o.outputs}
        for o in reversed(self.graph.operators):  # `mark_nodes_dislike_padding`
            if "Conv" in o.type or (o.type not in REDUCTIONS and any(t.name in self.gapless for t in o.outputs)):
                self.gapless |= {t.name for t in o.present}
        self.gapless |= self.graph.output_names

    def _is_last_in_eager(self, o: Operator) -> bool:
        """Whether PyTorch would have an operator's images in channels_last without compiling: as an operand of the same
        shape lies, else the first.
        """
        if o.out.rank != 4 or not o.present:
            return False
        if o.type == "Transpose":
            return tuple(o.attrs.get("perm", ())) == (0, 3, 1, 2)
        return next((t for t in o.present if t.shape == o.out.shape), o.present[0]).name in self.eager_last

    def at(self, t: Tensor) -> View:
        """A tensor; one that no operator made lies in memory."""
        if t.name not in self.seen:
            usual = channels_last if self.inputs_last and t.rank == 4 else contiguous
            self.lies(t, self.lying.get(t.name) or usual(t.shape))
        return self.seen[t.name].reshaped(t.shape)

    def eager_strides(self, t: Tensor) -> Strides | None:
        """The strides of a tensor in eager PyTorch, where images that Inductor turns to channels_last are in NCHW."""
        seen = self.at(t)
        box = seen.box
        turned = box.strides is not None and box.tensor.rank == 4 and box.strides == channels_last(box.tensor.shape)
        if not turned or box.tensor.name in self.eager_last:
            return seen.eager
        return replace(seen, box=Box(box.tensor, strides=contiguous(box.tensor.shape))).strides

    def lies(self, t: Tensor, strides: Strides) -> View:
        """A tensor that lies in memory from now on."""
        self.seen[t.name] = View(Box(t, strides=strides), t.shape)
        return self.seen[t.name]

    def put(self, t: Tensor, seen: View, users: int = 0) -> None:
        """Where a tensor is from now on; what it shows is kept where many read it and it takes much to compute.

        users: the operators that read it once decomposed, 0: as the graph says.
        """
        self.seen[t.name] = seen
        box, users = seen.box, users or self._users(t)
        if box.kept:
            return
        reads, large = len(box.reads), box.operations + len(box.reads) > MOST_OPERATIONS
        reused = users > 1 and (reads > REUSED_READS or large)
        by_library = any(o.type not in self.in_loops for o in self.readers[t.name])
        for_library = users > 1 and reads > 1 and by_library
        if t.name in self.graph.output_names and reads and not by_library:
            self.keep(seen, self.all_last, eager=not seen.moves)
        elif reused or for_library or reads > MOST_READS or large:
            last = self.all_last and (self.ways.keeps_last or not box.walks)
            in_place = not self.ways.keeps_last and self._is_cut_for_convolutions(t)
            self.keep(seen, last, in_place, eager=by_library and not seen.moves)
            box.flexible = not (self.all_last and len(seen.shape) == 4)

    def _users(self, t: Tensor) -> int:
        readers = self.readers[t.name]
        wide = t.dtype not in HALF
        again = sum(wide and o.type in self.twice and o.present[self.twice[o.type]].name == t.name for o in readers)
        maker = self.graph.made_by(t)
        if maker is not None and maker.type in CHANGED:  # of which each view is made anew
            again += sum(len(o.outputs) - 1 for o in readers if o.type == "Split")
        return len(readers) + again + (t.name in self.graph.output_names)

    def _is_cut_for_convolutions(self, t: Tensor) -> bool:
        """Whether convolutions read parts of a tensor's channels."""
        parts = (x for o in self.readers[t.name] if o.type in ("Slice", "Split") for x in o.outputs)
        images = self.all_last and t.name not in self.eager_last
        return images and any(o.type == "Conv" for x in parts for o in self.readers[x.name])

    def widened(self, o: Operator, i: int = 0) -> View:
        """An operand; half precision is widened before a decomposition reads it twice."""
        x = o.present[i]
        seen = self.at(x)
        if self.twice.get(o.type) != i or x.dtype not in HALF:
            return seen
        wide = replace(x, name=f"{o.name}#float32", dtype="float32", kind="activation", value=None)
        self.put(wide, View(copied(wide, seen, o), wide.shape), 2)
        return self.seen[wide.name]

    def clone(self, of: Tensor, o: Operator) -> View:
        """A copy of a tensor, which its readers compute; each tensor has one."""
        if of.name not in self.clones:
            x = self.at(of)
            t = replace(of, name=f"{o.name}#clone", shape=x.shape, kind="activation", value=None)
            self.clones[of.name] = View(copied(t, x, o), x.shape)
            self.seen[t.name] = self.clones[of.name]
        return self.clones[of.name]

    def computed(self, o: Operator, views: Sequence[View], reads: Iterable[Read], times: int, operations: int) -> None:
        """An operator's result, from `times` elements of each view, by so many operations beside theirs."""
        out = o.out
        inside = [v.box for v in {id(v.box): v for v in views if not v.box.kept}.values()]
        flops = operations + times * sum(b.flops * min(b.tensor.size / max(out.size, 1), 1) for b in inside)
        all_operations = operations + times * sum(b.operations for b in inside)
        box = Box(out, tuple(dict.fromkeys(reads)), all_operations, flops, parts_of(views, o))
        lie = (v.eager for v in views if v.shape == out.shape)
        like = next((dense(out.shape, s) for s in lie if s and all(s)), None)
        box.like = contiguous(out.shape) if CONTIGUOUS in o.attrs else like
        self.put(out, View(box, out.shape))

    def keep(self, seen: View, last: bool = False, in_place: bool = False, eager: bool = False) -> None:
        """Write what a view shows to memory: so that the view is channels_last if `last`, contiguous if a library reads
        it `in_place` through views, as PyTorch would have it if `eager`, else in the order of what it reads.
        """
        box, shape = seen.box, seen.box.tensor.shape
        if box.kept:
            return
        turned = turned_last(seen) if last and len(seen.shape) == 4 else None
        usual = (box.like if eager else None) or box.natural
        strides = turned or self.with_gaps(box.tensor, contiguous(shape) if in_place else usual)
        self.write(box, box.reads, strides, 0, preferred(shape, [strides, *box.walks]))

    def with_gaps(self, t: Tensor, strides: Strides) -> Strides:
        """Dense strides of a tensor that is kept, with the gaps that it gets where no convolution needs it."""
        return strides if t.name in self.gapless else padded(t.shape, strides, BITS[t.dtype])

    def write(self, box: Box, reads: Iterable[Read], strides: Strides, offset: int, order: Sequence[int]) -> None:
        """The loop that writes a box to memory."""
        t, walks = box.tensor, tuple(reads)
        box.strides, box.offset = strides, offset
        loop = Loop(t.size, 1, {}, {}, box.flops * t.size, box.parts, t, True, t.shape, (), walks, (strides, offset))
        self.items.append(loop.turned(tuple(order)))

    def statistics(
        self, o: Operator, x: View, axes: Sequence[int], names: Sequence[str], after: bool = False
    ) -> list[View]:
        """Kept results of one reduction along axes for each name, with those axes of size 1; after: each needs the one
        before, while mean and variance are made together (Welford).
        """
        shape, results = x.shape, list[View]()
        small = tuple(1 if i in axes else d for i, d in enumerate(shape))
        rows, width, parts = prod(small), prod(shape[i] for i in axes), parts_of([x], o)
        flops = prod(shape) + (0.0 if x.box.kept else x.box.flops * x.box.tensor.size)
        walks = [r.strides for r in x.loads() if r.strides is not None]
        lie = in_order(small, preferred(small, [tuple(0 if i in axes else s for i, s in enumerate(w)) for w in walks]))
        order = preferred(shape, [tuple(0 if i in axes else s for i, s in enumerate(lie)), *walks])
        order = [i for i in order if i not in axes] + [i for i in order if i in axes]
        whole = [w for w in walks if distinct(shape, w) == prod(shape)]
        unknown = len(walks) < len(x.loads()) or not walks
        whole = whole or (walks if unknown else [])
        inside = 2 * sum(any(w[i] == 1 for i in axes) for w in whole) > len(whole) or not whole
        inner = [shape[i] for i in axes if shape[i] > 1][1:]
        blocks = [prod(inner[i:]) for i in range(len(inner))]
        loads = x.loads()
        read = keys(loads, shape, order)
        first = Loop(rows, width, read, {}, flops, parts, o.out, inside, shape, tuple(order), loads, (lie, 0))
        last = self._split(o, first, len(names) > 1 and not after, blocks) if whole or unknown else first
        for name in names:
            t = replace(o.out, name=f"{o.out.name}{name}", dtype="float32" if name else o.out.dtype, shape=small)
            before = (r for s in results if after and last is first for r in s.expanded(shape).loads())
            read = {**last.reads, **keys(before, shape, order)}
            results.append(self.lies(t, lie))
            self.items.append(replace(last, reads=read, writes={(t.name, merged([(rows, 1)])): rows}, out=t))
        return results

    def _split(self, o: Operator, whole: Loop, together: bool, blocks: Sequence[int]) -> Loop:
        """The loop over rows, or over the results of their parts where they are split. together: three results for each
        part, of mean and variance, whose own parts are split again; blocks: so many elements of a row lie behind each
        of its axes. A part goes through a row as the whole does where it is so many, or the row is one axis.
        """
        last, stage = whole, 0
        while (split := splits(last.rows, last.width, last.inside)) > 1 and (together or not stage):
            partials: dict[tuple[str, Key], int] = {}
            even = not (last.width % split or together) and (not blocks or last.width // split in blocks)
            for i in range(3 if together else 1):
                t = replace(o.out, name=f"{o.out.name}#part{stage}.{i}", dtype="float32", shape=(last.rows, split))
                self.lies(t, contiguous(t.shape))
                apart = {(b, key if even else (*key, (split, 0))): n for (b, key), n in last.reads.items()}
                key = ((t.size, 1),)
                part = replace(last, rows=t.size, width=-(-last.width // split), reads=apart, out=t, order=())
                self.items.append(replace(part, writes={(t.name, key): t.size}))
                partials[t.name, key] = t.size
            last, stage = Loop(whole.rows, split, partials, {}, 0.0, (o,), o.out, not together), stage + 1
        return last

    def as_read(
        self, t: Tensor, o: Operator | None, fits: Callable[[Shape, Strides], bool],
        wanted: Callable[[Shape], Strides] = contiguous,
    ) -> Tensor:  # fmt: skip
        """A tensor as a library reads it for an operator: kept, as PyTorch would have it where the library reads it
        through views (`convert_to_reinterpret_view`), and copied where it does not lie as that takes it.
        """
        seen = self.at(t)
        box, apart = seen.box, bool(seen.moves)
        last = wanted is channels_last and (not apart or box.tensor.name in self.eager_last)
        self.keep(View(box, box.tensor.shape) if apart else seen, last, in_place=apart)
        strides, box.flexible = seen.strides, False
        if strides is not None and fits(seen.shape, strides):
            return replace(t, name=box.tensor.name)
        self.copies += 1
        copy = replace(t, name=f"{t.name}#copy{self.copies}", kind="activation", value=None)
        maker = self.graph.made_by(t) or o
        box = Box(copy, seen.loads(), 1, 0.0, (maker,) if maker is not None else ())
        lie = wanted(copy.shape) if t.name in self.gapless else self.with_gaps(copy, wanted(copy.shape))
        self.seen[copy.name] = View(box, copy.shape)
        self.write(box, box.reads, lie, 0, preferred(copy.shape, [lie, *box.walks]))
        return copy

    @property
    def buffers(self) -> dict[str, Tensor]:
        """What lies in memory, by name."""
        return {v.box.tensor.name: v.box.tensor for v in self.seen.values() if v.box.kept}

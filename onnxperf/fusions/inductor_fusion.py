"""Which of Inductor's loops share a kernel: torch/_inductor/scheduler.py (`fuse_nodes_once`, `score_fusion_memory`,
`can_fuse_vertical`) and codegen/simd.py (`can_fuse`) of PyTorch 2.4 to 2.13.

Pairs that read or write the same elements of a buffer at the same time are tried from the most shared bytes down. Loops
of the same length are fused, a loop and the sums over it, sums along the same axes; one that reads what another writes
only where it reads each element as that writes it, and none where something in between has to run by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from onnxperf.fusions.inductor_loops import Key, Loop, Tile
from op_models import BITS, Operator, Tensor

#: Loops of a kernel (config.max_fusion_size), items between two groups that fuse, bytes that loops have to share where
#: neither reads the other (config.score_fusion_memory_threshold), and how often all pairs are tried.
MOST_LOOPS, MOST_DISTANCE, LEAST_SHARED, ROUNDS = 64, 64, 10, 10


@dataclass(slots=True)
class Group:
    """Loops that share a kernel, or a library's call: bits of the items, and of all that must have run before."""

    loops: list[Loop]
    items: int
    before: int
    first: int
    last: int
    call: Operator | None = None
    reads: dict[tuple[str, Key], int] = field(default_factory=dict)  # bytes
    writes: dict[tuple[str, Key], int] = field(default_factory=dict)
    reduces: bool = field(init=False)
    rows: int = field(init=False)  # of its reductions, else of its first loop
    width: int = field(init=False)

    def __post_init__(self) -> None:
        sums = [loop for loop in self.loops if loop.reduces]
        self.reduces = bool(sums)
        self.rows = max((loop.rows for loop in sums or self.loops[:1]), default=0)
        self.width = max((loop.width for loop in self.loops), default=0)


def fused(items: Sequence[Loop | Operator], buffers: Mapping[str, Tensor], turns: bool, reindexes: bool) -> list[Group]:
    """Kernels and calls in an order in which they can run. turns, reindexes: see `Ways`."""
    groups = _groups(items, buffers)
    of = dict(enumerate(groups))
    for turned in (False, True)[: 1 + turns]:
        for _ in range(ROUNDS):
            if not _round(groups, of, buffers, turned, reindexes):
                break
            groups = list({id(g): g for g in of.values()}.values())
    return _sorted(groups, of)


def _groups(items: Sequence[Loop | Operator], buffers: Mapping[str, Tensor]) -> list[Group]:
    """Each item by itself, with all that it needs."""
    makers: dict[str, int] = defaultdict(int)
    closure: list[int] = []
    groups = []
    for i, item in enumerate(items):
        names = {b for b, _ in item.reads} if isinstance(item, Loop) else {t.name for t in item.present}
        needs = 0
        for name in names:
            needs |= makers[name]
        before, rest = needs, needs
        while rest:
            j = rest.bit_length() - 1
            before |= closure[j]
            rest &= ~(1 << j)
        closure.append(before)
        for t in (item.out,) if isinstance(item, Loop) else item.outputs:
            makers[t.name] |= 1 << i
        if isinstance(item, Loop):
            reads, writes = _bytes(item.reads, buffers), _bytes(item.writes, buffers)
            groups.append(Group([item], 1 << i, before, i, i, None, reads, writes))
        else:
            groups.append(Group([], 1 << i, before, i, i, item))
    return groups


def _round(
    groups: Sequence[Group], of: dict[int, Group], buffers: Mapping[str, Tensor], turned: bool, reindexes: bool
) -> bool:
    """Fuse pairs, those that share most first; whether any was."""
    sharing: dict[str, list[Group]] = defaultdict(list)
    for g in groups:
        if g.call is None:
            for buffer in dict.fromkeys(b for b, _ in (*g.reads, *g.writes)):
                sharing[buffer].append(g)
    pairs: dict[tuple[int, int], tuple[bool, int, int]] = {}
    for near in sharing.values():
        for i, a in enumerate(near):
            for b in near[i + 1 : i + 1 + MOST_DISTANCE]:
                if (a.first, b.first) not in pairs:
                    shared = _shared(*(_in_one_order(a, b, buffers) if turned else (a, b)), turned)
                    pairs[a.first, b.first] = (a.reduces == b.reduces and shared > 0, shared, -_distance(a, b))
    changed, span = False, max((g.last - g.first for g in groups), default=0)
    for (i, j), (_, shared, _) in sorted(pairs.items(), key=lambda p: p[1], reverse=True):
        a, b = of[i], of[j]
        if a is b or not shared:
            continue
        a, b = _in_one_order(a, b, buffers) if turned else (a, b)
        if _fits(a, b, turned, reindexes) and not _circle(a, b, of, span):
            span = max(span, _merge(a, b, of))
            changed = True
    return changed


def _shared(a: Group, b: Group, turned: bool) -> int:
    """Bytes that both read or write at the same time, as they are, else, if `turned`, in another order of one loop."""
    few, many = sorted((_touched(a), _touched(b)), key=len)
    same = sum(n for k, n in few.items() if k in many)
    return same or (_turned(a, b) or _turned(b, a) if turned else 0)


def _turned(a: Group, b: Group) -> int:
    """Bytes that elementwise loops write and others read in another order, all of them, so that the first can go in
    that order too: `reorder_loops_by_dep_pair`.
    """
    if a.reduces:
        return 0
    wrote = {buffer: n for (buffer, _), n in a.writes.items()}
    return sum(n for (buffer, key), n in b.reads.items() if wrote.get(buffer) == n and _strided(key))


def _in_one_order(a: Group, b: Group, buffers: Mapping[str, Tensor]) -> tuple[Group, Group]:
    """Two groups, of which elementwise loops go over their axes as the sums of the other do, where they share nothing
    as they are: `reorder_loops_by_dep_pair`.
    """
    if a.reduces == b.reduces or a.call or b.call or _touched(a).keys() & _touched(b).keys():
        return a, b
    sums, each = (a, b) if a.reduces else (b, a)
    first = next(loop for loop in sums.loops if loop.reduces)
    if not first.order or any(loop.domain != first.domain for loop in each.loops):
        return a, b
    loops = [loop.turned(first.order) for loop in each.loops]
    new = Group(loops, each.items, each.before, each.first, each.last)
    for loop in loops:
        new.reads |= _bytes(loop.reads, buffers)
        new.writes |= _bytes(loop.writes, buffers)
    return (a, new) if a.reduces else (new, b)


def _bytes(part: Mapping[tuple[str, Key], int], buffers: Mapping[str, Tensor]) -> dict[tuple[str, Key], int]:
    """Bytes instead of elements."""
    return {k: n * BITS[buffers[k[0]].dtype] // 8 for k, n in part.items()}


def _strided(key: Key) -> bool:
    """Whether a walk goes in strides, over rows that are not split."""
    return all(size and stride for size, stride in key)


def _distance(a: Group, b: Group) -> int:
    return max(abs(a.first - b.last), abs(b.first - a.last))


def _touched(g: Group) -> dict[tuple[str, Key], int]:
    return {**g.reads, **g.writes}


def _fits(a: Group, b: Group, turned: bool, reindexes: bool) -> bool:
    """Whether two groups can be one kernel."""
    if len(a.loops) + len(b.loops) > MOST_LOOPS:
        return False
    others = []
    if b.items & a.before:
        a, b = b, a
    if a.items & b.before:  # b reads what a writes, or what was made of it
        written: dict[str, set[Key]] = defaultdict(set)
        for buffer, key in a.writes:
            written[buffer].add(key)
        others = [(buffer, key) for buffer, key in b.reads if buffer in written and key not in written[buffer]]
        if others and (not turned or len(others) > 1 or not _turned(a, b)):
            return False
    elif _distance(a, b) > MOST_DISTANCE or _shared(a, b, turned) < LEAST_SHARED:
        return False
    if a.reduces and b.reduces:
        return (a.rows, a.width) == (b.rows, b.width)
    if not a.reduces and not b.reduces:
        return a.rows == b.rows and _in_same_tiles(_as_turned(a, b) if others else a.loops, b.loops)
    sums, each = (a, b) if a.reduces else (b, a)
    if each.rows != sums.rows * sums.width:
        return each.rows == sums.rows
    return reindexes or _tile(each.loops) in (None, (sums.rows, sums.width))


def _tile(loops: Sequence[Loop]) -> Tile | None:
    """Into which two axes elementwise loops are tiled, so that what is read or written across lies next to each other
    within a tile: that which most elements ask for, of those that all loops can take; None where none asks
    (`select_tiling`).
    """
    asked: dict[str, tuple[int, Tile]] = {}
    for loop in loops:
        for buffer, score, tile in loop.tiles:
            asked.setdefault(buffer, (score, tile))
    ranked = sorted(asked.values(), key=lambda a: -a[0])
    return next((tile for _, tile in ranked if all(loop.divides(tile) for loop in loops)), None)


def _in_same_tiles(some: Sequence[Loop], others: Sequence[Loop]) -> bool:
    """Whether elementwise loops that are tiled stay so with others (`tiling_prevents_pointwise_fusion`)."""
    first, second = _tile(some), _tile(others)
    if first is None and second is None:
        return True
    return _tile([*some, *others]) == (first or second) and (first is None or second is None or first == second)


def _as_turned(a: Group, b: Group) -> list[Loop]:
    """The elementwise loops of a group in the order in which the other group reads what they write, where it reads all
    of it by axes (`decide_loop_order_to_match`).
    """
    makers = {loop.out.name: loop for loop in a.loops}
    for reader in b.loops:
        for r in reader.walks:
            if (maker := makers.get(r.buffer)) is None or r.strides is None:
                continue
            axes = {stride: i for i, stride in enumerate(maker.lie[0]) if maker.domain[i] > 1}
            order = tuple(axes.get(r.strides[i], -1) for i in reader.order if reader.domain[i] > 1)
            if sorted(order) == sorted(axes.values()):
                order += tuple(i for i, size in enumerate(maker.domain) if size == 1)
                return [loop.turned(order) if loop.domain == maker.domain else loop for loop in a.loops]
    return a.loops


def _circle(a: Group, b: Group, of: dict[int, Group], span: int) -> bool:
    """Whether something outside of both needs one of them and is needed by the other. span: the most items from the
    first to the last of a group. An item needs earlier ones alone, so that what needs either group has its last item
    behind the first of both, and each group on the way to it a last item at most `span` before that.
    """
    both = a.items | b.items
    least = max(min(a.first, b.first) - 2 * span, 0)
    rest = ((a.before | b.before) & ~both) >> least << least
    checked = 0
    while rest:
        i = rest.bit_length() - 1
        g = of[i]
        if g.before & both:
            return True
        checked |= g.items
        if len(g.loops) > 1:
            rest |= g.before >> least << least
        rest &= ~checked
    return False


def _merge(a: Group, b: Group, of: dict[int, Group]) -> int:
    """Make two groups one; the items from its first to its last."""
    first, second = (a, b) if a.first < b.first else (b, a)
    new = Group(
        [*first.loops, *second.loops], a.items | b.items, (a.before | b.before) & ~(a.items | b.items), first.first,
        max(a.last, b.last), None, {**a.reads, **b.reads}, {**a.writes, **b.writes},
    )  # fmt: skip
    rest = new.items
    while rest:
        of[rest.bit_length() - 1] = new
        rest ^= 1 << (rest.bit_length() - 1)
    return new.last - new.first


def _sorted(groups: Sequence[Group], of: Mapping[int, Group]) -> list[Group]:
    """Each group behind all that it needs, and as late as its last item was."""
    order: list[Group] = []
    done = 0

    def visit(g: Group) -> None:
        nonlocal done
        waiting = [g]
        while waiting:
            last = waiting[-1]
            if last.items & done:
                waiting.pop()
            elif rest := last.before & ~done:
                waiting.append(of[(rest & -rest).bit_length() - 1])
            else:
                order.append(waiting.pop())
                done |= last.items

    for g in sorted(groups, key=lambda g: g.last):
        visit(g)
    return order


def apart(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Why loops that read what other loops write have a kernel of their own: the reason, with the nodes that write."""
    makers = {b: g for g in groups if g.call is None for b, _ in g.writes}
    why: dict[str, list[str]] = defaultdict(list)
    for g in groups:
        for buffer, key in g.reads if g.call is None else ():
            maker = makers.get(buffer)
            if maker is None or maker is g:
                continue
            if maker.reduces and g.reduces:
                reason = "a reduction reads the result of another one"
            elif key not in {k for b, k in maker.writes if b == buffer}:
                reason = "elements are read in another order than they are written in, or at other places"
            else:
                reason = "what is between them has to run by itself, or their sizes differ"
            why[reason] += maker.loops[-1].parts[-1].nodes[:1]
    return {reason: list(dict.fromkeys(nodes)) for reason, nodes in why.items()}


def with_products(groups: Sequence[Group], buffers: Mapping[str, Tensor], outputs: frozenset[str]) -> list[Group]:
    """Products take in the elementwise loops that alone read them, as Triton's templates do (`max_autotune`): those of
    one more operand of the result's size at most. A convolution of one tap is such a product.
    """
    readers: dict[str, list[Group]] = defaultdict(list)
    for g in groups:
        for name in {b for b, _ in g.reads} if g.call is None else {t.name for t in g.call.present}:
            readers[name].append(g)
    instead: dict[int, list[Group]] = {}
    for g in groups:
        if g.call is None or not _is_product(g.call) or g.call.out.name in outputs:
            continue
        alone = readers[g.call.out.name]
        if len(alone) != 1 or alone[0].items in instead:
            continue
        outside = {b for b, _ in alone[0].writes if b in outputs or any(r is not alone[0] for r in readers[b])}
        if (call := _with_loops(g.call, alone[0], buffers, outside)) is not None:
            instead |= {g.items: [], alone[0].items: [replace(alone[0], loops=[], call=call)]}
    return [new for g in groups for new in instead.get(g.items, [g])]


def _is_product(o: Operator) -> bool:
    taps = (
        set(o.present[1].shape[2:]) | {*o.attrs.get("strides", ()), o.attrs.get("group", 1)}
        if o.type == "Conv"
        else {1}
    )
    return o.type in ("MatMul", "Gemm", "Conv") and taps == {1}


def _with_loops(o: Operator, g: Group, buffers: Mapping[str, Tensor], outside: set[str]) -> Operator | None:
    """The product with the loops that read it, None where a template has no place for them. outside: buffers of theirs
    that others read.
    """
    if g.call is not None or g.reduces or g.rows != o.out.size or len(outside) != 1:
        return None
    inside = {o.out.name, *(b for b, _ in g.writes)}
    wide = {b for loop in g.loops for (b, _), n in loop.reads.items() if b not in inside and 2 * n > o.out.size}
    if len(wide) > 1 or {key for b, key in g.reads if b == o.out.name} != {((o.out.size, 1),)}:
        return None
    residual = [replace(o.out, name=b, dtype=buffers[b].dtype) for b in wide]
    kind = "FusedConv" if o.type == "Conv" else "FusedMatMulActivation"
    inputs = (*(*o.inputs, None)[:3], *residual) if residual else o.inputs
    (out,) = (buffers[b] for b in outside)
    attrs = {**o.attrs, "flops_before": int(sum(loop.flops for loop in g.loops))}
    nodes = dict.fromkeys((*o.nodes, *(n for loop in g.loops for part in loop.parts for n in part.nodes)))
    first = replace(o, type=f"com.microsoft::{kind}", version=0, inputs=inputs, attrs=attrs)
    return replace(first, outputs=(replace(out, shape=o.out.shape),), nodes=tuple(nodes))

"""What a run needs of the card's memory: weights, the most activations alive at once, workspace, and the allocator.

Allocators take memory from the driver in large pieces and keep it, so that a process holds more than its tensors
fill. That surplus shows only in what nvidia-smi prints: both allocators ask for exact pieces when the card is nearly
full, so a model fits where its tensors and CUDA's context do.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from onnxperf.graph import Graph
from onnxperf.passes.tape import HELD
from op_models import Tensor, shared_caches

ALIGNMENT = 256  # what CUDA allocators round to
MB = 1 << 20
SHARING = frozenset({"SequenceInsert", "SequenceErase"})  # the elements that stay are the old sequence's


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the device. Inputs and outputs count as activations.

    capacity_bytes: what the driver offers (`Device.usable_bytes`); reserved_bytes: what the process holds of it, with
    the context and what its allocator took and does not fill; host_bytes: tensors that copies and operators on the host
    keep in its memory; context_bytes: CUDA's context.
    """

    weights_bytes: int
    activations_bytes: int
    workspace_bytes: int
    capacity_bytes: int
    reserved_bytes: int
    host_bytes: int
    context_bytes: int

    @property
    def total_bytes(self) -> int:
        """Weights, activations and workspace together."""
        return self.weights_bytes + self.activations_bytes + self.workspace_bytes

    @property
    def as_requested_bytes(self) -> int:
        """What a process would hold whose arena takes regions of the sizes asked for (kSameAsRequested): activations
        once as the small blocks of the first run, once as the one block of later ones; without what fragments waste.
        """
        return self.total_bytes + self.activations_bytes + self.context_bytes

    @property
    def fits(self) -> bool:
        """True where the memory that the driver offers holds the total and the context."""
        return self.total_bytes + self.context_bytes <= self.capacity_bytes


def powers_of_two(sizes: Iterable[int], growing: Iterable[int] = (), limit: int = 1024 * MB) -> int:
    """Bytes that ONNX Runtime's arena takes from the driver for blocks that are never freed, in this order, and then
    for two runs that need the blocks of `growing` at once.

    A block goes to the smallest free chunk that holds it. Where none does, the arena takes a region: of 1 MB at first,
    and each time of twice as much, up to the limit; for a larger block the size is doubled until it fits. What the
    block leaves of its chunk becomes a free one if that is half of the chunk or 128 MB at least (bfc_arena.cc,
    kNextPowerOfTwo). The first run takes many small blocks, which fill what is free and then one region after another;
    the second takes one block for all activations, as the first one's pattern of them says (enable_mem_pattern), which
    seldom fits into one of those regions.
    """
    taken, step, kept = _regions(tuple(sizes), limit)
    free, blocks = [*kept], [_rounded(s, ALIGNMENT) for s in growing if s]
    missing = sum(blocks) - sum(free)
    while missing > 0 and sum(blocks) > max(free, default=0):
        regions = 1 if step < limit or sum(blocks) <= step else -(-missing // step)
        taken, missing = taken + regions * step, missing - regions * step
        for _ in blocks[:regions]:  # no more of them can be of use
            insort(free, step)
        step = min(2 * step, limit)
    return _extended(taken, step, free, blocks, limit)[0]


@lru_cache(maxsize=8)  # the weights of a model are the same at all batches and on all cards
def _regions(sizes: tuple[int, ...], limit: int) -> tuple[int, int, tuple[int, ...]]:
    """The bytes that the arena of `powers_of_two` has taken for these blocks, the size of the next region, and the free
    chunks.
    """
    free = list[int]()
    taken, step = _extended(0, MB, free, (_rounded(s, ALIGNMENT) for s in sizes if s), limit)
    return taken, step, tuple(free)


def _extended(taken: int, step: int, free: list[int], blocks: Iterable[int], limit: int) -> tuple[int, int]:
    """The bytes taken and the size of the next region after these blocks, whose chunks are taken from `free`."""
    for size in blocks:
        if (at := bisect_left(free, size)) < len(free):
            room = free.pop(at)
        else:
            room = step
            while room < size:
                room *= 2
            taken, step = taken + room, room if room > step else min(2 * step, limit)
        if room >= 2 * size or room - size >= 128 * MB:
            insort(free, room - size)
    return taken, step


def doubling(sizes: Iterable[int], growing: Iterable[int] = ()) -> int:
    """The same until release 1.15, without a limit to a region (github.com/microsoft/onnxruntime/pull/15983)."""
    return powers_of_two(sizes, growing, 1 << 62)


def segments(sizes: Iterable[int], growing: Iterable[int] = ()) -> int:
    """Bytes that PyTorch's caching allocator takes from the driver for blocks that are never freed, in this order.

    Blocks up to 1 MB share segments of 2 MB, larger ones segments of 20 MB; one of 10 MB and more has a segment of its
    own size, rounded up to 2 MB. What a large block leaves of its segment is free for others if it is more than 1 MB
    (CUDACachingAllocator.cpp). growing: blocks behind them that
    grow with the batch; the most counts that they took when they were of the largest size of each kind, or filled a
    segment of their own.
    """
    kept = tuple(sizes)
    tried = [{s, min(s, MB), min(s, 10 * MB - 512), s - s % (2 * MB) if s >= 10 * MB else s} for s in growing]
    return max(_segments((*kept, *grown)) for grown in product(*tried))


def _segments(sizes: Iterable[int]) -> int:
    taken = 0
    pools: dict[bool, list[int]] = {True: [], False: []}
    for size in (_rounded(s, 512) for s in sizes if s):
        free = pools[small := size <= MB]
        if (at := bisect_left(free, size)) < len(free):
            room = free.pop(at)
        else:
            room = 2 * MB if small else 20 * MB if size < 10 * MB else _rounded(size, 2 * MB)
            taken += room
        if room - size > (0 if small else MB):
            insort(free, room - size)
    return taken


#: By the name under which a runtime has its allocator: bytes that it takes from the driver for blocks, in order, and
#: for those behind them that grow with the batch.
ARENAS: dict[str, Callable[[Iterable[int], Iterable[int]], int]] = {
    "powers of two": powers_of_two, "doubling": doubling, "segments": segments,
    "exact": lambda sizes, growing: sum((*sizes, *growing)),
}  # fmt: skip


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a placed graph holds in bytes, whatever the card.

    weights: of each one; alive: activations before the run and while each operator runs, in order, inputs and outputs
    among them; activations_bytes: the most that are alive at once; host_bytes: of tensors that operators and copies on
    the host keep there.
    """

    weights: tuple[int, ...]
    alive: tuple[int, ...]
    activations_bytes: int
    host_bytes: int


def footprint(graph: Graph) -> Footprint:
    """The footprint of a placed graph: tensors live from the operator that makes them to the last that reads or holds
    them.

    Views share the memory of what they view, also where they spread it, and a cache that does not grow that of its
    past; inputs and outputs stay for the whole run. A sequence with one element more or less shares the others with the
    old one: one that is larger than what it shares makes that larger, as a loop does that adds an element in each run.
    """
    owner: dict[str, str] = {}
    size: dict[str, int] = {}
    last: dict[str, int] = {}
    born: list[int] = []

    def enter(t: Tensor) -> str:
        owner[t.name] = t.name
        size[t.name] = _rounded(t.bytes, ALIGNMENT)
        return t.name

    kept = {enter(t) for t in graph.inputs}
    for i, o in enumerate(graph.operators):
        for name in (*(t.name for t in o.present), *o.attrs.get(HELD, ())):
            if name in owner:
                last[owner[name]] = i
        new, caches = 0, shared_caches(o)
        for at, t in enumerate(o.outputs):
            if at in caches and (past := o.inputs[caches[at]]) is not None and past.name in owner:
                owner[t.name] = owner[past.name]
                continue
            # a free Concat is written by others: it counts beside its parts, so that the peak is rather too high
            view = o.place == "free" and o.type != "Concat"
            shares = view or (o.type in SHARING and o.place != "host")
            if shares and o.inputs and o.inputs[0] is not None and o.inputs[0].name in owner:
                owner[t.name] = owner[o.inputs[0].name]
                grown = t.bytes - o.inputs[0].bytes if o.type in (*SHARING, "Identity") else 0
                more = max(_rounded(grown, ALIGNMENT), 0)
                size[owner[t.name]] += more
                new += more
            elif not view and o.place != "host" and o.type != "MemcpyToHost":
                new += size[enter(t)]
                last[t.name] = i
        born.append(new)
    kept |= {owner[t.name] for t in graph.outputs if t.name in owner}
    dying: dict[int, list[str]] = {}
    for name, at in last.items():
        dying.setdefault(at, []).append(name)
    alive = sum(size[t.name] for t in graph.inputs)
    during = [alive]
    for i, new in enumerate(born):
        alive += new
        during.append(alive)
        alive -= sum(size[name] for name in dying.get(i, ()) if name not in kept)
    weights = tuple(_rounded(t.bytes, ALIGNMENT) for t in graph.stored())
    on_host = {t.name: t.bytes for o in graph.operators for t in o.outputs if o.place == "host"}
    on_host |= {o.out.name: o.out.bytes for o in graph.operators if o.type == "MemcpyToHost"}
    return Footprint(weights, tuple(during), max(during), sum(on_host.values()))


def memory(held: Footprint, workspace_bytes: int, capacity_bytes: int, arena: str, context_bytes: int) -> Memory:
    """The memory of a run on a card of that capacity; `arena`, of ARENAS, is how the runtime's allocator takes it.

    Weights are blocks of their own: ONNX Runtime 1.31's CUDA provider logs an extension of its arena for them, and no
    reservation. Activations are taken as one block, for their offsets in it are planned; assumed for PyTorch as well,
    which plans nothing. The workspace is that of the algorithms that run: what the search for one tries is freed, and
    not counted.
    """
    weights, peak = held.weights, held.activations_bytes
    needed = sum(weights) + peak + workspace_bytes + context_bytes
    reserved = ARENAS[arena](weights, (peak, workspace_bytes)) + context_bytes
    reserved = min(reserved, max(needed, capacity_bytes))  # near the end, allocators ask for no more than they need
    return Memory(sum(weights), peak, workspace_bytes, capacity_bytes, reserved, held.host_bytes, context_bytes)

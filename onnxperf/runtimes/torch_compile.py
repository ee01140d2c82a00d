"""PyTorch's torch.compile on CUDA, with Inductor in its default mode: fused loops in Triton, products of libraries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from onnxperf.fusions import torch_calls
from onnxperf.fusions.common import NO_KERNELS, has_narrow_products
from onnxperf.fusions.engine import DISABLED, NEAR, since
from onnxperf.fusions.inductor import inductor, prefers_last
from onnxperf.fusions.inductor_attention import attention as written_out
from onnxperf.fusions.inductor_fusion import Group, apart, fused, with_products
from onnxperf.fusions.inductor_memory import Ways
from onnxperf.fusions.torch_strides import Strides
from onnxperf.graph import Graph, Note
from onnxperf.ground.errors import UsageError
from onnxperf.ground.releases import MOST, Release
from onnxperf.lowering.releases import Releases
from onnxperf.lowering.runtime import HostCosts, Runtime
from onnxperf.passes.autocast import autocast
from onnxperf.passes.parts import ATEN_NAME, TANGENT
from onnxperf.passes.tape import BACKWARD, ENGINE, FORWARD, PHASE, UPDATE, phase_of
from onnxperf.runtimes.torch_eager import EAGER, NEWEST, POLICY, refused
from op_models import Operator, Tensor

if TYPE_CHECKING:
    from onnxperf.passes.training import Autograd

#: Elements of a row that a block keeps in registers, where they lie next to each other and where not
#: (`should_use_persistent_reduction`).
PERSISTENT, PERSISTENT_APART = 1024, 64

#: ATen's names of ONNX's operators, as kernels are named by them; others have ONNX's, in lower case.
ATEN = {
    "ArgMax": "argmax", "AveragePool": "avg_pool2d", "BatchNormalization": "_native_batch_norm_legit_no_training",
    "Cast": "_to_copy", "Concat": "cat", "Conv": "convolution", "Gather": "embedding", "Gelu": "gelu", "Gemm": "addmm",
    "GlobalAveragePool": "mean", "GroupNormalization": "native_group_norm", "HardSwish": "hardswish",
    "InstanceNormalization": "native_batch_norm", "LayerNormalization": "native_layer_norm", "MatMul": "mm",
    "MaxPool": "max_pool2d_with_indices", "Pad": "constant_pad_nd", "ReduceMean": "mean", "ReduceSum": "sum",
    "Resize": "_unsafe_index", "Softmax": "_softmax", "Swish": "silu", "Transpose": "permute", "Reshape": "view",
}  # fmt: skip
LONGEST_NAME = 100
TODAY = Ways()


def place(graph: Graph, last: bool = False, tuned: bool = False, ways: Ways = TODAY) -> Graph:
    """The kernels of Inductor's code and the calls that it makes, in place of the operators. last: weights and images
    are channels_last; tuned: products take in what reads them; ways: what the release does.
    """
    if any(phase_of(o) != FORWARD for o in graph.operators):
        return _step(graph, partial(_compiled, last=last, tuned=tuned, ways=ways))
    return _compiled(graph, prefers_last(graph), last=last, tuned=tuned, ways=ways)[0]


def _step(graph: Graph, compiled: Callable[..., tuple[Graph, Mapping[str, Strides]]]) -> Graph:
    """A training step: its forward and its backward graph, each compiled by itself, and the rest as eager PyTorch."""
    if not any(o.type == TANGENT for o in graph.operators):
        why = "the model already has its backward pass, which torch.compile would not make its own"
        raise UsageError(f"{why}: give --runtime torch-eager or ort-cuda")
    from onnxperf.fusions.inductor_partition import partitioned

    inside = [o for o in graph.operators if phase_of(o) != UPDATE and ENGINE not in o.attrs]
    outside = [o for o in graph.operators if phase_of(o) == UPDATE or ENGINE in o.attrs]
    read = {t.name for o in outside for t in o.present} | graph.output_names
    results = {t.name: t for o in inside for t in o.outputs if t.name in read}
    forward, backward = partitioned(replace(graph, operators=tuple(inside), outputs=tuple(results.values())))
    last = prefers_last(forward, trains=True)
    ahead, lying = compiled(forward, last)
    behind, _ = compiled(backward, False, lying=lying, first=len(ahead.operators))
    repeat = min(o.repeat for o in inside)
    after = (replace(o, attrs={**o.attrs, PHASE: BACKWARD}) for o in behind.operators)
    operators = (replace(o, repeat=repeat) for o in (*ahead.operators, *after))
    notes = (*ahead.notes, *(n for n in behind.notes if n not in graph.notes))
    return replace(graph, operators=(*operators, *outside), notes=notes)


def _compiled(
    graph: Graph, all_last: bool, last: bool, tuned: bool, ways: Ways,
    lying: Mapping[str, Strides] = MappingProxyType({}), first: int = 0,
) -> tuple[Graph, Mapping[str, Strides]]:  # fmt: skip
    """The kernels and calls of one graph, and how its outputs lie, by name. lying: how tensors of another graph do;
    first: the number of the first kernel.
    """
    ways = replace(ways, adds_in_half=ways.adds_in_half and not tuned)
    memory = inductor(graph, last, ways, all_last, lying)
    items, buffers = memory.items, memory.buffers
    groups = fused(items, buffers, ways.turns, ways.reindexes)
    if tuned:
        groups = with_products(groups, buffers, graph.output_names)
    readers: dict[str, set[int]] = {name: {-1} for name in graph.output_names}
    for i, g in enumerate(groups):
        for name in {b for b, _ in g.reads} if g.call is None else {t.name for t in g.call.present}:
            readers.setdefault(name, set()).add(i)
    operators = []
    for i, g in enumerate(groups):
        outside = {b for b, _ in g.writes if readers.get(b, set()) - {i}}
        operators.append(_kernel(g, outside, buffers, first + i) if g.call is None else g.call)
    why = (
        Note(NEAR, f"fusion of loops did not apply: {reason}", tuple(nodes)) for reason, nodes in apart(groups).items()
    )
    seen = {t.name: memory.at(t).strides for t in graph.outputs}
    placed = replace(graph, operators=tuple(o for o in operators if o.outputs), notes=(*graph.notes, *why))
    return placed, {name: strides for name, strides in seen.items() if strides is not None}


def _kernel(g: Group, outside: set[str], buffers: Mapping[str, Tensor], number: int) -> Operator:
    """One kernel: it reads each element of a buffer once, and writes what is read outside of it."""
    kept = {b for b, _ in g.writes}
    read = Counter[str]()
    for loop in g.loops:
        for (buffer, _), n in loop.reads.items():
            if buffer not in kept:
                read[buffer] = max(read[buffer], n)
    inputs = tuple(buffers[b] for b in read)
    outputs = tuple(buffers[loop.out.name] for loop in g.loops if loop.out.name in outside)
    parts = tuple(dict.fromkeys(o for loop in g.loops for o in loop.parts))
    written = {b: n for loop in g.loops for (b, _), n in loop.writes.items()}
    rows, width = (g.rows, g.width) if g.reduces else (0, 0)
    inside = all(loop.inside for loop in g.loops if loop.reduces)
    kind = "poi" if not g.reduces else "per" if width <= (PERSISTENT if inside else PERSISTENT_APART) else "red"
    names = sorted({o.attrs.get(ATEN_NAME) or ATEN.get(o.type, o.type.rpartition(":")[2].lower()) for o in parts})
    attrs = {
        "elements": g.rows * g.width, "flops": int(sum(loop.flops for loop in g.loops)),
        "rows": rows if kind == "red" else 0, "width": width if kind == "red" else 0,
        "read": tuple(min(n, buffers[b].size) for b, n in read.items()),
        "passes": int(any(t.size > rows for t in outputs)),
        "written": tuple(min(written[t.name], t.size) for t in outputs),
    }  # fmt: skip
    nodes = tuple(dict.fromkeys(n for o in parts for n in o.nodes))
    name = f"triton_{kind}_fused_{'_'.join(names)}"[:LONGEST_NAME]
    return Operator(f"{name}_{number}", f"torch::triton_{kind}", inputs, outputs, attrs, 0, nodes)


def _autograd() -> Autograd:
    """How it differentiates, which no prediction of inference loads."""
    from onnxperf.passes.compiled_training import COMPILED

    return COMPILED


OLDEST = "2.0"
#: Triton compiles for Volta and later cards; the highest are those of PyTorch's builds.
CARDS = {OLDEST: ((7, 0), (9, 0)), "2.7": ((7, 0), (12, 9))}
TURNS, ADDS_IN_HALF, KEEPS_LAST, REINDEXES = Release(2, 10), Release(2, 11), Release(2, 12), Release(2, 12)


def _in_release(at: Release, last: bool, tuned: bool) -> Mapping[str, Any]:
    """What is another than today's: loops go in another order to fuse since 2.10 (by the date of
    github.com/pytorch/pytorch/pull/162355), products in half precision keep their bias since 2.11 (pull/177579; kernels
    on an H100), large results of four axes are channels_last since 2.12 (pull/169260; not in 2.9, between: unknown),
    loops in tiles go over rows where they fuse with sums since 2.12 (by the date of pull/176927).
    """
    ways = Ways(at >= TURNS, at >= REINDEXES, adds_in_half=at >= ADDS_IN_HALF, keeps_last=at >= KEEPS_LAST)
    return {"place": partial(place, last=last, tuned=tuned, ways=ways)}


def _says(at: Release) -> str:
    """What is known of a release."""
    apart = "turned and tiled loops, the bias of products and the layout of large results"
    return f"what PyTorch {at} fuses is taken to be that of 2.13, but for {apart}"


def _runtime(last: bool = False, tuned: bool = False) -> Runtime:
    calls = (rule for rule in torch_calls.RULES[DISABLED] if not rule.until)
    return Runtime(
        name="torch-compile",
        rules={DISABLED: since(OLDEST, torch_calls.by_products, *calls, written_out)},
        place=partial(place, last=last, tuned=tuned),
        policy=replace(POLICY, pads=True, switched=frozenset()),
        host=HostCosts(
            run_s=60e-6, walk_s=0.0, node_s=5e-6, launch_s=18e-6, host_op_s=1e-6, copy_s=8e-6, sync_s=5e-6, gap_s=1e-6,
            replay_s=12e-6, replay_gap_s=0.6e-6, source="assumed", library_s=8e-6,
        ),
        title="torch.compile",
        describe="PyTorch, torch.compile with Inductor, CUDA, under torch.inference_mode",
        autocast=autocast,
        refused=refused,
        autograd=_autograd,
        releases=Releases({OLDEST: MOST}, NEWEST, partial(_in_release, last=last, tuned=tuned), _says, cards=CARDS),
        unmeasured=lambda run: NO_KERNELS if has_narrow_products(run) else "",
        start=replace(
            EAGER.start, build_s=(0.1, 2.0), build="Triton compiles them", cached_s=(0.01, 0.1),
            cache="Inductor's cache on disk", builder_s=(2.0, 20.0), per_shape="after a second size of an axis, none",
        ),
    )  # fmt: skip


def _with_modes(last: bool) -> Runtime:
    usual, tuned = _runtime(last), _runtime(last, True)
    return replace(usual, modes={"default": usual, "reduce-overhead": usual, "max-autotune": tuned})


RUNTIME = replace(_with_modes(False), layouts={"nchw": _with_modes(False), "nhwc": _with_modes(True)})

"""Where ONNX Runtime's CUDA provider runs an operator: on the GPU, on the host, or nowhere; and the copies between.

cuda_kernels.json says what has a CUDA kernel, and which of its inputs that reads from host memory; what stays on the
host although it has one follows fallback_cpu_capability.cc. Both were compared with the assignments that ONNX Runtime
1.31 records. cuda_releases.json says since which release there is a kernel.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from typing import Any

from onnxperf.fusions.ort_functions import inlined
from onnxperf.fusions.ort_releases import opset
from onnxperf.graph import CONTROL, FOLDED_IN_HALF, Graph, Note, without_unneeded
from onnxperf.ground.releases import Release, release
from op_models import BITS, IN_PLACE, Operator, Tensor

FREE = frozenset(
    {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Optional", "OptionalGetElement"}
)
SEQUENCES = frozenset({"Optional", "OptionalGetElement"})  # those of them that may hand on what is no tensor
REDUCTIONS = frozenset(
    {f"Reduce{r}" for r in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")}
)
HOST_OUTPUTS = frozenset({"Shape", "Size", "SequenceLength"})
UNKNOWN_TO_CPU = frozenset({"bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"})
NEVER_SMALL = UNKNOWN_TO_CPU | {"float16"}
CELLS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
PRODUCTS = frozenset({"MatMul", "FusedMatMul", "Gemm", "Conv", "ConvTranspose", "MoE"})
SMALL = 100  # elements at most of a constant that both sides can read without a copy
SCATTERS = frozenset({"Scatter", "ScatterElements", "ScatterND"})  # may write into the buffer of what they change
MEMCPY = {"h2d": "MemcpyFromHost", "d2h": "MemcpyToHost"}

Alternative = tuple[tuple[bool, int, frozenset[str]], ...]


def place(graph: Graph, at: Release | None = None) -> Graph:
    """Functions are taken apart; views are free; what lacks a CUDA kernel, and shape arithmetic, runs on the host;
    copies go between the two.

    A tensor crosses only once each way. Inputs of the graph that are read on the host are fed there, as ONNX Runtime
    asks for them. The notes `host-fallback` and `no-kernel` name what has no kernel. at: a release, None for today's.
    """
    graph = inlined(graph)
    graph = _in_single(replace(graph, notes=(*graph.notes, *_lacking(graph, at))), at)
    fed = {t.name for t in graph.inputs}
    on_device = _placed(graph, frozenset(), at)
    read = {o.present[0].name for o in on_device.operators if o.type == MEMCPY["d2h"]}
    return _returned(_in_place(_placed(graph, frozenset(fed & read), at) if fed & read else on_device))


def _returned(graph: Graph) -> Graph:
    """Weights that the graph returns are copied to its outputs in every run (IExecutionFrame::Init)."""
    weights = [t for t in graph.outputs if t.kind == "weight"]
    copies = {t.name: replace(t, name=f"{t.name}#output", kind="activation") for t in weights}
    if not copies:
        return graph
    identities = (Operator(y.name, "Identity", (x,), (y,)) for x, y in zip(weights, copies.values(), strict=True))
    outputs = tuple(copies.get(t.name, t) for t in graph.outputs)
    return replace(graph, operators=(*graph.operators, *identities), outputs=outputs)


def _placed(graph: Graph, on_host: frozenset[str], at: Release | None) -> Graph:
    """The graph with operators placed and copies inserted, its inputs `on_host` in host memory."""
    host = set(on_host)  # tensors in host memory
    #: Shapes and what is computed from them, kernels or not: their readers run on the host as well.
    light: set[str] = set()
    inputs, outputs = {t.name for t in graph.inputs}, {t.name for t in graph.outputs}
    maker: dict[str, Operator] = {}
    placed: list[Operator] = []
    copied: dict[tuple[str, str], Tensor] = {}

    def cross(t: Tensor, o: Operator, way: str) -> Tensor:
        if (t.name, way) not in copied:
            copied[t.name, way] = replace(t, name=f"{t.name}#{way}", kind="activation")
            name, source = f"{o.name}#{way}#{t.name}", maker.get(t.name)
            often = 1 if source is None else o.repeat if source.type in CONTROL else source.repeat
            out = (copied[t.name, way],)
            placed.append(Operator(name, MEMCPY[way], (t,), out, {}, 0, o.nodes, "copy", often))
        return copied[t.name, way]

    for o in graph.operators:
        read_there = range(*_table()["host_inputs"].get(o.type, (0, 0)))
        fits_gpu = o.place != "host" and (has_kernel(o, at) or _refused(o.type, _dtype(o)))
        preferred = fits_gpu and _prefers_host(o, read_there, light, inputs)
        if preferred or not fits_gpu:
            read_there = range(len(o.inputs))
        moved = list(o.inputs)
        for i, t in enumerate(o.inputs):
            if t is not None and not t.stored and BITS[t.dtype] and (t.name in host) != (i in read_there):
                moved[i] = cross(t, o, "d2h" if i in read_there else "h2d")
        follows = not fits_gpu and not light.isdisjoint(t.name for t in o.present)
        at_home = preferred or not fits_gpu or o.type in HOST_OUTPUTS
        where = "host" if at_home or o.type in CONTROL else "free" if is_view(o, outputs) else "gpu"
        o = replace(o, inputs=tuple(moved), place=where)
        for t in o.outputs:
            maker[t.name] = o
            if at_home:
                host.add(t.name)
            if preferred or follows or o.type in HOST_OUTPUTS:
                light.add(t.name)
        placed.append(o)
    return replace(graph, operators=tuple(placed))


def _dtype(o: Operator) -> str:
    """The type of an operator's first operand."""
    return next((t.dtype for t in (*o.present, *o.outputs)), "")


def _lacking(graph: Graph, at: Release | None) -> tuple[Note, ...]:
    """A note for each kind of operator that has no CUDA kernel."""
    without: dict[tuple[str, str, Release | None], list[str]] = {}
    for o in graph.operators:
        if not has_kernel(o, at):
            later = since(o) if at is not None and has_kernel(o) else None
            without.setdefault((o.type, _dtype(o), later), []).extend(o.nodes)
    return tuple(_note(type, dtype, tuple(nodes), at, later) for (type, dtype, later), nodes in without.items())


def _in_single(graph: Graph, at: Release | None) -> Graph:
    """What is left to the host in half precision computes in single precision there, as ONNX Runtime's CPU provider has
    few kernels for halves: what it reads is cast once, what it makes is cast back for others alone.
    """
    wide: dict[str, Tensor] = {}  # by the name in half precision
    operators: list[Operator] = []

    def cast(x: Tensor, y: Tensor, o: Operator) -> None:
        operators.append(
            Operator(
                y.name, "Cast", (x,), (y,), {"to": 1 if y.dtype == "float32" else 10}, 0, o.nodes, "host", o.repeat
            )
        )

    for o in graph.operators:
        halves = {t.name: t for t in (*o.present, *o.outputs) if t.dtype == "float16"}
        if not halves or o.type in FOLDED_IN_HALF | FREE or has_kernel(o, at) or _refused(o.type, _dtype(o)):
            operators.append(o)
            continue
        for name, t in halves.items():
            if name not in wide:
                wide[name] = replace(t, name=f"{name}#single", dtype="float32")
                if not t.stored and t not in o.outputs:
                    cast(t, wide[name], o)
        inputs = tuple([t and wide.get(t.name, t) for t in o.inputs])
        operators.append(replace(o, inputs=inputs, outputs=tuple(wide.get(t.name, t) for t in o.outputs), place="host"))
        for t in o.outputs:
            if t.name in wide:
                cast(wide[t.name], t, o)
    return without_unneeded(replace(graph, operators=tuple(operators))) if wide else graph


def is_view(o: Operator, outputs: Container[str]) -> bool:
    """Whether an operator only sees its input under another shape. What makes one of the graph's `outputs`, named
    here, is a copy, since ONNX Runtime gives each output a buffer of its own.
    """
    return o.type in FREE and (o.type in SEQUENCES or not any(t.name in outputs for t in o.outputs))


def _in_place(graph: Graph) -> Graph:
    """Scatters write into their data's own buffer where nothing else reads it and it is the run's own, as ONNX Runtime
    plans its memory: neither an input nor an output of the graph, nor stored, nor a view of what may be one of these.
    """
    uses = Counter(t.name for o in graph.operators for t in o.present)
    uses.update(t.name for t in graph.outputs)
    buffers = {t.name for o in graph.operators if o.place == "gpu" for t in o.outputs}
    outputs = {t.name for t in graph.outputs}

    def changed(o: Operator) -> Operator:
        data = o.inputs[0] if o.type in SCATTERS and o.place == "gpu" else None
        fits = data is not None and data.name in buffers and uses[data.name] == 1 and o.out.name not in outputs
        return replace(o, attrs={**o.attrs, IN_PLACE: 1}) if fits else o

    return replace(graph, operators=tuple(map(changed, graph.operators)))


def fed_on_host(graph: Graph) -> frozenset[str]:
    """The inputs of a placed graph that only the host reads, or a copy to the device that the graph has."""
    host, device = set[str](), set[str]()
    for o in graph.operators:
        read_there = range(*_table()["host_inputs"].get(o.type, (0, 0)))
        if o.type == MEMCPY["h2d"] or (o.place == "host" and o.type not in HOST_OUTPUTS):
            read_there = range(len(o.inputs))
        for i, t in enumerate(o.inputs):
            if t is not None:
                (host if i in read_there else device).add(t.name)
    return frozenset({t.name for t in graph.inputs} & host - device)


def _prefers_host(o: Operator, on_host: range, light: set[str], inputs: set[str]) -> bool:
    """Whether an operator with a CUDA kernel runs on the host all the same, as shape arithmetic does.

    It reads a `light` tensor, and every input is a small constant, an input of the graph, or a light tensor that its
    kernel would not read from host memory anyway (`on_host`: the inputs that it would).
    """
    if light.isdisjoint(t.name for t in o.present):
        return False
    return all(
        t.dtype not in NEVER_SMALL
        and ((t.stored and t.size <= SMALL) or t.name in inputs or (t.name in light and i not in on_host))
        for i, t in enumerate(o.inputs)
        if t is not None
    )


def _refused(type: str, dtype: str) -> bool:
    """True for what has no kernel on the host either, such as a product of int8 operands."""
    return dtype in UNKNOWN_TO_CPU or (type.rpartition("::")[2] in PRODUCTS and dtype == "int8")


def _note(
    type: str, dtype: str, nodes: tuple[str, ...], at: Release | None = None, later: Release | None = None
) -> Note:
    """What an operator without a kernel does in a release; `later`: the first release that has one."""
    name = f"ONNX Runtime {at}" if later is not None else "ONNX Runtime"
    kernel = f"kernel for {type} in {dtype or 'no type'} at this opset"
    if _refused(type, dtype):
        return Note("no-kernel", f"{name} has no {kernel}; assumed to run on the GPU", nodes)
    first = f" ({later} has one)" if later is not None else ""
    return Note("host-fallback", f"{name} has no CUDA {kernel}{first}: it runs on the host", nodes)


def has_kernel(o: Operator, at: Release | None = None) -> bool:
    """Whether ONNX Runtime has a CUDA kernel for an operator with these types; at: in a release, None for today's.

    True for what it does not know at all: a custom operator, or one that runs as the function that defines it. What the
    runtime made itself it has a kernel for, and an operator of an opset that the release does not load stands for the
    one that a file for that release would have.
    """
    alternatives = _alternatives(o.type, o.version)
    if alternatives is None:
        return True
    if not _form(o) or not any(all(_fits(o, *rule) for rule in alternative) for alternative in alternatives):
        return False
    exempt = not o.version or ("::" not in o.type and at is not None and o.version > opset(at))
    return at is None or exempt or (first := since(o)) is None or first <= at


def since(o: Operator) -> Release | None:
    """The first release whose CUDA provider has a kernel for an operator with these types; None where all have it."""
    versions = _since().get(o.type, {})
    schema = max((v for v in map(int, versions) if v <= o.version), default=0)
    by_type = versions.get(str(schema), {})
    first = by_type.get(_dtype(o), by_type.get("*"))
    return release(first) if first is not None else None


def _form(o: Operator) -> bool:
    """False for the forms of an operator that its CUDA kernel leaves to the host."""
    a = o.attrs
    match o.type:
        case "ArgMax" | "ArgMin":
            return not a.get("select_last_index")
        case "ConvTranspose":
            pads = _tuple(a, "pads")
            return pads[: len(pads) // 2] == pads[len(pads) // 2 :] and "SAME" not in str(a.get("auto_pad"))
        case "LSTM" | "GRU" | "RNN":
            usual = CELLS[o.type] * (2 if a.get("direction") == "bidirectional" else 1)
            activations = tuple(str(f).lower() for f in _tuple(a, "activations") or usual)
            plain = activations == usual and not a.get("clip") and not a.get("input_forget") and len(o.inputs) < 8
            return plain and (o.type != "GRU" or bool(a.get("linear_before_reset")))
    return True


def _tuple(attrs: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    value = attrs.get(name)
    return value if isinstance(value, tuple) else ()


def _fits(o: Operator, out: bool, index: int, types: frozenset[str]) -> bool:
    operands = o.outputs if out else o.inputs
    t = operands[index] if index < len(operands) else None
    return t is None or t.dtype in types or "opaque" in types  # of a sequence it does not say the elements' type


@lru_cache(maxsize=2048)
def _alternatives(type: str, version: int) -> tuple[Alternative, ...] | None:
    """The kernels of an operator at an opset (0: the newest); None where ONNX Runtime has none on either side."""
    versions = _table()["kernels"].get(type)
    if versions is None:
        return None
    since = max((v for v in map(int, versions) if not version or v <= version), default=0)
    return tuple(tuple(map(_rule, kernel.split())) for kernel in versions.get(str(since), ()))


def _rule(text: str) -> tuple[bool, int, frozenset[str]]:
    where, _, types = text.partition("=")
    return where.startswith("o"), int(where.lstrip("o")), frozenset(types.split(","))


@lru_cache(maxsize=1)
def _table() -> Any:
    return json.loads(resources.files(__package__).joinpath("cuda_kernels.json").read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def _since() -> Any:
    return json.loads(resources.files(__package__).joinpath("cuda_releases.json").read_text(encoding="utf-8"))["since"]

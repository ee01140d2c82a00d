"""What a reader has to know about an answer: its scope, what was assumed, what nothing measured, what does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_specs import Corrections, Device
from onnxperf.answer.several_gpus import notes as _of_several
from onnxperf.graph import Graph, Note
from onnxperf.ground.errors import counted, printable
from onnxperf.ground.names import AMP, QUANTISED
from onnxperf.ground.tables import number, size
from onnxperf.latency import pipe_on
from onnxperf.latency.device_models import DEVICE_MODELS
from onnxperf.latency.intervals import class_on, in_domain
from onnxperf.latency.method import BY_FAMILY
from onnxperf.lowering.lower import Kernels, host_node
from onnxperf.running.run import Run
from onnxperf.running.scenario import PLATFORMS
from op_models import IN_PLACE, Transfer, shared_caches


def notes(run: Run, j: int) -> tuple[Note, ...]:
    """The notes of a run on device j: its graph's own, then those on operators, units, constants, ranges and memory."""
    classes = [class_on(k.work, run.devices[j]) for k in run.kernels.rows]
    return (
        *(run.device_notes[j] if run.device_notes else ()),
        *(_with_cost(n, run, j) for n in run.run_graph.notes),
        *_unsupported(run, j),
        *_release(run),
        *_upper_bounds(run.kernels),
        *_session(run),
        *_nothing_quantised(run),
        *_assumed_operators(run.kernels),
        *_full_caches(run.run_graph),
        *_missing_units(run.kernels, run.devices[j], run.scenario.precision),
        *_unmeasured(run),
        *_assumed_constants(run, j, classes),
        *_far_from_measurements(run, j, classes),
        *_of_several(run, j),
        *_too_large(run, j),
    )


def _with_cost(note: Note, run: Run, j: int) -> Note:
    """A note; one about operators that run on the host with what they and the copies to and from them cost."""
    if note.code != "host-fallback":
        return note
    nodes = frozenset(note.nodes)
    on_host = [o for o in run.run_graph.operators if o.place == "host" and nodes & {*o.nodes}]
    touched = {t.name for o in on_host for t in (*o.present, *o.outputs)}
    copied = [o for o in run.run_graph.operators if o.place == "copy"]
    crossing = {o.name for o in copied if touched & {o.out.name, o.present[0].name}}
    rows, costs = run.kernels.rows, run.host_costs[j]
    copies = [i for i, k in enumerate(rows) if isinstance(k.work.size, Transfer) and k.name in crossing]
    seconds = sum(float(run.estimates.seconds[i, j]) for i in copies)
    seconds += sum(o.repeat * host_node(o).seconds(costs, run.processors[j]) for o in on_host)
    return Note(
        note.code,
        f"{note.message}, for {seconds * 1e6:,.0f} us with its {counted(len(copies), 'copy', 'copies')}",
        note.nodes,
    )


def _unsupported(run: Run, j: int) -> Iterator[Note]:
    """Whether the runtime runs on the card at all."""
    if why := run.runtime.unsupported(run.devices[j]):
        yield Note("unsupported-card", why)


def _release(run: Run) -> Iterator[Note]:
    """What is known of the release that was asked for, and what is inferred."""
    runtime = run.runtime
    if runtime.releases is not None and runtime.release is not None:
        yield Note("release", runtime.releases.says(runtime.release))


def _upper_bounds(kernels: Kernels) -> Iterator[Note]:
    """Which kernels have sizes that the data decide."""
    if nodes := [n for k in kernels.rows if k.at_most for n in k.nodes]:
        count = sum(k.at_most for k in kernels.rows)
        says = f"the sizes of {count} of {len(kernels.rows)} kernels depend on the data and are taken at their upper"
        says += " bounds: the low end of the interval leaves them out"
        yield Note("upper-bound", says, tuple(dict.fromkeys(nodes)))


def _session(run: Run) -> Iterator[Note]:
    """Whether ONNX Runtime knows the sizes of open dimensions before it runs."""
    if run.has_open_dims:
        fixed = run.scenario.fix_dims
        yield Note("fixed-dims" if fixed else "open-dims", (
            "dynamic dimensions are fixed when the session is created, so that shapes are computed once" if fixed else
            "dimensions stay dynamic, as in the file: shapes are computed in every run, and fusions that need static"
            " shapes do not apply; --fix-dims predicts a session created with fixed dimensions"
        ))  # fmt: skip


def _nothing_quantised(run: Run) -> Iterator[Note]:
    """Whether a precision of 8 bits leaves everything as it is: what is quantised already, and what has no products."""
    if run.scenario.precision in QUANTISED and run.typed_graph.operators == run.own_graph.operators:
        what = "no GEMM or convolution of a floating-point tensor with a stored weight"
        yield Note("nothing-quantised", f"nothing is quantised to {run.scenario.precision}: the file has {what}")


def _assumed_operators(kernels: Kernels) -> Iterator[Note]:
    """Which operators nobody knows the work of, and which depend on what only a run on a processor can tell."""
    nodes, depending = dict[str, list[str]](), dict[tuple[str, str], list[str]]()
    for k in kernels.all_work:
        if k.assumed:
            nodes.setdefault(k.assumed, []).extend(k.nodes)
        elif k.work is not None and k.work.steps.unknown:
            depending.setdefault((k.op, k.work.steps.unknown), []).extend(k.nodes)
    for why, names in nodes.items():
        says = printable(f"unknown work: {why}: its time is that of the bytes it reads and writes")
        yield Note("assumed-operator", says, tuple(names))
    for (op, assumed), names in depending.items():
        says = printable(f"how long {op} takes depends on the data: {assumed}, and its interval is a factor of several")
        yield Note("unknown-work", says, tuple(names))


def _full_caches(graph: Graph) -> Iterator[Note]:
    """Which caches are taken as full, because only a run knows how much of them is filled."""
    nodes: dict[int, list[str]] = {}
    for o in graph.operators:
        told = IN_PLACE in o.attrs or any(t.size == 1 and t.value for t in o.present)  # a Scatter's buffer is full
        for output in () if told else shared_caches(o):
            if o.outputs[output].rank > 1:
                nodes.setdefault(o.outputs[output].shape[-2], []).extend(o.nodes)
    for length, names in nodes.items():
        says = f"KV caches of {length:,} positions are assumed full: the length in use is known only at run time"
        yield Note(
            "assumed-length", f"{says} (--dim NAME=N sets an input that is a number)", tuple(dict.fromkeys(names))
        )


def _missing_units(kernels: Kernels, device: Device, precision: str) -> Iterator[Note]:
    """What the card has no unit for, and what does the work instead."""
    moved: dict[tuple[str, str], list[str]] = {}
    for k in kernels.rows:
        wanted = k.work.pipe.removesuffix("_sums").removesuffix("_either")
        unit = pipe_on(device, k.work.pipe)
        by_default = wanted == "tensor_tf32" and precision != "tf32"  # nobody asked for it
        if k.work.matrix_flops and not by_default and unit != wanted:
            moved.setdefault((wanted, unit), []).extend(k.nodes)
    half = device.dense_flops.get("fp16", 0.0)
    for (wanted, unit), nodes in moved.items():
        says = f"{device.id} has no {_units(wanted)}: products run on {_units(unit)}"
        if wanted == "tensor_fp16" and half:
            rate = number(device.dense_flops[unit] / 1e12)
            beside = f"; fp16 itself does {number(half / 1e12)}" if unit == "fp32" else ""
            says += f" at {rate} TFLOP/s, for FP16 products are summed in {unit.upper()}{beside}"
        yield Note("no-unit", says, tuple(nodes))


def _units(pipe: str) -> str:
    """What computes in a pipe, as people call it."""
    dtype = pipe.removeprefix("tensor_").upper()
    return f"tensor cores for {dtype}" if pipe.startswith("tensor_") else f"{dtype} units"


def _unmeasured(run: Run) -> Iterator[Note]:
    """What of the runtime no measurement confirms."""
    if of := run.unmeasured:
        name = run.runtime.describe.split(",")[0]
        says = (
            f"{name} predictions of {of} are not validated by a measurement: the interval is assumed, a factor of two"
        )
        yield Note("unvalidated", says)


def _by_other_models(run: Run, j: int) -> Iterator[Note]:
    """Which kernels a method has no terms of its own for, so that their family's model stands in."""
    seconds, other = run.estimates.seconds[:, j], run.estimates.variant[:, j] == BY_FAMILY
    if other.any():
        rows = [k for k, taken in zip(run.kernels.rows, other.tolist(), strict=True) if taken]
        share = float(seconds[other].sum()) / max(float(seconds.sum()), 1e-30)
        types = ", ".join(sorted({k.op.rpartition("::")[2] for k in rows}))
        says = f"{share:.0%} of kernel time comes from tile-wave: {run.method.name} has no model for {types}"
        yield Note("other-model", says, tuple(n for k in rows for n in k.nodes))


def _assumed_constants(run: Run, j: int, classes: Sequence[str]) -> Iterator[Note]:
    """Which constants of this answer are assumed, not derived from measurements, with their share of kernel time."""
    method, device, interval = run.method, run.devices[j], run.constants.interval
    if method.own_terms:
        yield from _by_other_models(run, j)
        return
    if DEVICE_MODELS[device.kind].error_class:
        if device.corrections == Corrections():
            says = "this CPU is not calibrated: run `onnxperf calibrate` on it"
            yield Note("assumed-constants", says)
        return
    kernel_s = run.estimates.seconds[:, j]
    shares: dict[str, float] = {}
    for name, seconds in zip(classes, kernel_s.tolist(), strict=True):
        if "rows" not in interval[name]:
            shares[name] = shares.get(name, 0.0) + seconds
    rough = []
    if shares:
        share = sum(shares.values()) / float(kernel_s.sum())
        rough.append(f"constants of {', '.join(sorted(shares)).replace('_', ' ')} ({share:.0%} of kernel time)")
    if method.scheduled and (run.host_costs[j].source.startswith("assumed") or run.scenario.cuda_graph):
        rough.append(f"host costs of {run.runtime.name}")
    if rough:
        says = f"{' and '.join(rough)} are assumed, not derived from measurements: their intervals are rough"
        yield Note("assumed-constants", says)


def _far_from_measurements(run: Run, j: int, classes: Sequence[str]) -> Iterator[Note]:
    """Where no measurement is near. Ranges are wider for it, unless they are one for all kernels: those of a method
    with an error class of its own, and of a calibrated device.
    """
    device, c = run.devices[j], run.constants
    one_for_all = run.method.error_class or device.corrections.half_width is not None
    ranges = "intervals are not widened" if one_for_all else "intervals are wider"
    if DEVICE_MODELS[device.kind].error_class:
        return
    if c.interval["generations"] and device.capability[0] not in c.interval["generations"]:
        measured = ", ".join(f"{major}.x" for major in c.interval["generations"])
        major, minor = device.capability
        says = f"{device.id} has compute capability {major}.{minor}; constants were derived from cards of"
        yield Note("outside-calibration", f"{says} {measured}: {ranges}")
    rows = run.kernels.rows
    near = in_domain([k.work for k in rows], classes, c)
    if outside := [k for k, measured in zip(rows, near, strict=True) if not measured]:
        are = "is" if len(outside) == 1 else "are"
        says = f"{len(outside)} of {len(rows)} kernels {are} outside the measured sizes and types: {ranges}"
        yield Note("outside-calibration", says, tuple(dict.fromkeys(n for k in outside for n in k.nodes)))


def _too_large(run: Run, j: int) -> Iterator[Note]:
    """Where memory does not hold the run."""
    device, need = run.devices[j], run.memory(j)
    if not need.fits:
        short = need.total_bytes + need.context_bytes - need.capacity_bytes
        says = f"{device.id} lacks {size(short)} of memory for this run"
        if run.plan.gpus > 1:
            says += f" by {run.plan}; onnxperf recommend --gpus {run.plan.gpus} lists plans that fit"
        yield Note("does-not-fit", says)


def scope(run: Run, j: int) -> str:
    """What is inside the time, and what is not."""
    s, under = run.scenario, run.runtime.describe
    copies = "inputs and outputs stay on the device"
    if s.include_transfers:
        copies = f"with copies of inputs and outputs, {'pageable' if s.pageable else 'pinned'} memory"
    if not run.method.scheduled:
        power = "" if run.method.power_limit else "no power limit, "
        left_out = f"no launch gaps, no host time, {power}no streams and no CUDA graph"
        return f"the sum of all kernels by the {run.method.name} method; {left_out}; {copies}"
    if PLATFORMS[run.devices[j].kind].launches:
        what = "one run" if s.mode == "inference" else "one training step: forward, backward and update"
        launch = "one replay of a CUDA graph" if s.cuda_graph else f"kernels, launch gaps and host dispatch of {what}"
        host = f"launched by {run.cpus[j].describe} ({'assumed' if run.cpus[j].source == 'assumed' else 'measured'})"
        terms = f"{' in FP16 autocast' * (s.precision == AMP)}{f' with images as {s.layout}' if s.layout else ''}"
        if run.has_open_dims:
            terms += ", dimensions fixed" if s.fix_dims else ", dynamic dimensions as exported"
        inside = f"{launch} under {under.split(',')[0]}{terms}, {host}; {copies}"
    else:
        cores = run.devices[j].sms
        idle = "an otherwise idle core" if cores == 1 else f"{cores} otherwise idle cores"
        inside = f"one run on {idle} under {under}, with the runtime's overhead per operator"
    return f"steady state, {inside}; session start and warm-up excluded"

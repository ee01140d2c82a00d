"""What a reader has to know about an answer: what was assumed, what is far from any measurement, what does not fit."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_specs import Device, Effects
from onnxperf.graph import Graph, Note
from onnxperf.latency import Constants, Estimates, pipe_on
from onnxperf.latency.intervals import class_on, in_domain
from onnxperf.lower import Kernels, on_host
from onnxperf.memory import Memory
from onnxperf.prediction import Scenario
from onnxperf.runtimes import HOSTS, Runtime, paced
from op_models import Transfer


def remarks(
    run: Graph, kernels: Kernels, estimates: Estimates, need: Memory, device: Device, scenario: Scenario,
    runtime: Runtime, constants: Constants,
) -> tuple[Note, ...]:  # fmt: skip
    """The notes of a run: its graph's own, then those on operators, units, constants, ranges and memory."""
    return (
        *(_priced(n, run, kernels, estimates, runtime, scenario) for n in run.notes),
        *_assumed_operators(kernels),
        *_units(kernels, device, scenario.precision),
        *_assumed_constants(kernels, estimates, device, runtime, scenario, constants),
        *_far(kernels, device, constants),
        *_misplaced(need, device, runtime),
    )


def _priced(note: Note, run: Graph, kernels: Kernels, estimates: Estimates, runtime: Runtime, s: Scenario) -> Note:
    """A note; one about operators that run on the host with what they and the copies to and from them cost."""
    if note.code != "host-fallback":
        return note
    cpu = HOSTS[s.host]
    nodes = frozenset(note.nodes)
    at_home = [o for o in run.operators if o.place == "host" and nodes & {*o.nodes}]
    touched = {t.name for o in at_home for t in (*o.present, *o.outputs)}
    crossing = {o.name for o in run.operators if o.place == "copy" and touched & {o.out.name, o.present[0].name}}
    copies = [i for i, k in enumerate(kernels.rows) if isinstance(k.work.size, Transfer) and k.name in crossing]
    seconds = sum(float(estimates.seconds[i, 0]) for i in copies)
    seconds += sum(o.repeat * on_host(o, paced(runtime.host, cpu).host_op_s, cpu) for o in at_home)
    return Note(note.code, f"{note.message}, for {seconds * 1e6:,.0f} us with its {len(copies)} copies", note.nodes)


def _assumed_operators(kernels: Kernels) -> Iterator[Note]:
    nodes: dict[str, list[str]] = {}
    for k in kernels.rows:
        if k.assumed:
            nodes.setdefault(k.op, []).extend(k.nodes)
    for type, names in nodes.items():
        says = f"no rule fits {type}: it is taken to cost the bytes it reads and writes"
        yield Note("assumed-operator", says, tuple(names))


def _units(kernels: Kernels, device: Device, precision: str) -> Iterator[Note]:
    """What the card has no unit for, and what does the work instead."""
    moved: dict[str, list[str]] = {}
    for k in kernels.rows:
        by_default = k.work.pipe == "tensor_tf32" and precision != "tf32"  # nobody asked for it
        if k.work.matrix_flops and not by_default and pipe_on(device, k.work.pipe) != k.work.pipe:
            moved.setdefault(k.work.pipe, []).extend(k.nodes)
    for pipe, nodes in moved.items():
        yield Note("no-unit", f"{device.id} has no {pipe} unit: {pipe_on(device, pipe)} does the work", tuple(nodes))


def _assumed_constants(
    kernels: Kernels, estimates: Estimates, device: Device, runtime: Runtime, s: Scenario, c: Constants
) -> Iterator[Note]:
    """Which of the constants behind this answer no measurement stands behind, and for how much of its kernels' time."""
    if s.method == "roofline":
        return
    shares: dict[str, float] = {}
    for k, seconds in zip(kernels.rows, estimates.seconds[:, 0], strict=True):
        name = class_on(k.work, device)
        if "rows" not in c.interval[name]:
            shares[name] = shares.get(name, 0.0) + float(seconds)
    rough = []
    if device.kind == "cpu":
        if device.effects == Effects():
            says = "nothing of this processor was measured: `onnxperf calibrate` does that where it is"
            yield Note("assumed-constants", says)
        return
    if shares:
        share = sum(shares.values()) / float(estimates.seconds[:, 0].sum())
        rough.append(f"constants of {', '.join(sorted(shares)).replace('_', ' ')} ({share:.0%} of kernel time)")
    if s.method == "tile-wave" and (runtime.host.source.startswith("assumed") or s.cuda_graph):
        rough.append(f"host costs of {runtime.name}")
    if rough:
        says = f"{' and '.join(rough)} are assumed, not derived from measurements: take their ranges as rough"
        yield Note("assumed-constants", says)


def _far(kernels: Kernels, device: Device, c: Constants) -> Iterator[Note]:
    """Says where no measurement is near, and ranges are wider for it."""
    if device.kind == "cpu":
        return
    if c.interval["generations"] and device.capability[0] not in c.interval["generations"]:
        known = ", ".join(f"{major}.x" for major in c.interval["generations"])
        major, minor = device.capability
        says = f"{device.id} has compute capability {major}.{minor}; the cards that constants were derived from have"
        yield Note("outside-calibration", f"{says} {known}: ranges are wider")
    works = [k.work for k in kernels.rows]
    names = [class_on(w, device) for w in works]
    outside = [k for k, near in zip(kernels.rows, in_domain(works, names, c), strict=True) if not near]
    if outside:
        says = f"{len(outside)} of {len(works)} kernels are unlike any measured one in size or type: ranges are wider"
        yield Note("outside-calibration", says, tuple(dict.fromkeys(n for k in outside for n in k.nodes)))


def _misplaced(need: Memory, device: Device, runtime: Runtime) -> Iterator[Note]:
    if runtime.kind != device.kind:
        says = f"{runtime.name} runs on a {runtime.kind.upper()}: kernels are its own, their times those of {device.id}"
        yield Note("other-device", says)
    if not need.fits:
        short = (need.total_bytes + need.context_bytes - need.capacity_bytes) / 1e9
        yield Note("does-not-fit", f"{device.id} lacks {short:.1f} GB of memory for this run")

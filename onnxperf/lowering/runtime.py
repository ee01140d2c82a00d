"""What a runtime is: its fusion rules, its placement, its policy, what it costs the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import TYPE_CHECKING, Any, get_args

from gpu_specs import Device
from onnxperf.fusions.engine import ALL, DISABLED, LEVELS, Rule, Rules, optimise
from onnxperf.graph import Graph, Note, is_trained
from onnxperf.ground.errors import Error, ModelError, UsageError, counted, printable
from onnxperf.ground.releases import MOST, Release, opset_in, release
from onnxperf.lowering.releases import Releases
from onnxperf.passes.step import Training
from onnxperf.passes.tape import FORWARD
from op_models import Operator, Size, Tensor

if TYPE_CHECKING:
    from onnxperf.passes.training import Autograd

#: How an allocator takes memory from the driver: see onnxperf.running.memory, which has what each of them takes.
ARENAS = ("powers of two", "doubling", "segments", "exact")
Span = tuple[float, float]  # the least and the most, in seconds
NAMED = 100  # characters of a list of nodes in an error
PRODUCTS = tuple(size.__name__ for size in get_args(Size))  # the sizes whose products can be named in `Policy.tf32`


def _need(holds: bool, field: str, what: str, value: Any) -> None:
    """Raise TypeError where a field does not hold what it must: a module that somebody added may say anything."""
    if not holds:
        raise TypeError(f"{field} must be {what}, not {value!r:.100}")


def _are_rules(value: Any) -> bool:
    """Whether something maps levels to sequences of rules; the engine looks at each of these."""
    ways = value.items() if isinstance(value, Mapping) else [(None, None)]
    return all(level in LEVELS.values() and isinstance(rules, tuple | list) for level, rules in ways)


def _check_since(runtime: str, rules: Rules) -> None:
    """Raise TypeError where a rule in the list of a runtime that has releases does not say since which of them."""
    for rule in (f for level in rules.values() for f in level if isinstance(f, Rule)):
        if not rule.since:
            says = f"the rule {rule.name!r} does not say since which release {runtime} has it"
            raise TypeError(f'{says}: give it since="1.17", or list rule.of("1.17")')
        try:
            first, last = release(rule.since), release(rule.until or rule.since, MOST)
        except ValueError as e:
            raise TypeError(f"the rule {rule.name!r}: {e}") from e
        if last < first:
            raise TypeError(f"the rule {rule.name!r} is there since {first}, but only until {last}")


@dataclass(frozen=True, slots=True)
class Policy:
    """Choices a runtime makes: `tf32` names the families of products that may use TF32, `arena` is how its allocator
    takes memory (see onnxperf.running.memory), `channels_last`: all convolutions read and write NHWC, as tensor
    cores want it, `planned`: what their kernels need beside the operands, such as tables of indices, is made when an
    engine is built, `timed`: their kernels are the fastest of many that its builder times, `tensor_multiple`: of what
    the columns and the contracted axis of products in FP16 have to be multiples, to run on tensor cores,
    `sums_in_fp16`: products in FP16 are summed in FP16, not in FP32, `single_elements`: kernels of ONNX's elementwise
    operators load elements one by one, not as vectors, `switched`: types whose casts ask of each element what its type
    is, as elementwise kernels of several types then do, `pads`: products are padded where that is faster, `turned`:
    where channels don't lie last, the results of convolutions on tensor cores are turned round by a kernel of their
    own, as their images are.
    """

    tf32: frozenset[str] = frozenset()
    arena: str = "powers of two"
    channels_last: bool = False
    planned: bool = False
    timed: bool = False
    tensor_multiple: int = 1
    sums_in_fp16: bool = False
    single_elements: bool = False
    turned: bool = False
    switched: frozenset[str] = frozenset()
    pads: bool = False

    def __post_init__(self) -> None:
        families = isinstance(self.tf32, Collection) and all(name in PRODUCTS for name in self.tf32)
        _need(families and not isinstance(self.tf32, str), "tf32", f"a set of some of {', '.join(PRODUCTS)}", self.tf32)
        _need(self.arena in ARENAS, "arena", f"one of {', '.join(ARENAS)}", self.arena)
        for name in ("channels_last", "planned", "timed", "sums_in_fp16", "single_elements", "turned", "pads"):
            _need(isinstance(getattr(self, name), bool), name, "True or False", getattr(self, name))
        whole = isinstance(self.tensor_multiple, int) and self.tensor_multiple > 0
        _need(whole, "tensor_multiple", "a whole number above 0", self.tensor_multiple)


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Seconds the host spends: per run; `walk_s` per node for which it launches nothing, such as a view, and
    `host_op_s` more where it computes the node itself; `node_s` to prepare the kernels of any other node; per kernel
    launch, per copy it starts, and per wait for the device. `gap_s` passes on the device between two kernels.

    `replay_s` and `replay_gap_s` take the place of run and gap where a CUDA graph is replayed, `engine_s` that of walk
    and node behind the forward pass, where the runtime's own engine calls; None: there it is the same. `library_s` more
    for a product or convolution, whose library chooses a kernel in each call.
    """

    run_s: float
    walk_s: float
    node_s: float
    launch_s: float
    host_op_s: float
    copy_s: float
    sync_s: float
    gap_s: float
    replay_s: float
    replay_gap_s: float
    source: str
    engine_s: float | None = None
    library_s: float = 0.0

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self) if f.name != "source"):
            seconds = 0.0 if name == "engine_s" and self.engine_s is None else getattr(self, name)
            number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            _need(number and 0 <= seconds < inf, name, "seconds, 0 or more", seconds)
        _need(isinstance(self.source, str), "source", "text", self.source)

    def scaled(self, factor: float) -> HostCosts:
        """The costs on a host that takes `factor` times as long; gaps between kernels are the card's own."""
        names = ("run_s", "walk_s", "node_s", "launch_s", "host_op_s", "copy_s", "sync_s", "replay_s", "library_s")
        engine_s = None if self.engine_s is None else self.engine_s * factor
        return replace(self, **{name: getattr(self, name) * factor for name in names}, engine_s=engine_s)

    def of(self, phase: str) -> HostCosts:
        """The costs in a phase of PHASES of a training step; inference is forward."""
        if phase == FORWARD or self.engine_s is None:
            return self
        return replace(self, walk_s=self.engine_s, node_s=self.engine_s, engine_s=None)


@dataclass(frozen=True, slots=True)
class StartCosts:
    """Seconds, each from the least to the most, that a runtime spends once.

    library_s: its libraries are loaded and their handles made; node_s: per node of the file, which is read and
    optimised; code_s: per kind of kernel, whose code is loaded at its first use.
    search_s: per convolution, the choice of an algorithm at the first run with a shape, which `search` names;
    searched_once: convolutions that are alike share that choice, else each node makes its own. quicker: what makes the
    choice quicker, `quicker_s` per convolution; again: when a choice is made anew, "" where it is kept.
    build_s: per kernel that differs from the others, what is compiled or timed before the first run, which `build`
    names; cached_s: the same where a file has these results, which `cache` names; builder_s: once beside them.
    per_shape: for which shapes nothing is built anew.
    """

    library_s: Span = (0.1, 3.0)
    node_s: Span = (50e-6, 500e-6)
    code_s: Span = (0.1e-3, 20e-3)
    search_s: Span = (0.3e-3, 2e-3)
    search: str = "cuDNN's heuristics choose"
    searched_once: bool = False
    quicker: str = ""
    quicker_s: Span = (0.0, 0.0)
    again: str = ""
    build_s: Span = (0.0, 0.0)
    build: str = ""
    cached_s: Span = (0.0, 0.0)
    cache: str = ""
    builder_s: Span = (0.0, 0.0)
    per_shape: str = ""


def _nothing(what: Operator | Graph) -> str:
    """Nothing to say of an operator or a graph."""
    return ""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A way of running a graph: `rules` say what it fuses, `place` puts operators on GPU or host and inserts copies,
    `host` is what that costs the processor, `start` what it costs once, before the steady state. `title` is its name as
    people write it.

    `host_constants` names the table of `constants.host` that replaces the host costs where measured runs told of them,
    `errs_as` the runs whose errors say how wide its ranges are, "" for those of all releases.
    `offline` are the rules of an optimizer that may have rewritten the file before, `kind` is the device the runtime is
    made for (gpu or cpu), `releases` says which releases of it are known (see `of_version`), None where none are told
    apart: rules and `offline` then hold those of every release, each with `since` which. `release` is the one that this
    is, None for today's.
    `refused` says why it can't run an operator of a file and what to do instead, "" where it can; `unmeasured` says
    what of a run no measurement confirms, "" where all of it was measured.
    `training` is the release of it that trains, where that is another one; `autograd` gives how that differentiates,
    None where it does not train; `before_training` are the rules that rewrite a graph before its
    backward pass is added, where `rules` apply to the whole, and empty where `rules` do.
    `layouts` are the orders in which it can be told to keep images, each with the runtime that it is then (see
    `of_layout`), `modes` the ways in which it can be told to compile (see `of_mode`); `autocast` is what it makes of a
    graph under the precision amp, None where it has none.
    """

    name: str
    rules: Rules
    place: Callable[[Graph], Graph]
    policy: Policy
    host: HostCosts
    describe: str
    host_constants: str = ""
    errs_as: str = ""
    offline: Rules = field(default_factory=dict)
    kind: str = "gpu"
    releases: Releases | None = None
    release: Release | None = None
    layouts: Mapping[str, Runtime] = field(default_factory=dict)
    modes: Mapping[str, Runtime] = field(default_factory=dict)
    autocast: Callable[[Graph], Graph] | None = None
    refused: Callable[[Operator], str] = _nothing
    unmeasured: Callable[[Graph], str] = _nothing
    title: str = ""
    training: Runtime | None = None
    autograd: Callable[[], Autograd] | None = None
    before_training: Rules = field(default_factory=dict)
    start: StartCosts = field(default_factory=StartCosts)

    def __post_init__(self) -> None:
        for name in ("name", "describe", "host_constants", "errs_as", "title"):
            _need(isinstance(getattr(self, name), str), name, "text", getattr(self, name))
        _need(self.releases is None or isinstance(self.releases, Releases), "releases", "Releases", self.releases)
        for name in ("rules", "offline", "before_training"):
            rules = getattr(self, name)
            _need(_are_rules(rules), name, "tuples of rules by their level, such as {BASIC: (rule,)}", rules)
            if self.releases is not None:
                _check_since(self.name, rules)
        _need(callable(self.place), "place", "a function", self.place)
        _need(isinstance(self.policy, Policy), "policy", "a Policy", self.policy)
        _need(isinstance(self.host, HostCosts), "host", "HostCosts", self.host)
        _need(isinstance(self.start, StartCosts), "start", "StartCosts", self.start)
        _need(self.kind in ("gpu", "cpu"), "kind", "gpu or cpu", self.kind)
        for name in ("layouts", "modes"):
            ways = getattr(self, name)
            held = isinstance(ways, Mapping) and all(isinstance(way, Runtime) for way in ways.values())
            _need(held, name, f"Runtimes by their {name[:-1]}", ways)
        for name, function in (("refused", self.refused), ("unmeasured", self.unmeasured)):
            _need(callable(function), name, "a function", function)
        _need(self.training is None or isinstance(self.training, Runtime), "training", "a Runtime", self.training)
        trains = self.autograd is None or callable(self.autograd)
        _need(trains, "autograd", "a function or None", self.autograd)
        _need(self.autocast is None or callable(self.autocast), "autocast", "a function or None", self.autocast)

    def unsupported(self, device: Device) -> str:
        """Why it does not run on a device at all, in its release; "" where it does."""
        if self.releases is None or device.kind != "gpu":
            return ""
        why = self.releases.unsupported(device.capability, self.release)
        named = f"{self.title or self.name} {self.release or 'of today'}"
        of = "{}.{}".format(*device.capability)
        return f"{named} does not run on {device.id}, of compute capability {of}: {why}" if why else ""

    @property
    def has_levels(self) -> bool:
        """False where all its rules apply at every optimisation level."""
        return any(level > DISABLED for level in self.rules)

    @property
    def synchronous(self) -> bool:
        """True where the host computes each operator itself before it goes on to the next."""
        return self.kind == "cpu"

    @property
    def launches(self) -> bool:
        """True where the host launches kernels, on streams or as a CUDA graph."""
        return not self.synchronous


def of_version(runtime: Runtime, version: str) -> Runtime:
    """The runtime as a release of it is; UsageError where that is not known, or no releases of it are told apart."""
    if runtime.releases is None:
        raise UsageError(f"{runtime.name} is known only as it is today: leave the release out")
    return _of_release(runtime, runtime.releases, runtime.releases.named(version, runtime.name))


def _of_release(runtime: Runtime, releases: Releases, at: Release) -> Runtime:
    """The runtime, its layouts and its modes, in one of its releases."""
    what, comma, more = runtime.describe.partition(",")
    chosen = at >= release(releases.layouts or "0")
    ways = runtime.layouts.items() if chosen else ()
    layouts = {name: _of_release(way, way.releases or releases, at) for name, way in ways}
    modes = {name: _of_release(way, way.releases or releases, at) for name, way in runtime.modes.items()}
    changes = {"layouts": layouts, "modes": modes, "training": None, **releases.changed(at)}
    return replace(runtime, release=at, describe=f"{what} {at}{comma}{more}", **changes)


def check_file(graph: Graph, runtime: Runtime) -> None:
    """Raise ModelError where the release of a runtime does not take the graph of a file, with the first that does: it
    does not load the opset, or takes operators one by one and lacks some.
    """
    if runtime.releases is None or runtime.release is None:
        return
    if later := runtime.releases.operators:
        _refuse(graph, runtime, lambda o: _too_early(runtime.release, release(later.get(o.type, "0"))))
        return
    opset = max((o.version for o in graph.operators if "::" not in o.type), default=0)
    if opset > (most := opset_in(runtime.releases.opsets, runtime.release)):
        first = runtime.releases.loading(opset)
        instead = f"take {first} or a later release, or" if first is not None else "no release known loads it:"
        says = f"{runtime.describe.partition(',')[0]} loads opset {most} of ONNX at most, and this model is of opset"
        raise ModelError(f"{says} {opset}: {instead} export it at opset {most}")


def _too_early(at: Release | None, first: Release) -> str:
    """What to do about an operator that came with a later release, "" where it did not."""
    if at is None or at >= first:
        return ""
    return f"release {at} has no such operator: take {first} or a later one, replace it, or add a plugin"


def of_layout(runtime: Runtime, layout: str) -> Runtime:
    """The runtime that keeps images in an order of `ground.names.LAYOUTS`; UsageError where it can't be told to."""
    if layout not in runtime.layouts:
        what = runtime.describe.split(",")[0]
        raise UsageError(f"{what} takes no layout, it chooses itself how images lie in memory: leave --layout out")
    return runtime.layouts[layout]


def of_mode(runtime: Runtime, mode: str) -> Runtime:
    """The runtime that compiles in a mode of `ground.names.COMPILE_MODES`; UsageError where it has none."""
    if mode not in runtime.modes:
        raise UsageError(
            f"{runtime.name} has no compile mode: give --runtime torch-compile, or leave --compile-mode out"
        )
    return replace(runtime.modes[mode], modes=runtime.modes)


def run_graph(
    graph: Graph, runtime: Runtime, level: int = ALL, transformers: bool = False, amp: bool = False,
    step: Training | None = None,
) -> Graph:  # fmt: skip
    """What `runtime` makes of `graph` at an optimisation level of LEVELS.

    `transformers` says whether the optimizer of onnxruntime.transformers has been at work on the file before, `amp`
    whether it runs under autocast, which the runtime must have, `step` what a training step has beside the graph.
    Raises ModelError where the runtime refuses operators, UsageError where one of them can't be trained.
    """
    _refuse(graph, runtime, runtime.refused)
    if transformers:
        before = Counter(o.type for o in graph.operators)
        graph = optimise(graph, runtime.offline, DISABLED, runtime.release)
        if not any(o.type.startswith("com.microsoft::") and not before[o.type] for o in graph.operators):
            note = Note("nothing-fused", "the optimizer of onnxruntime.transformers recognises nothing in this export")
            graph = replace(graph, notes=(*graph.notes, note))
    first = runtime.before_training if step is not None else {}
    fused = optimise(graph, first or runtime.rules, level, runtime.release)
    autocast = runtime.autocast if amp else None
    if step is not None and runtime.autograd is not None:
        from onnxperf.passes.training import training_step

        typed = training_step(fused, step, runtime.autograd(), autocast)
        if first:
            typed = optimised_step(typed, runtime, level)
    else:
        typed = autocast(fused) if autocast is not None else fused
    placed = runtime.place(typed)
    if not isinstance(placed, Graph):
        raise Error(f"the function place of the runtime {runtime.name} gave a {type(placed).__name__}, not a Graph")
    return placed


def optimised_step(step: Graph, runtime: Runtime, level: int) -> Graph:
    """What the rules of a runtime make of a graph with its backward pass: weights are no constants to them."""
    from onnxperf.passes.training import with_phases

    whole = optimise(_with_kind(step, "weight", "input"), runtime.rules, level, runtime.release)
    return _with_kind(replace(whole, operators=tuple(with_phases(whole.operators))), "input", "weight")


def _with_kind(graph: Graph, old: str, new: str) -> Graph:
    """The graph with the stored tensors that training changes taken for another kind, or back."""
    inputs = {t.name for t in graph.inputs}

    def changed(t: Tensor | None) -> Tensor | None:
        trained = t is not None and t.kind == old and t.name not in inputs and is_trained(replace(t, kind="weight"))
        return replace(t, kind=new) if t is not None and trained else t

    operators = (replace(o, inputs=tuple(map(changed, o.inputs))) for o in graph.operators)
    return replace(graph, operators=tuple(operators))


def _refuse(graph: Graph, runtime: Runtime, reason: Callable[[Operator], str]) -> None:
    """Raise ModelError where there is a reason not to take some operators: what to do about each kind, which nodes."""
    refused: dict[str, list[Operator]] = {}
    for o in graph.operators:
        if why := reason(o):
            refused.setdefault(why, []).append(o)
    if not refused:
        return
    parts = []
    for why, operators in refused.items():
        types = ", ".join(dict.fromkeys(o.type for o in operators))
        nodes = ", ".join(dict.fromkeys(n for o in operators for n in o.nodes))
        parts.append(f"{printable(types)} ({counted(len(operators), 'node')}: {printable(nodes)[:NAMED]}): {why}")
    raise ModelError(f"{runtime.describe.split(',')[0]} can't import this model: {'; '.join(parts)}")

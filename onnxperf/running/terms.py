"""The terms of a prediction as data: what can be asked for beside a model, its sizes and a card.

From the fields of `Terms` are made the options of the command line, the keywords of `onnxperf.predict` and what `help`
says of them, what `Run.under` takes, and every check of one term alone. A further term is one more field, and its use.
Nothing heavy is imported, so that `--help` stays quick.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import Parameter, signature
from textwrap import fill
from typing import Any, TypedDict, TypeVar

from gpu_specs import HOSTS, clusters
from gpu_specs.toml_file import figure
from onnxperf.ground.errors import UsageError, as_arguments
from onnxperf.ground.names import (
    BASELINES,
    COMPILE_MODES,
    LAYOUTS,
    LEVELS,
    LOSSES,
    METHODS,
    MODES,
    OPTIMIZERS,
    PRECISIONS,
    RUNTIMES,
    choice_named,
)

T = TypeVar("T")
Examples = Mapping[str, Any] | Sequence[Any] | None
MOST = 1e15  # milliseconds, GB, watts or hertz
USUAL_METHOD = "tile-wave"
SERVES_VALIDATE = "is there for `onnxperf validate` to compare with: predictions don't take it"


@dataclass(frozen=True, slots=True)
class Term:
    """How a term is asked for, which values it takes, and what it goes with.

    help: what the option says, and `help(onnxperf.predict)` where `about` does not say it better; usual: what the
    default of None or "" means. flags: the option, where that is not the name with dashes; metavar: stands for a value.

    Values are True and False where the default is one of them, else one of `choices`, a whole number from 1 to `most`,
    a positive number (`number` is its name and unit), the name or path of a `file`, or text that is read where it is
    used. noun: the term in messages. elsewhere: values that serve something else, and what.

    mode: the only one that has the term; runtime, method: the attribute that is true of those that have it; device: the
    kind of the devices that have it. acts: what alone it changes, "graph" which kernels there are, "copies" those of
    inputs and outputs. again: another value takes another graph or device, so that a run can't be asked for it.
    """

    default: Any
    help: str = ""
    about: str = ""
    usual: str = ""
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    most: int = 0
    number: str = ""
    file: bool = False
    noun: str = ""
    mode: str = ""
    runtime: str = ""
    method: str = ""
    device: str = ""
    acts: str = ""
    again: bool = False
    name: str = ""

    def named(self, name: str) -> Term:
        """The term with its name, and the option and the noun that follow from it."""
        flags, noun = self.flags or (f"--{name.replace('_', '-')}",), self.noun or name.replace("_", " ")
        return replace(self, name=name, flags=flags, noun=noun)

    def is_usual(self, value: Any) -> bool:
        """Whether a value is the default; 0 and 1 are not False and True."""
        return type(value) is type(self.default) and bool(value == self.default)

    def wrong(self, value: Any) -> str:
        """Why the term can't have a value; "" where it can."""
        if self.is_usual(value) or (value is None and self.default == ""):
            return ""
        if isinstance(self.default, bool):
            return "" if isinstance(value, bool) else f"{self.name} must be True or False, not {value!r:.60}"
        if self.most:
            whole = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= self.most
            return "" if whole else f"{self.name} must be a whole number from 1 to {self.most:,}, not {value!r:.60}"
        if self.number:
            positive = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < MOST
            most = f"must be a positive number below {figure(MOST)}"
            return "" if positive else f"the {self.number} {most}, not {value!r:.60}"
        if (self.choices or self.file) and not isinstance(value, str):
            names = f"one of {', '.join(self.choices)}" if self.choices else f"or the path of a {self.noun}'s file"
            return f"{self.noun} can't be a {type(value).__name__}: give a name, {names}"
        if self.choices and value not in self.choices:
            if value in self.elsewhere:
                return f"the {self.noun} {value} {self.elsewhere[value]}"
            return f"unknown {self.noun} {value!r:.60}: it is one of {', '.join(self.choices)}"
        return ""

    def described(self) -> str:
        """The term for people who write Python: its name, its choices, and what it is."""
        named = " or ".join(filter(None, (", ".join(self.choices[:-1]), *self.choices[-1:])))
        usual = f"None means {self.usual}" if self.usual else ""
        said = ". ".join(part.rstrip(".") for part in (named, self.about or self.help, usual) if part)
        return as_arguments(f"{self.name}: {said}.")


def term(default: T, help: str = "", **more: Any) -> T:
    """A field of `Terms`: its default, what its option says, and more of a `Term`."""
    return field(default=default, metadata={"term": Term(default, help, **more)})


@dataclass(frozen=True, slots=True)
class Terms:
    """How a model is run on a card, as it was asked for."""

    runtime: str = term("", "What runs the model.", usual="ort-cuda; ort-cpu on a CPU", choices=RUNTIMES)
    opt_level: str = term("all", "Graph optimisation level of ONNX Runtime.", choices=LEVELS, noun="optimisation level",
                          runtime="has_levels", acts="graph")  # fmt: skip
    ort_version: str | None = term(
        None, "Release of the runtime: ort-cuda and ort-cpu from 1.4, tensorrt 6, torch-eager 1.12, torch-compile 2.0.",
        usual="today's",
        flags=("--ort-version", "--runtime-version"), metavar="1.12", acts="graph",
    )  # fmt: skip
    ort_transformers: bool = term(False, "First apply the optimizer of onnxruntime.transformers.", runtime="offline",
                                  noun="optimizer of onnxruntime.transformers", acts="graph")  # fmt: skip
    fix_dims: bool = term(
        False, "Fix dynamic dimensions when the session is created.",
        about="Dynamic dimensions are fixed when the session is created, as by ONNX Runtime's"
              " `add_free_dimension_override_by_name`; else they stay dynamic, as the model is exported.",
    )  # fmt: skip
    precision: str = term("keep", "keep: types as stored; amp: PyTorch's autocast to float16.", choices=PRECISIONS)
    layout: str | None = term(None, "Memory layout of images; nhwc is channels_last.", usual="the runtime's",
                              choices=LAYOUTS)  # fmt: skip
    compile_mode: str | None = term(
        None, "Mode of torch.compile: reduce-overhead replays a CUDA graph, max-autotune also tries Triton's GEMMs.",
        usual="default", choices=COMPILE_MODES, runtime="modes", noun="compile mode",
    )  # fmt: skip
    method: str = term(USUAL_METHOD, "How kernel times are predicted; the others are baselines.", choices=METHODS,
                       elsewhere=dict.fromkeys(BASELINES, SERVES_VALIDATE))  # fmt: skip
    mode: str = term(
        "inference", "training: one step of forward, backward and update.", choices=MODES, again=True,
        about="Training predicts one step: forward, backward and update of the parameters, under torch-eager,"
              " torch-compile or ort-cuda; a graph that has its backward pass is used as it is.",
    )  # fmt: skip
    loss: str | None = term(None, "Loss of a training step.", about="Loss of the first output.",
                            usual="from the outputs of MODEL", choices=LOSSES, mode="training", again=True)  # fmt: skip
    optimizer: str | None = term(None, "Optimizer of a training step.", usual="adam", choices=OPTIMIZERS,
                                 mode="training", again=True)  # fmt: skip
    recompute: bool = term(False, "Activation checkpointing: recompute activations in the backward pass.",
                           noun="recomputation", mode="training", again=True)  # fmt: skip
    accumulate: int = term(1, "Gradient accumulation: batches per update.", most=100_000,
                           noun="gradient accumulation", mode="training", again=True)  # fmt: skip
    gpus: int | None = term(None, "Number of GPUs.", usual="as --parallel needs", most=65_536, again=True)
    parallel: str | None = term(
        None, "Parallelism: dp data (--batch is the global batch), tp tensor, pp=4:microbatches=8 pipeline, ep expert.",
        metavar="tp=4|dp=2,tp=4|...", again=True,
        about='"dp=4" data parallel, where the batch is that of all GPUs; "tp=4" tensor parallel, as Megatron-LM;'
              ' "pp=4:microbatches=8" pipeline parallel; "ep=4" expert parallel; "dp=2,tp=4" both.',
    )  # fmt: skip
    cluster: str | None = term(
        None, f"Interconnect of the GPUs: {', '.join(clusters())}, or a cluster's TOML file.", metavar="NAME|FILE",
        about="Interconnect of the GPUs, such as dgx-h100, or the path of a cluster's TOML file.",
        usual="the card's NVLink, else PCIe", file=True, again=True,
    )  # fmt: skip
    streams: int = term(1, "Number of CUDA streams; kernels on several may overlap.", most=64, runtime="launches",
                        method="scheduled", device="gpu")  # fmt: skip
    cuda_graph: bool = term(False, "Replay a captured CUDA graph.", noun="CUDA graph", runtime="launches",
                            method="scheduled", device="gpu")  # fmt: skip
    include_transfers: bool = term(False, "Include H2D and D2H copies of inputs and outputs.", noun="H2D or D2H copies",
                                   device="gpu", acts="copies")  # fmt: skip
    pageable: bool = term(False, "With --include-transfers: from pageable, not pinned, memory.", acts="copies")
    host: str = term(
        "", f"CPU host, which launches kernels: {', '.join(HOSTS)}, or a host file (calibrate --host-only).",
        about="The CPU host, which launches kernels, such as server-2023, or the path of a file of `onnxperf calibrate"
              " --host-only`.",
        usual="usual for the card", metavar="NAME|FILE", file=True, method="scheduled",
    )  # fmt: skip
    power_mode: str | None = term(
        None, "Power mode of a Jetson, as nvpmodel names it: 15W, MAXN, ... `onnxperf gpus NAME` lists them.",
        metavar="15W|MAXN", usual="that of the card's figures", again=True,
    )  # fmt: skip
    power_limit_W: float | None = term(None, "Power limit, as by nvidia-smi -pl.", flags=("--power-limit",),
                                       metavar="W", number="power limit (W)", method="power_limit",
                                       again=True)  # fmt: skip
    clock_Hz: float | None = term(None, "Locked GPU clock, as by nvidia-smi -lgc.", flags=("--clock",), metavar="MHZ",
                                  number="clock (Hz)", again=True)  # fmt: skip


#: By name, in the order in which `--help` lists them.
TERMS: Mapping[str, Term] = {f.name: f.metadata["term"].named(f.name) for f in fields(Terms)}


class Common(TypedDict, total=False):
    """The terms that all cells of a sweep share, all but the precision, as keywords of a function: type checkers can't
    read them off `Terms`, which a test does.
    """

    runtime: str | None
    opt_level: str
    ort_version: str | None
    ort_transformers: bool
    fix_dims: bool
    layout: str | None
    compile_mode: str | None
    method: str
    mode: str
    loss: str | None
    optimizer: str | None
    recompute: bool
    accumulate: int
    gpus: int | None
    parallel: str | None
    cluster: str | os.PathLike[str] | None
    streams: int
    cuda_graph: bool
    include_transfers: bool
    pageable: bool
    host: str | os.PathLike[str] | None
    power_mode: str | None
    power_limit_W: float | None
    clock_Hz: float | None


class Keywords(Common, total=False):
    """All terms as keywords of a function."""

    precision: str


class Named(TypedDict, total=False):
    """Sizes by name that a file leaves open, or that take the place of its own."""

    shapes: Mapping[str, Sequence[int]] | None
    dims: Mapping[str, int] | None
    trip_counts: Mapping[str, int] | None


class Bindings(Named, total=False):
    """The same with the batch."""

    batch: int | None


class Bound(Bindings, Keywords, total=False):
    """The keywords of functions that predict one batch."""


class Unbatched(Named, Keywords, total=False):
    """The keywords of functions that predict one batch or several, without it."""


class Budgeted(Unbatched, total=False):
    """The keywords of `onnxperf.check`, without cards and batches."""

    fit: bool
    max_ms: float | None
    max_gb: float | None


def having(**facets: object) -> Iterator[Term]:
    """The terms with these facets, such as those of a mode."""
    return (t for t in TERMS.values() if all(getattr(t, facet) == value for facet, value in facets.items()))


def unusual(terms: Terms) -> list[Term]:
    """The terms that are not left as they are by default."""
    return [t for t in TERMS.values() if not t.is_usual(getattr(terms, t.name))]


def as_terms(terms: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords as terms: paths are text, choices in the case that is theirs. Raises TypeError for keywords that are no
    terms, as Python does.
    """
    if unknown := terms.keys() - TERMS.keys():
        raise TypeError(f"predict() got an unexpected keyword argument {min(unknown)!r}")
    named = {name: os.fspath(x) if isinstance(x, os.PathLike) and TERMS[name].file else x for name, x in terms.items()}
    return {name: choice_named(x, (*TERMS[name].choices, *TERMS[name].elsewhere)) for name, x in named.items()}


def check_values(terms: Mapping[str, Any]) -> None:
    """Raise UsageError where a term has a value that it can't have."""
    for name, value in terms.items():
        if name in TERMS and (why := TERMS[name].wrong(value)):
            raise UsageError(why)


def spelt_out(function: T) -> T:
    """The same function, of which `help` lists every term instead of `**terms`, and says what it is for {terms}."""
    shown: Any = function
    written = signature(shown)
    parameters = [p for p in written.parameters.values() if p.kind != Parameter.VAR_KEYWORD]
    types = {name: kind.__forward_arg__ for name, kind in Keywords.__annotations__.items()}
    for f in fields(Terms):
        usual = None if f.default == "" else f.default
        kind = types.get(f.name, f.type)
        parameters.append(Parameter(f.name, Parameter.KEYWORD_ONLY, default=usual, annotation=kind))
    shown.__signature__ = written.replace(parameters=parameters)
    lines = (fill(t.described(), 116, initial_indent="    ", subsequent_indent="    ") for t in TERMS.values())
    shown.__doc__ = (shown.__doc__ or "").replace("    {terms}", "\n".join(lines))
    return function

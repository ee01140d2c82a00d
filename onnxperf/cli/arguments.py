"""What the command line accepts: options, quantities, shapes and counts written as text; what they ask of a model."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gpu_specs.toml_file import figure
from onnxperf.ground.errors import UsageError, printable
from onnxperf.ground.lists import batches_of
from onnxperf.ground.names import (
    BASELINES,
    CACHES,
    ENGINES,
    EXAMPLES,
    LEVELS,
    MEASURED,
    METHODS,
    PROVIDERS,
    USUAL_ENGINE,
    WEIGHTS,
    choice_named,
)  # fmt: skip
from onnxperf.running.terms import TERMS, Term, having

TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
SIZE_UNITS = {
    "B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30,
}  # fmt: skip

MOST_MHZ = 1e9

if TYPE_CHECKING:
    from onnxperf.graph import Graph
    from onnxperf.running.pipeline import Gpu, Request

    _Choice = click.Choice[str]  # generic since click 8.2
else:
    _Choice = click.Choice


class Count(click.IntRange):
    """A whole number in a range, which click's messages call an integer range."""

    name = "whole number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; digits are those of ASCII alone, where Python also reads 1_0 and digits of other scripts."""
        if isinstance(value, str) and not re.fullmatch(r"\s*[-+]?[0-9]{1,18}\s*", value):
            self.fail(f"{value!r:.60} is not a valid whole number.", param, ctx)
        return super().convert(value, param, ctx)


class Number(click.types.FloatParamType):
    """A number in plain digits, see `Count`."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number as a float."""
        if isinstance(value, str) and (not value.isascii() or "_" in value):
            self.fail(f"{value!r:.60} is not a valid number.", param, ctx)
        return super().convert(value, param, ctx)


class OneOf(_Choice):
    """One of some names, in any case."""

    def __init__(self, among: Sequence[str]) -> None:
        super().__init__(among, case_sensitive=False)


class Choice(OneOf):
    """One of a term's choices; what serves something else is refused with what it serves."""

    def __init__(self, term: Term) -> None:
        super().__init__(term.choices)
        self.term = term

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The choice."""
        if (name := choice_named(value, self.term.elsewhere)) in self.term.elsewhere:
            self.fail(f"{self.term.wrong(name)}.", param, ctx)
        return super().convert(value, param, ctx)


Command = Callable[..., None]
Example = tuple[str, tuple[int, ...], str]  # an input's name, shape and type

debug = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of a bug.")


def parse_quantity(text: str, name: str, units: Mapping[str, float]) -> float:
    """A positive number with a unit."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([a-zA-Z]+)\s*", text)
    number = float(match[1]) * units.get(match[2], 0.0) if match else 0.0
    if not 0 < number < math.inf:
        such = f"a number and a unit ({', '.join(units)}), such as {'8ms' if 'ms' in units else '2GB'}"
        raise UsageError(f"{text!r} is not a {name}; write {such}")
    return number


def _hertz(mhz: float) -> float:
    if not 0 < mhz < MOST_MHZ:
        raise UsageError(f"must be a positive number of MHz below {figure(MOST_MHZ)}, not {figure(mhz)}")
    return mhz * 1e6


def parse_share(text: str) -> float:
    """A share from 0 up, as a percentage or a fraction."""
    match = re.fullmatch(r"\s*([0-9]{0,9}\.?[0-9]{1,9})\s*(%?)\s*", text)
    share = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if share < 0 or (match and not match[2] and share > 1):
        raise UsageError(f"{text!r} is not a percentage or fraction: write 15% or 0.15")
    return share


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """NAME:1x3x224x224, also with commas or brackets, split at the last colon; an empty shape is a scalar."""
    name, colon, sizes = text.rpartition(":")
    body = sizes.strip().strip("[]()").strip()
    parts = [p for p in re.split(r"[x,\s]+", body) if p]
    if not colon or not name or not all(re.fullmatch(r"[0-9]{1,18}", p) for p in parts):
        raise UsageError(f"{text!r} is not valid: write NAME:1x3x224x224")
    return name, tuple(map(int, parts))


def parse_input(text: str) -> Example:
    """[NAME:]1x3x224x224[:int64]: the name, "" where there is none; the shape; the type, float32 if none is given."""
    match = re.fullmatch(r"(?:(.+):)?([0-9]{1,9}(?:x[0-9]{1,9}){0,31})(?::([a-z0-9]+))?", text.strip())
    if not match or (match[3] or "float32") not in EXAMPLES:
        types = f"float32 or TYPE, which is one of {', '.join(EXAMPLES[1:])}"
        raise UsageError(f"{text!r} is not valid: write [NAME:]1x3x224x224[:TYPE]; it is {types}")
    return match[1] or "", tuple(map(int, match[2].split("x"))), match[3] or "float32"


def parse_axis(text: str) -> tuple[str, int, str]:
    """INPUT:0=batch: the name of an input, an axis of it, and the name of the open dimension there."""
    match = re.fullmatch(r"(.+):([0-9]{1,2})=([A-Za-z_][A-Za-z_0-9]*)", text.strip())
    if not match:
        raise UsageError(f"{text!r} is not valid: write INPUT:AXIS=NAME, such as x:0=batch")
    return match[1], int(match[2]), match[3]


def parse_number(text: str, form: str) -> tuple[str, int]:
    """NAME=N."""
    name, equals, number = text.rpartition("=")
    if not equals or not name or not re.fullmatch(r"[0-9]{1,18}", number.strip()):
        raise UsageError(f"{text!r} is not valid: write {form}")
    return name, int(number)


def parse_price(text: str) -> tuple[str, float]:
    """CARD=USD."""
    name, equals, usd = text.rpartition("=")
    if not equals or not name or not re.fullmatch(r"[0-9]{0,6}\.?[0-9]{1,6}", usd.strip()):
        raise UsageError(f"{text!r} is not valid: write CARD=USD, such as l4=0.80")
    return name, float(usd)


def by_name(texts: Iterable[str], parse: Callable[[str], tuple[str, Any]]) -> dict[str, Any]:
    """The values of a repeatable option by name; UsageError where one name has two different values."""
    values: dict[str, Any] = {}
    for name, value in map(parse, texts):
        if values.setdefault(name, value) != value:
            raise UsageError(f"gives {name!r} twice, with different values")
    return values


def by_card(texts: Iterable[str], parse: Callable[[str], tuple[str, Any]]) -> dict[str, Any]:
    """The same of an option whose names are cards: several with commas between, such as l4=0.80,t4=0.53."""
    return by_name((part for text in texts for part in _parts(text, text.rpartition("=")[0]) or [text]), parse)


def _parts(text: str, file: str) -> list[str]:
    """What stands between commas, but for nothing; all of a text that begins with the path of a file."""
    return [text] if os.path.isfile(file) else [part for part in map(str.strip, text.split(",")) if part]


def read_option(flag: str, *name: str, read: Callable[[Any], Any], **more: Any) -> Callable[[Command], Command]:
    """An option whose text (a tuple of texts if it is repeatable) is parsed by `read`; a UsageError names the flag."""

    def callback(_: click.Context, option: click.Parameter, text: Any) -> Any:
        try:
            return None if text is None else read(text)
        except UsageError as e:
            raise UsageError(f"{flag} {e}") from None

    return click.option(flag, *name, callback=callback, **more)


DURATION = partial(parse_quantity, name="duration", units=TIME_UNITS)
SIZE = partial(parse_quantity, name="size", units=SIZE_UNITS)


def _chosen(flag: str, among: tuple[str, ...], says: str | None = None, **more: Any) -> Callable[[Command], Command]:
    return click.option(flag, type=OneOf(among), help=says, **more)


DIMS = partial(by_name, parse=partial(parse_number, form="name=N, such as sequence=128"))
TRIPS = partial(by_name, parse=partial(parse_number, form="NODE=N, such as decode=20"))
SHAPES = read_option("--shapes", read=partial(by_name, parse=parse_shape), multiple=True, metavar="NAME:1x3x224x224",
                     help="Shape of a tensor; repeatable.")  # fmt: skip
DIM = read_option("--dim", "dims", read=DIMS, multiple=True, metavar="NAME=N",
                  help="Size of a named dynamic dimension; repeatable.")  # fmt: skip
BATCH = click.option("--batch", type=Count(min=1), help="Batch size: the leading dimension of the inputs. A"
                     " fixed batch in the file is changed, with a note.")  # fmt: skip
BATCHES = partial(
    read_option, "--batch", read=batches_of, metavar="N|1,2,4|1..64",
    help="Batch size, or several: 1..64 doubles from 1 to 64, and in 1,2,4,...,64 the series continues. A fixed batch"
         " in the file is changed, with a note.",
)  # fmt: skip
OUT = click.option("-o", "out", type=click.Path(), required=True, metavar="FILE", help="Output file.")


def _cards(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Cards with commas between; a file whose name has one is one card."""
    cards = tuple(dict.fromkeys(card for text in texts for card in _parts(text, text)))
    if texts and not cards:
        raise UsageError("names no card: give an id, such as l4 (see: onnxperf gpus)")
    return cards


#: Which commands take several cards, for a command that takes one.
SEVERAL_CARDS = "predict, check, compare, recommend and sweep take several"
SEVERAL_CARDS_DECODING = "compare and recommend take several for a language model"


def _only(texts: tuple[str, ...], instead: str = SEVERAL_CARDS) -> str:
    cards = _cards(texts)
    if len(cards) > 1:
        raise UsageError(f"names {len(cards)} cards, and this command takes one; {instead}")
    return cards[0]


A_CARD = "Id, alias, nvidia-smi name, or a card's TOML file (see: onnxperf gpus)"
_ONE = partial(read_option, "--gpu", multiple=True, required=True, help=f"{A_CARD}.")
GPU, GPU_DECODING = _ONE(read=_only), _ONE(read=partial(_only, instead=SEVERAL_CARDS_DECODING))
IF_A_MODEL = read_option("--gpu", multiple=True, read=lambda texts: _only(texts) if texts else None,
                         help=f"For models: {A_CARD[0].lower()}{A_CARD[1:]}.")  # fmt: skip
SEVERAL = partial(read_option, "--gpu", multiple=True, read=_cards, help=f"{A_CARD}; several as l4,t4.")

FIT = click.option("--fit", is_flag=True, help="Use the largest batch that fits into GPU memory and the limits.")


def _of_term(term: Term) -> Callable[[Command], Command]:
    """The option that asks for a term."""
    usual = f"  [default: {term.usual}]" if term.usual else ""
    more: dict[str, Any] = {"help": (term.help + usual).strip(), "metavar": term.metavar}
    if isinstance(term.default, bool):
        more["is_flag"] = True
    elif term.default:
        more |= {"default": term.default, "show_default": True}
    if term.choices:
        more["type"] = Choice(term)
    elif term.most:
        more["type"] = Count(1, term.most)
    elif term.number:
        more["type"] = Number()
    option = partial(read_option, read=READERS[term.name]) if term.name in READERS else click.option
    return option(*term.flags, term.name, **more)


READERS = {"clock_Hz": _hertz}  # of options that are not what they are called in Python
OF_TERMS = {name: _of_term(term) for name, term in TERMS.items()}
#: Sizes that a file leaves open, by the names of their arguments.
SIZES: dict[str, Callable[[Command], Command]] = {
    "shapes": SHAPES, "dims": DIM, "batch": BATCH,
    "trip_counts": read_option("--trip-count", "trip_counts", read=TRIPS, multiple=True, metavar="NODE=N",
                               help="Iterations of a Loop node; repeatable."),
}  # fmt: skip
LAUNCHING = list(TERMS).index("streams")  # from here on: how kernels are launched, and what the card and its host are


def _scenario(*without: str) -> tuple[Callable[[Command], Command], ...]:
    """A scenario beside its card: terms, with the sizes before how kernels are launched; but for some of them."""
    names = [*OF_TERMS]
    names[LAUNCHING:LAUNCHING] = SIZES
    options = {**OF_TERMS, **SIZES}
    return tuple(options[name] for name in names if name not in without)


#: Limits on a prediction.
LIMITS = (
    read_option("--max-latency", read=DURATION, metavar="8ms", help="Exit 1 if slower."),
    read_option("--max-memory", read=SIZE, metavar="2GB", help="Exit 1 if GPU memory use is higher."),
)

#: Views of a prediction, each written to a file.
VIEWS = (
    click.option("--trace", "trace_to", metavar="FILE.json",
                 help="Write a timeline for ui.perfetto.dev, with the fields of ONNX Runtime's profiles."),
    click.option("--netron", "netron_to", metavar="FILE.json|.onnx",
                 help="Write the time of each node for Netron; .onnx: into a copy of the model."),
    click.option("--model-explorer", "model_explorer_to", metavar="FILE.json",
                 help="Write the time of each node for Model Explorer; beside it FILE.flops.json and others."),
    click.option("--profile", "profile_to", metavar="FILE.json", help="Write layers as trtexec --exportProfile does."),
    click.option("--plot", "plot_to", metavar="FILE.png|.svg", help="Plot the roofline."),
)  # fmt: skip

#: Cards to choose from, beside those that are named, and their prices.
CARDS = (
    click.option("--all", "every", is_flag=True, help="All built-in cards."),
    read_option("--gpu-memory", "capacity_bytes", read=SIZE, metavar="24GB", help="Cards with at least this memory."),
    click.option("--generation", metavar="ada", help="Cards of this architecture."),
    read_option("--price", "prices", read=partial(by_card, parse=parse_price), multiple=True, metavar="l4=0.80",
                help="Price of a card, US dollars per hour; several as l4=0.80,t4=0.53."),
)  # fmt: skip
#: How a language model is asked to generate: its runs, its lengths, and the requests that it gets.
DECODER = (
    click.option("--config", type=click.Path(), metavar="config.json",
                 help="Instead of MODEL: build the graph from a Hugging Face config."),
    click.option("--prefill", type=click.Path(), metavar="FILE.onnx",
                 help="The prefill model, if MODEL takes one token only."),
    click.option("--prompt", type=Count(1, 1 << 24), default=2048, show_default=True, help="Prompt length, tokens."),
    click.option("--output", type=Count(2, 1 << 24), default=256, show_default=True, help="Output length, tokens."),
    click.option("--chunk", type=Count(1, 1 << 24), metavar="N",
                 help="Chunked prefill: tokens per chunk; with --qps or --concurrency new tokens of an iteration."
                      "  [default: the whole prompt; of an iteration the engine's own, 2048 for ort-genai]"),
    click.option("--cached", type=Number(), metavar="0.5", default=0.0, show_default=True,
                 help="Share of each prompt that is in the prefix cache."),
    click.option("--draft", type=click.Path(), metavar="config.json",
                 help="With --config: the config of a draft model, for speculative decoding."),
    click.option("--accept", type=Number(), metavar="0.7",
                 help="With --draft: how likely a proposed token is accepted."),
    click.option("--draft-tokens", type=int, metavar="K",
                 help="With --draft: tokens proposed in a step.  [default: 4]"),
    click.option("--weights", type=OneOf(WEIGHTS),
                 help="With --config: weight-only quantisation, as MatMulNBits in blocks of 32."),
    click.option("--cache", type=OneOf(CACHES),
                 help="With --config: type of the KV cache.  [default: as activations]"),
    click.option("--engine", type=OneOf(ENGINES), default=USUAL_ENGINE, show_default=True,
                 help="With --config: the engine that serves it."),
    click.option("--prune-lm-head", is_flag=True,
                 help="With --config: compute logits of the last position only, as serving engines do."),
    click.option("--prompt-lengths", metavar="lognormal:2048:0.5",
                 help="Of requests: median and log standard deviation, or uniform:1:99.  [default: --prompt]"),
    click.option("--output-lengths", metavar="uniform:16:512",
                 help="Output lengths of requests.  [default: --output; with --concurrency 3% around it]"),
    click.option("--requests", type=Count(1, 100_000),
                 help="Requests to simulate.  [default: 1000; with --concurrency 10 for each]"),
    click.option("--seed", type=Count(0), default=0, show_default=True, help="Random seed of the requests."),
)  # fmt: skip
#: Of these, files that are read.
DECODER_FILES = ("config", "prefill", "draft")
#: How many requests there are, and how instances divide them.
LOAD = (
    click.option("--qps", type=Number(), metavar="N",
                 help="Simulate serving at this request rate, with continuous batching."),
    click.option("--concurrency", metavar="N|1,8,64|1..256",
                 help="Simulate a closed loop of N requests, each replaced as it ends."),
    click.option("--pools", metavar="1:2",
                 help="Instances for prefill : for decode, each of the GPUs of --parallel."),
)  # fmt: skip
#: How soon tokens must come.
PACE = (
    read_option("--tpot", "token_s", read=DURATION, metavar="50ms", help="Limit on the time per output token."),
    read_option("--ttft", "first_s", read=DURATION, metavar="1s", help="Limit on the time to first token."),
)
AS_JSON = click.option("--json", "json_to", metavar="FILE|-", help="Write everything as JSON; - prints JSON only.")

#: How a model is run here; `Job` has the defaults.
HERE = (
    _chosen("--provider", PROVIDERS, "Execution provider.  [default: cuda if usable]"),
    SHAPES, DIM, BATCH,
    _chosen("--precision", MEASURED, "Precision of the run.  [default: keep]"),
    _chosen("--opt-level", LEVELS, "Graph optimisation level.  [default: all]"),
    click.option("--iterations", type=Count(1, 1_000_000), help="Timed runs after warm-up.  [default: 300]"),
)  # fmt: skip

#: What such a run measures and prints, and how long it takes.
COUNTED = (
    click.option("--inputs", type=click.Path(), metavar="FILE.npz",
                 help="Input arrays by name, instead of random data."),
    read_option("--duration", "duration_s", read=DURATION, metavar="10s", help="Stop after this time."),
    click.option("--include-transfers", is_flag=True, help="Also time H2D and D2H copies of inputs and outputs."),
    click.option("--throughput", "search", is_flag=True, help="Search the batch size with the highest throughput."),
    read_option("--batches", read=batches_of, metavar="1,2,4", help="Measure throughput at these batch sizes."),
    click.option("--allow-host", is_flag=True, help="Continue if nodes meant for the GPU run on the CPU."),
    click.option("--json", "json_to", metavar="FILE|-", help="Write the measurement as JSON; - prints JSON only."),
)  # fmt: skip

#: What predictions are compared with, and the error that is allowed.
SCORED = (
    click.option("--data", type=click.Path(), metavar="DIR", help="Full tables, files of `onnxperf measure`, or both."),
    click.option("--gpu",
                 help="With MODEL: the device to predict for, or its file.  [default: the device of the run]"),
    _chosen("--method", (*sorted((*METHODS, *BASELINES)), "all"),
            "Method to score; with MODEL, to predict with.  [default: all; tile-wave]"),
    read_option("--fail-above", read=parse_share, metavar="15%",
                help="Exit 1 if the error on MODEL or your own files is larger."),
    click.option("--json", "json_to", metavar="FILE|-", help="Write everything as JSON; - prints JSON only."),
    click.option("--markdown", is_flag=True, help="Print the tables as a page in Markdown; not with MODEL."),
    click.option("--plot", "plot_to", metavar="FILE.png|.svg",
                 help="Plot predicted against measured times of whole models; not with MODEL."),
)  # fmt: skip

DYNAMIC = read_option("--dynamic", read=lambda texts: [parse_axis(text) for text in texts], multiple=True,
                      metavar="INPUT:0=batch", help="A dynamic axis; repeatable.")  # fmt: skip

#: Options of exports from a framework.
EXPORTED = (
    read_option("--input", "inputs", read=lambda texts: [parse_input(text) for text in texts], multiple=True,
                metavar="[NAME:]1x3x224x224[:int64]", help="An example input; repeatable."),
    OUT,
    click.option("--weightless", is_flag=True, help="Leave the weights out; the prediction stays the same."),
)  # fmt: skip


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """A decorator that adds these options to a command."""

    def give(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return give


TRAINING = ("mode", *(term.name for term in having(mode="training")))
of_a_run = _options(GPU, *_scenario(), FIT)
of_runs = _options(SEVERAL(required=True), BATCHES(), *_scenario("batch"), FIT)
of_one, of_two = _options(GPU, *_scenario()), _options(IF_A_MODEL, *_scenario(), FIT)
of_a_decoder = _options(GPU_DECODING, *_scenario("batch", "layout", *TRAINING, "gpus", "parallel"))
of_requests, loaded, paced = _options(*DECODER), _options(*LOAD), _options(*PACE)
of_cards = _options(SEVERAL(), *CARDS, AS_JSON, *_scenario())
of_a_sweep = _options(SEVERAL(), *CARDS, BATCHES(), *_scenario("precision", "dims", "batch"))
limited, of_an_export, viewed = _options(*LIMITS), _options(*EXPORTED), _options(*VIEWS)
counted_here, scored_here = _options(*HERE, *COUNTED), _options(*SCORED, *HERE)


def files_read(terms: Mapping[str, Any], *others: str | None) -> list[str]:
    """What options of a scenario and others name that is read, where it is a file: no answer may be written over it."""
    named = (terms.get(name) for name in ("gpu", *(term.name for term in having(file=True))))
    listed = (files if isinstance(files, tuple) else (files,) for files in (*named, *others))
    return [path for paths in listed for path in paths if isinstance(path, str) and path]


def asked_of(
    model: str | Graph, json_to: str | None, *, gpu: str | tuple[str, ...], fit: bool = False, **terms: Any
) -> Request:
    """What the options of a scenario ask of a model; no answer may be written to `json_to` over a file that is read."""
    from onnxperf.graph.targets import check_target
    from onnxperf.running.pipeline import request_for

    if not model:
        raise UsageError("the path of MODEL is empty")
    check_target(json_to, *files_read({"gpu": gpu, **terms}, model if isinstance(model, str) else None))
    return request_for(model, open_batch=fit, **terms)


def asked_at(batches: Sequence[int | None], model: str, json_to: str | None, *, fit: bool, **terms: Any) -> Request:
    """The request for a model at one batch, or with its batch open where there are several."""
    only = batches[0] if len(batches) == 1 else None
    return asked_of(model, json_to, batch=only, fit=fit or len(batches) > 1, **terms)


def tell_aliases(names: Iterable[str]) -> None:
    """Say on stderr which card each name is taken as, where several have it. Raises UsageError for a name of none."""
    from onnxperf.running.pipeline import find

    if notes := [note.message for name in names for note in find(name)[1]]:
        click.echo(f"onnxperf: {printable('; '.join(notes))}", err=True)


def check_among(flag: str, said: Mapping[str, float], cards: Iterable[Gpu]) -> None:
    """Raise UsageError where an option says something of a card that is not among those to choose from."""
    from onnxperf.running.pipeline import find

    among = {find(card)[0].id for card in cards}
    for name, value in said.items():
        if find(name)[0].id not in among:
            option = f"{flag} {name}={value:g}"
            raise UsageError(
                f"{option}: {name} is not one of the cards to choose from: add it to --gpu, or leave this out"
            )


def refuse_others(flag: str, *names: str) -> None:
    """Raise UsageError where an option or argument but for these is given beside `flag`."""
    context = click.get_current_context()
    for option in context.command.params:
        name = option.name or ""
        if name not in names and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            said = option.opts[-1] if isinstance(option, click.Option) else name.upper()
            raise UsageError(f"{flag} says all of its models: leave {said} out, or write it into the file")


def options_set(terms: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given; `Job` has the defaults of the others."""
    return {name: value for name, value in terms.items() if value}

"""What the command line accepts: the choices, and quantities, shapes and counts written as text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from onnxperf.errors import UsageError

if TYPE_CHECKING:
    FloatType = click.ParamType[float]
else:
    FloatType = click.ParamType  # older versions of click take no [float]

# Written out here so that --help loads nothing; a test holds them equal to the rooms' own.
RUNTIMES = ("ort-cuda", "ort-cuda-1.12", "ort-cpu", "tensorrt", "torch-eager")
HOSTS = ("server", "desktop", "cloud", "jetson")
PRECISIONS = ("keep", "fp32", "tf32", "fp16", "bf16", "int8", "fp8")
METHODS = ("tile-wave", "sum", "roofline")
LEVELS = ("disabled", "basic", "extended", "all")
TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
SIZE_UNITS = {
    "B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30,
}  # fmt: skip


class Quantity(FloatType):
    """A positive number with a unit."""

    def __init__(self, name: str, units: dict[str, float]):
        self.name = name
        self.units = units

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([a-zA-Z]+)\s*", value)
        if match and match[2] in self.units:
            number = float(match[1]) * self.units[match[2]]
            if 0 < number < math.inf:
                return number
        example = "8ms" if "ms" in self.units else "2GB"
        self.fail(
            f"{value!r} is no {self.name}; write a number and a unit ({', '.join(self.units)}), such as {example}",
            param,
            ctx,
        )


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """NAME:1x3x224x224, also with commas or brackets, split at the last colon; an empty shape is a scalar."""
    name, colon, sizes = text.rpartition(":")
    body = sizes.strip().strip("[]()").strip()
    parts = [p for p in re.split(r"[x,\s]+", body) if p]
    if not colon or not name or not all(re.fullmatch(r"[0-9]{1,18}", p) for p in parts):
        raise UsageError(f"--shapes {text!r} is not understood: write NAME:1x3x224x224")
    return name, tuple(map(int, parts))


def parse_product(text: str) -> tuple[int, ...]:
    """MxNxK or BxMxNxK."""
    if not re.fullmatch(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8}){2,3}", text.strip()):
        raise UsageError(f"--gemm {text!r} is not understood: write MxNxK or BxMxNxK, such as 4096x4096x4096")
    return tuple(map(int, text.strip().split("x")))


def parse_dim(text: str) -> tuple[str, int]:
    """name=N."""
    return _named_number(text, "--dim", "name=N, such as sequence=128")


def parse_count(text: str) -> tuple[str, int]:
    """NODE=N."""
    return _named_number(text, "--trip-count", "NODE=N, such as decode=20")


def _named_number(text: str, flag: str, form: str) -> tuple[str, int]:
    name, equals, number = text.rpartition("=")
    if not equals or not name or not re.fullmatch(r"[0-9]{1,18}", number.strip()):
        raise UsageError(f"{flag} {text!r} is not understood: write {form}")
    return name, int(number)


def unique(texts: tuple[str, ...], parse: Callable[[str], tuple[str, Any]], flag: str) -> dict[str, Any]:
    """All of a repeatable option by name; naming one twice is refused unless both say the same."""
    found: dict[str, Any] = {}
    for name, value in map(parse, texts):
        if found.setdefault(name, value) != value:
            raise UsageError(f"{flag} gives {name!r} twice, with different sizes")
    return found


#: What a run is: the card, the runtime, the precision, the model's open dimensions, how it is launched.
SCENARIO = (
    click.option(
        "--gpu", required=True, help="Id, alias, nvidia-smi name, or a card's TOML file (see: onnxperf gpus)."
    ),
    click.option("--runtime", type=click.Choice(RUNTIMES), default="ort-cuda", show_default=True),
    click.option(
        "--opt-level",
        type=click.Choice(LEVELS),
        default="all",
        show_default=True,
        help="Optimisations of ort-cuda and ort-cpu.",
    ),
    click.option("--ort-transformers", is_flag=True, help="First fuse what onnxruntime.transformers' optimizer does."),
    click.option("--precision", type=click.Choice(PRECISIONS), default="keep", show_default=True),
    click.option("--method", type=click.Choice(METHODS), default="tile-wave", show_default=True),
    click.option("--shapes", multiple=True, metavar="NAME:1x3x224x224", help="Shape of a tensor; repeatable."),
    click.option("--dim", "dims", multiple=True, metavar="NAME=N", help="Size of a named open dimension; repeatable."),
    click.option("--batch", type=click.IntRange(min=1), help="Size of the leading dimension of the inputs."),
    click.option("--fit", is_flag=True, help="Take the largest batch that fits into the card's memory."),
    click.option("--trip-count", "trips", multiple=True, metavar="NODE=N", help="How often a Loop runs; repeatable."),
    click.option(
        "--streams",
        type=click.IntRange(1, 64),
        default=1,
        show_default=True,
        help="Kernels that may run side by side.",
    ),
    click.option("--cuda-graph", is_flag=True, help="Replay a captured CUDA graph."),
    click.option("--include-transfers", is_flag=True, help="Count the copies of inputs and outputs."),
    click.option("--pageable", is_flag=True, help="These copies are from and to memory that is not pinned."),
    click.option(
        "--host",
        type=click.Choice(HOSTS),
        help="Processor that launches kernels.  [default: server; jetson for Jetson modules]",
    ),
    click.option("--power-limit", "power_limit_W", type=float, metavar="W", help="Power limit the card is set to."),
    click.option("--clock", type=float, metavar="MHZ", help="Clock the card is locked to."),
)


def of_a_run(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of SCENARIO."""
    for option in reversed(SCENARIO):
        command = option(command)
    return command

"""The command line. stdout is data, stderr is for people; exit codes are on the exception classes."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from onnxperf import __version__
from onnxperf.errors import Error, LimitExceeded, MissingDependency, UsageError, printable

if TYPE_CHECKING:
    from gpu_specs import Device
    from onnxperf.graph import Graph
    from onnxperf.prediction import Prediction, Scenario

BUG = 70
INTERRUPTED = 130
REPORT_TO = "the project's issue tracker"
# Written out here so that --help loads nothing; a test holds them equal to the rooms' own.
RUNTIMES = ("ort-cuda", "torch-eager")
PRECISIONS = ("keep", "fp32", "tf32", "fp16", "bf16", "int8", "fp8")
METHODS = ("tile-wave", "sum", "roofline")
LEVELS = ("disabled", "basic", "extended", "all")
TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
SIZE_UNITS = {
    "B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30,
}  # fmt: skip


class Quantity(click.ParamType[float]):
    """A positive number with a unit."""

    def __init__(self, name: str, units: dict[str, float]):
        self.name = name
        self.units = units

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([a-zA-Z]+)\s*", value)
        if match and match[2] in self.units and float(match[1]) > 0:
            return float(match[1]) * self.units[match[2]]
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


def parse_dim(text: str) -> tuple[str, int]:
    """name=N."""
    name, equals, number = text.rpartition("=")
    if not equals or not name or not re.fullmatch(r"[0-9]{1,18}", number.strip()):
        raise UsageError(f"--dim {text!r} is not understood: write name=N, such as sequence=128")
    return name, int(number)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="onnxperf")
@click.option("--debug", is_flag=True, help="Show the traceback of a bug.")
def cli(debug: bool) -> None:
    """Predict how long an ONNX model takes on a GPU that is not there.

    \b
    Example:
      onnxperf predict model.onnx --gpu l4
    """


@cli.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--gpu", required=True, help="Id, alias, nvidia-smi name, or a card's TOML file (see: onnxperf gpus).")
@click.option("--runtime", type=click.Choice(RUNTIMES), default="ort-cuda", show_default=True)
@click.option(
    "--opt-level",
    type=click.Choice(LEVELS),
    default="all",
    show_default=True,
    help="Optimisations of ort-cuda.",
)
@click.option("--precision", type=click.Choice(PRECISIONS), default="keep", show_default=True)
@click.option("--method", type=click.Choice(METHODS), default="tile-wave", show_default=True)
@click.option("--shapes", multiple=True, metavar="NAME:1x3x224x224", help="Shape of a tensor; repeatable.")
@click.option("--dim", "dims", multiple=True, metavar="NAME=N", help="Size of a named open dimension; repeatable.")
@click.option("--batch", type=click.IntRange(min=1), help="Size of the leading dimension of the inputs.")
@click.option(
    "--streams",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Kernels that may run side by side.",
)
@click.option("--cuda-graph", is_flag=True, help="Replay a captured CUDA graph.")
@click.option("--include-transfers", is_flag=True, help="Count the copies of inputs and outputs.")
@click.option("--json", "json_to", metavar="FILE|-", help="Write the answer as JSON; - prints JSON only.")
@click.option("--top", type=click.IntRange(min=0), default=8, show_default=True, help="Kernels to list.")
@click.option("--detail", is_flag=True, help="List every kernel, every note.")
@click.option("--max-latency", type=Quantity("duration", TIME_UNITS), metavar="8ms", help="Exit 1 when slower.")
@click.option("--max-memory", type=Quantity("size", SIZE_UNITS), metavar="2GB", help="Exit 1 when larger.")
def predict(
    model: Path,
    gpu: str,
    runtime: str,
    opt_level: str,
    precision: str,
    method: str,
    shapes: tuple[str, ...],
    dims: tuple[str, ...],
    batch: int | None,
    streams: int,
    cuda_graph: bool,
    include_transfers: bool,
    json_to: str | None,
    top: int,
    detail: bool,
    max_latency: float | None,
    max_memory: float | None,
) -> None:
    """Predict one run of MODEL, and say what bounds it.

    \b
    Examples:
      onnxperf predict resnet50.onnx --gpu l4
      onnxperf predict bert.onnx --gpu a100 --batch 8 --dim sequence=128 --precision fp16
      onnxperf predict model.onnx --gpu t4 --json - --max-latency 8ms
    """
    from onnxperf.graph import load
    from onnxperf.pipeline import answer, find
    from onnxperf.prediction import Scenario

    device, notes = find(gpu)
    graph = load(
        model,
        shapes=_unique(shapes, parse_shape, "--shapes"),
        dims=_unique(dims, parse_dim, "--dim"),
        batch=batch,
    )
    graph = replace(graph, notes=(*notes, *graph.notes))
    scenario = Scenario(
        graph.name,
        device.id,
        runtime,
        opt_level,
        precision,
        method,
        graph.batch,
        streams,
        cuda_graph,
        include_transfers,
    )
    prediction = answer(graph, device, scenario)
    if json_to:
        write_json(json_to, prediction.to_json())
    if json_to != "-":
        from onnxperf.report import console, show

        changes = _changes(graph, device, scenario, prediction)
        show(console(), prediction, device, top=top, detail=detail, changes=changes)
    _gate(prediction, max_latency, max_memory)


def _unique(texts: tuple[str, ...], parse: Callable[[str], tuple[str, Any]], flag: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in map(parse, texts):
        if found.setdefault(name, value) != value:
            raise UsageError(f"{flag} gives {name!r} twice, with different sizes")
    return found


def _changes(graph: Graph, device: Device, scenario: Scenario, now: Prediction) -> list[tuple[str, Prediction]]:
    """The same run under other terms, where they help: half precision, a CUDA graph, both."""
    from onnxperf.pipeline import answer

    if scenario.method != "tile-wave":
        return []
    half = {"precision": "fp16"} if scenario.precision in ("keep", "fp32", "tf32") else {}
    replay = {"cuda_graph": True} if not scenario.cuda_graph and scenario.streams == 1 else {}
    found = []
    for what, terms in (
        ("--precision fp16", half),
        ("--cuda-graph", replay),
        ("--precision fp16 --cuda-graph", {**half, **replay} if half and replay else {}),
    ):
        if not terms:
            continue
        try:
            then = answer(graph, device, replace(scenario, **terms))
        except Error:
            continue
        if then.seconds < 0.97 * now.seconds:
            found.append((what, then))
    return found


def _gate(p: Prediction, max_latency: float | None, max_memory: float | None) -> None:
    from onnxperf.report import blame, duration, size

    reasons = []
    if max_latency is not None and p.seconds > max_latency:
        reasons.append(
            f"{duration(p.seconds)} is over the limit of {duration(max_latency)}; most of it goes to {blame(p)}"
        )
    if max_memory is not None and p.memory.total_bytes > max_memory:
        reasons.append(f"{size(p.memory.total_bytes)} of memory is over the limit of {size(max_memory)}; {_largest(p)}")
    if reasons:
        raise LimitExceeded("; ".join(reasons))


def _largest(p: Prediction) -> str:
    from onnxperf.report import size

    m = p.memory
    if m.weights_bytes >= m.activations_bytes:
        return f"{size(m.weights_bytes)} of it are weights"
    most = sorted(p.kernels, key=lambda k: -k.bytes_written)[:3]
    named = ", ".join(f"{printable(k.name)} ({printable(k.op)}, {size(k.bytes_written)})" for k in most)
    return f"{size(m.activations_bytes)} of it are activations, the largest written by {named}"


def write_json(target: str, text: str) -> None:
    """Print JSON, or write it aside and rename, so that a file is never half there."""
    if target == "-":
        click.echo(text)
        return
    path = Path(target)
    try:
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as f:
                f.write(text + "\n")
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(aside, 0o666 & ~umask)
            os.replace(aside, path)
        except BaseException:
            os.unlink(aside)
            raise
    except OSError as e:
        raise MissingDependency(f"can't write {path}: {e.strerror or e}") from e


@cli.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def gpus(name: str | None, as_json: bool) -> None:
    """List the cards, or show every fact of one with its source.

    \b
    Examples:
      onnxperf gpus
      onnxperf gpus l4
    """
    import gpu_specs
    from onnxperf import gpus as cards
    from onnxperf.pipeline import find
    from onnxperf.report import console

    if name is None:
        devices = [gpu_specs.load(i) for i in gpu_specs.ids()]
        if as_json:
            click.echo(json.dumps([cards.as_json(d) for d in devices], indent=2))
        else:
            cards.show_gpus(console(), devices)
        return
    device, notes = find(name)
    for note in notes:
        click.echo(note.message, err=True)
    if as_json:
        click.echo(json.dumps(cards.as_json(device), indent=2))
    else:
        cards.show_gpu(console(), device)


def main() -> NoReturn:
    """Run the command line and exit with the code that design and help promise."""
    try:
        cli.main(standalone_mode=False)
        code = 0
    except click.exceptions.Exit as e:
        code = e.exit_code
    except click.ClickException as e:
        e.show()
        code = 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        code = INTERRUPTED
    except Error as e:
        click.echo(f"onnxperf: {printable(str(e))}", err=True)
        code = e.exit_code
    except BrokenPipeError:  # whoever read our output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except MemoryError:
        click.echo("onnxperf: not enough memory for this model", err=True)
        code = MissingDependency.exit_code
    except Exception as e:
        if "--debug" in sys.argv:
            raise
        what = f"{type(e).__name__}: {str(e)[:200]}"
        click.echo(
            f"onnxperf: this is a bug of ours ({printable(what)}); please report it to {REPORT_TO}, with --debug",
            err=True,
        )
        code = BUG
    sys.exit(code)

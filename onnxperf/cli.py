"""The command line. stdout is data, stderr is for people; exit codes are on the exception classes."""

from __future__ import annotations

import io
import json
import sys
import traceback
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import click

from onnxperf import __version__
from onnxperf.arguments import (
    SIZE_UNITS,
    TIME_UNITS,
    Quantity,
    counted_here,
    of_a_job,
    of_a_run,
    parse_count,
    parse_dim,
    parse_product,
    parse_shape,
    scored_here,
    unique,
)
from onnxperf.errors import EnvironmentFailure, Error, LimitExceeded, UsageError, printable
from onnxperf.output import check_target, prepare_streams, settle_streams, write_file

if TYPE_CHECKING:
    from gpu_specs import Device
    from onnxperf.graph import Graph
    from onnxperf.prediction import Prediction, Scenario

BUG = 70
INTERRUPTED = 130
REPORT_TO = "the project's issue tracker"

debug = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of a bug.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="onnxperf")
@debug
def cli() -> None:
    """Predict how long an ONNX model takes on a GPU that is not there.

    \b
    Example:
      onnxperf predict model.onnx --gpu l4
    """


@cli.command()
@click.argument("model", type=click.Path())
@of_a_run
@click.option("--json", "json_to", metavar="FILE|-", help="Write the answer as JSON; - prints JSON only.")
@click.option("--top", type=click.IntRange(min=0), default=8, show_default=True, help="Kernels to list.")
@click.option("--detail", is_flag=True, help="List every kernel, every note.")
@click.option("--max-latency", type=Quantity("duration", TIME_UNITS), metavar="8ms", help="Exit 1 when slower.")
@click.option("--max-memory", type=Quantity("size", SIZE_UNITS), metavar="2GB", help="Exit 1 when larger.")
@debug
def predict(
    model: str,
    json_to: str | None,
    top: int,
    detail: bool,
    max_latency: float | None,
    max_memory: float | None,
    **terms: Any,
) -> None:
    """Predict one run of MODEL, and say what bounds it.

    \b
    Examples:
      onnxperf predict resnet50.onnx --gpu l4
      onnxperf predict bert.onnx --gpu a100 --batch 8 --dim sequence=128 --precision fp16
      onnxperf predict model.onnx --gpu t4 --json - --max-latency 8ms
      onnxperf predict model.onnx --gpu l4 --fit --power-limit 50 --runtime tensorrt
    """
    from onnxperf.pipeline import answer

    graph, device, scenario = _prepared(model, json_to, **terms)
    prediction = answer(graph, device, scenario)
    try:
        if json_to == "-":
            click.echo(prediction.to_json())
        else:
            from onnxperf.report import console, show

            if json_to:
                write_file(json_to, prediction.to_json() + "\n")
            changes = _changes(graph, device, scenario, prediction)
            show(console(), prediction, device, top=top, detail=detail, changes=changes)
    except (BrokenPipeError, SystemExit):  # whoever reads has enough: the limits hold all the same
        _gate(prediction, max_latency, max_memory)
        raise
    _gate(prediction, max_latency, max_memory)


def _prepared(
    model: str | Graph, json_to: str | None, *, gpu: str, shapes: tuple[str, ...], dims: tuple[str, ...],
    batch: int | None, fit: bool, trips: tuple[str, ...], clock: float | None, **terms: Any,
) -> tuple[Graph, Device, Scenario]:  # fmt: skip
    """The model, the card and the scenario that SCENARIO's options ask for."""
    from onnxperf.pipeline import Request, largest, prepare

    if not model:
        raise UsageError("the path of MODEL is empty")
    if json_to not in (None, "-"):
        check_target(json_to, *(path for path in (model, gpu) if isinstance(path, str)))
    request = Request(
        model,
        gpu,
        shapes=unique(shapes, parse_shape, "--shapes"),
        dims=unique(dims, parse_dim, "--dim"),
        batch=batch,
        trip_counts=unique(trips, parse_count, "--trip-count"),
        terms={**terms, "clock_Hz": None if clock is None else clock * 1e6},
    )
    return largest(request) if fit else prepare(request)


@cli.command()
@click.argument("model", type=click.Path(), required=False)
@click.option("--node", metavar="NAME", help="An ONNX node of MODEL, or a kernel that `predict --detail` lists.")
@click.option("--gemm", metavar="[Bx]MxNxK", help="Instead of a model: one product, with a B in front a batch of them.")
@of_a_run
@click.option("--json", "json_to", metavar="FILE|-", help="Write the explanation as JSON; - prints JSON only.")
@debug
def explain(model: str | None, node: str | None, gemm: str | None, json_to: str | None, **terms: Any) -> None:
    """Explain one kernel's estimate step by step: work, tiles, waves, bounds, power, range.

    \b
    Examples:
      onnxperf explain resnet50.onnx --gpu l4 --node node_linear
      onnxperf explain --gemm 4096x4096x4096 --gpu l4 --precision fp32
    """
    if (model is None or node is None) if gemm is None else (model is not None or node is not None):
        raise UsageError("explain takes MODEL with --node NAME, or --gemm alone")
    if gemm is not None and (given := [n for n in ("shapes", "dims", "batch", "fit", "trips") if terms[n]]):
        raise UsageError(f"--gemm gives all sizes: {', '.join(given)} would not change them")
    from onnxperf import explain as room
    from onnxperf.report import console

    graph, device, scenario = _prepared(
        room.product_graph(parse_product(gemm)) if gemm is not None else model or "", json_to, **terms
    )
    explanation = room.explain(graph, device, scenario, room.PRODUCT if node is None else node)
    if json_to == "-":
        click.echo(explanation.to_json())
        return
    if json_to:
        write_file(json_to, explanation.to_json() + "\n")
    room.show(console(), explanation)


def _changes(graph: Graph, device: Device, scenario: Scenario, now: Prediction) -> list[tuple[str, Prediction]]:
    """The same run under other terms, where they help: half precision, a CUDA graph, both."""
    from onnxperf.pipeline import answer

    if scenario.method != "tile-wave" or device.kind == "cpu":
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
    weights = m.weights_bytes >= m.activations_bytes
    moved = [(k.bytes_read if weights else k.bytes_written, k) for k in p.kernels]
    most = sorted(moved, key=lambda x: -x[0])[:3]
    named = ", ".join(f"{printable(k.name)} ({printable(k.op)}, {size(nbytes)})" for nbytes, k in most)
    if weights:
        return f"{size(m.weights_bytes)} of it are weights; most is read by {named}"
    return f"{size(m.activations_bytes)} of it are activations, the largest written by {named}"


@cli.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@debug
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


@cli.command()
@click.argument("model", type=click.Path())
@counted_here
@debug
def measure(model: str, json_to: str | None, **terms: Any) -> None:
    """Run MODEL under ONNX Runtime on the device that is here, and time it.

    Weights that the file does not hold are random. Ctrl-C keeps what was measured.

    \b
    Examples:
      onnxperf measure model.onnx --json measured.json
      onnxperf measure bert.onnx --dim sequence=128 --precision fp16 --include-transfers
      onnxperf measure model.onnx --provider cpu --duration 10s --batches 1,2,4
    """
    from onnxperf.measure import show

    show.run(model, json_to, **of_a_job(terms))


@cli.command()
@click.argument("model", type=click.Path(), required=False)
@scored_here
@debug
def validate(model: str | None, gpu: str | None, data: str | None, json_to: str | None, **terms: Any) -> None:
    """Say how far predictions are from measurements.

    With MODEL: run it here under ONNX Runtime, predict it for this very device, and compare the two operator by
    operator. MODEL may also be a file that `onnxperf measure` wrote on another machine (*.json). Without: score every
    method on open measurements, each card left out in turn (how far off, how biased, how honest its range), and on
    your own in DIR; a device file (*.toml) there stands for the device of that name.

    \b
    Examples:
      onnxperf validate model.onnx --fail-above 15%
      onnxperf validate model.onnx --provider cpu --gpu this-cpu.toml --dim sequence=128
      onnxperf validate measured-on-t4.json
      onnxperf validate --data measurements --json scores.json
    """
    from onnxperf.validate import show

    show.run(model, gpu, data, json_to, **of_a_job(terms))


@cli.command()
@click.option("--provider", type=click.Choice(["cuda", "cpu"]), help="[default: cuda where it can be used]")
@click.option("--from", "folder", type=click.Path(), metavar="DIR", help="Fit to files of `onnxperf measure` instead.")
@click.option("-o", "out", type=click.Path(), help="The device file.  [default: this-cpu.toml or CARD-here.toml]")
@click.option("--keep", type=click.Path(), metavar="DIR", help="Keep the measurements there.")
@click.option("--json", "json_to", metavar="FILE|-", help="Write what was found as JSON; - prints JSON only.")
@debug
def calibrate(provider: str | None, folder: str | None, out: str | None, keep: str | None, json_to: str | None) -> None:
    """Fit the device that is here to a suite of small measurements, and write a device file for --gpu.

    With --from: the device that the files in DIR were measured on, which need not be here.

    \b
    Examples:
      onnxperf calibrate
      onnxperf calibrate --provider cpu -o my-cpu.toml --keep measured
      onnxperf calibrate --from measured -o their-t4.toml
    """
    from onnxperf.calibrate import device

    device.run(provider, folder, out, json_to, keep)


def main() -> NoReturn:
    """Run the command line and exit with the code that design and help promise."""
    with suppress(OSError):  # stderr itself may be full
        code = BUG
        code, sentence = _run()
        if sentence:
            click.echo(sentence, err=True)
    settle_streams()
    sys.exit(code)


def _run() -> tuple[int, str]:
    """The exit code, and the sentence for people."""
    try:
        prepare_streams()
        cli.main(standalone_mode=False)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # whoever reads has enough; click and rich then exit by themselves
        return 0, ""
    except click.ClickException as e:
        text = io.StringIO()
        e.show(text)
        return UsageError.exit_code, text.getvalue().rstrip()
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED, "interrupted"
    except Error as e:
        return e.exit_code, f"onnxperf: {printable(str(e))}"
    except MemoryError:
        return EnvironmentFailure.exit_code, "onnxperf: not enough memory for this model"
    except OSError as e:
        what = f"can't use {e.filename}" if e.filename else "can't write the answer"
        return EnvironmentFailure.exit_code, f"onnxperf: {printable(f'{what}: {e.strerror or e}')}"
    except Exception as e:
        if "--debug" in sys.argv:
            return BUG, traceback.format_exc().rstrip()
        what = printable(f"{type(e).__name__}: {str(e)[:200]}")
        return BUG, f"onnxperf: this is a bug of ours ({what}); please report it to {REPORT_TO}, with --debug"
    return 0, ""

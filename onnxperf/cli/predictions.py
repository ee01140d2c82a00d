"""Commands that predict: nothing is run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from onnxperf.arguments import (
    SIZE_UNITS,
    TIME_UNITS,
    Quantity,
    debug,
    of_a_run,
    parse_count,
    parse_dim,
    parse_product,
    parse_shape,
    unique,
)
from onnxperf.errors import UsageError
from onnxperf.output import check_target, write_file

if TYPE_CHECKING:
    from gpu_specs import Device
    from onnxperf.graph import Graph
    from onnxperf.prediction import Scenario


@click.command()
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
    from onnxperf.decide.budget import keep
    from onnxperf.decide.changes import changes
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
            better = changes(graph, device, scenario, prediction)
            show(console(), prediction, device, top=top, detail=detail, changes=better)
    except (BrokenPipeError, SystemExit):  # whoever reads has enough: the limits hold all the same
        keep(prediction, max_latency, max_memory)
        raise
    keep(prediction, max_latency, max_memory)


def _prepared(
    model: str | Graph, json_to: str | None, *, gpu: str, shapes: tuple[str, ...], dims: tuple[str, ...],
    batch: int | None, fit: bool, trips: tuple[str, ...], clock: float | None, **terms: Any,
) -> tuple[Graph, Device, Scenario]:  # fmt: skip
    """The model, the card and the scenario that SCENARIO's options ask for."""
    from onnxperf.export import source
    from onnxperf.pipeline import Request, largest, prepare

    if not model:
        raise UsageError("the path of MODEL is empty")
    if json_to not in (None, "-"):
        check_target(json_to, *(path for path in (model, gpu) if isinstance(path, str)))
    request = Request(
        source(model, open_batch=fit or batch is not None)[0],
        gpu,
        shapes=unique(shapes, parse_shape, "--shapes"),
        dims=unique(dims, parse_dim, "--dim"),
        batch=batch,
        trip_counts=unique(trips, parse_count, "--trip-count"),
        terms={**terms, "clock_Hz": None if clock is None else clock * 1e6},
    )
    return largest(request) if fit else prepare(request)


@click.command()
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


@click.command()
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

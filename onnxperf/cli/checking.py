"""The command that holds predictions to limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from onnxperf.cli.arguments import asked_at, debug, files_read, limited, of_runs
from onnxperf.cli.sections import command
from onnxperf.graph.targets import check_target
from onnxperf.ground.errors import Error, LimitExceeded, UsageError, printable
from onnxperf.ground.output import deliver, json_text

if TYPE_CHECKING:
    from onnxperf.answer.prediction import Prediction
    from onnxperf.running.largest import Limits
    from onnxperf.running.pipeline import Request


@command()
@click.argument("models", type=click.Path(), nargs=-1, required=True, metavar="MODEL...")
@of_runs
@click.option("--json", "json_to", metavar="FILE|-", help="Write the lines as JSON; - prints JSON only.")
@limited
@debug
def check(
    models: tuple[str, ...], gpu: tuple[str, ...], batch: tuple[int, ...] | None, json_to: str | None, fit: bool,
    max_latency: float | None, max_memory: float | None, **terms: Any,
) -> None:  # fmt: skip
    """Check the predicted latency or memory of models against a limit; print a line for each model, card and batch.

    A line has ok, over or error, the time, the GPU memory use, the batch with --fit or if there are several, the card
    if there are several, the file, and the reason if it is not ok. A model that does not fit into GPU memory is over,
    and so is one that collects an unknown number of tensors. The exit code is 1 if a line is over a limit, 2 or 3 if a
    model can't be used; all models are checked first. With several cards or batches the last line names the worst. A
    --dim, --shapes or --trip-count applies to the models that have this name.

    \b
    Examples:
      onnxperf check model.onnx --gpu t4 --max-latency 8ms
      onnxperf check model.onnx --gpu t4,l4 --batch 1..16 --max-latency 20ms
      onnxperf check exported/*.onnx --gpu l4 --gpu t4 --precision fp16 --max-latency 8ms --max-memory 2GB
    """
    from onnxperf.answer.predict import on_each
    from onnxperf.decide.bindings import narrowed
    from onnxperf.decide.budget import excess
    from onnxperf.running.largest import Limits
    from onnxperf.running.pipeline import find

    if max_latency is None and max_memory is None:
        raise UsageError("check takes --max-latency, --max-memory or both")
    for card in gpu:
        find(card)  # an unknown card is reported once, not for every model
    check_target(json_to, *files_read({"gpu": gpu, **terms}, *models))
    limits, batches = Limits(max_latency, max_memory), batch or (None,)
    cases = [(card, n) for card in gpu for n in batches]
    asked = [_asked(batches, model, gpu=gpu, fit=fit, **terms) for model in models]
    usable = iter(narrowed([r for r in asked if not isinstance(r, Error)]))
    lines, unusable, over = list[dict[str, Any]](), list[Error](), list[tuple[float, str]]()
    for model, request in zip(models, asked, strict=True):
        answers: Sequence[Prediction | Error] = (
            [request] * len(cases)
            if isinstance(request, Error)
            else on_each(next(usable), gpu, batches, limits if fit else None)
        )
        for (card, n), answer in zip(cases, answers, strict=True):
            lines.append(_line(model, card, n, answer, limits))
            if isinstance(answer, Error):
                unusable.append(answer)
            elif lines[-1]["verdict"] == "over":
                over.append((excess(answer, limits), _place(lines[-1])))
            if json_to != "-":
                with suppress(BrokenPipeError):  # the reader closed the pipe; limits still decide the exit code
                    click.echo(_shown(lines[-1], fit or len(batches) > 1, len(gpu) > 1))

    def gate() -> None:
        what = "models" if len(cases) == 1 else "predictions"
        if unusable:
            raise type(unusable[0])(f"{len(unusable)} of {len(lines)} {what} can't be used, {len(over)} over the limit")
        if over:
            worst = f", the worst {max(over)[1]}" if len(cases) > 1 else ""
            raise LimitExceeded(f"{len(over)} of {len(lines)} {what} over the limit{worst}")

    deliver(json_to, lambda: json_text(lines), lambda: None, gate)


def _asked(batches: Sequence[int | None], model: str, **terms: Any) -> Request | Error:
    """The request for a model, or why there can be none."""
    try:
        return asked_at(batches, model, None, **terms)
    except Error as e:
        return e


def _line(model: str, gpu: str, batch: int | None, answer: Prediction | Error, limits: Limits) -> dict[str, Any]:
    """What `check` says of a model on a card: the time, memory and batch, and why it does not keep the limits."""
    from onnxperf.decide.budget import reasons

    line: dict[str, Any] = {"model": model, "gpu": gpu, "seconds": None, "process_bytes": None, "batch": batch}
    if isinstance(answer, Error):  # the line has the name of the file
        return line | {"reason": str(answer).removesuffix(f": {model}"), "verdict": "error"}
    why = reasons(answer, limits)
    figures = {"seconds": answer.seconds, "process_bytes": answer.memory.reserved_bytes, "batch": answer.scenario.batch}
    return line | figures | {"reason": why, "verdict": "over" if why else "ok"}


def _place(line: Mapping[str, Any]) -> str:
    return printable(f"{line['model']} on {line['gpu']} at batch {line['batch']}")


def _shown(x: Mapping[str, Any], batched: bool, several: bool) -> str:
    """A line of `check`, with the batch and the card where they differ."""
    from onnxperf.ground.tables import NOTHING, duration, size

    figures = [NOTHING if x["seconds"] is None else duration(x["seconds"])]
    figures.append(NOTHING if x["process_bytes"] is None else size(x["process_bytes"]))
    figures += [NOTHING if x["batch"] is None else f"batch {x['batch']}"] * batched
    shown = (f"{x['verdict']:5}", *(f"{f:>8}" for f in figures), *([x["gpu"]] * several))
    return printable("  ".join((*shown, x["model"])) + (f": {x['reason']}" if x["reason"] else ""))

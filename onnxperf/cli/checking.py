"""The command that holds predictions to limits."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpu_specs.toml_file import missing
from onnxperf.cli.arguments import asked_at, debug, files_read, limited, of_runs, parse_share, read_option, tell_aliases
from onnxperf.cli.sections import command
from onnxperf.graph.targets import check_target
from onnxperf.ground.errors import Error, LimitExceeded, UsageError, printable
from onnxperf.ground.output import deliver, json_text

if TYPE_CHECKING:
    from onnxperf.answer.prediction import Prediction
    from onnxperf.running.largest import Limits
    from onnxperf.running.pipeline import Request


NOTICED = 0.01  # of the time: a change that is smaller has its share alone


@command()
@click.argument("models", type=click.Path(), nargs=-1, required=True, metavar="MODEL...")
@of_runs
@click.option("--against", type=click.Path(), metavar="FOLDER|FILE",
              help="Compare with the model before: FILE, or that of the same path or name in FOLDER.")  # fmt: skip
@read_option(
    "--fail-above", read=parse_share, metavar="5%", help="With --against: exit 1 where a model is slower than before by"
    " more, with 0 by anything, or does not fit.",
)  # fmt: skip
@click.option("--json", "json_to", metavar="FILE|-", help="Write the lines as JSON; - prints JSON only.")
@click.option("--markdown", is_flag=True, help="Print a table in Markdown, as for a comment on a pull request.")
@limited
@debug
def check(
    models: tuple[str, ...], gpu: tuple[str, ...], batch: tuple[int, ...] | None, json_to: str | None, fit: bool,
    max_latency: float | None, max_memory: float | None, against: str | None, fail_above: float | None,
    markdown: bool, **terms: Any,
) -> None:  # fmt: skip
    """Check models against a limit on latency, memory or both.

    Prints a line for each model, card and batch size: ok, over or error, the latency, the change with --against, the
    GPU memory use, the file, the reason if it is not ok, the kernels that most of a change is due to, and how many
    operators are assumed because nobody knows their work. With several cards or batch sizes the limits hold for each,
    and the last line names the worst.

    A model that does not fit into GPU memory is over any limit. So is one whose memory is unknown because a Loop
    collects an unknown number of tensors. A --dim, --shapes or --trip-count applies to the models that have this name.

    With --against each model is compared with the one of that name in another folder, such as a checkout of the base
    branch; one that was not there is new. With --markdown failing rows come first, and names are escaped.

    All models are checked before the command exits: with 1 if one is over a limit, with 2 or 3 if one can't be used.

    \b
    Examples:
      onnxperf check model.onnx --gpu t4 --max-latency 8ms
      onnxperf check model.onnx --gpu t4,l4 --batch 1..16 --max-latency 20ms
      onnxperf check exported/*.onnx --gpu l4 --gpu t4 --precision fp16 --max-latency 8ms --max-memory 2GB
      onnxperf check exported/*.onnx --gpu l4 --against base --fail-above 5% --markdown
    """
    from onnxperf.decide.budget import excess
    from onnxperf.running.largest import Limits

    _check_asked(against, fail_above, markdown, json_to, fit, (max_latency, max_memory))
    tell_aliases(gpu)  # an unknown card is reported once, not for every model
    before = {} if against is None else _before(models, against)
    check_target(json_to, *files_read({"gpu": gpu, **terms}, *models, *before.values()))
    # With --fail-above a model must fit, whatever time it may take.
    limits, batches = Limits(max_latency or (None if fail_above is None else math.inf), max_memory), batch or (None,)
    cases = [(card, n) for card in gpu for n in batches]
    answers = _answers([*models, *before.values()], gpu, batches, limits, fit, terms)
    lines, unusable, over = list[dict[str, Any]](), list[Error](), list[tuple[float, str]]()
    for model in models:
        then = answers(before[model]) if model in before else [None] * len(cases)
        for (card, n), answer, old in zip(cases, answers(model), then, strict=True):
            lines.append(_line(model, card, n, answer, limits))
            if against is not None:
                lines[-1] = _compared(lines[-1], answer, before.get(model), old, fail_above)
            if isinstance(answer, Error):
                unusable.append(answer)
            elif lines[-1]["verdict"] == "over":
                over.append((max(excess(answer, limits), _excess(lines[-1], fail_above)), _place(lines[-1])))
            if json_to != "-" and not markdown:
                with suppress(BrokenPipeError):  # the reader closed the pipe; limits still decide the exit code
                    click.echo(_shown(lines[-1], fit or len(batches) > 1, len(gpu) > 1))

    def gate() -> None:
        what = "models" if len(cases) == 1 else "predictions"
        if unusable:
            raise type(unusable[0])(f"{len(unusable)} of {len(lines)} {what} can't be used, {len(over)} over the limit")
        if over:
            worst = f", the worst {max(over)[1]}" if len(cases) > 1 else ""
            raise LimitExceeded(f"{len(over)} of {len(lines)} {what} over the limit{worst}")

    def table() -> None:
        if markdown:
            from onnxperf.views.pull_request import table

            click.echo(table(lines, against is not None))

    deliver(json_to, lambda: json_text(lines), table, gate)


def _check_asked(
    against: str | None, fail_above: float | None, markdown: bool, json_to: str | None, fit: bool,
    limits: tuple[float | None, ...],
) -> None:  # fmt: skip
    """Raise UsageError for options that don't go together, or that ask for nothing."""
    if against is None and fail_above is not None:
        raise UsageError("--fail-above compares with the models of --against: name their folder, or a file")
    if against is None and limits == (None, None):
        raise UsageError("there is no limit to check: give --max-latency 8ms, --max-memory 2GB, or --against FOLDER")
    if against is not None and fit:
        raise UsageError("--fit could choose different batches before and after: use --batch")
    if markdown and json_to == "-":
        raise UsageError("--json - prints JSON only: leave --markdown out")


def _before(models: Sequence[str], against: str) -> dict[str, str]:
    """The path of what each model was, for those that were there."""
    if os.path.isfile(against):
        if len(models) > 1:
            raise UsageError(f"--against {against} is one model, and there are {len(models)}: name a folder")
        return {models[0]: against}
    if not os.path.isdir(against):
        raise UsageError(f"--against {against}: {missing(what='file or folder')}")
    before = {}
    for model in models:
        path = Path(model)
        inside = [] if path.is_absolute() or ".." in path.parts else [Path(against, path)]
        if place := next((p for p in (*inside, Path(against, path.name)) if p.exists()), None):
            before[model] = str(place)
    return before


def _answers(
    models: Sequence[str], gpu: tuple[str, ...], batches: Sequence[int | None], limits: Limits, fit: bool,
    terms: Mapping[str, Any],
) -> Callable[[str], Sequence[Prediction | Error]]:  # fmt: skip
    """What predicts each of these models, for each card and on it for each batch."""
    from onnxperf.answer.predict import on_each
    from onnxperf.decide.bindings import narrowed

    asked = {model: _asked(batches, model, gpu=gpu, fit=fit, **terms) for model in models}
    usable = {model: request for model, request in asked.items() if not isinstance(request, Error)}
    requests = dict(zip(usable, narrowed([*usable.values()]), strict=True))

    def answers(model: str) -> Sequence[Prediction | Error]:
        if isinstance(error := asked[model], Error):
            return [error] * len(gpu) * len(batches)
        return on_each(requests[model], gpu, batches, limits if fit else None)

    return answers


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
    line |= {"accuracy": None, "assumed_operators": None}
    if isinstance(answer, Error):  # the line has the name of the file
        return line | {"reason": str(answer).removesuffix(f": {model}"), "verdict": "error"}
    why = reasons(answer, limits)
    figures = {"seconds": answer.seconds, "process_bytes": answer.memory.reserved_bytes, "batch": answer.scenario.batch}
    figures["assumed_operators"] = sum(len(n.nodes) for n in answer.warnings if n.code == "assumed-operator")
    return line | figures | {"accuracy": answer.accuracy.status, "reason": why, "verdict": "over" if why else "ok"}


def _compared(
    line: dict[str, Any], answer: Prediction | Error, path: str | None, old: Prediction | Error | None,
    share: float | None,
) -> dict[str, Any]:  # fmt: skip
    """The same beside what it was before, at this path; None where it is new.

    share: how much slower it may be, None where that is not limited;
    cause: what most of the change is, "" where there is hardly any.
    """
    from onnxperf.decide.diff import difference
    from onnxperf.decide.two_models import blame, slower

    before: dict[str, Any] = {"before": path, "before_seconds": None, "before_process_bytes": None, "change": None}
    before["cause"] = ""
    why = [line["reason"]] if line["reason"] else []
    if isinstance(old, Error):
        why.append(f"before: {old}")
    elif old is not None and not isinstance(answer, Error):
        change = answer.seconds / old.seconds - 1
        before |= {"before_seconds": old.seconds, "before_process_bytes": old.memory.reserved_bytes, "change": change}
        over = share is not None and slower(change, share)
        if abs(change) >= NOTICED or over:
            before["cause"] = blame(difference(old, answer)).replace(" in A", " before").replace(" in B", " now")
        if over:
            why.append("slower than before" + (f" by more than {100 * share:.4g}%" if share else ""))
            line = line | {"verdict": "over"}
    return line | before | {"reason": "; ".join(why)}


def _excess(line: Mapping[str, Any], fail_above: float | None) -> float:
    """The share of the time that it may take, of what it took before."""
    return 0.0 if fail_above is None or line["change"] is None else (1 + line["change"]) / (1 + fail_above)


def _place(line: Mapping[str, Any]) -> str:
    return printable(f"{line['model']} on {line['gpu']} at batch {line['batch']}")


def _shown(x: Mapping[str, Any], batched: bool, several: bool) -> str:
    """A line of `check`, with the batch and the card where they differ."""
    from onnxperf.ground.tables import NOTHING, duration, percent, size
    from onnxperf.views.pull_request import remarks

    figures = [NOTHING if x["seconds"] is None else duration(x["seconds"])]
    if "change" in x:
        change = NOTHING if x["change"] is None else percent(x["change"], "+")
        figures.append("new" if x["before"] is None else change)
    figures.append(NOTHING if x["process_bytes"] is None else size(x["process_bytes"]))
    figures += [NOTHING if x["batch"] is None else f"batch {x['batch']}"] * batched
    shown = (f"{x['verdict']:5}", *(f"{f:>8}" for f in figures), *([x["gpu"]] * several))
    says = remarks(x)
    return printable("  ".join((*shown, x["model"])) + (f": {says}" if says else ""))

"""Commands that predict: nothing is run."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import click

from gpu_specs.toml_file import missing
from onnxperf.cli.arguments import (
    Count,
    asked_at,
    asked_of,
    debug,
    files_read,
    limited,
    of_a_run,
    of_runs,
    of_two,
    parse_share,
    read_option,
    viewed,
)  # fmt: skip
from onnxperf.cli.drawn import VIEWS, drawn, take
from onnxperf.cli.sections import command
from onnxperf.graph.targets import check_target
from onnxperf.ground.errors import UsageError, printable
from onnxperf.ground.output import deliver, json_text
from onnxperf.running.terms import having

if TYPE_CHECKING:
    from onnxperf.answer.prediction import Prediction
    from onnxperf.decide.changes import Change
    from onnxperf.running.pipeline import Request
    from onnxperf.running.run import Run

Bounds = tuple[float | None, float | None]  # on seconds, and on bytes of memory


@command()
@click.argument("model", type=click.Path())
@of_runs
@click.option("--json", "json_to", metavar="FILE|-", help="Write the answer as JSON; - prints JSON only.")
@click.option("--html", "html_to", metavar="FILE", help="Write an HTML report, which needs no network.")
@click.option(
    "--detail", is_flag=True, help="Print every kernel and note, gaps, suggestions, and what the time covers."
)
@click.option("--top", type=Count(min=0), help="Kernels to list.  [default: 0; all with --detail]")
@click.option("--by-module", "depth", type=Count(min=1), metavar="DEPTH",
              help="Also list time by module; 2 gives layer1.0.")  # fmt: skip
@click.option("--first-run", is_flag=True, help="Also tell what session creation and the first run take.")
@viewed
@limited
@debug
def predict(
    model: str, json_to: str | None, max_latency: float | None, max_memory: float | None, gpu: tuple[str, ...],
    batch: tuple[int, ...] | None, fit: bool, **terms: Any,
) -> None:  # fmt: skip
    """Predict the latency of MODEL, and what it is bound by.

    With several cards or batch sizes the answer is a table with a row for each pair, and --json writes a list. The
    limits hold for each row. --detail, --html and the other views take one card and one batch size.

    \b
    Examples:
      onnxperf predict resnet50.onnx --gpu l4
      onnxperf predict bert.onnx --gpu a100 --batch 8 --dim sequence=128 --precision fp16
      onnxperf predict resnet50.onnx --gpu t4,l4 --batch 1..64
      onnxperf predict model.onnx --gpu t4 --json - --max-latency 8ms
      onnxperf predict model.onnx --gpu l4 --html report.html
      onnxperf predict model.onnx --gpu l4 --fit --max-latency 10ms --runtime tensorrt
    """
    limits, batches = (max_latency, max_memory), batch or (None,)
    if len(gpu) * len(batches) == 1:
        _predict_one(model, gpu[0], json_to, limits, batch=batches[0], fit=fit, **terms)
        return
    if unused := _given(OF_ONE, terms):
        raise UsageError(f"several cards or batches are one table: leave {unused} out, or name one card and one batch")
    terms = {name: value for name, value in terms.items() if name not in OF_ONE}
    _predict_each(model, gpu, batches, json_to, limits, fit=fit, **terms)


#: Options of `predict` that show one card and one batch.
OF_ONE = ("html_to", "detail", "top", "depth", "first_run", *(f"{view}_to" for view in VIEWS))


def _predict_one(
    model: str, gpu: str, json_to: str | None, bounds: Bounds, *, html_to: str | None, top: int | None, detail: bool,
    depth: int | None, first_run: bool, fit: bool, **terms: Any,
) -> None:  # fmt: skip
    from onnxperf.answer.prediction import summarise
    from onnxperf.decide.changes import changes, small_changes
    from onnxperf.ground.output import telling
    from onnxperf.ground.tables import console
    from onnxperf.running.pipeline import read_once
    from onnxperf.views.prediction import show

    if json_to == "-":
        _without_screen({"--detail": detail, "--top": top is not None, "--by-module": depth is not None})
    asked = take(terms, {"--json": json_to, "--html": html_to}, model, *files_read({"gpu": gpu, **terms}))
    request = read_once(asked_of(model, json_to, gpu=gpu, fit=fit, **terms))
    prediction, at_batch = summarise(_run(request, gpu, fit, bounds), before=first_run), _at_batch(request, gpu)

    @cache
    def suggested() -> list[Change]:
        return changes(prediction, None if fit else at_batch)

    def screen() -> None:
        small = [] if detail else small_changes(prediction)
        show(
            console(),
            prediction,
            top=top,
            detail=detail,
            changes=small or suggested(),
            depth=depth,
            untried=bool(small),
        )

    def page() -> str:
        from onnxperf.views import html

        with telling() as tell:
            return html.page(prediction, suggested(), at_batch, tell)

    def gate() -> None:
        if bounds != (None, None):
            from onnxperf.decide.budget import keep
            from onnxperf.running.largest import Limits

            keep([prediction], Limits(*bounds))

    files = drawn(asked, prediction, model) | ({html_to: page} if html_to else {})
    deliver(json_to, lambda: json_text(_answer(prediction, suggested())), screen, gate, files)


def _without_screen(asked: Mapping[str, bool]) -> None:
    """Raise UsageError for the first of the options that say what the screen shows, where there is none."""
    for flag, is_set in asked.items():
        if is_set:
            raise UsageError(f"--json - prints JSON only, with every kernel: leave {flag} out")


def _predict_each(
    model: str, cards: tuple[str, ...], batches: tuple[int | None, ...], json_to: str | None, bounds: Bounds, *,
    fit: bool, **terms: Any,
) -> None:  # fmt: skip
    from onnxperf.answer.predict import on_each
    from onnxperf.decide.budget import keep, predicted
    from onnxperf.decide.changes import changes
    from onnxperf.ground.output import telling
    from onnxperf.ground.tables import console
    from onnxperf.running.largest import Limits
    from onnxperf.running.pipeline import read_once
    from onnxperf.views.predictions import show

    limits, request = Limits(*bounds), read_once(asked_at(batches, model, json_to, gpu=cards, fit=fit, **terms))
    with telling() as tell:
        predictions = predicted(on_each(request, cards, batches, limits if fit else None, tell))

    def answer() -> str:
        others = [None if fit else _at_batch(request, card) for card in cards for _ in batches]
        return json_text([_answer(p, changes(p, at)) for p, at in zip(predictions, others, strict=True)])

    deliver(json_to, answer, lambda: show(console(), predictions), lambda: keep(predictions, limits))


def _at_batch(request: Request, gpu: str) -> Callable[[int], Prediction]:
    """What predicts a request on a card at another batch."""
    from onnxperf.answer.prediction import summarise
    from onnxperf.running.pipeline import run_of, with_batch

    return lambda batch: summarise(run_of(with_batch(request, batch), gpu))


def _run(request: Request, gpu: str, fit: bool, bounds: Bounds = (None, None)) -> Run:
    """The run that is asked for; limits decide the batch where it is to fit."""
    from onnxperf.running.pipeline import run_of

    if not fit:
        return run_of(request, gpu)
    from onnxperf.running.largest import Limits, largest

    return largest(request, gpu, Limits(*bounds))


def _answer(p: Prediction, suggested: Iterable[Change]) -> dict[str, Any]:
    return p.to_dict() | {"suggestions": [c.to_dict() for c in suggested]}


@command()
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@of_two
@click.option("--json", "json_to", metavar="FILE|-", help="Write the difference as JSON; - prints JSON only.")
@click.option("--top", type=Count(min=0), default=8, show_default=True, help="Kernels to list.")
@read_option(
    "--fail-above", read=parse_share, metavar="5%", help="Exit 1 where B is slower than A by more, with 0 by anything,"
    " or does not fit.",
)  # fmt: skip
@debug
def diff(a: str, b: str, json_to: str | None, top: int, fail_above: float | None, **terms: Any) -> None:
    """Compare two models: what differs, and what that costs.

    Both are predicted with the same options. Kernels are matched by their work, not by their names, so exports of two
    frameworks can be compared. A --dim or --shapes with a name of only one model applies to that model.

    A or B can also be a recorded run: a file of `predict --trace`, a profile of ONNX Runtime, or one of trtexec
    --exportProfile. Operators are then matched by name. Two recorded runs need no --gpu.

    A model B that does not fit into GPU memory is over any --fail-above, whether A fits or not.

    \b
    Examples:
      onnxperf diff torch-resnet50.onnx keras-resnet50.onnx --gpu t4
      onnxperf diff yesterday.onnx today.onnx --gpu l4 --batch 8 --fail-above 5%
      onnxperf diff a.onnx b.onnx --gpu a100 --dim sequence=128 --json -
      onnxperf diff onnxruntime_profile.json model.onnx --gpu l4 --batch 8
      onnxperf diff trtexec_profile.json model.onnx --gpu t4 --runtime tensorrt
    """
    from onnxperf.scoring.run_files import is_run

    share, models = math.inf if fail_above is None else fail_above, [x for x in (a, b) if not is_run(x)]
    if models and not terms["gpu"]:
        absent = next((x for x in models if not os.path.exists(x)), None)
        raise UsageError(f"--gpu names the card to predict {models[0]} for" if absent is None else missing(absent))
    if terms["fit"] and models:
        raise UsageError("--fit could choose different batches for A and B: use --batch")
    if not models and (unused := _given(terms, terms)):
        raise UsageError(f"both runs are recorded: leave {unused} out")
    show_difference = _diff_models if len(models) == 2 else _diff_runs
    show_difference(a, b, json_to, top, share, terms)


def _diff_models(a: str, b: str, json_to: str | None, top: int, share: float, terms: Mapping[str, Any]) -> None:
    from onnxperf.decide.two_models import compare, keep

    difference = compare(asked_of(a, json_to, **terms), asked_of(b, json_to, **terms), terms["gpu"])

    def screen() -> None:
        from onnxperf.ground.tables import console
        from onnxperf.views.difference import show

        show(console(), difference, top=top)

    deliver(json_to, difference.to_json, screen, lambda: keep(difference, share))


def _diff_runs(a: str, b: str, json_to: str | None, top: int, share: float, terms: Mapping[str, Any]) -> None:
    """Runs that files tell of, or that are predicted."""
    from onnxperf.answer.prediction import Prediction, summarise
    from onnxperf.decide.two_models import keep_room
    from onnxperf.scoring.run_files import diff_runs, is_run
    from onnxperf.scoring.timed_runs import keep

    def predicted(model: str) -> Prediction:
        return summarise(_run(asked_of(model, None, **terms), terms["gpu"], False))

    check_target(json_to, *files_read(terms, a, b))
    sides = [x if is_run(x) else predicted(x) for x in (a, b)]
    difference = diff_runs(*sides)

    def screen() -> None:
        from onnxperf.ground.tables import console
        from onnxperf.views.two_runs import show

        show(console(), difference, top=top)

    def gate() -> None:
        if share < math.inf and isinstance(sides[1], Prediction):
            keep_room(sides[1])
        keep(difference, share)

    deliver(json_to, difference.to_json, screen, gate)


@command()
@click.argument("model", type=click.Path(), required=False)
@click.option("--node", metavar="NAME", help="An ONNX node of MODEL, or a kernel that `predict --detail` lists.")
@click.option("--gemm", metavar="[Bx]MxNxK", help="Instead of a model: one GEMM; with B a batched one.")
@of_a_run
@click.option("--json", "json_to", metavar="FILE|-", help="Write the explanation as JSON; - prints JSON only.")
@debug
def explain(model: str | None, node: str | None, gemm: str | None, json_to: str | None, **terms: Any) -> None:
    """Explain why a model does not reach the datasheet's FLOP/s.

    Prints the time lost to each cause. With --node or --gemm: the estimate of one kernel step by step, with work,
    tiles, waves, bounds, power and interval.

    \b
    Examples:
      onnxperf explain resnet50.onnx --gpu l4
      onnxperf explain resnet50.onnx --gpu l4 --node node_linear
      onnxperf explain --gemm 4096x4096x4096 --gpu l4 --precision fp32
    """
    if (model is None) if gemm is None else (model is not None or node is not None):
        raise UsageError("explain takes MODEL, with or without --node NAME, or --gemm alone")
    if gemm is not None and (unused := _given(SIZES, terms)):
        raise UsageError(f"--gemm sets all sizes: leave {unused} out")
    of_kernel = gemm is not None or node is not None
    if of_kernel and (unused := _given(OF_A_RUN if gemm is None else OF_A_RUN + OF_A_MODEL, terms)):
        raise UsageError(f"no effect on one kernel: leave {unused} out")
    from onnxperf import explanation as room
    from onnxperf.ground.tables import console
    from onnxperf.views.explanation import show, show_run

    subject = room.product_graph(gemm) if gemm is not None else model or ""
    run = _run(asked_of(subject, json_to, **terms), terms["gpu"], terms["fit"])
    if not of_kernel:
        whole = room.explain_run(run)
        return deliver(json_to, whole.to_json, lambda: show_run(console(), whole))
    explanation = room.explain_kernel(run, room.PRODUCT if node is None else node)
    if explanation.op != "Transfer" and (unused := _given(OF_COPIES, terms)):
        raise UsageError(f"no effect on {printable(explanation.kernel)}: leave {unused} out")
    deliver(json_to, explanation.to_json, lambda: show(console(), explanation))


def _names(**facets: str) -> tuple[str, ...]:
    return tuple(term.name for term in having(**facets))


#: Options that have no effect on: the sizes of --gemm (SIZES), the time of any kernel (OF_A_RUN), of a single product
#: (OF_A_MODEL), of a kernel that copies no input or output (OF_COPIES).
SIZES = ("shapes", "dims", "batch", "fit", "trip_counts")
OF_A_RUN, OF_COPIES = _names(method="scheduled"), _names(acts="copies")
OF_A_MODEL = (*_names(acts="graph"), *OF_COPIES)


def _given(names: Iterable[str], terms: Mapping[str, Any]) -> str:
    """The options among these that were set to something else than their defaults."""
    context = click.get_current_context()
    asked = (p for p in context.command.params if p.name in names and terms[p.name] != p.get_default(context))
    return ", ".join(p.opts[0] for p in asked if terms[p.name or ""])

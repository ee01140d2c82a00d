"""A validation report as tables, on a terminal or in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from onnxperf.errors import LimitExceeded, UsageError, printable
from onnxperf.latency.constants import unmeasured
from onnxperf.measure.show import telling
from onnxperf.measurements import LEAST_S
from onnxperf.output import check_target, write_file
from onnxperf.report import console
from onnxperf.validate import compare, here, models, taken
from onnxperf.validate.compare import NOTHING, Sheet, put
from onnxperf.validate.run import Report, sources, validate
from onnxperf.validate.score import CLASSES, LEFT_OUT, ROOFLINE, SHIPPED, WITHIN, Score

MEAN = "mean over cards"
NOT_OURS = "--fail-above looks at measurements of your own: name MODEL, or a folder that holds some with --data"
WHICH = ("test", "rest")
KERNELS = (LEFT_OUT, SHIPPED, ROOFLINE)
OURS = ("#rows", "#MAPE", "#bias", "#in range", "#range")
SHORT = {
    SHIPPED: "#in-sample", ROOFLINE: "#roofline", models.SUM: "#sum", "published neusight": "#NeuSight",
    "published roofline": "#its roofline", "published habitat": "#Habitat", "published micro": "#micro",
}  # fmt: skip


def run(
    model: str | None, gpu: str | None, data: str | None, json_to: str | None, *, markdown: bool = False,
    fail_above: float | None = None, **terms: Any,
) -> None:  # fmt: skip
    """Compare `model`, measured here or recorded, with its prediction; without one, score the folder `data` or the
    sample. Print tables, Markdown or, where `json_to` is "-", JSON.

    terms: the provider and what else a `Job` takes, as far as it is given. Raises LimitExceeded where the error of the
    model, or the mean error of the user's own measurements in `data`, is larger than `fail_above`.
    """
    if model is not None:
        if data is not None or markdown:
            raise UsageError("validate takes MODEL, or --data and --markdown, not both")
        one(model, gpu, json_to, fail_above, **terms)
    elif given := ", ".join((*(["gpu"] if gpu is not None else []), *terms)):
        raise UsageError(f"without MODEL nothing is run, and {given} would change nothing")
    else:
        scores(data, json_to, markdown, fail_above)


def scores(data: str | None, json_to: str | None, as_markdown: bool, limit: float | None) -> None:
    """Score the folder `data` or the sample, the user's own measurements there included."""
    if data == "":
        raise UsageError("--data needs the name of a folder")
    if limit is not None and data is None:
        raise UsageError(NOT_OURS)
    folder = None if data is None else Path(data)
    if json_to not in (None, "-"):
        check_target(json_to, *map(str, (*sources(folder), *(taken.sources(folder) if folder else ()))))
    with telling() as tell:
        report = validate(folder, tell)
    own = report.measurements
    if limit is not None and own.error is None:
        raise UsageError(NOT_OURS)
    text = markdown(report) if as_markdown else ""
    shown = partial(print, text) if as_markdown else partial(show, console(), report)
    _give(report, json_to, shown, own.error, limit, f"the mean error of {len(own.rows)} measurements")


def one(model: str, gpu: str | None, json_to: str | None, limit: float | None, **terms: Any) -> None:
    """Compare one model, measured on this machine or recorded (*.json), with its prediction."""
    if not model:
        raise UsageError("the path of MODEL is empty")
    if json_to not in (None, "-"):
        check_target(json_to, *filter(None, (model, gpu)))
    if model.lower().endswith(".json"):
        if terms:
            raise UsageError(f"{model} has been measured already: {', '.join(terms)} would not change that")
        found = here.recorded(model, gpu)
    else:
        with telling() as tell:
            found = here.here(model, gpu, tell, **terms)
    shown = partial(compare.show, console(), found)
    _give(found, json_to, shown, abs(found.error), limit, f"{found.measurement.subject.name}: the error")


def _give(
    found: Report | here.Comparison, json_to: str | None, shown: Callable[[], None], error: float | None,
    limit: float | None, what: str,
) -> None:  # fmt: skip
    """Write or print what was found; the limit holds also where whoever reads has enough before the end."""
    try:
        if json_to == "-":
            print(found.to_json())
        else:
            if json_to:
                write_file(json_to, found.to_json() + "\n")
            shown()
    except (BrokenPipeError, SystemExit):
        _gate(error, limit, what)
        raise
    _gate(error, limit, what)


def _gate(error: float | None, limit: float | None, what: str) -> None:
    if error is not None and limit is not None and error > limit:
        raise LimitExceeded(f"{what}, {error:.1%}, is over the limit of {100 * limit:.4g}%")


def show(out: Console, report: Report) -> None:
    """Print all tables and what a reader has to know of them."""
    put(out, sheets(report))
    for note in notes(report):
        out.print(Text(f"- {note}", style="dim"))


def markdown(report: Report) -> str:
    """The tables by operator class, and of whole models by card, for a README."""
    parts = []
    tables = (classes(report), whole(report, "by card"), runtime(report), ordering(report))
    for sheet in (s for s in (*compare.files(report.measurements), *tables) if s.lines):
        heads = [n.lstrip("#!") for n in sheet.names]
        rules = ["--:" if n.startswith("#") else "---" for n in sheet.names]
        lines = [_cells(heads), _cells(rules), *map(_cells, sheet.lines)]
        parts.append("\n".join((f"{sheet.title}:", "", *lines)))
    return "\n\n".join((*parts, "\n".join(f"- {note}" for note in notes(report))))


def _cells(cells: Iterable[str]) -> str:
    return f"| {' | '.join(c.replace('|', '/') for c in cells)} |"


def sheets(report: Report) -> list[Sheet]:
    """Every table; those without lines are not printed. Of a folder without tables, the user's own alone."""
    own = compare.files(report.measurements)
    if not report.scores:
        return own
    return [
        *own, classes(report), cards(report), whole(report, "by card"), runtime(report), whole(report, "by model"),
        ordering(report),
        Sheet("Rows that were not scored", ("rows of", "reason", "#rows"), tuple(
            (printable(table), printable(why), f"{n:,}") for table, why, n in report.dropped
        )),
        Sheet("Operators that no row measures", ("!operators", "what their times rest on"), (*unmeasured().items(),)),
    ]  # fmt: skip


def classes(report: Report) -> Sheet:
    """Kernels by operator class, averaged over cards: the rows that the source itself kept back, and the rest."""
    by = _index(s for s in report.scores if s.kind == "kernels" and not s.gpu)
    lines = [
        (name, rows, *_line(by, KERNELS, name, "", rows))
        for name in dict.fromkeys(CLASSES.values())
        for rows in WHICH
        if (name, "", rows, LEFT_OUT) in by
    ]
    heads = ("!operator", "!which", *_names(KERNELS))
    return Sheet(f"Kernels by operator class, {MEAN}", heads, tuple(lines), ("range",))


def cards(report: Report) -> Sheet:
    """Kernels by card and operator class: the rows that the source itself kept back, where it did, or all."""
    by = _index(s for s in report.scores if s.kind == "kernels" and s.gpu)
    lines = []
    for gpu in sorted({gpu for _, gpu, _, _ in by}):
        for name in dict.fromkeys(CLASSES.values()):
            which = next((w for w in WHICH if (name, gpu, w, LEFT_OUT) in by), None)
            if which:
                lines.append((gpu, name, which, *_line(by, KERNELS, name, gpu, which)))
    heads = ("!card", "!operator", "!which", *_names(KERNELS))
    return Sheet("Kernels by card, those kept back if there are any", heads, tuple(lines), ("range",))


def whole(report: Report, how: str) -> Sheet:
    """Models of eager PyTorch `by card` (all of one, then the mean over cards), or every model `by model`."""
    methods = [m for m in models.METHODS if any(s.method == m for s in report.scores)]
    if how == "by card":
        by = _index(s for s in report.scores if s.kind == "models" and s.name == models.EAGER)
        keys = [(gpu or MEAN, models.EAGER, gpu) for gpu in [*sorted({g for _, g, _, _ in by} - {""}), ""]]
    else:
        by = _index(s for s in report.scores if s.kind == "model" and not s.gpu)
        keys = [(name, name, "") for name in sorted({n for n, _, _, _ in by})]
    lines = [
        (label, *_line(by, methods, name, gpu, "test"))
        for label, name, gpu in keys
        if (name, gpu, "test", LEFT_OUT) in by
    ]
    spare = ("range", "its roofline", "micro", "sum")
    title = f"Models of {models.EAGER}, by card" if how == "by card" else "Whole models by model"
    return Sheet(title, (how.replace("by ", "!"), *_names(methods)), tuple(lines), spare)


def runtime(report: Report) -> Sheet:
    """Models of ONNX Runtime by how long they take; every row counts alike."""
    by = _index(s for s in report.scores if s.kind == "models")
    lines = [
        (name, *_line(by, models.OURS, name, "", "test"))
        for name in (models.LONG, models.SHORT)
        if (name, "", "test", LEFT_OUT) in by
    ]
    return Sheet(f"Models of {models.ORT}, CUDA provider", ("!which", *_names(models.OURS)), tuple(lines), ("range",))


def ordering(report: Report) -> Sheet:
    """For how many pairs of cards each method says which is faster."""
    by = {(o.name, o.method): o for o in report.order}
    methods = [m for m in models.OURS if m in {o.method for o in report.order}]
    lines = []
    for name in dict.fromkeys(o.name for o in report.order):
        shares = [by.get((name, m)) for m in methods]
        lines.append(
            (name, f"{by[name, LEFT_OUT].count:,}", *(NOTHING if o is None else f"{o.right:.0%}" for o in shares))
        )
    heads = ("!operator or model", "#pairs", "#left out", *(SHORT[m] for m in methods[1:]))
    return Sheet(f"Which of two cards is faster, of those less than {WITHIN:g} times apart", heads, tuple(lines))


def notes(report: Report) -> list[str]:
    """What the tables' words mean, and what limits them."""
    if not report.scores:
        return compare.remarks(report.measurements)
    clocks = ", ".join(f"{_microseconds(least, most)} for {rig}" for rig, least, most in report.overhead_s if most)
    found = [
        *compare.remarks(report.measurements),
        "MAPE: mean of |predicted / measured - 1|; bias: median of predicted / measured, less 1. Cards count alike, "
        "however many rows they have.",
        "MAPE, bias, in range and range are those of tile-wave with the card left out: with constants that no row of "
        "its die had a part in. The other columns are MAPEs: in-sample with the constants that ship; roofline: FLOPs "
        "at peak or bytes at the datasheet's bandwidth.",
        f"in range: rows within the stated range, which should hold {report.interval:.0%}; range: the median of its "
        "half.",
        f"Kernels count if they last over {LEAST_S * 1e3:g} ms; those replayed from a CUDA graph (tensor cores, but "
        "for DeepBench's) all do. What a benchmark's clock includes beside the kernel (its events, the launch between "
        f"them), by operator and card, is added to every method's answer{': ' * bool(clocks)}{clocks}.",
        "test: rows that the source kept back from its own fit; all of DeepBench; on tensor cores, shapes of one in "
        "five pairs (n, k) or kinds of heads, to which nothing is fitted: in-sample is there what other shapes tell. "
        "rest: the others. The sample holds a draw of the rows.",
    ]
    names = {s.name for s in report.scores}
    if any(name.startswith("FP4") for name in names):
        found.append(
            "FP4 was measured on one die alone: without it, priors and the rows of other types are all there is."
        )
    if not names.isdisjoint((models.LONG, models.SHORT)):
        found.append(
            "ONNX Runtime: every row counts alike. Left out is what the same source measured of the same model, from "
            "the host's costs; nothing else is fitted to rows like these. Stable Diffusion's are not among them."
        )
    if any(s.method.startswith("published") for s in report.scores):
        found.append(
            "NeuSight, its roofline, Habitat and micro are the predictions that were published beside the "
            "measurements. NeuSight had learned from kernels of these very cards."
        )
    if any(s.name.endswith("other library") for s in report.scores):
        found.append(
            "other library: rows kept back that ran on kernels which none of the card's other rows ran on. What "
            "another version of the library does says little of the one behind the rest and the whole models; no "
            "range is derived from these rows."
        )
    if report.same_without:
        dies = ", ".join(map(printable, report.same_without))
        found.append(
            f"The constants are the same with and without {dies}: no row of theirs is behind those that ship, or these "
            f"are not derived from rows by a command ({printable(report.constants)}); then nothing was left out."
        )
    return found


Scores = dict[tuple[str, str, str, str], Score]


def _index(scores: Iterable[Score]) -> Scores:
    return {(s.name, s.gpu, s.rows, s.method): s for s in scores}


def _names(methods: Sequence[str]) -> tuple[str, ...]:
    return (*OURS, *(SHORT[m] for m in methods if m != LEFT_OUT))


def _line(by: Scores, methods: Sequence[str], name: str, gpu: str, rows: str) -> tuple[str, ...]:
    """The figures of one line: all of the first method's, then the MAPEs of the others."""
    s = by[name, gpu, rows, LEFT_OUT]
    others = [by.get((name, gpu, rows, m)) for m in methods if m != LEFT_OUT]
    return (
        f"{s.count:,}", _percent(s.mape), _percent(s.bias, "+"),
        NOTHING if s.coverage is None else f"{s.coverage:.0%}",
        NOTHING if s.half_width is None else f"±{s.half_width:.0%}",
        *(NOTHING if o is None else _percent(o.mape) for o in others),
    )  # fmt: skip


def _microseconds(least: float, most: float) -> str:
    low, high = f"{least * 1e6:.3g}", f"{most * 1e6:.3g}"
    return f"{low} us" if low == high else f"{low} to {high} us"


def _percent(value: float, sign: str = "") -> str:
    """A share as a percentage with one digit, without the sign where it is in the column's name."""
    return f"{100 * value:{sign}.1f}%"

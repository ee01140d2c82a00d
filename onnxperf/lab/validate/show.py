"""A validation report as tables, on a terminal or in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console

from onnxperf.ground.errors import printable
from onnxperf.ground.tables import NOTHING, Sheet, put, put_notes
from onnxperf.ground.tables import markdown as in_markdown
from onnxperf.lab import datasets
from onnxperf.lab.constants import unmeasured
from onnxperf.lab.datasets import LEAST_S, Models
from onnxperf.lab.validate import models
from onnxperf.lab.validate.kernels import classes as operator_classes
from onnxperf.lab.validate.report import Report
from onnxperf.lab.validate.scored import (
    LEFT_OUT,
    LINEAR,
    MLP,
    MLP_LEFT_OUT,
    OF_KERNELS,
    OF_MODELS,
    ROOFLINE,
    SCORED,
    SHIPPED,
    SUM,
    WITHIN,
)
from onnxperf.scoring import show as own
from onnxperf.scoring.score import Score

MEAN = "mean over cards"
WHICH = ("test", "rest")
KERNELS = OF_KERNELS
#: What the columns of the published methods are.
PUBLISHED_METHODS = (
    "mlp: with the card's die left out; mlp in-sample: trained on what the source trained on, of all cards, so "
    "that rows kept back, and cards that have no others, are new to it. linear: a line for each operator on each "
    "card, fitted to its rest for test, to each half of the rest for the other. A dash: kernels that a method "
    "leaves to tile-wave's models, or too few for a line."
)
OURS = ("#rows", "#MAPE", "#bias", "#in range", "#range")
COMPARED = ("range", "mlp in-sample", "linear", "mlp")  # columns that go first where lines are short


def show(out: Console, report: Report) -> None:
    """Print all tables and what a reader has to know of them."""
    put(out, sheets(report))
    put_notes(out, notes(report))


def markdown(report: Report) -> str:
    """A page in Markdown: the command that prints it, the tables by operator class and of whole models, the notes."""
    command = f"onnxperf validate --markdown{'' if report.data == 'sample' else ' --data DIR'}"
    short = (classes(report), *of_models(report), by_source(report), ordering(report), watts(report))
    tables = in_markdown((*own.files(report.measurements), *short), notes(report))
    return f"# How far predictions are from measurements\n\nPrinted by `{command}`.\n\n{tables}"


def heading(method: str) -> str:
    """What a method's column of errors is called."""
    published = {
        models.PUBLISHED + m: f"#{name}" for _, model in datasets.models() for m, name in model.published.items()
    }
    ours = {SHIPPED: "#in-sample", MLP_LEFT_OUT: "#mlp", MLP: "#mlp in-sample"}
    return {**ours, **{m: f"#{m}" for m in (ROOFLINE, SUM, LINEAR)}, **published}[method]


def sheets(report: Report) -> list[Sheet]:
    """Every table; those without lines are not printed. Of a folder without tables, the user's own alone."""
    first = own.files(report.measurements)
    if not report.scores:
        return first
    return [
        *first, classes(report), cards(report), *of_models(report), by_source(report), by_model(report),
        ordering(report), watts(report),
        Sheet("Rows that were not scored", ("rows of", "reason", "#rows"), tuple(
            (printable(table), printable(why), f"{n:,}") for table, why, n in report.dropped
        )),
        Sheet("Operators that no row measures", ("!operators", "what their times rest on"), (*unmeasured().items(),)),
    ]  # fmt: skip


def classes(report: Report) -> Sheet:
    """Kernels by operator class, averaged over cards: the rows that the source itself kept back, and the rest."""
    by = _index(s for s in report.scores if s.kind == "kernels" and not s.gpu)
    keys = [((name, rows), (name, "", rows)) for name in operator_classes() for rows in WHICH]
    return _sheet(f"Kernels by operator class, {MEAN}", ("!operator", "!which"), by, KERNELS, keys, COMPARED)


def cards(report: Report) -> Sheet:
    """Kernels by card and operator class: the rows that the source itself kept back, where it did, or all."""
    by = _index(s for s in report.scores if s.kind == "kernels" and s.gpu)
    keys = []
    for gpu in sorted({gpu for _, gpu, _, _ in by}):
        for name in operator_classes():
            rows = next((w for w in WHICH if (name, gpu, w, LEFT_OUT) in by), "")
            keys.append(((gpu, name, rows), (name, gpu, rows)))
    heads = ("!card", "!operator", "!which")
    return _sheet("Kernels by card, those kept back if there are any", heads, by, KERNELS, keys, COMPARED)


def of_models(report: Report) -> tuple[Sheet, ...]:
    """Whole models, a table for each file of them: by card, then the mean over cards, or by what is scored apart."""
    return tuple(_of_file(report, model) for _, model in datasets.models())


def _of_file(report: Report, model: Models) -> Sheet:
    by = _index(s for s in report.scores if s.kind == "models" and model.heads(s.name))
    if model.apart:
        keys = [((name,), (name, "", "test")) for name in sorted({name for name, _, _, _ in by})]
        methods = (*OF_MODELS, *(models.PUBLISHED + m for m in model.published))
        return _sheet(model.title, ("!which",), by, methods, keys, COMPARED)
    gpus = [*sorted({gpu for _, gpu, _, _ in by} - {""}), ""]
    keys = [((gpu or MEAN,), (model.reported, gpu, "test")) for gpu in gpus]
    return _sheet(model.title, ("!card",), by, _scored(report), keys, _spare())


def by_source(report: Report) -> Sheet:
    """Whole models by who measured them, every run alike."""
    by = _index(s for s in report.scores if s.kind == "source")
    keys = [((printable(name),), (name, "", "test")) for name in sorted({name for name, _, _, _ in by})]
    return _sheet("Whole models by source", ("!source",), by, OF_MODELS, keys, _spare())


def by_model(report: Report) -> Sheet:
    """Every model by name, all cards together."""
    by = _index(s for s in report.scores if s.kind == "model" and not s.gpu)
    keys = [((name,), (name, "", "test")) for name in sorted({name for name, _, _, _ in by})]
    return _sheet("Whole models by model", ("!model",), by, _scored(report), keys, _spare())


def _scored(report: Report) -> tuple[str, ...]:
    """The methods that whole models were scored by."""
    published = dict.fromkeys(models.PUBLISHED + m for _, model in datasets.models() for m in model.published)
    return tuple(m for m in (*OF_MODELS, *published) if any(s.method == m for s in report.scores))


def _spare() -> tuple[str, ...]:
    """The columns that go first where lines are short."""
    return (*COMPARED, *(name for _, model in datasets.models() for name in model.spare), "sum")


def ordering(report: Report) -> Sheet:
    """For how many pairs of cards each method says which is faster."""
    by = {(o.name, o.method): o for o in report.order}
    methods = [m for m in SCORED if m in {o.method for o in report.order}]
    lines = []
    for name in dict.fromkeys(o.name for o in report.order):
        shares = [by.get((name, m)) for m in methods]
        first = by[name, LEFT_OUT]
        right = (NOTHING if o is None else f"{o.right:.0%}" for o in shares)
        lines.append((name, f"{first.count:,}", *right, f"{first.tau:.2f}"))
    heads = ("!operator or model", "#pairs", "#left out", *(heading(m) for m in methods[1:]), "#tau, all pairs")
    return Sheet(f"Which of two cards is faster, of those less than {WITHIN:g} times apart", heads, tuple(lines))


def watts(report: Report) -> Sheet:
    """How far the power model is from what cards drew."""
    by = {(s.name, s.gpu, s.method): s for s in report.scores if s.kind == "watts" and s.gpu}
    lines = []
    for (name, gpu, method), s in by.items():
        if method == LEFT_OUT:
            shipped = by[name, gpu, SHIPPED]
            lines.append((name, gpu, f"{s.count:,}", f"{s.mape:.0%}", f"{s.bias:+.0%}", f"{shipped.mape:.0%}"))
    heads = ("!watts of", "!card", "#rows", "#MAPE", "#bias", "#in-sample")
    return Sheet("Watts while one kernel is repeated for long", heads, tuple(lines))


def notes(report: Report) -> list[str]:
    """What the tables' words mean, and what limits them."""
    if not report.scores:
        return own.file_notes(report.measurements)
    clocks = ", ".join(f"{_microseconds(least, most)} for {rig}" for rig, least, most in report.overhead_s if most)
    lines = [
        *own.file_notes(report.measurements),
        "MAPE: mean of |predicted / measured - 1|; bias: median of predicted / measured, less 1. Cards count alike, "
        "however many rows they have.",
        "MAPE, bias, in range and range are those of tile-wave with the card left out: with constants that no row of "
        "its die had a part in. The other columns are MAPEs: in-sample with the constants that ship; roofline: FLOPs "
        "at peak or bytes at the datasheet's bandwidth.",
        PUBLISHED_METHODS,
        f"in range: rows inside their range, which should hold {report.interval:.0%}; range: half its median width.",
        f"Kernels count if they last over {LEAST_S * 1e3:g} ms; those replayed from a CUDA graph (tensor cores, but "
        "for DeepBench's) all do. What a benchmark's clock includes beside the kernel (its events, the launch between "
        f"them), by operator and card, is added to every method's answer{': ' * bool(clocks)}{clocks}.",
        "test: rows that the source kept back from its own fit; all of DeepBench; on tensor cores, shapes of one in "
        "five pairs (n, k) or kinds of heads, to which nothing is fitted: in-sample is there what other shapes tell. "
        "rest: the others. The sample holds a draw of the rows.",
        "tau: Kendall's rank correlation of measured and predicted times, the card left out, over all pairs of cards.",
    ]
    names = {s.name for s in report.scores}
    if any(name.startswith("FP4") for name in names):
        lines.append(
            "FP4 was measured on one die alone: without it, priors and the rows of other types are all there is."
        )
    if any(model.heads(name) for _, model in datasets.models() if model.constants == "host" for name in names):
        lines.append(
            "ONNX Runtime: every row counts alike. Left out is what the same source measured of the same model, from "
            "the host's costs; nothing else is fitted to rows like these. Stable Diffusion's are not among them."
        )
    if any(model.heads(name) for _, model in datasets.models() if model.graph for name in names):
        lines.append(
            "with their graph: the graph that ran, or one exported anew from the same definition, came with the rows. "
            "Nothing is fitted to convolutional networks; left out is the card, as for kernels."
        )
    tell = [model for _, model in datasets.models() if model.constants == "range" and not model.by_die]
    if any(model.heads(name) for model in tell for name in names):
        lines.append(
            "TensorRT: Paddle Inference ran it, with copies of images from pageable memory; the release is not named. "
            "Nothing but the width of ranges comes from these rows: that from the other models. graphs in parts: some "
            "operators ran outside of the engine, as their times show; they tell nothing of the width."
        )
    if any(s.method.startswith(models.PUBLISHED) for s in report.scores):
        lines.append(
            "NeuSight, its roofline, Habitat and micro are the predictions that were published beside the "
            "measurements. NeuSight had learned from kernels of these very cards."
        )
    if any(s.name.endswith("other library") for s in report.scores):
        lines.append(
            "other library: rows kept back that ran on kernels which none of the card's other rows ran on. What "
            "another version of the library does says little of the one behind the rest and the whole models; no "
            "range is derived from these rows."
        )
    if report.same_without:
        dies = ", ".join(map(printable, report.same_without))
        lines.append(
            f"The constants are the same with and without {dies}: no row of theirs is behind those that ship, or these "
            f"are not derived from rows by a command ({printable(report.constants)}); then nothing was left out."
        )
    return lines


Scores = dict[tuple[str, str, str, str], Score]


def _index(scores: Iterable[Score]) -> Scores:
    return {(s.name, s.gpu, s.rows, s.method): s for s in scores}


def _sheet(
    title: str, heads: tuple[str, ...], by: Scores, methods: Sequence[str],
    keys: Iterable[tuple[tuple[str, ...], tuple[str, str, str]]], spare: tuple[str, ...],
) -> Sheet:  # fmt: skip
    """A line of scores for each of the keys (labels; name, card, rows) that was scored: all figures of the first
    method, then the MAPEs of the others.
    """
    others = [m for m in methods if m != LEFT_OUT]
    lines = []
    for labels, key in keys:
        if s := by.get((*key, LEFT_OUT)):
            scores = (by.get((*key, m)) for m in others)
            figures = (
                f"{s.count:,}", _percent(s.mape), _percent(s.bias, "+"),
                NOTHING if s.coverage is None else f"{s.coverage:.0%}",
                NOTHING if s.half_width is None else f"±{s.half_width:.0%}",
            )  # fmt: skip
            lines.append((*labels, *figures, *(NOTHING if o is None else _percent(o.mape) for o in scores)))
    return Sheet(title, (*heads, *OURS, *map(heading, others)), tuple(lines), spare)


def _microseconds(least: float, most: float) -> str:
    low, high = f"{least * 1e6:.3g}", f"{most * 1e6:.3g}"
    return f"{low} us" if low == high else f"{low} to {high} us"


def _percent(value: float, sign: str = "") -> str:
    """A share as a percentage with one digit, without the sign where it is in the column's name."""
    return f"{100 * value:{sign}.1f}%"

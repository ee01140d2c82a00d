"""Train the networks of the method mlp: `python -m onnxperf.lab.derive.mlp DATA`, some minutes on two cores.

DATA is a folder with the tables `fp32_torch/kernels_gemm.csv.gz` and `kernels_vector.csv.gz`. Networks are trained on
the rows that the source trained on, whose cards and sizes are those of NeuSight's own split; all others only score.
They are trained again without each die. The loss of a row is that of `onnxperf.ground.fitting`; cards count alike.
Features and layers were chosen with the scores of all rows in view. The same data give the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

import gpu_specs
from onnxperf.ground.errors import EnvironmentFailure, Error, UsageError, printable
from onnxperf.ground.fitting import SOFT, Array
from onnxperf.ground.output import write_file
from onnxperf.lab.baselines.mlp import CLASSES, FEATURES, HIDDEN, LAYERS, class_of, tiled, utilisation
from onnxperf.lab.constants import left_out
from onnxperf.lab.datasets import Table, kernels
from onnxperf.lab.datasets.sources.fp32_torch import DATASET
from onnxperf.lab.derive.intervals import quantile_of
from onnxperf.latency.cards import Cards, Works

BASELINES = Path(__file__).parents[1] / "baselines"
FILES = 2  # of the dataset: products, vectors
MEMBERS, STEPS, BATCH, RATE, DECAY = 3, 2000, 512, 1e-2, 1e-2
WITHIN = (
    0.6  # assumed, as of the other methods to compare with: the share of errors that a run's kernels have in common
)


@dataclass(frozen=True, slots=True)
class Examples:
    """Rows of one class: features [r, f], waves, seconds at the roofline, what the rig's clock includes beside it on
    this card and on a card that is left out, measured seconds; card and die; test: kept back by the source.
    """

    features: Array
    waves: Array
    roof: Array
    inside: Array
    elsewhere: Array
    seconds: Array
    card: Array
    die: Array
    test: Array

    def take(self, rows: Array) -> Examples:
        """Some of the rows."""
        return Examples(*(getattr(self, name)[rows] for name in self.__slots__))


def examples(tables: Sequence[Table]) -> dict[str, Examples]:
    """The rows of all tables that last long enough, by class; none that another version of the library ran."""
    parts_of: dict[str, list[tuple[Array, ...]]] = {}
    for t, kind in ((t, kernels()[t.name]) for t in tables):
        for j, (gpu, die) in enumerate(zip(t.gpus, t.dies, strict=True)):
            if not len(at := np.flatnonzero((t.seconds[:, j] > t.least_s) & (kind.fitted is not None))):
                continue
            cards = Cards([gpu_specs.load(gpu)], left_out())
            tiles = tiled(Works([t.works[i] for i in at], cards), cards)
            roof = tiles.waves * np.maximum(tiles.compute, tiles.memory)
            beside = kind.beside_s(left_out())
            inside = beside + kind.overhead(t.rig, gpu, left_out())
            elsewhere = beside + kind.overhead(t.rig, "other", left_out(die))
            each = (np.full(len(at), value) for value in (inside, elsewhere))
            rows = (tiles.features[:, 0], tiles.waves[:, 0], roof[:, 0], *each, t.seconds[at, j])
            of = (np.full(len(at), gpu), np.full(len(at), die), t.test[at])
            parts_of.setdefault(class_of(t.works[0]), []).append((*rows, *of))
    return {name: Examples(*map(np.concatenate, zip(*parts, strict=True))) for name, parts in parts_of.items() if name}


def trained(e: Examples, without: Sequence[str], steps: int = STEPS) -> list[Array]:
    """The networks' numbers (`methods.mlp.utilisation`), trained without the rows of each of these dies, "" for none.

    Adam with decoupled weight decay and a cosine schedule, all networks side by side. Raises EnvironmentFailure without
    torch.
    """
    try:
        import torch
    except ImportError:
        raise EnvironmentFailure("training the networks takes torch: pip install 'onnxperf[lab]'") from None
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums in one order
    open_to = np.repeat([~e.test & (e.die != die) for die in without], MEMBERS, axis=0)
    ends = np.stack([np.percentile(e.features[rows], (0.5, 99.5), axis=0) for rows in open_to])
    middle, reach = np.round(ends.mean(axis=1), 3), np.round(np.diff(ends, axis=1)[:, 0] / 2, 3) + 1e-3
    x = torch.tensor(np.clip((e.features - middle[:, None]) / reach[:, None], -1, 1), dtype=torch.float32)
    counted = torch.tensor(open_to, dtype=torch.float32)
    columns = (e.waves, 1e3 * e.roof, 1e3 * e.inside, 1e3 * e.seconds)
    waves, roof, inside, measured = (torch.tensor(c, dtype=torch.float32) for c in columns)
    parts = []
    for shape in LAYERS[1:]:
        parts.append((torch.randn(len(open_to), *shape) / shape[0] ** 0.5).requires_grad_())
        parts.append(torch.zeros(len(open_to), 1, shape[1]).requires_grad_())
    adam = torch.optim.AdamW(parts, lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    chance = torch.tensor(_chance(e), dtype=torch.float32)
    for _ in range(steps):
        b = torch.multinomial(chance, BATCH, replacement=True)
        h = x[:, b]
        for i in (0, 2):
            h = torch.tanh(torch.baddbmm(parts[i + 1], h, parts[i]))
        share = torch.sigmoid(torch.baddbmm(parts[5], h, parts[4]))
        took = roof[b] / (share[..., 0] * (1 - share[..., 1] / waves[b])) + inside[b]
        loss = (counted[:, b] * (torch.sqrt(1 + (torch.log(took / measured[b]) / SOFT) ** 2) - 1)).mean(dim=1).sum()
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        schedule.step()
    torch.set_num_threads(threads)
    layers = [p.detach().numpy().reshape(len(open_to), -1) for p in parts]
    every = np.concatenate([middle, reach, *layers], axis=1)
    return [every[i : i + MEMBERS].ravel() for i in range(0, len(every), MEMBERS)]


def _chance(e: Examples) -> Array:
    """How often a row is drawn: cards alike, rows that score never."""
    chance = np.zeros(len(e.seconds))
    for card in np.unique(e.card[~e.test]):
        rows = ~e.test & (e.card == card)
        chance[rows] = 1 / rows.sum()
    return chance


def missed(e: Examples, weights: Array, left_out: bool) -> Array:
    """log(measured / predicted) of rows."""
    share = utilisation(e.features, e.waves, weights)
    return np.asarray(np.log(e.seconds / (e.roof / share + (e.elsewhere if left_out else e.inside))))


def text_of(weights: Array) -> str:
    """Numbers as the constants hold them: whole thousandths."""
    return " ".join(str(int(w)) for w in np.round(1e3 * weights))


@click.command(help=__doc__)
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-o", "--output", default=BASELINES, show_default="the package's own", type=click.Path(path_type=Path))
def main(data: Path, output: Path) -> None:
    """Train, say how far the networks are from rows they were not trained on, write `mlp.toml`."""
    try:
        write_file(str(output / "mlp.toml"), made_from(replace(DATASET, files=DATASET.files[:FILES]).tables(data)))
    except Error as e:
        click.echo(f"Error: {printable(str(e))}", err=True)
        raise SystemExit(e.exit_code) from None


def made_from(tables: Sequence[Table], steps: int = STEPS) -> str:
    """The text of `mlp.toml`. Raises UsageError where the tables lack a class, or all its rows score."""
    every = examples(tables)
    if absent := [c for c in CLASSES if c not in every or every[c].test.all()]:
        raise UsageError(f"there are no rows to train on of {', '.join(absent)}: DATA needs the tables of fp32_torch")
    dies = sorted({str(die) for e in every.values() for die in e.die[~e.test]})
    texts: dict[str, dict[str, str]] = {die: {} for die in ("", *dies)}
    off: list[Array] = []
    for name in CLASSES:
        e = every[name]
        weights = dict(zip(("", *dies), trained(e, ("", *dies), steps), strict=True))
        for die, w in weights.items():
            texts[die][name] = text_of(w)
        rest = np.concatenate([missed(e.take(e.die == die), weights[die], True) for die in dies])
        test = missed(e.take(e.test), weights[""], False)
        off += [missed(e.take(e.card == c), weights.get(str(e.die[e.card == c][0]), weights[""]), True)
                for c in np.unique(e.card)]  # fmt: skip
        shown = (f"{np.mean(np.abs(np.expm1(-m))):.1%}" for m in (test, rest))
        click.echo("{}: {} on rows kept back, {} on dies left out".format(name, *shown), err=True)
    width = quantile_of([np.abs(m) for m in off])
    lines = ["# Made by `python -m onnxperf.lab.derive.mlp`: run it again, don't edit.", "", "[made]"]
    lines += [f"features = {FEATURES}", f"hidden = {HIDDEN}", f"networks = {MEMBERS}  # of each class", ""]
    lines += ["[constants.interval.mlp]  # of rows on cards whose die was left out"]
    lines += [f"{at} = {width:.4g}" for at in ("measured", "known", "new")] + [f"within = {WITHIN}  # assumed"]
    for die, numbers in texts.items():
        lines += ["", f"[without.{die}.mlp]" if die else "[constants.mlp]  # thousandths"]
        lines += [f"{name} = '{text}'" for name, text in numbers.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

"""The command that sweeps: models on a grid of cards, precisions, batches and open dimensions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxperf.cli.arguments import by_name, check_among, debug, files_read, of_a_sweep, read_option, tell_aliases
from onnxperf.cli.sections import command
from onnxperf.graph.targets import check_target
from onnxperf.ground.errors import Error, UsageError, counted, printable
from onnxperf.ground.lists import parse_dim
from onnxperf.ground.names import PRECISIONS, choice_named
from onnxperf.ground.output import telling

if TYPE_CHECKING:
    from onnxperf.sweeps.cache import Cache
    from onnxperf.sweeps.grid import Grid
    from onnxperf.sweeps.rows import Block
    from onnxperf.sweeps.stream import Model

TIMED = 2  # batches of a model, to tell how long all take
LARGE = 100_000  # cells: a sweep of more says how long it takes before it begins


def parse_precisions(text: str) -> tuple[str, ...]:
    """Precisions with commas between."""
    names = tuple(choice_named(name.strip(), PRECISIONS) for name in text.split(","))
    if unknown := [name for name in names if name not in PRECISIONS]:
        raise UsageError(f"{unknown[0]!r} is not a precision: choose from {', '.join(PRECISIONS)}")
    return names


@command()
@click.argument("models", type=click.Path(), nargs=-1, required=True, metavar="MODEL|FOLDER...")
@read_option("--dim", "dims", read=partial(by_name, parse=parse_dim), multiple=True, metavar="NAME=N,N",
             help="Sizes of a named dynamic dimension; repeatable.")  # fmt: skip
@read_option("--precision", "precision", read=parse_precisions, metavar="fp32,fp16", default="keep",
             show_default=True, help=f"Precisions: {', '.join(PRECISIONS)}.")  # fmt: skip
@click.option("-o", "out", type=click.Path(), metavar="FILE",
              help="Write a table (.csv, .json, .jsonl, .parquet) or a plot (.png, .svg).")  # fmt: skip
@click.option("--dask", "scheduler", metavar="tcp://HOST:PORT", help="Predict on the Dask cluster of this scheduler.")
@click.option("--cache", "folder", type=click.Path(), metavar="DIR",
              help="Where results are cached.  [default: onnxperf/sweeps in the user's cache]")  # fmt: skip
@click.option("--no-cache", is_flag=True, help="Don't cache results.")
@of_a_sweep
@debug
def sweep(
    models: tuple[str, ...], gpu: tuple[str, ...], every: bool, capacity_bytes: float | None, generation: str | None,
    out: str | None, scheduler: str | None, folder: str | None, no_cache: bool, **asked: Any,
) -> None:  # fmt: skip
    """Predict models for many cards, batch sizes and precisions.

    Every combination is predicted, also of sizes of a dynamic dimension. A FOLDER stands for all .onnx files in it.
    Without -o the whole grid is printed, with -o one line per card: its knee, the smallest batch size with a throughput
    within 1% of the highest. Several models are predicted on all cores. An interrupted sweep continues where it
    stopped.

    All models are predicted before the command exits: with 2 or 3 if one can't be used, whose rows say why.

    \b
    Examples:
      onnxperf sweep resnet50.onnx --batch 1,2,4,...,256 --precision fp32,fp16 --gpu l4,t4
      onnxperf sweep bert.onnx --dim sequence=128,512 --all --batch 1,8,64 -o sweep.parquet
      onnxperf sweep models/ --generation ada --precision fp16 --batch 1,16 -o sweep.csv --dask tcp://10.0.0.1:8786
    """
    from onnxperf.decide.choices import selected
    from onnxperf.sweeps.engines import engine
    from onnxperf.sweeps.grid import grid_of
    from onnxperf.sweeps.stream import blocks
    from onnxperf.views.sweep import PLOTS, check_lines

    if no_cache and folder is not None:
        raise UsageError("--no-cache contradicts --cache: give only one")
    tell_aliases(gpu)
    cards = selected(gpu, every, capacity_bytes, generation)
    check_among("--price", asked.get("prices") or {}, cards)
    grid = grid_of(cards, **asked)
    sources = list(_models(models))
    if out is not None:
        from onnxperf.sweeps.files import check_kind

        check_kind(out, PLOTS)
        check_target(out, *files_read({"gpu": gpu, **asked}, *(m.name for m in sources)), option="-o")
        if Path(out).suffix.lower() in PLOTS:
            check_lines(out, len(sources) * grid.cells // len(grid.batches))
    cache = None if no_cache else _cache(folder)
    if len(sources) * grid.cells > LARGE:
        _announce(sources, grid)
    errors = dict[str, Error | None]()
    with telling() as tell, engine(len(sources), scheduler) as workers:
        _give(out, grid, _watched(blocks(sources, grid, workers, cache, tell, _warn), errors))
    unusable = {model: error for model, error in errors.items() if error}
    if unusable:
        which = f"{len(unusable)} of {len(errors)} models can't be used"
        raise type(next(iter(unusable.values())))(f"{which}: {', '.join(unusable)}")


def _watched(stream: Iterable[Block], errors: dict[str, Error | None]) -> Iterator[Block]:
    """The same blocks; errors: takes by model why none of its blocks has figures, None where one has."""
    for block in stream:
        errors[block.model] = block.error and errors.get(block.model, block.error)
        yield block


def _give(out: str | None, grid: Grid, stream: Iterable[Block]) -> None:
    """Print blocks as they come, whole, or their knees where they are written to a file as well."""
    from onnxperf.ground.tables import console
    from onnxperf.sweeps.files import table
    from onnxperf.sweeps.rows import columns
    from onnxperf.views.sweep import PLOTS, plot, show_grid, show_knees

    if out is None:
        for block in stream:
            show_grid(console(), block)
        return
    dims = grid.named["dims"]
    if Path(out).suffix.lower() in PLOTS:
        held = list(stream)
        for block in held:
            show_knees(console(), block)
        plot(out, held)
        return
    with table(out, columns(dims)) as write:
        for block in stream:
            write(row.to_dict(dims) for row in block.rows)
            show_knees(console(), block)


def _models(named: Sequence[str]) -> Iterator[Model]:
    """The models that are named, each once, and those in folders that are."""
    from onnxperf.export import framework
    from onnxperf.sweeps.stream import Model

    for name in dict.fromkeys(named):
        if not name:
            raise UsageError("the path of MODEL is empty")
        if not Path(name).is_dir() or framework(name):
            yield Model(name, name)
            continue
        files = sorted(path for path in Path(name).rglob("*.onnx") if path.is_file())
        if not files:
            raise UsageError(f"there is no .onnx file in the folder {name}")
        yield from (Model(str(path), str(path)) for path in files)


def _cache(folder: str | None) -> Cache | None:
    """The cache in a folder, or in the usual one, where that can be one."""
    from onnxperf.sweeps.cache import Cache, usual_folder
    from onnxperf.sweeps.stream import NOT_CACHED

    if folder is not None:
        return Cache.at(folder)
    try:
        return Cache.at(usual_folder())
    except UsageError as e:
        _warn(f"{NOT_CACHED}: {e}")
        return None


def _warn(sentence: str) -> None:
    click.echo(f"onnxperf: {printable(sentence)}", err=True)


def _announce(models: Sequence[Model], grid: Grid) -> None:
    """Say how large a sweep is, and how long its first model makes it seem: some points are timed, once loaded."""
    from onnxperf.sweeps.engines import cores
    from onnxperf.sweeps.work import Prepared, predicted, prepare

    sizes = f"{counted(len(models), 'model')} x {counted(grid.points, 'batch and size', 'batches and sizes')}"
    many = f"{sizes} x {counted(len(grid.precisions), 'precision')} x {counted(len(grid.devices), 'card')}"
    click.echo(f"onnxperf: {counted(len(models) * grid.cells, 'cell')}: {many}", err=True)
    read = (prepare(m.source, None, True, grid.named) for m in models)
    first = next((p for p in read if isinstance(p, Prepared)), None)
    if first is None:
        return
    narrowed = grid.narrowed(first.names)
    points, seconds = narrowed.each(), 0.0
    for devices in (grid.devices[:1], grid.devices):  # what is estimated for one card is estimated again for several
        asked, start = tuple((name, devices) for name in grid.precisions), time.perf_counter()
        work = [(point, asked) for point in points[0][:TIMED]]
        predicted(first.data, work, narrowed.shapes or {}, narrowed.trip_counts, narrowed.terms)
        seconds = time.perf_counter() - start
    hours = seconds / len(points[0][:TIMED]) * grid.points * len(models) / min(cores(), len(models)) / 3600
    about = f"{hours:.1f} hours" if hours >= 1 else counted(max(1, round(60 * hours)), "minute")
    click.echo(
        f"onnxperf: about {about} on this machine, if all models are like {first.name}; cached results are reused",
        err=True,
    )

"""Draw the sample of measurements that ships: `python -m onnxperf.measurements.draw DIR [--to FOLDER]`.

DIR holds the full tables, the sample has the same files with fewer rows, unchanged. All shapes that the source itself
kept back for tests stay, and as many others of each operator as MOST says, drawn by a fixed seed; with a shape, all its
rows on all cards. Same tables, same bytes.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path

import click
import numpy as np

from onnxperf.errors import Error
from onnxperf.measurements import SAMPLE, deepbench, torch_fp32
from onnxperf.measurements.core import read, sizes

SEED = 0
MOST = {"bmm": 1200, "linear": 1200, "conv": 2000, "softmax": 600, "ln": 600}
OTHERS = 200  # of each elementwise operator
COPIED = ("fp32_torch/LICENSE.NeuSight", "fp32_torch/kernel_names.csv.gz")
Record = dict[str, str]


def draw(source: Path, to: Path) -> None:
    """Write the sample of the tables in `source` to the folder `to`."""
    for folder in ("fp32_torch", "deepbench"):
        (to / folder).mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        (to / name).write_bytes((source / name).read_bytes())
    for file, columns, shape in torch_fp32.FILES:
        records = list(read(source / "fp32_torch" / file, ("op", "split", *columns)))
        _write(to / "fp32_torch" / file, _drawn(records, columns, shape))
    for file, *_ in deepbench.FILES:
        records = list(read(source / "deepbench" / file, ("mode", "precision")))
        _write(to / "deepbench" / file, (r for r in records if r["mode"] == "train" and r["precision"] == "Float"))
    models = read(source / "fp32_torch" / "e2e.csv", ("model", "mode", "option"))
    scored = (r for r in models if r["mode"] == "inference" and not r["option"] and "switch" not in r["model"])
    _write(to / "fp32_torch" / "e2e.csv", scored)


def _drawn(records: list[Record], columns: tuple[str, ...], shape: Callable[..., Hashable]) -> Iterator[Record]:
    """The records of the shapes that stay, in the order of the source. Equal works are one shape, as in a `Table`."""
    found: dict[str, dict[Hashable, bool]] = {}
    keys = []
    for r in records:
        size = sizes(r, *columns)
        key = shape(r["op"], *size) if size else None
        keys.append(key)
        shapes = found.setdefault(r["op"], {})
        shapes[key] = shapes.get(key, False) or r["split"] == "test"
    chosen: dict[str, set[Hashable]] = {}
    for op, shapes in found.items():
        others = [key for key, test in shapes.items() if not test]
        some = np.random.default_rng(SEED).permutation(len(others))[: MOST.get(op, OTHERS)]
        chosen[op] = {key for key, test in shapes.items() if test} | {others[i] for i in some}
    return (r for r, key in zip(records, keys, strict=True) if key in chosen[r["op"]])


def _write(path: Path, records: Iterable[Record]) -> None:
    """A CSV file, gzipped without a time stamp where its name says so."""
    rows = list(records)
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    data = text.getvalue().encode("utf-8")
    path.write_bytes(gzip.compress(data, 9, mtime=0) if path.suffix == ".gz" else data)


@click.command(help=__doc__)
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--to", type=click.Path(path_type=Path), default=SAMPLE, help="Folder that the sample goes to.")
def main(source: Path, to: Path) -> None:
    """Draw, and say how large the sample is."""
    try:
        draw(source, to)
    except (Error, OSError) as e:
        raise click.UsageError(str(e)) from e
    total = sum(f.stat().st_size for f in to.rglob("*") if f.is_file())
    click.echo(f"{to}: {total / 1e6:.2f} MB", err=True)


if __name__ == "__main__":
    main()

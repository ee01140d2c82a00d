"""Draw the sample of measurements that ships: `python -m onnxperf.lab.datasets.draw DIR [--to FOLDER]`.

DIR holds the full tables, the sample has the same files with fewer rows, unchanged: of each table of kernels as many
shapes as its dataset says, drawn by a fixed seed. With a shape stay all its rows on all cards, with a whole model its
graph. Same tables, same bytes.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Sequence
from pathlib import Path

import click

from onnxperf.ground.errors import Error
from onnxperf.lab.datasets import SAMPLE, datasets
from onnxperf.lab.datasets.reading import Record, located, read

SEED = 0


def draw(source: Path, to: Path) -> None:
    """Write the sample of the tables in `source` to the folder `to`."""
    for d in datasets():
        full, sample = source / d.folder, to / d.folder
        sample.mkdir(parents=True, exist_ok=True)
        for name in d.copied:
            (sample / name).write_bytes((full / name).read_bytes())
        for file in d.files:
            _write(sample / file.name, d.drawn(file, list(read(located(full / file.name), file.columns)), SEED))
        for name in dict.fromkeys(m.file for m in d.models):
            of_file = [m for m in d.models if m.file == name]
            columns = tuple(dict.fromkeys(c for m in of_file for c in m.columns))
            records = [r for r in read(full / name, columns) if any(m.drawn(r) for m in of_file)]
            _write(sample / name, records)
            m = of_file[0]
            for graph in {r[m.graph] for r in records} - {""} if m.graph else ():
                (sample / graph).parent.mkdir(exist_ok=True)
                (sample / graph).write_bytes((full / graph).read_bytes())


def _write(path: Path, records: Sequence[Record]) -> None:
    """A CSV file, gzipped without a time stamp where its name says so."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(records[0]) if records else [], lineterminator="\n")
    table.writeheader()
    table.writerows(records)
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

"""Draw the sample of measurements that ships: `python -m onnxperf.measurements.draw DIR [--to FOLDER]`.

DIR holds the full tables, the sample has the same files with fewer rows, unchanged. All shapes that the source itself
kept back for tests stay, and as many others of each operator as MOST says, drawn by a fixed seed; of the large
tables on tensor cores as many as TENSOR_CORE says. With a shape stay all its rows on all cards. Same tables, same
bytes.
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
from onnxperf.measurements import SAMPLE, deepbench, tensor_core, torch_fp32
from onnxperf.measurements.core import located, read, sizes
from onnxperf.measurements.deepbench import PRECISIONS
from onnxperf.measurements.tensor_core import Shape

SEED = 0
MOST = {"bmm": 1200, "linear": 1200, "conv": 2000, "softmax": 600, "ln": 600}
OTHERS = 200  # of each elementwise operator
TENSOR_CORE = {
    "gemm bfloat16": 1200, "gemm bfloat16 sustained": 400, "gemm float16": 400, "gemm fp8": 600,
    "gemm fp8_block": 600, "gemm fp8_static": 200, "gemm nvfp4": 400, "gemm sq": 400, "gemm int8_wo": 400,
    "gemm int4_wo": 400, "attention prefill": 800, "attention decode": 800, "attention encoder": 600,
}  # fmt: skip
COPIED = ("fp32_torch/LICENSE.NeuSight", "fp32_torch/kernel_names.csv.gz", "ort_cuda/published.csv")
Record = dict[str, str]


def draw(source: Path, to: Path) -> None:
    """Write the sample of the tables in `source` to the folder `to`."""
    for folder in ("fp32_torch", "deepbench", "tensor_core", "ort_cuda"):
        (to / folder).mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        (to / name).write_bytes((source / name).read_bytes())
    for file, columns, shape in torch_fp32.FILES:
        records = list(read(source / "fp32_torch" / file, ("op", "split", *columns)))
        _write(to / "fp32_torch" / file, _drawn(records, columns, shape))
    for file, *_ in deepbench.FILES:
        records = list(read(source / "deepbench" / file, ("mode", "precision")))
        _write(to / "deepbench" / file, (r for r in records if r["mode"] == "train" and r["precision"] in PRECISIONS))
    for file, named, of in tensor_core.FILES:
        records = list(read(located(source / "tensor_core" / file), named))
        _write(to / "tensor_core" / file, _some(records, named, of))
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


def _some(records: list[Record], columns: tuple[str, ...], shape: Callable[[Record], Shape]) -> Iterator[Record]:
    """The records of as many shapes of each family as TENSOR_CORE says."""
    shapes: dict[tuple[str, ...], str] = {}
    for r in records:
        key = tuple(r[c] for c in columns)
        if key not in shapes:
            shapes[key] = shape(r)[0]
    chosen: set[tuple[str, ...]] = set()
    for family in dict.fromkeys(shapes.values()):
        alike = [key for key, name in shapes.items() if name == family]
        most = TENSOR_CORE.get(family, 0)
        chosen |= {alike[i] for i in np.random.default_rng(SEED).permutation(len(alike))[:most]}
    return (r for r in records if tuple(r[c] for c in columns) in chosen)


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

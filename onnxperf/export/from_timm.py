"""Export the models of timm that were measured: `python -m onnxperf.export.from_timm DATA --to FOLDER` (extra `timm`).

DATA holds `timm/infer_amp.csv.gz`, `timm/train_amp.csv.gz` or both. These tables and their models' graphs, without
weights, are written to FOLDER, in about 15 seconds a graph; existing graphs are kept. `onnxperf validate --data FOLDER`
then scores all runs.
"""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import click

from onnxperf.ground.errors import ModelError

PLACE, TABLES = Path("timm"), ("infer_amp.csv.gz", "train_amp.csv.gz")


APART = 0.03  # largest relative difference in the number of parameters: beyond it, timm's model is not the measured one


def graph(name: str, side: int, millions: float) -> bytes:
    """The weightless graph of a model of timm on square images, with an open batch.

    Raises ModelError where the number of parameters differs from `millions`, and whatever timm and `proto` raise.
    """
    import timm
    import torch

    from onnxperf.export.from_torch import proto

    module = timm.create_model(name)
    parameters = sum(p.numel() for p in module.parameters()) / 1e6
    if abs(parameters / millions - 1) > APART:
        raise ModelError(
            f"timm {timm.__version__} has a model of that name with {parameters:.2f} M parameters, not {millions} M"
        )
    data: bytes = proto(module, torch.zeros(2, 3, side, side), open_batch=True).SerializeToString()
    return data


@click.command(help=__doc__)
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--to", type=click.Path(path_type=Path), required=True, help="Folder that table and graphs go to.")
@click.option("--only", default="", help="Export only models with this in their name.")
def main(data: Path, to: Path, only: str) -> None:
    """Export the graphs that are not there yet, and name the models that can't be exported."""
    (to / PLACE).mkdir(parents=True, exist_ok=True)
    wanted: dict[tuple[str, int], float] = {}
    for table in (data / PLACE / name for name in TABLES if (data / PLACE / name).is_file()):
        (to / PLACE / table.name).write_bytes(table.read_bytes())
        for r in csv.DictReader(gzip.decompress(table.read_bytes()).decode("utf-8").splitlines()):
            if only in r["model"]:
                side = r["img"] if "img" in r else r["shape"].rpartition("x")[2]
                wanted[r["model"], int(side)] = float(r["mparams"])
    for (name, side), millions in sorted(wanted.items()):
        file = to / PLACE / f"{name}@{side}.onnx.gz"
        if file.is_file():
            continue
        try:
            file.write_bytes(gzip.compress(graph(name, side, millions), 9, mtime=0))
        except Exception as e:  # a model's own code raises anything
            click.echo(f"{name} at {side}: {type(e).__name__}: {str(e)[:200]}", err=True)


if __name__ == "__main__":
    main()

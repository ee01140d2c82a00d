"""Derive every shipped constant from measurements: `python -m onnxperf.lab.derive DATA`.

DATA is a folder with tables like those in `onnxperf/lab/datasets/sample`, of all datasets or of some. The sets of
constants are fitted one after the other, on all dies together, then again without each die and without each
generation. The errors on the rows left out give the widths of ranges. A set without rows in DATA keeps its shipped
constants, which the sets after it then use. The same data give the same files.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import click

from onnxperf.ground.errors import EnvironmentFailure, Error, UsageError, printable
from onnxperf.ground.modules import require
from onnxperf.ground.output import write_file
from onnxperf.lab import constants
from onnxperf.lab.datasets import files, kernels, read, unused
from onnxperf.lab.derive.files import LEFT_OUT, texts
from onnxperf.lab.derive.fit import fitted_rows
from onnxperf.lab.derive.passes import SETS, Derived, derive, generation, rows_of

SHIPPED, APART = Path(__file__).parents[2] / "latency" / "constants", Path(__file__).parents[1]


@click.command()
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-o", "--output", show_default="the package's own", type=click.Path(path_type=Path))
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1, 64), help="Processes that fit.")
def main(data: Path, output: Path | None, jobs: int) -> None:
    """Derive the constants from the measurements in DATA and write them as TOML."""
    try:
        derive_all(data, output, jobs)
    except Error as e:
        click.echo(f"Error: {printable(str(e))}", err=True)
        raise SystemExit(e.exit_code) from None


def derive_all(data: Path, output: Path | None, jobs: int) -> None:
    """Read, fit without each die and generation, and write all files once all is known: to the folder `output`, or to
    where the package has them, together with the one that predictions load.

    Raises UsageError where the data hold too little, EnvironmentFailure without scipy or where nothing can be written.
    """
    require("scipy", "deriving constants")
    from rich.console import Console
    from rich.progress import Progress

    tables = read(data)
    if not tables:
        wanted = ", ".join(p.relative_to(data).as_posix() for p in files(data))
        raise UsageError(f"{data} holds no measurements: none of {wanted} is there")
    used = {name: fitted_rows(tables, wanted) for name, wanted in SETS.items()}
    left = [name for name, of_set in used.items() if not rows_of(of_set)]
    if len(left) == len(SETS):
        raise UsageError(f"{data} holds no rows to derive from: {unused(tables)}")
    if left:
        click.echo(f"{data} has no rows for {', '.join(left)}: their constants are left as they ship", err=True)
    sets, of_kernels = (
        used.keys() - left,
        kernels(),
    )  # dies whose rows are all kept back are scored, too
    scored = [t for t in tables if t.name in of_kernels and of_kernels[t.name].constants in sets]
    everything = {(g, die) for t in scored for g, die in zip(t.gpus, t.dies, strict=True)}
    left_out = [*sorted({die for _, die in everything}), *sorted({generation(g) for g, _ in everything})]
    err, passes = Console(stderr=True), dict[str, Derived]()
    with ProcessPoolExecutor(jobs) as pool, Progress(console=err, disable=not err.is_terminal) as progress:
        task = progress.add_task("fitting", total=1 + len(left_out))

        def keep(derived: Derived) -> None:
            passes[derived.without] = derived
            progress.advance(task)
            if not err.is_terminal:
                click.echo(f"fitted {len(passes)} of {1 + len(left_out)}", err=True)

        keep(pool.submit(derive, tables).result())
        for derived in pool.map(derive, [tables] * len(left_out), left_out, [passes[""]] * len(left_out)):
            keep(derived)
    for name, text in texts(data, tables, passes).items():
        folder = output or (APART if name.startswith(LEFT_OUT) else SHIPPED)
        write_file(str(made(folder / name)), text)
    if output is None:
        constants.main()


def made(path: Path) -> Path:
    """The path, in a folder that is there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise EnvironmentFailure(f"can't write to {path.parent}: {e.strerror}") from e
    return path


if __name__ == "__main__":
    main()

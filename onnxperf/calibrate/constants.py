"""Derive every shipped constant from measurements: `python -m onnxperf.calibrate.constants DATA`.

DATA is a folder with tables like those in `onnxperf/measurements/sample`. The families are fitted one after the other,
on all dies together, and again without each die and without each generation; the rows left out then say how wide ranges
have to be. The same data make the same files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import numpy as np

import gpu_specs
from onnxperf.calibrate import attention, conv, gemm, host, power, recurrent, tensor, tensor_conv, vector
from onnxperf.calibrate.fit import Family, Fit, fit, thinned, unfitted
from onnxperf.calibrate.intervals import Misses, intervals
from onnxperf.errors import EnvironmentFailure, Error, UsageError, printable
from onnxperf.latency import Constants
from onnxperf.latency.constants import assumed
from onnxperf.latency.intervals import amount, class_on
from onnxperf.latency.terms import Array
from onnxperf.measurements import DIES, Table, files, ort, read, torch_fp32
from onnxperf.output import write_file


def _of_family(
    of_module: Callable[[Sequence[Table]], list[Table]], names: Sequence[str], every: Sequence[Table]
) -> list[Table]:
    return [t for t in of_module(every) if not names or t.family in names]


#: What is fitted, in this order, and to which tables: a family may use the constants of those before it.
FAMILIES: tuple[tuple[Family, Callable[[Sequence[Table]], list[Table]]], ...] = tuple(
    (family, partial(_of_family, module.tables, family.tables))
    for module in (vector, power, gemm, tensor, conv, tensor_conv, attention, recurrent)
    for family in module.FAMILIES
)
SCORED = 4000  # works of a table at most, for ranges
SHIPPED = Path(__file__).parents[1] / "latency" / "constants"
HEAD = "# Made by `python -m onnxperf.calibrate.constants`: run it again, don't edit.\n"


@dataclass(frozen=True, slots=True)
class Derived:
    """What one pass over the families found, with rows of the die or generation `without` left out."""

    without: str
    values: Mapping[str, Mapping[str, Any]]  # by family, then dotted path
    rows: Mapping[str, int]
    misses: tuple[Misses, ...]


def generation(gpu: str) -> str:
    """The major compute capability of a card: cc7."""
    return f"cc{gpu_specs.load(gpu).capability[0]}"


def derive(tables: Sequence[Table], without: str = "", whole: Derived | None = None) -> Derived:
    """Fit all families without the rows of a die or generation, then predict the rows of that, or all.

    What `whole`, the pass over all rows, found is taken over for families before the first that has rows to leave out.
    """
    constants = assumed()
    values: dict[str, dict[str, Any]] = {}
    rows: dict[str, int] = {}
    misses: dict[tuple[str, str, str], list[tuple[Array, Array]]] = {}
    for family, of_family in FAMILIES:
        chosen = of_family(tables)
        if any(without in (die, generation(g)) for t in chosen for g, die in zip(t.gpus, t.dies, strict=True)):
            whole = None
        if whole:
            values[family.name], rows[family.name] = dict(whole.values[family.name]), whole.rows[family.name]
        else:
            learned = family.learned([_others(t, without) for t in tables])
            kept = [t for t in (_others(t, without) for t in chosen) if t.gpus]
            start = constants.having(learned)
            found = fit(family, kept, start) if kept or not without else unfitted(family, start)
            values[family.name] = {**learned, **{path: rounded(v) for path, v in found.values.items()}}
            values[family.name] |= _overheads(family, found)
            rows[family.name] = found.rows
        constants = constants.having(values[family.name])
        names = {t.family for t in chosen}
        for t in (thinned(t, SCORED) for t in tables if t.family in names):
            miss = missed(family, t, constants)
            amounts = np.array([amount(w) for w in t.works])
            for j, (gpu, die) in enumerate(zip(t.gpus, t.dies, strict=True)):
                if without in ("", die, generation(gpu)):
                    classes = np.array([class_on(w, gpu_specs.load(gpu)) for w in t.works])
                    for name in np.unique(classes):
                        at = (classes == name) & np.isfinite(miss[:, j])
                        key = (str(name), die, _distance(without, gpu, t))
                        misses.setdefault(key, []).append((miss[at, j], amounts[at]))
    by_die = not without.startswith("cc")
    missed_by = tuple(
        Misses(*k, np.concatenate([m for m, _ in v]), np.concatenate([a for _, a in v]), by_die)
        for k, v in sorted(misses.items())
    )
    return Derived(without, values, rows, missed_by)


def _overheads(family: Family, found: Fit) -> dict[str, float]:
    """What each rig's clock includes on each card; "other": the median of these, for cards without rows."""
    values: dict[str, float] = {}
    for rig, usual in family.overhead_s.items():
        own = {gpu: rounded(s) for (r, gpu), s in found.overhead_s.items() if r == rig}
        other = rounded(float(np.median([s for (r, _), s in found.overhead_s.items() if r == rig] or [usual])))
        values |= {f"rig.{family.name}.{rig}.{gpu}": s for gpu, s in {**own, "other": other}.items()}
    return values


def _others(t: Table, without: str) -> Table:
    """The rows of a table that are not of the die or generation left out."""
    return t.on(g for g in t.gpus if without not in (DIES.get(g, g), generation(g)))


def _distance(without: str, gpu: str, t: Table) -> str:
    if not without:
        return "measured"
    others = {generation(g) for g in _others(t, without).gpus}
    return "known" if generation(gpu) in others else "new"


def missed(family: Family, t: Table, constants: Constants) -> Array:
    """log(measured / predicted) of rows that last long enough to tell, nan elsewhere, [n, g]."""
    overhead = constants.rig[family.name][t.rig]
    inside = np.array([[overhead.get(g, overhead["other"]) for g in t.gpus]])
    seconds = family.seconds(t, [gpu_specs.load(g) for g in t.gpus], constants) + inside
    return np.where(t.seconds > t.least_s, np.log(t.seconds / seconds), np.nan)


def rounded(value: float) -> float:
    """Four digits: what differs behind them is another machine's arithmetic."""
    return float(f"{value:.4g}")


def domain(tables: Sequence[Table], without: str = "") -> dict[str, Any]:
    """What rows there are of each class: the least and most FLOPs and bytes, types, cards and their generations."""
    reach: dict[str, tuple[Any, Any]] = {}
    types: dict[str, set[str]] = {}
    cards: dict[str, set[str]] = {}
    for t in tables:
        now = np.array([(w.matrix_flops + w.vector_flops, w.bytes) for w in t.works], dtype=float).reshape(-1, 2)
        dtypes = np.array([w.dtype for w in t.works])
        for j in (j for j, die in enumerate(t.dies) if die != without):
            device = gpu_specs.load(t.gpus[j])
            names = np.array([class_on(w, device) for w in t.works])
            for name in np.unique(names[measured := np.isfinite(t.seconds[:, j])]).tolist():
                rows = measured & (names == name)
                least, most = reach.get(name, (np.inf, 0))
                reach[name] = np.minimum(least, now[rows].min(axis=0)), np.maximum(most, now[rows].max(axis=0))
                types.setdefault(name, set()).update(dtypes[rows].tolist())
                cards.setdefault(name, set()).add(device.id)
    return {
        name: {
            "FLOPs_and_bytes": np.stack(both, axis=1).astype(int).tolist(), "types": sorted(types[name]),
            "cards": sorted(cards[name]), "generations": sorted({int(generation(g)[2:]) for g in cards[name]}),
        }
        for name, both in sorted(reach.items())
    }  # fmt: skip


def texts(data: Path, tables: Sequence[Table], passes: Mapping[str, Derived]) -> dict[str, str]:
    """The files to ship, by name: one a family, and the intervals'."""
    dies = sorted({die for t in tables for die in t.dies} & passes.keys())
    made: dict[str, str] = {}
    read_from = (*files(data), data / "fp32_torch" / torch_fp32.NAMES)
    hashes = {p.relative_to(data).as_posix(): _hash(p) for p in read_from if p.is_file()}
    for family, of_family in FAMILIES:
        used = of_family(tables)
        names = {(t.rig, t.family) for t in used}
        measured = sum(int(np.isfinite(t.seconds).sum()) for t in tables if (t.rig, t.family) in names)
        note = {
            "rows": passes[""].rows[family.name],
            "rows_measured": measured,
            "not_fitted": f"rows kept back for scores, of cards the family leaves out, beyond {family.sample} works",
            "dropped": {f"{t.rig}: {t.family}": dict(t.dropped) for t in used if t.dropped},
            "data": hashes,
        }
        meaning = {p.path: p.meaning for p in family.parameters}
        lines = _table("constants", passes[""].values[family.name], meaning)
        for die in dies:
            values = passes[die].values[family.name]
            unknown = sorted(
                path for path, v in passes[""].values[family.name].items() if isinstance(v, list) and path not in values
            )
            lines += _table(f"without.{die}", {**values, **{path: [] for path in unknown}}, {})
        made[f"{family.name}.toml"] = HEAD + "\n".join(_plain("made", note) + lines) + "\n"
    misses = [m for d in passes.values() for m in d.misses]
    total = sum(passes[""].rows.values())
    lines = ["", "[constants]", f'source = "derived from {total:,} measured kernels, the rest assumed"']
    everything = [t for _, of_family in FAMILIES for t in of_family(tables)]
    ranges: dict[str, dict[str, Any]] = {}
    for die in ("", *dies):
        reach = domain(everything, die)
        generations = sorted({g for r in reach.values() for g in r["generations"]})
        ranges[die] = {"generations": generations, **intervals(misses, reach, die)}
        lines += _plain(f"without.{die}.interval" if die else "constants.interval", ranges[die])
    if (data / "ort_cuda" / ort.FILE).is_file():
        known = {path: v for values in passes[""].values.values() for path, v in values.items()}
        made["host.toml"] = _host(data, known | {f"interval.{name}": table for name, table in ranges[""].items()})
    made["intervals.toml"] = HEAD + "\n".join(lines) + "\n"
    return made


def _host(data: Path, known: Mapping[str, Any]) -> str:
    """The file of the host's costs, beside kernels with the constants `known`; and without each group of runs."""
    meaning = {p.path: p.meaning for p in host.PARAMETERS}
    lines: list[str] = []
    for group, values in host.derive(data, assumed().having(known)).items():
        found = {path: rounded(v) for path, v in values.items()}
        lines += _table(f"without.{group}", found, {}) if group else _table("constants", found, meaning)
    return HEAD + "\n".join(lines) + "\n"


def _hash(path: Path) -> str:
    return "sha256 " + hashlib.sha256(path.read_bytes()).hexdigest()


def _table(root: str, values: Mapping[str, Any], meaning: Mapping[str, str]) -> list[str]:
    """Dotted paths as TOML tables below `root`, each value with what it means."""
    lines: list[str] = []
    for head in sorted({path.rpartition(".")[0] for path in values}):
        lines += ["", f"[{'.'.join(_key(k) for k in (*root.split('.'), *head.split('.')))}]"]
        for path, value in values.items():
            if path.rpartition(".")[0] == head:
                says = f"  # {meaning[path]}" if meaning.get(path) else ""
                lines.append(f"{_key(path.rpartition('.')[2])} = {_value(value)}{says}")
    return lines


def _plain(root: str, table: Mapping[str, Any]) -> list[str]:
    """A nested mapping as TOML tables."""
    lines = ["", f"[{root}]"]
    lines += [f"{_key(k)} = {_value(v)}" for k, v in table.items() if not isinstance(v, Mapping)]
    for k, v in table.items():
        if isinstance(v, Mapping):
            lines += _plain(f"{root}.{_key(k)}", v)
    return lines


def _key(name: str) -> str:
    return name if name and all(c.isalnum() or c in "_-" for c in name) else '"' + name.replace('"', "'") + '"'


def _value(v: Any) -> str:
    if isinstance(v, list):
        return f"[{', '.join(_value(i) for i in v)}]"
    return f'"{v}"' if isinstance(v, str) else repr(rounded(v) if isinstance(v, float) else v)


@click.command()
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-o", "--output", default=SHIPPED, show_default="the package's own", type=click.Path(path_type=Path))
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1, 64), help="Processes that fit.")
def main(data: Path, output: Path, jobs: int) -> None:
    """Derive the constants from the measurements in DATA and write them as TOML."""
    try:
        derive_all(data, output, jobs)
    except Error as e:
        click.echo(f"Error: {printable(str(e))}", err=True)
        raise SystemExit(e.exit_code) from None


def derive_all(data: Path, output: Path, jobs: int) -> None:
    """Read, fit without each die and generation, and write all files once all is known.

    Raises UsageError where the data hold too little, EnvironmentFailure without scipy or where nothing can be written.
    """
    if find_spec("scipy") is None:
        raise EnvironmentFailure("deriving constants takes scipy: pip install 'onnxperf[fit]'")
    from rich.console import Console
    from rich.progress import Progress

    tables = read(data)
    if not tables:
        wanted = ", ".join(p.relative_to(data).as_posix() for p in files(data))
        raise UsageError(f"{data} holds no measurements: none of {wanted} is there")
    used = [t for _, of_family in FAMILIES for t in of_family(tables)]
    everything = {g for t in used for g in t.gpus}
    left_out = [*sorted({die for t in used for die in t.dies}), *sorted({generation(g) for g in everything})]
    with ProcessPoolExecutor(jobs) as pool, Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("fitting", total=1 + len(left_out))
        passes = {"": pool.submit(derive, tables).result()}
        progress.advance(task)
        for found in pool.map(derive, [tables] * len(left_out), left_out, [passes[""]] * len(left_out)):
            passes[found.without] = found
            progress.advance(task)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise EnvironmentFailure(f"can't write to {output}: {e.strerror}") from e
    for name, text in texts(data, tables, passes).items():
        write_file(str(output / name), text)


if __name__ == "__main__":
    main()

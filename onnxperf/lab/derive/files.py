"""Write the TOML files of constants: derived values, their data, widths of ranges; and, apart, the same without each
die.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gpu_specs
from onnxperf.lab.constants import assumed, file_of, flat, left_out_of, values_of
from onnxperf.lab.datasets import Table, datasets, files
from onnxperf.lab.derive import host, models, whole_runs
from onnxperf.lab.derive.fit import fitted_rows
from onnxperf.lab.derive.intervals import Misses, intervals
from onnxperf.lab.derive.passes import SETS, Derived, generation, rounded
from onnxperf.latency.constants import ConstantSet, Parameter
from onnxperf.latency.intervals import class_on

LEFT_OUT = "left_out"  # the folder of files without some rows
HEAD = "# Made by `python -m onnxperf.lab.derive`: run it again, don't edit.\n"


def texts(data: Path, tables: Sequence[Table], passes: Mapping[str, Derived]) -> dict[str, str]:
    """The text of each file by name: one for each set with rows, one of intervals, and those of constants and widths
    from whole runs where `data` has such runs; each once more in LEFT_OUT, without each die or group of runs.

    Where a set has no rows, the shipped intervals of error classes without rows stay, as do widths of kinds of whole
    runs without rows.
    """
    dies = sorted({die for t in tables for die in t.dies} & passes.keys())
    names = (data / d.folder / d.names for d in datasets() if d.names)
    hashes = {p.relative_to(data).as_posix(): _hash(p) for p in (*files(data), *names) if p.is_file()}
    fitted = passes[""].rows
    written: dict[str, str] = {}
    for name in fitted:
        written |= _both(name, *_of_set(SETS[name], tables, passes, dies, hashes))
    kept = {name: file_of(name) for name in SETS if name not in fitted}
    shipped = file_of("intervals").get("constants", {}) if kept else {}
    shipped_without = left_out_of("intervals") if kept else {}
    total = sum(fitted.values()) + sum(f.get("made", {}).get("rows", 0) for f in kept.values())
    lines = ["", "[constants]", f'source = "derived from {total:,} measured kernels, the rest assumed"']
    misses = [m for d in passes.values() for m in d.misses]
    everything = [t for wanted in SETS.values() for t in fitted_rows(tables, wanted)]
    apart_lines: list[str] = []
    ranges: dict[str, dict[str, Any]] = {}
    for die in ("", *sorted({*dies, *shipped_without})):
        ranges[die] = (shipped_without.get(die) or shipped).get("interval", {})
        if not die or die in dies:
            ranges[die] = _ranges(misses, domain(everything, die), die, ranges[die])
        if die:
            apart_lines += _plain(f"without.{die}.interval", ranges[die])
        else:
            lines += _plain("constants.interval", ranges[die])
    written |= _both("intervals", lines, apart_lines)
    values_by_path = {path: v for values in passes[""].values.values() for path, v in values.items()}
    values_by_path |= {f"interval.{name}": table for name, table in ranges[""].items()}
    told = {path: v for wanted in models.SETS.values() for path, v in values_of(wanted).items()}
    apart: dict[str, dict[str, float]] = {}
    for name, groups in models.derive(data, assumed().having(values_by_path)).items():
        written |= _both(name, *_by_group(groups, _meaning(models.SETS[name].parameters)))
        values_by_path |= groups[""]
        apart |= {group: apart.get(group, {}) | dict(values) for group, values in groups.items()}
    if costs := host.derive(data, assumed().having(values_by_path)):
        written |= _both("host", *_by_group(costs, _meaning(host.PARAMETERS)))
    before = flat(file_of("whole_runs").get("constants", {}))
    constants = assumed().having(told | values_by_path | costs.get("", {}))
    if widths := whole_runs.derive(data, constants, apart, before):
        for group, table in left_out_of("whole_runs").items():
            widths[group] = flat(table) | widths.get(group, {})
        widths[""] = before | widths[""]
        written |= _both("whole_runs", *_by_group(widths, {}))
    return written


def _both(name: str, lines: Sequence[str], apart: Sequence[str]) -> dict[str, str]:
    """The file of constants, and that of the same without some rows."""
    paths = {f"{name}.toml": lines, f"{LEFT_OUT}/{name}.toml": apart}
    return {path: HEAD + "\n".join(text) + "\n" for path, text in paths.items()}


def _ranges(misses: Sequence[Misses], reach: Mapping[str, Any], die: str, before: Mapping[str, Any]) -> dict[str, Any]:
    """The table of intervals without a die: new ones for the classes with rows, and the earlier ones of all others."""
    tables = {**before, **intervals(misses, reach, die)}
    generations = {g for r in reach.values() for g in r["generations"]} | {*before.get("generations", ())}
    between = before.get("between", tables["between"])  # too few classes to derive what all have in common
    classes = {name: tables[name] for name in sorted(tables) if isinstance(tables[name], Mapping)}
    return {"generations": sorted(generations), "between": between, **classes}


def _of_set(
    wanted: ConstantSet, tables: Sequence[Table], passes: Mapping[str, Derived], dies: Sequence[str],
    hashes: Mapping[str, str],
) -> tuple[list[str], list[str]]:  # fmt: skip
    """The lines of one set: its constants, and those without each die."""
    used = fitted_rows(tables, wanted)
    names = {(t.rig, t.name) for t in used}
    values = passes[""].values[wanted.name]
    note = {
        "rows": passes[""].rows[wanted.name],
        "rows_measured": sum(int(np.isfinite(t.seconds).sum()) for t in tables if (t.rig, t.name) in names),
        "not_fitted": f"rows kept back for scores, of cards that are left out, beyond {wanted.sample} works",
        "dropped": {f"{t.rig}: {t.name}": dict(t.dropped) for t in used if t.dropped},
        "data": hashes,
    }
    lines = _plain("made", note) + _table("constants", values, _meaning(wanted.parameters))
    apart: list[str] = []
    for die in dies:
        without = passes[die].values[wanted.name]
        unknown = {path: type(v)() for path, v in values.items() if isinstance(v, (list, str)) and path not in without}
        apart += _table(f"without.{die}", {**without, **unknown}, {})
    return lines, apart


def _by_group(groups: Mapping[str, Mapping[str, float]], meaning: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The lines of constants derived from whole runs, and of the same without each group of runs."""
    lines, apart = list[str](), list[str]()
    for group, values in groups.items():
        exact = {path: rounded(v) for path, v in values.items()}
        if group:
            apart += _table(f"without.{group}", exact, {})
        else:
            lines += _table("constants", exact, meaning)
    return lines, apart


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


def _hash(path: Path) -> str:
    return "sha256 " + hashlib.sha256(path.read_bytes()).hexdigest()


def _meaning(parameters: Sequence[Parameter]) -> dict[str, str]:
    return {p.path: p.meaning for p in parameters}


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

"""The command that derives the shipped constants, on a slice of the sample; and what it shipped."""

import gzip
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import gpu_specs
from onnxperf.ground import fitting
from onnxperf.ground.errors import Error
from onnxperf.lab import constants
from onnxperf.lab.datasets import LEAST_S, SAMPLE, Table, files, models, read
from onnxperf.lab.derive import models as models_module
from onnxperf.lab.derive import passes as passes_module
from onnxperf.lab.derive.__main__ import APART, SHIPPED, main
from onnxperf.lab.derive.files import HEAD, domain, texts
from onnxperf.lab.derive.fit import Fit, fitted_rows, unfitted
from onnxperf.lab.derive.passes import SETS, Derived, derive, generation, missed
from onnxperf.latency import Constants, shipped
from onnxperf.latency.constants import ConstantSet
from onnxperf.latency.intervals import DISTANCES


@pytest.fixture(scope="module", autouse=True)
def few_rounds() -> Iterator[None]:
    """Fits stop early: what is asked here holds on the way to the best fit as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "ROUNDS", 1)
        yield


@pytest.fixture(scope="module")
def every() -> list[Table]:
    """Every table of the sample."""
    return read(SAMPLE)


@pytest.fixture(scope="module")
def tables(every: list[Table]) -> list[Table]:
    """About sixteen works of each table of the sample."""
    return [t.take(np.arange(0, len(t.works), max(1, len(t.works) // 16))) for t in every]


@pytest.fixture(scope="module")
def passes(tables: list[Table]) -> dict[str, Derived]:
    return {left_out: derive(tables, left_out) for left_out in ("", "TU104")}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, with one in forty of the whole models that tell of the host, and one in six of the others."""
    place = tmp_path_factory.mktemp("derive") / "data"
    shutil.copytree(SAMPLE, place)
    for runs, each in {place / d.folder / m.file: 40 if m.constants == "host" else 6 for d, m in models()}.items():
        opened = gzip.open if runs.suffix == ".gz" else open
        with opened(runs, "rt", encoding="utf-8") as file:
            head, *rows = file.readlines()
        with opened(runs, "wt", encoding="utf-8") as file:
            file.writelines([head, *rows[::each]])
    return place


def read_file(name: str, made: Mapping[str, str]) -> dict[str, Any]:
    """A set of constants, with those without each die."""
    return tomllib.loads(made[f"{name}.toml"]) | tomllib.loads(made[f"left_out/{name}.toml"])


def shipped_file(name: str) -> dict[str, Any]:
    folders = {"": SHIPPED, "left_out/": APART / "left_out"}
    return read_file(name, {f"{k}{name}.toml": (f / f"{name}.toml").read_text("utf-8") for k, f in folders.items()})


def test_a_slice_gives_constants_that_predict_the_die_left_out(tables: list[Table], passes: dict[str, Derived]) -> None:
    """T4's vector kernels, from other cards' few rows: nearer than the roofline, without any row of its own."""
    found = {m.operator_class: m for m in passes["TU104"].misses}
    assert {m.die for m in found.values()} == {"TU104"}
    t = next(t for t in tables if t.name == "softmax").on(["t4"])
    roofline = np.array([w.bytes for w in t.works]) / gpu_specs.load("t4").bandwidth_Bps
    naive = np.abs(np.log(t.seconds[:, 0] / roofline))[t.seconds[:, 0] > LEAST_S]
    assert np.median(np.abs(found["softmax"].miss)) < np.median(naive)


def test_no_row_of_the_die_left_out_has_a_part_in_its_constants(
    tables: list[Table], passes: dict[str, Derived]
) -> None:
    changed = [t.without(np.array([[g == "t4" for g in t.gpus]] * len(t.works)), "test") for t in tables]
    assert derive(changed, "TU104").values == passes["TU104"].values


def test_sets_without_rows_of_the_die_are_not_fitted_again(tables: list[Table], passes: dict[str, Derived]) -> None:
    """Nor does it make a difference: the same data make the same constants, and the same rows are missed as far, of
    which files are written.
    """
    again, afresh = derive(tables, "GM200", passes[""]), derive(tables, "GM200")
    assert again.values["vector"] == passes[""].values["vector"]  # all its cards are newer
    assert again.values["convolution"] != passes[""].values["convolution"]
    assert (again.values, again.rows) == (afresh.values, afresh.rows)
    assert repr(again.misses) == repr(afresh.misses)


def test_every_constant_is_written_with_what_it_means_and_where_it_is_from(
    data: Path, tables: list[Table], passes: dict[str, Derived]
) -> None:
    made = texts(data, tables, passes)
    of_runs = {*(f"{name}.toml" for name in models_module.SETS), "host.toml", "whole_runs.toml"}
    whole = {*(f"{name}.toml" for name in SETS), "intervals.toml"} | of_runs
    assert set(made) == whole | {f"left_out/{name}" for name in whole}
    for wanted in SETS.values():
        text = made[f"{wanted.name}.toml"]
        read_back = tomllib.loads(text)
        assert read_back["made"]["rows"] == passes[""].rows[wanted.name]
        assert set(read_back["made"]["data"]) == {p.relative_to(SAMPLE).as_posix() for p in files(SAMPLE)} | {
            "fp32_torch/kernel_names.csv.gz"
        }
        assert "without" not in read_back
        assert "TU104" in tomllib.loads(made[f"left_out/{wanted.name}.toml"])["without"]
        for p in wanted.parameters:
            assert f"# {p.meaning}" in text


def test_a_set_without_rows_stays_as_it_ships(tables: list[Table], tmp_path: Path) -> None:
    """It is not passed off as derived: its file is not written, and classes without rows keep their ranges."""
    some = [t for t in tables if t.name == "deepbench conv"]
    found = {left_out: derive(some, left_out) for left_out in ("", "TU104", "cc7")}
    for left_out, one in found.items():
        assert list(one.rows) == ["convolution"]
        for p in SETS["gemm"].parameters:
            assert one.values["gemm"][p.path] == reduce(
                getitem, p.path.split("."), constants.left_out(left_out).tables
            ), p.path
    made = texts(tmp_path, some, found)
    assert set(made) == {
        f"{folder}{name}.toml" for folder in ("", "left_out/") for name in ("convolution", "intervals")
    }
    before, after = shipped_file("intervals"), read_file("intervals", made)
    for path in (["constants"], *(["without", die] for die in before["without"])):
        old, new = (reduce(getitem, path, made)["interval"] for made in (before, after))
        changed = {name for name, table in old.items() if new[name] != table}
        assert changed == ({"convolution"} if path[-1] in ("constants", "TU104") else set()), path
    of_ga104 = [replace(t, gpus=tuple("rtx-3070" if g == "m40" else g for g in t.gpus)) for t in some]
    made = texts(tmp_path, of_ga104, found | {"GA104": replace(found["TU104"], without="GA104")})
    whole, new = before["constants"]["interval"], read_file("intervals", made)["without"]["GA104"]["interval"]
    assert new == whole | {"convolution": new["convolution"]}  # nothing ships without a die that had no rows
    shipped_rows = sum(tomllib.loads((SHIPPED / f"{name}.toml").read_text())["made"]["rows"] for name in SETS)
    kept = shipped_rows - tomllib.loads((SHIPPED / "convolution.toml").read_text())["made"]["rows"]
    assert after["constants"]["source"].split()[2] == f"{kept + found[''].rows['convolution']:,}"


def test_what_follows_a_set_without_rows_has_its_shipped_constants(
    tables: list[Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = {}

    def fitted(wanted: ConstantSet, tables: Sequence[Table], start: Constants) -> Fit:
        starts[wanted.name] = start
        return unfitted(wanted)

    monkeypatch.setattr(passes_module, "fit", fitted)
    derive([t for t in tables if t.name == "deepbench conv fp16"], "GP104")
    ((name, start),) = starts.items()
    assert name == "tensor_convolution"
    for p in SETS["tensor_gemm"].parameters:
        keys = p.path.split(".")
        assert reduce(getitem, keys, start.tables) == reduce(getitem, keys, constants.left_out("GP104").tables), p.path


def test_kernels_that_are_measured_have_an_error_class(tables: list[Table], monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows would say how wide the ranges of all are that nobody measured."""
    monkeypatch.setattr(passes_module, "SETS", {"recurrent": replace(SETS["recurrent"], after=())})
    monkeypatch.setattr(passes_module, "class_on", lambda w, device: "unknown")
    with pytest.raises(Error, match="'deepbench rnn' are measured, but their kernel family declares no error_class"):
        derive(tables)


def test_a_folder_without_measurements_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, [str(tmp_path)])
    assert done.exit_code == 2 and "holds no measurements" in done.output


def test_without_scipy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    done = CliRunner().invoke(main, [str(SAMPLE), "-o", str(tmp_path)])
    assert done.exit_code == 4 and "pip install 'onnxperf[fit]'" in done.output
    assert not list(tmp_path.iterdir())


def test_domains_name_cards_and_generations(tables: list[Table]) -> None:
    found = domain([t for t in tables if t.rig == "torch"], without="TU104")
    assert "t4" not in found["softmax"]["cards"] and "v100-pcie-32gb" in found["softmax"]["cards"]
    assert found["softmax"]["generations"] == [6, 7, 8] and found["softmax"]["types"] == ["float32"]
    assert generation("t4") == "cc7"


# What ships ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*SETS, "intervals"])
def test_what_ships_was_made_by_the_command(name: str) -> None:
    for folder in (SHIPPED, APART / "left_out"):
        assert (folder / f"{name}.toml").read_text(encoding="utf-8").startswith(HEAD)
    made = shipped_file(name)
    assert {"GP104", "GP100", "GV100", "TU104", "GA100"} <= set(made["without"])


def test_every_parameter_ships_a_value_that_its_set_derived() -> None:
    for wanted in SETS.values():
        made = shipped_file(wanted.name)
        for values, c in ((made["constants"], shipped()), (made["without"]["GP104"], constants.left_out("GP104"))):
            for p in wanted.parameters:
                keys = p.path.split(".")
                assert reduce(getitem, keys, c.tables) == reduce(getitem, keys, values), p.path


def test_shipped_constants_predict_what_they_were_derived_from(every: list[Table]) -> None:
    """The command's files and the code belong together: half of each set's rows come out nearer than 35%."""
    for wanted in SETS.values():
        for t in [] if wanted.measured_as else fitted_rows(every, wanted):
            miss = missed(wanted, t, shipped())
            if np.isfinite(miss).any():
                assert np.nanmedian(np.abs(miss)) < 0.35, t.name


def test_ranges_ship_for_every_class_with_rows() -> None:
    table = shipped().interval
    for name in ("bmm", "linear", "elementwise", "softmax", "normalisation", "convolution"):
        assert table[name]["rows"] > 100
        assert all(len(table[name][far]) == len(table[name]["thirds"]) + 1 for far in DISTANCES)

"""Host costs from runs: the schedule's own arithmetic, and costs that are found again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import gpu_specs
from onnxperf.answer.prediction import summarise
from onnxperf.lab.datasets.runs import MeasuredRun
from onnxperf.lab.datasets.sources.ort_cuda import COLUMNS, FILE
from onnxperf.lab.derive.host import PARAMETERS, HostRun, derive, fit, half_widths, runs
from onnxperf.latency import shipped
from onnxperf.running.run import Run

pytest.importorskip("scipy")

COSTS = {"host.ort.run_s": 30e-6, "host.ort.walk_s": 0.5e-6, "host.ort.node_s": 8e-6, "host.ort.launch_s": 4e-6}


def row(sample: str, batch: int, **more: object) -> MeasuredRun:
    return MeasuredRun(
        "t4", sample, {"batch": batch, "sequence": 16}, 1.0, runtime="ort-cuda", precision="fp16", source="here",
        ort_version="1.12", **more,  # type: ignore[arg-type]
    )  # fmt: skip


ROWS = [row(s, b, transformers=t) for s in ("minilm-l6-h384", "bert-base-cased") for b in (1, 8) for t in (True, False)]


@pytest.fixture(scope="module")
def made() -> list[HostRun]:
    return runs(ROWS, shipped())


def test_a_run_lasts_as_long_as_the_schedule_says(made: list[HostRun]) -> None:
    constants = shipped().having(COSTS)
    for r, run in zip(ROWS, made, strict=True):
        p = summarise(Run(r.graph, (gpu_specs.load(r.gpu),), r.scenario, constants))
        assert run.seconds(COSTS) == pytest.approx(p.seconds, rel=1e-9)


def test_costs_are_found_again_without_the_rows_left_out(made: list[HostRun]) -> None:
    exact = [replace(r, measured=replace(r.measured, seconds=r.seconds(COSTS))) for r in made]
    found = fit(exact)
    assert list(found) == [p.path for p in PARAMETERS]
    for r in exact:
        assert r.seconds(found) == pytest.approx(r.measured.seconds, rel=0.03)
    spoilt = [
        replace(r, measured=replace(r.measured, seconds=9.0)) if "minilm" in r.measured.model else r for r in exact
    ]
    group = next(r.measured.group for r in spoilt if "minilm" in r.measured.model)
    rest = fit([r for r in exact if r.measured.group != group])
    assert fit(spoilt, group) == rest
    alone = [r for r in exact if r.measured.group == group]
    assert fit(alone, group) == {p.path: p.start for p in PARAMETERS}


def test_half_widths_are_those_of_the_other_runs(made: list[HostRun]) -> None:
    groups = {r.measured.group: COSTS for r in made}
    exact = [replace(r, measured=replace(r.measured, seconds=r.seconds(COSTS))) for r in made]
    nothing = {"interval.host": 0.0, "interval.run.other": 0.0}
    assert half_widths(exact, groups) == pytest.approx(nothing, abs=1e-9)
    mini = next(r.measured.group for r in exact if "minilm" in r.measured.model)
    slow = [
        replace(r, measured=replace(r.measured, seconds=2 * r.measured.seconds)) if r.measured.group == mini else r
        for r in exact
    ]
    assert half_widths(slow, groups, mini) == half_widths(exact, groups, mini) == pytest.approx(nothing, abs=1e-9)
    assert half_widths(slow, groups)["interval.host"] > 0.1
    assert half_widths([r for r in slow if r.measured.group == mini], groups, mini) == {}, "no other run tells"


def test_a_table_without_runs_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "ort_cuda").mkdir()
    (tmp_path / "ort_cuda" / FILE).write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    assert derive(tmp_path, shipped()) == {}

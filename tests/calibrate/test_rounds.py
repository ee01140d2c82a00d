"""Calibration on a machine with other programs: what is disturbed is measured again, or nothing is written."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_specs import Device
from onnxperf import cli
from onnxperf.calibrate import measurements
from onnxperf.calibrate.corrections import MOST_EFFECT, fit
from onnxperf.calibrate.kinds import KINDS
from onnxperf.calibrate.rounds import AGREE, ROUNDS, confirmed
from onnxperf.calibrate.rows import Dropped
from onnxperf.calibrate.suite import Case, cpu_suite
from onnxperf.graph import Note
from onnxperf.ground.errors import EnvironmentFailure, UsageError
from onnxperf.measure.record import DISTURBED, Measurement
from onnxperf.measure.series import Series
from tests.calibrate.conftest import measurement

CASES = cpu_suite()[:2]
NOTE = Note(DISTURBED, "the processor was shared")


def alone(_: int) -> list[float]:
    return [1.0]


@pytest.fixture(scope="module")
def quiet(nominal_cpu: Device) -> dict[str, Measurement]:
    return {c.name: measurement(c, nominal_cpu, alone) for c in CASES}


def slower(m: Measurement, factor: float) -> Measurement:
    runs = Series(tuple(s * factor for s in m.device.samples))
    return replace(m, device=runs, wall=runs)


class Machine:
    """Gives, for each case in turn, times slower by these factors; None is a disturbed measurement."""

    def __init__(self, quiet: dict[str, Measurement], **factors: Iterator[float | None]):
        self.quiet, self.factors, self.asked = quiet, factors, list[str]()

    def __call__(self, case: Case) -> Measurement:
        self.asked.append(case.name)
        at = self.factors["first" if case == CASES[0] else "second"]
        factor = next(at)
        m = self.quiet[case.name]
        return replace(m, warnings=(NOTE,)) if factor is None else slower(m, factor)


def run(machine: Machine, failed: list[Dropped] | None = None) -> dict[str, Measurement]:
    return dict(confirmed(CASES, machine, [] if failed is None else failed, lambda *_: None))


def test_what_two_measurements_agree_on_is_taken(quiet) -> None:
    machine = Machine(quiet, first=iter([1.1, 1.0]), second=iter([1.0, 1.05]))
    found = run(machine)
    assert [found[c.name].seconds for c in CASES] == [quiet[c.name].seconds for c in CASES], "the fastest of each"
    assert len(machine.asked) == 4


def test_a_disturbed_or_slow_measurement_is_repeated(quiet) -> None:
    machine = Machine(quiet, first=iter([2.0, 1.0, 1.02]), second=iter([1.0, None, None, 1.01]))
    found = run(machine)
    assert [found[c.name].seconds for c in CASES] == [quiet[c.name].seconds for c in CASES]
    assert [machine.asked.count(c.name) for c in CASES] == [3, 4]


def test_where_every_measurement_is_disturbed_the_first_round_is_the_last(quiet) -> None:
    machine = Machine(quiet, first=iter([None] * 9), second=iter([None] * 9))
    with pytest.raises(EnvironmentFailure, match=r"busy: every measurement was disturbed \(.*shared\); nothing is wri"):
        run(machine)
    assert len(machine.asked) == 2


def test_times_that_never_agree_are_refused(quiet) -> None:
    each = (1.3**-n for n in range(99))
    machine = Machine(quiet, first=each, second=iter([1.0, 1.0]))
    with pytest.raises(EnvironmentFailure, match=rf"fastest time of '{CASES[0].name}' is .*% below all others"):
        run(machine)
    assert machine.asked.count(CASES[0].name) == ROUNDS and AGREE < 0.3


def test_a_case_that_fails_is_no_sign_of_a_busy_machine(quiet) -> None:
    def machine(case: Case) -> Measurement:
        if case == CASES[0]:
            raise UsageError("it can't run")
        return quiet[case.name]

    failed = list[Dropped]()
    assert list(run(machine, failed)) == [CASES[1].name]
    assert [d.model for d in failed] == [CASES[0].name]


def test_a_busy_machine_writes_nothing(quiet, monkeypatch, capsys, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(KINDS, "cpu", replace(KINDS["cpu"], suite=lambda device: CASES))
    busy = Machine(quiet, first=iter([None] * 9), second=iter([None] * 9))
    monkeypatch.setattr(measurements, "_case", lambda case, kind: busy(case))
    monkeypatch.setattr(sys, "argv", ["onnxperf", "calibrate", "--provider", "cpu", "--keep", "kept"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (4, "") and "Close other programs" in err
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def of_suite(d: Device, host: float, longest: float) -> list[Measurement]:
    """A small suite on a device whose host is slower by `host`, and by `longest` in the run of many nodes."""
    true = replace(d, corrections=replace(d.corrections, host=host))
    cases = [c for c in cpu_suite() if c.name in (*(c.name for c in CASES), "recurrent", "batched products")]
    found = [measurement(c, true, lambda n: [1.0] * n) for c in cases]
    return [slower(m, longest) if m.subject.name == CASES[1].name else m for m in found]


@pytest.mark.slow
def test_the_host_is_what_whole_runs_say(nominal_cpu: Device) -> None:
    found = fit(of_suite(nominal_cpu, 1.6, 1.0), nominal_cpu)
    assert found.device.corrections.host == pytest.approx(1.6, rel=0.1) and not found.left_out
    operators = of_suite(nominal_cpu, 1.0, 1.0)
    late = [
        replace(
            m, operators=tuple(replace(o, least_s=o.least_s + 5e-6, median_s=o.median_s + 5e-6) for o in m.operators)
        )
        for m in operators
    ]
    found = fit(late, nominal_cpu)
    assert found.device.corrections.host == pytest.approx(1.0, rel=0.1), "operators that start late are no slow host"


@pytest.mark.slow
@pytest.mark.parametrize(
    "host, longest, says", [(1.0, 13.6, "differ by a factor of"), (8.0, 1.0, "the plausible range")]
)
def test_an_effect_that_rows_do_not_agree_on_is_left_out(nominal_cpu: Device, host, longest, says) -> None:
    found = fit(of_suite(nominal_cpu, host, longest), nominal_cpu)
    assert found.device.corrections.host == 1.0
    (name, why), *_ = found.left_out
    assert name == "host" and says in why
    assert MOST_EFFECT < 13.6


@pytest.mark.slow
def test_disturbed_measurements_have_no_part_in_a_fit(nominal_cpu: Device) -> None:
    of_all = of_suite(nominal_cpu, 1.0, 1.0)
    bent = replace(slower(of_all[1], 5.0), warnings=(NOTE,))
    found = fit([of_all[0], bent, *of_all[2:]], nominal_cpu)
    assert [(d.model, d.reason) for d in found.dropped if "disturbed" in d.reason] == [
        (CASES[1].name, "it was disturbed: the processor was shared")
    ]

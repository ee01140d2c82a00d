"""`onnxperf calibrate --host-only`: from the times of chains to a host's file that a prediction takes."""

import json
import sys
from itertools import count
from pathlib import Path

import pytest

import onnxperf
from gpu_specs import HOSTS, load_host
from onnxperf import cli
from onnxperf.calibrate import this_host
from onnxperf.calibrate.this_host import LONG, MOST_ROUNDS, REFERENCE, REFERENCE_S, ROUNDS, SHORT, Round
from onnxperf.ground.errors import EnvironmentFailure
from onnxperf.measure.environment import processor

SAMPLES = Path(__file__).parents[2] / "samples"
RUN_S = 20e-6


def times(slower: float, node: float = 1.0) -> Round:
    """Chains on a processor `node` times as slow as the reference, in a round in which everything is `slower`."""
    return {
        (op, n): (RUN_S + n * s * node) * slower for op, s in REFERENCE_S.items() for n in (SHORT, LONG)
    }  # fmt: skip


@pytest.fixture
def calibrate(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, rounds=None) -> tuple[int, str, str]:
        if rounds is not None:
            made = iter(rounds)
            monkeypatch.setattr(this_host, "_round", lambda: next(made))
        monkeypatch.setattr(sys, "argv", ["onnxperf", "calibrate", "--host-only", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), *capsys.readouterr()

    return call


@pytest.mark.parametrize("node", [0.5, 1.0, 3.0])
def test_the_pace_is_that_of_a_node_without_what_a_run_costs(node: float) -> None:
    found = this_host.paced("A processor", "1.31", [times(1.0, node), times(1.3, node)])
    assert found.host.pace == pytest.approx(REFERENCE.pace * node)
    assert found.host.half_width == pytest.approx(REFERENCE.half_width)
    assert found.node_s == pytest.approx({op: s * node for op, s in REFERENCE_S.items()})


def test_operators_that_disagree_widen_the_range() -> None:
    odd = {(op, n): s * (2.0 if op == "Neg" else 1.0) for (op, n), s in times(1.0).items()}
    assert this_host.paced("A processor", "1.31", [odd, odd]).host.half_width > 1.2 * REFERENCE.half_width


def test_a_file_that_a_prediction_takes(calibrate, tmp_path: Path) -> None:
    code, out, _ = calibrate(rounds=[times(s, 2.0) for s in (1.0, 1.5, 1.02)])
    assert code == 0 and "--host this-host.toml" in out and "pace 0.90" in out and "3 rounds" in out
    host = load_host(str(tmp_path / "this-host.toml"))
    assert host.pace == pytest.approx(2 * REFERENCE.pace, rel=1e-3) and host.describe == processor().name
    model = str(SAMPLES / "bert-base.onnx")
    ours, named = (onnxperf.predict(model, gpu="h100", host=h) for h in (tmp_path / "this-host.toml", "server-2023"))
    assert ours.seconds > named.seconds and f"launched by {host.describe} (measured)" in ours.scope
    assert "(assumed)" in named.scope
    assert onnxperf.predict(model, gpu="h100", host="cloud").seconds > ours.seconds


def test_the_same_pace_gives_the_same_answer(calibrate, tmp_path: Path) -> None:
    for name, h in HOSTS.items():
        (tmp_path / f"{name}.toml").write_text(this_host.file_of(h), encoding="utf-8")
        by_file, by_name = (
            onnxperf.predict(str(SAMPLES / "mobilenetv2.onnx"), gpu="t4", host=x)
            for x in (tmp_path / f"{name}.toml", name)
        )
        assert by_file.seconds == pytest.approx(by_name.seconds, rel=1e-3)
        assert by_file.high_seconds == pytest.approx(by_name.high_seconds, rel=1e-3)


def test_json_holds_what_the_file_holds(calibrate, tmp_path: Path) -> None:
    code, out, _ = calibrate("--json", "-", "-o", "mine.toml", rounds=[times(1.0)] * ROUNDS)
    told = json.loads(out)
    assert code == 0 and told["rounds"] == ROUNDS and told["pace"] == pytest.approx(REFERENCE.pace)
    assert load_host(str(tmp_path / "mine.toml")).source == told["source"]


def test_a_busy_machine_is_refused(calibrate, tmp_path: Path) -> None:
    slower = (1.3**-n for n in count())  # each round 30% faster than the one before: the fastest is never confirmed
    code, out, err = calibrate(rounds=map(times, slower))
    assert (code, out) == (EnvironmentFailure.exit_code, "") and "busy" in err
    assert not list(tmp_path.iterdir())


def test_a_slow_round_among_others_is_passed_over() -> None:
    rounds = [times(1.0), times(4.0), times(1.01)]
    assert this_host.disagreement(rounds) < 0.02 and len(rounds) < MOST_ROUNDS


@pytest.mark.parametrize("arguments, says", [
    (("--provider", "cpu"), "leave --provider"), (("--from", "runs"), "leave --provider"),
    (("--keep", "there"), "leave --provider"), (("-o", "host.txt"), "ends in .toml"),
    (("-o", "no/host.toml"), "no folder"), (("-o", "other.toml"), "not a file of that kind"),
    (("-o", "h.toml", "--json", "h.toml"), "would overwrite"),
])  # fmt: skip
def test_requests_that_are_refused_before_anything_is_measured(calibrate, arguments, says: str, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("[tool]\n", encoding="utf-8")
    code, out, err = calibrate(*arguments, rounds=[])
    assert (code, out) == (2, "") and says in err
    assert (tmp_path / "other.toml").read_text(encoding="utf-8") == "[tool]\n"


@pytest.mark.slow
def test_chains_run_here_as_written() -> None:
    pytest.importorskip("onnxruntime")
    measured = this_host.measure(this_host._chain("Neg", 600, profile=True))
    assert [o.type for o in measured.operators] == ["Neg"] * 600, "none was taken out"

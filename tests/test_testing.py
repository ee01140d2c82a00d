"""The plugin of pytest, in runs of pytest as a user's."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
RESNET = str(Path(__file__).parents[1] / "samples" / "resnet50.onnx")


def test_a_budget_that_holds_passes_and_gives_the_prediction(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"""
        import onnxperf

        def test_fast(assert_latency):
            p = assert_latency({RESNET!r}, gpu="t4", max_ms=1000, max_gb=10, precision="fp16")
            assert p == onnxperf.predict({RESNET!r}, gpu="t4", precision="fp16")
        """
    )
    pytester.runpytest_subprocess("-W", "error").assert_outcomes(passed=1)


def test_a_budget_that_does_not_hold_fails_with_a_sentence(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"""
        def test_slow(assert_latency):
            assert_latency({RESNET!r}, gpu="t4", max_ms=1e-3)

        def test_large(assert_latency):
            assert_latency({RESNET!r}, gpu="t4", max_gb=1e-3)
        """
    )
    run = pytester.runpytest_subprocess()
    run.assert_outcomes(failed=2)
    run.stdout.fnmatch_lines(["* is over the limit of 1 us; most of it goes to *", "* is over the limit of 1 MB; *"])
    run.stdout.no_fnmatch_line("*Traceback*")
    run.stdout.no_fnmatch_line("*testing.py*")
    run.stdout.no_fnmatch_line("*During handling of*")


def test_without_a_budget_the_test_is_wrong(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(f"def test_it(assert_latency): assert_latency({RESNET!r}, gpu='t4')")
    run = pytester.runpytest_subprocess()
    run.assert_outcomes(failed=1)
    run.stdout.fnmatch_lines(["*UsageError: a budget is max_ms, max_gb or both"])


def test_the_plugin_loads_nothing_heavy() -> None:
    heavy = {"onnx", "numpy", "networkx", "rich", "click", "torch", "tensorflow", "google.protobuf"}
    code = f"import sys, onnxperf.testing; print(*{heavy!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

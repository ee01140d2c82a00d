"""Published methods to compare with, one module each: whatever module here has a `METHOD` is one."""

from __future__ import annotations

from dataclasses import replace

from onnxperf.ground.modules import offered
from onnxperf.lab.constants import left_out
from onnxperf.latency import Method
from onnxperf.running.run import Run

#: By name.
BASELINES = {method.name: method for method in offered(__name__, __path__, "METHOD", Method)}


def compared(run: Run, method: str) -> Run:
    """The same run by one of these methods, and with its constants."""
    return replace(run, baseline=BASELINES[method], constants=left_out())

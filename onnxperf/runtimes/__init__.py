"""The runtimes, one module each: whatever module here has a `RUNTIME` is one.

A module is called as its runtime is, with _ for -, so that the names are known before anything is loaded.
"""

from __future__ import annotations

from onnxperf.fusions.engine import LEVELS
from onnxperf.fusions.ort_cuda_nodes import WAITED_FOR
from onnxperf.ground.modules import Offered
from onnxperf.lowering.runtime import HostCosts, Policy, Runtime, StartCosts, of_layout, of_mode, of_version, run_graph
from onnxperf.passes.tape import WITHIN

#: By name; a module is loaded when its runtime is asked for.
RUNTIMES = Offered(__name__, __path__, "RUNTIME", Runtime)

__all__ = [
    "LEVELS", "RUNTIMES", "WAITED_FOR", "WITHIN", "HostCosts", "Policy", "Runtime", "StartCosts", "of_layout",
    "of_mode", "of_version", "run_graph",
]  # fmt: skip

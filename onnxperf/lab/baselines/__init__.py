"""Published methods to compare with, one module each: whatever module here has a `METHOD` is one."""

from __future__ import annotations

from onnxperf.ground.modules import offered
from onnxperf.latency import Method

#: By name.
BASELINES = {method.name: method for method in offered(__name__, __path__, "METHOD", Method)}

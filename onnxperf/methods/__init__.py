"""The methods of prediction, one module each: whatever module here has a `METHOD` is one.

A module is called as its method is, with _ for -, so that the names are known before anything is loaded.
"""

from __future__ import annotations

from onnxperf.ground.modules import offered
from onnxperf.latency import Method


def declared() -> dict[str, Method]:
    """The methods that the modules of this package declare, by name."""
    return {method.name: method for method in offered(__name__, __path__, "METHOD", Method)}


#: By name.
METHODS = declared()

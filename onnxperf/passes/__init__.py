"""Changes to a graph before a runtime optimises it: each takes a graph and gives another."""

from onnxperf.passes.autocast import autocast, with_fast_norms
from onnxperf.passes.precision import AMP, CALIBRATED, PRECISIONS, QUANTISED, lacks_unit, precision

__all__ = ["AMP", "CALIBRATED", "PRECISIONS", "QUANTISED", "autocast", "lacks_unit", "precision", "with_fast_norms"]

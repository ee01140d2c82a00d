"""Changes to a graph before a runtime optimises it: each takes a graph and gives another."""

from onnxperf.passes.precision import PRECISIONS, lacks_unit, precision

__all__ = ["PRECISIONS", "lacks_unit", "precision"]

"""Changes that a request makes to a model before a runtime sees it: graph in, graph out."""

from onnxperf.passes.precision import PRECISIONS, lacks_unit, precision

__all__ = ["PRECISIONS", "lacks_unit", "precision"]

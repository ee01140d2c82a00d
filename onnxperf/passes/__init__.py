"""Changes that a request makes to a model before a runtime sees it: graph in, graph out."""

from onnxperf.passes.precision import PRECISIONS, precision

__all__ = ["PRECISIONS", "precision"]

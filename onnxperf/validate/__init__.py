"""How far the answers are from measurements: every method scored on open rows, with each card left out in turn."""

from onnxperf.validate.run import Report, sources, validate
from onnxperf.validate.score import Score

__all__ = ["Report", "Score", "sources", "validate"]

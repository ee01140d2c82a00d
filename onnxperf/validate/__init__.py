"""How far the answers are from measurements of others: every method scored, with each card left out in turn."""

from onnxperf.scoring.score import Score
from onnxperf.validate.report import Report, sources, validate

__all__ = ["Report", "Score", "sources", "validate"]

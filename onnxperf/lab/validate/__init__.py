"""How far the answers are from measurements of others: every method scored, with each card left out in turn."""

from onnxperf.lab.validate.report import Report, sources, validate
from onnxperf.scoring.score import Score

__all__ = ["Report", "Score", "sources", "validate"]

"""Measured kernels and models of others, as tables that fits and scores read."""

from onnxperf.measurements.core import DIES, Row, Table, tables

__all__ = ["DIES", "Row", "Table", "tables"]

"""Graphs of well-known models without their weights; installed as `onnxperf.samples`."""

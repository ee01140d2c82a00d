"""The constants that ship, derived from tables of measurements: `python -m onnxperf.derive DATA`."""

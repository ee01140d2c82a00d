"""The constants that ship, derived from tables of measurements: `python -m onnxperf.lab.derive DATA`."""

"""Measuring: a model, run by ONNX Runtime on the device that is here."""

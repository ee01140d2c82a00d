"""The hardware: one TOML file per card, every figure with its source."""

from gpu_specs.card_file import read
from gpu_specs.catalogue import ids, load, resolve
from gpu_specs.device import PIPES, Corrections, Device, Rates, Source, SpecError, UnknownDevice, clocked, limited

__all__ = [
    "PIPES", "Corrections", "Device", "Rates", "Source", "SpecError", "UnknownDevice", "clocked", "ids", "limited",
    "load", "read", "resolve",
]  # fmt: skip

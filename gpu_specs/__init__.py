"""The hardware: one TOML file per card, every figure with its source; and the processors that launch kernels."""

from gpu_specs.card_file import read
from gpu_specs.catalogue import ids, load, resolve
from gpu_specs.device import PIPES, Corrections, Device, Rates, Source, SpecError, UnknownDevice, clocked, limited
from gpu_specs.hosts import HOSTS, Host, load_host

__all__ = [
    "HOSTS", "PIPES", "Corrections", "Device", "Host", "Rates", "Source", "SpecError", "UnknownDevice", "clocked",
    "ids", "limited", "load", "load_host", "read", "resolve",
]  # fmt: skip

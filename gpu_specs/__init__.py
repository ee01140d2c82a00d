"""The hardware: one TOML file per card, every figure with its source; prices; the processors that launch kernels."""

from gpu_specs.card_file import read
from gpu_specs.catalogue import ids, load, resolve
from gpu_specs.device import (
    PIPES,
    Corrections,
    Device,
    Lines,
    Rates,
    Source,
    SpecError,
    UnknownDevice,
    clocked,
    limited,
)
from gpu_specs.hosts import HOSTS, Host, load_host
from gpu_specs.prices import Price, prices

__all__ = [
    "HOSTS", "PIPES", "Corrections", "Device", "Host", "Lines", "Price", "Rates", "Source", "SpecError",
    "UnknownDevice", "clocked", "ids", "limited", "load", "load_host", "prices", "read", "resolve",
]  # fmt: skip

"""The hardware: one TOML file per card, every figure with its source; prices; the processors that launch kernels."""

from gpu_specs.card_file import read
from gpu_specs.catalogue import ids, load, resolve
from gpu_specs.clusters import clusters, load_cluster, usual_cluster
from gpu_specs.device import (
    PIPES,
    Cluster,
    Corrections,
    Device,
    Lines,
    PowerMode,
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
    "HOSTS", "PIPES", "Cluster", "Corrections", "Device", "Host", "Lines", "PowerMode", "Price", "Rates", "Source",
    "SpecError", "UnknownDevice", "clocked", "clusters", "ids", "limited", "load", "load_cluster", "load_host",
    "prices", "read", "resolve", "usual_cluster",
]  # fmt: skip

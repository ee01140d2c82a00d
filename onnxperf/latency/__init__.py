"""How long each kernel takes on each device: kernels and devices in, `Estimates` out.

Equal works are estimated once, also where several runs on the same devices ask for them (`estimate.Ledger`); works of
one size type are columns of one array. No estimate is below its speed-of-light bound, whatever the model says. At the
end all kernels of a run share the power limit of their card.

`families` has a module for each kernel family: what it declares (`family.KernelFamily`) is all that is known of it.
Models of products that several families share are `cuda_cores` and `tensor_cores`. A method of prediction
(`method.Method`) turns works into terms; `estimate` adds what all methods have in common.
"""

from __future__ import annotations

from onnxperf.latency.cards import pipe_on, rate_on
from onnxperf.latency.constant_files import shipped
from onnxperf.latency.constants import Constants
from onnxperf.latency.estimate import (
    Estimates,
    HostProcessor,
    alone,
    correction_name,
    estimate,
    estimate_alike,
    estimate_works,
    floors,
    form_of,
    single,
    watts_alone,
)
from onnxperf.latency.families import family_of
from onnxperf.latency.method import Method
from onnxperf.latency.terms import BOUNDS, Array, KernelTerms
from onnxperf.latency.workspace import workspaces

__all__ = [
    "BOUNDS", "Array", "Constants", "Estimates", "HostProcessor", "KernelTerms", "Method", "alone", "correction_name",
    "estimate", "estimate_alike", "estimate_works", "family_of", "floors", "form_of", "pipe_on", "rate_on", "shipped",
    "single", "watts_alone", "workspaces",
]  # fmt: skip

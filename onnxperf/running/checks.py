"""Which terms go together, and with which devices. What each term takes by itself stands in `terms`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from gpu_specs import Device, clusters, usual_cluster
from onnxperf.ground.errors import UsageError
from onnxperf.ground.names import AMP, QUANTISED
from onnxperf.methods import METHODS
from onnxperf.running.scenario import PLATFORMS, Scenario, host_of, plan_of, runtime_of
from onnxperf.running.terms import Term, check_values, having, unusual
from onnxperf.runtimes import Runtime


def check(s: Scenario, devices: Iterable[Device]) -> None:
    """Raise UsageError where a term is unknown, or does not go with another one or with one of the devices."""
    terms = unusual(s)
    check_values({term.name: getattr(s, term.name) for term in terms})
    for device in devices:
        host_of(s, device)
        runtime = runtime_of(s)
        several = (_training(s, runtime, terms), _several_gpus(s, device), _device(s, runtime, device, terms))
        for why in chain(*several, _runtime(s, runtime, terms), _alone(s), _method(s, terms)):
            raise UsageError(why)


def _training(s: Scenario, runtime: Runtime, terms: list[Term]) -> Iterator[str]:
    """Why a training step can't be as it is asked for, or what only such a step has."""
    if s.mode == "inference":
        if any(term.mode == "training" for term in terms):
            steps = _listed(_article(term) for term in having(mode="training"))
            yield f"{steps} need --mode training"
        return
    if runtime.autograd is None:
        yield f"{s.runtime} does not train: give --runtime torch-eager, torch-compile or ort-cuda"
    if s.precision in QUANTISED:
        yield f"training in {s.precision} is not predicted: use fp32, tf32, fp16, bf16 or amp"
    if s.include_transfers:
        yield "copies are not predicted for a training step: leave --include-transfers out"
    if s.recompute and s.runtime == "torch-compile":
        yield "torch.compile chooses itself what the backward pass computes again: leave --recompute out"


def _several_gpus(s: Scenario, device: Device) -> Iterator[str]:
    """Why GPUs can't divide the work by the plan, or what only several GPUs have."""
    plan = plan_of(s)
    if plan.gpus == 1:
        if s.cluster is not None:
            yield "--cluster needs several GPUs: give --parallel, or leave --cluster out"
        return
    if device.kind != "gpu":
        yield f"--parallel needs GPUs; {device.id} is a CPU"
    if s.include_transfers:
        yield "copies are not predicted for several GPUs: leave --include-transfers out"
    if s.cuda_graph and plan.pp > 1:
        what = "CUDA graphs of pipeline stages are not predicted"
        yield f"{what}: leave --cuda-graph out, or take dp, tp or ep"
    if s.cuda_graph and s.mode == "training":
        yield "a CUDA graph of a training step is predicted on one GPU only: leave --cuda-graph out"
    if s.mode == "training" and s.runtime != "torch-eager":
        yield "training on several GPUs is predicted for PyTorch without torch.compile only: give --runtime torch-eager"
    if s.accumulate > 1 and (plan.copies > 1 or plan.pp > 1):
        yield "gradient accumulation is predicted on one GPU or with tensor parallelism only: leave --accumulate out"
    if s.mode == "training" and plan.ep > 1:
        yield "expert parallelism is predicted for inference only"
    cluster = device.cluster or usual_cluster(device)
    if plan.gpus > cluster.gpus_per_node and not cluster.network_Bps:
        missing = plan.gpus - cluster.gpus_per_node
        what = f"{cluster.name or device.id} joins {cluster.gpus_per_node} GPUs, {missing} fewer than {plan} takes"
        yield f"{what}: give --cluster with a network, one of {', '.join(clusters())}, or a path"


def _runtime(s: Scenario, runtime: Runtime, terms: list[Term]) -> Iterator[str]:
    """What the runtime lacks."""
    if s.precision == AMP and runtime.autocast is None:
        yield f"{s.runtime} has no autocast: amp is PyTorch's; give --runtime torch-eager, or another precision"
    computes = " runs on a CPU and" if runtime.synchronous else ""
    for term in terms:
        if term.runtime and not getattr(runtime, term.runtime):
            lacking = [*having(runtime=term.runtime)]
            nothing = _listed(f"no {_plural(t)}" for t in lacking)
            yield f"{s.runtime}{computes} has {nothing}: leave {_listed(t.flags[0] for t in lacking)} out"


def _alone(s: Scenario) -> Iterator[str]:
    """Which terms need one another, or exclude it."""
    if s.pageable and not s.include_transfers:
        yield "--pageable needs --include-transfers"
    if s.cuda_graph and s.streams > 1:
        yield "a CUDA graph is captured from one stream: --cuda-graph needs --streams 1"


def _method(s: Scenario, terms: list[Term]) -> Iterator[str]:
    """What the method of prediction leaves out."""
    method = METHODS[s.method]
    unused = [term.flags[0] for term in terms if term.method and not getattr(method, term.method)]
    if unused:
        yield f"the method {s.method} ignores {', '.join(unused)}: leave that out"


def _device(s: Scenario, runtime: Runtime, device: Device, terms: list[Term]) -> Iterator[str]:
    """What a processor lacks."""
    platform = PLATFORMS[device.kind]
    if platform.launches:
        return
    if runtime.kind != device.kind:
        yield f"{device.id} is a CPU: the runtime is {platform.runtime} there, not {s.runtime}"
    if s.precision in platform.lacks:
        yield f"a CPU has no {s.precision.upper()}: use another precision"
    if any(term.device == "gpu" for term in terms):
        yield f"a CPU has {_listed(f'no {t.noun}' for t in having(device='gpu'))}: leave these options out"


def _article(term: Term) -> str:
    """A term in a sentence: an optimizer, recomputing."""
    return f"a{'n' * (term.noun[0] in 'aeiou')} {term.noun}" if term.choices else term.noun


def _plural(term: Term) -> str:
    return f"{term.noun}s" if term.choices else term.noun


def _listed(words: Iterable[str]) -> str:
    """Words in a sentence: a, b and c."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last

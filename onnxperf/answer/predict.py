"""The front door: `predict`, `load` and `gpus`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Unpack, overload

import gpu_specs
from gpu_specs import Device
from onnxperf.answer.prediction import Prediction, summarise
from onnxperf.export import source
from onnxperf.graph import Opened, opened
from onnxperf.ground.errors import UsageError, speaking_of_arguments
from onnxperf.running.pipeline import Gpu, Limits, Request, find, largest, limits_of, request_for, runs
from onnxperf.running.scenario import FurtherTerms, known


@overload
def predict(
    model: Any, example_inputs: Mapping[str, Any] | Sequence[Any] | None = None, *, gpu: Gpu, **terms: Any
) -> Prediction: ...


@overload
def predict(
    model: Any, example_inputs: Mapping[str, Any] | Sequence[Any] | None = None, *, gpu: Sequence[Gpu], **terms: Any
) -> list[Prediction]: ...


def predict(  # type: ignore[misc]  # the overloads leave the terms to this signature
    model: Any,
    example_inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    gpu: Any = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    batch: int | None = None,
    trip_counts: Mapping[str, int] | None = None,
    precision: str = "keep",
    layout: str | None = None,
    runtime: str | None = None,
    method: str = "tile-wave",
    streams: int = 1,
    cuda_graph: bool = False,
    include_transfers: bool = False,
    pageable: bool = False,
    opt_level: str = "all",
    ort_version: str | None = None,
    ort_transformers: bool = False,
    fix_dims: bool = False,
    mode: str = "inference",
    loss: str | None = None,
    optimizer: str | None = None,
    recompute: bool = False,
    host: str | os.PathLike[str] | None = None,
    power_limit_W: float | None = None,
    clock_Hz: float | None = None,
    fit: bool = False,
    max_ms: float | None = None,
    max_gb: float | None = None,
    **further: Unpack[FurtherTerms],
) -> Prediction | list[Prediction]:
    """Predict one run of `model` on a GPU that need not be there.

    model: a path, the bytes of a file or an onnx.ModelProto; a torch.nn.Module, ExportedProgram or ONNXProgram; a Keras
    model or its file, a tf.function or the folder of a SavedModel. It is left as it is (but a Keras model that is not
    built is built for its example inputs, as by a first call), and its weights are not needed.
    example_inputs: arrays or tensors, by name or in the order of the inputs; only shapes and types are read.
    gpu: an id (`onnxperf gpus` lists them), an alias, a name nvidia-smi prints, or a path to a card's TOML file, which
    can be a processor's. A list of them gives a list of predictions, in little more time than one.
    shapes: sizes by tensor name; dims: sizes of named open dimensions; batch: the leading dimension, even where
    the file fixes another.
    trip_counts: how often a Loop runs, by node name, where the model does not say.
    precision: keep, fp32, tf32, fp16, bf16, int8, fp8 or amp, PyTorch's autocast to float16. layout: nchw or nhwc, how
    images lie in memory, where the runtime can be told. runtime: ort-cuda (None means that, and ort-cpu on a
    processor), ort-cpu, tensorrt or torch-eager. ort_version: the release of ort-cuda, ort-cpu or
    tensorrt, such as 1.12; None for today's.
    method: tile-wave, sum or roofline. streams: how many kernels may run side by side. cuda_graph: replay a captured
    graph. include_transfers: count the copies of inputs and outputs, which lie in pinned memory, or `pageable`.
    opt_level: disabled, basic, extended or all. ort_transformers: first fuse what onnxruntime.transformers' optimizer
    does. fix_dims: the session is given the sizes of open dimensions when it starts, as ONNX Runtime's
    `add_free_dimension_override_by_name` does; else it is open as the model is exported. host: the processor that
    launches kernels, such as server-2023, or a path to its file, as `onnxperf calibrate --host-only` writes it.
    mode: inference, or training, a step of it: forward, backward and update of the parameters, under torch-eager or
    ort-cuda; a graph that holds its backward pass is taken as it is.
    loss: cross-entropy or mse, of the first output; None for what the model ends with. optimizer: adam (None means
    that), sgd or none. recompute: compute activations again in the backward pass instead of keeping them. accumulate:
    of how many batches gradients are added up before the update.
    gpus, parallel: how many GPUs, and how they divide the work: "dp=4" the batch, which is that of all, "tp=4" matrices
    as Megatron-LM, "pp=4:microbatches=8" layers, "ep=4" batch and experts, "dp=2,tp=4" both; by default a plan decides
    how many there are. cluster: what joins them, such as dgx-h100, or a path to a cluster's TOML file.
    power_limit_W, clock_Hz: what the card is set to. fit: take the largest batch that the card's memory holds and that
    keeps to max_ms milliseconds and max_gb GB (10^9), which are for fit alone (`check` raises where they are not kept);
    batch 1 where there is none.

    Raises onnxperf.Error: UsageError where the request is wrong, ModelError where the model can't be used.
    """
    with speaking_of_arguments():
        if gpu is None:
            raise UsageError('name the card: predict(model, gpu="l4")')
        if not isinstance(fit, bool):
            raise UsageError(f"fit must be True or False, not {fit!r}")
        if not fit and (max_ms is not None or max_gb is not None):
            raise UsageError("max_ms and max_gb limit the batch that fit takes: give fit=True, or ask onnxperf.check")
        return _on(gpu, request_for(
            model, example_inputs, open_batch=fit, shapes=shapes, dims=dims, batch=batch, trip_counts=trip_counts,
            precision=precision, layout=layout, runtime=runtime, method=method, streams=streams, cuda_graph=cuda_graph,
            include_transfers=include_transfers, pageable=pageable, opt_level=opt_level, ort_version=ort_version,
            ort_transformers=ort_transformers, fix_dims=fix_dims, mode=mode, loss=loss, optimizer=optimizer,
            recompute=recompute, host=host, power_limit_W=power_limit_W, clock_Hz=clock_Hz,
            **known(further),
        ), limits_of(max_ms, max_gb) if fit else None)  # fmt: skip


def _on(gpu: Any, request: Request, limits: Limits | None) -> Prediction | list[Prediction]:
    """The prediction for a card, or those for a list of them; at the largest batch that keeps the limits, if given."""
    several = isinstance(gpu, Sequence) and not isinstance(gpu, (str, bytes))
    gpus: list[Gpu] = list(gpu) if several else [gpu]
    if limits is not None:
        found = [summarise(largest(request, g, limits)) for g in gpus]
    else:
        found = [summarise(run, j) for run, j in runs(request, gpus)]
    return found if several else found[0]


def load(
    model: Any, example_inputs: Mapping[str, Any] | Sequence[Any] | None = None, *, batch: int | None = None
) -> Opened:
    """Read a model's file, or export a framework's model, once: what this returns can be predicted many times.

    model, example_inputs and batch are those of `predict`; a framework's model keeps the sizes it is exported at.
    """
    with speaking_of_arguments():
        exported, examples = source(model, example_inputs, batch)
        if examples is not None:
            raise UsageError("example_inputs are for a framework's model; those of a file go to predict")
        return opened(exported)


def gpus() -> list[Device]:
    """Every card that ships, as `onnxperf gpus` lists them, each with its figures and their sources."""
    return [find(id)[0] for id in gpu_specs.ids()]

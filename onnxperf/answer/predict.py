"""The front door: `predict`, `load` and `gpus`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack, overload

import gpu_specs
from gpu_specs import Device
from onnxperf.answer.prediction import Prediction, summarise
from onnxperf.export import source
from onnxperf.graph import Opened, opened
from onnxperf.ground.errors import UsageError, speaking_of_arguments
from onnxperf.running.largest import Limits, largest, limits_of
from onnxperf.running.pipeline import Gpu, Request, each, find, request_for, runs
from onnxperf.running.terms import AskedOfPredict, Bindings, Examples, Keywords, spelt_out


@overload
def predict(
    model: Any, example_inputs: Examples = None, *, gpu: Gpu, **asked: Unpack[AskedOfPredict]
) -> Prediction: ...


@overload
def predict(
    model: Any, example_inputs: Examples = None, *, gpu: Sequence[Gpu], **asked: Unpack[AskedOfPredict]
) -> list[Prediction]: ...


@spelt_out
def predict(
    model: Any, example_inputs: Examples = None, *, gpu: Any = None, shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None, batch: int | None = None, trip_counts: Mapping[str, int] | None = None,
    fit: bool = False, max_ms: float | None = None, max_gb: float | None = None, first_run: bool = False,
    **terms: Unpack[Keywords],
) -> Prediction | list[Prediction]:  # fmt: skip
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
    fit: take the largest batch that the card's memory holds and that keeps to max_ms milliseconds and max_gb GB (10^9),
    which are for fit alone (`check` raises where they are not kept); batch 1 where there is none.
    first_run: also say what comes before the steady state: session, first run, first run with a new shape.

    How it is run, as `onnxperf.running.terms.Terms` has it:

    {terms}

    Raises onnxperf.Error: UsageError where the request is wrong, ModelError where the model can't be used.
    """
    with speaking_of_arguments():
        if gpu is None:
            raise UsageError('name the card: predict(model, gpu="l4")')
        for name, asked in (("fit", fit), ("first_run", first_run)):
            if not isinstance(asked, bool):
                raise UsageError(f"{name} must be True or False, not {asked!r}")
        if not fit and (max_ms is not None or max_gb is not None):
            raise UsageError("max_ms and max_gb limit the batch that fit takes: give fit=True, or ask onnxperf.check")
        bindings: Bindings = {"shapes": shapes, "dims": dims, "batch": batch, "trip_counts": trip_counts}
        request = request_for(model, example_inputs, open_batch=fit, **bindings, **terms)
        return _on(gpu, request, limits_of(max_ms, max_gb) if fit else None, first_run)


def _on(gpu: Any, request: Request, limits: Limits | None, before: bool) -> Prediction | list[Prediction]:
    """The prediction for a card, or those for a list of them; at the largest batch that keeps the limits, if given."""
    several = isinstance(gpu, Sequence) and not isinstance(gpu, (str, bytes))
    gpus: list[Gpu] = list(gpu) if several else [gpu]
    if limits is not None:
        each(gpus)  # a card that nobody knows is told before the first is predicted
        predictions = [summarise(largest(request, g, limits), before=before) for g in gpus]
    else:
        predictions = [summarise(run, j, before) for run, j in runs(request, gpus)]
    return predictions if several else predictions[0]


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

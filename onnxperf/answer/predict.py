"""The front door: `predict`, `load` and `gpus`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any, Unpack

import gpu_specs
from gpu_specs import Device
from onnxperf.answer.prediction import Prediction, summarise
from onnxperf.export import source
from onnxperf.graph import Opened, opened
from onnxperf.ground.errors import Error, UsageError, speaking_of_arguments
from onnxperf.ground.output import Progress
from onnxperf.running.largest import Limits, largest, limits_of
from onnxperf.running.pipeline import Gpu, Request, find, read_once, request_for, run_of
from onnxperf.running.terms import Bindings, Examples, Keywords, spelt_out


@spelt_out
def predict(
    model: Any, example_inputs: Examples = None, *, gpu: Gpu | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None, dims: Mapping[str, int] | None = None, batch: int | None = None,
    trip_counts: Mapping[str, int] | None = None, fit: bool = False, max_ms: float | None = None,
    max_gb: float | None = None, first_run: bool = False, **terms: Unpack[Keywords],
) -> Prediction:  # fmt: skip
    """Predict one run of `model` on a GPU that need not be there.

    model: a path, the bytes of a file or an onnx.ModelProto; a torch.nn.Module, ExportedProgram or ONNXProgram; a Keras
    model or its file, a tf.function or the folder of a SavedModel. It is left as it is (but a Keras model that is not
    built is built for its example inputs, as by a first call), and its weights are not needed.
    example_inputs: arrays or tensors, by name or in the order of the inputs; only shapes and types are read.
    gpu: an id (`onnxperf gpus` lists them), an alias, a name nvidia-smi prints, or a path to a card's TOML file, which
    can be a processor's. Several cards and batches: `onnxperf.compare` and `onnxperf.sweep`.
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
        _check_one(card=gpu, batch=batch)
        check_answers(fit=fit, first_run=first_run)
        if not fit and (max_ms is not None or max_gb is not None):
            raise UsageError("max_ms and max_gb limit the batch that fit takes: give fit=True, or ask onnxperf.check")
        bindings: Bindings = {"shapes": shapes, "dims": dims, "batch": batch, "trip_counts": trip_counts}
        request = request_for(model, example_inputs, open_batch=fit, **bindings, **terms)
        return on_card(request, gpu, limits_of(max_ms, max_gb) if fit else None, first_run)


def _check_one(**asked: Any) -> None:
    """Raise UsageError where a list is given, or for the batch a text, which `check` takes as several."""
    for what, value in asked.items():
        if isinstance(value, Iterable) and (what == "batch" or not isinstance(value, str | bytes)):
            several = "`onnxperf.compare` ranks several cards, `onnxperf.sweep` predicts several cards and batches"
            raise UsageError(f"predict takes one {what}, not {value!r:.60}: {several}")


def check_answers(**asked: bool) -> None:
    """Raise UsageError where an argument is neither True nor False."""
    for name, answer in asked.items():
        if not isinstance(answer, bool):
            raise UsageError(f"{name} must be True or False, not {answer!r}")


def on_card(request: Request, gpu: Gpu, limits: Limits | None = None, before: bool = False) -> Prediction:
    """The prediction of a request on a card; at the largest batch that keeps the limits, if there are any. before: with
    what comes before the steady state.
    """
    return summarise(run_of(request, gpu) if limits is None else largest(request, gpu, limits), before=before)


def on_each(
    request: Request, gpus: Sequence[Gpu], batches: Sequence[int | None], limits: Limits | None = None,
    tell: Progress | None = None,
) -> list[Prediction | Error]:  # fmt: skip
    """`on_card` for each card in turn, on it for each batch; None is the batch of the request. The error where a card
    and a batch can't be predicted.
    """
    turns = count()

    def answer(gpu: Gpu, batch: int | None) -> Prediction | Error:
        if tell:
            tell(f"{gpu}" if batch is None else f"{gpu}, batch {batch}", next(turns), len(gpus) * len(batches))
        try:
            return on_card(request if batch is None else replace(request, batch=batch), gpu, limits)
        except Error as e:
            return e

    with suppress(Error):  # a file that can't be read is each answer
        request = read_once(request)
    answers = [[answer(gpu, batch) for gpu in gpus] for batch in batches]  # the model is bound once for each batch
    return [of_batch[i] for i in range(len(gpus)) for of_batch in answers]


def load(
    model: Any, example_inputs: Mapping[str, Any] | Sequence[Any] | None = None, *, batch: int | None = None
) -> Opened:
    """Read a model's file, or export a framework's model, once: what this returns can be predicted many times.

    model, example_inputs and batch are those of `predict`. A framework's model keeps the sizes that it is exported at;
    another batch of it is followed as that of a file is, and where the graph holds the batch in tensors (such as the
    first state of an LSTM), load it again with that batch.
    """
    with speaking_of_arguments():
        exported, examples = source(model, example_inputs, batch)
        if examples is not None:
            raise UsageError("example_inputs are for a framework's model; those of a file go to predict")
        return opened(exported)


def gpus() -> list[Device]:
    """Every card that ships, as `onnxperf gpus` lists them, each with its figures and their sources."""
    return [find(id)[0] for id in gpu_specs.ids()]

"""Runs of language models, predicted once for all tests of a process that ask for the same."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

import gpu_specs
from onnxperf.graph import Opened
from onnxperf.language import core, decoding
from onnxperf.language.core import steps_of
from onnxperf.running import pipeline
from op_models import registered

#: The runs of a configuration on a card, by what asked for them.
ONCE: dict[str, Any] = {}
#: The graphs of decoders, by what they were loaded with: every card runs the same.
GRAPHS: OrderedDict[Any, Any] = OrderedDict()
MOST_GRAPHS = 256
LOAD = pipeline.load_graph


def content(value: Any) -> Any:
    """A value, and what it says where it is the path of a file."""
    return (value, Path(value).read_text()) if isinstance(value, (str, Path)) and Path(value).is_file() else value


def steps_once(*arguments: Any, **named: Any) -> Any:
    """What `steps_of` gives of a configuration, with the runs that were predicted before: most of the time goes into
    them, and they never change. What is made of them is worked out anew.
    """
    asks = signature(steps_of).bind(*arguments, **named)
    asks.apply_defaults()
    model, gpu, asked, *rest = asks.args
    if model is not None:
        return steps_of(*arguments, **named)
    card = gpu_specs.load(gpu) if isinstance(gpu, str) else gpu
    terms = sorted((name, content(value)) for name, value in asked.terms.items() if value is not None)
    key = repr((card, terms, asked.dims, asked.shapes, asked.trip_counts, [content(value) for value in rest]))
    if key not in ONCE:
        ONCE[key] = steps_of(*arguments, **named)
    return ONCE[key]


def graph_once(model: Any, *, examples: Any = None, **sizes: Any) -> Any:
    """The graph of a model in memory at these sizes, inferred once: no graph is ever changed."""
    if not isinstance(model, Opened) or model.folder is not None or examples is not None:
        return LOAD(model, examples=examples, **sizes)
    if graph_once not in model.kept:
        model.kept[graph_once] = sha256(model.proto.SerializeToString()).digest()
    given = sorted((name, repr(value)) for name, value in sizes.items() if value is not None)
    key = (model.name, model.kept[graph_once], *given, registered())
    if key not in GRAPHS:
        GRAPHS[key] = LOAD(model, **sizes)
    GRAPHS.move_to_end(key)
    if len(GRAPHS) > MOST_GRAPHS:
        GRAPHS.popitem(last=False)
    return GRAPHS[key]


@pytest.fixture(autouse=True)
def runs_are_predicted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "steps_of", steps_once)
    monkeypatch.setattr(core, "steps_of", steps_once)
    monkeypatch.setattr(pipeline, "load_graph", graph_once)

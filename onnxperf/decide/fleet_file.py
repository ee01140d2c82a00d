"""A fleet's file: models with the rates at which they are asked and the limits that they keep, and how many cards there
are. Files come from anybody: every key, type and limit is checked, and no path leads out of the file's folder.

```toml
available = { l4 = 4, a100 = 2 }   # cards, by any of their names; those that are not named are without limit

[[model]]
path = "resnet50.onnx"             # beside this file, or in a folder below
qps = 500                          # requests a second
max_ms = 10                        # mean latency of a request; with percentile = 99 that of all but one in a hundred
precision = "fp16"                 # also runtime, ort_version, layout, cuda_graph, and dims = { sequence = 128 }

[[model]]
config = "llama/config.json"       # a language model
qps = 20
tpot_ms = 50                       # of each output token; ttft_ms: of the first
engine = "vllm"                    # also precision, weights, cache, prompt, output, batch, parallel
```
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_specs import toml_file as toml
from onnxperf.ground.errors import UsageError
from onnxperf.running.pipeline import find

MOST_MODELS, MOST_CARDS = 200, 1_000_000


@dataclass(frozen=True, slots=True)
class Demand:
    """A model of a fleet: its name, where it lies, requests a second, and what else is asked of it by the names that
    `recommend` has, or of a language model those of `recommend_llm`.
    """

    name: str
    path: Path
    decoder: bool
    qps: float
    asked: Mapping[str, Any]


def _sizes(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        raise toml.Unusable("a table such as { sequence = 128 }")
    return {toml.text(name): toml.count(size) for name, size in value.items()}


def _cards(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        raise toml.Unusable("a table such as { l4 = 4 }")
    for count in value.values():
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST_CARDS:
            raise toml.Unusable(f"whole numbers of cards, from 0 to {MOST_CARDS:,}")
    return {toml.text(name): count for name, count in value.items()}


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or not 0 < len(value) <= MOST_MODELS:
        raise toml.Unusable(f"1 to {MOST_MODELS} tables [[model]]")
    return value


def _keys(required: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, toml.Key]:
    wanted = {name: toml.Key(name, convert) for name, convert in required.items()}
    return wanted | {name: toml.Key(name, convert, required=False) for name, convert in others.items()}


_BOTH = {"name": toml.text, "percentile": toml.number, "precision": toml.text}
_FILE = _keys({"model": _list}, {"available": _cards})
_MODEL = _keys(
    {"path": toml.text, "qps": toml.number, "max_ms": toml.number},
    {**_BOTH, "runtime": toml.text, "ort_version": toml.text, "layout": toml.text, "cuda_graph": toml.flag,
     "dims": _sizes},
)  # fmt: skip
_DECODER = _keys(
    {"config": toml.text, "qps": toml.number},
    {**_BOTH, "tpot_ms": toml.number, "ttft_ms": toml.number, "engine": toml.text, "weights": toml.text,
     "cache": toml.text, "prompt": toml.count, "output": toml.count, "batch": toml.count, "parallel": toml.text},
)  # fmt: skip


def read_fleet(file: str | os.PathLike[str]) -> tuple[tuple[Demand, ...], dict[str, int]]:
    """The models of a file, and how many of some cards there are by the card's id. Raises UsageError."""
    path = Path(file)
    try:
        data = toml.tables(path)
        if "model" not in data:
            raise toml.Unusable("has no [[model]]; each model needs such a table, with path, qps and max_ms")
        taken = toml.take(_FILE, data, "", _FILE)
        demands = tuple(_demand(path.parent, i, data) for i, data in enumerate(taken["model"], 1))
    except toml.Unusable as error:
        raise UsageError(f"{file}: {error}") from None
    names = [d.name for d in demands]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"{file}: two models are called {twice!r}: give each a name of its own, as name = ...")
    return demands, counted_cards(taken.get("available", {}).items())


def counted_cards(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Numbers of cards by their ids. Raises UsageError for a card that nobody knows, or that is named twice."""
    cards = dict[str, int]()
    for name, count in counts:
        if (gpu := find(name)[0].id) in cards:
            raise UsageError(f"how many {gpu} are available is said twice")
        cards[gpu] = count
    return cards


def _demand(folder: Path, number: int, data: Any) -> Demand:
    where = f" in [[model]] {number}"
    decoder = isinstance(data, dict) and "config" in data
    keys = _DECODER if decoder else _MODEL
    taken = toml.take(keys, data, where, keys)
    written = taken.pop("config" if decoder else "path")
    path = (folder / written).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise toml.Unusable(f"{written!r}{where} is outside of the file's folder; it needs a path inside")
    if not path.exists():
        raise toml.Unusable(f"{toml.missing(repr(written))}{where}; it needs a file in {folder}")
    if not decoder and "percentile" not in taken:
        taken["percentile"] = None
    return Demand(taken.pop("name", written), path, decoder, taken.pop("qps"), taken)

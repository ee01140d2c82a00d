"""Served models as they were measured, and as they are predicted."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from onnxperf.ground.errors import Error
from onnxperf.ground.output import Progress
from onnxperf.lab.datasets.reading import Record, number, read
from onnxperf.language.core import steps_of, traffic
from onnxperf.language.generation import Lengths
from onnxperf.language.serving import Service, serve
from onnxperf.running.pipeline import Request, find

FILE, MODELS = "llm/silicon.csv.gz", Path(__file__).parent / "models.json"
COLUMNS = (
    "id", "backend", "model_path", "system", "precision", "mode", "isl", "osl", "gemm_quant_mode", "batch_size",
    "tp_size", "pp_size", "moe_tp_size", "moe_ep_size", "silicon_ttft_ms", "silicon_tpot_ms",
)  # fmt: skip
GPUS = {"h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "b200_sxm": "b200-sxm"}
#: Of a row's name: the requests that there are at all times, and the GPUs where it also says how experts are divided.
#: Columns have the requests of one GPU where attention is divided by requests, and tp times ep for the GPUs.
NAMED = re.compile(r"_c(\d+)(?:_|$)"), re.compile(r"_tp(\d+)(?:_0)?_ep\d")
MOST_GPUS = 8


@dataclass(frozen=True, slots=True)
class Setup:
    """What serves: a model of `models.json`, an engine, a card and how many of them; precision: as of `llm`; blocks:
    whether products are in FP8 with a scale for each block of 128 x 128, whatever the model's configuration says.
    """

    model: str
    gpu: str
    engine: str
    gpus: int
    precision: str
    blocks: bool

    @property
    def experts(self) -> bool:
        """Whether it is a mixture of experts."""
        return any("experts" in key for key in configurations()[self.model])

    @property
    def built(self) -> str:
        """The first of the models that have its configuration: they are one, whatever they are published as."""
        models = configurations()
        return next(name for name, config in models.items() if config == models[self.model])


@dataclass(frozen=True, slots=True)
class Served:
    """A closed loop as it was measured: mean seconds to the first token and of each further one."""

    setup: Setup
    prompt: int
    output: int
    concurrency: int
    first_s: float
    token_s: float
    name: str


@cache
def configurations() -> dict[str, dict[str, Any]]:
    """What the configurations of the models say, by the name that they are published under."""
    loaded: dict[str, Any] = json.loads(MODELS.read_text(encoding="utf-8"))
    alike = loaded.pop("alike")
    return loaded | {name: loaded[other] for name, other in alike.items()}


def rows(folder: Path) -> tuple[list[Served], dict[str, int]]:
    """The rows of a folder, and how many are not taken, by reason."""
    why, taken = Counter[str](), list[Served]()
    for r in read(folder / FILE, COLUMNS):
        if r["mode"] != "agg":
            why["prompts and decode steps on other GPUs"] += 1
        elif r["model_path"] not in configurations():
            why["another model"] += 1
        elif r["system"] not in GPUS or number(r, "pp_size") > 1:
            why["another card, or a pipeline"] += 1
        else:
            taken.append(_served(r))
    return taken, dict(why)


def _served(r: Record) -> Served:
    stored = "quantization_config" in configurations()[r["model_path"]]
    fp8 = r["precision"] == "fp8" and not stored
    blocks = fp8 and r["gemm_quant_mode"] == "fp8_block"
    experts = number(r, "moe_tp_size") * number(r, "moe_ep_size")
    requests, gpus = (int(m[1]) if (m := name.search(r["id"])) else 0 for name in NAMED)
    gpus = min(gpus or int(max(number(r, "tp_size"), experts if experts > 0 else 0)), MOST_GPUS)
    setup = Setup(
        r["model_path"], GPUS[r["system"]], r["backend"], gpus, "fp8" if fp8 and not blocks else "keep", blocks
    )
    prompt, output, batch = (int(number(r, key)) for key in ("isl", "osl", "batch_size"))
    first_s, token_s = (number(r, f"silicon_{key}_ms") / 1e3 for key in ("ttft", "tpot"))
    return Served(setup, prompt, output, requests or batch, first_s, token_s, r["id"])


def predicted(measured: Iterable[Served], tell: Progress | None = None) -> Iterator[tuple[Served, Service | str]]:
    """Each row with how it is predicted to be served, or why it is not; runs of a setup are predicted once."""
    groups = defaultdict[Setup, list[Served]](list)
    for row in measured:
        groups[row.setup].append(row)
    for done, (setup, loops) in enumerate(groups.items()):
        if tell:
            tell(f"{setup.model} under {setup.engine}", done, len(groups))
        try:
            answers: list[Service | str] = [*_services(setup, loops)]
        except Error as e:
            answers = [str(e)] * len(loops)
        yield from zip(loops, answers, strict=True)


def _services(setup: Setup, loops: Iterable[Served]) -> tuple[Service, ...]:
    config = dict(configurations()[setup.model])
    if setup.blocks:
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    terms = {"precision": setup.precision} | ({"parallel": f"tp={setup.gpus}"} if setup.gpus > 1 else {})
    steps, positions = steps_of(None, setup.gpu, Request(b"", terms=terms), config, engine=setup.engine)
    asked = [
        traffic(Lengths(row.prompt, row.output), None, None, None, None, 0, row.concurrency, steps.engine)[0]
        for row in loops
    ]
    budget, each = steps.engine.tokens(find(setup.gpu)[0]), steps.made_for(1).cache_bytes_per_token()
    return serve(steps, asked, 1, budget, each, positions)

"""Whole models of timm with FP16 autocast, by timm's own benchmark: inferences of eager PyTorch in
`timm/infer_amp.csv.gz`, of torch.compile in `timm/compile_amp.csv.gz`, training steps in `timm/train_amp.csv.gz`.

Constants of convolutions that no measured kernel determines are derived from these rows, of the convolutional networks
whose graphs ship. For scores, families of models are left out, a quarter of them at a time. A row is the time of one
batch after warm-up, with a synchronisation after each; the batch is the largest that fits, up to 1024.
`python -m onnxperf.export.from_timm` exports the graphs. Those of the sample ship, and some more for the constants.
derive/amp.md says what can be inferred about how the benchmark was run.

A training step is forward, cross-entropy, backward and SGD with Nesterov momentum, under PyTorch 1.12, whatever the
table calls it, and before timm had fast norms. Nothing is derived from these rows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

from onnxperf.ground.names import LAYOUTS
from onnxperf.lab.datasets.dataset import Dataset, Models
from onnxperf.lab.datasets.reading import SAMPLE, Record, card, number, read, refusal, sizes
from onnxperf.lab.datasets.runs import STEP, MeasuredRun, graph_file

FILE, COMPILED = "infer_amp.csv.gz", "compile_amp.csv.gz"
COLUMNS = ("model", "gpu", "dtype", "layout", "compile", "torch", "batch", "img", "latency_ms", "source")
COMPILED_COLUMNS = (*COLUMNS, "mparams")
ANOTHER = 0.003  # relative difference in parameters, from which on a model was another: MobileOne reparametrised
TRAINING = "train_amp.csv.gz"
TRAINING_COLUMNS = ("model", "gpu", "precision", "layout", "version", "batch", "shape", "latency_ms", "source")
TRAINED_WITH = {"1.1.2 cu113": "1.12"}  # the file that the rows come from is called pt112
#: Of each family (see `family`) the model whose name has the lowest CRC-32 among graphs below 140 kB; of these the 14
#: lowest. The rule does not depend on any result.
SAMPLED = (
    "coatnet_0_rw_224@224", "convnext_large@224", "convnextv2_atto@224", "deit_small_distilled_patch16_224@224",
    "efficientformerv2_s0@224", "mixer_l16_224@224", "mobileone_s2@224", "res2next50@224", "resmlp_big_24_224@224",
    "resnetblur50@224", "sehalonet33ts@256", "seresnet33ts@256", "tf_efficientnet_lite2@260",
    "tf_mobilenetv3_large_075@224",
)  # fmt: skip


PARTS = 4  # of all families, one of which is left out at a time


def named(record: Record) -> str:
    """The name of a graph: the model and the side of its images in pixels."""
    return f"{record['model']}@{record.get('img') or record['shape'].rpartition('x')[2]}"


def family(model: str) -> str:
    """The letters at the start of a model's name, without prefixes such as "tf_"."""
    letters = re.match(r"[a-z]+", re.sub(r"^(tf|legacy|test)_", "", model))
    return letters[0] if letters else model


def part(model: str) -> str:
    """The part (1 to PARTS) that a model's family belongs to, by a hash of the family's name."""
    return f"part {crc32(family(model).encode()) % PARTS + 1} of {PARTS}"


def models(folder: Path) -> tuple[list[MeasuredRun], dict[str, int]]:
    """Runs of eager PyTorch in the table of `folder` whose graph is there or ships, and how many rows are not taken, by
    reason.
    """
    return _runs(folder, read(folder / FILE, COLUMNS), _of_eager)


def compiled(folder: Path) -> tuple[list[MeasuredRun], dict[str, int]]:
    """The same of torch.compile's table, of releases 2.4 and 2.9, but for models that were others than in the first."""
    exported = {r["model"]: r["mparams"] for r in read(folder / FILE, (*COLUMNS, "mparams"))}
    alike, others = list[Record](), 0
    for r in read(folder / COMPILED, COMPILED_COLUMNS):
        parameters = float(exported.get(r["model"], r["mparams"]))
        if abs(float(r["mparams"]) / parameters - 1) > ANOTHER:
            others += 1
        else:
            alike.append(r)
    runs, why = _runs(folder, alike, _of_inductor)
    return runs, {**why, **({"the model had other parameters": others} if others else {})}


def steps(folder: Path) -> tuple[list[MeasuredRun], dict[str, int]]:
    """Training steps in the table of `folder` whose graph is there or ships, and how many rows are not taken, by
    reason.
    """
    return _runs(folder, read(folder / TRAINING, TRAINING_COLUMNS), _of_step)


def _of_eager(r: Record) -> dict[str, Any] | None:
    """What a row says of its run beside card, batch and graph; None for what is not predicted."""
    alike = (r["dtype"], r["compile"]) == ("amp", "eager")
    return {"version": r["torch"], "fast_norms": True} if alike else None


def _of_inductor(r: Record) -> dict[str, Any] | None:
    alike = (r["dtype"], r["compile"]) == ("amp", "inductor")
    terms = {"version": r["torch"], "ort_version": r["torch"], "runtime": "torch-compile", "fast_norms": True}
    return terms if alike else None


def _of_step(r: Record) -> dict[str, Any] | None:
    version = TRAINED_WITH.get(r["version"])
    if r["precision"] != "amp" or version is None:
        return None
    return {
        "model": f"{named(r)}, training", "version": version, "ort_version": version, "part": STEP,
        "optimizer": "nesterov",
    }  # fmt: skip


def _runs(
    folder: Path, records: Iterable[Record], terms_of: Callable[[Record], dict[str, Any] | None]
) -> tuple[list[MeasuredRun], dict[str, int]]:
    """The runs of one table."""
    runs: list[MeasuredRun] = []
    why = Counter[str]()
    for r in records:
        gpu, size, seconds, terms = card(r["gpu"]), sizes(r, "batch"), number(r, "latency_ms") / 1e3, terms_of(r)
        graph = graph_file(folder, f"{named(r)}.onnx.gz")
        if terms is None or r["layout"] not in LAYOUTS:
            why["another precision, layout or runtime"] += 1
        elif graph is None:
            why["its graph is not there: python -m onnxperf.export.from_timm"] += 1
        elif reason := refusal(gpu, size, seconds):
            why[reason] += 1
        elif gpu and size:
            run = MeasuredRun(
                gpu, named(r), {"batch": size[0]}, seconds, precision="amp", source="timm", file=graph,
                layout=r["layout"], family=part(r["model"]),
            )  # fmt: skip
            runs.append(replace(run, **terms))
    return runs, dict(why)


def ships(run: MeasuredRun) -> bool:
    """Whether a run's graph ships: constants are derived from such runs alone, ranges from all whose graph is there."""
    return run.file is not None and (SAMPLE / "timm" / run.file.name).is_file()


DATASET = Dataset(
    "timm", 50,
    models=(
        Models(
            FILE, COLUMNS, "eager PyTorch, FP16 autocast", "Models of eager PyTorch, FP16 autocast, by layout", models,
            apart=lambda run: f"{run.layout}", constants="convolution_in_models", fitted=ships,
            drawn=lambda r: named(r) in SAMPLED,
        ),
        Models(
            COMPILED, COMPILED_COLUMNS, "torch.compile, FP16 autocast",
            "Models of torch.compile, FP16 autocast, by release", compiled,
            apart=lambda run: f"PyTorch {run.version}", constants="range", drawn=lambda r: named(r) in SAMPLED,
        ),
        Models(
            TRAINING, TRAINING_COLUMNS, "training, eager PyTorch, FP16 autocast",
            "Training of eager PyTorch, FP16 autocast, with an optimiser, by layout", steps,
            apart=lambda run: f"{run.layout}", constants="range", drawn=lambda r: named(r) in SAMPLED,
        ),
    ),
)  # fmt: skip

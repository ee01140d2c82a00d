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
from pathlib import Path
from zlib import crc32

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
    return _runs(folder, list(read(folder / FILE, COLUMNS)), "eager")


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
    runs, why = _runs(folder, alike, "inductor")
    return runs, {**why, **({"the model had other parameters": others} if others else {})}


def _runs(folder: Path, records: list[Record], compile: str) -> tuple[list[MeasuredRun], dict[str, int]]:
    """The runs of one way to run them."""
    runs: list[MeasuredRun] = []
    why = Counter[str]()
    for r in records:
        gpu, size, seconds = card(r["gpu"]), sizes(r, "batch", "img"), number(r, "latency_ms") / 1e3
        graph = graph_file(folder, f"{named(r)}.onnx.gz")
        if (r["dtype"], r["compile"]) != ("amp", compile) or r["layout"] not in ("nchw", "nhwc"):
            why["another precision, layout or runtime"] += 1
        elif graph is None:
            why["its graph is not there: python -m onnxperf.export.from_timm"] += 1
        elif reason := refusal(gpu, size, seconds):
            why[reason] += 1
        elif gpu and size:
            runtime, release = ("torch-compile", r["torch"]) if compile == "inductor" else ("torch-eager", None)
            run = MeasuredRun(
                gpu, named(r), {"batch": size[0]}, seconds, precision="amp", source="timm", version=r["torch"],
                file=graph, layout=r["layout"], fast_norms=True, family=part(r["model"]), runtime=runtime,
                ort_version=release,
            )  # fmt: skip
            runs.append(run)
    return runs, dict(why)


def steps(folder: Path) -> tuple[list[MeasuredRun], dict[str, int]]:
    """Training steps in the table of `folder` whose graph is there or ships, and how many rows are not taken, by
    reason.
    """
    runs: list[MeasuredRun] = []
    why = Counter[str]()
    for r in read(folder / TRAINING, TRAINING_COLUMNS):
        gpu, size, seconds = card(r["gpu"]), sizes(r, "batch"), number(r, "latency_ms") / 1e3
        graph, version = graph_file(folder, f"{named(r)}.onnx.gz"), TRAINED_WITH.get(r["version"])
        if r["precision"] != "amp" or r["layout"] not in ("nchw", "nhwc") or version is None:
            why["another precision, layout or release"] += 1
        elif graph is None:
            why["its graph is not there: python -m onnxperf.export.from_timm"] += 1
        elif reason := refusal(gpu, size, seconds):
            why[reason] += 1
        elif gpu and size:
            run = MeasuredRun(
                gpu, f"{named(r)}, training", {"batch": size[0]}, seconds, precision="amp", source="timm",
                version=version, ort_version=version, file=graph, layout=r["layout"], family=part(r["model"]),
                part=STEP, optimizer="nesterov",
            )  # fmt: skip
            runs.append(run)
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

"""Whole models under ONNX Runtime's CUDA provider, from `ort_cuda/published.csv` (its `source` column names whose).

These rows score, and the host's costs are derived from them.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from onnxperf.datasets.dataset import Dataset, Models
from onnxperf.datasets.reading import card, number, read, refusal, sizes
from onnxperf.datasets.runs import MeasuredRun

FILE = "published.csv"
COLUMNS = (
    "model", "runtime", "version", "gpu", "dtype", "batch", "seq", "latency_ms", "optimized", "io_binding", "source",
)  # fmt: skip
#: The sample that has the graph of a model whose name begins like this, or goes on like this after a slash.
SAMPLES = {
    "bert-base-uncased (BertModel": "bert-base-ids", "bert-base": "bert-base-cased", "bert-large": "bert-large-qa",
    "gpt2 decode step": "gpt2-past", "MiniLM-L6-H384": "minilm-l6-h384", "roberta-base": "roberta-base",
    "twitter-roberta-base": "roberta-base", "roberta-large": "roberta-large", "distilbert-base": "distilbert-base",
}  # fmt: skip
HALF = ("bert-large-qa",)  # samples in half precision
UNOPTIMISED = ("none", "default")  # what `optimized` begins with where the offline optimizer was not used
PRECISIONS = {"fp32": "keep", "fp16": "fp16"}  # products in FP32 may use TF32 where a card has it
FUSED_SINCE = (1, 13)  # attention in half precision is one kernel


def ort_version(version: str) -> str | None:
    """The release to predict for: "1.12" up to that one, None for later ones; one in development counts as the one
    before.
    """
    found = re.search(r"(?:ORT |^)(\d+)\.(\d+)(.*dev)?", version)
    major, minor = (int(found[1]), int(found[2]) - bool(found[3])) if found else FUSED_SINCE
    return None if (major, minor) >= FUSED_SINCE else "1.12"


def models(folder: Path) -> tuple[list[MeasuredRun], dict[str, int]]:
    """Runs of ONNX Runtime's CUDA provider in the table of `folder`, and how many rows are not taken, by reason."""
    found: list[MeasuredRun] = []
    why = Counter[str]()
    for r in read(folder / FILE, COLUMNS):
        gpu = card(r.get("gpu_norm") or r["gpu"])
        size, seconds = sizes(r, "batch", "seq"), number(r, "latency_ms") / 1e3
        name, optimized = r["model"].rpartition("/")[2], (r["optimized"] or "none").lower()
        sample = next((s for known, s in SAMPLES.items() if name.startswith(known)), None)
        if r["runtime"] != "ORT-CUDA":
            why["another runtime"] += 1
        elif sample is None:
            why["no sample of this model"] += 1
        elif r["dtype"] not in (("fp16",) if sample in HALF else PRECISIONS):
            why["another precision"] += 1
        elif reason := refusal(gpu, size, seconds):
            why[reason] += 1
        elif gpu and size:
            run = MeasuredRun(
                gpu, sample, size[0], size[1], seconds, float("nan"), {}, "ort-cuda",
                precision="keep" if sample in HALF else PRECISIONS[r["dtype"]],
                transformers=not optimized.startswith(UNOPTIMISED),
                along="past" if sample == "gpt2-past" else "sequence",
                bound=r["io_binding"] != "False", source=r["source"], version=r["version"],
                ort_version=ort_version(r["version"]),
            )  # fmt: skip
            found.append(run)
    return found, dict(why)


DATASET = Dataset(
    "ort_cuda", 40,
    models=Models(
        FILE, COLUMNS, "ONNX Runtime", "Models of ONNX Runtime, CUDA provider", models, by_card=False, short_s=5e-3,
        constants="host",
    ),
)  # fmt: skip

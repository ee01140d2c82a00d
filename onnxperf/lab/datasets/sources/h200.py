"""Whole models on an H200 under ONNX Runtime 1.30 and PyTorch 2.11, from `h200/runs.csv`, measured for this project.

A row has the sum of the times of a run's kernels, as CUPTI tells them, the median of three runs: `kernels_us`. Replayed
from a CUDA graph, the same kernels take as long as that sum, within 5% for seven of eight networks. So the runs are
scored as replayed from a graph, whatever the host takes. `run_us` is what a run took in all, with the host, where the
machine did nothing beside it. Only how wide ranges of runs on cards with HBM are comes from these rows; what was chosen
with sight of them: derive/hopper.md. A training step (`step` names the optimiser) is forward, cross-entropy, backward
and update, under autocast with the loss scaled; compiled is the model alone. `peak_MB` is what PyTorch's allocator held
at most.
`kernels.csv.gz` has every kernel of eager PyTorch by its operator, shapes and arguments.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from onnxperf.lab.datasets.dataset import Dataset, Models
from onnxperf.lab.datasets.reading import card, number, read, refusal, sizes
from onnxperf.lab.datasets.runs import STEP, MeasuredRun, graph_file

FILE = "runs.csv"
COLUMNS = (
    "runtime", "release", "model", "graph", "precision", "layout", "step", "batch", "kernels_us", "gpu",
    "source",
)  # fmt: skip
PRECISIONS = {"keep": "FP32", "tf32": "TF32", "fp16": "FP16", "amp": "FP16 autocast", "bf16": "BF16"}
TITLES = {"ort-cuda": "ONNX Runtime", "torch-eager": "eager PyTorch", "torch-compile": "torch.compile"}


def models(folder: Path) -> tuple[list[MeasuredRun], dict[str, int]]:
    """The runs in the table of `folder`, and how many rows are not taken, by reason. Their source is its name."""
    runs: list[MeasuredRun] = []
    why = Counter[str]()
    for r in read(folder / FILE, COLUMNS):
        gpu, batch, seconds = card(r["gpu"]), sizes(r, "batch"), number(r, "kernels_us") * 1e-6
        graph = graph_file(folder, r["graph"]) if r["graph"] else None
        if r["graph"] and graph is None:
            why["its graph is not there"] += 1
        elif r["precision"] not in PRECISIONS or r["runtime"] not in TITLES or r["step"] not in ("", "momentum"):
            why["another precision, runtime or optimiser"] += 1
        elif reason := refusal(gpu, batch, seconds):
            why[reason] += 1
        elif gpu and batch:
            run = MeasuredRun(
                gpu, r["model"], {} if r["model"] in FIXED else {"batch": batch[0]}, seconds, runtime=r["runtime"],
                precision=r["precision"], layout=r["layout"] or None, source=folder.name, version=r["release"],
                ort_version=r["release"], file=graph, replayed=True, part=STEP if r["step"] else "",
                optimizer=r["step"] or "none",
            )  # fmt: skip
            runs.append(run)
    return runs, dict(why)


FIXED = frozenset({"bert-base"})  # samples without an open dimension


def heading(run: MeasuredRun) -> str:
    """What a table of them is about."""
    return f"{'training, ' * bool(run.part)}{TITLES[run.runtime]}, {PRECISIONS[run.precision]}"


DATASET = Dataset(
    "h200", 90,
    models=(
        Models(
            FILE, COLUMNS, "kernels of models on H200", "Kernels of whole models on an H200, by runtime and precision",
            models, graph="graph", apart=heading, constants="range", by_die=True,
        ),
    ),
    copied=("kernels.csv.gz",),
)  # fmt: skip

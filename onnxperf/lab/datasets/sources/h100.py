"""Whole models on an H100 under ONNX Runtime 1.30 and PyTorch 2.11, from `h100/runs.csv`, measured for this project.

The columns are those of the H200's table, and runs are counted alike; no row has a host's time, as other processes
prepared work on the same machine. None of these networks was measured on the H200. Runs whose like kernels took 10%
longer than the quickest of them are left out, as another process disturbed them. The table holds more networks than the
sample has graphs; `samples/measure_kernels.py` measures them and makes table and graphs. Nothing is derived from these
rows; what was chosen with sight of them: derive/hopper.md. `kernels.csv.gz` has every kernel of eager PyTorch by its
operator, and of ONNX Runtime by the node during which the host launched it.
"""

from __future__ import annotations

from onnxperf.lab.datasets.dataset import Dataset, Models
from onnxperf.lab.datasets.sources.h200 import COLUMNS, FILE, heading, models

DATASET = Dataset(
    "h100", 91,
    models=(
        Models(
            FILE, COLUMNS, "kernels of models on H100", "Kernels of whole models on an H100, by runtime and precision",
            models, graph="graph", apart=heading,
        ),
    ),
    copied=("kernels.csv.gz",),
)  # fmt: skip

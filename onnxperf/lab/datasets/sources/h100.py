"""Whole models on an H100 under ONNX Runtime 1.30 and PyTorch 2.11, from `h100/runs.csv`, measured for this project.

The columns are those of the H200's table, and runs are counted alike; no row has a host's time, as other processes
prepared work on the same machine. None of these networks was measured on the H200. Runs whose like kernels took 10%
longer than the quickest of them are left out, as another process disturbed them. `others.csv.gz` has the runs of
networks whose graphs are left out; `samples/measure_kernels.py` makes those, and measures all. Nothing is derived from
these rows; what was chosen with sight of them: derive/hopper.md. `kernels.csv.gz` has the kernels of ONNX Runtime by
the node during which the host launched them, from 5 us on, and those of eager PyTorch by operator, from 30 us on.
"""

from __future__ import annotations

from onnxperf.lab.datasets.dataset import Dataset, Models
from onnxperf.lab.datasets.sources.h200 import COLUMNS, FILE, heading, models

DATASET = Dataset(
    "h100", 91,
    models=(
        Models(
            FILE, COLUMNS, "kernels of models on H100", "Kernels of whole models on an H100, by runtime and precision",
            models, graph="graph", apart=heading, constants="range", by_die=True,
        ),
    ),
    copied=("kernels.csv.gz", "others.csv.gz"),
)  # fmt: skip

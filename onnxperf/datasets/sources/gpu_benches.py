"""Copies that L2 can hold, replayed from a CUDA graph, from `microbench/gpu_benches.csv.gz` (te42kyfo/gpu-benches).

Read are gpu-small-kernels' runs from a CUDA graph on three cards: a kernel writes each element of one array, times a
number, to another, again and again. Longer copies are not read: whether the cards' ECC was on, which decides the rate
of DRAM, is not named. Nor are those of an A100, which reach 0.69 TB/s where that card has 1.6. Copies of more than 8 MB
only tell how much L2 holds; near its size one that is held takes a sixth of one that is not.
"""

from __future__ import annotations

import gpu_specs
from onnxperf.datasets.dataset import Dataset, File, Kernels
from onnxperf.datasets.reading import Record, number, work_of
from onnxperf.datasets.table import GRAPH, Row
from onnxperf.latency.families.pointwise import SHORT
from op_models import Tensor

CARDS = {"a40_graph": "a40", "l40_graph": "l40", "h200_graph": "h200-sxm"}
GAP_S = 0.6e-6  # between two kernels of a CUDA graph, as runtimes have it (`HostCosts.replay_gap_s`)


def copy(r: Record) -> Row | None:
    """A record: kilobytes that are read and written, and GB/s. Elements are taken to be of four bytes."""
    gpu, nbytes = CARDS.get(r["gpu"]), 1e3 * number(r, "data_kB_or_x")
    if r["bench"] != "gpu-small-kernels" or gpu is None or not nbytes <= gpu_specs.load(gpu).l2_bytes:
        return None
    x = Tensor("x", "float32", (round(nbytes / 8),))
    return Row(
        "copy" if nbytes < SHORT else "long copy", gpu, work_of("Neg", (x,), x), nbytes / (number(r, "value") * 1e9)
    )


DATASET = Dataset(
    "microbench", 15, GRAPH,
    kernels=(
        Kernels("copy", "copies of up to 8 MB", "copies", GAP_S, kept_back=False, drawn=1000),
        Kernels("long copy", "", "copies", GAP_S, kept_back=False, drawn=1000, scored=False),
    ),
    files=(File("gpu_benches.csv.gz", ("bench", "gpu", "data_kB_or_x", "value"), copy),),
)  # fmt: skip

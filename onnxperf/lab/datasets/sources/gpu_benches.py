"""Copies that fit into L2, replayed from a CUDA graph, from `microbench/gpu_benches.csv.gz` (te42kyfo/gpu-benches).

Used are gpu-small-kernels' runs from a CUDA graph on three cards: a kernel scales one array into another, repeatedly.
Not used are copies larger than L2, since the source doesn't say whether ECC was on, which decides DRAM's rate, and
those of an A100, which reach 0.69 TB/s where that card has 1.6. Copies of more than 8 MB serve only to fit how much L2
holds, and are not scored: near the size of L2, a copy that is held takes a sixth of the time of one that is not.
"""

from __future__ import annotations

import gpu_specs
from onnxperf.lab.datasets.dataset import Dataset, File, Kernels
from onnxperf.lab.datasets.reading import Record, number, work_of
from onnxperf.lab.datasets.table import GRAPH, Row
from onnxperf.latency.families.pointwise import SHORT
from op_models import Tensor

CARDS = {"a40_graph": "a40", "l40_graph": "l40", "h200_graph": "h200-sxm"}
GAP_S = 0.6e-6  # between two kernels of a CUDA graph, the same as runtimes' `HostCosts.replay_gap_s`


def copy(r: Record) -> Row | None:
    """A record of kilobytes read and written, and GB/s, as a row. Assumed: elements of four bytes."""
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

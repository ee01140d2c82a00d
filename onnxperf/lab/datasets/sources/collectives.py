"""Exchanges between GPUs, from `collectives/` (ai-dynamo/aiconfigurator, Apache-2.0): nccl-tests on five machines.

Every GPU takes part that the row names, of one machine. Releases of NCCL are told apart by nobody: the median of them
counts. Nor are types of elements, but for sums of int8, which no switch adds up and no model has: these are not read,
nor are the all-reduces that vLLM, SGLang and TensorRT-LLM bring with them: these are other kernels, for small messages.
"""

from __future__ import annotations

from onnxperf.lab.datasets.dataset import Dataset, File, Kernels
from onnxperf.lab.datasets.reading import Record, card, number, sizes
from onnxperf.lab.datasets.table import GRAPH, Row
from op_models import Collective, Work

CARDS = {"a100_sxm": "a100-sxm4-80gb"}
KINDS = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}  # fmt: skip
KEPT_BACK = 4  # every fourth power of two: scores of sizes that no fit saw


def exchange(r: Record) -> Row | None:
    """A record of bytes and microseconds."""
    if r["impl"] != "nccl-tests" or (r["op"], r["dtype"]) == ("all_reduce", "int8"):
        return None
    kind, size, work = KINDS.get(r["op"]), sizes(r, "bytes", "n_gpus"), None
    if kind is not None and size is not None:
        message, ranks = size
        work = Work(Collective(kind, message, ranks), "float16", "fp16", message, message, 0)
    kept_back = size is not None and size[0].bit_length() % KEPT_BACK == 3
    gpu = card(CARDS.get(r["gpu"], r["gpu"]))
    return Row("collective", gpu, work, number(r, "latency_us") / 1e6, kept_back, r["source"])


COLUMNS = ("gpu", "op", "n_gpus", "bytes", "dtype", "impl", "latency_us", "source")
DATASET = Dataset(
    "collectives", 35, GRAPH,
    kernels=(Kernels("collective", "exchange between GPUs, NCCL", "collective", 2e-6, drawn=120),),
    files=(File("collectives.csv.gz", COLUMNS, exchange),),
)  # fmt: skip

"""Convolutional networks under TensorRT, from `tensorrt/paddleclas.csv`: the latencies that PaddleClas published.

Paddle Inference ran them on T4 and V100 with TensorRT. The pages name neither releases nor a host. Assumed: releases of
2020, TensorRT 6 or 7; times include the copy of images from pageable memory, since for the smallest models one more
image adds as much time as its copy takes. `samples/make_paddleclas.py` makes the graphs, in `tensorrt/graphs`.
"""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from pathlib import Path

from onnxperf.lab.datasets.dataset import Dataset, Models
from onnxperf.lab.datasets.reading import Record, card, number, read, refusal, sizes
from onnxperf.lab.datasets.runs import MeasuredRun, graph_file

FILE = "paddleclas.csv"
COLUMNS = ("model", "gpu", "runtime", "dtype", "batch", "latency_ms", "source")
PRECISIONS = {"fp32": "FP32", "fp16": "FP16"}
RELEASE = "7"  # or an earlier one: the runtime version to predict for
#: Models whose rows repeat those of another model, the same architecture with other weights.
AGAIN = ("ResNet50_vd_ssld", "ResNet50_vd_ssld_v2")
#: Architectures whose graphs did not run as one engine: Paddle ran their activations, or the scaling of channels, with
#: its own kernels. The evidence: in FP16 they take 0.8 to 1.15 times as long as in FP32, other models 0.3 to 0.85 (at
#: the largest batch), and at batch 1 some 40 us for each convolution, however narrow it is.
IN_PARTS = ("MobileNetV2", "MobileNetV3", "GhostNet", "ShuffleNet", "EfficientNet")
DRAWN = 4  # one model in four is in the shipped sample


def file_name(model: str) -> str:
    """The graph of a model, in the dataset's folder."""
    return f"graphs/{model.replace(' ', '')}.onnx.gz"


def models(folder: Path) -> tuple[list[MeasuredRun], dict[str, int]]:
    """The runs in the table of `folder` whose graphs are there, and how many rows are not taken, by reason."""
    runs: list[MeasuredRun] = []
    why = Counter[str]()
    for r in read(folder / FILE, COLUMNS):
        gpu, size, seconds = card(r["gpu"]), sizes(r, "batch"), number(r, "latency_ms") / 1e3
        graph = graph_file(folder, file_name(r["model"]))
        if r["model"] in AGAIN:
            why["another model's row again"] += 1
        elif graph is None:
            why["its graph is not there"] += 1
        elif r["dtype"] not in PRECISIONS:
            why["another precision"] += 1
        elif reason := refusal(gpu, size, seconds):
            why[reason] += 1
        elif gpu and size:
            run = MeasuredRun(
                gpu, r["model"], {"batch": size[0]}, seconds, runtime="tensorrt", precision=r["dtype"],
                copies="pageable", source=r["source"].partition(":")[0], version=r["runtime"], ort_version=RELEASE,
                file=graph,
            )  # fmt: skip
            runs.append(run)
    return runs, dict(why)


def one_engine(run: MeasuredRun) -> bool:
    """Whether the whole graph ran as one engine."""
    return not run.model.startswith(IN_PARTS)


def drawn(record: Record) -> bool:
    """Whether the shipped sample holds a record: it has one model in DRAWN, by a hash of the name."""
    return sha256(record["model"].encode()).digest()[0] % DRAWN == 0 and record["model"] not in AGAIN


def _by_type(run: MeasuredRun) -> str:
    return PRECISIONS[run.precision] if one_engine(run) else "graphs in parts"


DATASET = Dataset(
    "tensorrt", 60,
    models=(
        Models(
            FILE, COLUMNS, "TensorRT", "TensorRT until 7: convolutional networks", models, drawn=drawn, apart=_by_type,
            constants="range", ranged=one_engine,
        ),
    ),
)  # fmt: skip

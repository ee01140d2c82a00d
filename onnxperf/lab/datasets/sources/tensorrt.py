"""Models under TensorRT: the latencies that PaddleClas published, and those that others did of releases 7.2 to 10.

`tensorrt/paddleclas.csv`: Paddle Inference ran convolutional networks on T4 and V100 with TensorRT. The pages name
neither releases nor a host. Assumed: releases of 2020, TensorRT 6 or 7; times include the copy of images from pageable
memory, since for the smallest models one more image adds as much time as its copy takes. `samples/make_paddleclas.py`
makes the graphs, in `tensorrt/graphs`.

`tensorrt/recent.csv`: engines on T4, A100 and Jetson boards, timed without copies. Ultralytics times from one
synchronisation to the next, NVIDIA and mmyolo as trtexec does. FP32 from Ampere on is TF32, TensorRT's default.
`samples/make_tensorrt.py` makes the graphs, in `tensorrt/graphs`.
"""

from __future__ import annotations

import re
from collections import Counter
from hashlib import sha256
from pathlib import Path

import gpu_specs
from onnxperf.lab.datasets.dataset import LEAST_W, Dataset, Models
from onnxperf.lab.datasets.reading import Record, card, number, read, refusal, sizes
from onnxperf.lab.datasets.runs import MeasuredRun, graph_file

FILE = "paddleclas.csv"
COLUMNS = ("model", "gpu", "runtime", "dtype", "batch", "latency_ms", "source")
PRECISIONS = {"fp32": "FP32", "fp16": "FP16"}
RELEASE = "7.1"  # or an earlier one: the runtime version to predict for
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


RECENT = "recent.csv"
RECENT_COLUMNS = ("model", "runtime", "release", "gpu", "precision", "batch", "shape", "latency_ms", "trust", "source")
CARDS = {"NVIDIA A100-SXM4-40GB": "a100-sxm4-40gb", "A100-SXM4-80GB": "a100-sxm4-80gb"}
#: What the models ran in: FP32 engines use TF32 where a card has it, as `keep` does.
TYPES = {"fp32": "keep", "tf32": "keep", "fp16": "fp16", "int8": "int8", "int8 (PTQ)": "int8", "int8 (QAT)": "int8"}
MEASURED = re.compile(r"(\d+(?:\.\d+)?)[\d.a-z]*(?: |$)")
TRUSTED = 3  # of 5
#: What the shipped sample holds: some whose graphs are made from packages under permissive licences.
SHIPPED = ("ResNet50-v1", "MobileNet-v2", "EfficientNet-B0", "deberta-v3-xsmall", "mmpretrain ResNet")
#: Rows that contradict others of their source on the same card. Classifiers on T4 take 2 to 2.2 times as long as
#: predicted, all five sizes, somewhat less than the board's base clock of 585 MHz would give; oriented boxes on A100 3
#: to 5 times as long as the same network on 0.4 times the positions.
CONTRADICTING = (("t4", "-cls"), ("a100-sxm4-40gb", "-obb"))


def release_of(record: Record) -> str | None:
    """The release that a row of `recent.csv` says, a major one where no more is stated; None for none."""
    number = MEASURED.match(record["release"].rpartition("tensorrt==")[2])
    return number.group(1) if number else None


def recent_file(model: str, batch: str, shape: str) -> str:
    """The graph of a row of `recent.csv`, in the dataset's folder, as `samples/make_tensorrt.py` names it."""
    at = shape if batch in ("1", "?") else f"{batch}x{shape}"
    return "graphs/" + re.sub(r"[^\w.+@=-]+", "-", f"{model}@{at}").strip("-") + ".onnx.gz"


def recent(folder: Path) -> tuple[list[MeasuredRun], dict[str, int]]:
    """The runs of releases 7.2 to 10 whose graphs are there, and how many rows are not taken, by reason."""
    runs: list[MeasuredRun] = []
    why, seen = Counter[str](), set[tuple[str, ...]]()
    for r in read(folder / RECENT, RECENT_COLUMNS):
        gpu, seconds = CARDS.get(r["gpu"], card(r["gpu"])), number(r, "latency_ms") / 1e3
        graph, batch = graph_file(folder, recent_file(r["model"], r["batch"], r["shape"])), sizes(r, "batch")
        key = tuple(r[c] for c in RECENT_COLUMNS[:-3])
        if r["runtime"] != "TensorRT" or r["precision"] not in TYPES:
            why["another runtime or precision"] += 1
        elif graph is None:
            why["its graph is not there"] += 1
        elif key in seen:  # Ultralytics has two tables of YOLOv8, of 80 and of 600 classes
            why["another row of the same name"] += 1
        elif number(r, "trust") < TRUSTED:
            why["trusted too little"] += 1
        elif reason := refusal(gpu, batch, seconds):
            why[reason] += 1
        elif gpu and batch:
            seen.add(key)
            source = re.split(r"[@ ,:]", r["source"])[0]
            run = MeasuredRun(
                gpu, r["model"], {}, seconds, runtime="tensorrt", precision=TYPES[r["precision"]], source=source,
                version=r["release"], ort_version=release_of(r), file=graph, family=gpu,
            )  # fmt: skip
            runs.append(run)
    return runs, dict(why)


def contradicts(run: MeasuredRun) -> bool:
    """Whether a row contradicts others of its source."""
    return any(run.gpu == gpu and name in run.model for gpu, name in CONTRADICTING)


def engine_alone(run: MeasuredRun) -> bool:
    """Whether a row's clock has the engine alone, at the card's usual clocks. That of mmdeploy, whose engines are of
    7.2, has more: its smallest networks take 1.1 to 1.2 ms in FP16 as in INT8.
    """
    return run.ort_version != "7.2" and not contradicts(run)


def tells_of_kernels(run: MeasuredRun) -> bool:
    """Whether a row tells of kernels: none of a card under LEAST_W, which runs at its power limit, and none of the
    throughput of several images, whose clock is not described.
    """
    return engine_alone(run) and gpu_specs.load(run.gpu).tdp_W >= LEAST_W and not run.source.startswith("mit-han-lab")


def _by_card(run: MeasuredRun) -> str:
    if contradicts(run):
        return "rows that contradict others"
    precision = "FP32 or TF32" if run.precision == "keep" else run.precision.upper()
    return f"release {run.ort_version or 'not stated'}, {precision}, {run.gpu}"


DATASET = Dataset(
    "tensorrt", 60,
    models=(
        Models(
            FILE, COLUMNS, "TensorRT", "TensorRT until 7.1: convolutional networks", models, drawn=drawn,
            apart=_by_type, constants="range", ranged=one_engine,
        ),
        Models(
            RECENT, RECENT_COLUMNS, "TensorRT engines", "TensorRT 7.2 to 10", recent, apart=_by_card,
            drawn=lambda record: record["runtime"] == "TensorRT" and record["model"].startswith(SHIPPED),
            constants="engine", fitted=tells_of_kernels, ranged=engine_alone,
        ),
    ),
)  # fmt: skip

"""Whole models under ONNX Runtime's CUDA provider, in three tables whose column `source` names who measured.

Rows of `published.csv` name a model; the sample's graph of it is taken to be like the one that ran. The other two
tables come with the graphs that ran. The host's costs are derived from all rows but those of convolutional networks,
whose hosts' paces are assumed.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path

from onnxperf.lab.datasets.dataset import Dataset, Models
from onnxperf.lab.datasets.reading import card, number, read, refusal, sizes
from onnxperf.lab.datasets.runs import MeasuredRun, graph_file

FILE = "published.csv"
COLUMNS = (
    "model", "runtime", "version", "gpu", "dtype", "batch", "seq", "latency_ms", "optimized", "io_binding", "source",
)  # fmt: skip
#: The tables with graphs: the models in each, and the constants that are derived from it.
GRAPHS = {
    "with_graphs.csv": ("transformers", "host"),
    "cnn_with_graphs.csv": ("convolutional networks", ""),
    "opened.csv": ("further models", "host"),
}
GRAPHS_COLUMNS = (
    "model", "graph", "dims", "gpu", "precision", "io_binding", "include_transfers", "ort_version", "measured_ms",
    "source",
)  # fmt: skip
#: By `include_transfers`: the host memory of the copies that a time includes, "" for no copies. Where `io_binding` is
#: UNSTATED, a plain `session.run` is assumed, with inputs and outputs in pageable memory: who uses I/O binding says so.
COPIES = {"": "", "0": "", "1": "pinned", "pageable": "pageable"}
UNSTATED = "unknown"
SHORT_S = 5e-3  # up to here the host's costs are most of a run
#: The sample with the graph of a model, by the beginning of the model's name (without its organisation).
SAMPLES = {
    "bert-base-uncased (BertModel": "bert-base-ids", "bert-base": "bert-base-cased", "bert-large": "bert-large-qa",
    "gpt2 decode step": "gpt2-past", "MiniLM-L6-H384": "minilm-l6-h384", "roberta-base": "roberta-base",
    "twitter-roberta-base": "roberta-base", "roberta-large": "roberta-large", "distilbert-base": "distilbert-base",
}  # fmt: skip
HALF = ("bert-large-qa",)  # samples in half precision
UNOPTIMISED = ("none", "default")  # what `optimized` begins with where the offline optimizer was not used
PRECISIONS = {"fp32": "keep", "fp16": "fp16"}  # products in FP32 may use TF32 where a card has it
#: The same for graphs that ran, in which FP16 is already stored.
GRAPHS_PRECISIONS = {"fp32": "fp32", "tf32": "tf32", "fp16": "keep"}


def ort_version(version: str) -> str | None:
    """The `--ort-version` of a release, None where none is told. A development build of a release without a patch level
    counts as the release before.
    """
    numbers = re.search(r"(?:ORT |^)(\d+)\.(\d+)(?:\.(\d+))?(.*dev)?", version)
    if not numbers:
        return None
    return f"{numbers[1]}.{int(numbers[2]) - bool(numbers[4] and not numbers[3])}"


def models(folder: Path) -> tuple[list[MeasuredRun], dict[str, int]]:
    """Runs of ONNX Runtime's CUDA provider in the table of `folder`, and how many rows are not taken, by reason."""
    runs: list[MeasuredRun] = []
    why = Counter[str]()
    for r in read(folder / FILE, COLUMNS):
        gpu = card(r.get("gpu_norm") or r["gpu"])
        size, seconds = sizes(r, "batch", "seq"), number(r, "latency_ms") / 1e3
        name, optimized = r["model"].rpartition("/")[2], (r["optimized"] or "none").lower()
        sample = next((s for start, s in SAMPLES.items() if name.startswith(start)), None)
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
                gpu, sample, {"batch": size[0], "past" if sample == "gpt2-past" else "sequence": size[1]}, seconds,
                runtime="ort-cuda", precision="keep" if sample in HALF else PRECISIONS[r["dtype"]],
                transformers=not optimized.startswith(UNOPTIMISED),
                copies="pageable" if r["io_binding"] == "False" else "",
                source=r["source"], version=r["version"], ort_version=ort_version(r["version"]),
            )  # fmt: skip
            runs.append(run)
    return runs, dict(why)


def dimensions(text: str) -> dict[str, int] | None:
    """`batch=4 seq=16` as a mapping; None where a part is not NAME=N with a positive whole number."""
    parts = [re.fullmatch(r"(\w+)=([1-9]\d{0,9})", part) for part in text.split()]
    return {p[1]: int(p[2]) for p in parts if p} if all(parts) else None


def with_graphs(file: str, folder: Path) -> tuple[list[MeasuredRun], dict[str, int]]:
    """Runs in the table `file` of `folder` whose graphs lie there, and how many rows are not taken, by reason."""
    runs: list[MeasuredRun] = []
    why = Counter[str]()
    for r in read(folder / file, GRAPHS_COLUMNS):
        gpu, dims, seconds = card(r["gpu"]), dimensions(r["dims"]), number(r, "measured_ms") / 1e3
        graph = graph_file(folder, r["graph"])
        copies = "pageable" if r["io_binding"] == UNSTATED else r["include_transfers"]
        if graph is None:
            why["its graph is not there"] += 1
        elif r["precision"] not in GRAPHS_PRECISIONS:
            why["another precision"] += 1
        elif copies not in COPIES:
            why["no word for copies that is known"] += 1
        elif reason := refusal(gpu, dims, seconds):
            why[reason] += 1
        elif gpu and dims is not None:
            run = MeasuredRun(
                gpu, r["model"], dims, seconds, runtime="ort-cuda", precision=GRAPHS_PRECISIONS[r["precision"]],
                copies=COPIES[copies], source=r["source"], version=r["ort_version"],
                ort_version=ort_version(r["ort_version"]), file=graph,
            )  # fmt: skip
            runs.append(run)
    return runs, dict(why)


def _by_length(run: MeasuredRun) -> str:
    return f"{'over' if run.seconds > SHORT_S else 'up to'} {SHORT_S * 1e3:g} ms"


def _by_source(run: MeasuredRun) -> str:
    """Who measured: the source without its commit and the description of how."""
    return re.split("[@,]", run.source)[0]


DATASET = Dataset(
    "ort_cuda", 40,
    models=(
        Models(
            FILE, COLUMNS, "ONNX Runtime", "Models of ONNX Runtime, CUDA provider", models, apart=_by_length,
            constants="host",
        ),
        *(
            Models(
                file, GRAPHS_COLUMNS, f"{what} with their graph", f"ONNX Runtime, CUDA provider: {what}, by source",
                partial(with_graphs, file), graph="graph", apart=_by_source, constants=constants,
            )
            for file, (what, constants) in GRAPHS.items()
        ),
    ),
)  # fmt: skip

"""Kernels and whole models of eager PyTorch in FP32, from the tables in `fp32_torch/` (NeuSight's measurements, MIT).

Rows of whole models only score: nothing is fitted to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np

from onnxperf.lab.datasets.dataset import Dataset, File, Kernels, Models, long_enough, with_watts_to_spare
from onnxperf.lab.datasets.reading import Record, card, number, read, refusal, sizes, work_of
from onnxperf.lab.datasets.rigs import for_milliseconds
from onnxperf.lab.datasets.runs import STEP, MeasuredRun, graph_file
from onnxperf.lab.datasets.table import OTHER_LIBRARY, Row, Table
from onnxperf.passes.plan import parse_plan, per_gpu
from op_models import Tensor, Work

#: The operator of each table of elementwise kernels, and whether it takes two tensors; of two, `u` takes a scalar.
ELEMENTWISE = {
    "add": ("Add", True), "addu": ("Add", False), "mul": ("Mul", True), "mulu": ("Mul", False), "div": ("Div", True),
    "divu": ("Div", False), "pow": ("Pow", True), "powu": ("Pow", False), "relu": ("Relu", False),
    "tanh": ("Tanh", False), "gelu": ("Gelu", False),
}  # fmt: skip
SCALAR = Tensor("scalar", "float32", (), "constant")
BINARY = ("Add", "Mul", "Div", "Pow")
LONG = 2e10  # FLOPs: about 1 ms, where the rig adds 0.1 to 0.7 ms of its own that differ from shape to shape

#: The sample that has the graph of each measured model.
SAMPLES = {
    "bert_large": "bert-large", "gpt2_large": "gpt2-large", "opt_13": "opt-1.3b", "gpt3_xl": "gpt3-xl",
    "gpt3_27": "gpt3-2.7b",
}  # fmt: skip
#: Methods whose predictions were published beside the measurements, with the headings of their columns.
PUBLISHED = {"neusight": "NeuSight", "roofline": "its roofline", "habitat": "Habitat", "micro": "micro"}
MODELS = "e2e.csv"
PLANS = {"dp4": "dp=4", "tp4": "tp=4", "pp4_1": "pp=4"}  # of four cards, by what their rows call them
PARTS = {STEP: "", "forward": "_fw", "backward": "_bw"}  # with what their columns end in
COLUMNS = ("device", "model", "seqlen", "batch", "mode", "option", "measured_ms", "sum_gpu_ops_ms")


def _tensor(*shape: int, kind: str = "activation") -> Tensor:
    return Tensor("t", "float32", shape, kind)


@cache
def product(table: str, b: int, m: int, k: int, n: int) -> Work | None:
    """bmm: a stack of products of activations; linear: with a stored matrix and a bias."""
    if table == "linear":
        inputs = (_tensor(b * m, k), _tensor(n, k, kind="weight"), _tensor(n, kind="weight"))
        return work_of("Gemm", inputs, _tensor(b * m, n), {"transB": 1})
    return work_of("MatMul", (_tensor(b, m, k), _tensor(b, k, n)), _tensor(b, m, n))


@cache
def vector(table: str, rows: int, cols: int) -> Work | None:
    """Elementwise operators on rows x cols (with `u`: and a scalar), softmax and LayerNorm along the columns."""
    x, scale = _tensor(rows, cols), _tensor(cols, kind="weight")
    if table == "softmax":
        return work_of("Softmax", (x,), x, {"axis": -1})
    if table == "ln":
        return work_of("LayerNormalization", (x, scale, scale), x, {"axis": -1})
    if table not in ELEMENTWISE:
        return None
    type, two = ELEMENTWISE[table]
    return work_of(type, (x, x) if two else (x, SCALAR) if type in BINARY else (x,), x)


@cache
def conv(table: str, b: int, cin: int, cout: int, size: int) -> Work | None:
    """3x3, stride 1, padding 1, no bias."""
    inputs = (_tensor(b, cin, size, size), _tensor(cout, cin, 3, 3, kind="weight"))
    attrs = {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
    return work_of("Conv", inputs, _tensor(b, cout, size, size), attrs)


#: Cards of which the source kept back every row of the products; half of the shapes that no other card has tell fits.
HALF_TOLD = frozenset({"a100-pcie-80gb", "h100-sxm", "l4"})


def _file(
    name: str, columns: tuple[str, ...], shape: Callable[..., Work | None], half_told: frozenset[str] = frozenset()
) -> File:
    """A file of which the operator and these columns make a work."""

    def row(r: Record) -> Row:
        table, size, gpu = (r["op"] or "(none)")[:40], sizes(r, *columns), card(r["device"])
        work, ran = shape(table, *size) if size else None, r.get("kernels") or r.get("kernel") or ""
        test = r["split"] == "test" and not (gpu in half_told and crc32(repr(size).encode()) % 2)
        return Row(table, gpu, work, number(r, "latency_ms") / 1e3, test, ran)

    return File(name, ("op", "device", "split", "latency_ms", *columns), row)


def _long(t: Table) -> Table:
    """Layers beside which the rig's own time is short."""
    return t.take(np.array([w.matrix_flops >= LONG for w in t.works], dtype=bool))


def models(folder: Path) -> tuple[list[MeasuredRun], dict[str, int]]:
    """Inferences without option in the table of `folder`, and how many of its rows are not taken, by reason.

    Of a row that comes twice the first counts.
    """
    runs: dict[tuple[object, ...], MeasuredRun] = {}
    why = Counter[str]()
    for r in read(folder / MODELS, COLUMNS):
        gpu, size, seconds = card(r["device"]), sizes(r, "batch", "seqlen"), number(r, "measured_ms") / 1e3
        if r["mode"] != "inference" or r["option"]:
            why["training, or with an option"] += 1
        elif r["model"] not in SAMPLES:
            why["no sample of this model"] += 1
        elif reason := refusal(gpu, size, seconds):
            why[reason] += 1
        elif (gpu, r["model"], size) in runs:
            why["measured twice"] += 1
        elif gpu and size:
            published = {m: number(r, f"{m}_ms") / 1e3 for m in PUBLISHED}
            kernels_s = number(r, "sum_gpu_ops_ms") / 1e3
            dims = {"batch": size[0], "sequence": size[1]}
            run = MeasuredRun(gpu, SAMPLES[r["model"]], dims, seconds, kernels_s, published)
            runs[gpu, r["model"], size] = run
    return list(runs.values()), dict(why)


def steps(folder: Path) -> tuple[list[MeasuredRun], dict[str, int]]:
    """Training steps on one card in the table of `folder`: forward and backward, together and apart, without an
    optimiser; and how many of such rows are not taken, by reason.
    """
    runs: list[MeasuredRun] = []
    why = Counter[str]()
    for r in read(folder / MODELS, COLUMNS):
        if r["mode"] != "training" or r["option"]:
            continue
        gpu, size = card(r["device"]), sizes(r, "batch", "seqlen")
        times = {part: number(r, f"measured{end}_ms") / 1e3 for part, end in PARTS.items()}
        name = SAMPLES.get(r["model"], "")
        graph = graph_file(folder, f"{name}.training.onnx.gz")
        if graph is None:
            why["no graph of this model in training"] += 1
        elif reason := next((w for seconds in times.values() if (w := refusal(gpu, size, seconds))), ""):
            why[reason] += 1
        elif gpu and size:
            dims = {"batch": size[0], "sequence": size[1]}
            for part, end in PARTS.items():
                published = {"neusight": number(r, f"neusight{end}_ms") / 1e3}
                run = MeasuredRun(gpu, f"{name}, training", dims, times[part], published=published, file=graph)
                runs.append(replace(run, part=part))
    return runs, dict(why)


def plans(folder: Path) -> tuple[list[MeasuredRun], dict[str, int]]:
    """Training steps on four cards joined by NVLink, by plan, without an optimiser; the batch is that of all four.

    A step at batch 4 is 21.3 TFLOPs of products. Had each card of dp4 a batch of 4, it would do 47 TFLOP/s where its
    peak is 19.5; with a sample on each it does 11.8. tp4's 484.9 ms are 11.0 on each card with a quarter of every
    product; pp4's 1597.6 ms are 13.3, on one card at a time. Assumed are DistributedDataParallel and Megatron-LM's
    division of matrices and vocabulary.
    """
    runs: list[MeasuredRun] = []
    why = Counter[str]()
    for r in read(folder / MODELS, COLUMNS):
        if r["option"] not in PLANS:
            continue
        gpu, size, seconds, name = card(r["device"]), sizes(r, "batch", "seqlen"), *_measured(r)
        graph = graph_file(folder, f"{name}.training.onnx.gz")
        if graph is None:
            why["no graph of this model in training"] += 1
        elif reason := refusal(gpu, size, seconds):
            why[reason] += 1
        elif gpu and size:
            plan = PLANS[r["option"]]
            dims = {"batch": per_gpu(size[0], parse_plan(plan, None)), "sequence": size[1]}
            published = {"neusight": number(r, "neusight_ms") / 1e3}
            run = MeasuredRun(gpu, f"{name}, training, {plan}", dims, seconds, published=published, file=graph)
            runs.append(replace(run, part=STEP, parallel=plan))
    return runs, dict(why)


def _measured(r: Record) -> tuple[float, str]:
    """Seconds of a row, and the sample that has its model."""
    return number(r, "measured_ms") / 1e3, SAMPLES.get(r["model"], "")


def _products(name: str, reported: str, tiles: str) -> tuple[Kernels, Kernels]:
    """Products, and those that another library ran, to which nothing is fitted."""
    usual = Kernels(
        name, reported, "gemm", 2.5e-5, with_watts_to_spare, True, for_milliseconds, tiles=tiles, drawn=1200
    )
    other = replace(usual, name=name + OTHER_LIBRARY, reported=f"{reported}, other library", fitted=None)
    return usual, replace(other, tiles="", drawn=0)


BMM, LINEAR = _products("bmm", "batched GEMM", "batched"), _products("linear", "GEMM with bias", "biased")
DATASET = Dataset(
    "fp32_torch", 10, "torch", names="kernel_names.csv.gz", split_by_library=True,
    kernels=(
        BMM[0], LINEAR[0], BMM[1], LINEAR[1],
        *(Kernels(name, "elementwise", "vector", 2e-5, long_enough, drawn=200) for name in ELEMENTWISE),
        Kernels("softmax", "softmax", "vector", 2e-5, long_enough, beside="softmax", drawn=600),
        Kernels("ln", "LayerNorm", "vector", 2e-5, long_enough, beside="normalisation", drawn=600),
        Kernels("conv", "convolution 3x3", "convolution", 1.5e-4, _long, tiles="convolution", drawn=2000),
    ),
    files=(
        _file("kernels_gemm.csv.gz", ("b", "m", "k", "n"), product, HALF_TOLD),
        _file("kernels_vector.csv.gz", ("rows", "cols"), vector),
        _file("kernels_conv.csv.gz", ("b", "cin", "cout", "isize"), conv),
    ),
    models=(
        Models(
            MODELS, COLUMNS, "eager PyTorch, FP32", "Models of eager PyTorch, FP32, by card", models,
            drawn=lambda r: r["mode"] == "inference" and not r["option"] and "switch" not in r["model"],
            published=PUBLISHED, spare=("its roofline", "micro"),
        ),
        Models(
            MODELS, COLUMNS, "training, eager PyTorch, FP32", "Training of eager PyTorch, FP32, without an optimiser",
            steps, drawn=lambda r: r["mode"] == "training" and not r["option"], apart=lambda run: run.part,
            published={"neusight": "NeuSight"},
        ),
        Models(
            MODELS, COLUMNS, "several GPUs, training, FP32", "Training of eager PyTorch on four A100, by plan", plans,
            drawn=lambda r: r["option"] in PLANS, apart=lambda run: run.parallel, published={"neusight": "NeuSight"},
        ),
    ),
    copied=("LICENSE.NeuSight", "kernel_names.csv.gz"),
)  # fmt: skip

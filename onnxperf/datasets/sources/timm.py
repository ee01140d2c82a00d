"""Whole models of timm under eager PyTorch with FP16 autocast, from `timm/infer_amp.csv.gz`: timm's own benchmark.

Constants of convolutions that no kernel tells are derived from the rows of convolutional networks whose graphs ship;
families of models are left out in four parts for scores. A row is a batch, after warm-up, the host waiting for each;
the largest batch that fits, up to 1024. Graphs are exported from timm, by `python -m onnxperf.export.from_timm`; those
of the sample ship, and some more that the constants are derived from. derive/amp.md says what the rows tell of how the
benchmark was run.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from zlib import crc32

from onnxperf.datasets.dataset import Dataset, Models
from onnxperf.datasets.reading import SAMPLE, Record, card, number, read, refusal, sizes
from onnxperf.datasets.runs import MeasuredRun, graph_file

FILE = "infer_amp.csv.gz"
COLUMNS = ("model", "gpu", "dtype", "layout", "compile", "torch", "batch", "img", "latency_ms", "source")
#: Of each family (see `family`) the model whose name has the lowest CRC-32, of those whose graph is below 140 kB; of
#: these the 14 lowest. The rule looks at no result.
SAMPLED = (
    "coatnet_0_rw_224@224", "convnext_large@224", "convnextv2_atto@224", "deit_small_distilled_patch16_224@224",
    "efficientformerv2_s0@224", "mixer_l16_224@224", "mobileone_s2@224", "res2next50@224", "resmlp_big_24_224@224",
    "resnetblur50@224", "sehalonet33ts@256", "seresnet33ts@256", "tf_efficientnet_lite2@260",
    "tf_mobilenetv3_large_075@224",
)  # fmt: skip


PARTS = 4  # that families are left out in


def named(record: Record) -> str:
    """What a graph is called: the model and the side of its images."""
    return f"{record['model']}@{record['img']}"


def family(model: str) -> str:
    """The letters that a model's name begins with, without who trained it."""
    found = re.match(r"[a-z]+", re.sub(r"^(tf|legacy|test)_", "", model))
    return found[0] if found else model


def part(model: str) -> str:
    """The part of all families that a model's family is of, by a hash of its name."""
    return f"part {crc32(family(model).encode()) % PARTS + 1} of {PARTS}"


def models(folder: Path) -> tuple[list[MeasuredRun], dict[str, int]]:
    """Runs in the table of `folder` whose graph is there or ships, and how many rows are not taken, by reason."""
    found: list[MeasuredRun] = []
    why = Counter[str]()
    for r in read(folder / FILE, COLUMNS):
        gpu, size, seconds = card(r["gpu"]), sizes(r, "batch", "img"), number(r, "latency_ms") / 1e3
        graph = graph_file(folder, f"{named(r)}.onnx.gz")
        if (r["dtype"], r["compile"]) != ("amp", "eager") or r["layout"] not in ("nchw", "nhwc"):
            why["another precision, layout or runtime"] += 1
        elif graph is None:
            why["its graph is not there: python -m onnxperf.export.from_timm"] += 1
        elif reason := refusal(gpu, size, seconds):
            why[reason] += 1
        elif gpu and size:
            run = MeasuredRun(
                gpu, named(r), {"batch": size[0]}, seconds, precision="amp", source="timm", version=r["torch"],
                file=graph, layout=r["layout"], fast_norms=True, family=part(r["model"]),
            )  # fmt: skip
            found.append(run)
    return found, dict(why)


def ships(run: MeasuredRun) -> bool:
    """Whether the graph of a run ships: constants are derived from those alone, ranges from all that are there."""
    return run.file is not None and (SAMPLE / "timm" / run.file.name).is_file()


DATASET = Dataset(
    "timm", 50,
    models=(
        Models(
            FILE, COLUMNS, "eager PyTorch, FP16 autocast", "Models of eager PyTorch, FP16 autocast, by layout", models,
            apart=lambda run: f"{run.layout}", constants="convolution_in_models", fitted=ships,
            drawn=lambda r: named(r) in SAMPLED,
        ),
    ),
)  # fmt: skip

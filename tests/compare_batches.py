"""What `--batch` makes of models exported at batch 1, beside their own exports at that batch.

    python -m tests.compare_batches FOLDER [--batch 6] [--gpu l4] [--only NAME]

Exports the samples of samples/zoo and models of timm (extras `torch` and `timm`, and transformers) at both batches,
with every dimension fixed, into FOLDER, where existing files are kept. Each line says whether the kernels and the
seconds are the same, or why the batch is refused.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

import onnxperf

#: Of timm: networks of convolutions, of attention, of windows, of both.
TIMM = (
    "resnet18", "efficientnet_b0", "mobilenetv3_large_100", "densenet121", "regnety_008", "convnext_nano",
    "mixer_s32_224", "deit_tiny_patch16_224", "vit_small_patch32_224", "swin_tiny_patch4_window7_224",
    "coat_lite_tiny", "pit_ti_224", "maxvit_tiny_rw_224", "levit_128s", "cait_xxs24_224", "eca_halonext26ts",
    "poolformer_s12", "mobilevit_s",
)  # fmt: skip
ZOO = (
    "resnet50", "mobilenetv2", "vit-base-16", "alexnet", "googlenet", "convnext-t", "swin-t", "unet", "yolox-s",
    "clip-vit-b-32", "whisper-base-encoder", "bert-base", "bert-base-ids", "gpt2", "gpt2-past", "distilbert-dynamic",
    "llama-3.2-1b", "llama-3.2-1b-past", "opt-1.3b", "t5-small", "mixtral-small", "lstm", "roberta-base",
)  # fmt: skip


def at_batch(sample: Any, batch: int) -> Any:
    """A sample of the zoo with every dimension fixed, its batch at this size."""
    own = {"batch": batch, "texts": batch}
    first = next(iter(sample.inputs))

    def size(name: str, i: int, axis: Any) -> int:
        if isinstance(axis, int):
            return batch if (i == 0 and axis == 1) or (name == first and i == 0) else axis
        return own.get(axis[0], axis[1])

    inputs = {name: tuple(size(name, i, a) for i, a in enumerate(axes)) for name, axes in sample.inputs.items()}
    return replace(sample, inputs=inputs)


def export_zoo(name: str, batch: int) -> bytes:
    """A sample's ONNX file at a fixed batch."""
    from onnxperf.samples.zoo import SAMPLES
    from onnxperf.samples.zoo.export import export

    sample = SAMPLES[name]
    data: bytes = export(at_batch(sample, batch))[0].SerializeToString()
    return data


def export_timm(name: str, batch: int) -> bytes:
    """The ONNX file of a model of timm at a fixed batch, without weights."""
    import timm
    import torch

    from onnxperf.export.from_torch import proto

    module = timm.create_model(name)
    data: bytes = proto(module, torch.zeros(batch, *module.default_cfg["input_size"])).SerializeToString()
    return data


def exported(folder: Path, name: str, batch: int) -> Path:
    """The file of a model at a batch, exported where it is not there yet."""
    path = folder / f"{name}@{batch}.onnx"
    if not path.is_file():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path.write_bytes((export_timm if name in TIMM else export_zoo)(name, batch))
    return path


def compared(one: Path, own: Path, batch: int, gpu: str) -> Iterator[str]:
    """What differs between the kernels of the file for one sample at this batch, and those of its own export."""
    try:
        a = onnxperf.predict(one, gpu=gpu, batch=batch)
    except onnxperf.Error as e:
        yield f"refused: {e}"
        return
    b = onnxperf.predict(own, gpu=gpu)
    changed = next((len(w.nodes) for w in a.warnings if w.code == "rebatched"), 0)
    kernels = [Counter((k.op, k.work) for k in p.run.kernels.rows) for p in (a, b)]
    missing, extra = (sum((x - y).values()) for x, y in (kernels, kernels[::-1]))
    same = "the same kernels" if not missing + extra else f"{missing + extra} of {len(b.kernels)} kernels differ"
    yield f"{changed} nodes changed, {same}, {a.seconds * 1e3:.4g} ms, own {b.seconds * 1e3:.4g} ms"
    for k, n in list(((kernels[0] - kernels[1]) + Counter()).items())[:2] if missing else []:
        yield f"    only rebatched: {n} x {k}"
    for k, n in list(((kernels[1] - kernels[0]) + Counter()).items())[:2] if extra else []:
        yield f"    only own:       {n} x {k}"


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--batch", default=6)
@click.option("--gpu", default="l4")
@click.option("--only", default="", help="Only models with this in their name.")
@click.option("--of", type=click.Choice(["timm", "zoo"]), help="Only these.")
@click.option("--export-only", is_flag=True)
def main(folder: Path, batch: int, gpu: str, only: str, of: str | None, export_only: bool) -> None:
    """Print a line for each model."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    folder.mkdir(parents=True, exist_ok=True)
    for name in {"timm": TIMM, "zoo": ZOO, None: (*TIMM, *ZOO)}[of]:
        if only in name:
            try:
                one, own = (exported(folder, name, n) for n in (1, batch))
            except Exception as e:
                click.echo(f"{name}: not exported, {type(e).__name__}: {str(e)[:100]!r}")
                continue
            if not export_only:
                click.echo(f"{name}: " + "\n".join(compared(one, own, batch, gpu)))


if __name__ == "__main__":
    main()

"""Screens as they are to look, and the figures that they are to hold: `python -m tests.goldens` prints both anew.

What a screen looks like stands in `tests/golden/*.txt`: words, rows and columns, every figure a 0. A better constant
changes none of them. Figures stand once, in `tests/golden/numbers.json`: what is predicted of samples, so chosen that
each runtime, method and kind of term occurs, and each generation of cards. That a screen shows the figures of its
answer is tested beside the screen; that columns stand below each other, in `tests/test_tables.py`.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import onnxperf

ROOT = Path(__file__).parent.parent
GOLDEN = Path(__file__).parent / "golden"
NUMBERS = GOLDEN / "numbers.json"
#: Digits that stand alone, with a sign, or before "x" or "%": not those of a name or of a shape.
FIGURE = re.compile(r"(?<![\w.+-])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?=x?(?!\w|\.\w))")
SCALE = re.compile(r"\b0 [kMGTmun](s|B|FLOP)\b")
#: Sample and terms of `predict`.
PREDICTED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("resnet50.onnx", {"gpu": "l4"}),
    ("resnet50.onnx", {"gpu": "titan-x-maxwell", "batch": 8, "runtime": "torch-eager"}),
    ("resnet50.onnx", {"gpu": "h100", "runtime": "tensorrt", "precision": "fp16", "cuda_graph": True}),
    ("mobilenetv2.onnx", {"gpu": "a100", "include_transfers": True}),
    ("mobilenetv2.onnx", {"gpu": "xavier-nx", "runtime": "tensorrt", "precision": "int8"}),
    ("vit-base-16.onnx", {"gpu": "v100", "precision": "amp", "runtime": "torch-eager"}),
    ("bert-base.onnx", {"gpu": "p4", "method": "roofline"}),
    ("bert-base.onnx", {"gpu": "a100", "precision": "tf32", "power_limit_W": 200}),
    ("bert-base.onnx", {"gpu": "t4", "mode": "training", "runtime": "torch-eager", "batch": 4}),
    ("gpt2-dynamic.onnx", {"gpu": "t4", "dims": {"sequence": 64}, "runtime": "torch-eager"}),
    ("gpt2-dynamic.onnx", {"gpu": "rtx-3090", "dims": {"sequence": 64}, "precision": "fp16", "layout": "nhwc"}),
    ("gpt3-xl.onnx", {"gpu": "p4", "dims": {"sequence": 512}, "batch": 4, "ort_version": "1.17"}),
    ("opt-1.3b.onnx", {"gpu": "a100", "dims": {"sequence": 128}, "parallel": "tp=2"}),
    ("keras-resnet50.onnx", {"gpu": "p100", "clock_Hz": 1e9, "host": "desktop"}),
)  # fmt: skip


def layout(text: str) -> str:
    """A screen without its figures, and without what hangs on them: their scale, widths of columns, lengths of bars."""
    text = SCALE.sub(r"0 \1", FIGURE.sub("0", text))
    lines = (re.sub("[█#]{2,}", "█", re.sub(" {2,}", "  ", line.rstrip())) for line in text.splitlines())
    return "\n".join(lines) + "\n"


def golden(name: str, text: str) -> None:
    """Compare a screen's layout with a file, or write it there where the environment says ACCEPT=1."""
    _same(GOLDEN / name, layout(text))


def exactly(name: str, text: str) -> None:
    """Compare a screen of no predicted figures with a file to the letter, or write it there as `golden` does."""
    _same(GOLDEN / name, "\n".join(line.rstrip() for line in text.splitlines()) + "\n")


def _same(path: Path, lines: str) -> None:
    if os.environ.get("ACCEPT"):
        path.write_text(lines, encoding="utf-8")
    assert lines == path.read_text(encoding="utf-8")


def numbers() -> dict[str, dict[str, float | None]]:
    """Key figures of each prediction: seconds, its range, bytes of memory, watts."""
    answers: dict[str, dict[str, float | None]] = {}
    for sample, terms in PREDICTED:
        p = onnxperf.predict(ROOT / "samples" / sample, **terms)
        answers[" ".join([sample, *(f"{k}={v}" for k, v in terms.items())])] = {
            "seconds": p.seconds, "low": p.low_seconds, "high": p.high_seconds,
            "memory_bytes": p.memory.total_bytes, "watts": p.watts,
        }  # fmt: skip
    return answers


def main() -> None:
    """Print the figures anew, then the layouts."""
    import pytest

    NUMBERS.write_text(json.dumps(numbers(), indent=1) + "\n", encoding="utf-8")
    os.environ["ACCEPT"] = "1"
    raise SystemExit(pytest.main([str(Path(__file__).parent), "-k", "as_it_did or as_they_did", "-m", "not slow"]))


if __name__ == "__main__":
    main()

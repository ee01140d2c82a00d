"""Whether two checkouts give the same answers: one writes a digest of every prediction's JSON, the other compares.

`python -m tests.answers write FILE` predicts every sample on every card under every runtime and method, and every
option on some of them; `python -m tests.answers compare FILE` does so again and names what differs: numbers, numbers
rounded to eight digits, ranges (low and high seconds), and sentences (scope and messages). `--every N` takes each Nth
group of cases only. `python -m tests.answers show CASE` prints one prediction, to be held against the other
checkout's.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gpu_specs
import onnxperf
from onnxperf.running import pipeline

SAMPLES = Path(__file__).parents[1] / "samples"
DIMS = {name: known["dims"] for name, known in json.loads((SAMPLES / "flops.json").read_text()).items()}
RUNTIMES = ("ort-cuda", "ort-cuda-1.12", "ort-cpu", "tensorrt", "torch-eager")
KINDS = ("numbers", "numbers to eight digits", "ranges", "sentences")
RANGES = ("low_seconds", "high_seconds")
METHODS = ("tile-wave", "sum", "roofline")
CARDS = ("h100-sxm5-80gb", "l4", "p100-pcie-16gb", "rtx-4090", "t4")  # for the options
OPTIONS: tuple[dict[str, Any], ...] = (
    *({"precision": p} for p in ("fp32", "tf32", "fp16", "bf16", "int8", "fp8")),
    *({"opt_level": level} for level in ("disabled", "basic", "extended")),
    {"batch": 8}, {"streams": 4}, {"cuda_graph": True}, {"include_transfers": True}, {"host": "cloud"},
    {"include_transfers": True, "pageable": True}, {"ort_transformers": True}, {"power_limit_W": 60.0},
    {"ort_transformers": True, "precision": "fp16"}, {"clock_Hz": 1.2e9}, {"include_transfers": True, "streams": 3},
)  # fmt: skip


def cases() -> Iterator[dict[str, Any]]:
    """Every case: the arguments of `predict`, with the sample's name as `model`."""
    models = sorted(p.stem for p in SAMPLES.glob("*.onnx"))
    for model in models:
        for runtime in RUNTIMES:
            for card in sorted(gpu_specs.ids()):
                yield from ({"model": model, "gpu": card, "runtime": runtime, "method": m} for m in METHODS)
            for card in CARDS:
                yield from ({"model": model, "gpu": card, "runtime": runtime, **o} for o in OPTIONS)


def together(chosen: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The cases in groups that differ in their card alone."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for case in chosen:
        groups.setdefault(key(case | {"gpu": ""}), []).append(case)
    return list(groups.values())


def answers(group: list[dict[str, Any]]) -> list[dict[str, Any] | str]:
    """The JSON of cases that differ in their card alone, which are predicted at once where all of them can be."""
    answered = answer(group[0] | {"gpu": [case["gpu"] for case in group]})
    return list(map(answer, group)) if isinstance(answered, str) else answered


def answer(case: dict[str, Any]) -> Any:
    """The JSON of one case as data, or of each card of a list, or the class of the error."""
    terms = dict(case)
    model = terms.pop("model")
    dims = dict(DIMS.get(model) or {})
    if dims and "batch" in terms and "batch" in dims:
        dims["batch"] = terms.pop("batch")
    if (older := terms["runtime"]) == "ort-cuda-1.12" and "ort_version" in signature(onnxperf.predict).parameters:
        terms |= {"runtime": "ort-cuda", "ort_version": "1.12"}
    try:
        with patch.object(pipeline, "check_file"):  # no sample is of an opset that 1.12 loads
            predicted = onnxperf.predict(SAMPLES / f"{model}.onnx", dims=dims or None, **terms)
    except onnxperf.Error as e:
        return type(e).__name__
    answered = [p.to_dict() for p in (predicted if isinstance(predicted, list) else [predicted])]
    for data in answered:
        if data.pop("ort_version", ""):  # a runtime of its own before, without a note on what is known of it
            data["runtime"] = older
            data["warnings"] = [w for w in data["warnings"] if w["code"] != "release"]
    return answered if isinstance(predicted, list) else answered[0]


def digests(group: list[dict[str, Any]]) -> list[list[str]]:
    """The digests of cases that differ in their card alone."""
    return list(map(digest, answers(group)))


def digest(found: dict[str, Any] | str) -> list[str]:
    """Digests of an answer's numbers, of the same rounded to eight digits, of its ranges, and of its sentences."""
    if isinstance(found, str):
        return [found, found, "", ""]
    words = [found["latency"].pop("scope"), [w.pop("message") for w in found["warnings"]]]
    ranges = [[part.pop(name) for name in RANGES] for part in (found["latency"], *found["kernels"])]
    parts = (found, _rounded(found), ranges, words)
    return [hashlib.sha256(json.dumps(x).encode()).hexdigest()[:16] for x in parts]


def _rounded(x: Any) -> Any:
    if isinstance(x, dict):
        return {k: _rounded(v) for k, v in x.items()}
    return [_rounded(v) for v in x] if isinstance(x, list) else f"{x:.8g}" if isinstance(x, float) else x


def key(case: dict[str, Any]) -> str:
    """The case as it stands in the file."""
    return json.dumps(case, sort_keys=True)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write", "compare", "show"))
    parser.add_argument("file", help="where the digests are, gzipped; for show: a case, as compare prints it")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    if asked.what == "show":
        print(json.dumps(answer(json.loads(asked.file)), indent=1))
        return 0
    before = json.loads(gzip.decompress(Path(asked.file).read_bytes())) if asked.what == "compare" else {}
    groups = together([case for case in cases() if not before or key(case) in before])[:: asked.every]
    with ProcessPoolExecutor(asked.processes) as pool:
        answered = zip(groups, pool.map(digests, groups), strict=True)
        done = {key(case): digest for group, each in answered for case, digest in zip(group, each, strict=True)}
    if asked.what == "write":
        Path(asked.file).write_bytes(gzip.compress(json.dumps(done).encode()))
        print(f"{len(done):,} answers written")
        return 0
    differ = {what: [k for k, v in done.items() if v[i] != before[k][i]] for i, what in enumerate(KINDS)}
    for what, found in differ.items():
        print(f"{what}: {len(done) - len(found):,} of {len(done):,} answers are the same")
        for k in found[:: max(1, len(found) // 8)][:8]:
            print("  ", k)
        of = Counter((case["runtime"], case.get("method", "options")) for case in map(json.loads, found))
        print(*(f"   {runtime} {method}: {n:,}\n" for (runtime, method), n in of.most_common()), sep="", end="")
    return int(bool(differ[KINDS[0]]))


if __name__ == "__main__":
    sys.exit(main())

"""What predictions say of their accuracy, made of the datasets and of printed pages: `python -m
onnxperf.lab.validate.measured` writes `onnxperf/answer/accuracy.json`.

Runs of the sample count by runtime, kind, precision and card. Their error is that of the lines of `accuracy.md` that
they stand under, each by its share of the runs. What only full tables have is listed here, with the words on another
page that its figure stands behind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import gpu_specs
from onnxperf.answer.accuracy import (
    EXPERTS,
    GENERATION,
    HALF,
    KERNELS,
    LOOPS,
    OF_GENERATION,
    PAGE,
    RUNS,
    SEVERAL,
    STEPS,
    WHOLE,
    Measured,
    precision_of,
    stored_type,
)  # fmt: skip
from onnxperf.ground.errors import Error
from onnxperf.ground.output import write_file
from onnxperf.ground.releases import release
from onnxperf.lab.datasets import SAMPLE, Models, model_runs
from onnxperf.lab.datasets.runs import MeasuredRun
from onnxperf.passes.plan import parse_plan
from onnxperf.running.scenario import runtime_of

ROOT = Path(__file__).parents[3]
TO = ROOT / "onnxperf/answer/accuracy.json"
#: Releases from which on a runtime is predicted alike: a run of one of them tells of all.
ALIKE = {"torch-eager": "2.0"}
LINE = re.compile(r"\| ([^|]+) \| ([\d,]+) \| ([\d.]+)% \|")
FIGURE = re.compile(r"\W*([\d.]+)")
TENSORRT, LLAMA = "onnxperf/lab/derive/tensorrt.md", "a100-sxm4-80gb"


@dataclass(frozen=True, slots=True)
class Printed:
    """What a page tells of runs that are not in the sample: the error in per cent stands behind `words`."""

    words: str
    runs: Measured

    def read(self) -> Measured:
        """These runs with their error. Raises Error where the page has no such words."""
        text = " ".join((ROOT / self.runs.page).read_text(encoding="utf-8").split())
        figure = FIGURE.match(text.partition(self.words)[2])
        if figure is None:
            raise Error(f"{self.runs.page} has no figure behind {self.words!r}")
        return replace(self.runs, error=round(float(figure[1]) / 100, 4))


def _engines(words: str, gpu: str, precision: str, since: str, until: str, rows: int) -> Printed:
    return Printed(words, Measured("tensorrt", "inference", precision, gpu, since, until, RUNS, rows, 0.0, TENSORRT))


def _served(words: str, engine: str, gpu: str, of: str, rows: int, experts: bool = False) -> Printed:
    kind, types = GENERATION + EXPERTS * experts, WHOLE if of == LOOPS else HALF
    return Printed(words, Measured(engine, kind, types, gpu, "", "", of, rows, 0.0, OF_GENERATION))


DETECTORS, NANO, NX = "segmenters, poses, T4 | 10 | |", "| the same, Orin Nano | not stated |", "Orin NX | not stated |"
PRINTED = (
    _engines(f"{DETECTORS} 11.1 ->", "t4", "fp16", "10", "10", 20),
    _engines("mmyolo's detectors, T4 | 8.4 | | 7.2 ->", "t4", "fp16", "8.4", "8.4", 31),
    _engines("the same and classifiers, A100 | 8 | | 17.4 ->", "a100-sxm4-40gb", "fp16", "8", "8", 31),
    _engines(f"{NANO} 22.7 ->", "orin-nano-8gb", "tf32", "8", "", 5),
    _engines(f"{NANO} 22.7 -> 4.0 (5) | 22.6 ->", "orin-nano-8gb", "fp16", "8", "", 5),
    _engines(f"{NANO} 22.7 -> 4.0 (5) | 22.6 -> 5.6 (5) | 26.5 ->", "orin-nano-8gb", "int8", "8", "", 5),
    _engines(f"{NX} 23.8 ->", "orin-nx-16gb", "tf32", "8", "", 5),
    _engines(f"{NX} 23.8 -> 3.8 (5) | 22.3 ->", "orin-nx-16gb", "fp16", "8", "", 5),
    _engines(f"{NX} 23.8 -> 3.8 (5) | 22.3 -> 4.8 (5) | 26.3 ->", "orin-nx-16gb", "int8", "8", "", 5),
    _served("The mean error is", "ort-genai", LLAMA, STEPS, 12),
    *(
        _served("error of the time per output token is", engine, gpu, LOOPS, 433)
        for engine in ("sglang", "trtllm", "vllm")
        for gpu in ("h100-sxm", "h200-sxm")
    ),
    *(
        _served("rows of dense models and", engine, gpu, LOOPS, 487, experts=True)
        for engine, gpu in (
            ("sglang", "h200-sxm"), ("trtllm", "h100-sxm"), ("trtllm", "h200-sxm"), ("vllm", "h100-sxm"),
            ("vllm", "h200-sxm"),
        )
    ),
)  # fmt: skip


def everything() -> list[Measured]:
    """What was measured, in the order of the file."""
    rows = [*_sampled(), *(p.read() for p in PRINTED)]
    return sorted(rows, key=lambda m: (m.runtime, m.kind, m.precision, m.gpu, m.of, m.since))


def _sampled() -> Iterator[Measured]:
    """The runs of the sample, those alike together."""
    alike: dict[tuple[str, ...], list[tuple[Models, MeasuredRun]]] = {}
    stored: dict[tuple[str, Path | None], str] = {}
    for models, runs, _ in model_runs(SAMPLE):
        for run in filter(models.ranged, runs):
            alike.setdefault(_labels(run, stored), []).append((models, run))
    errors = _printed()
    for (runtime, kind, precision, gpu, of), together in alike.items():
        releases = [at for _, run in together if (at := _released(run)) is not None]
        if not releases:
            continue
        error = sum(errors[m.title, m.heading(run) if m.apart else gpu] for m, run in together) / len(together)
        since, until = (str(end(map(release, releases))) for end in (min, max))
        if releases[-1] == ALIKE.get(runtime):
            until = ""
        yield Measured(runtime, kind, precision, gpu, since, until, of, len(together), round(error, 4))


def _labels(run: MeasuredRun, stored: dict[tuple[str, Path | None], str]) -> tuple[str, ...]:
    """The runtime, kind, precision and card of a run, and whether it was timed or its kernels were.

    stored: the type of most weights of each graph that was loaded for it.
    """
    s, device = run.scenario, gpu_specs.load(run.gpu)
    kind = s.mode + SEVERAL * (parse_plan(run.parallel or None, None).gpus > 1)
    key = run.model, run.file
    if s.precision == "keep" and key not in stored:
        stored[key] = stored_type(run.graph)
    precision = precision_of(s, runtime_of(s), device, stored.get(key, ""))
    return s.runtime, kind, precision, device.id, KERNELS if run.replayed else RUNS


def _released(run: MeasuredRun) -> str | None:
    """The release of a run, None where nobody told it; for those that are predicted alike the first of them."""
    alike = ALIKE.get(run.runtime)
    if run.ort_version is None:
        return alike
    return alike if alike and release(run.ort_version) >= release(alike) else run.ort_version


def _printed() -> dict[tuple[str, str], float]:
    """The errors on `accuracy.md` by the title of the table and the name of the line."""
    errors, title = dict[tuple[str, str], float](), ""
    for line in (ROOT / PAGE).read_text(encoding="utf-8").splitlines():
        if match := LINE.match(line):
            errors[title, match[1]] = float(match[3]) / 100
        elif line and not line.startswith("|"):
            title = line.rstrip(":")
    return errors


def text() -> str:
    """The file: a line for each row."""
    return "[\n" + ",\n".join(f" {json.dumps(asdict(m))}" for m in everything()) + "\n]\n"


def main() -> None:
    """Make `accuracy.json`."""
    write_file(str(TO), text())


if __name__ == "__main__":
    main()

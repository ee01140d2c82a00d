"""Calibrate this machine's processor, then predict and measure whole models. `python -m tests.circle`

The suite that calibrates has none of these models: CNNs and transformers from PyTorch and from Keras, without their
weights. Each is measured twice; the error is that of the prediction against the first measurement, before and after
calibration. A run's output stands in `onnxperf/calibrate/accuracy.md`.
"""

from __future__ import annotations

import argparse
import platform
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import onnxperf
from gpu_specs import Device
from onnxperf.calibrate.corrections import fit
from onnxperf.calibrate.measurements import measured
from onnxperf.calibrate.this_processor import this_cpu
from onnxperf.measure.job import Job
from onnxperf.measure.run import measure

SAMPLES = Path(__file__).parent.parent / "samples"
TOKENS = {"batch": 1, "sequence": 128}
MODELS: dict[str, dict[str, int]] = {
    "resnet50": {}, "mobilenetv2": {}, "vit-base-16": {}, "bert-base": {}, "gpt2": {}, "minilm-l6-h384": TOKENS,
    "distilbert-dynamic": TOKENS, "keras-resnet50": {}, "keras-mobilenetv2": {}, "keras-efficientnetb0": {},
    "keras-densenet121": {}, "keras-inceptionv3": {},
}  # fmt: skip
MEAN, WORST, APART = 0.15, 0.30, 0.03  # what is asked for


@dataclass(frozen=True)
class Line:
    """One model: seconds measured twice, and predicted before and after calibration."""

    model: str
    measured: float
    again: float
    before: float
    after: float
    inside: bool

    @property
    def apart(self) -> float:
        return abs(self.again / self.measured - 1)

    def error(self, predicted: float) -> float:
        return predicted / self.measured - 1


def of_model(name: str, nominal: Device, device: Device, seconds: float) -> Line:
    path, dims = SAMPLES / f"{name}.onnx", MODELS[name]
    found = [measure(Job(path, "cpu", dims=dims, iterations=10_000, duration_s=seconds)).seconds for _ in range(2)]
    before, after = (onnxperf.predict(path, gpu=d, dims=dims) for d in (nominal, device))
    inside = after.low_seconds <= found[0] <= after.high_seconds
    return Line(name, *found, before.seconds, after.seconds, inside)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.circle", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement (default: 8)")
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)} (default: all)")
    given = parser.parse_args()
    if unknown := set(given.models) - set(MODELS):
        parser.error(f"unknown models: {', '.join(sorted(unknown))}")
    nominal = this_cpu()
    device = fit(measured(nominal, None, []), nominal).device
    print(f"{nominal.name}, one core; Python {platform.python_version()}\n")
    print(f"{'model':22} {'measured':>10} {'again':>7} {'predicted':>10} {'error':>7} {'in range':>9} {'before':>8}")
    lines = []
    for name in given.models or MODELS:
        x = of_model(name, nominal, device, given.seconds)
        lines.append(x)
        print(
            f"{name:22} {x.measured * 1e3:7.2f} ms {x.again / x.measured - 1:+7.1%} {x.after * 1e3:7.2f} ms"
            f" {x.error(x.after):+7.1%} {'yes' if x.inside else 'no':>9} {x.error(x.before):+8.1%}",
            flush=True,
        )
    errors = [abs(x.error(x.after)) for x in lines]
    apart = max(x.apart for x in lines)
    print(
        f"\nmean error {mean(errors):.1%} (limit {MEAN:.0%}), before calibration"
        f" {mean(abs(x.error(x.before)) for x in lines):.1%}; worst {max(errors):.1%} (limit {WORST:.0%});"
        f" measured again within {apart:.1%} (limit {APART:.0%})"
    )


if __name__ == "__main__":
    main()

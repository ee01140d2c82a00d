"""Which assumed constants decide how much of the time: `python -m onnxperf.lab.derive.assumed`, some minutes.

The share of a constant is the mean of |d log(seconds) / d log(constant)| over one measured run of each model, runtime
and precision of the shipped sample, with the seconds of all kernels: at 10%, a constant that is 20% too large makes
runs 2% too long or too short. Left out are constants that a file of derived ones overrides, and lists of tiles.
"""

from __future__ import annotations

import click
import numpy as np

from onnxperf.lab.constants import ASSUMED, derived_paths, file_of, flat, left_out
from onnxperf.lab.datasets import model_runs
from onnxperf.lab.datasets.reading import SAMPLE
from onnxperf.latency import Constants, estimate
from onnxperf.running.run import Run

CHANGE = 1.05
LEAST = 0.001  # share of the time below which constants are counted, not listed
ELSEWHERE = ("interval", "rig", "processor")  # tables of ranges, of benchmarks' timer overheads, and of processors


def assumed_numbers() -> dict[str, float]:
    """The assumed constants of kernels on cards that no derived file overrules, by dotted path."""
    assumed, overruled = flat(file_of(ASSUMED)["constants"]), derived_paths()
    numbers = {path: float(v) for path, v in assumed.items() if isinstance(v, int | float)}
    return {p: v for p, v in numbers.items() if p not in overruled and p.partition(".")[0] not in ELSEWHERE}


def runs() -> list[Run]:
    """One measured run of each model, runtime and precision of the sample."""
    by_model: dict[tuple[str, ...], Run] = {}
    for _, measured, _ in model_runs(SAMPLE):
        for r in measured:
            key = (r.model, r.runtime, r.precision)
            if key not in by_model:
                by_model[key] = r.run()
    return list(by_model.values())


def share(run: Run, constants: Constants) -> float:
    """The share of a run's kernel time that one constant decides; in `constants` it is CHANGE times its value."""
    after = estimate(run.kernels, run.devices, run.method, constants).seconds.sum()
    return float(abs(np.log(after / run.estimates.seconds.sum())) / np.log(CHANGE))


@click.command(help=__doc__)
def main() -> None:
    """Print the constants and their shares, largest first."""
    from rich.console import Console
    from rich.progress import track

    err, every, numbers = Console(stderr=True), runs(), assumed_numbers()
    changed = {path: left_out().having({path: value * CHANGE}) for path, value in numbers.items()}
    shares: dict[str, list[float]] = {path: [] for path in numbers}
    for run in track(every, "runs", console=err, disable=not err.is_terminal):
        for path, constants in changed.items():
            shares[path].append(share(run, constants))
    mean = {path: float(np.mean(run_shares)) for path, run_shares in shares.items()}
    click.echo(f"Means over {len(every)} runs.\n\n| assumed | value | share of the time |\n| --- | --: | --: |")
    for path, value in sorted(mean.items(), key=lambda item: -item[1]):
        if value >= LEAST:
            click.echo(f"| {path} | {numbers[path]:g} | {value:.1%} |")
    rest = [value for value in mean.values() if value < LEAST]
    click.echo(f"\n{len(rest)} others decide less than {LEAST:.1%} each, {sum(rest):.1%} together.")


if __name__ == "__main__":
    main()

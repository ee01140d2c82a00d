"""Commands that run models on this machine's GPU or CPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from onnxperf.cli.arguments import OneOf, counted_here, debug, options_set, scored_here
from onnxperf.cli.sections import command
from onnxperf.ground.errors import UsageError
from onnxperf.ground.names import BASELINES, PROVIDERS
from onnxperf.running.terms import USUAL_METHOD


@command()
@click.argument("model", type=click.Path())
@counted_here
@debug
def measure(model: str, json_to: str | None, **terms: Any) -> None:
    """Run MODEL under ONNX Runtime on this machine, and time it.

    It runs on the GPU if CUDA is usable, else on the CPU. Missing weights are random. Ctrl-C keeps the measurements so
    far.

    \b
    Examples:
      onnxperf measure model.onnx --json measured.json
      onnxperf measure bert.onnx --dim sequence=128 --precision fp16 --include-transfers
      onnxperf measure model.onnx --provider cpu --duration 10s --batches 1,2,4
    """
    from onnxperf.measure import show

    show.run(model, json_to, **options_set(terms))


@command()
@click.argument("model", type=click.Path(), required=False)
@scored_here
@debug
def validate(
    model: str | None, gpu: str | None, data: str | None, json_to: str | None, markdown: bool, plot_to: str | None,
    method: str | None, fail_above: float | None, **terms: Any,
) -> None:  # fmt: skip
    """Compare predictions with measurements.

    With MODEL: run it here under ONNX Runtime, predict it for this device, and compare the two operator by operator.
    MODEL may also be a file of `onnxperf measure` from another machine (*.json). Without MODEL: score every method
    (error, bias, coverage of its intervals) on open measurements, each card held out in turn. With --data also on your
    own in DIR, where a device file (*.toml) replaces the device of that name.

    \b
    Examples:
      onnxperf validate model.onnx --fail-above 15%
      onnxperf validate model.onnx --provider cpu --gpu this-cpu.toml --dim sequence=128
      onnxperf validate measured-on-t4.json
      onnxperf validate --data measurements --json scores.json
    """
    asked = options_set(terms)
    if model is not None:
        from onnxperf.scoring import command

        if data is not None or markdown or plot_to is not None:
            raise UsageError("validate takes MODEL, or --data, --markdown and --plot, not both")
        if method == "all":
            raise UsageError(f"{model} is predicted by one method: --method all goes without MODEL")
        command.run(model, gpu, json_to, _predicting(method or USUAL_METHOD), fail_above, **asked)
        return
    if useless := ", ".join((*(["gpu"] if gpu is not None else []), *asked)):
        raise UsageError(f"without MODEL nothing is run, and {useless} would change nothing")
    from onnxperf.lab.validate import command as laboratory

    laboratory.run(data, json_to, plot_to, markdown, fail_above, method or "all")


def _predicting(method: str) -> Any:
    """The method that predicts a model: its name, or what has a run follow one that is there to compare with."""
    if method not in BASELINES:
        return method
    from onnxperf.lab.baselines import compared

    return partial(compared, method=method)


@command()
@click.option("--provider", type=OneOf(PROVIDERS), help="[default: cuda if usable]")
@click.option(
    "--from", "folder", type=click.Path(), metavar="DIR", help="Fit to files of `onnxperf measure` in DIR instead."
)
@click.option("--host-only", is_flag=True, help="Measure how fast this CPU launches kernels; needs no GPU.")
@click.option(
    "-o", "out", type=click.Path(), help="Output file.  [default: this-cpu.toml, CARD-here.toml, this-host.toml]"
)
@click.option("--keep", type=click.Path(), metavar="DIR", help="Keep the measurements in DIR.")
@click.option("--json", "json_to", metavar="FILE|-", help="Write the result as JSON; - prints JSON only.")
@debug
def calibrate(
    provider: str | None, folder: str | None, host_only: bool, out: str | None, keep: str | None, json_to: str | None
) -> None:
    """Measure this machine and write a device file for --gpu.

    Small models are measured on the GPU or CPU, and correct the predictions that use the file. With --from: fit to
    files in DIR that were measured on another machine. With --host-only: write a file for --host, with the launch
    overhead of this CPU.

    \b
    Examples:
      onnxperf calibrate
      onnxperf calibrate --provider cpu -o my-cpu.toml --keep measured
      onnxperf calibrate --from measured -o their-t4.toml
      onnxperf calibrate --host-only
    """
    from onnxperf.calibrate import command

    if host_only:
        if provider or folder or keep:
            raise UsageError("--host-only measures this CPU alone: leave --provider, --from and --keep out")
        command.run_host(out, json_to)
        return
    command.run(provider, folder, out, json_to, keep)

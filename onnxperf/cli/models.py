"""Commands that write models: out of a framework, and without their weights."""

from __future__ import annotations

from typing import Any

import click

from onnxperf.cli.arguments import DYNAMIC, OUT, Example, debug, of_an_export
from onnxperf.cli.sections import command
from onnxperf.ground.errors import printable


@click.group()
@debug
def export() -> None:
    """Export a PyTorch or Keras model to ONNX.

    The framework's own exporter writes the file.

    \b
    Examples:
      onnxperf export torch mymodels:build --input 1x3x224x224 -o model.onnx
      onnxperf export keras model.keras -o model.onnx --weightless
    """


@export.command("torch")
@click.argument("model", metavar="MODULE:FACTORY")
@of_an_export
@DYNAMIC
@debug
def export_torch(model: str, inputs: list[Example], **terms: Any) -> None:
    """Write a PyTorch model. MODULE is imported, which runs its code.

    MODULE is a module found from the working directory, or a file (*.py); FACTORY in it is called without arguments,
    or is a torch.nn.Module.

    \b
    Examples:
      onnxperf export torch mymodels:build --input 1x3x224x224 -o model.onnx
      onnxperf export torch train/bert.py:model --input input_ids:1x128:int64 -o bert.onnx --weightless
      onnxperf export torch mymodels:build --input x:1x3x224x224 --dynamic x:0=batch -o model.onnx
    """
    from onnxperf.export import command

    command.run(model, "torch", inputs, **terms)


@export.command("keras")
@click.argument("model", type=click.Path(), metavar="MODEL")
@of_an_export
@debug
def export_keras(model: str, inputs: list[Example], **terms: Any) -> None:
    """Write a Keras model: a file (*.keras, *.h5), or the folder of a SavedModel.

    --input sets the dynamic sizes of MODEL. Code in a Keras file is never run; a SavedModel is loaded, which can run
    parts of it, unless --weightless.

    \b
    Example:
      onnxperf export keras model.keras -o model.onnx
    """
    from onnxperf.export import command

    command.run(model, "tf", inputs, **terms)


@command()
@click.argument("model", type=click.Path())
@OUT
@debug
def strip(model: str, out: str) -> None:
    """Write MODEL without its weights.

    The file is small, and its prediction is the same. The graph, names, shapes and small constants stay; free-text
    fields don't. What was removed is recorded in the file's metadata (onnxperf.stripped).

    \b
    Example:
      onnxperf strip model.onnx -o skeleton.onnx
    """
    from onnxperf.export import command
    from onnxperf.ground.tables import size

    before, after, left_out = command.strip(model, out)
    click.echo(printable(f"{model} {size(before)}, {out} {size(after)}: {left_out} left out"), err=True)

"""What a sample is: an architecture, and the inputs that it is exported at."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

#: A fixed size, or the name of a dimension left open and the size that it is exported and counted at.
Axis = int | tuple[str, int]


@dataclass(frozen=True)
class Sample:
    """One architecture, its inputs and outputs, and where its code is from.

    code: the class that was exported and whose it is, in Markdown; all of it is under `licence`, by SPDX's name; form:
    "old" writes the mask as older exporters did, "script" is TorchScript's exporter, in half precision, "training" has
    the dropout of train mode.
    """

    what: str
    code: str
    build: Callable[[], nn.Module]
    inputs: Mapping[str, tuple[Axis, ...]]
    outputs: tuple[str, ...]
    form: str = ""
    licence: str = "Apache-2.0"

    def shapes(self, more: int = 0) -> dict[str, tuple[int, ...]]:
        """The sizes that the inputs are exported at; open dimensions by `more` larger."""
        return {n: tuple(a if isinstance(a, int) else a[1] + more for a in axes) for n, axes in self.inputs.items()}

    @property
    def open(self) -> dict[str, dict[int, str]]:
        """The open dimensions of each input by axis."""
        return {
            name: {i: a[0] for i, a in enumerate(axes) if not isinstance(a, int)} for name, axes in self.inputs.items()
        }

    @property
    def dims(self) -> dict[str, int]:
        """The open dimensions and the sizes that they are counted at."""
        return dict(a for axes in self.inputs.values() for a in axes if not isinstance(a, int))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Ones as tokens, as masks that hide nothing, and as images, sounds and states."""
        whole = {name for name in self.inputs if name.endswith(("_ids", "_mask"))}
        return {n: torch.ones(shape, dtype=torch.int64 if n in whole else None) for n, shape in self.shapes().items()}

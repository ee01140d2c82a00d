"""From the options of a command to what is asked of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnxperf.cli.arguments import files_read
from onnxperf.graph.targets import check_target
from onnxperf.ground.errors import UsageError

if TYPE_CHECKING:
    from onnxperf.graph import Graph
    from onnxperf.running.pipeline import Request


def asked_of(
    model: str | Graph, json_to: str | None, *, gpu: str | tuple[str, ...], fit: bool = False, **terms: Any
) -> Request:
    """What the options of a scenario ask of a model; no answer may be written to `json_to` over a file that is read."""
    from onnxperf.running.pipeline import request_for

    if not model:
        raise UsageError("the path of MODEL is empty")
    check_target(json_to, *files_read({"gpu": gpu, **terms}, model if isinstance(model, str) else None))
    return request_for(model, open_batch=fit, **terms)

"""Views of a prediction that `predict` writes to files on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from onnxperf.graph.targets import check_targets
from onnxperf.ground.errors import UsageError

if TYPE_CHECKING:
    from onnxperf.answer.prediction import Prediction

#: What the names of files may end with, by view.
SUFFIXES = {"netron": (".json", ".onnx"), "plot": (".png", ".svg")}


def take(terms: dict[str, Any], others: Mapping[str, str | None], *sources: str) -> dict[str, str]:
    """The file of each view that is asked for, taken out of the options given. others: files that other options name;
    sources: files that are read.

    Raises UsageError where a file can't be written for its name, or is named twice.
    """
    files = {view: terms.pop(f"{view}_to") for view in VIEWS}
    check_targets({**others, **{f"--{view}": target for view, target in files.items()}}, *sources)
    for view, suffixes in SUFFIXES.items():
        if files[view] is not None and not files[view].endswith(suffixes):
            raise UsageError(f"--{view} {files[view]}: the name must end with {' or '.join(suffixes)}")
    return {view: target for view, target in files.items() if target is not None}


def drawn(files: dict[str, str], p: Prediction, model: str) -> dict[str, Callable[[], str | bytes]]:
    """What makes the content of each file, by its path."""
    return {target: partial(VIEWS[view], p, model, target) for view, target in files.items()}


def _netron(p: Prediction, model: str, target: str) -> str | bytes:
    from onnxperf.export import framework
    from onnxperf.views.netron import annotated

    if target.endswith(".json"):
        return p.to_netron() + "\n"
    if framework(model):
        raise UsageError(f"--netron {target}: only an ONNX file can be copied: export {model} first")
    return annotated(p, model, target)


#: What draws each view, given the prediction, the path of its model, and that of the file to write.
VIEWS: dict[str, Callable[[Prediction, str, str], str | bytes]] = {
    "trace": lambda p, model, target: p.to_trace() + "\n",
    "netron": _netron,
    "profile": lambda p, model, target: p.to_layer_profile() + "\n",
    "plot": lambda p, model, target: p.plot(target.rpartition(".")[2]),
}

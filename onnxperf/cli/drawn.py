"""Views of a prediction that `predict` writes to files on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from onnxperf.export import framework
from onnxperf.graph.targets import check_targets
from onnxperf.ground.errors import UsageError
from onnxperf.ground.modules import require

if TYPE_CHECKING:
    from onnxperf.answer.prediction import Prediction

#: What the names of files may end with, by view.
SUFFIXES = {"netron": (".json", ".onnx"), "plot": (".png", ".svg")}


def take(terms: dict[str, Any], others: Mapping[str, str | None], model: str, *sources: str) -> dict[str, str]:
    """The file of each view that is asked for, taken out of the options given. others: files that other options name;
    sources: files that are read beside the model.

    Raises UsageError where a file can't be written for its name, or is named twice, EnvironmentFailure where it can't
    be drawn or written here.
    """
    files = {view: terms.pop(f"{view}_to") for view in VIEWS}
    check_targets({**others, **{f"--{view}": target for view, target in files.items()}}, model, *sources)
    for view, suffixes in SUFFIXES.items():
        if files[view] is not None and not files[view].endswith(suffixes):
            raise UsageError(f"--{view} {files[view]}: the name must end with {' or '.join(suffixes)}")
    if files["plot"] is not None:
        require("matplotlib", f"drawing {files['plot']}")
    if files["netron"] is not None and files["netron"].endswith(".onnx") and framework(model):
        raise UsageError(f"--netron {files['netron']}: only an ONNX file can be copied: export {model} first")
    return {view: target for view, target in files.items() if target is not None}


def drawn(files: dict[str, str], p: Prediction, model: str) -> dict[str, Callable[[], str | bytes]]:
    """What makes the content of each file, by its path."""
    return {target: partial(VIEWS[view], p, model, target) for view, target in files.items()}


def _netron(p: Prediction, model: str, target: str) -> str | bytes:
    from onnxperf.views.netron import annotated

    return p.to_netron() + "\n" if target.endswith(".json") else annotated(p, model, target)


#: What draws each view, given the prediction, the path of its model, and that of the file to write.
VIEWS: dict[str, Callable[[Prediction, str, str], str | bytes]] = {
    "trace": lambda p, model, target: p.to_trace() + "\n",
    "netron": _netron,
    "profile": lambda p, model, target: p.to_layer_profile() + "\n",
    "plot": lambda p, model, target: p.plot(target.rpartition(".")[2]),
}

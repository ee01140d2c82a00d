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
SUFFIXES = {"netron": (".json", ".onnx"), "model_explorer": (".json",), "plot": (".png", ".svg")}
#: What Model Explorer shows beside the time, each in a file of its own.
BESIDE = ("flops", "bytes", "bound_by")


def take(terms: dict[str, Any], others: Mapping[str, str | None], model: str, *sources: str) -> dict[str, str]:
    """The file of each view that is asked for, taken out of the options given. others: files that other options name;
    sources: files that are read beside the model.

    Raises UsageError where a file can't be written for its name, or is named twice, EnvironmentFailure where it can't
    be drawn or written here.
    """
    files = {view: target for view in VIEWS if (target := terms.pop(f"{view}_to")) is not None}
    targets = {_flag(view): target for view, target in files.items()}
    beside = _beside(files["model_explorer"]) if "model_explorer" in files else {}
    check_targets(
        {**others, **targets, **{f"--model-explorer ({v})": file for file, v in beside.items()}}, model, *sources
    )
    for view, suffixes in SUFFIXES.items():
        if view in files and not files[view].endswith(suffixes):
            raise UsageError(f"{_flag(view)} {files[view]}: the name must end with {' or '.join(suffixes)}")
    if "plot" in files:
        require("matplotlib", f"drawing {files['plot']}")
    if framework(model):
        if files.get("netron", "").endswith(".onnx"):
            raise UsageError(f"--netron {files['netron']}: only an ONNX file can be copied: export {model} first")
        if beside:
            raise UsageError(f"--model-explorer shows an ONNX file: export {model} first")
    return files


def drawn(files: dict[str, str], p: Prediction, model: str) -> dict[str, Callable[[], str | bytes]]:
    """What makes the content of each file, by its path."""
    contents = {target: partial(VIEWS[view], p, model, target) for view, target in files.items()}
    beside = _beside(files["model_explorer"]) if "model_explorer" in files else {}
    return {**contents, **{file: partial(_model_explorer, p, model, value) for file, value in beside.items()}}


def _flag(view: str) -> str:
    return f"--{view.replace('_', '-')}"


def _beside(target: str) -> dict[str, str]:
    """What is written beside the file of Model Explorer's times: the value in it, by path."""
    return {f"{target.removesuffix('.json')}.{value}.json": value for value in BESIDE}


def _netron(p: Prediction, model: str, target: str) -> str | bytes:
    from onnxperf.views.netron import annotated

    return p.to_netron() + "\n" if target.endswith(".json") else annotated(p, model, target)


def _model_explorer(p: Prediction, model: str, value: str) -> str:
    return p.to_model_explorer(model, value) + "\n"


#: What draws each view, given the prediction, the path of its model, and that of the file to write.
VIEWS: dict[str, Callable[[Prediction, str, str], str | bytes]] = {
    "trace": lambda p, model, target: p.to_trace() + "\n",
    "netron": _netron,
    "model_explorer": lambda p, model, _: _model_explorer(p, model, "time"),
    "profile": lambda p, model, target: p.to_layer_profile() + "\n",
    "plot": lambda p, model, target: p.plot(target.rpartition(".")[2]),
}

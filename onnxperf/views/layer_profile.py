"""A prediction as the profile of layers that trtexec writes with --exportProfile."""

from __future__ import annotations

import json

from onnxperf.answer.prediction import Prediction
from onnxperf.ground.errors import printable
from onnxperf.lowering.lower import TRANSFER

FUSED = " + "


def layer_profile(p: Prediction) -> str:
    """A count of runs, then name, times in ms, and the percentage of all layers' time of each kernel, as JSON text.

    It stands for one run, in which each time is total, mean and median alike. Copies of inputs and outputs are no
    layers. A layer of TensorRT has the names of all nodes whose work it does, as trtexec writes them.
    """
    layers = [k for k in p.kernels if k.op != TRANSFER]
    total = sum(k.seconds for k in layers)
    lines = ['{ "count" : 1 }']
    for k in layers:
        times = dict.fromkeys(("timeMs", "averageMs", "medianMs"), round(k.seconds * 1e3, 6))
        name = FUSED.join(k.nodes) if p.scenario.runtime == "tensorrt" and k.nodes else k.name
        layer = {"name": printable(name), **times, "percentage": round(100 * k.seconds / total, 4)}
        lines.append(json.dumps(layer, separators=(", ", " : "), allow_nan=False))
    return "[\n  " + "\n, ".join(lines) + "\n]"

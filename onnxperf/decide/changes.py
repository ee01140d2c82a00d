"""What would make a run faster: the same run under other terms."""

from __future__ import annotations

from onnxperf.errors import Error
from onnxperf.prediction import Prediction, summarise
from onnxperf.scenario import PLATFORMS

WORTH = 0.97  # of the time: less is not named


def changes(now: Prediction) -> list[tuple[str, Prediction]]:
    """The same run under other terms, where they help: half precision, a CUDA graph, both."""
    run, s = now.run.alone(now.column), now.scenario
    if not run.method.scheduled or not PLATFORMS[run.devices[0].kind].launches:
        return []
    half = {"precision": "fp16"} if s.precision in ("keep", "fp32", "tf32") else {}
    replay = {"cuda_graph": True} if not s.cuda_graph and s.streams == 1 else {}
    found = []
    for what, terms in (
        ("--precision fp16", half),
        ("--cuda-graph", replay),
        ("--precision fp16 --cuda-graph", {**half, **replay} if half and replay else {}),
    ):
        if not terms:
            continue
        try:
            then = summarise(run.under(**terms))
        except Error:
            continue
        if then.seconds < WORTH * now.seconds:
            found.append((what, then))
    return found

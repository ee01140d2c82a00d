"""What would make a run faster: the same run under other terms."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from onnxperf.errors import Error
from onnxperf.prediction import Prediction, summarise
from onnxperf.scenario import PLATFORMS

WORTH = 0.97  # of the time: a change that saves less is not named
FLAGS = {"precision": "--precision fp16", "cuda_graph": "--cuda-graph"}


def changes(now: Prediction) -> list[tuple[str, Prediction]]:
    """The same run under other terms, where they help: half precision, a CUDA graph, both."""
    run, s = now.run.alone(now.column), now.scenario
    if not run.method.scheduled or not PLATFORMS[run.devices[0].kind].launches:
        return []
    half: dict[str, Any] = {"precision": "fp16"} if s.precision in ("keep", "fp32", "tf32") else {}
    replay: dict[str, Any] = {"cuda_graph": True} if not s.cuda_graph and s.streams == 1 else {}
    found = []
    both = half | replay if half and replay else {}
    for terms in filter(None, (half, replay, both)):
        with suppress(Error):  # such as that a CUDA graph can't be captured
            then = summarise(run.under(**terms))
            if then.seconds < WORTH * now.seconds:
                found.append((" ".join(FLAGS[term] for term in terms), then))
    return found

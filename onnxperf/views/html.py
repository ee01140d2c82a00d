"""An answer as one HTML file that opens without a network: its style, its program and its data are in it.

The page shows what strangers wrote as text alone: data are JSON in which no character can end the element that holds
it, its program sets no markup, and its policy lets nothing else run and nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from string import Template
from typing import Any

from onnxperf.answer.prediction import Prediction
from onnxperf.decide.changes import AtBatch, changes
from onnxperf.ground.output import Progress
from onnxperf.views.headline import Changes
from onnxperf.views.html_data import data

#: What the programs of all pages begin with; that of a page ends with its own file.
PROGRAM = ("text.js", "charts.js", "roofline.js", "timeline.js", "table.js", "curves.js", "parts.js")
#: What could end a script element, or a line of JavaScript; JSON has these characters in texts only.
ESCAPED = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def html(prediction: Prediction, at_batch: AtBatch | None = None) -> str:
    """The page of a prediction.

    at_batch: the prediction at another batch, such as `lambda n: onnxperf.predict(model, gpu="l4", batch=n)`, by which
    the page shows latency and throughput against the batch; without it, it doesn't.
    """
    return page(prediction, changes(prediction, at_batch), at_batch)


def page(p: Prediction, changes: Changes, at_batch: AtBatch | None = None, tell: Progress | None = None) -> str:
    """The same with changes that are known; tell: is told of the progress."""
    return filled("prediction.html", "report.js", data(p, changes, at_batch, tell))


def filled(main: str, program: str, data: Mapping[str, Any]) -> str:
    """A page of these files, the sections and the program that draws them, and of the data that they show."""
    style, program = _read("report.css"), "\n".join(map(_read, (*PROGRAM, program)))
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(program)}"
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    parts = {
        "policy": f"{policy}; base-uri 'none'; form-action 'none'",
        "style": style, "main": _read(main), "program": program, "data": text.translate(ESCAPED),
    }  # fmt: skip
    return Template(_read("report.html")).substitute(parts)


def _read(name: str) -> str:
    return resources.files(__package__).joinpath("report", name).read_text(encoding="utf-8")


def _hash(inline: str) -> str:
    """The source of a policy that lets this text run or apply."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}'"

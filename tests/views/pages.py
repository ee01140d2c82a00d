"""Pages that the tests of views share."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

from onnx import ModelProto, parser

from onnxperf.export.decoder import decoder
from onnxperf.export.decoder_config import config_of
from tests.language.test_generation import SMALL

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)> &amp; \"'` <!-- \x1b[31m \u202eabc\u2028"


def hostile() -> ModelProto:
    """Three operators with names that would be markup, escape sequences or very long, if anyone let them."""
    head = '<ir_version: 8, opset_import: ["" : 17]> g (float[4,8] x) => (float[4,8] y)'
    model = parser.parse_model(f"{head} {{ a = Relu(x) b = Sigmoid(a) y = Exp(b) }}")
    model.graph.name = HOSTILE
    for node, name in zip(model.graph.node, (HOSTILE, HOSTILE + "x" * 3_000, "a.b.__proto__"), strict=True):
        node.name = name
    model.graph.input[0].name = model.graph.node[0].input[0] = HOSTILE
    return model


def hostile_decoder() -> ModelProto:
    """A decoder whose graph, nodes and weights have such names."""
    model = decoder(config_of(SMALL), dtype="float16")
    model.graph.name = HOSTILE
    for i, node in enumerate(model.graph.node):
        node.name = f"{HOSTILE}{i}"
    return model


def shapes_alone() -> ModelProto:
    """A model whose one operator the CPU computes, so that no kernel is launched."""
    return parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2,8] x) => (int64[2] y) { y = Shape(x) }'
    )


class Page(HTMLParser):
    """The elements of a page, and the text of each that holds a style, a program or data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("style", "script") and data.strip():
            self.inside.append(data)

    @property
    def data(self) -> dict[str, Any]:
        """What the page is drawn from."""
        found: dict[str, Any] = json.loads(self.inside[1])
        return found

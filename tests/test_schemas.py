"""JSON that a release has written keeps its form: each schema of today says at least what those of past releases say.

`tests/schemas` has a folder for each release, with the schemas as they were when its tag was set.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from onnxperf.ground.version import VERSION

ROOT = Path(__file__).parents[1]
RELEASES = ROOT / "tests/schemas"
TODAY = {path.name: path for path in sorted((ROOT / "onnxperf").rglob("*.schema.json"))}
PAST = sorted(RELEASES.glob("*/*.schema.json"))
#: Files that are also read, so that one of an older release must still have all that is required.
READ_BACK = {"measurement.schema.json"}
#: Words for people; and where definitions stand, which are compared where they are used.
SAY_NOTHING = {"$schema", "$defs", "title", "description"}


def load(path: Path) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return schema


def resolved(schema: Any, root: dict[str, Any]) -> Any:
    """A schema in place of a reference to one of its file's definitions."""
    while isinstance(schema, dict) and "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    return schema


def breaks(then: Any, now: Any, roots: tuple[dict[str, Any], dict[str, Any]], at: str = "") -> Iterator[str]:
    """What somebody who relies on the schema `then` would miss in documents of `now`. Properties, values of an
    enumeration and required keys may be added, and nothing else may change."""
    then, now = resolved(then, roots[0]), resolved(now, roots[1])
    if not (isinstance(then, dict) and isinstance(now, dict)):
        if then != now:
            yield f"{at}: {json.dumps(then)} became {json.dumps(now)}"
        return
    for word in sorted((then.keys() | now.keys()) - SAY_NOTHING):
        before, after = then.get(word), now.get(word)
        if word == "properties" and before and after:
            for name, schema in before.items():
                if name in after:
                    yield from breaks(schema, after[name], roots, f"{at}/{name}")
                else:
                    yield f"{at}/{name}: removed"
        elif word in ("required", "enum") and before and after:
            yield from (f"{at}: {value!r} left {word}" for value in before if value not in after)
        elif word in ("anyOf", "oneOf", "allOf", "prefixItems") and before and after and len(before) == len(after):
            for position, pair in enumerate(zip(before, after, strict=True)):
                yield from breaks(*pair, roots, f"{at}/{word}/{position}")
        else:
            yield from breaks(before, after, roots, f"{at}/{word}")


def compared(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """All that `breaks` tells of two files."""
    return [*breaks(then, now, (then, now))]


@pytest.mark.parametrize("path", PAST, ids=lambda path: "-".join(path.relative_to(RELEASES).parts))
def test_a_schema_says_what_past_releases_said(path: Path) -> None:
    then, now = load(path), load(TODAY[path.name])
    assert not compared(then, now)
    if path.name in READ_BACK:
        assert not [line for line in compared(now, then) if line.endswith("left required")]


def test_every_schema_of_this_release_is_kept() -> None:
    assert TODAY.keys() == {path.name for path in PAST if path.parent.name == VERSION}


def test_every_schema_has_a_version() -> None:
    assert all(load(path)["properties"]["schema_version"] == {"const": 1} for path in TODAY.values())
    assert all("schema_version" in load(path)["required"] for path in TODAY.values())


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a key is removed": (lambda s: s["properties"].pop("latency"), "/latency: removed"),
    "a key inside is removed": (
        lambda s: s["properties"]["latency"]["properties"].pop("scope"),
        "/latency/scope: removed",
    ),
    "a key is renamed": (
        lambda s: s["properties"].update(card=s["properties"].pop("gpu")),
        "/gpu: removed",
    ),
    "a type changes": (
        lambda s: s["properties"]["batch"].update(type="string"),
        '/batch/type: "integer" became "string"',
    ),
    "a number may be null": (
        lambda s: (
            s["properties"]["sum_seconds"].clear() or s["properties"]["sum_seconds"].update(type=["number", "null"])
        ),
        '/sum_seconds/type: "number" became ["number", "null"]',
    ),
    "a key may be missing": (lambda s: s["required"].remove("memory"), ": 'memory' left required"),
    "a value is gone": (lambda s: s["properties"]["precision"]["enum"].remove("amp"), "/precision: 'amp' left enum"),
    "a bound appears": (lambda s: s["properties"]["batch"].update(maximum=9), "/batch/maximum: null became 9"),
    "a definition changes": (
        lambda s: s["$defs"]["count"].update(type="number"),
        '/inputs/items/shape/items/type: "integer" became "number"',
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_would_break_a_reader_is_told(change: str) -> None:
    edit, told = CHANGES[change]
    now = load(TODAY["prediction.schema.json"])
    then = deepcopy(now)
    edit(now)
    assert told in compared(then, now)


def test_what_is_added_breaks_nothing() -> None:
    now = load(TODAY["prediction.schema.json"])
    then = deepcopy(now)
    now["properties"]["new"] = {"type": "string", "description": "what no release had"}
    now["required"].append("new")
    now["properties"]["precision"]["enum"].append("fp4")
    now["properties"]["gpu"]["description"] = "said otherwise"
    assert compared(then, now) == []

"""What a release says of itself: one version everywhere, a changelog, a citation, workflows that can run."""

from __future__ import annotations

import datetime
import re
import tomllib
from pathlib import Path

import pytest

from onnxperf.ground.version import VERSION

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
RELEASES = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", CHANGELOG, re.MULTILINE)


def test_the_version_is_in_one_file() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)
    assert PROJECT["dynamic"] == ["version"] and "version" not in PROJECT
    code = [path for folder in ("gpu_specs", "op_models", "onnxperf") for path in (ROOT / folder).rglob("*.py")]
    assert [path.name for path in code if f'"{VERSION}"' in path.read_text(encoding="utf-8")] == ["version.py"]


def test_the_changelog_begins_with_this_version() -> None:
    """Above it there may be changes that no release has yet."""
    assert len(HEADINGS) == len(RELEASES) + ("[Unreleased]" in HEADINGS[:1])
    versions = [tuple(map(int, version.split("."))) for version, _ in RELEASES]
    dates = [datetime.date.fromisoformat(date) for _, date in RELEASES]
    assert RELEASES[0][0] == VERSION
    assert versions == sorted(set(versions), reverse=True) and dates == sorted(dates, reverse=True)
    kinds = re.findall(r"^### (.+)$", CHANGELOG, re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert "**Deprecation.**" in CHANGELOG


def test_the_citation_is_of_this_release() -> None:
    """With the keys that version 1.2.0 of the Citation File Format asks for, and no other than it has."""
    assert {"cff-version", "message", "title", "authors"} <= CITATION.keys() <= {
        "cff-version", "message", "title", "authors", "type", "abstract", "version", "date-released", "license",
        "keywords", "repository-code", "url", "doi",
    }  # fmt: skip
    assert CITATION["cff-version"] == "1.2.0" and CITATION["type"] == "software"
    assert CITATION["authors"] == PROJECT["authors"] and all(author["name"] for author in CITATION["authors"])
    assert [(CITATION["version"], CITATION["date-released"])] == RELEASES[:1]
    assert " AND ".join(CITATION["license"]) == PROJECT["license"]
    assert len(CITATION["keywords"]) == len(set(CITATION["keywords"]))

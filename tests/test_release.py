"""What a release says of itself: one version everywhere, a changelog, a citation, workflows that can run."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from onnxperf.ground.version import VERSION

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
RELEASES = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", CHANGELOG, re.MULTILINE)


#: How a page names a version that a user copies: of the hook, of the action, of the package.
COPIED = r"rev: v?([\w.]+)|/onnxperf@v?([\w.]+)|onnxperf(?:\[[\w,]+\])?==([\w.]+)"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in (ROOT / ".github/workflows").glob("*.yml")}
ON = True  # the key `on`, as YAML 1.1 reads it
BASH = shutil.which("bash")


def test_the_version_is_in_one_file() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)
    assert PROJECT["dynamic"] == ["version"] and "version" not in PROJECT
    code = [path for folder in ("gpu_specs", "op_models", "onnxperf") for path in (ROOT / folder).rglob("*.py")]
    assert [path.name for path in code if f'"{VERSION}"' in path.read_text(encoding="utf-8")] == ["version.py"]


def test_examples_to_copy_name_this_version() -> None:
    pages = [*ROOT.glob("*.md"), *(page for folder in ("docs", "samples") for page in (ROOT / folder).rglob("*.md"))]
    named = {
        p.relative_to(ROOT).as_posix(): set().union(*re.findall(COPIED, p.read_text(encoding="utf-8"))) - {""}
        for p in pages
    }
    assert named["README.md"] == {VERSION}
    assert not {name: versions for name, versions in named.items() if versions - {VERSION}}


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


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each job of each workflow, with the names of both."""
    for file, workflow in WORKFLOWS.items():
        yield from ((f"{file}/{name}", job) for name, job in workflow["jobs"].items())


def step(workflow: str, job: str, name: str) -> str:
    """The commands of a step."""
    (run,) = (s["run"] for s in WORKFLOWS[workflow]["jobs"][job]["steps"] if s.get("name", "").startswith(name))
    return str(run)


def test_workflows_have_what_a_runner_asks_for() -> None:
    assert set(WORKFLOWS) >= {"ci", "release"}
    for file, workflow in WORKFLOWS.items():
        assert workflow["name"] and workflow[ON] and workflow["permissions"] == {"contents": "read"}, file
    for name, job in jobs():
        assert job["runs-on"] and 0 < job["timeout-minutes"] <= 60, name
        assert all(len({"uses", "run"} & s.keys()) == 1 for s in job["steps"]), name
        used = [s["uses"] for s in job["steps"] if "uses" in s]
        assert all(re.fullmatch(r"[\w-]+/[\w-]+@(release/)?v\d+", action) for action in used), used
        within = set(WORKFLOWS[name.partition("/")[0]]["jobs"])
        assert {job["needs"]} <= within if "needs" in job else True


def test_commands_of_workflows_are_there() -> None:
    commands = [s["run"] for _, job in jobs() for s in job["steps"] if "run" in s]
    modules = {name for command in commands for name in re.findall(r"python -m (\w+)", command)}
    assert modules >= {"build", "pytest", "twine"} and all(find_spec(module) for module in modules)
    paths = [path for c in commands for path in re.findall(r"(?<![\w$/])(?:\.ci|tests|onnxperf)/[\w./*-]*\w", c)]
    assert ".ci/run" in paths and len(paths) > 3
    assert not [path for path in paths if not [*ROOT.glob(path)]]
    for command in commands if BASH else ():
        subprocess.run([BASH, "-n"], input=re.sub(r"\$\{\{.*?\}\}", "x", command), text=True, check=True)


def test_a_tag_publishes_and_nothing_else_does() -> None:
    assert WORKFLOWS["release"][ON] == {"push": {"tags": ["v*"]}}
    build, publish, notes = (WORKFLOWS["release"]["jobs"][name] for name in ("build", "publish", "notes"))
    assert (publish["needs"], notes["needs"], publish["environment"]) == ("build", "publish", "pypi")
    assert publish["permissions"] == {"contents": "read", "id-token": "write", "attestations": "write"}
    assert [name for name, job in jobs() if "id-token" in job.get("permissions", {})] == ["release/publish"]
    *_, attested, published = publish["steps"]
    assert attested["uses"].startswith("actions/attest-build-provenance@")
    assert published == {"uses": "pypa/gh-action-pypi-publish@release/v1"}  # no password: the index trusts the workflow
    assert "password" not in str(build) and "secrets" not in str(WORKFLOWS)


@pytest.mark.skipif(not BASH or os.name == "nt", reason="runs the steps of a Linux runner")
@pytest.mark.parametrize(("tag", "code"), [(f"v{VERSION}", 0), ("v99.0.0", 1)])
def test_a_tag_that_is_not_the_version_stops_the_release(tag: str, code: int) -> None:
    env = {**os.environ, "TAG": tag, "PYTHONPATH": str(ROOT)}
    command = step("release", "build", "Compare the tag")
    assert subprocess.run([BASH, "-ec", command], env=env, cwd=ROOT, capture_output=True).returncode == code


@pytest.mark.skipif(not BASH or os.name == "nt", reason="runs the steps of a Linux runner")
def test_the_notes_of_a_release_are_its_part_of_the_changelog(tmp_path: Path) -> None:
    shutil.copy(ROOT / "CHANGELOG.md", tmp_path)
    (command,) = (line for line in step("release", "notes", "Make").splitlines() if line.startswith("sed "))
    env = {**os.environ, "GITHUB_REF_NAME": f"v{VERSION}"}
    subprocess.run([BASH, "-ec", command], env=env, cwd=tmp_path, check=True)
    notes = (tmp_path / "notes.md").read_text(encoding="utf-8")
    (part,) = re.findall(rf"^## \[{re.escape(VERSION)}\].*?\n(.*?)(?=^## \[|\Z)", CHANGELOG, re.MULTILINE | re.DOTALL)
    assert notes.strip() == part.strip() and "### Added" in notes


@pytest.mark.skipif(not BASH or os.name == "nt", reason="runs the steps of a Linux runner")
def test_the_schemas_of_a_release_are_kept_when_it_is_tagged(tmp_path: Path) -> None:
    command = step("release", "build", "Compare the schemas")
    env = {**os.environ, "GITHUB_REF_NAME": "v99.0.0"}
    (tmp_path / "tests/schemas/99.0.0").mkdir(parents=True)
    for schema in (ROOT / "onnxperf").glob("*/*.schema.json"):
        (tmp_path / schema.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(schema, tmp_path / schema.relative_to(ROOT))
        shutil.copy(schema, tmp_path / "tests/schemas/99.0.0")
    assert subprocess.run([BASH, "-ec", command], env=env, cwd=tmp_path).returncode == 0
    (tmp_path / "onnxperf/answer/prediction.schema.json").write_text("{}", encoding="utf-8")
    assert subprocess.run([BASH, "-ec", command], env=env, cwd=tmp_path, capture_output=True).returncode == 1

"""What is published: an sdist and a wheel, built from a clean copy; the wheel predicts where nothing else is."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import jsonschema
import pytest

from onnxperf.ground.version import VERSION
from tests.test_house import BUILDINGS, CONFIG, FILES

pytest.importorskip("build")
pytest.importorskip("twine")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
IGNORED = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").split()]
MOST_BYTES = 6_000_000  # of either file, of which most are tables of measurements and graphs of samples
CITED = re.compile(r"(?:onnxperf/\w+/[\w/]+|\bASSUMPTIONS)\.md")
LICENCES = {"LICENSE", "NOTICE", "LICENSE.NeuSight"}


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """What a command prints; it must end with 0."""
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout without what git ignores, so that no old build gets into the new one."""
    to = tmp_path_factory.mktemp("source") / "onnxperf"
    return Path(shutil.copytree(ROOT, to, ignore=shutil.ignore_patterns(".git", *IGNORED)))


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that is built from it."""
    to = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "-o", to, source, cwd=to)
    assert {f.name for f in to.iterdir()} == {f"onnxperf-{VERSION}.tar.gz", f"onnxperf-{VERSION}-py3-none-any.whl"}
    return to


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel and what it depends on."""
    to = tmp_path_factory.mktemp("environment") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", to, cwd=to.parent)
    programs = to / ("Scripts" if os.name == "nt" else "bin")
    python = next(programs.glob("python*"))
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "-q", "--no-compile", "-c", ROOT / "constraints.txt", wheel, cwd=to.parent)
    run(*pip, "check", cwd=to.parent)
    return programs


@pytest.fixture
def onnxperf(installed: Path, tmp_path: Path):
    """Runs the installed program in an empty folder, with nothing of this process's environment."""
    kept = {name: os.environ[name] for name in ("SYSTEMROOT", "TEMP") if name in os.environ}  # Windows asks for them
    env = {**kept, "PATH": str(installed), "HOME": str(tmp_path), "PYTHONIOENCODING": "utf-8"}

    def called(*arguments: str | Path) -> str:
        return run(installed / "onnxperf", *arguments, cwd=tmp_path, env=env)

    return called


def packaged(installed: Path) -> Path:
    """The folder where pip put the package."""
    (folder,) = installed.parent.glob("[Ll]ib/**/site-packages/onnxperf")
    return folder


def test_the_sdist_holds_the_checkout_and_nothing_else(source: Path, built: Path) -> None:
    (file,) = built.glob("*.tar.gz")
    with tarfile.open(file) as tar:
        names = {PurePosixPath(member.name) for member in tar if member.isfile()}
    held = {str(name.relative_to(f"onnxperf-{VERSION}")) for name in names}
    here = {f.relative_to(source).as_posix() for f in source.rglob("*") if f.is_file()}
    here = {name for name in here if ".egg-info/" not in name}
    made = {name for name in held if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    assert held - made == here
    assert {name.rpartition("/")[2] for name in held} >= LICENCES
    assert file.stat().st_size < MOST_BYTES


def test_the_wheel_holds_the_three_buildings(source: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    about = {name for name in names if name.startswith(f"onnxperf-{VERSION}.dist-info/")}
    assert {name.partition("/")[0] for name in names - about} == set(BUILDINGS)
    assert names >= FILES.keys() and {PurePosixPath(name).name for name in about} >= LICENCES
    files = {f.relative_to(source).as_posix() for f in source.rglob("*") if f.is_file()}
    data = {name for name in files if name.partition("/")[0] in BUILDINGS}
    data |= {f"onnxperf/{name}" for name in files if name.startswith("samples/")}
    named = ("/SKILL.md", "/accuracy.md")  # which a command prints, and predictions name
    data = {n for n in data if not n.endswith(".md") or n.endswith(named) or n.startswith("onnxperf/lab/derive/")}
    assert names - about == data - {"onnxperf/samples/flops.json"}
    assert wheel.stat().st_size < MOST_BYTES


def test_every_page_that_answers_cite_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        told = [n for n in names if n.endswith((".py", ".json", ".toml")) and "/lab/" not in n and "/samples/" not in n]
        cited = {page for name in told for page in CITED.findall(archive.read(name).decode())}
    assert "onnxperf/lab/derive/tensorrt.md" in cited <= names


def test_metadata_is_what_an_index_takes(built: Path, wheel: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir(), cwd=built)
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"onnxperf-{VERSION}.dist-info/METADATA").decode()
    assert f"\nVersion: {VERSION}\n" in metadata and "\nLicense-Expression: Apache-2.0 AND MIT\n" in metadata


def test_a_model_is_predicted(onnxperf, installed: Path, tmp_path: Path) -> None:
    samples = packaged(installed) / "samples"
    command = ("predict", samples / "resnet50.onnx", "--gpu", "l4", "--json", "answer.json", "--html", "report.html")
    onnxperf(*command)
    answer = json.loads((tmp_path / "answer.json").read_text(encoding="utf-8"))
    schema = (packaged(installed) / "answer/prediction.schema.json").read_text(encoding="utf-8")
    jsonschema.validate(answer, json.loads(schema))
    assert answer["onnxperf_version"] == VERSION and answer["gpu"] == "l4"
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.lower().startswith("<!doctype html>") and "resnet50.onnx" in page


def test_a_language_model_is_predicted_and_cards_are_listed(onnxperf, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    command = ("llm", "--config", "config.json", "--gpu", "l4", "--prompt", "16", "--output", "2", "--html", "llm.html")
    assert "prompt 16, output 2 tokens" in onnxperf(*command) and (tmp_path / "llm.html").stat().st_size > 10_000
    assert "NVIDIA L4" in onnxperf("gpus", "l4")
    assert onnxperf("--version").split()[-1] == VERSION

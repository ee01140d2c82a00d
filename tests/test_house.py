"""The house stands as it was drawn: who imports whom, how large it is, what is loaded when."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxperf import arguments, latency, passes, runtimes

ROOT = Path(__file__).parents[1]
BUILDINGS = ("gpu_specs", "op_models", "onnxperf")
FILES = {str(p.relative_to(ROOT)): p for b in BUILDINGS for p in sorted((ROOT / b).rglob("*.py"))}
#: A room of onnxperf imports only from those to its left.
ROOMS = (
    "errors", "output", "tables", "fitting", "graph", "export", "passes", "runtimes", "lower", "latency", "schedule",
    "memory", "prediction", "remarks", "pipeline", "report", "decide", "testing", "measure", "datasets", "derive",
    "calibrate", "explain", "gpus", "compare", "validate", "arguments", "cli", "__main__",
)  # fmt: skip
#: What a prediction does not walk through: measuring, measurements, fits to them, scores, and the view of one kernel.
WORKSHOP = ("measure", "datasets", "fitting", "derive", "calibrate", "compare", "validate", "explain")
#: Before and after a prediction: exporters of frameworks, what follows from the answer, the command line.
DOORS = ("export", "decide", "testing", "arguments", "cli")
BENCH = ("onnxperf/graph/build.py", "onnxperf/graph/skeleton.py")  # models for measuring, where onnx may be imported
OUTSIDE = {"click", "google", "gpu_specs", "networkx", "numpy", "onnx", "onnxperf", "op_models", "rich"}
#: Of an extra, imported where it is used.
EXTRA = {
    "datasets": {"pyarrow"},
    "export": {"keras", "onnx_ir", "tensorflow", "tf2onnx", "torch"},
    "fitting": {"scipy"},
    "measure": {"cuda", "onnxruntime", "pynvml"},
    "testing": {"pytest"},
}
BANNED = {"pickle", "marshal", "shelve", "dill", "joblib", "subprocess", "ctypes"}


def for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports(tree: ast.AST, typing: bool = True) -> Iterator[str]:
    """Every module that is imported, also inside functions; `typing` says whether for type checkers as well."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{a.name}" for a in node.names)
        elif typing or not for_types_only(node):
            yield from imports(node, typing)


def tree(file: str) -> ast.Module:
    return ast.parse(FILES[file].read_text(encoding="utf-8"))


def room(dotted: str) -> str:
    """The room of a module or of a name imported from one; "" for the package itself."""
    parts = dotted.removesuffix(".py").replace("/", ".").split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else ""


@pytest.mark.parametrize("file", FILES)
def test_imports_go_one_way(file: str) -> None:
    building = file.partition("/")[0]
    found = list(imports(tree(file)))
    tops = {name.partition(".")[0] for name in found}
    if building != "onnxperf":
        assert tops <= {building} | set(sys.stdlib_module_names)
        return
    here = room(file)
    assert tops <= OUTSIDE | set(sys.stdlib_module_names) | EXTRA.get(here, set())
    if file != "onnxperf/__init__.py":
        assert here, "every module belongs to a room"
        own = ROOMS.index(here)
        rooms = {room(name) for name in found if name.startswith("onnxperf.")} - {""}
        assert all(ROOMS.index(r) <= own for r in rooms), f"{here} imports {rooms}"
    if here not in ("graph", "export"):
        assert "onnx" not in {n.partition(".")[0] for n in imports(tree(file), typing=False)}


@pytest.mark.parametrize("file", FILES)
def test_nothing_runs_what_a_file_says(file: str) -> None:
    assert not {name.partition(".")[0] for name in imports(tree(file))} & BANNED
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("eval", "exec", "compile", "__import__", "os.system", "os.popen"), called


def code(path: Path) -> int:
    """Lines of code: what is neither blank nor comment nor docstring."""
    text = path.read_text(encoding="utf-8")
    described: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            described.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    aside = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type not in aside]
    return len({line for t in tokens for line in range(t.start[0], t.end[0] + 1)} - described)


def test_the_house_stays_small() -> None:
    lines = {file: len(path.read_text(encoding="utf-8").splitlines()) for file, path in FILES.items()}
    assert not {file: n for file, n in lines.items() if n > 350}
    total = {file: code(path) for file, path in FILES.items()}
    workshop = {file: n for file, n in total.items() if room(file) in WORKSHOP or file in BENCH}
    doors = {file: n for file, n in total.items() if room(file) in DOORS}
    assert sum(total.values()) - sum(workshop.values()) - sum(doors.values()) < 7_850
    assert sum(doors.values()) < 1_650
    assert sum(n for file, n in workshop.items() if room(file) == "measure") < 2_050
    assert sum(workshop.values()) < 6_150
    assert sum(n for file, n in lines.items() if file.startswith("op_models")) < 2_000


@pytest.mark.parametrize("module", ["onnxperf", "onnxperf.cli", "onnxperf.errors", "gpu_specs", "op_models"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    heavy = {"onnx", "numpy", "networkx", "rich", "torch", "onnxruntime", "google.protobuf"}
    code = f"import sys, {module}; print(*{heavy!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == []


def test_the_command_line_offers_what_the_rooms_have() -> None:
    assert tuple(runtimes.RUNTIMES) == arguments.RUNTIMES
    assert tuple(runtimes.HOSTS) == arguments.HOSTS
    assert tuple(runtimes.LEVELS) == arguments.LEVELS
    assert arguments.PRECISIONS == passes.PRECISIONS
    assert arguments.METHODS == latency.METHODS

"""The house stands as it was drawn: who imports whom, how large functions are, what is loaded when."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from onnxperf import methods, runtimes
from onnxperf.export.decoder import BITS
from onnxperf.export.decoder_writer import CACHES
from onnxperf.ground import names
from onnxperf.lab.baselines import BASELINES
from onnxperf.lowering.runtime import ARENAS
from onnxperf.measure.devices import DEVICES
from onnxperf.passes.training import STATES
from onnxperf.running import memory, terms
from onnxperf.views import choices
from tests.conftest import SLOW, TESTS
from tests.each import each

ROOT = Path(__file__).parents[1]
BUILDINGS = ("gpu_specs", "op_models", "onnxperf")
FILES = {str(p.relative_to(ROOT)): p for b in BUILDINGS for p in sorted((ROOT / b).rglob("*.py"))}
#: A room of onnxperf imports only from those to its left.
ROOMS = (
    "ground", "graph", "export", "passes", "fusions", "lowering", "runtimes", "latency", "methods", "schedule",
    "running", "answer", "language", "decide", "explanation", "sweeps", "testing", "measure", "calibrate", "scoring",
    "lab", "views", "cli", "__main__",
)  # fmt: skip
OUTSIDE = {"click", "google", "gpu_specs", "networkx", "numpy", "onnx", "onnxperf", "op_models", "rich"}
#: Of an extra, imported where it is used.
EXTRA = {
    "answer": {"pandas"},
    "cli": {"mcp"},
    "decide": {"scipy"},
    "export": {"keras", "onnx_ir", "tensorflow", "tf2onnx", "timm", "torch"},
    "ground": {"pandas", "scipy"},
    "lab": {"matplotlib", "pyarrow", "torch"},
    "measure": {"cuda", "onnxruntime", "pynvml"},
    "sweeps": {"distributed", "pandas", "pyarrow"},
    "testing": {"pytest"},
    "views": {"matplotlib"},
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


@cache
def tree(file: str) -> ast.Module:
    return ast.parse(FILES[file].read_text(encoding="utf-8"))


def room(dotted: str) -> str:
    """The room of a module or of a name imported from one; "" for the package itself."""
    parts = dotted.removesuffix(".py").replace("/", ".").split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else ""


@each(FILES)
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


def test_no_files_import_each_other() -> None:
    """Not even in a circle of several, and not for type checkers alone. A package's own file gathers its modules."""
    modules = {file.removesuffix(".py").replace("/", "."): file for file in FILES if not file.endswith("__init__.py")}
    arrows = nx.DiGraph()
    for module, file in modules.items():
        for name in imports(tree(file)):
            arrows.add_edges_from((module, used) for used in (name, name.rpartition(".")[0]) if used in modules)
    assert arrows.number_of_edges() > len(modules)
    assert not [circle for circle in nx.strongly_connected_components(arrows) if len(circle) > 1]


@each(FILES)
def test_nothing_runs_what_a_file_says(file: str) -> None:
    assert not {name.partition(".")[0] for name in imports(tree(file))} & BANNED
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("eval", "exec", "compile", "__import__", "os.system", "os.popen"), called


MOST_STATEMENTS = 45  # of a function
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def local_names(function: ast.AST) -> Iterator[str]:
    """What a function binds: arguments, assignments, imports; not what functions inside it and comprehensions do."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, SCOPES):
            yield node.name
        elif isinstance(node, COMPREHENSIONS):
            yield from (n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
        elif not isinstance(node, ast.Lambda):
            if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
                yield node.name
            yield from local_names(node)


def statements(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Statements of a function, those of functions inside it as well; a docstring is none."""
    inside = (n for n in ast.walk(function) if isinstance(n, ast.stmt) and n is not function)
    return sum(not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)) for n in inside)


#: Pronouns and participles that say nothing of what they hold.
NO_NOUNS = {"found", "own", "given", "made", "known", "it"}


@each(FILES)
def test_names_are_nouns(file: str) -> None:
    functions = (n for n in ast.walk(tree(file)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))
    assert not NO_NOUNS.intersection(name for f in functions for name in local_names(f))


@each(FILES)
def test_functions_stay_small(file: str) -> None:
    functions = [n for n in ast.walk(tree(file)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    counts = {f.name: len(set(local_names(f))) for f in functions}
    assert not {f.name: statements(f) for f in functions if statements(f) > MOST_STATEMENTS}
    assert not {name: count for name, count in counts.items() if count > 30}


FUNCTION = """
def f(a, *b, c=1, **d):
    'Two
    lines.'
    e = [g for g in a if (h := g)]
    with open(e) as (i, j):
        import k.l as m, n.o
    for p in (lambda q: q)(a):
        p.r = a[0] = p
    def s(t):
        u = t
    try:
        v: int = 1
    except ValueError as w:
        pass
"""


def test_locals_are_arguments_and_what_is_assigned() -> None:
    (function,) = ast.parse(FUNCTION.replace("'", "'" * 3)).body
    assert isinstance(function, ast.FunctionDef)
    assert "".join(sorted(set(local_names(function)))) == "abcdehijmnpsvw"
    assert statements(function) == 10


@pytest.mark.parametrize(
    "module", ["onnxperf", "onnxperf.cli", "onnxperf.ground.errors", "onnxperf.running.terms", "gpu_specs", "op_models"]
)
def test_importing_loads_nothing_heavy(module: str) -> None:
    heavy = {"onnx", "numpy", "networkx", "rich", "torch", "onnxruntime", "google.protobuf"}
    code = f"import sys, {module}; print(*{heavy!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == []


#: What no prediction of inference on one GPU under ONNX Runtime needs: it is imported where it is used.
UNUSED = (
    "matplotlib", "networkx", "numpy.ma", "onnx.reference", "onnxruntime", "pandas", "scipy", "tensorflow", "torch",
    "onnxperf.answer.predict", "onnxperf.cli.decisions", "onnxperf.cli.language", "onnxperf.cli.models",
    "onnxperf.cli.on_device", "onnxperf.cli.sweeping", "onnxperf.decide.budget", "onnxperf.explanation",
    "onnxperf.export.command", "onnxperf.export.decoder", "onnxperf.export.from_tf", "onnxperf.export.from_torch",
    "onnxperf.fusions.tensorrt_quantised", "onnxperf.fusions.torch_calls",
    "onnxperf.graph.batch_node", "onnxperf.graph.batch_probe", "onnxperf.graph.definitions", "onnxperf.graph.rebatch",
    "onnxperf.lab", "onnxperf.language", "onnxperf.measure", "onnxperf.passes.autocast",
    "onnxperf.passes.data_parallel", "onnxperf.passes.exchanges", "onnxperf.passes.experts",
    "onnxperf.passes.gradients", "onnxperf.passes.ort_gradients", "onnxperf.passes.ort_training",
    "onnxperf.passes.shard", "onnxperf.passes.stages",
    "onnxperf.passes.torch_training", "onnxperf.passes.training", "onnxperf.running.largest",
    "onnxperf.running.microbatches", "onnxperf.runtimes.ort_cpu", "onnxperf.runtimes.tensorrt",
    "onnxperf.runtimes.torch_eager", "onnxperf.scoring", "onnxperf.sweeps", "onnxperf.views.explanation",
    "onnxperf.views.html", "onnxperf.views.roofline",
)  # fmt: skip
MOST_MODULES = 170  # of the three buildings


def test_a_prediction_imports_what_it_needs() -> None:
    command = ["predict", str(ROOT / "samples" / "resnet50.onnx"), "--gpu", "l4"]
    run = f"cli.main({command!r}, standalone_mode=False)"
    code = f"import sys; from onnxperf.cli import cli; {run}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = done.stdout.splitlines()[-1].split()
    assert not [name for name in loaded if f"{name}.".startswith(tuple(f"{u}." for u in UNUSED))]
    assert sum(module.partition(".")[0] in BUILDINGS for module in loaded) <= MOST_MODULES


def test_the_command_line_offers_what_the_rooms_have() -> None:
    assert tuple(sorted(runtimes.RUNTIMES)) == names.RUNTIMES
    assert tuple(sorted(methods.METHODS)) == names.METHODS
    assert tuple(sorted(BASELINES)) == names.BASELINES
    assert tuple(STATES) == names.OPTIMIZERS
    assert (tuple(BITS), tuple(CACHES)) == (names.WEIGHTS, names.CACHES)
    assert tuple(choices.BY) == names.RANKED_BY and tuple(DEVICES) == names.PROVIDERS
    shipped = [runtimes.RUNTIMES[name].layouts for name in names.RUNTIMES]
    assert {layout for layouts in shipped for layout in layouts} == set(names.LAYOUTS)


def test_type_checkers_know_every_term() -> None:
    """They can't read keywords off a dataclass: of the keywords, a host and a cluster may also be paths."""
    keywords = {name: known.__forward_arg__ for name, known in terms.Keywords.__annotations__.items()}
    fields = {f.name: f.type for f in dataclasses.fields(terms.Terms)}
    assert sorted(keywords) == sorted(fields)
    path, own = "str | os.PathLike[str] | None", {"runtime": "str | None"}
    assert keywords == fields | own | dict.fromkeys(("cluster", "host"), path)


def test_a_runtime_can_name_each_allocator_whose_memory_is_known() -> None:
    assert tuple(memory.ARENAS) == ARENAS


def test_what_is_called_slow_is_there() -> None:
    assert not [name for name in SLOW if not (TESTS / name).is_file()]


def test_every_room_is_in_what_pip_installs() -> None:
    """An installation in place works without the list of packages, a wheel does not."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    rooms = {str(Path(f).parent).replace("/", ".") for f in FILES}
    samples = {f"onnxperf.{name}" for name in ("samples", "samples.zoo")}
    assert set(listed) == rooms | samples and len(listed) == len(set(listed))


DOOR = "onnxperf/cli/on_device.py"  # `validate` without MODEL, or by a method to compare with
COMMANDS = (
    ("predict", "{model}", "--gpu", "a100"), ("compare", "{model}", "--gpu", "t4,l4"),
    ("whatif", "{model}", "--gpu", "t4"), ("sweep", "{model}", "--gpu", "t4", "--batch", "1,2"),
    ("llm", "--config", "{config}", "--gpu", "a100", "--prompt", "16", "--output", "2", "--batch", "1"),
    ("explain", "{model}", "--gpu", "t4"), ("diff", "{model}", "{model}", "--gpu", "t4"),
    ("check", "{model}", "--gpu", "t4", "--max-latency", "1s"),
)  # fmt: skip
WATCHED = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from onnxperf.cli import cli
cli(sys.argv[1:], standalone_mode=False)
print(*(name for name in sys.modules if name.startswith("onnxperf.lab")), file=sys.stderr)
print(*(name for name in opened if "/onnxperf/lab/" in name), file=sys.stderr)
"""
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
    "vocab_size": 256, "max_position_embeddings": 128, "torch_dtype": "float16", "hidden_act": "silu",
}  # fmt: skip


def test_nothing_imports_the_laboratory_but_the_command_that_scores() -> None:
    inside = {file for file in FILES if file.startswith("onnxperf/lab/")}
    users = {file for file in FILES.keys() - inside if any(n.startswith("onnxperf.lab") for n in imports(tree(file)))}
    assert inside and users == {DOOR}
    assert not [n for n in tree(DOOR).body if isinstance(n, ast.ImportFrom) and "onnxperf.lab" in str(n.module)]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_no_answer_opens_anything_of_the_laboratory(command: tuple[str, ...], tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    arguments = [word.format(model=ROOT / "samples/alexnet.onnx", config=config) for word in command]
    asked = [sys.executable, "-c", WATCHED, *arguments]
    done = subprocess.run(asked, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "")
    assert done.stdout


def test_links_of_pages_lead_somewhere() -> None:
    """Within the repository; what lies elsewhere is not looked up."""
    pages = [p for folder in (*BUILDINGS, "samples", "docs") for p in (ROOT / folder).rglob("*.md")]
    broken = [
        (str(page.relative_to(ROOT)), link)
        for page in (*pages, *ROOT.glob("*.md"))
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert not broken

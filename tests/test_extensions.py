"""What is added takes one file: nothing else is touched, and it is there wherever its kind is asked for.

Each test writes that file and uses what it brings: an empty folder holds what a user brings along, a copy of the
packages what the package finds by itself. More of kernel families is in `latency/test_new_family.py`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from inspect import unwrap
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import gpu_specs
import onnxperf
import op_models
from gpu_specs import catalogue
from onnxperf.cli import cli
from onnxperf.fusions import common
from onnxperf.graph import load
from onnxperf.lowering.runtime import run_graph
from onnxperf.runtimes.tensorrt import RUNTIME as TENSORRT
from op_models import known
from op_models.rules import _RULES
from tests.device_files import CARD
from tests.estimating import predict_on
from tests.lab.datasets.conftest import written
from tests.test_cli import run

ROOT = Path(__file__).parents[1]
RESNET, BERT = (ROOT / "samples" / name for name in ("resnet50.onnx", "bert-base.onnx"))


def added(folder: Path, name: str, text: str) -> Path:
    """The one file of an extension."""
    path = folder / name
    path.write_text(dedent(text), encoding="utf-8")
    return path


def imported(path: Path) -> ModuleType:
    """Run a module as a user's own code does."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Tree:
    """A copy of the packages in a folder: links to their files, except for what an extension writes; links to compiled
    files too, which Python takes where a file is as old and as long as when it was compiled.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for building in ("gpu_specs", "op_models", "onnxperf"):
            shutil.copytree(ROOT / building, folder / building, copy_function=os.symlink)

    def change(self, name: str, *changes: tuple[str, str]) -> None:
        """Replace texts that stand in a file once."""
        text = (self.folder / name).read_text(encoding="utf-8")
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (self.folder / name).unlink()
        added(self.folder, name, text)

    def files(self) -> list[str]:
        """The files that are no links: those of the extension."""
        every = (p for p in self.folder.rglob("*") if p.is_file() and not p.is_symlink())
        return [p.relative_to(self.folder).as_posix() for p in every]

    def started(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Python with the copy instead of the packages."""
        env = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, env=env, cwd=self.folder, timeout=300
        )

    def says(self, code: str, *arguments: str) -> Any:
        """What code that prints JSON says there."""
        done = self.started("-c", dedent(code), *arguments)
        assert not done.returncode, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


# a card


def test_a_card_is_one_file(tmp_path: Path) -> None:
    path = added(tmp_path, "my-card.toml", CARD)
    mine = onnxperf.predict(RESNET, gpu=path)
    assert mine.scenario.gpu == "my-card"
    assert mine.seconds > onnxperf.predict(RESNET, gpu="l4").seconds  # which has TF32
    for command in (["predict"], ["explain", "--node", mine.kernels[0].nodes[0]]):
        run = CliRunner().invoke(cli, [command[0], str(RESNET), "--gpu", str(path), *command[1:]])
        assert run.exit_code == 0 and "My Card" in run.stdout, run.output
    assert [p.name for p in tmp_path.iterdir()] == ["my-card.toml"]


@pytest.fixture
def _other_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The cards that ship are those of an empty folder."""
    caches = (catalogue.ids, catalogue._stems, catalogue._shipped, catalogue._names)
    monkeypatch.setattr(catalogue, "_CARDS", tmp_path)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.usefixtures("_other_cards")
def test_a_card_that_ships_is_one_file_and_is_known_by_its_names(tmp_path: Path) -> None:
    added(tmp_path, "my-card.toml", 'nvml_names = ["NVIDIA My Card"]\n' + CARD)
    assert gpu_specs.ids() == ("my-card",)
    assert onnxperf.predict(RESNET, gpu="NVIDIA My Card").scenario.gpu == "my-card"
    assert "My Card" in CliRunner().invoke(cli, ["gpus"]).stdout


@pytest.mark.usefixtures("_other_cards")
def test_a_broken_card_is_told_and_hides_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = partial(run, capsys, monkeypatch, "gpus")
    added(tmp_path, "my-card.toml", CARD)
    added(tmp_path, "my-cards.toml", CARD.replace("sms =", "smss =", 1))
    code, out, err = told()
    assert (code, out) == (2, "") and "my-cards.toml" in err and "smss" in err
    assert told("my-card")[0] == 0
    code, _, err = told("my-kard")
    assert code == 2 and err.startswith("onnxperf: unknown gpu 'my-kard'; nearest: my-card") and "smss" in err


# an operator


@pytest.fixture
def _forgotten() -> Iterator[None]:
    """Rules are the process's; one test must not teach the next."""
    before = dict(_RULES)
    yield
    _RULES.clear()
    _RULES.update(before)


def model(**attrs: Any) -> onnx.ModelProto:
    """y = MyOp(x, w), with x and y of 512 x 1024 and w of 1024."""
    node = helper.make_node("MyOp", ["x", "w"], ["y"], "mine", domain="my.domain", **attrs)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [512, 1024]) for n in "xy")
    w = helper.make_tensor("w", TensorProto.FLOAT, [1024], [0.0] * 1024)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("my.domain", 1)]
    return helper.make_model(helper.make_graph([node], "g", [x], [y], [w]), opset_imports=opsets)


@pytest.mark.usefixtures("_forgotten")
def test_an_operator_is_one_rule(tmp_path: Path) -> None:
    unknown = onnxperf.predict(model(), gpu="l4").kernels[0]
    assert (unknown.source, unknown.flops) == ("assumed", 0)
    rule = '''
        import onnxperf

        @onnxperf.op("my.domain::MyOp")
        def my_op(op, x, w, *, alpha=1.0):
            """max(0, alpha x + w): 3 an element, 2 where alpha is 1."""
            return onnxperf.work(op, onnxperf.Pointwise(x.size), vector=x.size * (2 + (alpha != 1.0)))
    '''
    imported(added(tmp_path, "my_operators.py", rule))
    for attrs, each in (({}, 2), ({"alpha": 0.5}, 3), ({"beta": 0.5}, 2)):
        found = onnxperf.predict(model(**attrs), gpu="l4").kernels[0]
        assert (found.source, found.flops, found.nodes) == ("analytic", each * 512 * 1024, ("mine",))
        assert found.bytes_read == 4 * (512 * 1024 + 1024)


@pytest.mark.usefixtures("_forgotten")
def test_a_rule_may_take_a_size_with_a_model_of_its_own() -> None:
    @onnxperf.op("my.domain::MyOp")
    def my_op(op: Any, x: Any, w: Any) -> Any:
        """x M + w with a matrix M that is made up on the way."""
        size = onnxperf.Gemm(1, x.shape[0], w.shape[0], x.shape[1])
        return onnxperf.work(op, size, matrix=2 * size.m * size.n * size.k)

    found = onnxperf.predict(model(), gpu="l4").kernels[0]
    assert found.flops == 2 * 512 * 1024 * 1024
    assert found.seconds > 2 * 512 * 1024 * 1024 / 121e12


@pytest.mark.usefixtures("_forgotten")
@pytest.mark.parametrize(
    ("result", "says"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("None.no", "AttributeError: 'NoneType' object has no attribute 'no'"),
        ("open('no such file')", "FileNotFoundError: [Errno 2] No such file or directory: 'no such file'"),
        ("None", "TypeError: it returns NoneType, not Work"),
    ],
)
def test_an_operator_rule_that_fails_is_told_with_its_node(tmp_path: Path, result: str, says: str) -> None:
    rule = f"""
        import onnxperf

        @onnxperf.op("my.domain::MyOp")
        def my_op(op, x, w):
            return {result}
    """
    imported(added(tmp_path, "my_operators.py", rule))
    with pytest.raises(onnxperf.UsageError) as told:
        onnxperf.predict(model(), gpu="l4")
    assert str(told.value) == f"the rule my_op of my_operators for my.domain::MyOp fails at mine: {says}"


@pytest.mark.usefixtures("_forgotten")
@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("lambda op, x, w: x.siz", "AttributeError: 'Tensor' object has no attribute 'siz'"),
        ("lambda op, x, w: siz(x)", "NameError: name 'siz' is not defined"),
        ("lambda op, x, w: {}['k']", "KeyError: 'k'"),
        ("lambda op, x, w: None", "TypeError: it returns NoneType, not Work"),
        ("lambda x, op: op_models.work(op, Pointwise(x.size))", "AttributeError: 'Operator' object has no attribute"),
    ],
)
def test_an_operator_rule_of_op_models_that_fails_is_told_and_the_bytes_count(
    tmp_path: Path, rule: str, says: str
) -> None:
    mine = eval(rule, {"op_models": op_models, "Pointwise": op_models.Pointwise})
    mine.__module__, mine.__name__ = "op_models.mine", "my_op"
    op_models.op("my.domain::MyOp")(mine)
    (note,) = (n for n in onnxperf.predict(model(), gpu="l4").warnings if n.code == "assumed-operator")
    assert note.message.startswith(f"unknown work: the rule my_op for my.domain::MyOp failed with {says}")
    assert note.message.endswith(": its time is that of the bytes it reads and writes") and note.nodes == ("mine",)
    onnx.save(model(), tmp_path / "m.onnx")
    shown = CliRunner().invoke(cli, ["predict", str(tmp_path / "m.onnx"), "--gpu", "l4"])
    assert "the rule my_op for my.domain::MyOp failed with" in shown.stdout and shown.exit_code == 0


@pytest.mark.usefixtures("_forgotten")
def test_registering_twice_raises() -> None:
    def mine(op: Any) -> Any:
        return onnxperf.work(op, onnxperf.Pointwise(1))

    def another(op: Any) -> Any:
        return onnxperf.work(op, onnxperf.Pointwise(2))

    onnxperf.op("my.domain::MyOp")(mine)
    with pytest.raises(onnxperf.Error, match=r"my\.domain::MyOp has a rule already"):
        onnxperf.op("my.domain::Other", "my.domain::MyOp")(another)
    with pytest.raises(onnxperf.Error, match=r"Conv has a rule already, op_models\.conv\.conv; a second one"):
        onnxperf.op("Conv")(mine)
    assert not known("my.domain::Other")


@pytest.mark.usefixtures("_forgotten")
def test_a_cell_that_is_run_again_replaces_its_rule() -> None:
    def cell(flops: int) -> None:
        @onnxperf.op("my.domain::MyOp", "my.domain::Other")
        def my_op(op: Any, x: Any) -> Any:
            """So many FLOPs an element."""
            return onnxperf.work(op, onnxperf.Pointwise(x.size), vector=flops * x.size)

    loaded = onnxperf.load(model())
    for flops in (1, 3):
        cell(flops)
        for either in (model(), loaded):
            assert onnxperf.predict(either, gpu="l4").kernels[0].flops == flops * 512 * 1024


@pytest.mark.parametrize(
    ("types", "says"),
    [
        ((lambda op, x: None,), "<function <lambda> at .* is none"),
        ((), "there is none"),
        (("my.domain:MyOp",), "'my.domain:MyOp' is none"),
        (("Relu", "my.domain::"), "'my.domain::' is none"),
        (("ai.onnx::Relu",), "'ai.onnx::Relu' is none"),
        (("Leaky Relu",), "'Leaky Relu' is none"),
        (("",), "there is none"),
    ],
)
def test_what_names_no_operator_is_refused(types: tuple[Any, ...], says: str) -> None:
    with pytest.raises(onnxperf.UsageError, match=rf'as @op\("Conv"\) or @op\("my\.domain::MyOp"\); {says}$'):
        onnxperf.op(*types)


def test_work_without_a_size_is_an_error_of_ours() -> None:
    op = onnxperf.Operator("mine", "my.domain::MyOp", (), (onnxperf.Tensor("y", "float32", (8,)),))
    with pytest.raises(onnxperf.UsageError, match=r"operator mine .* needs a size such as Pointwise\(8\), not 8"):
        onnxperf.work(op, 8)  # type: ignore[arg-type]


def test_impossible_work_is_an_error_of_ours() -> None:
    op = onnxperf.Operator("mine", "my.domain::MyOp", (), (onnxperf.Tensor("y", "float32", (8,)),))
    with pytest.raises(onnxperf.Error, match=r"operator mine .* can't have this work"):
        onnxperf.work(op, onnxperf.Pointwise(8), vector=-1)


@pytest.mark.usefixtures("_forgotten")
def test_a_rule_that_gives_impossible_work_is_told() -> None:
    @onnxperf.op("my.domain::MyOp")
    def my_op(op: Any, x: Any) -> Any:
        """Less than nothing."""
        return onnxperf.work(op, onnxperf.Pointwise(x.size), vector=-1)

    with pytest.raises(onnxperf.UsageError, match=r"my_op .* fails at mine: .* can't have this work"):
        onnxperf.predict(model(), gpu="l4")


def test_everything_a_rule_is_made_of_is_at_hand() -> None:
    import op_models

    shared = set(onnxperf.__all__) & set(op_models.__all__)
    sizes = {"Attention", "Conv", "Gemm", "Move", "Pointwise", "Recurrent", "Rows"}
    assert shared == {"Operator", "Tensor", "Work", "op", "work", *sizes}
    assert all(unwrap(getattr(onnxperf, name)) is getattr(op_models, name) for name in shared)


# a term

TERM = '    warm: bool = term(False, "Weights are in L2.", noun="warm L2", runtime="launches", method="scheduled")\n'
#: Asks for it in every way.
WARM = """
    import json, sys
    from click.testing import CliRunner
    import onnxperf
    from onnxperf.cli import cli
    def wrong(**terms):
        try:
            onnxperf.predict(sys.argv[1], gpu="l4", **terms)
        except onnxperf.UsageError as e:
            return str(e)
    p = onnxperf.predict(sys.argv[1], gpu="l4", warm=True)
    more = [sys.argv[1], "--gpu", "l4", "--warm"]
    asked = [CliRunner().invoke(cli, [command, *more]) for command in ("predict", "explain", "sweep")]
    print(json.dumps({
        "run": [p.scenario.warm, p.run.under(warm=False).scenario.warm],
        "codes": [run.exit_code for run in asked],
        "options": [CliRunner().invoke(cli, [c, "--help"]).stdout for c in ("predict", "diff", "compare", "sweep")],
        "help": onnxperf.predict.__doc__,
        "wrong": [wrong(warm=1), wrong(warm=True, method="sum"), wrong(warm=True, runtime="ort-cpu")],
    }))
"""


@pytest.mark.slow
def test_a_term_is_a_field(tree: Tree) -> None:
    """Beside its use, which this one has not."""
    before = "    power_limit_W: float | None = term("
    tree.change("onnxperf/running/terms.py", (before, TERM + before))
    told = tree.says(WARM, str(RESNET))
    assert (told["run"], told["codes"]) == ([True, False], [0, 0, 0])
    assert all(re.search(r"  --warm +Weights are in L2\.", shown) for shown in told["options"])
    assert "\n    warm: Weights are in L2.\n" in told["help"]
    lacks = "no streams, no CUDA graph and no warm L2: leave streams, cuda_graph and warm out"
    assert told["wrong"] == [
        "warm must be True or False, not 1", "the method sum ignores warm: leave that out",
        f"ort-cpu runs on a CPU and has {lacks}",
    ]  # fmt: skip
    assert tree.files() == ["onnxperf/running/terms.py"]


# a runtime

RUNTIME = """
    from onnxperf.fusions import common
    from onnxperf.fusions.engine import BASIC
    from onnxperf.fusions.placement import place
    from onnxperf.lowering.runtime import HostCosts, Policy, Runtime

    RUNTIME = Runtime(
        name="my-runtime",
        rules={BASIC: (common.gelu,)},
        place=place,
        policy=Policy(),
        host=HostCosts(
            run_s=1e-6, walk_s=1e-6, node_s=1e-6, launch_s=1e-6, host_op_s=1e-6, copy_s=1e-6, sync_s=1e-6, gap_s=1e-6,
            replay_s=1e-6, replay_gap_s=1e-6, source="assumed",
        ),
        describe="My runtime, which fuses little",
    )
"""
#: Predicts a model by the call and by the command line under a new value of a term.
ASKED = """
    import json, sys
    from click.testing import CliRunner
    import onnxperf
    from onnxperf.cli import cli
    _, model, term, new, old = sys.argv
    a, b = (onnxperf.predict(model, gpu="l4", **{term: value}) for value in (new, old))
    run = CliRunner().invoke(cli, ["predict", model, "--gpu", "l4", f"--{term}", new, "--json", "-"])
    answer = json.loads(run.stdout)
    assert run.exit_code == 0 and answer.pop("suggestions") is not None, run.output
    assert answer == json.loads(a.to_json())
    assert new in CliRunner().invoke(cli, ["predict", "--help"]).stdout
    found = [[p.seconds, len(p.kernels), p.high_seconds / p.seconds, p.scope] for p in (a, b)]
    print(json.dumps([*found, [json.loads(a.to_json())[term], *(k.name for k in a.kernels)]]))
"""


@pytest.mark.slow
def test_a_runtime_is_one_module(tree: Tree) -> None:
    added(tree.folder, "onnxperf/runtimes/my_runtime.py", RUNTIME)
    mine, usual, (name, *_) = tree.says(ASKED, str(BERT), "runtime", "my-runtime", "ort-cuda")
    assert name == "my-runtime" and "under My runtime" in mine[3]
    assert mine[1] > usual[1]  # its normalisations are made of several kernels
    assert tree.files() == ["onnxperf/runtimes/my_runtime.py"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": 3}, "name must be text, not 3"),
        ({"rules": (common.gelu,)}, "rules must be tuples of rules by their level"),
        ({"rules": {"basic": (common.gelu,)}}, "rules must be tuples of rules by their level"),
        ({"offline": {1: common.gelu}}, "offline must be tuples of rules by their level"),
        ({"place": None}, "place must be a function, not None"),
        ({"policy": "exact"}, "policy must be a Policy, not 'exact'"),
        ({"host": 8e-6}, "host must be HostCosts, not 8e-06"),
        ({"start": 2.0}, "start must be StartCosts, not 2.0"),
        ({"kind": "gpuu"}, "kind must be gpu or cpu, not 'gpuu'"),
        ({"releases": {"1.12": "old"}}, "releases must be Releases, not {'1.12'"),
        ({"rules": {1: (common.gelu,)}}, "the rule 'Gelu' does not say since which release tensorrt has it: give it"),
        ({"rules": {1: (common.gelu.of("new"),)}}, "the rule 'Gelu': 'new' is no release such as 1.16"),
        ({"rules": {1: (common.gelu.of("1.17", "1.16"),)}}, "the rule 'Gelu' is there since 1.17, but only until 1.16"),
    ],
)
def test_what_is_no_runtime_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(says)}"):
        replace(TENSORRT, **changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tf32": {"Gem"}}, "tf32 must be a set of some of Gemm, Conv, "),
        ({"tf32": "Gemm"}, "tf32 must be a set"),
        ({"arena": "exakt"}, "arena must be one of powers of two, doubling, segments, exact, not 'exakt'"),
        ({"channels_last": 1}, "channels_last must be True or False, not 1"),
    ],
)
def test_what_is_no_policy_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(says)}"):
        replace(TENSORRT.policy, **changes)


@pytest.mark.parametrize("seconds", ["8e-6", None, True, -8e-6, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["run_s", "gap_s", "replay_gap_s"])
def test_what_are_no_seconds_of_a_host_are_refused(name: str, seconds: Any) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be seconds, 0 or more, not "):
        replace(TENSORRT.host, **{name: seconds})


def test_what_places_a_graph_must_give_one() -> None:
    with pytest.raises(onnxperf.Error, match="the function place of the runtime tensorrt gave a NoneType, not a Graph"):
        run_graph(load(RESNET), replace(TENSORRT, place=lambda graph: None))


# a method

METHOD = """
    from onnxperf.latency import Method

    def twice(works, cards, stored, bound):
        return bound._replace(seconds=2 * bound.seconds)

    METHOD = Method(
        name="my-method", describe="twice the speed-of-light bound, added up", times=twice,
        own_terms=True,
    )
"""


@pytest.mark.slow
def test_a_method_is_one_module_with_ranges_of_its_own(tree: Tree) -> None:
    added(tree.folder, "onnxperf/methods/my_method.py", METHOD)
    mine, usual, (name, kernel, *_) = tree.says(ASKED, str(RESNET), "method", "my-method", "roofline")
    assert name == "my-method" and "by the my-method method" in mine[3]
    assert mine[1] == usual[1] and mine[0] != usual[0]
    assert mine[2] > 2 > usual[2] > 1  # of what nobody measured, the range is wide
    told = tree.started(
        "-m", "onnxperf", "explain", str(RESNET), "--gpu", "l4", "--method", "my-method", "--node", kernel
    )
    assert told.returncode == 0 and "my-method" in told.stdout, told.stderr
    assert tree.files() == ["onnxperf/methods/my_method.py"]


# a fusion

RULE = """
@pattern("Relu + Relu", op.Relu(alone(RELU)), since="1.20")
def relus(m: Match) -> Fused:
    \"\"\"A Relu of a Relu is that Relu.\"\"\"
    return m.fused("Relu", (m[X],))


RULES: tuple"""
RELUS = """
    import json
    from onnx import parser
    import onnxperf
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[512,512] x) => (float[512,512] y) {a=Relu(x) y=Relu(a)}'
    found = [onnxperf.predict(parser.parse_model(text), gpu="l4", opt_level=o) for o in ("disabled", "basic")]
    print(json.dumps([[k.op for k in p.kernels] for p in found]))
"""


@pytest.mark.slow
def test_a_fusion_is_a_rule_listed_in_its_own_file(tree: Tree) -> None:
    assert tree.says(RELUS) == [["Relu", "Relu"], ["Relu", "Relu"]]
    tree.change("onnxperf/fusions/ort_basic.py", ("RULES: tuple", RULE.lstrip()), (" casts, ", " casts, relus, "))
    assert tree.says(RELUS) == [["Relu", "Relu"], ["Relu"]]
    assert tree.says(RELUS.replace("opt_level=o", "opt_level=o, ort_version='1.19'"))[1] == ["Relu", "Relu"]
    assert tree.files() == ["onnxperf/fusions/ort_basic.py"]


@pytest.mark.slow
def test_a_fusion_that_does_not_say_since_when_is_refused(tree: Tree) -> None:
    text = RULE.replace(', since="1.20"', "").lstrip()
    tree.change("onnxperf/fusions/ort_basic.py", ("RULES: tuple", text), (" casts, ", " casts, relus, "))
    done = tree.started("-m", "onnxperf", "predict", str(RESNET), "--gpu", "l4")
    assert done.returncode == 2 and "the rule 'Relu + Relu' does not say since which release ort-c" in done.stderr


@pytest.mark.slow
def test_a_fusion_that_fails_is_told_with_its_node(tree: Tree) -> None:
    broken = RULE.replace("return m.fused", "1 / 0\n    return m.fused").lstrip()
    tree.change("onnxperf/fusions/ort_basic.py", ("RULES: tuple", broken), (" casts, ", " casts, relus, "))
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[4] x) => (float[4] y) {a=Relu(x) y=Relu(a)}'
    onnx.save(onnx.parser.parse_model(text), tree.folder / "relus.onnx")
    done = tree.started("-m", "onnxperf", "predict", "relus.onnx", "--gpu", "l4")
    says = "Relu + Relu did not apply: it failed with ZeroDivisionError: division by zero"
    assert says in " ".join(done.stdout.split()), done.stderr


# a dataset

DATASET = """
    from onnxperf.lab.datasets.dataset import Dataset, File, Kernels
    from onnxperf.lab.datasets.reading import card, number, sizes, work_of
    from onnxperf.lab.datasets.table import Row
    from op_models import Tensor


    def row(r):
        m, n, k = sizes(r, "m", "n", "k")
        inputs = Tensor("a", "float32", (m, k)), Tensor("b", "float32", (k, n), "weight")
        work = work_of("MatMul", inputs, Tensor("c", "float32", (m, n)))
        return Row("my products", card(r["gpu"]), work, number(r, "ms") / 1e3)


    DATASET = Dataset(
        "mine", 50, "my clock",
        kernels=(Kernels("my products", "My GEMM", "gemm", 1e-5),),
        files=(File("products.csv.gz", ("gpu", "m", "n", "k", "ms"), row),),
    )
"""
SCORED = """
    import json, sys
    from pathlib import Path
    from onnxperf.lab.datasets import read
    from onnxperf.lab.derive.fit import fitted_rows
    from onnxperf.latency.families import constant_sets
    from onnxperf.lab.validate import validate
    data = Path(sys.argv[1])
    scores = sorted({s.name for s in validate(data).scores})
    print(json.dumps([scores, [t.name for t in fitted_rows(read(data), constant_sets()["gemm"])]]))
"""


@pytest.mark.slow
def test_a_dataset_is_one_module_and_is_read_fitted_to_and_scored(tree: Tree, tmp_path_factory: Any) -> None:
    added(tree.folder, "onnxperf/lab/datasets/sources/mine.py", DATASET)
    rows = [f"v100-sxm2-16gb,4096,4096,{k},{k / 400}" for k in (1024, 2048, 4096)]
    data = written(tmp_path_factory.mktemp("data"), "mine", products=["gpu,m,n,k,ms", *rows])
    assert tree.says(SCORED, str(data)) == [["My GEMM"], ["my products"]]
    assert tree.files() == ["onnxperf/lab/datasets/sources/mine.py"]


# a kernel family whose constants are derived

FAMILY = """
    from typing import NamedTuple

    from onnxperf.latency.constants import ConstantSet, Parameter
    from onnxperf.latency.family import KernelFamily
    from onnxperf.latency.processor import streamed
    from onnxperf.latency.terms import plain_terms
    from op_models import op, work


    class Butterfly(NamedTuple):
        points: int
        passes: int


    @op("custom::Butterfly")
    def butterfly(op, x):
        passes = x.shape[-1].bit_length() - 1
        return work(op, Butterfly(x.size, passes), vector=10 * x.size * passes)


    def card(works, cards, dram_share):
        rate = cards.constants.butterfly["dram"] * cards.bandwidth
        memory = works["passes"] * works.bytes / rate * cards.memory
        launch = cards.constants.launch["kernel_s"] * cards.launch
        return plain_terms(0.0, memory, 0.0, launch, memory + launch)


    FITTED = ConstantSet("butterfly", (Parameter("butterfly.dram", "share of the bandwidth", 0.9, 0.3, 1.0),))
    FAMILY = KernelFamily(Butterfly, card, streamed, lambda w, on_tensor: "butterfly", constants=(FITTED,))
"""
BUTTERFLIES = """
    from onnxperf.lab.datasets.dataset import Dataset, File, Kernels
    from onnxperf.lab.datasets.reading import card, number, sizes, work_of
    from onnxperf.lab.datasets.table import Row
    from op_models import Tensor


    def row(r):
        x = Tensor("x", "float32", sizes(r, "rows", "width"))
        return Row("butterflies", card(r["gpu"]), work_of("custom::Butterfly", (x,), x), number(r, "ms") / 1e3)


    DATASET = Dataset(
        "mine", 50, "my clock",
        kernels=(Kernels("butterflies", "Butterflies", "butterfly", 1e-5),),
        files=(File("butterflies.csv.gz", ("gpu", "rows", "width", "ms"), row),),
    )
"""
BUTTERFLIES_SCORED = """
    import json, sys
    from pathlib import Path
    from onnxperf.lab.constants import left_out
    from onnxperf.lab.validate import validate
    scores = {s.name: s.mape for s in validate(Path(sys.argv[1])).scores if s.method == "tile-wave" and not s.gpu}
    print(json.dumps([scores, left_out().butterfly["dram"], left_out("TU104").butterfly["dram"]]))
"""


def derived(tree: Tree, data: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The files of constants before and after they are derived from measurements that have rows for one set only."""
    folders = [tree.folder / f"onnxperf/{name}" for name in ("latency", "latency/constants", "lab/left_out")]
    files = [file for folder in folders for file in folder.iterdir() if file.suffix in (".toml", ".json")]

    def texts() -> dict[str, str]:
        here = (file for folder in folders for file in folder.iterdir() if file.suffix in (".toml", ".json"))
        return {str(file.relative_to(tree.folder / "onnxperf")): file.read_text(encoding="utf-8") for file in here}

    before = texts()
    for file in files:  # no longer a link: it may be written to
        text = file.read_text(encoding="utf-8")
        file.unlink()
        file.write_text(text, encoding="utf-8")
    done = tree.started("-m", "onnxperf.lab.derive", str(data))
    assert not done.returncode, done.stderr
    told, *fitted = done.stderr.splitlines()
    assert told.startswith(f"{data} has no rows for ") and told.endswith(": their constants are left as they ship")
    assert {"vector", "gemm", "power"} <= {*told.split(" for ")[1].split(":")[0].split(", ")}
    assert fitted == [f"fitted {i + 1} of 6" for i in range(6)]  # all rows, without each of 3 dies and 2 generations
    return before, texts()


@pytest.mark.slow
def test_a_kernel_family_with_its_fit_is_one_module_and_a_dataset_has_it_derived_and_scored(
    tree: Tree, tmp_path_factory: Any
) -> None:
    added(tree.folder, "onnxperf/latency/families/butterfly.py", FAMILY)
    share, rows = 0.6, []
    for gpu in ("t4", "v100-sxm2-16gb", "a100-pcie-40gb"):
        for count in (1000, 2000, 4000, 8000):
            seconds = 12 * 2 * 4 * count * 4096 / (share * gpu_specs.load(gpu).bandwidth_Bps) + 11.6e-6
            rows.append(f"{gpu},{count},4096,{1e3 * seconds}")
    data = written(tmp_path_factory.mktemp("data"), "mine", butterflies=["gpu,rows,width,ms", *rows])
    assert tree.says("import json\nfrom onnxperf.latency import shipped\nprint(shipped().butterfly['dram'])") == 0.9
    added(tree.folder, "onnxperf/lab/datasets/sources/mine.py", BUTTERFLIES)
    assert sorted(tree.files()) == ["onnxperf/lab/datasets/sources/mine.py", "onnxperf/latency/families/butterfly.py"]
    before, after = derived(tree, data)
    sets = {
        f"{folder}/{n}.toml" for folder in ("latency/constants", "lab/left_out") for n in ("butterfly", "intervals")
    }
    assert {name for name in after if after[name] != before.get(name)} == sets | {"latency/constants.json"}
    made = tomllib.loads(after["latency/constants/butterfly.toml"])
    made |= tomllib.loads(after["lab/left_out/butterfly.toml"])
    whole, without_t4 = made["constants"], made["without"]["TU104"]
    assert whole["butterfly"]["dram"] == pytest.approx(share, rel=0.03)
    assert without_t4["butterfly"]["dram"] == pytest.approx(share, rel=0.03)
    assert whole["rig"]["butterfly"]["my clock"]["t4"] == pytest.approx(1e-5, rel=0.5)
    scores, dram, dram_without_t4 = tree.says(BUTTERFLIES_SCORED, str(data))
    assert (dram, dram_without_t4) == (whole["butterfly"]["dram"], without_t4["butterfly"]["dram"])
    assert list(scores) == ["Butterflies"] and scores["Butterflies"] < 0.05


# a view

VIEW = """
    def page(p):
        \"\"\"A line for each kernel, and what stands above them.\"\"\"
        run, j = p.run, p.column
        of_node = {n: o.type for o in run.graph.operators for n in o.nodes}
        for i, (k, row) in enumerate(zip(p.kernels, run.kernels.rows, strict=True)):
            yield {
                "name": row.name, "ops": [of_node.get(n) for n in k.nodes], "flops": k.repeat * row.work.flops,
                "seconds": run.estimates.seconds[i, j], "floor": run.estimates.floor_s[i, j],
                "joules": run.estimates.joules[i, j], "start": run.timeline.start_s[i, j],
                "after": [run.kernels.rows[b].name for b in row.after],
            }
        yield {
            "card": run.devices[j].name, "method": run.method.describe, "runtime": run.runtime.describe,
            "bytes": run.memory(j).total_bytes, "seconds": run.timeline.total_s[j], "path": p.critical_path,
            "operators": (len(run.graph.operators), len(run.typed_graph.operators), len(run.run_graph.operators)),
        }
"""


def test_a_view_is_a_function_of_a_prediction(tmp_path: Path) -> None:
    """It imports nothing: a prediction leads to every stage behind it."""
    page = vars(imported(added(tmp_path, "my_view.py", VIEW)))["page"]
    for p in predict_on(["t4", "l4"], BERT, precision="fp16"):
        *lines, total = page(p)
        for line, k in zip(lines, p.kernels, strict=True):
            assert (line["name"], line["flops"], tuple(line["after"])) == (k.name, k.flops, k.after)
            assert (line["seconds"], line["start"]) == (k.seconds, k.start_seconds)
            assert 0 < line["floor"] <= line["seconds"] and line["joules"] >= 0
        assert "Softmax" in {op for line in lines for op in line["ops"]}
        assert (total["bytes"], total["seconds"]) == (p.memory.total_bytes, p.seconds)
        assert total["card"] == gpu_specs.load(p.scenario.gpu).name
        assert {*total["path"]} <= {line["name"] for line in lines}
        given, typed, run = total["operators"]
        assert given == typed != run  # what is fused is one operator; a Gemm of a stack has views around it


# what is not complete


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "text", "says"),
    [
        ("runtimes", "", "it has no RUNTIME; a module of onnxperf.runtimes defines RUNTIME = Runtime(...)"),
        ("runtimes", "from onnxperf.runtimes.tensorrt import RUNTIME",
         "its RUNTIME is called 'tensorrt', which must be 'half-made' as the file is"),
        ("methods", "METHOD = 3",
         "its METHOD is of type int; a module of onnxperf.methods defines METHOD = Method(...)"),
        ("latency/families", "",
         "it has no FAMILY; a module of onnxperf.latency.families defines FAMILY = KernelFamily(...)"),
    ],
)  # fmt: skip
def test_what_a_module_lacks_is_told_with_its_file(tree: Tree, package: str, text: str, says: str) -> None:
    path = added(tree.folder, f"onnxperf/{package}/half_made.py", text)
    asked = ("--runtime", "half-made") if package == "runtimes" else ()
    done = tree.started("-m", "onnxperf", "predict", str(RESNET), "--gpu", "l4", *asked)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"onnxperf: {path} can't be used: {says}\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("from onnxperf.latency import Method\nMETHOD = Method('half-made', 'no function', 3)",
         "TypeError: times of the method 'half-made' must be a function, not 3"),
    ],
)  # fmt: skip
def test_a_module_that_does_not_load_is_told_by_its_name(tree: Tree, text: str, says: str) -> None:
    path = added(tree.folder, "onnxperf/methods/half_made.py", text)
    done = tree.started("-m", "onnxperf", "predict", str(RESNET), "--gpu", "l4")
    told = f"onnxperf: {path}, line {text.count(chr(10)) + 1}, can't be loaded: {says}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("import op_models\n\ndef rule(:\n", 3, "SyntaxError: invalid syntax"),
        ("from op_models.core import no_such_thing", 1, "ImportError: cannot import name 'no_such_thing'"),
        ("from op_models.rules import op\n\n@op('Mine')\ndef rule(op, x=siz):\n    pass\n", 4,
         "NameError: name 'siz' is not defined"),
        ("from op_models.rules import op\n\n@op('Einsum')\ndef rule(op, x):\n    pass\n", 3,
         "OpModelError: operator Einsum has a rule already, op_models.einsum.einsum; a second one would hide it"),
    ],
)  # fmt: skip
def test_a_file_of_operators_that_does_not_load_is_told_with_its_line(
    tree: Tree, text: str, line: int, says: str
) -> None:
    path = added(tree.folder, "op_models/my_operators.py", text)
    for command in (("predict", str(RESNET), "--gpu", "l4"), ("gpus", "l4")):
        done = tree.started("-m", "onnxperf", *command)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert done.stderr.startswith(f"onnxperf: {path}, line {line}, can't be loaded: {says}")
    assert "Traceback" in tree.started("-m", "onnxperf", "gpus", "--debug").stderr


@pytest.mark.slow
def test_a_broken_runtime_stops_no_other(tree: Tree) -> None:
    changed = dedent(RUNTIME).replace("run_s=1e-6", "run_s='8e-6'")
    path = added(tree.folder, "onnxperf/runtimes/my_runtime.py", changed)
    for command in (("gpus", "l4"), ("predict", str(RESNET), "--gpu", "l4", "--runtime", "tensorrt")):
        assert tree.started("-m", "onnxperf", *command).returncode == 0
    done = tree.started("-m", "onnxperf", "predict", str(RESNET), "--gpu", "l4", "--runtime", "my-runtime")
    assert (done.returncode, done.stdout) == (2, "")
    says = "can't be loaded: TypeError: run_s must be seconds, 0 or more, not '8e-6'"
    assert done.stderr.startswith(f"onnxperf: {path}, line ") and says in done.stderr


WRONG = """
    from onnxperf.latency import Method

    def times(works, cards, stored, bound):
        return {gives}

    METHOD = Method("half-made", "what is wrong", times{more})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gives", "more", "code", "says"),
    [
        ("1.0", "", 2, "onnxperf.methods.half_made.times gave a float: it must give KernelTerms"),
        ("bound._replace(seconds=bound.seconds[:0])", "", 2, "times gave seconds (0, 1): it must give KernelTerms"),
        ("bound", ", error_class='none'", 2, "the constants have no ranges for the error class 'none'"),
        ("bound._replace(seconds=bound.seconds * float('nan'))", "", 2, "times gave negative, infinite or NaN seconds"),
        ("bound.second", "", 2, "half_made.times failed with AttributeError: 'KernelTerms' object has no attribute"),
        ("bound.second", "", 2, "half_made.py, line 5"),
        ("1 / 0", "", 70, "unless that file is yours (ZeroDivisionError: division by zero"),
        ("1 / 0", "", 70, "half_made.py, line 5)"),
    ],
)
def test_what_is_wrong_with_a_method_is_told(tree: Tree, gives: str, more: str, code: int, says: str) -> None:
    added(tree.folder, "onnxperf/methods/half_made.py", WRONG.format(gives=gives, more=more))
    done = tree.started("-m", "onnxperf", "predict", str(RESNET), "--gpu", "l4", "--method", "half-made")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert says in done.stderr


@pytest.mark.slow
def test_a_dataset_that_is_not_complete_is_told_with_its_file(tree: Tree) -> None:
    path = added(tree.folder, "onnxperf/lab/datasets/sources/half_made.py", "")
    done = tree.started("-m", "onnxperf", "validate")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{path} can't be used: it has no DATASET" in done.stderr

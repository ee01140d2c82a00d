"""A kernel family and a method of prediction are one file each: both are added here in a temporary folder."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import gpu_specs
import onnxperf
from onnxperf import explanation, methods
from onnxperf.answer.prediction import summarise
from onnxperf.graph import Graph
from onnxperf.ground.errors import UsageError
from onnxperf.lab import constants as constants_of_all
from onnxperf.latency import constant_files, families, shipped
from onnxperf.latency.intervals import DISTANCES, ranges_of
from onnxperf.running.pipeline import Request, run_of
from onnxperf.running.run import Run
from onnxperf.running.terms import TERMS
from op_models import Operator, Tensor, rules

FAMILY = '''
"""Butterflies of a fast transform: one pass over the tensor for each doubling of a block."""

from typing import NamedTuple

import numpy as np

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
    memory = works["passes"] * works.bytes / cards.bandwidth
    compute = works.vector / works.vector_rate
    launch = works["passes"] * cards.constants.launch["kernel_s"] * cards.launch
    return plain_terms(compute, memory, 0.0, launch, np.maximum(compute, memory) + launch)


FAMILY = KernelFamily(Butterfly, card, streamed{error_class})
'''

METHOD = '''
"""Half of the speed of light."""

from onnxperf.latency.method import Method


def times(works, cards, stored, bound):
    return bound._replace(seconds=2 * bound.seconds)


METHOD = Method(name="half-light", describe="twice the bound", times=times, own_terms=True{error_class})
'''

Add = Callable[[ModuleType, str, str], None]


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Add:
    """Add a file to a package for one test, as if it lay in its folder; rules that it registers go with it."""
    monkeypatch.setattr(rules, "_RULES", dict(rules._RULES))

    def to(package: ModuleType, name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        assert [p.name for p in tmp_path.iterdir() if p.suffix] == [f"{name}.py"], "one file is all it takes"
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
        known = families.FAMILIES if package is families else methods.METHODS
        try:
            for key, declared in package.declared().items():
                monkeypatch.setitem(known, key, declared)
            if package is methods:  # whose names are read off the folder
                method = replace(TERMS["method"], choices=tuple(known))
                monkeypatch.setitem(TERMS, "method", method)
        finally:
            sys.modules.pop(f"{package.__name__}.{name}", None)  # one that does not load is not there
            vars(package).pop(name, None)

    return to


def transform(*gpus: str, **terms: str) -> Run:
    """A model of one butterfly of 256 rows of 4096 elements, and an addition behind it."""
    x, y, z = (Tensor(name, "float32", (256, 4096), "activation") for name in "xyz")
    butterfly = Operator("transform", "custom::Butterfly", (x,), (y,), nodes=("transform",))
    add = Operator("add", "Add", (y, y), (z,), version=13, nodes=("add",))
    graph = Graph("model", (butterfly, add), (x,), (z,))
    return run_of(Request(graph, terms=terms), gpus[0] if len(gpus) == 1 else gpus)


def test_a_family_is_one_file(add: Add) -> None:
    add(families, "butterfly", FAMILY.replace("{error_class}", ""))
    run = transform("t4")
    kernel, other = summarise(run).kernels
    t4, passes, nbytes = gpu_specs.load("t4"), 12, 2 * 4 * 256 * 4096
    launch = passes * shipped().launch["kernel_s"]
    assert kernel.seconds == pytest.approx(passes * nbytes / t4.bandwidth_Bps + launch, rel=0.01)
    assert (kernel.bound_by, kernel.source) == ("memory", "analytic")
    assert kernel.flops == 10 * passes * 256 * 4096
    e = explanation.explain_kernel(run, "transform")
    assert e.seconds == kernel.seconds
    [found] = (s for s in e.sections if s.title == "interval")
    assert {"class": "unknown", "half-width": shipped().interval["unknown"]["new"]}.items() <= {
        line.name: line.value for line in found.lines
    }.items()  # of what nobody measured, the range is wide
    assert other.high_seconds / other.seconds < kernel.high_seconds / kernel.seconds


def test_a_family_names_an_error_class_that_has_ranges(add: Add) -> None:
    add(families, "butterfly", FAMILY.replace("{error_class}", ', lambda w, on_tensor: "movement"'))
    kernel = summarise(transform("t4")).kernels[0]
    assert np.log(kernel.high_seconds / kernel.seconds) == pytest.approx(shipped().interval["movement"]["new"])


def test_a_family_whose_error_class_has_no_ranges_is_refused(add: Add) -> None:
    add(families, "butterfly", FAMILY.replace("{error_class}", ', lambda w, on_tensor: "butterflies"'))
    with pytest.raises(UsageError, match=r"no ranges for the error class 'butterflies': add .*interval\.butterflies"):
        summarise(transform("t4"))


def test_a_size_has_one_family(add: Add) -> None:
    copy = FAMILY.replace("{error_class}", "").replace("KernelFamily(Butterfly", "KernelFamily(Pointwise")
    with pytest.raises(onnxperf.Error, match=r"both have a FAMILY for the size Pointwise: a size has one"):
        add(families, "butterfly", copy.replace("import op, work", "import Pointwise, op, work"))


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ("1.0", r"butterfly\.card, of the FAMILY for the size Butterfly, gave a float: it must give KernelTerms"),
        ("terms._replace(seconds=terms.seconds[:0])", r"butterfly\.card, .* gave seconds \(0, 1\): it must"),
        (
            "terms._replace(seconds=np.nan * terms.seconds)",
            r"butterfly\.card, .* gave negative, infinite or NaN seconds",
        ),
        ("terms._replace(seconds=-terms.seconds)", r"butterfly\.card, .* gave negative, infinite or NaN seconds"),
        ("terms._replace(executed_share=np.full((1, 1), np.nan))", r"butterfly\.card, .* NaN executed_share, which"),
        ("terms._replace(workspace=-1 - terms.workspace)", r"butterfly\.card, .* NaN workspace, which"),
        ('works["point"]', r"butterfly\.card, .* size Butterfly has no field 'point'.*butterfly\.py, line 30"),
        ('cards.constants.launch["kernel"]', r"butterfly\.card, .* failed with KeyError: 'kernel', in .*butterfly\.py"),
        ("cards.constants.butterfly", r"butterfly\.card, .* has a table 'butterfly', in .*butterfly\.py, line 30"),
        ("works.byte", r"butterfly\.card, .* failed with AttributeError: 'Works' object has no attribute 'byte', in"),
    ],
)
def test_a_family_that_gives_no_times_is_told_by_its_name(add: Add, returned: str, says: str) -> None:
    text = FAMILY.replace("{error_class}", "").replace("    return plain_terms(", "    terms = plain_terms(")
    add(families, "butterfly", text.replace("+ launch)\n", f"+ launch)\n    return {returned}\n"))
    with pytest.raises(UsageError, match=says):
        summarise(transform("t4"))


def test_a_bound_that_is_no_number_is_told_by_its_family(add: Add) -> None:
    add(
        families,
        "butterfly",
        FAMILY.replace("{error_class}", ", fewest_flops=lambda works, cards: np.nan"),
    )
    with pytest.raises(UsageError, match=r"card_bound, with the FAMILY for the size Butterfly, gave .* NaN seconds"):
        summarise(transform("t4"))


@pytest.mark.parametrize("seconds", ["np.nan * bound.seconds", "-bound.seconds", "bound.seconds / 0"])
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_a_method_whose_times_are_no_numbers_is_refused(add: Add, seconds: str) -> None:
    text = METHOD.replace("{error_class}", "").replace("2 * bound.seconds", seconds)
    add(methods, "half_light", text.replace('"""\n\nfrom', '"""\n\nimport numpy as np\nfrom'))
    with pytest.raises(UsageError, match=r"half_light\.times gave negative, infinite or NaN seconds: it must give"):
        summarise(transform("t4", method="half-light"))


def test_a_method_that_takes_other_arguments_is_told_when_it_is_loaded(add: Add) -> None:
    text = METHOD.replace("{error_class}", "").replace("cards, stored, bound)", "cards)")
    with pytest.raises(
        onnxperf.Error, match=r"half_light.py, line \d+, can't be loaded: .* with 4 arguments: too many"
    ):
        add(methods, "half_light", text)


def test_no_time_at_all_is_a_time(add: Add) -> None:
    add(methods, "half_light", METHOD.replace("{error_class}", "").replace("2 * bound.seconds", "0 * bound.seconds"))
    plain, run = transform("t4"), transform("t4", method="half-light")
    assert np.array_equal(run.estimates.seconds, plain.estimates.floor_s)


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ('Butterfly, card, streamed, "own"', "error_class of the family of Butterfly must be a function, not 'own'"),
        ("Butterfly, card, None", "processor of the family of Butterfly must be a function, not None"),
        ("Butterfly, streamed, lambda works: 1", "processor of the family of Butterfly is called with 3 arguments: "),
        ("int, card, streamed", "the size of a kernel family must be a NamedTuple, not <class 'int'>"),
        ('Butterfly, card, streamed, layer=("width",)', "the size Butterfly has no width, which its family's layer n"),
        ("Butterfly, card, streamed, constants=({},)", "constants of the family of Butterfly must be a tuple of Const"),
    ],
)
def test_what_is_wrong_with_a_family_is_told_when_it_is_loaded(add: Add, declared: str, says: str) -> None:
    text = FAMILY.replace("Butterfly, card, streamed{error_class}", declared)
    with pytest.raises(onnxperf.Error, match=rf"butterfly.py, line \d+, can't be loaded: TypeError: {says}"):
        add(families, "butterfly", text)


SET = """
from onnxperf.latency.constants import ConstantSet, Parameter

FITTED = ConstantSet("{name}", (Parameter("butterfly.dram", "share of the bandwidth", 0.5, 0.3, 1.0),))
FAMILY = KernelFamily(Butterfly, card, streamed, constants=(FITTED,))
"""


def with_a_set(name: str) -> str:
    """The family with a constant that is fitted, in a set of this name."""
    text = FAMILY.replace("/ cards.bandwidth", '/ cards.constants.butterfly["dram"] / cards.bandwidth')
    return text.replace("FAMILY = KernelFamily(Butterfly, card, streamed{error_class})", SET.replace("{name}", name))


@pytest.fixture
def _constants_read_again() -> Iterator[None]:
    """Constants are read once; one test must not leave the next those of its own family."""
    shipped.cache_clear()
    yield
    shipped.cache_clear()


@pytest.fixture
def constants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of constants that ship, in place of the package's own."""
    copy = tmp_path / "package" / "constants"
    shutil.copytree(str(constants_of_all.folder()), copy)
    monkeypatch.setattr(constants_of_all, "folder", lambda: copy)
    return copy


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[constants.own]\n[constants.own]\n", r"own\.toml can't be read: Cannot declare .*twice"),
        ("constants = 3", r"own\.toml can't be used: a value and a table of constants have one name"),
        ("[constants.launch.kernel_s]\nown = 3", r"own\.toml can't be used: a value and a table of constants have one"),
    ],
)
def test_a_broken_file_of_constants_is_told_by_its_name(constants: Path, text: str, says: str) -> None:
    (constants / "own.toml").write_text(text, encoding="utf-8")
    with pytest.raises(onnxperf.Error, match=says):
        constants_of_all.loaded()


def test_ranges_of_an_error_class_are_complete(constants: Path) -> None:
    (constants / "own.toml").write_text("[constants.interval.own]\nmeasured = 0.3\nwithin = 0.5", encoding="utf-8")
    with pytest.raises(UsageError, match=r"no ranges for the error class 'own': add .* with measured, known, new, wi"):
        ranges_of("own", constant_files.over_medians(json.loads(constants_of_all.loaded())))


@pytest.mark.usefixtures("_constants_read_again")
def test_what_nobody_fitted_yet_is_what_its_prior_says(add: Add) -> None:
    add(families, "butterfly", with_a_set("butterfly"))
    assert shipped().butterfly == {"dram": 0.5}
    kernel, nbytes = summarise(transform("t4")).kernels[0], 12 * 2 * 4 * 256 * 4096
    least = nbytes / 0.5 / gpu_specs.load("t4").bandwidth_Bps
    assert kernel.seconds == pytest.approx(least + 12 * shipped().launch["kernel_s"], rel=0.01)


def test_a_table_that_no_file_has_is_told_by_its_name() -> None:
    with pytest.raises(AttributeError, match="no file of constants has a table 'butterfly'"):
        _ = shipped().butterfly


def test_two_sets_of_constants_are_no_one_file(add: Add) -> None:
    add(families, "butterfly", with_a_set("gemm"))
    with pytest.raises(onnxperf.Error, match="two sets of constants are called 'gemm'"):
        families.constant_sets()


def test_a_method_is_one_file(add: Add) -> None:
    add(methods, "half_light", METHOD.replace("{error_class}", ""))
    plain, run = transform("t4"), transform("t4", method="half-light")
    assert np.array_equal(run.estimates.seconds, 2 * plain.estimates.floor_s)
    assert summarise(run).seconds == pytest.approx(float(2 * plain.estimates.floor_s.sum()))
    assert explanation.explain_kernel(run, "add").seconds == summarise(run).kernels[1].seconds


def test_a_method_never_has_the_ranges_of_another(add: Add) -> None:
    add(methods, "half_light", METHOD.replace("{error_class}", ""))
    wide = shipped().interval["unknown"]["new"]
    for gpu in ("t4", "a100", "l4"):  # cards of which elementwise kernels were measured, so that tile-wave is surer
        measured = transform(gpu).estimates.half_width[1, 0]
        assert measured in np.ravel([shipped().interval["elementwise"][x] for x in DISTANCES])
        run = transform(gpu, method="half-light")
        assert (run.estimates.half_width == wide).all() and wide > 2 * measured
        p = summarise(run)
        assert np.log([k.high_seconds / k.seconds for k in p.kernels]) == pytest.approx([wide, wide])
        assert p.high_seconds / p.seconds > 2
    assert [m.name for m in methods.METHODS.values() if not m.error_class] == ["tile-wave"]


def test_a_method_may_have_an_error_class_of_its_own(add: Add) -> None:
    add(methods, "half_light", METHOD.replace("{error_class}", ', error_class="half-light"'))
    run = transform("t4", method="half-light")
    with pytest.raises(UsageError, match="no ranges for the error class 'half-light'"):
        _ = run.estimates
    own = dict.fromkeys(DISTANCES, 0.7) | {"within": 0.5}
    told = Run(run.graph, run.devices, run.scenario, shipped().having({"interval.half-light": own}))
    assert told.estimates.half_width.tolist() == [[1.54], [0.7]]  # no rule knows the first one

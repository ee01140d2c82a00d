"""Releases: how one is named, which rules it has, which opsets it loads, and which of its operators have a kernel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from onnxperf import predict
from onnxperf.fusions import common, ort_basic, ort_extended, ort_quantised, placement
from onnxperf.fusions.engine import BASIC, EXTENDED, Rule, Rules
from onnxperf.fusions.ort_releases import NEWEST, OPSETS
from onnxperf.fusions.placement import has_kernel, place, since
from onnxperf.fusions.tensorrt_importer import NOT_IMPORTED, SINCE
from onnxperf.graph import Graph, load
from onnxperf.ground.errors import ModelError, UsageError
from onnxperf.ground.releases import MOST, Release, opset_in, release, there
from onnxperf.lowering.runtime import check_file
from onnxperf.runtimes import RUNTIMES, of_version, run_graph
from op_models import Operator, Tensor
from tests.runtimes.conftest import OLDER, build

CUDA, TENSORRT = RUNTIMES["ort-cuda"], RUNTIMES["tensorrt"]
RELEASED = {r.name: r for r in RUNTIMES.values() if r.releases}


# what a number stands for


@pytest.mark.parametrize(
    ("text", "stands_for"),
    [("1.16", (1, 16)), ("1.16.3", (1, 16)), ("8.6.1.6", (8, 6)), ("7", (7, 0)), ("10.0", (10, 0))],
)
def test_a_number_is_a_release_without_its_patch_level(text: str, stands_for: tuple[int, int]) -> None:
    assert release(text) == stands_for


@pytest.mark.parametrize("text", ["", "new", "1.", ".5", "1.2.3.4.5", "-1.2", "1,2", "1.16rc1", "99999.1"])
def test_what_is_no_number_is_no_release(text: str) -> None:
    with pytest.raises(ValueError, match="is no release such as"):
        release(text)


def test_releases_come_in_order() -> None:
    assert release("1.9") < release("1.10") < release("1.31") < release("2") < Release(2, MOST)
    assert str(release("1.9.2")) == "1.9"


@pytest.mark.parametrize(
    ("first", "last", "at", "is_there"),
    [
        ("1.17", "", "1.17", True), ("1.17", "", "1.16", False), ("1.7", "1.16", "1.16", True),
        ("1.7", "1.16", "1.17", False), ("1.7", "1.16", "1.6", False), ("6", "7", "7.2", True), ("6", "7", "8", False),
        ("8.5", "", "8.4", False), ("1.17", "", None, True), ("1.7", "1.16", None, False), ("", "", "1.4", True),
    ],
)  # fmt: skip
def test_since_and_until_include_the_releases_they_name(first: str, last: str, at: str | None, is_there: bool) -> None:
    assert there(first, last, release(at) if at is not None else None) == is_there


@pytest.mark.parametrize(
    ("runtime", "named", "stands_for"),
    [
        ("ort-cuda", "1.4", (1, 4)), ("ort-cuda", "1.9.1", (1, 9)), ("ort-cpu", "1.31", (1, 31)),
        ("ort-cuda", " v1.18.0", (1, 18)), ("tensorrt", "7", (7, 2)), ("tensorrt", "8.2.1.8", (8, 2)),
        ("tensorrt", "10.0", (10, 0)), ("tensorrt", "6", (6, 0)),
    ],
)  # fmt: skip
def test_a_runtime_is_there_in_any_of_its_releases(runtime: str, named: str, stands_for: tuple[int, int]) -> None:
    way = of_version(RUNTIMES[runtime], named)
    assert way.release == stands_for
    assert f" {way.release}," in way.describe


@pytest.mark.parametrize(
    ("runtime", "named", "known"),
    [("ort-cuda", "1.3", "1.4 to 1.31"), ("ort-cuda", "1.32", "1.4 to 1.31"), ("tensorrt", "5.1", "6.0 to 10.15"),
     ("tensorrt", "11.0", "6.0 to 10.15"), ("tensorrt", "11", "6.0 to 10.15"), ("ort-cpu", "newest", "1.4 to 1.31")],
)  # fmt: skip
def test_a_release_that_is_not_known_is_refused_with_those_that_are(runtime: str, named: str, known: str) -> None:
    with pytest.raises(UsageError, match=f"'{named}' is no known release of {runtime}: releases {known} are known"):
        of_version(RUNTIMES[runtime], named)


# rules


def listed(rules: Rules) -> Iterator[Rule]:
    yield from (f for level in rules.values() for f in level)


@pytest.mark.parametrize("name", RELEASED)
def test_every_listed_rule_says_since_when(name: str) -> None:
    runtime = RELEASED[name]
    assert runtime.releases is not None
    oldest, newest = runtime.releases.oldest, release(runtime.releases.newest)
    for rule in (*listed(runtime.rules), *listed(runtime.offline)):
        last = release(rule.until, MOST) if rule.until else newest
        assert oldest <= release(rule.since) <= last <= max(newest, Release(newest.major, MOST)), rule


@pytest.mark.parametrize("name", RELEASED)
def test_of_rules_that_follow_each_other_one_is_there_at_a_time(name: str) -> None:
    """Today's release has what no release of its own has; variants of a rule leave no gap and do not overlap."""
    runtime = RELEASED[name]
    for level, rules in runtime.rules.items():
        ended = {f.name for f in rules if f.until}
        for older in OLDER[name]:
            names = [f.name for f in rules if f.name in ended and there(f.since, f.until, release(older))]
            assert len(names) == len(set(names)), (level, older)
        today = [f for f in rules if there(f.since, f.until, None)]
        assert [f for f in rules if there(f.since, f.until, release(runtime.releases.newest))] == today  # type: ignore


#: The rules of level extended of the CUDA provider, by the names under which this package listed them before.
EXTENDED_BEFORE = {
    "1.6": "gelu layer_norm rms_norm matmul_transpose_110 bias_gelu_120 skip_layer_norm_112 bias_skip_layer_norm"
           " fast_gelu bias_softmax_111 matmul_scale",
    "1.10": "gelu layer_norm rms_norm cast_first matmul_transpose_110 bias_gelu_120 skip_layer_norm_112"
            " bias_skip_layer_norm fast_gelu bias_softmax_111 matmul_scale conv_relu",
    "1.11": "gelu layer_norm rms_norm cast_first matmul_transpose bias_gelu_120 skip_layer_norm_112"
            " bias_skip_layer_norm fast_gelu bias_softmax_111 matmul_scale conv_relu",
    "1.12": "gelu layer_norm_of_cast_112 rms_norm_of_cast cast_first matmul_transpose bias_gelu_120"
            " skip_layer_norm_112 bias_skip_layer_norm fast_gelu bias_softmax_116 matmul_scale conv_relu",
    "1.16": "gelu layer_norm_of_cast rms_norm_of_cast split_gathers cast_first matmul_transpose bias_gelu_120"
            " skip_layer_norm_116 bias_skip_layer_norm fast_gelu quick_gelu_or_double bias_softmax_116"
            " matmul_scale conv_relu",
}  # fmt: skip


@pytest.mark.parametrize("older", EXTENDED_BEFORE)
def test_the_releases_known_before_have_the_rules_they_had(older: str) -> None:
    names = EXTENDED_BEFORE[older].split()
    modules = (ort_extended, common)
    expected = [next(vars(m)[n].rule for m in modules if n in vars(m)) for n in names]
    present = [f for f in CUDA.rules[EXTENDED] if there(f.since, f.until, release(older))]
    assert [f.rule for f in present[2:]] == expected, "behind functions and pools"  # type: ignore[union-attr]


def test_rules_of_level_basic_before_1_17() -> None:
    b = ort_basic
    for older, elimination in (("1.16", b.ELIMINATION_116), ("1.13", b.ELIMINATION_116), ("1.12", b.ELIMINATION_112)):
        present = [f for f in CUDA.rules[BASIC] if there(f.since, f.until, release(older))]
        assert [elimination, b.matmul_add_flat_116, b.RESHAPES_128] == [
            f for f in present if f.name in {elimination.name, b.matmul_add.name, b.RESHAPES.name}
        ]
        assert (ort_quantised.requantised in present) == (older != "1.12")


# what differs beside rules


@pytest.mark.parametrize(("older", "layouts"), [("1.19", ()), ("1.20", ("nchw", "nhwc"))])
def test_images_can_be_laid_out_since_1_20(older: str, layouts: tuple[str, ...]) -> None:
    way = of_version(CUDA, older)
    assert tuple(way.layouts) == layouts
    assert all(other.release == way.release for other in way.layouts.values())


def test_training_is_a_release_of_its_own() -> None:
    assert CUDA.training is not None and CUDA.training.releases is None
    assert of_version(CUDA, "1.19").training is None
    with pytest.raises(UsageError, match="leave the release out"):
        of_version(CUDA.training, "1.19")


# opsets


@pytest.mark.parametrize(
    ("older", "opset"),
    [("1.4", 12), ("1.5", 12), ("1.7", 13), ("1.10", 15), ("1.13", 17), ("1.16", 19), ("1.20", 21), ("1.31", 26)],
)
def test_what_opset_a_release_loads(older: str, opset: int) -> None:
    assert opset_in(OPSETS, release(older)) == opset


RELU = "(float[4,8] x) => (float[4,8] y) {y=Relu(x)}"


@pytest.mark.parametrize(
    ("terms", "opset", "says"),
    [
        ({"ort_version": "1.12"}, 18, "ONNX Runtime 1.12 loads opset 17 of ONNX at most, and this model is of opset 18:"
                                      " take 1.14 or a later release, or export it at opset 17"),
        ({"ort_version": "1.4"}, 13, "opset 12 of ONNX at most, and this model is of opset 13: take 1.6 or a later"),
        ({"ort_version": "1.31"}, 27, "no release known loads it: export it at opset 26"),
    ],
)  # fmt: skip
def test_an_opset_that_a_release_does_not_load_is_an_error(terms: dict[str, Any], opset: int, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        predict(build(RELU, {}, opset), gpu="l4", **terms)
    run_graph(
        load(build(RELU, {}, opset)), of_version(RUNTIMES[terms.get("runtime", "ort-cuda")], terms["ort_version"])
    )


def test_one_note_says_what_is_known_of_a_release() -> None:
    said = {}
    for older in ("1.5", "1.12", "1.14", "1.26", "1.31"):
        p = predict(build(RELU, {}, 12), gpu="l4", ort_version=older)
        (said[older],) = [n.message for n in p.warnings if n.code == "release"]
        assert f"ONNX Runtime {older} " in said[older]
    assert "compared with graphs that it wrote" in said["1.12"] and "compared" in said["1.31"]
    assert "inferred from graphs that 1.16 wrote" in said["1.14"] and "what 1.12 lacks" in said["1.14"]
    assert "inferred from graphs that 1.11 wrote" in said["1.5"] and "pull requests" in said["1.5"]
    assert "are dated by small graphs" in said["1.26"] and "those of 1.23 and 1.31 tell" in said["1.26"]
    assert "release" not in {n.code for n in predict(build(RELU, {}, 12), gpu="l4").warnings}


# kernels


def operator(type: str, opset: int, dtype: str = "float32", inputs: int = 1) -> Operator:
    tensors = tuple(Tensor(name, dtype, (4, 4, 4, 4)) for name in "xyz"[:inputs])
    kind = "bool" if type.endswith("OrEqual") else "int64" if type.startswith("Arg") else dtype
    return Operator("o", type, tensors, (Tensor("out", kind, (4, 4, 4, 4)),), {}, opset, ("o",))


@pytest.mark.parametrize(
    ("o", "last_without", "first"),
    [
        (operator("ArgMax", 12), "1.20", "1.21"), (operator("ArgMin", 13), "1.20", "1.21"),
        (operator("ArgMax", 11), None, "1.4"), (operator("GridSample", 16, inputs=2), "1.17", "1.18"),
        (operator("LessOrEqual", 12, inputs=2), "1.7", "1.8"), (operator("GreaterOrEqual", 13, inputs=2), "1.7", "1.8"),
        (operator("LayerNormalization", 17, inputs=2), "1.12", "1.13"), (operator("Mod", 13, inputs=2), "1.12", "1.13"),
        (operator("Trilu", 14), "1.9", "1.10"), (operator("ScatterND", 13), "1.6", "1.7"),
        (operator("ScatterElements", 18), "1.17", "1.18"), (operator("Resize", 18), "1.17", "1.18"),
        (operator("Resize", 13), None, "1.6"), (operator("Einsum", 12), None, "1.4"),
        (operator("Abs", 13, "bfloat16"), "1.21", "1.22"), (operator("Abs", 13), None, "1.6"),
        (operator("Erf", 13, "bfloat16"), "1.17", "1.18"), (operator("CumSum", 11), None, "1.4"),
        (operator("com.microsoft::QuickGelu", 1), "1.13", "1.14"),
    ],
    ids=lambda value: f"{value.type}-{value.version}-{value.present[0].dtype}" if isinstance(value, Operator) else None,
)  # fmt: skip
def test_since_when_an_operator_has_a_kernel(o: Operator, last_without: str | None, first: str) -> None:
    o = Operator(o.name, o.type, o.inputs if o.type not in ("CumSum", "Trilu") else o.inputs[:1], o.outputs, {},
                 o.version, o.nodes)  # fmt: skip
    assert has_kernel(o) and has_kernel(o, release(first))
    if last_without is not None:
        assert opset_in(OPSETS, release(last_without)) < o.version or not has_kernel(o, release(last_without))
        assert since(o) == release(first)


def test_what_a_release_does_not_load_stands_for_what_it_would() -> None:
    """And what a rule has made is a kernel of the release that has the rule."""
    for version, kernel in ((17, False), (18, True), (0, True)):
        assert has_kernel(operator("LayerNormalization", version, inputs=2), release("1.12")) == kernel


@pytest.mark.parametrize(("older", "falls"), [("1.20", True), ("1.21", False), (None, False)])
def test_an_operator_without_a_kernel_falls_back_to_the_host_with_a_note(older: str | None, falls: bool) -> None:
    text = "(float[8,19,64] x) => (int64[8,1,64] y) {a=Relu(x) y=ArgMax<axis=1>(a)}"
    placed = place(load(build(text, {}, 13)), older and release(older))  # type: ignore[arg-type]
    ways = [(o.type, o.place) for o in placed.operators]
    assert ways == [("Relu", "gpu"), ("MemcpyToHost", "copy"), ("ArgMax", "host")] if falls else ways[-1][1] == "gpu"
    says = [n.message for n in placed.notes if n.code == "host-fallback"]
    kernel = "has no CUDA kernel for ArgMax in float32 at this opset (1.21 has one): it runs on the host"
    assert says == [f"ONNX Runtime 1.20 {kernel}"] * falls


def test_the_table_of_kernels_is_of_operators_types_and_releases_that_there_are() -> None:
    folder = Path(placement.__file__).parent
    kernels = json.loads((folder / "cuda_kernels.json").read_text(encoding="utf-8"))["kernels"]
    table = json.loads((folder / "cuda_releases.json").read_text(encoding="utf-8"))["since"]
    assert table.keys() <= kernels.keys() and list(table) == sorted(table)
    for name, versions in table.items():
        known = {
            t
            for kernel in kernels[name].values()
            for a in kernel
            for r in a.split()
            for t in r.split("=")[1].split(",")
        }
        for version, types in versions.items():
            assert int(version) > 0 and types.keys() <= known | {"*"}, name
            assert all(release("1.4") < release(first) <= release(NEWEST) for first in types.values())


# what TensorRT imports


@pytest.mark.parametrize(
    ("older", "type", "first"),
    [("7", "OneHot", "8.5"), ("8.4", "OneHot", "8.5"), ("7", "ScatterND", "8.2"), ("8.5", "LayerNormalization", "8.6")],
)
def test_an_operator_that_a_release_does_not_import_is_named_with_the_first_that_does(
    older: str, type: str, first: str
) -> None:
    graph = Graph("g", (operator(type, 17),), (), ())
    says = f"can't import this model: {type} .*: release .* has no such operator: take {first}"
    with pytest.raises(ModelError, match=says):
        check_file(graph, of_version(TENSORRT, older))
    for way in (of_version(TENSORRT, first), TENSORRT):
        check_file(graph, way)
        assert way.refused(graph.operators[0]) == ""


def test_an_opset_that_tensorrt_does_not_support_is_no_error_where_it_has_the_operators() -> None:
    """The importer takes operators one by one, and only warns of a later opset."""
    assert predict(build(RELU, {}, 20), gpu="t4", runtime="tensorrt", ort_version="7").seconds > 0


def test_no_operator_is_both_refused_and_imported_since() -> None:
    assert not NOT_IMPORTED & SINCE.keys()


@pytest.mark.parametrize(
    ("scales", "mode", "version", "is_said"),
    [([1, 1, 2, 2, 2], "nearest", "1.24", True), ([1, 1, 2, 2, 2], "nearest", "1.25", False),
     ([1, 1, 2, 2, 2], "nearest", None, False), ([1, 1, 1, 2, 2], "nearest", "1.24", False),
     ([1, 1, 2, 2, 2], "linear", "1.24", False)],
)  # fmt: skip
def test_a_nearest_resize_of_a_volume_has_its_kernel_from_1_25_on(
    scales: list[int], mode: str, version: str | None, is_said: bool
) -> None:
    """libonnxruntime_providers_cuda.so of 1.25.0 has _ResizeNearestKernel3D, that of 1.24.4 has not."""
    shape = ",".join(str(n * scale) for n, scale in zip((1, 2, 4, 4, 4), scales, strict=True))
    attributes = f'<mode="{mode}", coordinate_transformation_mode="asymmetric", nearest_mode="floor">'
    text = f"(float[1,2,4,4,4] x) => (float[{shape}] y) {{y=Resize{attributes}(x,,s)}}"
    model = build(text, {}, 13)
    model.graph.initializer.append(helper.make_tensor("s", TensorProto.FLOAT, [5], scales))
    p = predict(model, gpu="t4", ort_version=version)
    said = [n for n in p.warnings if n.code == "general-resize"]
    assert bool(said) == is_said and all("take 1.25 or a later release" in n.message for n in said)
    assert ("general-resize" in p.report()) == is_said

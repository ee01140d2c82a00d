"""An explanation is the estimate, taken apart: its numbers are those of `predict`, and its factors multiply to them."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpu_specs
import onnxperf
from onnxperf import UsageError, explanation
from onnxperf.answer.prediction import summarise
from onnxperf.explanation.trace import origins
from onnxperf.graph import Graph
from onnxperf.latency import shipped
from onnxperf.latency.constants import Constants
from onnxperf.running.pipeline import Request, run_of
from onnxperf.running.run import Run
from op_models import Operator, Tensor
from tests.goldens import golden
from tests.test_cli import SAMPLES, run

Cli = Callable[..., tuple[int, str, str]]
HALF = {"precision": "fp16", "runtime": "tensorrt"}
BERT, RESNET = (str(SAMPLES / f"{name}.onnx") for name in ("bert-base", "resnet50"))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.delenv("COLUMNS", raising=False)
    return lambda *arguments: run(capsys, monkeypatch, "explain", *arguments)


def of_product(sizes: tuple[int, ...], gpu: str, **terms: str) -> Run:
    return run_of(Request(explanation.product_graph(sizes), terms=terms), gpu)


def check(e: explanation.Explanation) -> None:
    """The factors multiply to the rate; the last step, made from the kernel's own terms, lasts as long as predicted."""
    assert e.product == pytest.approx(e.achieved / e.peak, rel=1e-8)
    assert e.steps[-1].seconds == pytest.approx(e.seconds, rel=1e-8)
    assert all(s.factor > 0 for s in e.steps)
    assert e.low_seconds <= e.seconds <= e.high_seconds
    [found] = ({line.name: line.value for line in s.lines} for s in e.sections if s.title == "interval")
    widths = np.atleast_1d(shipped().interval[str(found["class"])][str(found["card"])])
    width = widths[("small", "medium", "large").index(str(found["size"])) if "size" in found else 0]
    if "domain" in found:
        width = max(shipped().interval["outside"] * width, shipped().interval["outside_least"])
    assert width == pytest.approx(found["half-width"])
    json.loads(e.to_json())


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("explain-gemm.txt", ("--gemm", "4096x4096x4096", "--gpu", "l4", "--precision", "fp32")),
        ("explain-tensor.txt", ("--gemm", "16x512x512x64", "--gpu", "a100", "--precision", "fp16")),
        ("explain-conv.txt", (RESNET, "--gpu", "t4", "--node", "node_Conv_811")),
        ("explain-fused.txt", (BERT, "--gpu", "v100-sxm2-16gb", "--node", "node_add_1")),
    ],
)
def test_every_explanation_looks_as_it_did(cli: Cli, name: str, arguments: tuple[str, ...]) -> None:
    code, out, err = cli(*arguments)
    assert (code, err) == (0, "")
    golden(name, out)


@pytest.mark.slow
@pytest.mark.parametrize("model, gpu", [("bert-base", "l4"), ("mobilenetv2", "p4"), ("resnet50", "h100-sxm")])
@pytest.mark.parametrize("terms", [{}, {"precision": "fp32"}, {"method": "roofline"}, {"method": "sum"}, HALF])
def test_the_numbers_are_those_of_predict(model: str, gpu: str, terms: dict[str, str]) -> None:
    run = run_of(Request(str(SAMPLES / f"{model}.onnx"), terms={**terms, "include_transfers": True}), gpu)
    prediction = summarise(run)
    for kernel in {(k.op, k.variant): k for k in prediction.kernels}.values():
        e = explanation.explain_kernel(run, kernel.name)
        assert e.seconds == kernel.seconds / kernel.repeat
        assert (e.kernel, e.bound_by) == (kernel.name, kernel.bound_by)
        check(e)


def test_layers_and_operators_that_no_sample_has() -> None:
    def tensor(name: str, *shape: int, kind: str = "weight") -> Tensor:
        return Tensor(name, "float32", shape, kind)

    x, y = tensor("x", 25, 16, 512, kind="input"), tensor("y", 25, 1, 16, 512, kind="activation")
    weights = (tensor("w", 1, 2048, 512), tensor("r", 1, 2048, 512))
    for type, inputs in (("LSTM", (x, *weights)), ("custom::Thing", (x,))):
        one = Operator("one", type, inputs, (y,), {"hidden_size": 512}, 14, ("node",))
        e = explanation.explain_kernel(run_of(Request(Graph("model", (one,), (x,), (y,))), "t4"), "node")
        assert e.kernel == "one"
        check(e)
    assert "no rule fits custom::Thing" in e.remark


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 9000), min_size=3, max_size=4),
    st.sampled_from(gpu_specs.ids()),
    st.sampled_from(("keep", "fp32", "fp16", "bf16")),
)
def test_factors_multiply_to_the_rate(sizes: list[int], gpu: str, precision: str) -> None:
    if len(sizes) == 4:
        sizes[0] = 1 + sizes[0] % 64
    e = explanation.explain_kernel(of_product(tuple(sizes), gpu, precision=precision))
    check(e)
    assert e.steps[0].rate == e.peak


@pytest.mark.parametrize("method", ["tile-wave", "sum", "roofline"])
def test_corrections_are_a_step_where_the_method_has_them(method: str) -> None:
    l4 = gpu_specs.load("l4")
    found = replace(l4.corrections, operators=replace(l4.dense_flops, pairs=(("MatMul", 2.0),)))
    request = Request(explanation.product_graph((512, 768, 1024)), terms={"method": method})
    e = explanation.explain_kernel(run_of(request, replace(l4, corrections=found)))
    assert e.steps[-1].seconds == pytest.approx(e.seconds, rel=1e-8)
    assert ("calibration" in {s.name for s in e.steps}) == (method != "roofline")


def test_details_belong_to_the_chosen_tile() -> None:
    e = explanation.explain_kernel(of_product((1000, 3000, 512), "a100", precision="fp16"))
    lines = {line.name: line.value for section in e.sections for line in section.lines}
    rows, columns, splits = (float(lines[n]) for n in ("tile rows", "tile columns", "splits"))
    assert str(lines["variant"]).startswith(f"{rows:.0f}x{columns:.0f}")
    assert lines["blocks"] == -(-1000 // rows) * -(-3000 // columns) * splits
    assert lines["waves"] == pytest.approx(float(lines["blocks"]) / gpu_specs.load("a100").sms)


def test_only_constants_that_were_read_matter() -> None:
    run = of_product((512, 768, 1024), "t4", precision="fp32")
    before = explanation.explain_kernel(run)
    [read] = (section.lines for section in before.sections if section.title == "constants read")
    named = {line.name: line.formula for line in read}
    assert "kernel_s" in named["launch"]
    assert not {"transfer", "attention", "rows", "convolution"} & named.keys()
    spoiled = {"transfer.start_s": 1.0, "attention.efficiency": 1e-9, "rows.row_s": 1.0}
    other = shipped().having(spoiled)
    after = explanation.explain_kernel(replace(run, constants=other))
    assert (after.seconds, after.steps) == (before.seconds, before.steps)


def test_every_constant_has_its_file() -> None:
    def paths(c: Constants) -> set[str]:
        found, level = {"source"}, list(c.tables.items())
        while level:
            head, table = level.pop()
            level += [(f"{head}.{k}", v) for k, v in table.items() if isinstance(v, dict)]
            found |= {f"{head}.{k}" for k, v in table.items() if not isinstance(v, dict)}
        return found

    assert paths(shipped()) == set(origins())


def test_json(cli: Cli, tmp_path: Path) -> None:
    product = ("--gemm", "256x256x256", "--gpu", "l4")
    code, out, err = cli(*product, "--json", "-")
    e = json.loads(out)
    assert (code, err, e["schema_version"], e["gpu"]) == (0, "", 1, "l4")
    assert {line["name"] for section in e["sections"] for line in section["lines"]} >= {
        "GEMM FLOPs",
        "compute",
        "class",
    }
    target = tmp_path / "e.json"
    code, out, _ = cli(*product, "--json", str(target))
    assert code == 0 and out.startswith("gemm (MatMul) on NVIDIA L4")
    assert json.loads(target.read_text()) == e


@pytest.mark.parametrize(
    "arguments, says",
    [
        ((BERT, "--node", "nod_add_1"), "did you mean node_add_1"),
        ((BERT, "--node", "zzz"), "predict --detail lists all kernels"),
        ((BERT, "--node", "node_view"), "has no kernel under ort-cuda"),
        ((BERT, "--node", ""), "predict --detail lists all kernels"),
        ((), "MODEL, with or without --node NAME, or --gemm alone"),
        ((BERT, "--gemm", "4x4x4"), "MODEL, with or without --node NAME, or --gemm alone"),
        (("--gemm", "4x4"), "write MxNxK or BxMxNxK"),
        (("--gemm", "4x0x4"), "write MxNxK or BxMxNxK"),
        (("--gemm", "4x4x4", "--batch", "2"), "--gemm sets all sizes: leave --batch out"),
        (("--gemm", "4x4x4", "--dim", "n=2", "--trip-count", "l=2"), ": leave --dim, --trip-count out"),
        *(
            ((*what, *option.split()), f"no effect on one kernel: leave {option.split()[0]} out")
            for what in (("--gemm", "4x4x4"), (BERT, "--node", "node_add_1"))
            for option in ("--cuda-graph", "--streams 4", "--host desktop")
        ),
        *(
            (("--gemm", "4x4x4", *given.split()), f"no effect on one kernel: leave {flags} out")
            for given, flags in (
                ("--opt-level disabled --ort-version 1.12", "--opt-level, --ort-version"),
                ("--ort-transformers --include-transfers", "--ort-transformers, --include-transfers"),
            )
        ),
        (
            (BERT, "--node", "node_add_1", "--include-transfers"),
            "no effect on node_layer_norm: leave --include-transfers out",
        ),
    ],
)
def test_what_can_not_be_explained_is_said(cli: Cli, arguments: tuple[str, ...], says: str) -> None:
    code, out, err = cli(*arguments, "--gpu", "l4")
    assert (code, out) == (2, "")
    assert says in err and err.startswith("onnxperf: ") and err.count("\n") == 1


def test_a_fused_node_leads_to_its_kernel(cli: Cli) -> None:
    _, out, _ = cli(BERT, "--gpu", "l4", "--node", "node_add_1")
    assert "fuses node_add_1, node_layer_norm into one kernel" in " ".join(out.split())


def test_a_copy_of_an_input_can_be_explained(cli: Cli) -> None:
    copy = (BERT, "--gpu", "l4", "--include-transfers", "--node", "input_ids.h2d")
    pinned, pageable = (json.loads(cli(*copy, *more, "--json", "-")[1])["seconds"] for more in ((), ("--pageable",)))
    assert pageable > pinned > 0


def test_defaults_may_be_spelled_out(cli: Cli) -> None:
    product = ("--gemm", "4x4x4", "--gpu", "l4")
    assert cli(*product, "--streams", "1", "--opt-level", "all") == cli(*product)


@pytest.mark.parametrize("precision", ["fp16", "fp32", "int8"])
@pytest.mark.parametrize("gpu", ["t4", "l4", "h100"])
def test_no_runner_up_is_faster_than_the_choice(gpu: str, precision: str) -> None:
    r = run_of(Request(RESNET, terms={"precision": precision, "runtime": "tensorrt"}), gpu)
    found = 0
    for k in r.kernels.rows[:12]:
        e = explanation.explain_kernel(r, k.name)
        lines = {line.name: line.value for s in e.sections for line in s.lines}
        if "runner-up seconds" in lines:
            found += 1
            assert float(lines["runner-up seconds"]) >= e.seconds * (1 - 1e-9)
    assert found


def test_a_product_is_explained_from_python_as_on_the_command_line() -> None:
    e = onnxperf.explain(gemm="4096x4096x4096", gpu="t4")
    assert e.seconds == onnxperf.explain(gemm=(4096, 4096, 4096), gpu="t4").seconds > 0
    assert (e.op, e.limit) == ("MatMul", e.bound_by)
    for terms, says in (({"gemm": "4096"}, "gemm '4096' is not valid"), ({}, "a model, with or without a node"),
                        ({"gemm": "8x8x8", "batch": 2}, "gemm sets all sizes: leave batch")):  # fmt: skip
        with pytest.raises(UsageError, match=says):
            onnxperf.explain(gpu="t4", **terms)


def test_an_elementwise_kernel_is_limited_by_instructions_not_by_flops() -> None:
    """A broadcast computes an address for each element, which takes far longer than its addition."""
    terms = {"precision": "fp16", "batch": 8, "dims": {"sequence": 128}}
    e = onnxperf.explain(SAMPLES / "gpt2-dynamic.onnx", "node_add_17", gpu="a100", **terms)
    assert (e.bound_by, e.limit) == ("compute", "instruction issue")
    assert e.worst and e.worst.name == "issue, latency"
    lines = {line.name: line for section in e.sections for line in section.lines}
    assert lines["compute"].formula.startswith("instruction issue: ") and lines["bound by"].value == e.limit
    rate = re.search(r"([0-9.]+) MB at ([0-9.]+) TB/s of L2", lines["floor: bytes"].formula)
    assert rate and float(rate[1]) * 1e6 / (float(rate[2]) * 1e12) == pytest.approx(
        lines["floor: bytes"].value, rel=0.01
    )


def test_what_loses_most_is_of_what_bounds_the_kernel() -> None:
    for gemm, name in (("32x32x32", "launch"), ("1x8192x8192", "memory")):
        e = onnxperf.explain(gemm=gemm, gpu="a100", precision="fp16")
        assert e.bound_by == name and (e.worst is None or e.worst.name == name)


@pytest.mark.parametrize("terms", [
    {}, {"cuda_graph": True}, {"streams": 4}, {"method": "sum"}, {"method": "roofline"}, {"include_transfers": True},
    {"runtime": "tensorrt", "precision": "fp16", "batch": 16}, {"runtime": "torch-eager", "mode": "training"},
    {"power_limit_W": 40.0, "batch": 32},
])  # fmt: skip
@pytest.mark.parametrize("model", ["alexnet", "gpt2", "unet"])
def test_the_causes_of_a_run_add_to_its_time(model: str, terms: dict[str, object]) -> None:
    p = onnxperf.predict(SAMPLES / f"{model}.onnx", gpu="t4", **terms)
    e = explanation.explain_run(p.run)
    found = {x.cause: x.seconds for x in e.losses}
    assert sum(found.values()) == pytest.approx(e.seconds, rel=1e-6) and e.seconds == p.seconds
    assert all(
        s > -1e-6 * e.seconds for cause, s in found.items() if cause not in ("stream overlap", "GEMM and conv at peak")
    )
    assert e.achieved == pytest.approx(p.work["matrix_flops"] / p.seconds)
    assert e.peak <= max(p.device.dense_flops.values()) * 1.0001
    json.loads(e.to_json())


def test_a_product_at_peak_takes_what_the_datasheet_says() -> None:
    e = explanation.explain_run(of_product((8192, 8192, 8192), "a100", precision="fp16"))
    found = {x.cause: x.seconds for x in e.losses}
    assert e.peak == pytest.approx(312e12) and found["GEMM and conv at peak"] == pytest.approx(
        2 * 8192**3 / 312e12, rel=0.01
    )
    assert e.intensity == pytest.approx(2 * 8192**3 / (3 * 2 * 8192**2)) and e.ridge_point == pytest.approx(
        312e12 / 2.039e12
    )
    assert found["kernel launch"] < 0.02 * e.seconds and 0.5 < e.achieved / e.peak < 1


def test_what_the_bytes_take_at_least_is_memory_traffic() -> None:
    """A set a little larger than L2: all its bytes from DRAM take longer than the model says of it."""
    p = onnxperf.predict(RESNET, gpu="l4", batch=8)
    bound = p.run.estimates.floor_s[:, 0] > 0.999 * p.run.estimates.seconds[:, 0]
    assert bound.any(), "a kernel at its bound"
    found = {x.cause: x.seconds for x in explanation.explain_run(p.run).losses}
    launched = sum(k.seconds for k in p.kernels if k.bound_by == "launch")
    assert found["kernel launch"] < launched + 0.05 * p.seconds
    assert found["other operators"] > 0.9 * sum(k.seconds for k, at in zip(p.kernels, bound, strict=True) if at)


def test_a_whole_run_is_explained_on_the_command_line(cli: Cli) -> None:
    code, out, _ = cli(RESNET, "--gpu", "l4", "--host", "server-2018")
    assert code == 0 and "of the 60.58 TFLOP/s on the datasheet" in out and "low occupancy" in out
    code, out, _ = cli(RESNET, "--gpu", "l4", "--json", "-")
    found = json.loads(out)
    assert code == 0 and sum(x["seconds"] for x in found["losses"]) == pytest.approx(found["seconds"], rel=1e-6)
    whole = onnxperf.explain(RESNET, gpu="l4")
    assert isinstance(whole, onnxperf.RunExplanation) and whole.seconds == found["seconds"]
    code, _, err = cli("--gpu", "l4")
    assert code == 2 and "explain takes MODEL, with or without --node NAME, or --gemm alone" in err

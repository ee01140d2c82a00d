"""Several GPUs: plans, what each GPU computes and exchanges, and what holds of any plan."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import onnxperf
from onnxperf.cli import cli
from onnxperf.ground.errors import UsageError
from onnxperf.latency.estimate import ledger
from onnxperf.latency.families import collective
from onnxperf.lowering.lower import Kernel
from onnxperf.passes.plan import Plan, parse_plan, per_gpu
from onnxperf.running.microbatches import Stage, bubble, through
from onnxperf.schedule import HostThread, Task, run_tasks
from op_models import Collective
from tests.shallow import shallow

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "samples"
CLUSTERS = ROOT / "gpu_specs" / "clusters"
SCHEMA = json.loads((ROOT / "onnxperf" / "answer" / "prediction.schema.json").read_text(encoding="utf-8"))
LAYERS = 4
STEP = {"runtime": "torch-eager", "mode": "training", "optimizer": "adam"}


@pytest.fixture(scope="module")
def gpt2() -> Iterator[Any]:
    """With a third of its layers, which is enough for most of what is asked."""
    yield onnxperf.load(shallow("gpt2-dynamic", LAYERS))
    ONCE.clear()


@pytest.fixture(scope="module")
def whole_gpt2() -> Any:
    """Of which the head is a smaller part."""
    return onnxperf.load(SAMPLES / "gpt2-dynamic.onnx")


#: Predictions that tests share, by what was asked.
ONCE: dict[str, onnxperf.Prediction] = {}


def predict(model: Any, plan: str | None = None, batch: int = 8, **terms: Any) -> onnxperf.Prediction:
    """Predicted once for all tests; `anew` is for those that change how."""
    key = repr((model, plan, batch, sorted(terms.items())))
    if key not in ONCE:
        ONCE[key] = anew(model, plan, batch, **terms)
    return ONCE[key]


def anew(model: Any, plan: str | None = None, batch: int = 8, **terms: Any) -> onnxperf.Prediction:
    found = onnxperf.predict(model, gpu="a100-sxm4-40gb", batch=batch, dims={"sequence": 64}, parallel=plan, **terms)
    assert isinstance(found, onnxperf.Prediction)
    return found


def exchanges(p: onnxperf.Prediction) -> list[Collective]:
    return [k.work.size for k in p.kernels if isinstance(k.work.size, Collective)]


# plans


def test_a_plan_is_read_and_written() -> None:
    for text in ("dp=2,tp=4", "tp=8", "pp=4:microbatches=8", "dp=2,tp=2,pp=2:microbatches=4,ep=2"):
        assert str(parse_plan(text, None)) == text
    assert parse_plan("tp=4,dp=2", 8) == Plan(dp=2, tp=4)
    assert parse_plan(None, None) == parse_plan("dp=1", 1) == Plan()


@pytest.mark.parametrize(
    ("text", "gpus", "says"),
    [
        ("dp=2,tp=2", 8, "takes 4 GPUs, not 8: dp=4,tp=2 does"),
        ("dp=3,tp=3", 8, "takes 9 GPUs, not 8: give --gpus 9"),
        (None, 4, "4 GPUs need a plan"),
        ("fsdp=4", None, "is not a plan"),
        ("tp=2,tp=2", None, "each kind once"),
        ("tp=0", None, "must be a number from 1"),
        ("tp=4:microbatches=2", None, "is not a plan"),
        ("dp=65536,tp=2", None, "takes 131,072 GPUs"),
        ("tp=2", True, "whole number"),
    ],
)
def test_what_is_no_plan_is_refused(text: str | None, gpus: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_plan(text, gpus)


def test_a_batch_that_does_not_come_out_is_refused_with_the_nearest_that_does() -> None:
    assert per_gpu(8, parse_plan("dp=4", None)) == 2
    for batch, plan, says in (
        (6, "dp=4", r"by 4 \(dp=4\), 2 of it are left over: give --batch 8, or a plan that divides it by 3"),
        (5, "dp=2,pp=2:microbatches=2", r"by 4 \(2 x 2, of .*\), 1 of it is left over: .* leaves it whole"),
    ):
        with pytest.raises(UsageError, match=f"batch of {batch} .* divided {says}"):
            per_gpu(batch, parse_plan(plan, None))


# laws


@pytest.mark.parametrize("plan", ["dp=1", "tp=1", "pp=1", "ep=1"])
@pytest.mark.parametrize("terms", [{}, STEP], ids=["inference", "training"])
def test_a_plan_of_one_gpu_changes_nothing(gpt2: Any, plan: str, terms: dict[str, Any]) -> None:
    assert predict(gpt2, plan, **terms).to_dict() == predict(gpt2, **terms).to_dict()


@pytest.mark.parametrize("kind", ["dp", "tp", "pp"])
def test_more_gpus_never_take_more_memory_of_each(gpt2: Any, kind: str) -> None:
    held = [predict(gpt2, f"{kind}={n}").memory.total_bytes for n in (1, 2, 4)]
    assert held == sorted(held, reverse=True) and held[0] > held[-1]


@pytest.mark.parametrize("kind", ["tp", "pp"])
def test_nor_in_training(gpt2: Any, kind: str) -> None:
    """Data parallelism has buckets beside the gradients, but no more of them with more GPUs."""
    held = [predict(gpt2, f"{kind}={n}", **STEP).memory.total_bytes for n in (1, 2, 4)]
    assert held == sorted(held, reverse=True)
    assert predict(gpt2, "dp=4", **STEP).memory.total_bytes <= predict(gpt2, "dp=2", **STEP).memory.total_bytes


@pytest.mark.parametrize(
    ("plan", "terms"),
    [
        ("dp=4", {}), ("tp=4", {}), ("pp=4:microbatches=2", {}), ("tp=2,pp=2:microbatches=2", {}), ("dp=2,tp=2", STEP),
        ("pp=4:microbatches=2", STEP), ("tp=2,pp=2:microbatches=2", STEP),
    ],
)  # fmt: skip
def test_answers_of_several_gpus_keep_the_contract(gpt2: Any, plan: str, terms: dict[str, Any]) -> None:
    p = predict(gpt2, plan, **terms)
    found = p.to_dict()
    jsonschema.validate(found, SCHEMA)
    assert sum(p.bound_by.values()) == pytest.approx(1)
    assert found["parallel"]["exposed_communication_seconds"] <= p.seconds
    assert p.throughput_per_second == pytest.approx(8 / p.seconds) and found["batch"] == 8
    assert p.lower_bound_seconds <= p.seconds
    json.loads(p.to_trace())
    assert "GPUs" in p.report(detail=True)


@pytest.mark.parametrize(
    ("plan", "rows"),
    [
        ("tp=2", ["GPUs 0-1, identical"]),
        ("dp=2,tp=2", ["GPUs 0-3, identical"]),
        ("tp=2,pp=2", ["stage 1 of 2: GPUs 0-1, identical", "stage 2 of 2: GPUs 2-3, identical"]),
    ],
)
def test_a_trace_says_whose_rows_it_has(gpt2: Any, plan: str, rows: list[str]) -> None:
    p = predict(gpt2, plan, **STEP)
    events = json.loads(p.to_trace())
    names = [e["args"]["name"].partition("), ")[2] for e in events if e["name"] == "process_name"]
    assert names == rows
    lanes = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert lanes == {"host", *(k.stream for k in p.kernels)} and len(lanes) == (3 if plan == "tp=2" else 4)
    (run,) = (e for e in events if e["name"] == "model_run")
    assert run["args"]["parallel"] == plan


# tensor parallelism


def test_a_transformer_is_divided_as_megatron_does(gpt2: Any) -> None:
    """Two all-reduces a layer forward, one for the embedding; the same number backward; products fall to a quarter."""
    one, four = predict(gpt2), predict(gpt2, "tp=4")
    reduced = [x for x in exchanges(four) if x.kind == "all_reduce"]
    assert len(reduced) == 2 * LAYERS + 1 and {x.bytes for x in reduced} == {8 * 64 * 768 * 4}
    assert [x.bytes for x in exchanges(four) if x.kind == "all_gather"] == [8 * 64 * 50257 * 4]
    assert one.work["matrix_flops"] / four.work["matrix_flops"] == pytest.approx(4, rel=1e-3)  # padded vocabulary
    step, shared = predict(gpt2, **STEP), predict(gpt2, "tp=4", **STEP)
    assert step.work["matrix_flops"] / shared.work["matrix_flops"] == pytest.approx(4, rel=1e-3)
    assert sum(x.kind == "all_reduce" for x in exchanges(shared)) == 2 * (2 * LAYERS + 1)


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("llama-3.2-1b", {"sequence": 32}), ("opt-1.3b", {"sequence": 32}), ("bert-base", {}),
        ("vit-base-16", {}), ("clip-vit-b-32", {}), ("whisper-base-encoder", {}),
        ("t5-small", {"sequence": 32, "decoder_sequence": 32}),
    ],
)  # fmt: skip
def test_other_transformers_are_divided_whole(name: str, dims: dict[str, int]) -> None:
    """But for layers at the ends: the matrices of a GPU are about half of all."""
    at = {"gpu": "h100-sxm", "dims": dims, "batch": 1}
    one = onnxperf.predict(str(SAMPLES / f"{name}.onnx"), **at)
    two = onnxperf.predict(str(SAMPLES / f"{name}.onnx"), parallel="tp=2", **at)
    assert 0.5 <= two.work["matrix_flops"] / one.work["matrix_flops"] < 0.56
    assert two.memory.weights_bytes < 0.62 * one.memory.weights_bytes


def test_caches_are_divided_by_heads() -> None:
    at = {"gpu": "h100-sxm", "dims": {"past": 512}, "batch": 4}
    path = str(SAMPLES / "llama-3.2-1b-past.onnx")
    one, two = onnxperf.predict(path, **at), onnxperf.predict(path, parallel="tp=2", **at)
    heads = [{t.name: t.shape for t in p.run.own_graph.inputs}["past_key_values.0.key"][1] for p in (one, two)]
    assert heads == [8, 4]


def test_heads_that_are_not_divided_are_named_with_the_nearest_number(gpt2: Any) -> None:
    with pytest.raises(UsageError, match=r"tp=8 does not divide 12 heads .*tp=4 fits, with dp=2"):
        predict(gpt2, "tp=8")
    with pytest.raises(UsageError, match=r"tp=5 does not divide the 2,304 columns .*tp=4 fits"):
        predict(gpt2, "tp=5")
    with pytest.raises(UsageError, match="take dp or pp"):
        onnxperf.predict(str(SAMPLES / "resnet50.onnx"), gpu="l4", parallel="tp=2")


# data parallelism


def test_each_gpu_computes_its_part_of_the_batch(gpt2: Any) -> None:
    one, four = predict(gpt2, batch=2), predict(gpt2, "dp=4", batch=8)
    assert four.work == one.work and four.seconds == one.seconds
    assert four.throughput_per_second == pytest.approx(4 * one.throughput_per_second)


def test_gradients_are_averaged_in_buckets_while_the_backward_pass_goes_on(whole_gpt2: Any) -> None:
    p = predict(whole_gpt2, "dp=4", **STEP)
    training = p.training or {}
    assert sum(x.bytes for x in exchanges(p)) == training["gradient_bytes"]
    first, *others = exchanges(p)
    assert first.bytes >= 1 << 20 and min(x.bytes for x in others[:-1]) >= 25 << 20
    parallel = p.parallel or {}
    assert parallel["exposed_communication_seconds"] < 0.5 * parallel["communication_seconds"]


def test_exchanges_slow_the_kernels_beside_them(gpt2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes longer by the SMs of NCCL's channels in the time that they have been hidden; by either schedule."""
    step = {**STEP, "batch": 256}
    p = anew(gpt2, "dp=4", **step)
    run, e = p.run, p.run.estimates
    monkeypatch.setattr(collective, "CHANNELS", 0)
    ledger.cache_clear()
    free = anew(gpt2, "dp=4", **step)
    ledger.cache_clear()  # no other test meets kernels without channels
    of_free = free.parallel or {}
    hidden = of_free["communication_seconds"] - of_free["exposed_communication_seconds"]
    assert 0.5 * hidden < (p.seconds - free.seconds) / (24 / run.devices[0].sms) < 1.05 * hidden
    costs, (launches, tail) = run.host_costs[0], run.kernels.host_seconds(run.host_costs[0], run.processors[0])
    columns = zip(run.kernels.rows, launches, e.seconds[:, 0].tolist(), e.occupancy[:, 0].tolist(), strict=True)
    tasks = [Task(x, s, o, k.after, k.way, k.repeat, k.blocks, k.rank, k.communicates) for k, x, s, o in columns]
    placed, total = run_tasks(tasks, HostThread(costs.run_s, tail, costs.sync_s, costs.gap_s))
    assert [t.start_s for t in placed] == pytest.approx(run.timeline.start_s[:, 0].tolist(), rel=1e-12)
    assert total == pytest.approx(p.seconds, rel=1e-12)


def test_groups_of_data_and_tensor_parallelism_lie_apart(gpt2: Any) -> None:
    p = predict(gpt2, "dp=2,tp=4", **STEP)
    assert {(x.ranks, x.stride) for x in exchanges(p)} == {(4, 1), (2, 4)}


def test_each_kind_of_group_has_a_stream_of_its_own(gpt2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets run beside the all-reduces of tensor parallelism, and take the longer for it where links are shared."""
    step = {**STEP, "optimizer": "none"}
    p = anew(gpt2, "dp=2,tp=2", **step)
    lanes = {k.stream: k.work.size.stride for k in p.kernels if isinstance(k.work.size, Collective)}
    assert lanes == {"comm-tp": 1, "comm-dp": 2}
    monkeypatch.setattr(Kernel, "group", "")
    alone = anew(gpt2, "dp=2,tp=2", **step)
    assert {k.stream for k in alone.kernels if k.bound_by == "communication"} == {"comm"}
    of, of_alone = p.parallel or {}, alone.parallel or {}
    assert of["exposed_communication_seconds"] < 0.7 * of_alone["exposed_communication_seconds"]
    assert p.seconds < alone.seconds and of["communication_seconds"] > of_alone["communication_seconds"]
    assert of["communication_seconds"] == pytest.approx(
        sum(k.seconds for k in p.kernels if k.bound_by == "communication")
    )
    assert p.to_dict()["kernels"] and sum(k.seconds for k in p.kernels) == pytest.approx(p.sum_seconds)


def test_exchanges_on_other_links_cost_each_other_nothing(gpt2: Any, tmp_path: Path) -> None:
    """Of nodes of four GPUs, gradients go over the network alone and parts of products over NVLink; over PCIe both."""
    path = tmp_path / "four.toml"
    path.write_text((CLUSTERS / "dgx-a100.toml").read_text(encoding="utf-8").replace("gpus = 8", "gpus = 4"))
    for cluster, used in ((str(path), {"tp": [0], "dp": [2]}), ("pcie4-server", {"tp": [1], "dp": [1]})):
        p = predict(gpt2, "dp=2,tp=4", cluster=cluster, **STEP)
        links = p.run.estimates.links[:, :, 0]
        assert {(k.group, *links[:, i].nonzero()[0]) for i, k in enumerate(p.run.kernels.rows) if k.communicates} == {
            (group, *own) for group, own in used.items()
        }
        assert not links[:, [not k.communicates for k in p.run.kernels.rows]].any() and 0.5 < links.max() <= 1
        assert p.run.timeline.shared_s.any() == (cluster == "pcie4-server")


# pipelines


def test_1f1b_has_the_bubble_of_its_form() -> None:
    """Equal stages: (p - 1) / (m + p - 1) of the time (Narayanan et al.)."""
    stages = [Stage("", "", 1.0, 2.0, 0.0, 0.0, 0)] * 4
    assert through(stages, 1) == 12 and through(stages, 8) == 3 * (8 + 3)
    assert bubble(stages, 8) == pytest.approx(3 / 11)
    forward = [Stage("", "", 1.0, 0.0, 0.5, 0.0, 0)] * 3
    assert through(forward, 1) == 4 and through(forward, 10) == 13


def test_a_pipeline_of_one_microbatch_takes_as_long_as_one_gpu_and_what_it_sends(gpt2: Any) -> None:
    for terms in ({}, {**STEP, "optimizer": "none"}):
        one, four = predict(gpt2, **terms), predict(gpt2, "pp=4", **terms)
        sent = sum(k.seconds for k in four.kernels if k.stream == "comm")
        assert 0 < four.seconds - one.seconds < 1.2 * sent + 5e-5


def test_microbatches_fill_a_pipeline(whole_gpt2: Any) -> None:
    step = {**STEP, "optimizer": "none"}
    shares = [
        (predict(whole_gpt2, f"pp=4:microbatches={m}", batch=32, **step).parallel or {})["bubble_share"]
        for m in (1, 4, 16)
    ]
    assert shares == sorted(shares, reverse=True) and shares[0] > 0.7 and shares[-1] < 0.3


def test_stages_are_balanced(whole_gpt2: Any) -> None:
    stages = (predict(whole_gpt2, "pp=4").parallel or {})["stages"]
    times = [s["forward_seconds"] for s in stages]
    assert max(times) < 1.6 * min(times) and stages[-1]["sent_bytes"] == 0


def test_microbatches_add_their_gradients(gpt2: Any) -> None:
    """Each gradient once for every microbatch, in the stage that makes it: a read of both, and a write."""
    step = {**STEP, "optimizer": "none"}
    one, many = predict(gpt2, "pp=2", **step), predict(gpt2, "pp=2:microbatches=2", **step)
    assert not [k for k in one.kernels if k.name.endswith("#accumulated")]
    adds = [k for k in many.kernels if k.name.endswith("#accumulated")]
    parameters = sum(t.size for t in many.run.typed_graph.stored() if t.dtype == "float32" and t.rank)
    assert sum(k.bytes_read for k in adds) == pytest.approx(8 * parameters, rel=0.02)
    assert sum(k.bytes_written for k in adds) == pytest.approx(4 * parameters, rel=0.02)
    assert all(k.nodes and k.phase == "backward" for k in many.run.kernels.rows if k.name.endswith("#accumulated"))
    more = many.memory.activations_bytes - one.memory.activations_bytes  # a gradient beside the sums of all
    assert 0 < more < many.memory.weights_bytes


def test_a_stage_holds_what_it_exchanges_and_is_fed(gpt2: Any) -> None:
    """The last stage gathers logits; inputs and outputs of all microbatches stay; buckets are as large as gradients."""
    logits = 8 * 64 * 50257 * 4
    for plan in ("tp=2,pp=2", "tp=2,pp=2:microbatches=4"):
        assert predict(gpt2, plan).memory.activations_bytes > logits
    step = {**STEP, "optimizer": "none"}
    for pp in ("pp=2", "pp=2:microbatches=2"):
        alone, two = predict(gpt2, pp, **step), predict(gpt2, f"dp=2,{pp}", batch=16, **step)
        more = two.memory.activations_bytes - alone.memory.activations_bytes
        assert 0.9 < more / alone.memory.weights_bytes < 1.1


def test_copies_train_the_same_parameters(gpt2: Any) -> None:
    """Also weights that two layers share, which are one parameter on every GPU."""
    alone, two = predict(gpt2, **STEP), predict(gpt2, "dp=2", batch=16, **STEP)
    assert alone.training and two.training
    for kept in ("gradient_bytes", "optimizer_bytes"):
        assert two.training[kept] == alone.training[kept]


def test_stages_hold_both_moments_of_their_parameters(gpt2: Any) -> None:
    """Adam keeps two tensors as large as the parameters beside these, on every stage."""
    adam, none = (
        predict(gpt2, "pp=2", **{**STEP, "optimizer": name}).run.stage_footprints for name in ("adam", "none")
    )
    for held, alone in zip(adam, none, strict=True):
        assert sum(held.weights) == pytest.approx(3 * sum(alone.weights), rel=0.15)


# experts


def stored(name: str, dims: list[int]) -> TensorProto:
    """A weight of 16 bits whose content is nowhere."""
    t = TensorProto(name=name, data_type=TensorProto.FLOAT16, dims=dims, data_location=TensorProto.EXTERNAL)
    entry = t.external_data.add()
    entry.key, entry.value = "location", "absent.bin"
    return t


def mixture(experts: int = 8, hidden: int = 256, inner: int = 512) -> bytes:
    weights = {"router": [hidden, experts], "w1": [experts, inner, hidden], "w2": [experts, hidden, inner]}
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [-1, hidden])
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["rows"], name="rows"),
        helper.make_node("MatMul", ["rows", "router"], ["chosen"], name="router"),
        helper.make_node("MoE", ["rows", "chosen", "w1", "", "w2"], ["y"], name="moe", domain="com.microsoft", k=2),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["batch", 64, hidden])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["tokens", hidden])
    graph = helper.make_graph(nodes, "mixture", [x], [y], [*(stored(*w) for w in weights.items()), shape])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=sets)
    return bytes(model.SerializeToString())


def test_tokens_go_to_their_experts_and_back() -> None:
    one = onnxperf.predict(mixture(), gpu="h100-sxm", batch=8)
    four = onnxperf.predict(mixture(), gpu="h100-sxm", batch=8, parallel="ep=4")
    assert four.work["matrix_flops"] * 4 == one.work["matrix_flops"]
    assert exchanges(four) == [Collective("all_to_all", 2 * 64 * 2 * 256 * 2, 4)] * 2  # samples, tokens, k, hidden
    assert four.memory.weights_bytes < 0.3 * one.memory.weights_bytes


def test_experts_that_are_not_divided_are_refused(gpt2: Any) -> None:
    with pytest.raises(UsageError, match="ep=3 does not divide the 8 experts of node moe: use ep=2"):
        onnxperf.predict(mixture(), gpu="h100-sxm", batch=6, parallel="ep=3")
    with pytest.raises(UsageError, match="has no operator"):
        predict(gpt2, "ep=2")


# CUDA graphs


@pytest.mark.parametrize("plan", ["dp=4", "tp=4", "dp=2,tp=2"])
def test_a_cuda_graph_takes_its_exchanges_along(gpt2: Any, plan: str) -> None:
    """NCCL's kernels are captured with the others: the same kernels and exchanges, and no launch in between."""
    without, p = (predict(gpt2, plan, fix_dims=True, cuda_graph=graph) for graph in (False, True))
    assert [(k.name, k.seconds) for k in p.kernels] == [(k.name, k.seconds) for k in without.kernels]
    assert p.lower_bound_seconds <= p.seconds < without.seconds
    assert p.bound_by["launch"] < without.bound_by["launch"] and sum(p.bound_by.values()) == pytest.approx(1)
    jsonschema.validate(p.to_dict(), SCHEMA)
    events = json.loads(p.to_trace())
    assert not [e for e in events if e["cat"] == "Node"] and [e for e in events if e["name"] == "cudaGraphLaunch"]


def test_experts_are_exchanged_in_a_cuda_graph() -> None:
    each = (
        onnxperf.predict(mixture(), gpu="h100-sxm", batch=8, parallel="ep=4", fix_dims=True, cuda_graph=graph)
        for graph in (False, True)
    )
    without, p = each
    assert p.seconds < without.seconds and exchanges(p) == exchanges(without)


def test_a_cuda_graph_of_a_pipeline_or_of_a_shared_step_is_refused(gpt2: Any) -> None:
    with pytest.raises(
        UsageError, match=r"CUDA graphs of pipeline stages .*: leave cuda_graph out, or take dp, tp or ep"
    ):
        predict(gpt2, "tp=2,pp=2", fix_dims=True, cuda_graph=True)
    for plan in ("dp=2", "tp=2"):
        with pytest.raises(UsageError, match="training step is predicted on one GPU only"):
            predict(gpt2, plan, cuda_graph=True, **STEP)
    with pytest.raises(UsageError, match="copies are not predicted"):
        predict(gpt2, "tp=2", include_transfers=True)


# machines


def test_what_joins_the_gpus_is_said_and_can_be_chosen(gpt2: Any, tmp_path: Path) -> None:
    usual = predict(gpt2, "tp=2")
    assert any(n.code == "usual-cluster" and "NVSwitch, 300 GB/s" in n.message for n in usual.warnings)
    slow = predict(gpt2, "tp=2", cluster="pcie4-server")
    assert slow.seconds > usual.seconds and (slow.parallel or {})["cluster"] == "pcie4-server"
    with pytest.raises(UsageError, match="did you mean dgx-a100"):
        predict(gpt2, "tp=2", cluster="dgx-a10")
    with pytest.raises(UsageError, match="joins 8 GPUs, 8 fewer than dp=16 takes: give cluster"):
        predict(gpt2, "dp=16", batch=16)
    assert predict(gpt2, "dp=16", batch=16, cluster="dgx-a100", **STEP).seconds > 0


# from the outside


def test_plans_that_fit_are_ranked_by_time(gpt2: Any) -> None:
    from onnxperf.decide.plans import divisions, every_plan
    from onnxperf.running.pipeline import request_for

    assert {p.gpus for p in every_plan(8)} == {8} and len(set(every_plan(8))) == len(list(every_plan(8)))
    request = request_for(gpt2, batch=4, dims={"sequence": 64})
    found = divisions(request, "a100-sxm4-40gb", 2)
    times = [d.seconds for d in found.plans]
    assert times == sorted(times)
    assert {d.plan: d.seconds for d in found.plans}["tp=2"] == predict(gpt2, "tp=2", batch=4).seconds
    assert any(plan == "ep=2" and "has no operator" in why for plan, why in found.others)
    assert any("can't be divided by 16" in why for _, why in found.others)


def test_a_model_that_no_card_holds_alone_is_divided_by_matrices_or_layers() -> None:
    """Eight products of 4.3 GB on cards of 24 GB: dp lacks memory; of what fits, each plan says what a GPU holds."""
    from onnxperf.decide.plans import divisions
    from onnxperf.running.pipeline import request_for

    width, count = 46_336, 8
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(count)]
    ends = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT16, ["batch", width]) for i in (0, count)]
    weights = [stored(f"w{i}", [width, width]) for i in range(count)]
    graph = helper.make_graph(nodes, "wide", ends[:1], ends[1:], weights)
    request = request_for(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), batch=64)
    found = divisions(request, "l4", 2)
    assert {d.plan.partition(":")[0] for d in found.plans} == {"tp=2", "pp=2"}
    assert [d.seconds for d in found.plans] == sorted(d.seconds for d in found.plans)
    assert all(d.process_bytes < 24e9 and 0 < d.exposed_communication_seconds < d.seconds for d in found.plans)
    assert re.fullmatch(r"lacks [\d.]+ GB of memory on each GPU", dict(found.others)["dp=2"])
    assert not [plan for plan, why in found.others if why.startswith(plan.partition(":")[0])]  # which they stand beside
    three = divisions(request, "l4", 3)
    assert dict(three.others)["dp=3"] == "a batch of 64 can't be divided by 3"


def test_the_command_line_takes_plans(tmp_path: Path) -> None:
    model, step = str(SAMPLES / "gpt2-dynamic.onnx"), ["--dim", "sequence=64", "--batch", "4"]

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(cli, [*arguments, *step])

    done = run("predict", model, "--gpu", "a100-sxm4-40gb", "--parallel", "tp=4", "--json", "-")
    found = json.loads(done.stdout)
    assert found["parallel"]["plan"] == "tp=4" and found["parallel"]["gpus"] == 4
    trace = tmp_path / "run.json"
    assert run("predict", model, "--gpu", "l4", "--parallel", "pp=2", "--trace", str(trace)).exit_code == 0
    events = json.loads(trace.read_text(encoding="utf-8"))
    groups = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [name.rpartition(", ")[2] for name in groups.values()] == ["stage 1 of 2: GPU 0", "stage 2 of 2: GPU 1"]
    assert {e["pid"] for e in events if e.get("cat") == "Kernel"} == set(groups)
    refused = run("compare", model, "--gpu", "l4,t4", "--parallel", "tp=2")
    assert isinstance(refused.exception, UsageError) and "one GPU at a time" in str(refused.exception)
    ranked = json.loads(run("recommend", model, "--gpu", "l4", "--gpus", "2", "--json", "-").stdout)
    assert {p["plan"] for p in ranked["plans"]} >= {"dp=2", "tp=2", "pp=2"}
    for arguments in (["--gpus", "2"], ["--max-latency", "5ms"], ["--gpu", "l4", "--gpus", "2", "--parallel", "tp=2"]):
        assert isinstance(run("recommend", model, *arguments).exception, UsageError)


def test_an_exchange_is_not_explained_as_a_kernel(gpt2: Any) -> None:
    with pytest.raises(UsageError, match="is a collective"):
        at = {"gpu": "l4", "batch": 4, "dims": {"sequence": 64}, "parallel": "tp=2"}
        onnxperf.explain(gpt2, "node_addmm_1#all_reduce", **at)


def test_an_if_does_not_stop_tensor_parallelism() -> None:
    """It stands for the choice alone, and has no outputs of its own."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[8, 4] x, bool c) => (float[8, 4] y)
        <float[4, 8] a = {0}, float[8, 4] b = {0}> {
            s = If(c) <then_branch = t () => (float[8, 4] v) { v = Abs(x) },
                       else_branch = e () => (float[8, 4] v) { v = Neg(x) }>
            h = MatMul(s, a) y = MatMul(h, b)
        }"""
    model = onnx.parser.parse_model(text)
    for weight in model.graph.initializer:
        weight.raw_data, weight.float_data[:] = bytes(128), []
    assert onnxperf.predict(model, gpu="a100-sxm4-40gb", parallel="tp=2", **STEP).seconds > 0


@pytest.mark.parametrize(("plan", "parts"), [("dp=2", 2), ("pp=2:microbatches=3", 3)])
def test_the_largest_batch_is_one_that_the_plan_divides(plan: str, parts: int) -> None:
    """Limits that the least batch does not keep are answered with that one, as on a single GPU."""
    terms: dict[str, Any] = {"gpu": "l4", "parallel": plan, "fit": True}
    found = onnxperf.predict(SAMPLES / "resnet50.onnx", **terms, max_ms=30)
    more = onnxperf.predict(SAMPLES / "resnet50.onnx", gpu="l4", parallel=plan, batch=found.scenario.batch + parts)
    assert found.scenario.batch > parts and found.scenario.batch % parts == 0
    assert found.seconds <= 0.03 < more.seconds
    assert onnxperf.predict(SAMPLES / "resnet50.onnx", **terms, max_ms=0.01).scenario.batch == parts


def test_a_cluster_of_one_gpu_is_refused() -> None:
    for terms in ({}, {"parallel": "tp=1"}, {"gpus": 1}):
        with pytest.raises(UsageError, match="cluster needs several GPUs"):
            onnxperf.predict(SAMPLES / "resnet50.onnx", gpu="l4", cluster="dgx-a100", **terms)

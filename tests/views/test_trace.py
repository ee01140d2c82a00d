"""Traces: the rules of Chrome's format, and the fields of ONNX Runtime's own profiles."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import onnxperf
from tests.language.test_generation import SMALL
from tests.test_cli import SAMPLES
from tests.views.conftest import small

Event = dict[str, Any]
OPEN = str(SAMPLES / "gpt2-dynamic.onnx")
TERMS: dict[str, dict[str, Any]] = {
    "one stream": {},
    "streams": {"streams": 3, "include_transfers": True},
    "copies that block": {"include_transfers": True, "pageable": True},
    "a CUDA graph": {"cuda_graph": True, "fix_dims": True},
    "nothing laid out": {"method": "sum", "include_transfers": True},
}


def wrong(events: Sequence[Event]) -> list[str]:
    """What breaks the rules of the format: keys and their types, order and nesting on a lane, names of lanes."""
    found, lanes, named = [], defaultdict[Any, list[Event]](list), set[Any]()
    for e in events:
        keys = {"ph": str, "name": str, "cat": str, "pid": int, "tid": int, "ts": (int, float), "args": dict}
        found += [f"{e.get('name')}: {key}" for key, kind in keys.items() if not isinstance(e.get(key), kind)]
        if e["ph"] == "M":
            named |= {(e["pid"], e["tid"])} if e["name"] == "thread_name" and e["args"]["name"] else set()
        elif e["ph"] != "X" or not isinstance(e.get("dur"), (int, float)) or e["ts"] < 0 or e["dur"] < 0:
            found.append(f"{e['name']}: no complete event")
        else:
            lanes[e["pid"], e["tid"]].append(e)
    for its in lanes.values():
        around: list[int] = []  # ends of the events that an event stands in, in nanoseconds
        for before, e in zip((None, *its), its, strict=False):
            begin, end = round(e["ts"] * 1e3), round((e["ts"] + e["dur"]) * 1e3)
            if before and e["ts"] < before["ts"]:
                found.append(f"{e['name']}: before its predecessor")
            while around and around[-1] <= begin:
                around.pop()
            if around and end > around[-1]:
                found.append(f"{e['name']}: ends after what it stands in")
            around.append(end)
    found += [f"lane {lane} has no name" for lane in lanes.keys() - named]
    found += [] if any(e["name"] == "process_name" for e in events) else ["the process has no name"]
    return found


def test_the_rules_can_be_broken() -> None:
    name = {"ph": "M", "cat": "", "pid": 1, "tid": 1, "ts": 0, "args": {"name": "a"}}
    names = [{**name, "name": "process_name"}, {**name, "name": "thread_name"}]
    event = {"ph": "X", "name": "e", "cat": "c", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0, "args": {}}
    assert wrong([*names, event, {**event, "ts": 1.5, "dur": 0.5}, {**event, "ts": 3.0}]) == []
    for broken in (
        [*names, event, {**event, "ts": 2.0}],
        [*names, event, {**event, "ts": 0.5, "dur": 0.1}],
        [*names, {**event, "dur": -1.0}],
        [*names, {k: v for k, v in event.items() if k != "dur"}],
        [*names, {**event, "tid": "1"}],
        [*names, {**event, "tid": 2}],
        [names[1], event],
    ):
        assert wrong(broken)


@pytest.mark.parametrize("case", TERMS)
def test_a_trace_keeps_the_rules(case: str) -> None:
    p = onnxperf.predict(OPEN, gpu="l4", dims={"sequence": 64}, **TERMS[case])
    events = json.loads(p.to_trace())
    assert wrong(events) == []
    lanes = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    kernels = [e for e in events if e["cat"] == "Kernel"]
    assert lanes.keys() == {"host", *(k.stream for k in p.kernels)}
    assert sorted((e["name"], e["tid"]) for e in kernels) == sorted((k.name, lanes[k.stream]) for k in p.kernels)
    assert sum(e["dur"] for e in kernels) == pytest.approx(p.sum_seconds * 1e6, rel=1e-3)
    (whole,) = (e for e in events if e["name"] == "model_run")
    assert whole["dur"] == pytest.approx(p.seconds * 1e6) and whole["tid"] == lanes["host"]
    on_host = {e["name"]: e for e in events if e["cat"] == "Node"}
    launched = [e for e in kernels if e["args"]["parent_name"] in on_host]
    of_nodes = [o for o in p.run.run_graph.operators if o.place not in ("free", "host")]
    assert len(launched) == (0 if case in ("a CUDA graph", "nothing laid out") else len(of_nodes))
    for e in launched:  # no kernel starts before the host has begun to launch it
        assert e["ts"] >= on_host[e["args"]["parent_name"]]["ts"]
    computed = {e["name"] for e in on_host.values() if e["args"]["provider"] == "CPUExecutionProvider"}
    assert computed == {f"{o.name}_kernel_time" for o in p.cpu_operators}


def test_a_loop_and_a_processor_keep_the_rules(processor: str, model: Path) -> None:
    p = onnxperf.predict(SAMPLES / "lstm.onnx", gpu="l4", dims={"batch": 1})
    assert wrong(json.loads(p.to_trace())) == []
    alone = onnxperf.predict(model, gpu=processor)
    events = json.loads(alone.to_trace())
    assert wrong(events) == [] and not [e for e in events if e["cat"] == "Kernel"]
    assert sum(e["dur"] for e in events if e["cat"] == "Node") == pytest.approx(
        1e6 * (alone.seconds - alone.run.host_costs[0].run_s), rel=1e-3
    )


def test_the_fields_are_those_of_onnx_runtime(processor: str, tmp_path: Path) -> None:
    """Of the same graph, run by ONNX Runtime here: names, types, shapes, sizes, places."""
    ort = pytest.importorskip("onnxruntime")
    import numpy as np

    made = small().SerializeToString()
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    options.graph_optimization_level, options.log_severity_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL, 3
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")  # else it forgets the weights' shapes
    session = ort.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    session.run(None, {"x": np.zeros((2, 8, 28, 28), np.float32)})
    measured = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    p = onnxperf.predict(made, gpu=processor, batch=2, opt_level="disabled")
    predicted = json.loads(p.to_trace())
    nodes, ours = ({e["name"]: e for e in events if e["cat"] == "Node"} for events in (measured, predicted))
    assert nodes.keys() == ours.keys() and len(nodes) == 8
    for name, e in nodes.items():
        assert e.keys() == ours[name].keys()
        for field in ("op_name", "provider", "node_index", "input_type_shape", "output_type_shape", "parameter_size",
                      "activation_size", "output_size", "thread_scheduling_stats"):  # fmt: skip
            assert e["args"][field] == ours[name]["args"][field], (name, field)
    (theirs,), (own,) = ([e for e in x if e["name"] == "model_run"] for x in (measured, predicted))
    assert theirs.keys() == own.keys() and theirs["cat"] == own["cat"]


def test_hostile_names_are_plain_text(hostile: Path) -> None:
    p = onnxperf.predict(hostile, gpu="l4", batch=1)
    text = p.to_trace()
    assert text.isascii() and "\x1b" not in text and wrong(json.loads(text)) == []
    for event in json.loads(text):
        assert event["name"].isprintable() and str(event["args"].get("nodes", "")).isprintable()


@pytest.mark.parametrize("engine", ["ort-genai", "vllm"])
def test_steps_of_a_language_model_follow_each_other(engine: str, tmp_path: Path) -> None:
    """A prefill and a decode step in lanes of their own, which their names tell apart, each as long as predicted."""
    terms: dict[str, Any] = {"config": SMALL, "gpu": "h100", "parallel": "tp=2", "prompt": 64, "output": 16}
    g = onnxperf.llm(**terms, batch=[2], engine=engine)
    events = json.loads(g.to_trace(tmp_path / "steps.json"))
    assert wrong(events) == [] and json.loads((tmp_path / "steps.json").read_text()) == events
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    first, second = sorted(named)
    assert named[first].startswith("predicted prefill: 64 tokens, batch 2: llama on")
    assert ("(vLLM)" if engine == "vllm" else "(ONNX Runtime GenAI)") in named[first]
    assert named[second].startswith("predicted decode step: 1 token after 71, batch 2: llama on")
    runs = {e["pid"]: e for e in events if e["name"] == "model_run"}
    assert runs[first]["dur"] == pytest.approx(1e6 * g.batches[0].first.seconds, abs=6e-4)
    assert runs[second]["ts"] == pytest.approx(runs[first]["dur"], abs=2e-3)
    host = [e["pid"] for e in events if e["name"] == f"host of {engine}"]
    assert host == ([] if engine == "ort-genai" else [first, second])
    for e in events:
        if e["ph"] == "X":
            run = runs[e["pid"]]
            assert run["ts"] <= e["ts"] and e["ts"] + e["dur"] <= run["ts"] + run["dur"] + 2e-3
    drafted = json.loads(onnxperf.llm(**{**terms, "draft": SMALL, "accept": 0.7}, engine="vllm").to_trace())
    named = {e["pid"]: e["args"]["name"].partition(": llama")[0] for e in drafted if e["name"] == "process_name"}
    assert wrong(drafted) == [] and [named[pid] for pid in sorted(named)] == [
        "predicted prefill: 64 tokens, batch 1", "predicted draft, 1 of 4 runs: 1 token after 71, batch 1",
        "predicted verification: 5 tokens after 71, batch 1",
    ]  # fmt: skip
    replayed = [e["pid"] for e in events if e["name"] == "cudaGraphLaunch"]
    assert replayed == ([] if engine == "ort-genai" else [second])

"""The command for language models: its table, plot and JSON, and what it says of options that can't be."""

from __future__ import annotations

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

import onnxperf
from onnxperf.language.arrivals import RUNNING
from onnxperf.views.llm import drawn
from tests.language.test_generation import SMALL


@pytest.mark.slow
def test_the_command_answers(onnxperf_cli: Any, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(SMALL))
    picture, given = tmp_path / "p.svg", ("llm", "--config", str(config), "--gpu", "l4", "--prompt", "64")
    code, out, err = onnxperf_cli(*given, "--batch", "1..3", "--plot", str(picture))
    assert (code, err) == (0, "") and "TTFT" in out and picture.read_text().lstrip().startswith("<?xml")
    code, out, err = onnxperf_cli(*given, "--batch", "1..3", "--json", "-")
    answer = json.loads(out)
    assert [b["batch"] for b in answer["batches"]] == [1, 2, 3]
    same = onnxperf.llm(config=config, gpu="l4", prompt=64, batch=[1, 2, 3])
    assert answer == same.to_dict()
    code, out, err = onnxperf_cli(*given, "--batch", "2", "--cache", "fp8", "--weights", "int4")
    assert (code, err) == (0, "") and "as stored, int4 weights, fp8 cache" in " ".join(out.split())
    code, out, err = onnxperf_cli(*given, "--batch", "8", "--qps", "2", "--requests", "9", "--chunk", "64")
    assert (code, err) == (0, "") and "time to first token" in out and "9 requests at 2/s" in out
    assert "\nkeeps up: 2 requests/s arrive, and up to " in out
    code, out, err = onnxperf_cli(*given, "--batch", "1", "--concurrency", "1,4", "--output", "8")
    assert (code, err) == (0, "") and "closed loop, prompts 64, outputs 8" in out and "tokens/s/GPU" in out
    page, trace = tmp_path / "r.html", tmp_path / "t.json"
    code, out, err = onnxperf_cli(*given, "--batch", "1..3", "--html", str(page), "--trace", str(trace))
    assert (code, err) == (0, "") and page.read_text() == same.to_html()
    assert trace.read_text() == same.to_trace() + "\n"
    code, out, err = onnxperf_cli(*given, "--engine", "vllm", "--precision", "fp8", "--batch", "1")
    assert (code, err) == (0, "") and "vllm · FP8" in out
    draft = tmp_path / "draft.json"
    draft.write_text(json.dumps({**SMALL, "num_hidden_layers": 1}))
    code, out, err = onnxperf_cli(*given, "--batch", "1", "--cached", "0.5", "--draft", str(draft), "--accept", "0.7")
    assert (code, err) == (0, "") and "prompt 64, 32 of it cached" in " ".join(out.split()) and "speedup" in out
    assert "2.77 tokens a step of 4 proposed, each accepted with 0.7" in " ".join(out.split())
    code, out, err = onnxperf_cli(*given, "--batch", "1", "--pools", "1:2", "--concurrency", "1,4", "--output", "8")
    assert (code, err) == (0, "") and "pools 1:2" in out and "decode busy" in out
    assert "would balance the pools" in " ".join(out.split())
    code, out, err = onnxperf_cli(*given, "--batch", "4", "--pools", "2:1", "--qps", "9", "--requests", "9")
    assert (code, err) == (0, "") and "of the time, decode" in " ".join(out.split()) and "bound by" in out
    for wrong, says in (
        (("--engine", "vllm", "--runtime", "tensorrt"), "decides --runtime itself"),
        (("--qps", "2", "--concurrency", "2"), "leave one out"), (("--concurrency", "0"), "not a list"),
        (("--qps", "0"), "--qps must be"), (("--prompt-lengths", "9"), "need --qps"),
        (("--batch", "4..2"), "ends before it starts"), (("--mode", "training"), "No such option"),
        (("--requests", "9"), "need --qps"), (("--seed", "9"), "need --qps"), (("--plot", "-"), "only --json - prints"),
        (("--cached", "1.5"), "--cached must be a share from 0 to 1"), (("--cached", "half"), "not a valid number"),
        (("--accept", "0.5"), "need --draft"), (("--draft", str(draft)), "--draft needs --accept"),
        (("--draft", str(draft), "--accept", "0.5", "--draft-tokens", "1000000000"), "whole number from 1 to 64"),
        (("--draft", str(draft), "--accept", "0.5", "--json", str(draft)), "would overwrite"),
        (("--pools", "3"), "write instances for prefill : for decode, such as 1:2"),
        (("--json", "a.svg", "--plot", "a.svg"), "would both write a.svg"),
        (("--html", "a", "--trace", "a"), "would both write a"), (("--html", str(config)), "would overwrite"),
        (("--plot", "x.pdf"), "ends with .png or .svg"), (("--json", str(config)), "would overwrite"),
    ):  # fmt: skip
        code, out, err = onnxperf_cli(*given, *wrong)
        assert (code, out) == (2, "") and says in err


@pytest.mark.parametrize("limits", [(), ("--batch", "1")], ids=str)
def test_a_server_runs_as_many_requests_as_batch_says_and_else_as_recommend(
    onnxperf_cli: Any, tmp_path: Path, limits: tuple[str, ...]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(SMALL))
    asked = ("llm", "--config", str(config), "--gpu", "l4", "--prompt", "64", "--output", "8", "--qps", "2", *limits)
    answer = json.loads(onnxperf_cli(*asked, "--requests", "9", "--json", "-")[1])
    assert answer["service"]["running"] == answer["batches"][-1]["batch"] == (1 if limits else RUNNING)
    same: dict[str, Any] = {"batch": 1} if limits else {}
    g = onnxperf.llm(config=SMALL, gpu="l4", prompt=64, output=8, qps=2, requests=9, **same)
    assert g.service is not None and g.service.to_dict() == answer["service"]


def test_what_is_said_of_a_server_can_be_understood() -> None:
    """What waits for nothing else waits for the front end, and fewer are served a second than arrive."""
    g = onnxperf.llm(config=SMALL, gpu="l4", engine="vllm", prompt=64, output=64, batch=4, qps=100, requests=50)
    assert g.service is not None and g.service.to_dict()["front_seconds"] == 0.01
    shown = " ".join(str(g).split())
    assert "- in the front end 10 ms 10 ms 10 ms 10 ms" in shown and "have 10 ms of the server's front end" in shown
    assert "requests/s and" in shown and "tokens/s from the first arrival to the last token; utilization " in shown
    assert "which comes after the last arrival" in shown and "share of that time in which anything runs" in shown
    loop = str(onnxperf.llm(config=SMALL, gpu="l4", prompt=64, output=64, batch=4, concurrency=[1, 2]))
    assert "utilization is the share of the time in which anything runs" in loop and "front end" not in loop


def test_help_has_no_options_without_meaning_here(onnxperf_cli: Any) -> None:
    shown = onnxperf_cli("llm", "--help")[1]
    for option in ("--mode", "--loss", "--optimizer", "--recompute", "--accumulate", "--layout"):
        assert option not in shown
    assert "--parallel tp=4|dp=2,tp=4" in shown


@pytest.mark.slow
def test_plots_have_a_point_for_each_batch_that_fits_and_say_where_none_does() -> None:
    g = onnxperf.llm(config=SMALL, gpu="l4", prompt=64, output=8, batch=[1, 2], chunk=64, qps=2, requests=9)
    above, below, last = drawn(g).axes
    assert [t.get_text() for t in above.texts] == [t.get_text() for t in below.texts] == ["1", "2"]
    assert above.lines[0].get_ydata() == pytest.approx([1e3 * b.token.seconds for b in g.batches])
    assert len(last.lines) == 4 and "2 requests/s arrive" in last.get_title()
    loop = onnxperf.llm(config=SMALL, gpu="l4", prompt=64, output=8, batch=1, chunk=64, concurrency=[1, 4])
    pareto = drawn(loop).axes[-1]
    assert pareto.lines[0].get_xydata().tolist() == [
        [s.tokens_per_second_per_user, s.tokens_per_second_per_gpu] for s in loop.curve
    ]
    assert [t.get_text() for t in pareto.texts] == ["1", "4"]
    none = replace(g, batches=tuple(replace(b, capacity_bytes=1) for b in g.batches), service=None)
    figure = drawn(none)
    figure.savefig(BytesIO())
    assert [t.get_text() for t in figure.axes[0].texts] == ["no batch fits into memory"]

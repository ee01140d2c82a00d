"""The HTML report as text: what it holds, that nothing in it can run or load, and that its colours can be read."""

from __future__ import annotations

import base64
import hashlib
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import onnxperf
from onnxperf.answer.prediction import Prediction
from onnxperf.decide.choices import choices
from onnxperf.decide.what_if import what_if
from onnxperf.running.pipeline import Request
from onnxperf.views.headline import words
from onnxperf.views.html_data import NAME
from tests.decide.models import net
from tests.language.test_generation import SMALL
from tests.views.pages import HOSTILE, Page, hostile, hostile_decoder, shapes_alone

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "onnxperf" / "views" / "report"


def at(batch: int) -> Prediction:
    return onnxperf.predict(net(), gpu="l4", batch=batch)


@cache
def page() -> Page:
    return Page(at(2).to_html(at))


@cache
def generation() -> onnxperf.Generation:
    return onnxperf.llm(config=SMALL, gpu="l4", engine="vllm", batch=[1, 4], prompt=64, output=16, concurrency=[1, 8])


@cache
def language_page() -> Page:
    return Page(generation().to_html())


def test_it_holds_the_generation() -> None:
    g, d = generation(), language_page().data
    assert [b["batch"] for b in d["batches"]] == [1, 4] and d["largest"] == g.largest_batch
    for shown, b in zip(d["batches"], g.batches, strict=True):
        assert shown["token"]["high"] == pytest.approx(b.token.high_seconds, rel=1e-4)
        assert shown["first"]["seconds"] == pytest.approx(b.first.seconds, rel=1e-4)
        assert shown["rate"] == pytest.approx(b.tokens_per_second, rel=1e-4) and shown["memory"] == b.needed_bytes
    assert [r["gpu"] for r in d["requests"]] == pytest.approx([s.tokens_per_second_per_gpu for s in g.curve], rel=1e-4)
    assert [r["name"] for r in d["requests"]] == ["1", "8"] and d["head"]["of"] == " in the mean"
    taken = dict(map(tuple, d["memory"]["parts"]))
    assert sum(taken.values()) == g.batches[0].needed_bytes and taken["weights"] == g.weights_bytes
    assert set(g.notes) < set(d["notes"])


def test_steps_are_those_that_are_predicted() -> None:
    """The prefill is what a prompt waits for alone; all kernels and what is left make the time of a step."""
    g = onnxperf.llm(config=SMALL, gpu="l4", engine="vllm", batch=[4], prompt=64, output=16)
    d = Page(g.to_html()).data
    prefill, step = d["steps"]
    assert prefill["seconds"] == pytest.approx(g.batches[0].first.seconds, rel=1e-4)
    assert step["seconds"] == pytest.approx(g.batches[0].token.seconds, rel=1e-3)
    for shown in d["steps"]:
        kernels = sum(shown["kinds"]["seconds"][kind] for kind in shown["kernels"]["kind"])
        assert kernels + shown["rest"] == pytest.approx(shown["seconds"], rel=1e-3)
        shares = {name: share for name, share, _ in shown["shares"]}
        assert sum(shares.values()) == pytest.approx(1, abs=0.02)
        assert shares["launch"] * shown["seconds"] > 0.999 * shown["rest"]
    assert step["rest"] > 0.5e-3  # the host of vLLM
    alone = Page(onnxperf.llm(config=SMALL, gpu="l4", batch=2, prompt=64, output=16).to_html()).data
    assert alone["requests"] == [] and alone["steps"][1]["title"] == "decode step: 1 token after 71, batch 2"
    with pytest.raises(onnxperf.UsageError, match="no runs to show"):
        replace(g, steps=None).to_html()


def test_steps_of_several_gpus_have_the_all_reduces_of_the_engine() -> None:
    def reduced(engine: str) -> float:
        terms: dict[str, Any] = {"config": SMALL, "gpu": "h100", "parallel": "tp=2", "prompt": 64, "output": 16}
        step = Page(onnxperf.llm(engine=engine, **terms).to_html()).data["steps"][1]
        kinds, kernels = step["kinds"], step["kernels"]["kind"]
        return sum(kinds["seconds"][kind] for kind in kernels if kinds["op"][kind] == "AllReduce")

    assert 0 < reduced("vllm") < 0.9 * reduced("ort-genai")


def test_it_holds_the_prediction() -> None:
    p, d = at(2), page().data
    h = words(p, onnxperf.decide.changes.changes(p, at))
    assert d["head"]["asked"] == list(h.asked)
    assert [d["head"][what] for what in ("time", "interval", "rate", "memory", "limit", "best")] == [
        h.time, h.interval, h.rate, h.memory, h.limit, h.best
    ]  # fmt: skip
    assert d["kernels"]["name"] == [k.name for k in p.kernels]
    seconds = [d["kinds"]["seconds"][kind] for kind in d["kernels"]["kind"]]
    assert seconds == pytest.approx([k.seconds for k in p.kernels], rel=1e-4)
    assert d["kernels"]["start"] == pytest.approx([k.start_seconds for k in p.kernels])
    launched = p.run.timeline.launched_s[:, 0]
    assert all(a < b for a, b in zip(d["kernels"]["launch"], d["kernels"]["launched"], strict=True))
    assert (launched <= [k.start_seconds + 1e-12 for k in p.kernels]).all()
    flops = [d["kinds"]["flops"][kind] for kind in d["kernels"]["kind"]]
    assert sum(flops) == p.work["flops"]


def test_memory_over_time_reaches_the_peak() -> None:
    p, m = at(2), page().data["memory"]
    assert max(m["alive"]) == m["peak"] == p.memory.activations_bytes
    assert m["times"] == sorted(m["times"]) and m["times"][0] == 0 and m["times"][-1] < p.seconds
    assert sum(size for _, size in m["parts"]) == m["held"] == p.memory.reserved_bytes


@pytest.mark.parametrize("plan", ["tp=2", "pp=2", "dp=2,tp=2,pp=2:microbatches=2"])
@pytest.mark.parametrize("terms", [{}, {"mode": "training", "runtime": "torch-eager"}], ids=["inference", "training"])
def test_memory_over_time_is_that_of_the_fullest_gpu(plan: str, terms: dict[str, str]) -> None:
    sample = ROOT / "samples" / "distilbert-dynamic.onnx"
    p = onnxperf.predict(sample, gpu="a100", batch=4, dims={"sequence": 64}, parallel=plan, **terms)
    m = Page(p.to_html()).data["memory"]
    assert max(m["alive"]) == m["peak"] == p.memory.activations_bytes
    assert m["times"] == sorted(m["times"]) and m["times"][-1] < p.seconds


def test_batches_and_what_ifs_are_those_of_the_commands() -> None:
    b = page().data["batches"]
    (card,) = choices(Request(net(), batch=2), ["l4"]).cards
    assert b["batch"] == [c.batch for c in card.tried] and len(b["batch"]) > 5 and not b["fixed"]
    assert b["high"] == pytest.approx([c.high_seconds for c in card.tried], rel=1e-4)
    found = {what: seconds for what, seconds, *_ in page().data["what_ifs"]["changes"]}
    expected = {c.what: c.seconds for c in what_if(at(2), at).changes}
    assert {what: found[what] for what in expected} == pytest.approx(expected, rel=1e-4)


def test_roofs_are_those_of_the_card() -> None:
    p, roofs = at(2), page().data["roofs"]
    (dram, bandwidth), (l2, faster) = roofs["memory"]
    assert (dram, bandwidth, l2) == ("DRAM", p.device.bandwidth_Bps, "L2") and faster > bandwidth
    assert ["FP32", p.device.dense_flops["fp32"]] in roofs["compute"]


def test_what_is_not_there_says_why() -> None:
    alone = Page(at(2).to_html()).data
    assert alone["batches"]["batch"] == [2] and "to_html(at_batch=...)" in alone["batches"]["fixed"]
    assert not any(what.startswith("--batch") for what, *_ in alone["what_ifs"]["changes"])
    nothing = Page(onnxperf.predict(shapes_alone(), gpu="l4").to_html()).data
    assert nothing["kernels"]["name"] == nothing["roofs"]["compute"] == []
    added = Page(onnxperf.predict(net(1), gpu="l4", method="roofline").to_html()).data
    assert added["what_ifs"] == {"changes": [], "why": added["what_ifs"]["why"]} and added["what_ifs"]["why"]
    assert not added["laid_out"]


@pytest.mark.parametrize("which", [page, language_page])
def test_nothing_else_may_run_or_be_loaded(which: Callable[[], Page]) -> None:
    style, _, program = which().inside
    (policy,) = (str(a["content"]) for tag, a in which().tags if a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    hashes = [
        "'sha256-" + base64.b64encode(hashlib.sha256(x.encode()).digest()).decode() + "'" for x in (style, program)
    ]
    assert (rules["default-src"], rules["style-src"], rules["script-src"]) == ("'none'", *hashes)
    assert rules["base-uri"] == rules["form-action"] == "'none'" and len(rules) == 5
    assert not [(tag, a) for tag, a in which().tags if {"src", "style"} & a.keys() or tag in ("link", "img", "iframe")]
    assert not re.findall(r"url\(|@import|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", style + program)
    addresses = re.findall(r"\w+://[^\"'\s]+", style + program)
    assert set(addresses) == {"http://www.w3.org/2000/svg"}  # the name of a vocabulary, which nobody fetches


def test_hostile_names_are_text() -> None:
    text = onnxperf.predict(hostile(), gpu="l4").to_html()
    found = Page(text)
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in page().tags]
    raw = found.inside[1]
    assert not set(raw) & set("<>&\u2028\u2029\x1b\u202e")
    names = found.data["kernels"]["name"]
    assert names[0].startswith("</script><script>alert(1)</script><img") and len(HOSTILE) == len(names[0])
    assert len(names[1]) == NAME and names[2] == "a.b.__proto__"
    assert not any(c in name for name in names for c in "\x1b\u202e\u2028")


def test_hostile_names_of_a_decoder_are_text() -> None:
    found = Page(onnxperf.llm(hostile_decoder(), gpu="l4", batch=1, prompt=16, output=4).to_html())
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in language_page().tags]
    assert not set(found.inside[1]) & set("<>&\u2028\u2029\x1b\u202e")
    assert found.data["head"]["asked"][0].startswith("</script><script>alert(1)</script>")
    assert found.data["steps"][0]["kernels"]["name"][-1].startswith("</script><script>")


@pytest.mark.slow
def test_bert_stays_small() -> None:
    assert len(onnxperf.predict(ROOT / "samples" / "bert-base.onnx", gpu="l4").to_html().encode()) < 200_000


def test_an_installation_has_the_files() -> None:
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
        "package-data"
    ]
    assert set(REPORT.iterdir()) == {f for pattern in packaged["onnxperf.views"] for f in REPORT.parent.glob(pattern)}


def colours(rules: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6})\b", rules))


def luminance(colour: str) -> float:
    full = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    parts = [int(full[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("where", ["light", "dark", "print"])
def test_colours_can_be_told_apart(where: str) -> None:
    """As WCAG 2.2 AA asks: 4.5 for text, 3 for marks and controls."""
    rules = (REPORT / "report.css").read_text(encoding="utf-8").split(":root {")
    c = colours(rules[{"light": 1, "dark": 2, "print": 3}[where]].partition("}")[0])
    for ground in (c["ground"], c["raised"]):
        assert min(contrast(c[text], ground) for text in ("text", "soft")) >= 4.5
    assert contrast(c["warn"], c["warn-ground"]) >= 4.5
    bounds = ("compute", "memory", "latency", "launch", "cpu", "transfer", "communication")
    assert min(contrast(c["ground"], c[bound]) for bound in bounds) >= 4.5  # bars carry names
    assert min(contrast(c["ground"], c[mark]) for mark in ("accent", "strong-line")) >= 3

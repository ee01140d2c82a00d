"""Cards and plans for language models: every figure is what `llm` answers, and the plan the cheapest of all."""

from __future__ import annotations

import json
import shlex
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import jsonschema
import onnx
import pytest

import gpu_specs
import onnxperf
from onnxperf import LimitExceeded, UsageError, compare_llm, llm, recommend_llm
from onnxperf.decide import recommend_llm as module
from onnxperf.decide.recommend_llm import LanguageRecommendation, keep
from onnxperf.export.decoder import decoder
from onnxperf.export.decoder_config import config_of
from onnxperf.language.arrivals import Traffic
from onnxperf.language.decoding import decoding_of
from onnxperf.language.serving import Service, serve
from onnxperf.language.steps import Steps
from onnxperf.running.pipeline import Request
from tests.decide.models import net
from tests.device_files import PROCESSOR
from tests.language.test_generation import SMALL
from tests.steps_once import runs_are_predicted_once, steps_once
from tests.test_cli import run

__all__ = ["runs_are_predicted_once"]

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "onnxperf/decide/recommend_llm.schema.json").read_text(encoding="utf-8"))
LENGTHS: dict[str, Any] = {"config": SMALL, "prompt": 64, "output": 16, "engine": "vllm"}
ASKED = {**LENGTHS, "requests": 200}
#: Requests a second, and limits in milliseconds, that take one instance here and several there.
TARGET: dict[str, Any] = {"qps": 2_000.0, "tpot_ms": 1.0, "ttft_ms": 12.8}
CARDS = ("l4", "h100")
RUNNING = 32


@cache
def recommended(**more: Any) -> LanguageRecommendation:
    return recommend_llm(batch=RUNNING, **{"gpu": CARDS, **ASKED, **TARGET, **more})


def served(steps: Steps, traffic: Traffic) -> Service:
    """How an instance serves requests."""
    return serve(steps, (traffic,), RUNNING, steps.engine.tokens(gpu_specs.load("l4")), steps.cache_bytes_per_token())[
        0
    ]


def capacity(steps: Steps) -> float:
    """Requests a second of an instance with all places taken."""
    loop = Traffic(None, "64", "16", 10 * RUNNING, concurrency=RUNNING)
    return RUNNING / served(steps, loop).times["latency"].mean.seconds


def test_the_plan_is_the_cheapest_of_all_that_keep_the_limits() -> None:
    """By brute force: the fewest instances of each card and plan, one after the other."""
    r, prices, cost = recommended(), gpu_specs.prices(), dict[tuple[str, str], float]()
    for gpu, plan in product(CARDS, ("", "tp=2")):
        id, gpus = gpu_specs.load(gpu).id, int(plan[3:] or 1)
        steps = steps_once(None, gpu, Request(b"", terms={"parallel": plan or None}), SMALL, engine="vllm")[0]
        most = capacity(steps)
        for n in range(1, 20):
            s = served(steps, Traffic(TARGET["qps"] / n, "64", "16", ASKED["requests"]))
            first, token = (s.times[what].mean for what in ("time_to_first_token", "time_per_output_token"))
            if TARGET["qps"] / n < most and first.seconds <= 12.8e-3 and token.seconds <= 1e-3:
                cost[id, plan] = n * gpus * prices[id].usd_per_hour
                break
    assert len(cost) == 4 and len({usd / prices[id].usd_per_hour for (id, _), usd in cost.items()}) > 2
    tried = {(p.gpu, p.parallel): p.usd_per_hour for p in r.plans if p.parallel != "tp=4"}
    assert tried == pytest.approx(cost) and r.plans[0].usd_per_hour == pytest.approx(min(cost.values()))


@pytest.mark.parametrize("percentile", [None, 99])
def test_a_plan_is_what_llm_answers_for_its_part(percentile: int | None) -> None:
    r = recommended() if percentile is None else recommended(percentile=percentile, ttft_ms=19, gpu=("l4",))
    for p in r.plans[:2]:
        g = llm(gpu=p.gpu, parallel=p.parallel or None, batch=r.running, qps=p.qps, **ASKED)
        assert g.service is not None
        first, token = (g.service.times[what] for what in ("time_to_first_token", "time_per_output_token"))
        assert (p.first, p.token) == ((first.mean, token.mean) if percentile is None else (first.at[99], token.at[99]))
    for p in r.plans:
        assert p.first.seconds <= r.pace.first_s and p.token.seconds <= r.pace.token_s and 0 < p.load < 1
        assert p.instances * p.qps == pytest.approx(r.qps)
        assert p.tokens_per_second == pytest.approx(16 * r.qps)
        assert p.instances_if_slow is None or p.instances_if_slow >= p.instances
    assert [p.usd_per_hour for p in r.plans] == sorted(p.usd_per_hour or 0.0 for p in r.plans)
    jsonschema.validate(r.to_dict(), SCHEMA)


def test_limits_of_more_requests_take_more_instances() -> None:
    each = (recommended(percentile=of, ttft_ms=19, gpu=("l4",)) for of in (None, 99))
    mean, late = ({(p.gpu, p.parallel): p.instances for p in r.plans} for r in each)
    assert all(late[plan] >= mean[plan] for plan in late) and sum(late.values()) > sum(mean[plan] for plan in late)


def test_what_fails_says_why() -> None:
    why = {(gpu, plan): why for gpu, plan, why in recommended().others}
    assert "does not divide 4 heads" in why["l4", "tp=8"]
    slow = recommend_llm(gpu=["l4"], **{**ASKED, **TARGET, "tpot_ms": 1e-3}, parallel="tp=2")
    ((_, plan, said),) = slow.others
    assert plan == "tp=2" and "per output token, over 1 us, with one request at a time" in said
    late = recommend_llm(gpu=["l4"], **{**ASKED, **TARGET, "ttft_ms": 1e-3}, parallel="tp=1")
    assert "to the first token, over 1 us" in late.others[0][2] and late.plans == ()
    with pytest.raises(LimitExceeded, match="no plan serves 2,000 requests/s at 1 ms a token and 1 us to the first"):
        keep(late)
    large = {**SMALL, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "head_dim": 2048}
    (lacks,) = recommend_llm(gpu=["t4"], **{**ASKED, **TARGET, "config": large}, parallel="tp=1").others
    assert lacks[:2] == ("t4", "")
    assert "don't fit into GPU memory" in lacks[2]


def test_too_many_requests_take_too_many_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REPLICAS", 3)
    r = recommend_llm(gpu=["l4"], **{**ASKED, **TARGET, "qps": 100_000}, parallel="tp=1")
    assert r.plans == () and r.others[0][2] == "needs more than 3 instances for 100,000 requests/s"


@pytest.mark.parametrize(
    "asked", [{"batch": 4}, {"concurrency": 4}, {"qps": 500.0, "requests": 200, "batch": 32}], ids=str
)
def test_cards_are_compared_by_what_llm_answers(asked: dict[str, Any]) -> None:
    prices = gpu_specs.prices()
    by = {by: compare_llm(gpu=CARDS, by=by, **LENGTHS, **asked) for by in ("latency", "throughput", "cost")}
    for c in by["cost"].cards:
        g = llm(gpu=c.device.id, **LENGTHS, **asked)
        token = g.service.times["time_per_output_token"].mean if g.service else g.batches[0].token
        rate = g.service.tokens_per_second if g.service else g.batches[0].tokens_per_second
        assert c.token == token and c.tokens_per_second is not None
        assert c.tokens_per_second.seconds == pytest.approx(rate)
        usd = prices[c.device.id].usd_per_hour / 3600 / rate * 1e6
        assert c.usd_per_million_tokens == pytest.approx(usd) == c.figure[1] if c.figure else None
        assert c.generation is not None and c.generation.largest_batch == g.largest_batch
    for of in by.values():
        for a, b in pairwise(of.cards):
            assert a.figure and b.figure and a.figure[1] <= b.figure[1] and a.rank <= b.rank
            assert a.figure[0] <= a.figure[1] <= a.figure[2]
            assert (b.device.id in a.ties) == (b.figure[0] <= a.figure[2] and a.figure[0] <= b.figure[2])


def test_instances_of_pools_cost_as_many_cards() -> None:
    terms: dict[str, Any] = {**LENGTHS, "pools": "1:2", "concurrency": 8, "parallel": "tp=2", "cached": 0.5}
    (c,), g = compare_llm(gpu=["h100"], by="cost", **terms).cards, llm(gpu="h100", **terms)
    assert g.service is not None and c.price is not None and c.gpus == 6
    usd = 6 * c.price.usd_per_hour / 3600 / g.service.tokens_per_second * 1e6
    assert c.usd_per_million_tokens == pytest.approx(usd)


def test_a_draft_and_a_prefix_cache_are_in_the_plans() -> None:
    more: dict[str, Any] = {**ASKED, "draft": SMALL, "accept": 0.8, "cached": 0.5, "batch": RUNNING}
    r = recommend_llm(gpu=["l4"], qps=200, tpot_ms=3, parallel="tp=1", **more)
    g = llm(gpu="l4", qps=r.plans[0].qps, **more)
    assert g.service is not None and r.plans[0].token == g.service.times["time_per_output_token"].mean
    assert (r.draft, r.cached) == ("llama", 0.5) and "not measured" in r.notes[1]
    jsonschema.validate(r.to_dict(), SCHEMA)
    assert "draft llama, 50% of prompts cached" in " ".join(str(r).split())


def test_cards_that_are_not_ranked_say_why() -> None:
    found = compare_llm(gpu=CARDS, batch=1, tpot_ms=1e-3, **LENGTHS)
    assert all("per output token, over 1 us" in c.why and c.figure is None for c in found.cards)
    found = compare_llm(gpu=["t4", "l4"], config=SMALL, prompt=2048, output=2048, batch=60_000)
    assert all(c.why.startswith("does not fit at batch 60000: ") and not c.fits for c in found.cards)
    divided = compare_llm(gpu=["l4"], parallel="tp=2", by="cost", **LENGTHS).cards[0]
    assert divided.gpus == 2 and divided.price and divided.tokens_per_second and divided.usd_per_million_tokens
    assert divided.usd_per_million_tokens == pytest.approx(
        2 * divided.price.usd_per_hour / 3600 / divided.tokens_per_second.seconds * 1e6
    )
    with pytest.raises(UsageError, match="one concurrency"):
        compare_llm(gpu=["l4"], concurrency="1,2", **LENGTHS)
    with pytest.raises(UsageError, match="ranked by one of latency, throughput, cost, not 'energy'"):
        compare_llm(gpu=["l4"], by="energy", **LENGTHS)


@pytest.mark.parametrize("by", ["latency", "throughput", "cost"])
def test_a_card_that_cannot_keep_up_is_not_ranked(by: str) -> None:
    """Its waiting times grow for as long as requests arrive, so that its times are those of no request."""
    asked: dict[str, Any] = {**ASKED, "prompt": 2048, "output": 256, "batch": 256}
    slow, fast = (llm(gpu=gpu, qps=1.0, **asked).service for gpu in ("t4", "h100"))
    assert slow is not None and fast is not None and slow.capacity and fast.capacity
    rate = (slow.capacity + fast.capacity) / 2
    first, last = compare_llm(gpu=["t4", "h100"], by=by, qps=rate, **asked).cards
    assert (first.device.id, first.rank, last.device.id, last.figure) == ("h100-sxm", 1, "t4", None)
    assert last.why.startswith("cannot keep up: serves at most ") and last.to_dict()["rank"] is None
    for card in (first.to_dict(), last.to_dict()):
        assert card["fits"] and card["memory_bytes"] <= card["capacity_bytes"]
    shown = str(compare_llm(gpu=["t4"], by=by, qps=rate, **asked))
    assert "no card can be ranked" in shown and "t4: cannot keep up" in shown


def test_the_memory_of_requests_is_what_the_card_has_for_them() -> None:
    """All 256 at a time do not fit: the card takes as many as do."""
    large = {**SMALL, "num_hidden_layers": 80, "num_key_value_heads": 4, "head_dim": 256}
    asked: dict[str, Any] = {**ASKED, "config": large, "prompt": 3000, "output": 64, "qps": 0.1, "requests": 20}
    (card,) = compare_llm(gpu=["t4"], **asked).cards
    assert card.generation is not None and not card.generation.batches[0].fits
    shown = card.to_dict()
    assert shown["fits"] and 0 < shown["memory_bytes"] <= shown["capacity_bytes"]


@pytest.fixture
def onnxperf_cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("COLUMNS", raising=False)
    return partial(run, capsys, monkeypatch)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """The configuration and the graph of a decoder."""
    config, model = tmp_path / "config.json", tmp_path / "decoder.onnx"
    config.write_text(json.dumps(SMALL), encoding="utf-8")
    onnx.save(decoder(config_of(SMALL), dtype="float16"), str(model))
    return str(config), str(model)


def test_the_commands_answer(onnxperf_cli: Any, files: tuple[str, str]) -> None:
    config, _ = files
    asked = ("--gpu", "l4,a100-sxm4-80gb", "--prompt", "64", "--output", "16", "--requests", "200")
    asked += ("--parallel", "tp=1")
    given = (
        "recommend",
        "--config",
        config,
        "--gpu",
        "l4",
        *asked[2:],
        "--qps",
        "2000",
        "--tpot",
        "1ms",
        "--engine",
        "vllm",
    )
    given += ("--batch", "32")
    code, out, err = onnxperf_cli(*given, "--json", "-")
    same = recommend_llm(**{**ASKED, "config": config}, gpu=["l4"], qps=2000, tpot_ms=1, batch=32, parallel="tp=1")
    assert (code, err) == (0, "") and json.loads(out) == same.to_dict()
    jsonschema.validate(json.loads(out), SCHEMA)
    code, out, err = onnxperf_cli(*given)
    assert (code, err) == (0, "") and "1 GPU" in out and "$/M tokens" in out and "worst case" in out
    code, out, err = onnxperf_cli(*given, "--ttft", "1us", "--percentile", "90")
    assert code == 1 and "no plan meets this target" in out and "no plan serves 2,000 requests/s" in err
    given = ("compare", "--config", config, *asked, "--engine", "vllm", "--concurrency", "4")
    code, out, err = onnxperf_cli(*given, "--json", "-")
    same = compare_llm(**{**ASKED, "config": config}, gpu=["l4", "a100"], concurrency=4, parallel="tp=1")
    assert (code, err) == (0, "") and json.loads(out) == same.to_dict()
    code, out, err = onnxperf_cli(*given)
    assert (
        (code, err) == (0, "") and "ranked by time per output token" in out and "4 at a time" in " ".join(out.split())
    )


def test_a_file_goes_as_well(onnxperf_cli: Any, files: tuple[str, str]) -> None:
    _, model = files
    asked = ("--gpu", "l4,a100-sxm4-80gb", "--prompt", "64", "--output", "16")
    code, out, err = onnxperf_cli("compare", model, *asked, "--batch", "2", "--json", "-")
    one = llm(model, gpu="l4", prompt=64, output=16, batch=2)
    shown = {card["gpu"]: card for card in json.loads(out)["cards"]}["l4"]
    assert (code, err) == (0, "") and shown["time_per_output_token"] == one.batches[0].token.to_dict()
    code, out, err = onnxperf_cli("recommend", model, *asked, "--tpot", "2ms", "--qps", "100", "--parallel", "tp=2")
    assert (code, err) == (0, "") and "1 instance of 2 NVIDIA " in out and "(tp=2)" in out


@pytest.mark.parametrize("flag", ["", "--engine vllm", "--runtime torch-eager"])
def test_what_runs_it_is_named(onnxperf_cli: Any, files: tuple[str, str], flag: str) -> None:
    asked = ("--config", files[0], "--gpu", "l4", "--prompt", "64", "--output", "16", *flag.split())
    runner = flag.rpartition(" ")[2] or "ort-genai"
    code, compared, err = onnxperf_cli("compare", *asked)
    assert (code, err) == (0, "") and f"under {runner}, as stored" in " ".join(compared.split())
    limits = ("--tpot", "50ms", "--qps", "5", "--requests", "20", "--parallel", "tp=1")
    code, out, err = onnxperf_cli("recommend", *asked, *limits)
    assert (code, err) == (0, "") and f"under {runner}, as stored" in " ".join(out.split())
    command = out.splitlines()[-1].split()
    lengths = "--prompt 64 --output 16 --requests 20"
    assert " ".join(sorted(command)) == " ".join(
        sorted(f"onnxperf llm --config {files[0]} --gpu l4 {flag} {lengths} --batch 256 --qps 5".split())
    )
    code, out, err = onnxperf_cli("recommend", *asked, *limits, "--json", "-")
    jsonschema.validate(shown := json.loads(out), SCHEMA)
    assert shown["runners"] == [runner]


@pytest.mark.parametrize(
    "options",
    [
        "--precision bf16 --weights int4 --cache int8 --prune-lm-head --chunk 32 --host server-2023 --clock 1500.5",
        "--engine vllm --draft 'small config.json' --accept 0.7 --draft-tokens 3 --cached 0.5 --seed 3",
        "--runtime torch-eager --prompt-lengths uniform:10:90 --output-lengths 12 --power-limit 60 --parallel tp=2",
    ],
)
def test_the_command_of_an_instance_can_be_pasted(
    onnxperf_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("the config.json", "small config.json"):
        (tmp_path / name).write_text(json.dumps(SMALL), encoding="utf-8")
    card = "my card.toml"
    (tmp_path / card).write_text((ROOT / "gpu_specs/cards/l4.toml").read_text(encoding="utf-8"), encoding="utf-8")
    asked = ["--config", "the config.json", "--gpu", card, *shlex.split(options), "--requests", "20"]
    asked += ["--prompt", "64", "--output", "16", "--qps", "5", "--tpot", "50ms", "--batch", "8"]
    code, out, err = onnxperf_cli("recommend", *asked)
    assert (code, err) == (0, "")
    first, *words = shlex.split(out.splitlines()[-1])
    code, again, err = onnxperf_cli(*words, "--json", "-")
    assert (first, code, err) == ("onnxperf", 0, "")
    (plan, *_) = json.loads(onnxperf_cli("recommend", *asked, "--json", "-")[1])["plans"]
    for name in ("time_to_first_token", "time_per_output_token"):
        mean = json.loads(again)["service"][name]
        assert plan[name] == {key: mean[key] for key in plan[name]}


def test_a_command_names_what_was_read_from_no_file(files: tuple[str, str]) -> None:
    sizes = {"dims": {"a b": 2}, "shapes": {"x": (2, 3)}, "trip_counts": {"loop": 4}}
    model = decoding_of(Path(files[1]), sizes | {"include_transfers": True})
    words = f"{files[1]} --gpu l4 --parallel tp=2 --dim 'a b=2' --shapes x:2x3 --trip-count loop=4 --include-transfers"
    assert model.command("l4", "tp=2", 8, 2.5) == f"onnxperf llm {words} --batch 8 --qps 2.5"
    config = decoding_of(None, {"config": SMALL, "draft": SMALL, "accept": 0.5})
    words = "--gpu l4 --config config.json --draft draft.json --accept 0.5"
    assert config.command("l4", "", 8, 1 / 3) == f"onnxperf llm {words} --batch 8 --qps 0.33333"


@pytest.mark.parametrize("card", ["l4", "rtx-3060"])
def test_prices_stand_in_a_hundred_columns(
    onnxperf_cli: Any, files: tuple[str, str], monkeypatch: pytest.MonkeyPatch, card: str
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    code, out, err = onnxperf_cli("compare", "--config", files[0], "--gpu", card, "--engine", "vllm")
    head = next(line for line in out.splitlines() if line.startswith("rank "))
    assert (code, err) == (0, "") and len(head) <= 100
    assert ("$/hour" in head) == ("$/M tokens" in out) == ("on-demand prices" in out) == (card == "l4")


def test_a_screen_has_no_table_of_nothing_and_no_note_on_what_is_left_out(
    onnxperf_cli: Any, files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--config", files[0], "--gpu", "l4", "--prompt", "64", "--output", "16", "--engine", "vllm")
    code, out, err = onnxperf_cli("compare", *asked, "--tpot", "1us")
    assert (code, err) == (0, "") and "\nno card can be ranked\nl4: takes" in out and "rank " not in out
    for columns in ("80", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        limits = ("--tpot", "50ms", "--qps", "5", "--requests", "20", "--parallel", "tp=1")
        code, out, err = onnxperf_cli("recommend", *asked, *limits)
        assert (code, err) == (0, "") and ("- load:" in out) == (columns == "200")
    code, out, err = onnxperf_cli("llm", *asked, "--concurrency", "0")
    assert (code, out) == (2, "") and "'0' is not a list of numbers of requests for --concurrency" in err


def test_cards_that_run_it_otherwise_are_named_too(tmp_path: Path) -> None:
    host = tmp_path / "host.toml"
    host.write_text(PROCESSOR, encoding="utf-8")
    r = compare_llm(gpu=["l4", host], config=SMALL, prompt=64, output=16)
    assert set(r.runners) == {"ort-genai", "ort-cpu"}
    assert f"under {r.runners[0]} and {r.runners[1]}," in " ".join(str(r).split())


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (("compare",), "Missing argument 'MODEL'"),
        (("compare", "--config", "CONFIG", "--max-latency", "5ms"), "limited by --tpot and --ttft"),
        (("compare", "--config", "CONFIG", "--mode", "training"), "--mode says nothing of a language model"),
        (("compare", "--config", "CONFIG", "--layout", "nhwc"), "--layout says nothing"),
        (("compare", "--config", "CONFIG", "--by", "energy"), "ranked --by one of latency, throughput, cost"),
        (("compare", "NET", "--concurrency", "4"), "the model is not a decoder"),
        (("compare", "--config", "CONFIG", "--json", "CONFIG"), "would overwrite"),
        (("recommend", "--config", "CONFIG", "--qps", "2"), "--tpot 50ms, --ttft 1s, or both"),
        (("recommend", "--config", "CONFIG", "--tpot", "5ms"), "recommend takes --qps"),
        (("recommend", "--config", "CONFIG", "--tpot", "5", "--qps", "2"), "is not a duration"),
        (("recommend", "--config", "CONFIG", "--tpot", "5ms", "--qps", "0"), "--qps must be"),
        (("recommend", "--config", "CONFIG", "--tpot", "5ms", "--qps", "2", "--gpus", "4"), "leave --gpus out"),
        (("recommend", "--config", "CONFIG", "--gpus", "2"), "--parallel tp=2 instead of --gpus 2"),
        (("compare", "--config", "CONFIG", "--gpus", "2"), "give --parallel dp=2, tp=2 or"),
        (("llm", "--config", "CONFIG", "--gpus", "2"), "--parallel tp=2 is for 2 GPUs"),
        (("recommend", "--config", "CONFIG", "--tpot", "5ms", "--qps", "2", "--percentile", "95"), "one of 50, 90, 99"),
        (("recommend", "--config", "none.json", "--tpot", "5ms", "--qps", "2"), "none.json"),
        (("recommend", "--tpot", "5ms", "--qps", "2"), "either the decoder's ONNX file or its config.json"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_is_refused(
    onnxperf_cli: Any, files: tuple[str, str], tmp_path: Path, wrong: tuple[str, ...], says: str
) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(net(), str(path))
    named = {"CONFIG": files[0], "NET": str(path)}
    code, out, err = onnxperf_cli(*(named.get(word, word) for word in wrong), "--gpu", "l4")
    assert (code, out) == (2, "") and says in " ".join(err.split())


def test_python_speaks_of_its_arguments() -> None:
    with pytest.raises(UsageError, match="tpot_ms must be a positive"):
        recommend_llm(gpu=["l4"], qps=1, tpot_ms=-1, config=SMALL)
    assert str(recommended()).startswith("llama under vllm") and str(onnxperf.compare_llm(gpu=["l4"], **LENGTHS))

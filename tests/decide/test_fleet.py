"""`recommend --fleet`: the cheapest mix of cards for several models, with the cards that there are."""

import json
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from shutil import copy
from typing import Any

import jsonschema
import numpy as np
import pytest

import onnxperf
from onnxperf.decide import fleet_file
from onnxperf.decide.mix import Mix, Way, cheapest
from onnxperf.decide.queueing import Target, fewest, rates
from onnxperf.ground import modules
from tests.test_cli import run

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "onnxperf/decide/recommend_fleet.schema.json").read_text(encoding="utf-8"))
MODEL = '[[model]]\npath = "{0}.onnx"\nqps = {1}\nmax_ms = {2}\n'


def fleet(folder: Path, *models: tuple[str, float, float], more: str = "") -> str:
    for name, *_ in models:
        copy(ROOT / f"samples/{name}.onnx", folder)
    (folder / "fleet.toml").write_text(more + "".join(MODEL.format(*m) for m in models), encoding="utf-8")
    return str(folder / "fleet.toml")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    return lambda *arguments: run(capsys, monkeypatch, "recommend", *arguments)


def by_trying(ways: list[Way], qps: list[float], available: dict[str, int]) -> float:
    """The cost of the cheapest mix, by trying all: as many replicas of each way as alone would do at most."""
    numbers = [range(math.ceil(qps[w.model] / w.most) + 1) for w in ways]
    best = math.inf
    for counts in product(*numbers):
        for model, rate in enumerate(qps):
            of = [(n, w) for n, w in zip(counts, ways, strict=True) if w.model == model]
            if not sum(n * w.least for n, w in of) <= rate <= sum(n * w.most for n, w in of):
                break
        else:
            taken = {gpu: sum(n * w.gpus for n, w in zip(counts, ways, strict=True) if w.gpu == gpu) for gpu in "ab"}
            if all(n <= available.get(gpu, n) for gpu, n in taken.items()):
                best = min(best, sum(n * w.usd for n, w in zip(counts, ways, strict=True)))
    return best


def test_no_mix_is_cheaper_than_the_one_that_is_named() -> None:
    """Small fleets drawn at random, with cards of two kinds; a third of them can't be served."""
    random, served = np.random.default_rng(36), 0
    for _ in range(60):
        qps = random.uniform(50, 300, int(random.integers(1, 3))).tolist()
        ways = []
        for model, gpu in product(range(len(qps)), "ab"):
            most, usd = random.uniform(60, 200, 2)
            least = float(random.choice([0.0, most / 2]))
            ways.append(Way(model, gpu, int(random.integers(1, 3)), round(usd) / 100, least, float(most)))
        available = {gpu: int(random.integers(0, 6)) for gpu in random.permutation(["a", "b"])[: random.integers(0, 3)]}
        mix, best = cheapest(ways, qps, available), by_trying(ways, qps, available)
        if mix is None or mix.short:
            assert best == math.inf
            continue
        served += 1
        assert sum(n * w.usd for n, w in zip(mix.replicas, ways, strict=True)) == pytest.approx(best)
        assert mix.gap == 0
    assert 20 < served < 60


def test_what_is_lacking_is_the_cheapest_that_would_do() -> None:
    ways = [Way(0, "a", 1, 1.0, 0.0, 10.0), Way(0, "b", 1, 5.0, 0.0, 10.0)]
    assert cheapest(ways, [35.0], {"a": 1, "b": 2}) == Mix((2, 2), {"a": 1})
    assert cheapest(ways, [35.0], {"a": 1}) == Mix((1, 3), {})
    assert cheapest([Way(0, "a", 1, 1.0, 6.0, 8.0)], [10.0], {}) is None  # one serves too few, two fill too slowly


@pytest.mark.parametrize("percentile", [None, 90])
@pytest.mark.parametrize(("run_s", "batch", "limit_s"), [(2e-3, 1, 9e-3), (3e-3, 4, 12e-3), (5e-3, 8, 6e-3)])
def test_rates_agree_with_the_fewest_replicas(
    run_s: float, batch: int, limit_s: float, percentile: float | None
) -> None:
    """Replicas of one kind keep a target if and only if each one's part lies between its rates."""
    for qps in (40.0, 310.0, 1700.0):
        target = Target(limit_s, qps, percentile)
        between, replicas = rates(run_s, batch, target), fewest(run_s, batch, target)
        by_rates = None if between is None else math.ceil(qps / between[1])
        if between is not None and by_rates is not None and by_rates * between[0] > qps:
            by_rates = None
        assert by_rates == (replicas and replicas[0])


def test_a_fleet_of_one_is_served_as_the_model_alone(tmp_path: Path) -> None:
    file = fleet(tmp_path, ("alexnet", 900, 8))
    r = onnxperf.recommend_fleet(file, gpu=["t4", "l4"])
    best = onnxperf.recommend(ROOT / "samples/alexnet.onnx", max_ms=8, qps=900, gpu=["t4", "l4"]).plans[0]
    assert r.usd_per_hour is not None and best.usd_per_hour is not None and r.usd_per_hour <= best.usd_per_hour
    (m,) = r.models
    assert sum(p.qps for p in m.placements) == pytest.approx(900)
    assert all(p.seconds <= 8e-3 * (1 + 1e-6) for p in m.placements)
    jsonschema.validate(r.to_dict(), SCHEMA)


def test_scarce_cards_go_where_they_save_most(tmp_path: Path) -> None:
    models = ("alexnet", 900, 8), ("mobilenetv2", 5000, 8)
    asked: dict[str, Any] = {"gpu": ["t4", "l4"], "prices": {"t4": 9, "l4": 1}}
    file = fleet(tmp_path, *models)
    ample = onnxperf.recommend_fleet(file, **asked)
    used = {u.gpu: u.cards for u in ample.cards}
    assert ample.usd_per_hour == ample.alone_usd_per_hour and set(used) == {"l4"}
    scarce = onnxperf.recommend_fleet(file, available={"l4": used["l4"] - 1}, **asked)
    assert scarce.usd_per_hour is not None and scarce.usd_per_hour > (scarce.alone_usd_per_hour or 0)
    assert ample.why == ("each model runs where it is cheapest",)
    enough = onnxperf.recommend_fleet(file, available={"l4": 1000}, **asked)
    assert enough.why == ("the numbers of available cards change nothing: each model runs where it is cheapest",)
    assert f"{used['l4']} x l4 where there are {used['l4'] - 1:,}" in scarce.why[0]
    lacking = onnxperf.recommend_fleet(file, available={"l4": 1, "t4": 0}, **asked)
    assert lacking.models == () and dict(lacking.short) == {"l4": used["l4"] - 1}
    jsonschema.validate(lacking.to_dict(), SCHEMA)


def test_a_model_that_no_card_serves_is_named_with_the_limit(command, tmp_path: Path) -> None:
    file = fleet(tmp_path, ("alexnet", 100, 8), ("bert-base", 10, 0.5))
    code, out, err = command("--fleet", file, "--gpu", "t4,l4", "--json", "-")
    assert code == 1 and "no card serves bert-base.onnx" in err
    answer = json.loads(out)
    jsonschema.validate(answer, SCHEMA)
    assert [u["model"] for u in answer["unserved"]] == ["bert-base.onnx"]
    assert all("over 500 us" in other["why"] for other in answer["unserved"][0]["others"])


def test_a_language_model_takes_its_cards_from_the_same_stock(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096,
        "num_attention_heads": 16, "num_hidden_layers": 8, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
        "vocab_size": 32000, "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "hidden_act": "silu",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    decoder = '[[model]]\nname = "chat"\nconfig = "config.json"\nqps = 3\ntpot_ms = 30\nengine = "vllm"\nprompt = 256\n'
    file = fleet(
        tmp_path,
        ("alexnet", 500, 8),
        more="available = { l4 = 1 }\n" + decoder + 'output = 32\nbatch = 8\nparallel = "tp=1"\n',
    )
    r = onnxperf.recommend_fleet(file, gpu=["l4", "t4"], prices={"l4": 0.1, "t4": 1})
    assert [m.model for m in r.models] == ["chat", "alexnet.onnx"]
    assert {p.gpu for m in r.models for p in m.placements} == {"l4", "t4"}
    assert r.models[0].placements[0].batch is None and "per output token" in r.models[0].limit
    jsonschema.validate(r.to_dict(), SCHEMA)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("", "has no [[model]]; each model needs such a table, with path, qps and max_ms"),
        ("model = []", "1 to 200 tables"),
        ('[[model]]\npth = "x"', "unknown key 'pth' in [[model]] 1; did you mean 'path'?"),
        ('[[model]]\npath = "../x.onnx"\nqps = 1\nmax_ms = 1', "outside of the file's folder"),
        ('[[model]]\npath = "none.onnx"\nqps = 1\nmax_ms = 1', "no such file: 'none.onnx' in [[model]] 1"),
        ('[[model]]\npath = "alexnet.onnx"\nqps = "many"\nmax_ms = 1', "qps in [[model]] 1 is 'many'"),
        ('[[model]]\npath = "alexnet.onnx"\nqps = 1\nmax_ms = nan', "max_ms in [[model]] 1 is nan"),
        (MODEL.format("alexnet", 1, 1) * 2, "two models are called 'alexnet.onnx'"),
        (MODEL.format("alexnet", 1, 1) * 201, "1 to 200 tables"),
        ('available = { l4 = -1 }\n' + MODEL.format("alexnet", 1, 1), "whole numbers of cards"),
        ('available = { nocard = 1 }\n' + MODEL.format("alexnet", 1, 1), "nocard"),
        (MODEL.format("alexnet", 1, 1) + 'precision = "fp13"', "alexnet.onnx: unknown precision 'fp13'"),
        ("[[model", "is not valid TOML"),
    ],
)  # fmt: skip
def test_files_from_strangers_are_refused_in_a_sentence(command, tmp_path: Path, written: str, says: str) -> None:
    file = fleet(tmp_path, ("alexnet", 1, 1))
    Path(file).write_text(written, encoding="utf-8")
    code, out, err = command("--fleet", file, "--gpu", "l4")
    assert (code, out) == (2, "") and says in err and len(err.splitlines()) == 1


def test_the_page_on_cards_lists_every_key() -> None:
    page = (ROOT / "docs/which-card.md").read_text(encoding="utf-8")
    listed = {
        key for line in page.splitlines() if line.startswith("| `") for key in line.split("|")[1].split("`")[1::2]
    }
    assert listed == {"available", *fleet_file._MODEL, *fleet_file._DECODER}


def test_what_a_fleet_takes(command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = fleet(tmp_path, ("alexnet", 100, 8))
    for option, named in ((("--precision", "fp16"), "--precision"), (("x.onnx",), "MODEL"), (("--qps", "3"), "--qps")):
        code, _, err = command("--fleet", file, *option)
        assert code == 2 and f"leave {named} out" in err
    assert command("x.onnx", "--available", "l4=1")[0] == 2
    for option in ("--available", "--price"):
        code, _, err = command("--fleet", file, "--gpu", "l4", option, "t4=2")
        assert code == 2 and f"{option} t4=2: t4 is not one of the cards to choose from" in err
    code, out, err = command("--fleet", file, "--gpu", "l4,t4", "--available", "l4=9,t4=9")
    assert (code, err) == (0, "") and out
    assert "has no price" in command("--fleet", file, "--gpu", "rtx-4090")[2]
    monkeypatch.setattr(modules, "find_spec", lambda name: None)
    code, _, err = command("--fleet", file, "--gpu", "l4")
    assert code == 4 and "pip install 'onnxperf[fit]'" in err

"""Predictions as tools of an assistant: by the SDK's own client, and each part by itself."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import onnxperf
from onnxperf.cli import assistant
from onnxperf.cli.assistant import TOOLS, answered, cut, schema, tool, written
from onnxperf.ground.errors import UsageError

ROOT = Path(__file__).parents[1]
MOBILENET, OPEN = (str(ROOT / "samples" / f"{name}.onnx") for name in ("mobilenetv2", "gpt2-dynamic"))
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
    "vocab_size": 256, "max_position_embeddings": 128, "torch_dtype": "float16", "hidden_act": "silu",
}  # fmt: skip


@pytest.mark.slow
def test_a_session_of_the_official_client(tmp_path: Path) -> None:
    mcp = pytest.importorskip("mcp", reason="the SDK, of the extra `mcp`, is not installed")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    calls: dict[str, dict[str, Any]] = {
        "predict": {"model": MOBILENET, "gpu": ["l4"], "batch": "2"},
        "compare": {"model": MOBILENET, "gpu": ["t4", "l4"]},
        "recommend": {"model": MOBILENET, "gpu": ["t4"], "max_latency": "10us", "qps": 5},
        "explain": {"model": MOBILENET, "gpu": ["l4"]}, "whatif": {"model": MOBILENET, "gpu": ["l4"], "rows": 1},
        "llm": {"config": str(config), "gpu": ["a100"], "prompt": 16, "output": 2, "batch": "1"},
        "gpus": {"name": "l4"},
    }  # fmt: skip
    wrong = [{"model": MOBILENET, "gpu": ["l5"]}, {"model": "none.onnx", "gpu": ["l4"]}, {"model": OPEN, "gpu": ["l4"]}]

    async def session() -> tuple[list[Any], dict[str, Any], list[Any]]:
        start = mcp.StdioServerParameters(command=sys.executable, args=["-m", "onnxperf", "mcp"], cwd=ROOT)
        async with mcp.Client(start) as client:
            assert client.server_info.name == "onnxperf" and "80% interval" in client.instructions
            tools = (await client.list_tools()).tools
            answers = {name: await client.call_tool(name, asked) for name, asked in calls.items()}
            return tools, answers, [await client.call_tool("predict", asked) for asked in wrong]

    tools, answers, errors = asyncio.run(session())
    assert [t.name for t in tools] == list(TOOLS) and all(t.annotations.read_only_hint for t in tools)
    for t in tools:
        jsonschema.validate(calls[t.name], t.input_schema)
    for name, result in answers.items():
        assert not result.is_error and json.loads(result.content[0].text) == result.structured_content, name
        assert result.structured_content["summary"] and result.structured_content["answer"], name
    p = onnxperf.predict(MOBILENET, gpu="l4", batch=2)
    answer = answers["predict"].structured_content
    assert answer["answer"]["latency"]["seconds"] == p.seconds and len(answer["answer"]["kernels"]) == 10
    assert answer["left_out"]["kernels"] == len(p.kernels) - 10
    assert answer["answer"]["kernels"][0]["seconds"] == max(k.seconds for k in p.kernels)
    assert "no card serves 5 requests/s at 10 us" in answers["recommend"].structured_content["limit"]
    assert all(e.is_error and e.structured_content is None for e in errors)
    said = [e.content[0].text for e in errors]
    assert said[0].startswith("unknown gpu 'l5'; nearest: l4") and said[1] == "no such file: none.onnx"
    assert "--dim sequence=128" in said[2] and not any("Traceback" in text for text in said)


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_has_the_options_of_its_command_but_those_that_write(name: str) -> None:
    command, properties = tool(name), schema(tool(name))["properties"]
    jsonschema.Draft202012Validator.check_schema(schema(command))
    options = {p.name: p.opts[0].removeprefix("--").replace("-", "_") for p in command.params}
    assert properties.keys() <= {*options.values(), "rows"}
    left = {option for option in options.values() if option not in properties}
    assert left <= {
        "json", "html", "detail", "top", "by_module", "trace", "netron", "model_explorer", "profile", "plot", "debug",
    }  # fmt: skip
    terms = schema(tool("predict"))["properties"] if name != "predict" else {"runtime": {}}
    assert {key for key, p in properties.items() if not p.get("description")} <= {"name", *terms}


def test_arguments_become_words_that_are_no_options() -> None:
    asked = {"model": "--json=x", "gpu": ["l4", "t4"], "batch": 2, "cuda_graph": True, "fit": False, "streams": None}
    words = written(tool("predict"), asked)
    assert words == ["--gpu=l4", "--gpu=t4", "--batch=2", "--cuda-graph", "--", "--json=x"]
    for name, value in (
        ("json", "x"),
        ("html", "x"),
        ("nope", 1),
        ("batch", {}),
        ("fit", "yes"),
        ("batch", [[1]]),
        ("batch", False),
    ):
        with pytest.raises(UsageError, match=f"has no argument '{name}'|{name} can't be"):
            written(tool("predict"), {name: value})


def test_what_goes_wrong_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"none")
    model = {"model": MOBILENET, "gpu": ["l4"]}
    for name, asked, says in (
        ("predict", {"gpu": ["l4"]}, "Missing argument 'MODEL'"), ("nope", {}, "unknown tool 'nope'"),
        ("predict", model | {"rows": 0}, "rows must be a whole number from 1 to 1,000, not 0"),
        ("predict", model | {"model": str(broken)}, "is not an ONNX model"),
        ("predict", model | {"precision": "fp99"}, "'fp99' is not one of"),
        ("gpus", {"name": "\x1b[2J"}, "unknown gpu"),
    ):  # fmt: skip
        answer, sentence = answered(name, asked)
        assert answer is None and says in sentence and sentence.isprintable()
    monkeypatch.setattr(assistant, "_printed", lambda *_: 1 / 0)
    answer, sentence = answered("gpus", {})
    assert answer is None and sentence.startswith("this is a bug of ours")


def test_answers_are_short_unless_more_rows_are_asked_for() -> None:
    answer, _ = answered("gpus", {})
    cards = onnxperf.gpus()
    assert answer and len(json.dumps(answer["answer"])) < assistant.ANSWER
    assert answer["left_out"]["answer"] + len(answer["answer"]) == len(cards)
    assert all(card.id in answer["summary"] for card in cards)
    left: Counter[str] = Counter()
    rows = [{"seconds": float(n), "nodes": ["a", "b", "c"], "shape": [1, 2, 3]} for n in range(4)]
    short = cut({"kernels": rows, "text": "x" * 1000}, 2, left)
    assert [row["seconds"] for row in short["kernels"]] == [3.0, 2.0] and len(short["text"]) < 600
    assert short["kernels"][0]["nodes"] == ["a", "b"] and short["kernels"][0]["shape"] == [1, 2, 3]
    assert left == {"kernels": 2, "kernels.nodes": 2}


def test_the_skill_names_commands_and_options_that_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    from onnxperf.cli import MODULES, cli

    cli.main(["mcp", "--skill"], standalone_mode=False)
    text = capsys.readouterr().out
    assert text.startswith("---\nname: onnxperf\ndescription: ") and len(text) < 5_000
    lines = [line.partition("#")[0].split() for line in text.splitlines() if line.startswith("onnxperf ")]
    assert len(lines) == 3
    for _, name, *words in lines:
        assert name in MODULES
        assert {w for w in words if w.startswith("--")} <= {o for p in tool(name).params for o in p.opts}
    assert all(f" {code} " in text for code in (0, 1, 2, 3, 4, 70, 130))

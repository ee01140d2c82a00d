"""The package as a library: what it offers, in arguments of its own."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import onnxperf
from onnxperf import cli
from onnxperf.cli.predictions import predict
from onnxperf.ground.errors import ARGUMENTS, UsageError, speaking_of_arguments
from tests.decide.models import net

SAMPLES = Path(__file__).parents[1] / "samples"
RESNET, MOBILENET, OPEN = (str(SAMPLES / f"{name}.onnx") for name in ("resnet50", "mobilenetv2", "gpt2-dynamic"))


def test_all_that_is_offered_is_listed_and_there() -> None:
    assert set(onnxperf.__all__) <= set(dir(onnxperf))
    assert {"predict", "check", "diff", "explain", "gpus", "load"} <= set(onnxperf.__all__)
    assert all(getattr(onnxperf, name) is not None for name in onnxperf.__all__)
    with pytest.raises(AttributeError, match="no attribute 'predct'"):
        _ = onnxperf.predct


def test_a_model_is_loaded_once_and_predicted_often(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(Path(OPEN).read_bytes())
    model = onnxperf.load(path)
    path.unlink()
    for batch in (1, 4):
        terms: dict[str, Any] = {"gpu": "l4", "batch": batch, "dims": {"sequence": 16}}
        found, wanted = onnxperf.predict(model, **terms), onnxperf.predict(OPEN, **terms)
        assert found.seconds == wanted.seconds
        assert found.to_json() == wanted.to_json().replace(Path(OPEN).name, path.name)
    again = onnxperf.predict(model, **terms, precision="fp16"), onnxperf.predict(model, **terms)
    assert again[1].run.run_graph is found.run.run_graph is not again[0].run.run_graph
    assert repr(model) == "<model.onnx: 485 nodes>"
    x = {"input_ids": np.zeros((2, 8), np.int64)}
    assert onnxperf.predict(model, x, gpu="l4").seconds == onnxperf.predict(OPEN, x, gpu="l4").seconds


def test_diff_and_explain_are_what_the_commands_show() -> None:
    found = onnxperf.diff(RESNET, MOBILENET, gpu="t4")
    assert found.ratio == pytest.approx(
        onnxperf.predict(MOBILENET, gpu="t4").seconds / onnxperf.predict(RESNET, gpu="t4").seconds
    )
    kernel = onnxperf.predict(RESNET, gpu="t4", precision="fp16").kernels[3]
    assert onnxperf.explain(RESNET, kernel.name, gpu="t4", precision="fp16").seconds == kernel.seconds
    with pytest.raises(UsageError, match="nothing"):
        onnxperf.explain(RESNET, "nothing", gpu="t4")


SEVERAL: tuple[Callable[..., Any], ...] = (
    partial(onnxperf.check, max_ms=1),
    partial(onnxperf.check, max_gb=1, fit=True),
    onnxperf.compare,
    onnxperf.sweep,
    partial(onnxperf.recommend, max_ms=10, qps=100),
)


@pytest.mark.parametrize("ask", SEVERAL)
@pytest.mark.parametrize("none", [[], ()])
def test_a_list_without_cards_is_no_request(ask: Callable[..., Any], none: Sequence[str]) -> None:
    with pytest.raises(UsageError, match=r'name the cards in a list, such as gpu=\["l4", "t4"\]'):
        ask(net(), gpu=none)


@pytest.mark.parametrize("ask", SEVERAL[2:])
def test_a_card_is_no_list_of_cards(ask: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="name the cards in a list"):
        ask(net(), gpu="l4")


@pytest.mark.parametrize("ask", [onnxperf.explain, onnxperf.whatif, partial(onnxperf.diff, b=net())])
def test_one_card_is_no_list(ask: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="gpu can't be a list"):
        ask(net(), gpu=[])


@pytest.mark.parametrize(
    "several", [{"gpu": ["l4"]}, {"gpu": ("l4", "t4")}, {"batch": [1, 2]}, {"batch": (1,)}, {"batch": "1..8"}]
)
def test_a_prediction_of_several_names_what_to_call(several: dict[str, Any]) -> None:
    what = "card" if "gpu" in several else "batch"
    says = f"predict takes one {what}, not .*: `onnxperf.compare` ranks several cards, `onnxperf.sweep` predicts"
    with pytest.raises(UsageError, match=says):
        onnxperf.predict(net(), **{"gpu": "l4", **several})


def test_a_budget_holds_for_each_card_and_batch() -> None:
    """As `onnxperf check` has it: lists, and batches as text, give a list, for each card in turn."""
    asked = {"gpu": ["l4", "t4"], "batch": "1,2,4"}
    found = onnxperf.check(net(), **asked, max_ms=1e3)
    assert [(p.scenario.gpu, p.scenario.batch) for p in found] == [(g, n) for g in ("l4", "t4") for n in (1, 2, 4)]
    assert found == [onnxperf.predict(net(), gpu=p.scenario.gpu, batch=p.scenario.batch) for p in found]
    assert onnxperf.check(net(), gpu="l4", batch=[4, 1, 4], max_ms=1e3) == [found[2 * i] for i in (0, 1)]
    assert onnxperf.check(net(), gpu="l4", batch="2", max_ms=1e3) == [found[1]]
    assert onnxperf.check(net(), gpu="l4", batch=2, max_ms=1e3) == found[1]
    times = sorted(p.seconds for p in found)
    worst = max(found, key=lambda p: p.seconds).scenario
    with pytest.raises(onnxperf.BudgetExceeded) as e:
        onnxperf.check(net(), **asked, max_ms=(times[-3] + times[-2]) / 2 * 1e3)
    assert str(e.value).startswith(
        f"2 of 6 predictions over the limit, the worst on {worst.gpu} at batch {worst.batch}: "
    )
    for wrong, says in (("1;2", "is not a list of batches"), ([0], "batch must be whole numbers from 1 to")):
        with pytest.raises(UsageError, match=says):
            onnxperf.check(net(), gpu="l4", batch=wrong, max_ms=1)
    with pytest.raises(UsageError, match="fit takes the largest batch that fits: leave batch out"):
        onnxperf.check(net(), gpu="l4", batch=[1, 2], fit=True, max_ms=1)


def test_cards_are_listed() -> None:
    cards = {d.id: d for d in onnxperf.gpus()}
    assert cards["l4"].sms == 58 and len(cards) > 90
    assert onnxperf.predict(MOBILENET, gpu=cards["l4"]).scenario.gpu == "l4"


def test_a_prediction_shows_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    p = onnxperf.predict(RESNET, gpu="l4", precision="fp16")
    assert repr(p).startswith("<resnet50.onnx on l4 under ort-cuda: ") and "\n" not in repr(p) and len(repr(p)) < 100
    brief, whole = p.report(), p.report(detail=True)
    assert brief.startswith("resnet50.onnx · NVIDIA L4 · ONNX Runtime CUDA · FP16 · batch 1\n")
    assert len(brief.splitlines()) < 20 < len(whole.splitlines()) and "\x1b" not in whole
    by = p.by_operator()
    assert sum(by.values()) == pytest.approx(p.sum_seconds) and list(by.values()) == sorted(by.values(), reverse=True)
    table = p.to_dataframe()
    assert len(table) == len(p.kernels) and table["seconds"].sum() == pytest.approx(p.sum_seconds)
    assert str(p) == brief.rstrip("\n")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(onnxperf.EnvironmentFailure, match="pip install pandas"):
        p.to_dataframe()


def test_a_prediction_writes_its_files(tmp_path: Path) -> None:
    p = onnxperf.predict(MOBILENET, gpu="l4")
    for write in (p.to_trace, p.to_netron, p.to_layer_profile):
        path = tmp_path / f"{write.__name__}.json"
        assert path.write_text("before") and path.read_text() != (text := write(path))
        assert path.read_text() == text + "\n" == write(str(path)) + "\n"
    assert (tmp_path / "a.html").exists() is False
    p.to_html(path=tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text() == p.to_html() + "\n"
    pytest.importorskip("matplotlib")
    assert p.plot(tmp_path / "r.svg") == (tmp_path / "r.svg").read_bytes() == p.plot()
    assert p.plot(str(tmp_path / "r.png")).startswith(b"\x89PNG")
    for name in ("r.pdf", "r", "dir/r.svg"):
        with pytest.raises(onnxperf.UsageError):
            p.plot(tmp_path / name)
    assert sorted(f.name for f in tmp_path.glob("r*")) == ["r.png", "r.svg"]


def test_answers_are_printed_as_by_their_commands_and_become_data_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    cards, named = ["l4", "t4"], ["--gpu", "l4,t4"]
    answers = {
        "compare": (onnxperf.compare(MOBILENET, gpu=cards), named),
        "recommend": (
            onnxperf.recommend(MOBILENET, gpu=cards, max_ms=20, qps=100),
            [*named, "--max-latency", "20ms", "--qps", "100"],
        ),
        "whatif": (onnxperf.whatif(MOBILENET, gpu="l4"), ["--gpu", "l4"]),
        "explain": (onnxperf.explain(MOBILENET, gpu="l4"), ["--gpu", "l4"]),
    }
    for command, (answer, arguments) in answers.items():
        out = CliRunner().invoke(cli.cli, [command, MOBILENET, *arguments]).stdout
        assert str(answer) == out.replace(MOBILENET, Path(MOBILENET).name).rstrip("\n"), command
        if command != "explain":
            rows = next(v for v in answer.to_dict().values() if isinstance(v, list) and v)
            assert len(answer.to_dataframe()) == len(rows)
    assert "gain" in answers["whatif"][0].to_dataframe() and "best.seconds" in answers["compare"][0].to_dataframe()
    with pytest.raises(UsageError, match="no table"):
        answers["explain"][0].to_dataframe()
    swept = onnxperf.sweep(MOBILENET, gpu=cards, batch=[1, 8])
    assert str(swept).splitlines()[0] == Path(MOBILENET).name and len(str(swept).splitlines()) == 6


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"batch": 2}, r'has a dynamic dimension .sequence. .axis 1.: give dims=\{"sequence": 128\}, say, or '
                       r'shapes=\{"input_ids": \[2, 128\]\}'),
        ({"batch": 0, "dims": {"sequence": 8}}, "batch must be at least 1, not 0"),
        ({"dims": {"sequence": 8}, "runtime": "ort-cpu", "cuda_graph": True}, "leave streams and cuda_graph out"),
        ({"gpu": None}, "name the card"),
        ({"dims": {"sequence": 8}, "trip_counts": {"loop": 2}}, r'trip_counts=\{"loop": 2\}: no Loop'),
    ],
)  # fmt: skip
def test_errors_speak_of_arguments(terms: dict[str, Any], says: str) -> None:
    for door in (onnxperf.predict, lambda model, **t: onnxperf.diff(model, model, **t)):
        if "gpu" in terms and door is not onnxperf.predict:
            continue
        with pytest.raises(UsageError, match=says) as error:
            door(OPEN, **{"gpu": "l4", **terms})
        assert "--" not in str(error.value)
    with pytest.raises(UsageError, match="name the card"):
        onnxperf.predict(OPEN, "l4")


def test_several_sizes_in_a_message_become_one_argument() -> None:
    with pytest.raises(UsageError) as error, speaking_of_arguments():
        raise UsageError("give --dim a=1 --dim b=128 --shapes u:4x8 --shapes v:2, say")
    assert str(error.value) == 'give dims={"a": 1, "b": 128} shapes={"u": [4, 8], "v": [2]}, say'


def test_every_option_of_a_prediction_has_an_argument() -> None:
    """The message of an error that names any option of `predict` names an argument of `onnxperf.predict`."""
    import inspect

    arguments = inspect.signature(onnxperf.predict).parameters
    others = {"json", "html", "top", "detail", "by-module", "max-latency", "max-memory", "debug", "runtime-version"}
    others |= {"trace", "netron", "model-explorer", "profile", "plot"}
    for option in (o for p in predict.params for o in p.opts if o.startswith("--")):
        with pytest.raises(UsageError) as error, speaking_of_arguments():
            raise UsageError(f"leave {option} out")
        named = str(error.value).split()[1]
        assert named in arguments or option[2:] in others, option
    assert all(re.compile(pattern) for pattern, _ in ARGUMENTS)

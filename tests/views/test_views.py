"""Views that are written to files: the layer profile, the roofline, notebooks, and the options of `predict`."""

from __future__ import annotations

import json
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import onnxperf
from onnxperf.ground.errors import EnvironmentFailure, UsageError
from onnxperf.ground.tables import duration
from onnxperf.views.roofline import dots, roofs
from tests.test_cli import SAMPLES

MOBILENET = str(SAMPLES / "mobilenetv2.onnx")


def test_the_layer_profile_is_as_trtexec_writes_it() -> None:
    p = onnxperf.predict(MOBILENET, gpu="t4", runtime="tensorrt", include_transfers=True)
    text = p.to_layer_profile()
    count, *layers = json.loads(text)
    assert count == {"count": 1} and text.splitlines()[1] == '  { "count" : 1 }'
    kernels = [k for k in p.kernels if k.op != "Transfer"]
    assert len(kernels) == len(p.kernels) - 2
    assert [x["name"] for x in layers] == [" + ".join(k.nodes) for k in kernels]
    assert any(x["name"].count(" + ") for x in layers)
    for layer, k in zip(layers, kernels, strict=True):
        assert [*layer] == ["name", "timeMs", "averageMs", "medianMs", "percentage"]
        assert layer["timeMs"] == layer["averageMs"] == layer["medianMs"] == pytest.approx(k.seconds * 1e3, abs=1e-6)
    assert sum(x["percentage"] for x in layers) == pytest.approx(100, abs=0.01)


def test_dots_are_all_kernels_with_arithmetic_and_stand_under_the_roofs() -> None:
    p = onnxperf.predict(MOBILENET, gpu="l4")
    found, (memories, units) = dots(p), roofs(p)
    assert sum(d.seconds for d in found) == pytest.approx(sum(k.seconds for k in p.kernels if k.flops))
    assert memories[0].rate == p.device.bandwidth_Bps < memories[1].rate
    for d in found:
        assert d.rate <= units[0].rate and d.rate <= d.intensity * memories[1].rate
    assert [d.seconds for d in found] == sorted((d.seconds for d in found), reverse=True)


@pytest.mark.slow
def test_the_roofline_is_an_image(hostile: Path) -> None:
    pytest.importorskip("matplotlib")
    p = onnxperf.predict(hostile, gpu="l4", batch=1)
    svg, png = p.plot(), p.plot("png")
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and svg == p.plot("svg")
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not [e for e in root.iter() if e.tag.endswith(("script", "image", "foreignObject", "}a"))]


def test_an_image_that_can_t_be_drawn(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    p = onnxperf.predict(model, gpu="l4", batch=1)
    with pytest.raises(UsageError, match="format must be svg or png, not 'pdf'"):
        p.plot("pdf")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(EnvironmentFailure, match=r"pip install 'onnxperf\[plot\]'"):
        p.plot()


class _Tags(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.tags, self.attributes = list[str](), set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}


def test_a_notebook_shows_a_small_table(hostile: Path) -> None:
    long = onnxperf.predict(SAMPLES / "gpt2-dynamic.onnx", gpu="l4", dims={"sequence": 64})
    text = long._repr_html_()
    assert duration(long.seconds) in text
    assert text.count("<tr>") == 10 and len(text) < 5_000
    shown = onnxperf.predict(hostile, gpu="l4", batch=1)._repr_html_()
    found = _Tags(shown)
    assert set(found.tags) == {"div", "b", "br", "table", "tr", "td"} and found.attributes == {"style"}
    assert "a$^$&lt;b&gt;.onnx" in shown and len(shown) < 5_000


def test_views_are_files(onnxperf_cli: Any, model: Path, tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}{suffix}" for name, suffix in
             (("trace", ".json"), ("netron", ".json"), ("profile", ".json"))}  # fmt: skip
    arguments = [x for name, path in files.items() for x in (f"--{name}", path)]
    code, out, err = onnxperf_cli("predict", model, "--gpu", "l4", *arguments, "--json", "-")
    assert (code, err) == (0, "") and json.loads(out)["gpu"] == "l4"
    p = onnxperf.predict(model, gpu="l4")
    assert files["trace"].read_text() == p.to_trace() + "\n"
    assert files["netron"].read_text() == p.to_netron() + "\n"
    assert files["profile"].read_text() == p.to_layer_profile() + "\n"
    copy = tmp_path / "copy.onnx"
    assert onnxperf_cli("predict", model, "--gpu", "l4", "--netron", copy)[0] == 0
    assert copy.read_bytes() == p.annotated(model)
    assert sorted(tmp_path.iterdir()) == sorted([*files.values(), copy])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--trace", "a.json", "--netron", "a.json"), "--trace and --netron would both write a.json"),
        (("--trace", "a.json", "--profile", "./a.json"), "--trace and --profile would both write ./a.json"),
        (("--json", "a.json", "--trace", "a.json"), "--json and --trace would both write a.json"),
        (("--trace", "none/a.json"), "can't write none/a.json: there is no folder none"),
        (("--plot", "."), "can't write .: it is a folder"),
        (("--trace", "-"), "--trace - would write a file of that name: only --json - prints"),
        (("--html", "-"), "--html - would write a file of that name"),
        (("--profile", ""), "--profile needs the name of a file"),
        (("--trace", "small.onnx"), "--trace small.onnx would overwrite small.onnx, which is read"),
        (("--netron", "a.txt"), "--netron a.txt: the name must end with .json or .onnx"),
        (("--plot", "a.pdf"), "--plot a.pdf: the name must end with .png or .svg"),
    ],
)
def test_files_that_can_t_be_written(
    arguments: tuple[str, ...], says: str, onnxperf_cli: Any, model: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.onnx").write_bytes(model.read_bytes())
    code, out, err = onnxperf_cli("predict", "small.onnx", "--gpu", "l4", *arguments)
    assert (code, out) == (2, "") and says in err
    assert [x.name for x in tmp_path.iterdir()] == ["small.onnx"]


def test_a_plot_that_nothing_draws_is_refused_and_an_old_one_left(
    onnxperf_cli: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plot = tmp_path / "plot.svg"
    plot.write_text("old")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = onnxperf_cli("predict", model, "--gpu", "l4", "--plot", plot)
    assert code == 4 and "pip install 'onnxperf[plot]'" in err and out == ""
    assert plot.read_text() == "old" and [*tmp_path.iterdir()] == [plot]

"""Published runs of ONNX Runtime as rows."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from onnxperf.ground.errors import UsageError
from onnxperf.lab.datasets import SAMPLE, runs
from onnxperf.lab.datasets.runs import MeasuredRun
from onnxperf.lab.datasets.sources.ort_cuda import COLUMNS, GRAPHS, GRAPHS_COLUMNS, models, ort_version
from onnxperf.lab.datasets.sources.ort_cuda import with_graphs as read_with_graphs

HEADER = ",".join((*COLUMNS, "gpu_norm"))
GPT2 = "gpt2 decode step (GPT2LMHeadModel),ORT-CUDA,1.4.0,V100,{dtype},8,32,1.9,{optimized},{bound},here,V100-PCIE-16GB"


def table(folder: Path, *rows: str) -> tuple[list[MeasuredRun], dict[str, int]]:
    (folder / "published.csv").write_text("\n".join((HEADER, *rows)) + "\n")
    return models(folder)


def test_rows_are_runs_of_a_sample(tmp_path: Path) -> None:
    fused = GPT2.format(dtype="fp16", optimized="ORT transformer optimizer (fused)", bound="True")
    plain = GPT2.format(dtype="fp32", optimized="default ORT graph opt", bound="False")
    rows, why = table(tmp_path, fused, plain)
    assert not why
    assert rows[0].dims == {"batch": 8, "past": 32} and rows[0].seconds == pytest.approx(1.9e-3)
    assert (rows[0].gpu, rows[0].die, rows[0].group) == ("v100-pcie-16gb", "GV100", "here-gpt2-past")
    s, t = (r.scenario for r in rows)
    assert (s.runtime, s.ort_version, s.precision) == ("ort-cuda", "1.4", "fp16")
    assert (s.ort_transformers, s.include_transfers) == (True, False)
    assert (t.precision, t.ort_transformers, t.include_transfers, t.pageable) == ("keep", False, True, True)
    assert {t.name for t in rows[0].graph.inputs} >= {"input_ids", "past_0"}


def test_other_rows_are_counted_by_reason(tmp_path: Path) -> None:
    good = GPT2.format(dtype="fp16", optimized="", bound="True")
    bad = {
        good.replace("ORT-CUDA", "TensorRT"): "another runtime",
        good.replace("gpt2 decode", "t5 decode"): "no sample of this model",
        good.replace("fp16", "int8"): "another precision",
        good.replace("V100-PCIE-16GB", "Voodoo 2"): "unknown card",
        good.replace(",1.9,", ",nan,"): "no positive time",
        good.replace(",8,32,", ",8,512x512,"): "no such shape",
    }
    rows, why = table(tmp_path, *bad)
    assert not rows and why == dict.fromkeys(bad.values(), 1)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("1.4.0", "1.4"),
        ("1.6", "1.6"),
        ("1.8.1", "1.8"),
        ("Triton 21.10 (ORT 1.9.0)", "1.9"),
        ("1.13-dev (2022-08)", "1.12"),
        ("ORT 1.10-1.12 / TRT 8.2-8.4", "1.10"),
        ("1.13.1", "1.13"),
        ("1.17.0", "1.17"),
        ("1.16.2-dev", "1.16"),
        ("default", None),
    ],
)
def test_a_release_is_that_of_a_runtime(version: str, name: str | None) -> None:
    assert ort_version(version) == name


GRAPH_ROW = "net,graphs/net.onnx.gz,{dims},t4,{precision},{binding},{copies},{version},{ms},whoever@1:page\n"
PLAIN = {
    "dims": "rows=3 columns=5", "precision": "fp16", "binding": "False", "copies": "pageable", "version": "1.9.0",
    "ms": "2.5",
}  # fmt: skip


@pytest.fixture
def with_graph(tmp_path: Path) -> Path:
    """A folder with a graph of two open dimensions, and one beside it that no row may reach."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ("rows", "columns")) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", [x], [y])
    data = gzip.compress(helper.make_model(graph).SerializeToString())
    for file in (tmp_path / "ort_cuda" / "graphs" / "net.onnx.gz", tmp_path / "outside.onnx.gz"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return tmp_path / "ort_cuda"


def test_rows_with_a_graph_are_runs_of_it(with_graph: Path) -> None:
    row = GRAPH_ROW.format(**PLAIN)
    (with_graph / "with_graphs.csv").write_text(",".join(GRAPHS_COLUMNS) + "\n" + row)
    (run,), why = read_with_graphs("with_graphs.csv", with_graph)
    assert not why and run.seconds == pytest.approx(2.5e-3)
    assert run.graph.inputs[0].shape == (3, 5) and run.group == "whoever-1-page-net"
    s = run.scenario
    assert (s.precision, s.ort_version, s.include_transfers, s.pageable) == ("keep", "1.9", True, True)


@pytest.mark.parametrize(
    ("binding", "copies", "pageable"),
    [("unknown", "0", True), ("unknown", "1", True), ("True", "0", None), ("False", "1", False)],
)
def test_a_run_of_unknown_scope_is_a_plain_one(
    with_graph: Path, binding: str, copies: str, pageable: bool | None
) -> None:
    row = GRAPH_ROW.format(**PLAIN | {"binding": binding, "copies": copies})
    (with_graph / "with_graphs.csv").write_text(",".join(GRAPHS_COLUMNS) + "\n" + row)
    ((run,), _) = read_with_graphs("with_graphs.csv", with_graph)
    assert (run.scenario.include_transfers, run.scenario.pageable) == (pageable is not None, bool(pageable))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"net.onnx.gz": "other.onnx.gz"}, "its graph is not there"),
        ({"graphs/net": "../outside"}, "its graph is not there"),
        ({"rows=3": "rows=3.5"}, "no such shape"),
        ({"rows=3": "rows=0"}, "no such shape"),
        ({"fp16": "int3"}, "another precision"),
        ({"pageable": "perhaps"}, "no word for copies that is known"),
        ({"t4": "Voodoo 2"}, "unknown card"),
        ({"2.5": "-1"}, "no positive time"),
    ],
)
def test_rows_with_a_graph_that_are_not_taken(with_graph: Path, changed: dict[str, str], reason: str) -> None:
    row = GRAPH_ROW.format(**PLAIN)
    for old, new in changed.items():
        row = row.replace(old, new)
    (with_graph / "with_graphs.csv").write_text(",".join(GRAPHS_COLUMNS) + "\n" + row)
    assert read_with_graphs("with_graphs.csv", with_graph) == ([], {reason: 1})


def test_a_graph_that_is_damaged_or_no_graph_is_refused(with_graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = with_graph / "graphs" / "net.onnx.gz"
    run = MeasuredRun("t4", "net", {"rows": 3, "columns": 5}, 1e-3, file=file)
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(UsageError, match=r"net\.onnx\.gz can't be read"):
        _ = run.graph
    file.write_bytes(gzip.compress(bytes(1000)))
    monkeypatch.setattr(runs, "MAX_BYTES", 999)
    with pytest.raises(UsageError, match="more than 0 MiB, which no graph without weights does"):
        _ = run.graph


def test_the_sample_has_the_graphs_that_its_rows_name() -> None:
    for file in GRAPHS:
        found, why = read_with_graphs(file, SAMPLE / "ort_cuda")
        assert found and not why

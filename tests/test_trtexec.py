"""The performance summary that a prediction has in common with trtexec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import onnxperf
from onnxperf.answer.prediction import Prediction
from onnxperf.answer.trtexec import TrtexecSummary
from tests.test_cli import SAMPLES, SCHEMA

NAMES = ["Throughput", "Latency", "Enqueue Time", "H2D Latency", "GPU Compute Time", "D2H Latency"]
#: Means that trtexec printed, in ms, with the Latency and Throughput (qps) that it made of them; the first is bound by
#: its host, the second overlaps copies with other queries. github.com/hmorimitsu/ptlflow/issues/65 and
#: github.com/THU-MIG/yolov10/issues/463: Enqueue Time, H2D Latency, GPU Compute Time, D2H Latency.
PRINTED = (
    ((30.2854, 0.247712, 30.3322, 0.177211), 30.7571, 32.7261),
    ((0.74662, 0.818888, 1.30893, 0.00687307), 2.13468, 759.832),
)


def predicted(**terms: Any) -> Prediction:
    return onnxperf.predict(SAMPLES / "mobilenetv2.onnx", **{"gpu": "t4", "runtime": "tensorrt", **terms})


def summary(**terms: Any) -> TrtexecSummary:
    found = predicted(**terms).trtexec
    assert found is not None
    return found


@pytest.mark.parametrize(("means", "latency", "qps"), PRINTED)
def test_latency_and_throughput_follow_as_trtexec_prints_them(
    means: tuple[float, ...], latency: float, qps: float
) -> None:
    printed = TrtexecSummary(*(ms / 1e3 for ms in means))
    assert printed.latency_seconds == pytest.approx(latency / 1e3, rel=1e-5)
    assert printed.throughput_qps == pytest.approx(qps, rel=0.01)


def test_names_are_those_of_trtexec_in_its_order_and_units() -> None:
    lines = dict(TrtexecSummary(0.0001, 0.0002, 0.004, 0.00003).lines())
    assert [*lines] == NAMES
    assert [*lines.values()] == ["250 qps", "4.23 ms", "0.1 ms", "0.2 ms", "4 ms", "0.03 ms"]


def test_copies_are_those_of_a_run_with_pinned_copies_whatever_was_asked_for() -> None:
    copied = predicted(include_transfers=True)
    times = {k.name: k.seconds for k in copied.kernels if k.op == "Transfer"}
    assert [*times] == ["pixel_values.h2d", "logits.d2h"]
    found = summary()
    assert [found.h2d_seconds, found.d2h_seconds] == pytest.approx([*times.values()])
    assert found == copied.trtexec == summary(include_transfers=True, pageable=True)


def test_compute_is_the_kernels_and_the_gaps_between_them() -> None:
    p = predicted()
    gap = p.run.host_costs[0].gap_s
    assert summary().gpu_compute_seconds == pytest.approx(p.sum_seconds + gap * (sum(k.repeat for k in p.kernels) - 1))
    assert p.sum_seconds < summary().gpu_compute_seconds < p.seconds  # a run alone also waits for the host


def test_a_host_that_is_slower_than_the_card_sets_compute_time_and_throughput() -> None:
    slow = predicted(gpu="h100-sxm", host="jetson", precision="fp16")
    assert slow.trtexec is not None and slow.trtexec.enqueue_seconds > slow.sum_seconds
    assert slow.trtexec.gpu_compute_seconds == slow.trtexec.enqueue_seconds
    assert slow.trtexec.throughput_qps == pytest.approx(1 / slow.trtexec.enqueue_seconds)


def test_a_cuda_graph_is_enqueued_as_a_whole() -> None:
    p = predicted(cuda_graph=True)
    assert summary(cuda_graph=True).enqueue_seconds == p.run.host_costs[0].replay_s < summary().enqueue_seconds
    assert p.sum_seconds <= summary(cuda_graph=True).gpu_compute_seconds < summary().gpu_compute_seconds


def test_a_query_is_the_whole_batch() -> None:
    one, eight = summary(), summary(batch=8)
    assert eight.throughput_qps < one.throughput_qps < 8 * eight.throughput_qps
    assert eight.throughput_qps == pytest.approx(1 / eight.gpu_compute_seconds)


@pytest.mark.parametrize("terms", [{"runtime": "ort-cuda"}, {"method": "sum"}, {"parallel": "dp=2", "batch": 2}])
def test_what_is_no_run_of_trtexec_has_none(terms: dict[str, Any]) -> None:
    p = predicted(**terms)
    assert p.trtexec is None and "trtexec" not in p.to_dict() and "trtexec" not in p.report(detail=True)


def test_the_detailed_screen_and_the_json_have_it(tmp_path: Path) -> None:
    p = predicted()
    lines = [line.removeprefix("trtexec").strip() for line in p.report(detail=True).splitlines()]
    first = next(i for i, line in enumerate(lines) if line.startswith("Throughput: "))
    assert [line.partition(": ")[0] for line in lines[first : first + 6]] == NAMES
    data = json.loads(p.to_json())
    jsonschema.validate(data, SCHEMA)
    assert data["trtexec"] == summary().to_dict()
    assert data["trtexec"]["latency_seconds"] == pytest.approx(
        sum(data["trtexec"][f"{part}_seconds"] for part in ("h2d", "gpu_compute", "d2h"))
    )

"""Served rows: how they are read, and how far predictions are from them."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from onnxperf.export.decoder_config import config_of
from onnxperf.lab.served.__main__ import holding, line, width
from onnxperf.lab.served.rows import COLUMNS, FILE, configurations, predicted, rows
from onnxperf.language.serving import Service

SHARED = Path(__file__).parents[4] / "shared" / "data"
ROW = {
    "id": "one", "backend": "vllm", "model_path": "meta-llama/Llama-3.1-8B-Instruct", "system": "h100_sxm",
    "mode": "agg", "precision": "fp8", "isl": "512", "osl": "64", "gemm_quant_mode": "fp8", "batch_size": "4.0",
    "tp_size": "2.0", "pp_size": "1", "moe_tp_size": "", "moe_ep_size": "0", "silicon_ttft_ms": "50",
    "silicon_tpot_ms": "5",
}  # fmt: skip


def table(folder: Path, *changes: dict[str, str]) -> Path:
    (folder / "llm").mkdir()
    lines = [",".join(COLUMNS), *(",".join({**ROW, **change}[c] for c in COLUMNS) for change in changes)]
    import gzip

    (folder / FILE).write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder


def test_rows_and_what_is_not_taken(tmp_path: Path) -> None:
    others = ({"mode": "disagg"}, {"model_path": "x/y"}, {"system": "gb200"}, {"gemm_quant_mode": "fp8_block"})
    taken, why = rows(table(tmp_path, {}, *others))
    one, blocks = taken
    assert (one.prompt, one.output, one.concurrency, one.first_s, one.token_s) == (512, 64, 4, 0.05, 0.005)
    assert (one.setup.gpus, one.setup.precision, one.setup.blocks) == (2, "fp8", False) and not one.setup.experts
    assert (blocks.setup.precision, blocks.setup.blocks) == ("keep", True)
    assert sum(why.values()) == 3


def test_names_of_rows_say_how_many_requests_and_gpus_there_are(tmp_path: Path) -> None:
    """Columns have the batch of each group of attention, or tp times ep."""
    divided = {"id": "r1_agg_8192x1024_c256_tp8_ep8_7", "tp_size": "1", "moe_tp_size": "8", "moe_ep_size": "8"}
    squared = {"id": "oss_agg_1024x1024_c16_tp4_0_ep4_0_9", "tp_size": "16", "batch_size": "16"}
    unnamed = {"id": "r1_agg_8192x1024_c32_cfg81", "tp_size": "8", "batch_size": "32"}
    some, _ = rows(table(tmp_path, divided, squared, unnamed))
    assert [(r.concurrency, r.setup.gpus) for r in some] == [(256, 8), (16, 4), (32, 8)]


def test_ranges_hold_rows_of_a_group_that_nobody_has_seen() -> None:
    """Of two, the first's 80% hold half of the second: only from 91% on both hold eight in ten on average."""
    assert holding([[0.1] * 9 + [0.2], [0.1] * 5 + [0.15] * 5]) == pytest.approx((0.91, 0.15, 0.175, 0.95, 0.9))
    assert holding([[0.1] * 8 + [0.3] * 2] * 2) == pytest.approx((0.8, 0.1, 0.1, 0.8, 0.8))


def test_widths_count_groups_alike() -> None:
    """Of four rows of one and one of another, the one counts for half."""
    assert width([[0.1, 0.2, 0.3, 0.4], [0.9]]) == 0.9
    assert width([[0.1, 0.2, 0.3, 0.4, 0.5]]) == 0.4
    assert width([[0.1] * 9 + [0.2], [0.1] * 7 + [0.3] * 3]) == 0.1


def test_a_row_is_predicted_as_llm_answers(tmp_path: Path) -> None:
    measured, _ = rows(table(tmp_path, {}, {"batch_size": "8"}))
    (one, few), (other, more) = predicted(measured)
    assert isinstance(few, Service) and isinstance(more, Service)
    assert (one.concurrency, few.traffic.concurrency, more.traffic.concurrency) == (4, 4, 8)
    assert few.gpus == 2 and few.tokens_per_second < more.tokens_per_second
    assert len(line(("a",), [(one, few), (other, more)])) == 7


def test_models_that_are_known_have_their_published_size() -> None:
    for name, config in configurations().items():
        assert config_of(config, name).layers == config["num_hidden_layers"]


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "most"), [("vllm", 0.07), ("sglang", 0.10), ("trtllm", 0.12)])
def test_time_per_output_token_of_dense_models(engine: str, most: float) -> None:
    """Medians over some open rows of dense models on 2 and 8 H100 or H200, each of which is answered."""
    if not (SHARED / FILE).is_file():
        pytest.skip(f"{SHARED / FILE} is not there")
    measured = [r for r in rows(SHARED)[0] if r.setup.engine == engine and not r.setup.experts]
    measured = [r for r in measured if r.setup.gpus in (2, 8)][::4]
    answers = [*predicted(measured)]
    assert all(isinstance(s, Service) for _, s in answers)
    errors = [abs(token_seconds(s) / r.token_s - 1) for r, s in answers]
    assert len(errors) > 10 and median(errors) < most


def token_seconds(service: Service | str) -> float:
    assert isinstance(service, Service)
    return service.times["time_per_output_token"].mean.seconds

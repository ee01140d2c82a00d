"""Products and attention on tensor cores: what becomes of a row, and which rows are never fitted to."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from onnxperf.ground.errors import EnvironmentFailure, UsageError
from onnxperf.lab.datasets import SAMPLE, Table
from onnxperf.lab.datasets.sources import tensor_core
from onnxperf.lab.datasets.sources.tensor_core import attention, product
from onnxperf.lab.datasets.table import FASTER, SLOW
from op_models import Attention, Gemm
from tests.lab.datasets.conftest import written

GEMM = "gpu,dtype,m,n,k,latency_us,source"
ATTENTION = "gpu,phase,dtype,kv_dtype,heads,kv_heads,head_dim,batch,seq,latency_us,kernel"


def kernels(root: Path, **files: list[str]) -> list[Table]:
    """What is read of these tables, or of those that are there."""
    heads = {"gemm": GEMM, "attention": ATTENTION}
    with_heads = {name: [heads[name], *lines] for name, lines in files.items()}
    return tensor_core.DATASET.tables(written(root, "tensor_core", **with_heads))


def record(dtype: str, m: int = 16, n: int = 256, k: int = 512) -> dict[str, str]:
    return {"dtype": dtype, "m": str(m), "n": str(n), "k": str(k)}


@pytest.mark.parametrize(
    ("dtype", "pipe", "read", "written"),
    [
        ("bfloat16", "tensor_bf16", 2 * 16 * 512 + 2 * 256 * 512, 2 * 16 * 256),
        ("fp8_block", "tensor_fp8", 16 * 512 + 256 * 512, 2 * 16 * 256),
        ("nvfp4", "tensor_fp4", (16 * 512 + 256 * 512) // 2, 2 * 16 * 256),
        ("sq", "tensor_int8", 16 * 512 + 256 * 512, 2 * 16 * 256),
        ("int8_wo", "tensor_bf16", 2 * 16 * 512 + 256 * 512 + 2 * 256, 2 * 16 * 256),
        ("int4_wo", "tensor_bf16", 2 * 16 * 512 + 256 * 512 // 2 + 2 * 256 * 4, 2 * 16 * 256),
    ],
)
def test_products_have_the_bytes_of_their_types(dtype: str, pipe: str, read: int, written: int) -> None:
    table, work, _ = product(record(dtype))
    assert table == f"gemm {dtype}" and work is not None
    assert (work.size[:4], work.pipe, work.matrix_flops) == ((1, 16, 256, 512), pipe, 2 * 16 * 256 * 512)
    assert (work.bytes_read, work.bytes_written) == (read, written)
    assert isinstance(work.size, Gemm)


def test_attention_by_phase() -> None:
    def of(phase: str, kv: str = "bfloat16") -> tuple[str, Attention, int]:
        r = {"phase": phase, "dtype": "bfloat16", "kv_dtype": kv, "heads": "8", "kv_heads": "2", "head_dim": "64"}
        table, work, _ = attention({**r, "batch": "3", "seq": "128"})
        assert work is not None and isinstance(work.size, Attention)
        return table, work.size, work.bytes_read

    q, cache = 3 * 8 * 64 * 2, 2 * 3 * 2 * 128 * 64
    assert of("generation") == ("attention decode", Attention(3, 8, 2, 1, 128, 64, 64, False), q + 2 * cache)
    assert of("generation", "fp8")[2] == q + cache
    assert of("context") == ("attention prefill", Attention(3, 8, 2, 128, 128, 64, 64, True), 128 * q + 2 * cache)
    assert of("encoder")[1].causal is False


def test_pairs_are_kept_back_whatever_the_type_and_the_rows() -> None:
    sizes = [(n, k) for n in (64, 128, 512, 1024, 4096) for k in (64, 256, 1024, 2048, 8192)]
    kept = {(n, k): {product(record(t, m, n, k))[2] for t in ("bfloat16", "fp8") for m in (1, 9)} for n, k in sizes}
    assert all(len(found) == 1 for found in kept.values())
    assert 0 < sum(found == {True} for found in kept.values()) < len(sizes) / 2


def test_the_fastest_kernel_of_an_attention_counts_and_the_median_of_a_product(tmp_path: Path) -> None:
    row = "h200_sxm,context,bfloat16,bfloat16,8,2,64,3,1024,{},{}"
    gemm = "a100_sxm,bfloat16,16,256,512,{},x"
    attention = [row.format(90, "a"), row.format(80, "b"), row.format(85, "c"), row.format(0.001, "d")]
    made = {t.name: t for t in kernels(tmp_path, gemm=[gemm.format(4), gemm.format(8)], attention=attention)}
    t = made["attention prefill"]
    assert t.gpus == ("h200-sxm",) and t.kernel.tolist() == [["b"]] and t.seconds[0, 0] == pytest.approx(80e-6)
    assert t.dropped == {SLOW: 2, FASTER: 1}
    assert made["gemm bfloat16"].seconds[0, 0] == pytest.approx(6e-6) and made["gemm bfloat16"].least_s == 0


def test_runs_of_minutes_are_a_table_of_their_own() -> None:
    assert product({**record("bfloat16"), "mode": "sustained"})[0] == "gemm bfloat16 sustained"


def test_what_is_no_row_is_counted(tmp_path: Path) -> None:
    bad = ["nobody,bfloat16,16,256,512,4,x", "h200_sxm,fp3,16,256,512,4,x", "h200_sxm,fp8,0,256,512,4,x",
           "h200_sxm,fp8,16,256,512,nan,x", "/etc/passwd,fp8,16,256,512,4,x", "h200_sxm,fp8,16"]  # fmt: skip
    reasons = {t.name: dict(t.dropped) for t in kernels(tmp_path, gemm=bad)}
    assert sum(n for why in reasons.values() for n in why.values()) == len(bad)


def test_parquet_is_read_as_csv_is(tmp_path: Path) -> None:
    columns = {"gpu": ["h200_sxm", "h200_sxm"], "dtype": ["fp8", "fp8"], "m": [16, None], "n": [256, 256]}
    table = pa.table({**columns, "k": [512, 512], "latency_us": pa.array([4.7, 4.7], pa.float32())})
    parquet.write_table(table, written(tmp_path, "tensor_core") / "tensor_core" / "gemm.parquet")
    (t,) = kernels(tmp_path)
    assert t.seconds.tolist() == [[pytest.approx(4.7e-6)]] and t.dropped == {"no such shape": 1}
    (written(tmp_path, "tensor_core") / "tensor_core" / "gemm.parquet").write_bytes(b"PAR1 no table")
    with pytest.raises(UsageError, match=r"gemm.parquet can't be read as a table"):
        kernels(tmp_path)
    parquet.write_table(table.drop_columns(["n"]), written(tmp_path, "tensor_core") / "tensor_core" / "gemm.parquet")
    with pytest.raises(UsageError, match="has no column n"):
        kernels(tmp_path)


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (written(tmp_path, "tensor_core") / "tensor_core" / "gemm.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EnvironmentFailure, match=r"pip install 'onnxperf\[parquet\]'"):
        kernels(tmp_path)


@pytest.mark.slow
def test_the_sample_has_every_table() -> None:
    made = {t.name: t for t in tensor_core.DATASET.tables(SAMPLE)}
    products = {f"gemm {t}" for t in (*tensor_core.TYPES, *tensor_core.WEIGHT_ONLY)}
    assert set(made) == products | {"gemm bfloat16 sustained"} | set(tensor_core.PHASES.values())
    assert all(0.1 < t.test.mean() < 0.35 for t in made.values())
    bf16 = made["gemm bfloat16"]
    assert len(set(bf16.dies)) >= 4
    assert np.isfinite(bf16.seconds).mean(axis=0).min() > 0.75  # a shape is drawn with all its cards

"""Tables come from strangers: what can't be believed is counted and left out, what is no table is said."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from onnxperf.ground.errors import UsageError
from onnxperf.lab.datasets import SAMPLE
from onnxperf.lab.datasets.reading import read
from onnxperf.lab.datasets.sources import deepbench, fp32_torch
from onnxperf.lab.datasets.table import Table
from op_models import Conv, Gemm, Pointwise, Recurrent, Rows
from tests.lab.datasets.conftest import written

GEMM = "op,device,split,b,m,k,n,latency_ms,kernel"
VECTOR = "op,device,split,rows,cols,latency_ms,kernel"


NAMES = ["id,name", "0,sgemm_128x64"]
READ = fp32_torch.DATASET.tables


def gemm_table(path: Path, *rows: str) -> Table:
    (found,) = READ(written(path, "fp32_torch", kernel_names=NAMES, kernels_gemm=[GEMM, *rows]))
    return found


def test_a_row_becomes_the_work_of_its_operator(tmp_path: Path) -> None:
    t = gemm_table(tmp_path, "linear,Tesla T4,test,2,64,256,512,1.5,0")
    assert (t.name, t.rig, t.gpus, t.dies) == ("linear", "torch", ("t4",), ("TU104",))
    assert t.works[0].size == Gemm(1, 128, 512, 256, False, True)
    assert t.works[0].weight_bytes == 4 * (512 * 256 + 512)
    assert t.seconds.tolist() == [[1.5e-3]] and t.test.tolist() == [True]
    assert t.kernel[0, 0] == "sgemm_128x64"


def test_cards_are_columns_and_what_nobody_measured_is_nan(tmp_path: Path) -> None:
    t = gemm_table(
        tmp_path,
        "bmm,Tesla T4,train,4,64,64,64,1,0",
        "bmm,Tesla P4,train,4,64,64,64,2,0",
        "bmm,Tesla P4,train,8,64,64,64,3,0",
    )
    assert t.gpus == ("p4", "t4")
    assert np.isnan(t.seconds[1, 1]) and t.seconds[:, 0].tolist() == [2e-3, 3e-3]
    assert t.on(["t4"]).works == t.works[:1]
    assert t.take(np.array([1])).seconds[0, 0] == 3e-3


def test_of_a_shape_measured_twice_the_median_counts(tmp_path: Path) -> None:
    rows = [f"bmm,Tesla T4,train,4,64,64,64,{ms},0" for ms in (1, 2, 9)]
    t = gemm_table(tmp_path, *rows)
    assert t.seconds.tolist() == [[2e-3]]
    assert list(t.dropped.values()) == [2]


def test_a_row_that_cannot_be_has_no_part_in_the_median(tmp_path: Path) -> None:
    rows = [f"bmm,Tesla T4,train,4,64,64,64,{ms},0" for ms in (1e9, 2, 1e-9)]
    t = gemm_table(tmp_path, *rows)
    assert t.seconds.tolist() == [[2e-3]]
    assert t.dropped == {"faster than physics": 1, "too slow to be in the unit of its column": 1}


@pytest.mark.parametrize(
    "row, reason",
    [
        ("bmm,Tesla Z9,train,4,64,64,64,1,0", "unknown card"),
        ("bmm,Tesla T4,train,4,64,0,64,1,0", "no such shape"),
        ("bmm,Tesla T4,train,4,64,1.5,64,1,0", "no such shape"),
        ("bmm,Tesla T4,train,4,64,x,64,1,0", "no such shape"),
        ("bmm,Tesla T4,train,4,64,64,64,-1,0", "no positive time"),
        ("bmm,Tesla T4,train,4,64,64,64,nan,0", "no positive time"),
        ("bmm,Tesla T4,train,4,64,64,64,inf,0", "no positive time"),
        ("bmm,Tesla T4,train,4,64,64,64,,0", "no positive time"),
        ("bmm,Tesla T4,train,8,4096,4096,4096,1,0", "faster than physics"),
    ],
)
def test_a_bad_row_is_left_out_and_counted(tmp_path: Path, row: str, reason: str) -> None:
    t = gemm_table(tmp_path, "bmm,Tesla T4,train,4,64,64,64,1,0", row)
    assert t.dropped == {reason: 1}
    assert np.isfinite(t.seconds).sum() == 1


def test_every_table_of_vector_kernels_is_read(tmp_path: Path) -> None:
    names = ("add", "addu", "mul", "mulu", "div", "divu", "pow", "powu", "relu", "tanh", "gelu", "softmax", "ln")
    rows = [f"{name},Tesla T4,train,1024,4096,9,0" for name in names]
    found = {t.name: t.works[0] for t in READ(written(tmp_path, "fp32_torch", kernels_vector=[VECTOR, *rows]))}
    assert set(found) == set(names)
    n = 1024 * 4096
    assert found["add"].bytes == 12 * n and found["relu"].bytes == 8 * n
    assert isinstance(found["add"].size, Pointwise)
    assert isinstance(found["softmax"].size, Rows) and isinstance(found["ln"].size, Rows)


@pytest.mark.parametrize(
    "content",
    [b"not gzip", gzip.compress(b"\xff\xfe\x00"), gzip.compress(b"a,b\n1,2\n"), b""],
    ids=["no gzip", "no text", "no columns", "empty"],  # what gzip writes holds the time
)
def test_what_is_no_table_is_said(tmp_path: Path, content: bytes) -> None:
    (written(tmp_path, "fp32_torch") / "fp32_torch" / "kernels_gemm.csv.gz").write_bytes(content)
    with pytest.raises(UsageError, match=r"kernels_gemm\.csv\.gz"):
        READ(tmp_path)


def test_a_table_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxperf.lab.datasets.reading.MAX_ROWS", 2)
    (tmp_path / "long.csv").write_text("a\n1\n2\n3\n")
    with pytest.raises(UsageError, match="more than 2 rows"):
        list(read(tmp_path / "long.csv", ["a"]))


CONV = "gpu,mode,precision,W,H,C,N,K,S,R,pad_w,pad_h,stride_w,stride_h,fwd_ms,fwd_algo"
RNN = "section,gpu,mode,precision,N,Timesteps,Hidden units,Hidden Units,Time Forward (msec)"
PRODUCTS = "gpu,mode,precision,M,N,K,A Transpose,B Transpose,time_ms"


def test_deepbench_on_tensor_cores_is_a_table_of_its_own(tmp_path: Path) -> None:
    mixed = "16 bit inputs, 16 bit multiplication, 32 bit addition"
    rows = [f"V100,train,{p},224,224,3,16,64,3,3,1,1,1,1,5," for p in ("Float", f'"{mixed}"', "32 bit", "INT8")]
    single, half = deepbench.DATASET.tables(written(tmp_path, "deepbench", conv=[CONV, *rows]))
    assert (single.name, half.name) == ("deepbench conv", "deepbench conv fp16")
    (a,), (b,) = single.works, half.works
    assert (b.dtype, b.pipe, b.matrix_flops, 2 * b.bytes) == ("float16", "tensor_fp16", a.matrix_flops, a.bytes)


def test_deepbench_is_read_forward_in_single_precision(tmp_path: Path) -> None:
    written(
        tmp_path,
        "deepbench",
        gemm=[PRODUCTS, "T4,train,Float,1760,16,1700,N,N,1", "T4,train,half,1760,16,1760,N,N,1"],
        conv=[CONV, "V100,train,Float,224,224,3,16,64,3,3,1,1,1,1,5,WINOGRAD"],
        rnn=[RNN, "Recurrent Layers - LSTM,P100,train,Float,16,25,512.0,,2.5"],
    )
    product, conv, rnn = (t.works[0] for t in deepbench.DATASET.tables(tmp_path))
    assert product.size[:4] == (1, 16, 1760, 1700) and product.matrix_flops == 2 * 16 * 1760 * 1700
    assert isinstance(conv.size, Conv) and conv.matrix_flops == 2 * 16 * 64 * 224 * 224 * 3 * 9
    assert isinstance(rnn.size, Recurrent) and rnn.size[:4] == (25, 16, 0, 512)
    assert rnn.matrix_flops == 2 * 25 * 16 * 4 * 512 * 512


@pytest.mark.parametrize(("name", "dropouts"), [("bert-large", 3 * 24 + 1), ("gpt2-large", 3 * 36 + 1)])
def test_graphs_of_training_have_the_dropout_that_ran(name: str, dropouts: int) -> None:
    """Of the embedding, and in each layer of attention's shares and behind both of its halves."""
    run = next(r for r in fp32_torch.steps(SAMPLE / "fp32_torch")[0] if r.model.startswith(name))
    assert sum(o.type == "Dropout" and len(o.inputs) > 2 for o in run.graph.operators) == dropouts

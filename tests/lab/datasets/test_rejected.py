"""Which rows are left aside, and why."""

import numpy as np

from onnxperf.lab.datasets import Row, tables
from onnxperf.lab.datasets.dataset import long_enough
from onnxperf.lab.datasets.table import by_library
from op_models import Gemm, Work


def row(n: int, kernel: str, test: bool, seconds: float = 1e-3, gpu: str = "p4") -> Row:
    w = Work(Gemm(1, n, n, n), "float32", "fp32", 8 * n * n, 4 * n * n, 4 * n * n, 2 * n**3)
    return Row("linear", gpu, w, seconds, test, kernel)


def test_rows_of_another_library_are_a_table_of_their_own() -> None:
    rows = [row(64, "a", False), row(128, "a", True), row(192, "b", True), row(256, "", True)]
    rows += [row(64, "b", False, gpu="t4"), row(192, "b", True, gpu="t4")]
    (table,) = tables(rows, "torch", {})
    assert by_library(table) == [table], "one row tells too little of what else p4 runs on"
    (table,) = tables([*rows, row(320, "a", False), row(384, "a", False)], "torch", {})
    kept, other = by_library(table)
    assert (kept.name, other.name) == ("linear", "linear of another library")
    assert kept.gpus == ("p4", "t4") and other.gpus == ("p4",)  # t4 runs b elsewhere too
    assert np.isfinite(kept.seconds[:, 0]).tolist() == [True, True, False, True, True, True]
    assert np.isfinite(kept.seconds[:, 1]).tolist() == [True, False, True, False, False, False]
    assert other.works == table.works[2:3] and np.isfinite(other.seconds).all()


def test_without_other_rows_nobody_can_tell() -> None:
    (table,) = tables([row(128, "a", True), row(192, "b", True)], "torch", {})
    assert by_library(table) == [table]


def test_what_the_host_took_to_launch_tells_a_fit_nothing() -> None:
    (table,) = tables([row(64, "a", False, 9e-5), row(128, "a", False, 2e-4)], "torch", {})
    assert long_enough(table).works == table.works[1:]

"""Products on tensor cores: fits find what made the rows, recipes change what they say they change."""

from dataclasses import replace

import numpy as np
import pytest

import gpu_specs
from onnxperf.lab.constants import assumed
from onnxperf.lab.datasets import Table, kernels
from onnxperf.lab.datasets.rigs import COPIES, in_fewer_bits, in_turn
from onnxperf.lab.derive.fit import fit, fitted_rows, unfitted
from onnxperf.lab.derive.passes import SETS
from onnxperf.latency import Constants, alone
from onnxperf.latency.families.gemm import TENSOR_CORES
from onnxperf.latency.tensor_cores import BY_THREADS
from op_models import BITS, Gemm, Work

CARDS = ("a100-sxm4-80gb", "h200-sxm", "l40s")


def product(m: int, n: int, k: int, dtype: str = "bfloat16", pipe: str = "tensor_bf16") -> Work:
    wide = BITS[dtype] // 8
    return Work(Gemm(1, m, n, k), dtype, pipe, wide * (m * k + n * k), 2 * m * n, wide * n * k, 2 * m * n * k)


def without_limit(w: Work, devices: list[gpu_specs.Device], c: Constants) -> np.ndarray:
    return alone([w], devices, c, budget=False, copies=COPIES).seconds


SHAPES = [(m, n, k) for m in (1, 16, 128, 1024, 8192) for n in (512, 2048, 8192) for k in (256, 2048, 8192)]


def table(c: Constants, name: str = "gemm bfloat16", rig: str = "graph", test: bool = False) -> Table:
    works = tuple(product(*s) for s in SHAPES)
    took = in_turn(works, [gpu_specs.load(g) for g in CARDS], c)
    kept_back = np.full(len(works), test)
    return Table(name, rig, works, CARDS, took, kept_back, np.full(took.shape, "", dtype=object), {})


def test_the_constants_that_made_the_rows_come_back() -> None:
    true = {"tensor_gemm.extra_k": 180.0, "tensor_gemm.start_cycles": 3500.0}
    few = tuple(p for p in TENSOR_CORES.parameters if p.path in true)
    alike = replace(TENSOR_CORES, parameters=few, weight=5000.0, corrections=(0.001, 0.001, 0.001))
    found = fit(alike, [table(assumed().having(true))], assumed())
    for path, value in true.items():
        assert found.values[path] == pytest.approx(value, rel=0.05)


def test_rows_kept_back_are_in_no_fit() -> None:
    c = assumed()
    assert [len(t.works) for t in fitted_rows([table(c), table(c, test=True)], TENSOR_CORES)] == [len(SHAPES), 0]
    half = table(c, "deepbench gemm fp16", "deepbench", test=True)
    assert len(fitted_rows([half], TENSOR_CORES)[0].works) == len(SHAPES)
    assert fitted_rows([table(c, "attention prefill")], TENSOR_CORES) == []


def test_every_constant_has_a_start_and_every_table_its_constants() -> None:
    assert {k.constants for k in kernels().values()} | {"power"} == set(SETS)
    for wanted in SETS.values():
        assert unfitted(wanted).values == {p.path: p.start for p in wanted.parameters}


def test_quantising_is_beside_the_product() -> None:
    starts = {f"tensor_gemm.types.fp8{kind}.start_cycles": 15e3 for kind in ("", ".mma_128", ".wgmma", ".tcgen05")}
    c = assumed().having({**starts, "tensor_gemm.types.fp8.sweeps": 1.5})
    devices = [gpu_specs.load(g) for g in CARDS[1:]]
    small, large = (product(m, 4096, 4096, "float8e4m3fn", "tensor_fp8") for m in (1, 16384))
    beside = in_fewer_bits("fp8", [small, large], devices, c) - in_turn([small, large], devices, c)
    start = 15e3 / np.array([d.tensor_hz for d in devices])
    assert beside[0] == pytest.approx(start, rel=0.05)
    moved = 3 * 16384 * 4096 / np.array([d.bandwidth_Bps for d in devices])
    assert (beside[1] > start + moved).all()


@pytest.mark.parametrize("m", [1, 64])
def test_packed_weights_are_predicted_as_they_are_fitted(m: int) -> None:
    w, c = product(m, 4096, 4096), assumed()
    half = w.weight_bytes // 2
    w = replace(w, bytes_read=w.bytes_read - half, weight_bytes=half, vector_flops=2 << 24)
    devices = [gpu_specs.load(g) for g in CARDS]
    c = c.having({"tensor_gemm.types.int8_wo.start_cycles": 1e4, "tensor_gemm.types.int8_wo.step_cycles": 8.0})
    start = 1e4 / np.array([d.tensor_hz for d in devices])
    assert in_fewer_bits("int8_wo", [w], devices, c)[0] == pytest.approx(without_limit(w, devices, c)[0] + start)


def test_rows_beyond_the_limit_are_fitted_without_it() -> None:
    c = assumed().having({f"tensor_gemm.types.{name}.start_cycles": 0.0 for name in BY_THREADS})
    w, l4 = product(8192, 8192, 8192, "int8", "tensor_int8"), [gpu_specs.load("l4")]
    assert in_fewer_bits("sq", [w], l4, c)[0, 0] < 0.8 * in_turn([w], l4, c)[0, 0]
    assert in_fewer_bits("sq", [w], l4, c) == pytest.approx(without_limit(w, l4, c))
    h200 = [gpu_specs.load("h200-sxm")]
    assert in_fewer_bits("sq", [w], h200, c) > 1.3 * without_limit(w, h200, c)

"""Ranges: how far a card is from the measured ones, and how the errors of kernels add up over a run."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpu_specs
from onnxperf.latency import family_of, shipped
from onnxperf.latency.cards import Cards
from onnxperf.latency.intervals import (
    BEYOND,
    DISTANCES,
    class_on,
    combined,
    distance,
    half_widths,
    in_domain,
)  # fmt: skip
from onnxperf.lowering.lower import Kernel, Kernels
from op_models import Attention, Gemm, Pointwise, Rows, Work
from tests.estimating import estimate

T4 = gpu_specs.load("t4")


def product(m: int, dtype: str = "float32", batch: int = 1) -> Work:
    width = {"float32": 4, "float16": 2}[dtype]
    flops, nbytes = 2 * batch * m**3, width * batch * m * m
    pipe = "fp32" if dtype == "float32" else "tensor_fp16"
    return Work(Gemm(batch, m, m, m), dtype, pipe, 2 * nbytes, nbytes, nbytes, flops)


def test_a_card_is_measured_or_known_or_new() -> None:
    c = shipped().having({"interval.linear.cards": ["t4"], "interval.linear.generations": [7]})
    assert distance(T4, "linear", c) == "measured"
    assert distance(gpu_specs.load("v100-pcie-32gb"), "linear", c) == "known"
    assert distance(gpu_specs.load("l4"), "linear", c) == "new"
    assert distance(T4, "movement", c) == "new"  # no class of its own has rows


def test_ranges_widen_with_distance() -> None:
    works = [product(1024), product(1024, batch=8)]
    rows = {"cards": ["t4"], "generations": [7]}
    near = shipped().having({f"interval.{c}.{k}": v for c in ("linear", "bmm") for k, v in rows.items()})
    one = half_widths(works, Cards([T4, gpu_specs.load("v100-pcie-32gb"), gpu_specs.load("l4")], near))
    assert (np.diff(one, axis=1) >= 0).all()
    for name, table in shipped().interval.items():
        if isinstance(table, dict) and name not in ("run", "share"):
            widths = np.array([np.atleast_1d(table[far]) for far in DISTANCES])
            assert (np.diff(widths, axis=0) >= 0).all() and (widths > 0).all(), name
            assert 0 <= table["within"] <= 1, name


def test_what_is_unlike_any_row_is_less_certain_than_a_new_card() -> None:
    work = product(1024)
    reach = [[work.matrix_flops, work.matrix_flops], [work.bytes, work.bytes]]
    c = (
        shipped()
        .having(
            {"interval.linear": {"FLOPs_and_bytes": reach, "measured": 0.1, "known": 0.1, "new": 0.5, "within": 0.5}}
        )
        .having({"interval.linear.cards": ["t4"], "interval.linear.types": ["float32"]})
    )
    far = product(int(1024 * (2 * BEYOND)))
    assert in_domain([work, far, replace(work, dtype="float16")], ["linear"] * 3, c).tolist() == [True, False, False]
    assert half_widths([work, far], Cards([T4], c))[:, 0].tolist() == [0.1, 0.5 * c.interval["outside"]]


def test_tensor_cores_have_classes_of_their_own() -> None:
    packed = Work(Gemm(1, 64, 64, 64), "bfloat16", "tensor_bf16", 8192 + 2048, 8192, 2048, 2 * 64**3)
    works = [product(64, "float16"), packed, replace(product(64, "float16"), dtype="int8", pipe="tensor_int8")]
    classes = ["tensor_gemm", "tensor_gemm_packed", "tensor_gemm_int8"]
    assert [family_of(w).error_class(w, True) for w in works] == classes
    assert class_on(works[0], gpu_specs.load("p4")) == "linear"  # the card has none
    attention = [Attention(1, 8, 8, q, 512, 64, 64, causal) for q, causal in ((1, True), (512, True), (512, False))]
    fused = [Work(size, "float16", "tensor_fp16", 64, 64, 0, 64) for size in attention]
    phases = [family_of(w).error_class(w, True) for w in fused]
    assert phases == ["attention_decode", "attention_prefill", "attention_encoder"]
    one = {"measured": 0.7, "known": 0.7, "new": 0.7, "within": 0.5}
    c = shipped().having({"interval.tensor_gemm": one, "interval.linear": {**one, "new": 0.2}})
    cards = Cards([gpu_specs.load("l4"), gpu_specs.load("p4")], c)
    assert half_widths(works[:1], cards)[0].tolist() == [0.7, 0.2]


def test_every_size_has_a_class_with_a_range() -> None:
    for w in (product(8), product(8, batch=2), Work(Pointwise(9), "float32", "fp32", 36, 36, 0)):
        assert family_of(w).error_class(w, False) in shipped().interval
    rows = [Work(Rows(4, 4, passes), "float32", "fp32", 64, 64, 0) for passes in range(4)]
    names = [family_of(w).error_class(w, False) for w in rows]
    assert names == ["reduction", "normalisation", "softmax", "softmax"]


widths = st.lists(st.floats(0.01, 0.5), min_size=1, max_size=6)


@given(widths, st.floats(0, 1), st.floats(0, 1))
def test_a_sum_is_never_less_certain_than_its_parts_together(h: list[float], within: float, between: float) -> None:
    """Errors add up at most as if they were one error, and at least as if they were independent."""
    c = shipped().having({"interval.linear.within": within, "interval.between": between})
    seconds, width = np.ones((len(h), 1)), np.array(h)[:, None]
    whole = combined(["linear"] * len(h), np.arange(len(h)), seconds, width, c)[0]
    assert np.sqrt((width**2).sum()) / len(h) <= whole * (1 + 1e-9)
    assert whole <= width.mean() * (1 + 1e-9)


def test_the_same_work_errs_the_same_each_time() -> None:
    c = shipped().having({"interval.linear.within": 0.0})
    seconds, width = np.ones((4, 1)), np.full((4, 1), 0.2)
    assert combined(["linear"] * 4, np.zeros(4, dtype=int), seconds, width, c)[0] == pytest.approx(0.2)
    assert combined(["linear"] * 4, np.arange(4), seconds, width, c)[0] == pytest.approx(0.1)


def test_estimates_carry_their_ranges() -> None:
    rows = tuple(Kernel(f"k{i}", "MatMul", (), product(512)) for i in range(3))
    e = estimate(Kernels(rows, (), 0), [T4])
    assert e.half_width.shape == (3, 1)
    assert e.run_half_width == pytest.approx(e.half_width[0])  # the same work three times

"""Transposes, and Casts behind them, in front of products, as ONNX Runtime's rules take them in.

What the CUDA provider makes of the same models is compared by test_cuda_oracle.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from onnxperf.graph import load
from onnxperf.runtimes import RUNTIMES, of_version, run_graph
from tests.runtimes.conftest import build

PERMS = ((1, 0, 2), (1, 2, 0), (0, 2, 1), (2, 0, 1)), ((1, 2, 0, 3), (1, 2, 3, 0), (0, 1, 3, 2), (0, 2, 1, 3))


def before(shape: tuple[int, ...], perm: tuple[int, ...] | None) -> list[int]:
    """The shape that `perm` turns into `shape`."""
    return [shape[perm.index(i)] for i in range(len(perm))] if perm else list(shape)


def turned() -> Iterator[tuple[str, str]]:
    """Both operands turned in every way that flags of FusedMatMul stand for, and in one that none does."""
    for perms, stack in zip(PERMS, ((2,), (2, 3)), strict=True):
        for a, b in product((None, *perms), repeat=2):
            types = f"float{before((*stack, 5, 7), a)} x, float{before((*stack, 7, 9), b)} z"
            body = f"a=Transpose<perm={list(a)}>(x)" if a else "a=Relu(x)"
            body += f" b=Transpose<perm={list(b)}>(z)" if b else " b=Relu(z)"
            yield f"turned {a} {b}", f"({types}) => (float{[*stack, 5, 9]} y) {{{body} c=MatMul(a,b) y=Tanh(c)}}"


A, B, LAST = "a=Transpose<perm=[1,0,2]>(x)", "b=Transpose<perm=[1,0,2]>(z)", "a=Transpose<perm=[0,2,1]>(x)"
FOUR, OUT, CAST = "a=Transpose<perm=[1,2,0,3]>(x)", "=> (float[2,5,9] y%s)", "c=Cast<to=1>(a)"
HALF = f"(float16[2,7,5] x, float[2,7,9] z) {OUT}"
REST: dict[str, str] = {
    "a matrix": f"(float[5,2,7] x, float[7,9] z) {OUT % ''} {{{A} y=MatMul(a,z)}}",
    "the other is a matrix": f"(float[5,7] x, float[7,2,9] z) {OUT % ''} {{{B} y=MatMul(x,b)}}",
    "unequal stacks": f"(float[5,2,3,7] x, float[7,3,9] z) => (float[2,3,5,9] y) {{{FOUR} {B} y=MatMul(a,b)}}",
    "repeated": f"(float[5,1,7] x, float[7,2,9] z) {OUT % ''} {{{A} {B} y=MatMul(a,b)}}",
    "doubles": "(double[5,2,7] x, double[2,7,9] z) => (double[2,5,9] y) {" + A + " y=MatMul(a,z)}",
    "integers": "(int32[5,2,7] x, int32[2,7,9] z) => (int32[2,5,9] y) {" + A + " y=MatMul(a,z)}",
    "read by others": f"(float[5,2,7] x, float[2,7,9] z) {OUT % ', float[2,5,7] u'} {{{A} y=MatMul(a,z) u=Tanh(a)}}",
    "given out": f"(float[5,2,7] x, float[2,7,9] z) {OUT % ', float[2,5,7] a'} {{{A} y=MatMul(a,z)}}",
    "scaled": f"(float[5,2,7] x, float[7,2,9] z) {OUT % ''} {{{A} {B} c=MatMul(a,b) y=Mul(c,k)}}",
    "cast": f"{HALF % ''} {{{LAST} {CAST} y=MatMul(c,z)}}",
    "cast, in a stack": HALF.replace("[2,7,5]", "[5,2,7]") % "" + f" {{{A} {CAST} y=MatMul(c,z)}}",
    "cast of integers": HALF.replace("float16", "int32") % "" + f" {{{LAST} {CAST} y=MatMul(c,z)}}",
    "cast, moved otherwise": HALF.replace("[2,7,5]", "[5,7,2]") % ""
    + f" {{a=Transpose<perm=[2,0,1]>(x) {CAST} y=MatMul(c,z)}}",
    "cast, read by others": f"{HALF % ', float[2,5,7] u'} {{{LAST} {CAST} y=MatMul(c,z) u=Tanh(c)}}",
    "cast, given out": f"{HALF % ', float[2,5,7] c'} {{{LAST} {CAST} y=MatMul(c,z)}}",
    "cast, turned given out": f"{HALF % ', float16[2,5,7] a'} {{{LAST} {CAST} y=MatMul(c,z)}}",
    "cast, turned read by others": f"{HALF % ', int32[2,5,7] u'} {{{LAST} {CAST} y=MatMul(c,z) u=Neg(a)}}".replace(
        "float16", "int32"
    ),
    "cast, for two": f"{HALF % ', float[2,5,9] u'} {{{LAST} {CAST} y=MatMul(c,z) b=Tanh(z) u=MatMul(c,b)}}",
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (text, {}) for name, text in turned()},
    **{name: (text, {"k": 2.0} if "k)" in text else {}) for name, text in REST.items()},
}


@pytest.mark.parametrize("level", ["basic", "all"])
@pytest.mark.parametrize("name", CASES)
def test_products_of_what_is_turned(make: Any, oracle: Any, rules: Any, name: str, level: str) -> None:
    text, weights = CASES[name]
    model = make(text, weights)
    assert rules(model, level) == oracle(model, level)


@pytest.mark.parametrize("release", ["1.6", "1.10"])
def test_a_turned_stack_costs_the_same_product(make: Any, release: str) -> None:
    model = build(CASES["turned (1, 2, 0) (1, 0, 2)"][0], {})
    new, old = RUNTIMES["ort-cuda"], of_version(RUNTIMES["ort-cuda"], release)
    fused, apart = (run_graph(load(model), r).operators for r in (new, old))
    assert [o.type.rpartition("::")[2] for o in fused] == ["FusedMatMul", "Tanh"]
    assert [o.type for o in apart] == ["Transpose", "Transpose", "MatMul", "Tanh"]
    assert fused[0].out.shape == (2, 5, 9)

"""Every rule on random shapes: its bytes are those of the tensors, its matrix FLOPs those of the definition.

Nothing crashes, no figure is negative, and attributes of a hostile file do no harm.
"""

from __future__ import annotations

import inspect
import time
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from op_models import Gemm, Move, Operator, Rows, Tensor, work_of
from op_models.core import BITS
from op_models.rules import _RULES
from tests.op_models.shapes import CASES, FEW, OTHER_ROWS, Case, counted, of

DTYPES = sorted(t for t in BITS if BITS[t])
KINDS = ["activation", "weight", "constant", "input"]
VERSIONS = [0, 7, 12, 13, 28]
#: Whose products have several shapes, which one product stands for that is larger by less than a row.
ROUNDED = {"LinearAttention", "com.microsoft::LinearAttention", "onnxperf::StateSpace"}
#: The rules that take the same shapes, by the first of them: each example is put through all of a group.
GROUPS = {
    names[0]: names for names in ([n for n in CASES if CASES[n] is build] for build in dict.fromkeys(CASES.values()))
}


def operator(name: str, case: Case, dtype: str = "float32", kind: str = "activation", version: int = 13) -> Operator:
    """An operator of a case's shapes, all of one type."""
    ins = tuple(None if s is None else Tensor(f"i{n}", dtype, s, kind) for n, s in enumerate(case.inputs))
    outs = tuple(Tensor(f"o{n}", dtype, s) for n, s in enumerate(case.outputs))
    return Operator("n", name, ins, outs, case.attrs, version)


def test_every_rule_is_tried() -> None:
    assert set(CASES) == set(_RULES)
    assert sum(map(len, GROUPS.values())) == len(_RULES)


@pytest.mark.parametrize("names", GROUPS.values(), ids=GROUPS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_operator_has_the_bytes_of_its_tensors_and_two_flops_a_product(
    names: list[str], data: st.DataObject
) -> None:
    case = CASES[names[0]](data.draw)
    dtype, kind, version = data.draw(st.tuples(*map(st.sampled_from, (DTYPES, KINDS, VERSIONS))))
    products = counted(case.program) if case.program else None
    for name in names:
        hold(operator(name, case, dtype, kind, version), case, products)


def hold(op: Operator, case: Case, products: int | None) -> None:
    """What is true of any operator's work, where the products of its definition are known or not."""
    found = work_of(op)
    assert found == work_of(op) and hash(found) == hash(work_of(op))
    figures = (found.matrix_flops, found.vector_flops, found.bytes_read, found.bytes_written, found.weight_bytes)
    assert all(type(f) is int and f >= 0 for f in figures), (op.type, figures)
    assert all(f >= 0 for f in found.size if not isinstance(f, str)), (op.type, found.size)

    whole = sum(t.bytes for t in op.present)
    assert found.bytes_read <= whole if case.partial else found.bytes_read == whole, op.type
    assert found.bytes_written == sum(t.bytes for t in op.outputs) or not case.written, op.type
    assert found.weight_bytes == (found.bytes_read if op.present and op.present[0].stored else 0), op.type

    size: Any = found.size
    if products is not None:
        assert found.matrix_flops == 2 * products, op.type
        if isinstance(size, Gemm):
            row = 2 * size.batch * size.n * size.k
            more = row * size.m - found.matrix_flops
            assert 0 <= more < row if op.type in ROUNDED and row else more == 0, op.type
    if isinstance(size, Move):
        assert size.run >= 1, op.type
    if isinstance(size, Rows) and op.type not in OTHER_ROWS:
        x = op.out if op.type.endswith("EmbedLayerNormalization") else op.present[0]
        assert size.rows * size.width == prod(x.shape), op.type


@st.composite
def equations(draw: st.DrawFn) -> tuple[list[str], str, list[tuple[int, ...]]]:
    sides = {x: draw(FEW) for x in "abcd"}
    terms = draw(st.lists(st.text("abcd", min_size=1, max_size=3), min_size=2, max_size=3))
    used = sorted(set("".join(terms)))
    out = "".join(draw(st.permutations(used))[: draw(st.integers(0, len(used)))])
    return terms, out, [tuple(sides[x] for x in t) for t in terms]


@settings(max_examples=100, deadline=None)
@given(equations())
def test_einsum_multiplies_pair_after_pair(drawn: tuple[list[str], str, list[tuple[int, ...]]]) -> None:
    """From left to right; a label that nothing else has is summed before."""
    terms, out, shapes = drawn
    equation = f"{','.join(terms)}->{out}"
    result = np.einsum(equation, *(np.zeros(s) for s in shapes)).shape
    found = work_of(operator("Einsum", Case([*shapes], [result], {"equation": equation})))
    left, a, sides = terms[0], of(*shapes[0]), {}
    matrix = single = 0
    for i, right in enumerate(terms[1:], 1):
        b, rest = of(*shapes[i]), set(out).union(*terms[i + 1 :])
        mine = "".join(sorted(set(left) & (set(right) | rest)))
        other = "".join(sorted(set(right) & (set(left) | rest)))
        sides |= dict(zip(left + right, a.shape + b.shape, strict=True))
        a, b = (of(*(sides[x] for x in kept)) for kept in (mine, other))
        kept = "".join(sorted((set(mine) | set(other)) & rest))
        products = counted(lambda a=a, b=b, e=f"{mine},{other}->{kept}": np.einsum(e, a, b))
        if set(mine) & set(other) - rest:
            matrix += 2 * products
        else:
            single += products
        left, a = kept, of(*(sides[x] for x in kept))
    assert found.matrix_flops == matrix
    assert found.vector_flops >= single
    assert found.bytes_written == 4 * prod(result)


HOSTILE = st.one_of(
    st.sampled_from(
        [0, -1, 1, 2**31, 2**63 - 1, -(2**63), 1e308, float("nan"), "", "no such thing", (), (0,), (-5, 2**40)]
    ),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
)


@pytest.mark.slow
@pytest.mark.parametrize("names", GROUPS.values(), ids=GROUPS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_attributes_of_a_hostile_file_do_no_harm(names: list[str], data: st.DataObject) -> None:
    """Figures are finite and not negative, or the rule raises what `lower` takes for a form it can't know."""
    case = CASES[names[0]](data.draw)
    shapes = [None if data.draw(st.integers(0, 9)) == 0 else s for s in case.inputs]
    attrs = {k: data.draw(HOSTILE) for k in keywords(names) if data.draw(st.booleans())}
    for name in names:
        op = operator(name, case._replace(inputs=shapes, attrs={**case.attrs, **attrs}), "uint8")
        started, found = time.process_time(), None
        with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            found = work_of(op)
        assert time.process_time() - started < 1, name
        if found is not None:
            figures = (found.matrix_flops, found.vector_flops, found.bytes_read, *found.size)
            assert all(0 <= float(f) < float("inf") for f in figures if not isinstance(f, str)), (name, found)


def keywords(names: list[str]) -> list[str]:
    """The attributes that any of these rules reads."""
    rules = [inspect.unwrap(_RULES[name]) for name in names]
    parameters = (p for rule in rules for p in inspect.signature(rule).parameters.values())
    return sorted({p.name for p in parameters if p.kind is p.KEYWORD_ONLY})

"""Matrix FLOPs against the definition: every product of two numbers is counted while a naive program runs.

`onnx.reference` says what shape the output has; the naive programs know nothing of the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from op_models import Gemm, Operator, Tensor, Work, work_of

Array = np.ndarray[Any, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]
FEW, SOME = st.integers(1, 3), st.integers(1, 5)


class Number:
    """A number that counts how often it is multiplied; sums are free."""

    products = 0

    def __mul__(self, other: object) -> Number:
        Number.products += 1
        return self

    def __add__(self, other: object) -> Number:
        return self

    __rmul__, __radd__ = __mul__, __add__


def of(*shape: int) -> Array:
    """An array of such numbers."""
    return np.full(shape, Number(), dtype=object)


def counted(program: Callable[[], object]) -> int:
    """The products that a program makes."""
    Number.products = 0
    program()
    return Number.products


class Case(NamedTuple):
    """An operator with its inputs, and the naive program that does its products."""

    type: str
    inputs: Sequence[Array | None]
    attrs: dict[str, Any]
    program: Callable[[], object]


def outputs(case: Case, version: int = 23) -> list[Array]:
    """What onnx.reference makes of a case."""
    names = [f"i{n}" if t is not None else "" for n, t in enumerate(case.inputs)]
    node = helper.make_node(case.type, names, ["o"], **case.attrs)
    given = {n: t for n, t in zip(names, case.inputs, strict=True) if t is not None}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(t.dtype), t.shape) for n, t in given.items()
    ]
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("o", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    with np.errstate(all="ignore"):  # only the shape is of interest
        return list(ReferenceEvaluator(model).run(None, given))


def applied(case: Case, version: int = 23) -> Work:
    """The rule's answer."""
    ins = [Tensor(f"i{n}", str(t.dtype), t.shape) if t is not None else None for n, t in enumerate(case.inputs)]
    outs = [Tensor(f"o{n}", str(t.dtype), t.shape) for n, t in enumerate(outputs(case, version))]
    return work_of(Operator("n", case.type, tuple(ins), tuple(outs), case.attrs, version))


def floats(*shape: int) -> Array:
    return np.full(shape, 0.5, np.float32)


def bytes_(*shape: int) -> Array:
    return np.ones(shape, np.uint8)


def stacks(draw: Draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of two operands of matmul."""
    stack, m, k, n = draw(st.lists(FEW, max_size=2)), draw(SOME), draw(SOME), draw(SOME)
    return draw(st.sampled_from([((*stack, m, k), (k, n)), ((*stack, m, k), (*stack, k, n)), ((k,), (*stack, k, n))]))


def matmul(draw: Draw) -> Case:
    a, b = stacks(draw)
    return Case("MatMul", [floats(*a), floats(*b)], {}, lambda: np.matmul(of(*a), of(*b)))


def matmul_integer(draw: Draw) -> Case:
    a, b = stacks(draw)
    return Case("MatMulInteger", [bytes_(*a), bytes_(*b)], {}, lambda: np.matmul(of(*a), of(*b)))


def matmul_quantised(draw: Draw) -> Case:
    a, b = stacks(draw)
    scale, zero = np.float32(1), np.uint8(0)
    one = [np.array(scale), np.array(zero)]
    return Case("QLinearMatMul", [bytes_(*a), *one, bytes_(*b), *one, *one], {}, lambda: np.matmul(of(*a), of(*b)))


def gemm(draw: Draw) -> Case:
    m, k, n, ta, tb = draw(SOME), draw(SOME), draw(SOME), draw(st.integers(0, 1)), draw(st.integers(0, 1))
    a, b = (k, m) if ta else (m, k), (n, k) if tb else (k, n)
    inputs = [floats(*a), floats(*b), floats(n) if draw(st.booleans()) else None]
    return Case("Gemm", inputs, {"transA": ta, "transB": tb}, lambda: np.matmul(of(m, k), of(k, n)))


class Window(NamedTuple):
    """A convolution: operands' shapes, ONNX's attributes."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    attrs: dict[str, Any]


def window(draw: Draw, rank: int | None = None, room: int = 0) -> Window:
    rank = rank or draw(st.integers(1, 3))
    group, taps = draw(FEW), [draw(FEW) for _ in range(rank)]
    pads = [draw(st.integers(0, 1)) for _ in range(2 * rank)]
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    sides = [(t - 1) * d + draw(FEW) + room for t, d in zip(taps, dilations, strict=True)]
    attrs = {"group": group, "pads": pads, "dilations": dilations, "strides": [draw(FEW) for _ in range(rank)]}
    cin = draw(st.integers(1, 2))
    return Window((draw(FEW), group * cin, *sides), (group * draw(st.integers(1, 2)), cin, *taps), attrs)


def slide(win: Window) -> None:
    """Each filter over each place of the padded image, times everything it covers, zeros too."""
    rank, group = len(win.x) - 2, win.attrs["group"]
    pads, dilations, strides = (win.attrs[k] for k in ("pads", "dilations", "strides"))
    x, w = of(*win.x[:2], *(s + pads[i] + pads[rank + i] for i, s in enumerate(win.x[2:]))), of(*win.w)
    reach = [(t - 1) * d for t, d in zip(win.w[2:], dilations, strict=True)]
    starts = [range(0, x.shape[2 + i] - reach[i], strides[i]) for i in range(rank)]
    for n, m, *at in product(range(win.x[0]), range(win.w[0]), *starts):
        first = m // (win.w[0] // group) * win.w[1]
        cut = [slice(a, a + r + 1, d) for a, r, d in zip(at, reach, dilations, strict=True)]
        (x[(n, slice(first, first + win.w[1]), *cut)] * w[m]).sum()


def conv(draw: Draw) -> Case:
    win = window(draw)
    return Case("Conv", [floats(*win.x), floats(*win.w)], win.attrs, lambda: slide(win))


def conv_integer(draw: Draw) -> Case:
    win = window(draw, 2)
    return Case("ConvInteger", [bytes_(*win.x), bytes_(*win.w)], win.attrs, lambda: slide(win))


def conv_quantised(draw: Draw) -> Case:
    win = window(draw, 2)
    one = [np.array(1, np.float32), np.array(0, np.uint8)]
    inputs = [bytes_(*win.x), *one, bytes_(*win.w), *one, *one]
    return Case("QLinearConv", inputs, win.attrs, lambda: slide(win))


def deformable(draw: Draw) -> Case:
    win = window(draw, 2, room=1)
    attrs = {**win.attrs, "kernel_shape": list(win.w[2:])}
    plain = Case("Conv", [floats(*win.x), floats(*win.w)], win.attrs, lambda: slide(win))
    out = outputs(plain)[0].shape
    offset = floats(win.x[0], 2 * int(np.prod(win.w[2:])), *out[2:])
    return Case("DeformConv", [*plain.inputs, offset], attrs, plain.program)


def conv_transposed(draw: Draw) -> Case:
    n, cin, cout = draw(FEW), draw(FEW), draw(FEW)
    rank = draw(st.integers(1, 2))
    sides, taps, strides = ([draw(FEW) for _ in range(rank)] for _ in range(3))
    x, w = (n, cin, *sides), (cin, cout, *taps)

    def scatter() -> None:
        """Each number of the input, times all weights it spreads over."""
        for image, c, *at in product(*map(range, x)):
            of(*w)[c] * of(*x)[(image, c, *at)]

    return Case("ConvTranspose", [floats(*x), floats(*w)], {"strides": strides}, scatter)


def attention(draw: Draw) -> Case:
    b, kv, share, q, k, d, e = draw(FEW), draw(FEW), draw(FEW), draw(SOME), draw(SOME), draw(FEW), draw(FEW)
    inputs = [floats(b, kv * share, q, d), floats(b, kv, k, d), floats(b, kv, k, e)]

    def scores() -> None:
        of(b, kv * share, q, d) @ of(b, kv * share, d, k)
        of(b, kv * share, q, k) @ of(b, kv * share, k, e)

    return Case("Attention", inputs, {"is_causal": draw(st.integers(0, 1))}, scores)


def recurrent(type: str, gates: int) -> Callable[[Draw], Case]:
    def build(draw: Draw) -> Case:
        t, b, i, h = draw(SOME), draw(FEW), draw(FEW), draw(FEW)
        inputs = [floats(t, b, i), floats(1, gates * h, i), floats(1, gates * h, h)]

        def steps() -> None:
            for _, _ in product(range(t), range(gates)):
                of(b, i) @ of(i, h)
                of(b, h) @ of(h, h)

        return Case(type, inputs, {"hidden_size": h}, steps)

    return build


def linear_attention(draw: Draw) -> Case:
    b, t, kv, share, d, e = draw(FEW), draw(FEW), draw(FEW), draw(FEW), draw(FEW), draw(FEW)
    rule = draw(st.sampled_from(["linear", "gated", "delta", "gated_delta"]))
    decay = floats(b, t, kv) if "gated" in rule else None
    beta = floats(b, t, kv) if "delta" in rule else None
    inputs = [floats(b, t, kv * share * d), floats(b, t, kv * d), floats(b, t, kv * e), None, decay, beta]

    def steps() -> None:
        for _ in product(range(b), range(t), range(kv)):
            if "delta" in rule:
                of(1, d) @ of(d, e)  # what the state holds for this key
            of(d, 1) @ of(1, e)  # what is added to it
            of(share, d) @ of(d, e)  # what the queries find there

    while inputs[-1] is None:
        inputs.pop()
    attrs = {"q_num_heads": kv * share, "kv_num_heads": kv, "update_rule": rule}
    return Case("LinearAttention", inputs, attrs, steps)


def causal_conv(draw: Draw) -> Case:
    b, c, length, taps = draw(FEW), draw(FEW), draw(SOME), draw(FEW)
    attrs = {"pads": [taps - 1, 0], "group": c, "dilations": [1], "strides": [1]}
    win = Window((b, c, length), (c, 1, taps), attrs)
    return Case("CausalConvWithState", [floats(*win.x), floats(*win.w)], {}, lambda: slide(win))


CASES = {
    f.__name__: f
    for f in (
        matmul, matmul_integer, matmul_quantised, gemm, conv, conv_integer, conv_quantised, deformable,
        conv_transposed, attention, linear_attention, causal_conv,
    )
} | {type: recurrent(type, gates) for type, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_two_flops_a_product(name: str, data: st.DataObject) -> None:
    case = CASES[name](data.draw)
    version = 27 if case.type in ("LinearAttention", "CausalConvWithState") else 23
    found = applied(case, version)
    assert found.matrix_flops == 2 * counted(case.program) > 0
    size: Any = found.size
    if isinstance(size, Gemm):
        assert found.matrix_flops == 2 * size.batch * size.m * size.n * size.k


@pytest.mark.parametrize("both", [1, 2])
def test_both_directions_of_a_recurrent_layer_count(both: int) -> None:
    shapes = [(5, 2, 3), (both, 16, 3), (both, 16, 4), (both, 32)]
    ins = tuple(Tensor(f"i{n}", "float32", s) for n, s in enumerate(shapes))
    found = work_of(Operator("n", "LSTM", ins, (Tensor("o", "float32", (5, both, 2, 4)),), {"hidden_size": 4}))
    assert found.matrix_flops == both * 5 * 2 * counted(lambda: (of(2, 3) @ of(3, 16), of(2, 4) @ of(4, 16)))


@st.composite
def equations(draw: st.DrawFn) -> tuple[list[str], str, list[tuple[int, ...]]]:
    sides = {x: draw(FEW) for x in "abcd"}
    terms = draw(st.lists(st.text("abcd", min_size=1, max_size=3), min_size=2, max_size=3))
    used = sorted(set("".join(terms)))
    out = "".join(draw(st.permutations(used))[: draw(st.integers(0, len(used)))])
    return terms, out, [tuple(sides[x] for x in t) for t in terms]


@settings(max_examples=150, deadline=None)
@given(equations())
def test_einsum_multiplies_pair_after_pair(drawn: tuple[list[str], str, list[tuple[int, ...]]]) -> None:
    """From left to right; a label that nothing else has is summed before."""
    terms, out, shapes = drawn
    case = Case("Einsum", [floats(*s) for s in shapes], {"equation": f"{','.join(terms)}->{out}"}, lambda: None)
    found = applied(case)
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
    assert found.bytes_written == 4 * int(np.prod(outputs(case)[0].shape))


@pytest.mark.parametrize(
    ("equation", "shapes", "size"),
    [
        ("ij,jk->ik", [(5, 7), (7, 3)], Gemm(1, 5, 3, 7)),
        ("ij,jk", [(5, 7), (7, 3)], Gemm(1, 5, 3, 7)),
        ("ij,kj->ik", [(5, 7), (3, 7)], Gemm(1, 5, 3, 7, False, True)),
        ("ji,jk->ki", [(7, 5), (7, 3)], Gemm(1, 5, 3, 7, True, False)),
        ("bhqd,bhkd->bhqk", [(2, 4, 6, 8), (2, 4, 7, 8)], Gemm(8, 6, 7, 8, False, True)),
        ("...ij,...jk->...ik", [(2, 1, 5, 7), (4, 7, 3)], Gemm(4, 10, 3, 7)),
        ("...ij,jk", [(2, 4, 5, 7), (7, 3)], Gemm(1, 40, 3, 7)),
        ("i,i->", [(9,), (9,)], Gemm(1, 1, 1, 9, False, True)),
        (" i j , j k -> i k ", [(5, 7), (7, 3)], Gemm(1, 5, 3, 7)),
    ],
)
def test_einsum_of_two_is_a_product_of_matrices(equation: str, shapes: Any, size: Gemm) -> None:
    case = Case("Einsum", [floats(*s) for s in shapes], {"equation": equation}, lambda: None)
    found = applied(case)
    assert found.matrix_flops == 2 * size.batch * size.m * size.n * size.k
    kind: Any = found.size
    assert (kind.k, kind.batch * kind.m * kind.n) == (size.k, size.batch * size.m * size.n)
    if "..." not in equation:
        assert found.size == size

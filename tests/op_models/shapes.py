"""Operators of random shapes, valid ones, for every rule; where an operator multiplies, a naive program that does so.

The programs know nothing of the rules: they run on numbers that count how often they are multiplied.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from op_models import NHWC
from op_models.gradients import FLOPS as GRADIENTS
from op_models.move import CARRIERS, LOOKUPS
from op_models.pointwise import FLOPS
from op_models.reduce import REDUCE

Shape = tuple[int, ...]
Draw = Callable[[st.SearchStrategy[Any]], Any]

DIM = st.integers(0, 5)
SIDE = st.integers(1, 4)
FEW = st.integers(1, 3)


class Number:
    """A number that counts how often it is multiplied; sums are free."""

    products = 0

    def __mul__(self, other: object) -> Number:
        Number.products += 1
        return self

    def __add__(self, other: object) -> Number:
        return self

    __rmul__, __radd__ = __mul__, __add__


def of(*shape: int) -> np.ndarray[Any, Any]:
    """An array of such numbers."""
    return np.full(shape, Number(), dtype=object)


def counted(program: Callable[[], object]) -> int:
    """The products that a program makes."""
    Number.products = 0
    program()
    return Number.products


class Case(NamedTuple):
    """Shapes of a valid operator; `partial` where it reads but a part of its inputs, `written` where it writes all.

    `program` makes all products of two numbers that the operator's definition asks for.
    """

    inputs: list[Shape | None]
    outputs: list[Shape]
    attrs: dict[str, Any] = {}  # noqa: RUF012  (never changed)
    partial: bool = False
    written: bool = True
    program: Callable[[], object] | None = None


def dims(draw: Draw, least: int = 0, most: int = 5) -> Shape:
    return tuple(draw(st.lists(DIM, min_size=least, max_size=most)))


def axis(draw: Draw, shape: Shape) -> int:
    return int(draw(st.integers(-len(shape), len(shape) - 1)))


def pointwise(draw: Draw) -> Case:
    shape = dims(draw)
    others = [
        tuple(draw(st.sampled_from((1, d))) for d in shape[draw(st.integers(0, len(shape))) :])
        for _ in range(draw(st.integers(0, 2)))
    ]
    return Case([shape, *others], [shape])


def loops(draw: Draw) -> Case:
    """A kernel of torch.compile, which reads a part of its second input."""
    shape = dims(draw, 1)
    size = prod(shape)
    attrs = {"elements": size, "flops": 3 * size, "read": (size, size // 2)}
    rows = (
        {"rows": prod(shape[:-1]), "width": shape[-1], "passes": draw(st.integers(0, 1))} if draw(st.booleans()) else {}
    )
    return Case([shape, shape], [shape], attrs | rows, partial=True)


def binary(draw: Draw) -> Case:
    shape = dims(draw)
    return Case([shape, shape[-1:]], [shape])


def bias_rows(draw: Draw) -> Case:
    shape = dims(draw, 1)
    return Case([shape[-1:]], [shape])


def only_type(draw: Draw) -> Case:
    return Case([dims(draw), dims(draw)], [()], partial=True)


def along_axis(draw: Draw) -> Case:
    shape = dims(draw, 1)
    return Case([shape], [shape], {"axis": axis(draw, shape)})


def scalar_or_last(draw: Draw) -> Case:
    shape = dims(draw)
    return Case([shape], [shape])


def reduced(draw: Draw) -> Case:
    shape = dims(draw)
    keep = draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    if draw(st.booleans()):
        return Case([shape], [tuple(d if k else 1 for d, k in zip(shape, keep, strict=True))])
    return Case([shape], [tuple(d for d, k in zip(shape, keep, strict=True) if k)], {"keepdims": 0})


def top_k(draw: Draw) -> Case:
    shape = dims(draw, 1)
    a = axis(draw, shape) % len(shape)
    out = (*shape[:a], draw(st.integers(0, shape[a])), *shape[a + 1 :])
    return Case([shape, (1,)], [out, out], {"axis": a})


def images(draw: Draw) -> Shape:
    return (draw(DIM), draw(DIM), *dims(draw, 1, 3))


def channels(draw: Draw) -> Case:
    shape = images(draw)
    c = (shape[1],)
    groups = draw(st.sampled_from([g for g in range(1, 6) if shape[1] % g == 0]))
    return Case([shape, c, c, c, c], [shape], {"num_groups": groups, "groups": groups, "size": draw(SIDE)})


def norm(draw: Draw) -> Case:
    shape = dims(draw, 1)
    return Case([shape, *[shape[-1:]] * draw(st.integers(1, 2))], [shape])


def skip_norm(draw: Draw) -> Case:
    shape = dims(draw, 2, 3)
    return Case([shape, shape, *[shape[-1:]] * draw(st.integers(1, 3))], [shape])


def all_axes(draw: Draw) -> Case:
    shape = dims(draw, 1)
    axes = draw(st.lists(st.integers(-len(shape), len(shape) - 1), unique_by=lambda a: a % len(shape)))
    return Case([shape], [shape], {"axes": axes})


def embedding(draw: Draw) -> Case:
    b, s, h = (draw(DIM) for _ in range(3))
    segments: list[Shape | None] = [(b, s), (2, h)] if draw(st.booleans()) else [None, None]
    tables = [segments[0], (draw(DIM), h), (draw(DIM), h), segments[1], (h,), (h,)]
    return Case([(b, s), *tables], [(b, s, h)], partial=True)


def convolution(draw: Draw, rank: int | None = None, room: int = 0) -> Case:
    """Any stride, padding and dilation, in one to three dimensions; the image has `room` more than it needs."""
    rank = rank or draw(st.integers(1, 3))
    group, cin, taps = draw(FEW), draw(st.integers(1, 2)), [draw(FEW) for _ in range(rank)]
    strides, dilations = [draw(FEW) for _ in range(rank)], [draw(st.integers(1, 2)) for _ in range(rank)]
    pads = [draw(st.integers(0, 1)) for _ in range(2 * rank)]
    sides = [(t - 1) * d + draw(FEW) + room for t, d in zip(taps, dilations, strict=True)]
    x, w = (draw(st.integers(0, 3)), group * cin, *sides), (group * draw(st.integers(1, 2)), cin, *taps)
    padded = [s + pads[i] + pads[rank + i] for i, s in enumerate(sides)]
    reach = [(t - 1) * d for t, d in zip(taps, dilations, strict=True)]
    starts = [range(0, p - r, s) for p, r, s in zip(padded, reach, strides, strict=True)]

    def slide() -> None:
        """Each filter over each place of the padded image, times everything it covers, zeros too."""
        image, filters = of(*x[:2], *padded), of(*w)
        for n, m, *at in product(range(x[0]), range(w[0]), *starts):
            first = m // (w[0] // group) * cin
            cut = [slice(a, a + r + 1, d) for a, r, d in zip(at, reach, dilations, strict=True)]
            image[(n, slice(first, first + cin), *cut)] * filters[m]

    attrs = {"group": group, "pads": pads, "dilations": dilations, "strides": strides}
    bias = (w[0],) if draw(st.booleans()) else None
    over = any(s > t for s, t in zip(strides, taps, strict=True))  # a stride passes over part of the image
    return Case([x, w, bias], [(x[0], w[0], *map(len, starts))], attrs, over, program=slide)


def transposed(draw: Draw) -> Case:
    n, group, rank = draw(st.integers(0, 3)), draw(FEW), draw(st.integers(1, 2))
    sides, taps, strides = ([draw(FEW) for _ in range(rank)] for _ in range(3))
    x, w = (n, group * draw(FEW), *sides), (draw(FEW), *taps)
    out = (n, group * w[0], *((s - 1) * step + t for s, step, t in zip(sides, strides, taps, strict=True)))

    def scatter() -> None:
        """Each number of the input, times all weights it spreads over."""
        for at in product(*map(range, x)):
            of(*w) * of(*x)[at]

    return Case([x, (x[1], *w)], [out], {"group": group, "strides": strides}, program=scatter)


def multiplied(draw: Draw) -> Case:
    stack, m, k, n = dims(draw, 0, 2), draw(DIM), draw(DIM), draw(DIM)
    a, b = draw(st.sampled_from([((*stack, m, k), (k, n)), ((*stack, m, k), (*stack, k, n)), ((k,), (*stack, k, n))]))
    return Case([a, b], [np.matmul(np.zeros(a), np.zeros(b)).shape], program=lambda: of(*a) @ of(*b))


def gemm(draw: Draw) -> Case:
    m, k, n, ta, tb = draw(DIM), draw(DIM), draw(DIM), draw(st.integers(0, 1)), draw(st.integers(0, 1))
    inputs = [(k, m) if ta else (m, k), (n, k) if tb else (k, n), (n,) if draw(st.booleans()) else None]
    attrs = {"beta": 0.5, "transA": ta, "transB": tb}
    return Case(inputs, [(m, n)], attrs, program=lambda: of(m, k) @ of(k, n))


def pool(draw: Draw) -> Case:
    shape = images(draw)
    out = (*shape[:2], *(draw(DIM) for _ in shape[2:]))
    return Case([shape], [out], {"kernel_shape": [draw(SIDE) for _ in shape[2:]], "p": draw(SIDE)})


def global_pool(draw: Draw) -> Case:
    shape = images(draw)
    return Case([shape], [(*shape[:2], *(1 for _ in shape[2:]))], {"p": draw(SIDE)})


def shape_only(draw: Draw) -> Case:
    return Case([dims(draw)], [dims(draw)], partial=True)


def made(draw: Draw) -> Case:
    return Case([dims(draw)], [dims(draw)])


def one_element(draw: Draw) -> Case:
    """A sequence, and the tensor that is put in or the place of what is taken out: read and written in part."""
    return Case([(draw(DIM),), dims(draw)], [dims(draw)], partial=True, written=False)


def permuted(draw: Draw) -> Case:
    shape = dims(draw)
    perm = draw(st.permutations(range(len(shape))))
    return Case([shape], [tuple(shape[a] for a in perm)], {"perm": perm})


def reordered(draw: Draw) -> Case:
    shape = images(draw)
    return Case([shape], [shape], {"channels_last": draw(st.integers(0, 1))})


def concat(draw: Draw) -> Case:
    shape = dims(draw, 1)
    a = axis(draw, shape)
    parts = [(*shape[: a % len(shape)], draw(DIM), *shape[a % len(shape) + 1 :]) for _ in range(3)]
    whole = (*shape[: a % len(shape)], sum(p[a] for p in parts), *shape[a % len(shape) + 1 :])
    return Case([*parts], [whole], {"axis": a})


def split(draw: Draw) -> Case:
    parts, whole, attrs, *_ = concat(draw)
    return Case([*whole], [p for p in parts if p is not None], attrs)


def cropped(draw: Draw) -> Case:
    shape = dims(draw)
    attrs = {"mode": draw(st.sampled_from(["linear", "nearest"])), "antialias": draw(st.integers(0, 1))}
    return Case([shape], [tuple(draw(DIM) for _ in shape)], attrs, partial=True)


def sliced(draw: Draw) -> Case:
    shape = dims(draw)
    index = (len(shape),)
    return Case([shape, index, index, index, index], [tuple(draw(st.integers(0, d)) for d in shape)], partial=True)


def gathered(draw: Draw) -> Case:
    shape, index = dims(draw, 1), dims(draw, 0, 2)
    a = axis(draw, shape)
    out = (*shape[: a % len(shape)], *index, *shape[a % len(shape) + 1 :])
    return Case([shape, index], [out], {"axis": a}, partial=True)


def gathered_nd(draw: Draw) -> Case:
    shape, lead = dims(draw, 1), dims(draw, 0, 2)
    k = draw(st.integers(1, len(shape)))
    return Case([shape, (*lead, k)], [(*lead, *shape[k:])], partial=True)


def scattered(draw: Draw) -> Case:
    shape = dims(draw, 2)
    updates = tuple(draw(st.integers(0, d)) for d in shape)
    return Case([shape, updates, updates], [shape], {"reduction": draw(st.sampled_from(["none", "add"]))})


def written(draw: Draw) -> Case:
    shape = dims(draw, 2)
    return Case([shape, (*shape[:-2], draw(DIM), shape[-1])], [shape], partial=True, written=False)


def attention(draw: Draw) -> Case:
    b, kv, share, q, k, d, e = (draw(DIM) for _ in range(7))
    h, window = kv * share, draw(st.integers(-1, 4))
    attrs = {"is_causal": draw(st.integers(0, 1)), "left_window_size": window}

    def scores() -> None:
        """Every query times every key, masked or not, and every score times every value."""
        of(b, h, q, d) @ of(b, h, d, k)
        of(b, h, q, k) @ of(b, h, k, e)

    inputs: list[Shape | None] = [(b, h, q, d), (b, kv, k, d), (b, kv, k, e)]
    return Case(inputs, [(b, h, q, e)], attrs, program=scores if window < 0 else None)


def packed_attention(draw: Draw) -> Case:
    b, s, hidden, heads, d = (draw(DIM) for _ in range(5))
    past = (2, b, heads, draw(DIM), d) if draw(st.booleans()) else None
    inputs = [(b, s, hidden), (hidden, 3 * heads * d), (3 * heads * d,), None, past]
    return Case([*inputs], [(b, s, heads * d)], {"num_heads": heads, "unidirectional": 1})


def flat_attention(draw: Draw) -> Case:
    b, q, k, heads, d = (draw(DIM) for _ in range(5))
    attrs = {"num_heads": heads, "kv_num_heads": heads, "local_window_size": draw(st.integers(-1, 4))}
    return Case([(b, q, heads * d), (b, k, heads * d), (b, k, heads * d)], [(b, q, heads * d)], attrs)


def rotary(draw: Draw) -> Case:
    b, s, heads, half = (draw(DIM) for _ in range(4))
    x = (b, s, heads * 2 * half) if draw(st.booleans()) else (b, heads, s, 2 * half)
    return Case([x, (b, s, half), (b, s, half)], [x], {"num_heads": heads})


def rotary_ort(draw: Draw) -> Case:
    inputs, outputs, attrs, *_ = rotary(draw)
    x, table = inputs[0], inputs[1] or ()
    return Case([x, table[:2], (9, table[2]), (9, table[2])], outputs, attrs, partial=True)


def spread(build: Callable[[Draw], Case], *places: int) -> Callable[[Draw], Case]:
    """The same operator with its inputs at these places, numbers between them."""

    def at_places(draw: Draw) -> Case:
        case = build(draw)
        inputs: list[Shape | None] = [()] * (max(places) + 1)
        for place, shape in zip(places, case.inputs, strict=False):
            inputs[place] = shape
        return case._replace(inputs=inputs)

    return at_places


def in_last(kind: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
    """The same with channels behind rows and columns, in the first input and the output."""

    def turned(draw: Draw) -> Case:
        case = kind(draw)
        (x, *others), (out,) = case.inputs, case.outputs
        assert x is not None
        return case._replace(inputs=[(x[0], *x[2:], x[1]), *others], outputs=[(out[0], *out[2:], out[1])])

    return turned


def deformable(draw: Draw) -> Case:
    (x, w, b), (out,), attrs, *_, program = convolution(draw, 2, 1)
    assert w is not None
    taps = prod(w[2:])
    mask = (out[0], taps, *out[2:]) if draw(st.booleans()) else None
    return Case([x, w, (out[0], 2 * taps, *out[2:]), b, mask], [out], attrs, program=program)


def causal_convolution(draw: Draw) -> Case:
    n, c, length, taps = draw(DIM), draw(DIM), draw(DIM), draw(SIDE)

    def slide() -> None:
        """Each channel's own filter over every place, with as many zeros before the first as it reaches back."""
        for _ in range(n * c * length):
            of(taps) * of(taps)

    attrs = {"activation": draw(st.sampled_from(["", "silu"]))}
    return Case([(n, c, length), (c, 1, taps), (c,)], [(n, c, length)], attrs, program=slide)


def packed_product(draw: Draw) -> Case:
    stack, m, k, n = dims(draw, 0, 2), draw(DIM), draw(DIM), draw(DIM)
    attrs = {"N": n, "K": k} if draw(st.booleans()) else {}
    return Case([(*stack, m, k), (n, 1, k)], [(*stack, m, n)], attrs, program=lambda: of(*stack, m, k) @ of(k, n))


def unpacked_weights(draw: Draw) -> Case:
    k, n = draw(DIM), draw(DIM)
    return Case([(n, 1, k), (n,)], [(n, k)])


def distances(draw: Draw) -> Case:
    m, n, k = draw(DIM), draw(DIM), draw(DIM)
    attrs = {"metric": draw(st.sampled_from(["euclidean", "sqeuclidean"]))}
    return Case([(m, k), (n, k)], [(m, n)], attrs, program=lambda: of(m, k) @ of(k, n))


def squares(draw: Draw) -> Case:
    stack, n = dims(draw, 0, 2), draw(DIM)
    return Case([(*stack, n, n)], [(*stack, n, n)])


def classified(draw: Draw) -> Case:
    shape = dims(draw, 2)
    weights = (shape[1],) if draw(st.booleans()) else None
    return Case([shape, (shape[0], *shape[2:]), weights], [()], partial=True)


def gated(draw: Draw) -> Case:
    shape = dims(draw, 1)
    return Case([shape, shape[-1:], shape], [shape])


def sampled(draw: Draw) -> Case:
    n, c, axes = draw(DIM), draw(DIM), draw(st.integers(2, 3))
    grid = (n, *(draw(DIM) for _ in range(axes)), axes)
    mode = draw(st.sampled_from(["bilinear", "linear", "nearest", "bicubic", "cubic"]))
    return Case([(n, c, *(draw(DIM) for _ in range(axes))), grid], [(n, c, *grid[1:-1])], {"mode": mode}, True)


def affine(draw: Draw) -> Case:
    n, axes = draw(DIM), draw(st.integers(2, 3))
    return Case([(n, axes, axes + 1), (axes + 2,)], [(n, *(draw(DIM) for _ in range(axes)), axes)])


def regions(draw: Draw) -> Case:
    n, c, r = draw(DIM), draw(DIM), draw(DIM)
    out = (r, c, draw(DIM), draw(DIM))
    return Case([(n, c, draw(DIM), draw(DIM)), (r, 4), (r,)], [out], {"sampling_ratio": draw(st.integers(0, 3))}, True)


def boxes(draw: Draw) -> Case:
    b, n, c = draw(DIM), draw(DIM), draw(DIM)
    return Case([(b, n, 4), (b, c, n)], [(b * c * n, 3)])


def spectrum(draw: Draw) -> Case:
    shape, values = dims(draw, 2, 3), draw(st.integers(1, 2))
    return Case([(*shape, values)], [(*shape, 2)], {"axis": 1})


def frames(draw: Draw) -> Case:
    b, n, m = draw(DIM), draw(DIM), draw(DIM)
    window = (n,) if draw(st.booleans()) else None
    return Case([(b, draw(DIM), 1), (), window], [(b, m, n // 2 + 1, 2)])


def rffts(draw: Draw) -> Case:
    shape = dims(draw, 1, 3)
    return Case([shape], [(*shape[:-1], shape[-1] // 2 + 1, 2)], {"signal_ndim": draw(st.integers(1, len(shape)))})


def two_axes(draw: Draw) -> Case:
    rows, width, samples = draw(DIM), draw(DIM), draw(DIM)
    return Case([(rows, width)], [(rows, samples)], {"sample_size": samples})


def from_nothing(draw: Draw) -> Case:
    return Case([()], [dims(draw)])


def carried(draw: Draw) -> Case:
    return Case([dims(draw), dims(draw)], [dims(draw)], partial=True, written=False)


def kept(draw: Draw) -> Case:
    shape = dims(draw, 1)
    a = axis(draw, shape) % len(shape)
    attrs = {"axis": a} if draw(st.booleans()) else {}
    return Case([shape, (shape[a],)], [shape], attrs, True)


def pairs(draw: Draw) -> Case:
    return Case([dims(draw, 2, 2), dims(draw, 2, 2)], [dims(draw, 2, 2)], {"ngram_size": 3, "max_gram_length": 3})


def einsum(draw: Draw) -> Case:
    sides = {x: draw(DIM) for x in "abcd"}
    terms = draw(st.lists(st.text("abcd", max_size=3), min_size=1, max_size=3))
    used = sorted(set("".join(terms)))
    out = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
    shapes = [tuple(sides[x] for x in t) for t in (*terms, "".join(out))]
    return Case([*shapes[:-1]], shapes[-1:], {"equation": f"{','.join(terms)}->{''.join(out)}"})


def linear(draw: Draw) -> Case:
    rows, features, classes = draw(DIM), draw(SIDE), draw(SIDE)
    attrs = {
        "coefficients": (0.5,) * (features * classes),
        "support_vectors": (0.5,) * (features * draw(DIM)),
        "kernel_type": draw(st.sampled_from(["LINEAR", "RBF"])),
    }
    return Case([(rows, features)], [(rows, classes)], attrs)


def forest(draw: Draw) -> Case:
    trees = draw(SIDE)
    ids = tuple(t for t in range(trees) for _ in range(draw(SIDE)))
    attrs = {"nodes_treeids": ids, "nodes_featureids": ids}
    if draw(st.booleans()):
        attrs = {"tree_roots": tuple(range(trees)), "nodes_featureids": ids}
    return Case([dims(draw, 1, 2)], [(draw(DIM), 1)], attrs)


def experts(draw: Draw) -> Case:
    tokens, e, hidden, inner = draw(DIM), draw(DIM), draw(DIM), draw(DIM)
    third = (e, inner, hidden) if draw(st.booleans()) else None
    weights: list[Shape | None] = [(e, inner, hidden), (e, hidden, inner), third]
    attrs = {"k": draw(st.integers(1, 2)), "activation_type": draw(st.sampled_from(["relu", "silu", "swiglu"]))}
    return Case([(tokens, hidden), (tokens, e), *weights], [(tokens, hidden)], attrs, True)


def recurrent(gates: int, transposed: bool = False) -> Callable[[Draw], Case]:
    def build(draw: Draw) -> Case:
        t, b, i, h, d = (draw(DIM) for _ in range(5))
        rows = gates * h
        w, r = ((d, i, rows), (d, h, rows)) if transposed else ((d, rows, i), (d, rows, h))
        bias = (d, 2 * rows) if draw(st.booleans()) else None
        layout = draw(st.integers(0, 1))

        def steps() -> None:
            for _ in range(d * t * gates):
                of(b, i) @ of(i, h)
                of(b, h) @ of(h, h)

        x = (b, t, i) if layout else (t, b, i)
        return Case([x, w, r, bias], [(t, d, b, h)], {"layout": layout}, program=steps)

    return build


def linear_attention(draw: Draw) -> Case:
    b, t, kv, share, d, e = (max(draw(DIM), int(k > 1)) for k in range(6))
    rule = draw(st.sampled_from(["linear", "gated", "delta", "gated_delta"]))
    decay = (b, t, kv) if "gated" in rule else None
    beta = (b, t, kv) if "delta" in rule else None

    def steps() -> None:
        for _ in range(b * kv):
            for _ in range(t):
                if "delta" in rule:
                    of(1, d) @ of(d, e)  # what the state holds for this key
                of(d, 1) @ of(1, e)  # what is added to it
                of(share, d) @ of(d, e)  # what the queries find there
            if t > 1:  # tokens among each other, all in one chunk
                of(share * t, d) @ of(d, t)
                of(share * t, t) @ of(t, e)
                if "delta" in rule:
                    of(t, d) @ of(d, t)
                    of(t, t) @ of(t, d + e)

    inputs = [(b, t, kv * share * d), (b, t, kv * d), (b, t, kv * e), None, decay, beta]
    attrs = {"q_num_heads": kv * share, "kv_num_heads": kv, "update_rule": rule}
    return Case(inputs, [(b, t, kv * share * e)], attrs, program=steps)


def ordered(draw: Draw) -> Case:
    b, s, hidden, heads, d = (draw(DIM) for _ in range(5))
    w = (hidden, heads * d)
    return Case([(b, s, hidden), w, w, w], [(b, s, heads * d)], {"num_heads": heads})


def unpadded_attention(draw: Draw) -> Case:
    tokens, b, s, hidden, heads, d = (draw(DIM) for _ in range(6))
    inputs = [(tokens, hidden), (hidden, 3 * heads * d), (3 * heads * d,), (b, s)]
    return Case([*inputs], [(tokens, heads * d)], {"num_heads": heads})


def unpadded_heads(draw: Draw) -> Case:
    tokens, b, s, heads, d = (draw(DIM) for _ in range(5))
    x, flat = (tokens, heads * d), draw(st.booleans())
    inputs = [x, x, x, None, (b, s)] if flat else [(tokens, heads, 3, d), None, None, None, (b, s)]
    return Case([*inputs], [x], {"num_heads": heads})


def longformer(draw: Draw) -> Case:
    b, s, heads, d = (draw(DIM) for _ in range(4))
    w = (heads * d, 3 * heads * d)
    inputs = [(b, s, heads * d), w, w[1:], (b, s), w, w[1:], (b, s)]
    return Case([*inputs], [(b, s, heads * d)], {"num_heads": heads, "window": draw(DIM)})


def sparse(draw: Draw) -> Case:
    b, s, heads, d, long, blocks, some = (draw(DIM) for _ in range(7))
    x, past = (b, s, heads * d), (b, heads, long, d)
    attrs = {"num_heads": heads, "kv_num_heads": heads, "sparse_block_size": draw(SIDE)}
    return Case([x, x, x, past, past, (1, blocks + 1), (1, some), ()], [x], attrs)


def paged(draw: Draw) -> Case:
    tokens, b, heads, d, blocks, each, most = (draw(DIM) for _ in range(7))
    x, cache = (tokens, heads * d), (blocks, each, heads, d)
    attrs = {"num_heads": heads, "kv_num_heads": heads, "local_window_size": draw(st.integers(-1, 4))}
    return Case([x, x, x, cache, cache, (b + 1,), (b,), (b, most)], [x, cache, cache], attrs, True, False)


def latent(draw: Draw) -> Case:
    b, q, h, d, n, e = (draw(DIM) for _ in range(6))
    inputs: list[Shape | None] = [(b * q, h, d), (b, q, d), (b, 1, n, d), (b,), ()]
    return Case(inputs, [(b * q, h, min(d, e)), (b, 1, n, d)], {"v_head_size": min(d, e)}, partial=True, written=False)


def attention_gates(draw: Draw) -> Case:
    b, t, h = (draw(DIM) for _ in range(3))
    return Case([(b, t, h), (h,), (h,), (b, t, h)], [(b, t, h), (b, t, h)])


def state_space(draw: Draw) -> Case:
    b, t, groups, share, n, e = (max(draw(DIM), int(k > 1)) for k in range(6))
    h = groups * share
    if draw(st.booleans()):
        states = [(b, h, n)]
        return Case(
            [*[(b, t, h)] * 2, *[(b, t, n)] * 2, (h, n), (h,), (h,), *states], [(b, t, h), *states], written=False
        )

    def steps() -> None:
        for _ in range(b):
            for _ in range(t * h):
                of(n, 1) @ of(1, e)  # what is added to the state
                of(1, n) @ of(n, e)  # what is read of it
            if t > 1:  # tokens among each other, all in one chunk
                of(groups * t, n) @ of(n, t)
                of(h * t, t) @ of(t, e)

    inputs = [(b, t, h * e), (b, t, h), *[(b, t, groups * n)] * 2, (h,), (h,), (h,), (b, h, n, e)]
    return Case(inputs, [(b, t, h * e), (b, h, n, e)], program=steps, written=False)


def sparse_indexer(draw: Draw) -> Case:
    b, q, h, d, n, k = (draw(DIM) for _ in range(6))
    inputs: list[Shape | None] = [(b, q, h * d), (b, q, d), (b, 1, n, d), (b, q, h)]
    return Case(inputs, [(b, q, k), (b, 1, n, d)], {"count": k}, partial=True, written=False)


def cached(draw: Draw) -> Case:
    b, q, h, share, d, n = (draw(DIM) for _ in range(6))
    attrs = {"num_heads": h * share, "kv_num_heads": h, "local_window_size": draw(st.sampled_from((-1, 1, 3)))}
    return Case([(b, q, h * share * d), *[(b, h, n, d)] * 2], [(b, q, h * share * d)], attrs, partial=True)


def gated_bias(draw: Draw) -> Case:
    b, s, heads, d, columns = (draw(DIM) for _ in range(5))
    scores = (1, heads, s, s)
    inputs = [(b, s, heads * d), (heads * d,), scores, (d, columns), (columns,), (1, heads, 1, 1)]
    return Case([*inputs], [(b, *scores[1:])], {"num_heads": heads})


MS, ML, NCHWC = "com.microsoft::", "ai.onnx.ml::", "com.microsoft.nchwc::"


def gradient(draw: Draw) -> Case:
    """The gradient behind an operator and its input or result."""
    shape = dims(draw, 2, 4)
    return Case([shape, shape], [shape])


def masked(draw: Draw) -> Case:
    shape = dims(draw)
    return Case([shape], [shape, shape])


def weight_gradient(draw: Draw) -> Case:
    n, groups, cin, cout = (draw(FEW) for _ in range(4))
    out, taps = (draw(SIDE), draw(SIDE)), (draw(FEW), draw(FEW))
    image = tuple(a + b - 1 for a, b in zip(out, taps, strict=True))
    inputs: list[Shape | None] = [(n, groups * cout, *out), (n, groups * cin, *image)]
    return Case(inputs, [(groups * cout, cin, *taps)], {"group": groups})


def columns_gradient(draw: Draw) -> Case:
    shape = dims(draw, 1, 4)
    return Case([shape, shape], [shape[-1:], shape[-1:]])


def groups_gradient(draw: Draw) -> Case:
    groups, each = draw(FEW), draw(FEW)
    shape = (draw(FEW), groups * each, *dims(draw, 0, 2))
    return Case([shape, shape], [shape], {"num_groups": groups})


def added_in_place(draw: Draw) -> Case:
    shape = tuple(max(d, 1) for d in dims(draw, 1, 4))
    return Case([shape, shape[:1]], [(max(draw(SIDE), 1), *shape)], written=False)


def quotient_gradient(draw: Draw) -> Case:
    shape = dims(draw, 1, 4)
    return Case([shape, shape, shape], [shape, shape])


def loss_gradient(draw: Draw) -> Case:
    rows, classes = draw(SIDE), draw(SIDE)
    return Case([(), (rows, classes), (rows,)], [(rows, classes)])


def accumulated(draw: Draw) -> Case:
    shape = dims(draw, 1, 4)
    return Case([shape, shape], [(1,)], written=False)


def convolution_gradients(draw: Draw) -> Case:
    n, groups, cin, cout = (draw(FEW) for _ in range(4))
    x, grad, w = (n, groups * cin, 5, 5), (n, groups * cout, 4, 4), (groups * cout, cin, 2, 2)
    return Case([grad, x, w], [x, w, (groups * cout,)], {"group": groups})


def exchanged(draw: Draw) -> Case:
    shape = dims(draw, 1, 4)
    return Case([shape], [shape], {"ranks": 2 + draw(FEW)})


def attention_gradient(draw: Draw) -> Case:
    batch, heads, queries, keys, dim = (draw(FEW) for _ in range(5))
    q, k = (batch, heads, queries, dim), (batch, heads, keys, dim)
    return Case([q, q, k, k], [q, k, k])


def over_lists(draw: Draw) -> Case:
    """Its bytes are not those of its operands, but of lists that the attributes tell of: here of none."""
    return Case([], [(1,)], {"elements": 0, "reads": draw(FEW), "writes": 1}, written=False)


def attending(draw: Draw) -> Case:
    steps, batch, wide, hidden, positions, depth = (draw(FEW) for _ in range(6))
    ins = [
        (steps, batch, wide),
        (1, 4 * hidden, wide + depth),
        (1, 4 * hidden, hidden),
        (1, 8 * hidden),
        None,
        None,
        None,
    ]
    ins += [None, (1, hidden, depth), (1, depth, depth), (1, depth), (batch, positions, depth)]
    return Case(ins, [(steps, 1, batch, hidden), (1, batch, hidden), (1, batch, hidden)])


def letters(draw: Draw) -> Case:
    words, length, filters, window, wide = (draw(FEW) for _ in range(5))
    return Case([(words, length), (filters, 1, window, wide), (filters,), (30, wide)], [(words, filters)], partial=True)


CASES: dict[str, Callable[[Draw], Case]] = {
    **dict.fromkeys(GRADIENTS, gradient),
    **dict.fromkeys((f"{MS}{log}SoftmaxGrad{end}" for log in ("", "Log") for end in ("", "_13")), gradient),
    **dict.fromkeys((MS + "LayerNormalizationGrad", MS + "SimplifiedLayerNormalizationGrad"), gradient),
    **dict.fromkeys(
        (MS + "BatchNormalizationGrad", "torch::batch_norm_backward", "torch::batch_norm_training"), gradient
    ),
    MS + "BatchNormInternal": gradient,
    MS + "DivGrad": quotient_gradient,
    MS + "InPlaceAccumulatorV2": accumulated,
    **dict.fromkeys((f"{MS}SoftmaxCrossEntropyLoss{end}Grad" for end in ("", "Internal")), loss_gradient),
    **dict.fromkeys((MS + "ConvGrad", MS + "ConvTransposeGrad"), convolution_gradients),
    "torch::layer_norm_backward": gradient,
    **dict.fromkeys(
        (f"nccl::{what}" for what in ("AllGather", "AllReduce", "AllToAll", "ReduceScatter", "Send")), exchanged
    ),
    "nccl::Permute": gradient,
    "torch::dropout": masked,
    "torch::convolution_weight_gradient": weight_gradient,
    "torch::layer_norm_weight_gradient": columns_gradient,
    "torch::group_norm_backward": groups_gradient,
    **dict.fromkeys(("MaxPoolGrad", "AveragePoolGrad", MS + "MaxPoolGrad", MS + "AveragePoolGrad"), added_in_place),
    **dict.fromkeys(
        (f"{MS}{what}Grad" for what in ("Gather", "GatherElements", "GatherND", "Resize", "Slice")), added_in_place
    ),
    **dict.fromkeys(
        (f"torch::{what}" for what in ("embedding_backward", "scatter_add", "slice_backward", "upsample_backward")),
        added_in_place,
    ),
    "torch::attention_backward": attention_gradient,
    "torch::foreach": over_lists,
    **dict.fromkeys(FLOPS, pointwise),
    **dict.fromkeys(("Sum", "Max", "Min", "Mean", "Clip", "Gelu", "Swish", "SwiGLU", "Dropout"), pointwise),
    **dict.fromkeys((MS + "BiasAdd", MS + "FastGelu", MS + "QuickGelu"), pointwise),
    **dict.fromkeys(("Pow", MS + "BiasDropout"), binary),
    **dict.fromkeys(("torch::triton_poi", "torch::triton_per", "torch::triton_red"), loops),
    "BiasRows": bias_rows,
    "CastLike": only_type,
    **dict.fromkeys(
        ("torch::roll", "Softmax", "MaskedSoftmax", "LogSoftmax", "Hardmax", "LpNormalization"), along_axis
    ),
    MS + "BiasSoftmax": binary,
    **dict.fromkeys(REDUCE, reduced),
    **dict.fromkeys(("CumSum", "CumProd"), scalar_or_last),
    "DequantizeBlocks": unpacked_weights,
    "TopK": top_k,
    **dict.fromkeys(("BatchNormalization", "LRN", MS + "GroupNorm", MS + "SkipGroupNorm"), channels),
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization"), channels),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), norm),
    MS + "SimplifiedLayerNormalization": norm,
    **dict.fromkeys((MS + "SkipLayerNormalization", MS + "SkipSimplifiedLayerNormalization"), skip_norm),
    MS + "EmbedLayerNormalization": embedding,
    "MeanVarianceNormalization": all_axes,
    **dict.fromkeys(("Conv", MS + "FusedConv", NCHWC + "Conv"), convolution),
    "ConvTranspose": transposed,
    **dict.fromkeys(("MatMul", MS + "FusedMatMul"), multiplied),
    "Gemm": gemm,
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool", NCHWC + "MaxPool", NCHWC + "AveragePool"), pool),
    **dict.fromkeys(("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"), global_pool),
    **dict.fromkeys((NCHWC + "GlobalMaxPool", NCHWC + "GlobalAveragePool"), global_pool),
    **dict.fromkeys((NCHWC + "ReorderInput", NCHWC + "ReorderOutput"), reordered),
    **dict.fromkeys(("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "BitCast"), scalar_or_last),
    **dict.fromkeys(("Expand", "Tile", "ConstantOfShape", "Range", "OneHot", "Trilu", "NonZero"), made),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), made),
    **dict.fromkeys(("Shape", "Size", "EyeLike"), shape_only),
    "Transpose": permuted,
    **dict.fromkeys(("Concat", MS + "ConcatTraining"), concat),
    **dict.fromkeys(("Split", MS + "SplitTraining"), split),
    "Slice": sliced,
    **dict.fromkeys(
        ("Pad", "CenterCropPad", "Crop", "DynamicSlice", "Resize", "Upsample", NCHWC + "Upsample"), cropped
    ),
    "Gather": gathered,
    "GatherElements": lambda draw: scattered(draw)._replace(partial=True),
    "GatherND": gathered_nd,
    **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), scattered),
    "TensorScatter": written,
    "Attention": attention,
    MS + "Attention": packed_attention,
    **dict.fromkeys((MS + "MultiHeadAttention", MS + "GroupQueryAttention"), flat_attention),
    "RotaryEmbedding": rotary,
    MS + "RotaryEmbedding": rotary_ort,
    MS + "MRotaryEmbedding": rotary_ort,
    **dict.fromkeys(("tensorrt::Pointwise", MS + "BitmaskDropout"), pointwise),
    MS + "BitmaskBiasDropout": binary,
    MS + "QLinearSoftmax": along_axis,
    **dict.fromkeys(("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"), classified),
    **dict.fromkeys(("DynamicQuantizeLinear", "Unique", MS + "Unique", MS + "DynamicTimeWarping"), scalar_or_last),
    MS + "QOrderedLayerNormalization": spread(norm, 0, 2, 3),
    MS + "GatedRMSNorm": gated,
    MS + "QEmbedLayerNormalization": embedding,
    **dict.fromkeys((MS + "MaxpoolWithMask", MS + "NhwcMaxPool", MS + "QLinearAveragePool"), pool),
    MS + "QLinearGlobalAveragePool": global_pool,
    **dict.fromkeys(("QLinearConv", MS + "QLinearConv"), spread(convolution, 0, 3, 8)),
    "ConvInteger": spread(convolution, 0, 1, 2),
    **dict.fromkeys((MS + "NhwcConv", MS + "NhwcFusedConv", NHWC + "Conv"), in_last(convolution)),
    NHWC + "ConvTranspose": in_last(transposed),
    **dict.fromkeys((NHWC + "GlobalMaxPool", NHWC + "GlobalAveragePool"), in_last(global_pool)),
    **dict.fromkeys((NHWC + "MaxPool", NHWC + "AveragePool"), in_last(pool)),
    **dict.fromkeys((NHWC + "DepthToSpace", NHWC + "SpaceToDepth"), made),
    **dict.fromkeys((NHWC + "BatchNormalization", NHWC + "LRN"), channels),
    MS + "ConvTransposeWithDynamicPads": spread(transposed, 0, 1),
    "DeformConv": deformable,
    **dict.fromkeys(("CausalConvWithState", MS + "CausalConvWithState"), causal_convolution),
    **dict.fromkeys(("MatMulInteger", MS + "MatMulInteger16", MS + "TransposeMatMul"), multiplied),
    **dict.fromkeys((MS + "FusedMatMulActivation", MS + "MatMulIntegerToFloat"), multiplied),
    "QLinearMatMul": spread(multiplied, 0, 3),
    MS + "QOrderedMatMul": spread(multiplied, 0, 2),
    MS + "DynamicQuantizeMatMul": spread(multiplied, 0, 1),
    **dict.fromkeys((MS + "FusedGemm", MS + "GemmFloat8", MS + "GemmFastGelu"), gemm),
    MS + "QGemm": spread(gemm, 0, 3, 6),
    **dict.fromkeys((MS + "MatMulNBits", MS + "MatMulBnb4", MS + "MatMulFpQ4"), packed_product),
    **dict.fromkeys((MS + "MatMulBlockQuantizedFp4Weight", MS + "MatMulBlockQuantizedFp8Weight"), packed_product),
    MS + "CDist": distances,
    **dict.fromkeys(("Det", MS + "Inverse"), squares),
    **dict.fromkeys(("GridSample", MS + "GridSample"), sampled),
    "AffineGrid": affine,
    **dict.fromkeys(("RoiAlign", "MaxRoiPool", MS + "CropAndResize"), regions),
    "NonMaxSuppression": boxes,
    "ImageDecoder": made,
    "DFT": spectrum,
    "STFT": frames,
    **dict.fromkeys((MS + "Rfft", MS + "Irfft"), rffts),
    **dict.fromkeys(("HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix"), from_nothing),
    **dict.fromkeys(("RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike"), shape_only),
    "Bernoulli": scalar_or_last,
    "Multinomial": two_axes,
    **dict.fromkeys((*LOOKUPS, ML + "CastMap", ML + "DictVectorizer"), made),
    **dict.fromkeys(CARRIERS, carried),
    **dict.fromkeys((MS + "ExpandDims", MS + "SampleOp", MS + "RemovePadding", MS + "RestorePadding"), scalar_or_last),
    "SequenceConstruct": made,
    **dict.fromkeys(("SequenceAt", "SequenceInsert"), one_element),
    **dict.fromkeys(("ConcatFromSequence", "SplitToSequence", MS + "Range", MS + "Trilu", MS + "UnfoldTensor"), made),
    **dict.fromkeys(("MaxUnpool", "Col2Im"), made),
    "ReverseSequence": permuted,
    "Compress": kept,
    **dict.fromkeys(("TfIdfVectorizer", MS + "NGramRepeatBlock"), pairs),
    ML + "FeatureVectorizer": concat,
    MS + "Pad": cropped,
    **dict.fromkeys((MS + "TorchEmbedding", MS + "GatherBlockQuantized"), gathered),
    ML + "ArrayFeatureExtractor": lambda draw: scattered(draw)._replace(partial=True),
    MS + "GatherND": gathered_nd,
    "Einsum": einsum,
    **dict.fromkeys((ML + "LinearClassifier", ML + "LinearRegressor"), linear),
    **dict.fromkeys((ML + "SVMClassifier", ML + "SVMRegressor"), linear),
    **dict.fromkeys((ML + "TreeEnsemble", ML + "TreeEnsembleClassifier", ML + "TreeEnsembleRegressor"), forest),
    ML + "Normalizer": along_axis,
    MS + "MoE": spread(experts, 0, 1, 2, 4, 6),
    MS + "QMoE": spread(experts, 0, 1, 2, 5, 8),
    "RNN": recurrent(1),
    "GRU": recurrent(3),
    "LSTM": recurrent(4),
    MS + "AttnLSTM": attending,
    MS + "WordConvEmbedding": letters,
    MS + "DynamicQuantizeLSTM": recurrent(4, transposed=True),
    **dict.fromkeys(("LinearAttention", MS + "LinearAttention"), linear_attention),
    **dict.fromkeys(("tensorrt::Attention", "ai.onnx.preview::FlexAttention"), attention),
    MS + "DecoderMaskedSelfAttention": packed_attention,
    MS + "QAttention": spread(packed_attention, 0, 1, 2, 5, 8),
    MS + "QOrderedAttention": spread(ordered, 0, 5, 6, 7),
    MS + "PackedAttention": unpadded_attention,
    MS + "PackedMultiHeadAttention": unpadded_heads,
    MS + "LongformerAttention": longformer,
    MS + "DecoderMaskedMultiHeadAttention": flat_attention,
    MS + "SparseAttention": sparse,
    MS + "PagedAttention": paged,
    "onnxperf::LatentAttention": latent,
    "onnxperf::StateSpace": state_space,
    "onnxperf::CachedAttention": cached,
    "onnxperf::SparseIndexer": sparse_indexer,
    MS + "LinearAttentionGate": attention_gates,
    MS + "GatedRelativePositionBias": gated_bias,
}
#: What is a row of these is no row of the first input.
OTHER_ROWS = {"DFT", "STFT", "Einsum", "NegativeLogLikelihoodLoss", MS + "Rfft", MS + "Irfft"}

"""Random shapes through every registered rule: no crash, no negative figure, and the bytes of the tensors."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from op_models import Move, Operator, Rows, Tensor, work_of
from op_models.core import _RULES, BITS
from op_models.pointwise import FLOPS
from op_models.reduce import REDUCE

Shape = tuple[int, ...]
Draw = Callable[[st.SearchStrategy[Any]], Any]

DIM = st.integers(0, 5)
SIDE = st.integers(1, 4)


class Case(NamedTuple):
    """Shapes of a valid operator; `partial` where it may read less than all of its inputs."""

    inputs: list[Shape | None]
    outputs: list[Shape]
    attrs: dict[str, Any] = {}  # noqa: RUF012  (never changed)
    partial: bool = False


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


def binary(draw: Draw) -> Case:
    shape = dims(draw)
    return Case([shape, shape[-1:]], [shape])


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


def convolution(draw: Draw) -> Case:
    group, n = draw(SIDE), draw(DIM)
    cin, cout = group * draw(SIDE), group * draw(SIDE)
    space, out, taps = (tuple(draw(st.lists(SIDE, min_size=2, max_size=2))) for _ in range(3))
    bias = (cout,) if draw(st.booleans()) else None
    return Case([(n, cin, *space), (cout, cin // group, *taps), bias], [(n, cout, *out)], {"group": group})


def transposed(draw: Draw) -> Case:
    inputs, outputs, attrs, _ = convolution(draw)
    x, out = inputs[0] or (), outputs[0]
    w = (x[1], out[1] // attrs["group"], *(inputs[1] or ())[2:])
    return Case([x, w], outputs, attrs)


def product(draw: Draw) -> Case:
    stack, m, k, n = dims(draw, 0, 2), draw(DIM), draw(DIM), draw(DIM)
    return Case([(*stack, m, k), draw(st.sampled_from([(k, n), (*stack, k, n)]))], [(*stack, m, n)])


def gemm(draw: Draw) -> Case:
    m, k, n = draw(DIM), draw(DIM), draw(DIM)
    return Case([(m, k), (k, n), (n,) if draw(st.booleans()) else None], [(m, n)], {"beta": 0.5})


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


def permuted(draw: Draw) -> Case:
    shape = dims(draw)
    perm = draw(st.permutations(range(len(shape))))
    return Case([shape], [tuple(shape[a] for a in perm)], {"perm": perm})


def concat(draw: Draw) -> Case:
    shape = dims(draw, 1)
    a = axis(draw, shape)
    parts = [(*shape[: a % len(shape)], draw(DIM), *shape[a % len(shape) + 1 :]) for _ in range(3)]
    whole = (*shape[: a % len(shape)], sum(p[a] for p in parts), *shape[a % len(shape) + 1 :])
    return Case([*parts], [whole], {"axis": a})


def split(draw: Draw) -> Case:
    parts, whole, attrs, _ = concat(draw)
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
    return Case([shape, (*shape[:-2], draw(DIM), shape[-1])], [shape])


def attention(draw: Draw) -> Case:
    b, h, q, k, d, e = (draw(DIM) for _ in range(6))
    attrs = {"is_causal": draw(st.integers(0, 1)), "left_window_size": draw(st.integers(-1, 4))}
    return Case([(b, h, q, d), (b, h, k, d), (b, h, k, e)], [(b, h, q, e)], attrs)


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
    inputs, outputs, attrs, _ = rotary(draw)
    x, table = inputs[0], inputs[1] or ()
    return Case([x, table[:2], (9, table[2]), (9, table[2])], outputs, attrs, partial=True)


MS = "com.microsoft::"
CASES: dict[str, Callable[[Draw], Case]] = {
    **dict.fromkeys(FLOPS, pointwise),
    **dict.fromkeys(("Sum", "Max", "Min", "Mean", "Clip", "Gelu", "Swish", "SwiGLU", "Dropout"), pointwise),
    **dict.fromkeys((MS + "BiasAdd", MS + "FastGelu", MS + "QuickGelu"), pointwise),
    **dict.fromkeys(("Pow", MS + "BiasDropout"), binary),
    "CastLike": only_type,
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax", "LpNormalization"), along_axis),
    MS + "BiasSoftmax": binary,
    **dict.fromkeys(REDUCE, reduced),
    **dict.fromkeys(("CumSum", "CumProd"), scalar_or_last),
    "TopK": top_k,
    **dict.fromkeys(("BatchNormalization", "LRN", MS + "GroupNorm", MS + "SkipGroupNorm"), channels),
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization"), channels),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), norm),
    MS + "SimplifiedLayerNormalization": norm,
    **dict.fromkeys((MS + "SkipLayerNormalization", MS + "SkipSimplifiedLayerNormalization"), skip_norm),
    MS + "EmbedLayerNormalization": embedding,
    "MeanVarianceNormalization": all_axes,
    **dict.fromkeys(("Conv", MS + "FusedConv"), convolution),
    "ConvTranspose": transposed,
    **dict.fromkeys(("MatMul", MS + "FusedMatMul"), product),
    "Gemm": gemm,
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), pool),
    **dict.fromkeys(("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"), global_pool),
    **dict.fromkeys(("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "BitCast"), scalar_or_last),
    **dict.fromkeys(("Expand", "Tile", "ConstantOfShape", "Range", "OneHot", "Trilu", "NonZero"), made),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), made),
    **dict.fromkeys(("Shape", "Size", "EyeLike"), shape_only),
    "Transpose": permuted,
    "Concat": concat,
    "Split": split,
    "Slice": sliced,
    **dict.fromkeys(("Pad", "CenterCropPad", "Resize", "Upsample"), cropped),
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
}


def test_every_rule_is_tried() -> None:
    assert set(CASES) == set(_RULES)


@st.composite
def operators(draw: Draw) -> tuple[Operator, bool]:
    type = draw(st.sampled_from(sorted(CASES)))
    case = CASES[type](draw)
    dtype = draw(st.sampled_from([t for t in sorted(BITS) if BITS[t]]))
    kind = draw(st.sampled_from(["activation", "weight", "constant", "input"]))
    ins = tuple(None if s is None else Tensor(f"i{n}", dtype, s, kind) for n, s in enumerate(case.inputs))
    outs = tuple(Tensor(f"o{n}", dtype, s) for n, s in enumerate(case.outputs))
    return Operator("n", type, ins, outs, case.attrs, draw(st.sampled_from([0, 7, 12, 13, 28]))), case.partial


@settings(deadline=None)
@given(operators())
def test_any_operator_has_a_sane_work(drawn: tuple[Operator, bool]) -> None:
    op, partial = drawn
    found = work_of(op)
    assert hash(found) == hash(work_of(op)) and found == work_of(op)
    figures = [
        found.matrix_flops,
        found.vector_flops,
        found.bytes_read,
        found.bytes_written,
        found.weight_bytes,
    ]
    assert all(type(f) is int and f >= 0 for f in figures), figures
    assert all(f >= 0 for f in found.size if not isinstance(f, str)), found.size
    whole = sum(t.bytes for t in op.present)
    assert found.bytes_read <= whole if partial else found.bytes_read == whole
    assert found.bytes_written == sum(t.bytes for t in op.outputs)
    assert found.weight_bytes == (found.bytes_read if op.present and op.present[0].stored else 0)
    if isinstance(found.size, Move):
        assert found.size.run >= 1
    if isinstance(found.size, Rows):
        x = op.out if op.type.endswith("EmbedLayerNormalization") else op.present[0]
        assert found.size.rows * found.size.width == prod(x.shape)


@pytest.mark.parametrize("name", sorted(_RULES))
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_rule_survives(name: str, data: st.DataObject) -> None:
    case = CASES[name](data.draw)
    ins = tuple(None if s is None else Tensor(f"i{n}", "float32", s) for n, s in enumerate(case.inputs))
    outs = tuple(Tensor(f"o{n}", "float32", s) for n, s in enumerate(case.outputs))
    found = work_of(Operator("n", name, ins, outs, case.attrs, 13))
    assert min(found.matrix_flops, found.vector_flops) >= 0

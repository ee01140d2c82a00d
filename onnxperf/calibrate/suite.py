"""The suite that calibration measures: small models without weights.

On a processor each holds many operators of a kind side by side, on a GPU a few of a kind one after the other.

Shapes stand on grids, small to large, around what layers of common models have; no whole model is among them, nor is
any model's list of layers. A processor's operators are told apart by ONNX Runtime's profile; a GPU is timed by the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from gpu_specs import Device
from onnxperf.calibrate.integers import integer_convolutions, integer_products
from onnxperf.graph.microbenchmarks import SingleOperator, chain_model, separate_model

Shape = tuple[int, ...]

MB = 10**6
LONGEST = 200  # tiny kernels in a row
ROOM = 0.25  # of the card's memory that a case may take


@dataclass(frozen=True, slots=True)
class Case:
    """One model to measure, in every round for about `seconds`.

    copies: those of inputs and outputs are timed as well; one_by_one: on a processor each operator is timed, not the
    whole run.
    """

    name: str
    model: bytes
    seconds: float
    precision: str = "keep"
    copies: bool = False
    one_by_one: bool = True


def cpu_suite() -> tuple[Case, ...]:
    """Families of operators, each a model of its own: in FP32, and products and convolutions in 8 bits."""
    families = {
        "products": [*_products()],
        "batched products": [*_batched()],
        "convolutions": [*(_conv(*c) for c in _dense()), *(_gemm(1, 1000, k) for k in (1280, 2048))],
        "depthwise": [_conv(*c) for c in _grouped()],
        "elementwise": [*_elementwise()],
        "rows": [*_rows()],
        "moves": [*_moves()],
        "recurrent": [*_recurrent()],
        "8-bit products": [*integer_products()],
        "8-bit convolutions": [*integer_convolutions()],
    }  # fmt: skip
    tiny = (replace(c, one_by_one=False) for c in _tiny())
    return (*tiny, *(Case(name, separate_model(name, operators), 1.0) for name, operators in families.items()))


def _named(type: str, *shapes: tuple[int, ...], name: str = "", **rest: Any) -> SingleOperator:
    """An operator called after its type and the shapes of its inputs."""
    sizes = " ".join("x".join(map(str, s)) for s in shapes)
    return SingleOperator(" ".join(filter(None, (type.rpartition("::")[2], sizes, name))), type, shapes, **rest)


def _gemm(m: int, n: int, k: int) -> SingleOperator:
    return _named("Gemm", (m, k), name=f"to {n}", weights=((k, n), (n,)))


def _products() -> Iterator[SingleOperator]:
    """Few rows, whose weights take the time, stand among many: by themselves they find more of them in a cache.

    All weights together have 600 MB, more than caches that cores share.
    """
    for m, (n, k) in product((1, 2, 4, 8), ((4096, 4096), (8192, 1024), (1024, 8192))):
        yield _gemm(m, n, k)
    for m, (n, k) in product((1, 4), ((1024, 1024), (1000, 2048), (3072, 768), (512, 512))):
        yield _gemm(m, n, k)
    for m, (n, k) in product((16, 64, 128, 384), ((256, 256), (768, 768), (1024, 256))):
        yield _gemm(m, n, k)
    for m, n, k in ((128, 3072, 768), (128, 768, 3072), (1000, 64, 64), (256, 1024, 4096)):
        yield _gemm(m, n, k)
    for m, n, k in ((1, 768, 768), (128, 768, 768), (64, 1536, 384), (256, 512, 512)):
        yield _named("MatMul", (1, m, k), name=f"to {n}", weights=((k, n),))


def _batched() -> Iterator[SingleOperator]:
    """Both products of attention: heads, queries, keys, depth of a head."""
    for heads, queries, keys, depth in (
        (4, 32, 32, 64), (8, 64, 64, 32), (12, 128, 128, 64), (12, 1, 128, 64), (16, 256, 256, 64), (48, 49, 49, 32),
    ):  # fmt: skip
        yield _named("MatMul", (1, heads, queries, depth), (1, heads, depth, keys))
        yield _named("MatMul", (1, heads, queries, keys), (1, heads, keys, depth))
        yield _named(
            "com.microsoft::FusedMatMul", (1, heads, queries, depth), (1, heads, keys, depth),
            attrs={"transB": 1, "alpha": 0.125},
        )  # fmt: skip
    yield _named("MatMul", (1, 512, 512), (1, 512, 512))
    yield _named("Einsum", (1, 64, 8, 32), (1, 64, 8, 32), attrs={"equation": "bqhd,bkhd->bhqk"})


def _conv(c: int, side: int, k: int, stride: int = 1, groups: int = 1, cin: int = 0) -> SingleOperator:
    attrs = {"strides": [stride] * 2, "pads": [k // 2] * 4, "group": groups}
    weights = ((c, (cin or c) // groups, k, k), (c,))
    name = f"to {c} by {k} stride {stride}" + (f" in {groups}" if groups > 1 else "")
    return _named("Conv", (1, cin or c, side, side), name=name, weights=weights, attrs=attrs)


def _dense() -> Iterator[tuple[int, ...]]:
    """Channels out, side, kernel, stride, groups, channels in."""
    yield from ((c, s, 3) for c, s in ((32, 112), (64, 56), (128, 28), (256, 14), (512, 7)))
    yield from ((c, s, 3, 2, 1, c // 2) for c, s in ((64, 112), (128, 56), (256, 28), (512, 14)))
    for (c, s), wider in product(((24, 56), (64, 56), (64, 28), (128, 28), (96, 14), (256, 14), (320, 7)), (4, 6)):
        yield (c * wider, s, 1, 1, 1, c)
        yield (c, s, 1, 1, 1, c * wider)
    yield from ((c, 224, k, t, 1, 3) for c, k, t in ((16, 3, 2), (32, 3, 2), (64, 7, 2), (32, 3, 1)))
    yield from ((c, s, 5, 1, 1, c // 2) for c, s in ((64, 28), (128, 14)))
    yield (512, 28, 1, 2, 1, 256)
    yield from ((c, s, k) for (c, s), k in product(((18, 56), (30, 28), (50, 28), (90, 14)), (1, 3)))  # no whole blocks


def _grouped() -> Iterator[tuple[int, ...]]:
    """As `_dense`."""
    for (c, s), (k, t) in product(((32, 112), (96, 56), (240, 28), (480, 14), (960, 7)), ((3, 1), (3, 2), (5, 1))):
        yield (c, s, k, t, c)
    yield from ((c, s, 7, 1, c) for c, s in ((96, 56), (384, 14)))
    yield from ((c, 28, 3, 1, groups) for c, groups in ((128, 4), (256, 32)))
    for (c, s), (k, t) in product(((18, 56), (30, 28), (50, 28), (90, 14)), ((3, 1), (5, 2))):  # no whole blocks
        yield (c, s, k, t, c)
    yield (18, 56, 7, 1, 18)


def _elementwise() -> Iterator[SingleOperator]:
    shape: Shape
    tokens, hidden, maps, scores = (1, 128, 768), (1, 128, 3072), (1, 128, 28, 28), (1, 12, 128, 128)
    for shape in (hidden, maps):
        for type in (
            "Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Sqrt", "Abs", "HardSigmoid", "LeakyRelu", "Softplus", "Log",
            "Reciprocal", "Elu", "Sin", "Cos", "Floor", "Clip", "Not",
        ):  # fmt: skip
            yield _named(type, shape, **({"dtype": "bool"} if type == "Not" else {}))
    for type, shape in product(("Add", "Mul", "Sub", "Div", "Max"), (tokens, maps, (1, 64, 112, 112))):
        yield _named(type, shape, shape)
    for type, second in (("Add", (3072,)), ("Mul", (1,)), ("Div", (1,)), ("Pow", (1,)), ("Mul", (3072,))):
        yield _named(type, hidden, second)
    for shape in (tokens, (1, 64, 768)):
        yield _named("Pow", shape, shape)
    yield _named("Add", scores, (1, 1, 128, 128))
    for type in ("Add", "Mul"):
        yield _named(type, (1, 128, 28, 28), (1, 128, 1, 1))
        yield _named(type, (1, 256, 56, 56), (1, 256, 1, 1))
    for shape, alpha in product((hidden, maps, (1, 96, 56, 56)), (1.0, 1.702)):
        yield _named("com.microsoft::QuickGelu", shape, name=f"by {alpha}", attrs={"alpha": alpha})
    for shape in (tokens, hidden):
        yield _named("Gelu", shape)
        yield _named("com.microsoft::FastGelu", shape, weights=(shape[-1:],))
        yield _named("com.microsoft::BiasGelu", shape, weights=(shape[-1:],))
    for shape in (scores, (1, 1, 128, 128)):
        yield _named("Where", shape, shape, shape, types=("bool", "float32", "float32"))
        yield _named("Cast", shape, types=("int64",), attrs={"to": 1})
        yield _named("And", shape, shape, dtype="bool")
    for type in ("Equal", "LessOrEqual"):
        yield _named(type, scores, scores, types=("int64", "int64"), gives="bool")


def _rows() -> Iterator[SingleOperator]:
    shape: Shape
    for rows, width in ((1, 768), (49, 768), (128, 384), (128, 768), (512, 1024), (3136, 96)):
        yield _named("LayerNormalization", (rows, width), weights=((width,),) * 2, attrs={"axis": -1})
    for rows, width in ((128, 384), (128, 768), (512, 1024)):
        skip = (1, rows, width)
        yield _named("com.microsoft::SkipLayerNormalization", skip, skip, weights=((width,),) * 2)
        yield _named("SimplifiedLayerNormalization", skip, weights=((width,),), attrs={"axis": -1})
    for shape in ((1, 4, 64, 64), (1, 12, 128, 128), (1, 12, 384, 384), (64, 3, 49, 49), (1, 1000), (128, 30000)):
        yield _named("Softmax", shape, attrs={"axis": -1})
    for type, (shape, axes) in product(
        ("ReduceMean", "ReduceSum", "ReduceMax"),
        (((1, 128, 768), (2,)), ((1, 512, 1024), (2,)), ((1, 128, 768), (1,)), ((1, 1280, 7, 7), (2, 3))),
    ):
        yield _named(type, shape, name=f"over {axes}", constants=(axes,), attrs={"keepdims": 1})
    for shape in ((1, 1280, 7, 7), (1, 256, 28, 28), (1, 96, 112, 112)):
        yield _named("GlobalAveragePool", shape)
        yield _named("BatchNormalization", shape, weights=((shape[1],),) * 4)
    pools: tuple[tuple[Shape, int, int], ...] = (
        ((1, 64, 112, 112), 3, 2), ((1, 128, 28, 28), 2, 2), ((1, 192, 35, 35), 3, 1), ((1, 50, 28, 28), 3, 1),
    )  # fmt: skip
    for type, (shape, k, t) in (*product(("MaxPool",), pools), *product(("AveragePool",), pools[:3])):
        attrs = {"kernel_shape": [k] * 2, "strides": [t] * 2, "pads": [(k - 1) // 2] * 4}
        yield _named(type, shape, name=f"by {k}", attrs=attrs)
    yield _named("CumSum", (1, 512), types=("int64",), gives="int64", constants=((1,),))


def _moves() -> Iterator[SingleOperator]:
    shape: Shape
    for shape, perm in (
        ((1, 128, 12, 64), (0, 2, 1, 3)), ((1, 12, 128, 64), (0, 2, 1, 3)), ((1, 128, 12, 64), (0, 2, 3, 1)),
        ((1, 512, 16, 64), (0, 2, 1, 3)), ((1, 224, 224, 3), (0, 3, 1, 2)), ((1, 56, 56, 96), (0, 3, 1, 2)),
        ((1, 96, 56, 56), (0, 2, 3, 1)), ((1, 14, 14, 384), (0, 3, 1, 2)), ((1, 8, 7, 8, 7, 96), (0, 1, 3, 2, 4, 5)),
        ((768, 768), (1, 0)),
    ):  # fmt: skip
        yield _named("Transpose", shape, name=f"to {perm}", attrs={"perm": perm})
    for first, second, axis in (
        ((1, 128, 28, 28), (1, 32, 28, 28), 1), ((1, 512, 14, 14), (1, 32, 14, 14), 1), ((1, 1, 768), (1, 196, 768), 1),
        ((1, 12, 128, 64), (1, 12, 1, 64), 2), ((1, 128, 32), (1, 128, 32), 2),
    ):  # fmt: skip
        yield _named("Concat", first, second, attrs={"axis": axis})
    for shape, axis in (((1, 128, 2304), 2), ((1, 384, 768), 1)):
        yield _named("Split", shape, attrs={"axis": axis, "num_outputs": 3}, outputs=3)
    for shape, end, axis in (((1, 128, 3072), 1536, 2), ((1, 12, 512, 64), 256, 2), ((1, 64, 56, 56), 32, 1)):
        yield _named("Slice", shape, constants=((0,), (end,), (axis,)))
    for rows, width in ((30000, 768), (1000, 256)):
        yield _named("Gather", (1, 128), name=f"of {width}", tables=((rows, width),), types=("int64",), changed_rank=3)
    yield _named("Gather", (1, 197, 768), name="the first", constants=((0,),), attrs={"axis": 1})
    yield _named("GatherElements", (128, 128), (128, 128), types=("float32", "int64"))
    for shape in ((1, 64, 112, 112), (1, 240, 28, 28)):
        yield _named("Pad", shape, constants=((0, 0, 1, 1, 0, 0, 1, 1),))
    for shape, to in (((1, 1, 1, 128), (1, 12, 128, 128)), ((1, 8, 1, 64), (1, 8, 128, 64))):
        yield _named("Expand", shape, constants=(to,))
    yield _named("Tile", (1, 1, 768), constants=((1, 128, 1),))
    for c, side in ((64, 28), (128, 14)):
        sizes = (1, c, 2 * side, 2 * side)
        for mode in ("nearest", "linear"):
            yield _named("Resize", (1, c, side, side), name=mode, constants=(None, None, sizes), attrs={"mode": mode})
        yield _named("ConvTranspose", (1, c, side, side), weights=((c, c // 2, 2, 2),), attrs={"strides": [2, 2]})
    yield _named("DepthToSpace", (1, 256, 28, 28), attrs={"blocksize": 2})


def _recurrent() -> Iterator[SingleOperator]:
    for (type, gates), (steps, width) in product((("LSTM", 4), ("GRU", 3)), ((16, 128), (64, 256))):
        rows = gates * width
        weights = ((1, rows, width), (1, rows, width), (1, 2 * rows))
        yield _named(type, (steps, 1, width), weights=weights, attrs={"hidden_size": width}, changed_rank=4)


def gpu_suite(device: Device) -> tuple[Case, ...]:
    """Copies, products cold and sustained, convolutions, attention, rows, launches and transfers, for a card's sizes.

    Cases that take more than ROOM of its memory, and types that it has no units for, are left out.
    """
    room, cases = ROOM * device.capacity_bytes, list[Case]()
    elements = {
        "L2": device.l2_bytes // 16,
        "twice L2": device.l2_bytes // 2,
        "DRAM": max(2 * device.l2_bytes, 128 * MB),
    }
    for where, n in elements.items():
        if 8 * n < room:
            cases.append(_row(f"copies in {where}", [_named("Neg", (n // 1024, 1024))] * 4, copies=where == "DRAM"))
    tensor = device.capability[0] >= 8
    for side in (1024, 4096, 8192):
        for dtype in ("float32", "float16"):
            for precision in ("tf32", "fp32") if dtype == "float32" and tensor else ("keep",):
                layers = max(2, min(8, 8192 // side * 2))
                product = _named("MatMul", (side, side), weights=((side, side),), dtype=dtype)
                name = f"products of {side} in {dtype if precision == 'keep' else precision}"
                if side * side * 4 * (layers + 3) < room:
                    cases.append(_row(name, [product] * layers, precision))
                    if side == 8192 and precision != "tf32":
                        cases.append(_row(f"{name}, sustained", [product] * layers, precision, seconds=5.0))
    for dtype in ("float32", "float16"):
        for k, groups in ((3, 1), (1, 1), (3, 256)):
            attrs = {"pads": [k // 2] * 4, "group": groups}
            conv = _named("Conv", (8, 256, 56, 56), weights=((256, 256 // groups, k, k),), attrs=attrs, dtype=dtype)
            cases.append(_row(f"convolutions by {k} in {groups}, {dtype}", [conv] * 4))
        heads = ((1, 16, 512, 64), (1, 16, 64, 512))
        attention = [
            _named("MatMul", heads[0], weights=heads[1:], dtype=dtype),
            _named("Softmax", (1, 16, 512, 512), attrs={"axis": -1}, dtype=dtype),
            _named("MatMul", (1, 16, 512, 512), weights=heads[:1], dtype=dtype),
        ]
        cases.append(_row(f"attention in {dtype}", attention * 4))
    for width in (768, 4096):
        softmax = _named("Softmax", (4096, width), attrs={"axis": -1})
        norm = _named("LayerNormalization", (4096, width), weights=((width,),) * 2, attrs={"axis": -1})
        cases += [_row(f"softmax of {width}", [softmax] * 4), _row(f"normalisation of {width}", [norm] * 4)]
    return (*cases, *_tiny())


def _tiny() -> Iterator[Case]:
    """What a run and an operator cost by themselves."""
    for count in (1, LONGEST):
        yield _row(f"tiny kernels, {count}", [_named("Neg", (1, 256))] * count)


def _row(
    name: str, operators: Sequence[SingleOperator], precision: str = "keep", copies: bool = False, seconds: float = 0.5
) -> Case:
    numbered = [replace(o, name=f"{o.name} {i}") for i, o in enumerate(operators)]
    return Case(name, chain_model(name, numbered), seconds, precision, copies)

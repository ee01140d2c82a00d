"""Products with weights of few bits in ONNX Runtime's CUDA provider: the kernels of MatMulNBits and MatMulBnb4.

The provider tries three ways in this order (contrib_ops/cuda/quantization/matmul_nbits.cc, matmul_{2,4,8}bits.cu,
matmul_bnb4.cu). Weights that the file has prepacked (`weight_prepacked`, from 1.28 on) are multiplied by CUTLASS, for
any number of rows. Else a kernel that reads them packed serves up to ROWS rows of sizes and blocks that it knows. Else
a kernel writes the whole matrix in the type of the product, and cuBLAS reads that; from 1.28 on in slices of columns
where the matrix has more than 256 MB (github.com/microsoft/onnxruntime/pull/28712). A bias has a kernel of its own.
CUTLASS for weights that are not prepacked, which ORT_FPA_INTB_GEMM asks for, is off by default and not modelled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from onnxperf.fusions.ort_packed import BNB4, PACKED
from onnxperf.graph import Graph, Note
from onnxperf.ground.errors import counted
from onnxperf.ground.releases import Release, release
from onnxperf.passes.tape import HELD, WITHIN
from op_models import BITS, Operator, Tensor

#: Up to how many rows, by the bits of a weight, a kernel reads packed weights, by the release that brought it: 8 bits
#: by github.com/microsoft/onnxruntime/pull/24509, several rows by 29451, which 1.27 was before, 2 bits by 32693.
ROWS: Mapping[str, Mapping[int, int]] = {
    "1.4": {4: 1}, "1.22": {4: 1, 8: 1}, "1.28": {4: 16, 8: 5}, "1.30": {2: 8, 4: 16, 8: 5},
}  # fmt: skip
SLICES = "1.28"  # the release that multiplies a large matrix in slices
SLICED_BYTES, SLICE = 256 << 20, 32768  # a matrix of more bytes, and of more than two slices of columns, is cut
#: Rows, N and K of gpt-oss's router, whose kernel adds the bias, and the release that brought that
#: (github.com/microsoft/onnxruntime/pull/29170).
ROUTER, ROUTER_SINCE = (1, 32, 2880), "1.28"
CUTLASS = "1.28"  # the first whose packages were built with those kernels (github.com/microsoft/onnxruntime/pull/29622)
ATTRIBUTES = (("N", 0), ("K", 0), ("bits", 4), ("block_size", 32))  # positive numbers, with what stands for one unsaid


def _bits(o: Operator) -> int:
    return int(o.attrs.get("bits", 4))


def _most(o: Operator, at: Release) -> int:
    """Up to how many rows a kernel of a release reads the packed weights of a product, 0 where there is no kernel."""
    rows = next(rows for since, rows in reversed([*ROWS.items()]) if release(since) <= at)
    return 1 if o.type == BNB4 else rows.get(_bits(o), 0)


def _sizes(o: Operator) -> tuple[int, int, int] | None:
    """Rows, columns and the size summed over; None in a file that no runtime takes."""
    n, k, *others = (o.attrs.get(name, usual) for name, usual in ATTRIBUTES)
    if len(o.present) < 2 or not all(isinstance(x, int) and x > 0 for x in (n, k, *others)):
        return None
    return o.present[0].size // k, n, k


def _obstacle(o: Operator, rows: int, n: int, k: int, most: int) -> str:
    """Why no kernel reads a product's weights packed; "" where one does. most: rows of that kernel, 0 for no kernel."""
    block, bits = o.attrs.get("block_size", 32), _bits(o)
    zero, order = (*o.inputs[3:5], None, None)[:2]
    if o.type == BNB4:
        sizes_fit, block_fits = not k % block, block % 32 == 0 and block <= 4096
    else:
        sizes_fit = not n % 8 and not k % 8 and (bits == 4 or not k % block)
        block_fits = block in (16, 32, 64, 128) or (block == 256 and bits != 4)
    obstacles = {
        f"weights of {bits} bits": not most,
        f"more than {counted(most, 'row')}": rows > most,
        f"{n} columns of {k} weights": not sizes_fit,
        f"blocks of {block}": not block_fits,
        "an order of the weights": order is not None and o.type == PACKED,
        "zero points that are not packed": zero is not None and zero.dtype == o.present[0].dtype,
    }
    return next((what for what, holds in obstacles.items() if holds), "")


def _way(o: Operator, at: Release) -> tuple[int, str] | None:
    """The rows of a product on packed weights, and why its weights are written out, "" where they are read packed.
    None of other operators.
    """
    sizes = _sizes(o) if o.type in (PACKED, BNB4) and o.place == "gpu" else None
    if sizes is None:
        return None
    return sizes[0], "" if o.attrs.get("weight_prepacked") else _obstacle(o, *sizes, _most(o, at))


def separate(graph: Graph, at: Release) -> Graph:
    """The placed graph with the kernels of such products in a release, and with notes on the way that they take."""
    operators = tuple(k for o in graph.operators for k in _kernels(o, at))
    return replace(graph, operators=operators, notes=(*graph.notes, *_notes(graph, at)))


def _kernels(o: Operator, at: Release) -> Iterator[Operator]:
    way, sizes = _way(o, at), _sizes(o)
    if way is None or sizes is None:
        yield o
        return
    bias = o.inputs[5] if o.type == PACKED and len(o.inputs) > 5 else None
    router = sizes == ROUTER and _bits(o) == 4 and at >= release(ROUTER_SINCE)
    if bias is None or (not way[1] and (router or o.attrs.get("weight_prepacked"))):
        yield from _product(o, *sizes, at) if way[1] else (o,)
        return
    product = replace(o.out, name=f"{o.name}#product")
    plain = replace(o, inputs=o.inputs[:5], outputs=(product,))
    yield from _product(plain, *sizes, at) if way[1] else (plain,)
    yield _within(o, "Add", (product, bias), o.outputs)


def _product(o: Operator, rows: int, n: int, k: int, at: Release) -> Iterator[Operator]:
    """The weights in the type of the product, and the product that reads them, for each slice of columns; slices of the
    result are views of the whole.
    """
    x, weights = o.present[0], tuple(t for t in (o.present[1], *o.inputs[2:5]) if t is not None)
    cut = at >= release(SLICES) and n * k * BITS[x.dtype] // 8 > SLICED_BYTES and n > 2 * SLICE
    slices = ((SLICE, n // SLICE), (n % SLICE, 1)) if cut and o.type == PACKED else ((n, 1),)
    for i, (columns, times) in enumerate(s for s in slices if s[0]):
        whole = Tensor(f"{o.name}#weights{i or ''}", x.dtype, (columns, k))
        part = replace(o.out, name=f"{o.name}#slice{i}", shape=(*o.out.shape[:-1], columns)) if cut else o.out
        each = replace(o, repeat=o.repeat * times)
        first = replace(each, name=whole.name, type="DequantizeBlocks", inputs=weights, outputs=(whole,))
        yield first if not i else replace(first, attrs={**o.attrs, WITHIN: 1})
        yield _within(each, "com.microsoft::FusedMatMul", (x, whole), (part,), {"transB": 1})
    if cut:
        yield replace(_within(o, "Identity", (part,), o.outputs, {HELD: (whole.name,)}), place="free")


def _within(
    o: Operator, type: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...],
    attrs: Mapping[str, Any] | None = None,
) -> Operator:  # fmt: skip
    """Another kernel of the same node."""
    attrs = {**(attrs or {}), WITHIN: 1}
    return replace(o, name=outputs[0].name, type=type, inputs=inputs, outputs=outputs, attrs=attrs, version=0)


def _notes(graph: Graph, at: Release) -> Iterator[Note]:
    """Which way products with packed weights take in a placed graph, and what would take another."""
    groups: dict[tuple[int, int, str], list[Operator]] = {}
    for o in graph.operators:
        if (way := _way(o, at)) is not None:
            groups.setdefault((_bits(o), *way), []).append(o)
    for (bits, rows, why), products in groups.items():
        nodes = tuple(dict.fromkeys(n for o in products for n in o.nodes))
        where = f"in {counted(sum(o.repeat for o in products), 'product')} of {counted(rows, 'row')}"
        if why:
            dtype, other = products[0].present[0].dtype, _other_way(products[0], rows, at)
            says = f"weights of {bits} bits are written out as {dtype} {where} before cuBLAS reads them: no kernel of"
            yield Note("weights-written-out", f"{says} release {at} reads them packed ({why}){other}", nodes)
        else:
            says = f"weights of {bits} bits are read packed {where}, assumed as fast as by TensorRT-LLM's kernels"
            most = counted(_most(products[0], at), "row")
            more = f"; with more than {most} they are first written out, and a product can take several times as long"
            prepacked = products[0].attrs.get("weight_prepacked")
            yield Note("packed-weights", says if prepacked else says + more, nodes)


def _other_way(o: Operator, rows: int, at: Release) -> str:
    """What would read a product's weights packed, for the end of a note."""
    sizes, bits, ways = _sizes(o), _bits(o), list[str]()
    if o.type != PACKED or sizes is None or _obstacle(o, 1, *sizes[1:], most=1):
        return ""
    if later := next((r for r, most in ROWS.items() if release(r) > at and most.get(bits, 0) >= rows), ""):
        ways.append(f"--ort-version {later}")
    if most := _most(o, at):
        ways.append(f"at most {counted(most, 'row')}")
    if at >= release(CUTLASS) and bits > 2:
        ways.append("ORT_FPA_INTB_GEMM=1, which is not modelled, for the sizes that it takes,")
    return f"; {' or '.join(ways)} would" if ways else ""

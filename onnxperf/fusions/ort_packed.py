"""Products with stored weights of few bits in ONNX Runtime, com.microsoft::MatMulNBits, for every provider.

Level `extended` makes one of the DequantizeLinear of such weights and of the product that reads it, where the other
operand is not quantised, nor the result (qdq_selector_action_transformer.cc), and adds the bias behind it in the same
kernel (matmul_nbits_fusion.cc). Scales become those of blocks, whatever they were of. As graphs of releases 1.19 to
1.31 show.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

from onnxperf.fusions.engine import Fused, Pass, Rewriter, fused
from onnxperf.fusions.ort_qdq import DEQUANTIZE, QUANTIZE
from onnxperf.fusions.pattern import Match, X, Y, call, pattern
from onnxperf.graph import Graph
from op_models import Operator, Tensor
from op_models.core import BITS

PACKED, BNB4 = "com.microsoft::MatMulNBits", "com.microsoft::MatMulBnb4"
OF_FEW_BITS = frozenset({"int2", "uint2", "int4", "uint4", "int8", "uint8"})
WHOLE = 32  # weights of a block where one scale is that of a column or of all: session.qdq_matmulnbits_block_size
BLOCKS = (16, 32, 64, 128, 256)
SHARED = 8  # elements of floating-point constants, at most, of which equal ones become one (constant_sharing.cc)


def _content(t: Tensor) -> object:
    """What is the same for stored tensors that ONNX Runtime holds once."""
    small = t.stored and t.value is not None and t.size <= SHARED and t.dtype.startswith("float")
    return (t.dtype, t.shape, t.value) if small else t.name


def _block(dq: Operator) -> int | None:
    """Weights of a block that has one scale in the product; None where the scales are not of columns or their blocks.
    An axis counted from the end is not known to ONNX Runtime.
    """
    w, scale = dq.present[:2]
    axis, block = dq.attrs.get("axis", 1), dq.attrs.get("block_size", 0)
    if block:
        return block if axis == 0 and block in BLOCKS and scale.rank == 2 else None
    return WHOLE if not scale.rank or (axis == 1 and scale.shape == w.shape[1:]) else None


def _plain(o: Operator, columns: int) -> bool:
    """Whether a product is x W, or x W + b with one number of b for each column."""
    if o.type == "MatMul":
        return True
    a, bias = o.attrs, o.inputs[2] if len(o.inputs) > 2 else None
    added = bias is None or (bias.shape == (columns,) and a.get("beta", 1.0) == 1)
    return added and a.get("alpha", 1.0) == 1 and not a.get("transA", 0) and not a.get("transB", 0)


def _weights(g: Rewriter, o: Operator, readers: Counter[object] | None) -> Operator | None:
    """The DequantizeLinear of a product's weights, if it is the only one around the product; readers: how many read
    each tensor, None where that does not matter.
    """
    dqs = [dq for t in o.present if (dq := g.made_by(t, *DEQUANTIZE))]
    if len(dqs) != 1 or any(u.type in QUANTIZE for u in g.users(o.out)):
        return None
    (dq,) = dqs
    w, scale = dq.present[:2]
    fits = w.rank == 2 and w.dtype in OF_FEW_BITS and all(t.stored for t in dq.present) and _plain(o, w.shape[1])
    if not fits or g.made_by(o.inputs[1]) is not dq or g.only_user(dq.out) is not o or dq.repeat != o.repeat:
        return None
    same_dtype = scale.dtype == o.out.dtype in ("float32", "float16")
    alone = readers is None or all(readers[_content(t)] == 1 for t in (w, scale))
    return dq if same_dtype and alone else None


def _product(o: Operator, dq: Operator, block: int) -> Fused:
    """The product that reads packed weights. Unsigned ones always have zero points: without, it takes the middle."""
    w, scale, *zero = dq.present
    (k, n), bits = w.shape, BITS[w.dtype]
    blocks = -(-k // block)
    packed = replace(w, name=f"{w.name}#packed", dtype="uint8", shape=(n, blocks, block * bits // 8), value=None)
    scales = replace(scale, name=f"{scale.name}#blocks", shape=(n * blocks,), value=None)
    zeros = replace(packed, name=f"{w.name}#zero", shape=(n * -(-blocks * bits // 8),))
    inputs = (o.inputs[0], packed, scales, zeros if zero or w.dtype.startswith("u") else None)
    bias = (None, o.inputs[2]) if len(o.inputs) > 2 and o.inputs[2] is not None else ()
    return fused(PACKED, o, (dq, o), (*inputs, *bias), {"K": k, "N": n, "bits": bits, "block_size": block})


def _of_packed(graph: Graph, blocks: bool = False, shared: bool = False) -> Graph:
    """With products of packed weights. Weights and scales that others read too, or scales equal to others', stay unless
    `shared`; blocks: only the MatMul of weights of 4 bits that have scales by block.
    """
    if not any(o.type in DEQUANTIZE for o in graph.operators):
        return graph
    g, changed = Rewriter(graph), False
    readers: Counter[object] = Counter(c for o in graph.operators for c in {_content(t) for t in o.present})
    for o in g.of_types(("MatMul",) if blocks else ("MatMul", "Gemm")):
        dq = _weights(g, o, None if shared else readers)
        block = _block(dq) if dq is not None else None
        if (
            dq is not None
            and block
            and not (blocks and (BITS[dq.present[0].dtype] != 4 or not dq.attrs.get("block_size")))
        ):
            g.apply(_product(o, dq, block))
            changed = True
    return g.result() if changed else graph


#: Pull requests 21374, of all but 4 bits in blocks 27614 and 27769, of what is read once alone 28326.
PRODUCTS = Pass("weights of few bits", _of_packed, since="1.27")
PRODUCTS_126 = Pass(PRODUCTS.name, partial(_of_packed, shared=True), since="1.25", until="1.26")
PRODUCTS_124 = Pass(PRODUCTS.name, partial(_of_packed, blocks=True, shared=True), since="1.19", until="1.24")

#: As the graphs of the CUDA provider show, which has the first one release later.
CPU = (PRODUCTS_124, PRODUCTS_126, PRODUCTS)
CUDA = (PRODUCTS_124.of("1.20", "1.24"), PRODUCTS_126, PRODUCTS)

PRODUCT = call(PACKED, X, ...)


@pattern("MatMulNBits + bias", PRODUCT + Y, since="1.19")
def bias(m: Match) -> Fused | None:
    """A vector added to the columns, unless the product has a bias (pull request 20587)."""
    product, added = m[PRODUCT], m[Y]
    if any(product.inputs[5:]) or added.shape != product.out.shape[-1:] or m.g.made_by(added) is product:
        return None
    return m.fused(PACKED, (*(*product.inputs, *[None] * 5)[:5], added), product.attrs)

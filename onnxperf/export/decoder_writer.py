"""What the graphs of decoders are written with: nodes, weights that lie nowhere, and products with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from onnx import NodeProto, TensorProto, helper

from onnxperf.export.decoder_config import DTYPES

MS, OWN = "com.microsoft", "onnxperf"
TYPES = dict(zip(DTYPES, (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT), strict=True))
#: Types of caches beside that of the activations, as the inputs and attributes of GroupQueryAttention have them.
CACHES = {"fp8": TensorProto.FLOAT8E4M3FN, "int8": TensorProto.INT8}
BLOCK = 32  # the builder's default
MISSING_FILE = "weights-not-included.bin"


class Read(NamedTuple):
    """What all layers read: the last position of each sample and the longest length, and tables of cosines and sines
    by the number of rotated elements and by whether they are those of windowed layers.
    """

    lengths: tuple[str, ...]
    tables: dict[tuple[int, bool], tuple[str, str]]


class Writer:
    """Nodes and weights of a graph of `dtype` as they are added; weights of products have `bits`, 0 for `dtype`; cache:
    of CACHES, None for `dtype`.
    """

    def __init__(self, dtype: str, bits: int, cache: str | None = None) -> None:
        self.type, self.bits = TYPES[dtype], bits
        self.cache = self.type if cache is None else CACHES[cache]
        self.nodes: list[NodeProto] = []
        self.stored: list[TensorProto] = []

    def weight(self, name: str, *shape: int, type: int | None = None) -> str:
        """A weight whose data lie in a file that does not exist."""
        t = TensorProto(name=name, data_type=type or self.type, dims=shape, data_location=TensorProto.EXTERNAL)
        t.external_data.add(key="location", value=MISSING_FILE)
        self.stored.append(t)
        return name

    def number(self, name: str, value: float, type: int | None = None) -> str:
        """A constant without axes."""
        self.stored.append(helper.make_tensor(name, type or self.type, (), [value]))
        return name

    def constant(self, name: str, size: int, value: float) -> str:
        """A vector of one value."""
        self.stored.append(helper.make_tensor(name, self.type, (size,), [value] * size))
        return name

    def scales(self, name: str, *parts: str) -> list[str]:
        """A scale for each part of a cache of 8 bits, of all its elements; none for another cache."""
        names = [f"{name}/{part}_scale" for part in parts] if self.cache != self.type else []
        self.stored += [helper.make_tensor(n, TensorProto.FLOAT, (1,), [1.0]) for n in names]
        return names

    def integers(self, name: str, *values: int) -> str:
        """A constant of one axis."""
        self.stored.append(helper.make_tensor(name, TensorProto.INT64, (len(values),), values))
        return name

    def node(self, type: str, name: str, inputs: Sequence[str], outputs: Sequence[str] = (), **attrs: Any) -> str:
        """A node of this name; returns the name of its first output, which is its own where none is given."""
        domain, _, kind = type.rpartition("::")
        results = list(outputs) or [name]
        self.nodes.append(helper.make_node(kind, list(inputs), results, name=name, domain=domain, **attrs))
        return results[0]

    def norm(self, name: str, x: str, size: int, epsilon: float = 1e-6, kind: str = "rms", skip: str = "") -> str:
        """Norm of the last axis, of x + skip where there is something to skip, which is then `name`/sum; kind: "rms",
        "layer" with a bias, or "scale" without one.
        """
        scale = [self.weight(f"{name}.weight", size)]
        scale += [self.weight(f"{name}.bias", size)] if kind == "layer" else []
        if not skip:
            type = "SimplifiedLayerNormalization" if kind == "rms" else "LayerNormalization"
            return self.node(type, name, [x, *scale], axis=-1, epsilon=epsilon, stash_type=1)
        type = "SkipSimplifiedLayerNormalization" if kind == "rms" else "SkipLayerNormalization"
        return self.node(f"{MS}::{type}", name, [x, skip, *scale], [name, "", "", f"{name}/sum"], epsilon=epsilon)

    def activated(self, name: str, x: str, kind: str) -> str:
        """The activation of an MLP."""
        if kind == "silu":
            return self.node("Mul", f"{name}/Mul", [x, self.node("Sigmoid", f"{name}/Sigmoid", [x])])
        type = {"gelu_tanh": f"{MS}::FastGelu", "gelu": f"{MS}::Gelu"}.get(kind, "Relu")
        y = self.node(type, f"{name}/{type.rpartition('::')[2]}", [x])
        return self.node("Mul", f"{name}/Mul", [y, y]) if kind == "relu2" else y

    def times(self, name: str, x: str, factor: float) -> str:
        """x times a constant; x itself for 1."""
        return x if factor == 1.0 else self.node("Mul", f"{name}/Mul", [x, self.number(f"{name}/factor", factor)])

    def product(self, name: str, x: str, k: int, n: int, bias: bool = False) -> str:
        """x [..., k] times a weight [k, n], plus a bias."""
        if self.bits and not k % BLOCK:
            blocks = k // BLOCK
            packed = self.weight(f"{name}.weight", n, blocks, BLOCK * self.bits // 8, type=TensorProto.UINT8)
            inputs = [x, packed, self.weight(f"{name}.scales", n * blocks)]
            attrs: dict[str, Any] = {"K": k, "N": n, "bits": self.bits, "block_size": BLOCK}
            y = self.node(f"{MS}::MatMulNBits", f"{name}/MatMul", inputs, **attrs)
        else:
            y = self.node("MatMul", f"{name}/MatMul", [x, self.weight(f"{name}.weight", k, n)])
        return self.node("Add", f"{name}/Add", [y, self.weight(f"{name}.bias", n)]) if bias else y

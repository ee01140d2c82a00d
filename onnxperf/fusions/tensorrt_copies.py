"""Where TensorRT copies tensors between its kernels, from release 7.2 on.

Kernels of convolutions write their result into a part of a larger tensor, and read an image from one: a Concat of such
results is no kernel, nor is a Split. Some kernels need a tensor that lies by itself: those that add a residual, both
for the residual and for their result, and pooling and Resize for what they read. What these write or read is copied,
one kernel for each operand of a Concat or part of a Split. In half precision and 8 bits images lie channels last: an
image that is fed in, and what a Reshape takes from or gives to convolutions, is reordered by a kernel.

Read off the layers of published engines of YOLO11 and YOLO26 in releases 8.2 and 10: such layers are named "... copy",
"Reformatting CopyNode ..." or as the Split.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from onnxperf.fusions.torch_strides import RUN
from onnxperf.graph import Graph
from op_models import Operator, Tensor

VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
POOLS = ("MaxPool", "AveragePool")
#: What reads and writes images beside products and elementwise operators.
MOVES = frozenset({*POOLS, "Resize", "Concat", "Split", "Pad"})


def copied(graph: Graph, products: frozenset[str], elementwise: frozenset[str]) -> Graph:
    """The graph with a kernel for each operand of a Concat, and each part of a Split, that is copied; the Concat and
    Split themselves are free. products, elementwise: types of operators.
    """
    return replace(graph, operators=tuple(_Copies(graph, products, elementwise).operators()))


class _Copies:
    """A graph, and by name the tensors of it that are images."""

    def __init__(self, graph: Graph, products: frozenset[str], elementwise: frozenset[str]):
        self.graph, self.products, self.elementwise = graph, products, elementwise
        self.placed: set[str] = set()  # tensors that kernels write into a Concat's result
        self.images: set[str] = set()  # tensors that kernels of images write, channels last
        for o in graph.operators:
            reads_image = bool(o.present) and o.present[0].name in self.images
            if (o.type in products and _of_images(o)) or (o.type in elementwise | MOVES and reads_image):
                self.images.update(t.name for t in o.outputs)

    def operators(self) -> Iterator[Operator]:
        """The operators of the graph, with copies before and behind those that need them."""
        copies: dict[str, Tensor] = {}
        for o in self.graph.operators:
            image = o.inputs[0] if o.inputs else None
            if image and image.name not in copies and self._reordered(o, image):
                copies[image.name] = replace(image, name=f"{image.name}#copy", kind="activation")
                yield self._copy(o, image, copies[image.name])
            joins = o.type in ("Concat", "Split") and not all(t.stored for t in o.present) and o.out.value is None
            if joins and o.type == "Concat":
                yield from self._concat(o)
                continue
            if any(t.name in copies for t in o.present):
                o = replace(o, inputs=tuple(t and copies.get(t.name, t) for t in o.inputs))
            if joins:
                yield from self._split(o)
            else:
                yield o

    def _split(self, o: Operator) -> Iterator[Operator]:
        fed = self.graph.made_by(o.present[0]) is None  # no kernel writes it, and so none its parts
        outputs = self.graph.output_names if fed else frozenset[str]()
        readers = self.graph.readers
        parts = {t.name: replace(t, name=f"{t.name}#part") for t in o.outputs
                 if t.name in outputs or any(self._by_itself(r, t) for r in readers.get(t.name, ()))}  # fmt: skip
        yield replace(o, outputs=tuple(parts.get(t.name, t) for t in o.outputs), place="free")
        for t in (t for t in o.outputs if t.name in parts):
            yield self._copy(o, parts[t.name], t)

    def _reordered(self, o: Operator, t: Tensor) -> bool:
        """Whether the order of an image's elements changes for what an operator reads first."""
        if t.stored or t.rank != 4 or t.shape[2] * t.shape[3] == 1 or t.dtype == "float32":
            return False
        if o.type in VIEWS:
            readers = {r.type for r in self.graph.readers.get(o.out.name, ())}
            moved = bool(readers) and readers <= {"Concat", "Transpose"}  # these write in the new order themselves
            return t.name in self.images and not moved
        maker = self.graph.made_by(t)
        return o.type in self.products and _of_images(o) and (maker is None or maker.type in VIEWS)

    def _concat(self, o: Operator) -> Iterator[Operator]:
        inputs = []
        for i, t in enumerate(o.present):
            if self._in_place(t, o):
                self.placed.add(t.name)
                inputs.append(t)
            else:
                inputs.append(replace(t, name=f"{o.out.name}#{t.name}#copy{i}", kind="activation", value=None))
                yield self._copy(o, t, inputs[-1])
        yield replace(o, inputs=tuple(inputs), place="free")

    def _in_place(self, t: Tensor, concat: Operator) -> bool:
        """Whether an operand's kernel writes it into the result of a Concat."""
        maker, readers = self.graph.made_by(t), self.graph.readers[t.name]
        if maker is None or t.name in self.placed or t.name in self.graph.output_names:
            return False
        shared = maker.type in self.elementwise | self.products | {"Concat"}
        alone = readers == [concat]  # what is read only here any kernel but a Resize writes
        if not (shared or alone) or maker.type in (*VIEWS, "Split", "Resize") or self._residual(maker):
            return False
        return all(r.type == "Concat" or (r.type in self.products and not self._by_itself(r, t)) for r in readers)

    def _by_itself(self, reader: Operator, t: Tensor) -> bool:
        """Whether an operator reads a tensor that has to lie by itself."""
        return reader.type in (*POOLS, "Resize") or self._residual(reader) == t.name

    def _residual(self, o: Operator) -> str:
        """The name of the tensor that an operator adds to its result, if it is a product; "" where there is none."""
        summand = o.inputs[3] if o.type in self.products and len(o.inputs) > 3 else None
        return "" if summand is None else summand.name

    def _copy(self, o: Operator, source: Tensor, target: Tensor) -> Operator:
        """A kernel that copies a tensor beside an operator: an image the channels of a position side by side, another
        tensor the part that a Concat or Split leaves in one piece.
        """
        axis = o.attrs.get("axis", 0) % max(source.rank, 1)
        image = source.rank == 4 and (source.name in self.images or o.type in self.products)
        run = source.shape[1] if image else prod(source.shape[axis:])
        return Operator(
            target.name, "Contiguous", (source,), (target,), {RUN: max(run, 1)}, 0, o.nodes, "gpu", o.repeat
        )


def _of_images(product: Operator) -> bool:
    """Whether a product is a convolution of images."""
    return "Conv" in product.type and product.present[0].rank == 4

"""linear: a regression line for each category of layers on one device, added up; to compare with.

Source: Gianniti, Zhang and Ardagna, "Performance prediction of GPU-based deep learning applications" (Politecnico di
Milano, IBM): t = b0 + b1 c, the complexity c being operations of an output position, times positions, times batch.
What their own numbers give, and others measured here: linear.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from gpu_specs import Device
from onnxperf.ground.errors import UsageError
from onnxperf.latency import KernelTerms, Method
from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.estimate import kernel_models
from onnxperf.latency.method import BY_FAMILY
from onnxperf.latency.terms import Array
from onnxperf.lowering.lower import Kernel
from onnxperf.passes.tape import BACKWARD, FORWARD
from op_models import Conv, Gemm, Operator, Pointwise, Rows

PRODUCT, NORM, POOL, STRIDED, ELEMENT, LOSS = "Conv/FC", "Norm", "Pool S=1", "Pool S>1", "ReLU/Drop", "Loss"
IMAGE_NORMS = ("BatchNormalization", "LRN")  # of every element by itself; others are rows
CATEGORIES = (PRODUCT, NORM, POOL, STRIDED, ELEMENT, LOSS)
FITTING = "`onnxperf measure MODEL --json DIR/1.json` and `python -m onnxperf.lab.lines DIR -o mine.toml` make them"


class Layer(NamedTuple):
    """What a kernel computes of a layer: its category, "" outside of them; of which pass; how many operations; and how
    much of the layer's b0 it has.
    """

    category: str
    phase: str
    operations: int
    share: float = 1.0


def layer_of(kernel: Kernel) -> Layer:
    """A kernel's layer. PyTorch computes the gradients of a product's operands by two kernels: each has half of b0."""
    w, forward = kernel.work, kernel.phase == FORWARD
    type = kernel.op.rpartition("::")[2].removeprefix("Nhwc")
    if isinstance(w.size, Conv | Gemm):
        return Layer(PRODUCT, kernel.phase, w.matrix_flops // 2, 1.0 if forward else 0.5)
    if "Pool" in type and kernel.operator is not None:
        return _pool(kernel.operator, kernel.phase, type.startswith("Global"))
    if isinstance(w.size, Rows) and w.size.passes and kernel.phase in (FORWARD, BACKWARD):
        n, positions = w.size.rows * w.size.width, w.size.rows
        if w.size.passes > 1 or "Softmax" in type:
            return Layer(LOSS, kernel.phase, 4 * n - positions if forward else n + positions)
        return Layer(NORM, kernel.phase, 5 * n - positions if forward else 8 * n)
    if isinstance(w.size, Pointwise) and kernel.phase in (FORWARD, BACKWARD):
        n = w.size.elements
        if type in IMAGE_NORMS and kernel.operator is not None:
            positions, window = n // max(kernel.operator.out.shape[1], 1), int(kernel.operator.attrs.get("size", 1))
            return Layer(NORM, kernel.phase, 5 * n + (window - 2) * positions)
        return Layer(ELEMENT, kernel.phase, (3 if forward else 4) * n)
    return Layer("", kernel.phase, 0)


def _pool(o: Operator, phase: str, whole: bool) -> Layer:
    """Hf Wf Cout operations a position forward, (Hf Wf + 1) Cout backward; pooling of whole images has no stride."""
    image, result = (o.present[0], o.out) if phase == FORWARD else (o.out, o.present[0])
    taps = prod(image.shape[2:]) if whole else prod(o.attrs.get("kernel_shape", (1,)))
    category = POOL if whole or prod(o.attrs.get("strides") or (1,)) == 1 else STRIDED
    return Layer(category, phase, (taps + (phase == BACKWARD)) * result.size)


def linear(works: Works, cards: Cards, stored: Array, bound: KernelTerms) -> KernelTerms:
    """b0 + b1 c of each layer by the device's lines; tile-wave's model of the family for kernels outside of these.

    Raises UsageError where a device has no lines for a pass.
    """
    kernels = kernel_models(works, cards, stored, bound)
    layers = [layer if isinstance(layer, Layer) else Layer("", FORWARD, 0) for layer in works.layers]
    seconds, variant = np.array(kernels.seconds), np.full(kernels.seconds.shape, BY_FAMILY, dtype="<U24")
    for j, device in enumerate(cards.devices):
        for i, layer in enumerate(layers):
            if line := _lines(device, layer.phase).get(layer.category):
                seconds[i, j] = layer.share * line[0] + line[1] * layer.operations
                variant[i, j] = layer.category
    none, ours = np.zeros_like(seconds), variant != BY_FAMILY
    terms = {f: np.where(ours, none, getattr(kernels, f)) for f in ("latency", "launch", "workspace")}
    compute = np.where(ours, np.minimum(bound.compute, seconds), kernels.compute)
    memory = np.where(ours, np.minimum(bound.memory, seconds), kernels.memory)
    terms["latency"] = np.where(ours, seconds - np.maximum(compute, memory), terms["latency"])
    return kernels._replace(seconds=seconds, variant=variant, compute=compute, memory=memory, detail={}, **terms)


def _lines(device: Device, phase: str) -> dict[str, tuple[float, float]]:
    """The lines of a device for a pass by category; none for an optimiser's kernels, which the authors leave out."""
    lines: Sequence[tuple[str, float, float]] = {FORWARD: device.lines.forward, BACKWARD: device.lines.backward}.get(
        phase, ()
    )
    if not lines and phase in (FORWARD, BACKWARD):
        raise UsageError(
            f"{device.id} has no {phase} lines for the method linear: {FITTING}; m6000 has the authors' own"
        )
    return {category: (b0, b1) for category, b0, b1 in lines}


METHOD = Method(
    name="linear",
    describe="a regression line on operations for each category of layers, of the very device (Gianniti), added up",
    times=linear,
    error_class="lines",
    own_terms=True,
    layer=layer_of,
    half_width=lambda device: device.lines.half_width,
)

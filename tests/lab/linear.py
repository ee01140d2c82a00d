"""The method `linear` on measurements made here: `python -m tests.lab.linear DIR`, some ten minutes on an idle core.

AlexNet, GoogLeNet and VGG-16 with random weights run under ONNX Runtime's CPU provider without fusions, as in the
authors' Caffe. Measurements are kept in DIR as files of `onnxperf measure`; those that are there are not made
again, and disturbed ones are repeated. Lines of one network's layers then predict those of the others, and a line in
the batch, fitted to small batches, the batch of twice the largest. The tables are printed as Markdown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from onnx import NodeProto, TensorProto, helper

from onnxperf.calibrate.command import base_of
from onnxperf.calibrate.rows import rows_of
from onnxperf.graph.microbenchmarks import MISSING_FILE
from onnxperf.ground.tables import Sheet, markdown
from onnxperf.lab.baselines.linear import CATEGORIES
from onnxperf.lab.lines import LayerRow, layer_rows, line, lines_of, misses
from onnxperf.measure.files import read, write
from onnxperf.measure.job import Job
from onnxperf.measure.record import Measurement
from onnxperf.measure.run import measure

BATCHES = {"AlexNet": (1, 2, 4, 8, 16, 32), "GoogLeNet": (1, 2, 4, 8), "VGG-16": (1, 2, 4)}
TRIES, RUNS, SECONDS = 3, 20, 4.0


class Network:
    """A network of convolutions, written layer by layer; `shape` is that of the last result."""

    def __init__(self, batch: int, size: int) -> None:
        self.nodes, self.stored = list[NodeProto](), list[TensorProto]()
        self.at, self.shape = "x", (batch, 3, size, size)
        self.input = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)

    def add(self, type: str, shape: tuple[int, ...], reads: Sequence[str] = (), **attrs: object) -> None:
        """A node that reads the last result, or `reads`."""
        name = f"{type}{len(self.nodes)}"
        self.nodes.append(helper.make_node(type, reads or [self.at], [name], name=name, **attrs))
        self.at, self.shape = name, shape

    def weights(self, *shapes: tuple[int, ...]) -> list[str]:
        """Names of weights, which lie in a file that does not exist."""
        for shape in shapes:
            t = TensorProto(name=f"w{len(self.stored)}", data_type=1, dims=shape, data_location=TensorProto.EXTERNAL)
            t.external_data.add(key="location", value=MISSING_FILE)
            self.stored.append(t)
        return [t.name for t in self.stored[-len(shapes) :]]

    def conv(self, cout: int, k: int, stride: int = 1, pad: int | None = None, group: int = 1) -> Network:
        """A convolution and its ReLU."""
        n, cin, side, _ = self.shape
        pad = k // 2 if pad is None else pad
        out = (side + 2 * pad - k) // stride + 1
        reads = [self.at, *self.weights((cout, cin // group, k, k), (cout,))]
        self.add("Conv", (n, cout, out, out), reads, pads=[pad] * 4, strides=[stride] * 2, group=group)
        self.add("Relu", self.shape)
        return self

    def pool(self, k: int, stride: int, pad: int = 0, type: str = "MaxPool") -> Network:
        """Pooling, of windows that are rounded up."""
        n, c, side, _ = self.shape
        out = -(-(side + 2 * pad - k) // stride) + 1
        attrs = {"kernel_shape": [k] * 2, "strides": [stride] * 2, "pads": [pad] * 4, "ceil_mode": 1}
        self.add(type, (n, c, out, out), **attrs)
        return self

    def norm(self) -> Network:
        """Local response normalisation over five channels."""
        self.add("LRN", self.shape, size=5, alpha=1e-4, beta=0.75)
        return self

    def fc(self, width: int, relu: bool = True) -> Network:
        """A fully connected layer."""
        if len(self.shape) > 2:
            self.add("Flatten", (self.shape[0], int(np.prod(self.shape[1:]))))
        self.add("Gemm", (self.shape[0], width), [self.at, *self.weights((width, self.shape[1]), (width,))], transB=1)
        if relu:
            self.add("Relu", self.shape)
        return self

    def inception(self, *c: int) -> Network:
        """1x1; 1x1 and 3x3; 1x1 and 5x5; pooling and 1x1: channels in this order, side by side."""
        start, ends = (self.at, self.shape), []
        for branch in (((c[0], 1),), ((c[1], 1), (c[2], 3)), ((c[3], 1), (c[4], 5)), ((c[5], 1),)):
            self.at, self.shape = start
            if len(ends) == 3:
                self.pool(3, 1, 1)
            for cout, k in branch:
                self.conv(cout, k)
            ends.append(self.at)
        n, _, side, _ = self.shape
        self.add("Concat", (n, c[0] + c[2] + c[4] + c[5], side, side), ends, axis=1)
        return self

    def model(self, name: str) -> bytes:
        """The ONNX file, with a softmax at the end."""
        self.add("Softmax", self.shape, axis=1)
        y = helper.make_tensor_value_info(self.at, TensorProto.FLOAT, self.shape)
        graph = helper.make_graph(self.nodes, name, [self.input], [y], self.stored)
        opset = helper.make_opsetid("", 20)
        return bytes(helper.make_model(graph, opset_imports=[opset], ir_version=10).SerializeToString())


def alexnet(batch: int) -> Network:
    """Krizhevsky et al., 2012, with its groups."""
    net = Network(batch, 227).conv(96, 11, 4, 0).norm().pool(3, 2).conv(256, 5, group=2).norm().pool(3, 2)
    net.conv(384, 3).conv(384, 3, group=2).conv(256, 3, group=2).pool(3, 2)
    return net.fc(4096).fc(4096).fc(1000, relu=False)


def googlenet(batch: int) -> Network:
    """Szegedy et al., 2014, without the auxiliary classifiers."""
    net = Network(batch, 224).conv(64, 7, 2).pool(3, 2).norm().conv(64, 1).conv(192, 3).norm().pool(3, 2)
    net.inception(64, 96, 128, 16, 32, 32).inception(128, 128, 192, 32, 96, 64).pool(3, 2)
    net.inception(192, 96, 208, 16, 48, 64).inception(160, 112, 224, 24, 64, 64).inception(128, 128, 256, 24, 64, 64)
    net.inception(112, 144, 288, 32, 64, 64).inception(256, 160, 320, 32, 128, 128).pool(3, 2)
    net.inception(256, 160, 320, 32, 128, 128).inception(384, 192, 384, 48, 128, 128)
    return net.pool(7, 1, type="AveragePool").fc(1000, relu=False)


def vgg16(batch: int) -> Network:
    """Simonyan and Zisserman, 2014."""
    net = Network(batch, 224)
    for channels, layers in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(layers):
            net.conv(channels, 3)
        net.pool(2, 2)
    return net.fc(4096).fc(4096).fc(1000, relu=False)


NETWORKS = {"AlexNet": alexnet, "GoogLeNet": googlenet, "VGG-16": vgg16}


def measured(folder: Path) -> Iterator[tuple[str, int, Measurement]]:
    """Every network at every batch, from its file where there is one; the least disturbed of TRIES else."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, batches in BATCHES.items():
        for batch in batches:
            path = folder / f"{name}-{batch}.json"
            for _ in range(0 if path.exists() else TRIES):
                model = NETWORKS[name](batch).model(f"{name}-{batch}")
                m = measure(
                    Job(model, "cpu", opt_level="disabled", iterations=RUNS, duration_s=SECONDS, warm_runs=1, warm_s=0)
                )
                path.write_text(write(m) + "\n", encoding="utf-8")
                print(f"{name}, batch {batch}: {m.seconds:.4g} s{', disturbed' * bool(m.disturbed)}", file=sys.stderr)
                if not m.disturbed:
                    break
            yield name, batch, read(path)


def by_layer(rows: dict[str, list[LayerRow]]) -> Sheet:
    """How far the lines of one network's layers are from those of another: all layers, the sums, each category."""
    lines = []
    for fitted, own in rows.items():
        found = lines_of(own)
        for used in rows:
            off = {c: misses([r for r in rows[used] if r.category == c], found) for c in CATEGORIES}
            known = [r for r in rows[used] if r.category in found]
            said = sum(float(found[r.category].seconds(r.operations, r.layers)) for r in known)
            total = f"{said / sum(r.seconds for r in known) - 1:+.0%}"
            every = np.concatenate([*off.values()])
            each = (f"{np.mean(np.abs(np.expm1(-m))):.0%}" if len(m) else "-" for m in (every, *off.values()))
            lines.append((fitted, used + " (itself)" * (fitted == used), f"{len(every)}", total, *each))
    heads = ("!fitted to", "!used on", "#layers", "#sum", "#mean error", *(f"#{c}" for c in CATEGORIES))
    return Sheet("Layers", heads, tuple(lines))


def end_to_end(seconds: dict[str, dict[int, float]]) -> Sheet:
    """How far a line in the batch, fitted to the batches up to half of the largest, is from the largest."""
    lines = []
    for name, by_batch in seconds.items():
        most = max(by_batch)
        known = sorted(b for b in by_batch if b <= most // 2)
        found = line(np.array(known, dtype=float), np.array([by_batch[b] for b in known]))
        said, took = float(found.seconds(float(most))), by_batch[most]
        batches = ", ".join(map(str, known))
        lines.append((name, batches, f"{most}", f"{took:.4g} s", f"{said:.4g} s", f"{said / took - 1:+.1%}"))
    return Sheet(
        "Whole networks", ("!network", "!fitted to batch", "#batch", "#measured", "#predicted", "#error"), tuple(lines)
    )


def main(folder: Path) -> None:
    """Measure what is not there, print both tables."""
    rows: dict[str, list[LayerRow]] = {}
    seconds: dict[str, dict[int, float]] = {}
    notes = []
    for name, batch, m in measured(folder):
        model = rows_of(m, base_of(m.place), [])
        rows.setdefault(name, []).extend(layer_rows([model]))
        seconds.setdefault(name, {})[batch] = m.seconds
        if m.disturbed:
            notes.append(f"{name}, batch {batch}: {m.disturbed}")
    where = f"One core of {m.place.name}, ONNX Runtime {dict(m.setting.software)['onnxruntime']}"
    print(markdown([by_layer(rows), end_to_end(seconds)], [f"{where}, {datetime.now(UTC):%Y-%m-%d}.", *notes]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

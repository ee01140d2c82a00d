"""How fast onnxperf itself is: `python -m tests.benchmark` prints CPU time, user and system, and the machine.

Cold figures are medians of whole processes, whose modules are compiled already, as pip leaves them; beside the seconds
stands how many times `import onnx` in the same run they are. Warm ones are calls in this process.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path

SAMPLES = Path(__file__).parent.parent / "samples"
REPEATS = 7
#: Samples with the most that their cold prediction may be of `import onnx`, and what they are asked with.
COLD = (("resnet50", 2.2), ("bert-base", 2.5), ("bert-large", 4, "--dim", "sequence=384"))
CHAINS = (5_000, 10_000, 20_000, 40_000)  # nodes


class Processes:
    """Whole processes of Python, which write their bytecode into a folder."""

    def __init__(self, folder: str) -> None:
        usual = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        self.environment = usual | {"PYTHONPYCACHEPREFIX": folder}
        self.onnx = self.measured(["-c", "import onnx"])[0]

    def measured(self, arguments: Sequence[str], repeats: int = REPEATS) -> tuple[float, float]:
        """Median seconds of CPU and the peak memory in MB, after a process that does not count."""
        seconds, peaks = [], []
        for _ in range(repeats + 1):
            child = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, env=self.environment)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            if child.returncode:
                raise subprocess.CalledProcessError(child.returncode, arguments)
            seconds.append(used.ru_utime + used.ru_stime)
            peaks.append(used.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3))
        return statistics.median(seconds[1:]), max(peaks)

    def command(self, *arguments: str, repeats: int = REPEATS) -> tuple[float, float]:
        """The same of `python -m onnxperf ...`."""
        return self.measured(["-m", "onnxperf", *arguments], repeats)


def exported() -> tuple[float, float, float]:
    """BERT-base held in PyTorch, exported and predicted: median seconds, MB that the process holds before, and at its
    peak. Imports and building the model, with its weights, come before.
    """
    done = [
        subprocess.run([sys.executable, "-c", _EXPORTED], capture_output=True, text=True, check=True) for _ in range(3)
    ]
    figures = [tuple(map(float, d.stdout.split())) for d in done]
    seconds, before, peak = zip(*figures, strict=True)
    return statistics.median(seconds), max(before), max(peak)


_EXPORTED = """
import resource, sys, time
import torch, transformers
import onnxperf
model = transformers.BertModel(transformers.BertConfig()).eval()
inputs = {"input_ids": torch.ones(1, 128, dtype=torch.int64)}
torch.onnx.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),), verbose=False)
scale = 1e6 if sys.platform == "darwin" else 1e3
held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale
start = time.perf_counter()
onnxperf.predict(model, inputs, gpu="l4")
print(file=sys.stderr)
print(time.perf_counter() - start, held, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale)
"""


def call(run: Callable[[], object]) -> float:
    """Median seconds of CPU of a call in this process, after one that does not count."""
    run()
    return statistics.median(once(run) for _ in range(REPEATS))


def once(run: Callable[[], object]) -> float:
    """Seconds of CPU of a call that takes long enough to be timed once."""
    start = time.process_time()
    run()
    return time.process_time() - start


def chain(blocks: int) -> bytes:
    """A model of ten nodes a block: products, sums, activations, a normalisation, views."""
    from onnx import TensorProto, helper

    weight = helper.make_tensor("w", TensorProto.FLOAT, [64, 64], bytes(4 * 64 * 64), raw=True)
    bias = helper.make_tensor("b", TensorProto.FLOAT, [64], bytes(4 * 64), raw=True)
    wide = helper.make_tensor("wide", TensorProto.INT64, [3], [1, 32, 64])
    flat = helper.make_tensor("flat", TensorProto.INT64, [2], [32, 64])
    nodes, x = [], "x"
    steps = (
        ("MatMul", "w"), ("Add", "b"), ("Relu", ""), ("Reshape", "wide"), ("LayerNormalization", "b"),
        ("Sigmoid", ""), ("Mul", "b"), ("Reshape", "flat"), ("Tanh", ""), ("Add", "b"),
    )  # fmt: skip
    for block in range(blocks):
        for step, (op, other) in enumerate(steps):
            y = f"t{block}_{step}"
            nodes.append(helper.make_node(op, [x, other] if other else [x], [y], name=f"n{block}_{step}"))
            x = y
    vector = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [32, 64]) for name in ("x", x)]
    graph = helper.make_graph(nodes, "chain", vector[:1], vector[1:], [weight, bias, wide, flat])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()


def decoder(layers: int = 32, hidden: int = 4096, inner: int = 11008, tokens: int = 128) -> bytes:
    """A weightless decoder with 7 billion parameters: every weight is a name, a shape and a missing file."""
    from onnx import TensorProto, helper

    def weight(name: str, *shape: int) -> TensorProto:
        t = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        t.external_data.add(key="location", value="weights-not-included.bin")
        return t

    nodes, weights, x = [], [], "x"

    def node(op: str, *inputs: str) -> str:
        out = f"{op}_{len(nodes)}"
        nodes.append(helper.make_node(op, list(inputs), [out], name=out))
        return out

    def linear(x: str, rows: int, columns: int) -> str:
        weights.append(weight(f"w{len(weights)}", rows, columns))
        return node("MatMul", x, weights[-1].name)

    for _ in range(layers):
        q, k, v = (linear(x, hidden, hidden) for _ in range(3))
        scores = node("Softmax", node("MatMul", q, node("Transpose", k)))
        x = node("Add", x, linear(node("MatMul", scores, v), hidden, hidden))
        gate = node("Mul", node("Sigmoid", linear(x, hidden, inner)), linear(x, hidden, inner))
        x = node("Add", x, linear(gate, inner, hidden))
    x = linear(x, hidden, 32000)
    info = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("x", [tokens, hidden]), (x, [tokens, 32000]))
    ]
    graph = helper.make_graph(nodes, "decoder", info[:1], info[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()


def any_batch(data: bytes) -> bytes:
    """The sample ResNet-50 with its batch left open: its one Reshape keeps the batch instead of naming it."""
    import numpy as np
    from onnx import ModelProto, numpy_helper

    model = ModelProto.FromString(data)
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[0].dim_param = "batch"
    del model.graph.value_info[:]
    (reshape,) = (n for n in model.graph.node if n.op_type == "Reshape")
    (target,) = (t for t in model.graph.initializer if t.name == reshape.input[1])
    target.CopyFrom(numpy_helper.from_array(np.array([-1, 2048]), target.name))
    return model.SerializeToString()


def cards(count: int) -> str:
    """The names of so many cards."""
    import gpu_specs

    return ",".join(gpu_specs.ids()[:count])


def large(processes: Processes, folder: str) -> tuple[float, float]:
    """One model's part of a large sweep, to a Parquet file: seconds of CPU, and the peak memory in MB."""
    asked = ("--batch", "1,2,3,...,64", "--gpu", cards(80), "--no-cache", "-o", str(Path(folder) / "sweep.parquet"))
    return processes.command("sweep", str(SAMPLES / "resnet50.onnx"), *asked, repeats=1)


def sweep(kind: str, count: int = 100_000) -> Callable[[], object]:
    """`count` different kernels of one kind, estimated on forty cards at once."""
    import numpy as np

    import gpu_specs
    from onnxperf.latency import alone, shipped
    from op_models import Attention, Conv, Gemm, Pointwise, Rows, Work

    sides = np.random.default_rng(0).integers(16, 4096, (count, 3)).tolist()
    if kind == "products":
        works = [
            Work(Gemm(1, a, b, c), "float32", "fp32", 4 * (a + b) * c, 4 * a * b, 4 * b * c, 2 * a * b * c)
            for a, b, c in sides
        ]
    elif kind == "convolutions":
        works = [
            Work(
                Conv(8, a, b, c, 9, 1, 1), "float32", "fp32",
                32 * a * c + 36 * a * b, 32 * b * c, 36 * a * b, 144 * a * b * c,
            )
            for a, b, c in sides
        ]  # fmt: skip
    elif kind == "products in FP16":
        works = [
            Work(Gemm(1, a, b, c), "float16", "tensor_fp16", 2 * (a + b) * c, 2 * a * b, 2 * b * c, 2 * a * b * c)
            for a, b, c in sides
        ]
    elif kind == "attentions":
        works = [
            Work(
                Attention(1, 32, 8, a, b, d, d, c % 3 == 0), "float16", "tensor_fp16",
                64 * a * d + 32 * b * d, 64 * a * d, 0, 128 * a * b * d, 400 * a * b,
            )
            for a, b, c in sides
            for d in (64 + 64 * (c % 2),)
        ]  # fmt: skip
    elif kind == "rows":
        works = [Work(Rows(a, b, c % 3), "float32", "fp32", 4 * a * b, 4 * a * b, 0, 0, 5 * a * b) for a, b, c in sides]
    else:
        works = [Work(Pointwise(a * b), "float32", "fp32", 4 * a * b, 4 * a * b, 0, 0, c) for a, b, c in sides]
    devices = [gpu_specs.load(i) for i in gpu_specs.ids()[:40]]
    return lambda: alone(works, devices, shipped())


def growth() -> tuple[float, float]:
    """By which power of its nodes the time of a long model grows, and the seconds of CPU of 100,000 by that."""
    import onnxperf

    models = [chain(nodes // 10) for nodes in CHAINS]  # ten nodes a block
    seconds = [once(partial(onnxperf.predict, model, gpu="l4")) for model in models]
    power, least = statistics.linear_regression(list(map(math.log, CHAINS)), list(map(math.log, seconds)))
    return power, math.exp(least) * 100_000**power


def main() -> None:
    """Print one line for each figure, with its limit."""
    import gpu_specs
    import onnxperf

    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}\n")
    with tempfile.TemporaryDirectory() as folder:
        seven = Path(folder) / "decoder-7b.onnx"
        seven.write_bytes(decoder())
        resnet = (SAMPLES / "resnet50.onnx").read_bytes()
        processes = Processes(folder)
        line("import onnx", f"{processes.onnx:.3f} s", "none")
        for name, most, *more in COLD:
            seconds, _ = processes.command("predict", str(SAMPLES / f"{name}.onnx"), "--gpu", "l4", *more)
            line(f"cold predict, {name}", f"{seconds:.3f} s", f"{most}x", f"{seconds / processes.onnx:.2f}x")
        seconds, _ = processes.command("--help")
        line("--help", f"{seconds:.3f} s", "1x", f"{seconds / processes.onnx:.2f}x")
        line("warm call, ResNet-50", f"{call(lambda: onnxperf.predict(resnet, gpu='l4')) * 1e3:.1f} ms", "10 ms")
        held, each = onnxperf.load(resnet), cycle(gpu_specs.ids()[:40])
        line("the same, loaded", f"{call(lambda: onnxperf.predict(held, gpu='l4')) * 1e3:.1f} ms", "10 ms")
        seconds = call(lambda: onnxperf.predict(held, gpu=next(each)))
        line("the same, loaded, another card", f"{seconds * 1e3:.1f} ms", "none")
        power, seconds = growth()
        line(f"{CHAINS[0]:,} to {CHAINS[-1]:,} nodes, growth", f"{power:.2f}", "1.05")
        line("100,000 nodes, by that", f"{seconds:.1f} s", "15 s")
        open_file = Path(folder) / "resnet50-any-batch.onnx"
        open_file.write_bytes(any_batch(resnet))
        asked = ("--batch", "1,2,4,8,16,32,64,96,128,256", "--precision", "fp32,fp16", "--gpu", cards(40), "--no-cache")
        seconds, peak = processes.command("sweep", str(open_file), *asked, repeats=3)
        limit = f"2 s; peak memory {peak:.0f} MB"
        line("sweep, 40 cards x 10 batches x 2", f"{seconds:.2f} s", limit, f"{seconds / processes.onnx:.2f}x")
        seconds, peak = large(processes, folder)
        line("sweep, 80 cards x 64 batches", f"{seconds:.1f} s", f"1.2 s; peak memory {peak:.0f} MB")
        try:
            seconds, before, peak = exported()
            more = f"none; {peak - before:.0f} MB more than the {before:.0f} MB it held"
            line("export, predict BERT-base of torch", f"{seconds:.1f} s", more)
        except subprocess.CalledProcessError:
            line("export, predict BERT-base of torch", "-", "it takes '.[test]'")
        seconds, peak = processes.command("predict", str(seven), "--gpu", "h100")
        line("weightless 7B, peak memory", f"{peak:.0f} MB", f"300 MB; took {seconds:.2f} s")
    kinds = ("products", "products in FP16", "attentions", "convolutions", "rows", "elementwise")
    for kind in kinds:  # last: a child counts what its parent holds
        line(f"100,000 {kind} x 40 GPUs", f"{once(sweep(kind)):.1f} s", "10 s")


def line(what: str, figure: str, limit: str, ratio: str = "") -> None:
    """Print one figure, how many times `import onnx` it is, and its limit."""
    print(f"{what:36s} {figure:>10s} {ratio:>8s}   limit {limit}")


if __name__ == "__main__":
    main()

"""`python -m tests.cuda_oracle FILES...`: where ONNX Runtime's CUDA provider has other operators than `ort-cuda`.

For each file, operators of fixed shapes are counted by type; views and copies are left out. How to set up ONNX
Runtime's side is said in `tests.cuda_stub`.
"""

from __future__ import annotations

import gzip
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto

from onnxperf.fusions.placement import place
from onnxperf.graph import load
from onnxperf.runtimes import LEVELS, RUNTIMES, run_graph
from tests.cuda_stub import optimised

#: What costs nothing, and the copies whose number depends on which of several equal ones is kept.
LEFT_OUT = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "MemcpyFromHost", "MemcpyToHost", "Copy"}


def theirs(model: ModelProto, level: str = "all") -> Counter[str]:
    """How many operators of each type ONNX Runtime's CUDA provider makes of a model, those in bodies among them."""
    return Counter(n.op_type for n in nodes(optimised(model, level).graph) if n.op_type not in LEFT_OUT)


def nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """The nodes of a graph and of the bodies in it; of an If those of the longer branch."""
    for n in graph.node:
        yield n
        bodies = [list(nodes(a.g)) for a in n.attribute if a.HasField("g")]
        yield from (b for body in ([max(bodies, key=len)] if n.op_type == "If" else bodies) for b in body)


def ours(model: ModelProto, level: str = "all") -> Counter[str]:
    """The same of `ort-cuda`, before nodes are taken apart into their kernels."""
    graph = run_graph(load(model), replace(RUNTIMES["ort-cuda"], place=place), LEVELS[level])
    working = (o for o in graph.operators if o.place != "free")
    return Counter(t for o in working if (t := o.type.rpartition("::")[2]) not in LEFT_OUT)


def read(file: Path) -> ModelProto:
    """A model from a file, which may be compressed, without weights that lie outside it."""
    data = file.read_bytes()
    return onnx.load_model_from_string(gzip.decompress(data) if file.suffix == ".gz" else data)


def main(files: list[str]) -> int:
    """Print a line for each file: equal, or what only one side has. The exit code is 1 unless all are equal."""
    equal = 0
    for file in files:
        try:
            model = read(Path(file))
            a, b = theirs(model), ours(model)
        except Exception as error:  # one file that can't be read is no reason to stop
            print("failed ", file, f"{type(error).__name__}: {error}"[:200].replace("\n", " "), flush=True)
            continue
        equal += a == b
        said = f"only ONNX Runtime {dict(a - b)}, only ort-cuda {dict(b - a)}" if a != b else f"{a.total()} operators"
        print("equal  " if a == b else "differs", file, said, flush=True)
    print(f"{equal} of {len(files)} equal", file=sys.stderr)
    return int(equal < len(files))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Learn what can be learned of a machine with one NVIDIA GPU in ten minutes, step by step, what matters most first.

    python samples/measure_gpu.py --out results --budget 540
    python samples/measure_gpu.py --unpack results --out measurements
    onnxperf validate --data measurements

smoke: whether ONNX Runtime really runs on the GPU, one operator at a time. graphs: which operators are left when ONNX
Runtime has optimised a model, beside those of our own run graph. models: every sample model, measured. calibrate: the
suite of `onnxperf calibrate`. Each step writes a JSON file or two into --out; what fails or finds no time is listed in
summary.json, and the rest goes on. --provider cpu does the same on the processor, to try it out.
"""

import argparse
import json
import multiprocessing
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import parser

import onnxperf
from onnxperf.ground.output import write_file
from onnxperf.ground.tables import short_type
from onnxperf.measure import files
from onnxperf.measure.devices import DEVICES
from onnxperf.measure.environment import onnx_runtime
from onnxperf.measure.job import Job
from onnxperf.measure.plan import prepare
from onnxperf.measure.run import measure
from onnxperf.measure.session import open_session
from onnxperf.measure.weights import bytes_of
from onnxperf.passes.precision import precision
from onnxperf.runtimes import LEVELS, RUNTIMES, run_graph

SHARES = {"smoke": 0.15, "graphs": 0.35, "models": 0.75, "calibrate": 0.97}  # of the budget, up to the step's end
KINDS = ("tf32", "fp16", "fp32")
PASSES = [*product((1,), KINDS), *product((8, 32), KINDS[:2]), (8, "fp32"), (32, "fp32")]  # what matters most first
DIM = 128  # of open dimensions that are no batch
LARGE = 2e9  # bytes of weights beyond which a model comes last, and is not optimised into a file
RUNS, RUN_S, MODEL_S = 100, 1.0, 60.0  # counted runs, their time, and the most that one model gets
QUERY = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,power.draw,temperature.gpu,mig.mode.current"
SMOKE = "(float[256,1024] x, float[1024,1024] y) => (float[256,1024] z) { h = MatMul(x, y) z = Relu(h) }"

#: Models of one operator: inputs, output, call.
NODES = {
    "Add": "(T[8,64] x, T[8,64] y) => (T[8,64] z) { z = Add(x, y) }",
    "MatMul": "(T[64,64] x, T[64,64] y) => (T[64,64] z) { z = MatMul(x, y) }",
    "Gemm": "(T[64,64] x, T[64,64] y, T[64] b) => (T[64,64] z) { z = Gemm(x, y, b) }",
    "Conv": "(T[1,16,8,8] x, T[16,16,3,3] y) => (T[1,16,6,6] z) { z = Conv(x, y) }",
    "Softmax": "(T[8,64] x) => (T[8,64] z) { z = Softmax(x) }",
    "LayerNormalization": "(T[8,64] x, T[64] y) => (T[8,64] z) { z = LayerNormalization(x, y) }",
    "Gelu": "(T[8,64] x) => (T[8,64] z) { z = Gelu(x) }",
    "Erf": "(T[8,64] x) => (T[8,64] z) { z = Erf(x) }",
    "Transpose": "(T[8,64] x) => (T[64,8] z) { z = Transpose(x) }",
    "ReduceMean": "(T[8,64] x) => (T[1,1] z) { z = ReduceMean(x) }",
    "MaxPool": "(T[1,16,8,8] x) => (T[1,16,4,4] z) { z = MaxPool <kernel_shape=[2,2], strides=[2,2]> (x) }",
    "Resize": "(T[1,16,8,8] x) => (T[1,16,a,b] z) <float[4] y = {1, 1, 1, 1}> { z = Resize(x, , y) }",
    "Gather": "(T[64,64] x, int64[8] y) => (T[8,64] z) { z = Gather(x, y) }",
    "Where": "(bool[8,64] c, T[8,64] x, T[8,64] y) => (T[8,64] z) { z = Where(c, x, y) }",
}


@dataclass
class Run:
    """What is asked for, and what has become of it. `measured` holds measurements as plain data, by file."""

    out: Path
    provider: str
    models: list[Path]
    passes: list[tuple[int, str]]  # batches and precisions, in the order in which they are measured
    end: float = 0.0  # of the step, on time.monotonic()
    failed: list[dict[str, str]] = field(default_factory=list)
    took: dict[str, float] = field(default_factory=dict)
    measured: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """Seconds that the step still has."""
        return self.end - time.monotonic()

    def fail(self, what: str, why: object) -> None:
        """Note what did not work."""
        text = f"{type(why).__name__}: {why}" if isinstance(why, BaseException) else str(why)
        self.failed.append({"what": what, "why": text[:500]})
        print(f"  {what}: {text[:200]}", file=sys.stderr, flush=True)

    def write(self, name: str, data: Any) -> None:
        """Write a file of the results."""
        write_file(str(self.out / f"{name}.json"), json.dumps(data, separators=(",", ":")) + "\n")

    def apart(self, what: Callable[..., Any], tasks: dict[str, tuple[Any, ...]], most_s: float = inf) -> Iterator[Any]:
        """Tasks, by what they are called and given, with their results. They are done in a process of its own, and in
        another after one that ends it or takes more than most_s seconds.
        """
        pool = None
        for done, (task, given) in enumerate(tasks.items()):
            if self.left <= 0:
                self.fail(task, f"no time left for it and {len(tasks) - done - 1} more")
                break
            pool = pool or ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
            try:
                yield task, pool.submit(what, self.provider, *given).result(min(self.left, most_s))
            except (TimeoutError, BrokenProcessPool) as e:
                self.fail(task, "it took too long" if isinstance(e, TimeoutError) else "it ended the process")
                end_processes()
                pool = None
            except Exception as e:
                self.fail(task, e)
        end_processes()


def end_processes() -> None:
    """End what runs apart, whatever it does."""
    for process in multiprocessing.active_children():
        process.kill()


def parsed(name: str, text: str) -> bytes:
    """The file of a model by the text of its graph."""
    return bytes(parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {name} {text}').SerializeToString())


def one_node(provider: str, name: str, dtype: str) -> dict[str, Any]:
    """A model of one operator on the provider alone: how far its result is from the processor's, of equal inputs."""
    model = parsed(name, NODES[name].replace("T[", f"{dtype}["))
    found = []
    for where in (provider, "cpu"):
        job = Job(model, where, precision="fp32" if dtype == "float" else "keep")
        device = job.device.here()
        session = open_session(onnx_runtime(), prepare(job), device, lambda: "")
        if session.hosted:
            raise RuntimeError("it ran on the processor")
        device.timed(session.run)
        found.append(session.binding.copy_outputs_to_cpu()[0].astype(float))
    return {"operator": name, "dtype": dtype, "largest_difference": float(np.abs(found[0] - found[1]).max())}


class Saving:
    """ONNX Runtime whose sessions write the model that they run into a folder."""

    def __init__(self, ort: Any, folder: str):
        self.ort, self.path = ort, f"{folder}/model.onnx"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ort, name)

    def SessionOptions(self) -> Any:
        options, external = self.ort.SessionOptions(), "session.optimized_model_external_initializers"
        options.optimized_model_filepath = self.path
        options.add_session_config_entry(f"{external}_file_name", "weights.bin")
        options.add_session_config_entry(f"{external}_min_size_in_bytes", "1024")
        return options


def optimised(provider: str, path: str, kind: str, level: str) -> dict[str, Any]:
    """The operators, by type, of the model as ONNX Runtime runs it, and of our own run graph."""
    job = Job(path, provider, precision=kind, opt_level=level, **(bound(Path(path), 1) or {}))
    plan = prepare(job)
    with tempfile.TemporaryDirectory() as folder:
        saving = Saving(onnx_runtime(), folder)
        hosted = open_session(saving, plan, job.device.here(), lambda: "").hosted
        theirs = Counter(n.op_type for n in onnx.load(saving.path, load_external_data=False).graph.node)
    run = run_graph(precision(plan.graph, kind), RUNTIMES[job.runtime], LEVELS[level])
    ours = Counter(short_type(o.type) for o in run.operators)
    return {
        "model": Path(path).name, "precision": kind, "level": level, "ort": theirs, "ours": ours,
        "only_ort": theirs - ours, "only_ours": ours - theirs, "fused_convolutions": theirs["FusedConv"],
        "on_host_before_fusion": Counter(type for _, type in hosted),
    }  # fmt: skip


def measured(provider: str, model: Path | bytes, name: str, terms: Mapping[str, Any]) -> dict[str, Any]:
    """A measurement as plain data; `name`: what it calls the model."""
    m = measure(Job(model, provider, **terms))
    return dict(json.loads(files.write(replace(m, subject=replace(m.subject, name=name)))))


@cache
def proto(path: Path) -> onnx.ModelProto:
    """A model without the weights that lie outside its file."""
    return onnx.load(path, load_external_data=False)


def bound(path: Path, batch: int) -> dict[str, Any] | None:
    """What the open dimensions of a model are: the batch, and 128; None where the batch is fixed to another."""
    graph = proto(path).graph
    stored = {t.name for t in graph.initializer}
    shapes = [i.type.tensor_type.shape.dim for i in graph.input if i.name not in stored]
    names = {d.dim_param for dims in shapes for d in dims if d.dim_param}
    leading = {dims[0].dim_param for dims in shapes if dims and not dims[0].HasField("dim_value")}
    if batch > 1 and not leading:
        return None
    dims = dict.fromkeys(names - leading, DIM) | dict.fromkeys(leading - {""}, batch)
    return {"dims": dims, "batch": batch} if "" in leading else {"dims": dims}


def is_half(path: Path) -> bool:
    """Whether a model is stored in half precision."""
    return any(t.data_type == t.FLOAT16 for t in proto(path).graph.initializer)


def size(path: Path) -> int:
    """Bytes of a model's weights."""
    return sum(map(bytes_of, proto(path).graph.initializer))


def smoke(run: Run) -> None:
    """What this machine is, one operator at a time, and one model measured in every way."""
    ort = onnx_runtime()  # here, no session is opened with it
    found: dict[str, Any] = {
        "onnxperf": onnxperf.__version__, "python": sys.version, "platform": platform.platform(),
        "onnxruntime": ort.__version__, "providers": ort.get_available_providers(), "measurement": None,
    }  # fmt: skip
    if smi := shutil.which("nvidia-smi"):
        asked = [smi, f"--query-gpu={QUERY}", "--format=csv"]
        found["nvidia-smi"] = subprocess.run(asked, capture_output=True, text=True, timeout=30).stdout
    tasks = {f"one_node {name} {dtype}": (name, dtype) for dtype in ("float", "float16") for name in NODES}
    found["nodes"] = [node for _, node in run.apart(one_node, tasks)]
    run.write("smoke", found)
    terms = {"iterations": RUNS, "include_transfers": run.provider == "cuda"}
    for _, m in run.apart(measured, {"smoke": (parsed("smoke", SMOKE), "smoke", terms)}, MODEL_S):
        run.write("smoke", found | {"measurement": m})


def graphs(run: Run) -> None:
    """The operators of optimised models, ONNX Runtime's and ours, and the difference."""
    tasks = {
        f"optimised {path} {kind} {level}": (str(path), kind, level)
        for level in ("all", "extended", "basic")
        for kind in ("keep", "fp16")
        for path in run.models
        if size(path) <= LARGE and not (kind == "fp16" and is_half(path))
    }
    run.write("graphs", [row for _, row in run.apart(optimised, tasks)])


def models(run: Run) -> None:
    """Every model at several batches and precisions, where the batch is 1 operators one by one as well."""
    tasks = {}
    for large in (False, True):
        for batch, kind in run.passes:
            for path in (p for p in run.models if (size(p) > LARGE) == large):
                dims, stored = bound(path, batch), "keep" if is_half(path) else kind
                if dims is not None and (stored == kind or kind == run.passes[0][1]):
                    terms = {"precision": stored, "profile": batch == 1, "iterations": RUNS, "duration_s": RUN_S}
                    terms |= {"allow_host": True, **dims}
                    tasks[f"{path.name} {stored} batch {batch}"] = path, path.name, terms
    for task, m in run.apart(measured, tasks, MODEL_S):
        file = f"measurements-{m['setting']['precision']}"
        run.measured.setdefault(file, []).append(m)
        run.write(file, {"measurements": run.measured[file]})
        print(f"  {task}: {m['seconds'] * 1e3:.3f} ms", file=sys.stderr, flush=True)


def calibrate(run: Run) -> None:
    """The suite of `onnxperf calibrate`, its measurements, and the device file that it writes."""
    with tempfile.TemporaryDirectory() as folder:
        kept, device, said = (Path(folder, name) for name in ("kept", "device.toml", "said.txt"))
        asked = [sys.executable, "-m", "onnxperf", "calibrate", "--provider", run.provider]
        asked += ["--keep", str(kept), "-o", str(device)]
        with said.open("w", encoding="utf-8") as log:
            try:
                code = subprocess.run(asked, stdout=log, stderr=log, timeout=max(run.left, 0.01)).returncode
            except subprocess.TimeoutExpired:
                code = -9
        found: dict[str, Any] = {
            "code": code,
            "output": said.read_text(encoding="utf-8")[-20_000:],
            "device_file": device.read_text(encoding="utf-8") if device.is_file() else None,
            "measurements": [json.loads(p.read_text(encoding="utf-8")) for p in sorted(kept.glob("*.json"))],
        }
    run.write("calibration", found)
    if code:
        run.fail("calibrate", found["output"][-300:] or "no time left")


STEPS: dict[str, Callable[[Run], None]] = {"smoke": smoke, "graphs": graphs, "models": models, "calibrate": calibrate}


def main(run: Run, budget: float, steps: list[str]) -> None:
    """Do the steps, each until its share of the budget is spent; what one leaves is the next one's."""
    start = time.monotonic()
    run.out.mkdir(parents=True, exist_ok=True)
    for path in [*run.models]:
        try:
            size(path)
        except Exception as e:
            run.fail(path.name, e)
            run.models.remove(path)
    run.models.sort(key=size)
    for name in steps:
        run.end = start + budget * SHARES["calibrate" if name == steps[-1] else name]
        began = time.monotonic()
        print(f"{name}: {run.left:.0f} s", file=sys.stderr, flush=True)
        try:
            STEPS[name](run)
        except Exception as e:
            run.fail(name, e)
        run.took[name] = round(time.monotonic() - began, 1)
        measured = {file: len(found) for file, found in run.measured.items()}
        run.write("summary", {"seconds": run.took, "measured": measured, "failed": run.failed})


def unpack(results: Path, out: Path) -> None:
    """Write the measurements in the files of results one by one, for `validate --data` and `calibrate --from`."""
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(results.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        for i, item in enumerate(data.get("measurements", []) if isinstance(data, dict) else []):
            m = files.parse(json.dumps(item))
            named = f"{path.stem}-{i:03}-{Path(m.subject.name).stem}-b{m.setting.batch}"
            write_file(str(out / f"{re.sub(r'[^A-Za-z0-9._-]', '_', named)}.json"), files.write(m) + "\n")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = arguments.add_argument
    add("models", nargs="*", type=Path, help="ONNX files instead of the samples")
    add("--out", type=Path, required=True, help="folder for the results")
    add("--budget", type=float, default=540.0, help="seconds for everything (540)")
    add("--provider", choices=tuple(DEVICES), default="cuda")
    add("--precisions", nargs="+", choices=KINDS, help="of models (all; on a processor fp32)")
    add("--steps", nargs="+", choices=tuple(STEPS), default=[*STEPS], help="only these, in this order")
    add("--unpack", type=Path, metavar="RESULTS", help="only write measurements there as single files")
    given = arguments.parse_args()
    if given.unpack:
        unpack(given.unpack, given.out)
    else:
        wanted = given.precisions or (KINDS if given.provider == "cuda" else ["fp32"])
        passes = [(batch, kind) for batch, kind in PASSES if kind in wanted]
        run = Run(given.out, given.provider, given.models or sorted(Path(__file__).parent.glob("*.onnx")), passes)
        main(run, given.budget, given.steps)

"""Learn what can be learned of a machine with one NVIDIA GPU in ten minutes, step by step, what matters most first.

    python samples/measure_gpu.py --out results --budget 540
    python samples/measure_gpu.py --unpack results --out measurements
    onnxperf validate --data measurements

smoke: whether ONNX Runtime really runs on the GPU, one operator at a time. graphs: which operators are left when ONNX
Runtime has optimised a model, beside those of our own run graph. models: every sample model, measured. calibrate: the
suite of `onnxperf calibrate`. Each step writes a JSON file or two into --out; what fails or finds no time is listed in
summary.json, and the rest goes on. --provider cpu does the same on the processor, to try it out. Linux only.
"""

import argparse
import json
import multiprocessing
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import parser

import onnxperf
from onnxperf.graph import load
from onnxperf.measure import files, model_file, session
from onnxperf.measure.job import Job
from onnxperf.measure.plan import prepare
from onnxperf.measure.run import measure
from onnxperf.output import write_file
from onnxperf.passes import precision
from onnxperf.runtimes import LEVELS, RUNTIMES, run_graph

SAMPLES = Path(__file__).parent
SHARES = {"smoke": 0.15, "graphs": 0.35, "models": 0.75, "calibrate": 0.97}  # of the budget, up to the step's end
PASSES = (
    (1, "tf32"), (1, "fp16"), (1, "fp32"), (8, "tf32"), (8, "fp16"), (32, "tf32"), (32, "fp16"), (8, "fp32"),
    (32, "fp32"),
)  # fmt: skip
DIM = 128  # of open dimensions that are no batch
LARGE = 2e9  # bytes of weights beyond which a model comes last, and is not optimised into a file
RUNS, RUN_S, MODEL_S = 100, 1.0, 60.0  # counted runs, their time, and the most that one model gets
RUNTIME = {"cuda": "ort-cuda", "cpu": "ort-cpu"}
ORT_LEVELS = {"basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED", "all": "ORT_ENABLE_ALL"}
QUERY = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,power.draw,temperature.gpu,mig.mode.current"

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
    "Resize": "(T[1,16,8,8] x, float[4] y) => (T[1,16,a,b] z) { z = Resize(x, , y) }",
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


class OutOfTime(Exception):
    """A limit of time was reached."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in what runs longer."""

    def stop(*_: object) -> None:
        raise OutOfTime(f"it took more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def apart(run: Run, what: Callable[..., Any], tasks: list[tuple[Any, ...]]) -> Iterator[Any]:
    """Results of tasks, done in a process of its own, and in another after one that ends it."""
    left, context = [*tasks], multiprocessing.get_context("spawn")
    while left:
        ours, theirs = context.Pipe()
        process = context.Process(target=perform, args=(what, run.provider, left, theirs), daemon=True)
        process.start()
        theirs.close()
        try:
            while left:
                if run.left <= 0 or not ours.poll(run.left):
                    run.fail(what.__name__, f"no time left for {len(left)} of {len(tasks)}, from {left[0][0]} on")
                    return
                result, why = ours.recv()
                task = left.pop(0)
                if why is None:
                    yield result
                else:
                    run.fail(" ".join((what.__name__, *map(str, task))), why)
        except EOFError:
            run.fail(f"{what.__name__} {left.pop(0)}", "it ended the process")
        finally:
            process.kill()
            process.join()


def perform(what: Callable[..., Any], provider: str, tasks: list[tuple[Any, ...]], pipe: Any) -> None:
    """The process of `apart`."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    for task in tasks:
        try:
            pipe.send((what(onnxruntime, provider, *task), None))
        except Exception as e:
            pipe.send((None, f"{type(e).__name__}: {e}"[:500]))


def opened(ort: Any, provider: str, source: Any, options: Any) -> Any:
    """A session that does not fall back to the processor without a word."""
    cuda = provider == "cuda"
    if cuda:
        session.load_cuda(ort)
    # beside CUDA the processor is not named: ONNX Runtime refuses to name it and to do without it at once
    providers = [(session.CUDA, {"use_tf32": "0"})] if cuda else [session.CPU]
    found = ort.InferenceSession(source, options, providers=providers, enable_fallback=0)
    if cuda and session.CUDA not in found.get_providers():
        raise RuntimeError("the CUDA provider could not be loaded")
    return found


def one_node(ort: Any, provider: str, name: str, dtype: str) -> dict[str, Any]:
    """A model of one operator on the provider alone: how far its result is from the processor's."""
    text = NODES[name].replace("T[", f"{dtype}[")
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {name} {text}').SerializeToString()
    options = ort.SessionOptions()
    if provider == "cuda":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    tested, known = opened(ort, provider, model, options), opened(ort, "cpu", model, ort.SessionOptions())
    rng, kinds = (
        np.random.default_rng(0),
        {"tensor(int64)": "int64", "tensor(bool)": "bool", "tensor(float16)": "float16"},
    )
    feeds = {
        i.name: np.ones(4, "float32")
        if i.shape == [4]
        else rng.normal(size=i.shape).astype(kinds.get(i.type, "float32"))
        for i in tested.get_inputs()
    }
    got, expected = (s.run(None, feeds)[0].astype(float) for s in (tested, known))
    return {"operator": name, "dtype": dtype, "largest_difference": float(np.abs(got - expected).max())}


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


def optimised(ort: Any, provider: str, path: str, kind: str, level: str) -> dict[str, Any]:
    """The operators, by type, of the model as ONNX Runtime runs it, and of our own run graph."""
    terms = bound(Path(path), 1)
    plan = prepare(Job(path, provider, precision=kind, opt_level=level, **terms))
    with tempfile.TemporaryDirectory() as folder:
        saving = Saving(ort, folder)
        found = session.open_session(saving, plan, 0, lambda: "")
        theirs = Counter(n.op_type for n in onnx.load(saving.path, load_external_data=False).graph.node)
    run = run_graph(precision(load(path, **terms), kind), RUNTIMES[RUNTIME[provider]], LEVELS[level])
    ours = Counter(o.type.rpartition("::")[2] for o in run.operators)
    return {
        "model": Path(path).name, "precision": kind, "level": level, "ort": theirs, "ours": ours,
        "only_ort": theirs - ours, "only_ours": ours - theirs, "fused_convolutions": theirs["FusedConv"],
        "on_host_before_fusion": Counter(type for _, type in found.hosted),
    }  # fmt: skip


def bound(path: Path, batch: int) -> dict[str, Any]:
    """What the open dimensions of a model are: the batch, and 128. Raises ValueError where the batch is fixed."""
    model = onnx.load(path, load_external_data=False)
    stored = {t.name for t in model.graph.initializer}
    shapes = [i.type.tensor_type.shape.dim for i in model.graph.input if i.name not in stored]
    names = {d.dim_param for dims in shapes for d in dims if d.dim_param}
    leading = {dims[0].dim_param for dims in shapes if dims and not dims[0].HasField("dim_value")}
    if batch > 1 and not leading:
        raise ValueError("the batch is fixed")
    dims = dict.fromkeys(names - leading, DIM) | dict.fromkeys(leading - {""}, batch)
    return {"dims": dims, "batch": batch} if "" in leading else {"dims": dims}


def is_half(path: Path) -> bool:
    """Whether a model is stored in half precision."""
    return any(t.data_type == t.FLOAT16 for t in onnx.load(path, load_external_data=False).graph.initializer)


def size(path: Path) -> int:
    """Bytes of a model's weights."""
    return sum(map(model_file.bytes_of, onnx.load(path, load_external_data=False).graph.initializer))


def smoke(run: Run) -> None:
    """What this machine is, one operator at a time, and one model measured in every way."""
    import onnxruntime  # here, no session is opened with it

    found: dict[str, Any] = {
        "onnxperf": onnxperf.__version__, "python": sys.version, "platform": platform.platform(),
        "onnxruntime": onnxruntime.__version__, "providers": onnxruntime.get_available_providers(),
        "nodes": [], "measurement": None,
    }  # fmt: skip
    if smi := shutil.which("nvidia-smi"):
        asked = [smi, f"--query-gpu={QUERY}", "--format=csv"]
        found["nvidia-smi"] = subprocess.run(asked, capture_output=True, text=True, timeout=30).stdout
    found["nodes"].extend(apart(run, one_node, [(name, dtype) for dtype in ("float", "float16") for name in NODES]))
    run.write("smoke", found)
    text = "(float[256,1024] x, float[1024,1024] y) => (float[256,1024] z) { h = MatMul(x, y) z = Relu(h) }"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> smoke {text}').SerializeToString()
    with limited(min(MODEL_S, run.left)):
        m = measure(Job(model, run.provider, iterations=RUNS, include_transfers=run.provider == "cuda"))
    found["measurement"] = json.loads(files.write(m))
    run.write("smoke", found)


def graphs(run: Run) -> None:
    """The operators of optimised models, ONNX Runtime's and ours, and the difference."""
    tasks = [
        (str(path), "keep" if is_half(path) else kind, level)
        for kind, level in (
            ("keep", "all"),
            ("fp16", "all"),
            *((k, v) for v in ("extended", "basic") for k in ("keep", "fp16")),
        )
        for path in run.models
        if size(path) <= LARGE and not (kind == "fp16" and is_half(path))
    ]
    rows: list[dict[str, Any]] = []
    try:
        rows.extend(apart(run, optimised, tasks))
    finally:
        run.write("graphs", rows)


def models(run: Run) -> None:
    """Every model at several batches and precisions, where the batch is 1 operators one by one as well."""
    small, large = ([p for p in run.models if (size(p) > LARGE) == last] for last in (False, True))
    for path, (batch, kind) in ((p, at) for group in (small, large) for at in run.passes for p in group):
        if is_half(path):
            if kind != run.passes[0][1]:
                continue
            kind = "keep"
        what = f"{path.name} {kind} batch {batch}"
        try:
            job = Job(
                path, run.provider, precision=kind, iterations=RUNS, duration_s=RUN_S, allow_host=True,
                profile=batch == 1, **bound(path, batch),
            )  # fmt: skip
        except ValueError:
            continue
        if run.left <= 0:
            run.fail(what, "no time left")
            continue
        try:
            with limited(min(MODEL_S, run.left)):
                m = measure(job)
        except Exception as e:
            run.fail(what, e)
            continue
        measured = run.measured.setdefault(f"measurements-{kind}", [])
        measured.append(json.loads(files.write(replace(m, subject=replace(m.subject, name=path.name)))))
        run.write(f"measurements-{kind}", {"measurements": measured})
        print(f"  {what}: {m.seconds * 1e3:.3f} ms", file=sys.stderr, flush=True)


def calibrate(run: Run) -> None:
    """The suite of `onnxperf calibrate`, its measurements, and the device file that it writes."""
    with tempfile.TemporaryDirectory() as folder:
        kept, device = Path(folder, "kept"), Path(folder, "device.toml")
        asked = [sys.executable, "-m", "onnxperf", "calibrate", "--provider", run.provider, "--keep", str(kept)]
        process = subprocess.Popen(
            [*asked, "-o", str(device)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said = process.communicate(timeout=max(run.left, 0.01))[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said = process.communicate()[0] + "\n(stopped: no time left)"
        found = {
            "code": process.returncode,
            "output": said[-20_000:],
            "device_file": device.read_text(encoding="utf-8") if device.is_file() else None,
            "measurements": [json.loads(p.read_text(encoding="utf-8")) for p in sorted(kept.glob("*.json"))],
        }
    run.write("calibration", found)
    if process.returncode:
        run.fail("calibrate", said[-300:])


STEPS: dict[str, Callable[[Run], None]] = {"smoke": smoke, "graphs": graphs, "models": models, "calibrate": calibrate}


def main(run: Run, budget: float, steps: list[str]) -> None:
    """Do the steps, each until its share of the budget is spent; what one leaves is the next one's."""
    start = time.monotonic()
    run.out.mkdir(parents=True, exist_ok=True)
    sizes = {}
    for path in run.models:
        try:
            sizes[path] = size(path)
        except Exception as e:
            run.fail(path.name, e)
    run.models = sorted(sizes, key=lambda path: sizes[path])
    for name in steps:
        last = name == steps[-1]
        run.end = start + budget * (SHARES["calibrate"] if last else SHARES[name])
        began = time.monotonic()
        print(f"{name}: {run.left:.0f} s", file=sys.stderr, flush=True)
        try:
            STEPS[name](run)
        except Exception as e:
            run.fail(name, e)
        run.took[name] = round(time.monotonic() - began, 1)
        counts = {file: len(found) for file, found in run.measured.items()}
        run.write("summary", {"seconds": run.took, "measured": counts, "failed": run.failed})


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
    arguments.add_argument("models", nargs="*", type=Path, help="ONNX files instead of the samples")
    arguments.add_argument("--out", type=Path, required=True, help="folder for the results")
    arguments.add_argument("--budget", type=float, default=540.0, help="seconds for everything (540)")
    arguments.add_argument("--provider", choices=tuple(RUNTIME), default="cuda")
    kinds = ("tf32", "fp16", "fp32")
    arguments.add_argument("--precisions", nargs="+", choices=kinds, help="of models (all; on a processor fp32)")
    arguments.add_argument(
        "--steps", nargs="+", choices=tuple(STEPS), default=[*STEPS], help="only these, in this order"
    )
    arguments.add_argument(
        "--unpack", type=Path, metavar="RESULTS", help="only write measurements there as single files"
    )
    given = arguments.parse_args()
    if given.unpack:
        unpack(given.unpack, given.out)
    else:
        every = given.models or sorted(SAMPLES.glob("*.onnx"))
        wanted = given.precisions or (kinds if given.provider == "cuda" else ["fp32"])
        passes = [(batch, kind) for batch, kind in PASSES if kind in wanted]
        main(Run(given.out, given.provider, every, passes), given.budget, given.steps)

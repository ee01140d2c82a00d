"""Time every kernel of whole models on this machine's NVIDIA GPU: PyTorch, eager and compiled, and ONNX Runtime.

    python samples/measure_kernels.py graphs --out graphs  # the models as ONNX, on any machine
    python samples/measure_kernels.py eager --out results --budget 300
    python samples/measure_kernels.py compile --out results --budget 300 --share 0/4
    python samples/measure_kernels.py ort --graphs graphs --out results --budget 300
    python samples/measure_kernels.py table --out results --gpu h100-sxm --source "measured with ..."

Models have random weights: those of timm by name, of transformers by configuration. Kernel times are CUPTI's, medians
of three runs; several processes may share one GPU, as each waits for its turn to run. A line of JSON a run goes to
OUT/WHAT-SHARE.jsonl.gz as it is measured. `table` makes of them runs.csv, and kernels.csv.gz of every kernel of eager
PyTorch by its operator, and of ONNX Runtime by the node during which it was launched. --cpu tries the script without a
GPU (no kernels, then).
"""

import argparse
import csv
import fcntl
import gzip
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

#: Side of the square images that a model of timm takes, by its name.
VISION = {
    "repvgg_b0": 224, "beit_base_patch16_224": 224, "regnetx_032": 224, "pvt_v2_b2": 224, "mnasnet_100": 224,
    "levit_256": 224, "resnest50d": 224, "cait_s24_224": 224, "ese_vovnet39b": 224, "twins_svt_small": 224,
    "convnextv2_tiny": 224, "davit_tiny": 224, "fbnetc_100": 224, "xcit_small_12_p16_224": 224, "cspresnet50": 224,
    "maxvit_tiny_tf_224": 224, "mobileone_s1": 224, "convit_small": 224, "rexnet_100": 224, "pit_s_224": 224,
    "seresnet50": 224, "swinv2_tiny_window8_256": 256, "dpn68b": 224, "eca_nfnet_l0": 224, "edgenext_small": 256,
}  # fmt: skip
LANGUAGE = ("opt", "albert", "pythia", "electra", "llama", "whisper")
TOKENS = 128
CONFIGS = [("amp", "nchw", 32), ("keep", "nchw", 32), ("amp", "nchw", 1), ("amp", "nhwc", 32)]
TRAINED = ("repvgg_b0", "beit_base_patch16_224", "regnetx_032", "seresnet50", "opt", "pvt_v2_b2")
RUNS, WARM = 3, 4
DEVICE = "cuda"


def language(name: str) -> torch.nn.Module:
    """A model of transformers with random weights."""
    import transformers as t

    wide = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
    if name == "opt":
        return t.OPTForCausalLM(t.OPTConfig(hidden_size=768, num_hidden_layers=12, ffn_dim=3072))
    if name == "albert":
        return t.AlbertModel(t.AlbertConfig(embedding_size=128, **wide))
    if name == "electra":
        return t.ElectraModel(
            t.ElectraConfig(embedding_size=256, hidden_size=256, num_attention_heads=4, intermediate_size=1024)
        )
    if name == "pythia":
        return t.GPTNeoXForCausalLM(t.GPTNeoXConfig(vocab_size=50304, **wide))
    if name == "llama":
        sizes = {**wide, "intermediate_size": 2048, "num_key_value_heads": 4}
        return t.LlamaForCausalLM(t.LlamaConfig(vocab_size=32000, **sizes))
    return t.models.whisper.modeling_whisper.WhisperEncoder(t.WhisperConfig())


class Logits(torch.nn.Module):
    """The first output of a model, which keeps no cache."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One tensor in, one out."""
        keeps = hasattr(self.model.config, "use_cache") and "Whisper" not in type(self.model).__name__
        options = {"use_cache": False} if keeps else {}
        return self.model(x, **options)[0]


def build(name: str) -> torch.nn.Module:
    """A model by its name, for inference."""
    torch.manual_seed(0)
    if name in VISION:
        import timm

        return timm.create_model(name).eval()
    return Logits(language(name).eval()).eval()


def inputs(name: str, batch: int) -> torch.Tensor:
    """Random inputs of a batch."""
    if name in VISION:
        return torch.randn(batch, 3, VISION[name], VISION[name])
    if name == "whisper":
        return torch.randn(batch, 80, 3000)
    return torch.randint(0, 30000, (batch, TOKENS))


@contextmanager
def turn(lock: Path) -> Iterator[None]:
    """Wait until no other process measures."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sync() -> None:
    """Wait for the GPU."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed(run: Callable[[], object], least: int = 7) -> float:
    """Median microseconds of a run, from call to the end of its work."""
    took = []
    for _ in range(least):
        start = time.perf_counter()
        run()
        sync()
        took.append(time.perf_counter() - start)
    return statistics.median(took) * 1e6


def profiled(run: Callable[[], object], shapes: bool = False) -> dict[str, Any]:
    """Kernels of three runs: [name, us, launched at, start at, operator] each, and the operators by their number."""
    activities = [torch.profiler.ProfilerActivity.CPU] + [torch.profiler.ProfilerActivity.CUDA] * (DEVICE == "cuda")
    with torch.profiler.profile(activities=activities, record_shapes=shapes) as profile:
        for _ in range(RUNS):
            with torch.profiler.record_function("one_run"):
                run()
                sync()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    operators, launches, kernels, windows = {}, {}, [], []
    for e in events:
        kind, args = e.get("cat"), e.get("args", {})
        if kind == "cpu_op" and shapes:
            operators[args.get("External id")] = [
                e["name"], args.get("Input Dims"), args.get("Input type"), args.get("Concrete Inputs"),
            ]  # fmt: skip
        elif kind in ("cuda_runtime", "cuda_driver"):
            launches[args.get("correlation")] = e["ts"]
        elif kind in ("kernel", "gpu_memcpy", "gpu_memset"):
            kernels.append(e)
        elif kind == "user_annotation" and e["name"] == "one_run":
            windows.append((e["ts"], e["ts"] + e["dur"]))
    runs = []
    for start, end in sorted(windows):
        rows = sorted((e for e in kernels if start <= e["ts"] <= end), key=lambda e: float(e["ts"]))
        runs.append([
            [e["name"][:200], e["dur"], launches.get(a.get("correlation")), e["ts"], a.get("External id")]
            for e in rows for a in (e["args"],)
        ])  # fmt: skip
    used = {k[4] for r in runs for k in r}
    return {"runs": runs, "operators": {k: v for k, v in operators.items() if k in used}, "windows": sorted(windows)}


def summed(profile: dict[str, Any]) -> float:
    """Median over runs of the sum of kernel microseconds."""
    return statistics.median(sum(k[1] for k in run) for run in profile["runs"]) if profile["runs"] else 0.0


class Log:
    """What is measured goes here, line by line."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path

    def write(self, **row: Any) -> None:
        """One run. Of three like runs the median times are kept."""
        profile = row.pop("profile", None)
        if profile:
            row["kernels_us"] = summed(profile)
            runs = profile.pop("runs")
            alike = len({tuple(k[0] for k in r) for r in runs}) == 1
            kept = runs[-1] if runs else []
            if alike:
                for i, k in enumerate(kept):
                    k[1] = statistics.median(r[i][1] for r in runs)
            row |= {"kernels": kept, "alike": alike, **profile}
        with gzip.open(self.path, "at") as file:
            file.write(json.dumps(row, separators=(",", ":"), default=str) + "\n")
        told = {k: v for k, v in row.items() if k not in ("kernels", "operators", "windows", "nodes")}
        print(json.dumps(told), file=sys.stderr, flush=True)


def autocast(precision: str) -> Any:
    """The context that a precision means."""
    if precision == "keep":
        return nullcontext()
    return torch.autocast(DEVICE, torch.float16)


def eager(name: str, log: Log, lock: Path) -> None:
    """A model in eager PyTorch, in every configuration."""
    plain = build(name).to(DEVICE)
    for precision, layout, batch in CONFIGS:
        if layout == "nhwc" and name not in VISION:
            continue
        form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
        model = plain.to(memory_format=form) if name in VISION else plain
        x = inputs(name, batch).to(DEVICE)
        x = x.to(memory_format=form) if name in VISION else x

        def run(model: Any = model, x: Any = x, precision: str = precision) -> None:
            with torch.no_grad(), autocast(precision):
                model(x)

        with turn(lock):
            for _ in range(WARM):
                run()
            sync()
            wall = timed(run)
            profile = profiled(run, shapes=True)
        log.write(
            runtime="torch-eager", model=name, precision=precision, layout=layout, batch=batch, run_us=wall,
            profile=profile,
        )  # fmt: skip
    if name in TRAINED:
        train(name, log, lock)


def train(name: str, log: Log, lock: Path) -> None:
    """A training step: forward, cross-entropy, backward, update by SGD with momentum; under autocast scaled."""
    for precision in ("amp", "keep"):
        model = build(name).to(DEVICE).train()
        x = inputs(name, 32).to(DEVICE)
        target = torch.randint(0, 1000, (32,) if name in VISION else tuple(x.shape), device=DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        scaler = torch.amp.GradScaler(DEVICE, enabled=precision == "amp")

        def run(model: Any = model, x: Any = x, target: Any = target, o: Any = optimizer, s: Any = scaler,
                precision: str = precision) -> None:  # fmt: skip
            o.zero_grad(set_to_none=True)
            with autocast(precision):
                y = model(x)
                loss = torch.nn.functional.cross_entropy(y.flatten(0, -2), target.flatten())
            s.scale(loss).backward()
            s.step(o)
            s.update()

        with turn(lock):
            for _ in range(WARM):
                run()
            sync()
            if DEVICE == "cuda":
                torch.cuda.reset_peak_memory_stats()
            wall = timed(run)
            peak = torch.cuda.max_memory_allocated() / 1e6 if DEVICE == "cuda" else 0
            profile = profiled(run, shapes=True)
        log.write(
            runtime="torch-eager", model=name, precision=precision, layout="nchw", step="momentum", batch=32,
            run_us=wall, peak_MB=peak, profile=profile,
        )  # fmt: skip


def compiled(name: str, log: Log, lock: Path) -> None:
    """A model under torch.compile."""
    model = build(name).to(DEVICE)
    for precision in ("amp", "keep"):
        torch._dynamo.reset()
        fast = torch.compile(model, dynamic=False)
        x = inputs(name, 32).to(DEVICE)

        def run(fast: Any = fast, x: Any = x, precision: str = precision) -> None:
            with torch.no_grad(), autocast(precision):
                fast(x)

        run()
        with turn(lock):
            for _ in range(WARM):
                run()
            sync()
            wall = timed(run)
            profile = profiled(run, shapes=True)
        log.write(runtime="torch-compile", model=name, precision=precision, batch=32, run_us=wall, profile=profile)


def ort(name: str, log: Log, lock: Path, graphs: Path) -> None:
    """A model under ONNX Runtime: kernels, and when the host was at which node."""
    from onnxperf.measure.environment import onnx_runtime
    from onnxperf.measure.job import Job
    from onnxperf.measure.plan import prepare
    from onnxperf.measure.session import open_session

    file = gzip.decompress((graphs / f"{name}.onnx.gz").read_bytes())
    for precision, batch in (("tf32", 32), ("fp16", 32), ("tf32", 1), ("fp16", 1)):
        job = Job(file, DEVICE, precision="keep" if DEVICE == "cpu" else precision, batch=batch, dims=None)
        device, plan = job.device.here(), prepare(job)
        with turn(lock):
            session = open_session(onnx_runtime(), plan, device, lambda: "")
            for _ in range(WARM):
                session.run()
            wall = 0.0 if DEVICE == "cpu" else timed(session.run, 15)
        with tempfile.TemporaryDirectory() as folder, turn(lock):
            watched = open_session(onnx_runtime(), replace(plan, profile_to=f"{folder}/p"), device, lambda: "")
            for _ in range(WARM):
                watched.run()
            sync()
            profile = profiled(watched.run)
            events = json.loads(Path(watched.inference.end_profiling()).read_text())
        last = [e for e in events if e["name"] == "model_run"][-1]
        nodes = [
            [e["name"], e["args"].get("op_name"), e["ts"], e["dur"], e["args"].get("input_type_shape"),
             e["args"].get("output_type_shape")]
            for e in events
            if e.get("cat") == "Node" and e["name"].endswith("_kernel_time") and e["ts"] >= last["ts"]
        ]  # fmt: skip
        log.write(
            runtime="ort-cuda", model=name, precision=precision, batch=batch, run_us=wall, hosted=session.hosted,
            model_run=[last["ts"], last["dur"]], nodes=nodes, profile=profile,
        )  # fmt: skip
        del session, watched


def export(out: Path) -> None:
    """The models as ONNX files with an open batch, without weights."""
    from onnxperf.export.from_torch import proto

    out.mkdir(parents=True, exist_ok=True)
    for name in (*VISION, *LANGUAGE):
        file = out / f"{name}.onnx.gz"
        if file.is_file():
            continue
        try:
            data = proto(build(name), inputs(name, 2), open_batch=True).SerializeToString()
            file.write_bytes(gzip.compress(data, 9, mtime=0))
            print(name, len(data), flush=True)
        except Exception as e:
            print(f"{name}: {type(e).__name__}: {str(e)[:300]}", file=sys.stderr, flush=True)


RUN_COLUMNS = (
    "runtime", "release", "model", "graph", "precision", "layout", "mode", "step", "search", "batch", "side",
    "kernels", "kernels_us", "run_us", "peak_MB", "gpu", "source",
)  # fmt: skip
KERNEL_COLUMNS = ("op", "shapes", "types", "arguments", "layout", "kernel", "launches", "us", "seen")
RELEASES = {"torch-eager": "2.11", "torch-compile": "2.11", "ort-cuda": "1.30"}
STEADY = 0.1  # share of the time by which like kernels of a run may exceed the quickest of them


def at_node(row: dict[str, Any]) -> list[int]:
    """The node during which the host launched each kernel, by position.

    Both clocks count microseconds from another start; the shift is the one by which most launches fall inside a node.
    """
    launched = np.array([k[2] or k[3] for k in row["kernels"]], dtype=float)
    start, last = (
        np.array([n[2] for n in row["nodes"]], dtype=float),
        np.array([n[3] for n in row["nodes"]], dtype=float),
    )
    near = row["windows"][-1][0] - row["model_run"][0]

    def nodes(shift: float) -> tuple[int, np.ndarray]:
        at = launched - near - shift
        node = np.maximum(np.searchsorted(start, at, "right") - 1, 0)
        return int((at <= start[node] + last[node] + 1).sum()), node

    most = max(nodes(shift)[0] for shift in np.arange(-300, 301, 1.0))
    best = [shift for shift in np.arange(-300, 301, 1.0) if nodes(shift)[0] == most]
    return nodes(float(np.median(best)))[1].tolist()


def unsteady(row: dict[str, Any]) -> float:
    """The share of a run by which its kernels exceed the quickest ones of the same operator and shapes."""
    like = defaultdict(list)
    for k in row["kernels"]:
        like[k[0], str(row["operators"].get(str(k[4])))].append(k[1])
    return sum(sum(v) - min(v) * len(v) for v in like.values()) / sum(k[1] for k in row["kernels"])


def table(out: Path, gpu: str, source: str) -> None:
    """runs.csv and kernels.csv.gz of all that was measured, without what another process disturbed."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path in sorted(out.rglob("*.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            for line in file:
                row = json.loads(line)
                rows[tuple(row.get(c, "") for c in ("runtime", "model", "precision", "layout", "step", "batch"))] = row
    kept = {k: r for k, r in sorted(rows.items()) if r["runtime"] == "ort-cuda" or unsteady(r) <= STEADY}
    kept = {k: r for k, r in kept.items() if r["precision"] != "bf16"}
    print(f"{len(rows) - len(kept)} of {len(rows)} runs left out: unsteady, or in BF16 autocast", file=sys.stderr)
    seen: dict[tuple[str, ...], list[tuple[float, int]]] = defaultdict(list)
    with (out / "runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, RUN_COLUMNS, lineterminator="\n")
        writer.writeheader()
        for r in kept.values():
            name = f"{r['model']}@{VISION[r['model']]}" if r["model"] in VISION else r["model"]
            writer.writerow({
                "runtime": r["runtime"], "release": RELEASES[r["runtime"]], "model": r["model"],
                "graph": f"graphs/{name}.onnx.gz", "precision": r["precision"], "layout": r.get("layout", ""),
                "mode": "default" if r["runtime"] == "torch-compile" else "", "step": r.get("step", ""), "search": 0,
                "batch": r["batch"], "side": VISION.get(r["model"], ""), "kernels": len(r["kernels"]),
                "kernels_us": round(r["kernels_us"], 1), "run_us": "",
                "peak_MB": round(r["peak_MB"]) if "peak_MB" in r else "", "gpu": gpu, "source": source,
            })  # fmt: skip
            for key, us, launches in grouped(r):
                seen[key].append((us, launches))
    with gzip.GzipFile(out / "kernels.csv.gz", "wb", mtime=0) as raw:
        lines = [",".join(KERNEL_COLUMNS)]
        for key, times in sorted(seen.items()):
            us = statistics.median(t for t, _ in times)
            cells = [*key, str(times[0][1]), f"{us:.2f}", str(len(times))]
            lines.append(",".join('"' + c.replace('"', '""') + '"' if "," in c or '"' in c else c for c in cells))
        raw.write(("\n".join(lines) + "\n").encode())


def grouped(row: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], float, int]]:
    """What eager PyTorch's operators and ONNX Runtime's nodes took: key, microseconds and launches of each."""
    if row["runtime"] == "torch-compile":
        return
    places = at_node(row) if row["runtime"] == "ort-cuda" else [k[4] for k in row["kernels"]]
    by_place: dict[Any, list[Any]] = defaultdict(list)
    for place, k in zip(places, row["kernels"], strict=True):
        by_place[place].append(k)
    for place, kernels in by_place.items():
        if row["runtime"] == "ort-cuda":
            _, op, _, _, ins, _ = row["nodes"][place]
            shapes, types = [next(iter(i.values())) for i in ins], [next(iter(i)) for i in ins]
            texts = (f"ort::{op}", json.dumps(shapes), json.dumps(types), row["precision"], "nchw")
        elif (op := row["operators"].get(str(place))) is not None:
            dims, types, concrete = (json.dumps(x, separators=(",", ":")) for x in op[1:])
            texts = (op[0], dims, types, concrete if "conv" in op[0] else "", row["layout"])
        else:
            continue
        longest = max(kernels, key=lambda k: k[1])[0].removeprefix("void ").split("<")[0].split("(")[0]
        yield (*texts, longest), sum(k[1] for k in kernels), len(kernels)


def main() -> None:
    global DEVICE
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("graphs", "eager", "compile", "ort", "table"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--graphs", type=Path, default=Path("graphs"))
    parser.add_argument("--budget", type=float, default=300, help="Seconds after which no model is begun.")
    parser.add_argument("--share", default="0/1", help="2/4 takes every fourth model, from the third on.")
    parser.add_argument("--models", default="", help="Names, separated by commas, instead of all.")
    parser.add_argument("--gpu", default="", help="The card, for the table.")
    parser.add_argument("--source", default="", help="Versions and date, for the table.")
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    end = time.monotonic() + args.budget
    if args.cpu:
        DEVICE = "cpu"
    if args.what == "graphs":
        export(args.out)
        return
    if args.what == "table":
        table(args.out, args.gpu, args.source)
        return
    part, parts = map(int, args.share.split("/"))
    vision = list(VISION)
    every = [n for pair in zip(vision[::4], LANGUAGE, strict=False) for n in pair]
    names = args.models.split(",") if args.models else [*every, *(n for n in vision if n not in every)]
    log, lock = Log(args.out / f"{args.what}-{part}.jsonl.gz"), Path(tempfile.gettempdir()) / "measure_kernels.lock"
    for name in names[part::parts]:
        if time.monotonic() > end:
            print(f"no time for {name}", file=sys.stderr, flush=True)
            continue
        start = time.monotonic()
        try:
            if args.what == "ort":
                ort(name, log, lock, args.graphs)
            else:
                (eager if args.what == "eager" else compiled)(name, log, lock)
        except Exception as e:
            print(f"{name}: {type(e).__name__}: {str(e)[:500]}", file=sys.stderr, flush=True)
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
        print(f"{args.what} {name} took {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

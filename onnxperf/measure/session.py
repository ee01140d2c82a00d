"""A session of ONNX Runtime: how it is opened, what is bound to it, and its refusals in plain words."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from onnxperf.errors import EnvironmentFailure, Error, ModelError, printable
from onnxperf.measure.inputs import BIT_PATTERNS, Array, Feed, random
from onnxperf.measure.job import Plan
from onnxperf.measure.weights import NUMPY, Stored, prepare

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
TYPES = {"float": "float32", "double": "float64"}  # that ONNX Runtime calls otherwise
FULL = re.compile(r"out of memory|BFCArena|[Ff]ailed to allocate|bad_alloc|ALLOC_FAILED|bad allocation")
NEW = re.compile(r"Opset (\d+) is under development.*domain (\S+) is till opset (\d+)", re.DOTALL)
NEW_IR = re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)")
DEVICE = re.compile(r"CUDA (failure|error)|CUDNN\w* failure|CUBLAS\w* failure|CUDA_ERROR|device-side")
#: What stands in front of the reason: its number, and the place in ONNX Runtime's sources.
PREFIX = re.compile(r"^(\[ONNXRuntimeError\] : \d+ : \w+ : )?(/\S+:\d+ \S.*?\) (?=[^\s:(),&*>]+ ))?", re.DOTALL)


class OutOfMemory(EnvironmentFailure):
    """The device has no room for the model, its weights and what it computes."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A session and what it was made with. seconds: that took; hosted: names and types of the nodes on the CPU beside a
    GPU, as far as the session says; options: of session and provider.
    """

    ort: Any
    session: Any
    seconds: float
    options: tuple[tuple[str, str], ...]
    hosted: tuple[tuple[str, str], ...]
    stored: Stored = field(repr=False)  # kept alive: the session reads them in place


def open_session(ort: Any, plan: Plan, stream: int, says: Callable[[], str]) -> Opened:
    """Open the model. stream: the CUDA stream to compute on; says: what ONNX Runtime has logged.

    Raises ModelError for what it refuses, EnvironmentFailure where there is no such device, or no room on it.
    """
    source, stored = prepare(plan)
    options, chosen = _options(ort, plan, stored)
    providers: list[Any] = [CPU]
    if plan.gpu:
        if CUDA not in ort.get_available_providers():
            raise EnvironmentFailure(
                "the ONNX Runtime that is installed knows no CUDA: uninstall onnxruntime, install onnxruntime-gpu"
            )
        load_cuda(ort)
        given = _cuda_options(plan, stream)
        providers.insert(0, (CUDA, given))
        chosen |= {k: v for k, v in given.items() if k != "user_compute_stream"}
    start = time.perf_counter()
    try:
        session = ort.InferenceSession(
            source, options, providers=providers, enable_fallback=0, read_config_from_model=0
        )
    except Exception as e:
        raise refusal(e, plan.name, ort.__version__) from None
    seconds = time.perf_counter() - start
    hosted: tuple[tuple[str, str], ...] = ()
    if plan.gpu:
        if CUDA not in session.get_providers():
            raise EnvironmentFailure(f"ONNX Runtime can't use CUDA here: {_reason(says())}")
        if hasattr(session, "get_provider_graph_assignment_info"):
            groups = [g for g in session.get_provider_graph_assignment_info() if g.ep_name == CPU]
            hosted = tuple((n.name, n.op_type) for g in groups for n in g.get_nodes())
    return Opened(ort, session, seconds, tuple(sorted(chosen.items())), hosted, stored)


def load_cuda(ort: Any) -> None:
    """Load the libraries of CUDA and cuDNN that pip has installed; what is not among them, the system has to find."""
    if hasattr(ort, "preload_dlls"):  # from 1.21 on
        ort.preload_dlls()


def _options(ort: Any, plan: Plan, stored: Stored) -> tuple[Any, dict[str, str]]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, {
        "disabled": "ORT_DISABLE_ALL", "basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED",
        "all": "ORT_ENABLE_ALL",
    }[plan.opt_level])  # fmt: skip
    entries: dict[str, str] = {}
    if plan.gpu:
        entries["session.record_ep_graph_assignment_info"] = "1"
    elif plan.random:  # numbers that no training keeps in bounds must not slow the processor down
        entries["session.set_denormal_as_zero"] = "1"
    chosen = {"intra_op_num_threads": "1", "inter_op_num_threads": "1", "execution_mode": "sequential", **entries}
    entries["session.load_model_format"] = "ONNX"  # whatever the file is called
    if plan.folder and not plan.as_is:
        entries["session.model_external_initializers_file_folder_path"] = str(Path(plan.folder).resolve())
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    for dim, size in plan.dims:  # bound as in a prediction: ONNX Runtime fuses less where dimensions are open
        options.add_free_dimension_override_by_name(dim, size)
        chosen[f"dimension {dim}"] = str(size)
    if stored:
        values = [_value(ort, array, number) for array, number in stored.values()]
        options.add_external_initializers(list(stored), values)
    if plan.profile:
        options.enable_profiling = True
        options.profile_file_prefix = plan.profile
    return options, chosen


def _cuda_options(plan: Plan, stream: int) -> dict[str, str]:
    return {
        "device_id": "0",
        "user_compute_stream": str(stream),
        "do_copy_in_default_stream": "1",
        "cudnn_conv_algo_search": "EXHAUSTIVE",
        "use_tf32": "0" if plan.precision == "fp32" else "1",
        "enable_cuda_graph": "0",
    }


def _value(ort: Any, array: Array, number: int, gpu: bool = False) -> Any:
    """A tensor, on the host or the device; `number` is ONNX's of a type that NumPy lacks."""
    if not number:
        return ort.OrtValue.ortvalue_from_numpy(array, *(("cuda", 0) if gpu else ()))
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, number)
    if gpu:
        device = _room(ort, array.shape, number)
        device.update_inplace(value)
        return device
    return value


def _room(ort: Any, shape: Sequence[int], kind: Any) -> Any:
    """Memory of the device for a tensor."""
    return ort.OrtValue.ortvalue_from_shape_and_type(shape, kind, "cuda", 0)


@dataclass(frozen=True, slots=True)
class Bound:
    """A session with its inputs and outputs in place; `inputs` are kept alive."""

    opened: Opened
    binding: Any
    inputs: tuple[Any, ...]
    name: str
    run_options: Any

    def run(self) -> None:
        """Run once; on a GPU, only launch."""
        try:
            self.opened.session.run_with_iobinding(self.binding, self.run_options)
        except Exception as e:
            raise refusal(e, self.name, self.opened.ort.__version__) from None

    def buffers(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Address and bytes of all inputs and outputs, after a run."""
        first, second = self.inputs, self.binding.get_outputs()
        return [_place(v) for v in first], [_place(v) for v in second]


def _place(value: Any) -> tuple[int, int]:
    return value.data_ptr(), value.tensor_size_in_bytes()


def bind(opened: Opened, plan: Plan, feeds: tuple[Feed, ...]) -> Bound:
    """Bind random inputs, or the given ones, and room for the outputs, all on the device that computes."""
    ort, session, rng = opened.ort, opened.session, np.random.default_rng(plan.seed)
    binding, values = session.io_binding(), []
    types = {i.name: _dtype(i.type) for i in session.get_inputs()}
    try:
        for feed in feeds:
            if feed.name not in types:
                continue  # nothing reads it
            dtype = types[feed.name]
            values.append(_value(ort, random(feed, dtype, rng), BIT_PATTERNS.get(dtype, 0), plan.gpu))
            binding.bind_ortvalue_input(feed.name, values[-1])
        for output in session.get_outputs():
            dtype = _dtype(output.type)
            known = dtype in NUMPY or dtype in BIT_PATTERNS  # not text, nor sequences
            if plan.gpu and known and all(isinstance(d, int) for d in output.shape):
                kind = BIT_PATTERNS.get(dtype) or np.dtype(dtype).type
                binding.bind_ortvalue_output(output.name, _room(ort, output.shape, kind))
            else:
                binding.bind_output(output.name, "cuda" if plan.gpu and dtype != "string" else "cpu")
    except Exception as e:
        raise refusal(e, plan.name, ort.__version__) from None
    run_options = ort.RunOptions()
    if plan.gpu:
        run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        binding.synchronize_inputs()
    return Bound(opened, binding, tuple(values), plan.name, run_options)


def _dtype(type: str) -> str:
    """Our name of a type as ONNX Runtime writes it: tensor(float)."""
    inner = type.removeprefix("tensor(").removesuffix(")")
    return TYPES.get(inner, inner)


def refusal(error: Exception, name: str, version: str) -> Error:
    """What ONNX Runtime says, as one sentence and of the right kind."""
    if isinstance(error, Error):
        return error
    text = str(error).strip() or type(error).__name__
    if isinstance(error, MemoryError) or FULL.search(text):
        return OutOfMemory(f"{name}: out of memory; a smaller batch, shorter inputs or half precision take less")
    if new := NEW.search(text):
        opset = f"opset {new[1]}" if new[2] == "ai.onnx" else f"opset {new[1]} of {printable(new[2])}"
        return ModelError(
            f"{name}: {opset} is newer than {new[3]}, the newest that ONNX Runtime {version} knows: export it with a"
            " lower opset, convert it with onnx.version_converter, or install a newer ONNX Runtime"
        )
    if new := NEW_IR.search(text):
        return ModelError(
            f"{name}: IR version {new[1]} is newer than {new[2]}, the newest that ONNX Runtime {version} knows: save it"
            " with a lower ir_version, or install a newer ONNX Runtime"
        )
    reason = _plain(text)
    if DEVICE.search(text):
        return EnvironmentFailure(f"{name}: the device fails: {reason}")
    return ModelError(f"{name}: ONNX Runtime {version} refuses it: {reason}")


def _plain(text: str) -> str:
    line = PREFIX.sub("", text).strip().splitlines() or [text]
    return printable(line[0].strip())[:300]


def _reason(log: str) -> str:
    """Why a provider could not be loaded: the first error in the log."""
    found = re.search(r"with error: (.+)", log) or re.search(r"Failed to create .*?\. (.+)", log)
    return printable(found[1].strip())[:300] if found else "its library could not be loaded"

"""A session of ONNX Runtime: how it is opened, what it runs on, and its errors in plain words."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxperf.errors import EnvironmentFailure, Error, ModelError, printable
from onnxperf.measure.inputs import BIT_PATTERNS, Array, random
from onnxperf.measure.plan import Plan
from onnxperf.measure.weights import NUMPY, Weights, model_and_weights

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
TYPES = {"float": "float32", "double": "float64"}  # whose names differ from ONNX Runtime's
FULL = re.compile(r"out of memory|BFCArena|[Ff]ailed to allocate|bad_alloc|ALLOC_FAILED|bad allocation")
NEW = re.compile(r"Opset (\d+) is under development.*domain (\S+) is till opset (\d+)", re.DOTALL)
NEW_IR = re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)")
DEVICE = re.compile(r"CUDA (failure|error)|CUDNN\w* failure|CUBLAS\w* failure|CUDA_ERROR|device-side")
#: What stands before the reason in a message of ONNX Runtime: an error's number, and a place in its sources.
PREFIX = re.compile(r"^(\[ONNXRuntimeError\] : \d+ : \w+ : )?(/\S+:\d+ \S.*?\) (?=[^\s:(),&*>]+ ))?", re.DOTALL)


class OutOfMemory(EnvironmentFailure):
    """The device has no room for the model, its weights and what it computes."""


@dataclass(frozen=True, slots=True)
class Session:
    """A model opened by ONNX Runtime, with its inputs and outputs in place. Weights and inputs are kept alive: ONNX
    Runtime reads them where they lie.

    name: the model's; opened_s: seconds that opening it took; options: those of session and provider, by name; hosted:
    names and types of the nodes on the CPU beside a GPU, as far as the session says.
    """

    name: str
    ort: Any
    inference: Any
    opened_s: float
    options: tuple[tuple[str, str], ...]
    hosted: tuple[tuple[str, str], ...]
    weights: Weights = field(repr=False)
    binding: Any
    inputs: tuple[Any, ...]
    run_options: Any

    def run(self) -> None:
        """Run once; on a GPU, only launch."""
        try:
            self.inference.run_with_iobinding(self.binding, self.run_options)
        except Exception as e:
            raise refusal(e, self.name, self.ort.__version__) from None

    def buffers(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Address and bytes of all inputs and of all outputs, after a run."""
        outputs = self.binding.get_outputs()
        return [_address(v) for v in self.inputs], [_address(v) for v in outputs]


def _address(value: Any) -> tuple[int, int]:
    return value.data_ptr(), value.tensor_size_in_bytes()


def open_session(ort: Any, plan: Plan, stream: int, log: Callable[[], str]) -> Session:
    """Open the model and bind its inputs and outputs. stream: the CUDA stream to compute on; log: gives what ONNX
    Runtime has logged.

    Raises ModelError for what it refuses, EnvironmentFailure where there is no such device, or no room on it.
    """
    source, weights = model_and_weights(plan)
    options, chosen = _options(ort, plan, weights)
    providers: list[Any] = [CPU]
    if plan.job.gpu:
        if CUDA not in ort.get_available_providers():
            raise EnvironmentFailure(
                "the ONNX Runtime that is installed knows no CUDA: uninstall onnxruntime, install onnxruntime-gpu"
            )
        load_cuda(ort)
        given = _cuda_options(plan, stream)
        providers.insert(0, (CUDA, given))
        chosen |= {k: v for k, v in given.items() if k != "user_compute_stream"}
    name, start = plan.graph.name, time.perf_counter()
    try:
        inference = ort.InferenceSession(
            source, options, providers=providers, enable_fallback=0, read_config_from_model=0
        )
        opened_s = time.perf_counter() - start
        hosted = _hosted(inference, log) if plan.job.gpu else ()
        bound = _bind(ort, inference, plan)
    except Exception as e:
        raise refusal(e, name, ort.__version__) from None
    return Session(name, ort, inference, opened_s, tuple(sorted(chosen.items())), hosted, weights, *bound)


def _hosted(inference: Any, log: Callable[[], str]) -> tuple[tuple[str, str], ...]:
    """Names and types of the nodes on the CPU; none where ONNX Runtime is too old to say."""
    if CUDA not in inference.get_providers():
        raise EnvironmentFailure(f"ONNX Runtime can't use CUDA here: {_reason(log())}")
    if not hasattr(inference, "get_provider_graph_assignment_info"):
        return ()
    groups = [g for g in inference.get_provider_graph_assignment_info() if g.ep_name == CPU]
    return tuple((n.name, n.op_type) for g in groups for n in g.get_nodes())


def load_cuda(ort: Any) -> None:
    """Load the libraries of CUDA and cuDNN that pip has installed; the system has to find the others."""
    if hasattr(ort, "preload_dlls"):  # from 1.21 on
        ort.preload_dlls()


def _options(ort: Any, plan: Plan, weights: Weights) -> tuple[Any, dict[str, str]]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    level = "DISABLE_ALL" if plan.job.opt_level == "disabled" else f"ENABLE_{plan.job.opt_level.upper()}"
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
    entries: dict[str, str] = {}
    if plan.job.gpu:
        entries["session.record_ep_graph_assignment_info"] = "1"
    elif plan.random:  # denormal numbers, which random weights lead to, must not slow the processor down
        entries["session.set_denormal_as_zero"] = "1"
    chosen = {"intra_op_num_threads": "1", "inter_op_num_threads": "1", "execution_mode": "sequential", **entries}
    entries["session.load_model_format"] = "ONNX"  # whatever the file is called
    if plan.folder is not None and not plan.as_it_is:
        entries["session.model_external_initializers_file_folder_path"] = str(plan.folder.resolve())
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    for dim, size in plan.dims:  # bound as in a prediction: ONNX Runtime fuses less where dimensions are open
        options.add_free_dimension_override_by_name(dim, size)
        chosen[f"dimension {dim}"] = str(size)
    if weights:
        values = [_value(ort, array, number) for array, number in weights.values()]
        options.add_external_initializers(list(weights), values)
    if plan.profile_to:
        options.enable_profiling = True
        options.profile_file_prefix = plan.profile_to
    return options, chosen


def _cuda_options(plan: Plan, stream: int) -> dict[str, str]:
    return {
        "device_id": "0",
        "user_compute_stream": str(stream),
        "do_copy_in_default_stream": "1",
        "cudnn_conv_algo_search": "EXHAUSTIVE",
        "use_tf32": "0" if plan.job.precision == "fp32" else "1",
        "enable_cuda_graph": "0",
    }


def _value(ort: Any, array: Array, number: int, gpu: bool = False) -> Any:
    """A tensor, on the host or the device; `number` is ONNX's number of its type if NumPy lacks that, else 0."""
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


def _bind(ort: Any, inference: Any, plan: Plan) -> tuple[Any, tuple[Any, ...], Any]:
    """Put random inputs, or the given ones, and room for the outputs on the device that computes.

    Returns the binding, the inputs' values and the options to run with.
    """
    gpu, rng = plan.job.gpu, np.random.default_rng(plan.job.seed)
    binding, values = inference.io_binding(), []
    types = {i.name: _dtype(i.type) for i in inference.get_inputs()}
    for feed in plan.feeds:
        if feed.name not in types:
            continue  # nothing reads it
        dtype = types[feed.name]
        values.append(_value(ort, random(feed, dtype, rng), BIT_PATTERNS.get(dtype, 0), gpu))
        binding.bind_ortvalue_input(feed.name, values[-1])
    for output in inference.get_outputs():
        dtype = _dtype(output.type)
        known = dtype in NUMPY or dtype in BIT_PATTERNS  # not text, nor sequences
        if gpu and known and all(isinstance(d, int) for d in output.shape):
            kind = BIT_PATTERNS.get(dtype) or np.dtype(dtype).type
            binding.bind_ortvalue_output(output.name, _room(ort, output.shape, kind))
        else:
            binding.bind_output(output.name, "cuda" if gpu and dtype != "string" else "cpu")
    run_options = ort.RunOptions()
    if gpu:
        run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        binding.synchronize_inputs()
    return binding, tuple(values), run_options


def _dtype(type: str) -> str:
    """Our name of a type as ONNX Runtime writes it: tensor(float)."""
    inner = type.removeprefix("tensor(").removesuffix(")")
    return TYPES.get(inner, inner)


def refusal(error: Exception, name: str, version: str) -> Error:
    """An exception of ONNX Runtime as one of ours: one sentence, with the exit code that belongs to it.

    name: the model's; version: ONNX Runtime's.
    """
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
    """The first line of a message, without what stands before the reason."""
    line = PREFIX.sub("", text).strip().splitlines() or [text]
    return printable(line[0].strip())[:300]


def _reason(log: str) -> str:
    """Why a provider could not be loaded: the first error in the log."""
    found = re.search(r"with error: (.+)", log) or re.search(r"Failed to create .*?\. (.+)", log)
    return printable(found[1].strip())[:300] if found else "its library could not be loaded"

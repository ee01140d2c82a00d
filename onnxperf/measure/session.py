"""A session of ONNX Runtime: how it is opened, what it runs on, and its errors in plain words."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxperf.ground.errors import EnvironmentFailure, Error, ModelError, printable
from onnxperf.measure.devices import CPU, CUDA, LocalDevice
from onnxperf.measure.inputs import BIT_PATTERNS, Array, random
from onnxperf.measure.job import Plan
from onnxperf.measure.weights import NUMPY, Weights, model_and_weights

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
    names and types of the nodes on the CPU beside a GPU, as far as the session says. feeds: where an input is text, a
    sequence or a map, which can't be bound, all inputs as Python's values, which ONNX Runtime copies in every run.
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
    feeds: dict[str, Any] | None = None

    def run(self) -> None:
        """Run once; on a GPU, only launch."""
        try:
            if self.feeds is None:
                self.inference.run_with_iobinding(self.binding, self.run_options)
            else:
                self.inference.run(None, self.feeds, self.run_options)
        except Exception as e:
            raise refusal(e, self.name, self.ort.__version__) from None

    def buffers(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Address and bytes of all inputs and of all outputs, after a run."""
        outputs = self.binding.get_outputs()
        return [_address(v) for v in self.inputs], [_address(v) for v in outputs]


def _address(value: Any) -> tuple[int, int]:
    return value.data_ptr(), value.tensor_size_in_bytes()


def open_session(ort: Any, plan: Plan, device: LocalDevice, log: Callable[[], str]) -> Session:
    """Open the model on a device and bind its inputs and outputs. log: gives what ONNX Runtime has logged.

    Raises ModelError for what it refuses, EnvironmentFailure where there is no such device, or no room on it.
    """
    source, weights = model_and_weights(plan)
    options, chosen = _options(ort, plan, device, weights)
    providers = device.providers(ort, plan.job.precision)
    for entries in providers.values():
        chosen |= {k: v for k, v in entries.items() if k != "user_compute_stream"}
    name, start = plan.graph.name, time.perf_counter()
    try:
        inference = ort.InferenceSession(
            source, options, providers=[*providers.items()], enable_fallback=0, read_config_from_model=0
        )
        opened_s = time.perf_counter() - start
        hosted = _hosted(inference, log) if CUDA in providers else ()
        bound = _bind(ort, inference, plan, device)
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


def _options(ort: Any, plan: Plan, device: LocalDevice, weights: Weights) -> tuple[Any, dict[str, str]]:
    """The session's options, and those that a measurement names."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    level = "DISABLE_ALL" if plan.job.opt_level == "disabled" else f"ENABLE_{plan.job.opt_level.upper()}"
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
    entries = device.entries(plan.random)
    chosen = {"intra_op_num_threads": "1", "inter_op_num_threads": "1", "execution_mode": "sequential", **entries}
    entries["session.load_model_format"] = "ONNX"  # whatever the file is called
    if plan.folder is not None and not plan.as_it_is:
        entries["session.model_external_initializers_file_folder_path"] = str(plan.folder.resolve())
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    for dim, size in plan.dims:  # fixed, as in a prediction with `fix_dims`
        options.add_free_dimension_override_by_name(dim, size)
        chosen[f"dimension {dim}"] = str(size)
    if weights:
        values = [_value(ort, array, number, "cpu") for array, number in weights.values()]
        options.add_external_initializers(list(weights), values)
    if plan.profile_to:
        options.enable_profiling = True
        options.profile_file_prefix = plan.profile_to
    return options, chosen


def _value(ort: Any, array: Array, number: int, memory: str) -> Any:
    """A tensor in the memory of the host ("cpu") or of the card ("cuda").

    number: ONNX's number of its type if NumPy lacks that, else 0.
    """
    if not number:
        return ort.OrtValue.ortvalue_from_numpy(array, memory, 0)
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, number)
    if memory == "cpu":
        return value
    there = ort.OrtValue.ortvalue_from_shape_and_type(array.shape, number, memory, 0)
    there.update_inplace(value)
    return there


def _bind(
    ort: Any, inference: Any, plan: Plan, device: LocalDevice
) -> tuple[Any, tuple[Any, ...], Any, dict[str, Any] | None]:
    """Put random inputs, or the given ones, and room for the outputs on the device that computes.

    Returns the binding, the inputs' values, the options to run with, and the feeds where inputs can't be bound.
    """
    rng = np.random.default_rng(plan.job.seed)
    binding, values, feeds = inference.io_binding(), [], dict[str, Any]()
    types = {i.name: _dtype(i.type) for i in inference.get_inputs()}
    shapes = {t.name: t.shape for t in plan.graph.inputs}
    for name, source in plan.values.items():
        if name not in types:
            continue  # nothing reads it
        dtype = types[name]
        if plan.unbound:
            feeds[name] = random(shapes[name], source, dtype, rng) if isinstance(source, range) else source
            continue
        array = random(shapes[name], source, dtype, rng) if isinstance(source, range) else source.astype(dtype)
        values.append(_value(ort, array, BIT_PATTERNS.get(dtype, 0), device.memory))
        binding.bind_ortvalue_input(name, values[-1])
    for output in inference.get_outputs():
        dtype = _dtype(output.type)
        numeric = dtype in NUMPY or dtype in BIT_PATTERNS  # not text, nor sequences
        if device.preallocated and numeric and all(isinstance(d, int) for d in output.shape):
            kind = BIT_PATTERNS.get(dtype) or np.dtype(dtype).type
            room = ort.OrtValue.ortvalue_from_shape_and_type(output.shape, kind, device.memory, 0)
            binding.bind_ortvalue_output(output.name, room)
        else:
            binding.bind_output(output.name, "cpu" if dtype == "string" else device.memory)
    binding.synchronize_inputs()
    run_options = ort.RunOptions()
    for key, value in device.run_entries.items():
        run_options.add_run_config_entry(key, value)
    return binding, tuple(values), run_options, feeds or None


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
    match = re.search(r"with error: (.+)", log) or re.search(r"Failed to create .*?\. (.+)", log)
    return printable(match[1].strip())[:300] if match else "its library could not be loaded"

"""The names that a user chooses among. What each means stands in the room that reads it; nothing heavy is imported, so
that `--help` can list them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from onnxperf.ground.modules import modules_of


def _named_in(room: str) -> tuple[str, ...]:
    """The names of a room's modules, none of which is imported."""
    return tuple(m.replace("_", "-") for m in modules_of([str(Path(__file__).parents[1] / room)]))


def choice_named(name: Any, among: Iterable[str]) -> Any:
    """The choice that a name means, whose case does not matter: FP16 is fp16. What means none is left as it is."""
    if not isinstance(name, str):
        return name
    return next((choice for choice in among if choice.casefold() == name.casefold()), name)


def precision_label(precision: str) -> str:
    """A precision as screens have it."""
    return {"keep": "as stored", AMP: "FP16 autocast"}.get(precision, precision.upper())


METHODS, RUNTIMES = _named_in("methods"), _named_in("runtimes")
BASELINES = ("linear", "mlp")  # published methods that only `validate` compares with; predictions never look for them
#: The dtypes that floating tensors are stored in, or products quantised to, by precision.
STORED = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
QUANTISED = {"int8": "int8", "fp8": "float8e4m3fn"}
#: Leaves the graph as it is stored too; which type each operator runs in, the runtime decides (`passes.autocast`).
AMP = "amp"
PRECISIONS = ("keep", *STORED, *QUANTISED, AMP)
MEASURED = ("keep", "fp32", "tf32", "fp16")  # precisions that can be measured
#: The orders in which images can lie in memory: channels before rows and columns, or behind them (channels_last).
LAYOUTS = ("nchw", "nhwc")
#: Of torch.compile: what beside the default it replays, and for which calls it tries other kernels.
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune")
LEVELS = ("disabled", "basic", "extended", "all")  # of optimisation, ascending
MODES = ("inference", "training")
LOSSES = ("cross-entropy", "mse")
OPTIMIZERS = ("adam", "sgd", "momentum", "nesterov", "none")
PROVIDERS = ("cuda", "cpu")
RANKED_BY = ("latency", "throughput", "cost", "energy")
#: Types of example inputs.
EXAMPLES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
USUAL_ENGINE = "ort-genai"
ENGINES = (USUAL_ENGINE, "vllm", "sglang", "trtllm")  # that serve language models
WEIGHTS, CACHES = ("int4", "int8"), ("fp8", "int8")  # of a decoder made from its configuration

"""How a checkpoint stores its weights in few bits, from the `quantization_config` of its config.json.

Formats: fp8 (one scale a tensor or channel, or blocks of 128 x 128 as DeepSeek-V3), AWQ, GPTQ, compressed-tensors
(vLLM, llm-compressor), mxfp4 (gpt-oss, experts alone) and NVIDIA's modelopt (FP8, NVFP4). Sources: transformers'
utils/quantization_config.py; compressed_tensors/quantization/quant_args.py; modelopt/torch/export/quant_utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from onnxperf.ground.errors import UsageError, printable

NEVER = ("lm_head", "model.embed_tokens", "*.router", "*.mlp.gate")  # that none of the formats quantises by default
LONGEST, STARS = 200, 8  # of a pattern, which a file may have anything in
#: Parts of names in the graph, and what a checkpoint calls them.
PARTS = {
    "attn": "self_attn", "moe/router": "mlp.gate", "moe/shared_expert": "mlp.shared_experts", "moe": "mlp.experts",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stored:
    """Weights of products in few bits.

    method: as the file names it; bits: of a weight, in floating point where `floats`; block: weights that share a
    scale, 0 for a channel or a tensor; scale_bits: of a scale and what goes with it, such as a zero point;
    activations: fp8, int8, fp4 where these are quantised too, "" where weights are dequantised on the way; excluded:
    names of modules that keep 16 bits, with * for anything; cache: fp8 where keys and values are kept so, "" where the
    file says nothing of them.
    """

    method: str
    bits: int
    floats: bool = False
    block: int = 0
    scale_bits: int = 16
    activations: str = ""
    excluded: tuple[str, ...] = ()
    cache: str = ""

    def excludes(self, node: str) -> bool:
        """Whether the product of a node of the graph keeps 16 bits."""
        name = module(node)
        return any(fnmatchcase(name, p) or fnmatchcase(name, f"{p}.*") for p in (*NEVER, *self.excluded))


FP8 = Stored("fp8", 8, True, activations="fp8")  # one scale for each channel: what --precision fp8 makes of 16 bits


def module(node: str) -> str:
    """The checkpoint's name of the module that a node of the graph computes: model.layers.1.self_attn.q_proj."""
    name = node.strip("/").removesuffix("/MatMul")
    for part, called in PARTS.items():
        name = name.replace(f"/{part}/", f"/{called}/") if f"/{part}/" in f"{name}/" else name
        name = f"{name.removesuffix(part)}{called}" if name.endswith(f"/{part}") else name
    return name.replace("/", ".")


def stored(quantised: Any, where: str = "config.json") -> Stored | None:
    """The format that a `quantization_config` says, of weights and of keys and values, None where it says none that is
    known. Raises UsageError where a size in it can't be.
    """
    form = _weights(quantised, where)
    return form and replace(form, cache=_cache(quantised))


def _cache(quantised: Mapping[str, Any]) -> str:
    """How keys and values are kept: modelopt names an algorithm, compressed-tensors a scheme."""
    q = _inner(quantised)
    scheme = q.get("kv_cache_scheme")
    floats = isinstance(scheme, Mapping) and (scheme.get("num_bits"), scheme.get("type")) == (8, "float")
    return "fp8" if floats or str(q.get("kv_cache_quant_algo")).upper() == "FP8" else ""


def _inner(quantised: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a configuration says: hf_quant_config.json has it one deeper."""
    deeper = quantised.get("quantization")
    return deeper if isinstance(deeper, Mapping) else quantised


def _weights(quantised: Any, where: str) -> Stored | None:
    """The format that a `quantization_config` says, None where there is none or it is not one of those above.

    Raises UsageError where a size in it can't be.
    """
    if not isinstance(quantised, Mapping):
        return None
    q, producer = _inner(quantised), quantised.get("producer")
    maker = producer.get("name") if isinstance(producer, Mapping) else None
    method = str(quantised.get("quant_method") or maker or "").lower()
    algorithm = str(q.get("quant_algo") or "").upper()
    names = (q.get(key) for key in ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers"))
    excluded = tuple(_pattern(n) for each in names if isinstance(each, (list, tuple)) for n in each)

    def size(key: str, usual: int, of: Mapping[str, Any] = q, most: int = 1024) -> int:
        value = of.get(key, usual)
        value = usual if value is None or value == -1 else value  # -1: one for all
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise UsageError(f"{where}: {key} of quantization_config must be a whole number, not {value!r:.40}")
        return value

    if method == "fp8" or algorithm == "FP8":
        blocks = q.get("weight_block_size")
        rows, columns = blocks if isinstance(blocks, (list, tuple)) and len(blocks) == 2 else (0, 0)
        each = {"rows": rows, "columns": columns}
        block = size("rows", 0, each) * size("columns", 0, each)
        return Stored("fp8", 8, True, block, 32, "fp8", excluded)
    if method in ("awq", "gptq", "auto-round"):
        zeros = 0 if q.get("sym", not q.get("zero_point", method == "awq")) else size("bits", 4, most=8)
        return Stored(method, size("bits", 4, most=8), False, size("group_size", 128), 16 + zeros, "", excluded)
    if method == "mxfp4":
        return Stored(method, 4, True, 32, 8, "", ("*.self_attn", *excluded))
    if algorithm == "NVFP4" or method == "modelopt_fp4":
        return Stored("nvfp4", 4, True, size("group_size", 16), 8, "fp4", excluded)
    if method == "compressed-tensors":
        return _compressed(q, size, excluded)
    return None


def _compressed(q: Mapping[str, Any], size: Any, excluded: tuple[str, ...]) -> Stored | None:
    """The first group of a compressed-tensors configuration."""
    groups = q.get("config_groups")
    group = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    bits, floats = size("num_bits", 8, weights, 8), weights.get("type") == "float"
    block = size("group_size", 0, weights)
    structure = weights.get("block_structure")
    if isinstance(structure, (list, tuple)) and len(structure) == 2:
        each = dict(zip(("rows", "columns"), structure, strict=True))
        block = size("rows", 0, each) * size("columns", 0, each)
    inputs = group.get("input_activations") if isinstance(group, Mapping) else None
    activations = ""
    if isinstance(inputs, Mapping):
        activations = {(8, True): "fp8", (8, False): "int8", (4, True): "fp4"}.get(
            (size("num_bits", 8, inputs, 16), inputs.get("type") == "float"), ""
        )
    scale = (8 if bits == 4 and floats else 16) + (0 if weights.get("symmetric", True) else bits)
    return Stored("compressed-tensors", bits, floats, block, scale, activations, excluded)


def _pattern(name: Any) -> str:
    """A module's name, a prefix of it, or a simple regular expression ("re:"), as a pattern with * for anything."""
    text = printable(f"{name!s:.{LONGEST}}").removeprefix("re:").removeprefix("^").removesuffix("$")
    text = text.replace(r"\.", ".").replace(".*", "*")
    return text if text.count("*") <= STARS else "?" * LONGEST

"""Make the sample models: ONNX files of well-known architectures, without their weights.

    pip install torch==2.13.0 transformers==5.23.0 onnxscript==0.7.2 onnxruntime
    python samples/make.py [NAME ...] [-o samples] [--check]

Nothing is downloaded: a model is built from its published configuration. A parameter is one number seen
through strides of zero, so a large model exports in little memory. In the file every weight over 1 KB is said
to be in weights-not-included.bin, which doesn't exist: predicting a latency needs shapes, not weights.
"""

import argparse
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
import transformers as hf
from onnx_ir.passes import common
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode
from transformers.initialization import no_init_weights

WEIGHTS = "weights-not-included.bin"
INSIDE_BYTES = 1024  # smaller tensors, and tables of integers, stay: fusion and shape inference read them


@dataclass(frozen=True)
class Sample:
    """One architecture, the inputs it is exported at, and the input dimensions left open."""

    what: str
    build: Callable[[], hf.PreTrainedModel]
    inputs: Mapping[str, tuple[int, ...]]
    outputs: tuple[str, ...]
    open_dims: tuple[str, ...] = ()

    def tensors(self, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
        """Images are floating point, everything else is tokens; ones also make a mask that hides nothing."""
        return {
            name: torch.ones(shape, dtype=dtype if len(shape) == 4 else torch.int64)
            for name, shape in self.inputs.items()
        }


IMAGE = {"pixel_values": (1, 3, 224, 224)}
TOKENS = {"input_ids": (1, 128), "attention_mask": (1, 128)}
LABELS: dict[str, Any] = {"num_labels": 1000}
EAGER: dict[str, Any] = {"attn_implementation": "eager"}  # plain MatMul and Softmax, each counted as a bmm
OPEN = ("batch", "sequence")


def gpt2(attention: str = "eager", **size: int) -> hf.PreTrainedModel:
    return hf.GPT2LMHeadModel(hf.GPT2Config(use_cache=False, attn_implementation=attention, **size))


def gpt2_before(width: int, heads: int, layers: int, positions: int) -> hf.PreTrainedModel:
    """GPT-2's code with `gpt2_attention`."""
    hf.AttentionInterface.register("gpt2-before", gpt2_attention)
    hf.AttentionMaskInterface.register("gpt2-before", partial(hf.masking_utils.sdpa_mask, allow_is_causal_skip=False))
    return gpt2("gpt2-before", n_embd=width, n_head=heads, n_layer=layers, n_positions=positions)


def gpt2_attention(
    module: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, **_: Any
) -> tuple[torch.Tensor, None]:
    """Eager attention as GPT-2 had it in transformers 4.38: quotient, choice by mask, softmax."""
    scores = torch.matmul(q, k.transpose(-1, -2)) / q.shape[-1] ** 0.5
    scores = torch.where(mask, scores, torch.tensor(torch.finfo(scores.dtype).min))
    return torch.matmul(nn.functional.softmax(scores, dim=-1), v).transpose(1, 2).contiguous(), None


def opt_before() -> hf.PreTrainedModel:
    """OPT-1.3B with `opt_attention`."""
    hf.AttentionInterface.register("opt-before", opt_attention)
    hf.AttentionMaskInterface.register("opt-before", hf.masking_utils.eager_mask)
    size = {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "ffn_dim": 8192}
    config = hf.OPTConfig(**size, word_embed_proj_dim=2048, use_cache=False, attn_implementation="opt-before")
    return hf.OPTForCausalLM(config)


def opt_attention(
    module: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, **_: Any
) -> tuple[torch.Tensor, None]:
    """Eager attention as OPT had it in transformers 4.38: heads folded into the batch, masked scores kept finite."""
    batch, heads, length, width = q.shape
    q, k, v = (t.reshape(batch * heads, length, width) for t in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).view(batch, heads, length, length) + mask
    scores = torch.max(scores, torch.tensor(torch.finfo(scores.dtype).min))
    shares = nn.functional.softmax(scores.view(batch * heads, length, length), dim=-1)
    return torch.bmm(shares, v).view(batch, heads, length, width).transpose(1, 2), None


def bert_large() -> hf.PreTrainedModel:
    size = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    return hf.BertForSequenceClassification(hf.BertConfig(**size, **EAGER))


SAMPLES = {
    "resnet50": Sample(
        "ResNet-50 v1.5, 1000 classes",
        lambda: hf.ResNetForImageClassification(hf.ResNetConfig(**LABELS)),
        IMAGE,
        ("logits",),
    ),
    "mobilenetv2": Sample(
        "MobileNetV2 1.0, 1000 classes, symmetric padding",
        lambda: hf.MobileNetV2ForImageClassification(hf.MobileNetV2Config(tf_padding=False, **LABELS)),
        IMAGE,
        ("logits",),
    ),
    "vit-base-16": Sample(
        "ViT-Base, patches of 16, 1000 classes",
        lambda: hf.ViTForImageClassification(hf.ViTConfig(**LABELS, **EAGER)),
        IMAGE,
        ("logits",),
    ),
    "bert-base": Sample(
        "BERT-Base encoder with pooler",
        lambda: hf.BertModel(hf.BertConfig(**EAGER)),
        {**TOKENS, "token_type_ids": (1, 128)},
        ("last_hidden_state", "pooler_output"),
    ),
    "gpt2": Sample("GPT-2 small, prompt, no cache", gpt2, TOKENS, ("logits",)),
    "gpt2-dynamic": Sample("GPT-2 small, prompt, no cache", gpt2, TOKENS, ("logits",), OPEN),
    "distilbert-dynamic": Sample(
        "DistilBERT classifier, 2 classes",
        lambda: hf.DistilBertForSequenceClassification(hf.DistilBertConfig(**EAGER)),
        TOKENS,
        ("logits",),
        OPEN,
    ),
    "bert-large": Sample("BERT-Large classifier, 2 classes", bert_large, TOKENS, ("logits",), OPEN),
    "gpt2-large": Sample(
        "GPT-2 large, prompt, no cache", lambda: gpt2_before(1280, 20, 36, 1024), TOKENS, ("logits",), OPEN
    ),
    "opt-1.3b": Sample("OPT-1.3B, prompt, no cache", opt_before, TOKENS, ("logits",), OPEN),
    "gpt3-xl": Sample(
        "24 layers of 3072 in GPT-2's code, prompt", lambda: gpt2_before(3072, 24, 24, 2048), TOKENS, ("logits",), OPEN
    ),
    "gpt3-2.7b": Sample(
        "32 layers of 2560 in GPT-2's code, prompt", lambda: gpt2_before(2560, 32, 32, 2048), TOKENS, ("logits",), OPEN
    ),
}


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Modules built inside keep real buffers (tables of positions, masks) and have parameters on `meta`."""
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=False)
        register(module, name, parameter)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def weightless(build: Callable[[], hf.PreTrainedModel]) -> hf.PreTrainedModel:
    """The model with every parameter one number repeated; another number each, or equal ones would be merged."""
    with parameters_on_meta():
        model = build().eval()
    made: dict[int, nn.Parameter] = {}  # tied parameters stay tied
    for module in model.modules():
        for name, meta in module._parameters.items():
            if meta is None:
                continue
            if id(meta) not in made:
                number = torch.tensor((1024 + len(made)) / 65536, dtype=meta.dtype)  # exact in fp16
                made[id(meta)] = nn.Parameter(number.expand(meta.shape), requires_grad=False)
            module._parameters[name] = made[id(meta)]
    return model


def matrix_flops(sample: Sample) -> int:
    """Multiply-adds times two in convolutions and matrix products, at the inputs the file is exported at."""
    with FakeTensorMode(), no_init_weights(), torch.no_grad():  # tensors on `meta` that know they are
        model = sample.build().eval()
        with FlopCounterMode(display=False) as counter:
            model(**sample.tensors(model.dtype))
    return int(counter.get_total_flops())


def export(sample: Sample) -> tuple[onnx.ModelProto, int]:
    """The ONNX model without weights, and its number of parameters."""
    model = weightless(sample.build)
    inputs = sample.tensors(model.dtype)
    dims = {axis: torch.export.Dim(name) for axis, name in enumerate(sample.open_dims)}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model,
            (),
            kwargs=inputs,
            dynamo=True,
            verbose=False,
            external_data=False,
            input_names=list(inputs),
            output_names=list(sample.outputs),
            dynamic_shapes=dict.fromkeys(inputs, dims) if dims else None,
        )
    assert program is not None
    return strip(program.model), sum(p.numel() for p in model.parameters())


def strip(model: ir.Model) -> onnx.ModelProto:
    """Weights point outside, function bodies are inlined, the exporter's notes are gone."""
    common.InlinePass()(model)
    common.ClearMetadataAndDocStringPass()(model)
    model.metadata_props.clear()
    graph, offset = model.graph, 0
    graph.metadata_props.clear()
    for value in {
        *graph.inputs,
        *graph.initializers.values(),
        *(v for n in graph.all_nodes() for v in n.outputs),
    }:
        value.metadata_props.clear()
        value.doc_string = None
    for value in graph.initializers.values():
        tensor = value.const_value
        assert tensor is not None
        if tensor.nbytes > INSIDE_BYTES and tensor.dtype.is_floating_point():
            value.const_value = ir.ExternalTensor(
                WEIGHTS,
                offset,
                tensor.nbytes,
                tensor.dtype,
                shape=ir.Shape(tensor.shape.numpy()),
                name=value.name or "",
            )
            offset += tensor.nbytes
    return ir.to_proto(model)


def outside(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """The tensors that point outside."""
    return [tensor for tensor in model.graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]


def check(path: Path, sample: Sample) -> None:
    """The file is valid, its shapes are inferred, and with random weights ONNX Runtime runs it."""
    import onnxruntime as ort

    model = onnx.load(path, load_external_data=False)
    options, random = ort.SessionOptions(), np.random.default_rng(0)
    dtypes = {tensor.name: onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type) for tensor in outside(model)}
    weights = [
        ort.OrtValue.ortvalue_from_numpy(
            (0.02 * random.standard_normal(tuple(tensor.dims), np.float32)).astype(dtypes[tensor.name])
        )
        for tensor in outside(model)
    ]
    options.add_external_initializers(list(dtypes), weights)
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    kinds = {
        value.name: onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        for value in model.graph.input
    }
    results = session.run(None, {name: np.ones(shape, kinds[name]) for name, shape in sample.inputs.items()})
    assert all(np.isfinite(result).all() for result in results), path

    for tensor in outside(model):  # the checker would look for the weights: let them be inputs
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        model.graph.initializer.remove(tensor)
    onnx.checker.check_model(model, full_check=True)
    onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def row(name: str, parameters: int, flops: int) -> str:
    """A line of the table in README.md."""
    sample = SAMPLES[name]
    groups: dict[tuple[int, ...], list[str]] = {}
    for key, shape in sample.inputs.items():
        groups.setdefault(shape, []).append(f"`{key}`")
    inputs = "; ".join(f"{', '.join(keys)} {'x'.join(map(str, shape))}" for shape, keys in groups.items())
    opened = f" (`{'`, `'.join(sample.open_dims)}` open)" if sample.open_dims else ""
    return f"| `{name}.onnx` | {sample.what} | {parameters / 1e6:.1f} M | {flops / 2e9:.4g} | {inputs}{opened} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SAMPLES)} (default: all)")
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent, metavar="FOLDER")
    parser.add_argument("--check", action="store_true", help="run each file with random weights in ONNX Runtime")
    args = parser.parse_args()
    if unknown := set(args.names) - set(SAMPLES):
        parser.error(f"no such sample: {', '.join(sorted(unknown))}")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)

    counts = args.output / "flops.json"
    flops = json.loads(counts.read_text()) if counts.exists() else {}
    for name in args.names or SAMPLES:
        model, parameters = export(SAMPLES[name])
        path = args.output / f"{name}.onnx"
        path.write_bytes(model.SerializeToString(deterministic=True))
        flops[name] = matrix_flops(SAMPLES[name])
        print(row(name, parameters, flops[name]))
        if args.check:
            check(path, SAMPLES[name])
    ordered = {name: flops[name] for name in SAMPLES if name in flops}
    counts.write_text(json.dumps(ordered, indent=2) + "\n")


if __name__ == "__main__":
    main()

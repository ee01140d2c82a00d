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
from io import BytesIO
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
    form: str = ""  # old: the mask as older exporters wrote it; script: by TorchScript's exporter, in half precision

    def dims(self) -> dict[str, dict[int, str]]:
        """The open dimensions of each input by axis: states of the past have theirs in other places than tokens."""
        first, second = (*self.open_dims, "", "")[:2]
        tokens, past = {0: first, 1: second}, {1: first, 3: second}
        one = {axis: name for axis, name in tokens.items() if name != "past"}
        found = {n: past if len(s) == 5 else one for n, s in self.inputs.items()} if first else {}
        return found

    def tensors(self, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
        """Images and states are floating point, everything else is tokens; ones also make a mask that hides nothing."""
        return {
            name: torch.ones(shape, dtype=dtype if len(shape) >= 4 else torch.int64)
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
    module: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, **_: Any
) -> tuple[torch.Tensor, None]:
    """Eager attention as GPT-2 had it in transformers 4.38: quotient, choice by mask, softmax."""
    scores = torch.matmul(q, k.transpose(-1, -2)) / q.shape[-1] ** 0.5
    if mask is not None:  # a single query sees all
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


LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
MINI = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1}


def bert_large() -> hf.PreTrainedModel:
    return hf.BertForSequenceClassification(hf.BertConfig(**LARGE, **EAGER))


def before(model: str, config: str, **size: Any) -> hf.PreTrainedModel:
    """An encoder with `bert_attention` and `bert_mask`."""
    hf.AttentionInterface.register("bert-before", bert_attention)
    hf.AttentionMaskInterface.register("bert-before", bert_mask)
    return getattr(hf, model)(getattr(hf, config)(**size, attn_implementation="bert-before"))


def bert_attention(
    module: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, **_: Any
) -> tuple[torch.Tensor, None]:
    """Eager attention as BERT had it until transformers 4.4x: quotient, mask added, softmax."""
    scores = torch.matmul(q, k.transpose(-1, -2)) / int(q.shape[-1]) ** 0.5
    scores = scores if mask is None else scores + mask
    return torch.matmul(nn.functional.softmax(scores, dim=-1), v).transpose(1, 2).contiguous(), None


def bert_mask(
    *_: Any, attention_mask: torch.Tensor | None = None, dtype: torch.dtype = torch.float32, **__: Any
) -> torch.Tensor | None:
    """The mask as it was made then: 0 for tokens, -10000 for padding."""
    return None if attention_mask is None else (1.0 - attention_mask[:, None, None, :].to(dtype)) * -10000.0


class States(hf.DynamicCache):
    """Keys and values of each layer in one tensor [2, batch, heads, length, size], as GPT-2's code had them."""

    def __init__(self, past: list[torch.Tensor]) -> None:
        super().__init__()
        self.past, self.present = past, list[torch.Tensor]()

    def update(self, k: torch.Tensor, v: torch.Tensor, layer_idx: int, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        past = self.past[layer_idx]
        k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        self.present.append(torch.stack((k, v)))
        return k, v

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.past[layer_idx].shape[3]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0


class WithPast(nn.Module):
    """GPT-2 that continues, with a state of each layer as inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.model = gpt2_before(768, 12, 12, 1024)
        self.dtype = self.model.dtype

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, past: dict[str, torch.Tensor]) -> Any:
        states = States(list(past.values()))
        found = self.model(input_ids, position_ids=position_ids, past_key_values=states, use_cache=True)
        return (found.logits, *states.present)


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
    "bert-base-ids": Sample(
        "BERT-Base encoder with pooler, attention of old",
        lambda: before("BertModel", "BertConfig"),
        {"input_ids": (1, 128)},
        ("last_hidden_state", "pooler_output"),
        OPEN,
    ),
    "bert-base-cased": Sample(
        "BERT-Base token classifier, 9 classes, attention of old",
        lambda: before("BertForTokenClassification", "BertConfig", vocab_size=28996, num_labels=9),
        {**TOKENS, "token_type_ids": (1, 128)},
        ("logits",),
        OPEN,
        "old",
    ),
    "bert-large-qa": Sample(
        "BERT-Large, start and end of an answer, attention of old",
        lambda: before("BertForQuestionAnswering", "BertConfig", **LARGE),
        {**TOKENS, "token_type_ids": (1, 128)},
        ("start_logits", "end_logits"),
        OPEN,
        "script",
    ),
    "minilm-l6-h384": Sample(
        "MiniLM-L6-H384 classifier, 2 classes, attention of old",
        lambda: before("BertForSequenceClassification", "BertConfig", **MINI),
        {**TOKENS, "token_type_ids": (1, 128)},
        ("logits",),
        OPEN,
        "old",
    ),
    "roberta-base": Sample(
        "RoBERTa-Base classifier, 3 classes, attention of old",
        lambda: before("RobertaForSequenceClassification", "RobertaConfig", **ROBERTA, num_labels=3),
        TOKENS,
        ("logits",),
        OPEN,
        "old",
    ),
    "roberta-large": Sample(
        "RoBERTa-Large classifier, 3 classes, attention of old",
        lambda: before("RobertaForSequenceClassification", "RobertaConfig", **ROBERTA, **LARGE, num_labels=3),
        TOKENS,
        ("logits",),
        OPEN,
        "old",
    ),
    "distilbert-base": Sample(
        "DistilBERT classifier, 2 classes, attention of old",
        lambda: before("DistilBertForSequenceClassification", "DistilBertConfig"),
        TOKENS,
        ("logits",),
        OPEN,
        "old",
    ),
    "gpt2-past": Sample(
        "GPT-2 small, the next token after 128",
        WithPast,
        {"input_ids": (2, 1), "position_ids": (2, 1), **{f"past_{i}": (2, 2, 12, 128, 64) for i in range(12)}},
        ("logits", *(f"present_{i}" for i in range(12))),
        ("batch", "past"),
    ),
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
            model(**grouped(sample.tensors(model.dtype)))
    return int(counter.get_total_flops())


def export(sample: Sample) -> tuple[onnx.ModelProto, int]:
    """The ONNX model without weights, and its number of parameters."""
    model = weightless(sample.build)
    inputs = sample.tensors(model.dtype)
    if sample.form == "script":
        return strip(traced(model.to(torch.float16), sample)), sum(p.numel() for p in model.parameters())
    names = {name: torch.export.Dim(name) for name in sample.open_dims}
    dims = {n: {axis: names[d] for axis, d in axes.items()} for n, axes in sample.dims().items()}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model,
            (),
            kwargs=grouped(inputs),
            dynamo=True,
            verbose=False,
            external_data=False,
            input_names=list(inputs),
            output_names=list(sample.outputs),
            dynamic_shapes=grouped(dims) or None,
        )
    assert program is not None
    if sample.form == "old":
        as_before(program.model)
    return strip(program.model), sum(p.numel() for p in model.parameters())


class Positional(nn.Module):
    """What TorchScript's exporter can call: inputs in order, a tuple of outputs."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(**dict(zip(self.names, inputs, strict=True)), return_dict=False)


def traced(model: nn.Module, sample: Sample) -> ir.Model:
    """The model by TorchScript's exporter, its values numbered: their names hold the path of every module."""
    file, inputs = BytesIO(), sample.tensors()
    names: dict[str, Any] = {"input_names": list(inputs), "output_names": list(sample.outputs)}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        wrapped = Positional(model, list(inputs))
        names |= {"dynamic_axes": sample.dims(), "opset_version": 13, "dynamo": False}
        torch.onnx.export(wrapped, tuple(inputs.values()), file, **names)
    found = ir.from_proto(onnx.load_from_string(file.getvalue()))
    for i, node in enumerate(found.graph):
        node.name = f"{node.op_type}_{i}"
        for value in node.outputs:
            if not value.is_graph_output():
                value.name = f"v{i}" if len(node.outputs) == 1 else f"v{i}_{value.index()}"
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(found)
    return found


def grouped(inputs: dict[str, Any]) -> dict[str, Any]:
    """The states of the past as one argument."""
    past = {n: v for n, v in inputs.items() if n.startswith("past_")}
    rest = {n: v for n, v in inputs.items() if n not in past}
    return {**rest, "past": past} if past else rest


def as_before(model: ir.Model) -> None:
    """A mask's two new axes in two steps, as older exporters wrote it and ONNX Runtime's optimizer looks for it."""
    for node in [n for n in model.graph if n.op_type == "Unsqueeze"]:
        axes = node.inputs[1].const_value if node.inputs[1] is not None else None
        if axes is not None and axes.numpy().tolist() == [1, 2]:
            first, second = (
                ir.Value(name=n, const_value=ir.tensor([a], name=n)) for a in (1, 2) for n in [f"{node.name}_axis_{a}"]
            )
            model.graph.initializers.update({v.name: v for v in (first, second) if v.name})
            before = ir.node("Unsqueeze", [node.inputs[0], first], name=f"{node.name}_first")
            before.outputs[0].name = f"{node.name}_once"
            model.graph.insert_before(node, before)
            node.replace_input_with(0, before.outputs[0])
            node.replace_input_with(1, second)
    common.RemoveUnusedNodesPass()(model)


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
    several = {s: f"{k[0]} to {k[-1]}" if len(k) > 4 else ", ".join(k) for s, k in groups.items()}
    inputs = "; ".join(f"{keys} {'x'.join(map(str, shape))}" for shape, keys in several.items())
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

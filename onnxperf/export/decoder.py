"""The graph of a decoder without its weights, as ONNX Runtime GenAI's model builder writes it for CUDA.

After its public code, onnxruntime-genai 0.18.0 (models/builders/base.py and those of the families): one graph for
prompt and next tokens; the cache is a buffer of full length that is written in place; GroupQueryAttention rotates
queries and keys by tables, and reads one product for both and for values; a norm adds the residual; gate and up are two
products; logits of every position unless the head is pruned; where weights have 4 or 8 bits, MatMulNBits in symmetric
blocks of 32, for the head as well, but not for the embedding. Unlike it, norms of queries and keys stand before the
attention, not in it, and gemma-2's norms compute in the graph's type, without casts. Experts, which the builder writes
for other families, are MoE and QMoE with gate and up in one weight, as it does there. Families that it has no builder
for are written by the same rules. With DeepSeek's latent attention the prompt has a graph of its own: see
decoder_latent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from onnxperf.export.decoder_attention import attention
from onnxperf.export.decoder_config import ATTENDING, DecoderConfig
from onnxperf.export.decoder_latent import latent_prompt, latent_step, tokens_shape
from onnxperf.export.decoder_states import delta_net, mamba, mamba2, state_inputs
from onnxperf.export.decoder_streams import alternating, layer_inputs, one_stream, outliers, streams, with_input
from onnxperf.export.decoder_writer import BLOCK, CACHES, MS, Read, Writer
from onnxperf.graph.decoder_dims import WINDOW
from onnxperf.ground.errors import UsageError

OPSET, WITH_SCATTER = 21, 24
BITS = {"int4": 4, "int8": 8}
Dim = int | str
Part = Callable[..., str]  # of what it reads, x


def decoder(
    config: DecoderConfig, *, dtype: str, weights: str | None = None, cache: str | None = None,
    prune_head: bool = False, begins: bool = False, capped: bool = False,
) -> ModelProto:  # fmt: skip
    """The graph of a decoder, its batch, lengths and the cache's length open.

    dtype: of DTYPES, of activations, cache and weights; weights: int4 or int8 for the weights of products, None for
    dtype; cache: fp8 or int8 for keys and values that are kept, None for dtype; prune_head: logits of the last position
    alone, as the builder's option prune_lm_head; begins: with latent attention, the graph that begins a cache instead
    of the one that continues it; capped: layers with a window keep the last positions alone, as some engines do, not
    all of them, as ONNX Runtime does. Raises UsageError for a precision that is not offered.
    """
    if weights is not None and weights not in BITS:
        raise UsageError(f"weights of {weights!r:.60} are not known: it is one of {', '.join(BITS)}")
    if cache is not None and cache not in (offered := ("fp8",) if config.latent else tuple(CACHES)):
        of = " with latent attention" if config.latent else ""
        raise UsageError(f"a cache of {cache!r:.60} is not known{of}: it is {' or '.join(offered)}")
    w, c = Writer(dtype, BITS[weights] if weights else 0, cache), config
    first, kinds = begins and c.prompt_apart, {b.mixer for b in c.blocks}
    lengths = () if first or not kinds & set(ATTENDING) else _lengths(w)
    if c.latent and not first:
        tokens_shape(w, c)
    residual, pending = _embedded(w, c), ""
    read, inputs = Read(lengths, _tables(w, c)), layer_inputs(w, c, residual) if c.per_layer else []
    mixers: dict[str, Part] = {
        "attention": attention, "latent": latent_prompt if first else latent_step, "delta": delta_net,
        "mamba": mamba, "mamba2": mamba2,
    }  # fmt: skip
    residual = streams(w, c, residual) if c.streams > 1 else residual
    for i, layer in enumerate(c.blocks):
        at = f"/model/layers.{i}"
        mixer = partial(mixers[layer.mixer], w, c, f"{at}/attn", i, read=read) if layer.mixer else None
        dense = partial(_mlp, w, c, f"{at}/mlp", inner=layer.inner, sparsity=layer.sparsity)
        mlps: dict[str, Part | None] = {
            "experts": partial(_experts, w, c, at), "dense": dense, "both": partial(_both, w, c, at, dense), "": None,
        }  # fmt: skip
        if c.streams > 1 and mixer is not None:
            residual = alternating(w, c, at, residual, mixer, dense, inputs[i])
            continue
        residual, pending = _layer(w, c, at, residual, pending, mixer, mlps[layer.mlp])
        if c.layer_scalar:
            residual, pending = _scaled(w, c, at, residual, pending, inputs[i] if inputs else ""), ""
    residual = one_stream(w, c, residual) if c.streams > 1 else residual
    y = _norm(w, c, "/model/norm", residual, pending, last=True)[0]
    _head(w, c, y, prune_head)
    return _model(w, c, prune_head, masked=bool(lengths), capped=capped)


def _embedded(w: Writer, c: DecoderConfig) -> str:
    """The embedding of tokens, and of positions where these have one that is added."""
    x = w.node("Gather", "/model/embed_tokens", [w.weight("embed_tokens.weight", c.vocab, c.hidden), "input_ids"])
    x = w.times("/model/embed_tokens", x, c.embed_scale)
    if c.position != "learned":
        return x
    table, at = w.weight("embed_positions.weight", c.positions + c.position_offset, c.hidden), "position_ids"
    if c.position_offset:
        offset = w.number("position_offset", c.position_offset, TensorProto.INT64)
        at = w.node("Add", "/model/embed_positions/offset", [at, offset])
    y = w.node("Gather", "/model/embed_positions", [table, at])
    return w.node("Add", "/model/embed_positions/Add", [x, y])


def _tables(w: Writer, c: DecoderConfig) -> dict[tuple[int, bool], tuple[str, str]]:
    """Tables of cosines and sines, for each number of rotated elements and kind of layer."""
    tables = {}
    for rotated, local in dict.fromkeys((b.rotated, b.local) for b in c.blocks if b.rotated):
        names = [f"{'local_' if local else ''}{t}_cache" for t in ("cos", "sin")]
        cos, sin = (w.weight(name, c.positions, rotated // 2) for name in names)
        tables[rotated, local] = cos, sin
    return tables


def _layer(
    w: Writer, c: DecoderConfig, at: str, residual: str, pending: str, mixer: Part | None, mlp: Part | None
) -> tuple[str, str]:
    """The residual stream behind a layer, and what is still to be added to it, as the next norm adds it."""
    if c.placement.startswith("parallel") and mixer and mlp:
        y, residual = _norm(w, c, f"{at}/input_layernorm", residual, pending)
        z = _norm(w, c, f"{at}/post_attention_norm", residual)[0] if c.placement == "parallel_two" else y
        return residual, w.node("Add", f"{at}/parallel/Add", [mixer(x=y), mlp(x=z)])
    second = "pre_feedforward" if c.placement == "both" else "post_attention"
    for part, before, behind in (
        (mixer, "input_layernorm", "post_attention_layernorm"), (mlp, f"{second}_norm", "post_feedforward_layernorm")
    ):  # fmt: skip
        if part is None:
            continue
        if c.placement == "post":
            y = residual = w.node("Add", f"{at}/{before}/Add", [residual, pending]) if pending else residual
        else:
            y, residual = _norm(w, c, f"{at}/{before}", residual, pending)
        pending = part(x=y)
        if c.placement in ("post", "both"):
            pending, _ = _norm(w, c, f"{at}/{behind}", pending)
        pending = w.times(f"{at}/{behind}", pending, c.residual_scale)
    return residual, pending


def _scaled(w: Writer, c: DecoderConfig, at: str, residual: str, pending: str, token: str) -> str:
    """The stream behind a layer, with what the layer's own input adds to it, times a number that was learnt."""
    x = w.node("Add", f"{at}/Add", [residual, pending])
    x = w.node("Add", f"{at}/per_layer/Add", [x, with_input(w, c, at, x, token)]) if token else x
    return w.node("Mul", f"{at}/layer_scalar/Mul", [x, w.weight(f"{at}/layer_scalar", 1)])


def _both(w: Writer, c: DecoderConfig, at: str, dense: Part, x: str) -> str:
    """A dense MLP, and experts beside it that read the stream before the norm, each with norms of its own (Gemma 4).

    The scales of the router and of each expert are taken to be in the weights of both.
    """
    stream = f"{at}/pre_feedforward_norm/sum"
    first, _ = _norm(w, c, f"{at}/post_feedforward_layernorm_1", dense(x=x))
    scale = w.constant(f"{at}/moe/norm/scale", c.hidden, c.hidden**-0.5)
    rows = w.node("SimplifiedLayerNormalization", f"{at}/moe/norm", [stream, scale], axis=-1, epsilon=c.epsilon)
    y = _experts(w, c, at, _norm(w, c, f"{at}/pre_feedforward_layernorm_2", stream)[0], rows)
    second, _ = _norm(w, c, f"{at}/post_feedforward_layernorm_2", y)
    return w.node("Add", f"{at}/moe/Add", [first, second])


def _lengths(w: Writer) -> tuple[str, str]:
    """What GroupQueryAttention reads of the mask: the last position of each sample, and the length of the longest."""
    at = "/model/attn_mask_reformat"
    one, first = w.integers("one", 1), w.number("index", 1, TensorProto.INT64)
    total = w.node("ReduceSum", f"{at}/ReduceSum", ["attention_mask", one], keepdims=0)
    last = w.node("Cast", f"{at}/Sub/Cast", [w.node("Sub", f"{at}/Sub", [total, one])], to=TensorProto.INT32)
    longest = w.node("Gather", f"{at}/Gather", [w.node("Shape", f"{at}/Shape", ["attention_mask"]), first])
    return last, w.node("Cast", f"{at}/Gather/Cast", [longest], to=TensorProto.INT32)


def _norm(w: Writer, c: DecoderConfig, name: str, x: str, skip: str = "", last: bool = False) -> tuple[str, str]:
    """The norm of x + skip, and that sum, which is x where there is nothing to add."""
    y = w.norm(name, x, c.hidden, c.epsilon, c.norm, skip)
    if last and skip:
        del w.nodes[-1].output[1:]
    return y, f"{name}/sum" if skip else x


def _mlp(w: Writer, c: DecoderConfig, at: str, x: str, inner: int, sparsity: float = 0.0) -> str:
    """down(activation(gate x) up x), or down(activation(up x)) without a gate; sparsity: the share of the gate's
    elements that count as nothing.
    """
    if c.plain:
        y = w.activated(f"{at}/act_fn", w.product(f"{at}/up_proj", x, c.hidden, inner, c.mlp_bias), c.activation)
    else:
        gate = w.product(f"{at}/gate_proj", x, c.hidden, inner, c.mlp_bias)
        up = w.product(f"{at}/up_proj", x, c.hidden, inner, c.mlp_bias)
        gate = outliers(w, f"{at}/sparse", gate, sparsity) if sparsity else gate
        y = w.node("Mul", f"{at}/Mul", [w.activated(f"{at}/act_fn", gate, c.activation), up])
    return w.product(f"{at}/down_proj", y, inner, c.hidden, c.mlp_bias)


def _experts(w: Writer, c: DecoderConfig, at: str, x: str, routed: str = "") -> str:
    """Routed experts, and the shared one where there is one, which every token takes; routed: what the router reads,
    where that is not x.
    """
    name, bits = f"{at}/moe", w.bits or c.expert_bits
    packed = 8 // bits if bits else 1
    rows = w.node(
        "MatMul", f"{name}/router/MatMul", [routed or x, w.weight(f"{name}/router.weight", c.hidden, c.experts)]
    )
    if c.expert_bias:
        rows = w.node("Add", f"{name}/router/Add", [rows, w.weight(f"{name}/router.bias", c.experts)])
    rows = w.node("Reshape", f"{name}/router/Reshape", [rows, w.integers(f"{name}/router/shape", -1, c.experts)])
    inputs = [x, rows]
    for fc, n, k in (("fc1", (2 - c.plain) * c.expert_inner, c.hidden), ("fc2", c.hidden, c.expert_inner)):
        kind = TensorProto.UINT8 if bits else None
        inputs.append(w.weight(f"{name}/{fc}.weight", c.experts, n, k // packed, type=kind))
        inputs += [w.weight(f"{name}/{fc}.scales", c.experts, n, k // BLOCK)] if bits else []
        inputs.append(w.weight(f"{name}/{fc}.bias", c.experts, n) if c.expert_bias else "")
    attrs: dict[str, Any] = {
        "k": c.taken,
        "activation_type": c.activation if c.plain else "swiglu" if c.activation == "silu" else "geglu",
        "swiglu_fusion": int(not c.plain),
        "normalize_routing_weights": int(c.normalised),
    }
    attrs |= {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 7.0} if c.clamped else {}
    attrs |= {"expert_weight_bits": bits, "block_size": BLOCK} if bits else {}
    y = w.node(f"{MS}::{'QMoE' if bits else 'MoE'}", name, inputs if c.expert_bias else inputs[:-1], **attrs)
    if not c.shared_inner:
        return y
    shared = _mlp(w, c, f"{at}/shared_expert", x, c.shared_inner)
    if c.shared_gate:
        gate = w.node("Sigmoid", f"{at}/shared_gate", [w.product(f"{at}/shared_expert_gate", x, c.hidden, 1)])
        shared = w.node("Mul", f"{at}/shared_expert/weighted", [shared, gate])
    return w.node("Add", f"{at}/moe/Add", [y, shared])


def _head(w: Writer, c: DecoderConfig, x: str, prune: bool) -> None:
    """The logits, of the last position alone where the head is pruned."""
    if prune:
        x = w.node("Gather", "/lm_head/prune/Gather", [x, w.number("last", -1, TensorProto.INT64)], axis=1)
        x = w.node("Unsqueeze", "/lm_head/prune/Unsqueeze", [x, w.integers("second", 1)])
    x = w.product("/lm_head", x, c.hidden, c.vocab, c.head_bias)
    x = w.times("/lm_head", x, c.logit_scale)
    if c.final_softcap:
        cap = w.number("softcap", c.final_softcap)
        x = w.node("Tanh", "/lm_head/softcap/Tanh", [w.node("Div", "/lm_head/softcap/Div", [x, cap])])
        x = w.node("Mul", "/lm_head/softcap/Mul", [x, cap])
    w.nodes[-1].output[0] = "logits"


def _model(w: Writer, c: DecoderConfig, prune: bool, masked: bool, capped: bool) -> ModelProto:
    """The model of what was written; masked: it reads a mask; capped: windows bound caches."""

    def info(name: str, shape: Sequence[Dim], type: int = TensorProto.INT64) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, type, shape)

    batch, new = "batch_size", "sequence_length"
    kept: dict[str, tuple[int, tuple[Dim, ...]]] = {}
    for i, layer in enumerate(c.blocks):
        if layer.mixer in ATTENDING and not layer.back:
            length = f"{WINDOW}{layer.window}" if capped and layer.window else "max_sequence_length"
            parts = dict.fromkeys(("key", "value"), (layer.kv_heads, layer.head_dim))
            if layer.mixer == "latent":
                parts = {"latent": (1, c.latent + c.rope_dim), **({"index": (1, c.index_dim)} if layer.indexed else {})}
            kept |= {f"{i}.{p}": (w.cache, (batch, heads, length, width)) for p, (heads, width) in parts.items()}
        elif c.state and layer.mixer == c.state.kind:
            types = {"conv_state": w.type, "recurrent_state": TensorProto.FLOAT}
            kept |= {n: (types[n.partition(".")[2]], (batch, *s)) for n, s in state_inputs(c, i).items()}
    inputs = [info("input_ids", (batch, new))]
    inputs += [info("attention_mask", (batch, "total_sequence_length"))] if masked else []
    inputs += [info("position_ids", (batch, new))] if c.latent or c.position == "learned" else []
    inputs += [info(f"past_key_values.{name}", shape, type) for name, (type, shape) in kept.items()]
    outputs = [info("logits", (batch, 1 if prune else new, c.vocab), w.type)]
    outputs += [info(f"present.{name}", shape, type) for name, (type, shape) in kept.items()]
    graph = helper.make_graph(w.nodes, c.model_type, inputs, outputs, w.stored)
    domains = {"": WITH_SCATTER if c.latent else OPSET} | {n.domain: 1 for n in w.nodes if n.domain}
    opsets = [helper.make_opsetid(*x) for x in domains.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="onnxperf")


def parameters(model: ModelProto, config: DecoderConfig) -> int:
    """Parameters of a model that `decoder` made: what its weights hold, a head that is tied to the embedding once,
    without tables of rotations and scales of blocks.
    """
    bits = {n.input[1]: 8 // a.i for n in model.graph.node for a in n.attribute if a.name == "bits"}
    bits |= {n.input[i]: 8 // a.i for n in model.graph.node if n.op_type == "QMoE"
             for a in n.attribute if a.name == "expert_weight_bits" for i in (2, 5)}  # fmt: skip
    total = -config.vocab * config.hidden if config.tied else 0
    for t in model.graph.initializer:
        if t.data_location == TensorProto.EXTERNAL and not t.name.endswith(("_cache", ".scales")):
            size = bits.get(t.name, 1)
            for d in t.dims:
                size *= d
            total += size
    return total

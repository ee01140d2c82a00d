"""What Gemma 3n and Gemma 4 add to the residual stream in each layer: an input of its own for each token.

It is made of a second table of embeddings, which has a row of `per_layer` elements for every layer, and of the token's
embedding; in the layer a gate that the stream gives weights it, and a product brings it to the stream's width.

Gemma 3n has several streams beside each other, [batch, tokens, streams, hidden], of which a layer computes one and
predicts and corrects the others from small products (AltUp, arXiv:2301.13310); beside its attention it has a product of
low rank (LAuReL, arXiv:2411.07501).
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist

from onnxperf.export.decoder_config import DecoderConfig
from onnxperf.export.decoder_writer import Writer


def layer_inputs(w: Writer, c: DecoderConfig, x: str) -> list[str]:
    """The input of each layer [batch, tokens, per_layer], from the embedding x."""
    at, width = "/model/per_layer", c.layers * c.per_layer
    table = w.weight("embed_tokens_per_layer.weight", c.per_layer_vocab, width)
    tokens = w.times(f"{at}/tokens", w.node("Gather", f"{at}/embed", [table, "input_ids"]), c.per_layer**0.5)
    context = w.product(f"{at}/model_projection", x, c.hidden, width)
    context = w.times(f"{at}/context", context, c.hidden**-0.5)
    split = w.integers(f"{at}/split", 0, 0, c.layers, c.per_layer)
    context = w.node("Reshape", f"{at}/Reshape_1", [context, split])
    context = w.norm(f"{at}/projection_norm", context, c.per_layer, c.epsilon)
    context = w.node("Reshape", f"{at}/Reshape_2", [context, w.integers(f"{at}/joined", 0, 0, width)])
    both = w.times(f"{at}/both", w.node("Add", f"{at}/Add", [context, tokens]), 0.5**0.5)
    parts = [f"{at}/{i}" for i in range(c.layers)]
    w.node("Split", f"{at}/Split", [both, w.integers(f"{at}/sizes", *[c.per_layer] * c.layers)], parts, axis=-1)
    return parts


def with_input(w: Writer, c: DecoderConfig, at: str, x: str, token: str) -> str:
    """What the input of a layer adds to the stream x."""
    gate = w.product(f"{at}/per_layer_input_gate", x, c.hidden, c.per_layer)
    gate = w.activated(f"{at}/per_layer/act_fn", gate, c.activation)
    y = w.node("Mul", f"{at}/per_layer/Mul", [gate, token])
    y = w.product(f"{at}/per_layer_projection", y, c.per_layer, c.hidden)
    return w.norm(f"{at}/post_per_layer_input_norm", y, c.hidden, c.epsilon)


def streams(w: Writer, c: DecoderConfig, x: str) -> str:
    """The streams that a token begins with: its embedding, and products of that which are made as large."""
    size = _size(w, "/model/altup/size", x)
    parts = [x]
    for i in range(1, c.streams):
        y = w.product(f"/model/altup_projections.{i - 1}", x, c.hidden, c.hidden)
        parts.append(_as_large(w, f"/model/altup/{i}", y, size))
    apart = [_column(w, f"/model/altup/{i}/column", part, 2) for i, part in enumerate(parts)]
    return w.node("Concat", "/model/altup/streams", apart, axis=2)


def one_stream(w: Writer, c: DecoderConfig, x: str) -> str:
    """The mean of the streams, each behind a product and as large as the first."""
    at = "/model/altup_end"
    parts = [f"{at}/{i}" for i in range(c.streams)]
    w.node("Split", f"{at}/Split", [x, w.integers(f"{at}/sizes", *[1] * c.streams)], parts, axis=2)
    first, *rest = (_joined(w, c, f"{part}/joined", part) for part in parts)
    total, size = first, _size(w, f"{at}/size", first)
    for i, part in enumerate(rest):
        y = w.product(f"/model/altup_unembed_projections.{i}", part, c.hidden, c.hidden)
        total = w.node("Add", f"{at}/Add_{i}", [total, _as_large(w, f"{at}/as_large_{i}", y, size)])
    return w.times(at, total, 1 / c.streams)


def alternating(
    w: Writer, c: DecoderConfig, at: str, x: str, mixer: Callable[..., str], mlp: Callable[..., str], token: str
) -> str:
    """The streams behind a layer, of which it computes the first."""
    first, _ = _parted(w, c, f"{at}/altup/streams", x)
    routed = _routed(w, c, f"{at}/altup/predict", first, writes=True)
    coefficients = w.product(f"{at}/altup/prediction_coefs", routed, c.streams, c.streams**2)
    square = w.integers(f"{at}/altup/square", 0, 0, c.streams, c.streams)
    square = w.node("Reshape", f"{at}/altup/coefficients", [coefficients, square])
    predicted = w.node("Add", f"{at}/altup/Add", [w.node("MatMul", f"{at}/altup/MatMul", [square, x]), x])
    active, _ = _parted(w, c, f"{at}/altup/predicted", predicted)
    y = w.norm(f"{at}/input_layernorm", active, c.hidden, c.epsilon)
    low = w.product(f"{at}/laurel/linear_left", y, c.hidden, c.low_rank)
    low = w.product(f"{at}/laurel/linear_right", low, c.low_rank, c.hidden)
    low = w.node("Add", f"{at}/laurel/Add", [y, w.norm(f"{at}/laurel/post_laurel_norm", low, c.hidden, c.epsilon)])
    attended = w.norm(f"{at}/post_attention_layernorm", mixer(x=y), c.hidden, c.epsilon)
    both = w.node("Add", f"{at}/laurel/both", [w.node("Add", f"{at}/attn/Add", [active, attended]), low])
    both = w.times(f"{at}/laurel", both, 0.5**0.5)
    y = mlp(x=w.norm(f"{at}/pre_feedforward_norm", both, c.hidden, c.epsilon))
    done = w.node("Add", f"{at}/mlp/end", [both, w.norm(f"{at}/post_feedforward_layernorm", y, c.hidden, c.epsilon)])
    return _corrected(w, c, at, predicted, active, done, token)


def _corrected(w: Writer, c: DecoderConfig, at: str, predicted: str, active: str, done: str, token: str) -> str:
    """The streams that were predicted, with what the computed one differs by, and the layer's input in the others."""
    name = f"{at}/altup/correct"
    coefficients = w.product(f"{at}/altup/correction_coefs", _routed(w, c, name, done), c.streams, c.streams)
    coefficients = w.node("Add", f"{name}/Add_1", [coefficients, w.number(f"{name}/one", 1.0)])
    news = w.node("Sub", f"{name}/Sub", [done, active])
    news = w.node(
        "Mul", f"{name}/Mul", [_column(w, f"{name}/news", news, 2), _column(w, f"{name}/of", coefficients, 3)]
    )
    first, rest = _parted(w, c, f"{name}/streams", w.node("Add", f"{name}/Add_2", [predicted, news]))
    scaled = w.node("Mul", f"{name}/scaled", [first, w.weight(f"{at}/altup/correct_output_scale", c.hidden)])
    more = _column(w, f"{name}/more", with_input(w, c, at, scaled, token), 2)
    rest = w.node("Add", f"{name}/Add_3", [rest, more])
    return w.node("Concat", f"{name}/Concat", [_column(w, f"{name}/first", first, 2), rest], axis=2)


def _routed(w: Writer, c: DecoderConfig, name: str, x: str, writes: bool = False) -> str:
    """tanh of how much of each stream there is in one; both uses in a layer read the same weights, which one writes."""
    at = name.rpartition("/")[0]
    weights = [f"{at}/router_norm.weight", f"{at}/modality_router.weight"]
    if writes:
        w.weight(weights[0], c.hidden)
        w.weight(weights[1], c.hidden, c.streams)
    y = w.node(
        "SimplifiedLayerNormalization", f"{name}/norm", [x, weights[0]], axis=-1, epsilon=c.epsilon, stash_type=1
    )
    y = w.node("MatMul", f"{name}/router/MatMul", [w.times(f"{name}/norm", y, 1 / c.hidden), weights[1]])
    return w.node("Tanh", f"{name}/Tanh", [y])


def _parted(w: Writer, c: DecoderConfig, name: str, x: str) -> tuple[str, str]:
    """The first stream, and the others."""
    parts, sizes = [f"{name}/first", f"{name}/rest"], w.integers(f"{name}/sizes", 1, c.streams - 1)
    w.node("Split", f"{name}/Split", [x, sizes], parts, axis=2)
    return _joined(w, c, f"{name}/joined", parts[0]), parts[1]


def _joined(w: Writer, c: DecoderConfig, name: str, x: str) -> str:
    """[batch, tokens, 1, hidden] as [batch, tokens, hidden]."""
    return w.node("Reshape", name, [x, w.integers(f"{name}/shape", 0, 0, c.hidden)])


def _column(w: Writer, name: str, x: str, axis: int) -> str:
    """x with an axis of one more."""
    return w.node("Unsqueeze", name, [x, w.integers(f"{name}/axis", axis)])


def _size(w: Writer, name: str, x: str) -> str:
    """The root of the mean of squares of each row."""
    mean = w.node(
        "ReduceMean", f"{name}/ReduceMean", [w.node("Mul", f"{name}/Mul", [x, x]), w.integers(f"{name}/axis", -1)]
    )
    return w.node("Sqrt", f"{name}/Sqrt", [w.node("Max", f"{name}/Max", [mean, w.number(f"{name}/least", 1e-5)])])


def _as_large(w: Writer, name: str, x: str, size: str) -> str:
    """x made as large as `size` says."""
    share = w.node("Div", f"{name}/Div", [size, _size(w, name, x)])
    return w.node("Mul", f"{name}/scaled", [x, share])


def outliers(w: Writer, name: str, x: str, share: float) -> str:
    """By how much elements exceed what, of a row that is normally distributed, the `share` with the least would not."""
    axis = w.integers(f"{name}/axis", -1)
    x = w.node("Sub", f"{name}/Sub_1", [x, w.node("ReduceMean", f"{name}/mean", [x, axis])])
    spread = w.node("ReduceMean", f"{name}/variance", [w.node("Mul", f"{name}/Mul", [x, x]), axis])
    cut = w.times(f"{name}/cut", w.node("Sqrt", f"{name}/Sqrt", [spread]), NormalDist().inv_cdf(share))
    return w.node("Relu", f"{name}/Relu", [w.node("Sub", f"{name}/Sub_2", [x, cut])])

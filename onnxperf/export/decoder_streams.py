"""What Gemma 3n and Gemma 4 add to the residual stream in each layer: an input of its own for each token.

It is made of a second table of embeddings, which has a row of `per_layer` elements for every layer, and of the token's
embedding; in the layer a gate that the stream gives weights it, and a product brings it to the stream's width.
"""

from __future__ import annotations

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

"""How GreedySearch, BeamSearch and Sampling are replaced by their decoders, which run once for each token.

These contrib operators of ONNX Runtime hold their models as graphs: `decoder`, with `init_decoder` where the prompt has
a graph of its own, and `encoder` for models such as T5 and Whisper. The first run reads the prompt; each of the
following reads one token, and a cache that grows by one each time: all are counted with its mean length. After each run
the next token of every row is chosen: a slice of the logits and a TopK. What else the operators do with logits
(penalties, softmax, words that are forbidden) is left out, as it is small beside a decoder.

Source: subgraph_gpt.cc, subgraph_t5_encoder.cc and subgraph_t5_decoder.cc in
https://github.com/microsoft/onnxruntime/tree/main/onnxruntime/contrib_ops/cpu/transformers fix the names of inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from onnx import TypeProto, ValueInfoProto

from onnxperf.graph.bind import declared_dims
from onnxperf.graph.control_node import ControlNode, Output
from onnxperf.graph.core import SEARCHES
from onnxperf.graph.proto import Shape, dtype_of, tensor_type
from op_models import Tensor

#: Inputs of a decoder where past and present share a buffer, which is as long as a row can become.
SHARED = "past_sequence_length"
#: How many outputs an operator can have.
OUTPUTS = {"GreedySearch": 1, "Sampling": 2, "BeamSearch": 3}


class Sizes(NamedTuple):
    """What a run of a decoder or an encoder reads.

    samples: of the batch; beams: rows for each of them; tokens: new ones of a row; past: those in its cache; limit: of
    all its tokens; source: the dimensions of the encoder's input behind the first, () where there is no encoder.
    """

    samples: int
    beams: int
    tokens: int
    past: int
    limit: int
    source: Shape


def inline_search(node: ControlNode) -> None:
    """The prompt's run, and one for each further token: up to max_length, unless --trip-count says how many."""
    if any(
        f"com.microsoft::{type}" in SEARCHES and node.label.startswith(f"{label}/")
        for label, type in node.trips.seen.items()
    ):
        raise node.refusal("it stands inside another search")
    prompt, beamed = _input(node, 0), node.node.op_type == "BeamSearch"
    if prompt is None or prompt.rank < 2:
        raise node.refusal("its first input must be [batch, length]")
    if (outputs := len(node.node.output)) > OUTPUTS[node.node.op_type]:
        raise node.refusal(f"it has {outputs} outputs, where at most {OUTPUTS[node.node.op_type]} are possible")
    most, wanted = node.number(_input(node, 1)), node.number(_input(node, 3)) if beamed else None
    for what, bound in (("max_length", most), ("num_beams", wanted)):
        if bound is not None and bound < 1:
            raise node.refusal(f"its {what} is {bound}, and must be at least 1")
    beams = wanted or 1
    first = next(a for a in ("encoder", "init_decoder", "decoder") if a == "decoder" or node.has(a))
    source = prompt.shape[1:] if first == "encoder" else ()
    samples, length = prompt.shape[0], 1 if source else prompt.shape[1]
    limit = max(most or 0, length + 1)
    start = Sizes(samples, 1 if source else beams, length, 0, limit, source)
    chosen = _run(node, first, f"com.microsoft::{node.node.op_type}", start, node.inputs)
    steps = node.trip_count(None, None if most is None else limit - length - 1)
    if steps:
        limit = max(limit, length + 1 + steps)
        loop, begin = node.inside("steps"), len(node.state.operators)
        mean = Sizes(samples, beams, 1, length + steps // 2, limit, source)
        chosen = _run(loop, "decoder", "Loop", mean, [chosen])
        loop.repeat(begin + 1, steps)  # the Loop itself stands before them
    tokens = (samples, beams, limit) if beamed else (samples, limit)
    others = ((samples, beams), (max(1, limit - length), samples, beams, 1))  # scores of sequences, and of all tokens
    types = [tensor_type("int32", tokens), *(tensor_type("float32", shape) for shape in others)]
    node.define_outputs([Output(chosen, type) for type in types[: len(node.node.output)]])


def _input(node: ControlNode, k: int) -> Tensor | None:
    return node.inputs[k] if k < len(node.inputs) else None


def _run(node: ControlNode, attribute: str, operator: str, sizes: Sizes, reads: Sequence[Tensor | None]) -> Tensor:
    """One run of the graph in an attribute, and the tokens that are chosen from the logits that it gives."""
    body = node.body(attribute)
    shared = any(i.name == SHARED for i in body.inputs)
    types = [_type(node, info, sizes, shared) for info in body.inputs]
    node.enter(body, types, [None] * len(types), operator, reads)
    outputs = node.run(body)
    logits = outputs[0]
    node.state.made_together.update((t.name, logits.name) for t in outputs)  # the next run reads the caches
    if logits.rank != 3:
        raise node.refusal(f"the first output of its {attribute} must be the logits, [batch, length, words]")
    rows, words = logits.shape[0], logits.shape[2]
    last = node.add("Slice", [logits], logits.dtype, (rows, words))
    return node.add("TopK", [last], "int64", (rows, min(words, 2 * sizes.beams if sizes.beams > 1 else 1)))


def _type(node: ControlNode, info: ValueInfoProto, sizes: Sizes, shared: bool) -> TypeProto:
    """The type of an input of a decoder or an encoder, by its name."""
    s, name = sizes, info.name
    dims = [d if isinstance(d, int) else 1 for d in declared_dims(info) or ()]
    rows, held = s.samples * s.beams, s.limit if shared else s.past
    whole: dict[str, Shape] = {
        "input_ids": (rows, s.tokens), "position_ids": (rows, s.tokens), "decoder_input_ids": (rows, 1),
        "attention_mask": (rows, s.past + s.tokens), "encoder_input_ids": (rows, *s.source),
        "encoder_attention_mask": (rows, *s.source[:1]), "encoder_hidden_states": (rows, *s.source[:1], *dims[2:]),
        "cache_indirection": (s.samples, s.beams, s.limit), SHARED: (1,), "beam_width": (1,),
    }  # fmt: skip
    if name in whole:
        shape = whole[name]
    elif name.startswith(("past_key_cross", "past_value_cross")) and len(dims) == 4:
        shape = (rows, dims[1], *s.source[:1], dims[3])
    elif name.startswith(("past_key", "past_value")) and len(dims) == 4:
        shape = (rows, dims[1], held, dims[3])
    elif name.startswith("past_") and len(dims) == 5:  # keys and values in one tensor
        shape = (dims[0], rows, dims[2], held, dims[4])
    else:
        raise node.refusal(f"the input {name!r} of its graph is none that ONNX Runtime gives it")
    return tensor_type(dtype_of(info.type.tensor_type.elem_type), shape)

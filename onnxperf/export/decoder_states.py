"""Layers of linear attention: gated delta nets (Qwen3-Next, arXiv:2412.06464), Mamba (arXiv:2312.00752) and Mamba-2
(arXiv:2405.21060).

Instead of keys and values they keep a state of fixed size, and the last inputs of a short convolution, which both are
read and written by every run: inputs and outputs past_key_values.N.recurrent_state, in float32, and .conv_state.
Delta nets are ONNX Runtime's CausalConvWithState, LinearAttentionGate, LinearAttention and GatedRMSNorm. For state
spaces it has no operator: StateSpace is onnxperf's own (op_models.recurrent), one kernel as mamba-ssm has.
Queries and keys of a delta net are divided by their length: an RMS norm with a constant scale.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from onnxperf.export.decoder_attention import by_heads
from onnxperf.export.decoder_config import DecoderConfig, State
from onnxperf.export.decoder_writer import MS, OWN, Read, Writer


def delta_net(w: Writer, c: DecoderConfig, at: str, i: int, x: str, read: Read) -> str:
    """A gated delta net."""
    s = _state(c)
    keys = s.key_heads * s.key_dim
    both = w.product(f"{at}/in_proj_qkvz", x, c.hidden, s.channels + s.width)
    mixed, z = _split(w, f"{at}/qkvz", both, {"qkv": s.channels, "z": s.width})
    rates = w.product(f"{at}/in_proj_ba", x, c.hidden, 2 * s.heads)
    b, a = _split(w, f"{at}/ba", rates, {"b": s.heads, "a": s.heads})
    parts = _split(w, f"{at}/mixed", _convolved(w, s, at, i, mixed), {"q": keys, "k": keys, "v": s.width})
    q, k = (_unit(w, s, f"{at}/{p}_norm", y) for p, y in zip("qk", parts[:2], strict=True))
    scales = [w.weight(f"{at}/{name}", s.heads, type=TensorProto.FLOAT) for name in ("dt_bias", "A_log")]
    gate = [f"{at}/decay", f"{at}/beta"]
    w.node(f"{MS}::LinearAttentionGate", f"{at}/gate", [a, *scales, b], gate)
    past, present = _names(i, "recurrent_state")
    y = w.node(
        f"{MS}::LinearAttention", f"{at}/LinearAttention", [q, k, parts[2], past, *gate],
        [f"{at}/LinearAttention", present], q_num_heads=s.key_heads, kv_num_heads=s.heads, update_rule="gated_delta",
        scale=s.key_dim**-0.5,
    )  # fmt: skip
    norm = [y, w.weight(f"{at}/norm.weight", s.value_dim), z]
    y = w.node(f"{MS}::GatedRMSNorm", f"{at}/norm", norm, activation="silu", epsilon=c.epsilon)
    return w.product(f"{at}/out_proj", y, s.width, c.hidden)


def mamba2(w: Writer, c: DecoderConfig, at: str, i: int, x: str, read: Read) -> str:
    """A state space of heads, whose groups share B and C."""
    s = _state(c)
    keys = s.key_heads * s.key_dim
    both = w.product(f"{at}/in_proj", x, c.hidden, s.width + s.channels + s.heads)
    z, mixed, dt = _split(w, f"{at}/in", both, {"z": s.width, "xBC": s.channels, "dt": s.heads})
    values, b, cc = _split(w, f"{at}/mixed", _convolved(w, s, at, i, mixed), {"x": s.width, "B": keys, "C": keys})
    scales = [w.weight(f"{at}/{name}", s.heads, type=TensorProto.FLOAT) for name in ("A_log", "D", "dt_bias")]
    y = _space(w, at, i, [values, dt, b, cc, *scales])
    gate = w.node("Mul", f"{at}/gate/Mul", [z, w.node("Sigmoid", f"{at}/gate/Sigmoid", [z])])
    y = _gated_norm(w, c, f"{at}/norm", w.node("Mul", f"{at}/gated", [y, gate]))
    return w.product(f"{at}/out_proj", y, s.width, c.hidden)


def mamba(w: Writer, c: DecoderConfig, at: str, i: int, x: str, read: Read) -> str:
    """A state space of channels, all with the same B and C."""
    s = _state(c)
    both = w.product(f"{at}/in_proj", x, c.hidden, 2 * s.width)
    mixed, z = _split(w, f"{at}/in", both, {"x": s.width, "z": s.width})
    values = _convolved(w, s, at, i, mixed)
    sizes = {"dt": s.rank, "B": s.key_dim, "C": s.key_dim}
    dt, b, cc = _split(w, f"{at}/selected", w.product(f"{at}/x_proj", values, s.width, sum(sizes.values())), sizes)
    if s.norms:
        parts = {"dt_layernorm": (dt, s.rank), "b_layernorm": (b, s.key_dim), "c_layernorm": (cc, s.key_dim)}
        dt, b, cc = (w.norm(f"{at}/{name}", y, n, c.epsilon) for name, (y, n) in parts.items())
    dt = w.product(f"{at}/dt_proj", dt, s.rank, s.width)
    a = w.weight(f"{at}/A_log", s.width, s.key_dim, type=TensorProto.FLOAT)
    vectors = [w.weight(f"{at}/{name}", s.width, type=TensorProto.FLOAT) for name in ("D", "dt_bias")]
    y = _space(w, at, i, [values, dt, b, cc, a, *vectors], z)
    return w.product(f"{at}/out_proj", y, s.width, c.hidden)


def state_inputs(c: DecoderConfig, i: int) -> dict[str, tuple[int, ...]]:
    """What a layer keeps of a sample: names, and shapes without the batch."""
    s = _state(c)
    matrix = (s.width, s.key_dim) if s.kind == "mamba" else (s.heads, s.key_dim, s.value_dim)
    return {f"{i}.conv_state": (s.taps - 1, s.channels), f"{i}.recurrent_state": matrix}


def _state(c: DecoderConfig) -> State:
    assert c.state is not None  # of a layer that has one
    return c.state


def _names(i: int, part: str) -> tuple[str, str]:
    """Of the input and the output that a layer's state is."""
    return f"past_key_values.{i}.{part}", f"present.{i}.{part}"


def _split(w: Writer, name: str, x: str, sizes: dict[str, int]) -> list[str]:
    """x in parts along its last axis."""
    parts = [f"{name}/{part}" for part in sizes]
    w.node("Split", f"{name}/Split", [x, w.integers(f"{name}/sizes", *sizes.values())], parts, axis=-1)
    return parts


def _convolved(w: Writer, s: State, at: str, i: int, x: str) -> str:
    """silu of the convolution of each channel with its last inputs."""
    name, (past, present) = f"{at}/conv1d", _names(i, "conv_state")
    bias = w.weight(f"{name}.bias", s.channels) if s.bias else ""
    inputs = [x, w.weight(f"{name}.weight", s.channels, 1, s.taps), bias, past]
    return w.node(f"{MS}::CausalConvWithState", name, inputs, [name, present], activation="silu", channels_last=1)


def _unit(w: Writer, s: State, name: str, x: str) -> str:
    """Each head divided by its length."""
    scale = w.constant(f"{name}/scale", s.key_dim, s.key_dim**-0.5)
    return by_heads(w, name, x, s.key_dim, scale, 1e-6 / s.key_dim)


def _space(w: Writer, at: str, i: int, inputs: Sequence[str], z: str = "") -> str:
    """The state space itself; inputs: x, dt, B, C, A, D and the bias of dt."""
    past, present = _names(i, "recurrent_state")
    more = [z] if z else []
    return w.node(f"{OWN}::StateSpace", f"{at}/StateSpace", [*inputs, past, *more], [f"{at}/StateSpace", present])


def _gated_norm(w: Writer, c: DecoderConfig, name: str, x: str) -> str:
    """The norm of what was gated, of each group of heads."""
    s = _state(c)
    if s.key_heads == 1:
        return w.norm(name, x, s.width, c.epsilon)
    group = s.width // s.key_heads
    y = by_heads(w, name, x, group, w.constant(f"{name}/scale", group, 1.0), c.epsilon)
    return w.node("Mul", f"{name}/Mul", [y, w.weight(f"{name}.weight", s.width)])

"""Mixtures of experts: every token is processed by k of them.

Every token is assumed to take each expert with the same probability k / experts, by itself: experts (1 - (1 - k /
experts)^tokens) are taken by some token, on average, and the weights of these are read. The products of all experts are
one batched GEMM with the same FLOPs.
"""

from __future__ import annotations

from op_models.axes import Axes, by_pattern
from op_models.core import Gemm, Maybe, Operator, Tensor, Work, given, work
from op_models.pointwise import GELU_TANH, SIGMOID
from op_models.reduce import SOFTMAX
from op_models.rules import as_first, op

ACTIVATIONS = {"identity": 0, "relu": 1, "gelu": GELU_TANH, "silu": SIGMOID + 1, "swiglu": SIGMOID + 3,
               "geglu": GELU_TANH + 1, "relu2": 2}  # fmt: skip


def taken(experts: int, k: int, tokens: int) -> int:
    """How many experts some token takes, on average, to the nearest whole number: k for one token, in the end all."""
    missed = (1 - min(k / max(experts, 1), 1)) ** tokens  # the probability that no token takes an expert
    return min(experts, round(experts * (1 - missed)))


def mixture_axes(op: Operator, x: Tensor, router: Tensor, *weights: Maybe) -> Axes:
    """Weights of e experts: of the first product and of a gate by their outputs i, of the second summed over these.

    Each is followed by its scales, where it is packed, and its bias. Plain ones may be stored the other way round.
    """
    packed, hidden, experts = op.type.endswith("QMoE"), x.shape[-1], router.shape[-1]
    named = ["e ..." if t is not None and t.shape[:1] == (experts,) else "" for t in weights]
    for k, t in enumerate(weights[: 3 * (2 + packed)]):
        which, what = divmod(k, 2 + packed)
        first, plain = which != 1, not packed and what == 0
        if t is not None and t.rank == 2 and first:
            named[k] = "e i"
        elif t is not None and t.rank == 3:
            turned = plain and t.shape[2 - first] == hidden != t.shape[1 + first]
            named[k] = "e i ." if first ^ turned else "e . i"
    rows = {str(k): d for k, d in enumerate(x.shape[:-1])}
    return by_pattern(op, f"* ., ({' '.join(rows)}) ., {', '.join(named)} -> * . | mixes {{}}", sizes=rows)


@op("com.microsoft::QMoE", inputs=(0, 1, 2, 5, 8), outputs=as_first, axes=mixture_axes)
@op("com.microsoft::MoE", inputs=(0, 1, 2, 4, 6), outputs=as_first, axes=mixture_axes)
def mixture(
    op: Operator, x: Tensor, router: Tensor, fc1: Tensor, fc2: Tensor, fc3: Maybe = None, *, k: int = 1,
    activation_type: str = "relu", expert_weight_bits: int = 4,
) -> Work:  # fmt: skip
    """2 tokens k (weights of one expert); vector: routing, activation, sum of k outputs, 2 per dequantised weight."""
    experts, hidden = fc1.shape[0], x.shape[-1]
    tokens = x.size // hidden if hidden else 0
    packed = 8 // expert_weight_bits if fc1.dtype in ("uint8", "int8") else 1
    each = sum(t.size for t in (fc1, fc2, fc3) if t is not None) * packed // max(experts, 1)
    busy, inner = taken(experts, k, tokens), fc2.size * packed // max(experts * hidden, 1)
    size = Gemm(busy, -(-tokens * k // max(busy, 1)), each // max(hidden, 1), hidden, False, True)
    vector = router.size * SOFTMAX + tokens * k * (inner * ACTIVATIONS.get(activation_type, 1) + 2 * hidden)
    vector += tokens * k * inner * given(fc3) + 2 * busy * each * (op.type.endswith("QMoE"))
    of_experts = [(i, t) for i, t in enumerate(op.inputs) if i > 1 and t is not None and t.shape[:1] == (experts,)]
    read = {i: t.size * busy // max(experts, 1) for i, t in of_experts}
    return work(op, size, matrix=2 * tokens * k * each, vector=vector, read=read)

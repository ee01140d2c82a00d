"""Expert parallelism: the experts of a mixture are divided among GPUs, each of which has a part of the batch.

Every GPU sends each token to the GPUs that have its experts and gets the results back: two all-to-alls around each
mixture (Lepikhin et al., GShard, 2020). Every expert is taken alike, so that every GPU has as many tokens to compute.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onnxperf.graph import Graph, Note
from onnxperf.ground.errors import UsageError, printable
from onnxperf.passes.exchanges import Group, exchange
from onnxperf.passes.shard_rules import weights_of
from op_models import Operator, Tensor
from op_models.collectives import ALL_TO_ALL

MIXTURES = ("com.microsoft::MoE", "com.microsoft::QMoE")
ROUTER, FIRST_WEIGHTS = 1, 2  # positions of inputs
EXPERTS = "e"  # the letter of their axis


def experts_of(o: Operator) -> int:
    """How many experts a mixture has."""
    return o.present[FIRST_WEIGHTS].shape[0]


def shard_experts(graph: Graph, ranks: int, stride: int) -> Graph:
    """The graph with a part of each mixture's experts, and the exchange of tokens before and after it.

    Raises UsageError where it has no mixture, or the experts of one can't be divided by that number.
    """
    mixtures = [o for o in graph.operators if o.type in MIXTURES]
    if not mixtures:
        raise UsageError(f"ep={ranks}: the model has no operator {' or '.join(MIXTURES)}; take dp, tp or pp")
    for o in mixtures:
        if experts_of(o) % ranks:
            nearest = max(n for n in range(1, ranks) if all(experts_of(m) % n == 0 for m in mixtures))
            has = f"{experts_of(o)} experts of node {printable(o.name)[:80]}"
            raise UsageError(f"ep={ranks} does not divide the {has}: use ep={nearest}")
    operators = [part for o in graph.operators for part in (_divided(o, ranks, stride) if o in mixtures else (o,))]
    says = f"each of {ranks} GPUs has a part of the experts of {len(mixtures)} MoE layers; tokens are routed evenly"
    return replace(graph, operators=tuple(operators), notes=(*graph.notes, Note("experts-divided", says)))


def _divided(o: Operator, ranks: int, stride: int) -> tuple[Operator, ...]:
    """A mixture on one GPU: as many tokens as it has itself, each for one of its experts, between two exchanges."""
    x, experts, k = o.present[0], experts_of(o), int(o.attrs.get("k", 1))
    hidden = x.shape[-1]
    rows = (x.size // max(hidden, 1) * k, hidden)
    sent = Tensor(f"{o.name}#sent", x.dtype, rows)
    taken, results, back = (replace(sent, name=f"{o.name}#{what}") for what in ("taken", "made", "back"))
    router = replace(o.present[ROUTER], name=f"{o.present[ROUTER].name}#routed", shape=(rows[0], experts // ranks))
    inputs = taken, router, *weights_of(o, EXPERTS, ranks)[FIRST_WEIGHTS:]
    mixture = replace(o, inputs=inputs, outputs=(results,), attrs={**o.attrs, "k": 1})
    parts: dict[str, Any] = {"version": 0, "attrs": {}}
    return (
        replace(o, name=sent.name, type="nccl::Permute", inputs=(x, o.present[ROUTER]), outputs=(sent,), **parts),
        exchange(ALL_TO_ALL, taken.name, (sent,), (taken,), Group("ep", ranks, stride), o.nodes),
        mixture,
        exchange(ALL_TO_ALL, back.name, (results,), (back,), Group("ep", ranks, stride), o.nodes),
        replace(o, name=f"{o.name}#sum", type="nccl::Permute", inputs=(back,), outputs=o.outputs[:1], **parts),
    )

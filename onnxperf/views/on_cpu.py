"""What the CPU computes during a run on a card, and what to change about it."""

from __future__ import annotations

from collections.abc import Sequence

from onnxperf.answer.cpu_operators import CpuOperator
from onnxperf.answer.prediction import Prediction
from onnxperf.decide.changes import for_processors_only
from onnxperf.ground.errors import printable
from onnxperf.runtimes import RUNTIMES
from op_models import Transfer

NAMED = 3  # types of operators
SEEN = 0.005  # shares below this one are left out
INTEGER = ("QLinear", "QGemm", "ConvInteger", "MatMulInteger", "DynamicQuantize")  # in types of a quantised operator


def by_type(p: Prediction) -> dict[str, Sequence[CpuOperator]]:
    """The operators that the CPU computes, by type, those that take longest first."""
    groups: dict[str, list[CpuOperator]] = {}
    for o in p.cpu_operators:
        groups.setdefault(o.op, []).append(o)
    return dict(sorted(groups.items(), key=lambda group: -sum(o.seconds for o in group[1])))


def waits(p: Prediction) -> dict[str, float]:
    """For how many seconds the run waits for each type of operator on the CPU, where that is long enough to be shown.

    The card may still be busy while the CPU computes: each type has its part of the time in which it is not.
    """
    taken = {op: sum(o.seconds for o in each) for op, each in by_type(p).items()}
    part = p.bound_by["cpu"] * p.seconds / (sum(taken.values()) or 1.0)
    return {op: part * s for op, s in taken.items() if part * s >= SEEN * p.seconds}


def wholly_on_cpu(p: Prediction) -> bool:
    """Whether the card computes nothing: the CPU does all."""
    return bool(p.cpu_operators) and all(isinstance(k.work.size, Transfer) for k in p.kernels)


def advice(p: Prediction) -> str:
    """Which operators the CPU computes, and what to use instead."""
    fallen = {n for note in p.warnings if note.code == "host-fallback" for n in note.nodes}
    lacking = [op for op, each in by_type(p).items() if fallen & {n for o in each for n in o.nodes}]
    if not lacking:
        return "shapes or control flow run on the CPU while the GPU idles; fixed dimensions help"
    types = ", ".join(printable(op.rpartition("::")[2]) for op in lacking[:NAMED])
    types += f" and {len(lacking) - NAMED} more" if len(lacking) > NAMED else ""
    verb, them = ("runs", "it") if len(lacking) == 1 else ("run", "them")
    if for_processors_only(p):
        return f"{types} {verb} on the CPU, and no GPU has kernels for {them}: see --runtime ort-cpu"
    if any(name in lacking[0] for name in INTEGER):
        instead = "quantise with QuantizeLinear and DequantizeLinear (QDQ), or use the model in FP16"
    else:
        operators = [o for o in p.run.graph.operators if o.type in lacking]
        taken = not any(RUNTIMES["tensorrt"].refused(o) for o in operators)
        instead = f"use operators or types that have a kernel{', or --runtime tensorrt' if taken else ''}"
    return f"{types} {verb} on the CPU, without a CUDA kernel: {instead}"

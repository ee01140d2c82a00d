"""What a run on several GPUs has beside that on one: its plan, what joins the GPUs, exchanges, and stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpu_specs import Cluster, usual_cluster
from onnxperf.answer.outline import outline
from onnxperf.graph import Note
from onnxperf.running.run import Run

CROWD = 2  # GPUs that share a host's PCIe bus without taking from each other


def cluster(run: Run, j: int) -> Cluster:
    """What joins several of device j: what was asked for, or what is usual for the card."""
    return run.devices[j].cluster or usual_cluster(run.devices[j])


def parallel(run: Run, j: int) -> dict[str, Any] | None:
    """What the JSON says of several GPUs, as `prediction.schema.json` describes it; None of one."""
    if run.plan.gpus == 1:
        return None
    exchanged = [i for i, k in enumerate(run.kernels.rows) if k.communicates]
    joined = cluster(run, j)
    return {
        "gpus": run.plan.gpus, "plan": str(run.plan), "cluster": joined.name or None, "link": joined.describe,
        "communication_seconds": float(run.seconds[exchanged, j].sum()),
        "exposed_communication_seconds": outline(run, j).exposed_seconds,
        **({} if run.plan.pp == 1 else _stages(run, j)),
    }  # fmt: skip


def _stages(run: Run, j: int) -> dict[str, Any]:
    stages = run.stages(j)
    of_each = [
        {
            "first": s.first, "last": s.last, "forward_seconds": s.forward_s, "backward_seconds": s.backward_s,
            "sent_bytes": s.sent_bytes, "memory_bytes": sum(f.weights) + f.activations_bytes,
        }
        for s, f in zip(stages, run.stage_footprints, strict=True)
    ]  # fmt: skip
    from onnxperf.running.microbatches import bubble

    return {"bubble_share": bubble(stages, run.plan.microbatches), "stages": of_each}


def notes(run: Run, j: int) -> Iterator[Note]:
    """What was assumed of the machine that holds the GPUs, and what nobody measured of it."""
    plan, joined = run.plan, cluster(run, j)
    if plan.gpus == 1:
        return
    rate = f"{joined.link_Bps / 1e9:.4g} GB/s for each GPU in one direction"
    if not joined.name:
        says = (
            f"the interconnect is assumed, the usual one of the card: {joined.describe}, {rate}; set it with --cluster"
        )
        yield Note("usual-cluster", says)
    collectives = [k.work.size for k in run.kernels.rows if k.communicates]
    span = max((1 + (s.ranks - 1) * s.stride for s in collectives), default=1)  # type: ignore[union-attr]
    if not joined.switched and span > CROWD and joined.efficiency is None:
        says = (
            "collectives of more than two GPUs without NVSwitch depend on the machine: their speed is that of one"
            " server with 8 L40S; set `efficiency` in a cluster file for another machine"
        )
        yield Note("no-switch", says)
    if plan.gpus > joined.gpus_per_node:
        yield Note("network", "collectives between nodes are not validated: there is no open measurement of them")

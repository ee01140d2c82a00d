"""`Plan`: how the work of a model is divided among several GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from onnxperf.ground.errors import UsageError

KINDS = {"dp": "data", "tp": "tensor", "pp": "pipeline", "ep": "expert"}
MOST_GPUS = 65_536
MOST = {"microbatches": 1024, "pp": 256}  # what takes no longer than a prediction may
EXAMPLES = "dp=4, tp=4, pp=4:microbatches=8, ep=8 or dp=2,tp=4"


@dataclass(frozen=True, slots=True)
class Plan:
    """How many GPUs divide the batch (dp), each matrix (tp), the layers (pp), and the experts with the batch (ep).

    GPUs next to each other are of one tensor-parallel group; then come those of expert, data and pipeline parallelism.
    microbatches: into how many parts a pipeline takes what is left of the batch.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    microbatches: int = 1

    @property
    def gpus(self) -> int:
        """How many GPUs it takes."""
        return self.dp * self.tp * self.pp * self.ep

    @property
    def copies(self) -> int:
        """How many groups of GPUs share the batch, with the same weights but for experts."""
        return self.dp * self.ep

    @property
    def parts(self) -> int:
        """Into how many parts the batch falls that GPUs compute at a time."""
        return self.copies * self.microbatches

    def __str__(self) -> str:
        kinds = [f"{kind}={n}" for kind in KINDS if (n := getattr(self, kind)) > 1]
        text = ",".join(kinds) or "dp=1"
        return re.sub(r"pp=\d+", rf"\g<0>:microbatches={self.microbatches}", text) if self.microbatches > 1 else text


def parse_plan(text: str | None, gpus: int | None) -> Plan:
    """The plan that a text such as dp=2,tp=4 or pp=4:microbatches=8 names.

    gpus: how many there are; None for as many as the plan takes. Raises UsageError where the text is no plan, or takes
    another number of GPUs.
    """
    if gpus is not None and (isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= MOST_GPUS):
        raise UsageError(f"gpus must be a whole number from 1 to {MOST_GPUS:,}, not {gpus!r:.40}")
    if text is None:
        if gpus is not None and gpus > 1:
            raise UsageError(
                f"{gpus} GPUs need a plan: give --parallel dp={gpus}, tp={gpus} or pp={gpus}, or a combination"
            )
        return Plan()
    if not isinstance(text, str):
        raise UsageError(f"parallel can't be a {type(text).__name__}: give text such as {EXAMPLES}")
    counts: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(dp|tp|pp|ep)=(\d{1,6})(?::microbatches=(\d{1,6}))?\s*", part)
        if match is None or match[1] in counts or (match[3] and match[1] != "pp"):
            raise UsageError(f"--parallel {text!r:.60} is not a plan: write {EXAMPLES}, each kind once")
        counts[match[1]] = int(match[2])
        if match[3]:
            counts["microbatches"] = int(match[3])
    plan = Plan(**counts)
    if bad := [kind for kind, n in counts.items() if not 1 <= n <= MOST.get(kind, MOST_GPUS)]:
        raise UsageError(
            f"{bad[0]} in --parallel {text!r:.60} must be a number from 1 to {MOST.get(bad[0], MOST_GPUS)}"
        )
    if plan.gpus > MOST_GPUS:
        raise UsageError(f"--parallel {text} takes {plan.gpus:,} GPUs: it can take {MOST_GPUS:,} at most")
    if gpus is not None and plan.gpus != gpus:
        raise UsageError(f"--parallel {plan} takes {plan.gpus} GPUs, not {gpus}: {_nearest(plan, gpus)}")
    if plan.microbatches > 1 and plan.pp == 1:
        raise UsageError("microbatches need a pipeline of several stages, as in pp=2:microbatches=4")
    return plan


def plan_text(text: str | None) -> str:
    """A plan as it is told: the text that names it, "" for one GPU. Raises UsageError where the text is no plan."""
    return text if text and parse_plan(text, None).gpus > 1 else ""


def _nearest(plan: Plan, gpus: int) -> str:
    """What to ask for instead, where a plan does not take so many GPUs."""
    for kind in ("dp", "tp", "pp", "ep"):
        count = getattr(plan, kind)
        others = plan.gpus // count
        if count > 1 and gpus % others == 0:
            parts = [f"{k}={gpus // others if k == kind else getattr(plan, k)}" for k in KINDS
                     if k == kind or getattr(plan, k) > 1]  # fmt: skip
            return f"{','.join(parts)} does, or give --gpus {plan.gpus}"
    return f"give --gpus {plan.gpus}, or dp={gpus}"


def per_gpu(batch: int, plan: Plan) -> int:
    """The samples that one GPU computes at a time of a batch for all. Raises UsageError where they don't come out."""
    if plan.parts == 1:
        return batch
    if batch % plan.parts:
        least, rest = -(-batch // plan.parts) * plan.parts, batch % plan.parts
        fewer = max((n for n in range(1, plan.parts) if batch % n == 0), default=1)
        both = f"{plan.copies} x {plan.microbatches}, of " if plan.copies > 1 and plan.microbatches > 1 else ""
        raise UsageError(
            f"a batch of {batch} for all GPUs can't be divided by {plan.parts} ({both}{plan}),"
            f" {rest} of it {'is' if rest == 1 else 'are'} left over: give --batch {least}, or a plan that"
            f" {f'divides it by {fewer}' if fewer > 1 else 'leaves it whole, such as tp'}"
        )
    return batch // plan.parts

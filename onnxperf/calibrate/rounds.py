"""Measurements that can be trusted on a machine with other programs: each is repeated until a second one agrees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from onnxperf.calibrate.rows import Dropped
from onnxperf.calibrate.suite import Case
from onnxperf.ground.errors import EnvironmentFailure, Error, counted
from onnxperf.ground.output import Progress
from onnxperf.measure import profile
from onnxperf.measure.record import Measurement

ROUNDS = 5  # at most, each over the cases that none before has settled
AGREE = 0.15  # most by which the second fastest measurement of a case may be slower than the fastest

Measure = Callable[[Case], Measurement]


def confirmed(
    cases: Sequence[Case], measure: Measure, failed: list[Dropped], tell: Progress
) -> Iterator[tuple[str, Measurement]]:  # fmt: skip
    """Measure cases in rounds until two measurements of each agree, neither of them disturbed; each with its name, as
    soon as it is settled.

    Rounds rather than one case several times in a row: a neighbour that comes and goes has gone by the next round.
    Cases that fail are noted in `failed`. Raises EnvironmentFailure where every measurement of the first round was
    disturbed, or a case finds no agreement, and the first error where every case fails.
    """
    taken: dict[str, list[Measurement]] = {c.name: [] for c in cases}
    errors, open_cases = list[Error](), list(cases)
    for n in range(ROUNDS):
        of_round, seen = list(open_cases), list[str]()
        for i, case in enumerate(of_round):
            tell(f"round {n + 1}, {case.name}", i, len(of_round))
            try:
                m = measure(case)
            except Error as e:
                errors.append(e)
                failed.append(Dropped(case.name, "", 0.0, str(e)))
                open_cases.remove(case)
                continue
            if m.disturbed:
                seen.append(f"{case.name}: {m.disturbed}")
                continue
            taken[case.name].append(m)
            if disagreement(taken[case.name]) <= AGREE:
                yield case.name, _joined(taken[case.name])
                open_cases.remove(case)
        if seen and not any(taken.values()):
            raise _busy(f"every measurement was disturbed ({seen[-1]})")
    if open_cases:
        raise _busy(f"after {ROUNDS} rounds, {_unsettled(open_cases, taken)}")
    if errors and len(errors) == len(cases):
        raise errors[0]


def disagreement(takes: Sequence[Measurement]) -> float:
    """By what share the second fastest measurement is slower than the fastest; infinite where there is no second."""
    seconds = sorted(m.seconds for m in takes)
    return seconds[1] / max(seconds[0], 1e-12) - 1 if len(seconds) > 1 else float("inf")


def _joined(takes: Sequence[Measurement]) -> Measurement:
    """The fastest measurement, with each operator's fastest run of all of them."""
    fastest = min(takes, key=lambda m: m.seconds)
    return replace(fastest, operators=profile.merged([m.operators for m in takes]))


def _unsettled(cases: Sequence[Case], taken: dict[str, list[Measurement]]) -> str:
    """What was seen of the first of the cases that are still open."""
    name, takes = cases[0].name, taken[cases[0].name]
    more = f" (and {len(cases) - 1} more)" if len(cases) > 1 else ""
    if len(takes) < 2:
        return f"{name!r}{more} was disturbed in all but {counted(len(takes), 'time')}"
    return (
        f"the fastest time of {name!r}{more} is {disagreement(takes):.0%} below all others, and {AGREE:.0%} is allowed"
    )


def _busy(saw: str) -> EnvironmentFailure:
    return EnvironmentFailure(f"this machine is busy: {saw}; nothing is written. Close other programs and try again")

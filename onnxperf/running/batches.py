"""Runs of a model at many batches: few are made, those between are filled in, and all are estimated and laid out at
once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from onnxperf.graph import Graph
from onnxperf.graph.lines import Line, NoLine, along, line
from onnxperf.ground.errors import Error
from onnxperf.latency import Estimates, estimate_alike, estimate_works, form_of
from onnxperf.lowering.lines import KernelLine, kernel_line
from onnxperf.lowering.lower import Kernels
from onnxperf.running.run import Kept, Run
from onnxperf.schedule import Host, Timeline, added_up, hosts, laid_out

#: Stages that depend on the devices alone.
OF_DEVICES = ("runtime", "cpus", "processors", "host_costs")
COLUMNS = 1024  # batches x devices that are laid out at once, at least one batch: memory is bounded


def runs_at(make: Callable[[int], Run], batches: Sequence[int]) -> Iterator[Run | Error]:
    """The run at each of these ascending batches, as `make` makes it, or the error that it raises; each when it is
    asked for. `graph` is the placed one of those that are filled in.
    """
    return along(make, batches, _line)


@dataclass(frozen=True, slots=True)
class _Line:
    """The line through runs of placed graphs, and through their kernels where these are on one. low: one of them."""

    low: Run
    graphs: Line[Graph]
    kernels: KernelLine | None

    def at(self, batch: int) -> Run | None:
        """The run at a batch; None where that must be made."""
        graph = self.graphs.at(batch)
        if graph is None:
            return None
        inputs = tuple((t.name, t.shape) for t in graph.inputs)
        scenario = replace(self.low.scenario, batch=batch, inputs=inputs)
        run = replace(self.low, graph=graph, placed=graph, scenario=scenario, kept=Kept())
        run.knowing(**{name: getattr(self.low, name) for name in OF_DEVICES})
        if self.kernels is not None:
            with suppress(NoLine):
                run.knowing(kernels=self.kernels.at(graph))
        return run


def _line(runs: Mapping[int, Run]) -> _Line | None:
    try:
        lowered = {batch: (run.run_graph, run.kernels) for batch, run in runs.items() if run.scenario.batch == batch}
    except Error:
        return None
    if len(lowered) < len(runs) or (graphs := line({batch: graph for batch, (graph, _) in lowered.items()})) is None:
        return None
    low = replace(next(iter(runs.values())))  # without its stages, which are large
    return _Line(low, graphs, kernel_line([*lowered.values()]))


def together(waiting: deque[Run | Error]) -> Iterator[Run | Error]:
    """The same runs, of one model on the same devices at several batches, estimated and laid out: what more than one
    could be padded to is estimated once, and those whose rows are alike are columns of the same arrays. An error is
    left to the run that has it. Each is taken off `waiting`, so that its stages go with it.
    """
    able = [run for run in waiting if isinstance(run, Run) and _can_join(run)]
    with suppress(Error):
        if len(able) > 1:
            first = able[0]
            estimate_works([run.kernels for run in able], first.devices, first.method, first.constants)
    forms = {id(run): form_of(run.kernels, run.method) for run in able}
    most = max(COLUMNS // len(able[0].devices), 1) if able else 1
    del able
    while waiting:
        form, group = forms.pop(id(waiting[0]), None), deque([waiting.popleft()])
        while form and len(group) < most and waiting and forms.get(id(waiting[0])) == form:
            group.append(waiting.popleft())
        if len(group) > 1:
            with suppress(Error):
                _lay_out([run for run in group if isinstance(run, Run)])
        while group:
            yield group.popleft()


def _can_join(run: Run) -> bool:
    """Whether a run can be a column beside others."""
    try:
        return bool(run.kernels.rows) and run.plan.pp == 1
    except Error:
        return False


def _lay_out(runs: Sequence[Run]) -> None:
    """Estimate runs whose rows are alike, and lay them out."""
    first, kernels = runs[0], [run.kernels for run in runs]
    estimates = estimate_alike(kernels, first.devices, first.method, first.constants)
    timeline = _timeline(runs, kernels, estimates)
    for i, run in enumerate(runs):
        columns = slice(i * len(run.devices), (i + 1) * len(run.devices))
        run.knowing(estimates=estimates.only(columns), one_timeline=timeline.only(columns))


def _timeline(runs: Sequence[Run], each: Sequence[Kernels], estimates: Estimates) -> Timeline:
    """The timeline of several runs, as columns. What hosts do is asked once where they pass the same nodes."""
    first, paces, columns = runs[0], dict[object, list[Host]](), list[Host]()
    if not first.method.scheduled:
        return added_up(each[0], estimates, first.host_costs * len(runs))
    for kernels in each:
        passed = tuple([k.skipped for k in kernels.rows]), kernels.tail
        if passed not in paces:
            paces[passed] = hosts(kernels, first.host_costs, first.processors, first.scenario.cuda_graph)
        columns += paces[passed]
    return laid_out(each[0], estimates, columns, first.scenario.streams)

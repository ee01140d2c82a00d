"""The schedule on kernels made by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxperf.latency import Estimates
from onnxperf.lowering.lower import HostNode, Kernel, Kernels
from onnxperf.runtimes import RUNTIMES
from onnxperf.schedule import COMPUTE, COPY, STALLS, HostThread, Task, Timeline, added_up, run_tasks, schedule
from op_models import Pointwise, Transfer, Work

HOST = replace(
    RUNTIMES["ort-cuda"].host, run_s=10.0, sync_s=5.0, gap_s=1.0, replay_s=12.0, replay_gap_s=0.5, walk_s=0.0,
    node_s=0.0, launch_s=0.0, copy_s=0.0, host_op_s=0.0,
)  # fmt: skip  # whole seconds read more easily


class Processor:
    """Takes as many seconds for work as it reads bytes."""

    def seconds(self, work: Work) -> float:
        return float(work.bytes_read)


CPU = Processor()
WORK = Work(Pointwise(1), "float32", "fp32", 4, 4, 0)
COPIES = {way: Work(Transfer(4, way), "float32", "fp32", 4, 4, 0) for way in ("h2d", "d2h")}


def host(seconds: float) -> tuple[HostNode, ...]:
    """Work of the host that takes so long."""
    return (HostNode(1, True, replace(WORK, bytes_read=seconds)),)  # type: ignore[arg-type]


def kernels(
    n: int, host_s: float = 4.0, tail_s: float = 2.0, after: dict[int, tuple[int, ...]] | None = None, **rows: Kernel
) -> Kernels:
    after = after or {}
    made = [Kernel(f"k{i}", "Relu", (), WORK, after.get(i, ()), skipped=host(host_s)) for i in range(n)]
    return Kernels(tuple(made), host(tail_s))


def estimates(seconds: list[float], share: list[float] | None = None, floor: float = 0.5) -> Estimates:
    s = np.array(seconds, dtype=float).reshape(len(seconds), 1)
    one = np.ones_like(s)
    part = np.array(share, dtype=float).reshape(s.shape) if share else one
    return Estimates(
        seconds=s, floor_s=floor * s, least_s=np.zeros(1), half_width=0.1 * one,
        run_half_width=np.full(1, 0.1), joules=one, workspace=0 * one,
        launches=one, bound=one, variant=one.astype(str), occupancy=part, transfer=one[:, 0] < 0,
        power_factor=one[:1, 0], links=np.zeros((3, *s.shape)), source=("analytic",) * len(s),
    )  # fmt: skip


def lay(rows: Kernels, e: Estimates, **terms: int) -> tuple[list[float], float]:
    t = schedule(rows, e, [HOST], [CPU], **terms)  # type: ignore[arg-type]
    return t.start_s[:, 0].tolist(), float(t.total_s[0])


def test_short_kernels_wait_for_their_launch() -> None:
    assert lay(kernels(3), estimates([1, 1, 1])) == ([14, 18, 22], 22 + 2 + 5)


def test_long_kernels_follow_each_other_with_a_gap() -> None:
    starts, total = lay(kernels(3), estimates([50, 60, 70]))
    assert starts == [14, 65, 126]
    assert total == 14 + 50 + 1 + 60 + 1 + 70 + 5, "launch, kernels, gaps and the wait at the end"


def test_the_host_waits_for_what_it_reads() -> None:
    free = kernels(3)
    rows = (free.rows[0], replace(free.rows[1], blocks=True), free.rows[2])
    starts, total = lay(replace(free, rows=rows), estimates([50, 60, 1]))
    assert starts == [14, 65, 65 + 60 + 5 + 4]
    assert total == 134 + 2 + 5
    assert lay(replace(free, rows=rows), estimates([50, 60, 1], [0.1] * 3), streams=2)[0] == [14, 18, 18 + 60 + 5 + 4]


@pytest.mark.parametrize("streams", [1, 2])
def test_the_last_kernel_of_a_loop_ends_behind_its_gaps(streams: int) -> None:
    (one,) = kernels(1, 6.0).rows
    looped = Kernels((replace(one, repeat=3),), host(2.0))
    assert lay(looped, estimates([150]), streams=streams) == ([12], 12 + 3 * 50 + 2 * 1 + 5)


def test_a_cuda_graph_is_launched_once() -> None:
    assert lay(kernels(3), estimates([1, 2, 3]), cuda_graph=True) == ([12, 13.5, 16], 19 + 5)


def test_no_kernels_cost_what_the_host_does() -> None:
    assert lay(kernels(0), estimates([])) == ([], 10 + 2 + 5)
    assert lay(kernels(0), estimates([]), streams=3) == ([], 10 + 2 + 5)
    assert lay(kernels(0), estimates([]), cuda_graph=True) == ([], 12 + 5)
    assert added_up(kernels(0), estimates([]), [HOST]).total_s.tolist() == [10]


def test_methods_without_a_schedule_add_up() -> None:
    t = added_up(kernels(3), estimates([1, 2, 3]), [HOST])
    assert (t.start_s[:, 0].tolist(), float(t.total_s[0])) == ([0, 1, 3], 6)


def test_streams_share_the_card() -> None:
    e = [0.5, 0.5, 0.5]
    assert lay(kernels(3, 0.0), estimates([8, 9, 3], e), streams=2)[0] == [10, 10, 19]
    assert lay(kernels(3, 0.0), estimates([8, 9, 3], e), streams=3)[0] == [10, 10, 18]
    assert lay(kernels(3, 0.0), estimates([8, 9, 3], [0.5, 0.6, 0.5]), streams=3)[0] == [10, 18, 18 + 9]
    assert lay(kernels(2, 0.0, after={1: (0,)}), estimates([8, 9], [0.1, 0.1]), streams=2)[0] == [10, 19]


def copies(made: Kernels, **ways: str) -> Kernels:
    """The kernels with some, by name, turned into copies."""
    rows = (replace(k, work=COPIES[ways[k.name]]) if k.name in ways else k for k in made.rows)
    return replace(made, rows=tuple(rows))


def test_copies_have_a_stream_of_their_own_each_way() -> None:
    e = estimates([5, 5, 5, 5], [0.1] * 4)
    for k1, start, name in (("h2d", 16, COPY), ("d2h", 10, f"{COPY}-2")):
        rows = copies(kernels(4, 0.0), k0="h2d", k1=k1)
        t = schedule(rows, e, [HOST], [CPU], streams=2)
        assert t.streams[:, 0].tolist() == [COPY, name, COMPUTE, f"{COMPUTE}-2"]
        assert t.start_s[:, 0].tolist() == [10, start, start, start]


def held(rows: Kernels, seconds: list[float], **terms: int) -> list[str]:
    t = schedule(rows, estimates(seconds, [0.5] * len(seconds)), [HOST], [CPU], **terms)  # type: ignore[arg-type]
    return [STALLS[i] for i in t.stalled_on[:, 0]]


@pytest.mark.parametrize("streams", [1, 3])
def test_what_holds_a_kernel_back(streams: int) -> None:
    chain: dict[int, tuple[int, ...]] = {1: (0,), 2: (1,)}
    assert held(kernels(3, after=chain), [1, 1, 1], streams=streams) == ["host"] * 3
    assert held(kernels(3, after=chain), [50, 50, 50], streams=streams) == ["host", "stream", "stream"]
    assert held(copies(kernels(3, after=chain), k0="h2d"), [50, 50, 50], streams=streams) == [
        "host",
        "copies",
        "stream",
    ]
    waits = copies(kernels(3, after=chain), k0="d2h")
    waits = replace(waits, rows=(replace(waits.rows[0], blocks=True), *waits.rows[1:]))
    assert held(waits, [50, 1, 1], streams=streams) == ["host", "copies", "host"]


@pytest.mark.parametrize("streams", [1, 2])
def test_repeats_run_one_after_the_other(streams: int) -> None:
    """Ten launches of 4 s each, of kernels that take 2 s or 9 s with a gap of 1 s, and one kernel behind them."""
    rows = kernels(2, after={1: (0,)})
    rows = replace(rows, rows=(replace(rows.rows[0], repeat=10, skipped=host(40.0)), rows.rows[1]))
    assert lay(rows, estimates([20, 1]), streams=streams)[0] == [14, 10 + 40 + 4]
    assert lay(rows, estimates([90, 1]), streams=streams)[0] == [14, 14 + 90 + 10]
    blocking = replace(rows, rows=(replace(rows.rows[0], blocks=True), rows.rows[1]))
    assert lay(blocking, estimates([90, 1]), streams=streams)[0] == [14, 14 + 90 + 9 + 10 * 5 + 4]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Kernels, Estimates]:
    """Random DAGs with random times, shares, copies and waits."""
    n = draw(st.integers(1, 12))
    number = st.floats(0.01, 20)
    rows = tuple(
        Kernel(
            f"k{i}", "Relu", (), WORK,
            tuple(sorted(draw(st.sets(st.integers(0, i - 1), max_size=3)))) if i else (),
            skipped=host(draw(st.floats(0, 10))), blocks=draw(st.integers(0, 5)) == 0,
            repeat=draw(st.sampled_from([1, 1, 3])),
        )
        for i in range(n)
    )  # fmt: skip
    ways = draw(st.dictionaries(st.sampled_from([k.name for k in rows]), st.sampled_from(["h2d", "d2h"]), max_size=4))
    rows = copies(Kernels(rows), **ways).rows
    shares = draw(st.lists(st.floats(0.01, 1), min_size=n, max_size=n))
    return Kernels(rows, host(draw(st.floats(0, 5)))), estimates(draw(st.lists(number, min_size=n, max_size=n)), shares)


def longest(rows: Kernels, seconds: list[float]) -> float:
    """The longest path, by trying them all."""

    def upto(i: int) -> float:
        return seconds[i] + max((upto(j) for j in rows.rows[i].after), default=0.0)

    return max(map(upto, range(len(seconds))))


@given(cases(), st.integers(1, 4))
def test_laws_of_every_schedule(case: tuple[Kernels, Estimates], streams: int) -> None:
    rows, e = case
    seconds = e.seconds[:, 0].tolist()
    t: Timeline = schedule(rows, e, [HOST], [CPU], streams=streams)
    start, total = t.start_s[:, 0].tolist(), float(t.total_s[0])
    end = [begun + s for begun, s in zip(start, seconds, strict=True)]
    near = 1e-9
    assert float(t.critical_path_s[0]) == pytest.approx(longest(rows, seconds))
    assert float(t.lower_bound_s[0]) == pytest.approx(longest(rows, [s / 2 for s in seconds]))
    assert float(t.lower_bound_s[0]) <= float(t.critical_path_s[0]) <= total
    now, launches = HOST.run_s, rows.host_seconds(HOST, CPU)[0]
    for i, k in enumerate(rows.rows):
        assert start[i] >= now + launches[i] / k.repeat - near, "not before it is launched"
        now += launches[i]
        assert all(start[i] >= end[j] + HOST.gap_s - near for j in k.after) or streams == 1
        assert all(start[i] >= end[j] - near for j in k.after), "not before what it reads is there"
        assert i == 0 or start[i] >= start[i - 1] - near, "in launch order"
        now = max(now, end[i] + HOST.sync_s) if k.blocks else now
    for moment in start:
        running = [i for i in range(len(start)) if start[i] <= moment + near < end[i] - near]
        if len(running) > 1:
            assert sum(e.occupancy[i, 0] for i in running) <= 1 + 1e-6
        names = [t.streams[i, 0] for i in running]
        assert len(set(names)) == len(names) <= (1 if streams == 1 else streams + 2)
    if streams == 1:
        assert total >= sum(seconds)
        gaps = total - sum(seconds)
        idle = start[0] + sum(start[i + 1] - end[i] for i in range(len(start) - 1)) + total - end[-1]
        assert gaps == pytest.approx(idle), "kernels and gaps make up the run"


def test_the_bound_is_what_all_kernels_ask_of_the_card_where_their_path_is_shorter() -> None:
    e = estimates([4, 4, 4])
    for asked, bound in ((0.0, 2.0), (5.0, 5.0)):
        t = schedule(kernels(3), replace(e, least_s=np.array([asked])), [HOST], [CPU], streams=4)
        assert t.lower_bound_s.tolist() == [bound]


@given(cases())
def test_more_streams_never_change_the_bounds(case: tuple[Kernels, Estimates]) -> None:
    rows, e = case
    one, many = (schedule(rows, e, [HOST], [CPU], streams=s) for s in (1, 4))
    assert one.critical_path_s.tolist() == many.critical_path_s.tolist()
    assert one.lower_bound_s.tolist() == many.lower_bound_s.tolist()


def test_devices_are_columns() -> None:
    """Two devices at once give what each gives alone."""
    rows = kernels(3)
    a, b = estimates([1, 50, 3]), estimates([60, 2, 1])
    both = replace(
        a, seconds=np.hstack([a.seconds, b.seconds]), floor_s=np.hstack([a.floor_s, b.floor_s]),
        least_s=np.hstack([a.least_s, b.least_s]),
        occupancy=np.hstack([a.occupancy, b.occupancy]),
    )  # fmt: skip
    for streams in (1, 2):
        t = schedule(rows, both, [HOST, HOST], [CPU, CPU], streams=streams)
        for j, e in enumerate((a, b)):
            starts, total = lay(rows, e, streams=streams)
            assert t.start_s[:, j].tolist() == starts
            assert float(t.total_s[j]) == total


@given(cases(), st.booleans(), st.booleans())
def test_one_stream_on_all_devices_is_that_of_each(case: tuple[Kernels, Estimates], ranks: bool, graph: bool) -> None:
    """All devices are laid out at once: each as its tasks are one after the other, to the last bit."""
    rows, e = case
    rows = replace(rows, rows=tuple(replace(k, rank=i % 2 * ranks) for i, k in enumerate(rows.rows)))
    slow = replace(HOST, run_s=20.0, walk_s=0.5, launch_s=3.0, gap_s=0.25)
    both = replace(e, seconds=np.hstack([e.seconds, e.seconds / 3]), floor_s=np.hstack([e.floor_s, e.floor_s]))
    t = schedule(rows, both, [HOST, slow], [CPU, CPU], cuda_graph=graph)
    for j, own in enumerate((HOST, slow)):
        launches, tail = ([0.0] * len(rows.rows), 0.0) if graph else rows.host_seconds(own, CPU)
        start, gap = (own.replay_s, own.replay_gap_s) if graph else (own.run_s, own.gap_s)
        columns = zip(rows.rows, launches, both.seconds[:, j].tolist(), strict=True)
        tasks = [Task(x, s, 1.0, k.after, k.way, k.repeat, k.blocks, k.rank) for k, x, s in columns]
        placed, total = run_tasks(tasks, HostThread(start, tail, own.sync_s, gap))
        assert [p.start_s for p in placed] == t.start_s[:, j].tolist() and total == t.total_s[j]
        assert [(p.stream, p.stalled_on) for p in placed] == [*zip(t.streams[:, j], t.stalled_on[:, j], strict=True)]


def test_ranks_have_hosts_and_streams_of_their_own() -> None:
    """Two processes, each with its own host and card: the second waits for a result of the first, not for its host."""
    tasks = [Task(4, 50, 1.0), Task(4, 10, 1.0, after=(0,), rank=1), Task(4, 10, 1.0, rank=1)]
    placed, end_s = run_tasks(tasks, HostThread(10, 2, 5, 1))
    assert [p.start_s for p in placed] == [14, 65, 76]
    assert [(p.launch_s, p.launched_s) for p in placed] == [(10, 14), (10, 14), (14, 18)]
    assert end_s == 76 + 10 + 5


def test_an_exchange_takes_its_sms_from_the_kernels_beside_it() -> None:
    """A quarter of the device for 100: the first kernel of 60 takes 80, and of the second 20 are beside it."""
    tasks = [Task(0, 100, 0.25, communicates=True), Task(0, 60, 1.0), Task(0, 60, 1.0), Task(0, 60, 1.0)]
    for streams in (1, 2):
        placed, end_s = run_tasks(tasks, HostThread(0, 0, 0, 0), streams)
        assert [p.start_s for p in placed] == [0, 0, 80, 145]
        assert end_s == 205


def exchange(seconds: float, group: str, *links: float, launch: float = 0.0) -> Task:
    return Task(launch, seconds, 0.1, communicates=True, group=group, links=links)


def test_exchanges_of_two_groups_share_their_link() -> None:
    """The first takes four fifths of a link for 100; the second has a quarter of its own rate until then."""
    host = HostThread(0, 0, 0, 0)
    placed, end_s = run_tasks([exchange(100, "tp", 0.8, 0), exchange(100, "dp", 0.8, 0)], host)
    assert [(p.stream, p.start_s) for p in placed] == [("comm-tp", 0), ("comm-dp", 0)]
    assert [p.shared_s for p in placed] == pytest.approx([0, 75]) and end_s == pytest.approx(175)
    assert run_tasks([exchange(100, "tp", 0.8, 0), exchange(100, "dp", 0, 0.8)], host)[1] == 100, "on another link"
    assert run_tasks([exchange(100, "tp", 0.8, 0), exchange(100, "dp", 0.1, 0)], host)[1] == 100, "there is room"
    assert run_tasks([exchange(100, "tp", 0.8, 0), exchange(100, "tp", 0.8, 0)], host)[1] == 200, "of one group"


def test_an_exchange_shares_with_those_that_wait_in_line_before_it() -> None:
    """Two buckets, one behind the other; what is launched then meets both, with half of the link left by each."""
    tasks = [exchange(100, "dp", 0.5), exchange(100, "dp", 0.5), exchange(150, "tp", 1.0)]
    placed, end_s = run_tasks(tasks, HostThread(0, 0, 0, 0))
    assert [p.start_s for p in placed] == [0, 100, 0]
    assert placed[2].shared_s == pytest.approx(100) and end_s == pytest.approx(250)


@given(st.lists(
    st.builds(
        exchange, st.floats(0.01, 100), st.sampled_from(["tp", "dp", "pp"]), st.floats(0, 1), st.floats(0, 1),
        launch=st.floats(0, 50),
    ),
    min_size=1, max_size=8,
))  # fmt: skip
def test_no_link_carries_more_than_it_can(tasks: list[Task]) -> None:
    """Any two exchanges, and all of them, take as long as what they send over a link; none is faster than alone."""
    placed, total = run_tasks(tasks, HostThread(0, 0, 0, 0))
    ends = [p.start_s + t.seconds + p.shared_s for p, t in zip(placed, tasks, strict=True)]
    assert all(p.shared_s >= -1e-9 for p in placed) and max(ends) <= total + 1e-9
    every = range(len(tasks))
    for some in (every, *((i, j) for i in every for j in range(i))):
        span = max(ends[i] for i in some) - min(placed[i].start_s for i in some)
        for link in range(2):
            assert sum(tasks[i].seconds * tasks[i].links[link] for i in some) <= span * (1 + 1e-9) + 1e-9
    one = [t._replace(group="") for t in tasks]
    assert all(p.shared_s == 0 and p.stream == "comm" for p in run_tasks(one, HostThread(0, 0, 0, 0))[0])
    for name in {t.group for t in tasks}:
        own = [i for i in every if tasks[i].group == name]
        assert all(placed[j].start_s >= ends[i] - 1e-9 for i, j in pairwise(own)), "in line"


@pytest.mark.parametrize("streams", [1, 2])
def test_exchanges_of_two_groups_both_take_sms(streams: int) -> None:
    """Each leaves a kernel beside it nine tenths of what it had."""
    tasks = [exchange(1000, "tp", 0.5), exchange(1000, "dp", 0.5), Task(0, 81, 1.0), Task(0, 81, 1.0)]
    placed, _ = run_tasks(tasks, HostThread(0, 0, 0, 0), streams)
    assert [p.start_s for p in placed] == pytest.approx([0, 0, 0, 100])

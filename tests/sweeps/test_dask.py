"""A sweep on a real cluster of two worker processes: one is killed on the way, and then the scheduler goes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from onnxperf.ground.errors import EnvironmentFailure
from onnxperf.sweeps.cache import Cache
from onnxperf.sweeps.engines import engine
from onnxperf.sweeps.grid import grid_of
from onnxperf.sweeps.stream import Model, blocks
from tests.decide.models import model_of

distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install 'onnxperf[dask]'")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Dask's own
def test_what_is_lost_is_done_again_and_nothing_twice(tmp_path: Path) -> None:
    text = "g (float[batch,{0}] x) => (float[batch,{0}] y) {{ y = MatMul(x, w) }}"
    models = [Model(model_of(text.format(n), {"w": (n, n)}), f"m{n}") for n in range(8, 88, 8)]
    grid, cache = grid_of(["t4", "l4"], batch=[1, 2]), Cache.at(tmp_path)
    with engine(1) as here:
        local = list(blocks(models, grid, here))
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        with distributed.Client(cluster) as client:
            pids = sorted(client.run(os.getpid).values())
        assert len(pids) == 2
        found = []
        with engine(1, cluster.scheduler_address) as far:
            for block in blocks(models, grid, far):
                found.append(block)
                if len(found) == 2:
                    os.kill(pids[0], signal.SIGKILL)
        assert repr(found) == repr(local), "to the last digit, each once and in order"
        done = 0
        with (
            pytest.raises(EnvironmentFailure, match=r"scheduler at tcp://\S+; the cache is kept"),
            engine(1, cluster.scheduler_address) as far,
        ):
            for _ in blocks(models, grid, far, cache):
                done += 1
                if done == 2:
                    cluster.close()
    assert 2 <= done < len(models)
    kept = len(list(tmp_path.rglob("*.json")))
    assert kept >= 2 * len(grid.batches)
    with engine(1) as here:
        assert list(blocks(models, grid, here, cache)) == local
    assert len(list(tmp_path.rglob("*.json"))) == len(models) * len(grid.batches) > kept

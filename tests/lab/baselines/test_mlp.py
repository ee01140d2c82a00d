"""The method mlp: tiles and waves by hand, bounds of its utilisation, what it leaves to others, and its training."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu_specs
from onnxperf import UsageError, predict
from onnxperf.answer.prediction import summarise
from onnxperf.lab import baselines
from onnxperf.lab.baselines.mlp import CLASSES, FEATURES, LAYERS, class_of, numbers, tiled, utilisation
from onnxperf.lab.constants import left_out
from onnxperf.lab.datasets import Table
from onnxperf.lab.datasets.sources.fp32_torch import product, vector
from onnxperf.latency import floors
from onnxperf.latency.cards import Cards, Works
from op_models import Gemm, Pointwise, Rows, Work
from tests.device_files import PROCESSOR
from tests.estimating import estimate
from tests.latency.conftest import kernels

ROOT = Path(__file__).parents[3]
T4, A100 = gpu_specs.load("t4"), gpu_specs.load("a100-pcie-40gb")
SIZE = sum(int(np.prod(shape)) + shape[-1] for shape in LAYERS)


def compared(gpu: str) -> Any:
    run = predict(str(ROOT / "samples/resnet50.onnx"), gpu=gpu).run
    return summarise(baselines.compared(run, "mlp"))


def cut(w: Work, device: gpu_specs.Device) -> Any:
    cards = Cards([device], left_out())
    return tiled(Works([w], cards), cards)


def bmm(b: int, m: int, n: int, k: int) -> Work:
    found = product("bmm", b, m, k, n)
    assert found
    return found


def test_a_product_is_cut_into_tiles_and_waves() -> None:
    t = cut(bmm(10, 512, 1024, 256), A100)  # tiles of 128 x 128 for batches there: 10 x 4 x 8 on 108 SMs
    assert t.name[0, 0] == "128x128" and t.waves[0, 0] == 3
    flops = 2 * 128 * 128 * 256
    assert t.compute[0, 0] == pytest.approx(flops / (A100.dense_flops["fp32"] / 108))
    each = 4 * 10 * (512 * 256 + 256 * 1024 + 512 * 1024) / 320
    assert t.memory[0, 0] == pytest.approx(each / (A100.bandwidth_Bps / 108))
    assert t.features.shape == (1, 1, FEATURES)


def test_other_kernels_are_cut_into_blocks() -> None:
    add, long, short, norm = (vector(*x) for x in (
        ("add", 512, 400), ("softmax", 100, 4096), ("softmax", 100, 512), ("ln", 100, 512)
    ))  # fmt: skip
    assert add and long and short and norm
    waves = [float(cut(w, T4).waves[0, 0]) for w in (add, long, short, norm)]
    assert waves == [400 / 40, np.ceil(100 / 40), 1, np.ceil(100 / 40)]  # of 512 elements, a row, 4 rows, a row
    assert [class_of(w) for w in (add, long, norm)] == ["elementwise", "softmax", "normalisation"]


def test_classes_are_of_float32_alone_and_reductions_have_none() -> None:
    half = Work(Gemm(1, 64, 64, 64), "float16", "tensor_fp16", 1, 1, 1, 2 * 64**3)
    assert class_of(half) == "" and class_of(Work(Rows(8, 8, 0), "float32", "fp32", 1, 1, 0)) == ""
    assert class_of(Work(Gemm(1, 64, 64, 64), "float32", "tensor_tf32", 1, 1, 1)) == "linear"


def test_utilisation_is_alpha_less_beta_by_waves() -> None:
    weights = np.zeros(SIZE)
    weights[FEATURES : 2 * FEATURES] = 1  # half the range of features
    features, waves = np.random.default_rng(0).normal(size=(5, 3, FEATURES)), np.full((5, 3), 4.0)
    assert utilisation(features, waves, weights) == pytest.approx(0.5 * (1 - 0.5 / 4))  # sigmoid(0) twice
    weights[-2:] = 2.0, -1.0
    alpha, beta = 1 / (1 + np.exp(-2)), 1 / (1 + np.exp(1))
    assert utilisation(features, waves, weights) == pytest.approx(alpha * (1 - beta / 4))
    two = np.concatenate([weights, np.where(np.arange(SIZE) >= SIZE - 2, 0.0, weights)])
    mean = 1 / (1 + np.exp(-1)), 1 / (1 + np.exp(0.5))  # of both networks' outputs
    assert utilisation(features, waves, two) == pytest.approx(mean[0] * (1 - mean[1] / 4))


@pytest.mark.parametrize("name", CLASSES)
def test_utilisation_stays_within_bounds_on_any_features(name: str) -> None:
    weights, rng = numbers(left_out().mlp[name]), np.random.default_rng(0)
    assert len(weights) % SIZE == 0
    found = utilisation(50 * rng.normal(size=(200, 1, FEATURES)), rng.integers(1, 1000, (200, 1)), weights)
    assert (found > 0).all() and (found < 1).all()


def test_no_kernel_beats_physics_and_more_of_it_takes_longer() -> None:
    works = [bmm(b, m, m, m) for b in (1, 16) for m in (64, 512, 2048)] + [Work(
        Pointwise(n), "float32", "fp32", 8 * n, 4 * n, 0, 0, n) for n in (10, 10**6, 10**8)]  # fmt: skip
    e = estimate(kernels(*works), [T4, A100], "mlp")
    assert (e.seconds >= floors(works, [T4, A100])).all()
    assert (e.seconds[2] > e.seconds[1]).all() and (e.seconds[8] > e.seconds[7]).all()


def test_kernels_without_a_network_are_tile_waves_and_said_to_be() -> None:
    p = compared("t4")
    same = predict(str(ROOT / "samples/resnet50.onnx"), gpu="t4", method="sum")
    conv, usual = (next(k for k in x.kernels if k.op.endswith("Conv")) for x in (p, same))
    assert conv.seconds == pytest.approx(usual.seconds) and p.to_dict()["method"] == "mlp"
    note = next(n for n in p.warnings if n.code == "other-model")
    assert "Conv" in note.message and "Gemm" not in note.message
    on_tensor = compared("a100")
    assert "Gemm" in next(n for n in on_tensor.warnings if n.code == "other-model").message


def test_a_processor_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(PROCESSOR, encoding="utf-8")
    with pytest.raises(UsageError, match="trained on cards"):
        estimate(kernels(bmm(1, 64, 64, 64)), [gpu_specs.read(path)], "mlp")


def test_an_estimate_loads_no_torch() -> None:
    code = (
        "import sys, onnxperf\n"
        "from onnxperf.lab.baselines import compared\n"
        "run = onnxperf.predict('samples/gpt2.onnx', gpu='t4').run\n"
        "assert compared(run, 'mlp').estimates.seconds.all()\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def _tables() -> list[Table]:
    """A few kernels of each class on two cards, at half of the roofline, every fourth kept back."""
    sizes = [(b, 64 * m, 256, 64 * n) for b in (8, 32) for m in (4, 8, 16) for n in (8, 16)]
    shapes = {
        "bmm": [product("bmm", *s) for s in sizes], "linear": [product("linear", *s) for s in sizes],
        **{x: [vector(x, 4096 * i, 1024) for i in range(4, 16)] for x in ("add", "softmax", "ln")},
    }  # fmt: skip
    found = []
    for name, some in shapes.items():
        works = tuple(w for w in some if w)
        seconds = 2 * floors(works, [T4, A100]) + 1e-4
        test, none = np.arange(len(works)) % 4 == 0, np.full(seconds.shape, "", dtype=object)
        found.append(Table(name, "torch", works, ("t4", "a100-pcie-40gb"), seconds, test, none, {}))
    return found


@pytest.mark.slow
def test_training_gives_the_same_text_each_time_and_learns_nothing_of_rows_kept_back() -> None:
    pytest.importorskip("torch")
    from onnxperf.lab.derive.mlp import made_from

    tables = _tables()
    first = made_from(tables, steps=8)
    assert made_from(tables, steps=8) == first
    spoilt = [t.__class__(*(getattr(t, f) for f in t.__slots__)) for t in tables]
    for t in spoilt:
        t.seconds[t.test] *= 3
    ours, theirs = (x.partition("[constants.mlp]")[2] for x in (first, made_from(spoilt, steps=8)))
    assert ours == theirs != "" and "[without.TU104.mlp]" in ours and "[without.GA100.mlp]" in ours


def test_data_without_a_class_is_refused() -> None:
    pytest.importorskip("torch")
    from onnxperf.lab.derive.mlp import made_from

    with pytest.raises(UsageError, match="no rows to train on of softmax"):
        made_from([t for t in _tables() if t.name != "softmax"], steps=1)

"""What a processor does step by step, against single operators that were timed on one core.

ONNX Runtime 1.31, one thread, least of some hundred runs by its own profile, on one core of an EPYC of 2023 at 3.34 GHz
that other programs used meanwhile; random inputs, strings of ten letters.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import log
from typing import Any

import numpy as np
import pytest

from gpu_specs import HOSTS, Corrections, Device
from onnxperf.calibrate.this_processor import described, device
from onnxperf.latency import HostProcessor, estimate, shipped
from onnxperf.lowering.lower import Kernel, Kernels, work_on_cpu
from onnxperf.methods import METHODS
from op_models import Operator, Steps, Tensor, steps_of

HZ = 3.34e9
WITHIN = 1.5
ML, MS = "ai.onnx.ml::", "com.microsoft::"


def forest(trees: int, depth: int) -> dict[str, Any]:
    """Complete binary trees, as far as their work depends on them."""
    nodes = 2 ** (depth + 1) - 1
    return {"nodes_treeids": sorted([*range(trees)] * nodes), "nodes_featureids": [0] * (trees * nodes)}


def vectors(n: int, features: int, classes: int = 0, kernel: str = "RBF") -> dict[str, Any]:
    """A support vector machine, as far as its work depends on it."""
    per_class = {"vectors_per_class": [n // classes] * classes} if classes else {}
    each = max(classes - 1, 1)
    weights = {"support_vectors": [0.0] * (n * features), "coefficients": [0.0] * (n * each)}
    return {**weights, "kernel_type": kernel, **per_class}


ROWS: list[tuple[str, str, dict[str, Any], int]] = [
    (ML + "TreeEnsembleRegressor", "float32[10000x30] -> float32[10000x1]", forest(200, 8), 119637),
    (ML + "TreeEnsembleRegressor", "float32[1000x20] -> float32[1000x1]", forest(100, 6), 3469),
    (ML + "TreeEnsembleRegressor", "float32[1000x28] -> float32[1000x1]", forest(500, 5), 14848),
    (ML + "TreeEnsembleClassifier", "float32[5000x20] -> int64[5000] float32[5000x3]", forest(100, 8), 27469),
    (ML + "TreeEnsembleClassifier", "float32[10000x20] -> int64[10000] float32[10000x2]", forest(100, 6), 37406),
    (ML + "SVMRegressor", "float32[1000x30] -> float32[1000x1]", vectors(1000, 30), 16020),
    (ML + "SVMRegressor", "float32[1000x30] -> float32[1000x1]", vectors(500, 30, kernel="LINEAR"), 425),
    (ML + "SVMClassifier", "float32[1000x30] -> int64[1000] float32[1000x3]", vectors(999, 30, 3), 17919),
    (ML + "SVMClassifier", "float32[2000x20] -> int64[2000] float32[2000x10]", vectors(1000, 20, 10), 68489),
    (ML + "LinearClassifier", "float32[10000x30] -> int64[10000] float32[10000x3]", {"coefficients": [0.0] * 90}, 402),
    (ML + "Scaler", "float32[10000x30] -> float32[10000x30]", {}, 744),
    (ML + "Normalizer", "float32[10000x30] -> float32[10000x30]", {"norm": "L2"}, 1767),
    (ML + "Normalizer", "float32[10000x30] -> float32[10000x30]", {"norm": "L1"}, 154),
    (ML + "Imputer", "float32[10000x30] -> float32[10000x30]", {}, 166),
    (ML + "Binarizer", "float32[10000x30] -> float32[10000x30]", {}, 1438),
    (ML + "LabelEncoder", "string[50000] -> int64[50000]", {}, 304),
    (ML + "LabelEncoder", "int64[100000] -> int64[100000]", {}, 237),
    (ML + "CategoryMapper", "string[50000] -> int64[50000]", {}, 942),
    (ML + "OneHotEncoder", "int64[20000] -> float32[20000x20]", {}, 63),
    ("StringNormalizer", "string[20000] -> string[20000]", {"case_change_action": "LOWER"}, 1242),
    ("StringNormalizer", "string[20000] -> string[20000]", {"is_case_sensitive": 1}, 366),
    ("StringConcat", "string[50000] string[50000] -> string[50000]", {}, 935),
    ("RegexFullMatch", "string[20000] -> bool[20000]", {}, 1033),
    ("Cast", "string[20000] -> float32[20000]", {}, 1079),
    ("Cast", "float32[20000] -> string[20000]", {}, 3353),
    ("Equal", "string[50000] string[50000] -> bool[50000]", {}, 619),
    ("Gather", "string[1000] int64[50000] -> string[50000]", {}, 797),
    ("TfIdfVectorizer", "int64[500x100] -> float32[500x1000]", {"max_gram_length": 1}, 513),
    ("TfIdfVectorizer", "string[500x50] -> float32[500x1000]", {"max_gram_length": 2}, 507),
    ("STFT", "float32[100x1024x1] int64[] float32[128] int64[] -> float32[100x113x65x2]", {}, 23415),
    ("STFT", "float32[1x16000x1] int64[] float32[400] int64[] -> float32[1x98x201x2]", {}, 3743),
    ("DFT", "float32[100x1024x1] -> float32[100x513x2]", {"axis": 1}, 1691),
    ("DFT", "float32[20x1000x1] -> float32[20x501x2]", {"axis": 1}, 1661),
    ("DFT", "float32[10x499x1] -> float32[10x499x2]", {"axis": 1}, 412),
    ("LpPool", "float32[1x64x112x112] -> float32[1x64x55x55]", {"kernel_shape": (3, 3)}, 48310),
    ("GlobalLpPool", "float32[8x64x56x56] -> float32[8x64x1x1]", {}, 34598),
    ("MaxRoiPool", "float32[1x256x50x50] float32[100x5] -> float32[100x256x7x7]", {}, 57016),
    ("RoiAlign", "float32[1x64x50x50] float32[100x4] -> float32[100x64x7x7]", {"sampling_ratio": 2}, 2979),
    ("AffineGrid", "float32[8x2x3] int64[4] -> float32[8x224x224x2]", {}, 211),
    ("GridSample", "float32[1x16x64x64] float32[1x64x64x2] -> float32[1x16x64x64]", {}, 148),
    ("GridSample", "float32[1x8x64x64] float32[1x64x64x2] -> float32[1x8x64x64]", {"mode": "bicubic"}, 1118),
    ("NonMaxSuppression", "float32[1x2000x4] float32[1x1x2000] -> int64[2000x3]", {}, 4647),
    ("LRN", "float32[1x64x56x56] -> float32[1x64x56x56]", {"size": 5}, 5258),
    ("Resize", "float32[1x32x64x64] - float32[4] -> float32[1x32x128x128]", {"mode": "nearest"}, 294),
    ("Resize", "float32[1x32x64x64] - float32[4] -> float32[1x32x128x128]", {"mode": "linear"}, 704),
    ("Resize", "float32[1x8x64x64] - float32[4] -> float32[1x8x128x128]", {"mode": "cubic"}, 13336),
    ("TopK", "float32[100x10000] int64[1] -> float32[100x10] int64[100x10]", {}, 493),
    ("TopK", "float32[10x10000] int64[1] -> float32[10x5000] int64[10x5000]", {}, 4993),
    ("ArgMax", "float32[1000x1000] -> int64[1000x1]", {}, 777),
    ("Det", "float32[1000x8x8] -> float32[1000]", {}, 278),
    ("Det", "float32[10x100x100] -> float32[10]", {}, 469),
    (MS + "Inverse", "float32[1000x8x8] -> float32[1000x8x8]", {}, 575),
    ("Multinomial", "float32[32x1000] -> int32[32x10]", {"sample_size": 10}, 198),
    ("Multinomial", "float32[8x50] -> int32[8x1000]", {"sample_size": 1000}, 332),
    ("RandomNormalLike", "float32[200000] -> float32[200000]", {}, 1682),
    ("RandomUniformLike", "float32[200000] -> float32[200000]", {}, 762),
    ("CumSum", "float32[100x1000] int64[] -> float32[100x1000]", {}, 323),
    ("MeanVarianceNormalization", "float32[4x32x56x56] -> float32[4x32x56x56]", {}, 317),
    (MS + "CDist", "float32[500x32] float32[500x32] -> float32[500x500]", {}, 337),
    (MS + "MurmurHash3", "int32[50000] -> int32[50000]", {}, 181),
    ("OneHot", "int64[10000] int64[1] float32[2] -> float32[10000x100]", {}, 1677),
    ("GatherND", "float32[500x1000] int64[50000x2] -> float32[50000]", {}, 467),
    *((op, "float32[500x400] -> float32[500x400]", {}, us) for op, us in (
        ("Sin", 377), ("Tan", 2467), ("Asin", 215), ("Acos", 115), ("Atan", 181), ("Sinh", 3528), ("Cosh", 1493),
        ("Asinh", 4655), ("Acosh", 3092), ("Atanh", 3565), ("Log", 335), ("Sign", 204), ("Softplus", 2186),
        ("Elu", 362), ("Selu", 369), ("Celu", 403), ("Shrink", 1271),
    )),
    ("Pow", "float32[500x400] float32[500x400] -> float32[500x400]", {}, 855),
    ("Mod", "float32[500x400] float32[500x400] -> float32[500x400]", {"fmod": 1}, 1112),
    ("Div", "int64[500x400] int64[500x400] -> int64[500x400]", {}, 438),
    ("PRelu", "float32[500x400] float32[400] -> float32[500x400]", {}, 915),
    ("ReduceLogSumExp", "float32[500x400] -> float32[500x1]", {}, 791),
    ("ReduceProd", "float32[500x400] -> float32[500x1]", {}, 159),
]  # fmt: skip


def operator(type: str, text: str, attrs: dict[str, Any]) -> Operator:
    """An operator on tensors as text: float32[2x3] - int64[] -> float32[2x3]; some numbers are known."""
    numbers = {("STFT", 1): 8, ("STFT", 3): 128, ("CumSum", 1): 1}
    if "16000" in text:
        numbers |= {("STFT", 1): 160, ("STFT", 3): 400}

    def tensors(side: str) -> list[Tensor | None]:
        made: list[Tensor | None] = []
        for i, part in enumerate(side.split()):
            found = re.fullmatch(r"(\w+)\[([\dx]*)\]", part)
            shape = tuple(map(int, found[2].split("x"))) if found and found[2] else ()
            known = (numbers[type, i],) if (type, i) in numbers else None
            made.append(Tensor(f"{side}{i}", found[1], shape, value=known) if found else None)
        return made

    inputs, outputs = map(tensors, text.split(" -> "))
    return Operator("n", type, tuple(inputs), tuple(t for t in outputs if t), attrs, 17, ("n",))


@pytest.fixture(scope="module")
def core() -> Device:
    """The core that the rows were timed on."""
    texts = {"cpuinfo": "flags : avx2 avx512f avx512_vnni", "l2": "1024K", "l3": "32768K"}
    return device("EPYC", "x86_64", replace(described(texts, "x86_64"), hz=HZ), 2**34)


def seconds(o: Operator, on: Device) -> tuple[float, float]:
    """How long an operator takes, and the half-width of its range."""
    w, assumed = work_on_cpu(o)
    kernels = Kernels((Kernel("n", o.type, ("n",), w, assumed=assumed),))
    e = estimate(kernels, [on], METHODS["tile-wave"])
    return float(e.seconds[0, 0]), float(e.half_width[0, 0])


@pytest.mark.parametrize(("type", "text", "attrs", "us"), ROWS, ids=[f"{i} {row[0]}" for i, row in enumerate(ROWS)])
def test_an_operator_takes_what_was_measured(
    core: Device, type: str, text: str, attrs: dict[str, Any], us: int
) -> None:
    o = operator(type, text, attrs)
    assert work_on_cpu(o)[1] == ""
    taken = seconds(o, core)[0]
    assert 1 / WITHIN <= taken / (us * 1e-6) <= WITHIN, f"{taken * 1e6:.0f} us, {us} us measured"


def test_errors_are_as_often_below_as_above(core: Device) -> None:
    errors = [log(seconds(operator(*row[:3]), core)[0] / (row[3] * 1e-6)) for row in ROWS]
    assert abs(float(np.mean(errors))) < 0.15
    assert len(ROWS) > 40


def test_what_only_a_run_can_tell_has_a_wide_range(core: Device) -> None:
    unique = operator("Unique", "int64[100000] -> int64[100000]", {})
    tan = operator("Tan", "float32[500x400] -> float32[500x400]", {})
    assert "distinct" in steps_of(unique).unknown and not steps_of(tan).unknown
    widths = shipped().interval
    calibrated = replace(core, corrections=Corrections(half_width=0.05, source="test"))
    assert seconds(unique, calibrated)[1] == widths["unknown"]["new"] > 1
    assert seconds(tan, calibrated)[1] == widths["processor"]["new"]
    exp = operator("Exp", "float32[500x400] -> float32[500x400]", {})
    assert seconds(exp, calibrated)[1] == 0.05


def test_a_calibrated_core_scales_its_steps(core: Device) -> None:
    tan = operator("Tan", "float32[5000x400] -> float32[5000x400]", {})
    slow = replace(core, corrections=Corrections(compute=2.0, source="test"))
    assert 1.9 < seconds(tan, slow)[0] / seconds(tan, core)[0] <= 2


def test_jumps_take_longer_in_what_caches_do_not_hold(core: Device) -> None:
    """A search tree of few values lies in the core's own cache, one of many in memory."""
    each = [
        seconds(operator("Unique", f"int64[{n}] -> int64[{n}]", {}), core)[0] / n / log(n)
        for n in (1000, 30_000, 10**6)
    ]
    assert each[0] < 0.8 * each[1] and 3 * each[1] < each[2]


def test_several_cores_share_what_is_not_serial() -> None:
    host = replace(HOSTS["server-2023"], bandwidth_Bps=1e15, flops=1e15)
    one, four = (HostProcessor(replace(host, cores=n), shipped()) for n in (1, 4))
    pool, strings = (
        work_on_cpu(operator(*row))[0] for row in (
            ("LpPool", "float32[1x64x112x112] -> float32[1x64x55x55]", {"kernel_shape": (3, 3)}),
            ("RegexFullMatch", "string[20000] -> bool[20000]", {}),
        )
    )  # fmt: skip
    assert one.seconds(pool) / four.seconds(pool) == pytest.approx(4, rel=0.01)
    assert one.seconds(strings) / four.seconds(strings) == pytest.approx(1, rel=0.01)


def test_a_host_takes_no_less_than_its_rates() -> None:
    product = work_on_cpu(operator("MatMul", "float32[512x512] float32[512x512] -> float32[512x512]", {}))[0]
    slow = replace(HOSTS["server-2023"], flops=1e9)
    assert HostProcessor(slow, shipped()).seconds(product) >= 2 * 512**3 / 1e9


@pytest.mark.parametrize("n", [-5, 2**110])
def test_absurd_attributes_have_no_steps(n: int) -> None:
    o = operator("Multinomial", "float32[8x50] -> int32[8x1000]", {"sample_size": n})
    assert steps_of(o) == Steps()


def test_elements_are_counted_by_kind() -> None:
    assert steps_of(operator("Tan", "float32[2x3] -> float32[2x3]", {})) == Steps(functions=12, serial=True)
    assert steps_of(operator("Relu", "float32[2x3] -> float32[2x3]", {})) == Steps()
    assert steps_of(operator("Identity", "string[7] -> string[7]", {})) == Steps(strings=7, serial=True)
    pool = operator("LpPool", "float32[1x1x4x4] -> float32[1x1x2x2]", {"kernel_shape": (3, 3)})
    assert steps_of(pool) == Steps(functions=4 * 4 * 9)
    dft = operator("DFT", "float32[2x8x1] -> float32[2x8x2]", {"axis": 1})
    assert steps_of(dft) == Steps(steps=3 * 2 * 8 * 3, functions=8, serial=True)
    trees = operator(ML + "TreeEnsembleRegressor", "float32[10x4] -> float32[10x1]", forest(7, 3))
    assert steps_of(trees) == Steps(steps=80, guesses=210, jumps=210, reach=24 * 15)

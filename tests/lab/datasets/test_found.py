"""Every dataset of the package is found; `tests/test_extensions.py` adds one more."""

import pytest

from onnxperf.lab.datasets import SAMPLE, datasets, files, kernels, model_runs, models
from onnxperf.lab.derive.passes import SETS


@pytest.mark.slow
def test_every_dataset_of_the_package_is_found() -> None:
    assert [d.folder for d in datasets()] == [
        "fp32_torch", "microbench", "deepbench", "tensor_core", "collectives", "ort_cuda", "timm", "tensorrt",
        "h200", "h100",
    ]  # fmt: skip
    assert {k.constants for k in kernels().values()} | {"power"} == set(SETS)
    assert all(path.is_file() for path in files(SAMPLE))
    assert [of for of, runs, _ in model_runs(SAMPLE) if runs] == [of for _, of in models()]

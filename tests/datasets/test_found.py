"""A dataset is one module: it is found by being there, read, fitted to and scored."""

import subprocess
import sys
from pathlib import Path

import pytest

from onnxperf.datasets import SAMPLE, datasets, files, kernels, model_runs, models
from onnxperf.derive.families import FAMILIES
from tests.datasets.conftest import written

MODULE = """
from onnxperf.datasets.dataset import Dataset, File, Kernels
from onnxperf.datasets.reading import card, number, sizes, work_of
from onnxperf.datasets.table import Row
from op_models import Tensor


def row(r):
    m, n, k = sizes(r, "m", "n", "k")
    inputs = Tensor("a", "float32", (m, k)), Tensor("b", "float32", (k, n), "weight")
    work = work_of("MatMul", inputs, Tensor("c", "float32", (m, n)))
    return Row("my products", card(r["gpu"]), work, number(r, "ms") / 1e3)


DATASET = Dataset(
    "mine", 50, "my clock",
    kernels=(Kernels("my products", "My GEMM", "gemm", 1e-5),),
    files=(File("products.csv.gz", ("gpu", "m", "n", "k", "ms"), row),),
)
"""
SCORED = """
import sys
from pathlib import Path
import onnxperf.datasets.sources as sources
sources.__path__.append(sys.argv[1])
from onnxperf.datasets import read
from onnxperf.derive.families import FAMILIES
from onnxperf.validate import validate
data = Path(sys.argv[2])
print({s.name for s in validate(data).scores}, [t.family for t in FAMILIES["gemm"].tables(read(data))])
"""


@pytest.mark.slow
def test_a_dataset_is_one_file(tmp_path: Path) -> None:
    module = tmp_path / "sources" / "mine.py"
    module.parent.mkdir()
    module.write_text(MODULE, encoding="utf-8")
    rows = [f"v100-sxm2-16gb,4096,4096,{k},{k / 400}" for k in (1024, 2048, 4096)]
    data = written(tmp_path, "mine", products=["gpu,m,n,k,ms", *rows])
    asked = [sys.executable, "-c", SCORED, str(module.parent), str(data)]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert said.strip() == "{'My GEMM'} ['my products']"


@pytest.mark.slow
def test_every_dataset_of_the_package_is_found() -> None:
    assert [d.folder for d in datasets()] == ["fp32_torch", "deepbench", "tensor_core", "ort_cuda"]
    assert {k.constants for k in kernels().values()} | {"power"} == set(FAMILIES)
    assert all(path.is_file() for path in files(SAMPLE))
    assert [of for of, runs, _ in model_runs(SAMPLE) if runs] == [of for _, of in models()]

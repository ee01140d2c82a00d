"""A dataset of a user's own: what is wrong with it is told by its file and its names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import gpu_specs
from onnxperf.ground.errors import Error, UsageError
from onnxperf.lab import datasets as package
from onnxperf.lab.datasets.dataset import Dataset, File, Kernels
from onnxperf.lab.datasets.reading import Record, card, number, sizes, work_of
from onnxperf.lab.datasets.table import Row
from onnxperf.lab.derive.__main__ import main
from onnxperf.lab.validate import validate
from op_models import Tensor
from tests.lab.datasets.conftest import written

SECONDS = 2 * 4096**3 / gpu_specs.load("t4").dense_flops["fp32"]


def product(r: Record, table: str = "own products", scale: float = 1.0, op: str = "MatMul") -> Row:
    """A square product in FP32."""
    (n,) = sizes(r, "n") or (1,)
    t = Tensor("t", "float32", (n, n))
    return Row(table, card(r["gpu"]), work_of(op, (t, t), t), scale * number(r, "s"))


def dataset(row: Callable[[Record], object], constants: str = "gemm") -> Dataset:
    kernels = (Kernels("own products", "Own GEMM", constants),)
    return Dataset("own", 60, "own", kernels, (File("products.csv.gz", ("gpu", "n", "s"), row),))  # type: ignore[arg-type]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two rows of products, twice as long as at peak."""
    return written(tmp_path, "own", products=["gpu,n,s", f"t4,4096,{2 * SECONDS}", f"t4,2048,{SECONDS / 4}"])


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Dataset], None]]:
    """Make a dataset the only one there is, for one test."""

    def only(one: Dataset) -> None:
        monkeypatch.setattr(package, "offered", lambda *asked: (one,))
        package.datasets.cache_clear()
        package.kernels.cache_clear()

    yield only
    package.datasets.cache_clear()
    package.kernels.cache_clear()


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (lambda r: 5, r"own/products\.csv\.gz: its row\(\) gave 5, where it gives a Row or None"),
        (lambda r: product({"gpu": r["card"]}),
         r"own/products\.csv\.gz: its row\(\) failed with KeyError: 'card', in .*test_own\.py, .*columns are gpu, n"),
        (lambda r: product(r, op="own::Product"), "OpModelError: no rule knows the operator 'own::Product'"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_row_is_told_with_its_file(data: Path, row: Callable[[Record], object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        dataset(row).tables(data)


def test_constants_that_no_family_declares_are_told(offer: Callable[[Dataset], None]) -> None:
    offer(dataset(product, "gem"))
    with pytest.raises(Error, match=r"folder 'own' names the constants 'gem' for its Kernels 'own products', .* gemm"):
        package.datasets()


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (lambda r: product(r, "own product"), "2 rows of 'own product': no dataset declares Kernels of that name"),
        (lambda r: product(r, scale=1e5), "2 rows of 'own products': too slow to be in the unit of its column"),
        (lambda r: product(r, scale=1e-5), "2 rows of 'own products': faster than physics"),
        (lambda r: product({**r, "gpu": "t44"}), "2 rows of 'own products': unknown card"),
    ],
)
def test_why_no_row_is_of_use_is_told(
    data: Path, offer: Callable[[Dataset], None], row: Callable[[Record], Row], says: str
) -> None:
    offer(dataset(row))
    with pytest.raises(UsageError, match=f"holds no measurements to score: {says}$"):
        validate(data)
    done = CliRunner().invoke(main, [str(data)])
    assert done.exit_code == 2 and f"holds no rows to derive from: {says}" in done.output


def test_a_sound_dataset_is_scored(data: Path, offer: Callable[[Dataset], None]) -> None:
    offer(dataset(product))
    assert {s.name for s in validate(data).scores} == {"Own GEMM"}

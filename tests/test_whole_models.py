"""Models that were measured: the rows, the graphs they belong to, and what of them eager torch launches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gpu_specs
from onnxperf.graph import load
from onnxperf.ground.errors import UsageError
from onnxperf.lab.datasets.runs import MeasuredRun
from onnxperf.lab.datasets.sources.fp32_torch import COLUMNS, SAMPLES, models
from onnxperf.lowering.lower import Kernels, lower
from onnxperf.runtimes import RUNTIMES, run_graph
from tests.estimating import estimate
from tests.shallow import shallow
from tests.zoo import zoo

__all__ = ["zoo"]  # a fixture

FOLDER = Path(__file__).parents[1] / "samples"
EAGER = RUNTIMES["torch-eager"]


def kernels(sample: str, batch: int, sequence: int, layers: int | None = None) -> Kernels:
    """Of all layers, or of so many."""
    model = FOLDER / f"{sample}.onnx" if layers is None else shallow(sample, layers)
    return lower(run_graph(load(model, dims={"batch": batch, "sequence": sequence}), EAGER), EAGER)


def table(folder: Path, *rows: str) -> tuple[list[MeasuredRun], dict[str, int]]:
    header = ",".join((*COLUMNS, "neusight_ms"))
    (folder / "e2e.csv").write_text("\n".join((header, *rows)) + "\n")
    return models(folder)


def test_rows_become_seconds_of_a_sample(tmp_path: Path) -> None:
    rows, why = table(tmp_path, "Tesla T4,gpt2_large,1024,4,inference,,2505.22,2340.88,2616.58")
    row = rows[0]
    assert (row.gpu, row.die, row.model, row.dims) == ("t4", "TU104", "gpt2-large", {"batch": 4, "sequence": 1024})
    assert (row.seconds, row.kernels_s) == pytest.approx((2.50522, 2.34088))
    assert row.published["neusight"] == pytest.approx(2.61658)
    assert row.published["habitat"] != row.published["habitat"], "nobody published one"
    assert not why


def test_rows_that_cannot_be_used_are_counted_by_reason(tmp_path: Path) -> None:
    good = "Tesla T4,bert_large,512,8,inference,,694.465,,"
    bad = {
        good: "measured twice",
        "Tesla T4,bert_large,512,8,training,,694.465,,": "training, or with an option",
        "Tesla T4,bert_large,512,8,inference,fusion,694.465,,": "training, or with an option",
        "Tesla T4,switchxl4,512,1,inference,,223.2,,": "no sample of this model",
        "Voodoo 2,bert_large,512,8,inference,,694.465,,": "unknown card",
        "Tesla T4,bert_large,512.5,8,inference,,694.465,,": "no such shape",
        "Tesla T4,bert_large,512,0,inference,,694.465,,": "no such shape",
        "Tesla T4,bert_large,512,16,inference,,nan,,": "no positive time",
        "Tesla T4,bert_large,512,16,inference,,-3,,": "no positive time",
    }
    rows, why = table(tmp_path, good, *bad)
    assert len(rows) == 1
    assert why == Counter(bad.values())


def test_a_file_that_is_another_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "e2e.csv").write_text("device,latency\nT4,3\n")
    with pytest.raises(UsageError, match=r"e2e\.csv has no column model, seqlen"):
        models(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES.values())
def test_every_operator_is_known_and_twice_the_batch_takes_twice_as_long(sample: str) -> None:
    """Of a few of its layers, which are all alike."""
    one, two = (kernels(sample, batch, 512, layers=4) for batch in (4, 8))
    assert not [k.name for k in one.rows if k.assumed]
    card = [gpu_specs.load("v100-pcie-32gb")]
    ratio = estimate(two, card).seconds.sum() / estimate(one, card).seconds.sum()
    assert ratio == pytest.approx(2, rel=0.1)


#: What eager torch dispatches, by our names of operators; views launch nothing.
NAMES = {
    "addmm": "product", "mm": "product", "bmm": "product", "Gemm": "product", "MatMul": "product",
    "clone": "copy", "_unsafe_view": "", "Contiguous": "copy", "embedding": "Gather", "_softmax": "Softmax",
    "native_layer_norm": "LayerNormalization", "gelu": "Gelu", "relu": "Relu", "tanh": "Tanh", "div": "Div",
    "where": "Where", "maximum": "Max", "pow": "Pow", "add": "Add", "mul": "Mul",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["bert-large", "gpt2-large", "opt-1.3b"])
@pytest.mark.parametrize("batch", [1, 2])
def test_torch_launches_the_same_kernels(zoo: ModuleType, sample: str, batch: int) -> None:
    """One kernel an operator that torch dispatches, of those that make something as large as a hidden state."""
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from transformers.initialization import no_init_weights

    large = batch * 64 * 1024
    counted = Counter[str]()

    class Launches(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            made = out[0] if isinstance(out, tuple) else out
            if isinstance(made, torch.Tensor) and made.is_floating_point() and made.numel() >= large:
                name = func.overloadpacket.__name__
                counted[NAMES.get(name, "" if func.is_view else name)] += 1
            return out

    with FakeTensorMode(), no_init_weights(), torch.no_grad():
        model = zoo.SAMPLES[sample].build().eval()
        inputs = {name: torch.ones((batch, 64), dtype=torch.int64) for name in zoo.SAMPLES[sample].inputs}
        with Launches():
            model(**inputs)
    del counted[""]
    graph = load(FOLDER / f"{sample}.onnx", dims={"batch": batch, "sequence": 64})
    ours = Counter(
        NAMES.get(o.type, o.type)
        for o in run_graph(graph, EAGER).operators
        if o.place in ("gpu", "copy") and o.out.dtype == "float32" and o.out.size >= large
    )
    assert ours == counted

"""Which kernels ONNX Runtime's CUDA provider has for products with packed weights, by release, rows, sizes and bias."""

from __future__ import annotations

import re
from typing import Any

import pytest

from onnxperf import predict
from onnxperf.graph import Graph, load
from onnxperf.lowering.lower import lower
from onnxperf.running.memory import footprint
from onnxperf.runtimes import LEVELS, RUNTIMES, of_version, run_graph
from op_models import work_of
from tests.runtimes.conftest import build

PACKED, WRITTEN = ["MatMulNBits"], ["DequantizeBlocks", "FusedMatMul"]


def text(
    rows: int, bits: int = 4, n: int = 48, k: int = 64, block: int = 32, dtype: str = "float16", more: str = "",
    bias: bool = False, zero: str = "", order: bool = False, type: str = "MatMulNBits",
) -> str:  # fmt: skip
    blocks = -(-k // block)
    given = {
        "x": f"{dtype}[{rows},{k}]", "w": f"uint8[{n},{blocks},{block * bits // 8}]", "s": f"{dtype}[{n * blocks}]",
        "z": zero and f"{zero}[{n * blocks}]", "g": order and f"int32[{k}]", "b": bias and f"{dtype}[{n}]",
    }  # fmt: skip
    names = ",".join(name if has else "" for name, has in given.items()).rstrip(",")
    bits_of = f"bits={bits}," if type == "MatMulNBits" else "quant_type=1,"
    node = f"com.microsoft.{type}<K={k},N={n},{bits_of}block_size={block}{more}>({names})"
    inputs = ", ".join(f"{shape} {name}" for name, shape in given.items() if shape)
    return f"({inputs}) => ({dtype}[{rows},{n}] y) {{y={node}}}"


def ran(model: str, release: str = "") -> tuple[Graph, list[str]]:
    """The run graph, and its kernels."""
    runtime = of_version(RUNTIMES["ort-cuda"], release) if release else RUNTIMES["ort-cuda"]
    graph = run_graph(load(build(model, {}, 20)), runtime, LEVELS["all"])
    return graph, [k.op.rpartition("::")[2] for k in lower(graph, runtime).rows]


@pytest.mark.parametrize(("rows", "apart"), [(1, False), (2, False), (16, False), (17, True), (512, True)])
def test_packed_weights_are_written_out_for_more_than_a_few_rows(rows: int, apart: bool) -> None:
    graph, kernels = ran(text(rows))
    assert kernels == (WRITTEN if apart else PACKED)
    works = [work_of(o) for o in graph.operators]
    assert works[-1].matrix_flops == 2 * rows * 48 * 64
    assert sum(w.bytes for w in works) == 48 * 32 + 96 * 2 + rows * (64 + 48) * 2 + apart * 2 * (48 * 64 * 2)


@pytest.mark.parametrize(
    ("bits", "dtype", "release", "most"),
    [
        (4, "float16", "", 16), (8, "bfloat16", "", 5), (4, "float", "", 16), (8, "float", "", 5),
        (2, "float16", "", 8), (4, "float16", "1.28", 16), (8, "float16", "1.28", 5), (4, "float16", "1.27", 1),
        (8, "float16", "1.27", 1),
        (4, "float16", "1.18", 1), (8, "float16", "1.21", 0), (2, "float16", "1.29", 0),
    ],
)  # fmt: skip
def test_how_many_rows_read_packed_weights_depends_on_release_and_bits(
    bits: int, dtype: str, release: str, most: int
) -> None:
    for rows, kernels in ((most, PACKED), (most + 1, WRITTEN)):
        assert not rows or ran(text(rows, bits, dtype=dtype), release)[1] == kernels


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"n": 44}, "44 columns of 64 weights"), ({"k": 36, "block": 16}, "48 columns of 36 weights"),
        ({"bits": 8, "k": 80}, "48 columns of 80 weights"), ({"k": 80}, ""), ({"block": 128}, ""),
        ({"block": 256}, "blocks of 256"), ({"block": 256, "bits": 8, "k": 256}, ""),
        ({"zero": "uint8"}, ""), ({"zero": "float16"}, "zero points that are not packed"),
        ({"order": True}, "an order of the weights"),
    ],
)  # fmt: skip
def test_kernels_for_few_rows_do_not_take_all_sizes(how: dict[str, Any], why: str) -> None:
    graph, kernels = ran(text(1, **how))
    (note,) = graph.notes
    assert (kernels, note.code) == ((WRITTEN, "weights-written-out") if why else (PACKED, "packed-weights"))
    assert f"({why})" in note.message or not why


@pytest.mark.parametrize("rows", [1, 20])
def test_prepacked_weights_are_multiplied_as_they_are(rows: int) -> None:
    assert ran(text(rows, more=",weight_prepacked=1", bias=True))[1] == PACKED


@pytest.mark.parametrize(("block", "rows", "kernels"), [(64, 1, 1), (64, 2, 2), (8, 1, 2)])
def test_four_bits_of_bitsandbytes_are_read_packed_for_one_row(block: int, rows: int, kernels: int) -> None:
    graph, found = ran(text(rows, block=block, type="MatMulBnb4"))
    assert len(found) == kernels and len(graph.notes) == 1


@pytest.mark.parametrize(
    ("how", "release", "fused"),
    [({"rows": 2}, "", False), ({"rows": 20}, "", False), ({"rows": 1, "n": 32, "k": 2880}, "", True),
     ({"rows": 1, "n": 32, "k": 2880}, "1.27", False), ({"rows": 2, "n": 32, "k": 2880}, "", False)],
)  # fmt: skip
def test_a_bias_has_a_kernel_of_its_own_but_for_one_router(how: dict[str, Any], release: str, fused: bool) -> None:
    plain, biased = (ran(text(**how, bias=bias), release) for bias in (False, True))
    assert biased[1] == plain[1] + ["Add"] * (not fused)
    runtime = RUNTIMES["ort-cuda"]
    assert sum(k.visited for k in lower(biased[0], runtime).rows) == 1, "one node"


def test_a_large_matrix_is_written_out_in_slices_of_columns() -> None:
    """151936 columns of 896 weights in FP16 have 272 MB; a slice of 32768 has 59."""
    n, k, rows = 151936, 896, 64
    (graph, kernels), (before, whole) = (ran(text(rows, n=n, k=k), release) for release in ("", "1.27"))
    assert kernels == 2 * WRITTEN and whole == WRITTEN
    assert sum(o.repeat for o in graph.operators if o.type == "DequantizeBlocks") == 5
    for of in ("matrix_flops", "vector_flops", "bytes_written"):
        sliced, once = (
            sum(getattr(work_of(o), of) * o.repeat for o in g.operators if o.place == "gpu") for g in (graph, before)
        )
        assert sliced == once
    again = (5 - 1) * rows * k * 2  # of the other operand
    read, read_once = (
        sum(work_of(o).bytes_read * o.repeat for o in g.operators if o.place == "gpu") for g in (graph, before)
    )
    assert read == read_once + again
    least = n * k // 2 + n * k // 32 * 2 + (rows * k + rows * n) * 2
    assert (
        least < footprint(graph).activations_bytes < least + 32768 * k * 2 + 1024 < footprint(before).activations_bytes
    )


@pytest.mark.parametrize(
    ("release", "rows", "says"),
    [
        ("1.18", 16, "of release 1.18 reads them packed (more than 1 row); --ort-version 1.28 or at most 1 row would"),
        ("1.21", 1, "--ort-version 1.22 would"),
        (None, 17, "at most 16 rows or ORT_FPA_INTB_GEMM=1, which is not modelled"),
        ("1.18", 1, "with more than 1 row they are first written out"),
        (None, 16, "assumed as fast as by TensorRT-LLM's kernels; with more than 16 rows they are first written out"),
    ],
)  # fmt: skip
def test_a_note_says_which_way_was_taken_and_what_would_take_another(release: str | None, rows: int, says: str) -> None:
    bits = 8 if release == "1.21" else 4
    p = predict(build(text(rows, bits), {}, 20), gpu="a100", ort_version=release)
    (note,) = (n for n in p.warnings if n.code in ("packed-weights", "weights-written-out"))
    assert says in note.message
    assert ("weights-written-out" in p.report()) == (note.code == "weights-written-out")


@pytest.mark.parametrize("attribute", ["bits=0", "block_size=0", "bits=-4", "K=-1"])
def test_absurd_attributes_are_no_way(attribute: str) -> None:
    name = attribute.partition("=")[0]
    graph, kernels = ran(re.sub(rf"\b{name}=\d+", attribute, text(1)))
    assert kernels == PACKED and not graph.notes

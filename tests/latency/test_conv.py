"""Convolutions: which algorithm is open to a shape, what it executes, and what is plausible where no row is open."""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

import gpu_specs
from onnxperf.lab.constants import assumed
from onnxperf.lab.datasets import Table
from onnxperf.lab.datasets.rigs import on_uniform_numbers
from onnxperf.lab.derive.fit import fit, fitted_rows
from onnxperf.latency import alone, floors, shipped, single
from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.conv_algorithms import shape_of
from onnxperf.latency.families.conv import TENSOR_CONVOLUTION, padded_product
from onnxperf.latency.terms import KernelTerms
from onnxperf.methods import METHODS
from op_models import Conv, Work

V100, P100, A100, T4 = (gpu_specs.load(g) for g in ("v100-pcie-16gb", "p100-pcie-16gb", "a100-pcie-40gb", "t4"))
RTX3090 = gpu_specs.load("rtx-3090")


def layer(
    images: int, cin: int, cout: int, out: tuple[int, ...], kernel: tuple[int, ...], *, stride: int = 1,
    groups: int = 1, dtype: str = "float32", pipe: str = "fp32", last: bool = False,
) -> Work:  # fmt: skip
    """A convolution whose image is `stride` times as large as its result."""
    positions, taps, width = prod(out), prod(kernel), 4 if dtype == "float32" else 2
    weights = width * cout * cin // groups * taps
    size = Conv(images, cin, cout, positions, taps, groups, stride, last=last)
    flops = 2 * images * cout * positions * cin // groups * taps
    read = width * images * cin * positions * stride + weights
    return Work(size, dtype, pipe, read, width * images * cout * positions, weights, flops)


def timed(w: Work, device: gpu_specs.Device = V100, budget: bool = False) -> KernelTerms:
    return alone([w], [device], shipped(), budget)


def seconds(w: Work, device: gpu_specs.Device = V100) -> float:
    return float(timed(w, device).seconds[0, 0])


@pytest.mark.parametrize("device", [V100, P100, A100, T4], ids=lambda d: d.id)
def test_a_large_3x3_layer_goes_through_a_transform_and_beats_the_direct_peak(device: gpu_specs.Device) -> None:
    w = layer(32, 512, 512, (56, 56), (3, 3))
    b = timed(w, device)
    assert b.variant[0, 0].startswith("winograd")
    assert b.executed_share[0, 0] < 0.6  # fewer FLOPs, hence less energy
    assert b.seconds[0, 0] < w.matrix_flops / device.dense_flops["fp32"]
    assert b.seconds[0, 0] > w.matrix_flops / 4 / device.dense_flops["fp32"]
    assert floors([w], [device])[0, 0] < b.seconds[0, 0]


@pytest.mark.parametrize(
    "w",
    [
        layer(32, 256, 256, (28, 28), (3, 3), stride=4),
        layer(32, 256, 256, (28, 28), (3, 3), groups=8),
        layer(32, 256, 256, (784,), (3,)),
        layer(4, 64, 64, (16, 28, 28), (2, 2, 2)),
        layer(32, 256, 256, (28, 28), (1, 1)),
        layer(32, 3, 64, (112, 112), (7, 7), stride=4),
    ],
    ids=["strided", "grouped", "1-D", "3-D", "1x1", "7x7 of stride 2"],
)
def test_what_no_transform_is_open_to_stays_above_the_direct_peak(w: Work) -> None:
    for device in (V100, P100, A100, T4):
        b = timed(w, device)
        assert b.variant[0, 0].startswith(("128x", "product "))  # the second for 1x1 filters
        assert b.seconds[0, 0] >= w.matrix_flops / device.dense_flops["fp32"]
        assert b.workspace[0, 0] == 0


def test_few_channels_are_gathered_and_many_are_transformed() -> None:
    first, deep = layer(16, 3, 64, (224, 224), (3, 3)), layer(64, 512, 512, (14, 14), (3, 3))
    assert timed(first).variant[0, 0] == "128x64"  # VGG's first layer, as cuDNN runs it
    b = timed(deep)
    assert b.variant[0, 0] == "winograd 4x4"
    assert b.launches[0, 0] == 4
    tiles = 64 * 4 * 4  # of 4x4 outputs; the borders of 14x14 are padded
    assert b.workspace[0, 0] == 4 * 36 * (tiles * 512 + 512 * 512 + tiles * 512)


def test_winograd_pays_for_borders_it_does_not_fill() -> None:
    fits, spills = (seconds(layer(64, 256, 256, (s, s), (3, 3))) / s**2 for s in (16, 17))
    assert spills > 1.2 * fits


def test_half_precision_and_tensor_cores_run_the_plain_product() -> None:
    w = layer(32, 256, 256, (56, 56), (3, 3), dtype="float16", pipe="tensor_fp16")
    b = timed(w, A100)
    assert not b.variant[0, 0].startswith("winograd")
    assert b.seconds[0, 0] > w.matrix_flops / A100.dense_flops["tensor_fp16"]


def half(*args: Any, **more: Any) -> Work:
    return layer(*args, **more, dtype="float16", pipe="tensor_fp16")


@pytest.mark.parametrize("device", [V100, T4], ids=lambda d: d.id)
def test_before_ampere_tensor_cores_walk_a_tap_in_steps_of_32_channels(device: gpu_specs.Device) -> None:
    terms = (timed(half(16, cin, 64, (224, 224), (5, 5), last=True), device) for cin in (1, 32, 33))
    one, full, more = (float((b.compute + b.latency)[0, 0]) for b in terms)  # traffic differs
    assert one == pytest.approx(full, rel=0.05)
    assert more > 1.5 * full


def test_from_ampere_on_first_layers_have_kernels_of_their_own() -> None:
    one, full = (seconds(half(64, cin, 64, (112, 112), (7, 7), stride=4, last=True), A100) for cin in (3, 32))
    assert one < 0.6 * full


@pytest.mark.parametrize("gpu", ["v100-sxm2-16gb", "rtx-4090", "rtx-5090"])
def test_a_step_takes_32_channels_of_a_group(gpu: str) -> None:
    cards = Cards([gpu_specs.load(gpu)], shipped())
    works = Works([half(64, c * 16, 1024, (28, 28), (3, 3), groups=16) for c in (64, 72, 96)], cards)
    product = padded_product(works, shape_of(works), cards, cards.constants.tensor_convolution)
    full, more, whole = product.k[:, 0]
    assert more == whole == 1.5 * full


def test_groups_of_few_channels_share_a_step() -> None:
    few, full = (seconds(half(32, 512, 512, (56, 56), (3, 3), groups=groups)) for groups in (64, 16))
    assert few == pytest.approx(full, rel=0.05)


@pytest.mark.parametrize("device", [V100, A100, T4], ids=lambda d: d.id)
def test_channels_that_do_not_lie_last_are_turned_round(device: gpu_specs.Device) -> None:
    first, last = (half(32, 256, 256, (56, 56), (3, 3), last=x) for x in (False, True))
    image = first.bytes_read - first.weight_bytes
    moved = 2 * image / device.bandwidth_Bps
    assert moved < seconds(first, device) - seconds(last, device) < 2 * moved
    a, b = timed(first, device), timed(last, device)
    assert a.launches[0, 0] == b.launches[0, 0] + 2, "image and weights"
    assert a.workspace[0, 0] - b.workspace[0, 0] == image


@pytest.mark.parametrize("gpu", ["rtx-3090", "rtx-5090", "h200-sxm"])
def test_1x1_filters_turn_images_of_an_odd_number_of_positions_alone(gpu: str) -> None:
    """A row of 49 positions in 16 bits is no whole number of the 4 bytes that a thread copies at least."""
    even, odd = (timed(half(256, 1024, 256, edges, (1, 1)), gpu_specs.load(gpu)) for edges in ((8, 8), (7, 7)))
    assert (even.launches[0, 0], odd.launches[0, 0]) == (1, 3)


@pytest.mark.parametrize("cin", [1, 3, 16, 64, 200])
@pytest.mark.parametrize("groups", [1, 5, 32])
def test_a_product_on_tensor_cores_is_never_faster_than_physics(cin: int, groups: int) -> None:
    w = half(8, cin * groups, 24 * groups, (28, 28), (3, 3), groups=groups)
    cards = [d for d in map(gpu_specs.load, gpu_specs.ids()) if "tensor_fp16" in d.dense_flops]
    for device in cards:  # what the model says itself, before the floor is put under it
        said, least = single(w, device, shipped(), METHODS["tile-wave"], w.weight_bytes)
        assert said.seconds[0, 0] >= least.seconds[0, 0], device.id


def test_a_slice_of_rows_on_tensor_cores_gives_back_the_start_that_made_it() -> None:
    start = "tensor_convolution.start_s"  # the other constant is hard to tell from a card's own correction
    made = assumed().having({start: 8e-6})
    works = tuple(half(n, 128, 128, (s, s), (3, 3)) for n in (1, 4, 16, 64) for s in (7, 14, 28, 56))
    rows = on_uniform_numbers(works, (V100, T4), made) + 1e-6
    kernel, test = np.full(rows.shape, "", dtype=object), np.ones(len(works), dtype=bool)
    table = Table("deepbench conv fp16", "deepbench", works, (V100.id, T4.id), rows, test, kernel, {})
    found = fit(TENSOR_CONVOLUTION, fitted_rows([table], TENSOR_CONVOLUTION), assumed()).values
    assert found[start] == pytest.approx(8e-6, rel=0.2)


def test_a_depthwise_layer_grows_with_its_taps() -> None:
    small, large = (layer(32, 256, 256, (56, 56), (t, t), groups=256) for t in (3, 31))
    assert timed(small).variant[0, 0] == "direct"
    assert seconds(large) > 5 * seconds(small)


def test_a_depthwise_layer_in_single_precision_waits_for_its_instructions() -> None:
    """32 images of 144 channels took 142.9 us on an H200 under PyTorch 2.11, 3.2 times what its bytes take."""
    w = layer(32, 144, 144, (56, 56), (3, 3), groups=144)
    b = timed(w, gpu_specs.load("h200-sxm"))
    assert b.compute[0, 0] > 2 * b.memory[0, 0]
    assert b.seconds[0, 0] == pytest.approx(142.9e-6, rel=0.25)


def of(w: Work, **changes: Any) -> Work:
    """The same convolution with other fields of its size."""
    assert isinstance(w.size, Conv)
    return replace(w, size=w.size._replace(**changes))


@pytest.mark.parametrize(("cin", "cout", "edge"), [(64, 64, 56), (512, 512, 7), (256, 1024, 14)])
def test_the_gradient_of_weights_sums_positions_in_parts(cin: int, cout: int, edge: int) -> None:
    """A product of few rows and columns that contracts all positions: with as many FLOPs about as long as the forward
    pass, though its result alone would fill few SMs.
    """
    w = half(256, cin, cout, (edge, edge), (3, 3), last=True)
    weights = of(w, direction="weights")
    assert timed(weights, RTX3090).launches[0, 0] == 2, "the parts are summed up"
    assert seconds(weights, RTX3090) == pytest.approx(seconds(w, RTX3090), rel=0.3)
    assert seconds(of(weights, last=False), RTX3090) > seconds(weights, RTX3090), "images are turned round"


def test_an_older_library_turns_results_round() -> None:
    w = half(128, 256, 256, (28, 28), (3, 3))
    older = seconds(of(w, turned=True), RTX3090) - seconds(w, RTX3090)
    assert older == pytest.approx(2 * w.bytes_written / RTX3090.bandwidth_Bps, rel=0.15)
    assert seconds(of(w, turned=True, last=True), RTX3090) == seconds(of(w, last=True), RTX3090)


def test_an_older_library_pads_odd_channels_that_lie_last() -> None:
    even, odd = (half(128, n, n, (28, 28), (1, 1), last=True) for n in (256, 252))
    assert seconds(of(even, turned=True), RTX3090) == seconds(even, RTX3090)
    padding = seconds(of(odd, turned=True), RTX3090) - seconds(odd, RTX3090)
    assert padding == pytest.approx(4 * (odd.bytes - odd.weight_bytes) / RTX3090.bandwidth_Bps, rel=0.15)


def test_gradients_with_groups_that_an_older_library_has_no_tensor_cores_for() -> None:
    """Channels last, strided, and no multiple of 32 groups; or with another number of channels out than in."""

    def slower(cin: int, cout: int, groups: int, stride: int, direction: str = "transpose") -> float:
        w = of(half(64, cin, cout, (28, 28), (3, 3), groups=groups, stride=stride, last=True), direction=direction)
        return seconds(of(w, turned=True), RTX3090) / seconds(w, RTX3090)

    assert slower(512, 512, 8, 4) > 20 and slower(512, 512, 8, 4, "weights") > 20
    assert slower(512, 1024, 64, 1) > 10, "channels in are no channels out"
    assert slower(512, 512, 8, 1) == slower(512, 512, 32, 4) == slower(512, 512, 8, 4, "forward") == 1
    assert slower(512, 512, 1, 4) == 1


def test_the_gradient_of_depthwise_weights_reads_images_for_each_tap() -> None:
    """Where channels don't lie last."""
    w = half(128, 96, 96, (56, 56), (5, 5), groups=96)
    weights = of(w, direction="weights")
    assert seconds(weights, RTX3090) > 2 * seconds(w, RTX3090)
    assert seconds(of(weights, last=True), RTX3090) == pytest.approx(seconds(of(w, last=True), RTX3090), rel=0.15)


def test_more_images_never_take_less_time() -> None:
    times = [seconds(layer(n, 256, 256, (14, 14), (3, 3))) for n in (1, 2, 4, 8, 16, 32, 64)]
    assert times == sorted(times)


def test_few_blocks_share_k_among_their_warps_where_channels_lie_last() -> None:
    """49 positions are one block of 128 for each 32 channels; blocks enough for every SM gain nothing."""
    sides: Any = ({"images": n, "out": (edge, edge)} for n, edge in ((1, 7), (64, 28)))
    few, many = ({**side, "cin": 512, "cout": 512, "kernel": (3, 3), "stride": 4} for side in sides)
    plain, sliced = (timed(layer(**few, last=last)) for last in (False, True))
    assert (plain.variant[0, 0], sliced.variant[0, 0]) == ("128x32", "128x32 sliced 4")
    assert sliced.seconds[0, 0] < 0.7 * plain.seconds[0, 0]
    assert seconds(layer(**many, last=True)) == pytest.approx(seconds(layer(**many)), rel=0.05)


def test_single_precision_takes_tensor_cores_where_they_are_faster_and_double_its_own_unit() -> None:
    sizes = (32, 256, 256, (56, 56), (1, 1))
    plain, tf32 = (timed(layer(*sizes, pipe=pipe), A100).seconds[0, 0] for pipe in ("fp32", "tensor_tf32"))
    assert tf32 < plain, "many positions"
    few = (1, 64, 64, (7, 7), (1, 1))
    assert timed(layer(*few, pipe="tensor_tf32"), A100).seconds <= timed(layer(*few), A100).seconds, "never slower"
    double = timed(layer(*sizes, dtype="float64", pipe="fp64"), A100)
    assert double.compute[0, 0] >= layer(*sizes).matrix_flops / A100.dense_flops["fp64"]


def test_an_engine_has_its_tables_before_a_run() -> None:
    """TensorRT's engines are built for one shape: what a library prepares in each run costs them nothing."""
    work = half(1, 32, 32, (7, 7), (3, 3), last=True)
    planned = replace(work, size=work.size._replace(planned=True))
    start_s = shipped().tensor_convolution["start_s"]
    assert seconds(work, T4) - seconds(planned, T4) == pytest.approx(start_s)
    assert seconds(work, A100) == seconds(planned, A100), "from Ampere on no tables are made"


def test_an_engine_packs_the_channels_of_an_8_bit_image() -> None:
    """A first layer of 3 channels costs much less than in a library; one of 64, which fill a step, does not."""
    image, full = (layer(32, cin, 64, (112, 112), (7, 7), stride=4, dtype="int8", pipe="tensor_int8", last=True)
                   for cin in (3, 64))  # fmt: skip
    library = [seconds(w, T4) for w in (image, full)]
    engine = [seconds(replace(w, size=w.size._replace(planned=True)), T4) for w in (image, full)]  # type: ignore[union-attr]
    assert engine[0] < 0.5 * library[0]
    assert engine[1] > 0.9 * library[1]


def test_an_engine_gathers_several_taps_before_ampere_at_a_share_of_the_rate() -> None:
    """As DeepBench's rows show of libraries: a layer of 3 x 3 taps is slower than one tap of as many FLOPs."""
    one, nine = (
        of(w, planned=True, timed=True)
        for w in (half(32, 9 * 256, 512, (28, 28), (1, 1), last=True), half(32, 256, 512, (28, 28), (3, 3), last=True))
    )
    assert one.matrix_flops == nine.matrix_flops
    reached = {d.id: float(timed(one, d).compute[0, 0] / timed(nine, d).compute[0, 0]) for d in (T4, V100, A100)}
    share = shipped().tensor_convolution["gather"]
    assert reached == pytest.approx({T4.id: share, V100.id: share, A100.id: 1.0})


def test_an_engines_convolution_takes_more_energy_than_a_product() -> None:
    """Which on a card of 70 W is time."""
    w = half(128, 256, 256, (28, 28), (3, 3), last=True)
    engine = of(w, planned=True, timed=True)
    plain = shipped().having({"tensor_convolution.engine.energy": 1.0})
    slower, usual = (alone([engine], [T4], c).seconds[0, 0] for c in (shipped(), plain))
    assert alone([engine], [T4], shipped(), False).seconds[0, 0] < usual < slower < 1.2 * usual


def test_operands_come_from_l2_no_faster_than_it_was_measured() -> None:
    """gpu-benches reads an L40's L2 at 5.3 TB/s, 15 bytes a clock and SM, and an A100's at 5.5 TB/s, 36 of them."""
    w = layer(8, 256, 256, (14, 14), (3, 3), stride=4)
    for gpu, most in (("l40", 5.4e12), ("a100-sxm4-80gb", 5.5e12)):
        said, _ = single(w, gpu_specs.load(gpu), shipped(), METHODS["tile-wave"], w.weight_bytes)
        rows, columns = map(int, str(said.variant[0, 0]).split("x"))
        nbytes = 4 * np.ceil(8 * 196 / rows) * np.ceil(256 / columns) * (rows + columns) * 9 * 256
        assert said.detail["traffic seconds"][0, 0] >= nbytes / most, gpu


def test_int8_runs_at_four_times_the_rate_where_dp4a_is_and_as_fp32_where_it_is_not() -> None:
    """NVIDIA states 47 TOPS for a P40; a P100 has no such instruction."""
    w = layer(32, 256, 256, (56, 56), (3, 3), stride=4)
    bytes_ = w.bytes_read // 4, w.bytes_written // 4, w.weight_bytes // 4
    eight = Work(w.size, "int8", "tensor_int8", *bytes_, w.matrix_flops)
    for gpu, least, most in (
        ("p40", 3.0, 4.0), ("gtx-1080-ti", 3.0, 4.0), ("gtx-1660", 3.0, 4.0), ("t1000", 3.0, 4.0),
        ("p100-pcie-16gb", 0.9, 1.2),
    ):  # fmt: skip
        device = gpu_specs.load(gpu)
        assert least < seconds(w, device) / seconds(eight, device) <= most, gpu
    assert gpu_specs.load("p40").dense_flops["int8"] == pytest.approx(47e12, rel=0.01)
    assert gpu_specs.load("p4").dense_flops["int8"] == pytest.approx(22e12, rel=0.05)

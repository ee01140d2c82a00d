"""Convolutions: algorithms on CUDA cores, implicit products on tensor cores, and depthwise kernels.

The fastest of the algorithms that can do a shape is taken: libraries choose by measuring or by good heuristics.
Forms that were tried: derive/conv.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.constants import ConstantSet, Parameter, Tiles
from onnxperf.latency.conv_algorithms import (
    FEW,
    SUMS_IN_FP32,
    Shape,
    cuda_core_algorithms,
    gathered_s,
    shape_of,
    stream_s,
)
from onnxperf.latency.families.gemm import TENSOR_CORES
from onnxperf.latency.family import KernelFamily
from onnxperf.latency.padding import larger_batches
from onnxperf.latency.processor import joined, lanes, moving, on_integers, scaling_s
from onnxperf.latency.tensor_cores import Product, in_bulk, tensor_cores
from onnxperf.latency.terms import RUNNER_UP, Array, KernelTerms, choose, fastest, plain_terms, pnorm, runner_up
from onnxperf.latency.traffic import overlap
from op_models import BITS, Conv, Work

WEIGHTS_BLOCK = 512  # threads of a block of conv_depthwise2d_grad_weight_kernel, at most
SMALL_FILTER = 25  # taps for which cuDNN has depthwise kernels (sm90_xmma_depthwise_convolution_wgrad)
OWN_FILTERS = (9, 25, 49)  # taps of which cuDNN has depthwise kernels for channels that lie last
PACKED = 4  # channels of an image in one word of an 8-bit format

#: Kernels around a convolution whose groups are widened.
WIDENING = 4


def conv(works: Works, cards: Cards, dram_share: Array) -> KernelTerms:
    """A product with m = images x positions, n = output channels, k = products summed into an output; one for each
    group.

    Tensor cores run that product, CUDA cores the fastest algorithm that can do the shape. FP32 takes tensor cores (in
    TF32, where that is allowed) if they are faster. A depthwise convolution runs on the vector units, without a
    product.
    """
    s = shape_of(works)
    terms = depthwise(works, cards)
    on_tensor = cards.tensor(works.pipes)
    product = np.broadcast_to(~((s.cin <= 4) & (s.groups > 1)), on_tensor.shape)
    single = np.array([[w.dtype == "float32"] for w in works.each])
    if (product & (single | ~on_tensor)).any():
        pipes = np.where(single[:, 0], "fp32", works.pipes).tolist()
        terms = choose(product, best_of(list(cuda_core_algorithms(works.on(pipes, cards), s, cards))), terms)
    if (product & on_tensor).any():
        tensor = on_tensor_cores(works, s, cards, dram_share)
        faster = ~single | (tensor.seconds < terms.seconds)
        terms = choose(product & on_tensor & faster, tensor, terms)
        few = _of_few_channels(works, s, cards)
        terms = choose(product & on_tensor & ~single & (few.seconds < terms.seconds), few, terms)
    return terms


def _of_few_channels(works: Works, s: Shape, cards: Cards) -> KernelTerms:
    """What a library has from Ampere on for images in NCHW of up to 4 channels in 16 bits: a product on CUDA cores
    (implicit_convolve_sgemm), which turns nothing round; infinite seconds where another kernel is needed.
    """
    compute, launch = gathered_s(works, s, cards), cards.constants.launch["kernel_s"] * cards.launch
    memory = stream_s(works.bytes, cards)
    open_to = (compute > 0) & (works["last"] == 0) & (works["timed"] == 0)
    seconds = pnorm(compute, memory, p=cards.constants.convolution["norm"]) + launch
    terms = plain_terms(compute, memory, 0.0, launch, np.where(open_to, seconds, np.inf))
    return terms._replace(variant=np.full(compute.shape, "gathered"))


def best_of(options: Sequence[KernelTerms]) -> KernelTerms:
    """The fastest of several ways, for each kernel on each card."""
    seconds = np.stack([o.seconds for o in options])
    chosen = fastest(seconds)

    def at(terms: Sequence[Array]) -> Array:
        return chosen(np.stack([np.broadcast_to(t, seconds.shape[1:]) for t in terms]))

    terms = {f: at([getattr(o, f) for o in options]) for f in KernelTerms._fields[:-1]}
    detail = {name: at([o.detail[name] for o in options]) for name in options[0].detail}
    if detail and len(options) > 1:
        detail[RUNNER_UP] = runner_up(seconds)
    return KernelTerms(**terms, detail=detail)


def depthwise(works: Works, cards: Cards) -> KernelTerms:
    """pnorm(issue time, traffic) + launch, with one thread for each output.

    For the gradient of weights in NCHW a block sums one tap of one channel, so that L2 serves image and gradient for
    each tap (ATen/native/cuda/DepthwiseConv2d.cu, conv_depthwise2d_grad_weight_kernel).
    """
    slots = np.where(works["native"] > 0, _native_slots(works, cards), _library_slots(works, cards))
    compute = np.maximum(works.matrix / works.vector_rate, slots / cards.issue) * cards.compute
    again = of_direction(works, "weights") & (works["last"] == 0) & (works["native"] == 0)
    again_s = np.where(again, works["taps"] * works.read, 0.0) / cards.l2_stream_Bps * cards.memory
    memory = np.maximum(stream_s(works.bytes, cards), again_s) + _padding_s(works, cards)
    launch = cards.constants.launch["kernel_s"] * cards.launch
    seconds = pnorm(compute, memory, p=overlap(cards)) + launch
    return plain_terms(compute, memory, 0.0, launch, seconds)._replace(variant=np.full(memory.shape, "direct"))


def _library_slots(works: Works, cards: Cards) -> Array:
    """Issue slots of a library's depthwise kernels: a tap (load, bounds check, multiply-add) takes a thread `slots`;
    `slots_last` in NHWC, in four bytes `last` times as many, and the gradient of weights `small_filter`, of filters of
    more than `SMALL_FILTER` taps `large_filter`; `slots_plain` in NCHW in other types than FP16, but for an engine,
    which times kernels. In FP16 a library also takes `element` slots to load an element of the image, `element_last` in
    NHWC, and `plane` for each channel of an image in NCHW; slower memory hides both. In NHWC filters of other sizes
    than `OWN_FILTERS`, and of one tap with a stride, have no kernel of their own from Ampere on: `direct` of an output
    and `direct_tap` of each tap.
    """
    coef, depthwise, timed = cards.constants.convolution, cards.constants.depthwise, works["timed"] > 0
    half = np.array([[w.dtype == "float16"] for w in works.each])
    single = (works.width == 4) & ~timed
    last = coef["slots_last"] * np.where(single, depthwise["last"], 1.0)
    weights = np.where(works["taps"] > SMALL_FILTER, depthwise["large_filter"], depthwise["small_filter"])
    last = np.where(single & of_direction(works, "weights"), weights, last)
    each = np.where(works["last"] > 0, last, np.where(half | timed, coef["slots"], coef["slots_plain"]))
    loaded = np.where(works["last"] > 0, depthwise["element_last"], depthwise["element"]) * works.read / works.width
    planes = np.where(works["last"] > 0, 0.0, depthwise["plane"]) * works["images"] * works["cin"]
    forward = of_direction(works, "forward") & ~timed
    usual = works.matrix / 2 * each + np.where(half & forward, loaded + planes, 0.0)
    others = ~np.isin(works["taps"], OWN_FILTERS) & ((works["taps"] > 1) | (works["stride"] > 1))
    direct = forward & (works["last"] > 0) & others & (cards.major >= 8)
    outputs = works.matrix / (2 * np.maximum(works["taps"], 1))
    each = depthwise["direct"] + depthwise["direct_tap"] * works["taps"]
    return np.asarray(np.where(direct, outputs * each, usual))


def _native_slots(works: Works, cards: Cards) -> Array:
    """Issue slots of PyTorch's own depthwise kernels in NCHW: `native` of an output and `native_tap` of each of its
    taps; `image` times that of an element of the image's gradient, also of taps that strides skip; `weights_tap` of a
    tap of the weights' gradient, and `weights_block` of a thread of a block, which sums one tap of one channel.
    """
    coef, taps = cards.constants.depthwise, works["taps"]
    outputs = works.matrix / (2 * taps)
    each = coef["native"] + coef["native_tap"] * taps
    image = works.written / works.width * each * coef["image"]
    blocks = works["cout"] * taps * WEIGHTS_BLOCK * coef["weights_block"]
    weights = outputs * taps * coef["weights_tap"] + blocks
    backward = np.where(of_direction(works, "weights"), weights, image)
    return np.asarray(np.where(of_direction(works, "forward"), outputs * each, backward))


def on_tensor_cores(works: Works, s: Shape, cards: Cards, dram_share: Array) -> KernelTerms:
    """Implicit GEMM on tensor cores: of an engine, whose builder times many kernels (`timed`), or of cuDNN."""
    timed = works["timed"] > 0
    if not timed.any():
        return by_cudnn(works, s, cards, dram_share)
    terms = in_engine(works, s, cards, dram_share)
    return terms if timed.all() else choose(timed, terms, by_cudnn(works, s, cards, dram_share))


def in_engine(works: Works, s: Shape, cards: Cards, dram_share: Array) -> KernelTerms:
    """Implicit GEMM in an engine, channels last: as a product, with tiles, rate, start and cost of a tile of its own.

    A FLOP takes `energy` times as many joules as one of a product. Before Ampere, gathering several taps reduces the
    rate to the share `gather`, as in a library.

    Source: fitted to whole engines; forms tried: derive/tensorrt.md.
    """
    coef, product_of = cards.constants.tensor_convolution["engine"], cards.constants.tensor_gemm
    product = padded_product(works, s, cards, coef)
    changed = {f"tensor_gemm.{name}": coef[name] for name in ("extra_k", "start_cycles")}
    gathers = (cards.major < 8) & (works["taps"] > 1)
    changed["tensor_gemm.rate"] = coef["rate"] * np.where(gathers, cards.constants.tensor_convolution["gather"], 1.0)
    changed |= {"tensor_gemm.tiles": _tiles(cards, coef), "tensor_gemm.splits": 1}
    changed["tensor_gemm.types"] = dict.fromkeys(product_of["types"], product_of["types"]["half"])
    terms = tensor_cores(works, product, cards.having(changed), dram_share)
    terms = terms._replace(executed_share=coef["energy"] * terms.executed_share)
    return _with_padding(terms, product, s, cards)


def by_cudnn(works: Works, s: Shape, cards: Cards, dram_share: Array) -> KernelTerms:
    """Implicit GEMM of cuDNN, with tiles of its own.

    Before Ampere, gathering the operand reduces the arithmetic's rate to the share `gather`, and the product starts
    after `start_s`, in which index tables are made, unless that is done ahead (`planned`). From Ampere on the start
    is shorter, and arithmetic hides traffic better (`late`). In NCHW, kernels transpose image, filter and result.
    Source: fitted to DeepBench's FP16 rows of V100 and T4; forms tried: derive/conv.md.
    """
    coef, kernel_s = cards.constants.tensor_convolution, cards.constants.launch["kernel_s"]
    early, product = cards.major < 8, padded_product(works, s, cards, coef)
    bare = tensor_cores(works, product, cards.having(_of_cudnn(works, s, cards, coef)), dram_share)
    gathers = early | (in_bulk(cards) & (works["taps"] > 1))
    gather = np.where(gathers, coef["gather"], 1.0)
    compute, latency = bare.compute / gather, bare.latency / gather
    few = _group_by_group(works, s, cards)
    transposed = np.maximum(1 - works["last"], few) * ~_as_it_lies(works, s, cards)
    transpose_s = transposed * _transpose_s(works, s, cards)
    product_alone = _as_it_lies(works, s, cards) & ((works["last"] == 0) | in_bulk(cards))
    late_s = np.where(product_alone, 0.0, coef["late"]["start_s"])
    start_s = np.where(early, coef["start_s"] * (1 - works["planned"]), late_s)
    slow = _without_words(works, s, cards) & ((works["last"] == 0) | (s.cout * works.width % 16 > 0))
    stores = np.where(slow & (works.width == 2), coef["stored"], 0.0)
    transpose_s = transpose_s + _padding_s(works, cards)
    transpose_s = transpose_s + stores * works.written / works.width / cards.issue * cards.compute
    alone, widened = np.where(few, s.groups, 1), _widened(works, s, cards)
    transpose_s = transpose_s + widened * stream_s(2 * (s.x_bytes + works.written), cards)
    more = 2 * transposed * alone + alone - 1 + WIDENING * widened
    launch = (start_s + more * kernel_s) * cards.launch
    seconds = bare.seconds + (compute - bare.compute) + (latency - bare.latency) + launch + transpose_s
    by_groups_s = np.maximum(_by_groups_s(works, s, cards), _gathered_s(works, s, cards) + transpose_s)
    compute, seconds = np.maximum(compute, by_groups_s), np.maximum(seconds, by_groups_s)
    detail = dict(bare.detail)
    if detail:
        detail["gather efficiency"] = np.broadcast_to(gather, seconds.shape)
        detail[RUNNER_UP] = detail[RUNNER_UP] + seconds - bare.seconds
    terms = bare._replace(
        compute=compute, memory=bare.memory + transpose_s, latency=latency, launch=bare.launch + launch,
        seconds=seconds, workspace=bare.workspace + transposed * s.x_bytes,
        launches=bare.launches + more.astype(int), detail=detail,
    )  # fmt: skip
    return _with_padding(terms, product, s, cards)


def _of_cudnn(works: Works, s: Shape, cards: Cards, coef: Mapping[str, Any]) -> dict[str, Any]:
    """The constants of products that are others for cuDNN's convolutions, by dotted path. Parts of k are summed apart
    for the gradient of weights and, of one image that lies as it is where TMA feeds tensor cores, as of other products.
    """
    usual = cards.constants.tensor_gemm
    splits = np.array([[sizes[0][0] for sizes in cards.nearest(coef["splits"])]])
    single = _as_it_lies(works, s, cards) & in_bulk(cards) & (s.images == 1)
    splits = np.where(single, usual["splits"], splits)
    mma_share = np.where(works.width == 2, coef["mma_share"]["half"], coef["mma_share"]["single"])
    changed = {
        "tiles": _tiles(cards, coef), "extra_k": coef["extra_k"], "norm": _norm(cards),
        "splits": np.where(of_direction(works, "weights"), coef["weight_splits"], splits),
        "start_cycles": usual["start_cycles"] * _start_share(s, cards),
        "rate": usual["rate"] * np.where(_by_older(works, s, cards), mma_share, 1.0),
    }  # fmt: skip
    return {f"tensor_gemm.{name}": value for name, value in changed.items()}


def _start_share(s: Shape, cards: Cards) -> Array:
    """The share of a product's start that a convolution takes, [n, g]: where TMA feeds tensor cores, `bulk_start` with
    little work and all of it with a tile of 128 x 128 for each SM.
    """
    least = np.where(in_bulk(cards), cards.constants.tensor_convolution["bulk_start"], 1.0)
    tiles = s.images * s.out * s.groups * s.cout / (128 * 128)
    return np.asarray(least + (1 - least) * np.minimum(tiles / cards.sms, 1))


def _norm(cards: Cards) -> Array:
    """How arithmetic and traffic of cuDNN's implicit products join on each card, an exponent of `pnorm` [1, g]."""
    coef = cards.constants.tensor_convolution
    usual = np.where(cards.major < 8, cards.constants.tensor_gemm["norm"], coef["late"]["norm"])
    turing = np.array([[x.capability == (7, 5) for x in cards.devices]])
    return np.asarray(np.where(turing, coef["turing_norm"], usual))


def _as_it_lies(works: Works, s: Shape, cards: Cards) -> Array:
    """Which convolutions of images in NCHW turn nothing round, [n, g]: from Ampere on those of 1x1 filters with stride
    1 and one group, which are a product of the filters and the image as it lies, but in an older library (`turned`).
    An image of an odd number of positions in 16 bits is turned: threads copy words of 4 bytes and more; of one
    position there is nothing to turn.
    """
    plain = (works["taps"] == 1) & (works["stride"] == 1) & (s.groups == 1) & (works["turned"] == 0)
    return np.asarray(plain & (cards.major >= 8) & ((s.out * works.width % 4 == 0) | (s.out == 1)))


def _by_older(works: Works, s: Shape, cards: Cards) -> Array:
    """Which of these run on kernels with mma.sync on cards that have better, [n, g]: where an operand's rows are no
    whole words of 16 bytes, which TMA takes, or in TF32, whose wgmma reads no image in NCHW; and few groups.
    """
    return np.asarray(_without_words(works, s, cards) | _group_by_group(works, s, cards))


def _without_words(works: Works, s: Shape, cards: Cards) -> Array:
    """Which images lie as they are for kernels without TMA, on cards that have it, [n, g]: rows are an image's
    positions in NCHW, and channels in and out where these lie last.
    """
    words = (s.out * works.width % 16 == 0) | (s.out == 1) & (s.cin * works.width % 16 == 0)
    of_channels = (s.cin * works.width % 16 == 0) & (s.cout * works.width % 16 == 0)
    whole = np.where(works["last"] > 0, of_channels, words & (works.width == 2))
    return np.asarray(_as_it_lies(works, s, cards) & in_bulk(cards) & ~whole)


def _group_by_group(works: Works, s: Shape, cards: Cards) -> Array:
    """Which convolutions run as one of each group, [n, g], from Hopper on: 2 to `few_groups` groups of channels that
    fill a step of 32. Each takes its channels out of the image, turned where they don't lie last, and puts its result
    back.
    """
    few = (s.groups > 1) & (s.groups <= cards.constants.tensor_convolution["few_groups"]) & (s.cin >= 32)
    return np.asarray(few & (works["planned"] == 0) & of_direction(works, "forward") & in_bulk(cards))


def _widened(works: Works, s: Shape, cards: Cards) -> Array:
    """Whether channels of groups are widened to a power of two and narrowed again, [n, g]: from Hopper on, and from
    Ampere on where channels lie last, by WIDENING kernels that clear and copy image and result
    (tensorTransformGeneric; groups of 24 and 48 channels).
    """
    odd = (s.groups > 1) & (s.cin > 16) & (np.log2(s.cin) % 1 > 0) & ~_group_by_group(works, s, cards)
    widens = in_bulk(cards) | ((works["last"] > 0) & (cards.major >= 8))
    return np.asarray(odd & (works["planned"] == 0) & widens)


def _transpose_s(works: Works, s: Shape, cards: Cards) -> Array:
    """Seconds to turn image and filter, and the shares `result` or `grouped_result` of the result; where channels lie
    last, to copy those of a group.
    """
    coef = cards.constants.tensor_convolution
    result = np.where(s.groups > 1, coef["grouped_result"], coef["result"])
    whole = (works["turned"] > 0) & ~of_direction(works, "weights")
    result = np.where(whole | in_bulk(cards), 1.0, result)
    turned_s = _turned_s(s.x_bytes, s.cin * s.groups, works, cards) + stream_s(2 * s.w_bytes, cards)
    turned_s = turned_s + result * _turned_s(works.written, s.cout * s.groups, works, cards)
    return np.asarray(np.where(works["last"] > 0, stream_s(2 * (s.x_bytes + works.written), cards), turned_s))


def _turned_s(nbytes: Array, channels: Array, works: Works, cards: Cards) -> Array:
    """Seconds to turn an image from NCHW to NHWC or back, by squares of 32 channels and 32 positions: an element, also
    of the channels that a square lacks, takes `turn_slots`.
    """
    coef = cards.constants.tensor_convolution
    elements = nbytes / works.width * np.ceil(channels / 32) * 32 / channels
    issue_s = elements * coef["turn_slots"] / cards.issue * cards.compute
    return np.asarray(np.maximum(stream_s(2 * nbytes, cards), issue_s))


def _gathered_s(works: Works, s: Shape, cards: Cards) -> Array:
    """Seconds in which threads gather the image, from Ampere on, where the channels of a tap are no whole words of 16
    bytes, or channels out fill no tile: `gather_loads` a clock and SM, each of as many channels as lie together.

    Each column of tiles gathers again. An image of up to 4 channels takes `few` issue slots a channel of a tap for 64
    channels out, and `few_out` for 16; with strides of two a first pass pads it to a word instead where that is faster,
    for a kernel of its own (image_first_layer): `first` slots a position and 64 channels out, `first_tap` of each tap.
    """
    coef, word = cards.constants.tensor_convolution, 16 / works.width
    together = np.minimum(np.gcd(s.cin.astype(int), word.astype(int)), word)
    narrow = (s.cout <= 32) | (together < word)
    loads = s.images * s.out * s.k / together * np.ceil(s.cout / np.where(together < word, 32, 64))
    seconds = loads / (coef["gather_loads"] * cards.sms * cards.hz)
    each = coef["few"] * np.ceil(s.cout / 64) + coef["few_out"] * np.ceil(s.cout / 16)
    few = s.images * s.out * s.k * each / cards.issue
    padded = s.images * s.out * (coef["first"] + coef["first_tap"] * s.taps) * np.ceil(s.cout / 64) / cards.issue
    padded = np.where(works["stride"] == 4, padded + stream_s(s.x_bytes * (1 + word / s.cin), cards), np.inf)
    seconds = np.where(s.cin <= FEW, np.minimum(few, padded), seconds)
    open_to = narrow & (works["taps"] > 1) & (s.groups == 1) & (cards.major >= 8) & of_direction(works, "forward")
    return np.where(open_to, seconds * cards.compute, 0.0)


def _padding_s(works: Works, cards: Cards) -> Array:
    """Seconds in which channels that lie last and are no multiple of `aligned` are padded by kernels of their own, by a
    library that turns results round (`turned`): image and result are read and written, element by element, at half the
    rate of a copy.
    """
    older = (works["turned"] > 0) & (works["last"] > 0)
    if not older.any():
        return np.zeros((1, 1))
    aligned = cards.constants.tensor_convolution["aligned"]
    odd = (works["cin"] % aligned > 0) | (works["cout"] % aligned > 0)
    padded = odd & older & (works["cin"] > PACKED)
    return np.where(padded, stream_s(4 * (works.bytes - works.weights), cards), 0.0)


def _by_groups_s(works: Works, s: Shape, cards: Cards) -> Array:
    """Seconds of a gradient with groups, channels last, for which an older library (`turned`) has only kernels without
    tensor cores: where groups have another number of channels out than in, or strides and no multiple of `even` groups
    (github.com/pytorch/pytorch/issues/70954, 34977). They reach the share `direct` of the vector units; else 0.
    """
    older = (works["turned"] > 0) & (works["last"] > 0)
    if not older.any():
        return np.zeros((1, 1))
    coef = cards.constants.tensor_convolution
    strided = (works["stride"] > 1) & (s.groups % coef["even"] > 0)
    slow = (s.groups > 1) & ((s.cin != s.cout) | strided) & older
    seconds = works.matrix / (cards.rate(["fp32"]) * coef["direct"]) * cards.compute
    return np.where(slow & ~of_direction(works, "forward"), seconds, 0.0)


def of_direction(works: Works, direction: str) -> Array:
    """Which convolutions are of a direction, [n, 1]."""
    return np.array([[getattr(w.size, "direction", "") == direction] for w in works.each])


def _with_padding(terms: KernelTerms, product: Product, s: Shape, cards: Cards) -> KernelTerms:
    """The terms of a padded product, with the energy and the idle part of tiles that padding costs."""
    padded = product.batch * product.m * product.n * product.k / (s.images * s.out * s.groups * s.cout * s.k)
    padding_power = cards.constants.cuda_core_gemm["padding_power"]
    detail = dict(terms.detail)
    if detail:
        detail["full tiles efficiency"] = detail["full tiles efficiency"] / padded
    return terms._replace(executed_share=terms.executed_share * (1 + padding_power * (padded - 1)), detail=detail)


def _tiles(cards: Cards, coef: Mapping[str, Any]) -> Array:
    """Positions and output channels of every tile that each card's library has, [tile, 2, g]; shorter lists repeat."""
    sets = cards.nearest(coef["tiles"])
    longest = max(map(len, sets))
    return np.array([(tiles * longest)[:longest] for tiles in sets], dtype=float).transpose(1, 2, 0)


def padded_product(works: Works, s: Shape, cards: Cards, coef: Mapping[str, Any]) -> Product:
    """m = images x positions, n = output channels, k = taps x input channels, padded to whole steps; n and k are [n,
    g]. The gradient of weights contracts the positions: the larger of the other two is m.

    The main loop reads the channels of each tap in steps of `step_bytes`: where that is 32 channels in FP16, a layer of
    1 to 16 channels takes as long as one of 32. Several narrow groups share a step, as one product that is mostly
    zeros. Source: the steps follow from DeepBench's FP16 rows of V100 and T4. Assumed of 8-bit types in an engine: an
    image's channels, up to 4, are packed in fours, so that a step reads several taps (TensorRT's format CHW4).
    """
    step, of_groups = (
        np.array([[sizes[0][0] for sizes in cards.nearest(steps)]])
        for steps in (coef["step_bytes"], cards.constants.tensor_convolution["group_step_bytes"])
    )
    step = np.where((s.groups > 1) & (works["planned"] == 0), of_groups, step) / works.width
    groups = np.clip(np.floor(step / s.cin), 1, s.groups)  # groups that share a step
    groups = np.where(_group_by_group(works, s, cards), 1, groups)
    channels = np.ceil(groups * s.cin / step) * step
    k = s.k / s.cin * channels
    packed = (works.width == 1) & (works["planned"] > 0) & (s.groups == 1) & (s.cin <= PACKED)
    k = np.where(packed, np.ceil(s.k / s.cin * PACKED / step) * step, k)
    lies = _as_it_lies(works, s, cards) & (works["last"] == 0) & (works["planned"] == 0)
    batch = np.where(lies, s.images, np.ceil(s.groups / groups))
    positions, channels_out = np.where(lies, s.out, s.images * s.out), groups * s.cout
    m, n, k = np.broadcast_arrays(positions, channels_out, k)
    of_weights = of_direction(works, "weights")
    return Product(
        batch, *(np.where(of_weights, a, b) for a, b in ((np.maximum(n, k), m), (np.minimum(n, k), n), (m, k)))
    )


class CoreShape(NamedTuple):
    """A convolution on a processor's core, columns [n, 1]: cin, cout: channels of one group; out: positions of all
    images; edge: the side of a square image with as many positions.
    """

    groups: Array
    cin: Array
    cout: Array
    out: Array
    taps: Array
    edge: Array


def processor_conv(works: Works, cards: Cards, fetch: Array) -> KernelTerms:
    """Dense products, depthwise kernels, or grouped products with groups narrower than a vector register; then traffic.

    Vector FLOPs of bias, sum and activation beyond two an output take another pass over the output; integers are scaled
    instead. Dense and grouped kernels hide the traffic of the core's own cache, depthwise kernels don't.
    """
    coef, clocks_per_s = cards.constants.processor, cards.sms * cards.hz
    groups, out, taps = (np.maximum(works[f], 1) for f in ("groups", "out", "taps"))
    cin, cout = np.maximum(works["cin"] / groups, 1), np.maximum(works["cout"] / groups, 1)
    s = CoreShape(groups, cin, cout, works["images"] * out, taps, np.sqrt(out))
    depthwise, dense = (cin == 1) & (groups > 1), (groups == 1) | (cin >= coef["register"])
    narrow_s = 2 * s.out * groups * cout * cin * taps / (works.rate * coef["narrow"])
    grouped_s = np.where(depthwise, _core_depthwise_s(works, s, cards), narrow_s)
    integers = on_integers(works)
    dense_s = np.where(integers, _core_integers_s(works, s, cards), _core_dense_s(works, s, cards))
    compute = np.where(dense, dense_s, grouped_s)
    beyond = np.maximum(works.vector - 2 * s.out * np.maximum(works["cout"], 1), 0)  # FLOPs
    pass_s = np.where(integers, scaling_s(works, cards), beyond * coef["pass_clocks"] / clocks_per_s)
    hidden = moving(works, cards, 0.0)
    shown = np.where(depthwise, moving(works, cards) - hidden, 0.0)
    return joined(works, cards, compute + pass_s, works.weights * fetch + hidden + shown)


def _core_dense_s(works: Works, s: CoreShape, cards: Cards) -> Array:
    """Seconds of 2 outputs channels-out k FLOPs at peak x efficiency, [n, g].

    Channels are padded to whole vector registers, but for fewer input channels than a register (an image's). A load
    serves as many products as there are registers r of output channels: efficiency = r / (r + `thin`), scaled to 1 at
    the most registers, `open`.
    """
    coef = cards.constants.processor
    k = s.taps * np.where(s.cin < coef["register"], s.cin, lanes(s.cin, cards)) + coef["extra_k"]
    registers = np.minimum(lanes(s.cout, cards) / coef["register"], coef["open"])
    efficiency = registers / (registers + coef["thin"]) * (coef["open"] + coef["thin"]) / coef["open"]
    return np.asarray(2 * s.out * s.groups * lanes(s.cout, cards) * k / works.rate / efficiency)


def _core_integers_s(works: Works, s: CoreShape, cards: Cards) -> Array:
    """Seconds of positions x channels-out x (k + `extra_k`) as one product, channels last, for which the channels of
    each tap but a single one are first copied side by side, `tap_copy_clocks` each.
    """
    coef = cards.constants.processor
    ops = 2 * s.out * s.groups * lanes(s.cout, cards) * (s.taps * s.cin + coef["extra_k"])
    copies = np.where(s.taps > 1, s.out * s.groups * s.taps * coef["tap_copy_clocks"], 0.0)
    return np.asarray(ops / works.rate + copies / (cards.sms * cards.hz))


def _core_depthwise_s(works: Works, s: CoreShape, cards: Cards) -> Array:
    """Seconds: `tap_clocks` for each tap and register of outputs, `edge_clocks` for each of those at a border."""
    coef = cards.constants.processor
    border = np.clip((np.sqrt(s.taps) - 1) / s.edge, 0, 1)
    clocks = s.out * lanes(works["cout"], cards) * (coef["tap_clocks"] * s.taps + coef["edge_clocks"] * border)
    return np.asarray(clocks / (cards.sms * cards.hz))


def fewest_flops(works: Works, cards: Cards) -> Array:
    """The smallest share of its FLOPs that an algorithm can execute, [n, g]: 1 where no transform can do the work.

    On CUDA cores, with stride 1 and without groups, a transform may save FLOPs. For each output and input channel a
    Fourier transform of real numbers needs half a complex multiply-add, 4 FLOPs instead of 2 x taps. Winograd's
    F(4x4, 3x3) needs 36 products instead of 144 (Lavin and Gray, 2015), a larger share.
    """
    sums_in_fp32 = np.array([[w.dtype in SUMS_IN_FP32] for w in works.each]) & ~cards.tensor(works.pipes)
    open_to = sums_in_fp32 & (works["taps"] >= 9) & (works["stride"] == 1) & (works["groups"] == 1)
    return np.where(open_to, 2 / np.maximum(works["taps"], 1), 1.0)


def _formula(s: Conv) -> str:
    each = f"{s.cin} / {s.groups}" if s.groups > 1 else str(s.cin)
    sizes = f"2 x {s.images} x {s.out} x {s.cout} x {each} x {s.taps}"
    return f"2 images positions channels-out channels-in taps = {sizes}"


def _filters(w: Work) -> int:
    """Bytes of the filters, wherever they come from, and of a stored bias."""
    s = w.size
    filters = s.cin // s.groups * s.cout * s.taps * BITS[w.dtype] // 8 if isinstance(s, Conv) else 0
    return max(int(filters), w.weight_bytes)


def _error_class(w: Work, on_tensor: bool) -> str:
    return "tensor_convolution" if on_tensor else "convolution"


FUSED, PRODUCT = r"winograd_128x128\w*?tile(\d)(\d)(\d)", r"sgemm_(\d+)x(\d+)"
CONVOLUTION = ConstantSet(
    "convolution",
    parameters=(
        Parameter("convolution.alpha", "wave quantisation, softened", 0.8, 0.2, most=1.0),
        Parameter("convolution.half_warps", "warps at which half the latency is hidden", 1.0, 0.5),
        Parameter("convolution.prologue_s", "of a block", 2.0e-6, 0.7),
        Parameter("convolution.issue", "issue slots shared with loads, where an SM has 128 lanes", 0.1, 0.4),
        Parameter("convolution.kappa", "loss of small tiles", 0.05, 0.7),
        Parameter("convolution.implicit", "cycles for each the lanes need: implicit product", 1.15, 0.15),
        Parameter("convolution.fused", "the same: Winograd in one kernel", 1.2, 0.15),
        Parameter("convolution.product", "the same: products between transforms", 1.1, 0.15),
        Parameter("convolution.transform", "traffic of transforms, for that of plain copies", 1.2, 0.3),
        Parameter("convolution.energy", "of a FLOP, for that of a plain product's", 0.8, 0.2),
        Parameter("convolution.norm", "how terms join", 2.5, 0.4),
    ),
    tiles=(  # of fused Winograd's 32 tiles images x rows x columns, and those of the products between transforms
        Tiles("convolution.fused_tiles", "convolution", FUSED, 0.001, unnamed={"cc60": [[1, 4, 8]]}),
        Tiles("convolution.product_tiles", "convolution", PRODUCT, 0.05, unnamed={"cc60": [[128, 64]]}),
    ),
    after=(TENSOR_CORES,), sample=400, corrections=(0.25, 0.12, 0.10),
)  # fmt: skip
TENSOR_CONVOLUTION = ConstantSet(
    "tensor_convolution",
    parameters=(
        Parameter("tensor_convolution.gather", "share of a product's rate that gathering leaves", 0.8, 0.06, most=1.0),
        Parameter("tensor_convolution.extra_k", "what a tile costs beside its k, as so much more of it", 30, 0.4),
        Parameter("tensor_convolution.start_s", "before the product, whatever its size", 5.0e-6, 0.5),
    ),
    after=(TENSOR_CORES,), corrections=(0.25, 0.12, 0.10),
)  # fmt: skip
IN_MODELS = ConstantSet(
    "convolution_in_models",
    parameters=(
        Parameter("tensor_convolution.result", "share of the result turned round, channels not last", 0.1, 1.0),
        Parameter("tensor_convolution.grouped_result", "the same, with groups", 0.4, 1.0),
        Parameter("convolution.slots", "issue slots of a depthwise convolution's tap", 10, 0.5),
        Parameter("convolution.slots_last", "the same, channels last", 15, 0.5),
    ),
    after=(CONVOLUTION, TENSOR_CONVOLUTION), of_runs=True,
)  # fmt: skip
ENGINE = ConstantSet(
    "engine",
    parameters=(
        Parameter("tensor_convolution.engine.rate", "share of the datasheet's rate in a tile", 0.85, 0.05, most=1.0),
        Parameter("tensor_convolution.engine.extra_k", "what a tile costs beside its k, as more of it", 60, 0.3),
        Parameter("tensor_convolution.engine.start_cycles", "of a kernel, beside the launch floor", 3500, 0.1),
    ),
    after=(IN_MODELS,), of_runs=True, weight=30.0,
)  # fmt: skip
FAMILY = KernelFamily(
    size=Conv, card=conv, processor=processor_conv, error_class=_error_class, formula=_formula,
    layer=("cin", "cout", "taps", "groups", "direction"), fewest_flops=fewest_flops,
    constants=(CONVOLUTION, TENSOR_CONVOLUTION, IN_MODELS, ENGINE), batch="images", shared_bytes=_filters,
    larger=lambda w, times: larger_batches(w, times, "images", _filters(w), most=2),
)  # fmt: skip

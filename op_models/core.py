"""The nouns of the operators: tensors, operators, and their work.

`Work` is how many FLOPs an operator's algorithm executes, how many bytes it touches, and a size whose type says which
latency model reads it. Nothing here knows a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

#: Bits of one element. Sub-byte types are packed; strings and opaque types have no bytes that a GPU would move.
BITS: dict[str, int] = {
    "float64": 64, "float32": 32, "float16": 16, "bfloat16": 16,
    "float8e4m3fn": 8, "float8e4m3fnuz": 8, "float8e5m2": 8, "float8e5m2fnuz": 8, "float8e8m0": 8,
    "float4e2m1": 4, "float6e2m3": 6, "float6e3m2": 6,
    "int64": 64, "int32": 32, "int16": 16, "int8": 8, "int4": 4, "int2": 2,
    "uint64": 64, "uint32": 32, "uint16": 16, "uint8": 8, "uint4": 4, "uint2": 2, "bool": 8,
    "complex64": 64, "complex128": 128, "string": 0, "opaque": 0,
}  # fmt: skip

FLOATS = frozenset(t for t in BITS if t.startswith(("float", "bfloat")))

Scalar = int | float | bool


class OpModelError(ValueError):
    """A rule was registered twice, or does not fit the operator it was applied to."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named tensor of static shape. `kind` is input, weight, constant or activation.

    `value` holds the elements (row-major) of a small tensor that is known before the run, such as a target shape, axes
    or a scalar; else it is None.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str = "activation"
    value: tuple[Scalar, ...] | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes in memory; sub-byte types are packed."""
        return (prod(self.shape) * BITS[self.dtype] + 7) // 8

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def stored(self) -> bool:
        """True where the content is part of the model: a weight or a constant."""
        return self.kind in ("weight", "constant")


Maybe = Tensor | None  # an optional input; None where it is absent


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """One operator of the graph. `type` is "Conv" or, outside ai.onnx, "domain::Type".

    `inputs` has None for an optional input that is absent; `version` is the opset of its domain. `nodes` are the names
    of the ONNX nodes it stands for. `place` is gpu, host, copy (a copy between them that the runtime inserts) or free
    (a view, which costs nothing). `repeat` is how often it runs, which is more than once in the body of a loop.
    `present` are the inputs that are given, in order.
    """

    name: str
    type: str
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    version: int = 0
    nodes: tuple[str, ...] = ()
    place: str = "gpu"
    repeat: int = 1
    present: tuple[Tensor, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "present", tuple(filter(None, self.inputs)))

    @property
    def out(self) -> Tensor:
        """The first output."""
        return self.outputs[0]


# Sizes: the class of a size decides which latency model times the kernel; its fields are that model's columns.


class Gemm(NamedTuple):
    """C[batch, m, n] = A[batch, m, k] B[batch, k, n]; `ta`, `tb` say which operand is stored transposed.

    `padded`: a compiler pads sides that are no whole words of memory, where that is faster.
    """

    batch: int
    m: int
    n: int
    k: int
    ta: bool = False
    tb: bool = False
    padded: bool = False


class Conv(NamedTuple):
    """A convolution of `images` with `cin` input and `cout` output channels in `groups`.

    `out` is the number of output positions per image and channel, `taps` that of kernel elements, `stride` the product
    of the strides; `last` says that channels are the last axis of image and result, `planned` that all a kernel needs
    beside its operands was made before the run, `timed` that it is the fastest of many that a builder has timed,
    `turned` that a kernel of its own turns the result round where channels don't lie last, `native` that it runs on the
    framework's own depthwise kernels.
    """

    images: int
    cin: int
    cout: int
    out: int
    taps: int
    groups: int
    stride: int
    direction: str = "forward"
    last: bool = False
    planned: bool = False
    timed: bool = False
    turned: bool = False
    native: bool = False


IN_REGISTERS = 1024  # elements of a row that softmax keeps in the registers of one warp (PyTorch, ONNX Runtime)


class Rows(NamedTuple):
    """A reduction along rows of `width` elements: softmax, normalisation, reduce.

    `passes` is how often a row is swept beyond the first time. `block` is the number of threads per row where the
    runtime's own kernel has one thread per element, else 0. `run` is how many elements of a row lie next to each other,
    where kernels depend on that, else 0: 1 of a column, a plane's in a channel of images, whose rows are taken by
    PyTorch's and cuDNN's kernels for them; `block` is then how many elements of a column a block takes at a time.
    `apart`: the elements of a row lie apart, and cuDNN's reduction adds them up.
    """

    rows: int
    width: int
    passes: int = 0
    block: int = 0
    run: int = 0
    apart: bool = False


class Pointwise(NamedTuple):
    """Each output element by itself, without reuse of data.

    `spread` says that an operand is spread over axes that it lacks, so that the place of every element is computed;
    `steps` is how many a thread takes one after another, where it loops over what it reads for one element. `single`:
    threads load and store elements one by one, not several at once as a vector. `taps`: of a window that a thread goes
    through for one element. `scaled`: by a factor and a summand of the element's channel, and `plane`: elements of a
    channel of an image that one block takes, 0 where blocks take others. `switched`: of so many operands each load
    asks for the type that is stored before it converts. `sigmoid`: nearly all FLOPs are one's, an exponential and a
    division. `compiled`: a compiler wrote the kernel. `across`: bytes of operands whose axes lie in another order than
    the result's, of which a block reads `run` elements in a row.
    """

    elements: int
    spread: bool = False
    steps: int = 0
    single: bool = False
    taps: int = 0
    scaled: bool = False
    plane: int = 0
    switched: int = 0
    sigmoid: bool = False
    compiled: bool = False
    across: int = 0
    run: int = 1


class Move(NamedTuple):
    """Data movement: `run` is how many elements are contiguous on the side that is read or written in pieces.

    `threads` is how many threads move all of them, each one element after another, 0 where every element has a thread.
    `tile`: a block of threads turns squares of so many elements a side in shared memory, so that both sides are
    contiguous along it.
    """

    elements: int
    run: int
    threads: int = 0
    tile: int = 1


class Attention(NamedTuple):
    """softmax(Q K^T) V in one kernel: Q[batch, heads, queries, dim], K[batch, kv_heads, keys, dim].

    shared: V is the first dim_v elements of each key, and read with it. alone: a framework calls a library's kernel,
    without what an engine of language models runs around one: a plan, writing a cache. masked: by a tensor.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    dim_v: int
    causal: bool
    shared: bool = False
    alone: bool = False
    masked: bool = False


class Recurrent(NamedTuple):
    """Time steps of x[t] W + h[t-1] R with `gates` x `hidden` columns; `directions` run in parallel."""

    steps: int
    batch: int
    input: int
    hidden: int
    directions: int
    gates: int


class Transfer(NamedTuple):
    """A copy between host and device memory; `way` is "h2d" or "d2h"; `pinned` host memory needs no second copy."""

    bytes: int
    way: str
    pinned: bool = True


class Collective(NamedTuple):
    """An exchange of a message among `ranks` GPUs, each `stride` GPUs behind the one before.

    kind: all_reduce, all_gather, reduce_scatter, all_to_all or send; bytes: of the whole message, as nccl-tests count
    it: what an all-gather gives and what the others read on one GPU.
    """

    kind: str
    bytes: int
    ranks: int
    stride: int = 1


Size = Gemm | Conv | Rows | Pointwise | Move | Attention | Recurrent | Transfer | Collective


class Steps(NamedTuple):
    """What a processor does one after another for an operator, by kind, where vector units don't help.

    steps: loads, simple arithmetic and stores; sums: of which each waits for the one before; divisions: of whole
    numbers; functions: exp, log, sin; guesses: branches that data decide; lookups: in hash tables; allocations: of
    memory; strings: that are copied or compared; characters: of strings, each time they are read; jumps: to where the
    data read before say, within `reach` bytes. serial: on one core, however many there are. unknown: what only a run
    can tell, and what is assumed instead; "" where nothing is.
    """

    steps: int = 0
    sums: int = 0
    divisions: int = 0
    functions: int = 0
    guesses: int = 0
    lookups: int = 0
    allocations: int = 0
    strings: int = 0
    characters: int = 0
    jumps: int = 0
    reach: int = 0
    serial: bool = False
    unknown: str = ""


NO_STEPS = Steps()


@dataclass(frozen=True, slots=True)
class Work:
    """What one kernel has to do, whatever the card. Hashable: equal works are estimated once.

    `dtype` is the compute type, `pipe` the arithmetic unit ("tensor_fp16", ...; a vector unit, such as "fp32", where
    there is no matrix work). Bytes count each operand once; `weight_bytes` is the part of `bytes_read` that is stored
    in the model. FLOPs are those the algorithm executes; a fused multiplication and addition is 2. `steps`: of an
    operator that a processor computes; where there are any, they are its arithmetic but for products.
    """

    size: Size
    dtype: str
    pipe: str
    bytes_read: int
    bytes_written: int
    weight_bytes: int
    matrix_flops: int = 0
    vector_flops: int = 0
    steps: Steps = NO_STEPS

    @property
    def flops(self) -> int:
        """Matrix and vector FLOPs together."""
        return self.matrix_flops + self.vector_flops

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written


VECTOR_PIPES = {"float64": "fp64", "float16": "fp16", "bfloat16": "fp32"}
MATRIX_PIPES = {
    "float64": "fp64", "float32": "fp32", "float16": "tensor_fp16", "bfloat16": "tensor_bf16",
    "int8": "tensor_int8", "uint8": "tensor_int8", "int4": "tensor_int4", "uint4": "tensor_int4",
    "float8e4m3fn": "tensor_fp8", "float8e4m3fnuz": "tensor_fp8", "float8e5m2": "tensor_fp8",
    "float8e5m2fnuz": "tensor_fp8", "float4e2m1": "tensor_fp4",
}  # fmt: skip


def compute_dtype(op: Operator) -> str:
    """The dtype of the arithmetic: that of the first floating operand, else of the first output."""
    for t in (*op.present, *op.outputs):
        if t.dtype in FLOATS:
            return t.dtype
    return (op.outputs or op.present)[0].dtype if op.outputs or op.present else "opaque"


def work(
    op: Operator, size: Size, *, matrix: int = 0, vector: int = 0, dtype: str | None = None,
    read: Mapping[int, int] | None = None, written: Mapping[int, int] | None = None,
) -> Work:  # fmt: skip
    """The `Work` of an operator: a rule's size and FLOPs, and the bytes of the operator's own tensors.

    matrix, vector: FLOPs. Each distinct input is read once and each output is written once; `read` gives, by the
    position of an input that is read only in part (a gather, a slice), the number of elements read, and `written`
    those of an output that is an input's own buffer, changed in place (a cache). `dtype` overrides the compute type.
    Raises OpModelError for negative or absurd numbers, which attributes of a hostile file can cause.
    """
    if not isinstance(size, tuple):
        raise OpModelError(f"work of operator {op.name} ({op.type}) needs a size such as Pointwise(8), not {size!r}")
    if not all(0 <= n < 2**128 for n in (matrix, vector, *(f for f in size if not isinstance(f, str)))):
        raise OpModelError(f"operator {op.name} ({op.type}) can't have this work: {size}")
    touched: dict[str, int] = {}
    for i, t in enumerate(op.inputs):
        if t is not None:
            touched[t.name] = max(touched.get(t.name, 0), _part(t, (read or {}).get(i)))
    stored = {t.name for t in op.present if t.stored}
    vector += int(op.attrs.get("flops_before", 0))  # of elementwise operators that a runtime fuses into its inputs
    dtype = dtype or (op.present[0].dtype if matrix and op.present else compute_dtype(op))
    pipes = MATRIX_PIPES if matrix else VECTOR_PIPES
    return Work(
        size=size,
        dtype=dtype,
        pipe=pipes.get(dtype, "fp32"),
        bytes_read=sum(touched.values()),
        bytes_written=sum(_part(t, (written or {}).get(i)) for i, t in enumerate(op.outputs)),
        weight_bytes=sum(touched[name] for name in stored),
        matrix_flops=matrix,
        vector_flops=vector,
    )


def _part(t: Tensor, elements: int | None) -> int:
    """Bytes of so many elements of a tensor; of all for None."""
    return t.bytes if elements is None else (max(min(t.size, elements), 0) * BITS[t.dtype] + 7) // 8


#: The domain of ONNX Runtime's operators on images [N, H, W, C], which stand in for those of ai.onnx.
NHWC = "com.ms.internal.nhwc::"


def given(*tensors: Tensor | None) -> int:
    """How many of these optional inputs are present."""
    return sum(t is not None for t in tensors)

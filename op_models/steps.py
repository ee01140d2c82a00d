"""What ONNX Runtime's kernels for processors do one step after another: loops that no vector unit helps.

Counts follow the loops of those kernels (onnxruntime/core/providers/cpu); how long a step of each kind takes is the
processor's (`constants.processor.clocks`). Where an operator is listed, its steps are all its arithmetic beside
products of matrices; others are as fast as vector units make them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log, prod

from op_models.classic import rows_of
from op_models.core import FLOATS, NO_STEPS, Maybe, Operator, Steps, Tensor
from op_models.move import TAPS
from op_models.reduce import along
from op_models.rules import caller
from op_models.signal import number

CHARACTERS = 10  # of a string, whose length is known only in the run: assumed
PIECES = 5  # that a string is split into: assumed
BUTTERFLY = 3  # steps for each point and level of a transform: a product and a sum of complex numbers make two points
FORMATTED = 375  # of writing a number as text by printf
OF_STRINGS = f"strings of {CHARACTERS} characters are assumed"
#: Of each element of the first output.
OF_OUTPUT: dict[str, Steps] = {
    **dict.fromkeys(("Sin", "Cos", "Log", "Elu"), Steps(steps=4)),
    **dict.fromkeys(("Asin", "Atan", "Sign"), Steps(steps=2)),
    **dict.fromkeys(("Selu", "Celu"), Steps(steps=5)),
    "Acos": Steps(steps=1),
    "Tan": Steps(functions=2),  # as one of each half
    "Cosh": Steps(functions=1),
    **dict.fromkeys(("Sinh", "Acosh", "Atanh"), Steps(functions=3)),
    "Asinh": Steps(functions=5),
    "Softplus": Steps(functions=2),  # log1p and exp
    "ParametricSoftplus": Steps(functions=2),
    **dict.fromkeys(("Shrink", "PRelu", "ai.onnx.ml::Binarizer"), Steps(guesses=1)),
    "ai.onnx.ml::Scaler": Steps(divisions=1),  # the column of a place
    "ai.onnx.ml::Imputer": Steps(steps=1),
    "ai.onnx.ml::FeatureVectorizer": Steps(steps=2),
    "OneHot": Steps(divisions=1),
    "Range": Steps(sums=1),
    **dict.fromkeys(("HannWindow", "HammingWindow"), Steps(functions=2)),  # in double precision
    "BlackmanWindow": Steps(functions=4),
    "MelWeightMatrix": Steps(steps=1),
    **dict.fromkeys(("RandomUniform", "RandomUniformLike"), Steps(steps=8)),
    **dict.fromkeys(("RandomNormal", "RandomNormalLike"), Steps(steps=8, functions=1)),
    "LRN": Steps(functions=4),  # a power
    "com.microsoft::MurmurHash3": Steps(steps=8),
}
#: Of each element of the first input.
OF_INPUT: dict[str, Steps] = {
    **dict.fromkeys(
        ("ReduceL2", "ReduceProd", "ArgMax", "ArgMin", "MeanVarianceNormalization", "LpNormalization"), Steps(sums=1)
    ),
    "ReduceLogSumExp": Steps(steps=9),
    "NonZero": Steps(guesses=1),
    "GlobalLpPool": Steps(functions=4),  # a power
}
#: Kernels that use one core, however many there are.
SERIAL = frozenset({
    "Tan", "Cosh", "Sinh", "Acosh", "Atanh", "Asinh", "Asin", "Acos", "Atan", "Shrink", "Range", "NonZero",
    "HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix", "RandomUniform", "RandomUniformLike",
    "RandomNormal", "RandomNormalLike", "ai.onnx.ml::Imputer", "ai.onnx.ml::FeatureVectorizer",
})  # fmt: skip
_RULES: dict[str, Callable[[Operator], Steps]] = {}


def times(n: int, each: Steps, serial: bool = False) -> Steps:
    """The steps of n elements."""
    return Steps._make(n * x if isinstance(x, int) else x for x in each)._replace(serial=serial)


def steps(*types: str) -> Callable[[Callable[..., Steps]], Callable[..., Steps]]:
    """Register what the kernels of these types do: a function as a rule of `op_models.op` is, that returns `Steps`."""

    def register(rule: Callable[..., Steps]) -> Callable[..., Steps]:
        call = caller(rule, 1)
        for name in types:
            _RULES[name] = lambda op: call(op.inputs, op.attrs, op)
        return rule

    return register


def steps_of(op: Operator) -> Steps:
    """The steps of an operator on a processor under ONNX Runtime; none where vector units do all its work.

    An operator that only moves strings copies each. Forms that an operator can't have have no steps.
    """
    try:
        counted = _steps_of(op)
    except Exception:  # as in `work_or_bytes`: an impossible form costs its bytes, and a note says so
        return NO_STEPS
    return counted if all(0 <= n < MOST for n in counted if not isinstance(n, str)) else NO_STEPS


MOST = 2**100  # of a kind: attributes of a hostile file can be anything


def _steps_of(op: Operator) -> Steps:
    if op.type in _RULES:
        return _RULES[op.type](op)
    if op.type in OF_OUTPUT:
        return times(op.out.size, OF_OUTPUT[op.type], op.type in SERIAL)
    if op.type in OF_INPUT and op.present:
        return times(op.present[0].size, OF_INPUT[op.type], op.type in SERIAL)
    copies = sum(t.size for t in op.outputs if t.dtype == "string")
    return Steps(strings=copies, serial=True) if copies else NO_STEPS


def on_strings(op: Operator) -> bool:
    """Whether an operator reads text."""
    return any(t.dtype == "string" for t in op.present)


@steps("ai.onnx.ml::TreeEnsemble", "ai.onnx.ml::TreeEnsembleClassifier", "ai.onnx.ml::TreeEnsembleRegressor")
def trees(
    op: Operator, x: Tensor, *, nodes_treeids: Sequence[int] = (), tree_roots: Sequence[int] = (),
    nodes_featureids: Sequence[int] = (),
) -> Steps:  # fmt: skip
    """Per row and tree a branch and a jump for each level of a balanced tree; 8 steps for each score."""
    count = max(len(tree_roots) or len(set(nodes_treeids)), 1)
    nodes = len(nodes_featureids) // count  # of the newer operator all of them are inner nodes
    depth = max((nodes if tree_roots else nodes // 2).bit_length(), 1)
    levels = rows_of(x) * count * depth
    scores = 8 * op.outputs[-1].size
    return Steps(steps=scores, guesses=levels, jumps=levels, reach=NODE * nodes)


NODE = 24  # bytes of a node of a tree


@steps("ai.onnx.ml::SVMClassifier", "ai.onnx.ml::SVMRegressor")
def support_vectors(
    op: Operator, x: Tensor, *, support_vectors: Sequence[float] = (), coefficients: Sequence[float] = (),
    kernel_type: str = "LINEAR", vectors_per_class: Sequence[int] = (),
) -> Steps:  # fmt: skip
    """A distance of each row and vector is a loop and an exponential; other kernels are products.
    Then each coefficient is multiplied and added twice, for the two classes of its pair."""
    rows = rows_of(x)
    if not support_vectors:
        return Steps(steps=8 * op.outputs[-1].size)
    vectors = len(support_vectors) // max(x.size // max(rows, 1), 1)
    pairs, sums = rows * vectors, rows * len(coefficients) * (2 if vectors_per_class else 1)
    if kernel_type == "RBF":
        return Steps(steps=rows * len(support_vectors), sums=sums, functions=pairs)
    return Steps(sums=sums, functions=2 * pairs * (kernel_type == "SIGMOID"))


@steps("ai.onnx.ml::LinearClassifier")
def linear_classes(op: Operator, x: Tensor) -> Steps:
    """An allocation for each row; 8 steps for each score after its product."""
    return Steps(steps=8 * op.outputs[-1].size, allocations=rows_of(x))


@steps("ai.onnx.ml::Normalizer")
def normalizer(op: Operator, x: Tensor, *, norm: str = "MAX") -> Steps:
    """The root of a share keeps its sign by a branch; other norms add up and divide."""
    return Steps(guesses=x.size, sums=x.size) if norm == "L2" else Steps(steps=x.size)


@steps("ai.onnx.ml::OneHotEncoder", "ai.onnx.ml::LabelEncoder", "ai.onnx.ml::CategoryMapper")
def lookup(op: Operator, x: Tensor) -> Steps:
    """Each element is looked up in a hash table; strings are hashed, and copied where they are the result. The standard
    library's table, which all but LabelEncoder have, takes five times as long for strings."""
    texts = x.size * (on_strings(op) + (op.out.dtype == "string"))
    standard = on_strings(op) and not op.type.endswith("LabelEncoder")
    return Steps(lookups=x.size * (5 if standard else 1), strings=texts, serial=True)


@steps("ai.onnx.ml::DictVectorizer", "ai.onnx.ml::CastMap")
def from_map(op: Operator) -> Steps:
    """A look-up for each column."""
    return Steps(lookups=op.out.size, serial=True)


@steps("ai.onnx.ml::ZipMap")
def zip_map(op: Operator, x: Tensor) -> Steps:
    """A tree of its own for each row, whose nodes are allocated."""
    return Steps(allocations=x.size + rows_of(x), guesses=x.size, serial=True)


@steps("StringNormalizer")
def normalise_strings(op: Operator, x: Tensor, *, case_change_action: str = "NONE") -> Steps:
    """Where the case changes a string is widened, changed and narrowed again; stop words are looked up."""
    if case_change_action == "NONE":
        return Steps(strings=2 * x.size, lookups=x.size, serial=True)
    passes = 4 * CHARACTERS * x.size
    return Steps(strings=x.size, characters=passes, serial=True, unknown=OF_STRINGS)


@steps("RegexFullMatch")
def match(op: Operator, x: Tensor) -> Steps:
    """An automaton goes over the characters of each string."""
    return Steps(allocations=2 * x.size, characters=CHARACTERS * x.size, serial=True, unknown=OF_STRINGS)


@steps("StringConcat")
def concat_strings(op: Operator) -> Steps:
    """Each result is a new string, longer than those that need no memory of their own."""
    return Steps(allocations=op.out.size, serial=True)


@steps("StringSplit", "com.microsoft::Tokenizer")
def split_strings(op: Operator, x: Tensor) -> Steps:
    """Each piece is searched for and copied."""
    pieces = op.out.shape[-1] if op.out.rank > x.rank else PIECES
    each = pieces * x.size
    unknown = f"{pieces} pieces of {CHARACTERS} characters are assumed for each string"
    return Steps(strings=each, characters=CHARACTERS * each, serial=True, unknown=unknown)


@steps("TfIdfVectorizer")
def tf_idf(op: Operator, x: Tensor, *, max_gram_length: int = 1) -> Steps:
    """Each n-gram is searched for in nested hash tables."""
    grams = x.size * max_gram_length
    return Steps(lookups=3 * grams, guesses=grams)


@steps("com.microsoft::MurmurHash3")
def murmur(op: Operator, x: Tensor) -> Steps:
    """A word takes eight steps, a string is read once."""
    return Steps(strings=x.size, serial=True) if on_strings(op) else Steps(steps=8 * x.size)


@steps("Cast")
def cast(op: Operator, x: Tensor) -> Steps:
    """Text is read as a number, or a number is written as text; vector units do the rest."""
    if on_strings(op):
        return Steps(allocations=2 * x.size, characters=CHARACTERS * x.size, serial=True)
    return Steps(steps=FORMATTED * x.size, serial=True) if op.out.dtype == "string" else NO_STEPS


@steps("Gather", "GatherElements")
def gather(op: Operator, x: Tensor) -> Steps:
    """Strings are found and copied one by one."""
    return Steps(strings=2 * op.out.size, serial=True) if on_strings(op) else NO_STEPS


@steps("com.microsoft::CDist")
def distances(op: Operator) -> Steps:
    """Both sums of squares are added to each product."""
    return Steps(steps=2 * op.out.size)


@steps("Equal")
def equal(op: Operator) -> Steps:
    """Strings are compared one by one."""
    return Steps(strings=2 * op.out.size) if on_strings(op) else NO_STEPS


def points(n: int) -> int:
    """Points times levels of a fast transform; where n is no power of two, of Bluestein's three of a longer one."""
    if n & (n - 1) == 0:
        return n * max(n.bit_length() - 1, 0)
    padded = 1 << (2 * n - 2).bit_length()
    return 3 * padded * (padded.bit_length() - 1)


@steps("DFT")
def dft(op: Operator, x: Tensor, length: Maybe = None, along: Maybe = None, *, axis: int = 1) -> Steps:
    """A butterfly for each point and level; roots of unity are computed once."""
    chosen = number(along) if along is not None else -2 if op.version >= 20 else axis
    at = -2 if chosen is None else chosen
    n = number(length) or max(x.shape[at], op.out.shape[at])
    count = x.size // max(x.shape[at] * x.shape[-1], 1)
    return Steps(steps=BUTTERFLY * count * points(n), functions=n, serial=True)


@steps("STFT")
def stft(op: Operator, x: Tensor, step: Tensor, window: Maybe = None, length: Maybe = None) -> Steps:
    """As `dft` for each frame, which computes the roots of unity again."""
    n = number(length) or (window.shape[0] if window is not None else 2 * (op.out.shape[2] - 1))
    frames = prod(op.out.shape[:2])
    return Steps(steps=BUTTERFLY * frames * points(n), functions=frames * n, serial=True)


@steps("LpPool")
def lp_pool(op: Operator, x: Tensor, *, kernel_shape: Sequence[int]) -> Steps:
    """A power for each element of a window."""
    return Steps(functions=4 * op.out.size * prod(kernel_shape))


@steps("MaxRoiPool")
def max_roi_pool(op: Operator, x: Tensor) -> Steps:
    """A comparison, with its place, for each element of a region."""
    looked_at = op.out.shape[0] * prod(x.shape[1:]) // 2
    return Steps(steps=5 * looked_at, unknown="regions of half the image are assumed")


@steps("RoiAlign")
def roi_align(op: Operator, x: Tensor, rois: Tensor, *, sampling_ratio: int = 0) -> Steps:
    """Four products for each point of a bin."""
    return Steps(steps=6 * op.out.size * (sampling_ratio or 2) ** 2)


@steps("GridSample", "com.microsoft::GridSample")
def grid_sample(op: Operator, x: Tensor, grid: Tensor, *, mode: str = "linear") -> Steps:
    """Each tap is looked for inside the image; those of cubics with their factors."""
    taps = TAPS.get(mode.removeprefix("bi"), 2) ** max(x.rank - 2, 0)
    return Steps(steps=op.out.size * (5 * taps if "cubic" in mode else taps + 1))


@steps("Resize", "Upsample")
def resize(op: Operator, x: Tensor, *, mode: str = "nearest") -> Steps:
    """Places come from tables; a cubic looks its factors up for each of 16 taps."""
    if mode == "cubic":
        return Steps(steps=64 * op.out.size, lookups=32 * op.out.size)
    return Steps(steps=op.out.size * (3 if mode == "linear" else 1))


@steps("MaxUnpool")
def unpool(op: Operator, x: Tensor) -> Steps:
    """A store for each maximum, after zeros."""
    return Steps(steps=x.size)


@steps("NonMaxSuppression")
def suppress(op: Operator, boxes: Tensor, scores: Tensor, most: Maybe = None) -> Steps:
    """Boxes of a class are sorted, then compared with those that are kept, until enough are."""
    n = scores.shape[-1]
    kept = min(number(most) or n, n // 2)
    each = kept * kept + n * max(n, 1).bit_length() // 2
    unknown = "half of the boxes are assumed to overlap others"
    return Steps(guesses=prod(scores.shape[:2]) * each, serial=True, unknown=unknown)


@steps("Unique", "com.microsoft::Unique")
def unique(op: Operator, x: Tensor, *, axis: int | None = None) -> Steps:
    """Each element is copied, and goes down a balanced tree of all before it, whose nodes are allocated."""
    n = x.size if axis is None else x.shape[axis]
    levels = n * max(n, 1).bit_length()
    reach = n * ENTRY
    unknown = "all values are assumed to be distinct"
    return Steps(
        steps=16 * x.size,
        guesses=levels,
        jumps=2 * levels,
        allocations=3 * n,
        reach=reach,
        serial=True,
        unknown=unknown,
    )


ENTRY = 400  # bytes of an element in that tree: a node, two vectors and what they hold


@steps("TopK")
def top_k(op: Operator, x: Tensor, *, axis: int = -1) -> Steps:
    """All elements are compared with the least that is kept; one that replaces it goes down a heap."""
    rows, n = along(x.shape, axis)
    _, k = along(op.out.shape, axis)
    replaced = int(k * (1 + log(max(n / max(k, 1), 1))))
    return Steps(steps=x.size, guesses=rows * replaced * max(k, 1).bit_length())


@steps("Det", "com.microsoft::Inverse")
def square(op: Operator, x: Tensor) -> Steps:
    """A small matrix is walked row by row, in buffers of its own; long rows are vectorised."""
    n = x.shape[-1]
    many = x.size // max(n * n, 1)
    twice = 2 if op.type.endswith("Inverse") else 1
    each = twice * (6 * n * n + n**3 // 30)
    return Steps(steps=many * each, allocations=4 * many, serial=True)


@steps("Multinomial")
def multinomial(op: Operator, x: Tensor, *, sample_size: int = 1) -> Steps:
    """The sum of exponentials along each row, then a random number and a binary search for each sample."""
    rows, width = x.shape
    samples = rows * sample_size
    return Steps(steps=8 * samples, functions=x.size, guesses=samples * width.bit_length(), serial=True)


@steps("CumSum", "CumProd")
def cumulate(op: Operator, x: Tensor, axis: Maybe = None) -> Steps:
    """Along the last axis each element is a slice of its own; along others whole slices are added."""
    at = number(axis)
    last = at is None or prod(x.shape[at % max(x.rank, 1) + 1 :]) == 1
    return Steps(steps=7 * x.size, serial=True) if last else NO_STEPS


@steps("GatherND", "com.microsoft::GatherND")
def gather_nd(op: Operator, x: Tensor, indices: Tensor) -> Steps:
    """The place of each slice is computed and checked."""
    slices = indices.size // max(indices.shape[-1] if indices.rank else 1, 1)
    return Steps(steps=6 * slices, divisions=3 * slices)


@steps("Scatter", "ScatterElements")
def scatter(op: Operator, x: Tensor, indices: Tensor) -> Steps:
    """The place of each update is counted up axis by axis."""
    return Steps(steps=6 * indices.size)


@steps("Mod", "Div")
def divide(op: Operator) -> Steps:
    """Whole numbers are divided one by one; the rest of floats is a call."""
    if op.out.dtype not in FLOATS:
        return Steps(divisions=op.out.size)
    return Steps(functions=op.out.size) if op.type == "Mod" else NO_STEPS


@steps("Pow")
def power(op: Operator, x: Tensor, y: Tensor) -> Steps:
    """An exponential and a logarithm in vectors, but for stored exponents of 2 and 3."""
    return NO_STEPS if set(y.value or ()) in ({2}, {3}) else Steps(steps=10 * op.out.size)

"""What operators say of their axes, held to what they compute: slices are put in another order, and added up."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from op_models import Axes, Operator, OpModelError, Tensor, Work, axes_of, op, rules, work
from op_models.axes import BATCH
from op_models.core import Pointwise
from op_models.rules import _AXES

Array = np.ndarray[Any, Any]
Arrays = list[Array | None]
MOST = 3  # cases of an operator and a rank
LARGEST = 4096  # elements of an input, as the reference evaluator is slow
RANDOM = ("Dropout",)
#: Outputs that hold places in the whole tensor; statistics of all values stay as they are.
PLACES = {"MaxPool": 1}


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """As the graph has them."""
    found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return {k: v.decode() if isinstance(v, bytes) else tuple(v) if isinstance(v, list) else v for k, v in found.items()}


def operator(model: ModelProto, inputs: Arrays, outputs: Arrays) -> Operator:
    """The operator of a model with one node, with the values of small inputs."""
    (node,) = model.graph.node

    def tensor(name: str, x: Array | None, known: bool) -> Tensor | None:
        if x is None:
            return None
        value = tuple(x.ravel().tolist()) if known and x.size < 20 and x.dtype.kind in "iu" else None
        return Tensor(name, "float32", x.shape, value=value)

    kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    ins = tuple(tensor(f"i{k}", x, True) for k, x in enumerate(inputs))
    outs = tuple(tensor(f"o{k}", x, False) or Tensor("", "opaque", ()) for k, x in enumerate(outputs))
    return Operator("n", kind, ins, outs, attributes(node), model.opset_import[0].version)


class Case:
    """A model with one node, and what it computes of its inputs by position."""

    def __init__(self, model: ModelProto, inputs: Arrays, session: Any = None):
        self.model, self.inputs = model, inputs
        self.session = session or ReferenceEvaluator(model)
        self.outputs = self.run(inputs)
        self.op = operator(model, inputs, self.outputs)
        self.axes: Axes | None = axes_of(self.op)

    def run(self, inputs: Arrays) -> Arrays:
        """The outputs by position; None for those that nothing reads."""
        (node,) = self.model.graph.node
        fed = {name: x for name, x in zip(node.input, inputs, strict=False) if name and x is not None}
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            made = iter(self.session.run(None, fed))
        return [np.asarray(next(made)) if name else None for name in node.output]

    def factors(self, letter: str) -> Iterator[tuple[bool, int, int, tuple[int, int, int]]]:
        """Where tensors have a letter: whether an input does, which, its axis, and sizes outside, of, and inside it."""
        axes = self.axes
        assert axes is not None
        for is_input, named, arrays in ((True, axes.inputs, self.inputs), (False, axes.outputs, self.outputs)):
            for k, (names, x) in enumerate(zip(named, arrays, strict=False)):
                at = next((a for a, axis in enumerate(names or ()) if letter in axis), None)
                if names is not None and at is not None and x is not None:
                    axis, size = names[at], x.shape[at]
                    sizes = [axes.sizes.get(n, 0) for n in axis] if len(axis) > 1 else [size]
                    open_at = sizes.index(0) if 0 in sizes else len(sizes) - 1  # what the others leave of the axis
                    sizes[open_at] = size // int(np.prod([n for factor, n in enumerate(sizes) if factor != open_at]))
                    place = axis.index(letter)
                    outer, inner = int(np.prod(sizes[:place])), int(np.prod(sizes[place + 1 :]))
                    yield is_input, k, at, (outer, sizes[place], inner)

    def taken(self, arrays: Arrays, letter: str, which: Array, inputs: bool) -> Arrays:
        """Arrays with other slices along a letter."""
        made = list(arrays)
        for is_input, k, at, (outer, size, inner) in self.factors(letter):
            x = made[k] if is_input == inputs else None
            if x is not None and size == len(which):
                parts = x.reshape(*x.shape[:at], outer, size, inner, *x.shape[at + 1 :])
                made[k] = parts.take(which, at + 1).reshape(x.shape)
        return made


def check(case: Case) -> Counter[str]:
    """Put slices of each independent letter in another order; add up what is made of parts of a summed one."""
    axes, done = case.axes, Counter[str]()
    assert axes is not None
    for letter in dict.fromkeys(x for names in axes.inputs for axis in names or () for x in axis if x != "."):
        sizes = {size[1] for *_, size in case.factors(letter)} - {1}
        if axes.summed(letter):
            added(case, letter)
            done["summed"] += 1
        elif len(sizes) == 1 and letter not in (axes.pieces or ()) and not positional(case, letter):
            order = np.roll(np.arange(sizes.pop()), 1)
            found, expected = (
                case.run(case.taken(case.inputs, letter, order, True)),
                case.taken(case.outputs, letter, order, False),
            )
            same(case, f"slices of {letter}", found, expected)
            done["independent"] += 1
        elif not sizes and (letter == BATCH or (case.op.type == "Resize" and letter == "0" and len(case.inputs) < 4)):
            alone(case, letter)
            done["independent"] += 1
    return done


def alone(case: Case, letter: str) -> None:
    """A second slice beside the only one changes nothing of it, and is what it is without it."""
    places = [f[1:3] for f in case.factors(letter) if f[0]]

    def beside(first: Arrays, second: Arrays, at: list[tuple[int, int]]) -> Arrays:
        made = list(first)
        for k, axis in at:
            made[k] = np.concatenate([x for x in (first[k], second[k]) if x is not None], axis)
        return made

    turned = [np.flip(x, -1).copy() if x is not None and x.ndim else x for x in case.inputs]
    others = [turned[k] if k in dict(places) else x for k, x in enumerate(case.inputs)]
    of_outputs = [f[1:3] for f in case.factors(letter) if not f[0]]
    found = case.run(beside(case.inputs, others, places))
    same(case, f"a second slice of {letter}", found, beside(case.outputs, case.run(others), of_outputs))


def positional(case: Case, letter: str) -> bool:
    """Whether slices are computed by themselves, but by the place where they stand."""
    causal = case.op.attrs.get("is_causal") or case.op.attrs.get("unidirectional") or "GroupQuery" in case.op.type
    return (letter == "q" and bool(causal)) or (letter == "s" and "Rotary" in case.op.type)


def added(case: Case, letter: str) -> None:
    """An operator is linear in the last of its inputs that has the letter: of zeros, nothing of the rest remains."""
    *_, (_, k, at, (outer, size, inner)) = (f for f in case.factors(letter) if f[0])
    x = case.inputs[k]
    assert x is not None
    keep = (np.arange(outer * size * inner) // inner % size < size // 2).reshape(
        [-1 if a == at else 1 for a in range(x.ndim)]
    )
    parts = [case.run([*case.inputs[:k], np.where(mask, x, 0).astype(x.dtype), *case.inputs[k + 1 :]])
             for mask in (keep, ~keep, np.zeros_like(keep))]  # fmt: skip
    first, second, none = (np.asarray(outputs[0]).astype(float) for outputs in parts)
    same(case, f"summands of {letter}", [first + second - none], case.outputs[:1])


def same(case: Case, what: str, found: Arrays, expected: Arrays) -> None:
    for k, (x, y) in enumerate(zip(found, expected, strict=True)):
        if x is not None and y is not None and PLACES.get(case.op.type) != k:
            exact = x.dtype.kind in "biuOSU" and y.dtype.kind in "biuOSU"
            near = (
                (x == y).all() if exact else np.allclose(x.astype(float), y.astype(float), 1e-3, 1e-5, equal_nan=True)
            )
            assert near, (case.op.type, what, case.op.attrs, [i if i is None else i.shape for i in case.inputs], k)


def node_cases() -> Iterator[Case]:
    """ONNX's own cases of the operators that say where their axes go, some of each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    count = Counter[tuple[str, int]]()
    for case in cases:
        if (model := case.model) is None or not case.data_sets:
            continue
        nodes = model.graph.node
        if len(nodes) != 1 or nodes[0].domain or nodes[0].op_type not in _AXES or nodes[0].op_type in RANDOM:
            continue
        arrays = [numpy_helper.to_array(x) if isinstance(x, TensorProto) else x for x in case.data_sets[0][0]]
        if not all(isinstance(x, (np.ndarray, np.generic)) and np.size(x) <= LARGEST for x in arrays):
            continue
        fed = dict(zip((i.name for i in model.graph.input), map(np.asarray, arrays), strict=True))
        kind = nodes[0].op_type, np.ndim(arrays[0])
        if count[kind] < MOST:
            count[kind] += 1
            yield Case(model, [fed.get(name) for name in nodes[0].input])


#: Operators of ONNX Runtime: attributes, and inputs as shapes of random numbers or as they are.
CONTRIB: dict[str, tuple[str, list[Any]]] = {
    "BiasGelu": ("", [(2, 3, 4), (4,)]),
    "FastGelu": ("", [(2, 3, 4), (4,)]),
    "Gelu": ("", [(2, 3)]),
    "QuickGelu": ("", [(2, 3)]),
    "SkipLayerNormalization": ("", [(2, 3, 4), (2, 3, 4), (4,), (4,)]),
    "SkipSimplifiedLayerNormalization": ("", [(2, 3, 4), (3, 4), (4,)]),
    "MultiHeadAttention": ("<num_heads = 2>", [(2, 3, 8), (2, 5, 8), (2, 5, 8), None, None, (1, 2, 3, 5)]),
    "GroupQueryAttention": (
        "<num_heads = 4, kv_num_heads = 2>",
        [(2, 3, 32), (2, 3, 16), (2, 3, 16), None, None, np.full(2, 2, np.int32), np.array(3, np.int32)],
    ),
    "RotaryEmbedding": ("<num_heads = 2>", [(2, 3, 8), np.arange(6).reshape(2, 3), (6, 2), (6, 2)]),
    "Attention": ("<num_heads = 2>", [(2, 3, 6), (6, 24), (24,)]),
    "MatMulNBits": (
        "<K = 32, N = 4, bits = 4, block_size = 16>",
        [(2, 3, 32), np.arange(64, dtype=np.uint8).reshape(4, 2, 8), (8,)],
    ),
    "LinearAttention": (
        '<q_num_heads = 2, kv_num_heads = 4, update_rule = "gated">',
        [(2, 3, 8), (2, 3, 8), (2, 3, 12), (2, 4, 4, 3), (2, 3, 4)],
    ),
    "CausalConvWithState": ("<channels_last = 1>", [(2, 3, 4), (4, 1, 3), (4,), (2, 2, 4)]),
    "GatedRMSNorm": ("", [(2, 3, 8), (4,), (2, 3, 8)]),
    "MoE": ("<k = 2>", [(3, 4), (3, 4), (4, 6, 4), None, (4, 4, 6)]),
}  # fmt: skip


WITH_STATE = {"LinearAttention", "CausalConvWithState"}


def contrib_case(type: str) -> Case:
    """An operator of ONNX Runtime on these numbers."""
    attrs, given = CONTRIB[type]
    rng = np.random.default_rng(len(type))
    inputs = [rng.normal(size=x).astype(np.float32) if isinstance(x, tuple) else x for x in given]
    names = ["" if x is None else f"x{k}" for k, x in enumerate(inputs)]
    head = '<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>'
    outputs = ["y", "state"] if type in WITH_STATE else ["y"]
    given_back = ", ".join(f"float[] {name}" for name in outputs)
    text = (
        f"{head} g () => ({given_back}) {{ {', '.join(outputs)} = com.microsoft.{type} {attrs} ({', '.join(names)}) }}"
    )
    model = onnx.parser.parse_model(text)
    types = ((n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in zip(names, inputs, strict=True) if n)
    model.graph.input.extend(helper.make_tensor_value_info(*each) for each in types)
    for info in model.graph.output:
        info.type.tensor_type.ClearField("shape")
    return Case(model, inputs, ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]))


@pytest.mark.parametrize("type", CONTRIB)
def test_slices_of_operators_of_onnx_runtime(type: str) -> None:
    assert check(contrib_case(type)).total() >= 1


@pytest.mark.slow
def test_slices_are_computed_by_themselves_and_sums_add_up() -> None:
    """Of the operators that the reference evaluator computes."""
    done, types = Counter[str](), set[str]()
    for case in node_cases():
        if case.axes is not None:
            added_up = check(case)
            done += added_up
            types |= {case.op.type} if added_up else set()
    without_case = {"GlobalLpPool", "Mish", "SimplifiedLayerNormalization", "Upsample", *RANDOM}
    assert {t for t in _AXES if "::" not in t} - types == without_case | {"Shape", "Size"}
    assert done["independent"] > 700 and done["summed"] > 20


def test_an_operator_of_ones_own_says_where_its_axes_go(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in ("_RULES", "_AXES", "_CACHES"):
        monkeypatch.setattr(rules, table, dict(getattr(rules, table)))

    @op("test.axes::Scaled", axes="N c ..., c k -> N c ..., | scales along {}")
    def scaled(op: Operator, x: Tensor, w: Tensor) -> Work:
        return work(op, Pointwise(x.size))

    x, w, y = Tensor("x", "float32", (2, 3, 4)), Tensor("w", "float32", (3, 5)), Tensor("y", "float32", (2, 3, 4))
    axes = axes_of(Operator("n", "test.axes::Scaled", (x, w), (y, y)))
    assert axes is not None and axes.does == "scales along {}"
    assert axes.inputs == ((("N",), ("c",), ()), (("c",), ("k",)))
    assert axes.left("c") == [1, None] and axes.summed("k") and not axes.summed("N")
    assert list(axes.holding("c")) == [(0, 1), (1, 0)]
    with pytest.raises(OpModelError, match="does not fit 1 axes"):
        axes_of(Operator("n", "test.axes::Scaled", (x, replace(w, shape=(3,))), (y,)))
    assert axes_of(Operator("n", "test.axes::Unknown", (x,), (y,))) is None

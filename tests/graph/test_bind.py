"""Open dimensions, --shapes, --dim and --batch."""

from __future__ import annotations

import re
from ast import literal_eval
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.parser import parse_model

from onnxperf import UsageError
from onnxperf.graph import Graph, load

HEAD = '<ir_version: 9, opset_import: ["" : 18, "nowhere" : 1]>'
OPEN = f"{HEAD} g (float[batch, seq, 8] x, float[batch, 4] m) => (float[batch, seq, 8] y) {{ y = Relu(x) z = Relu(m) }}"
STATIC = f"{HEAD} g (float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y) {{ t = Relu(x) y = Abs(t) }}"


def run(text: str, **given: Any) -> Graph:
    return load(parse_model(text), **given)


def shape(graph: Graph, name: str) -> tuple[int, ...]:
    return next(t.shape for t in (*graph.inputs, *(o.out for o in graph.operators)) if t.name == name)


def codes(graph: Graph) -> list[str]:
    return [n.code for n in graph.notes]


def test_an_open_batch_is_taken_as_one_and_said() -> None:
    g = run(OPEN, dims={"seq": 5})
    assert shape(g, "x") == (1, 5, 8)
    assert g.batch == 1
    assert codes(g) == ["assumed-batch"]
    assert "'batch'" in g.notes[0].message and "--batch" in g.notes[0].message


def test_batch_binds_the_symbol_wherever_it_stands() -> None:
    g = run(OPEN, dims={"seq": 5}, batch=6)
    assert shape(g, "x") == (6, 5, 8)
    assert shape(g, "m") == (6, 4)
    assert g.batch == 6
    assert codes(g) == []


def test_dim_binds_the_leading_symbol_too() -> None:
    g = run(OPEN, dims={"seq": 5, "batch": 4})
    assert (g.batch, codes(g)) == (4, [])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, r"dimension 'seq'.*--dim seq="),
        ({"dims": {"sek": 5}}, r"no dimension 'sek'.*did you mean 'seq'"),
        ({"dims": {"seq": 5, "batch": 2}, "batch": 3}, "--batch 3 contradicts 2"),
        ({"dims": {"seq": 5}, "shapes": {"x": (2, 6, 8)}}, "'seq' is given as 5 and, in --shapes x, as 6"),
        ({"dims": {"seq": -5}}, "dimension 'seq' can't be -5"),
        ({"dims": {"seq": 1.5}}, "dimension 'seq' must be a whole number"),
        ({"dims": {"seq": 5}, "batch": 0}, "--batch must be at least 1"),
        ({"dims": {"seq": 5}, "batch": "two"}, "--batch must be a whole number"),
        ({"shapes": {"x": (2, 5)}}, "2 dimensions, but the file declares 3"),
        ({"shapes": {"x": (2, "seq", 8)}}, "a size of 'x' must be a whole number"),
        ({"shapes": {"x": (2, -1, 8)}}, "a size of 'x' can't be -1"),
        ({"dims": {"seq": 5}, "shapes": {"xx": (2, 5)}}, "'xx'.*its inputs are 'x', 'm'"),
        ({"shapes": {"x": (2, 5, 8), "m": (2, 4)}, "batch": 3}, "--batch 3 contradicts --shapes x:2x5x8"),
    ],
)
def test_a_request_that_can_not_be_met(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run(OPEN, **given)


def test_shapes_bind_the_symbols_they_meet() -> None:
    g = run(OPEN, shapes={"x": (2, 5, 8)})
    assert shape(g, "m") == (2, 4)
    assert codes(g) == []


def test_numpy_sizes_are_sizes() -> None:
    g = run(OPEN, shapes={"x": np.array([2, 5, 8])}, batch=np.int64(2))
    assert shape(g, "x") == (2, 5, 8)
    assert run(OPEN, dims={"seq": np.int32(5)}).inputs[0].shape == (1, 5, 8)


@pytest.mark.parametrize("examples", [[np.zeros((3, 5, 8)), np.zeros((3, 4))], {"x": [[[0.0] * 8] * 5] * 3}])
def test_example_inputs_give_their_shapes(examples: Any) -> None:
    g = run(OPEN, examples=examples)
    assert [t.shape for t in g.inputs] == [(3, 5, 8), (3, 4)]


def test_too_many_examples() -> None:
    with pytest.raises(UsageError, match="3 example inputs given, but the model has 2 inputs"):
        run(OPEN, examples=[np.zeros(1)] * 3)


def test_zero_is_a_size_and_an_unset_dimension_is_not_zero() -> None:
    g = run(OPEN, dims={"seq": 0})
    assert shape(g, "y") == (1, 0, 8)
    model = parse_model(STATIC)
    model.graph.input[0].type.tensor_type.shape.dim[2].Clear()
    with pytest.raises(UsageError, match=r"dynamic axis 2 without a name: give --shapes x:1x3x128x8"):
        load(model)
    model = parse_model(STATIC)
    model.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    assert codes(load(model)) == ["assumed-batch"]


def test_all_open_dimensions_are_named_at_once_with_sizes_that_work() -> None:
    inputs = "float[batch, seq] x, float[batch, heads, past, 64] k, float[past, seq] p, float[4, 5, 6] u"
    model = parse_model(f"{HEAD} g ({inputs}) => (float[batch, seq] y) {{ y = Relu(x) }}")
    for d in model.graph.input[3].type.tensor_type.shape.dim[1:]:
        d.Clear()
    said = "'seq' ('x', axis 1), 'heads' ('k', axis 1), 'past' ('k', axis 2), axis 1 of 'u', axis 2 of 'u'; give "
    flags = "--dim seq=128 --dim heads=128 --dim past=128 --shapes u:4x128x128, say"
    with pytest.raises(UsageError, match=re.escape(f"the inputs have dynamic dimensions: {said}{flags}")):
        load(model)
    with pytest.raises(UsageError, match=r"'past'.*; give --dim seq=128 --dim past=128 --shapes u:4x128x128, say"):
        load(model, dims={"heads": 12})
    given: dict[str, Any] = {"dims": {"seq": 128, "heads": 128, "past": 128}, "shapes": {"u": (4, 128, 128)}}
    assert load(model, **given).batch == 1


def test_hundreds_of_open_dimensions_make_no_long_message() -> None:
    inputs = ", ".join(f"float[1, d{i}] x{i}" for i in range(500))
    with pytest.raises(UsageError, match=r"and 484 more; give --dim d0=128 .* --dim d15=128 \.\.\., say") as error:
        run(f"{HEAD} g ({inputs}) => (float[1, d0] y) {{ y = Relu(x0) }}")
    assert len(str(error.value)) < 1000


def test_an_inner_dimension_that_leads_an_input_is_offered_as_one() -> None:
    text = f"{HEAD} g (float[n, 4] x, float[4, m, n] y) => (float[n, 4] z) {{ z = Relu(x) }}"
    with pytest.raises(UsageError, match=r"give --batch 1 --dim m=128, say"):
        run(text)


def test_a_negative_dimension_is_an_old_way_of_saying_open() -> None:
    model = parse_model(STATIC)
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[0].dim_value = -1
    assert load(model, batch=7).batch == 7


def test_a_second_leading_symbol_is_set_aloud() -> None:
    text = (
        f"{HEAD} g (float[n, 4] x, float[boxes, 4] b) => (float[n, 4] y, float[boxes, 4] c) {{ y = Abs(x) c = Abs(b) }}"
    )
    g = run(text, batch=3)
    assert [t.shape for t in g.inputs] == [(3, 4), (3, 4)]
    assert "'boxes'" in g.notes[0].message and "--dim boxes=N" in g.notes[0].message
    assert codes(run(text, batch=3, dims={"boxes": 9})) == []


def test_an_input_without_a_shape_is_asked_for() -> None:
    model = parse_model(STATIC)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UsageError, match=r"input 'x' has no shape.*--shapes x:"):
        load(model)


def test_batch_rewrites_a_static_model() -> None:
    model = parse_model(STATIC)
    model.graph.value_info.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, [1, 3, 8, 8]))
    before = model.SerializeToString()
    assert [t.shape for o in load(model, batch=5).operators for t in o.outputs] == [(5, 3, 8, 8)] * 2
    assert [t.shape for o in load(model, shapes={"x": (2, 3, 9, 9)}).operators for t in o.outputs] == [(2, 3, 9, 9)] * 2
    assert load(model, batch=1).batch == 1
    assert model.SerializeToString() == before


def reshape(*target: int) -> ModelProto:
    return parse_model(
        f"{HEAD} g (float[1, 6, 4] x) => (float[] y) {{"
        f" s = Constant<value = int64[{len(target)}] {{{', '.join(map(str, target))}}}>() y = Reshape(x, s) }}"
    )


@pytest.mark.parametrize("target", [(6, 4), (24,), (2, 12)])
def test_a_literal_reshape_without_a_batch_forbids_another_one(target: tuple[int, ...]) -> None:
    assert load(reshape(*target)).batch == 1
    with pytest.raises(UsageError, match=r"--batch 3 can't be used, the model is made for batch 1: output 'y'"):
        load(reshape(*target), batch=3)


@pytest.mark.parametrize(
    ("target", "out"),
    [
        ((-1, 24), (3, 24)),
        ((0, 24), (3, 24)),
        ((-1, 4), (18, 4)),
        ((1, 24), (3, 24)),
        ((1, 6, 4), (3, 6, 4)),
        ((1, -1), (3, 24)),
    ],
)
def test_a_reshape_with_an_axis_for_it_takes_any_batch(target: tuple[int, ...], out: tuple[int, ...]) -> None:
    assert load(reshape(*target), batch=3).operators[-1].out.shape == out


def test_batch_names_the_node_where_inference_fails() -> None:
    text = f"{HEAD} g (float[2, 4] x) => (float[2, 6] y) <float[2, 2] w = {{1,2,3,4}}> {{ y = Concat<axis=1>(x, w) }}"
    with pytest.raises(UsageError, match=r"--batch 3 can't be used.*'Concat_0'"):
        run(text, batch=3)
    with pytest.raises(UsageError, match=r"--shapes x:3x4 can't be used, the model is made for 2x4.*'Concat_0'"):
        run(text, shapes={"x": (3, 4)})


def test_weights_that_are_also_inputs_are_not_bound() -> None:
    text = (
        f"{HEAD} g (float[2, 2] x, float[2, 2] w) => (float[2, 2] y) <float[2, 2] w = {{1,2,3,4}}> {{ y = Add(x, w) }}"
    )
    g = run(text)
    assert [t.name for t in g.inputs] == ["x"]
    assert g.operators[0].inputs[1].kind == "weight"


def test_an_inner_tensor_can_be_given_where_it_can_not_be_inferred() -> None:
    text = (
        f"{HEAD} g (float[2, 6] x) => (float[n] y) {{ i = NonZero(x) t = Transpose(i) f = GatherND(x, t) y = Abs(f) }}"
    )
    g = run(text, shapes={"i": (2, 5)})
    assert shape(g, "y") == (5,)
    assert codes(g) == []
    assert codes(run(text)) == ["assumed-shape"]
    assert "--shapes i:" in run(text).notes[0].message
    assert shape(run(text, dims={"n": 3}), "y") == (3,)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [({"y": (3, 3)}, "gives 'y' the shape 3x3, but node 'Abs_1' makes it 1x3x8x8"), ({"tt": (1,)}, "did you mean 't'")],
)
def test_an_inner_shape_must_be_right(shapes: dict[str, tuple[int, ...]], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run(STATIC, shapes=shapes)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"shapes": {"x": None}}, "the shape of 'x' must be a row of whole numbers, not None"),
        ({"shapes": {"x": (True, 3, 8, 8)}}, "a size of 'x' must be a whole number, not True"),
        ({"shapes": {"x": (0, 3, 8, 8)}}, "--shapes x:0x3x8x8 can't be used: .*Reshape"),
        ({"dims": {"n": None}}, "dimension 'n' must be a whole number, not None"),
        ({"dims": {"n": False}}, "dimension 'n' must be a whole number, not False"),
        ({"dims": {"n": 0}}, "--dim n=0 can't be used: .*Reshape"),
        ({"dims": {"n": 2**45}}, "--dim n=35184372088832 can't be used: .*overflows"),
        ({"examples": "hello"}, "example inputs need a shape, but 'x' is given a str"),
        ({"examples": [1.5]}, "example inputs need a shape, but 'x' is given a float"),
    ],
)
def test_what_is_no_size(given: dict[str, Any], said: str) -> None:
    text = f"{HEAD} g (float[n, 3, 8, 8] x) => (float[m, 192] y) <int64[2] s = {{1, 192}}> {{ y = Reshape(x, s) }}"
    with pytest.raises(UsageError, match=said):
        run(text, **given)


@pytest.mark.parametrize("size", [2**50, 2**62])
def test_a_size_that_no_machine_holds(size: int) -> None:
    with pytest.raises(UsageError, match=r"--dim seq=.* can't be used: .*'x' can't have the shape.*overflows"):
        run(OPEN, dims={"seq": size})


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m", "n" * 4000])
def test_messages_are_one_printable_line(name: str) -> None:
    model = parse_model(STATIC)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = name
    with pytest.raises(UsageError) as e:
        load(model)
    assert str(e.value).isprintable()


def test_a_scalar_input_has_no_batch() -> None:
    text = f"{HEAD} g (float x) => (float y) {{ y = Abs(x) }}"
    assert run(text).batch == 1
    with pytest.raises(UsageError, match="no input has a dimension"):
        run(text, batch=2)


def test_a_leading_symbol_that_also_stands_elsewhere_is_asked_for() -> None:
    text = f"{HEAD} g (float[n, 4] x, float[2, n] z) => (float[2, 4] y) {{ y = MatMul(z, x) }}"
    with pytest.raises(UsageError, match=r"'n'.*: give --batch 1, say"):
        run(text)
    assert run(text, dims={"n": 7}).batch == run(text, batch=7).batch == 7


def test_what_the_file_says_of_an_inner_tensor_follows_a_new_batch() -> None:
    text = f"{HEAD} g (float[2, 4] x) => (float[2, 5] y) {{ y = nowhere.Gizmo(x) }}"
    assert shape(run(text, batch=3), "y") == (3, 5)


def test_dim_gives_an_input_that_is_a_whole_number() -> None:
    text = f"{HEAD} g (float[4, 8] x, int64 n, float f) => (y) {{ z = Range(c0, n, c1) y = Relu(x) q = Neg(f) }}"
    text = text.replace("=> (y)", "=> (float[4, 8] y, int64[many] z) <int64 c0 = {0}, int64 c1 = {1}>")
    assert shape(run(text, dims={"n": 7}), "z") == (7,)
    with pytest.raises(UsageError, match="the model has no dimension 'f': its dynamic dimensions are 'n'"):
        run(text, dims={"f": 7})


STALE = """<ir_version: 10, opset_import: ["" : 21, "my" : 1]> g (float[1, 64, 56, 56] x) => (float[1, 64, 56, 56] y)
    <float[1, 64, 56, 56] g, float[1, 64, 56, 56] r>
    { g = NODE r = Relu(g) y = Conv<pads = [1, 1, 1, 1]>(r, w) }"""


@pytest.mark.parametrize(
    "node", ["GroupNormalization<num_groups = 8>(x, s, b)", "MeanVarianceNormalization(x)", "my.Own(x)"]
)
@pytest.mark.parametrize("shape", [(32, 64, 56, 56), (1, 64, 28, 28), (4, 64, 112, 56)])
def test_shapes_behind_a_changed_input_are_not_the_files_own(node: str, shape: tuple[int, ...]) -> None:
    """onnx can't infer these nodes' outputs: what the file says of them held for its own sizes alone."""
    model = parse_model(STALE.replace("NODE", node))
    stored = {"s": [64], "b": [64], "w": [64, 64, 3, 3]}
    model.graph.initializer.extend(TensorProto(name=n, data_type=1, dims=d) for n, d in stored.items())
    graph = load(model, shapes={"x": shape})
    assert {t.shape for o in graph.operators for t in o.outputs} == {shape}
    noted = [n.nodes for n in graph.notes if n.code == "assumed-shape"]
    unknown = node.startswith("my.") and shape[1:] != (64, 56, 56)
    assert noted == [(graph.operators[0].name,)] * unknown, "what is assumed is said; a new batch is scaled"
    if shape[0] == 32:
        whole = load(model, batch=32)
        shapes, wanted = ([t.shape for o in g.operators for t in (*o.present, *o.outputs)] for g in (graph, whole))
        assert shapes == wanted


@pytest.mark.parametrize(
    ("x", "state", "gives"),
    [
        ("[12, 'n', 8]", "[1, 'n', 4]", "give --dim n=6"),
        ("['s', 'n', 8]", "[1, 'n', 4]", "give --dim n=6"),
        ("[12, 'n', 8]", "[1, 1, 4]", "give --dim n=6 --shapes h:1x6x4"),
    ],
)
@pytest.mark.parametrize("order", ["xh", "hx"])
def test_a_batch_that_is_no_leading_dimension_is_not_put_there(order: str, x: str, state: str, gives: str) -> None:
    """Recurrent operators have the sequence first: its length is no batch, nor is the number of directions."""
    shapes = {"x": literal_eval(x), "h": literal_eval(state)}
    inputs = [helper.make_tensor_value_info(name, 1, shapes[name]) for name in order]
    weights = [TensorProto(name=n, data_type=1, dims=[1, 12, k]) for n, k in (("w", 8), ("r", 4))]
    node = helper.make_node("GRU", ["x", "w", "r", "", "", "h"], ["y"], hidden_size=4)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, None)], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with pytest.raises(UsageError, match="is its second dimension") as e:
        load(model, batch=6)
    assert sorted(str(e.value).rpartition("; ")[2].removesuffix(", say").split()) == sorted(gives.split())
    found = load(model, shapes={"x": (12, 6, 8), "h": (1, 6, 4)})
    assert found.operators[0].out.shape == (12, 1, 6, 4)


def decoder(mask: str, ids: str) -> bytes:
    """A decoder's inputs: one token or more, a cache of `past` tokens, and a mask over all of them."""
    text = f"""<ir_version: 9, opset_import: ["" : 20]>
      g (int64[batch,{ids}] input_ids, int64[batch,MASK] attention_mask, float[batch,8,past,64] past_key)
        => (float[batch,8,P,64] y, int64[batch,M] z) {{
        y = Identity(past_key)
        z = Add(attention_mask, attention_mask) }}"""
    model = parse_model(text)
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = mask
    return model.SerializeToString()


@pytest.mark.parametrize(("mask", "ids", "size"), [("past + sequence", "sequence", 66), ("past + 1", "1", 65)])
def test_a_dimension_that_is_named_as_a_sum_follows_from_its_parts(mask: str, ids: str, size: int) -> None:
    dims = {"past": 64, "sequence": 2} if ids == "sequence" else {"past": 64}
    found = load(decoder(mask, ids), dims=dims).inputs
    assert [t.shape[1] for t in found if t.name == "attention_mask"] == [size]
    with pytest.raises(UsageError, match=r"dynamic dimensions?:? (?!.*past [+])"):
        load(decoder(mask, ids))


@pytest.mark.parametrize(
    ("mask", "ids", "proposed"),
    [
        ("total", "1", "--dim past=128 --dim total=129"),
        ("total", "sequence", "--dim sequence=128 --dim past=128 --dim total=256"),
        ("mask_length", "1", "--dim past=128 --dim mask_length=129"),
    ],
)
def test_sizes_that_are_proposed_for_a_decoder_fit_together(mask: str, ids: str, proposed: str) -> None:
    with pytest.raises(UsageError, match=f"give {proposed}, say"):
        load(decoder(mask, ids))


@pytest.mark.parametrize(("opset", "axes"), [(11, "Unsqueeze<axes=[0]>(s)"), (18, "Unsqueeze(s, zero)")])
def test_the_channels_of_an_image_are_no_batch(opset: int, axes: str) -> None:
    """torchvision's detectors take images [3, H, W], and make a batch of them themselves."""
    text = f"""<ir_version: 9, opset_import: ["" : {opset}]>
      g (float[3,H,W] image) => (float[N,8,P,Q] y) <int64[1] zero = {{0}}, float[3,1,1] mean = {{0.5, 0.5, 0.5}}> {{
        s = Sub(image, mean)
        u = {axes}
        y = Identity(u) }}"""
    model = parse_model(text).SerializeToString()
    for batch in (None, 1):
        graph = load(model, dims={"H": 32, "W": 48}, batch=batch)
        assert (graph.batch, graph.inputs[0].shape) == (1, (3, 32, 48))
    with pytest.raises(UsageError, match="no input has a dimension for it"):
        load(model, dims={"H": 32, "W": 48}, batch=2)


def test_a_batch_of_three_sequences_stays_a_batch() -> None:
    text = """<ir_version: 9, opset_import: ["" : 11]>
      g (float[3,16,8] x) => (float[3,1,16,8] y) { u = Unsqueeze<axes=[1]>(x) y = Relu(u) }"""
    assert load(parse_model(text).SerializeToString()).batch == 3

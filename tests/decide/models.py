"""Small models that the tests of decisions share, with weights that are nowhere."""

from collections.abc import Mapping, Sequence

from onnx import ModelProto, TensorProto, parser


def model_of(text: str, weights: Mapping[str, Sequence[int]]) -> ModelProto:
    """A model in text, with weights of these shapes whose file does not exist."""
    model = parser.parse_model('<ir_version: 9, opset_import: ["" : 17]>' + text)
    for name, shape in weights.items():
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="nowhere.bin")
        model.graph.initializer.append(tensor)
    return model


def net(batch: int | str = "batch") -> ModelProto:
    """A convolution and a classifier, with the batch open or fixed."""
    return model_of(
        f"net (float[{batch},3,32,32] x) => (float[{batch},1000] y) "
        "{ a = Conv<pads=[1,1,1,1]>(x, w) r = Relu(a) p = GlobalAveragePool(r) f = Flatten(p)"
        " y = Gemm<transB=1>(f, v, b) }",
        {"w": (64, 3, 3, 3), "v": (1000, 64), "b": (1000,)},
    )


def odd() -> ModelProto:
    """Two products of sizes that are no multiples of 8."""
    text = "odd (float[4,333] x) => (float[4,77] y) { a = MatMul(x, w) r = Relu(a) y = MatMul(r, v) }"
    return model_of(text, {"w": (333, 333), "v": (333, 77)})

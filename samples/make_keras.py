"""Make the sample models of Keras: what tf2onnx writes of keras.applications, without the weights.

    pip install . tensorflow-cpu==2.21.0 keras==3.15.1 tf2onnx==1.17.0 onnx==1.23.2
    python samples/make_keras.py [NAME ...] [-o samples]

A script of its own beside make.py, for an environment of its own. Nothing is downloaded. Every parameter is filled
with a number of its own, none of them 0 or 1: the exporter leaves out biases of zeros, and merges equal tensors.
VGG-16 goes through onnxperf.export: with its 138 million weights the exporter alone would take 24 GB.
"""

import argparse
import itertools
import os
import re
from collections import Counter
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras
import numpy as np
import onnx
import tensorflow as tf
import tf2onnx

import onnxperf.export

WEIGHTS = "weights-not-included.bin"
INSIDE_BYTES = 1024  # as in make.py
PRODUCTS = {"Conv2D", "DepthwiseConv2dNative", "MatMul"}

#: Class in keras.applications, what it is, and the side of its image.
SAMPLES = {
    "keras-resnet50": ("ResNet50", "ResNet-50 v1, 1000 classes", 224),
    "keras-mobilenetv2": ("MobileNetV2", "MobileNetV2 1.0, 1000 classes", 224),
    "keras-efficientnetb0": ("EfficientNetB0", "EfficientNet-B0, 1000 classes", 224),
    "keras-densenet121": ("DenseNet121", "DenseNet-121, 1000 classes", 224),
    "keras-inceptionv3": ("InceptionV3", "Inception v3, 1000 classes", 299),
    "keras-vgg16": ("VGG16", "VGG-16, 1000 classes", 224),
}
WEIGHTLESS = {"keras-vgg16"}


def build(name: str) -> keras.Model:
    """The model, each parameter one number repeated."""
    keras.backend.clear_session()
    _, _, side = SAMPLES[name]
    own = {"input_tensor": keras.Input((side, side, 3), name="image")} if name in WEIGHTLESS else {}
    model = getattr(keras.applications, SAMPLES[name][0])(weights=None, **own)
    for i, parameter in enumerate(model.weights):
        parameter.assign(np.full(parameter.shape, (1024 + i) / 65536, np.float32))
    return model


def matrix_flops(model: keras.Model, image: tf.TensorSpec) -> int:
    """Multiply-adds times two in convolutions and matrix products, as TensorFlow's profiler counts them."""
    graph = tf.function(model).get_concrete_function(image).graph
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    options["output"] = "none"
    with graph.as_default():
        found = tf.compat.v1.profiler.profile(graph, run_meta=None, cmd="op", options=options)
    return sum(child.float_ops for child in flatten(found) if child.name in PRODUCTS)


def flatten(node: object) -> list:
    """A node of the profiler's answer and all below it."""
    return [node, *(n for child in node.children for n in flatten(child))]


def renamed(model: onnx.ModelProto) -> None:
    """Names without the exporter's counter, which counts on from model to model; of constants that it has merged, which
    bear the name of any of them, the plain name "constant"; no name for sizes that the exporter does not know.
    """
    reads = Counter(name for node in model.graph.node for name in node.input)
    merged = {tensor.name for tensor in model.graph.initializer if reads[tensor.name] > 1}
    new: dict[str, str] = {"": ""}

    def plain(name: str) -> str:
        base, colon, output = name.partition(":")
        if base not in new:
            stem = "constant" if name in merged else re.sub(r"__\d+", "", base)
            others = (f"{stem}_{i}" for i in itertools.count(2))
            new[base] = next(n for n in itertools.chain([stem], others) if n not in new.values())
        return new[base] + colon + output

    for node in model.graph.node:
        node.name = plain(node.name)
        node.input[:] = map(plain, node.input)
        node.output[:] = map(plain, node.output)
    for tensor in model.graph.initializer:
        tensor.name = plain(tensor.name)
    for value in (*model.graph.output, *model.graph.value_info):
        for d in value.type.tensor_type.shape.dim:
            if d.dim_param.startswith("unk__"):
                d.ClearField("dim_param")
    model.graph.initializer.sort(key=lambda tensor: tensor.name)


def strip(model: onnx.ModelProto) -> None:
    """Weights point outside."""
    offset = 0
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.nbytes > INSIDE_BYTES and np.issubdtype(array.dtype, np.floating):
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", WEIGHTS), ("offset", offset), ("length", array.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            offset += array.nbytes


def row(name: str, parameters: int, flops: int) -> str:
    """A line of the table in README.md."""
    code, what, side = SAMPLES[name]
    batch, amounts = "batch 1" if name in WEIGHTLESS else "1", f"{parameters / 1e6:.1f} M | {flops / 2e9:.4g}"
    image = f"`image` {batch} x {side} x {side} x 3"
    return f"| `{name}.onnx` | {what} | `keras.applications.{code}` | Apache-2.0 | {amounts} | {image} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SAMPLES)} (default: all)")
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent, metavar="FOLDER")
    parser.add_argument("--with-weights", action="store_true", help="leave the weights in, to compare (but VGG-16's)")
    args = parser.parse_args()
    if unknown := set(args.names) - set(SAMPLES):
        parser.error(f"no such sample: {', '.join(sorted(unknown))}")
    for name in args.names or SAMPLES:
        model, side = build(name), SAMPLES[name][2]
        image = tf.TensorSpec((1, side, side, 3), tf.float32, name="image")
        if name in WEIGHTLESS:
            exported, _ = onnxperf.export.source(model, open_batch=True)
        else:
            exported, _ = tf2onnx.convert.from_keras(model, input_signature=[image], opset=18)
        renamed(exported)
        if not args.with_weights and name not in WEIGHTLESS:
            strip(exported)
        (args.output / f"{name}.onnx").write_bytes(exported.SerializeToString(deterministic=True))
        print(row(name, model.count_params(), matrix_flops(model, image)), flush=True)


if __name__ == "__main__":
    main()

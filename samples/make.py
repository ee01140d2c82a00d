"""Make the sample models: ONNX files of well-known architectures, without their weights.

    pip install -e . torch==2.13.0 transformers==5.23.0 onnxscript==0.7.2 onnxruntime
    python samples/make.py [NAME ...] [-o samples] [--check]

Nothing is downloaded: a model is built from its published configuration. A parameter is one number seen
through strides of zero, so a large model exports in little memory. In the file every weight over 1 KB is said
to be in weights-not-included.bin, which doesn't exist: predicting a latency needs shapes, not weights.

Keras's are made by make_keras.py, which this calls where TensorFlow is installed.
"""

import argparse
import json
import logging
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
from onnxperf.samples.zoo import SAMPLES
from onnxperf.samples.zoo.export import export, matrix_flops
from onnxperf.samples.zoo.sample import Axis, Sample

HERE = Path(__file__).parent
KERAS = HERE / "make_keras.py"
ROW = re.compile(r"^\| `([^`]+)\.onnx` \|.*\n", re.MULTILINE)  # of the table in README.md


def outside(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """The tensors that point outside."""
    return [tensor for tensor in model.graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]


def check(path: Path, sample: Sample) -> None:
    """The file is valid, its shapes are inferred, and with random weights ONNX Runtime runs it."""
    import onnxruntime as ort

    model = onnx.load(path, load_external_data=False)
    options, random = ort.SessionOptions(), np.random.default_rng(0)
    dtypes = {tensor.name: onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type) for tensor in outside(model)}
    weights = [
        ort.OrtValue.ortvalue_from_numpy(
            (0.02 * random.standard_normal(tuple(tensor.dims), np.float32)).astype(dtypes[tensor.name])
        )
        for tensor in outside(model)
    ]
    options.add_external_initializers(list(dtypes), weights)
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    kinds = {
        value.name: onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        for value in model.graph.input
    }
    for more in (0, 1):  # every open dimension one larger: it is really open
        results = session.run(None, {n: np.ones(shape, kinds[n]) for n, shape in sample.shapes(more).items()})
        assert all(np.isfinite(result).all() for result in results), path

    for tensor in outside(model):  # the checker would look for the weights: let them be inputs
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        model.graph.initializer.remove(tensor)
    onnx.checker.check_model(model, full_check=True)
    onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def row(name: str, sample: Sample, parameters: int, flops: int) -> str:
    """A line of the table in README.md."""
    groups: dict[tuple[Axis, ...], list[str]] = {}
    for key, axes in sample.inputs.items():
        groups.setdefault(axes, []).append(f"`{key}`")
    several = {axes: f"{k[0]} to {k[-1]}" if len(k) > 4 else ", ".join(k) for axes, k in groups.items()}
    inputs = "; ".join(f"{keys} {' x '.join(map(shown, axes))}" for axes, keys in several.items())
    amounts = f"{parameters / 1e6:.1f} M | {flops / 2e9:.4g}"
    return f"| `{name}.onnx` | {sample.what} | {sample.code} | {sample.licence} | {amounts} | {inputs} |\n"


def shown(axis: Axis) -> str:
    return str(axis) if isinstance(axis, int) else f"{axis[0]} {axis[1]}"


def tabulate(readme: Path, made: dict[str, str]) -> None:
    """Set the rows of what was made into the table; a row that is new comes after those that are there."""
    text = readme.read_text(encoding="utf-8")
    rows = {m[1]: m[0] for m in ROW.finditer(text)} | made
    order = [*SAMPLES, *(name for name in rows if name not in SAMPLES)]
    table = "".join(rows[name] for name in order if name in rows)
    first, *_, last = ROW.finditer(text)
    readme.write_text(text[: first.start()] + table + text[last.end() :], encoding="utf-8")


def make(names: list[str], output: Path, checked: bool) -> dict[str, str]:
    """Write PyTorch's samples and their counts; the rows of the table by name."""
    counts, rows = output / "flops.json", dict[str, str]()
    counted = json.loads(counts.read_text()) if counts.exists() else {}
    for name in names:
        sample = SAMPLES[name]
        model, parameters = export(sample)
        path = output / f"{name}.onnx"
        path.write_bytes(model.SerializeToString(deterministic=True))
        counted[name] = {"dims": sample.dims, "matrix_flops": matrix_flops(sample)}
        rows[name] = row(name, sample, parameters, counted[name]["matrix_flops"])
        print(rows[name], end="", flush=True)
        if checked:
            check(path, sample)
    lines = [f'  "{name}": {json.dumps(counted[name])}' for name in SAMPLES if name in counted]
    counts.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return rows


def make_keras(names: list[str], output: Path) -> dict[str, str]:
    """The same of Keras's samples, in a process of their own."""
    if missing := [m for m in ("tensorflow", "tf2onnx") if find_spec(m) is None]:
        print(f"Keras's samples are left as they are: {' and '.join(missing)} not installed", file=sys.stderr)
        return {}
    command = [sys.executable, str(KERAS), *names, "-o", str(output)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    print(said, end="")
    return {m[1]: m[0] for m in ROW.finditer(said)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    known = f"of {', '.join(SAMPLES)}, and those of make_keras.py, keras-... (default: all)"
    parser.add_argument("names", nargs="*", metavar="NAME", help=known)
    parser.add_argument("-o", "--output", type=Path, default=HERE, metavar="FOLDER")
    parser.add_argument("--check", action="store_true", help="run PyTorch's with random weights in ONNX Runtime")
    args = parser.parse_args()
    keras = [name for name in args.names if name.startswith("keras-")]
    torch = [name for name in args.names if name not in keras]
    if unknown := set(torch) - set(SAMPLES):
        parser.error(f"no such sample: {', '.join(sorted(unknown))}")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)

    args.output.mkdir(parents=True, exist_ok=True)
    every = not args.names
    rows = make([*SAMPLES] if every else torch, args.output, args.check)
    if every or keras:
        rows |= make_keras(keras, args.output)
    if (readme := args.output / "README.md").exists():
        tabulate(readme, rows)


if __name__ == "__main__":
    main()

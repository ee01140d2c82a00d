"""A shipped transformer with fewer of its layers: most of what is asked of one holds of any number of them."""

from __future__ import annotations

from pathlib import Path

import onnx

SAMPLES = Path(__file__).parents[1] / "samples"
NORMS = 2  # of a layer; one more stands behind the last


def shallow(name: str, layers: int) -> onnx.ModelProto:
    """The sample as if its last norm stood behind this many layers."""
    model = onnx.load(SAMPLES / f"{name}.onnx", load_external_data=False)
    norms = [node for node in model.graph.node if node.op_type == "LayerNormalization"]
    norms[-1].input[0] = norms[NORMS * layers].input[0]
    wanted, kept = {value.name for value in model.graph.output}, list[onnx.NodeProto]()
    for node in reversed(model.graph.node):
        if wanted.intersection(node.output):
            wanted.update(node.input)
            kept.append(node)
    weights = [weight for weight in model.graph.initializer if weight.name in wanted]
    del model.graph.node[:], model.graph.initializer[:], model.graph.value_info[:]
    model.graph.node.extend(reversed(kept))
    model.graph.initializer.extend(weights)
    return model

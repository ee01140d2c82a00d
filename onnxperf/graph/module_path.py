"""The module that a node was exported from, such as layer1.0.conv1, written as by PyTorch's named_modules.

PyTorch's exporter keeps the modules around a node in its metadata; TorchScript's writes them into the node's name, as
/layer1/layer1.0/conv1/Conv, and so does tf2onnx with the layers of Keras, as model/conv1/BiasAdd.
"""

from __future__ import annotations

import re

from onnx import NodeProto

SCOPES = "pkg.torch.onnx.name_scopes"  # "['', 'layer1', 'layer1.0', 'relu']": all modules around a node, and itself


def module_of(node: NodeProto) -> str:
    """The path of the innermost module that a node belongs to; "" where that is the model, or is not said."""
    for entry in node.metadata_props:
        if entry.key == SCOPES and (scopes := re.findall("'([^']*)'", entry.value)[:-1]):
            return str(scopes[-1])
    path: list[str] = []
    for name in [part for part in node.name.split("/") if part][:-1]:
        if path and name.startswith(f"{path[-1]}."):  # TorchScript repeats a Sequential's name in its children's
            path.pop()
        path.append(name)
    return ".".join(path)

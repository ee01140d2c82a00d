"""Make the graphs of the training steps that NeuSight measured, without their weights.

    pip install -e . torch transformers
    python samples/make_training.py [DIR]

Writes DIR/NAME.training.onnx.gz with an open batch and length: modules in train mode, so that dropout is in the graph.
The definitions are those of transformers at that time: BERT with both heads of its pretraining, GPT-2 with its head.
"""

import argparse
import gzip
from collections.abc import Callable
from pathlib import Path

from onnxperf.samples.zoo import before
from onnxperf.samples.zoo.export import export
from onnxperf.samples.zoo.sample import Sample
from torch import nn

HERE = Path(__file__).resolve().parents[1] / "onnxperf/lab/datasets/sample/fp32_torch"
TOKENS = (("batch", 2), ("sequence", 32))
BERT = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}


def sample(what: str, build: Callable[[], nn.Module], *inputs: str) -> Sample:
    """A language model in train mode."""
    outputs = ("prediction_logits", "seq_relationship_logits")[: len(inputs) - 1]
    return Sample(what, "", build, dict.fromkeys(inputs, TOKENS), outputs, "training")


TRAINED = {
    "bert-large": sample(
        "BERT-Large with the heads of its pretraining",
        lambda: before.encoder("BertForPreTraining", "BertConfig", **BERT),
        "input_ids", "attention_mask", "token_type_ids",
    ),
    "gpt2-large": sample(
        "GPT-2 large", lambda: before.gpt2(1280, 20, 36, 1024), "input_ids", "attention_mask"
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=HERE, metavar="DIR")
    folder = parser.parse_args().folder
    for name, trained in TRAINED.items():
        model, parameters = export(trained)
        path = folder / f"{name}.training.onnx.gz"
        path.write_bytes(gzip.compress(model.SerializeToString(deterministic=True), 9, mtime=0))
        print(f"{path.name}: {trained.what}, {parameters / 1e6:.0f} M parameters, {len(model.graph.node)} nodes")


if __name__ == "__main__":
    main()

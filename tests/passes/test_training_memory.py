"""Memory of training steps against PyTorch's own count: the peak that its MemTracker sees of a step on fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

import onnxperf

pytestmark = pytest.mark.slow

#: By how much a prediction may be off PyTorch's count.
BOUND = 0.05
BATCH, LENGTH = 8, 64
SIZES = {"hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 1024}


@dataclass(frozen=True)
class Case:
    """A module and what it reads."""

    module: Callable[[], Any]
    inputs: Callable[[], Any]


def ids(**more: Any) -> Any:
    import torch

    names = ("input_ids", *more)
    return {name: torch.zeros(BATCH, LENGTH, dtype=torch.int64) for name in names}


def image(size: int) -> Any:
    import torch

    return torch.zeros(BATCH, 3, size, size)


def bert(**sizes: Any) -> Any:
    import transformers as hf

    return hf.BertForSequenceClassification(hf.BertConfig(**{**SIZES, "vocab_size": 2000, **sizes}))


def gpt2() -> Any:
    import transformers as hf

    sizes = {"n_embd": 256, "n_layer": 1, "n_head": 4, "vocab_size": 2000, "bos_token_id": 0, "eos_token_id": 0}
    return hf.GPT2LMHeadModel(hf.GPT2Config(use_cache=False, **sizes))


def llama() -> Any:
    import transformers as hf

    sizes = {**SIZES, "num_key_value_heads": 2, "vocab_size": 2000}
    return hf.LlamaForCausalLM(hf.LlamaConfig(use_cache=False, **sizes))


def vit() -> Any:
    import transformers as hf

    return hf.ViTForImageClassification(hf.ViTConfig(**SIZES, image_size=64, patch_size=8, num_labels=100))


def mlp() -> Any:
    from torch import nn

    layers = (part for _ in range(3) for part in (nn.Linear(256, 256), nn.ReLU()))
    return nn.Sequential(*layers, nn.Linear(256, 100))


def resnet() -> Any:
    """Bottlenecks with batch norms and a sum, as ResNet-50's."""
    import torch
    from torch import nn

    def normed(i: int, o: int, kernel: int, stride: int = 1) -> Any:
        return nn.Sequential(nn.Conv2d(i, o, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(o))

    class Bottleneck(nn.Module):
        def __init__(self, i: int, width: int, stride: int) -> None:
            super().__init__()
            self.first, self.second = normed(i, width, 1), normed(width, width, 3, stride)
            self.third, self.side = normed(width, 4 * width, 1), normed(i, 4 * width, 1, stride)

        def forward(self, x: Any) -> Any:
            y = self.third(torch.relu(self.second(torch.relu(self.first(x)))))
            return torch.relu(y + self.side(x))

    stem = (normed(3, 16, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    blocks = (Bottleneck(16, 16, 1), Bottleneck(64, 32, 2), Bottleneck(128, 64, 2))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))


def unet() -> Any:
    """Two levels down and up, with what was before each level beside what comes back."""
    import torch
    from torch import nn

    def block(i: int, o: int) -> Any:
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.ModuleList((block(3, 8), block(8, 16)))
            self.middle, self.pool, self.last = block(16, 32), nn.MaxPool2d(2), nn.Conv2d(8, 100, 1)
            self.up = nn.ModuleList((nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)))
            self.join = nn.ModuleList((block(32, 16), block(16, 8)))

        def forward(self, x: Any) -> Any:
            before = []
            for down in self.down:
                x = down(x)
                before.append(x)
                x = self.pool(x)
            x = self.middle(x)
            for up, join, y in zip(self.up, self.join, reversed(before), strict=True):
                x = join(torch.cat([y, up(x)], 1))
            return self.last(x).mean((2, 3))

    return UNet()


def rows() -> Any:
    import torch

    return torch.zeros(512, 256)


CASES = {
    "bert-base": Case(bert, ids),
    "bert-large": Case(lambda: bert(num_attention_heads=8, attn_implementation="eager"), ids),
    "gpt2": Case(gpt2, ids), "llama": Case(llama, ids), "vit": Case(vit, lambda: image(64)),
    "resnet": Case(resnet, lambda: image(64)), "unet": Case(unet, lambda: image(64)), "mlp": Case(mlp, rows),
}  # fmt: skip


def without_dropout(module: Any) -> Any:
    """The module with dropouts of probability 0, which the prediction has none of."""
    import torch

    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        for name in ("attention_dropout", "dropout_p", "dropout_prob"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    return module


def counted(case: Case, optimizer: str) -> int:
    """Bytes at the peak of PyTorch's second step, where the optimiser has its states; no tensor has contents."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with torch.device("meta"):
        module = case.module()
    with FakeTensorMode(allow_non_fake_inputs=True):
        module = without_dropout(module.to_empty(device="cpu")).train()
        if hasattr(module, "tie_weights"):
            module.tie_weights()
        inputs = case.inputs()
        parameters = module.parameters()
        updates = (torch.optim.AdamW(parameters, foreach=True) if optimizer == "adam"
                   else torch.optim.SGD(parameters, lr=0.1, foreach=True))  # fmt: skip
        tracker = MemTracker()
        tracker.track_external(module, updates, *(inputs.values() if isinstance(inputs, Mapping) else [inputs]))
        with tracker:
            for _ in range(2):
                tracker.reset_mod_stats()
                y = module(**inputs) if isinstance(inputs, Mapping) else module(inputs)
                y = getattr(y, "logits", y)
                labels = torch.zeros(y.numel() // y.shape[-1], dtype=torch.int64)
                torch.nn.functional.cross_entropy(y.reshape(-1, y.shape[-1]), labels).backward()
                updates.step()
                updates.zero_grad()
        ((_, bytes_by_kind),) = tracker.get_tracker_snapshot("peak").items()
    return int(bytes_by_kind["Total"])


@pytest.mark.parametrize("name", CASES)
def test_a_step_takes_the_memory_that_pytorch_counts(name: str) -> None:
    """Weights, gradients, the optimiser's states and passes, and what each operator saves for its gradient.

    BERT-large's attention is written out, that of the others in one kernel. Without workspaces of libraries.
    """
    from onnxperf.export.from_torch import proto

    case = CASES[name]
    model = proto(without_dropout(case.module()), case.inputs())
    for optimizer in ("adam", "sgd"):
        p = onnxperf.predict(
            model, gpu="h100", runtime="torch-eager", mode="training", precision="fp32", loss="cross-entropy",
            optimizer=optimizer,
        )  # fmt: skip
        found = p.memory.weights_bytes + p.memory.activations_bytes
        assert found == pytest.approx(counted(case, optimizer), rel=BOUND), optimizer

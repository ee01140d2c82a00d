"""What PyTorch exports at batch 1, rebatched, has the kernels of its own export at that batch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import onnxperf

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from onnxperf.export.from_torch import proto  # noqa: E402


class Windowed(nn.Module):
    """Attention in windows of 4 x 4 of a shifted image, behind a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.token = nn.Linear(8, 24), nn.Parameter(torch.zeros(1, 1, 8))

    def forward(self, x: Any) -> Any:
        n = x.shape[0]
        x = torch.roll(x, (-2, -2), (1, 2)).view(n, 4, 4, 4, 4, 8).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 8)
        q, k, v = self.qkv(x).view(n * 16, 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        tokens = a.transpose(1, 2).reshape(n, 256, 8)
        return torch.cat((self.token.expand(n, -1, -1), tokens), 1)[:, 0]


class Spoken(nn.Module):
    """Two layers of an LSTM, the batch second inside, from states of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.lstm, self.head = nn.Embedding(50, 8), nn.LSTM(8, 16, 2, batch_first=True), nn.Linear(16, 50)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(self.table(x))[0])


MODULES = {
    "windowed": (Windowed, lambda n: torch.zeros(n, 16, 16, 8)),
    "spoken": (Spoken, lambda n: torch.zeros(n, 12, dtype=torch.int64)),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), lambda n: torch.zeros(n, 9, 16)),
}


@pytest.mark.parametrize("name", MODULES)
def test_an_export_at_batch_1_has_the_kernels_of_one_at_6(name: str) -> None:
    build, example = MODULES[name]
    one, own = (proto(build(), example(n)) for n in (1, 6))
    found, wanted = onnxperf.predict(one, gpu="l4", batch=6), onnxperf.predict(own, gpu="l4")
    assert "rebatched" in {w.code for w in found.warnings}
    assert Counter(k.work for k in found.run.kernels.rows) == Counter(k.work for k in wanted.run.kernels.rows)
    assert found.seconds == wanted.seconds

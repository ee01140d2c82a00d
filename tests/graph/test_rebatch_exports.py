"""Models of PyTorch that are exported at batch 32, at another: what they cost is what their own export there costs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import onnxperf

OLD = 32


class ResNet(nn.Module):
    """Two residual blocks; `flat` makes a row of each image's pooled features."""

    def __init__(self, flat: Callable[[Tensor], Tensor]):
        super().__init__()
        self.flat, self.stem = flat, nn.Conv2d(3, 32, 7, 2, 3)
        self.first, self.second = nn.Conv2d(32, 32, 3, 1, 1), nn.Conv2d(32, 64, 3, 2, 1)
        self.around, self.norm, self.last = nn.Conv2d(32, 64, 1, 2), nn.BatchNorm2d(32), nn.Linear(64, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Classes of images."""
        x = self.stem(x).relu()
        x = (x + self.norm(self.first(x))).relu()
        x = (self.around(x) + self.second(x)).relu()
        return self.last(self.flat(nn.functional.adaptive_avg_pool2d(x, 1)))


class Encoder(nn.Module):
    """One layer of attention as written by hand: heads as a part of the batch, a learnt token before the others,
    positions and a causal mask for each sample; reads each sample at an index of its own, or its first token.
    """

    def __init__(self, width: int = 64, heads: int = 4, picks: bool = True):
        super().__init__()
        self.heads, self.picks, self.words = heads, picks, nn.Embedding(100, width)
        self.token, self.positions = nn.Parameter(torch.zeros(1, 1, width)), nn.Embedding(64, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, ids: Tensor) -> Tensor:
        """A vector of each sample."""
        x = torch.cat([self.token.expand(ids.shape[0], -1, -1), self.words(ids)], 1)
        b, n, d = x.shape
        x = x + self.positions(torch.arange(n).unsqueeze(0).expand(b, n))
        q, k, v = (
            part.view(b, n, self.heads, d // self.heads).transpose(1, 2).reshape(b * self.heads, n, -1)
            for part in self.qkv(x).chunk(3, -1)
        )
        mask = torch.full((n, n), -1e4).triu(1)[None, None].expand(b, 1, n, n)
        scores = (torch.bmm(q, k.transpose(1, 2)) / math.sqrt(d // self.heads)).view(b, self.heads, n, n) + mask
        z = torch.bmm(scores.softmax(-1).view(b * self.heads, n, n), v).view(b, self.heads, n, -1)
        x = x + self.out(z.transpose(1, 2).reshape(b, n, d))
        return x[torch.arange(b), ids.argmax(-1)] if self.picks else x[:, 0]


class Masked(nn.Module):
    """Reads a mask by samples and positions, as transformers does."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Scores, of which the mask leaves some."""
        b, n = mask.shape
        kept = mask.bool()[torch.arange(b)[:, None, None, None], torch.arange(n)[None, None, None]]
        return x.masked_fill(~kept.expand(b, 1, n, n), -1e4).softmax(-1)


class Recurrent(nn.Module):
    """An LSTM whose first states are zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(64, 48, 2, batch_first=True, bidirectional=True), nn.Linear(96, 5)

    def forward(self, x: Tensor) -> Tensor:
        """A row of each sample."""
        return self.last(self.lstm(x)[0][:, -1])


def images(n: int) -> tuple[Tensor, ...]:
    return (torch.zeros(n, 3, 64, 64),)


def words(n: int, count: int = 16) -> tuple[Tensor, ...]:
    return (torch.ones(n, count, dtype=torch.long),)


Case = tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, ...]]]
CASES: dict[str, Case] = {
    "a constant reshape": (lambda: ResNet(lambda x: x.reshape(x.shape[0], 64)), images),
    "a view": (lambda: ResNet(lambda x: x.view(x.size(0), -1)), images),
    "a squeeze of all ones": (lambda: ResNet(lambda x: x.squeeze()), images),
    "attention": (Encoder, words),
    "as many tokens and heads as samples": (partial(Encoder, 1024, 32, False), partial(words, count=31)),
    "a mask": (Masked, lambda n: (torch.zeros(n, 1, 16, 16), torch.ones(n, 16, dtype=torch.long))),
    "a mask of many indices": (
        Masked,
        lambda n: (torch.zeros(n, 1, 160, 160), torch.ones(n, 160, dtype=torch.long)),
    ),
    "recurrent": (Recurrent, lambda n: (torch.zeros(n, 7, 64),)),
}


def exported(case: Case, batch: int, folder: Path, dynamo: bool) -> Path:
    make, inputs = case
    torch.manual_seed(0)
    path = folder / f"{batch}.onnx"
    how: dict[str, Any] = {"dynamo": True, "verbose": False} if dynamo else {"dynamo": False, "opset_version": 17}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(make().eval(), inputs(batch), str(path), **how)
    return path


def flops(p: onnxperf.Prediction) -> int:
    return sum(k.flops for k in p.kernels)


@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_file_of_32_costs_at_1_what_an_export_at_1_does(name: str, dynamo: bool, tmp_path: Path) -> None:
    if name == "attention" and not dynamo:
        pytest.skip("its indices of samples are sums there, which are refused at any batch")
    many, single = (exported(CASES[name], n, tmp_path, dynamo) for n in (OLD, 1))
    found, own = onnxperf.predict(many, gpu="l4", batch=1), onnxperf.predict(single, gpu="l4")
    assert found.scenario.batch == own.scenario.batch == 1
    assert flops(found) == flops(own) and found.seconds == pytest.approx(own.seconds, rel=0.01)
    assert len(found.kernels) == len(own.kernels)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a constant reshape", "attention"])
def test_recommend_sweep_and_compare_try_smaller_batches_too(name: str, tmp_path: Path) -> None:
    many, single = (exported(CASES[name], n, tmp_path, True) for n in (OLD, 1))
    plans = [onnxperf.recommend(path, max_ms=5, qps=50, gpu=["l4"]).plans[0] for path in (many, single)]
    assert plans[0] == plans[1] and plans[0].batch == 1
    swept = onnxperf.sweep(many, gpu=["l4"], batch=[1, 2, 4])
    seconds = {row.batch: row.seconds for row in swept.rows}
    assert seconds[1] == pytest.approx(onnxperf.predict(single, gpu="l4").seconds, rel=0.01)
    assert seconds == {n: onnxperf.predict(many, gpu="l4", batch=n).seconds for n in (1, 2, 4)}
    assert onnxperf.compare(many, gpu=["l4"]).to_dict()["fixed_batch"] == ""

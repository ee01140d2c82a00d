"""Architectures written out in plain PyTorch, each after its paper; all code here is this project's own."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class AlexNet(nn.Sequential):
    """AlexNet in one tower: Krizhevsky 2014, "One weird trick", figure 2; 1000 classes."""

    def __init__(self) -> None:
        convolutions = [
            *(nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2)),
        ]
        linear = [nn.Linear(9216, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
        super().__init__(*convolutions, nn.Flatten(), *linear)

    def forward(self, image: Tensor) -> Tensor:
        return super().forward(image)


class Conv(nn.Sequential):
    """Convolution that keeps the size but for its stride, batch normalisation, activation."""

    def __init__(self, cin: int, cout: int, k: int = 1, stride: int = 1, act: type[nn.Module] = nn.SiLU) -> None:
        super().__init__(nn.Conv2d(cin, cout, k, stride, k // 2, bias=False), nn.BatchNorm2d(cout, 1e-3), act())


class Side(nn.Module):
    """Branches side by side, their channels one after the other."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class GoogLeNet(nn.Sequential):
    """GoogLeNet: Szegedy et al. 2014, table 1, with batch normalisation for the older kind; 1000 classes.

    The classifiers at the sides, which only training uses, are left out.
    """

    #: Input channels, and table 1: 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool proj.
    THREE = ((192, 64, 96, 128, 16, 32, 32), (256, 128, 128, 192, 32, 96, 64))
    FOUR = (
        *((480, 192, 96, 208, 16, 48, 64), (512, 160, 112, 224, 24, 64, 64), (512, 128, 128, 256, 24, 64, 64)),
        *((512, 112, 144, 288, 32, 64, 64), (528, 256, 160, 320, 32, 128, 128)),
    )
    FIVE = ((832, 256, 160, 320, 32, 128, 128), (832, 384, 192, 384, 48, 128, 128))

    def __init__(self) -> None:
        def conv(cin: int, cout: int, k: int = 1, stride: int = 1) -> Conv:
            return Conv(cin, cout, k, stride, nn.ReLU)

        def inception(cin: int, a: int, b: int, c: int, d: int, e: int, f: int) -> Side:
            pool = nn.MaxPool2d(3, 1, 1)
            three, five = nn.Sequential(conv(cin, b), conv(b, c, 3)), nn.Sequential(conv(cin, d), conv(d, e, 5))
            return Side(conv(cin, a), three, five, nn.Sequential(pool, conv(cin, f)))

        def halve() -> nn.MaxPool2d:
            return nn.MaxPool2d(3, 2, ceil_mode=True)

        stem = [conv(3, 64, 7, 2), halve(), conv(64, 64), conv(64, 192, 3), halve()]
        three, four, five = ([inception(*sizes) for sizes in rows] for rows in (self.THREE, self.FOUR, self.FIVE))
        end = [nn.AvgPool2d(7), nn.Flatten(), nn.Linear(1024, 1000)]
        super().__init__(*stem, *three, halve(), *four, halve(), *five, *end)

    def forward(self, image: Tensor) -> Tensor:
        return super().forward(image)


class UNet(nn.Module):
    """U-Net: Ronneberger et al. 2015, figure 1: convolutions without padding, so that 572 pixels become 388."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512, 1024)) -> None:
        super().__init__()

        def twice(cin: int, cout: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(cin, cout, 3), nn.ReLU(), nn.Conv2d(cout, cout, 3), nn.ReLU())

        pairs = list(pairwise(widths))
        self.first = twice(1, widths[0])
        self.down = nn.ModuleList(twice(a, b) for a, b in pairs)
        self.widen = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs))
        self.up = nn.ModuleList(twice(b, a) for a, b in reversed(pairs))
        self.last = nn.Conv2d(widths[0], 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        passed = [self.first(image)]
        for down in self.down:
            passed.append(down(F.max_pool2d(passed[-1], 2)))
        x = passed.pop()
        for widen, up in zip(self.widen, self.up, strict=True):
            wide, across = widen(x), passed.pop()
            cut = (across.shape[-1] - wide.shape[-1]) // 2
            x = up(torch.cat((across[..., cut:-cut, cut:-cut], wide), 1))
        return self.last(x)


class Bottleneck(nn.Module):
    """1x1 and 3x3, and the input added where the block is a residual one."""

    def __init__(self, width: int, residual: bool) -> None:
        super().__init__()
        self.body, self.residual = nn.Sequential(Conv(width, width), Conv(width, width, 3)), residual

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


class CSP(nn.Sequential):
    """Cross stage partial block: half of the channels through the bottlenecks, half around them."""

    def __init__(self, cin: int, cout: int, depth: int = 1, residual: bool = False) -> None:
        half = cout // 2
        through = nn.Sequential(Conv(cin, half), *(Bottleneck(half, residual) for _ in range(depth)))
        super().__init__(Side(through, Conv(cin, half)), Conv(cout, cout))


class Focus(nn.Module):
    """Blocks of 2x2 pixels become channels."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x[..., i::2, j::2] for j in (0, 1) for i in (0, 1)], 1)


class Head(nn.Module):
    """Decoupled head of one scale: boxes, whether there is an object, and of which class."""

    def __init__(self, cin: int, stride: int, width: int = 128, classes: int = 80) -> None:
        super().__init__()
        self.stem, self.stride = Conv(cin, width), stride
        self.of_class, self.of_box = (nn.Sequential(Conv(width, width, 3), Conv(width, width, 3)) for _ in range(2))
        self.kind, self.box, self.there = (nn.Conv2d(width, n, 1) for n in (classes, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        kind, where = self.kind(self.of_class(x)), self.of_box(x)
        rows, columns = (torch.arange(n, dtype=x.dtype) for n in x.shape[-2:])
        grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"))
        centre, size = self.box(where).split(2, 1)
        found = ((centre + grid) * self.stride, size.exp() * self.stride, self.there(where).sigmoid(), kind.sigmoid())
        return torch.cat(found, 1).flatten(2)


class YoloxS(nn.Module):
    """YOLOX-S: Ge et al. 2021; 80 classes. Rows of a box's centre and size, objectness and classes, before NMS."""

    def __init__(self) -> None:
        super().__init__()
        self.eighth = nn.Sequential(
            *(Focus(), Conv(12, 32, 3), Conv(32, 64, 3, 2), CSP(64, 64, 1, True)),
            *(Conv(64, 128, 3, 2), CSP(128, 128, 3, True)),
        )
        self.sixteenth = nn.Sequential(Conv(128, 256, 3, 2), CSP(256, 256, 3, True))
        pools = Side(nn.Identity(), *(nn.MaxPool2d(k, 1, k // 2) for k in (5, 9, 13)))
        self.last = nn.Sequential(Conv(256, 512, 3, 2), Conv(512, 256), pools, Conv(1024, 512), CSP(512, 512))
        self.lateral, self.reduce = Conv(512, 256), Conv(256, 128)
        self.top, self.fine = CSP(512, 256), CSP(256, 128)
        self.down_fine, self.middle = Conv(128, 128, 3, 2), CSP(256, 256)
        self.down_middle, self.coarse = Conv(256, 256, 3, 2), CSP(512, 512)
        self.heads = nn.ModuleList(Head(width, stride) for width, stride in ((128, 8), (256, 16), (512, 32)))

    def forward(self, image: Tensor) -> Tensor:
        eighth = self.eighth(image)
        sixteenth = self.sixteenth(eighth)
        lateral = self.lateral(self.last(sixteenth))
        reduced = self.reduce(self.top(joined(larger(lateral), sixteenth)))
        fine = self.fine(joined(larger(reduced), eighth))
        middle = self.middle(joined(self.down_fine(fine), reduced))
        coarse = self.coarse(joined(self.down_middle(middle), lateral))
        scales = zip(self.heads, (fine, middle, coarse), strict=True)
        return torch.cat([head(x) for head, x in scales], 2).transpose(1, 2)


def larger(x: Tensor) -> Tensor:
    """Twice as high and wide."""
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


def joined(*parts: Tensor) -> Tensor:
    return torch.cat(parts, 1)


class LSTM(nn.Module):
    """Language model of two LSTM layers: Zaremba et al. 2014, the medium one; the 10,000 words of Penn Treebank."""

    def __init__(self, words: int = 10_000, width: int = 650, layers: int = 2) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(words, width), nn.Linear(width, words)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)

    def forward(self, input_ids: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, (hidden, cell) = self.lstm(self.embedding(input_ids), (hidden, cell))
        return self.output(x), hidden, cell

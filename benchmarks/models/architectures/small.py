"""Two small networks: products alone, and convolutions of several kinds."""

from __future__ import annotations

import torch
from torch import nn


class Mlp(nn.Module):
    """Digits of 28 x 28 in 10 classes, over two hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(784, 512), nn.Linear(512, 512), nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.second(self.first(x).relu()).relu()).log_softmax(-1)


class ConvNet(nn.Module):
    """Pictures of 32 x 32 in 10 classes: a convolution of every channel, one by channel, one across channels."""

    def __init__(self) -> None:
        super().__init__()
        self.every, self.bn = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.alone = nn.Conv2d(32, 32, 5, stride=2, padding=2, groups=32)
        self.across = nn.Conv2d(32, 64, 1)
        self.hidden, self.last = nn.Linear(64 * 8 * 8, 128), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.bn(self.every(x)).relu(), 2)
        x = nn.functional.silu(self.across(self.alone(x)))
        return self.last(self.hidden(x.flatten(1)).relu()).softmax(-1)

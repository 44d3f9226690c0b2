"""ResNet-50: pictures of 224 x 224 in 1000 classes (He et al., Deep residual learning, 2015)."""

from __future__ import annotations

import torch
from torch import nn


class Bottleneck(nn.Module):
    """The stride is in the convolution of 3 x 3, as in most implementations."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.shortcut: nn.Module = nn.Identity()
        self.bn: nn.Module = nn.Identity()
        if stride != 1 or channels != 4 * width:
            self.shortcut = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.bn = nn.BatchNorm2d(4 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y)).relu()
        return (self.bn3(self.conv3(y)) + self.bn(self.shortcut(x))).relu()


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, 2, 1)
        channels, stages = 64, []
        for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for place in range(blocks):
                stages.append(Bottleneck(channels, width, stride if place == 0 else 1))
                channels = 4 * width
        self.blocks = nn.Sequential(*stages)
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.pool(self.bn1(self.conv1(x)).relu()))
        return self.fc(self.mean(x).flatten(1))

"""LSTM cells of two networks of MLPerf, one step each: of speech recognition and of translation."""

from __future__ import annotations

import torch
from torch import nn


class RnnT(nn.Module):
    """The first cell of RNN-T's encoder: three frames of 80 features, state of 1024."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(240, 1024)

    def forward(self, x: torch.Tensor, state: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state, memory = self.cell(x, (state, memory))
        return state, memory


class Gnmt(nn.Module):
    """A cell of GNMT's decoder above the second.

    Its inputs are the layer below and the attention's context, 1024 each. Its output to the next layer is the sum of
    its state and the layer below.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(2048, 1024)

    def forward(
        self, x: torch.Tensor, state: torch.Tensor, memory: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        state, memory = self.cell(x, (state, memory))
        return state + x[:, :1024], state, memory

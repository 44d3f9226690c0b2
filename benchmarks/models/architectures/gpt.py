"""A decoder block of GPT-2's smallest size: causal attention and two products, each after a normalisation."""

from __future__ import annotations

import torch
from torch import nn

HIDDEN, HEADS = 768, 12


class GptBlock(nn.Module):
    """Maps (batch, words, 768) to the same shape; no word depends on a later one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.all, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.wide, self.narrow = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, words, _ = x.shape
        query, key, value = (
            part.reshape(batch, words, HEADS, HIDDEN // HEADS).transpose(1, 2) for part in self.all(x).chunk(3, -1)
        )
        scores = query @ key.transpose(2, 3) * (HIDDEN // HEADS) ** -0.5
        earlier = torch.ones(words, words, dtype=torch.bool).tril()
        mixed = scores.masked_fill(~earlier, -torch.inf).softmax(-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, words, HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm2(x)), approximate="tanh"))

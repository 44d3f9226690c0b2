"""BERT-base with a head for question answering (Devlin et al., 2018): where the answer begins and ends in a text."""

from __future__ import annotations

import torch
from torch import nn

WORDS, HIDDEN, HEADS, LAYERS = 30522, 768, 12, 12
LONGEST = 512
FORBIDDEN = -10000.0


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        batch, words, _ = x.shape
        query, key, value = (
            linear(x).reshape(batch, words, HEADS, HIDDEN // HEADS).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(2, 3) * (HIDDEN // HEADS) ** -0.5 + bias
        mixed = scores.softmax(-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, words, HIDDEN))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm1 = Attention(), nn.LayerNorm(HIDDEN, eps=1e-12)
        self.wide, self.narrow = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self.norm2 = nn.LayerNorm(HIDDEN, eps=1e-12)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.attention(x, bias))
        return self.norm2(x + self.narrow(nn.functional.gelu(self.wide(x))))


class Bert(nn.Module):
    """Maps tokens, segments (0 question, 1 text) and mask (1 word, 0 padding), (batch, words), to two scores a word."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.words, self.places, self.segments = (nn.Embedding(n, HIDDEN) for n in (WORDS, LONGEST, 2))
        self.norm = nn.LayerNorm(HIDDEN, eps=1e-12)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.answer = nn.Linear(HIDDEN, 2)

    def forward(
        self, tokens: torch.Tensor, segments: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        places = self.places.weight[: tokens.shape[1]]
        x = self.norm(self.words(tokens) + places + self.segments(segments))
        bias = (1 - mask[:, None, None, :].to(x.dtype)) * FORBIDDEN
        for layer in self.layers:
            x = layer(x, bias)
        start, end = self.answer(x).unbind(-1)
        return start, end

"""The architectures for PyTorch, by the names of the models."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from benchmarks.models.architectures.bert import Bert
from benchmarks.models.architectures.gpt import GptBlock
from benchmarks.models.architectures.lstm import Gnmt, RnnT
from benchmarks.models.architectures.resnet50 import ResNet50
from benchmarks.models.architectures.small import ConvNet, Mlp
from benchmarks.models.weights import weight

ARCHITECTURES: Mapping[str, Callable[[], nn.Module]] = {
    "resnet50": ResNet50,
    "bert": Bert,
    "bert_short": lambda: Bert(layers=2),
    "mlp": Mlp,
    "convnet": ConvNet,
    "gpt": GptBlock,
    "rnnt": RnnT,
    "gnmt": Gnmt,
}


def network(name: str) -> nn.Module:
    """Return a model for inference, with its weights."""
    with torch.device("meta"):  # initial values would only take time
        made = ARCHITECTURES[name]()
    state = {
        name: torch.from_numpy(weight(name, tuple(value.shape))) if value.is_floating_point() else torch.tensor(0)
        for name, value in made.state_dict().items()
    }
    made.load_state_dict(state, assign=True)
    return made.eval().requires_grad_(False)

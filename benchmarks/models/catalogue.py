"""The models by name: their inputs, batch sizes, files of graphs and results, and the comparison of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.models.weights import Array, integers, normal

if TYPE_CHECKING:
    import onnx
    import torch

    import kaas

FOLDER = Path(__file__).parent
WORDS = 384
"""The length of BERT's sequences: that of question answering on SQuAD, and of MLPerf."""


@dataclass(frozen=True, slots=True)
class Model:
    """One model.

    Fields:
        name: of its graph, its results and its architecture.
        outputs: the names of its outputs, in order.
        batch_sizes: the batch sizes that it is compiled for, the smallest first.
        make_inputs: returns the arrays of the largest batch by name, in order; smaller batches are its first rows.
    """

    name: str
    outputs: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    make_inputs: Callable[[int], dict[str, Array]]

    def inputs(self, batch: int = 1) -> dict[str, Array]:
        """Return the arrays of a batch by name, in the model's order."""
        return {name: value[:batch] for name, value in self.make_inputs(self.batch_sizes[-1]).items()}

    def answers(self, batch: int = 1) -> dict[str, Array]:
        """Return PyTorch's results for these inputs, in single precision on a CPU."""
        with np.load(self.answers_path) as stored:
            return {name: stored[name][:batch] for name in self.outputs}

    def graph(self) -> onnx.ModelProto:
        """Return the graph that PyTorch exported, with its weights; needs onnx."""
        from benchmarks.models.graphs import with_weights

        return with_weights(self.graph_path)

    def network(self) -> torch.nn.Module:
        """Return the architecture with its weights, for inference; needs PyTorch."""
        from benchmarks.models.architectures import network

        return network(self.name)

    def compiled(self, batch_sizes: tuple[int, ...] = (1,), target: str = "sm_80+ptx") -> kaas.CompiledModel:
        """Compile the model from its graph, unless this machine's store has it; needs apache-tvm and onnx."""
        import tvm_backend

        made: kaas.CompiledModel = tvm_backend.compile(
            self.graph(), batch_sizes=batch_sizes, target=target, name=self.name
        )
        return made

    @property
    def graph_path(self) -> Path:
        return FOLDER / "graphs" / f"{self.name}.onnx"

    @property
    def answers_path(self) -> Path:
        return FOLDER / "answers" / f"{self.name}.npz"


def pictures(side: int) -> Callable[[int], dict[str, Array]]:
    return lambda batch: {"x": normal("pictures", batch, 3, side, side)}


def questions(batch: int) -> dict[str, Array]:
    """Return tokens of questions and texts; the second sequence is the longer one, and padding follows each text."""
    question, text = 24, WORDS - 40
    places = np.tile(np.arange(WORDS), (batch, 1))
    return {
        "tokens": integers("tokens", 30522, batch, WORDS),
        "segments": ((places >= question) & (places < text)).astype(np.int64),
        "mask": (places < text).astype(np.int64),
    }


def step(features: int, hidden: int) -> Callable[[int], dict[str, Array]]:
    """Return the input of a recurrent cell at one step, and its state."""

    def made(batch: int) -> dict[str, Array]:
        state, memory = (np.tanh(normal(name, batch, hidden)) for name in ("state", "memory"))
        return {"x": normal("step", batch, features), "state": state, "memory": memory}

    return made


MODELS: Mapping[str, Model] = {
    model.name: model
    for model in (
        Model("resnet50", ("logits",), (1, 8), pictures(224)),
        Model("bert", ("start", "end"), (1,), questions),
        Model("bert_short", ("start", "end"), (1,), questions),  # two of the twelve layers, for the test suite
        Model("mlp", ("logits",), (1, 16), lambda batch: {"x": normal("digits", batch, 784)}),
        Model("convnet", ("logits",), (1,), pictures(32)),
        Model("gpt", ("y",), (1,), lambda batch: {"x": normal("words", batch, 64, 768)}),
        Model("rnnt", ("next_state", "next_memory"), (1,), step(240, 1024)),
        Model("gnmt", ("y", "next_state", "next_memory"), (1,), step(2048, 1024)),
    )
}


def relative_error(given: Array, expected: Array) -> float:
    """Return the largest error of an element, over the largest expected magnitude."""
    return float(np.abs(given - expected).max() / np.abs(expected).max())


def same_top1(given: Array, expected: Array) -> bool:
    """Return True if the largest element of each row, along the last axis, is in the same place."""
    return bool((given.argmax(-1) == expected.argmax(-1)).all())

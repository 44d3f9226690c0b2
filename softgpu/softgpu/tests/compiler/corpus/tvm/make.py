"""`python -m ...compiler.corpus.tvm.make [FOLDER]`: a BERT encoder by TVM, its launches, and PyTorch's result.

Needs PyTorch and what `tvm_backend` needs. The files beside this one are replaced, or others written into a folder.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import tvm_backend
from softgpu.tests.compiler.corpus.tvm import encoder

HERE = Path(__file__).parent
torch: Any = import_module("torch")  # with or without its types


class Encoder(torch.nn.Module):  # type: ignore[misc]  # without PyTorch its type is unknown
    """As `encoder.encode`, in single precision."""

    def __init__(self) -> None:
        super().__init__()
        for name, value in encoder.weights().items():
            self.register_buffer(name.replace(".", "_"), torch.from_numpy(value))

    def linear(self, layer: int, name: str, x: Any) -> Any:
        prefix = f"_{layer}_"[1:] + name
        return torch.nn.functional.linear(x, getattr(self, prefix), getattr(self, prefix + "_bias"))

    def norm(self, layer: int, name: str, x: Any) -> Any:
        scale, bias = getattr(self, f"{layer}_{name}"), getattr(self, f"{layer}_{name}_bias")
        return torch.nn.functional.layer_norm(x, [encoder.HIDDEN], scale, bias)

    def forward(self, tokens: Any) -> Any:
        words, heads = encoder.WORDS, encoder.HEADS
        x = torch.nn.functional.embedding(tokens, self.words) + self.places
        for n in range(encoder.LAYERS):
            q, k, v = (
                self.linear(n, name, x).reshape(1, words, heads, -1).transpose(1, 2)
                for name in ("query", "key", "value")
            )
            score = torch.matmul(q, k.transpose(-1, -2)) / (encoder.HIDDEN // heads) ** 0.5
            mixed = torch.matmul(torch.softmax(score, -1), v).transpose(1, 2).reshape(1, words, encoder.HIDDEN)
            x = self.norm(n, "norm1", x + self.linear(n, "mix", mixed))
            x = self.norm(n, "norm2", x + self.linear(n, "narrow", torch.nn.functional.gelu(self.linear(n, "wide", x))))
        return x


def described(array: Any) -> dict[str, Any]:
    """Describe the value of a constant: a weight as it is or transposed, or else its only value."""
    for name, known in encoder.weights().items():
        for turned, candidate in ((False, known), (True, known.T)):
            if candidate.size == array.size and np.array_equal(candidate.ravel(), array.ravel()):
                return {"weight": name, "turned": turned}
    (only,) = set(array.ravel().tolist())
    return {"value": only}


def launch(kernel: Any) -> dict[str, Any]:
    """A launch of what tvm_backend made, whose arguments are all buffers from their beginning on."""
    arguments = []
    for argument in kernel.args:
        assert hasattr(argument, "buffer"), argument
        assert argument.offset_bytes == 0, argument
        arguments.append(argument.buffer.name)
    return {
        "symbol": kernel.symbol, "grid": kernel.grid, "block": kernel.block, "shared_bytes": kernel.shared_bytes,
        "args": arguments,
    }  # fmt: skip


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    network, tokens = Encoder().eval(), torch.from_numpy(encoder.tokens())
    compiled = tvm_backend.compile(torch.export.export(network, (tokens,)), target="sm_80+ptx", name="encoder")
    (variant,), (output,) = compiled.variants, compiled.outputs
    (ptx,) = (image.data for image in compiled.library.images if image.kind == "ptx")
    # older drivers read what is for sm_80 all the same
    (folder / "encoder.ptx").write_bytes(re.sub(rb"\.version \d+\.\d+", b".version 8.0", ptx.rstrip(b"\0"), count=1))
    buffers = {buffer.name: {"shape": buffer.shape, "dtype": buffer.dtype} for buffer in variant.task.buffers}
    for name, array in compiled.constants.items():
        buffers[name] |= described(array)
    about = {"tvm": compiled.about["tvm"], "torch": torch.__version__, "inputs": compiled.inputs, "output": output}
    about |= {"buffers": buffers, "launches": [launch(kernel) for kernel in variant.task.kernels]}
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in about.items())
    (folder / "encoder.json").write_text(f"{{\n{lines}\n}}\n")
    with torch.inference_mode():
        np.save(folder / "encoder.npy", network(tokens).numpy())
    print(len(variant.task.kernels), "launches of", len({kernel.symbol for kernel in variant.task.kernels}), "kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main())

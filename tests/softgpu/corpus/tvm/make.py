"""`python -m tests.softgpu.corpus.tvm.make`: a BERT encoder by TVM and nvcc, its launches, and PyTorch's result.

Needs apache-tvm 0.27, PyTorch and nvcc. Every launch is read out of TVM's host code.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.frontend.torch import from_exported_program
from tvm.s_tir import dlight
from tvm.tirx.build import split_host_device_mods

from tests.softgpu.corpus.tvm import encoder

HERE = Path(__file__).parent
LIMITS = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152, "thread_warp_size": 32}
TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_80", "host": {"kind": "llvm"}, **LIMITS})
SCHEDULES = ("Matmul", "GEMV", "Reduction", "GeneralReduction", "Fallback")
PASSES = (
    "LegalizeOps", "AnnotateTIROpPattern", "FoldConstant", "FuseOps", "FuseTIR", "DeadCodeElimination",
)  # fmt: skip
LAST = ("RewriteDataflowReshape", "ToNonDataflow", "RemovePurityChecking", "CallTIRRewrite")


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


def lowered(network: torch.nn.Module, tokens: torch.Tensor) -> tvm.IRModule:
    """Calls of scheduled functions, each with a buffer for its result."""
    module = from_exported_program(torch.export.export(network, (tokens,)), run_ep_decomposition=False)
    schedule = dlight.ApplyDefaultSchedule(*(getattr(dlight.gpu, name)() for name in SCHEDULES))
    first, last = ([getattr(relax.transform, name)() for name in names] for names in (PASSES, LAST))
    with TARGET:
        return tvm.transform.Sequential([*first, schedule, *last])(module)


def split(module: tvm.IRModule) -> tuple[tvm.IRModule, tvm.IRModule]:
    """Host and device code."""
    functions = {
        name: function.with_attr("global_symbol", name.name_hint)
        for name, function in module.functions.items()
        if isinstance(function, tirx.PrimFunc)
    }
    pipeline, _, finish = tirx.get_default_tir_pipeline(TARGET)
    host, devices = split_host_device_mods(pipeline(tirx.transform.BindTarget(TARGET)(tvm.IRModule(functions))))
    (device,) = devices.values()
    return host, finish()(device)


def plain(value: Any) -> str:
    """One spelling of a parameter, of its handle and of its data's address."""
    name = value if isinstance(value, str) else getattr(value, "name", str(value))
    return re.sub(r"\W", "_", re.sub(r"(_ptr|\.data)$", "", name))


def launches(function: tirx.PrimFunc) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def visit(node: Any, visitor: Any) -> Any:
        if isinstance(node, tvm.ir.Call) and getattr(node.op, "name", "") == "tirx.call_ffi_kernel":
            tags = [str(tag) for tag in node.attrs.launch_params]
            name, *values = node.args
            count = len(values) - len(tags)
            extents = dict(zip(tags, map(int, values[count:]), strict=True))
            grid, block = ([extents.get(f"{what}.{axis}", 1) for axis in "xyz"] for what in ("blockIdx", "threadIdx"))
            shared = extents.get("tirx.use_dyn_shared_memory", 0)
            found.append({
                "symbol": name.value, "grid": grid, "block": block, "shared_bytes": shared,
                "args": [plain(value) for value in values[:count]],
            })  # fmt: skip
        return visitor.default_visit(node)

    tvm_ffi.structural_visit(function.body, visit)
    return found


class Program:
    """The main function as launches on named buffers; buffers: shape and type of each, and what weight it holds."""

    def __init__(self, module: tvm.IRModule, host: tvm.IRModule) -> None:
        self.module, self.weights = module, encoder.weights()
        self.hosts = {name.name_hint: launches(function) for name, function in host.functions.items()}
        self.buffers: dict[str, dict[str, Any]] = {}
        self.alias: dict[str, str] = {}
        self.launches: list[dict[str, Any]] = []
        main = module["main"]
        (tokens,) = main.params
        self.buffers["tokens"] = {"shape": [1, encoder.WORDS], "dtype": "int64"}
        self.alias[tokens.name] = "tokens"
        for block in main.body.blocks:
            for binding in block.bindings:
                self.bind(binding.var.name, binding.value)
        self.output = self.alias[main.body.body.name]

    def bind(self, name: str, value: Any) -> None:
        match value:
            case relax.Var():
                self.alias[name] = self.alias[value.name]
            case relax.Tuple(fields=[only]):
                self.alias[name] = self.alias[only.name]
            case tvm.ir.Call(op=tvm.ir.GlobalVar() as function):
                self.call(function, [self.buffer(argument) for argument in value.args])
            case tvm.ir.Call(op=tvm.ir.Op(name="relax.builtin.alloc_tensor")):
                shape = [int(n) for n in value.args[0].values]
                self.alias[name], self.buffers[name] = name, {"shape": shape, "dtype": str(value.args[1].value)}
            case tvm.ir.Call(op=tvm.ir.Op(name="relax.reshape")):
                self.alias[name] = self.alias[value.args[0].name]
            case _:
                raise NotImplementedError(f"{name} = {value}")

    def buffer(self, value: Any) -> str:
        if isinstance(value, relax.Var):
            return self.alias[value.name]
        return self.weight(value.value.numpy())

    def weight(self, array: Any) -> str:
        """A buffer for a constant: a weight as it is or transposed, or else its only value."""
        about: dict[str, Any] = {"shape": list(array.shape), "dtype": str(array.dtype)}
        for name, known in self.weights.items():
            for turned, candidate in ((False, known), (True, known.T)):
                if candidate.size == array.size and np.array_equal(candidate.ravel(), array.ravel()):
                    self.buffers[name + "_turned" * turned] = about | {"weight": name, "turned": turned}
                    return name + "_turned" * turned
        (only,) = set(array.ravel().tolist())
        self.buffers[f"constant_{only}"] = about | {"value": only}
        return f"constant_{only}"

    def call(self, function: tvm.ir.GlobalVar, given: list[str]) -> None:
        names = [plain(parameter.name) for parameter in self.module[function].params]
        by_name = dict(zip(names, given, strict=True))
        for launch in self.hosts[function.name_hint]:
            self.launches.append(launch | {"args": [by_name[name] for name in launch["args"]]})


def main() -> int:
    network, tokens = Encoder().eval(), torch.from_numpy(encoder.tokens())
    module = lowered(network, tokens)
    host, device = split(module)
    source = HERE / "encoder.cu.txt"
    source.write_text(tvm.get_global_func("target.build.cuda")(device, TARGET).inspect_source())
    made = HERE / "encoder.ptx"
    subprocess.run(["nvcc", "-w", "-ptx", "-arch=sm_80", "-x", "cu", str(source), "-o", str(made)], check=True)
    source.unlink()
    program = Program(module, host)
    about = {"tvm": tvm.__version__, "torch": torch.__version__, "output": program.output}
    about |= {"buffers": program.buffers, "launches": program.launches}
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in about.items())
    (HERE / "encoder.json").write_text(f"{{\n{lines}\n}}\n")
    with torch.inference_mode():
        np.save(HERE / "encoder.npy", network(tokens).numpy())
    print(len(program.launches), "launches of", len({one["symbol"] for one in program.launches}), "kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main())

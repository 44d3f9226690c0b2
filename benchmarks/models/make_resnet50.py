"""Makes resnet50.ptx, resnet50.json and resnet50_logits.npy: ResNet-50 through TVM and nvcc, and PyTorch's answer.

Needs apache-tvm 0.27, PyTorch and nvcc 13. The network is exported with its parameters bound, lowered up to the calls
of the compiled functions, and each function's launches are read out of its host code. Buffers stay apart: where they
lie is the executor's business.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
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

from benchmarks.models import resnet50
from benchmarks.models.resnet50_torch import network
from kaas.arguments import Buffer, In, Out
from kaas.graph import KTask
from kaas.kernel import Kernel
from kaas.library import Library

TARGET = tvm.target.Target(
    {
        "kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152,
        "thread_warp_size": 32, "host": {"kind": "llvm"},
    }
)  # fmt: skip
SCHEDULES = (
    dlight.gpu.Matmul(), dlight.gpu.GEMV(), dlight.gpu.Reduction(), dlight.gpu.GeneralReduction(),
    dlight.gpu.Fallback(),
)  # fmt: skip

Launch = tuple[str, list[str], dict[str, int]]
"""A kernel's name, the names of its arguments, its extents by TVM's tags."""


def lowered(model: torch.nn.Module, x: torch.Tensor) -> tvm.IRModule:
    """The network as calls of scheduled functions, each with buffers for its results."""
    module = from_exported_program(torch.export.export(model, (x,)))
    with TARGET:
        return tvm.transform.Sequential([
            relax.transform.DecomposeOpsForInference(), relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(), relax.transform.FoldConstant(), relax.transform.FuseOps(),
            relax.transform.FuseTIR(), relax.transform.DeadCodeElimination(), dlight.ApplyDefaultSchedule(*SCHEDULES),
            relax.transform.RewriteDataflowReshape(), relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(), relax.transform.CallTIRRewrite(),
        ])(module)  # fmt: skip


def split(module: tvm.IRModule) -> tuple[tvm.IRModule, tvm.IRModule]:
    """Host and device code of the functions, up to code generation."""
    functions = {
        name: function.with_attr("global_symbol", name.name_hint)
        for name, function in module.functions.items()
        if isinstance(function, tirx.PrimFunc)
    }
    pipeline, _, finish = tirx.get_default_tir_pipeline(TARGET)
    host, devices = split_host_device_mods(pipeline(tirx.transform.BindTarget(TARGET)(tvm.IRModule(functions))))
    (device,) = devices.values()
    return host, finish()(device)


def launches(function: tirx.PrimFunc) -> list[Launch]:
    found: list[Launch] = []

    def visit(node: Any, visitor: Any) -> Any:
        if isinstance(node, tvm.ir.Call) and getattr(node.op, "name", "") == "tirx.call_ffi_kernel":
            tags = [str(tag) for tag in node.attrs.launch_params]
            name, *values = node.args
            given, extents = values[: len(values) - len(tags)], values[len(values) - len(tags) :]
            found.append(
                (name.value, [plain(value) for value in given], dict(zip(tags, map(int, extents), strict=True)))
            )
        return visitor.default_visit(node)

    tvm_ffi.structural_visit(function.body, visit)
    return found


def plain(value: Any) -> str:
    """One spelling of a parameter, its handle and its data pointer."""
    name = value if isinstance(value, str) else getattr(value, "name", str(value))
    return re.sub(r"\W", "_", re.sub(r"(_ptr|\.data)$", "", name))


class Graph:
    """The lowered main function's calls as kernels of a kTask."""

    def __init__(self, module: tvm.IRModule, host: tvm.IRModule, library: Library, weights: dict[str, Any]) -> None:
        self.library, self.weights = library, weights
        self.buffers: dict[str, Buffer] = {}
        self.kernels: list[Kernel] = []
        self.parameters = {
            name.name_hint: [plain(parameter.name) for parameter in function.params]
            for name, function in module.functions.items()
            if isinstance(function, tirx.PrimFunc)
        }
        self.launches = {name.name_hint: launches(function) for name, function in host.functions.items()}
        main = module["main"]
        (parameter,) = main.params
        self.buffers[parameter.name] = Buffer("x", [int(n) for n in parameter.ty.shape], "float32")
        for block in main.body.blocks:
            for binding in block.bindings:
                self.bind(binding.var.name, binding.value)

    def bind(self, name: str, value: Any) -> None:
        match value:
            case relax.Var():
                self.buffers[name] = self.buffers[value.name]
            case relax.Tuple(fields=[only]):
                self.buffers[name] = self.buffers[only.name]
            case tvm.ir.Call(op=tvm.ir.GlobalVar() as function):
                self.call(function.name_hint, [self.buffer(argument) for argument in value.args])
            case tvm.ir.Call(op=tvm.ir.Op(name="relax.builtin.alloc_tensor")):
                shape = [int(n) for n in value.args[0].values]
                self.buffers[name] = Buffer(name, shape, str(value.args[1].value))
            case tvm.ir.Call(op=tvm.ir.Op(name="relax.reshape")):
                self.buffers[name] = self.buffers[value.args[0].name]
            case _:
                raise NotImplementedError(f"{name} = {value}")

    def buffer(self, value: Any) -> Buffer:
        if isinstance(value, relax.Var):
            return self.buffers[value.name]
        array = value.value.numpy()
        flat = array.ravel()
        alike = ((name, known.ravel()) for name, known in self.weights.items() if known.size == flat.size)
        name = next(name for name, known in alike if np.allclose(known, flat, rtol=1e-6, atol=0))
        return self.buffers.setdefault(name, Buffer(name, array.shape, str(array.dtype)))

    def call(self, function: str, given: list[Buffer]) -> None:
        by_name = dict(zip(self.parameters[function], given, strict=True))
        ((symbol, arguments, extents),) = self.launches[function]
        grid, block = ([extents.get(f"{what}.{axis}", 1) for axis in "xyz"] for what in ("blockIdx", "threadIdx"))
        result = given[-1]
        accesses = [(Out if by_name[name] is result else In)(by_name[name]) for name in arguments]
        shared_bytes = extents.get("tirx.use_dyn_shared_memory", 0)
        self.kernels.append(Kernel(self.library, symbol, grid, block, accesses, shared_bytes))


def ptx(source: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "resnet50.cu"
        path.write_text(source)
        subprocess.run(
            ["nvcc", "-w", "-ptx", "-arch=sm_80", str(path), "-o", str(path.with_suffix(".ptx"))], check=True
        )
        return path.with_suffix(".ptx").read_text()


def main() -> None:
    model = network()
    x = torch.from_numpy(resnet50.picture())
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    for name, value in list(weights.items()):
        if name.endswith("running_var"):
            weights[name + resnet50.DEVIATION] = resnet50.deviation_of(value)
        if value.ndim == 2:
            weights[name + resnet50.TRANSPOSED] = value.T
    module = lowered(model, x)
    host, device = split(module)
    resnet50.PTX.write_text(ptx(tvm.get_global_func("target.build.cuda")(device, TARGET).inspect_source()))
    graph = Graph(module, host, Library.from_file(resnet50.PTX), weights)
    last = graph.kernels[-1].writes[0]
    task = KTask(graph.kernels, [last], name="resnet50").to_dict()
    del task["libraries"]
    resnet50.LAUNCHES.write_text(json.dumps(task).replace(last.name + '"', 'logits"'))
    with torch.inference_mode():
        np.save(resnet50.LOGITS, model(x).numpy())


if __name__ == "__main__":
    main()

"""ResNet-50 and BERT-base on a GPU: a warm kTask over TVM's own virtual machine on the same scheduled module.

    python -m benchmarks.gpu_models [--json] [--rounds 50] [--models resnet50 bert] [--device gpu]

Both read an input on the device if an installed library can put it there (CuPy, torch), and return the result on the
host; they take turns, and medians are compared. The virtual machine compiles its kernels by NVRTC from the same CUDA
C++; `..._vm_graph_ms` is the same with its CUDA graphs. `..._kernels_ms` is the sum of the kTask's kernels, each
between two events, and `..._graph_ms` the time of its graph.

Needs a GPU, apache-tvm, onnx and nvidia-cuda-nvrtc. With --device software the kTask runs on the software GPU and the
virtual machine's code on the CPU, unscheduled: that says nothing about speed, but tries every line.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # Ray reads it when it is imported

import numpy as np

import kaas
from benchmarks.models import MODELS, Model, relative_error
from benchmarks.report import Bar, parser, positive, report
from kaas.config import Device
from kaas.errors import DeviceUnavailable
from kaas.executor.local import executor_for

if TYPE_CHECKING:
    import tvm

    from tvm_backend.frontends.imported import Imported
    from tvm_backend.targets import Target

NEEDED = ("tvm", "tvm_backend", "onnx")
TOLERANCE = 1e-3
WARM_UP = 3

Inputs = dict[str, np.ndarray[Any, Any]]
Run = Callable[[], list[np.ndarray[Any, Any]]]
"""One inference: returns the results on the host."""


def kernel_target() -> Target:
    """Return the target for this machine's GPU."""
    from tvm_backend.targets import parsed

    major, minor = executor_for(Device("gpu")).device.info().compute_capability
    return parsed(f"sm_{major}{minor}")


def scheduled(imported: Imported, target: Target) -> tvm.IRModule:
    """Return the module with the kTask's kernels."""
    from tvm_backend import lowering
    from tvm_backend.constants import Names

    with target.tvm:
        return lowering.by_dlight(lowering.fused(imported.module, target, Names(imported.constants)))


def executable(module: tvm.IRModule, target: Any, graphs: bool) -> Any:
    """Build the module by TVM's own passes after scheduling, and `relax.build`."""
    import tvm
    from tvm import relax

    transform = relax.transform
    passes = [
        transform.RewriteDataflowReshape(), transform.ToNonDataflow(), transform.RemovePurityChecking(),
        transform.CallTIRRewrite(), transform.StaticPlanBlockMemory(),
        *([transform.RewriteCUDAGraph()] if graphs else []),
        transform.LowerAllocTensor(), transform.KillAfterLastUse(), transform.LowerRuntimeBuiltin(),
        transform.ComputePrimValue(), transform.VMShapeLower(), transform.AttachGlobalSymbol(),
    ]  # fmt: skip
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": graphs}):
        return relax.build(module, target, relax_pipeline=tvm.transform.Sequential(passes))


def compile_by_nvrtc(target: Target) -> None:
    """Let TVM compile its CUDA C++ as KaaS does, by the NVRTC that is installed as a package."""
    import tvm_ffi

    from tvm_backend.library import library

    def compiled(source: str, *_: Any) -> bytes:
        (image,) = library(source, target).images
        return image.data

    tvm_ffi.register_global_func("tvm_callback_cuda_compile", compiled, override=True)


def virtual_machine(built: Any, device: Any, entry: str, inputs: Iterable[np.ndarray[Any, Any]]) -> Run:
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(built, device)
    placed = [tvm.runtime.tensor(np.ascontiguousarray(value), device) for value in inputs]
    machine.set_input(entry, *placed)

    def run() -> list[np.ndarray[Any, Any]]:
        machine.invoke_stateful(entry)
        result = machine.get_outputs(entry)
        outputs = [result] if hasattr(result, "numpy") else list(result)
        return [output.numpy() for output in outputs]  # numpy() waits for the device

    return run


def ktask(made: kaas.CompiledModel, inputs: Inputs, device: Device) -> Run:
    placed = on_device(inputs) if device.kind == "gpu" else inputs

    def run() -> list[np.ndarray[Any, Any]]:
        return list(made.run(placed, device=device).outputs.values())

    return run


def on_device(inputs: Inputs) -> dict[str, Any]:
    """Return the arrays on the GPU if an installed library can put them there; else unchanged."""
    if importlib.util.find_spec("cupy"):
        import cupy

        return {name: cupy.asarray(value) for name, value in inputs.items()}
    if importlib.util.find_spec("torch"):
        import torch

        return {name: torch.from_numpy(value).cuda() for name, value in inputs.items()}
    return dict(inputs)


def taken_in_turns(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    """Return the median seconds of each."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(WARM_UP + rounds):
        for name, run in runs.items():
            began = perf_counter()
            run()
            if turn >= WARM_UP:
                times[name].append(perf_counter() - began)
    return {name: median(values) for name, values in times.items()}


def through_ray(made: kaas.CompiledModel, inputs: Inputs, device: Device, rounds: int) -> float:
    """Return the median seconds from `remote` to the result."""
    import ray

    kaas.init(devices=[device])
    try:
        function = made.register()
        return taken_in_turns({"invoke": lambda: [ray.get(function.remote(**inputs))]}, rounds)["invoke"]
    finally:
        kaas.shutdown()


def machines(model: Model, inputs: Inputs, device: Device) -> tuple[kaas.CompiledModel, dict[str, Run]]:
    """Return the model as a kTask, and as programs of the virtual machine without and with CUDA graphs."""
    import tvm

    import tvm_backend
    from tvm_backend import frontends

    imported = frontends.prepared(model.graph(), None, (1,), model.name).imported()
    (entry,) = imported.functions
    values = [inputs[name] for name in entry.inputs]
    if device.kind == "software":
        made = tvm_backend.compile(model.graph(), batch_sizes=(1,), name=model.name)
        module = tvm.transform.Sequential([tvm.relax.transform.LegalizeOps()])(imported.module)
        built = executable(module, tvm.target.Target("llvm"), graphs=False)
        return made, {"vm": virtual_machine(built, tvm.cpu(), entry.function, values)}
    target = kernel_target()
    made = tvm_backend.compile(model.graph(), batch_sizes=(1,), name=model.name, target=target.name)
    compile_by_nvrtc(target)
    module = scheduled(imported, target)
    return made, {
        name: virtual_machine(executable(module, target.tvm, graphs), tvm.cuda(), entry.function, values)
        for name, graphs in (("vm", False), ("vm_graph", True))
    }


def measure(model: Model, device: Device, rounds: int) -> dict[str, float]:
    """Return median milliseconds by measurement."""
    inputs = model.inputs()
    made, runs = machines(model, inputs, device)
    runs["ktask"] = ktask(made, inputs, device)
    expected = list(model.answers().values())
    for name, run in runs.items():
        if not all(relative_error(given, known) < TOLERANCE for given, known in zip(run(), expected, strict=True)):
            raise SystemExit(f"{model.name}: {name} gives another result than PyTorch")
    seconds = taken_in_turns(runs, rounds)
    profiles = [made.run(inputs, device=device, profile=True).stats.kernels for _ in range(5)]
    seconds["kernels"] = median(sum(kernel.seconds for kernel in profile) for profile in profiles)
    if importlib.util.find_spec("ray"):
        seconds["invoke"] = through_ray(made, inputs, device, rounds)
    seconds["graph"] = median(made.run(inputs, device=device).stats.device_s for _ in range(5))
    return {f"{name}_ms": 1e3 * value for name, value in seconds.items()}


def main() -> int:
    made = parser((__doc__ or "").partition("\n")[0])
    made.add_argument("--rounds", type=positive, default=50)
    made.add_argument("--models", nargs="+", choices=list(MODELS), default=["resnet50", "bert"])
    made.add_argument("--device", choices=("gpu", "software"), default="gpu")
    options = made.parse_args()
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        print(
            f"needs {', '.join(missing)}, which is not installed; TVM comes with compilers/tvm_backend", file=sys.stderr
        )
        return 2
    device = Device(options.device)
    bars: dict[str, Bar] = {}
    detail: dict[str, Any] = {}
    try:
        for name in options.models:
            found = measure(MODELS[name], device, options.rounds)
            bars[f"{name}_over_tvm"] = (found["ktask_ms"] / found["vm_ms"], "<=", 1.0)
            detail |= {f"{name}_{what}": value for what, value in found.items()}
    except DeviceUnavailable as error:
        print(f"needs a GPU: {error}", file=sys.stderr)
        return 2
    report("gpu_models", bars, detail, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

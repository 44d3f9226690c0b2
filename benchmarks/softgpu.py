"""The software GPU's speed of running and compiling kernels, over NumPy, an empty C function, nvcc and PyTorch (CPU).

Both sides of a ratio run in turn. Bars that need nvcc, TVM or PyTorch are left out with a message if these are missing.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from cuda.bindings import driver
from numpy.typing import NDArray

import softgpu
from benchmarks.models import MODELS
from benchmarks.report import Bar, arguments, report
from benchmarks.softgpu_compile import Source, measure
from kaas.executor.device.driver_errors import call
from softgpu import target

RESNET = MODELS["resnet50"]
PTX = Path(__file__).parent / "kernels" / "softgpu.ptx"
COUNT = 1 << 24
REPEATS = 15
GRAPH_KERNELS = 1000
Array = NDArray[np.float32]


class Gpu:
    """The first device: copies of arrays to it and back, and launches that wait for the end."""

    def __init__(self, ptx: Path) -> None:
        self.context = call(driver.cuDevicePrimaryCtxRetain, 0)
        call(driver.cuCtxSetCurrent, self.context)
        self.library = call(driver.cuLibraryLoadData, ptx.read_bytes() + b"\0", [], [], 0, [], [], 0)
        self.stream = call(driver.cuStreamCreate, driver.CUstream_flags.CU_STREAM_NON_BLOCKING)

    def put(self, array: Array) -> Any:
        pointer = call(driver.cuMemAlloc, array.nbytes)
        call(driver.cuMemcpyHtoD, pointer, array.ctypes.data, array.nbytes)
        return pointer

    def get(self, pointer: Any, like: Array) -> Array:
        out = np.empty_like(like)
        call(driver.cuMemcpyDtoH, out.ctypes.data, pointer, out.nbytes)
        return out

    def kernel(self, name: str) -> Any:
        return call(driver.cuKernelGetFunction, call(driver.cuLibraryGetKernel, self.library, name.encode()))

    def runner(self, name: str, grid: tuple[int, ...], block: tuple[int, ...], *values: Any) -> Callable[[], None]:
        """Launch the kernel with these pointers and unsigned integers, and wait for its end."""
        function = self.kernel(name)
        (gx, gy, gz), (bx, by, bz) = (*grid, 1, 1)[:3], (*block, 1, 1)[:3]
        packed = (tuple(values), tuple(ctypes.c_uint32 if isinstance(value, int) else None for value in values))

        def run() -> None:
            call(driver.cuLaunchKernel, function, gx, gy, gz, bx, by, bz, 0, self.stream, packed, 0)
            call(driver.cuStreamSynchronize, self.stream)

        return run


def in_turn(*sides: Callable[[], object]) -> list[float]:
    """Return the median seconds of each side."""
    times: list[list[float]] = [[] for _ in sides]
    for turn in range(REPEATS + 2):
        for side, seconds in zip(sides, times, strict=True):
            began = perf_counter()
            side()
            if turn >= 2:
                seconds.append(perf_counter() - began)
    return [median(seconds) for seconds in times]


def vector_add(gpu: Gpu) -> list[float]:
    a, b = (np.random.default_rng(seed).random(COUNT, np.float32) for seed in (1, 2))
    c = np.empty_like(a)
    x, y, z = gpu.put(a), gpu.put(b), gpu.put(c)
    times = in_turn(gpu.runner("vector_add", (COUNT // 256,), (256,), x, y, z, COUNT), lambda: np.add(a, b, out=c))
    np.testing.assert_array_equal(gpu.get(z, c), c)
    return times


def reduction(gpu: Gpu) -> list[float]:
    a = np.random.default_rng(1).random(COUNT, np.float32)
    total = np.zeros(1, np.float32)
    x, out = gpu.put(a), gpu.put(total)
    times = in_turn(gpu.runner("block_sum", (256,), (256,), x, out, COUNT), lambda: np.sum(a))
    np.testing.assert_allclose(gpu.get(out, total), (REPEATS + 2) * a.sum(dtype=np.float64), rtol=1e-4)
    return times


def sgemm(gpu: Gpu, name: str, n: int, tile: int, block: tuple[int, ...]) -> list[float]:
    a, b = (np.random.default_rng(seed).random((n, n), np.float32) for seed in (1, 2))
    c = np.empty_like(a)
    x, y, z = gpu.put(a), gpu.put(b), gpu.put(c)
    times = in_turn(gpu.runner(name, (n // tile, n // tile), block, x, y, z, n), lambda: np.matmul(a, b, out=c))
    np.testing.assert_allclose(gpu.get(z, c), c, rtol=1e-4)
    return times


def graph_kernel(gpu: Gpu) -> list[float]:
    """Return the seconds of an empty kernel in a graph of GRAPH_KERNELS, and of a call of an empty C function."""
    function = gpu.kernel("empty")
    graph = call(driver.cuGraphCreate, 0)
    before: list[Any] = []
    for _ in range(GRAPH_KERNELS):
        node = driver.CUDA_KERNEL_NODE_PARAMS()
        node.func = function
        node.gridDimX = node.gridDimY = node.gridDimZ = node.blockDimX = node.blockDimY = node.blockDimZ = 1
        before = [call(driver.cuGraphAddKernelNode, graph, before, len(before), node)]
    instance = call(driver.cuGraphInstantiate, graph, 0)
    engine = llvm.create_mcjit_compiler(
        llvm.parse_assembly("define void @nothing() { ret void }"),
        llvm.Target.from_default_triple().create_target_machine(),
    )
    nothing = ctypes.CFUNCTYPE(None)(engine.get_function_address("nothing"))

    def replay() -> None:
        call(driver.cuGraphLaunch, instance, gpu.stream)
        call(driver.cuStreamSynchronize, gpu.stream)

    def calls() -> None:
        for _ in range(GRAPH_KERNELS):
            nothing()

    return [seconds / GRAPH_KERNELS for seconds in in_turn(replay, calls)]


def network() -> list[float]:
    """Return the seconds of ResNet-50 for a picture with loaded weights, here, as one graph, and in PyTorch."""
    import torch

    compiled, in_torch, inputs = RESNET.compiled(), RESNET.network(), RESNET.inputs()
    picture = torch.from_numpy(inputs["x"])
    with torch.inference_mode():
        expected = in_torch(picture).numpy()
        np.testing.assert_allclose(compiled.run_local(picture), expected, rtol=0, atol=1e-3 * np.abs(expected).max())
        return in_turn(lambda: compiled.run_local(picture), lambda: in_torch(picture))


def network_kernels(folder: str) -> Source:
    """Return all kernels of ResNet-50's PTX, with the blocks of their launches."""
    compiled = RESNET.compiled()
    (ptx,) = (image.data for image in compiled.library.images if image.kind == "ptx")
    path = Path(folder) / "resnet50.ptx"
    # NVRTC writes the newest version of PTX that it knows; an older nvcc can read PTX for sm_80 nevertheless
    path.write_bytes(re.sub(rb"\.version \d+\.\d+", b".version 8.0", ptx.rstrip(b"\0"), count=1))
    return Source(path, {kernel.symbol: kernel.block for kernel in compiled.variants[0].task.kernels})


def missing(what: str, **packages: str) -> bool:
    """Return True if a package that bars need is missing, and print on stderr how to install it."""
    gone = [pip for module, pip in packages.items() if importlib.util.find_spec(module) is None]
    for pip in gone:
        print(f"{what}: left out, `pip install {pip}` brings what is missing", file=sys.stderr)
    return bool(gone)


def with_nvcc() -> tuple[dict[str, Bar], dict[str, float]]:
    """Return the bars and details of compiling; none, with a message on stderr, without nvcc or TVM."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        print("no nvcc here: compile and cached_load are left out; the CUDA toolkit has it", file=sys.stderr)
    if nvcc is None or missing("compile and cached_load", tvm="apache-tvm", onnx="onnx"):
        return {}, {}
    with tempfile.TemporaryDirectory() as folder:
        (times,) = measure(nvcc, [network_kernels(folder)]).values()
    bars: dict[str, Bar] = {
        "compile": (times["cold_s"] / times["nvcc_s"], "<=", 6.0),
        "cached_load": (times["cached_s"] / times["nvcc_s"], "<=", 0.3),
    }
    return bars, {f"compile_{way}": seconds for way, seconds in times.items()}


def with_torch() -> tuple[dict[str, Bar], dict[str, float]]:
    """Return the same for the network's speed."""
    if missing("resnet50", torch="torch", tvm="apache-tvm", onnx="onnx"):
        return {}, {}
    here, torch = network()
    return {"resnet50": (here / torch, "<=", 60.0)}, {"resnet50_s": here, "resnet50_torch_s": torch}


def main() -> None:
    options = arguments(__doc__ or "")
    softgpu.load([softgpu.Device(1 << 30)])
    call(driver.cuInit, 0)
    gpu = Gpu(PTX)
    add, add_numpy = vector_add(gpu)
    total, total_numpy = reduction(gpu)
    tiled, tiled_numpy = sgemm(gpu, "sgemm_tiled", 512, 16, (16, 16))
    register, register_numpy = sgemm(gpu, "sgemm_register", 1024, 128, (256,))
    small, _ = sgemm(gpu, "sgemm_register_small", 1024, 64, (256,))
    replay, c_call = graph_kernel(gpu)
    compile_bars, compile_detail = with_nvcc()
    network_bars, network_detail = with_torch()
    bars: dict[str, Bar] = {
        "vector_add": (add / add_numpy, "<=", 1.3),
        "reduction": (total / total_numpy, "<=", 2.0),
        "sgemm_tiled": (tiled_numpy / tiled, ">=", 0.04),
        "sgemm_register": (register_numpy / register, ">=", 0.07),
        "graph_kernel": (replay / c_call, "<=", 2.0),
        **compile_bars,
        **network_bars,
    }
    processor = target.host()
    detail = {
        "processor": processor.cpu, "vectors": processor.vectors,
        "vector_add_s": add, "vector_add_numpy_s": add_numpy, "reduction_s": total, "reduction_numpy_s": total_numpy,
        "sgemm_tiled_gflops": 2 * 512**3 / tiled / 1e9, "numpy_512_gflops": 2 * 512**3 / tiled_numpy / 1e9,
        "sgemm_register_gflops": 2 * 1024**3 / register / 1e9,
        "sgemm_register_small_gflops": 2 * 1024**3 / small / 1e9,
        "numpy_1024_gflops": 2 * 1024**3 / register_numpy / 1e9,
        "graph_kernel_ns": replay * 1e9, "c_call_ns": c_call * 1e9, **compile_detail, **network_detail,
    }  # fmt: skip
    report("softgpu", bars, detail, options.json)


if __name__ == "__main__":
    main()

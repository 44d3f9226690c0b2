"""A process that loads, compiles and runs bad images, and says of each how it ended.

It reads lines `seed number` or a path, and answers each with a line: the number or path, a tab, and how it ended:
"refused", "uncompiled", "ran", "failed", "cancelled", or what is wrong. Its arguments: a folder for code, and after how
many seconds a kernel is cancelled.
"""

from __future__ import annotations

import ctypes
import random
import resource
import sys
import threading
from pathlib import Path
from typing import Any

from cuda.bindings import driver

import softgpu
from softgpu.c_interface import CompileError
from softgpu.jit import Compiler
from softgpu.module_info import KernelInfo
from softgpu.tests.compiler.fuzz.mutations import image

DEVICE_BYTES = 64 << 20
MEMORY_BYTES = 6 << 30  # of address space
BUFFER_BYTES = 1 << 20
KERNELS = 2  # of one image
MISTAKE = "a mistake of the software GPU's compiler"
BLOCKS = [(1, 1, 1), (32, 1, 1), (48, 1, 1), (64, 1, 1), (8, 4, 2), (256, 1, 1)]
Error = driver.CUresult


class Wrong(Exception):
    """A result that must not happen."""


def _ok(result: tuple[Any, ...]) -> Any:
    if result[0] != Error.CUDA_SUCCESS:
        raise Wrong(f"the driver fails: {result[0]!r} {softgpu.last_error()}")
    return result[1] if len(result) > 1 else None


class Trial:
    """The driver with memcheck, and the compiler without."""

    def __init__(self, cache: Path, run_limit_s: float) -> None:
        self.run_limit_s = run_limit_s
        softgpu.load([DEVICE_BYTES], memcheck=True, force=True)
        _ok(driver.cuInit(0))
        self.library = ctypes.CDLL("libcuda.so.1")
        self.compiler = Compiler(self.library, cache)
        self.renew()

    def renew(self) -> None:
        """A context in which nothing has failed."""
        self.context = _ok(driver.cuCtxCreate(None, 0, 0))
        self.buffer = int(_ok(driver.cuMemAlloc(BUFFER_BYTES)))

    def attempt(self, content: bytes, chance: random.Random) -> str:
        """Return the outcome. Raise Wrong, or an exception that the compiler should have turned into a CompileError."""
        try:
            handle = self.compiler.load(content)
        except CompileError as error:
            _sensible(error)
            self.refused(content, error.result)
            return "refused"
        kernels = self.compiler.describe(handle)[0].kernels
        chosen = chance.sample(range(len(kernels)), min(KERNELS, len(kernels)))
        for index in chosen:
            try:
                self.compiler.compile(handle, index, chance.choice(BLOCKS))
            except CompileError as error:
                _sensible(error)
        self.compiler.unload(handle)
        return self.run(content, [kernels[index] for index in chosen], chance)

    def refused(self, content: bytes, result: int) -> None:
        status = driver.cuModuleLoadData(content + b"\0")[0]
        # the driver sees the first NUL as the end of the text
        if status == Error.CUDA_SUCCESS and b"\0" not in content:
            raise Wrong(f"the driver loads what the compiler refuses with {result}")

    def run(self, content: bytes, kernels: list[KernelInfo], chance: random.Random) -> str:
        status, module = driver.cuModuleLoadData(content + b"\0")
        if status != Error.CUDA_SUCCESS:
            raise Wrong(f"the driver does not load what the compiler does: {status!r} {softgpu.last_error()}")
        outcome = "uncompiled"
        for kernel in kernels:
            outcome = self.launch(module, kernel, chance)
            if outcome in ("failed", "cancelled"):
                driver.cuCtxDestroy(self.context)
                self.renew()
                return outcome
        _ok(driver.cuModuleUnload(module))
        return outcome

    def launch(self, module: Any, kernel: KernelInfo, chance: random.Random) -> str:
        """Return the outcome; after "failed" and "cancelled" the context cannot be used any more."""
        found = driver.cuModuleGetFunction(module, kernel.name.encode())
        if found[0] == Error.CUDA_ERROR_INVALID_PTX:  # a kernel without code here is refused when it is taken
            return "uncompiled"
        function = _ok(found)
        parameters = [ctypes.create_string_buffer(self.argument(size, chance), size) for _, size in kernel.parameters]
        pointers = (ctypes.c_void_p * (len(parameters) + 1))(*(ctypes.addressof(p) for p in parameters))
        cancelled = threading.Event()

        def cancel() -> None:
            cancelled.set()
            softgpu.cancel(0)

        timer = threading.Timer(self.run_limit_s, cancel)
        timer.start()
        given = driver.cuLaunchKernel(function, 2, 1, 1, *chance.choice(BLOCKS), 0, 0, ctypes.addressof(pointers), 0)
        statuses = [given[0], driver.cuCtxSynchronize()[0]]
        timer.cancel()
        timer.join()
        for status in statuses:
            if status == Error.CUDA_ERROR_UNKNOWN or MISTAKE in softgpu.last_error():
                raise Wrong(f"kernel {kernel.name}: {status!r} {softgpu.last_error()}")
        if cancelled.is_set():
            return "cancelled"
        if statuses[1] != Error.CUDA_SUCCESS:
            return "failed"
        return "ran" if statuses[0] == Error.CUDA_SUCCESS else "uncompiled"

    def argument(self, size: int, chance: random.Random) -> bytes:
        if size == 8 and chance.random() < 0.9:
            return (self.buffer + BUFFER_BYTES // 2).to_bytes(8, "little")
        if size <= 4:
            return chance.choice([0, 1, 7, 64, 1000, (1 << 8 * size) - 1]).to_bytes(max(size, 4), "little")[:size]
        return bytes(size)


def _sensible(error: CompileError) -> None:
    if MISTAKE in error.message or error.result == Error.CUDA_ERROR_UNKNOWN:
        raise Wrong(f"the compiler stumbles: {error.message}")


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    trial = Trial(Path(sys.argv[1]), float(sys.argv[2]))
    softgpu.set_echo(False)  # stdout is for verdicts
    for line in sys.stdin:
        name, _, number = line.strip().rpartition(" ")
        content = image(int(name), int(number)) if name else Path(number).read_bytes()
        try:
            verdict = trial.attempt(content, random.Random(number))
        except Exception as error:  # noqa: BLE001 - this is what the fuzz is to find
            verdict = f"{type(error).__name__}: {error}".replace("\n", " ")[:600]
        print(f"{number}\t{verdict}", flush=True)


if __name__ == "__main__":
    main()

"""Runs cases on device 0 of whatever CUDA driver this process has, by the calls of cuda.bindings that programs make."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from cuda.bindings import driver

import softgpu
from softgpu.tests.compiler.corpus.case import HERE, Arrays, At, Case, Launch, Struct, triple
from tests.timeouts import TIMEOUT_S

DEFAULT_SHARED_BYTES = 48 << 10


def call(result: Any) -> Any:
    """The value of a call of the driver that must succeed."""
    status, *values = result
    assert status == driver.CUresult.CUDA_SUCCESS, (status, softgpu.last_error() if softgpu.loaded_devices() else "")
    return values[0] if values else None


@contextmanager
def allocated(arrays: Arrays) -> Iterator[dict[str, int]]:
    """Device memory with these contents; the addresses by name."""
    addresses: dict[str, int] = {}
    try:
        for name, array in arrays.items():
            addresses[name] = int(call(driver.cuMemAlloc(max(array.nbytes, 1))))
            call(driver.cuMemcpyHtoD(addresses[name], array.ctypes.data, array.nbytes))
        yield addresses
    finally:
        for address in addresses.values():
            call(driver.cuMemFree(address))


@contextmanager
def ending() -> Iterator[None]:
    """Kernels of the software GPU that do not end are cancelled, so that their case fails."""
    timer = threading.Timer(TIMEOUT_S, softgpu.cancel)  # which does nothing on a GPU
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Library:
    """A loaded image and the ways into it."""

    def __init__(self, image: str) -> None:
        text = (HERE / image).read_bytes() + b"\0"
        self._library = call(driver.cuLibraryLoadData(text, [], [], 0, [], [], 0))

    def launch(self, one: Launch, addresses: Mapping[str, int]) -> None:
        function = call(driver.cuKernelGetFunction(call(driver.cuLibraryGetKernel(self._library, one.symbol.encode()))))
        if one.shared_bytes > DEFAULT_SHARED_BYTES:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            call(driver.cuFuncSetAttribute(function, attribute, one.shared_bytes))
        held = [ctypes.create_string_buffer(content, len(content)) for content in _contents(one.args, addresses)]
        params = (ctypes.c_void_p * len(held))(*(ctypes.addressof(buffer) for buffer in held))
        shape = (*triple(one.grid), *triple(one.block))
        call(driver.cuLaunchKernel(function, *shape, one.shared_bytes, 0, ctypes.addressof(params), 0))

    def close(self) -> None:
        call(driver.cuLibraryUnload(self._library))


def use_device() -> None:
    """Makes device 0's own context this thread's."""
    call(driver.cuInit(0))
    call(driver.cuCtxSetCurrent(call(driver.cuDevicePrimaryCtxRetain(call(driver.cuDeviceGet(0))))))


def run(case: Case) -> Arrays:
    """Return the contents of the arrays under test after the launches."""
    use_device()
    library = Library(case.image)
    with allocated({name: np.ascontiguousarray(array) for name, array in case.arrays.items()}) as addresses:
        for one in case.launches:
            library.launch(one, addresses)
        with ending():
            call(driver.cuCtxSynchronize())
        found = {name: np.empty(case.arrays[name].shape, case.arrays[name].dtype) for name in case.expected}
        for name, array in found.items():
            call(driver.cuMemcpyDtoH(array.ctypes.data, addresses[name], array.nbytes))
    library.close()
    return found


def _contents(arguments: Any, addresses: Mapping[str, int]) -> Iterator[bytes]:
    for argument in arguments:
        yield _bytes_of(argument, addresses)


def _bytes_of(argument: Any, addresses: Mapping[str, int]) -> bytes:
    match argument:
        case str() | At():
            return _address(argument, addresses).to_bytes(8, "little")
        case Struct(blob, pointers):
            content = bytearray(blob)
            for offset, target in pointers.items():
                content[offset : offset + 8] = _address(target, addresses).to_bytes(8, "little")
            return bytes(content)
        case _:
            return bytes(argument.tobytes())


def _address(target: str | At, addresses: Mapping[str, int]) -> int:
    match target:
        case At(name, offset):
            return addresses[name] + offset
        case name:
            return addresses[name]

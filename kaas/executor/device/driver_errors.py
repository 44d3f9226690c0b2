"""The check of every status of the CUDA driver: a failure is raised as an error of KaaS."""

from __future__ import annotations

import re
from typing import Any

from cuda.bindings import driver

import softgpu
from kaas.errors import (
    MEMCHECK_TELLS_MORE,
    CorruptImage,
    DeviceError,
    DeviceLost,
    DeviceUnavailable,
    KaasError,
    NotCompiled,
    OutOfDeviceMemory,
    UnsupportedCode,
)
from kaas.ktask.symbols import source_name

_CORRUPT = {
    200,  # INVALID_IMAGE
    300,  # INVALID_SOURCE
}
_UNSUPPORTED = {
    209,  # NO_BINARY_FOR_GPU
    218,  # INVALID_PTX
    222,  # UNSUPPORTED_PTX_VERSION
}
_NOT_COMPILED = {223}  # JIT_COMPILATION_DISABLED
_OUT_OF_MEMORY = {2}
_UNAVAILABLE = {
    3,  # NOT_INITIALIZED
    34,  # STUB_LIBRARY
    46,  # DEVICE_UNAVAILABLE
    100,  # NO_DEVICE
    101,  # INVALID_DEVICE
    102,  # DEVICE_NOT_LICENSED
    802,  # SYSTEM_NOT_READY
    803,  # SYSTEM_DRIVER_MISMATCH
    804,  # COMPAT_NOT_SUPPORTED_ON_DEVICE
}
_LOST = {
    4,  # DEINITIALIZED
    214,  # ECC_UNCORRECTABLE
    220,  # NVLINK_UNCORRECTABLE
    226,  # CONTAINED
    700,  # ILLEGAL_ADDRESS
    702,  # LAUNCH_TIMEOUT
    709,  # CONTEXT_IS_DESTROYED
    710,  # ASSERT
    714,  # HARDWARE_STACK_ERROR
    715,  # ILLEGAL_INSTRUCTION
    716,  # MISALIGNED_ADDRESS
    717,  # INVALID_ADDRESS_SPACE
    718,  # INVALID_PC
    719,  # LAUNCH_FAILED
    721,  # TENSOR_MEMORY_LEAK
    999,  # UNKNOWN
}
"""Errors that stick to the context: "the process must be terminated and relaunched" (CUDA driver API, CUresult)."""

_REFUSALS = "has no code for: "
"""The software GPU's words before the list of refused instructions, each with its line."""
_KERNEL = re.compile(r"kernel (\S+): ")
"""The beginning of its sentences about a kernel."""


def check(name: str, status: Any, *, device: str = "") -> None:
    """Raise the error of a status that is not success. `name` is the driver's function.

    Raises:
        OutOfDeviceMemory, UnsupportedCode, CorruptImage, NotCompiled, DeviceUnavailable, DeviceLost; DeviceError: all
            others.
    """
    if status:
        raise error_of(name, int(status), device)


def error_of(name: str, code: int, device: str) -> KaasError:
    """Return the error of a status, with the details that the driver gives."""
    if softgpu.loaded_devices():
        details = softgpu.last_error()
        if code == driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS and not softgpu.checks_memory():
            details += MEMCHECK_TELLS_MORE
    else:
        status, text = driver.cuGetErrorString(driver.CUresult(code))
        details = text.decode() if not status and text else ""
    return translate(name, code, driver.CUresult(code).name, details, device, sticks=_sticks(code))


def _sticks(code: int) -> bool:
    """Return True if a call that has nothing to fail at gets the status too: then each call of the context gets it."""
    return int(driver.cuMemGetInfo()[0]) == code


def call(function: Any, *args: Any, device: str = "") -> Any:
    """Call the driver and check its status. Return its other values: None, one value or a tuple."""
    status, *values = function(*args)
    check(function.__name__, status, device=device)
    return values[0] if len(values) == 1 else tuple(values) or None


def translate(call: str, code: int, name: str, details: str, device: str, *, sticks: bool = False) -> KaasError:
    """Return the error for a status.

    Args:
        call: name of the driver's function.
        code: of the CUresult.
        name: of the CUresult.
        details: a sentence, or "".
        device: name of the device, or "".
        sticks: the context has failed with this status, whatever its code.
    """
    shown = _KERNEL.sub(lambda found: f"kernel {source_name(found[1])}: ", details, count=1)
    message = f"{call}: {name}" + (f": {shown}" if shown else "")
    lost = code in _LOST or (sticks and code not in _UNAVAILABLE)
    if code in _CORRUPT:
        return CorruptImage(message)
    if code in _NOT_COMPILED:
        return NotCompiled(message)
    if code in _UNSUPPORTED:
        refused = details.partition(_REFUSALS)[2]
        return UnsupportedCode(message, instructions=tuple(refused.split("; ")) if refused else ())
    fields: dict[str, Any] = {"call": call, "code": code, "code_name": name}
    if device:
        fields["device"] = device
    if about := _KERNEL.match(details):
        fields["kernel"] = about[1]
    kinds = ((lost, DeviceLost), (code in _OUT_OF_MEMORY, OutOfDeviceMemory), (code in _UNAVAILABLE, DeviceUnavailable))
    return next((cls for so, cls in kinds if so), DeviceError)(message, **fields)

"""The software GPU: a CUDA driver for the CPU, loaded into a process before its first use of the real driver.

`load()` puts our `libcuda.so.1` where cuda.bindings looks for the driver. From then on this process has software
devices that run the PTX of ordinary CUDA kernels; code above the driver sees no difference.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from softgpu.errors import SoftgpuError
from softgpu.faults import FAULTS, Fault, forgive_faults, inject_fault
from softgpu.model import MAX_SMS, Device, Model, Takes, describe_time
from softgpu.runtime_calls import answer_runtime_calls
from softgpu.watch import describe_regions, running_kernels, take_refused
from softgpu.windows import confine, free_window, new_window, seal_handle

__all__ = [
    "DEFAULT_MEMORY_BYTES",
    "FAULTS",
    "MAX_DEVICES",
    "MAX_SMS",
    "MEMCHECK_VARIABLE",
    "MODEL_VARIABLE",
    "STRICT_VARIABLE",
    "AddressWindow",
    "Device",
    "Fault",
    "Model",
    "SoftgpuError",
    "Takes",
    "cancel",
    "checks_memory",
    "describe",
    "forgive",
    "inject",
    "last_error",
    "load",
    "loaded_devices",
    "real_driver_present",
    "refused_calls",
    "running",
    "seal",
    "set_echo",
    "set_model",
    "set_strict",
    "take_output",
]

DEFAULT_MEMORY_BYTES = 2 << 30
MAX_DEVICES = 16
MODEL_VARIABLE = "SOFTGPU_MODEL"
"""Environment variable: a file with the model (`Model.from_file`) of every device that is loaded without a model."""
STRICT_VARIABLE = "SOFTGPU_STRICT"
"""Environment variable: a seed; it turns on strict mode (`set_strict`) when software devices are loaded."""
PROBE_LIMIT_S = 60.0
OUTPUT_BYTES = 64 << 10
MEMCHECK_VARIABLE = "SOFTGPU_MEMCHECK"
KERNELS_VARIABLE = "SOFTGPU_KERNELS"
"""Environment variable: the folder for kernels that this process compiles. Those in the user's cache are read only."""


@dataclass(frozen=True, slots=True)
class _LoadedDriver:
    devices: tuple[Device, ...]
    memcheck: bool
    library: ctypes.CDLL
    compiler: Any  # kept alive: C calls its callbacks as long as the process lives


_lock = threading.Lock()
_state: dict[str, _LoadedDriver] = {}  # "driver": the driver of this process, once it is loaded
_prepared: list[Path] = []  # the driver's library, once `prepare` has found it


def load(
    devices: Sequence[int | Device] = (DEFAULT_MEMORY_BYTES,), *, force: bool = False, memcheck: bool | None = None
) -> None:
    """Give this process one software device for each entry of `devices`: a `Device`, or its memory in bytes.

    Call it before the first use of cuda.bindings or cuda.core. A second call with the same devices does nothing.

    Args:
        devices: 1 to 16 devices.
        force: load although a real driver works here; the software GPU then hides it.
        memcheck: check every memory access of a kernel, at many times the cost. The first access that is misaligned or
            outside all live allocations is an error with kernel, line, thread, address and nearest allocation. None:
            check if SOFTGPU_MEMCHECK is 1.

    Raises:
        SoftgpuError: other devices or another memcheck are loaded already, a real driver works here (unless `force`),
            or the driver library cannot be built.
        ValueError: `devices` has no or more than 16 entries, or an entry without memory.
    """
    wanted = tuple(_described(device) for device in devices)
    if not 1 <= len(wanted) <= MAX_DEVICES or any(device.memory_bytes <= 0 for device in wanted):
        raise ValueError(f"1 to {MAX_DEVICES} devices with more than 0 bytes each are possible, not {devices}")
    with _lock:
        present = _state.get("driver")
        if present is None:
            checks = os.environ.get(MEMCHECK_VARIABLE) == "1" if memcheck is None else memcheck
            _state["driver"] = _load(wanted, force=force, memcheck=checks)
        elif present.devices != wanted:
            raise SoftgpuError(
                f"this process already has the software devices {present.devices}; it cannot get {wanted}"
            )
        elif memcheck not in (None, present.memcheck):
            raise SoftgpuError(f"this process already has software devices, with memcheck={present.memcheck}")


def _described(device: int | Device) -> Device:
    given = device if isinstance(device, Device) else Device(device)
    path = os.environ.get(MODEL_VARIABLE)
    return given if given.model is not None or not path else replace(given, model=Model.from_file(path))


def set_model(ordinal: int, model: Model) -> None:
    """Give a loaded device another model, for work that is submitted from now on."""
    library = _present().library
    _check(library, describe_time(library, ordinal, model))


def set_strict(seed: int | None) -> None:
    """Turn on strict mode with this seed, or turn it off (None).

    If nothing orders two pieces of work that touch the same bytes, and at least one of them changes the bytes, the
    context fails with CUDA_ERROR_LAUNCH_FAILED and both names, even if the two do not overlap in time. A write to freed
    memory fails the context too. Work runs only when the program waits for it, and new and freed memory holds poison.
    Kernels that are launched in strict mode are compiled with checks. Correct programs get the same results.
    """
    strict_mode(_present().library, seed)


def strict_mode(library: ctypes.CDLL, seed: int | None) -> None:
    """Do the work of `set_strict` for a driver that `open_library` has loaded."""
    library.softgpu_strict.argtypes = [ctypes.c_int, ctypes.c_uint64]
    library.softgpu_strict.restype = None
    library.softgpu_strict(seed is not None, seed or 0)


def inject(fault: Fault, ordinal: int = 0) -> None:
    """Add a fault to a loaded device. At most 32 faults of all devices together may still be to come."""
    library = _present().library
    _check(library, inject_fault(library, ordinal, fault))


def forgive() -> None:
    """Remove the faults that have not come yet, end hangs, and bring lost devices back."""
    forgive_faults(_present().library)


def _present() -> _LoadedDriver:
    present = _state.get("driver")
    if present is None:
        raise SoftgpuError("there are no software devices in this process yet")
    return present


def checks_memory() -> bool:
    """Return True if the software devices of this process were loaded with memcheck."""
    present = _state.get("driver")
    return present is not None and present.memcheck


def loaded_devices() -> tuple[int, ...]:
    """Return the memory in bytes of each software device of this process; empty before `load`."""
    present = _state.get("driver")
    return tuple(device.memory_bytes for device in present.devices) if present else ()


def last_error() -> str:
    """Return the message of this thread's last failed driver call; "" without a message, and before `load`."""
    present = _state.get("driver")
    if present is None:
        return ""
    message: bytes = present.library.softgpu_last_error()
    return message.decode(errors="replace")


def refused_calls() -> tuple[str, ...]:
    """Return the names of the driver calls that were refused since the last call of this function.

    The result is empty before `load`.
    """
    present = _state.get("driver")
    return take_refused(present.library) if present is not None else ()


def cancel(device: int = 0) -> None:
    """End the kernels that run on this device. Any thread may call it.

    Their launches and later launches fail with CUDA_ERROR_LAUNCH_TIMEOUT until the device gets a new context: the error
    sticks to the context. The error names the kernels that ran.

    The call returns at once; a kernel ends at its next block or loop iteration. The call does nothing before `load`.

    Raises:
        SoftgpuError: there is no such device.
    """
    present = _state.get("driver")
    if present is not None and present.library.softgpu_cancel(device) != 0:
        raise SoftgpuError(f"there is no device {device} to cancel")


def describe(address: int, nbytes: int, regions: Sequence[tuple[str, int, int]]) -> None:
    """Divide memory inside one allocation into regions (name, offset, bytes), each within `nbytes`.

    From now on an access to these `nbytes` by kernels with checks (memcheck, strict mode) must lie in one of the
    regions, as if each were an allocation; the error names the nearest region. Regions may overlap. A call replaces the
    earlier regions of this memory; without regions it only removes them. They also end with the allocation.

    Raises:
        SoftgpuError: there is no such memory, or no device is loaded.
    """
    library = _present().library
    _check(library, describe_regions(library, address, nbytes, regions))


class AddressWindow:
    """Addresses that confined kernels cannot leave, for all devices of this process: a way to share them safely.

    Each address that such a kernel uses, in any state space, becomes one within the window: `address & mask | base`. So
    a stray access hits memory of the window, or is an error of the launch. Memory for a kernel's buffers is mapped at
    addresses from `start` to `end` by cuMemMap; kernels find their module's variables, their parameters, shared and
    local memory in the window too.

    Args:
        nbytes: a power of two, from 128 MiB: of the addresses from the base to `end`. Addresses cost no memory.

    Raises:
        SoftgpuError: no device is loaded, cuInit was not called, or this process has so many addresses no more.
    """

    MARGIN = 32 << 20
    """Bytes at the window's base where nothing can be mapped."""

    def __init__(self, nbytes: int) -> None:
        library = _present().library
        result, self.base = new_window(library, nbytes)
        _check(library, result)
        self.start, self.end = self.base + self.MARGIN, self.base + nbytes

    @contextmanager
    def confined(self) -> Iterator[None]:
        """Confine to the window the images that this thread loads meanwhile. They stay confined until unloaded."""
        library = _present().library
        _check(library, confine(library, self.base))
        try:
            yield
        finally:
            _check(library, confine(library, 0))

    def close(self) -> None:
        """Give the addresses back.

        Raises:
            SoftgpuError: memory is still mapped there, or images are still confined to them.
        """
        library = _present().library
        _check(library, free_window(library, self.base))


def seal(memory: Any) -> None:
    """Make each later mapping of memory, given by its handle, read only in every process. It is for ever.

    Mappings that exist can still be written: map the memory, seal it, and then export it.

    Raises:
        SoftgpuError: it is no live handle, or was imported from a descriptor that is read only.
    """
    library = _present().library
    _check(library, seal_handle(library, int(memory)))


def running(device: int = 0) -> tuple[str, ...]:
    """Return the symbols of the kernels that run on this device now, up to 64 KB of names.

    A kernel that hangs is in the results of two calls some time apart. The result is empty if no kernel runs, and
    before `load`.
    """
    present = _state.get("driver")
    if present is None:
        return ()
    if not 0 <= device < len(present.devices):
        raise SoftgpuError(f"there is no device {device}")
    return running_kernels(present.library, device)


def set_echo(on: bool) -> None:
    """Let the output of kernels also go to the stdout of this process, or not. It does at first.

    The call does nothing before `load`.
    """
    present = _state.get("driver")
    if present is not None:
        present.library.softgpu_echo(on)


def take_output(device: int = 0) -> str:
    """Return the newest 64 KB that kernels of this device have printed since the last call.

    The output also went to stdout at once (`set_echo`). The result is empty without output, and before `load`.
    """
    present = _state.get("driver")
    if present is None:
        return ""
    buffer = ctypes.create_string_buffer(OUTPUT_BYTES)
    count: int = present.library.softgpu_take_output(device, buffer, OUTPUT_BYTES)
    return buffer.raw[:count].decode(errors="replace")


def prepare() -> None:
    """Do the part of `load` that starts other programs, in a process that may start none later.

    That part looks for a real driver, and compiles the driver library if it is not compiled yet.

    Raises:
        SoftgpuError: as `load`.
    """
    _prepared[:] = [_library(force=False)]


def _library(*, force: bool) -> Path:
    from softgpu.build import build

    if not force and real_driver_present():
        raise SoftgpuError("a working NVIDIA driver is present; the software GPU would hide it (force=True does)")
    return build()


def real_driver_present() -> bool:
    """Return True if a libcuda.so.1 other than ours can be loaded and initialised on this machine.

    A process of its own initialises it, if there is one: this process could not replace a driver that it uses.
    """
    try:
        found = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    _ctypes.dlclose(found._handle)  # ctypes has no public name for it
    probe = "import ctypes, sys; sys.exit(0 if ctypes.CDLL('libcuda.so.1').cuInit(0) == 0 else 1)"
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", probe],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=PROBE_LIMIT_S,
        check=False,
    )
    return done.returncode == 0


def _load(devices: tuple[Device, ...], *, force: bool, memcheck: bool) -> _LoadedDriver:
    library = _prepared.pop() if _prepared else _library(force=force)
    loaded = _configure(open_library(library), devices, memcheck=memcheck)
    answer_runtime_calls()
    return loaded


def open_library(path: Path) -> ctypes.CDLL:
    """Load the driver so that later searches for `libcuda.so.1` find it by its name."""
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    library.softgpu_last_error.restype = ctypes.c_char_p
    library.softgpu_set_last_error.argtypes = [ctypes.c_char_p]
    library.softgpu_cancel.argtypes = [ctypes.c_uint32]
    library.softgpu_take_output.restype = ctypes.c_size_t
    library.softgpu_take_output.argtypes = [ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t]
    library.softgpu_configure.argtypes = [ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint64), ctypes.c_void_p]
    return library


def _configure(library: ctypes.CDLL, devices: tuple[Device, ...], *, memcheck: bool) -> _LoadedDriver:
    from softgpu.jit import Compiler  # imports llvmlite: only where kernels run

    compiler = Compiler(library, memcheck=memcheck, own=os.environ.get(KERNELS_VARIABLE))
    sizes = (ctypes.c_uint64 * len(devices))(*(device.memory_bytes for device in devices))
    _check(library, library.softgpu_configure(len(devices), sizes, ctypes.byref(compiler.callbacks)))
    for ordinal, device in enumerate(devices):
        if device.model is not None:
            _check(library, describe_time(library, ordinal, device.model))
        for fault in device.faults:
            _check(library, inject_fault(library, ordinal, fault))
    seed = os.environ.get(STRICT_VARIABLE)
    strict_mode(library, int(seed) if seed else None)
    return _LoadedDriver(devices, memcheck, library, compiler)


def _check(library: ctypes.CDLL, status: int) -> None:
    if status != 0:
        message: bytes = library.softgpu_last_error()
        raise SoftgpuError(message.decode(errors="replace"))

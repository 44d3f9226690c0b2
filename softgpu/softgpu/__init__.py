"""The software GPU: a CUDA driver for the CPU, loaded into a process before anything asks for the real one.

`load()` puts our `libcuda.so.1` where cuda.bindings looks for the driver. From then on this process has software
devices that run the PTX of ordinary CUDA kernels; nothing above the driver can tell.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from softgpu.errors import SoftgpuError
from softgpu.faults import FAULTS, Fault, forgive_faults, inject_fault
from softgpu.model import Device, Model, Takes, describe_time
from softgpu.runtime_calls import answer_runtime_calls
from softgpu.watch import describe_regions, running_kernels, take_refused

__all__ = [
    "DEFAULT_MEMORY_BYTES",
    "FAULTS",
    "MAX_DEVICES",
    "MEMCHECK_VARIABLE",
    "MODEL_VARIABLE",
    "STRICT_VARIABLE",
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
    "set_echo",
    "set_model",
    "set_strict",
    "take_output",
]

DEFAULT_MEMORY_BYTES = 2 << 30
MAX_DEVICES = 16
MODEL_VARIABLE = "SOFTGPU_MODEL"
"""Environment: a file with the model (`Model.from_file`) of every device that is given none."""
STRICT_VARIABLE = "SOFTGPU_STRICT"
"""Environment: a seed; software devices that are loaded are strict (`set_strict`) with it."""
PROBE_LIMIT_S = 60.0
OUTPUT_BYTES = 64 << 10
MEMCHECK_VARIABLE = "SOFTGPU_MEMCHECK"


@dataclass(frozen=True, slots=True)
class _Loaded:
    devices: tuple[Device, ...]
    memcheck: bool
    library: ctypes.CDLL
    compiler: Any  # its callbacks are called from C as long as the process lives


_lock = threading.Lock()
_state: dict[str, _Loaded] = {}  # "driver": the one of this process, once there is one
_prepared: list[Path] = []  # its library, where `prepare` has found it


def load(
    devices: Sequence[int | Device] = (DEFAULT_MEMORY_BYTES,), *, force: bool = False, memcheck: bool | None = None
) -> None:
    """Gives this process one software device for each entry of devices: a `Device`, or just its memory in bytes.

    Must come before the first use of cuda.bindings or cuda.core. Loading again with the same devices does nothing.

    memcheck: every access of a kernel to memory is checked, at many times the cost: the first that is outside all
    live allocations or misaligned is an error with kernel, line, thread, address and nearest allocation. None: whether
    SOFTGPU_MEMCHECK is 1.

    Raises SoftgpuError if devices or memcheck differ from what is loaded, if a real driver works here (unless
    force), and if the driver library cannot be built.
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
    """Gives a loaded device another model, for work submitted from now on."""
    library = _present().library
    _check(library, describe_time(library, ordinal, model))


def set_strict(seed: int | None) -> None:
    """Strict mode, with this seed, from now on; None: no longer.

    Two pieces of work that touch the same bytes, one changing them, fail the context with CUDA_ERROR_LAUNCH_FAILED and
    both names if nothing orders them, whether they meet or not; so do writes to freed memory. Nothing runs before
    somebody waits for it, and new and freed memory holds poison. Kernels launched meanwhile are compiled with checks.
    Programs that are right get the same results.
    """
    strict_mode(_present().library, seed)


def strict_mode(library: ctypes.CDLL, seed: int | None) -> None:
    """`set_strict` for a driver that was loaded by `open_library`."""
    library.softgpu_strict.argtypes = [ctypes.c_int, ctypes.c_uint64]
    library.softgpu_strict.restype = None
    library.softgpu_strict(seed is not None, seed or 0)


def inject(fault: Fault, ordinal: int = 0) -> None:
    """Makes a fault come on a loaded device; up to 32 at a time."""
    library = _present().library
    _check(library, inject_fault(library, ordinal, fault))


def forgive() -> None:
    """Takes back the faults that have not come, ends hangs, and finds lost devices again."""
    forgive_faults(_present().library)


def _present() -> _Loaded:
    present = _state.get("driver")
    if present is None:
        raise SoftgpuError("there are no software devices in this process yet")
    return present


def checks_memory() -> bool:
    """Whether the software devices of this process were loaded with memcheck."""
    present = _state.get("driver")
    return present is not None and present.memcheck


def loaded_devices() -> tuple[int, ...]:
    """The memory in bytes of each software device of this process; empty before `load`."""
    present = _state.get("driver")
    return tuple(device.memory_bytes for device in present.devices) if present else ()


def last_error() -> str:
    """What the last failing driver call of this thread had to say beyond its code; empty if nothing, or not loaded."""
    present = _state.get("driver")
    if present is None:
        return ""
    message: bytes = present.library.softgpu_last_error()
    return message.decode(errors="replace")


def refused_calls() -> tuple[str, ...]:
    """The driver calls that were refused since this was last asked, by name. Empty if not loaded."""
    present = _state.get("driver")
    return take_refused(present.library) if present is not None else ()


def cancel(device: int = 0) -> None:
    """Ends the kernels that run on this device, from any thread: their launches, and later ones, fail with
    CUDA_ERROR_LAUNCH_TIMEOUT, which sticks to their context, until the device gets a new context. The error names the
    kernels that ran.

    Returns at once; a kernel ends at its next block or round of a loop. Does nothing if not loaded.
    """
    present = _state.get("driver")
    if present is not None and present.library.softgpu_cancel(device) != 0:
        raise SoftgpuError(f"there is no device {device} to cancel")


def describe(address: int, nbytes: int, regions: Sequence[tuple[str, int, int]]) -> None:
    """Says what a program makes of memory in one of its allocations: regions (name, offset, bytes), each within nbytes.

    From now on an access to these nbytes by kernels with checks (memcheck, strict mode) must lie in one of the regions,
    as if each were an allocation; the error names the nearest. Regions may overlap. What was said of this memory before
    is forgotten, and all of it with no regions or with the allocation. Raises SoftgpuError if there is no such
    memory, or not loaded.
    """
    library = _present().library
    _check(library, describe_regions(library, address, nbytes, regions))


def running(device: int = 0) -> tuple[str, ...]:
    """The symbols of the kernels that run on this device now; asked twice, some way apart, it tells which one hangs.

    Up to 64 KB of names. Empty if none runs, or not loaded.
    """
    present = _state.get("driver")
    if present is None:
        return ()
    if not 0 <= device < len(present.devices):
        raise SoftgpuError(f"there is no device {device}")
    return running_kernels(present.library, device)


def set_echo(on: bool) -> None:
    """Whether what kernels print also goes to the stdout of this process, as it does at first. Does nothing if not
    loaded."""
    present = _state.get("driver")
    if present is not None:
        present.library.softgpu_echo(on)


def take_output(device: int = 0) -> str:
    """What kernels of this device have printed since it was last asked, the newest 64 KB of it.

    It also went to stdout at once (`set_echo`). Empty if nothing, or not loaded.
    """
    present = _state.get("driver")
    if present is None:
        return ""
    buffer = ctypes.create_string_buffer(OUTPUT_BYTES)
    count: int = present.library.softgpu_take_output(device, buffer, OUTPUT_BYTES)
    return buffer.raw[:count].decode(errors="replace")


def prepare() -> None:
    """Do ahead what `load` needs other programs for, in a process that may start none later: look for a real driver,
    and compile the driver library if that is not done.

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
    """Whether a libcuda.so.1 other than ours can be loaded and initialised on this machine.

    Asked in a process of its own: once loaded, a real driver could not be replaced in this one.
    """
    probe = "import ctypes, sys; sys.exit(0 if ctypes.CDLL('libcuda.so.1').cuInit(0) == 0 else 1)"
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", probe],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=PROBE_LIMIT_S,
        check=False,
    )
    return done.returncode == 0


def _load(devices: tuple[Device, ...], *, force: bool, memcheck: bool) -> _Loaded:
    library = _prepared.pop() if _prepared else _library(force=force)
    loaded = _configure(open_library(library), devices, memcheck=memcheck)
    answer_runtime_calls()
    return loaded


def open_library(path: Path) -> ctypes.CDLL:
    """Loads the driver so that later searches for `libcuda.so.1` find it by its name."""
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    library.softgpu_last_error.restype = ctypes.c_char_p
    library.softgpu_set_last_error.argtypes = [ctypes.c_char_p]
    library.softgpu_cancel.argtypes = [ctypes.c_uint32]
    library.softgpu_take_output.restype = ctypes.c_size_t
    library.softgpu_take_output.argtypes = [ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t]
    library.softgpu_configure.argtypes = [ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint64), ctypes.c_void_p]
    return library


def _configure(library: ctypes.CDLL, devices: tuple[Device, ...], *, memcheck: bool) -> _Loaded:
    from softgpu.jit import Compiler  # brings llvmlite: only where kernels run

    compiler = Compiler(library, memcheck=memcheck)
    sizes = (ctypes.c_uint64 * len(devices))(*(device.memory_bytes for device in devices))
    _check(library, library.softgpu_configure(len(devices), sizes, ctypes.byref(compiler.callbacks)))
    for ordinal, device in enumerate(devices):
        if device.model is not None:
            _check(library, describe_time(library, ordinal, device.model))
        for fault in device.faults:
            _check(library, inject_fault(library, ordinal, fault))
    seed = os.environ.get(STRICT_VARIABLE)
    strict_mode(library, int(seed) if seed else None)
    return _Loaded(devices, memcheck, library, compiler)


def _check(library: ctypes.CDLL, status: int) -> None:
    if status != 0:
        message: bytes = library.softgpu_last_error()
        raise SoftgpuError(f"the software GPU could not be set up: {message.decode(errors='replace')}")

"""`python -m tests.gpu.taken KIND`: other users take most of a device's memory while an executor runs there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver

import kaas
from kaas.errors import OutOfDeviceMemory, RequestTooLarge
from kaas.executor.device.device import open_device
from kaas.executor.device.driver_errors import call
from kaas.executor.executor import Executor, InputSource, RunRequest

MIB = 1 << 20
DEVICE_BYTES = 256 * MIB
OBJECT_BYTES = 32 * MIB
LEFT_BYTES = 16 * MIB


def reading(nbytes: int) -> kaas.KTask:
    """Return a kTask that doubles the first elements of an object."""
    library = kaas.Library.from_file(Path(__file__).parent / "kernels" / "cases.ptx")
    w, y = kaas.Buffer("w", nbytes // 4, "float32"), kaas.Buffer("y", 40, "float32")
    args: list[Any] = [kaas.Pointers([kaas.In(w), kaas.In(w)]), kaas.u32(2), kaas.Out(y), kaas.u32(40)]
    return kaas.KTask([kaas.Kernel(library, "add_rows", 2, 32, args)], [y])


def check(executor: Executor, nbytes: int, value: int) -> Any:
    """Read an object that is full of a value. Return the request's statistics."""
    source = InputSource(key=b"%d-%d" % (nbytes, value), fetch=lambda: np.full(nbytes // 4, value, np.float32))
    result = executor.run(RunRequest(reading(nbytes), {"w": source}, {}))
    np.testing.assert_array_equal(result.outputs["y"], np.full(40, 2 * value, np.float32))
    return result.stats


def main() -> None:
    """Take memory from the driver: cached objects make room, and a request that still does not fit fails alone."""
    kind = sys.argv[1]
    device = open_device(kind, 0, memory_bytes=DEVICE_BYTES if kind == "software" else None)
    executor = Executor(device, host_cache_bytes=0)
    check(executor, OBJECT_BYTES, 1)
    with device.context:
        taken = call(driver.cuMemAlloc, device.free_bytes() - LEFT_BYTES)
    assert check(executor, OBJECT_BYTES, 2).evicted
    try:
        check(executor, 3 * OBJECT_BYTES, 3)
    except (OutOfDeviceMemory, RequestTooLarge):
        pass
    else:
        raise AssertionError("a request that does not fit ran")
    check(executor, OBJECT_BYTES, 4)
    with device.context:
        call(driver.cuMemFree, taken)
    check(executor, OBJECT_BYTES, 5)
    executor.close()


if __name__ == "__main__":
    main()

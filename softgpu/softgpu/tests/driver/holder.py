"""A process that creates device memory and hands it to the test that started it."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver

import softgpu
from softgpu.tests.driver.calls import ok, view
from tests.timeouts import TIMEOUT_S

ROOT = Path(__file__).parents[4]
WHOLE = 2 << 20
FD = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
READ = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
WRITE = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
CONSTANTS = (11, 12, 13, 14)


def properties(ordinal: int = 0) -> driver.CUmemAllocationProp:
    """Those of a device's memory that can be exported."""
    made = driver.CUmemAllocationProp()
    made.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    made.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made.location.id = ordinal
    made.requestedHandleTypes = FD
    return made


def put(address: Any, memory: Any, flags: Any) -> None:
    """Map two megabytes."""
    ok(driver.cuMemMap(address, WHOLE, 0, memory, 0))
    ok(allow(address, flags))


def allow(address: Any, flags: Any) -> Any:
    """The result of a change of access."""
    access = driver.CUmemAccessDesc()
    access.location, access.flags = properties().location, flags
    return driver.cuMemSetAccess(address, WHOLE, [access], 1)


def exported(memory: Any) -> int:
    """A descriptor of memory."""
    return int(ok(driver.cuMemExportToShareableHandle(memory, FD, 0)))


def imported(descriptor: int) -> Any:
    """A handle of the memory that a descriptor names."""
    return ok(driver.cuMemImportFromShareableHandle(descriptor, FD))


class Holder:
    """The process, as the test sees it.

    Fields:
        descriptor: of memory that begins with CONSTANTS.
    """

    def __init__(self, process: subprocess.Popen[bytes], link: socket.socket) -> None:
        self._process, self._link = process, link
        _, (self.descriptor, *_), _, _ = socket.recv_fds(link, 1, 1)

    def constants(self) -> list[int]:
        """Return the numbers that the holder's own mapping has now."""
        self._link.sendall(b"?")
        return list(struct.unpack(f"{len(CONSTANTS)}I", self._link.recv(4 * len(CONSTANTS), socket.MSG_WAITALL)))

    def kill(self) -> None:
        """End the process at once."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(TIMEOUT_S)


@contextmanager
def holder(how: str) -> Iterator[Holder]:
    """A holder of memory that is sealed or not ("sealed", "open")."""
    ours, theirs = socket.socketpair()
    ours.settimeout(TIMEOUT_S)
    command = [sys.executable, "-m", "softgpu.tests.driver.holder", how, str(theirs.fileno())]
    with ours, subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        try:
            made = Holder(process, ours)
            yield made
            os.close(made.descriptor)
        finally:
            process.kill()


def main(how: str, link: socket.socket) -> None:
    softgpu.load([64 << 20])
    ok(driver.cuInit(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
    memory = ok(driver.cuMemCreate(WHOLE, properties(), 0))
    address = ok(driver.cuMemAddressReserve(WHOLE, 0, 0, 0))
    put(address, memory, WRITE)
    if how == "sealed":
        softgpu.seal(memory)
    values = np.array(CONSTANTS, np.uint32)
    ok(driver.cuMemcpyHtoD(address, values, values.nbytes))
    socket.send_fds(link, [b"!"], [exported(memory)])
    while link.recv(1):
        link.sendall(view(address, np.uint32, len(CONSTANTS)).tobytes())


if __name__ == "__main__":
    main(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))

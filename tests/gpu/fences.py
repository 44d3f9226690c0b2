"""Windows of GPUs, on a GPU and on a software device, and `python -m tests.gpu.fences KIND SYMBOL`: a fault there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from cuda.bindings import driver

import kaas
from kaas.errors import DeviceLost
from kaas.executor.device.device import OpenDevice, open_device
from kaas.executor.device.windows.gpu_window import GpuWindow
from kaas.executor.device.windows.window import ClientWindow
from kaas.executor.executor import Executor, InputSource, RunRequest
from softgpu.tests.compiler.attacks import ATTACKS, CANARY, READS
from softgpu.tests.compiler.corpus import device
from softgpu.tests.compiler.corpus.case import HERE, Arrays, Case
from softgpu.tests.compiler.corpus.device import call
from tests.gpu.faults import task

CACHE_BYTES = 64 << 20
REFUSED = ("cuda/functions.ptx", "other_flags/functions_debug.ptx")
"""Images of the corpus that fences refuse: they have functions that store to their callers' stack."""
BOUND = ("ld.shared", "ld.local", "atom.shared", "st.shared", "atom.shared.exch", "ldmatrix", "cp.async to",
         "cp.async to, fewer bytes", "ld.param by a register")  # fmt: skip
"""Attacks that hardware stops, and not a fence."""
INSIDE = tuple(name for name in ATTACKS if name not in BOUND)

OVERWRITE = "overwrite"
"""The SYMBOL of a kernel that writes to an object: it may do so to a copy in its arena, and only there."""
OVERWRITES = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 w, .param .u64 x, .param .u32 value)
{
  .reg .b64 %w, %x; .reg .b32 %v, %o; .reg .pred %p;
  ld.param.u64 %w, [w]; ld.param.u64 %x, [x]; ld.param.u32 %v, [value];
  ld.global.u32 %o, [%w]; st.global.u32 [%x], %o;
  setp.lt.s32 %p, %v, 0;
  @%p st.global.u32 [%w], %v;
  ret;
}"""


def found(name: str, seen: Any) -> bool:
    """Return True if an attack has read a canary, or a part of one. The results of atomic writes are small numbers."""
    return bool(np.isin(seen, [CANARY, CANARY & 0xFFFF, CANARY & 0xFF] if name in READS else [CANARY]).any())


def opened(kind: str) -> OpenDevice:
    """Return device 0, with a GPU's windows, whatever the device is."""
    made = open_device(kind, 0)
    made.windows = GpuWindow
    return made


def fenced(kind: str, **options: Any) -> Executor:
    """Return an executor that confines kernels as on a GPU."""
    return Executor(opened(kind), cache_bytes=CACHE_BYTES, isolation="fence", **options)


class WindowLibrary(device.Library):
    """A library whose kernels are confined to a window."""

    def __init__(self, library: kaas.Library, window: ClientWindow) -> None:
        self.loaded = window.load(library)
        self._library = self.loaded._handle

    def close(self) -> None:
        self.loaded.close()


@contextmanager
def placed(window: ClientWindow, arrays: Arrays) -> Iterator[dict[str, int]]:
    """Memory of the window with these contents; the addresses by name."""
    addresses: dict[str, int] = {}
    try:
        for name, array in arrays.items():
            addresses[name] = window.written.allocate(array.nbytes)
            call(driver.cuMemcpyHtoD(addresses[name], array.ctypes.data, array.nbytes))
        yield addresses
    finally:
        for address in addresses.values():
            window.written.free(address)


def run(case: Case, window: ClientWindow) -> Arrays:
    """Return the contents of the arrays under test, of a case of the corpus, after the launches in a window."""
    library = WindowLibrary(kaas.Library.from_file(HERE / case.image), window)
    with placed(window, {name: np.ascontiguousarray(array) for name, array in case.arrays.items()}) as addresses:
        for one in case.launches:
            library.launch(one, addresses)
        with device.ending():
            call(driver.cuCtxSynchronize())
        found = {name: np.empty(case.arrays[name].shape, case.arrays[name].dtype) for name in case.expected}
        for name, array in found.items():
            call(driver.cuMemcpyDtoH(array.ctypes.data, addresses[name], array.nbytes))
    library.close()
    return found


def overwriting() -> kaas.KTask:
    """Return a kTask that writes to its input, which it says it only reads, if that is an object."""
    w, x = (kaas.Buffer(name, 64, "int32") for name in "wx")
    code = kaas.Library.from_ptx(OVERWRITES)
    return kaas.KTask([kaas.Kernel(code, "k", 1, 1, [kaas.In(w), kaas.Out(x), kaas.Scalar("value", "i32")])], [x])


def main() -> int:
    """Print the results of a good, a bad and a good request, the bad one of another client."""
    executor, symbol = fenced(sys.argv[1]), sys.argv[2]
    failing = overwriting() if symbol == OVERWRITE else task(symbol)
    sources = {
        each.name: InputSource(np.full(64, 7, np.int32), key=b"w", constants=b"of one") for each in failing.inputs
    }
    for value, client in ((7, "alice"), (-1, "mallory"), (-1, "alice"), (7, "alice")):
        try:
            scalars = {"value": np.int32(value).tobytes()}
            print(int(executor.run(RunRequest(failing, sources, scalars, client)).outputs["x"][0]))
        except DeviceLost as error:
            print(error.code_name)
    return 0 if executor.lost is not None else 1


if __name__ == "__main__":
    sys.exit(main())

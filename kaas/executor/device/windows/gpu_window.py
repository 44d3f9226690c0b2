"""The window of a client on a GPU, whose driver gets PTX that is rewritten so that its accesses stay in the window."""

from __future__ import annotations

from cuda.bindings import driver

from kaas.code.fencing import LEAST_WINDOW_BYTES
from kaas.executor.device.code import LoadedLibrary, load
from kaas.executor.device.driver_errors import call
from kaas.executor.device.windows.fenced_code import FencedLibrary, fenced, ptx_of
from kaas.executor.device.windows.pages import Pages
from kaas.executor.device.windows.window import ClientWindow, window_bytes
from kaas.ktask.library import Image, Library

WINDOW_FACTOR = 2
"""The addresses of each heap, in sizes of the device's memory. A process has 2^47 addresses for all its windows."""
GUARD_BYTES = 4 << 30
"""Addresses without memory on each side of a window. The offset of an access has 32 bits with a sign: it reaches half
as far."""


class GpuWindow(ClientWindow):
    """A window on a GPU. It needs nothing of the driver but CUDA's calls."""

    def __init__(self, pages: Pages, memory_bytes: int) -> None:
        """Reserve addresses, which take no memory.

        Args:
            pages: of the device.
            memory_bytes: of the device.

        Raises:
            OutOfDeviceMemory: the process has not so many addresses left.
        """
        self._nbytes = max(window_bytes(memory_bytes, WINDOW_FACTOR), LEAST_WINDOW_BYTES)
        self._reserved = ReservedAddresses(self._nbytes)
        super().__init__(pages, self._reserved)

    def load(self, library: Library) -> LoadedLibrary:
        """Load the first PTX of a library that this device can run and that can be fenced.

        Raises:
            CannotFence: a window does not bound what the PTX does. UnsupportedCode: there is machine code alone.
            The errors of `code.load`; OutOfDeviceMemory: for the variables.
        """
        return load(library, self._load_image, ptx_of)

    def _load_image(self, image: Image) -> LoadedLibrary:
        code = fenced(image.data)
        device, name = self._pages.device, self._pages.name
        return FencedLibrary(image, code, device, name, self.written, self._reserved.base, self._nbytes)


class ReservedAddresses:
    """An aligned range of addresses with guards around it, of which the driver gives none to other memory.

    Args:
        nbytes: a power of two.
    """

    def __init__(self, nbytes: int) -> None:
        self._reserved_bytes = 2 * (nbytes + GUARD_BYTES)  # so many have an aligned range between guards
        self._reserved = int(call(driver.cuMemAddressReserve, self._reserved_bytes, 0, 0, 0))
        self.base = -(-(self._reserved + GUARD_BYTES) // nbytes) * nbytes
        self.start, self.end = self.base, self.base + nbytes

    def close(self) -> None:
        """Give the addresses back. No memory may be mapped there."""
        call(driver.cuMemAddressFree, self._reserved, self._reserved_bytes)

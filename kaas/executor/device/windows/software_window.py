"""The window of a client on a software device, whose compiler confines the accesses of kernels."""

from __future__ import annotations

import softgpu
from kaas.executor.device.code import LoadedLibrary, load, load_image
from kaas.executor.device.windows.pages import Pages
from kaas.executor.device.windows.window import ClientWindow, window_bytes
from kaas.ktask.library import Image, Library

WINDOW_FACTOR = 4
"""The addresses of each heap, in sizes of the device's memory: so much may be lost between allocations."""


class SoftwareWindow(ClientWindow):
    """A window on a software device."""

    def __init__(self, pages: Pages, memory_bytes: int) -> None:
        """Reserve addresses, which take no memory.

        Args:
            pages: of the device.
            memory_bytes: of the device.
        """
        self._confining = softgpu.AddressWindow(window_bytes(memory_bytes, WINDOW_FACTOR))
        super().__init__(pages, self._confining)

    def load(self, library: Library) -> LoadedLibrary:
        """Load a library whose kernels are confined to the window; see `code.load`."""
        with self._confining.confined():
            return load(library, self._load_image)

    def _load_image(self, image: Image) -> LoadedLibrary:
        return load_image(image, self._pages.device, self._pages.name)

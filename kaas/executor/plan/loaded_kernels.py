"""The kernels of a device by (library hash, symbol). A library is loaded once and stays while a plan uses it."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from kaas.errors import InvalidCode
from kaas.executor.device.code import LoadedKernel, LoadedLibrary
from kaas.executor.device.device import OpenDevice
from kaas.executor.device.windows.window import ClientWindow
from kaas.executor.plan.globals import Globals
from kaas.ktask.library import Image, Library
from kaas.ktask.symbols import unknown


class LoadedKernels:
    """Loaded libraries, and the kernels that were taken from them. Use it inside `device.context`.

    Args:
        device: the device. window: the kernels are confined to it; None: they are not.
    """

    def __init__(self, device: OpenDevice, window: ClientWindow | None = None) -> None:
        self._device = device
        self._code = device if window is None else window
        self._libraries: dict[str, LoadedLibrary] = {}
        self._globals: dict[str, Globals] = {}
        self._functions: dict[tuple[str, str], LoadedKernel] = {}

    def get(self, library: Library, symbol: str) -> LoadedKernel:
        """Return a kernel. Load its library first, if that is not done yet.

        Raises:
            CorruptImage, UnsupportedCode, Unprovided: the library does not load here, or this kernel cannot run here.
            UnknownSymbol: the library has no such kernel.
        """
        key = (library.hash, symbol)
        if key not in self._functions:
            try:
                loaded = self._load(library)
                function = loaded.kernel(symbol)
            except InvalidCode as error:
                error.kernel, error.library = symbol, library.hash
                raise
            if function is None:
                cplusplus = f"; library.kernel({symbol!r}, ...) takes C++ names" if {*symbol} & {*"<:"} else ""
                raise unknown(library.hash, symbol, loaded.symbols(), cplusplus)
            self._functions[key] = function
        return self._functions[key]

    def globals_of(self, libraries: Iterable[Library]) -> tuple[Globals, ...]:
        """Return the globals of the libraries that have some. All of them must be loaded."""
        return tuple(self._globals[library.hash] for library in libraries if self._globals[library.hash])

    def with_globals(self) -> set[str]:
        """Return the libraries that have globals, by hash."""
        return {name for name, found in self._globals.items() if found}

    def image(self, library: Library) -> Image:
        """Return the image of this library that is loaded; one must be."""
        return self._libraries[library.hash].image

    def __len__(self) -> int:
        """Number of loaded libraries."""
        return len(self._libraries)

    def keep(self, used: AbstractSet[str]) -> None:
        """Unload all libraries except these (by hash). No plan may use the others."""
        self.drop(self._libraries.keys() - used)

    def drop(self, unused: AbstractSet[str]) -> None:
        """Unload these libraries (by hash), which no plan may use."""
        self._functions = {key: function for key, function in self._functions.items() if key[0] not in unused}
        for name in unused:
            self._globals.pop(name).close()
            self._libraries.pop(name).close()

    def close(self) -> None:
        """Unload all libraries."""
        self.keep(frozenset())

    def _load(self, library: Library) -> LoadedLibrary:
        name = library.hash
        if name not in self._libraries:
            loaded = self._code.load(library)
            try:
                self._globals[name] = Globals(self._device, name, loaded)
            except BaseException:
                loaded.close()
                raise
            self._libraries[name] = loaded
        return self._libraries[name]

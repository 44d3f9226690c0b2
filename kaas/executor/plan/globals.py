"""The globals of a loaded library. Their first values are restored before another client's kernels read them."""

from __future__ import annotations

from typing import NamedTuple

from kaas.errors import OutOfDeviceMemory
from kaas.executor.device.code import LoadedLibrary, VariablesPlace
from kaas.executor.device.device import OpenDevice
from kaas.executor.device.streams import Stream
from kaas.executor.plan.variables import variables_of

_ALIGNMENT_BYTES = 16


class _GlobalPlace(NamedTuple):
    """The place of a variable. copy: offset of its first value among the copies; None if it begins as zeros."""

    address: int
    nbytes: int
    copy: int | None


class Globals:
    """The globals of one library that kernels can write. Use it inside `device.context`.

    Fields:
        name: the hash of the library.
        known: all globals were found. Otherwise only loading the library again restores their first values.
    """

    def __init__(self, device: OpenDevice, name: str, library: LoadedLibrary) -> None:
        self.name = name
        self._device = device
        self._user: str | None = None
        self._is_saved = False
        self._places, copy_bytes, self.known = _find(library)
        self._copies = 0
        if self.known and copy_bytes:
            try:
                self._copies = device.allocate(copy_bytes)
            except OutOfDeviceMemory:
                self.known = False

    def __bool__(self) -> bool:
        """True if there is something to restore."""
        return bool(self._places) or not self.known

    def stale(self, client: str) -> bool:
        """Return True if the library must be loaded again before this client's kernels run."""
        return not self.known and self._user not in (None, client)

    def enter(self, client: str, stream: Stream) -> None:
        """Submit copies of the first values, if kernels of another client may have changed the globals.

        Call it before each request that has kernels of this library.
        """
        if client == self._user:
            return
        assert not self.stale(client), "it is not known what another client left there"
        if self._user is not None:
            self._restore(stream)
        elif self.known and not self._is_saved:
            self._save(stream)
        self._user = client

    def close(self) -> None:
        """Free the copies of the first values."""
        if self._copies:
            self._device.free(self._copies)
            self._copies = 0

    def _save(self, stream: Stream) -> None:
        for address, nbytes, copy in self._places:
            if copy is not None:
                stream.copy(self._copies + copy, address, nbytes)
        self._is_saved = True

    def _restore(self, stream: Stream) -> None:
        # One by one, even neighbours: a driver may treat each as an allocation of its own.
        for address, nbytes, copy in self._places:
            if copy is None:
                stream.clear(address, nbytes)
            else:
                stream.copy(address, self._copies + copy, nbytes)


def _find(library: LoadedLibrary) -> tuple[list[_GlobalPlace], int, bool]:
    """Return the places of all found variables, the bytes of their copies, and True if there are no others."""
    if library.variables is not None:
        return *_in_one(library.variables), True
    variables = variables_of(library.image)
    places: list[_GlobalPlace] = []
    copy_bytes = 0
    for variable in variables.found:
        found = library.variable(variable.name, managed=variable.managed)
        if found is not None:
            places.append(_GlobalPlace(*found, copy=None if variable.zero else copy_bytes))
            copy_bytes += 0 if variable.zero else -(-found[1] // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return places, copy_bytes, variables.complete and len(places) == len(variables.found)


def _in_one(block: VariablesPlace) -> tuple[list[_GlobalPlace], int]:
    """Return the places of variables that lie together, and the bytes of their copies."""
    address, initial_bytes, nbytes = block
    parts = (
        _GlobalPlace(address, initial_bytes, copy=0),
        _GlobalPlace(address + initial_bytes, nbytes - initial_bytes, copy=None),
    )
    return [part for part in parts if part.nbytes], initial_bytes

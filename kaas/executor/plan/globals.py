"""The globals of a loaded library: what they are at first, put back before another client's kernels read them."""

from __future__ import annotations

from typing import NamedTuple

from kaas.errors import OutOfDeviceMemory
from kaas.executor.device.code import LoadedLibrary
from kaas.executor.device.device import OpenDevice
from kaas.executor.device.streams import Stream
from kaas.executor.plan.variables import variables_of

_ALIGNMENT_BYTES = 16


class _GlobalPlace(NamedTuple):
    """Where a variable lies. copy: offset of its first value among the copies; None if it begins as zeros."""

    address: int
    nbytes: int
    copy: int | None


class Globals:
    """The globals of one library that kernels can write. Use it inside `device.current()`.

    Fields:
        name: the hash of the library.
        known: all of them could be found. If not, only loading the library anew gives them their first values.
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
        """Whether there is anything to put back."""
        return bool(self._places) or not self.known

    def stale(self, client: str) -> bool:
        """Whether the library has to be loaded anew before this client's kernels run."""
        return not self.known and self._user not in (None, client)

    def enter(self, client: str, stream: Stream) -> None:
        """Submits what gives the globals their first values, if kernels of another client may have changed them.
        Call it before each request whose kernels are of this library."""
        if client == self._user:
            return
        assert not self.stale(client), "it is not known what another client left there"
        if self._user is not None:
            self._put_back(stream)
        elif self.known and not self._is_saved:
            self._save(stream)
        self._user = client

    def close(self) -> None:
        if self._copies:
            self._device.free(self._copies)
            self._copies = 0

    def _save(self, stream: Stream) -> None:
        for address, nbytes, copy in self._places:
            if copy is not None:
                stream.copy(self._copies + copy, address, nbytes)
        self._is_saved = True

    def _put_back(self, stream: Stream) -> None:
        # One by one, also where they are neighbours: a driver may take each for an allocation of its own.
        for address, nbytes, copy in self._places:
            if copy is None:
                stream.clear(address, nbytes)
            else:
                stream.copy(address, self._copies + copy, nbytes)


def _find(library: LoadedLibrary) -> tuple[list[_GlobalPlace], int, bool]:
    """The places of all variables that are found, the bytes of their copies, and whether there are no others."""
    variables = variables_of(library.image)
    places: list[_GlobalPlace] = []
    copy_bytes = 0
    for variable in variables.found:
        found = library.variable(variable.name, managed=variable.managed)
        if found is not None:
            places.append(_GlobalPlace(*found, copy=None if variable.zero else copy_bytes))
            copy_bytes += 0 if variable.zero else -(-found[1] // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return places, copy_bytes, variables.complete and len(places) == len(variables.found)

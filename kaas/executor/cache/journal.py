"""The journal of cached objects that outlive their executor: where they lie in the file of its device's memory.

The pool has both files, and gives them to the next executor of the device. A record counts once it is whole: objects
are added when all their bytes are on the device, and left before their memory is used again. So whenever the process
is killed, the journal names objects that are there.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

_HEAD = struct.Struct("<II")
"""Stands before each record: its bytes, and their checksum."""
LONGEST_BYTES = 1 << 20
"""Of the journal, beyond twice what its objects need: then it is written anew."""


class CacheFiles(NamedTuple):
    """Descriptors of memory files: of a device's memory, and of the journal of the objects there."""

    memory: int
    journal: int

    @classmethod
    def made(cls) -> CacheFiles:
        """Return new files.

        Raises:
            OSError: this process has no descriptor left.
        """
        memory = os.memfd_create("kaas-device")
        try:
            return cls(memory, os.memfd_create("kaas-journal"))
        except BaseException:
            os.close(memory)
            raise

    def spoil(self) -> None:
        """Let no executor adopt what is there."""
        os.ftruncate(self.journal, 0)

    def close(self) -> None:
        """Close them. The memory goes with the last process that has it."""
        os.close(self.memory)
        os.close(self.journal)


class KeptObject(msgspec.Struct, frozen=True, array_like=True):
    """An object in pages of a group, from a place on. constants: the key of its tuple of constants, if it has one."""

    place: int
    key: bytes
    nbytes: int
    dtype: str | None
    shape: tuple[int, ...] | None
    constants: bytes | None


class KeptGroup(msgspec.Struct, frozen=True, array_like=True, tag="+"):
    """Objects that share pages. offsets: of the pages in the device's memory file, in order."""

    number: int
    offsets: Sequence[int]
    objects: Sequence[KeptObject]


class _Freed(msgspec.Struct, frozen=True, array_like=True, tag="-"):
    """An object that leaves the device."""

    number: int
    place: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(KeptGroup | _Freed).decode


class CacheJournal:
    """The journal in a file. For one thread at a time."""

    def __init__(self, file: int) -> None:
        """Read it. file: its descriptor, which the caller keeps open."""
        self._file = file
        self._spoilt = False
        self._groups: dict[int, tuple[KeptGroup, set[int]]] = {}  # with the places of the objects that are there
        self._end = 0
        self._needed = 0
        for record in self._records():
            self._take(record)
        os.ftruncate(file, self._end)

    @property
    def groups(self) -> list[KeptGroup]:
        """The groups with the objects that are there."""
        return [_with(group, there) for group, there in self._groups.values()]

    def add(self, group: KeptGroup) -> None:
        """Add objects. The group has a new number."""
        self._append(group)

    def left(self, number: int, place: int) -> None:
        """Note that an object of a group leaves, before its memory does."""
        self._append(_Freed(number, place))

    def empty(self) -> None:
        """Forget all objects."""
        self._groups.clear()
        os.ftruncate(self._file, 0)
        self._end = self._needed = 0

    def spoil(self) -> None:
        """Forget all objects, and note none from now on: a kernel may have written anywhere."""
        self.empty()
        self._spoilt = True

    def _append(self, record: KeptGroup | _Freed) -> None:
        if self._spoilt:
            return
        self._take(record)
        if self._end > 2 * self._needed + LONGEST_BYTES:
            groups = self.groups
            self.empty()  # an executor that is killed between these lines leaves nothing
            for group in groups:
                self._append(group)
        else:
            data = _encode(record)
            self._end += os.pwrite(self._file, _HEAD.pack(len(data), zlib.crc32(data)) + data, self._end)

    def _take(self, record: KeptGroup | _Freed) -> None:
        if isinstance(record, KeptGroup):
            self._groups[record.number] = record, {each.place for each in record.objects}
            self._needed += _bytes_of(record)
        elif record.number in self._groups:
            group, there = self._groups[record.number]
            there.discard(record.place)
            if not there:
                del self._groups[record.number]
                self._needed -= _bytes_of(group)

    def _records(self) -> Iterator[KeptGroup | _Freed]:
        """Yield the whole records. One that is not ends the journal: its process was killed as it wrote it."""
        data = os.pread(self._file, os.fstat(self._file).st_size, 0)
        while len(data) >= self._end + _HEAD.size:
            nbytes, checksum = _HEAD.unpack_from(data, self._end)
            start = self._end + _HEAD.size
            found = data[start : start + nbytes]
            if len(found) < nbytes or zlib.crc32(found) != checksum:
                return
            try:
                record = _decode(found)
            except msgspec.DecodeError:
                return
            self._end = start + nbytes
            yield record


def _with(group: KeptGroup, there: set[int]) -> KeptGroup:
    return KeptGroup(group.number, group.offsets, [each for each in group.objects if each.place in there])


def _bytes_of(group: KeptGroup) -> int:
    return _HEAD.size + len(_encode(group))

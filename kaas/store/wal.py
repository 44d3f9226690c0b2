"""Repair of SQLite's write-ahead log, whose damage SQLite takes for the log's end without an error.

A crash cuts the last transaction, so SQLite reads up to the first frame whose checksum is wrong. If a later frame, or
the last one of the file, ends a transaction, the cause was no crash. Each checksum continues the one that is written in
the frame before: so the frames behind a damaged one can be checked, and their pages are used. See "The Write-Ahead Log"
in SQLite's "Database File Format".

A killed process leaves the index of the log too, in the file of shared memory. It has the number of frames up to the
end of the last transaction; a log with fewer was cut. See "WAL-mode File Format".
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

WAL, SHARED = "-wal", "-shm"
PAGE_BYTES = 4096
"""SQLite's default, for a log whose header cannot be read."""
_HEADER = struct.Struct(">8I")
"""Magic number, version, bytes of a page, sequence number, two salts, two sums."""
_FRAME = struct.Struct(">6I")
"""Precedes a page: its number, the pages of the file if a transaction ends here or else 0, two salts, two sums."""
_INDEX = struct.Struct("=16xI12x8s")
"""The begin of the index, of which there are two copies: the number of frames, the log's salts. Two sums follow."""
_INDEX_SUMS = struct.Struct("=II")
_WRITTEN_AT = 96
"""The place, in the index, of the number of frames that are in the file itself."""
_ORDERS = {0x377F0682: "<II", 0x377F0683: ">II"}
"""The byte order of the checked words, by magic number."""
_PAGES_AT = 28
"""The place of a file's number of pages."""

Pair = tuple[int, int]


class _Frame(NamedTuple):
    """A frame.

    Fields:
        ends: the pages of the file after the transaction that ends here, 0 if none does. sound: all of the frame is as
            it was written since the log was begun anew.
    """

    number: int
    ends: int
    current: bool
    sound: bool
    page: memoryview


@dataclass(frozen=True, slots=True)
class _Log:
    """A log.

    Fields:
        header: True if it can be read. read: number of frames that SQLite reads. known: number of frames up to the end
            of the last transaction that the index knows.
    """

    header: bool
    frames: list[_Frame]
    read: int
    known: int

    @property
    def damage(self) -> str:
        """The damage, "" for none: a transaction that was complete is not read."""
        behind = self.frames[self.read + 1 :] or self.frames[self.read :]
        if any(frame.current and frame.ends for frame in behind):
            return f"frame {self.read + 1} of it is damaged" if self.header else "its header is damaged"
        return f"it ends after {max(self.read, 0)} of {self.known} frames" if self.read < self.known else ""

    @property
    def usable(self) -> list[_Frame]:
        """The sound frames up to the end of the last transaction."""
        ends = max((at for at, frame in enumerate(self.frames) if frame.sound and frame.ends), default=-1)
        return [frame for frame in self.frames[: ends + 1] if frame.sound]


def is_empty(path: Path) -> bool:
    """Return True if SQLite takes a file for an empty one, or if there is none."""
    return not path.exists() or path.stat().st_size <= 1


def log_damage(path: Path) -> str:
    """Return the damage of a SQLite file's log, "" for none.

    Raises:
        OSError
    """
    return _read(path).damage


def mend_log(path: Path, set_aside: Callable[[Path, str], None]) -> None:
    """If the log of a SQLite file is damaged, write its sound pages into the file, and set the log aside.

    The file may be damaged afterwards. The log of a missing file is set aside too, because SQLite would delete it.

    Args:
        path: of the SQLite file.
        set_aside: called with a path and the reason.

    Raises:
        OSError
    """
    log_path = path.with_name(path.name + WAL)
    if not log_path.exists():
        return
    if is_empty(path):
        set_aside(log_path, "the file that it belongs to is missing or empty")
        return
    log = _read(path)
    if log.damage:
        usable = log.usable
        _write_pages(path, usable)
        path.with_name(path.name + SHARED).unlink(missing_ok=True)
        set_aside(log_path, f"{log.damage}; {len(usable)} of its {len(log.frames)} pages are used")


def _read(path: Path) -> _Log:
    index = _bytes(path.with_name(path.name + SHARED))  # first: a running server may add frames to the log
    data = memoryview(_bytes(path.with_name(path.name + WAL)))
    if len(data) < _HEADER.size + _FRAME.size:
        return _Log(True, [], 0, _known(index, bytes(data[16:24])))
    magic, _, page_bytes, _, *salts, first, second = _HEADER.unpack_from(data)
    order = _ORDERS.get(magic, "<II")
    header = magic in _ORDERS and _sums(data[:24], (0, 0), order) == (first, second)
    if not header:  # the first frame is always a new one
        page_bytes, salts = PAGE_BYTES, list(_FRAME.unpack_from(data, _HEADER.size)[2:4])
    frames, sums = [], (first, second)
    for at in range(_HEADER.size, len(data) - _FRAME.size - page_bytes + 1, _FRAME.size + page_bytes):
        number, ends, *found, first, second = _FRAME.unpack_from(data, at)
        page = data[at + _FRAME.size : at + _FRAME.size + page_bytes]
        current = found == salts
        sound = current and _sums(page, _sums(data[at : at + 8], sums, order), order) == (first, second)
        frames.append(_Frame(number, ends, current, sound, page))
        sums = first, second
    read = next((at for at, frame in enumerate(frames) if not frame.sound), len(frames)) if header else -1
    return _Log(header, frames, read, _known(index, bytes(data[16:24])))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _known(index: bytes, salts: bytes) -> int:
    """Return the number of frames that the index knows of the log with these salts, of which a cut may leave a part.

    It is 0 if the file itself has all their pages.
    """
    size = _INDEX.size + _INDEX_SUMS.size
    if len(index) < _WRITTEN_AT + 4 or index[:size] != index[size : 2 * size]:
        return 0
    frames, own = _INDEX.unpack_from(index)
    written = int.from_bytes(index[_WRITTEN_AT : _WRITTEN_AT + 4], sys.byteorder)
    whole = _sums(memoryview(index)[: _INDEX.size], (0, 0), "=II") == _INDEX_SUMS.unpack_from(index, _INDEX.size)
    return frames if whole and own.startswith(salts) and written < frames else 0


def _sums(data: memoryview, sums: Pair, order: str) -> Pair:
    """Continue SQLite's checksum over 8 bytes at a time."""
    first, second = sums
    for one, other in struct.iter_unpack(order, data):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second


def _write_pages(path: Path, frames: list[_Frame]) -> None:
    """Write pages, which all end a transaction together, into the file. Interrupted, this can be done once more."""
    with path.open("r+b") as file:
        for frame in frames:
            file.seek((frame.number - 1) * len(frame.page))
            file.write(frame.page)
        if frames:
            file.truncate(frames[-1].ends * len(frames[-1].page))
            file.seek(_PAGES_AT)  # an old first page would let SQLite ignore the pages that are new
            file.write(frames[-1].ends.to_bytes(4, "big"))
        file.flush()
        os.fsync(file.fileno())

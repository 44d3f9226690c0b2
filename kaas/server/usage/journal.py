"""The journal of charges that are not in the SQLite file of usage yet, in segments; see `usage_file`."""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from kaas.server.usage.usage import Charge

SEGMENT = "usage.journal."
MOST_SEGMENTS = 1 << 62
"""No segment has this number or a larger one: a server begins one in a second, and SQLite keeps numbers below 2**63."""
MODE = 0o600
_HEAD = struct.Struct("<II")
"""Precedes each charge in the journal: its length and its checksum."""
LONGEST_CHARGE_BYTES = 64 << 10
"""A charge has names and a key, each of bounded length, and seven numbers."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Charge).decode


class Gap(NamedTuple):
    """A damaged part of a segment."""

    begin: int
    end: int


class Journal:
    """The newest segment, to which charges are added."""

    def __init__(self, folder: Path, number: int) -> None:
        """Make the file of the segment.

        Raises:
            OSError
        """
        self.path = folder / f"{SEGMENT}{number}"
        self.number = number
        self.size_bytes = 0
        self.torn = False
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, MODE)

    def write(self, charge: Charge) -> None:
        """Append a charge.

        Raises:
            OSError: the charge is not in the file; a full disk is reported too if only a part of the charge fits. While
                `torn`, later charges would be lost as well.
        """
        payload = _encode(charge)
        data = _HEAD.pack(len(payload), zlib.crc32(payload)) + payload
        try:
            self._append(data)
        except OSError:
            self._take_back()
            raise
        self.size_bytes += len(data)

    def probe(self) -> None:
        """Write bytes that are no charge, and take them back.

        Raises:
            OSError: as of `write`.
        """
        try:
            self._append(bytes(_HEAD.size))
        finally:
            self._take_back()

    def _append(self, data: bytes) -> None:
        written = os.write(self._fd, data)
        if written != len(data):
            reason = f"{os.strerror(errno.ENOSPC)} after {written} of {len(data)} bytes"
            raise OSError(errno.ENOSPC, reason, str(self.path))

    def _take_back(self) -> None:
        self.torn = True
        os.ftruncate(self._fd, self.size_bytes)
        self.torn = False

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def charges(segment: bytes) -> Iterator[Charge | Gap]:
    """Yield the charges of a segment, and the damaged parts. Only a process that ends within the system call leaves a
    part of a charge at the end, which has had no reply; that is hardly ever, and damage looks the same."""
    at = 0
    while at < len(segment):
        charge, end = _charge_at(segment, at)
        if charge is None:
            places = range(at + 1, len(segment))
            found = next((place for place in places if _charge_at(segment, place)[0]), len(segment))
            yield Gap(at, found)
            at = found
        else:
            yield charge
            at = end


def _charge_at(segment: bytes, at: int) -> tuple[Charge | None, int]:
    """Return the charge at a place, and the place of the next one."""
    if at + _HEAD.size > len(segment):
        return None, at
    size, checksum = _HEAD.unpack_from(segment, at)
    end = at + _HEAD.size + size
    if not 0 < size <= LONGEST_CHARGE_BYTES or end > len(segment):
        return None, at
    payload = segment[at + _HEAD.size : end]
    if zlib.crc32(payload) != checksum:
        return None, at
    try:
        return _decode(payload), end
    except msgspec.MsgspecError:
        return None, at


def segments(folder: Path) -> list[tuple[int, Path]]:
    """Return the segments of a folder with their numbers, in order."""
    found = [path for path in folder.glob(SEGMENT + "*") if names_segment(path) and path.is_file()]
    return sorted((int(path.name.removeprefix(SEGMENT)), path) for path in found)


def names_segment(path: Path) -> bool:
    """Return True if a path is that of a segment of the journal."""
    number = path.name.removeprefix(SEGMENT)
    return number.isascii() and number.isdigit() and int(number) < MOST_SEGMENTS

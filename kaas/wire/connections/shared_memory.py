"""Large values between processes of one machine: the sender's memory files, mapped by their readers.

A file is used again when its reader is done, since pages that a process touches for the first time cost five times as
much as copying into them. A file can never shrink, so that no reader falls into a hole, and only its owner's own
mapping can write it (F_SEAL_FUTURE_WRITE), so that no process that is handed the file can change a value.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from kaas.errors import OutOfHostMemory
from kaas.wire.messages import Block

ALIGN_BYTES = 64
"""Values begin at multiples of this, as NumPy's and Ray's arrays do, for wide accesses."""

IDLE_AT_MOST = 64
"""Files that a process keeps for later use: it may have open only so many."""

LEASED_AT_MOST = 256
"""An outbox with this many files is crowded: each takes a descriptor, and a process often may have 1024."""

MAPPED_AT_MOST = 256
"""Files that an inbox keeps mapped for the next time: no event of a sender's end comes for files that were received."""

_GRAIN_BYTES = 64 << 10
_SEAL_FUTURE_WRITE = 0x10
"""F_SEAL_FUTURE_WRITE of linux/fcntl.h, since Linux 5.1; Python's fcntl does not name it yet."""


class BlockLease:
    """Values that lie in shared memory until the lease is released, by any thread; a second time changes nothing.

    Fields:
        blocks: where, one for each value. of_call: an open call has the lease, and its reply releases it.
    """

    __slots__ = ("_held", "_outbox", "blocks", "of_call")

    def __init__(self, outbox: Outbox, segment: _Segment, blocks: tuple[Block, ...]) -> None:
        self.blocks = blocks
        self.of_call = False
        self._outbox = outbox
        self._held = [segment]

    @property
    def block(self) -> Block:
        """The place of the only value."""
        (block,) = self.blocks
        return block

    @property
    def view(self) -> memoryview:
        """The only value, as long as the lease is not released."""
        (segment,), block = self._held, self.block
        return segment.memory[block.offset_bytes : block.offset_bytes + block.nbytes].data.toreadonly()

    def release(self) -> None:
        """Let the memory be used again: no process reads the values any more."""
        self._outbox._take_back(self._held)


class Outbox:
    """The values that a process puts into shared memory for others. Any thread may call the methods.

    `put` and `put_all` raise OutOfHostMemory if the system has no file or no memory left for this process.
    """

    def __init__(self, limit_idle_bytes: int = 256 << 20) -> None:
        """limit_idle_bytes: of memory that is kept for later use while no value needs it."""
        self._limit_bytes = limit_idle_bytes
        self._lock = threading.Lock()
        self._idle: list[_Segment] = []
        self._leased = 0
        self._closed = False

    @property
    def crowded(self) -> bool:
        """True if so many files are leased that a value should take another way if it has one."""
        return self._leased >= LEASED_AT_MOST

    def put(self, data: Any) -> BlockLease:
        """Copy a value, anything with contiguous memory."""
        return self.put_all([data])

    def put_all(self, values: Sequence[Any]) -> BlockLease:
        """Copy several values, which are released as one."""
        arrays = [
            np.frombuffer(data, np.uint8) if memoryview(data).nbytes else np.empty(0, np.uint8) for data in values
        ]
        offsets, end = [], 0
        for array in arrays:
            offsets.append(end)
            end += -(-array.nbytes // ALIGN_BYTES) * ALIGN_BYTES
        segment = self._segment(end)
        try:
            for array, offset in zip(arrays, offsets, strict=True):
                np.copyto(segment.memory[offset : offset + array.nbytes], array)
            pid = os.getpid()
            blocks = (Block(pid, segment.fd, at, array.nbytes) for array, at in zip(arrays, offsets, strict=True))
            return BlockLease(self, segment, tuple(blocks))
        except BaseException:  # Ctrl-C, most likely while it copies
            self._take_back([segment])
            raise

    def close(self) -> None:
        """Give idle memory back, and the rest as it is released."""
        with self._lock:
            self._closed = True
            self._shrink(0)

    def _segment(self, nbytes: int) -> _Segment:
        with self._lock:
            fitting = [each for each in self._idle if nbytes <= each.nbytes <= nbytes + nbytes // 4 + _GRAIN_BYTES]
            if fitting:
                segment = min(fitting, key=lambda each: each.nbytes)
                self._idle.remove(segment)
                self._leased += 1
                return segment
        segment = _Segment(max(1, -(-nbytes // _GRAIN_BYTES)) * _GRAIN_BYTES)
        with self._lock:
            self._leased += 1
        return segment

    def _take_back(self, held: list[_Segment]) -> None:
        with self._lock:
            self._leased -= len(held)
            self._idle += held
            held.clear()
            self._shrink(0 if self._closed else self._limit_bytes)

    def _shrink(self, limit_bytes: int) -> None:
        """Give back the memory that was idle for longest."""
        idle_bytes = sum(segment.nbytes for segment in self._idle)
        while idle_bytes > limit_bytes or len(self._idle) > IDLE_AT_MOST:
            segment = self._idle.pop(0)
            idle_bytes -= segment.nbytes
            segment.close()


class _Segment:
    """A memory file of this process, mapped. Identity is equality."""

    __slots__ = ("fd", "memory", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        with _needed(f"{nbytes} bytes of shared memory"):
            self.fd = os.memfd_create("kaas", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.ftruncate(self.fd, nbytes)
                self.memory = np.frombuffer(_mapping(self.fd, nbytes, mmap.ACCESS_WRITE), np.uint8)
                fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | _SEAL_FUTURE_WRITE)
            except BaseException:
                os.close(self.fd)
                raise

    def close(self) -> None:
        """Unmap the file here with the last array that looks into it; readers keep it."""
        os.close(self.fd)
        del self.memory


class Inbox:
    """The values of other processes. Any thread may call the methods.

    The OSError of `view` and `map_file` is OutOfHostMemory if this process lacks descriptors or memory.
    """

    def __init__(self, limit_bytes: int = 512 << 20) -> None:
        """limit_bytes: of mappings that are kept for the next time; they keep the sender's memory too."""
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._mapped: OrderedDict[_Identity, _Mapped] = OrderedDict()

    def view(self, block: Block) -> memoryview:
        """Return a value, read-only and without a copy.

        Raises:
            OSError: the sender has ended, or there is no such value.
        """
        path = _path(block)
        memory = self._known(_identity(os.stat(path)), block.pid)
        if memory is None:
            file = _open(path)
            try:
                memory = self._map(file, block.pid)
            finally:
                os.close(file)
        return part(memory, block.offset_bytes, block.nbytes)

    def map_file(self, file: int) -> memoryview:
        """Return the whole memory of a received file, read-only.

        Raises:
            OSError: the file is no memory that was shared.
        """
        memory = self._known(_identity(os.fstat(file)), None)
        return self._map(file, None) if memory is None else memory

    def forget(self, pid: int) -> None:
        """Take in that a process has ended: its memory is given back with the last view into it."""
        with self._lock:
            for identity in [identity for identity, mapped in self._mapped.items() if mapped.pid == pid]:
                del self._mapped[identity]

    def _known(self, identity: _Identity, pid: int | None) -> memoryview | None:
        """Return the mapped file of this number; a mapped file cannot give its number to another one."""
        with self._lock:
            mapped = self._mapped.get(identity)
            if mapped is None or mapped.pid != pid:
                return None
            self._mapped.move_to_end(identity)
            return mapped.memory

    def _map(self, file: int, pid: int | None) -> memoryview:
        mapped = _Mapped(file, pid)
        with self._lock:
            self._mapped[mapped.identity] = mapped
            self._mapped.move_to_end(mapped.identity)
            self._shrink()
        return mapped.memory

    def _shrink(self) -> None:
        kept_bytes = sum(mapped.memory.nbytes for mapped in self._mapped.values())
        while len(self._mapped) > MAPPED_AT_MOST or (kept_bytes > self._limit_bytes and len(self._mapped) > 1):
            _, mapped = self._mapped.popitem(last=False)
            kept_bytes -= mapped.memory.nbytes


def open_file(block: Block) -> int:
    """Open the file of a value, to hand it to a process that may not look into the sender's.

    Raises:
        OSError: the sender has ended, or there is no such value. OutOfHostMemory: this process lacks a descriptor.
    """
    file = _open(_path(block))
    try:
        found = os.fstat(file)
        _check(file, found)
        _check_part(found.st_size, block.offset_bytes, block.nbytes)
    except BaseException:
        os.close(file)
        raise
    return file


def copied(file: int) -> int:
    """Return another descriptor of a file.

    Raises:
        OutOfHostMemory: this process lacks a descriptor.
    """
    with _needed("a file of shared memory"):
        return os.dup(file)


def part(memory: memoryview, offset_bytes: int, nbytes: int) -> memoryview:
    """Return a part of a file's memory.

    Raises:
        OSError: the file ends before that.
    """
    _check_part(memory.nbytes, offset_bytes, nbytes)
    return memory[offset_bytes : offset_bytes + nbytes]


class _Mapped:
    """Another process's memory file; unmapped with the last view into it.

    pid: of the process that the file was found in; None if the file was received."""

    __slots__ = ("identity", "memory", "pid")

    def __init__(self, file: int, pid: int | None) -> None:
        found = os.fstat(file)
        _check(file, found)
        self.pid = pid
        self.identity = _identity(found)
        with _needed(f"{found.st_size} bytes of address space"):
            self.memory = memoryview(_mapping(file, found.st_size, mmap.ACCESS_READ))


def _mapping(file: int, nbytes: int, access: int) -> mmap.mmap:
    """Map a whole file. Python's own mapping of a file keeps a second descriptor of it, before 3.13 in any case."""
    made = mmap.mmap(-1, nbytes, access=access)  # its place, which Python unmaps with the last view into it
    place = np.frombuffer(made, np.uint8).ctypes.data
    rights = mmap.PROT_READ | (mmap.PROT_WRITE if access == mmap.ACCESS_WRITE else 0)
    if _libc_mmap(place, nbytes, rights, mmap.MAP_SHARED | _MAP_FIXED, file, 0) != place:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return made


_MAP_FIXED = 0x10
_libc_mmap = ctypes.CDLL(None, use_errno=True).mmap
_libc_mmap.restype = ctypes.c_void_p
_libc_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)

_Identity = tuple[int, int, int]


def _identity(found: os.stat_result) -> _Identity:
    return found.st_dev, found.st_ino, found.st_size


def _path(block: Block) -> str:
    return f"/proc/{block.pid}/fd/{block.fd}"


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise _lacking("a file of shared memory", error) from error
        raise


@contextmanager
def _needed(what: str) -> Iterator[None]:
    """A context that raises an OSError as OutOfHostMemory."""
    try:
        yield
    except OSError as error:
        raise _lacking(what, error) from error


def _lacking(what: str, error: OSError) -> OutOfHostMemory:
    reason = error.strerror or str(error)
    return OutOfHostMemory(f"process {os.getpid()} has no room for {what}: {reason}", reason=reason)


def _check(file: int, found: os.stat_result) -> None:
    if not found.st_size or not fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise OSError(errno.EINVAL, "no memory that was shared")


def _check_part(whole_bytes: int, offset_bytes: int, nbytes: int) -> None:
    if offset_bytes < 0 or nbytes < 0 or offset_bytes + nbytes > whole_bytes:
        raise OSError(errno.EINVAL, f"a block beyond the end of its {whole_bytes} bytes")

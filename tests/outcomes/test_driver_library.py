"""A kernel with a wild store finds no function address of the driver library that it could change."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest

from softgpu.build import build
from tests.timeouts import TIMEOUT_S

PT_LOAD, PT_DYNAMIC, PT_GNU_RELRO = 1, 2, 0x6474E552
DT_BIND_NOW, DT_FLAGS, DT_FLAGS_1 = 24, 30, 0x6FFFFFFB
DF_BIND_NOW, DF_1_NOW = 8, 1


def segments(elf: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """(type, offset and bytes in the file, address and bytes in memory) of each segment of a 64-bit library."""
    (start,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    for at in range(start, start + size * count, size):
        kind, _, offset, address, _, nbytes, memory_bytes = struct.unpack_from("<IIQQQQQ", elf, at)
        yield kind, offset, nbytes, address, memory_bytes


def loaded(elf: bytes) -> list[tuple[int, int]]:
    """Return the begin and end of each of its parts in memory."""
    return [(address, address + nbytes) for kind, _, _, address, nbytes in segments(elf) if kind == PT_LOAD]


def test_the_driver_is_linked_with_full_relro() -> None:
    elf = build().read_bytes()
    found = {kind: (offset, nbytes) for kind, offset, nbytes, _, _ in segments(elf)}
    assert found[PT_GNU_RELRO][1] > 0
    offset, nbytes = found[PT_DYNAMIC]
    tags = dict(struct.iter_unpack("<QQ", elf[offset : offset + nbytes]))
    assert DT_BIND_NOW in tags or tags.get(DT_FLAGS, 0) & DF_BIND_NOW or tags.get(DT_FLAGS_1, 0) & DF_1_NOW


LOOK = """
import ctypes, struct, sys
import softgpu
softgpu.load((1 << 20,), force=True)
table = softgpu._state["driver"].compiler.callbacks
functions = set(struct.unpack(f"<{ctypes.sizeof(table) // 8}Q", bytes(table)))
writable = sealed = first = 0
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb") as memory:
    for line in maps:
        where, mode, _, _, _, *name = line.split()
        start, end = (int(part, 16) for part in where.split("-"))
        if name and name[0].endswith("libcuda.so.1"):
            first = first or start
        end = min(end, first + int(sys.argv[1]))
        if first and start < end:
            memory.seek(start)
            count = sum(word in functions for (word,) in struct.iter_unpack("<Q", memory.read(end - start)))
            writable += count if "w" in mode else 0
            sealed += 0 if "w" in mode else count
print(len(functions), sealed, writable)
"""


@pytest.mark.processes
def test_no_writable_page_of_the_driver_holds_the_compilers_functions() -> None:
    nbytes = max(end for _, end in loaded(build().read_bytes()))
    command = [sys.executable, "-c", LOOK, str(nbytes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    functions, sealed, writable = map(int, done.stdout.split())
    assert (sealed, writable) == (functions, 0)
    assert functions > 4

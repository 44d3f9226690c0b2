"""Device memory lies apart from the program's own: a kernel that leaves it harms no object of the program."""

from __future__ import annotations

import pytest

from softgpu.tests.driver.test_memcheck import run

pytestmark = pytest.mark.processes

BEYOND = """
import ctypes
import softgpu
softgpu.load([1 << 26])
from cuda.bindings import driver
from softgpu.tests.driver.calls import Kernels, ok
from softgpu.tests.driver.test_end_to_end import PTX
ok(driver.cuInit(0))
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
kernels = Kernels(PTX.read_bytes() + b"\\0")
objects = [bytearray(1 << size) for size in range(4, 24)]  # of the program's heap, and mapped
blocks = [ok(driver.{allocate}) for _ in range(3)]
later = [bytearray(1 << size) for size in range(4, 24)]
count = {bytes} // 4
args = ((int(blocks[1]), 2.0, {beyond} * count), (ctypes.c_void_p, ctypes.c_float, ctypes.c_int))
ok(driver.cuLaunchKernel(kernels["scale"], {beyond} * count // 32, 1, 1, 32, 1, 1, 0, 0, args, 0))
print(driver.cuCtxSynchronize()[0].name, softgpu.last_error())
print(any(map(any, objects + later)))
"""


OTHERS = (100_000 // 512 * 512, 1 << 20)


@pytest.mark.parametrize("kind", ["cuMemAlloc({})", "cuMemHostAlloc({}, 0)", "cuMemAllocManaged({}, 1)"])
@pytest.mark.parametrize("nbytes", [(64 << 10) + 512, *(pytest.param(each, marks=pytest.mark.full) for each in OTHERS)])
def test_a_kernel_that_takes_its_buffer_to_be_twice_as_long_is_stopped(kind: str, nbytes: int) -> None:
    said = run("-c", BEYOND.format(allocate=kind.format(nbytes), bytes=nbytes, beyond=2), SOFTGPU_MEMCHECK="0")
    first, harmed = said.splitlines()
    assert first.startswith("CUDA_ERROR_ILLEGAL_ADDRESS kernel scale: illegal access in block ")
    assert " 0 bytes behind the end of the nearest buffer" in first or f"({nbytes} bytes at" in first
    assert harmed == "False"


SIZES = """
import random
import softgpu
softgpu.load([1 << 26])
from cuda.bindings import driver
from softgpu.tests.driver.calls import ok
ok(driver.cuInit(0))
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
draw, live = random.Random(1), {}
for number in range(4000):
    if live and draw.random() < 0.48:
        base = draw.choice(list(live))
        nbytes, mark = live.pop(base)
        content = bytearray(nbytes)
        ok(driver.cuMemcpyDtoH(content, base, nbytes))
        assert content == bytes([mark]) * nbytes, (base, nbytes)
        ok(driver.cuMemFree(base))
    else:
        nbytes = draw.choice([1, 512, 513, 5000, 65536, 65537, 200_000]) + draw.randrange(3)
        if sum(size for size, _ in live.values()) + 2 * nbytes > 60_000_000:
            continue
        base = int(ok(driver.cuMemAlloc(nbytes)))
        assert base % 512 == 0
        live[base] = nbytes, number % 251
        ok(driver.cuMemsetD8(base, number % 251, nbytes))
print(len(live))
"""


def test_memory_of_all_sizes_keeps_its_bytes_while_others_come_and_go() -> None:
    assert int(run("-c", SIZES)) > 10


MANY = """
import os
import softgpu
softgpu.load([2 << 30])
from cuda.bindings import driver
from softgpu.tests.driver.calls import ok
ok(driver.cuInit(0))
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
blocks = [int(ok(driver.cuMemAlloc(66_048))) for _ in range(30_000)]
print(len(open("/proc/self/maps").readlines()))
for block in reversed(blocks):
    ok(driver.cuMemFree(block))
print(len(open("/proc/self/maps").readlines()))
"""


def test_many_allocations_leave_the_process_mappings_for_other_things() -> None:
    """Linux gives a process 65,530 of them; a thread's stack takes one, too."""
    held, left = map(int, run("-c", MANY).split())
    assert held < 20_000
    assert left < 1000


FILLED = """
import resource
import softgpu
softgpu.load([32 << 20])
from cuda.bindings import driver
from softgpu.tests.driver.calls import ok
ok(driver.cuInit(0))
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
for size in [1 << 16, 1 << 15, 3 << 14, 5 << 13, 1 << 14, 7 << 12, 1 << 13, 1 << 12]:
    blocks = []
    for _ in range((32 << 20) // size):
        blocks.append(int(ok(driver.cuMemAlloc(size))))
        ok(driver.cuMemsetD8(blocks[-1], 1, size))
    for block in blocks[::2] + blocks[1::2]:
        ok(driver.cuMemFree(block))
    if size == 1 << 16:
        first = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - first) >> 10)
"""


def test_memory_that_was_freed_is_used_again_by_allocations_of_other_sizes() -> None:
    assert int(run("-c", FILLED)) < 16  # MB

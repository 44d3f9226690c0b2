"""Windows through the driver: kernels of one tenant beside memory of another."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

import softgpu as software
from softgpu import AddressWindow, SoftgpuError, host_room
from softgpu.tests.driver.calls import Error, Kernels, fails, launch, ok, synchronize, view
from softgpu.tests.driver.holder import CONSTANTS, holder, imported
from tests.timeouts import until

PTX = Path(__file__).with_name("kernels") / "steps.ptx"
PEEK = """.version 8.0
.target sm_80
.address_size 64
.global .align 4 .u32 seen = 7;
.visible .entry peek(.param .u64 from, .param .u64 to)
{
  .reg .b64 %f, %t, %s; .reg .b32 %v;
  ld.param.u64 %f, [from]; ld.param.u64 %t, [to];
  ld.global.u32 %v, [%f]; st.global.u32 [%t], %v;
  ld.global.u32 %v, [seen]; st.global.u32 [%t+4], %v;
  st.global.u32 [%f], 9;
  ret;
}"""
WAITS = """.version 8.0
.target sm_80
.address_size 64
.visible .entry waits(.param .u64 at, .param .u64 last)
{
  .reg .b64 %a, %l; .reg .b32 %v; .reg .pred %p;
  ld.param.u64 %a, [at]; ld.param.u64 %l, [last];
  st.volatile.global.u32 [%a+4], 1;
again:
  ld.volatile.global.u32 %v, [%a]; setp.eq.u32 %p, %v, 0; @%p bra again;
  st.global.u32 [%l], 9;
  ret;
}"""
WHOLE = 2 << 20


ON_DEVICE = driver.CUmemAllocationProp()
ON_DEVICE.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
ON_DEVICE.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
READ = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
READWRITE = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE


def put_in(address: int, memory: Any, flags: Any) -> None:
    """Map two megabytes."""
    access = driver.CUmemAccessDesc()
    access.location, access.flags = ON_DEVICE.location, flags
    ok(driver.cuMemMap(address, WHOLE, 0, memory, 0))
    ok(driver.cuMemSetAccess(address, WHOLE, [access], 1))


class Tenant:
    """A window with two megabytes of memory, and code that is confined to it."""

    def __init__(self) -> None:
        self.window = AddressWindow(1 << 30)
        with self.window.confined():
            self.code, self.steps = Kernels(PEEK.encode() + b"\0"), Kernels(PTX.read_bytes() + b"\0")
        self.memory = ok(driver.cuMemCreate(WHOLE, ON_DEVICE, 0))
        put_in(self.window.start, self.memory, READWRITE)
        self.seen = view(self.window.start, np.uint32, 1024)

    def peek(self, address: int, to: int) -> None:
        ok((launch(self.code["peek"], (address, to), (ctypes.c_uint64, ctypes.c_uint64)),))

    def close(self) -> None:
        self.code.close()
        self.steps.close()
        driver.cuMemUnmap(self.window.start, WHOLE)
        ok(driver.cuMemRelease(self.memory))
        self.window.close()


def launch_scale(tenant: Tenant, address: int, factor: float = 2.0) -> None:
    ok((launch(tenant.steps["scale"], (address, factor, 32), (ctypes.c_uint64, ctypes.c_float, ctypes.c_int32)),))


@pytest.fixture
def context(softgpu: tuple[int, ...]) -> Iterator[None]:  # noqa: ARG001 - devices are there
    ok(driver.cuInit(0))
    made = ok(driver.cuCtxCreate(None, 0, 0))
    yield
    ok(driver.cuCtxDestroy(made))


@pytest.fixture
def tenants(context: None) -> Iterator[tuple[Tenant, Tenant]]:  # noqa: ARG001 - it is current
    made = Tenant(), Tenant()
    yield made
    for one in made:
        one.close()


def test_a_confined_kernel_computes_in_its_window(tenants: tuple[Tenant, Tenant]) -> None:
    for number, tenant in enumerate(tenants, 1):
        numbers = view(tenant.window.start, np.float32, 32)
        numbers[:] = np.arange(32)
        launch_scale(tenant, tenant.window.start, number)
        synchronize()
        assert (numbers == number * np.arange(32)).all()


def test_no_tenant_reads_or_writes_another_tenants_memory(tenants: tuple[Tenant, Tenant]) -> None:
    """The address of another tenant's memory means the same place in the own window."""
    own, other = tenants
    own.seen[:4], other.seen[:4] = (1, 2, 3, 4), (0xC0FFEE, 6, 7, 8)
    own.peek(other.window.start, own.window.start + 4)
    synchronize()
    assert other.seen[:4].tolist() == [0xC0FFEE, 6, 7, 8]
    assert own.seen[:4].tolist() == [9, 1, 7, 4]  # read and wrote its own first number; its module's variable is 7


def test_memory_of_the_process_is_out_of_reach(tenants: tuple[Tenant, Tenant]) -> None:
    """A place in the window where nothing is mapped is an illegal address, and the process goes on."""
    own, _ = tenants
    secret = np.full(1024, 0x5EC2E7, np.uint32)
    own.seen[:4] = 0
    own.peek(int(secret.ctypes.data), own.window.start)
    fails(Error.CUDA_ERROR_ILLEGAL_ADDRESS, driver.cuCtxSynchronize)
    assert "illegal access" in software.last_error()
    assert (secret == 0x5EC2E7).all()
    assert not own.seen[:4].any()


@pytest.mark.parametrize("attacker", [0, 1])
def test_tenants_share_memory_that_none_can_change(tenants: tuple[Tenant, Tenant], attacker: int) -> None:
    shared = ok(driver.cuMemCreate(WHOLE, ON_DEVICE, 0))
    holder = ok(driver.cuMemAddressReserve(WHOLE, 0, 0, 0))
    put_in(int(holder), shared, READWRITE)
    constants = view(holder, np.uint32, 4)
    constants[:] = (11, 12, 13, 14)
    for tenant in tenants:
        put_in(tenant.window.start + WHOLE, shared, READ)
    launch_scale(tenants[attacker], tenants[attacker].window.start + WHOLE)  # one: it breaks the context
    fails(Error.CUDA_ERROR_ILLEGAL_ADDRESS, driver.cuCtxSynchronize)
    assert constants.tolist() == [11, 12, 13, 14]
    for tenant in tenants:
        assert view(tenant.window.start + WHOLE, np.uint32, 4).tolist() == [11, 12, 13, 14]
        driver.cuMemUnmap(tenant.window.start + WHOLE, WHOLE)
    driver.cuMemUnmap(holder, WHOLE)
    ok(driver.cuMemAddressFree(holder, WHOLE))
    ok(driver.cuMemRelease(shared))


@pytest.mark.processes
@pytest.mark.parametrize("attacker", [0, 1])
def test_tenants_read_memory_of_another_process_that_none_can_change(
    tenants: tuple[Tenant, Tenant], attacker: int
) -> None:
    with holder("sealed") as other:
        shared = imported(other.descriptor)
        for tenant in tenants:
            put_in(tenant.window.start + WHOLE, shared, READ)
        ok(driver.cuMemRelease(shared))
        own = tenants[attacker]
        own.peek(own.window.start + WHOLE, own.window.start)  # reads a constant, keeps it, and then writes the constant
        fails(Error.CUDA_ERROR_ILLEGAL_ADDRESS, driver.cuCtxSynchronize)
        assert own.seen[0] == CONSTANTS[0]
        assert other.constants() == list(CONSTANTS)
        other.kill()
    for tenant in tenants:
        assert view(tenant.window.start + WHOLE, np.uint32, 4).tolist() == list(CONSTANTS)
        driver.cuMemUnmap(tenant.window.start + WHOLE, WHOLE)


@pytest.mark.parametrize("reaches", [False, True])
def test_memory_is_unmapped_while_kernels_run(tenants: tuple[Tenant, Tenant], reaches: bool) -> None:
    """The call waits for no kernel; a kernel that reaches the memory later ends with an error."""
    own, other = tenants
    with own.window.confined():
        waiting = Kernels(WAITS.encode() + b"\0")
    start, beside = own.window.start, own.window.start + WHOLE
    own.seen[:3] = 0
    put_in(beside, other.memory, READWRITE)
    ok((launch(waiting["waits"], (start, beside if reaches else start + 8), (ctypes.c_uint64, ctypes.c_uint64)),))
    until(lambda: own.seen[1] == 1)
    ok(driver.cuMemUnmap(beside, WHOLE))
    assert own.seen[2] == 0
    own.seen[0] = 1
    if reaches:
        fails(Error.CUDA_ERROR_ILLEGAL_ADDRESS, driver.cuCtxSynchronize)
        assert f"0x{beside:x}" in software.last_error()
    else:
        synchronize()
        assert own.seen[2] == 9
    waiting.close()


VARIABLES = """.version 8.0
.target sm_80
.address_size 64
.global .align 4 .u32 first = 5;
.global .align 4 .b8 many[{bytes}];
.visible .entry counts(.param .u64 out)
{{
  .reg .b64 %o; .reg .b32 %v, %w;
  ld.param.u64 %o, [out];
  ld.global.u32 %v, [first]; st.global.u32 [%o], %v;
  ld.global.u32 %w, [many]; st.global.u32 [%o+4], %w; st.global.u32 [many], 7;
  ret;
}}"""


@pytest.mark.parametrize("confined", [False, True])
def test_variables_of_modules_are_memory_of_the_device(tenants: tuple[Tenant, Tenant], confined: bool) -> None:
    tenant, nbytes = tenants[0], 24 << 20
    gc.collect()  # the code of other tests has variables too
    synchronize()
    fails(Error.CUDA_ERROR_OUT_OF_MEMORY, driver.cuMemAlloc, 256 << 20)  # empties the pools of other tests
    text = VARIABLES.format(bytes=nbytes).encode() + b"\0"
    before, total = ok(driver.cuMemGetInfo())
    with tenant.window.confined() if confined else nullcontext():
        for _ in range(2):  # memory that is used again is zeros
            code = Kernels(text)
            ok((launch(code["counts"], (tenant.window.start,), (ctypes.c_uint64,)),))
            synchronize()
            assert tenant.seen[:2].tolist() == [5, 0]
            taken = before - ok(driver.cuMemGetInfo())[0]
            assert nbytes <= taken < nbytes + 8192
            code.close()
            assert ok(driver.cuMemGetInfo())[0] == before
        most = before - (16 << 20)
        held = ok(driver.cuMemAlloc(most))
        fails(Error.CUDA_ERROR_OUT_OF_MEMORY, driver.cuLibraryLoadData, text, [], [], 0, [], [], 0)
        assert "bytes left for the variables of a module" in software.last_error()
        ok(driver.cuMemFree(held))
        host_room.limit(lambda wanted: wanted < nbytes)
        fails(Error.CUDA_ERROR_OUT_OF_MEMORY, driver.cuLibraryLoadData, text, [], [], 0, [], [], 0)
        host_room.limit(lambda _: True)
    assert ok(driver.cuMemGetInfo()) == (before, total)


LEAST = 128 << 20
"""The smallest window; 96 MiB of it are for variables and for local and shared memory."""
LOCAL = """.visible .entry k{kib}(.param .u64 out)
{{
  .reg .b64 %o, %a, %n; .reg .pred %p; .local .align 16 .b8 room[{bytes}];
  ld.param.u64 %o, [out]; mov.u64 %a, room; mov.u64 %n, 0;
again:
  st.local.u64 [%a], %n; add.u64 %a, %a, 4096; add.u64 %n, %n, 4096; setp.lt.u64 %p, %n, {bytes}; @%p bra again;
  st.global.u32 [%o], %n;
  ret;
}}
"""


@pytest.fixture
def small(context: None) -> Iterator[AddressWindow]:  # noqa: ARG001 - it is current
    window = AddressWindow(LEAST)
    yield window
    window.close()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("confined", [False, True])
def test_local_memory_leaves_with_its_launch(small: AddressWindow, confined: bool) -> None:
    """Each launch finds room, whatever sizes were before: here nearly all that there is. Its pages go at its end."""
    sizes = (12, 20, 40, 80)
    text = ".version 8.0\n.target sm_80\n.address_size 64\n"
    text += "".join(LOCAL.format(kib=kib, bytes=kib << 10) for kib in sizes)
    memory = ok(driver.cuMemCreate(WHOLE, ON_DEVICE, 0))
    put_in(small.start, memory, READWRITE)
    with small.confined() if confined else nullcontext():
        code = Kernels(text.encode() + b"\0")
    residents = []
    for kib in (*sizes, *sizes[::-1], sizes[-1]):
        ok((launch(code[f"k{kib}"], (small.start,), (ctypes.c_uint64,), block=(1024, 1, 1)),))
        synchronize()
        assert view(small.start, np.uint32, 1)[0] == kib << 10
        residents.append(resident())
    assert residents[-1] < residents[-2] + (8 << 20)
    code.close()
    driver.cuMemUnmap(small.start, WHOLE)
    ok(driver.cuMemRelease(memory))


def test_addresses_of_variables_come_together_again(small: AddressWindow) -> None:
    """Code with variables of other sizes finds room after code that is unloaded."""
    for sizes in ((24, 24, 24), (40, 40), (80,), (20, 60)):
        with small.confined():
            codes = [Kernels(VARIABLES.format(bytes=size << 20).encode() + b"\0") for size in sizes]
        for code in codes[1:] + codes[:1]:
            code.close()


def test_mistakes(context: None) -> None:  # noqa: ARG001 - it is current
    for nbytes in (0, 3 << 30, 64 << 20, 1 << 60):
        with pytest.raises(SoftgpuError, match="window of"):
            AddressWindow(nbytes)
    window = AddressWindow(1 << 30)
    with window.confined():
        code = Kernels(PEEK.encode() + b"\0")
    with pytest.raises(SoftgpuError, match="1 libraries"):
        window.close()
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuMemAddressFree, window.start, (1 << 30) - AddressWindow.MARGIN)
    code.close()
    window.close()
    with pytest.raises(SoftgpuError, match="no window"), window.confined():
        pass

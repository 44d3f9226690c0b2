"""A GPU's window, on a software device, whose driver runs rewritten PTX as it is: addresses, code and variables."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

import kaas
from kaas.code.fencing import LEAST_WINDOW_BYTES, Fenced, fence
from kaas.errors import CannotFence, OutOfDeviceMemory, UnsupportedCode
from kaas.executor.device import device_memory
from kaas.executor.device.device import OpenDevice, open_device
from kaas.executor.device.windows import fenced_code
from kaas.executor.device.windows.gpu_window import GpuWindow
from kaas.executor.device.windows.pages import PAGE_BYTES, Pages
from kaas.executor.plan.globals import Globals
from softgpu.image import fatbin_of
from softgpu.tests.compiler.attacks import ATTACKS, BLOCK, CANARY, SHAPES, kernel
from softgpu.tests.compiler.corpus.case import Launch
from softgpu.tests.compiler.corpus.registry import CASES
from softgpu.tests.compiler.harness import HEADER
from tests.code.fencing.test_corpus import SAMPLE
from tests.gpu.fences import INSIDE, REFUSED, WindowLibrary, found, placed, run

REACH_BYTES = 2 << 30
"""How far the offset of an access reaches."""
KERNELS = Path(__file__).parents[2] / "kernels"


@pytest.fixture(scope="module")
def device(softgpu: tuple[int, ...]) -> Iterator[OpenDevice]:  # noqa: ARG001 - it is loaded
    opened = open_device("software", 0)
    opened.windows, opened.pages = GpuWindow, Pages(0, "a GPU", on_host=False)
    yield opened
    opened.close()


@pytest.fixture
def window(device: OpenDevice) -> Iterator[GpuWindow]:
    with device.context:
        made = device.window()
        assert isinstance(made, GpuWindow)
        yield made
        made.close()


# --- addresses


@pytest.mark.parametrize("memory_bytes", [1 << 20, 16 << 30, 139 << 30])
def test_a_window_is_aligned_and_no_memory_is_near(device: OpenDevice, memory_bytes: int) -> None:
    with device.context:
        made = GpuWindow(device.pages, memory_bytes)
        base, end = made.written._start, made.read._start + made._heap_bytes
        assert (end - base).bit_count() == 1
        assert end - base >= max(LEAST_WINDOW_BYTES, 4 * memory_bytes)
        assert base % (end - base) == 0
        for wanted in (base - REACH_BYTES - PAGE_BYTES, base - PAGE_BYTES, base, end, end + REACH_BYTES):
            status, given = driver.cuMemAddressReserve(PAGE_BYTES, 0, wanted, 0)
            assert not status
            assert int(given) != wanted
            driver.cuMemAddressFree(given, PAGE_BYTES)
        made.close()


def test_memory_that_another_client_has_left_is_cleared(window: GpuWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    set_access = driver.cuMemSetAccess

    def dirty(address: int, nbytes: int, access: Any, count: int) -> Any:
        done = set_access(address, nbytes, access, count)
        if access[0].flags == driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
            ctypes.memset(address, 0xAA, nbytes)
        return done

    monkeypatch.setattr(driver, "cuMemSetAccess", dirty)
    for heap in window.heaps:
        address = heap.allocate(PAGE_BYTES + 1)
        assert not np.ctypeslib.as_array((ctypes.c_ubyte * (2 * PAGE_BYTES)).from_address(address)).any()
        heap.free(address)
    ((_, shared, address),) = window.place({b"large": PAGE_BYTES}, {})
    assert not np.ctypeslib.as_array((ctypes.c_ubyte * PAGE_BYTES).from_address(address)).any()
    shared.free(address)


def test_memory_of_a_gpu_needs_no_room_on_the_host(window: GpuWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory.HOST_ROOM, "_look", lambda: 0)
    monkeypatch.setattr(device_memory.HOST_ROOM, "_allowed_bytes", 0)
    window.written.free(window.written.allocate(PAGE_BYTES))


# --- code


@pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.full) for name in CASES]
)
def test_kernels_of_real_compilers_give_the_same_results(window: GpuWindow, name: str) -> None:
    case = CASES[name]()
    if case.image in REFUSED:
        with pytest.raises(CannotFence, match=r"thread.s stack"):
            run(case, window)
    else:
        case.check(run(case, window))


SIMPLE = (KERNELS / "simple.ptx").read_text()
STACKS = HEADER + (
    ".visible .entry k() { .local .u32 a; .local .u32 b; .reg .b64 %a; mov.u64 %a, a; st.local.u32 [%a+8], 1; ret; }"
)


def test_a_module_that_cannot_be_fenced_is_refused_by_name(window: GpuWindow) -> None:
    library = kaas.Library.from_ptx(HEADER + ".visible .entry k() { newop.u32 %r1, %r2; ret; }")
    with pytest.raises(CannotFence, match="newop is not known to be safe") as refused:
        window.load(library)
    assert refused.value.library == library.hash
    assert refused.value.line == 4
    with pytest.raises(CannotFence, match=r"the function k cannot be fenced: .* stack"):
        window.load(kaas.Library.from_ptx(STACKS))


def test_a_library_of_machine_code_is_refused_and_one_with_ptx_beside_it_runs(window: GpuWindow) -> None:
    cubin = kaas.Library.from_file(KERNELS / "globals.cubin").images
    with pytest.raises(UnsupportedCode, match=r"without PTX.*machine code alone\. PTX beside it"):
        window.load(kaas.Library(cubin))
    text = kaas.Library.from_file(KERNELS / "globals.ptx").images
    loaded = window.load(kaas.Library((*cubin, *text)))
    assert loaded.symbols()
    assert loaded.image == text[0]
    loaded.close()


def test_the_first_ptx_that_can_run_is_taken(window: GpuWindow) -> None:
    later = HEADER.replace("sm_80", "sm_90a") + ".visible .entry k() { newop.u32 %r1, %r2; ret; }"
    images = [kaas.Library.from_ptx(text).images[0] for text in (later, STACKS, SIMPLE)]
    loaded = window.load(kaas.Library(tuple(images)))
    assert loaded.image == images[2]
    loaded.close()


def test_ptx_in_a_fatbin_is_fenced(window: GpuWindow) -> None:
    loaded = window.load(kaas.Library.from_fatbin(fatbin_of(SIMPLE)))
    assert loaded.image.data.decode() == SIMPLE.rstrip("\0")
    loaded.close()


def test_a_text_is_rewritten_once_for_all_clients(device: OpenDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []

    def counted(text: str) -> Fenced:
        texts.append(text)
        return fence(text)

    monkeypatch.setattr(fenced_code, "fence", counted)
    with device.context:
        for _ in range(3):
            window = device.window()
            window.load(kaas.Library.from_ptx(SIMPLE + "// rewritten once")).close()
            window.close()
    assert len(texts) == 1


# --- variables


COUNT = (
    HEADER
    + """
.global .align 4 .u32 calls = 40; .global .align 512 .b8 zeros[1024];
.visible .entry k(.param .u64 o)
{
  .reg .b64 %o; .reg .b32 %r;
  ld.param.u64 %o, [o];
  ld.global.u32 %r, [calls]; st.global.u32 [%o], %r; add.u32 %r, %r, 1; st.global.u32 [calls], %r;
  ld.global.u32 %r, [zeros+1020]; st.global.u32 [%o+4], %r; st.global.u32 [zeros+1020], 5;
  ret;
}"""
)


def test_variables_lie_in_the_window_and_are_reset_there(device: OpenDevice, window: GpuWindow) -> None:
    used = window.written.allocate(PAGE_BYTES // 2)
    device_memory.write(used, b"\xaa" * (PAGE_BYTES // 2))
    window.written.free(used)
    library = WindowLibrary(kaas.Library.from_ptx(COUNT), window)
    variables = library.loaded.variables
    assert variables is not None
    assert variables.address % 512 == 0
    assert window.written._start <= variables.address < window.read._start
    stream, globals_ = device.stream(), Globals(device, "x", library.loaded)
    assert globals_.known
    with placed(window, {"o": np.zeros(2, np.uint32)}) as addresses:
        found = []
        for client in "aaba":
            globals_.enter(client, stream)
            stream.synchronize()
            library.launch(Launch("k", 1, 1, ["o"]), addresses)
            assert not driver.cuCtxSynchronize()[0]
            found.append(np.ctypeslib.as_array((ctypes.c_uint32 * 2).from_address(addresses["o"])).tolist())
    assert found == [[40, 0], [41, 5], [40, 0], [40, 0]]
    globals_.close()
    stream.close()
    library.close()
    assert window.written.used_bytes == 0


def test_code_whose_variables_find_no_room_is_refused_and_leaves_none(window: GpuWindow) -> None:
    with pytest.raises(OutOfDeviceMemory):
        window.load(kaas.Library.from_ptx(COUNT.replace("zeros[1024]", f"zeros[{1 << 29}]")))
    assert window.written.used_bytes == 0


# --- attacks


def attempts() -> Iterator[tuple[str, str]]:
    """Yield each attack with the same address in all lanes, and with one other shape."""
    others = cycle([shape for shape in SHAPES if shape != "uniform"])
    for name in INSIDE:
        yield name, "uniform"
        yield name, next(others)


@pytest.fixture(scope="module")
def windows(device: OpenDevice) -> Iterator[tuple[GpuWindow, dict[str, int], GpuWindow, dict[str, int]]]:
    """Two windows with memory at the same places: the first with canaries, the second one the attacker's."""
    with device.context:
        made = [GpuWindow(device.pages, device.info().memory_bytes) for _ in range(2)]
    arrays = {"out": np.zeros(PAGE_BYTES, np.uint32)}
    with (
        device.context,
        placed(made[0], {"out": np.full(PAGE_BYTES, CANARY, np.uint32)}) as hers,
        placed(made[1], arrays) as his,
    ):
        yield made[0], hers, made[1], his
    with device.context:
        for one in made:
            one.close()


@pytest.mark.parametrize(("name", "shape"), [*attempts()])
def test_no_attack_finds_or_changes_another_clients_memory(
    windows: tuple[GpuWindow, dict[str, int], GpuWindow, dict[str, int]], name: str, shape: str
) -> None:
    """Each has a context of its own, which an access to addresses without memory ends."""
    _, hers, window, his = windows
    context = driver.cuCtxCreate(None, 0, 0)[1]
    secrets = np.ctypeslib.as_array((ctypes.c_uint32 * PAGE_BYTES).from_address(hers["out"]))
    own = np.ctypeslib.as_array((ctypes.c_uint32 * PAGE_BYTES).from_address(his["out"]))
    own[:] = 0
    address = hers["out"] + PAGE_BYTES * 2
    table, out, mine = (his["out"] + at for at in (0, 4096, 8192))
    own[: 2 * BLOCK].view(np.uint64)[:] = address + 8 * np.arange(BLOCK)
    library = WindowLibrary(kaas.Library.from_ptx(kernel(shape, ATTACKS[name])), window)
    try:
        args = [np.uint64(address), np.uint64(mine), np.uint64(table), np.uint64(out), np.uint32(0)]
        library.launch(Launch("k", 1, BLOCK, args), {})
        status = driver.cuCtxSynchronize()[0]
    finally:
        library.close()
        driver.cuCtxDestroy(context)
    assert status in (
        driver.CUresult.CUDA_SUCCESS,
        driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,
        driver.CUresult.CUDA_ERROR_MISALIGNED_ADDRESS,
    )
    assert (secrets == CANARY).all()
    assert not found(name, own[1024 : 1024 + BLOCK])

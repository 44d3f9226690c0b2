"""Loading images and compiling kernels: the disk cache, fatbins, errors, and the C interface."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path

import lz4.block
import numpy as np
import pytest
import zstandard

from softgpu import c_interface, examination, machine_code, target
from softgpu.c_interface import INVALID_HANDLE, INVALID_IMAGE, INVALID_PTX, NO_BINARY_FOR_GPU, CompileError
from softgpu.disk_cache import DiskCache
from softgpu.target import Target, host
from softgpu.tests.compiler.conftest import Gpu, build_runner
from tests.timeouts import TIMEOUT_S

ROOT = Path(__file__).parents[4]
MEMORY = (Path(__file__).parent / "kernels" / "memory.ptx").read_text()


def adds(gpu: Gpu) -> None:
    a, b, out = np.arange(40, dtype=np.float32), np.ones(40, np.float32), np.zeros(40, np.float32)
    gpu.run(MEMORY, "vecadd", 2, 32, a, b, out, np.int32(40))
    np.testing.assert_array_equal(out, a + b)


class Forbidden(Exception):
    pass


def forbid(*_: object) -> None:
    raise Forbidden


def test_a_second_load_neither_reads_nor_compiles(
    runner: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adds(Gpu(runner, tmp_path))
    monkeypatch.setattr(examination, "examine", forbid)
    monkeypatch.setattr(machine_code, "assemble", forbid)
    adds(Gpu(runner, tmp_path))


def test_the_tests_of_the_next_run_neither_build_the_runner_nor_compile(
    runner: ctypes.CDLL, compiled: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    adds(gpu)
    for module, name in ((subprocess, "run"), (examination, "examine"), (machine_code, "assemble")):
        monkeypatch.setattr(module, name, forbid)
    assert str(build_runner(compiled)) == runner._name
    adds(Gpu(runner, gpu.compiler._translator._cache.directory))
    assert gpu.compiler._translator._cache.directory.parent == compiled


def test_damaged_entries_are_made_again(runner: ctypes.CDLL, tmp_path: Path) -> None:
    adds(Gpu(runner, tmp_path))
    entries = [path for path in tmp_path.iterdir() if path.is_file()]
    assert len(entries) == 2
    for damage in (lambda b: b[: len(b) // 2], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda _: b""):
        for path in entries:
            path.write_bytes(damage(path.read_bytes()))
        adds(Gpu(runner, tmp_path))


def test_a_directory_that_cannot_be_written_only_costs_time(runner: ctypes.CDLL, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    adds(Gpu(runner, blocked))


def test_the_cache_is_bounded_and_keeps_the_entries_read_last(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10_000)
    for number in range(8):
        cache.put(f"e{number}", bytes(1000))
        os.utime(tmp_path / f"e{number}", (number, number))
    assert cache.get("e0") == bytes(1000)  # which makes it the newest
    for number in range(8, 16):
        cache.put(f"e{number}", bytes(1000))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10_000 + 2_000
    assert cache.get("e0") is not None
    assert cache.get("e1") is None


def test_entries_of_others_are_read_and_stay_as_they_are(tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    DiskCache(shared, 10_000).put("theirs", b"of others")
    os.utime(shared / "theirs", (1, 1))
    cache = DiskCache(own, 10_000, shared)
    assert cache.get("theirs") == b"of others"
    cache.put("mine", b"of this process")
    cache.put("theirs", b"made again")
    assert (cache.get("mine"), cache.get("theirs")) == (b"of this process", b"made again")
    assert [path.name for path in shared.iterdir()] == ["theirs"]
    assert (shared / "theirs").stat().st_mtime == 1
    assert DiskCache(shared, 10_000).get("theirs") == b"of others"


WRITER = """
import itertools, sys
from pathlib import Path
from softgpu.disk_cache import DiskCache

cache = DiskCache(Path(sys.argv[1]), int(sys.argv[2]))
print(flush=True)
for number in itertools.count():
    cache.put(f"e{number % 5}", bytes([number % 5]) * 500_000)
"""


@pytest.mark.processes
def test_writers_that_are_killed_leave_whole_entries_and_a_bounded_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limit = 1_250_000  # less than the entries that they write
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(limit)], cwd=ROOT, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()  # it writes from now on
    cache = DiskCache(tmp_path, limit)
    found = [cache.get(f"e{number % 5}") for number in range(50)]
    for writer in writers:
        while writer.poll() is None and not list(tmp_path.glob(".new-*")):
            pass  # one of them is in the middle of a write
        writer.kill()
        writer.communicate()
    for number, entry in enumerate([*found, *(cache.get(f"e{number}") for number in range(5))]):
        assert entry in (None, bytes([number % 5]) * 500_000)
    assert not caplog.records  # nothing was damaged
    (tmp_path / ".new-unfinished").touch()  # if none was killed in the middle
    for path in tmp_path.glob(".new-*"):
        os.utime(path, (0, 0))
    DiskCache(tmp_path, limit).put("last", bytes(1000))
    assert not list(tmp_path.glob(".new-*"))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= limit
    assert cache.get("last") == bytes(1000)


def test_a_kernel_does_not_wait_for_another(
    runner: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(runner, tmp_path)
    module = gpu.load(MEMORY)
    both = threading.Barrier(2)
    assemble = machine_code.assemble

    def met(text: str, target: Target) -> bytes:
        both.wait(TIMEOUT_S)  # breaks unless two kernels are here at once
        return assemble(text, target)

    monkeypatch.setattr(machine_code, "assemble", met)
    gpu.compiler.announce(module, 0, (32, 1, 1))
    assert gpu.compiler.compile(module, 1, (32, 1, 1)) != gpu.compiler.compile(module, 0, (32, 1, 1))


def test_threads_may_compile_at_once(runner: ctypes.CDLL, tmp_path: Path) -> None:
    gpu = Gpu(runner, tmp_path)
    gpu.load(MEMORY)
    failures: list[BaseException] = []

    def work(name: str, block: int) -> None:
        try:
            index = [k.name for k in gpu.compiler.describe(gpu.load(MEMORY))[0].kernels].index(name)
            assert gpu.compiler.compile(gpu.load(MEMORY), index, (block, 1, 1))
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n, b)) for n in ("vecadd", "scan", "doubles") for b in (32, 64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors of this kind")
@pytest.mark.parametrize(
    "other",
    [Target("x86-64", "", 0, False), Target("haswell", "+avx2,+fma,+f16c,+bmi2", 32, True)],
    ids=["baseline", "avx2"],
)
def test_lesser_processors(runner: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Target) -> None:
    """Without masked accesses and half precision in hardware."""
    features = host().features
    if "+avx2" in other.features and "+avx2" not in features:
        pytest.skip("this machine is lesser still")
    monkeypatch.setattr(target, "host", lambda: other)
    gpu = Gpu(runner, tmp_path)
    adds(gpu)
    a, b = (np.random.default_rng(seed).random((33, 33), np.float32) for seed in (1, 2))
    c = np.zeros_like(a)
    gpu.run(MEMORY, "sgemm", (3, 3), (16, 16), a, b, c, *[np.int32(33)] * 3)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)
    text = (Path(__file__).parent / "kernels" / "warp.ptx").read_text()
    halves = [x[:, 0].astype(np.float16) for x in (a, b)]
    out = np.zeros(33, np.float32)
    gpu.run(text, "halves", 2, 32, *halves, out, np.int32(33))
    np.testing.assert_array_equal(out, (halves[0] + halves[1]).astype("f4") + (halves[0] * halves[1]).astype("f4"))


def refused(gpu: Gpu, content: bytes, result: int, words: str) -> None:
    with pytest.raises(CompileError, match=words) as caught:
        gpu.compiler.load(content)
    assert caught.value.result == result


def test_images_that_hold_no_ptx(gpu: Gpu) -> None:
    cubin = b"\x7fELF" + bytes(14) + struct.pack("<H", 190) + bytes(40)
    refused(gpu, cubin, NO_BINARY_FOR_GPU, "runs PTX")
    refused(gpu, b"\x7fELF" + bytes(14) + struct.pack("<H", 62) + bytes(40), INVALID_IMAGE, "another machine")
    refused(gpu, struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 100), INVALID_IMAGE, "cut off")
    refused(gpu, struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0), NO_BINARY_FOR_GPU, "no PTX")
    refused(gpu, b"\xff\xfe\x00", INVALID_IMAGE, "neither PTX")
    refused(gpu, b"", INVALID_PTX, "not PTX")
    refused(gpu, MEMORY.encode()[:3000], INVALID_PTX, "ends inside")


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="makes a fatbin with nvcc")
def test_fatbins(gpu: Gpu, tmp_path: Path) -> None:
    source = Path(__file__).parent / "kernels" / "divergence.cu"
    for flag in ("--no-compress", "--compress-mode=default", "--compress-mode=speed"):
        output = tmp_path / "image.fatbin"
        command = ["nvcc", "-fatbin", "-gencode", "arch=compute_80,code=[sm_80,compute_80]", flag, str(source)]
        subprocess.run([*command, "-o", str(output)], check=True, capture_output=True)
        content = output.read_bytes()
        handle = gpu.compiler.load(content)
        assert "collatz" in [kernel.name for kernel in gpu.compiler.describe(handle)[0].kernels]


def fatbin(frame: bytes, flags: int = 0x8011, whole_bytes: int = 0) -> bytes:
    """A fatbin whose only entry is PTX compressed to this frame."""
    head = (1, 0x101, 80, len(frame), len(frame), 0, 0, 0, 80, 0, 0, flags, 0, whole_bytes)
    entry = struct.pack("<HHIQIIHHIIIQQQ", *head)
    entry = entry.ljust(80, b"\0") + frame
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry


def test_compressed_ptx(gpu: Gpu) -> None:
    whole = zstandard.ZstdCompressor().compress(MEMORY.encode())
    assert gpu.compiler.describe(gpu.compiler.load(fatbin(whole)))[0].kernels
    refused(gpu, fatbin(whole[: len(whole) // 2]), INVALID_IMAGE, "decompressed")
    refused(gpu, fatbin(b"\x28\xb5\x2f\xfd" + bytes(20)), INVALID_IMAGE, "decompressed")
    huge = b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + bytes(20)
    refused(gpu, fatbin(huge), INVALID_IMAGE, "claims more")
    refused(gpu, fatbin(whole, 0x4011), NO_BINARY_FOR_GPU, "unknown way, 0x4000")


def test_ptx_compressed_for_speed(gpu: Gpu) -> None:
    text = MEMORY.encode()
    block = lz4.block.compress(text, store_size=False)
    assert gpu.compiler.describe(gpu.compiler.load(fatbin(block, 0x2011, len(text))))[0].kernels
    for frame, size in ((block[:-9], len(text)), (block, len(text) - 1), (b"\x13", 0), (b"", 100)):
        refused(gpu, fatbin(frame, 0x2011, size), INVALID_IMAGE, "decompressed")
    refused(gpu, fatbin(block, 0x2011, 1 << 40), INVALID_IMAGE, "claims more")


def test_unknown_modules_kernels_and_blocks(gpu: Gpu) -> None:
    handle = gpu.compiler.load(MEMORY.encode())
    for kernel, block in ((999, (32, 1, 1)), (0, (0, 1, 1)), (0, (1024, 2, 1))):
        with pytest.raises(CompileError):
            gpu.compiler.compile(handle, kernel, block)
    gpu.compiler.unload(handle)
    with pytest.raises(CompileError) as caught:
        gpu.compiler.describe(handle)
    assert caught.value.result == INVALID_HANDLE


def test_the_c_interface(gpu: Gpu, capfd: pytest.CaptureFixture[str]) -> None:
    table = gpu.compiler.callbacks
    handle = ctypes.c_uint64()
    content = MEMORY.encode()
    assert table.load(content, len(content), 0, None, ctypes.byref(handle)) == 0
    kernels = ctypes.POINTER(c_interface.KernelRecord)()
    variables = ctypes.POINTER(c_interface.GlobalRecord)()
    counts = ctypes.c_uint32(), ctypes.c_uint32()
    result = table.describe(
        handle, ctypes.byref(kernels), ctypes.byref(counts[0]), ctypes.byref(variables), ctypes.byref(counts[1])
    )
    assert result == 0
    named = {kernels[i].name: kernels[i] for i in range(counts[0].value)}
    add = named[b"vecadd"]
    assert [add.param_offsets[i] for i in range(add.param_count)] == [0, 8, 16, 24]
    assert (add.param_bytes, add.max_threads) == (28, 1024)
    shared = named[b"transpose"].shared_bytes
    assert shared == 16 * 17 * 4
    assert b"counter" in [variables[i].name for i in range(counts[1].value)]
    function = ctypes.c_void_p()
    assert table.compile(handle, 0, (ctypes.c_uint32 * 3)(64, 1, 1), 0, ctypes.byref(function)) == 0
    assert function.value
    table.unload(handle)
    assert table.load(b"nonsense", 8, 0, None, ctypes.byref(handle)) == INVALID_PTX
    assert table.describe(12345, *[None] * 4) == INVALID_HANDLE
    capfd.readouterr()


ANNOUNCES = """
import sys
from pathlib import Path
import softgpu
from softgpu import jit
softgpu.load([1 << 20])
import ctypes
library = ctypes.CDLL("libcuda.so.1")
compiler = jit.Compiler(library, Path(sys.argv[1]))
body = "xor.b32 %r1, %r1, 5; add.u32 %r1, %r1, %r1; mul.lo.u32 %r1, %r1, 3; " * 100 + "st.global.u32 [%rd1], %r1; "
start = ".reg .u64 %rd<2>; .reg .u32 %r<2>; ld.param.u64 %rd1, [p]; ld.global.u32 %r1, [%rd1]; "
entries = "".join(f".visible .entry k{i}(.param .u64 p) {{ {start}{body}ret; }}\\n" for i in range(100))
module = compiler.load((".version 8.0\\n.target sm_80\\n.address_size 64\\n" + entries).encode())
for kernel in range(100):
    compiler.announce(module, kernel, (32, 1, 1))
if sys.argv[2] == "unload":
    compiler.unload(module)
"""


@pytest.mark.processes
@pytest.mark.parametrize("way", ["unload", "exit"])
def test_announced_compilations_are_cancelled_at_the_end(way: str, tmp_path: Path) -> None:
    """When the module or the process ends, only compilations that have begun are finished."""
    done = subprocess.run(
        [sys.executable, "-c", ANNOUNCES, str(tmp_path), way], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert sum(1 for path in tmp_path.rglob("*") if path.is_file()) < 50


FINDS = """
import ctypes, sys
from pathlib import Path
import softgpu
from softgpu.jit import Compiler
softgpu.load([1 << 20])
compiler = Compiler(ctypes.CDLL("libcuda.so.1"), Path(sys.argv[1]))
module = compiler.load(b".version 8.0\\n.target sm_80\\n.address_size 64\\n.visible .entry k() { ret; }\\n")
assert compiler.compile(module, 0, (32, 1, 1))
print(any(name.startswith(("softgpu.ptx", "softgpu.codegen")) for name in sys.modules))
"""


@pytest.mark.processes
def test_a_process_that_finds_code_in_the_cache_imports_no_compiler(tmp_path: Path) -> None:
    """An executor starts often where devices fail, and requests wait for it."""
    command = [sys.executable, "-c", FINDS, str(tmp_path)]
    compiled, found = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert (compiled, found) == ("True\n", "False\n")

"""Building the driver library and loading it into a process, each in a process of its own."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from softgpu import SoftgpuError
from softgpu import build as driver_build
from tests.timeouts import TIMEOUT_S

ROOT = Path(__file__).parents[4]
VERSION = 13010
"""Of the driver's interface."""
TRIVIAL = "int cuInit(unsigned flags) { (void)flags; return %d; }"


def python(code: str, **environment: str) -> str:
    """Return the output of a program; fail with its error output if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.processes
def test_loading_twice() -> None:
    code = """
import softgpu
from softgpu import SoftgpuError
assert softgpu.loaded_devices() == () and softgpu.last_error() == ""
softgpu.load([1 << 20, 2 << 20])
softgpu.load([1 << 20, 2 << 20])
try:
    softgpu.load([1 << 20])
except SoftgpuError as error:
    print(softgpu.loaded_devices(), error)
"""
    said = python(code)
    assert said.startswith("(1048576, 2097152)")
    assert "it cannot get" in said


@pytest.mark.processes
def test_devices_with_a_model_faults_and_strictness(tmp_path: Path) -> None:
    code = """
import softgpu
from softgpu import SoftgpuError
try:
    softgpu.inject(softgpu.Fault("hang"))
except SoftgpuError as error:
    print(error)
model = softgpu.Model(copy_bytes_per_s=1e9, kernels={"add": softgpu.Takes(1e-3, 0.5)})
softgpu.load([softgpu.Device(1 << 20, model, (softgpu.Fault("out_of_memory"),)), 1 << 20])
print(softgpu.loaded_devices())
from cuda.bindings import driver
driver.cuInit(0)
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
print([int(driver.cuMemAlloc(8)[0]) for _ in range(2)])
softgpu.inject(softgpu.Fault("out_of_memory"))
softgpu.forgive()
softgpu.set_model(0, softgpu.Model())
softgpu.set_strict(None)
print(int(driver.cuMemAlloc(8)[0]))
"""
    (tmp_path / "model.toml").write_text("copy_bytes_per_s = 1e9")
    said = python(code, SOFTGPU_MODEL=str(tmp_path / "model.toml"), SOFTGPU_STRICT="1").splitlines()
    assert said == ["there are no software devices in this process yet", "(1048576, 1048576)", "[2, 0]", "0"]


@pytest.mark.processes
def test_calls_before_cu_init() -> None:
    code = """
import softgpu
softgpu.load([1 << 20])
from cuda.bindings import driver
print(int(driver.cuDeviceGetCount()[0]), int(driver.cuMemAlloc(8)[0]), int(driver.cuStreamSynchronize(0)[0]))
driver.cuInit(0)
print(int(driver.cuDeviceGetCount()[0]), int(driver.cuMemAlloc(8)[0]))
print(softgpu.last_error())
"""
    assert python(code).splitlines() == ["3 3 3", "0 201", "no context is current in this thread"]


@pytest.mark.processes
def test_without_configured_devices() -> None:
    code = """
from softgpu import build, open_library
library = open_library(build.build())
print(library.cuInit(0), library.softgpu_last_error().decode())
"""
    assert python(code) == "100 cuInit: no software devices were configured"


@pytest.mark.parametrize("devices", [[], [0], [-1], [1] * 17])
def test_impossible_devices(devices: list[int]) -> None:
    import softgpu

    with pytest.raises(ValueError, match="devices"):
        softgpu.load(devices)


@pytest.mark.processes
def test_a_real_driver_is_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "real.c").write_text(TRIVIAL % 0)
    driver_build.build([tmp_path / "real.c"], tmp_path)
    (folder,) = (path.parent for path in tmp_path.glob("*/libcuda.so.1"))
    code = """
import softgpu
from softgpu import SoftgpuError
try:
    softgpu.load([1 << 20])
except SoftgpuError as error:
    print(error)
softgpu.load([1 << 20], force=True)
print(softgpu.loaded_devices())
"""
    first, second = python(code, LD_LIBRARY_PATH=str(folder)).splitlines()
    assert first.startswith("a working NVIDIA driver is present")
    assert second == "(1048576,)"


@pytest.mark.processes
def test_a_driver_library_without_a_gpu_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "real.c").write_text(TRIVIAL % 100)
    library = driver_build.build([tmp_path / "real.c"], tmp_path)
    code = "import softgpu; softgpu.load([1 << 20]); print(softgpu.loaded_devices())"
    assert python(code, LD_LIBRARY_PATH=str(library.parent)) == "(1048576,)"


@pytest.mark.processes
def test_a_changed_source_is_built_anew(tmp_path: Path) -> None:
    source = tmp_path / "driver.c"
    source.write_text(TRIVIAL % 0)
    first = driver_build.build([source], tmp_path)
    written = first.stat().st_mtime_ns
    assert driver_build.build([source], tmp_path) == first
    assert first.stat().st_mtime_ns == written
    source.write_text(TRIVIAL % 1)
    assert driver_build.build([source], tmp_path) != first


@pytest.mark.processes
def test_many_builders_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "softgpu")
    source = tmp_path / "driver.c"
    source.write_text(TRIVIAL % 0)
    with ThreadPoolExecutor(4) as threads:
        built = set(threads.map(lambda _: driver_build.build([source], tmp_path), range(4)))
    assert len(built) == 1
    assert [path.name for path in built.pop().parent.iterdir()] == ["libcuda.so.1"]
    assert caplog.messages == ["building the software GPU's driver, once for this machine"]


def test_without_a_c_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(SoftgpuError, match="C compiler"):
        driver_build.build(directory=tmp_path)


@pytest.mark.processes
def test_a_compiler_that_fails(tmp_path: Path) -> None:
    source = tmp_path / "driver.c"
    source.write_text("this is not C")
    with pytest.raises(SoftgpuError, match=r"could not be compiled.*error"):
        driver_build.build([source], tmp_path)
    assert not list(tmp_path.glob("*/*"))


@pytest.mark.processes
@pytest.mark.full
def test_the_driver_compiles_without_warnings(tmp_path: Path) -> None:
    flags = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-c")
    command = [*driver_build._compiler(), *driver_build.INCLUDES, *flags]

    def compiled(source: Path) -> subprocess.CompletedProcess[str]:
        whole = [*command, str(source), "-o", str(tmp_path / f"{source.stem}.o")]
        return subprocess.run(whole, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        ended = list(threads.map(compiled, driver_build.driver_sources()))
    assert not [each.stderr for each in ended if each.returncode]


def toolkit_header() -> Path | None:
    """A cuda.h with all that the driver has, of the nvcc of the path or of the wheels of CUDA, if there is one."""
    wheels = importlib.util.find_spec("nvidia")
    found = [Path(part, "cu13", "include", "cuda.h") for part in (wheels and wheels.submodule_search_locations) or ()]
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        command, program = [nvcc, "-M", "-x", "cu", "-"], "#include <cuda.h>"
        listed = subprocess.run(command, input=program, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        found += [Path(word) for word in listed.stdout.split() if word.endswith("/cuda.h")]
    return next((path for path in found if path.exists() and _version(path) >= VERSION), None)


def _version(header: Path) -> int:
    return int(re.findall(r"#define CUDA_VERSION (\d+)", header.read_text(errors="replace"))[0])


@pytest.mark.processes
@pytest.mark.full
def test_prototypes_are_those_of_the_toolkit() -> None:
    """Every function of ours has the type that cuda.h gives it. Without a toolkit there is nothing to compare."""
    header = toolkit_header()
    flags = ("-fsyntax-only", "-w", "-D_GNU_SOURCE", "-DSOFTGPU_CUDA_ABI_H", "-include", str(header))
    command = [*driver_build._compiler(), *driver_build.INCLUDES, *flags]
    for source in driver_build.driver_sources() if header else []:
        if source.parent.name == "driver" and source.name not in ("symbols.c", "refused.c"):  # these know no types
            subprocess.run([*command, str(source)], check=True, timeout=TIMEOUT_S)


def test_the_library_takes_little_of_the_shared_thread_local_storage() -> None:
    """With more, PyTorch could not be imported in the same process: all libraries share a few hundred bytes."""
    content = driver_build.build().read_bytes()
    (headers,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    kinds = {struct.unpack_from("<I", content, headers + size * i)[0]: headers + size * i for i in range(count)}
    (thread_bytes,) = struct.unpack_from("<Q", content, kinds[7] + 40)  # PT_TLS, p_memsz
    assert 0 < thread_bytes <= 128

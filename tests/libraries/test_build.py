"""Built files are made once, found again, and whole or not there; errors say why a file cannot be built."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kaas
from cutlass_blas import __main__ as command
from cutlass_blas import adapter, building, compiling, instances, provider, sources, store
from cutlass_blas.building import jobs
from cutlass_blas.errors import StoreFailed
from cutlass_blas.instances import CORE
from kaas import errors
from kaas.executor.plan.variables import variables_of
from softgpu.image import CUBIN_KIND, PTX_KIND, entries
from tests.lanes import spread

KERNEL = 'extern "C" __global__ void tiny(int *p) { *p = 7; }\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty store for this test."""
    monkeypatch.setattr(store, "cached", lambda: tmp_path / "built")
    return tmp_path / "built"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Give the library a small piece of device code, "tiny", that is quickly built; each call changes it."""
    device = tmp_path / "device"
    device.mkdir()
    monkeypatch.setattr(sources, "DEVICE", device)
    monkeypatch.setattr(compiling, "DEVICE", device)
    monkeypatch.setitem(instances.EXTRAS, "tiny", "tiny.cuh")

    def change(text: str) -> None:
        (device / "tiny.cuh").write_text(text)
        sources._contents.cache_clear()
        sources.version.cache_clear()

    yield change
    sources._contents.cache_clear()
    sources.version.cache_clear()


def fake_nvcc(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def survives(error: errors.KaasError) -> bool:
    again = pickle.loads(pickle.dumps(error))
    return type(again) is type(error) and (again.message, again.fields) == (error.message, error.fields)


def test_code_is_built_when_it_is_first_requested(folder: Path, write: Callable[[str], None]) -> None:
    write(KERNEL)
    made = provider.images("tiny", sources.version("tiny"))
    assert [image.kind for image in made.images] == ["fatbin"]
    (path,) = folder.iterdir()
    before = path.stat().st_mtime_ns
    assert provider.images("tiny", sources.version("tiny")) == made
    assert path.stat().st_mtime_ns == before
    assert provider.library("tiny").images[0].kind == "provided"


def test_only_missing_files_are_built(folder: Path, write: Callable[[str], None]) -> None:
    write(KERNEL)
    steps: list[building.Progress] = []
    wanted = building.jobs(["tiny"])
    assert building.build(wanted, at_once=2, report=steps.append) == (folder / wanted[0].file,)
    assert [(step.done, step.total, step.file) for step in steps] == [(1, 1, wanted[0].file)]
    assert building.build(wanted) == ()
    write(KERNEL + "// changed\n")
    assert len(building.build(building.jobs(["tiny"]))) == 1
    assert len(list(folder.iterdir())) == 2


DAMAGES = [lambda b: b[:99] + b"\0\0\0\0" + b[103:], lambda b: b[:-1], lambda _: b""]


@pytest.mark.parametrize("damage", spread(DAMAGES, 1))
def test_a_damaged_file_is_made_again(
    folder: Path, write: Callable[[str], None], damage: Callable[[bytes], bytes]
) -> None:
    write(KERNEL)
    built = store.kernels("tiny")
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert store.find(path.name) is None
    assert store.kernels("tiny") == built
    assert path.read_bytes() == whole


def test_of_two_processes_that_need_a_file_at_once_one_builds_it(
    folder: Path, write: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(KERNEL)
    ready, made, built = threading.Barrier(2), [], []
    build = store.build_kernels

    def counted(name: str) -> bytes:
        built.append(name)
        return build(name)

    monkeypatch.setattr(store, "build_kernels", counted)

    def ask() -> None:
        ready.wait()
        made.append(store.kernels("tiny"))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made[0] == made[1]
    assert built == ["tiny"]
    assert [path.name for path in folder.iterdir()] == [store.kernels_file("tiny")]


def test_the_files_of_a_wheel_are_taken_first(
    folder: Path, write: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(KERNEL)
    packed = tmp_path / "packed"
    built = store.kernels("tiny")
    monkeypatch.setenv("KAAS_NVCC", "/nowhere")
    building.build(building.jobs(["tiny"]), packed)  # a copy
    (copy,) = packed.iterdir()
    next(folder.iterdir()).unlink()
    monkeypatch.setattr(store, "PACKED", packed)
    assert store.kernels("tiny") == built
    assert store.find(copy.name) == copy
    assert not list(folder.iterdir())


def test_other_sources_are_another_version(write: Callable[[str], None]) -> None:
    write('#include "part.cuh"\n')
    (sources.DEVICE / "part.cuh").write_text(KERNEL)
    versions = [sources.version("tiny")]
    write('#include "part.cuh"\n// changed\n')
    versions.append(sources.version("tiny"))
    (sources.DEVICE / "part.cuh").write_text(KERNEL + "// changed\n")
    write('#include "part.cuh"\n// changed\n')
    versions.append(sources.version("tiny"))
    assert len(set(versions)) == 3


def test_a_store_that_cannot_be_written_is_an_error(
    tmp_path: Path, write: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(KERNEL)
    (tmp_path / "file").touch()
    monkeypatch.setattr(store, "cached", lambda: tmp_path / "file" / "built")
    with pytest.raises(StoreFailed, match="cannot write a built file") as raised:
        store.kernels("tiny")
    assert raised.value.path == str(tmp_path / "file" / "built" / store.kernels_file("tiny"))
    assert survives(raised.value)


def test_a_built_file_that_cannot_be_read_is_an_error(folder: Path, write: Callable[[str], None]) -> None:
    write(KERNEL)
    path = folder / store.kernels_file("tiny")
    path.mkdir(parents=True)
    with pytest.raises(StoreFailed, match="cannot read") as raised:
        store.kernels("tiny")
    assert raised.value.path == str(path)
    assert command.main(["build", "tiny"]) == 1


def test_the_adapter_of_the_core_is_used_as_soon_as_it_exists(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "build_adapter", lambda instances: "+".join(each.name for each in instances).encode())
    alone, core = (folder / store.adapter_file(some) for some in (CORE[:1], CORE))
    assert store.adapter(CORE[0]) == alone
    assert store.contents(alone) == CORE[0].name.encode()
    assert not core.exists()
    store.made(core, lambda: b"of all")
    assert [store.adapter(instance) for instance in CORE] == [core] * len(CORE)
    other = instances.parse("sgemm_nn_64x32x8_2")
    assert store.adapter(other) == folder / store.adapter_file((other,))


def test_an_adapter_that_cannot_be_loaded_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "adapter.so").write_bytes(b"no library")
    with pytest.raises(StoreFailed, match="cannot load") as raised:
        adapter._loaded(str(tmp_path / "adapter.so"))
    assert raised.value.path == str(tmp_path / "adapter.so")


def test_an_adapter_s_version_depends_on_its_instances() -> None:
    assert len({sources.adapter_version(some) for some in (CORE, CORE[1:], CORE[:1])}) == 3


def test_a_version_other_than_the_installed_one_is_not_provided() -> None:
    name = CORE[0].name
    with pytest.raises(errors.NotProvided) as raised:
        provider.images(name, "0" * 16)
    assert raised.value.has == (sources.version(name),)
    with pytest.raises(errors.NotProvided) as raised:
        provider.images("sgemm_nn", "0" * 16)
    assert raised.value.has == ()


def test_the_error_of_a_refused_source_has_nvcc_s_log(folder: Path, write: Callable[[str], None]) -> None:
    write("#include <missing.h>\n")
    with pytest.raises(errors.CompileFailed, match=r"missing\.h") as raised:
        store.kernels("tiny")
    assert raised.value.source == "tiny"
    assert raised.value.compiler.startswith("nvcc ")
    assert "missing.h" in raised.value.log
    assert survives(raised.value)
    assert not list(folder.glob("*"))


def test_the_reason_of_nvcc_s_end_is_in_the_error(
    folder: Path, write: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(KERNEL)
    dies = '[ "$1" = --version ] && echo "release 13.9, V13.9.1" && exit 0; echo "nvcc fatal   : no properties"; exit 1'
    monkeypatch.setenv("KAAS_NVCC", str(fake_nvcc(tmp_path / "nvcc", dies)))
    with pytest.raises(errors.CompileFailed, match="fails with tiny: nvcc fatal   : no properties"):
        store.kernels("tiny")
    assert not list(folder.glob("*"))


def test_a_compiler_that_writes_nothing_is_an_error(
    folder: Path, write: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(KERNEL)
    nvcc = fake_nvcc(tmp_path / "nvcc", '[ "$1" = --version ] && echo "release 13.9, V13.9.1"; exit 0')
    monkeypatch.setenv("KAAS_NVCC", str(nvcc))
    with pytest.raises(errors.CompileFailed, match=r"nvcc 13\.9\.1 fails with tiny: it wrote nothing"):
        store.kernels("tiny")
    assert not list(folder.glob("*"))


def test_the_error_without_nvcc_explains_its_installation(
    folder: Path, write: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(KERNEL)
    monkeypatch.delenv("KAAS_NVCC", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(compiling, "_places", lambda _package: [])
    compiling._toolchain.cache_clear()
    with pytest.raises(errors.MissingPackage, match=r"needs nvcc.*pip install nvidia-cuda-nvcc") as raised:
        provider.images("tiny", sources.version("tiny"))
    assert raised.value.package == "nvcc"
    assert survives(raised.value)
    assert not list(folder.glob("*"))
    assert not caplog.records  # no message that the file is being built


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("release 11.7, V11.7.89", r"nvcc 11\.8 or newer; .* is 11\.7"),
        ("no such thing", "does not tell its version"),
    ],
)
def test_an_old_nvcc_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, why: str) -> None:
    monkeypatch.setenv("KAAS_NVCC", str(fake_nvcc(tmp_path / "nvcc", f'echo "{output}"')))
    with pytest.raises(errors.MissingPackage, match=why):
        compiling.toolchain()


def test_a_recent_nvcc_is_found_behind_an_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's nvcc is too old, and the wheel is installed as the message says."""
    old, wheel = tmp_path / "old", tmp_path / "nvidia" / "cu13" / "bin"
    for folder, release in ((old, "11.2, V11.2.152"), (wheel, "13.9, V13.9.1")):
        folder.mkdir(parents=True)
        fake_nvcc(folder / "nvcc", f'echo "release {release}"')
    (old / "g++").symlink_to("/bin/true")
    monkeypatch.delenv("KAAS_NVCC", raising=False)
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", str(old))
    places = compiling._places
    monkeypatch.setattr(
        compiling, "_places", lambda package: [str(tmp_path / package)] if package == "nvidia" else places(package)
    )
    assert compiling.toolchain().nvcc == wheel / "nvcc"


@pytest.mark.usefixtures("folder")
def test_a_chosen_nvcc_may_be_named_from_here(
    write: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(KERNEL)
    fake_nvcc(tmp_path / "nvcc", '[ "$1" = --version ] && echo "release 13.9, V13.9.1"; exit 0')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAAS_NVCC", "./nvcc")
    with pytest.raises(errors.CompileFailed, match="it wrote nothing"):
        store.kernels("tiny")


def test_a_chosen_nvcc_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAAS_NVCC", "/nowhere/nvcc")
    with pytest.raises(errors.MissingPackage, match="/nowhere/nvcc"):
        compiling.toolchain()


def test_the_error_without_a_compiler_for_the_host_explains_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAAS_NVCC", str(fake_nvcc(tmp_path / "nvcc", 'echo "release 13.9, V13.9.1"')))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("NVCC_CCBIN", raising=False)
    with pytest.raises(errors.MissingPackage, match=r"apt-get install g\+\+"):
        compiling.toolchain()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "needs the headers of CUTLASS;"),
        (b"#define CUTLASS_MAJOR 3\n#define CUTLASS_MINOR 5\n", r"another version.*3\.5"),
        (b"\xff\xfe", "another version than these .it does not tell which"),
    ],
)
def test_headers_of_another_version_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes | None, why: str
) -> None:
    if text is not None:
        (tmp_path / "source" / "include" / "cutlass").mkdir(parents=True)
        (tmp_path / "source" / "include" / "cutlass" / "version.h").write_bytes(text)
    places = {"cutlass_library": [str(tmp_path)]}
    monkeypatch.setattr(compiling, "_places", lambda package: places.get(package, []))
    monkeypatch.setenv("KAAS_NVCC", str(fake_nvcc(tmp_path / "nvcc", 'echo "release 13.9, V13.9.1"')))
    with pytest.raises(errors.MissingPackage, match=why):
        compiling.toolchain()


def test_the_command_builds_and_lists(
    folder: Path, write: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    write(KERNEL)
    assert command.main(["build", "tiny"]) == 0
    assert "built 1 of 1 files" in capsys.readouterr().out
    assert command.main(["build", "tiny"]) == 0
    assert capsys.readouterr().out == "all 1 files of the BLAS library are built\n"
    assert command.main(["list"]) == 0
    assert {"tiny", *(instance.name for instance in CORE)} <= set(capsys.readouterr().out.split())
    write("nonsense\n")
    assert command.main(["build", "tiny"]) == 1
    assert "fails with tiny" in capsys.readouterr().err
    assert command.main(["build", "sgemm"]) == 1
    assert "no kernel of the BLAS library is called 'sgemm'" in capsys.readouterr().err
    assert len(list(folder.iterdir())) == 1
    with pytest.raises(SystemExit):
        command.main(["build", "-j", "0"])
    assert "-j is 1 or more, not 0" in capsys.readouterr().err


def test_kernels_of_the_core_share_its_adapter_if_that_is_named() -> None:
    of_core, other = CORE[0].name, "hgemm_nt_64x64x32_2_float32_c2"
    shared = [job.file for job in jobs(["adapter", of_core, other])]
    assert len(shared) == 4
    assert shared[0] == jobs()[0].file
    assert set(shared) > {job.file for job in jobs([other])}
    assert len(jobs([of_core])) == 2


def test_importing_is_light_and_needs_no_compiler() -> None:
    program = (
        "import sys, cutlass_blas, cutlass_blas.provider as p, cutlass_blas.instances as i, cutlass_blas.adapter\n"
        "print(p.library(i.CORE[0].name).hash, *{name.partition('.')[0] for name in sys.modules})"
    )
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_HOME"} | {"PATH": "/nowhere"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    found = done.stdout.split()
    assert found[0] == provider.library(CORE[0].name).hash
    assert not set(found) & {"cuda", "llvmlite", "ray", "scipy", "cutlass_library"}


@pytest.mark.usefixtures("folder")
def test_images_are_for_two_architectures_and_newer_ones_and_have_no_variables_of_headers(
    write: Callable[[str], None],
) -> None:
    kept = "__device__ int counter, unused; static __device__ int table[4];\n"
    write(kept + 'extern "C" __global__ void tiny(int *p) { p[0] = counter; p[1] = table[p[2]]; }\n')
    image = store.kernels("tiny")
    found = list(entries(image))
    text = next(entry.content().decode() for entry in found if entry.kind == PTX_KIND)
    assert ".target sm_80" in text
    flags = [int.from_bytes(entry.content()[48:52], "little") for entry in found if entry.kind == CUBIN_KIND]
    assert [flag >> 8 & 0xFF for flag in flags] == [80, 90]
    names = {variable.name for variable in variables_of(kaas.Library.from_fatbin(image).images[0]).found}
    assert "counter" in names
    assert any("table" in name for name in names)
    assert "unused" not in names

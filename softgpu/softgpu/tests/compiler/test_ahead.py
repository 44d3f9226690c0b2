"""Code that one process compiles ahead is loaded by others, which compile nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from softgpu import disk_cache, target, translation
from softgpu.ahead import CodeAhead, adopt, namespace
from softgpu.errors import SoftgpuError

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
PTX = (HEAD + ".visible .entry k() { ret; }\n").encode()
BLOCK = (32, 1, 1)

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "softgpu" / "kernels"


FINDS = """
import ctypes, sys
from pathlib import Path
import softgpu
from softgpu.jit import Compiler
softgpu.load([1 << 20])
compiler = Compiler(ctypes.CDLL("libcuda.so.1"), Path(sys.argv[2]))
module = compiler.load(bytes.fromhex(sys.argv[1]))
assert compiler.compile(module, 0, (32, 1, 1))
print(any(name.startswith(("softgpu.ptx", "softgpu.codegen")) for name in sys.modules))
"""


@pytest.mark.processes
def test_a_process_loads_what_another_has_compiled_ahead(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = CodeAhead(PTX, [("k", BLOCK)])
    entries = list(code.entries(namespace()))
    assert code.lacks(namespace())
    code.compile(tmp_path / "made")
    assert not own_cache.exists()
    adopt(tmp_path / "made", entries)
    assert not code.lacks(namespace())
    monkeypatch.undo()  # it finds the driver library, which is not built again
    command = [sys.executable, "-c", FINDS, PTX.hex(), str(own_cache)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_only_the_code_that_was_asked_for_is_taken_and_only_undamaged(tmp_path: Path, own_cache: Path) -> None:
    """A compiler that has been taken over plants no code of other images."""
    code = CodeAhead(PTX, [("k", BLOCK)])
    other = CodeAhead(PTX + b"// other\n", [("k", BLOCK)])
    made = tmp_path / "made"
    code.compile(made)
    other.compile(made)
    module, kernel = code.entries(namespace())
    damaged = bytearray((made / kernel).read_bytes())
    damaged[-1] ^= 1
    (made / kernel).write_bytes(damaged)
    adopt(made, [module, kernel])
    assert {path.name for path in own_cache.iterdir()} == {module}


def test_code_that_is_damaged_or_no_file_is_lacking(tmp_path: Path, own_cache: Path) -> None:
    """A process that compiles nothing would find it, and could not load it."""
    code = CodeAhead(PTX, [("k", BLOCK)])
    code.compile(tmp_path)
    adopt(tmp_path, code.entries(namespace()))
    *_, kernel = code.entries(namespace())
    sound = (own_cache / kernel).read_bytes()
    (own_cache / kernel).write_bytes(sound[:-1])
    assert code.lacks(namespace())
    (own_cache / kernel).unlink()
    os.mkfifo(own_cache / kernel)
    assert code.lacks(namespace())
    (own_cache / kernel).unlink()
    (own_cache / kernel).write_bytes(sound)
    assert not code.lacks(namespace())


def test_a_description_that_is_none_is_lacking(tmp_path: Path) -> None:
    code = CodeAhead(PTX, [("k", BLOCK)])
    module, _ = code.entries(namespace())
    disk_cache.DiskCache(tmp_path, disk_cache.CACHE_BYTES).put(module, b"forged")
    adopt(tmp_path, [module])
    assert code.known(namespace()) is None
    assert code.lacks(namespace())


def test_a_process_that_compiles_nothing_refuses_what_the_cache_lacks(tmp_path: Path, own_cache: Path) -> None:
    del own_cache
    from softgpu import compiling, target
    from softgpu.c_interface import JIT_DISABLED, CompileError
    from softgpu.translation import Translator

    shared = Translator(disk_cache.DiskCache(tmp_path, 1 << 20), target.host())
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(compiling._process, "compiles", False)
        with pytest.raises(CompileError) as refused:
            shared.examine(PTX)
        assert refused.value.result == JIT_DISABLED
        with compiling.allowed():
            allowed = shared.examine(PTX)
        examined = shared.examine(PTX)
        with pytest.raises(CompileError, match="compiles nothing"):
            shared.compiled(examined, "k", BLOCK, checked=False, fenced=False)
        made = shared.compiled(allowed, "k", BLOCK, checked=False, fenced=False)
        assert shared.compiled(examined, "k", BLOCK, checked=False, fenced=False) == made


def test_each_variant_of_a_kernel_has_its_own_code() -> None:
    ways = [CodeAhead(PTX, [("k", block)], checked=checked, fenced=fenced)
            for block in (BLOCK, (64, 1, 1)) for checked in (False, True) for fenced in (False, True)]  # fmt: skip
    assert len({entry for way in ways for entry in way.entries("here")}) == 1 + len(ways)
    assert {*ways[0].entries("here")}.isdisjoint(ways[0].entries("there"))


@pytest.mark.parametrize(
    ("ptx", "kernel", "reason"),
    [
        (HEAD + ".visible .entry k() { nonsense; }", "k", "nonsense"),
        (HEAD + ".visible .entry k() { ret; ", "k", "PTX"),
        (PTX.decode(), "missing", "no such kernel"),
    ],
)
def test_code_that_cannot_be_compiled_is_an_error_with_its_reason(
    tmp_path: Path, ptx: str, kernel: str, reason: str
) -> None:
    with pytest.raises(SoftgpuError, match=reason):
        CodeAhead(ptx.encode(), [(kernel, BLOCK)]).compile(tmp_path)


def test_a_refused_image_is_not_examined_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or each request with it would keep a device as long as the first."""
    from softgpu import translation

    broken = CodeAhead((HEAD + ".visible .entry k() { ret; ").encode(), [("k", BLOCK)])
    with pytest.raises(SoftgpuError) as first:
        broken.compile(tmp_path)
    adopt(tmp_path, broken.entries(namespace()))
    monkeypatch.setattr(translation, "_examined", lambda _: pytest.fail("it is known"))
    with pytest.raises(SoftgpuError) as second:
        broken.compile(tmp_path / "other")
    assert str(first.value) == str(second.value)


def test_a_refusal_for_want_of_memory_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from softgpu import translation

    def full(_: str) -> None:
        raise MemoryError

    code = CodeAhead(PTX, [("k", BLOCK)])
    with monkeypatch.context() as patched:
        patched.setattr(translation, "_examined", full)
        with pytest.raises(MemoryError):
            code.compile(tmp_path)
    code.compile(tmp_path)
    assert disk_cache.DiskCache(tmp_path, disk_cache.CACHE_BYTES).get([*code.entries(namespace())][1]) is not None


def test_the_names_of_code_depend_on_the_compiler_and_on_no_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new test leaves the code that others have compiled where it is."""
    read: list[Path] = []
    read_bytes = Path.read_bytes

    def noted(path: Path) -> bytes:
        read.append(path)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
    assert translation.namespace.__wrapped__(target.host()) == namespace()
    below = {path.relative_to(Path(translation.__file__).parent).parts[0] for path in read}
    assert {"ptx", "codegen", "translation.py"} <= below
    assert "tests" not in below

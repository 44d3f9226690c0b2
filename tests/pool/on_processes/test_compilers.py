"""Compilers as processes: they have limits, one for each client at a time, and leave nothing but the code."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

import kaas
from kaas.cache_folders import cache_root
from kaas.code.launched import launched
from kaas.config import Config, Device
from kaas.errors import CodeUnavailable, CompileLimitExceeded, KaasError
from kaas.ktask.images import Image
from kaas.pool.executors.transport import Compilation
from kaas.pool.on_processes import compilers
from kaas.pool.on_processes.compilers import Compilers, TimeLeft
from kaas.worker.process_orders import CompilerWork
from softgpu.ahead import CodeAhead, namespace
from softgpu.tests.compiler.fuzz.campaign import bring_driver
from tests.loops import run
from tests.providers import write_metadata

pytestmark = pytest.mark.processes

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
EMPTY = HEAD + ".visible .entry k(.param .u64 out) { ret; }\n"
BRANCHES = HEAD + ".visible .entry k(.param .u64 out)\n{\n.reg .f32 %f<50>; .reg .pred %p<8>;\n" + "\n".join(
    f"setp.lt.f32 %p{i % 8}, %f{i * 7 % 50}, %f{i * 13 % 50}; @%p{i % 8} bra L{i}; add.f32 %f{i % 50}, "
    f"%f{i * 3 % 50}, %f{i * 11 % 50}; L{i}:" for i in range(6000)
) + "\nret;\n}"  # fmt: skip
"""A compile bomb: LLVM's time for it grows with its square, to a minute or more."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Without code, but with this machine's driver."""
    bring_driver(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def task(*code: str | kaas.Library) -> bytes:
    out, kernels = kaas.Buffer("out", 1, "uint32"), []
    for each in code:
        library = kaas.Library.from_ptx(each) if isinstance(each, str) else each
        kernels.append(kaas.Kernel(library, "k", 1, 32, [kaas.Out(out)]))
    return kaas.KTask(kernels, [out]).to_msgpack()


def made(
    limit_s: float = 600.0, *, named: bool = True, run_limit_s: float = 600.0, isolation: str = "fence"
) -> Compilers:
    limits: Any = {"compile_limit_s": limit_s, "run_limit_s": run_limit_s}
    config = Config(devices=(Device("software"),), isolation=isolation, **limits)
    started = Compilers(config, None)
    started.named(namespace() if named else "")
    return started


def test_code_is_compiled_once(own_cache: Path) -> None:
    async def main() -> tuple[Compilation, Compilation]:
        ready = made()
        try:
            return await ready.compile(task(EMPTY), "alice"), await ready.compile(task(EMPTY), "bob")
        finally:
            ready.close()

    first, second = run(main())
    assert first.processor_s > 0 == second.processor_s
    assert (first.error, second.error) == (None, None)
    assert len(list((own_cache / "softgpu" / "kernels").iterdir())) == 2


PROVIDER = """
import os, time
import kaas

def images(name, version):
    if name == "hangs":
        time.sleep(1000)
    if os.environ.get("KAAS_BUILD_PROVIDED") == "0" and name == "unfinished":
        raise kaas.errors.NotProvided("it is not built here", has=())
    return kaas.Library.from_ptx({ptx!r} + "// " + name)
"""


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], kaas.Library]:
    """Return the library of a name, whose code a package provides."""
    packages = tmp_path / "packages"
    write_metadata(packages, "shapes", "the_shapes:images")
    (packages / "the_shapes.py").write_text(PROVIDER.format(ptx=EMPTY))
    monkeypatch.syspath_prepend(packages)
    return lambda name: kaas.Library.provided("shapes", name, "1")


def test_code_that_a_provider_names_is_compiled_once(
    own_cache: Path, named: Callable[[str], kaas.Library], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[CompilerWork] = []
    did = compilers.CompilerProcess.did

    async def watched(self: compilers.CompilerProcess, left: TimeLeft, work: CompilerWork) -> Compilation:
        begun.append(work)
        return await did(self, left, work)

    monkeypatch.setattr(compilers.CompilerProcess, "did", watched)

    async def main() -> list[Compilation]:
        ready = made()
        try:
            names = ("round", "round", "square")
            return [await ready.compile(task(named(name)), "alice") for name in names]
        finally:
            ready.close()

    first, second, other = run(main())
    assert [found.error for found in (first, second, other)] == [None, None, None]
    assert min(first.processor_s, other.processor_s) > 0 == second.processor_s
    assert len(list((own_cache / "softgpu" / "kernels").iterdir())) == 4
    assert [bool(work.names) for work in begun] == [True, False, True, False]
    assert not any(work.names and work.images for work in begun)  # no process has both


@pytest.mark.parametrize("name", ["unfinished", "hangs"])
def test_what_a_provider_does_not_give_is_left_to_the_executor_and_other_code_is_compiled(
    own_cache: Path, named: Callable[[str], kaas.Library], name: str
) -> None:
    async def main() -> Compilation:
        ready = made(run_limit_s=2.0)
        try:
            return await ready.compile(task(named(name) | kaas.Library.from_ptx(EMPTY)), "alice")
        finally:
            ready.close()

    found = run(main())
    assert (found.error, found.lost) == (None, "")
    assert len(list((own_cache / "softgpu" / "kernels").iterdir())) == 2


def test_code_is_compiled_before_any_executor_has_started() -> None:
    """A policy may start one only for a request that is ready."""

    async def main() -> tuple[Compilation, ...]:
        ready = made(named=False)
        try:
            return tuple(await asyncio.gather(*(ready.compile(task(EMPTY), client) for client in ("alice", "bob"))))
        finally:
            ready.close()

    assert [found.error for found in run(main())] == [None, None]


def test_a_compile_bomb_ends_its_compiler_and_later_code_is_compiled() -> None:
    async def main() -> tuple[Compilation, Compilation]:
        ready = made(limit_s=2.0)
        try:
            return await ready.compile(task(BRANCHES), "alice"), await ready.compile(task(EMPTY), "alice")
        finally:
            ready.close()

    bomb, other = run(main())
    assert isinstance(bomb.error, CompileLimitExceeded)
    assert "2 processor seconds" in bomb.error.message
    assert bomb.error.limit_s == 2.0
    assert bomb.processor_s >= 1.0
    assert other.error is None


def test_a_compiler_without_memory_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> Compilation:
        ready = made()
        try:
            return await ready.compile(task(EMPTY + "// " + "x" * (200 << 20)), "alice")
        finally:
            ready.close()

    monkeypatch.setattr(compilers, "LIMIT_BYTES", 640 << 20)
    found = run(main())
    assert isinstance(found.error, CompileLimitExceeded)
    assert "640 MiB" in found.error.message


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Let compilers do something else than compile: Python code stands in for a text that has led one astray."""
    code = folder / "stand in"
    code.mkdir()
    (code / "sitecustomize.py").write_text(STAND_IN.format(body=indent(dedent(body), " " * 12)))
    monkeypatch.syspath_prepend(code)


STAND_IN = """
import sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "softgpu.examination":
            sys.meta_path.remove(self)
            import softgpu.ahead as ahead
            real = ahead.CodeAhead.compile
{body}
            ahead.CodeAhead.compile = compile

if "kaas.worker.compiler_process" in sys.orig_argv:
    sys.meta_path.insert(0, Watch())
"""


def test_a_text_that_leads_a_compiler_astray_changes_the_code_of_no_other_text(
    own_cache: Path, named: Callable[[str], kaas.Library], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of another library, nor of another image of its own, nor of a provider."""
    astray = """
        seen = []
        def compile(self, own):
            if b"mallory" not in self._content:
                seen.append(self)
                return real(self, own)
            for other in seen:  # written anew, if it is there, and in any case later
                plant(other, own)
            ahead.CodeAhead.compile = plant
            real(self, own)
        def plant(self, own):
            from softgpu import disk_cache
            for entry in self.entries(ahead.namespace()):
                disk_cache.DiskCache(own, 1 << 20).put(entry, b"planted")
    """
    other, mine = EMPTY + "// other\n", EMPTY + "// mine\n"
    hers = EMPTY.replace("ret;", "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned; ret;") + "// mallory\n"
    several = kaas.Library.from_ptx(hers) | kaas.Library.from_ptx(mine) | named("round")
    last = kaas.Library.from_ptx(EMPTY + "// mallory\n")
    stand_in(tmp_path, monkeypatch, astray)

    async def main() -> Compilation:
        ready = made()
        try:
            return await ready.compile(task(other, several, named("square"), last), "mallory")
        finally:
            ready.close()

    assert run(main()).made
    entries = list((own_cache / "softgpu" / "kernels").iterdir())
    assert len(entries) == 1 + 4 * 2  # of the first image its refusal only, and of the provider's "round" nothing
    assert not [path for path in entries if path.read_bytes().endswith(b"planted")]


def test_a_compiler_brings_no_code_of_a_text_that_it_was_not_given(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of the code of any text can be computed, that of other clients among them."""
    (library,) = launched(task(EMPTY + "// other\n"))
    planted = {*CodeAhead((EMPTY + "// other\n").encode(), library.kernels, fenced=True).entries(namespace())}
    stand_in(tmp_path, monkeypatch, f"""
        def compile(self, own):
            from softgpu import disk_cache
            real(self, own)
            for entry in {planted!r}:
                disk_cache.DiskCache(own, 1 << 20).put(entry, b"planted")
    """)  # fmt: skip

    async def main() -> Compilation:
        ready = made()
        try:
            return await ready.compile(task(EMPTY + "// mallory\n"), "mallory")
        finally:
            ready.close()

    assert run(main()).made
    entries = {path.name for path in (own_cache / "softgpu" / "kernels").iterdir()}
    assert len(planted) == len(entries) == 2
    assert not planted & entries


NO_ROOM = """
    def compile(self, own):
        import errno, os, tempfile
        def full(**_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if os.path.exists({mark!r}):
            tempfile.mkstemp = full
        real(self, own)
"""


@pytest.mark.parametrize("finds_it", ["the compiler", "the pool"])
def test_on_a_full_disk_the_error_names_it_and_later_the_code_is_compiled(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finds_it: str
) -> None:
    mark, kernels = cache_root() / "full", own_cache / "softgpu" / "kernels"
    stand_in(tmp_path, monkeypatch, NO_ROOM.format(mark=str(mark)))
    make = tempfile.mkstemp

    def full(**options: Any) -> tuple[int, str]:
        if options["dir"] == kernels:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return make(**options)

    async def main() -> list[Compilation]:
        ready = made()
        try:
            with monkeypatch.context() as patch:
                if finds_it == "the compiler":
                    mark.touch()
                else:
                    patch.setattr(tempfile, "mkstemp", full)
                found = [await ready.compile(task(EMPTY), "alice")]
            mark.unlink(missing_ok=True)
            return [*found, await ready.compile(task(EMPTY), "alice"), await ready.compile(task(EMPTY), "alice")]
        finally:
            ready.close()

    without_room, with_room, cached = run(main())
    assert isinstance(without_room.error, CodeUnavailable)
    assert without_room.error.reason == os.strerror(errno.ENOSPC)
    assert str(own_cache) in without_room.error.message
    assert without_room.processor_s > 0
    assert with_room.made
    assert with_room.processor_s > cached.processor_s == 0


GOOD_AND_REFUSED = (
    HEAD
    + """
.visible .entry k(.param .u64 out) { ret; }
.visible .entry odd(.param .u64 out) { tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned; ret; }
"""
)


def of_images(*texts: str) -> kaas.Library:
    return kaas.Library(tuple(Image("ptx", text.encode()) for text in texts))


RUNS = """
import sys
import kaas
from softgpu import compiling
compiling.forbid()
kaas.run_local(kaas.KTask.from_msgpack(bytes.fromhex(sys.stdin.read())), {})
"""


def ran_without_compiler(wanted: bytes) -> str:
    """Run a kTask where nothing is compiled; return the last line of the error, or ""."""
    paths = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    program, environment = [sys.executable, "-P", "-c", RUNS], {**os.environ, **paths}
    ran = subprocess.run(program, input=wanted.hex(), capture_output=True, text=True, check=False, env=environment)
    return ran.stderr.splitlines()[-1] if ran.returncode else ""


def test_an_executor_compiles_only_what_no_compiler_gets_from_a_provider(named: Callable[[str], kaas.Library]) -> None:
    assert ran_without_compiler(task(named("unfinished"))) == ""
    assert ran_without_compiler(task(EMPTY)).startswith("kaas.errors.NotCompiled")


@pytest.mark.parametrize(
    "library",
    [
        of_images(GOOD_AND_REFUSED),
        of_images(GOOD_AND_REFUSED, EMPTY),
        of_images(HEAD + "no code", GOOD_AND_REFUSED, GOOD_AND_REFUSED + "// another\n"),
    ],
    ids=["only one", "the second is whole", "none is whole"],
)
def test_the_image_is_compiled_that_executors_take(library: kaas.Library) -> None:
    async def main() -> tuple[Compilation, Compilation]:
        ready = made(isolation="process")
        try:
            return await ready.compile(task(library), "alice"), await ready.compile(task(library), "bob")
        finally:
            ready.close()

    first, second = run(main())
    assert (first.made, second) == (True, Compilation(0.0))
    assert ran_without_compiler(task(library)) == ""


def test_a_bomb_in_a_later_image_is_compiled_ahead() -> None:
    async def main() -> Compilation:
        ready = made(limit_s=2.0)
        try:
            return await ready.compile(task(of_images(GOOD_AND_REFUSED, BRANCHES)), "alice")
        finally:
            ready.close()

    assert isinstance(run(main()).error, CompileLimitExceeded)


def test_the_limit_is_for_all_code_of_a_ktask(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    async def did(self: compilers.CompilerProcess, left: TimeLeft, work: CompilerWork) -> Compilation:  # noqa: ARG001
        given.append(left.processor_s)
        left.processor_s -= 1.5
        return Compilation(1.5)

    monkeypatch.setattr(compilers.CompilerProcess, "did", did)

    async def main() -> Compilation:
        ready = made(limit_s=4.0)
        try:
            return await ready.compile(task(EMPTY, EMPTY + "// 2", EMPTY + "// 3"), "alice")
        finally:
            ready.close()

    assert run(main()) == Compilation(4.5)
    assert given == [4.0, 2.5, 1.0]


def test_a_compiler_that_sleeps_is_ended_and_its_client_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, """
        def compile(self, own):
            import time
            time.sleep(1e6)
    """)  # fmt: skip

    async def main() -> Compilation:
        ready = made(limit_s=0.25)
        try:
            return await ready.compile(task(EMPTY), "mallory")
        finally:
            ready.close()

    found = run(main())
    assert isinstance(found.error, CompileLimitExceeded)
    assert "0.25 seconds in which its compiler wants no processor" in found.error.message


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_compiler_that_another_process_ends_exceeds_no_limit(number: signal.Signals) -> None:
    async def main() -> tuple[Compilation, Compilation]:
        ready = made()
        try:
            compiler = ready._next()
            await compiler.started
            killed = asyncio.create_task(ready.compile(task(BRANCHES), "alice"))
            while compiler._work >= 0:  # it has no work yet
                await asyncio.sleep(0)
            os.kill(compiler._child.process.pid, number)
            return await killed, await ready.compile(task(EMPTY), "alice")
        finally:
            ready.close()

    killed, other = run(main())
    assert (killed.error, killed.lost) == (None, f"killed by {number.name}")
    assert (other.error, other.lost) == (None, "")


@pytest.mark.parametrize(
    ("status", "took_s", "idle_s", "limit"),
    [
        (-signal.SIGXCPU, 1.9, 2.0, "2 processor seconds"),
        (-signal.SIGKILL, 3.0, 2.0, "2 processor seconds"),  # it has not ended at SIGXCPU
        (-signal.SIGKILL, 0.5, 0.0, "2 seconds in which its compiler wants no processor"),
        (1, 0.5, 2.0, f"{compilers.LIMIT_BYTES >> 20} MiB"),  # MemoryError
        (-signal.SIGABRT, 0.5, 2.0, f"{compilers.LIMIT_BYTES >> 20} MiB"),
    ],
)
def test_limits_are_named(status: int, took_s: float, idle_s: float, limit: str) -> None:
    found = compilers.ended(status, took_s, TimeLeft(2.0 - took_s, idle_s), 2.0)
    assert isinstance(found.error, CompileLimitExceeded)
    assert (limit in found.error.message, found.lost) == (True, "")


def test_a_compiler_that_does_not_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "LIMIT_BYTES", 1 << 20)

    async def main() -> None:
        ready = made()
        with pytest.raises(KaasError, match="ended before it was ready"):
            await ready.compile(task(EMPTY), "alice")
        ready.close()

    run(main())


def test_a_client_has_one_compiler_at_a_time_and_clients_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    go_on: dict[str, asyncio.Event] = {}

    class Fake:
        kernels = Path()
        ended = False

        def __init__(self, *_: Any) -> None:
            pass

        async def did(self, left: TimeLeft, work: CompilerWork) -> Compilation:  # noqa: ARG002
            name = work.images[0]._content.decode().rpartition("// ")[2]
            begun.append(name)
            await go_on.setdefault(name, asyncio.Event()).wait()
            return Compilation(1.0)

        def end(self) -> None:
            pass

    monkeypatch.setattr(compilers, "CompilerProcess", Fake)
    monkeypatch.setattr(compilers, "PROCESSES", 2)

    async def until(count: int, found: Callable[[], int]) -> None:
        while found() < count:
            await asyncio.sleep(0)

    async def main() -> None:
        ready, work = made(), []
        for number, name in enumerate(("a1", "a2", "b1", "c1"), 1):
            work.append(asyncio.create_task(ready.compile(task(f"{EMPTY}// {name}"), name[0])))
            await until(number, lambda: len(ready.turns.waiting) + len(begun))
        assert begun == ["a1", "b1"]
        go_on["a1"].set()
        await until(3, lambda: len(begun))
        for name in ("a2", "b1", "c1"):
            go_on.setdefault(name, asyncio.Event()).set()
        await asyncio.gather(*work)
        assert ready.turns.waiting == {}

    run(main())
    assert begun == ["a1", "b1", "c1", "a2"]

"""Compilers as processes: they have limits, one for each client at a time, and leave nothing but the code."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kaas
from kaas.config import Config, Device
from kaas.errors import CompileLimitExceeded, KaasError
from kaas.pool.executors.transport import Compilation
from kaas.pool.on_processes import compilers
from kaas.pool.on_processes.compilers import Compilers
from kaas.worker.process_orders import CompilerWork
from softgpu.ahead import namespace
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
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def task(code: str | kaas.Library) -> bytes:
    out, library = kaas.Buffer("out", 1, "uint32"), kaas.Library.from_ptx(code) if isinstance(code, str) else code
    return kaas.KTask([kaas.Kernel(library, "k", 1, 32, [kaas.Out(out)])], [out]).to_msgpack()


def made(limit_s: float = 600.0, *, named: bool = True, run_limit_s: float = 600.0) -> Compilers:
    config = Config(devices=(Device("software"),), isolation="fence", compile_limit_s=limit_s, run_limit_s=run_limit_s)
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

    async def watched(self: compilers.CompilerProcess, work: CompilerWork) -> Compilation:
        begun.append(work)
        return await did(self, work)

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
    assert not any(work.names and work.libraries for work in begun)  # no process has both


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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_compiler_that_another_process_ends_exceeds_no_limit(number: signal.Signals) -> None:
    async def main() -> tuple[Compilation, Compilation]:
        ready = made()
        try:
            compiler = ready._next()
            await compiler.namespace
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
    ("status", "took_s", "limit"),
    [
        (-signal.SIGXCPU, 1.9, "2 processor seconds"),
        (-signal.SIGKILL, 3.0, "2 processor seconds"),  # it has not ended at SIGXCPU
        (1, 0.5, f"{compilers.LIMIT_BYTES >> 20} MiB"),  # MemoryError
        (-signal.SIGABRT, 0.5, f"{compilers.LIMIT_BYTES >> 20} MiB"),
    ],
)
def test_limits_are_named(status: int, took_s: float, limit: str) -> None:
    found = compilers.ended(status, took_s, 2.0)
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

        async def did(self, work: CompilerWork) -> Compilation:
            name = work.libraries[0][0]._content.decode().rpartition("// ")[2]
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
            await until(number, lambda: sum(waiting for _, waiting in ready._turns.values()))
        assert begun == ["a1", "b1"]
        go_on["a1"].set()
        await until(3, lambda: len(begun))
        for name in ("a2", "b1", "c1"):
            go_on.setdefault(name, asyncio.Event()).set()
        await asyncio.gather(*work)
        assert ready._turns == {}

    run(main())
    assert begun == ["a1", "b1", "c1", "a2"]

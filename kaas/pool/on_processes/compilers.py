"""Compilers as child processes of the pool's process: one for the code of each kTask that the cache lacks."""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread

from kaas.code.launched import ON_SOFTWARE, LaunchedLibrary, launched
from kaas.code.providers import BUILD, KEPT, folders
from kaas.config import Config
from kaas.errors import CompileLimitExceeded, KaasError
from kaas.ktask.images import PROVIDED, Image
from kaas.pool.executors.transport import Compilation
from kaas.process_folder import ProcessFolder
from kaas.worker.compiler_process import provided
from kaas.worker.process_orders import CompilerOrders, CompilerWork
from kaas.worker.processes import Child, PrintedLines, how_it_ended, write_out
from kaas.worker.sandbox import Sandbox, available
from softgpu.ahead import CodeAhead, adopt, compiled
from softgpu.user_cache import KERNELS, cache_root

PROCESSES = 4
"""Compilers that run at a time; a client has one at most, and clients take turns."""
LIMIT_BYTES = 4 << 30
"""The address space of a compiler. LLVM's library and Python take a tenth of it."""
KILLED = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals of other processes, or of Linux where the machine lacks memory: below its limit of time, no compiler ends
itself by one. Without memory it raises MemoryError, aborts or faults."""
NOT_BUILT = {BUILD: "0"}
"""The environment in which providers give code that is finished; other code is built by executors, if at all."""
PRINTED = PrintedLines(partial(write_out, sys.stderr), kind="compiler")


class Compilers:
    """Compiles the code of kTasks for a pool's software devices. Use an object of this class from one event loop only.

    Once one was needed, another has always started ahead: that takes longer than most code does to compile.

    Args:
        config: of the pool. sandbox: of its executors, or None.
    """

    def __init__(self, config: Config, sandbox: Sandbox | None) -> None:
        assert config.devices is not None, "a pool gets a resolved configuration"
        self._fenced = config.isolation == "fence"
        self._checked = {bool(each.memcheck) for each in config.devices if each.kind == "software"}
        self._limit_s, self._wait_s = config.compile_limit_s, config.run_limit_s
        self._sandbox = sandbox or (Sandbox(packages=folders()) if available() else None)
        self._namespace = ""
        self._spare: CompilerProcess | None = None
        self._provided: dict[Image, Sequence[Image]] = {}
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}  # with the number of those that wait or run
        self._running = asyncio.Semaphore(PROCESSES)

    def named(self, namespace: str) -> None:
        """Take in the name of the code that executors load: one has started, and has run no client's code yet."""
        self._namespace = self._namespace or namespace

    def _next(self) -> CompilerProcess:
        """Return the compiler for the next kTask, which starts now if it has not.

        Raises:
            KaasError: no process can be started.
        """
        if self._spare is None or self._spare.ended:
            self.close()
            self._spare = CompilerProcess(self._sandbox, self._limit_s)
        return self._spare

    def close(self) -> None:
        """End the compiler that has started ahead."""
        if self._spare is not None:
            self._spare.end()
            self._spare = None

    async def compile(self, task: bytes, client: str) -> Compilation:
        """Bring the code of a kTask into the user's cache, as far as the cache lacks it and it can be compiled.

        Raises:
            KaasError: no process can be started.
        """
        if not self._checked:
            return Compilation(0.0)  # there are GPUs only
        if not self._namespace:  # no executor has started, and one may start for this request only
            self._namespace = await asyncio.shield(self._next().namespace)
        namespace = self._namespace
        libraries = await asyncio.to_thread(launched, task)
        names = {image for library in libraries for image in library.images if image.kind == PROVIDED}
        given = {name: self._provided[name] for name in names & self._provided.keys()}
        if names == given.keys() and not await asyncio.to_thread(self._lacking, libraries, given, namespace):
            return Compilation(0.0)
        async with self._turn(client), self._running:
            asked = await self._ask(sorted(names - given.keys())[:KEPT], given)
            lacking = await asyncio.to_thread(self._lacking, libraries, given, namespace)
            if asked.lost or not lacking:
                return asked
            async with self._compiler() as compiler:
                done = await compiler.did(CompilerWork(libraries=lacking))
                entries = [each for images in lacking for image in images for each in image.entries(namespace)]
                await asyncio.to_thread(adopt, compiler.kernels, entries)
            return replace(done, processor_s=asked.processor_s + done.processor_s)

    async def _ask(self, names: Sequence[Image], given: dict[Image, Sequence[Image]]) -> Compilation:
        """Add the code that providers give for names to what is given. Executors ask again for what none gives.

        Providers run in a compiler of their own, which ends before another one reads a stranger's code: so no stranger
        has a say in which code the pool takes for a provider's.
        """
        if not names:
            return Compilation(0.0)
        async with self._compiler() as compiler:
            asked = Compilation(0.0)
            await asyncio.shield(compiler.namespace)
            with suppress(TimeoutError):  # a provider may wait for something else
                asked = await asyncio.wait_for(compiler.did(CompilerWork(names=names)), self._wait_s)
            found = await asyncio.to_thread(provided, compiler.kernels, names)
        given |= found
        self._provided |= found
        for oldest in list(self._provided)[:-KEPT]:
            del self._provided[oldest]
        return replace(asked, error=None)

    @asynccontextmanager
    async def _compiler(self) -> AsyncIterator[CompilerProcess]:
        """Take the compiler that has started, and end it. The next one starts meanwhile."""
        compiler, self._spare = self._next(), None
        try:
            yield compiler
        finally:
            compiler.end()
            with suppress(KaasError, OSError):  # the next kTask tries again
                self._next()

    def _lacking(
        self, libraries: Sequence[LaunchedLibrary], given: Mapping[Image, Sequence[Image]], namespace: str
    ) -> Sequence[Sequence[CodeAhead]]:
        """Return the code of libraries of which the cache lacks some. given: for providers' names."""
        found = []
        for library in libraries:
            for checked in self._checked:
                images = [
                    CodeAhead(each.data, library.kernels, checked=checked, fenced=self._fenced)
                    for image in library.images
                    for each in (given.get(image, ()) if image.kind == PROVIDED else (image,))
                    if each.kind in ON_SOFTWARE
                ]
                if images and not any(compiled(image.entries(namespace)) for image in images):
                    found.append(images)
        return found

    @asynccontextmanager
    async def _turn(self, client: str) -> AsyncIterator[None]:
        """Wait until no other compiler of a client runs, in the order in which its kTasks came."""
        lock, waiting = self._turns.get(client, (asyncio.Lock(), 0))
        self._turns[client] = lock, waiting + 1
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._turns.pop(client)
            if waiting > 1:
                self._turns[client] = lock, waiting - 1


class CompilerProcess:
    """A compiler for one kTask, with a folder of its own."""

    def __init__(self, sandbox: Sandbox | None, limit_s: float) -> None:
        """Start it.

        Raises:
            KaasError: no process can be started.
        """
        self._limit_s = limit_s
        self._folder = ProcessFolder("compiler-", str(cache_root("kaas-executors")))
        self.kernels = Path(self._folder.path, KERNELS)
        """The folder of its code."""
        work, self._work = os.pipe()
        orders, inherited = CompilerOrders(work, str(self.kernels), limit_s, LIMIT_BYTES), None
        try:
            if sandbox is not None:
                own = replace(sandbox, own=self._folder.path, programs=False, sockets=False)
                orders, inherited = replace(orders, sandbox=own), own.environment(os.environ)
            module, walls = "kaas.worker.compiler_process", sandbox is not None
            self._child = Child(module, orders, NOT_BUILT, files=(work,), inherited=inherited, pipes=walls)
            self._child.pass_on(str(self._child.process.pid), PRINTED, PRINTED)
        except BaseException:
            os.close(self._work)
            self._folder.remove()
            raise
        finally:
            os.close(work)
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[str] = loop.create_future()
        self._child.on_end(loop, self._ended.set_result, group=True)
        self.namespace = loop.create_task(self._started())
        """The name of the code that it makes, once it has started; or a KaasError."""

    async def _started(self) -> str:
        return (await self._child.ready()).decode()

    @property
    def ended(self) -> bool:
        """True if the process has ended."""
        return self._child.process.returncode is not None

    async def did(self, work: CompilerWork) -> Compilation:
        """Let it do its work, and wait for the end of the process. To be called once.

        Raises:
            KaasError: the process did not start.
        """
        await asyncio.shield(self.namespace)
        file, self._work = self._work, -1
        await asyncio.to_thread(_write, file, pickle.dumps(work))
        await asyncio.shield(self._ended)  # the pool may close meanwhile, and the process ends after it
        return ended(self._child.process.returncode, self._child.processor_s, self._limit_s)

    def end(self) -> None:
        """End it, and remove its folder."""
        if not self.ended:
            self._child.kill_group()
        self.namespace.add_done_callback(_seen)
        if self._work >= 0:
            os.close(self._work)
            self._work = -1
        Thread(target=self._folder.remove, name="kaas-folder", daemon=True).start()


def ended(status: int, took_s: float, limit_s: float) -> Compilation:
    """Return how a compiler has ended. status: its return code. took_s, limit_s: processor seconds."""
    if status == 0:
        return Compilation(took_s)
    timed_out = status == -signal.SIGXCPU or took_s >= math.ceil(limit_s)
    if -status in KILLED and not timed_out:
        return Compilation(took_s, lost=how_it_ended(status))
    limit = f"{limit_s:g} processor seconds" if timed_out else f"{LIMIT_BYTES >> 20} MiB"
    message = f"its code was not compiled: that takes more than {limit}, the pool's limit"
    return Compilation(took_s, CompileLimitExceeded(message, limit_s=limit_s, limit_bytes=LIMIT_BYTES))


def _seen(start: asyncio.Task[str]) -> None:
    """Take in a start that failed, and that no kTask waits for."""
    if not start.cancelled():
        start.exception()


def _write(file: int, work: bytes) -> None:
    with suppress(BrokenPipeError), os.fdopen(file, "wb") as pipe:  # the process has ended, which is noticed
        pipe.write(work)

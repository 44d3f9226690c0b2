"""Compilers as child processes of the pool's process: one for each image of a kTask's code that the cache lacks."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import signal
import sys
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import uniform
from threading import Thread
from typing import NamedTuple

from kaas.code.choice import chosen
from kaas.code.launched import ON_SOFTWARE, LaunchedLibrary, launched
from kaas.code.providers import BUILD, KEPT, folders
from kaas.config import Config, Device
from kaas.errors import CodeUnavailable, CompileLimitExceeded, KaasError
from kaas.ktask.images import PROVIDED, Image
from kaas.pool.executors.transport import Compilation
from kaas.pool.on_processes.turns import CompilerTurns
from kaas.process_folder import ProcessFolder
from kaas.worker.compiler_process import provided
from kaas.worker.process_orders import CompilerOrders, CompilerWork
from kaas.worker.processes import Child, PrintedLines, how_it_ended, wants_processor, write_out
from kaas.worker.sandbox import Sandbox, available
from softgpu import MEMCHECK_VARIABLE, STRICT_VARIABLE
from softgpu.ahead import CodeAhead, adopt, whole
from softgpu.module_info import RefusedCode
from softgpu.user_cache import KERNELS, cache_root

PROCESSES = 4
"""Compilers that run at a time; a client has one at most, and clients take turns."""
LOOKS_S = (0.1, 0.9)
"""The time from one look at whether a compiler wants a processor to the next, by chance: none can foresee a look."""
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
        self._checked = {_checks(each) for each in config.devices if each.kind == "software"}
        self._limit_s, self._wait_s = config.compile_limit_s, config.run_limit_s
        self._sandbox = sandbox or (Sandbox(packages=folders()) if available() else None)
        self._namespace = ""
        self._spare: CompilerProcess | None = None
        self._provided: dict[Image, Sequence[Image]] = {}
        self.turns = CompilerTurns(PROCESSES)
        """Of clients."""

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
            self._namespace, _ = await asyncio.shield(self._next().started)
        libraries = await asyncio.to_thread(launched, task)
        names = {image for library in libraries for image in library.images if image.kind == PROVIDED}
        given = {name: self._provided[name] for name in names & self._provided.keys()}
        if names == given.keys() and not await asyncio.to_thread(self._lacking, self._images(libraries, given), ()):
            return Compilation(0.0)
        async with self.turns.turn(client):
            done, tried = await self._ask(sorted(names - given.keys())[:KEPT], given), set[_ImageAhead]()
            images, left = self._images(libraries, given), TimeLeft(self._limit_s, self._limit_s)
            while done.made and (lacking := await asyncio.to_thread(self._lacking, images, tried)):
                tried.update(lacking)
                for work in _apart(lacking):
                    if done.made:
                        more = await self._compiled(work, left)
                        done = replace(more, processor_s=done.processor_s + more.processor_s)
            return done

    async def _compiled(self, images: Sequence[_ImageAhead], left: TimeLeft) -> Compilation:
        """Let one process compile images, and take their code."""
        async with self._compiler() as compiler:
            done = await compiler.did(left, CompilerWork(images=[image.code for image in images]))
            entries = [entry for image in images for entry in image.code.entries(self._namespace)]
            try:
                await asyncio.to_thread(adopt, compiler.kernels, entries)
            except OSError as error:
                return replace(done, error=unwritten(error))
            return done

    async def _ask(self, names: Sequence[Image], given: dict[Image, Sequence[Image]]) -> Compilation:
        """Add the code that providers give for names to what is given. Executors ask again for what none gives.

        Providers run in a compiler of their own, which ends before another one reads a stranger's code: so no stranger
        has a say in which code the pool takes for a provider's.
        """
        if not names:
            return Compilation(0.0)
        async with self._compiler() as compiler:
            asked = await compiler.did(TimeLeft(self._limit_s, self._wait_s), CompilerWork(names))
            found = await asyncio.to_thread(provided, compiler.kernels, names)
        given |= found
        self._provided |= found
        for oldest in list(self._provided)[:-KEPT]:
            del self._provided[oldest]
        return asked if isinstance(asked.error, CodeUnavailable) else replace(asked, error=None)

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

    def _images(
        self, libraries: Sequence[LaunchedLibrary], given: Mapping[Image, Sequence[Image]]
    ) -> list[list[_ImageAhead]]:
        """Return the images of each library, once for each kind of code. given: for providers' names."""
        found = []
        for library in libraries:
            images = [
                (each.data, image.kind == PROVIDED)
                for image in library.images
                for each in (given.get(image, ()) if image.kind == PROVIDED else (image,))
                if each.kind in ON_SOFTWARE
            ]
            for checked in self._checked:
                code = [CodeAhead(data, library.kernels, checked=checked, fenced=self._fenced) for data, _ in images]
                found.append([_ImageAhead(ahead, trusted) for ahead, (_, trusted) in zip(code, images, strict=True)])
        return found

    def _lacking(self, libraries: Sequence[Sequence[_ImageAhead]], tried: Collection[_ImageAhead]) -> list[_ImageAhead]:
        """Return the images that executors will take, one of a library, and of which the cache lacks code.

        tried: they were compiled already. Such an image of which the cache knows nothing does not load.
        """
        found = []
        for images in libraries:
            known = {image: image.code.known(self._namespace) for image in images}
            unknown = [image for image in tried if known.get(image, image) is None]
            able = [each for each in images if not isinstance(known[each], RefusedCode) and each not in unknown]
            sound = {image for image in able if whole(known[image])}
            image = chosen(able, sound.__contains__)
            if image is not None and image not in tried and image.code.lacks(self._namespace):
                found.append(image)
        return found


@dataclass(slots=True)
class TimeLeft:
    """The time that compilers have left for a kTask. idle_s: in which they want no processor, as while they sleep."""

    processor_s: float
    idle_s: float


class _ImageAhead(NamedTuple):
    """An image that is compiled ahead. trusted: a provider gives it, and no client."""

    code: CodeAhead
    trusted: bool


def _apart(images: Sequence[_ImageAhead]) -> Iterator[Sequence[_ImageAhead]]:
    """Divide images among processes: a text that leads a compiler astray shall change the code of no other text."""
    if trusted := [image for image in images if image.trusted]:
        yield trusted
    yield from ([image] for image in images if not image.trusted)


def _checks(device: Device) -> bool:
    """Return True if the kernels of a software device are compiled with checks, by its settings or the environment."""
    memcheck = os.environ.get(MEMCHECK_VARIABLE) == "1" if device.memcheck is None else device.memcheck
    return memcheck or device.strict is not None or bool(os.environ.get(STRICT_VARIABLE))


class CompilerProcess:
    """A compiler for one work, with a folder of its own."""

    def __init__(self, sandbox: Sandbox | None, limit_s: float) -> None:
        """Start it. limit_s: the processor seconds of a kTask.

        Raises:
            CodeUnavailable: it can have no folder. KaasError: no process can be started.
        """
        self._limit_s = limit_s
        try:
            self._folder = ProcessFolder("compiler-", str(cache_root("kaas-executors")))
        except OSError as error:
            raise unwritten(error) from error
        self.kernels = Path(self._folder.path, KERNELS)
        """The folder of its code."""
        work, self._work = os.pipe()
        orders, inherited = CompilerOrders(work, str(self.kernels), LIMIT_BYTES), None
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
        self.started = loop.create_task(self._started())
        """The name of the code that it makes, and the processor seconds of its start, once it has started; or a
        KaasError."""

    async def _started(self) -> tuple[str, float]:
        namespace, took_s = (await self._child.ready()).split()
        return namespace.decode(), float(took_s)

    @property
    def ended(self) -> bool:
        """True if the process has ended."""
        return self._child.process.returncode is not None

    async def did(self, left: TimeLeft, work: CompilerWork) -> Compilation:
        """Let it do its work, and wait for the end of the process. To be called once. Its start costs nothing.

        left: the time that it has, and from which its own is taken.

        Raises:
            KaasError: the process did not start.
        """
        _, started_s = await asyncio.shield(self.started)
        file, self._work = self._work, -1
        await asyncio.to_thread(_write, file, pickle.dumps(work._replace(limit_s=left.processor_s)))
        look_s = 0.0
        while not (await asyncio.wait([self._ended], timeout=look_s))[0]:
            if not wants_processor(self._child.process.pid):
                left.idle_s -= look_s
            if left.idle_s <= 0:
                self._child.kill_group()
            look_s = uniform(*LOOKS_S)
        took_s = max(0.0, self._child.processor_s - started_s)
        left.processor_s -= took_s
        return ended(self._child.process.returncode, took_s, left, self._limit_s)

    def end(self) -> None:
        """End it, and remove its folder."""
        if not self.ended:
            self._child.kill_group()
        self.started.add_done_callback(_seen)
        if self._work >= 0:
            os.close(self._work)
            self._work = -1
        Thread(target=self._folder.remove, name="kaas-folder", daemon=True).start()


def ended(status: int, took_s: float, left: TimeLeft, limit_s: float) -> Compilation:
    """Return how a compiler has ended.

    Args:
        status: its return code.
        took_s: processor seconds.
        left: what it has left of its time.
        limit_s: the processor seconds of a kTask.
    """
    if status == 0:
        return Compilation(took_s)
    if status == -signal.SIGXCPU or left.processor_s <= 0:
        limit = f"{limit_s:g} processor seconds"
    elif left.idle_s <= 0:
        limit = f"{limit_s:g} seconds in which its compiler wants no processor"
    elif status in errno.errorcode and status > 1:
        return Compilation(took_s, unwritten(OSError(status, os.strerror(status))))
    elif -status in KILLED:
        return Compilation(took_s, lost=how_it_ended(status))
    else:
        limit = f"{LIMIT_BYTES >> 20} MiB"
    message = f"its code was not compiled: that takes more than {limit}, the pool's limit"
    return Compilation(took_s, CompileLimitExceeded(message, limit_s=limit_s, limit_bytes=LIMIT_BYTES))


def unwritten(error: OSError) -> CodeUnavailable:
    """Return the error of code that cannot be written."""
    reason = error.strerror or str(error)
    return CodeUnavailable(f"its compiled code cannot be written into {cache_root()}: {reason}", reason=reason)


def _seen(start: asyncio.Task[tuple[str, float]]) -> None:
    """Take in a start that failed, and that no kTask waits for."""
    if not start.cancelled():
        start.exception()


def _write(file: int, work: bytes) -> None:
    with suppress(BrokenPipeError), os.fdopen(file, "wb") as pipe:  # the process has ended, which is noticed
        pipe.write(work)

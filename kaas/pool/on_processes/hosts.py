"""Executors as child processes of the pool's process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import Any

from kaas.config import Config, Device
from kaas.errors import KaasError
from kaas.executor.cache.journal import CacheFiles
from kaas.pool.executors.transport import Compilation
from kaas.pool.on_processes.compilers import Compilers
from kaas.pool.on_processes.holders import Holder
from kaas.pool.on_processes.objects import HeldObject
from kaas.process_folder import ProcessFolder
from kaas.scheduling.decisions import StartWorker
from kaas.wire.messages import Address
from kaas.wire.status import status_codec
from kaas.wire.status.status import WorkerInfo
from kaas.worker.epochs import Adoption
from kaas.worker.executor_options import executor_options
from kaas.worker.executor_worker import LOST_STATUS
from kaas.worker.process_orders import ExecutorOrders
from kaas.worker.processes import Child, PrintedLines, lacks_files, threads_of, write_out
from kaas.worker.sandbox import Sandbox
from softgpu.build import build
from softgpu.user_cache import cache_root

_log = logging.getLogger(__name__)

EXECUTOR = "kaas.worker.executor_process"
PRINTED_BYTES_PER_MINUTE = 1 << 20
"""Of what an executor in a sandbox writes, to stdout and to stderr: more than it lets kernels of its clients print."""
THREADS_AT_MOST, COUNTED_EVERY_S = 1024, 0.5
"""Threads that an executor in a sandbox may have, and how often they are counted: Linux bounds them only by user."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
RETRY_S = 0.2
"""A process is tried again so long after this one had no file descriptor left for it."""
END_LIMIT_S = 2.0
"""An executor that is killed has so long to end. After that the next one of its device starts without its cache."""
KEPT_ENDS = (-signal.SIGKILL, -signal.SIGTERM, LOST_STATUS)
"""The exit statuses of executors whose cached objects the next ones adopt. After any other, as of a crash, the process
may have written anywhere. One that has lost its device by an error has spoilt its journal itself."""


class ProcessHosts:
    """Starts executors as child processes. Use an object of this class from one event loop only."""

    def __init__(self, config: Config, node: str, sandbox: Sandbox | None = None) -> None:
        """Prepare to start executors. sandbox: for the executors, or None."""
        assert config.devices is not None, "a pool gets a resolved configuration"
        self._devices = config.devices
        self._visible = [visible_gpu(config.devices, index) for index in range(len(config.devices))]
        self._options = [executor_options(config, device) for device in config.devices]
        self._node = node
        self._sandbox = sandbox
        self._compilers = Compilers(config, sandbox) if config.isolation != "none" else None
        self._folders: dict[int, ProcessFolder] = {}  # those that executors of one client write, and no other executor
        self._walls = config.isolation == "process"
        self._holders = {
            index: Holder(device, options["parts"], options["cache_bytes"] or sys.maxsize, config.start_limit_s)
            for index, (device, options) in enumerate(zip(config.devices, self._options, strict=True))
            if self._walls and device.kind == "software"
        }
        self._device_of: dict[int, int] = {}
        self._cache_files: dict[int, CacheFiles] = {}  # by device, where one executor after the other adopts objects
        self._last: dict[int, tuple[Child, asyncio.Future[str]]] = {}  # the executor that has had them
        self._printed = [
            PrintedLines(partial(write_out, each), bytes_per_minute=PRINTED_BYTES_PER_MINUTE, kind="worker")
            for each in (sys.stdout, sys.stderr)
        ]
        self._wait_s = config.start_limit_s / 2  # for file descriptors; the rest is for the start itself
        self._starting: set[int] = set()  # workers without a process
        self._children: dict[int, tuple[Child, asyncio.Future[str]]] = {}

    async def start(self, start: StartWorker, address: Address) -> WorkerInfo:
        """Start an executor. Wait for half of the start's limit if this process has no file descriptor left.

        Raises:
            KaasError: the executor did not start, or was killed before it had a process.
        """
        self._starting.add(start.worker)
        self._device_of[start.worker] = start.device
        device = self._devices[start.device]
        sandbox = self._sandbox_of(start.worker)
        options, walls = self._options[start.device], self._walls
        files = await self._files(start.device)
        if files is not None:
            options = {**options, "files": files}
        orders = ExecutorOrders(device, options, str(start.worker), address, self._node, sandbox, walls)
        inherited = None
        if sandbox is not None:
            inherited = sandbox.environment(os.environ)
            if device.kind == "software":
                await asyncio.to_thread(build)  # here, since no compiler may run in folders that an executor can write
        visible = {VISIBLE: self._visible[start.device]}
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()
        until_s = loop.time() + self._wait_s
        while start.worker in self._starting:
            try:
                child = Child(EXECUTOR, orders, visible, files or (), inherited=inherited, pipes=sandbox is not None)
                child.on_end(loop, ended.set_result, group=True)
            except KaasError as error:
                if not lacks_files(error.__cause__) or loop.time() > until_s:
                    raise
                await asyncio.sleep(RETRY_S)
            else:
                self._starting.discard(start.worker)
                self._children[start.worker] = self._last[start.device] = child, ended
                if sandbox is not None:
                    child.pass_on(str(start.worker), *self._printed)
                    self._bound(loop, start.worker)
                info = status_codec.decode(await child.ready(), WorkerInfo)
                if self._compilers is not None:
                    self._compilers.named(info.code)
                return info
        raise KaasError(f"worker {start.worker} was ended before it had a process")

    async def _files(self, device: int) -> CacheFiles | None:
        """Return the files of a device for its next executor, once the last one has ended; None if it has none."""
        if self._walls or self._devices[device].kind != "software":
            return None
        files = self._cache_files.get(device)
        child, ended = self._last.pop(device, (None, None))
        if files is not None and child is not None and ended is not None:
            try:
                async with asyncio.timeout(END_LIMIT_S):
                    await asyncio.shield(ended)
            except TimeoutError:  # it may still write there
                self._cache_files.pop(device).close()
                files = None
            else:
                if child.process.returncode not in KEPT_ENDS:
                    files.spoil()
        if files is None:
            try:
                files = self._cache_files[device] = CacheFiles.made()
            except OSError:  # this process lacks descriptors: `start` waits for some
                return None
        return files

    def _bound(self, loop: asyncio.AbstractEventLoop, worker: int) -> None:
        """End an executor with more threads than it needs, again and again: a user's processes share their number."""
        child, _ = self._children.get(worker, (None, None))
        if child is None:
            return
        if (count := threads_of(child.process.pid)) > THREADS_AT_MOST:
            _log.warning("worker %s is ended, since it has %s threads", worker, count)
            child.kill_group()
        loop.call_later(COUNTED_EVERY_S, self._bound, loop, worker)

    def _sandbox_of(self, worker: int) -> Sandbox | None:
        if self._sandbox is None or not self._walls:
            return self._sandbox
        folder = self._folders[worker] = ProcessFolder("executor-", str(cache_root("kaas-executors")))
        return replace(self._sandbox, own=folder.path)

    async def compile(self, task: bytes, client: str) -> Compilation:
        """Compile the code of a client's kTask in a process of its own."""
        return Compilation(0.0) if self._compilers is None else await self._compilers.compile(task, client)

    async def survivors(self, address: Address) -> Sequence[Adoption]:  # noqa: ARG002 - executors end with the pool
        """Return no executors."""
        return ()

    def expect(self, constants: HeldObject) -> None:
        """Take in that executors will probably ask for constants."""
        for holder in self._holders.values():
            if holder.lacks(constants):
                holder.start()

    def prepare(self, worker: int, refs: Sequence[Any]) -> asyncio.Future[Any] | None:
        """Return a future that is done once constants are held on the worker's device, as far as they can be."""
        holder = self._holder(worker)
        lacking = [] if holder is None else [holder.hold(ref) for ref in refs if holder.lacks(ref)]
        return asyncio.gather(*lacking) if lacking else None

    def provide(self, worker: int, number: int, refs: Sequence[Any]) -> Sequence[Sequence[Any]]:  # noqa: ARG002
        """Return the values of objects that the pool holds, as parts of device memory if they are held there."""
        holder = self._holder(worker)
        held = [() if holder is None or ref is None else holder.parts(worker, ref) for ref in refs]
        return [parts or (() if ref is None else ref.blocks) for parts, ref in zip(held, refs, strict=True)]

    @property
    def held_bytes(self) -> int:
        """Bytes of device memory that executors share."""
        return sum(holder.held_bytes for holder in self._holders.values())

    def _holder(self, worker: int) -> Holder | None:
        return self._holders.get(self._device_of.get(worker, -1))

    def owns(self, worker: int, pid: int) -> bool:
        """Return True if the worker has this process."""
        child, _ = self._children.get(worker, (None, None))
        return child is not None and child.process.pid == pid

    def worker_of(self, pid: int) -> int:
        """Return the worker that has a process, or that has started it; -1 if there is none."""
        try:
            session = os.getsid(pid)
        except (ProcessLookupError, OverflowError):  # there is no such process, or it has ended
            return -1
        found = (worker for worker, (child, _) in self._children.items() if child.process.pid in (pid, session))
        return next(found, -1)

    async def collect(self, worker: int, deferred: int, count: int) -> Sequence[Any]:
        """Raise AssertionError: only invocations by Ray have deferred results."""
        raise AssertionError(f"worker {worker} has deferred result {deferred} of {count} outputs, without Ray")

    async def ended(self, worker: int) -> str:
        """Wait until a worker's process ends; return the reason."""
        _, ended = self._children[worker]
        return await asyncio.shield(ended)

    def kill(self, worker: int) -> None:
        """Kill a worker's process and its children."""
        self._starting.discard(worker)
        child, _ = self._children.pop(worker, (None, None))
        if child is not None:
            child.kill_group()
        if (holder := self._holders.get(self._device_of.pop(worker, -1))) is not None:
            holder.left(worker)
        if (folder := self._folders.pop(worker, None)) is not None:
            Thread(target=folder.remove, name="kaas-folder", daemon=True).start()  # it may have many files

    def kill_all(self) -> None:
        """Kill the processes of all workers."""
        for worker in [*self._starting, *self._children]:
            self.kill(worker)
        if self._compilers is not None:
            self._compilers.close()
        for holder in self._holders.values():
            holder.close()
        while self._cache_files:
            self._cache_files.popitem()[1].close()


def visible_gpu(devices: Sequence[Device], index: int) -> str:
    """Return CUDA_VISIBLE_DEVICES for one of the pool's devices.

    Each device gets one of the GPUs that the pool's process sees, in order; a software device gets no GPU, nor does
    a device for which the process sees no GPU.
    """
    if devices[index].kind != "gpu":
        return ""
    number = sum(device.kind == "gpu" for device in devices[:index])
    named = os.environ.get(VISIBLE)
    if named is None:
        return str(number)
    return dict(enumerate(named.split(","))).get(number, "")

"""The process of an executor, on Ray and without: it opens a device, and carries out the pool's messages.

As many threads receive and run as there are slots, and one more. The thread that receives an invocation runs it, and
another takes the next message, so that a request waits for no thread to wake up but the one that its arrival wakes.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from kaas.config import Device
from kaas.errors import KaasError, OutOfHostMemory
from kaas.wire import messages, specs
from kaas.wire.connections.connect import connect
from kaas.wire.connections.connection import ConnectionLost
from kaas.wire.error_codec import decode_error, encode_error
from kaas.wire.messages import ExecutorReply, ObjectParts
from kaas.wire.status.status import WorkerInfo
from kaas.worker.epochs import Epoch, Epochs, RunningInvocation
from kaas.worker.huge_pages import use_huge_pages_soon
from kaas.worker.invocation_runner import Attachments, GetInput, Introduction, InvocationRunner, evicted, same
from kaas.worker.processes import PrintedLines, write_out
from softgpu.ahead import namespace

if TYPE_CHECKING:
    from kaas.executor.executor import Executor

CONNECT_LIMIT_S = 10.0
"""The time for the pool to reply to an executor's PeerHello."""
LINGER_S = 2.0
"""A process whose device is lost stays for so long, so that the replies to all of its requests arrive."""
LOST_STATUS = 3
"""The exit status of a process that ended by itself, since its device was lost."""

Order = messages.CacheCommand | messages.CacheDecision | messages.WriteBackOutput | messages.Discard


class ExecutorWorker:
    """One executor with its device."""

    _work: InvocationRunner

    def __init__(
        self,
        device: Device,
        options: Mapping[str, Any],
        name: str,
        node: str,
        *,
        get: GetInput = same,
        introduce: Callable[[str], Introduction] | None = None,
        connection_lost: Callable[[], None] | None = None,
        walls: bool = False,
    ) -> None:
        """
        Args:
            options: as `executor_options` returns them. name: the worker's number. node: where it is. introduce: as
                `InvocationRunner` takes it. connection_lost: called when the pool's process has ended. walls: as in
                `ExecutorOrders`.
        """
        self._device = device
        self._options = options
        self._name = name
        self._node = node
        self._get = get
        self._introduce = introduce
        self._connection_lost = connection_lost
        self._walls = walls
        self._epochs = Epochs()
        self._unneeded: set[str] = set()  # functions to be forgotten once they no longer run
        self._nothing = Attachments((), (), tuple, get)
        self._leaving: threading.Timer | None = None
        # Orders keep their order; they wait for no run, nor a run for them. Orders about kept outputs do not wait for a
        # load either, which may wait for another executor.
        self._cache_commands: SimpleQueue[tuple[Epoch, Order, Sequence[Any]]] = SimpleQueue()
        self._write_back: SimpleQueue[tuple[Epoch, Order, Sequence[Any]]] = SimpleQueue()

    @property
    def work(self) -> InvocationRunner:
        """The functions, runs and cache commands of the executor."""
        return self._work

    def start(self, address: messages.Address) -> WorkerInfo:
        """Open the device, and connect to the pool.

        Raises:
            DeviceUnavailable. KaasError: there is no connection to the pool in time, or the pool refuses it.
        """
        import softgpu
        from kaas.executor.device import software
        from kaas.executor.device.device import open_device
        from kaas.executor.executor import Executor
        from softgpu import compiling

        if self._device.kind == "software":
            software.load(self._device)
        options = dict(self._options)
        memory_bytes, parts = self._device.memory_bytes, options.pop("parts", 1)
        files = options.pop("files", None)
        if options.pop("ahead", False) and address.node == self._node:
            compiling.forbid()
        device = open_device(self._device.kind, memory_bytes=memory_bytes, parts=parts)
        device.files = files
        softgpu.set_echo(False)
        printed = PrintedLines(lambda text: write_out(sys.stdout, text))
        executor = Executor(device, **options, on_write_back=self.written, on_printed=printed)
        try:
            self.serve(executor, address)
        except ConnectionLost as error:
            raise KaasError(f"executor {self._name} has no connection to its pool: {error}") from error
        use_huge_pages_soon()
        info, slots = device.info(), options["slots"]
        code = namespace() if self._device.kind == "software" else ""
        of_device = info.name, info.memory_bytes, info.compute_capability
        with device.context:
            sms, step = device.partitions.sizes
        found = WorkerInfo(os.getpid(), self._node, *of_device, slots, code=code, sms=sms, sm_step=step)
        return replace(found, cached=tuple(executor.cached()))

    def serve(self, executor: Executor, address: messages.Address) -> None:
        """Connect to the pool. The executor is open, with the options' slots, and its `on_write_back` is `written`.

        Raises:
            The errors of `connect`.
        """
        self._work = InvocationRunner(executor, self._introduce)
        for orders, name in ((self._cache_commands, "kaas-cache-commands"), (self._write_back, "kaas-write-back")):
            threading.Thread(target=self._follow, args=(orders,), name=name, daemon=True).start()
        self.begin(address)

    def begin(self, address: messages.Address) -> dict[int, RunningInvocation]:
        """Connect to the process that the pool has now; return the runs of an earlier one that go on, by slot.

        Raises:
            The errors of `connect`.
        """
        from kaas.executor.device.device_memory import HeldMemory

        take_file = HeldMemory if self._walls else None
        incarnation = secrets.token_hex(8)
        connection = connect(address, self._node, "executor", self._name, incarnation, CONNECT_LIMIT_S, take_file)
        epoch = Epoch(address.epoch, connection)
        left = self._epochs.begin(epoch)
        for number in range(self._options["slots"] + 1):
            threading.Thread(target=self._serve, args=(epoch,), name=f"kaas-runs-{number}", daemon=True).start()
        return left

    # --- calls that do not come over the connection

    def wait(self, epoch: str) -> None:
        """Wait until a later epoch of the pool begins."""
        self._epochs.wait(epoch)

    def provide(self, epoch: str, number: int, objects: Sequence[Any]) -> None:
        """Take objects that the pool gives in this epoch; the next one uses the same numbers for other objects."""
        now = self._epochs.now
        if now is not None and now.name == epoch:
            now.requested.bring(number, objects)

    def collect(self, epoch: str, deferred: int) -> Sequence[Any]:
        """Return the arrays of a deferred result in this epoch.

        Raises:
            KeyError: there is no such result.
        """
        now = self._epochs.now
        if now is None or now.name != epoch:
            raise KeyError(deferred)
        return now.deferred_results.collect(deferred)

    def written(self, key: bytes, array: Any) -> None:
        """Take an output that the executor writes back."""
        epoch = self._epochs.now
        number = None if epoch is None else epoch.deferred_results.pack_written(array)
        if epoch is not None and number is not None:
            epoch.send(messages.WrittenBack(key, number))

    # --- messages over the connection

    def _serve(self, epoch: Epoch) -> None:
        self._work.executor.device.context.stay()
        try:
            for run in epoch.connection.serve(partial(self._take, epoch)):
                self._run(run)
                del run  # and its frames: the next run may come much later
        except ConnectionLost:
            self._lost(epoch)

    def _take(self, epoch: Epoch, message: messages.ToPeer, frames: Sequence[Any]) -> RunningInvocation | None:
        """Return an invocation; carry out other messages, or pass them on."""
        if frames and type(frames[0]) is OutOfHostMemory:
            self._no_room(epoch, message, frames[0])
            return None
        if type(message) is messages.RunInvocation:
            run = RunningInvocation(epoch, message, frames)
            return run if self._epochs.started(run) else None
        match message:
            case messages.RegisterFunction():
                self._unneeded.discard(self._work.register(frames[0], frames[1]))
            case messages.ForgetFunction(key):
                forgotten = (self._unneeded | {key}) - self._epochs.functions()
                self._work.forget(forgotten)
                self._unneeded = (self._unneeded | {key}) - forgotten
            case messages.ForgetClient(client):
                self._work.forget_client(client)
            case messages.CacheCommand() | messages.CacheDecision():
                self._cache_commands.put((epoch, message, frames))
            case messages.WriteBackOutput() | messages.Discard():
                self._write_back.put((epoch, message, frames))
            case messages.ProvideObjects():
                came = [ObjectParts(items, frames) for items in message.objects]
                epoch.requested.bring(message.number, decode_error(frames[0]) if message.error else came)
        return None

    def _no_room(self, epoch: Epoch, message: messages.ToPeer, error: OutOfHostMemory) -> None:
        """Reply to a message that this process has no memory for.

        Raises:
            ConnectionLost: the message has no reply, so that the pool would not know.
        """
        match message:
            case messages.RunInvocation():
                done, frames = self._failure(message.number, error)
                epoch.send(done, frames)
            case messages.ProvideObjects():
                epoch.requested.bring(message.number, error)
            case _:
                raise ConnectionLost(error.message)

    def _lost(self, epoch: Epoch) -> None:
        """Take in that the pool's process has ended; runs go on."""
        if epoch.close() and self._connection_lost is not None:
            self._connection_lost()

    # --- runs

    def _run(self, run: RunningInvocation) -> None:
        message, epoch = run.message, run.epoch
        objects = self._nothing
        if message.attached:
            objects = self._objects(epoch, message, run.frames, (run.invocation.constants,))
        outputs: Sequence[Any] = ()
        record = None
        try:
            result = self._work.run(
                run.invocation,
                message.attached,
                objects,
                message.slot,
                message.keep,
                not message.deferred,
                message.victims,
                message.share,
                message.sms,
            )
        except Exception as error:  # noqa: BLE001 - any error is the reply to this request
            done, outputs = self._failure(message.number, error)
        else:
            record, outputs = result.stats, list(result.data.values())
            deferred = None
            if message.deferred and outputs:
                deferred, outputs = epoch.deferred_results.pack(list(result.outputs.values())), ()
            done = ExecutorReply(message.number, record, self._why_lost(), False, deferred)
        adopted_by = self._epochs.ended(run)
        if adopted_by is None:
            epoch.send(done, outputs)
        else:
            adopted_by.send(messages.Orphaned(message.slot, record))

    # --- orders

    def _follow(self, orders: SimpleQueue[tuple[Epoch, Order, Sequence[Any]]]) -> None:
        while True:
            self._obey(*orders.get())

    def _obey(self, epoch: Epoch, order: Order, frames: Sequence[Any]) -> None:
        if epoch.over:
            return
        reply_frames: Sequence[Any] = ()
        try:
            done = ExecutorReply(order.number, self._do(epoch, order, frames), self._why_lost())
        except Exception as error:  # noqa: BLE001 - any error is the reply
            done, reply_frames = self._failure(order.number, error)
        epoch.send(done, reply_frames)

    def _do(self, epoch: Epoch, order: Order, frames: Sequence[Any]) -> specs.RunRecord:
        work = self._work
        match order:
            case messages.CacheCommand():
                command = specs.decode_cache_command(frames[0])
                objects = self._objects(epoch, order, frames, (0,) if command.functions else ())
                return work.cache_command(command, order.attached, objects)
            case messages.CacheDecision():
                decided = specs.decode_decided(frames[0])
                constants = {load.ref for load in decided.loads if load.entry is not None}
                return work.follow(decided, order.attached, self._objects(epoch, order, frames, constants))
            case messages.WriteBackOutput():
                work.executor.write_back(order.keys)
                return evicted(work.executor)
            case messages.Discard():
                return evicted(work.executor, work.executor.discard(order.keys))

    # --- both

    def _objects(
        self,
        epoch: Epoch,
        message: messages.RunInvocation | messages.CacheCommand | messages.CacheDecision,
        frames: Sequence[Any],
        constants: Container[int | None],
    ) -> Attachments:
        return Attachments(message.attached, frames, partial(epoch.requested.ask, message.number), self._get, constants)

    def _failure(self, number: int, error: Exception) -> tuple[ExecutorReply, Sequence[Any]]:
        if not isinstance(error, KaasError):
            foreign, error = error, KaasError(f"an executor failed in a way it should not: {error!r}")
            error.__cause__ = foreign
        return ExecutorReply(number, lost=self._why_lost(), failed=True), [encode_error(error)]

    def _why_lost(self) -> str:
        """Return why the device is lost, or "". Then this process ends, by itself if the pool does not end it."""
        lost = self._work.executor.lost
        if lost is None:
            return ""
        if self._leaving is None:
            self._leaving = threading.Timer(LINGER_S, os._exit, (LOST_STATUS,))
            self._leaving.daemon = True
            self._leaving.start()
        return lost.message

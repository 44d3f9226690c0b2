"""The calls of a session to its pool that have no reply yet, sent again in each epoch of the pool."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from secrets import token_hex
from time import monotonic
from typing import Any, Protocol

from kaas.api.pending_call import CallAttachments, PendingCall, RefLeases, placed
from kaas.api.timed_reply import TimedReply
from kaas.errors import KaasError, NotInitialized, OutOfHostMemory, PoolStopped
from kaas.futures import Future, MakeResult, PendingReply, running_loop
from kaas.wire import messages, specs
from kaas.wire.connections.connect import connect
from kaas.wire.connections.connection import AnyConnection, Connection, ConnectionLost
from kaas.wire.connections.reply_reader import TAKEN_EVERY, ReplyReader
from kaas.wire.connections.shared_memory import BlockLease, Outbox
from kaas.wire.connections.timer_thread import TimerThread
from kaas.wire.error_codec import decode_error
from kaas.wire.messages import AnnounceFunction, CancelCall, Drop, PoolQuery, Submit
from kaas.wire.outputs import outputs_from
from kaas.wire.packing import FunctionSignature, ObjectSink
from kaas.wire.rpc.client_half import ClientHalf

CONNECT_S = 30.0
"""A running pool sends PoolWelcome within this time."""


class PoolEndpoint(Protocol):
    """The session as its calls use it, to reach the pool."""

    name: str
    id: str

    def address(self) -> tuple[messages.Address, str]:
        """Return the address of the pool in its present epoch, and this node. Wait for a pool that restarts.

        Raises:
            PoolStopped: the pool does not restart.
        """
        ...

    def hold(self, epoch: str, refs: list[Any]) -> None:
        """Have the pool, in this epoch, hold the objects of references; do not wait. The pool counts the calls."""
        ...

    def drop(self, epoch: str, keys: list[bytes]) -> None:
        """Undo `hold`."""
        ...


@dataclass(slots=True)
class _ConnectedEpoch:
    """The connection to the pool in one of its epochs, and the functions that were announced on it."""

    connection: Connection
    epoch: str
    introduced: set[str]


class RpcClient:
    """The calls of a session to its pool, and their replies."""

    def __init__(self, pool: PoolEndpoint) -> None:
        self._pool = pool
        self._pid = os.getpid()
        self._numbers = count()
        self._makers: dict[str, MakeResult] = {}
        self._outbox = Outbox()
        self._timer = TimerThread("kaas-deadlines")
        self._ref_leases = RefLeases(self._hold, pool.drop)
        self._receiver = ReplyReader(self._take, self._connection_lost)
        self.lock = self._receiver.lock  # guards the fields below, and pending replies
        self._epoch: _ConnectedEpoch | None = None
        self._ended: KaasError | None = None
        self._half: ClientHalf[PendingCall, Sequence[BlockLease]] = ClientHalf()  # abandoned calls hold leases

    @classmethod
    def connected(cls, pool: PoolEndpoint) -> RpcClient:
        """Return the calls of a session, connected to its pool.

        In a running event loop another thread connects. Messages that are sent meanwhile go out then, or their calls
        end with the error.

        Raises:
            PoolStopped
        """
        calls = cls(pool)
        if running_loop() is not None:
            calls._renew_in_thread()
            return calls
        calls._epoch = calls._connected()
        with calls.lock:
            calls._receiver.use(calls._epoch.connection)
        return calls

    # --- sending

    def submit(
        self,
        function: FunctionSignature,
        message: bytes,
        attached: Sequence[Any],
        constants: Any = None,
        owner: Any = None,
        deadline_s: float | None = None,
    ) -> Future:
        """Send an invocation.

        `message` is the encoded invocation, `deadline_s` its deadline. `attached` are, in the order of the message,
        references, values as `attachments` took them, and the name of the constants. `constants` is the reference to
        them, which is held for as long as `owner` lives, the function's object in the program.

        Raises:
            PoolStopped, NotInitialized
        """
        self.check_process()
        keys: Sequence[bytes] = ()
        if attached:
            refs = [item for item in attached if not isinstance(item, BlockLease | bytes | messages.Named)]
            if constants is not None:
                self._ref_leases.keep(owner, [constants])
            keys = self._ref_leases.use(refs) if refs else ()
        number = next(self._numbers)
        timed = None if deadline_s is None else TimedReply(self, number, deadline_s, function.task.label)
        pending = timed or PendingReply(self, number)
        self._begin(PendingCall(pending, "", (message,), attached, keys, function, owner))
        return Future(pending, self._makers.get(function.key) or self._maker(function))

    def ask(self, what: str, frames: Sequence[Any] = (), attached: Sequence[Any] = ()) -> Future:
        """Send a query to the pool; the future's value is the list of the reply's frames.

        Raises:
            PoolStopped, NotInitialized
        """
        self.check_process()
        pending = PendingReply(self, next(self._numbers))
        self._begin(PendingCall(pending, what, frames, attached))
        return Future(pending, list)

    def _maker(self, function: FunctionSignature) -> MakeResult:
        make = self._makers[function.key] = outputs_from(function.task.outputs)
        return make

    def attachments(self, store: ObjectSink) -> CallAttachments:
        """Return an object that `pack` takes in place of this session's store."""
        return CallAttachments(store, self._copied)

    def _copied(self, data: memoryview) -> BlockLease | bytes:
        """Copy a value, so that its owner may write to it again."""
        epoch = self._epoch
        if epoch is None or not epoch.connection.shares or self._outbox.crowded:
            return bytes(data)
        try:
            return self._outbox.put(data)
        except OutOfHostMemory:  # a frame takes no file
            return bytes(data)

    def introduce(self, function: FunctionSignature) -> None:
        """Announce a function to the pool before its first call; the message needs no reply."""
        self.check_process()
        epoch = self._epoch
        if epoch is not None and function.key not in epoch.introduced:
            self._introduce(epoch, function)

    def drop(self, keys: Sequence[bytes], of_epoch: str | None = None) -> None:
        """Have the pool release objects. of_epoch: only if the pool is still in this epoch; None for any."""
        epoch = self._epoch
        if epoch is not None and of_epoch in (None, epoch.epoch):
            self._send(epoch, Drop(keys))

    def _hold(self, refs: list[Any]) -> str | None:
        epoch = self._epoch
        if epoch is None:  # the next connection has the pool hold them with all others
            return None
        self._pool.hold(epoch.epoch, refs)
        return epoch.epoch

    def _begin(self, call: PendingCall) -> None:
        number = call.pending.number
        with self.lock:
            ended, epoch = self._ended, self._epoch
            if ended is None:
                for lease in call.leases if call.attached else ():
                    lease.of_call = True
                self._half.begin(number, call)
        if ended is not None:
            self._ref_leases.release(call.keys)
            raise PoolStopped(ended.message, pool=self._pool.name)
        if epoch is not None:
            self._post(epoch, call)
        if not number % TAKEN_EVERY:
            self._receiver.take_all()

    def check_process(self) -> None:
        """Raise NotInitialized in a process that was forked from the one that made the calls."""
        if os.getpid() != self._pid:
            raise NotInitialized("this process was forked from one with a connection to a pool: it cannot use that")

    def _post(self, epoch: _ConnectedEpoch, call: PendingCall) -> None:
        function, number = call.function, call.pending.number
        if function is not None and function.key not in epoch.introduced:
            self._introduce(epoch, function)
        attached, frames = placed(call, epoch.connection.shares) if call.attached else ((), call.frames)
        self._send(epoch, PoolQuery(number, call.what, attached) if call.what else Submit(number, attached), frames)

    def _introduce(self, epoch: _ConnectedEpoch, function: FunctionSignature) -> None:
        self._send(epoch, AnnounceFunction(), (specs.encode(function.spec), function.task.to_msgpack()))
        epoch.introduced.add(function.key)

    def _send(self, epoch: _ConnectedEpoch, header: Any, frames: Sequence[Any] = ()) -> None:
        try:
            epoch.connection.send(header, frames)
        except ConnectionLost:
            self._lost(epoch)

    # --- replies

    def wait(self, pending: PendingReply, timeout_s: float | None) -> None:
        """Wait for a reply, timeout_s at most. A call with a deadline ends soon after it."""
        self.check_process()
        if isinstance(pending, TimedReply):
            pending.wait(self._receiver, timeout_s)
        else:
            self._receiver.wait(pending, timeout_s)

    def call(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Have the receiving thread call these."""
        self._receiver.call(callbacks)

    def watch(self, pending: PendingReply) -> None:
        """Have the receiving thread end a call, since no thread waits for it."""
        self._receiver.watch(pending.number)
        if isinstance(pending, TimedReply):
            pending.expire_by(self._timer)

    def forget(self, pending: PendingReply) -> None:
        """Cancel a call whose future no program has any more."""
        number = pending.number
        with self.lock:
            call = self._half.open.get(number)
            if call is not None:
                self._half.abandon(number, number, call.leases or None)
            epoch = self._epoch
            self._receiver.unwatch(number)
        if call is None:
            return
        if call.keys:
            self._ref_leases.release(call.keys)
        if epoch is not None:
            self._send(epoch, CancelCall(number))
        self._receiver.wake()

    def _take(self, header: messages.ToPeer, frames: Sequence[Any]) -> None:
        match header:
            case messages.CallResult(number=number, best_effort=best_effort):
                if best_effort and (call := self._half.open.get(number)) is not None:
                    call.pending.best_effort = True
                lost = frames[0] if frames and type(frames[0]) is OutOfHostMemory else None
                self._replied(number, frames, lost)
            case messages.CallFailure(number=number, held=held):
                self._replied(number, (), decode_error(frames[0]), held)
            case messages.Release(number=number):
                with self.lock:
                    leases = self._half.released(number)
                _release(leases or ())
            case messages.PoolWelcome(epoch=epoch):
                self._welcomed_again(epoch)
            case messages.Refused():
                self._refused(decode_error(frames[0]))

    def _replied(self, number: int, frames: Sequence[Any], error: KaasError | None, held: bool = False) -> None:
        leases: Sequence[BlockLease] = ()
        with self.lock:
            call = self._half.open.get(number)
            if call is not None and not call.pending.ended:  # first: until then an interrupted thread sends it again
                self._receiver.called_later += call.pending.settle(frames, error)
            if held:
                call = self._half.held(number, lambda call: call.leases)
            else:
                call, abandoned = self._half.replied(number)
                leases = abandoned or (call.leases if call is not None and call.attached else ())
            self._receiver.unwatch(number)
        _release(leases)
        if call is not None and call.keys:
            self._ref_leases.release(call.keys)

    # --- the pool's epochs

    def moved(self, epoch: str) -> None:
        """Take in that the pool is in this epoch now."""
        known = self._epoch
        if known is not None and known.epoch != epoch:
            self._lost(known)

    def _connection_lost(self, connection: AnyConnection[Any, messages.ToPeer]) -> None:
        epoch = self._epoch
        if epoch is not None and epoch.connection is connection:
            self._lost(epoch)

    def _lost(self, epoch: _ConnectedEpoch) -> None:
        with self.lock:
            if self._epoch is not epoch:
                return
            self._epoch = None
            self._receiver.use(None)
        epoch.connection.close()
        self._renew_in_thread()

    def _renew_in_thread(self) -> None:
        threading.Thread(target=self._renew, name="kaas-connection", daemon=True).start()

    def _renew(self) -> None:
        """Connect to a pool that has restarted, and send it all calls without a reply."""
        try:
            epoch = self._connected()
        except Exception as error:  # noqa: BLE001 - any error must reach the waiting callers
            unreachable = f"pool {self._pool.name!r} cannot be reached: {error}"
            self.end(error if isinstance(error, KaasError) else PoolStopped(unreachable, pool=self._pool.name))
            return
        with self.lock:
            if self._ended is None:
                self._epoch = epoch
                self._receiver.use(epoch.connection)
            abandoned, pending = self._half.renewed()
        if self._epoch is not epoch:
            epoch.connection.close()
            return
        for leases in abandoned.values():  # requests that still use them are of an earlier epoch, and have no caller
            _release(leases)
        self._ref_leases.again(epoch.epoch)
        unanswered = []
        for call in pending:
            if call.pending.ended and not call.pending.cancelled:  # the thread that took its reply was interrupted
                self._replied(call.pending.number, (), None)
            else:
                unanswered.append(call)
        self._post_again(epoch, unanswered)

    def _welcomed_again(self, epoch: str) -> None:
        """Send calls again: the connection broke and is mended, so messages in between may be lost."""
        known = self._epoch
        if known is not None and known.epoch == epoch:
            known.introduced.clear()
            with self.lock:
                pending = list(self._half.open.values())
            self._post_again(known, pending)

    def _post_again(self, epoch: _ConnectedEpoch, pending: Sequence[PendingCall]) -> None:
        for call in pending:
            self._post(epoch, call)
            if call.pending.cancelled:  # meanwhile, and CancelCall may have gone out before the call
                self._send(epoch, CancelCall(call.pending.number))

    def _connected(self) -> _ConnectedEpoch:
        end_s = monotonic() + CONNECT_S
        while True:
            address, node = self._pool.address()
            try:
                connection = connect(address, node, "client", self._pool.id, token_hex(8), CONNECT_S)
            except ConnectionLost as error:  # the pool has just ended, so the address is old
                if monotonic() > end_s:
                    raise PoolStopped(f"pool {self._pool.name!r} does not answer", pool=self._pool.name) from error
            else:
                return _ConnectedEpoch(connection, address.epoch, set())

    def end(self, error: KaasError) -> None:
        """End every call without a reply with an error; refuse further calls."""
        self._receiver.take_all()
        self._refused(error)

    def _refused(self, error: KaasError) -> None:
        """End all calls, and the connection: no more replies come."""
        with self.lock:
            if self._ended is not None:
                return
            self._ended = error
            epoch, self._epoch = self._epoch, None
            pending, abandoned = self._half.failed()
            self._receiver.close()
        if epoch is not None:
            epoch.connection.close()
        for leases in abandoned:
            _release(leases)
        for call in pending:
            _release(call.leases)
            call.pending.end(error=error)
        self._ref_leases.close()
        self._outbox.close()
        self._timer.close()


def _release(leases: Sequence[BlockLease]) -> None:
    for lease in leases:
        lease.release()

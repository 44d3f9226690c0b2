"""What a session has asked its pool over a line, and has no answer yet: in each of the pool's lives anew."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from secrets import token_hex
from time import monotonic
from typing import Any, Protocol

from kaas.api.pending_call import CallAttachments, PendingCall, placed
from kaas.api.ref_leases import RefLeases
from kaas.errors import KaasError, NotInitialized, PoolStopped
from kaas.futures import Future, PendingReply, running_loop
from kaas.wire import messages, specs
from kaas.wire.connections.connect import connect
from kaas.wire.connections.connection import AnyConnection, Connection, ConnectionLost
from kaas.wire.connections.reply_reader import ReplyReader
from kaas.wire.connections.shared_memory import BlockLease, Outbox
from kaas.wire.error_codec import decode_error
from kaas.wire.messages import AnnounceFunction, CancelCall, Drop, PoolQuery, Submit
from kaas.wire.outputs import outputs_from
from kaas.wire.packing import FunctionSignature, ObjectSink
from kaas.wire.rpc.client_half import ClientHalf

CONNECT_S = 30.0
"""Within this a pool that runs says Welcome."""
TAKEN_EVERY = 64
"""After so many calls that nobody has waited for, what has come meanwhile is taken."""

Make = Callable[[Sequence[Any]], Any]


class PoolEndpoint(Protocol):
    """How a session reaches its pool, as its calls see it."""

    name: str
    id: str

    def address(self) -> tuple[messages.Address, str]:
        """Return the address of the pool in its present epoch, and this node. Waits for a pool that starts again.

        Raises:
            PoolStopped: it does not.
        """
        ...

    def hold(self, epoch: str, refs: list[Any]) -> None:
        """Have the pool, in this epoch, hold the objects of references; waits for nothing. It counts."""
        ...

    def drop(self, epoch: str, keys: list[bytes]) -> None:
        """Undo it."""
        ...


@dataclass(slots=True)
class _Epoch:
    """The line to the pool in one of its lives, and the functions that it was told of on it."""

    connection: Connection
    epoch: str
    introduced: set[str]


class RpcClient:
    """What a session has asked its pool, and the answers."""

    def __init__(self, pool: PoolEndpoint) -> None:
        self._pool = pool
        self._pid = os.getpid()
        self._numbers = count()
        self._makers: dict[str, Make] = {}
        self._outbox = Outbox()
        self._holds = RefLeases(self._hold, pool.drop)
        self._receiver = ReplyReader(self._take, self._connection_lost)
        self.lock = self._receiver.lock  # guards all that follows, and what is pending
        self._epoch: _Epoch | None = None
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
            calls._renew_aside()
            return calls
        calls._epoch = calls._connected()
        with calls.lock:
            calls._receiver.use(calls._epoch.connection)
        return calls

    # --- asking

    def submit(
        self,
        function: FunctionSignature,
        message: bytes,
        attached: Sequence[Any],
        constants: Any = None,
        owner: Any = None,
    ) -> Future:
        """Send an invocation.

        Args:
            function: which runs.
            message: the encoded invocation.
            attached: references, and what `aside` made of values, in the order of the message.
            constants: the one of them that is held for as long as owner lives.
            owner: the function's object in the program.

        Raises:
            PoolStopped, NotInitialized
        """
        keys: Sequence[bytes] = ()
        if attached:
            refs = [item for item in attached if not isinstance(item, BlockLease | bytes) and item is not constants]
            if constants is not None:
                self._holds.keep(owner, [constants])
            keys = self._holds.use(refs) if refs else ()
        pending = PendingReply(self, next(self._numbers))
        self._ask(PendingCall(pending, "", (message,), attached, keys, function, owner))
        return Future(pending, self._makers.get(function.key) or self._maker(function))

    def ask(self, what: str, frames: Sequence[Any] = (), attached: Sequence[Any] = ()) -> Future:
        """Anything else of the pool; the value are the frames of its answer.

        Raises:
            PoolStopped, NotInitialized
        """
        pending = PendingReply(self, next(self._numbers))
        self._ask(PendingCall(pending, what, frames, attached))
        return Future(pending, list)

    def _maker(self, function: FunctionSignature) -> Make:
        make = self._makers[function.key] = outputs_from(function.task.outputs)
        return make

    def aside(self, store: ObjectSink) -> CallAttachments:
        """What `pack` takes for this session's store."""
        return CallAttachments(store, self._set_aside)

    def _set_aside(self, data: memoryview) -> BlockLease | bytes:
        """A copy, so that its owner may write to it again."""
        epoch = self._epoch
        shares = epoch is not None and epoch.connection.shares and not self._outbox.crowded
        return self._outbox.put(data) if shares else bytes(data)

    def introduce(self, function: FunctionSignature) -> None:
        """Tell the pool of a function that is not called yet; the message needs no answer."""
        self._check_process()
        epoch = self._epoch
        if epoch is not None and function.key not in epoch.introduced:
            self._introduce(epoch, function)

    def drop(self, keys: Sequence[bytes], of_epoch: str | None = None) -> None:
        """Have the pool let go of objects; of_life: unless it is in another epoch by now."""
        epoch = self._epoch
        if epoch is not None and of_epoch in (None, epoch.epoch):
            self._send(epoch, Drop(keys))

    def _hold(self, refs: list[Any]) -> str | None:
        epoch = self._epoch
        if epoch is None:  # they are held with all others when there is one
            return None
        self._pool.hold(epoch.epoch, refs)
        return epoch.epoch

    def _ask(self, asked: PendingCall) -> None:
        self._check_process()
        number = asked.pending.number
        with self.lock:
            ended, epoch = self._ended, self._epoch
            if ended is None:
                self._half.begin(number, asked)
        if ended is not None:
            self._holds.release(asked.keys)
            raise PoolStopped(ended.message, pool=self._pool.name)
        if epoch is not None:
            self._post(epoch, asked)
        if not number % TAKEN_EVERY:
            self._receiver.take_all()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise NotInitialized("this process was forked from one that is attached to a pool: it cannot use its line")

    def _post(self, epoch: _Epoch, asked: PendingCall) -> None:
        function, number = asked.function, asked.pending.number
        if function is not None and function.key not in epoch.introduced:
            self._introduce(epoch, function)
        attached, frames = placed(asked, epoch.connection.shares) if asked.attached else ((), asked.frames)
        self._send(epoch, PoolQuery(number, asked.what, attached) if asked.what else Submit(number, attached), frames)

    def _introduce(self, epoch: _Epoch, function: FunctionSignature) -> None:
        self._send(epoch, AnnounceFunction(), (specs.encode(function.spec), function.task.to_msgpack()))
        epoch.introduced.add(function.key)

    def _send(self, epoch: _Epoch, header: Any, frames: Sequence[Any] = ()) -> None:
        try:
            epoch.connection.send(header, frames)
        except ConnectionLost:
            self._lost(epoch)

    # --- answers

    def wait(self, pending: PendingReply, timeout_s: float | None) -> None:
        """Wait for a reply, timeout_s at most."""
        self._check_process()
        self._receiver.wait(pending, timeout_s)

    def call(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Have the receiving thread call these."""
        self._receiver.call(callbacks)

    def watch(self, pending: PendingReply) -> None:
        """Have the receiving thread end a call, since no thread waits for it."""
        self._receiver.watch(pending.number)

    def forget(self, pending: PendingReply) -> None:
        """Cancel a call whose future no program has any more."""
        number = pending.number
        with self.lock:
            asked = self._half.open.get(number)
            if asked is not None:
                self._half.abandon(number, number, asked.leases or None)
            epoch = self._epoch
            self._receiver.unwatch(number)
        if asked is None:
            return
        if asked.keys:
            self._holds.release(asked.keys)
        if epoch is not None:
            self._send(epoch, CancelCall(number))
        self._receiver.wake()

    def _take(self, header: messages.ToPeer, frames: Sequence[Any]) -> None:
        match header:
            case messages.CallResult(number=number):
                self._answer(number, frames, None)
            case messages.CallFailure(number=number, held=held):
                self._answer(number, (), decode_error(frames[0]), held)
            case messages.Release(number=number):
                with self.lock:
                    leases = self._half.released(number)
                _release(leases or ())
            case messages.PoolWelcome(epoch=epoch):
                self._welcomed_again(epoch)
            case messages.Refused():
                self._refused(decode_error(frames[0]))

    def _answer(self, number: int, frames: Sequence[Any], error: KaasError | None, held: bool = False) -> None:
        with self.lock:
            asked, abandoned = self._half.replied(number)
            leases = abandoned or (asked.leases if asked is not None and asked.attached else ())
            self._receiver.unwatch(number)
            if held:
                self._half.held(number, leases)
        if not held:
            _release(leases)
        if asked is not None:
            if asked.keys:
                self._holds.release(asked.keys)
            asked.pending.end(frames, error)

    # --- the pool's epochs

    def moved(self, epoch: str) -> None:
        """The pool is in this epoch now."""
        known = self._epoch
        if known is not None and known.epoch != epoch:
            self._lost(known)

    def _connection_lost(self, connection: AnyConnection[Any, messages.ToPeer]) -> None:
        epoch = self._epoch
        if epoch is not None and epoch.connection is connection:
            self._lost(epoch)

    def _lost(self, epoch: _Epoch) -> None:
        with self.lock:
            if self._epoch is not epoch:
                return
            self._epoch = None
            self._receiver.use(None)
        epoch.connection.close()
        self._renew_aside()

    def _renew_aside(self) -> None:
        threading.Thread(target=self._renew, name="kaas-line", daemon=True).start()

    def _renew(self) -> None:
        """Ask a pool that has started again all that has no answer."""
        try:
            epoch = self._connected()
        except KaasError as error:
            self.end(error)
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            self.end(PoolStopped(f"pool {self._pool.name!r} cannot be reached: {error}", pool=self._pool.name))
            return
        with self.lock:
            if self._ended is None:
                self._epoch = epoch
                self._receiver.use(epoch.connection)
            abandoned, unanswered = self._half.renewed()
        if self._epoch is not epoch:
            epoch.connection.close()
            return
        for leases in abandoned.values():  # what still runs with them is of the pool's last epoch, and of no caller
            _release(leases)
        self._holds.again(epoch.epoch)
        self._post_again(epoch, unanswered)

    def _welcomed_again(self, epoch: str) -> None:
        """The connection broke and stands again; what was on its way may be lost."""
        known = self._epoch
        if known is not None and known.epoch == epoch:
            known.introduced.clear()
            with self.lock:
                unanswered = list(self._half.open.values())
            self._post_again(known, unanswered)

    def _post_again(self, epoch: _Epoch, unanswered: Sequence[PendingCall]) -> None:
        for asked in unanswered:
            self._post(epoch, asked)
            if asked.pending.cancelled:  # meanwhile, and the pool may have been told before it was asked
                self._send(epoch, CancelCall(asked.pending.number))

    def _connected(self) -> _Epoch:
        end_s = monotonic() + CONNECT_S
        while True:
            address, node = self._pool.address()
            try:
                connection = connect(address, node, "client", self._pool.id, token_hex(8), CONNECT_S)
            except ConnectionLost as error:  # the pool has just ended, and its address with it
                if monotonic() > end_s:
                    raise PoolStopped(f"pool {self._pool.name!r} does not answer", pool=self._pool.name) from error
            else:
                return _Epoch(connection, address.epoch, set())

    def end(self, error: KaasError) -> None:
        """Give every call that has no answer this one; further ones are refused."""
        self._receiver.take_all()
        self._refused(error)

    def _refused(self, error: KaasError) -> None:
        """Nothing more comes."""
        with self.lock:
            if self._ended is not None:
                return
            self._ended = error
            epoch, self._epoch = self._epoch, None
            unanswered, abandoned = self._half.failed()
            self._receiver.close()
        if epoch is not None:
            epoch.connection.close()
        for leases in abandoned:
            _release(leases)
        for asked in unanswered:
            _release(asked.leases)
            asked.pending.end(error=error)
        self._holds.close()
        self._outbox.close()


def _release(leases: Sequence[BlockLease]) -> None:
    for lease in leases:
        lease.release()

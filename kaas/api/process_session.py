"""The session with a pool without Ray: starts or finds the pool, and puts objects there."""

from __future__ import annotations

import os
import pickle
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, ClassVar
from weakref import finalize

from kaas.api.pending_call import CallAttachments
from kaas.api.rpc_client import CONNECT_S
from kaas.api.session import HERE, Session, needs_ray, program_name
from kaas.config import Config
from kaas.errors import InvalidConfig, NotInitialized, PoolStopped
from kaas.futures import Future
from kaas.ktask.arguments import Buffer
from kaas.ktask.request import raw_bytes
from kaas.pool.on_processes.names import PoolName, PoolNotice
from kaas.pool.on_processes.objects import KeepObjects, encode_keep, key_of, key_of_all
from kaas.wire.connections.shared_memory import BlockLease
from kaas.wire.held_ref import HeldRef
from kaas.wire.messages import Address, Named
from kaas.wire.packing import FunctionSignature
from kaas.wire.specs import INLINE_INPUT_BYTES
from kaas.wire.status import status_codec
from kaas.wire.status.stats import Stats
from kaas.wire.status.status import Status
from kaas.worker.process_orders import PoolOrders
from kaas.worker.processes import Child

AT_ONCE = 32
"""Values in one message to the pool: until the pool has them, each takes its memory twice, and a file."""
_ANY = Buffer("value", 1)

STOP_S = 30.0
"""A pool replies to being stopped in this time, and ends in it again; otherwise the program that started it ends its
process by SIGTERM, and in the end by SIGKILL."""


class _HeldStore:
    """The pool's memory as packing sees Ray's object store: what is put there stays as long as its reference."""

    def __init__(self, session: ProcessSession) -> None:
        self._session = session
        self._dropped: SimpleQueue[bytes] | None = None
        self._lock = threading.Lock()

    @staticmethod
    def is_ref(value: Any) -> bool:
        return isinstance(value, HeldRef)

    @staticmethod
    def complete(refs: Sequence[Any]) -> bool:  # noqa: ARG004 - the pool has the object of each reference
        return True

    def put(self, value: Any) -> HeldRef:
        data, dtype, shape = raw_bytes(_ANY, value)
        (key,) = self._hold([data])
        return self._ref(key, data.nbytes, dtype, shape)

    def put_all(self, values: tuple[Any, ...]) -> HeldRef:
        parts = [value if isinstance(value, HeldRef) else raw_bytes(_ANY, value).data for value in values]
        keys: list[bytes] = []
        try:
            for begin in range(0, len(parts), AT_ONCE):
                keys += self._hold(parts[begin : begin + AT_ONCE])
            together = key_of_all(keys)
            named = [Named(key) for key in keys]
            self._wait(self._ask(KeepObjects(keys, together), named), [together])
        finally:
            self._session.calls.drop(keys)
        return self._ref(together, sum(part.nbytes for part in parts), None, None)

    def _hold(self, parts: Sequence[HeldRef | memoryview]) -> list[bytes]:
        """Have the pool hold values; return the keys of its copies: a value may change meanwhile."""
        with self._session.calls.attachments(self) as attachments:
            attached = [self._attachment(part, attachments) for part in parts]
            keys = [_key(item) for item in attached]
            asked = self._ask(KeepObjects(keys), attached)
        self._wait(asked, keys)
        return keys

    @staticmethod
    def _attachment(part: HeldRef | memoryview, attachments: CallAttachments) -> HeldRef | BlockLease | bytes:
        if isinstance(part, HeldRef):
            return part
        return attachments.put(part) if part.nbytes > INLINE_INPUT_BYTES else bytes(part)

    def _ask(self, wanted: KeepObjects, attached: Sequence[Any]) -> Future:
        self._session.check()
        return self._session.calls.ask("hold", [encode_keep(wanted)], attached)

    def _wait(self, asked: Future, keys: Sequence[bytes]) -> None:
        """Wait until the pool holds objects. An interrupted wait lets go of them as soon as it does."""
        try:
            asked.result()
        except BaseException:
            asked.add_done_callback(lambda done: None if done.exception() else self._session.calls.drop(keys))
            raise

    def _ref(self, key: bytes, nbytes: int, dtype: str | None, shape: tuple[int, ...] | None) -> HeldRef:
        ref = HeldRef(key, nbytes, dtype, shape)
        with self._lock:
            if self._dropped is None:
                self._dropped = SimpleQueue()
                threading.Thread(target=self._drop, args=(self._dropped,), name="kaas-drops", daemon=True).start()
        # the reference may be collected while its thread holds any lock, so another thread drops the object
        finalize(ref, self._dropped.put, key).atexit = False
        return ref

    def _drop(self, dropped: SimpleQueue[bytes]) -> None:
        while (key := dropped.get()) and not self._session.gone:
            self._session.calls.drop([key])

    def close(self) -> None:
        """Take in that the pool has ended, and all objects that it held."""
        if self._dropped is not None:
            self._dropped.put(b"")


def _key(item: HeldRef | BlockLease | bytes) -> bytes:
    """Return the key of an attached object."""
    if isinstance(item, HeldRef):
        return item.binary()
    return key_of(item.view if isinstance(item, BlockLease) else item)


@dataclass(slots=True, eq=False, kw_only=True)
class ProcessSession(Session):
    """A session with a pool without Ray.

    Fields:
        notice: the pool's address and other facts that the pool published. child: the pool's process, if this process
            has started it.
    """

    ray: ClassVar[bool] = False
    notice: PoolNotice
    child: Child | None = None
    _addressed: bool = False

    def __post_init__(self) -> None:
        self.store: _HeldStore = _HeldStore(self)

    def address(self) -> tuple[Address, str]:
        """Return the pool's address and this process's node; raise PoolStopped."""
        if self._addressed:  # the connection is lost: the pool has ended, or Ctrl-C cut a message
            self.gone = not self._runs()
        self.check()
        self._addressed = True
        return self.notice.address, self.notice.node

    def _runs(self) -> bool:
        notice = PoolName(self.name).running(wait=False)
        return notice is not None and notice.address == self.notice.address

    def hold(self, epoch: str, refs: list[Any]) -> None:
        """Do nothing: the pool holds the object of each reference already."""

    def drop(self, epoch: str, keys: list[bytes]) -> None:
        """Do nothing: the object is dropped with its reference."""

    def introduce(self, signature: FunctionSignature) -> None:
        """Tell the pool of a function."""
        self.check()
        self.calls.introduce(signature)

    def send(self, *_: Any) -> Any:
        """Raise InvalidRequest: `kaas.invoke` needs Ray."""
        raise needs_ray("kaas.invoke", self.name)

    def ask(
        self,
        what: str,
        frames: Sequence[bytes] = (),
        attached: Sequence[Any] = (),
        timeout_s: float | None = None,
    ) -> list[Any]:
        """Send a query to the pool; return the frames of its reply.

        Raises:
            PoolStopped, KaasError. TimeoutError: no reply came in timeout_s seconds.
        """
        self.check()
        reply: list[Any] = self.calls.ask(what, frames, attached).result(timeout_s)
        return reply

    def prefetch(self, message: bytes, refs: list[Any]) -> Any:
        """Send an encoded cache command; return a future of its end."""
        return self.calls.ask("upkeep", [message], refs)

    def cache_command(self, message: bytes, refs: list[Any]) -> None:
        """Send an encoded cache command, and wait until it is done."""
        self.ask("upkeep", [message], refs)

    def status(self) -> Status:
        """Return the pool's status."""
        return status_codec.decode(self.ask("status")[0], Status)

    def stats(self, reset: bool) -> Stats:
        """Return the pool's figures, and begin anew if `reset`."""
        return status_codec.decode(self.ask("stats", [b"1" if reset else b"0"])[0], Stats)

    def trace(self, seconds: float) -> bytes:
        """Return the pool's trace of so many seconds."""
        return bytes(self.ask("trace", [str(seconds).encode()])[0])

    def pardon(self, function: str) -> bool:
        """Lift a function's quarantine; return True if it was in quarantine."""
        return bytes(self.ask("pardon", [function.encode()])[0]) == b"1"

    def set_share(self, name: str, message: bytes) -> None:  # noqa: ARG002 - the pool ends with its process
        """Give a function or a client a share."""
        self.ask("share", [message])

    def shut_down(self) -> None:
        """Stop the pool, or leave it if it is a server's."""
        why, patience_s = "was shut down", STOP_S
        try:
            if self.ask("stop", timeout_s=STOP_S) == [b"0"]:
                why = "was left: it is a server's, which goes on"
        except (PoolStopped, TimeoutError):
            if not self.gone:  # else another program stopped it first
                why, patience_s = "has not replied", 0.0
        self.gone = True
        self.end_calls(PoolStopped(f"pool {self.name!r} {why}", pool=self.name))
        self.store.close()
        if self.child is not None:
            _end(self.child.process, patience_s)


def _end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Wait for the end of a stopped pool's process; after patience_s seconds, end it."""
    for end in (process.terminate, process.kill):
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            end()
    process.wait()


# --- a pool is started or found


def open_session(name: str, wanted: Config | None) -> tuple[ProcessSession, bool]:
    """Return the session with the pool of this name, and True if this call started the pool.

    The caller holds the lock of HERE.

    Raises:
        ConfigMismatch, InvalidConfig
        PoolStopped: a pool of this name runs, and does not reply.
    """
    session = HERE.session
    assert session is None or isinstance(session, ProcessSession), "the caller refuses pools of another kind"
    place = PoolName(name)
    if session is not None and not session.gone and _is_there(session):
        _refuse_other(name, wanted, session.notice)
        return session, False
    while True:
        with place.locked():
            notice = place.running()
            if notice is None:
                return _started(name, wanted, place), True
        session = ProcessSession(name, _client(), notice=notice)
        if _is_there(session):
            _refuse_other(name, wanted, notice)
            return session, False
        if not session.gone:
            silent = PoolStopped(f"pool {name!r} runs, but has not replied for {CONNECT_S:g} s", pool=name)
            session.end_calls(silent)
            raise silent


def attach(name: str) -> None:
    """Attach this process to a pool that runs already.

    Raises:
        NotInitialized, InvalidConfig
    """
    with HERE.lock:
        place = PoolName(name)
        with place.locked():
            notice = place.running(wait=False)
        if notice is None:
            raise NotInitialized(f"no pool {name!r} runs without Ray")
        if HERE.session is None or HERE.session.gone:
            HERE.session = ProcessSession(name, _client(), notice=notice)


def _started(name: str, wanted: Config | None, place: PoolName) -> ProcessSession:
    try:
        child = Child("kaas.pool.on_processes.process_pool", PoolOrders(name, wanted))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InvalidConfig(
            f"the configuration cannot be sent to the pool's process: {error}", field="policy"
        ) from error
    try:
        child.wait_ready()
    except BaseException:  # an interrupted wait leaves no pool
        child.process.kill()
        raise
    notice = place.running()
    if notice is None:
        raise PoolStopped(f"pool {name!r} ended at once", pool=name)
    return ProcessSession(name, _client(), notice=notice, child=child)


def _client() -> str:
    return f"{program_name()} process {os.getpid()}"


def _is_there(session: ProcessSession) -> bool:
    """Return True if the pool replies in time. If it does not since it has ended, the session is gone."""
    try:
        session.ask("status", timeout_s=CONNECT_S)
    except (PoolStopped, TimeoutError):
        return False
    return True


def _refuse_other(name: str, wanted: Config | None, notice: PoolNotice) -> None:
    if wanted is not None:
        wanted.refuse_other(name, notice.config, ray=False)

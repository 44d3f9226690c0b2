"""The eTasks of a pool. The pool keeps their code, and never reads it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kaas.errors import KaasError
from kaas.pool.executors.transport import WorkerCall
from kaas.pool.functions import REGISTRATION_LIMIT_S
from kaas.scheduling.events import WorkerKind
from kaas.wire import specs


@dataclass(frozen=True, slots=True)
class ETaskPayload:
    """A call on its way to a worker. direct: the caller wants the value as a list of buffers."""

    label: str
    message: bytes
    refs: Sequence[Any]
    direct: bool = False


@dataclass(frozen=True, slots=True)
class RegisteredETask:
    """A Python function or class. code: pickled, with the arguments of a class."""

    spec: specs.ETaskSpec
    code: bytes = field(repr=False)

    def call(self, header: specs.ETaskCall, message: bytes, refs: Sequence[Any], direct: bool = False) -> WorkerCall:
        """Return a call of this eTask for the core."""
        label = f"{self.spec.label}.{header.method}" if header.method else self.spec.label
        return WorkerCall(
            label=label,
            client=header.client,
            deadline_s=header.deadline_s,
            retries=header.retries,
            payload=ETaskPayload(label, message, refs, direct),
            function=self.spec.key,
            kind=WorkerKind.ETASK,
            session=header.caller,
        )


def etask_spec(label: str, code: bytes, path: Sequence[str], sms: float = 1.0) -> specs.ETaskSpec:
    """Return the spec of an eTask, whose key is a hash of the others but its label: another share is another eTask."""
    place = "\0".join([*path, *([f"sms={sms!r}"] if sms != 1.0 else ())])
    digest = hashlib.sha256(code + place.encode()).hexdigest()
    return specs.ETaskSpec(f"etask:{digest}", label, tuple(path), sms)


class ETasks:
    """All eTasks. Use an object of this class from one event loop only."""

    def __init__(self) -> None:
        self._known: dict[str, RegisteredETask] = {}
        self._expected: dict[str, list[asyncio.Future[RegisteredETask]]] = {}

    def __getitem__(self, key: str) -> RegisteredETask:
        return self._known[key]

    def register(self, spec: bytes, code: bytes) -> None:
        """Register an eTask; a second call changes nothing."""
        etask = RegisteredETask(specs.decode_etask(spec), code)
        key = etask.spec.key
        etask = self._known.setdefault(key, etask)
        for expected in self._expected.get(key, []):
            _give(expected, etask)

    async def get(self, key: str) -> RegisteredETask:
        """Return an eTask once it is registered: a call may come before the registration of its eTask.

        Waiting calls go on in the order of their arrival, and before all later calls, since calls change an instance.

        Raises:
            KaasError: no program registers the eTask in time.
        """
        if key in self._known and key not in self._expected:
            return self._known[key]
        loop = asyncio.get_running_loop()
        expected: asyncio.Future[RegisteredETask] = loop.create_future()
        if key in self._known:
            loop.call_soon(_give, expected, self._known[key])  # later, since earlier calls still wait
        self._expected.setdefault(key, []).append(expected)
        limit = loop.call_later(REGISTRATION_LIMIT_S, _give_up, expected, key)
        try:
            return await expected
        finally:
            limit.cancel()
            self._expected[key].remove(expected)
            if not self._expected[key]:
                del self._expected[key]


def _give(expected: asyncio.Future[RegisteredETask], etask: RegisteredETask) -> None:
    if not expected.done():
        expected.set_result(etask)


def _give_up(expected: asyncio.Future[RegisteredETask], key: str) -> None:
    if not expected.done():
        expected.set_exception(KaasError(f"the pool does not know eTask {key}"))

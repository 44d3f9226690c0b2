"""What a pool tells its operator, and counts: workers that come and go, faults, quarantines, its own end."""

from __future__ import annotations

import logging
from collections import Counter

from kaas.errors import DeviceLost, ETaskFailed, KaasError
from kaas.pool.core.requests import Request
from kaas.pool.core.workers import WorkerRecord

STOPPED, NOT_STARTED, DEVICE_LOST, DIED = "stopped", "not started", "device lost", "died"
"""Why workers end, as metrics have it."""

_log = logging.getLogger(__name__)


class EventLog:
    """Of one pool.

    Fields:
        starts: workers that could run requests, by device. ends: by device, and why. faults: devices that functions
            ended while they ran alone, by client. reasons: why a device has lost its last worker, until it has another.
    """

    def __init__(self) -> None:
        self.starts = Counter[int]()
        self.ends = Counter[tuple[int, str]]()
        self.faults = Counter[str]()
        self.reasons: dict[int, str] = {}

    def ready(self, worker: WorkerRecord) -> None:
        """A worker can run requests."""
        assert worker.info is not None, "it is ready"
        self.starts[worker.device.index] += 1
        self.reasons.pop(worker.device.index, None)
        name = {"device_name": worker.info.device_name} if worker.info.device_name else {}
        _log.info("a worker is ready", extra={**_who(worker), **name, "memory_bytes": worker.info.memory_bytes})

    def ended(self, worker: WorkerRecord, reason: str, cause: DeviceLost | None) -> None:
        """A worker has ended, or could not start."""
        told = {**_who(worker), "reason": reason}
        if worker.stopping:
            why = STOPPED
            _log.info("a worker was stopped", extra=told)
        elif worker.info is None:
            why = NOT_STARTED
            _log.error("a worker cannot start", extra=told)
        else:
            why = DIED if cause is None else DEVICE_LOST
            code = {} if cause is None or "code" not in cause.fields else {"code": cause.fields["code"]}
            _log.warning("a worker ended", extra={**told, **code, "requests": len(worker.running)})
        self.ends[worker.device.index, why] += 1
        if why != STOPPED:
            self.reasons[worker.device.index] = reason

    def fault(self, request: Request, worker: WorkerRecord, reason: str, faults: int, quarantined: bool) -> None:
        """A request ended its device, alone on it. faults: of its function so far."""
        self.faults[request.call.client] += 1
        told = {**_what(request), **_who(worker), "client": request.call.client, "reason": reason, "faults": faults}
        _log.warning("a function ended its device", extra=told)
        if quarantined:
            _log.error("a function is in quarantine", extra={**_what(request), "faults": faults})


def client_held(request: Request) -> None:
    """A client's requests ended too many devices."""
    _log.error("a client is over its budget of faults", extra=_what(request))


def failed(request: Request, error: KaasError) -> None:
    """A request got an error. That of an eTask is its operator's, who has written it."""
    if isinstance(error, ETaskFailed):
        told = {**_what(request), "error_type": error.fields.get("error_type", "")}
        by = (request.call.client, request.call.identity)
        traceback = error.fields.get("traceback", "")
        _log.error("an eTask raised", extra={**told, "traceback": traceback, "limit_by": by})


def broken(pool: str, error: BaseException) -> None:
    """The pool takes no more requests."""
    _log.critical("the pool is broken", extra={"pool": pool, "reason": str(error)}, exc_info=error)


def _who(worker: WorkerRecord) -> dict[str, object]:
    told: dict[str, object] = {"worker": worker.id, "kind": worker.kind.value, "device": worker.device.index}
    if worker.info is not None:
        told |= {"pid": worker.info.pid, "node": worker.info.node}
    if worker.client:
        told["client"] = worker.client
    return told


def _what(request: Request) -> dict[str, object]:
    call = request.call
    return {"function": call.label, "client": call.client, "key": call.identity}

"""Logs and counts the events of a pool for its operator: starts and ends of workers, faults, quarantines."""

from __future__ import annotations

import logging
from collections import Counter

from kaas.errors import DeviceLost, ETaskFailed, KaasError
from kaas.pool.core.requests import Request
from kaas.pool.core.workers import WorkerRecord

STOPPED, NOT_STARTED, DEVICE_LOST, DIED = "stopped", "not started", "device lost", "died"
"""Causes of workers' ends, as in the metrics."""

_log = logging.getLogger(__name__)


class EventLog:
    """The events of one pool.

    Fields:
        starts: number of started workers, by device. ends: number of ended workers, by device and cause.
        faults: number of devices that functions ended while they ran alone, by client.
        reasons: by device, the reason of its last worker's end, until the device has another worker.
    """

    def __init__(self) -> None:
        self.starts = Counter[int]()
        self.ends = Counter[tuple[int, str]]()
        self.faults = Counter[str]()
        self.reasons: dict[int, str] = {}

    def ready(self, worker: WorkerRecord) -> None:
        """Log that a worker can run requests."""
        assert worker.info is not None, "it is ready"
        self.starts[worker.device.index] += 1
        self.reasons.pop(worker.device.index, None)
        name = {"device_name": worker.info.device_name} if worker.info.device_name else {}
        _log.info(
            "a worker is ready", extra={**_worker_fields(worker), **name, "memory_bytes": worker.info.memory_bytes}
        )

    def ended(self, worker: WorkerRecord, reason: str, cause: DeviceLost | None) -> None:
        """Log that a worker has ended, or could not start."""
        fields = {**_worker_fields(worker), "reason": reason}
        if worker.stopping:
            cause_name = STOPPED
            _log.info("a worker was stopped", extra=fields)
        elif worker.info is None:
            cause_name = NOT_STARTED
            _log.error("a worker cannot start", extra=fields)
        else:
            cause_name = DIED if cause is None else DEVICE_LOST
            code = {} if cause is None or "code" not in cause.fields else {"code": cause.fields["code"]}
            _log.warning("a worker ended", extra={**fields, **code, "requests": len(worker.running)})
        self.ends[worker.device.index, cause_name] += 1
        if cause_name != STOPPED:
            self.reasons[worker.device.index] = reason

    def fault(self, request: Request, worker: WorkerRecord, reason: str, faults: int, quarantined: bool) -> None:
        """Log that a request ended its device, alone on it. faults: of its function so far."""
        self.faults[request.call.client] += 1
        fields = {**_request_fields(request), **_worker_fields(worker), "client": request.call.client}
        fields |= {"reason": reason, "faults": faults}
        _log.warning("a function ended its device", extra=fields)
        if quarantined:
            _log.error("a function is in quarantine", extra={**_request_fields(request), "faults": faults})


def client_held(client: str, story: str) -> None:
    """Log that a client ended too many devices. story: of the last one."""
    _log.error("a client is over its budget of faults", extra={"client": client, "reason": story})


def failed(request: Request, error: KaasError) -> None:
    """Log the error of an eTask, whose code the operator wrote. Other errors go to the callers only."""
    if isinstance(error, ETaskFailed):
        fields = {**_request_fields(request), "error_type": error.fields.get("error_type", "")}
        by = (request.call.client, request.call.identity)
        traceback = error.fields.get("traceback", "")
        _log.error("an eTask raised", extra={**fields, "traceback": traceback, "limit_by": by})


def broken(pool: str, error: BaseException) -> None:
    """Log that the pool takes no more requests, because of an error."""
    _log.critical("the pool is broken", extra={"pool": pool, "reason": str(error)}, exc_info=error)


def _worker_fields(worker: WorkerRecord) -> dict[str, object]:
    fields: dict[str, object] = {"worker": worker.id, "kind": worker.kind.value, "device": worker.device.index}
    if worker.info is not None:
        fields |= {"pid": worker.info.pid, "node": worker.info.node}
    if worker.client:
        fields["client"] = worker.client
    return fields


def _request_fields(request: Request) -> dict[str, object]:
    call = request.call
    return {"function": call.label, "client": call.client, "key": call.identity}

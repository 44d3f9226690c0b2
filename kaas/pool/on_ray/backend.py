"""Ray as a pool's backend.

Executors are Ray actors, objects are in Ray's store, and this process is an actor that restarts.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

import ray

from kaas.config import Config
from kaas.pool.executors.executors import Executors
from kaas.pool.executors.registered_etasks import ETasks
from kaas.pool.executors.residents import Residents
from kaas.pool.executors.transport import WorkerTransport
from kaas.pool.executors.worker_transports import WorkerTransports
from kaas.pool.on_ray.cluster import existing
from kaas.pool.on_ray.etask_transport import ETaskWorkers
from kaas.pool.on_ray.hosts import RayHosts
from kaas.pool.on_ray.readiness import Readiness
from kaas.pool.on_ray.ref_leases import SessionRefs
from kaas.store import Store, opened
from kaas.wire.connections.router import Router
from kaas.wire.messages import PeerHello


class RayBackend:
    """Ray as a pool's backend. Use an object of this class from the pool's loop only."""

    def __init__(self, name: str, config: Config, own: Any, node: str, host: str, again: bool) -> None:
        """Prepare the backend. own: the handle of the pool's actor."""
        self._name = name
        self._config = config
        self._own = own
        self.node = node
        self.host = host
        self.again = again
        self.readiness = Readiness(asyncio.get_running_loop(), existing)
        self.objects = SessionRefs(self.readiness)
        self.etasks = ETasks()

    def workers(self, router: Router, residents: Residents) -> tuple[Executors, WorkerTransport]:
        """Return the executors, and the transport to workers of all kinds."""
        hosts = RayHosts(self._name, self._config, self._own, self.readiness)
        executors = Executors(router, hosts, residents)
        self.etask_workers = ETaskWorkers(self._config, self.etasks, self._own, self.readiness)
        return executors, WorkerTransports(executors, self.etask_workers)

    def came(self, hello: PeerHello) -> None:
        """Do nothing: `PoolActor.attend` notices a session's end."""


def references() -> dict[str, Any]:
    """Return the objects to which this process has references, and those that it owns and other processes refer to.

    Ray has no public call for the end of an object; `ray memory` uses this one.
    """
    worker: Any = ray._private.worker.global_worker
    known: dict[bytes, Any] = worker.core_worker.get_all_reference_counts()
    return {name.decode(): counts for name, counts in known.items()}


def opened_store(wanted: str | Store | None, pool: str) -> Store:
    """Return the store of `Config.store` on this machine.

    Raises:
        InvalidConfig: the store cannot be opened.
    """
    if wanted is None:
        node: Any = ray._private.worker._global_node
        wanted = str(Path(node.get_session_dir_path(), "kaas", f"{quote(pool, safe='')}.sqlite"))
    return opened(wanted)

"""A pool without Ray: `python -m kaas.pool.on_processes.process_pool`, which starts and ends with a program."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from time import sleep

from kaas.config import Config
from kaas.errors import InvalidConfig, KaasError
from kaas.pool.executors.executors import Executors
from kaas.pool.executors.residents import Residents
from kaas.pool.loop import PoolLoop
from kaas.pool.on_processes.hosts import ProcessHosts
from kaas.pool.on_processes.names import PoolName, PoolNotice
from kaas.pool.on_processes.objects import HeldObjects
from kaas.pool.service import Service
from kaas.store import Store, opened
from kaas.wire.connections.router import Router
from kaas.wire.messages import PeerHello
from kaas.worker.process_orders import PoolOrders
from kaas.worker.processes import on_end, open_all_files, ordered, report_failure, report_ready
from kaas.worker.sandbox import Sandbox, available

NODE = "here"
"""The one node of a pool without Ray."""
LEAVE_S = 10.0
"""After the end of its program, a pool has this much time to answer all calls and to stop."""
COUNT_GPUS = "from kaas.executor.device.device import gpu_count; print(gpu_count())"


class Machine:
    """A backend of a pool: this machine."""

    node = NODE
    host = None
    again = False
    objects: HeldObjects

    def __init__(self, config: Config, sandbox: Sandbox | None = None) -> None:
        self._walls = config.isolation == "process"
        self.hosts = ProcessHosts(config, NODE, sandbox)
        self.service: Service | None = None
        self._watched: set[str] = set()

    def workers(self, router: Router, residents: Residents) -> tuple[Executors, Executors]:
        """Return the executors, which are all workers here."""
        self.objects = HeldObjects(router.inbox, self.hosts.expect)
        executors = Executors(router, self.hosts, residents, walls=self._walls)
        return executors, executors

    def came(self, hello: PeerHello) -> None:
        """Watch a program's process.

        Raises:
            KaasError: the process cannot be watched.
        """
        if not hello.pid:
            raise KaasError(
                "this process cannot be watched: the pool does not see into its PID namespace. Start the pool in the "
                "same one, or outside of it"
            )
        if self.hosts.worker_of(hello.pid) >= 0:
            raise KaasError(f"process {hello.pid} runs kernels for the pool: it is no program")
        if hello.name not in self._watched:
            on_end(asyncio.get_running_loop(), hello.pid, lambda: self._left(hello.name))
            self._watched.add(hello.name)

    def _left(self, session: str) -> None:
        self._watched.discard(session)
        if self.service is not None:
            self.service.session_ended(session)


async def run(orders: PoolOrders, says: int) -> None:
    """Run a pool from its start to its end.

    Raises:
        KaasError: the pool cannot be opened; it has not announced itself.
    """
    loop = asyncio.get_running_loop()
    config = orders.config or Config()
    config = config.resolved(0 if config.devices else count_gpus())
    place = PoolName(orders.name)
    machine = Machine(config, Sandbox() if config.isolation == "process" and available() else None)
    service = machine.service = await Service.open(orders.name, config, machine, opened_store(config.store))
    notice = place.announce(PoolNotice(service.address, NODE, config.described()))
    loop.add_signal_handler(signal.SIGTERM, service.begin_to_stop)
    report_ready(says, b"")
    await service.stopped.wait()
    place.withdraw(notice)
    machine.hosts.kill_all()
    await service.program_sessions.all_replied()
    service.close()
    machine.objects.close()


def opened_store(wanted: str | Store | None) -> Store:
    """Return the store of `Config.store` without Ray.

    Such a pool does not start again, so its own data need not outlive it.

    Raises:
        InvalidConfig: the store cannot be opened.
    """
    return opened(wanted or ":memory:")


def count_gpus() -> int:
    """Return the number of GPUs. Another process counts them, since a driver cannot be unloaded."""
    counted = subprocess.run([sys.executable, "-P", "-c", COUNT_GPUS], capture_output=True, text=True, check=False)
    return int(counted.stdout) if not counted.returncode else 0


def _orders() -> PoolOrders:
    """Return the orders of the program that starts this pool.

    Raises:
        InvalidConfig: this process cannot import a module of the configuration.
    """
    try:
        orders: PoolOrders = ordered(sys.stdin.buffer, _leave)
    except (AttributeError, ImportError) as error:
        reason = f"the pool's process cannot import the policy: {error}; it takes classes of modules, not of the script"
        raise InvalidConfig(reason, field="policy") from error
    return orders


def _leave() -> None:
    """End the pool as in a shut-down, or else by force: the program that started it has ended."""
    os.kill(os.getpid(), signal.SIGTERM)
    sleep(LEAVE_S)
    os._exit(0)


def main() -> None:
    """Run the pool that the orders on the standard input describe."""
    says = int(sys.argv[1])
    open_all_files()
    try:
        with asyncio.Runner(loop_factory=PoolLoop) as runner:
            runner.run(run(_orders(), says))
    except KaasError as error:
        report_failure(says, error)
    os._exit(0)  # without waiting for threads


if __name__ == "__main__":
    main()

"""The process of one executor, without Ray: `python -m kaas.worker.executor_process`, started by the pool's process.

A sandbox holds for the thread that enters it and for threads that this one starts later. So a module that starts
threads on import, such as NumPy, is imported once the process is in its sandbox.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from functools import partial

from kaas.errors import KaasError
from kaas.worker.process_orders import ExecutorOrders
from kaas.worker.processes import end_group, ordered, report_failure, report_ready


def main() -> None:
    word_file = int(sys.argv[1])
    try:
        lacks: list[str] = []
        orders: ExecutorOrders = ordered(sys.stdin.buffer, end_group, partial(_enter_sandbox, lacks))
        from kaas.wire.status import status_codec
        from kaas.worker.executor_worker import ExecutorWorker

        worker = ExecutorWorker(
            orders.device, orders.options, orders.name, orders.node, connection_lost=end_group, walls=orders.walls
        )
        info = worker.start(orders.address)
    except KaasError as error:
        report_failure(word_file, error)
        return
    report_ready(
        word_file, status_codec.encode(replace(info, sandboxed=orders.sandbox is not None, lacks=tuple(lacks)))
    )
    threading.Event().wait()  # other threads do the work; the process ends with its parent


def _enter_sandbox(lacks: list[str], orders: ExecutorOrders) -> None:
    """Enter the sandbox that the orders name, and add what Linux lacks for it.

    Raises:
        DeviceUnavailable: there is no driver for a software device.
    """
    if orders.sandbox is None:
        return
    if orders.device.kind == "software":
        from kaas.executor.device import software

        software.prepare()
    lacks += orders.sandbox.enter()


if __name__ == "__main__":
    main()

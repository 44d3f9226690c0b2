"""The process of one executor, without Ray: `python -m kaas.pool.executor_process`, started by the pool's."""

from __future__ import annotations

import sys
import threading

from kaas.errors import KaasError
from kaas.pool import status_codec
from kaas.pool.executor_worker import ExecutorWorker
from kaas.pool.process_orders import ExecutorOrders
from kaas.pool.processes import end_group, ordered, say_failed, say_ready


def main() -> None:
    says = int(sys.argv[1])
    orders: ExecutorOrders = ordered(sys.stdin.buffer, end_group)
    worker = ExecutorWorker(orders.device, orders.options, orders.name, orders.node, line_lost=end_group)
    try:
        info = worker.start(orders.address)
    except KaasError as error:
        say_failed(says, error)
        return
    say_ready(says, status_codec.encode(info))
    threading.Event().wait()  # its threads do the rest; it ends with its parent


if __name__ == "__main__":
    main()

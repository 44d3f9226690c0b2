"""The process that makes shared memory of a device: `python -m kaas.pool.on_processes.holder_process`, by the pool.

Executors with walls map this memory, and can only read it. The process runs no code of clients. It keeps nothing: the
memory lives as long as a process has its file.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence

import msgspec

from kaas.errors import KaasError
from kaas.wire.connections.shared_memory import Inbox, part
from kaas.wire.connections.stream import FILES_AT_MOST, close_all
from kaas.worker.process_orders import HolderOrders
from kaas.worker.processes import end_group, ordered, report_failure, report_ready

ORDER_BYTES = 64 << 10
"""Most bytes of an order: it goes through a socket whole."""
REPLY_BYTES = 1 << 10
DONE = b"+"
"""The reply to an order, with which a file comes. Any other reply is an error in words."""


class OrderedPart(msgspec.Struct, frozen=True, array_like=True):
    """A value of an order: a part of one of the files with it. at_bytes: its place in the memory."""

    file: int
    offset_bytes: int
    nbytes: int
    at_bytes: int


class HoldOrder(msgspec.Struct, frozen=True, array_like=True):
    """An order: memory of so many bytes, with these values."""

    whole_bytes: int
    parts: Sequence[OrderedPart]


encode_order = msgspec.msgpack.encode
_decode_order = msgspec.msgpack.Decoder(HoldOrder).decode


def main() -> None:
    word_file = int(sys.argv[1])
    orders: HolderOrders = ordered(sys.stdin.buffer, end_group)
    try:
        from kaas.executor.device import software
        from kaas.executor.device.device import open_device

        software.load(orders.device)
        device = open_device(orders.device.kind, memory_bytes=orders.device.memory_bytes, parts=orders.parts)
    except KaasError as error:
        report_failure(word_file, error)
        return
    info = device.info()
    report_ready(word_file, str(info.memory_bytes).encode())
    with device.context, socket.socket(fileno=orders.link) as link:
        while True:
            order, files, _, _ = socket.recv_fds(link, ORDER_BYTES, FILES_AT_MOST)
            if not order:
                return
            try:
                made = _made(_decode_order(order), files, device.ordinal, info.name)
            except Exception as error:  # noqa: BLE001 - any error is the reply: values can go another way
                link.sendall(f"{error or type(error).__name__}".encode()[:REPLY_BYTES])
            else:
                socket.send_fds(link, [DONE], [made])
                os.close(made)
            finally:
                close_all(files)


def _made(order: HoldOrder, files: Sequence[int], ordinal: int, device: str) -> int:
    """Make the memory of an order, and return its file.

    Raises:
        KaasError: the device has no room, say. OSError: a file cannot be read.
    """
    from kaas.executor.device.device_memory import sealed_file

    whole = [Inbox().map_file(file) for file in files]
    values = [(each.at_bytes, part(whole[each.file], each.offset_bytes, each.nbytes)) for each in order.parts]
    return sealed_file(values, order.whole_bytes, ordinal, device)


if __name__ == "__main__":
    main()

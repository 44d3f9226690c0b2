"""A server without Ray: pictures come over TCP, a kTask finds their edges, and one event loop awaits all of them.

    python examples/server.py

The pool is plain processes on this machine. A call is a future, and the event loop serves every visitor: while one
picture is on the device, other pictures come and go.
"""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import kaas

KERNELS = Path(__file__).parent / "kernels"
SIZE = 64
PICTURE_BYTES = SIZE * SIZE * 4

Picture = NDArray[np.float32]


def build(size: int = SIZE) -> kaas.KTask:
    """Return the kTask: input "image", output "edges"."""
    image, edges = (kaas.Buffer(name, (size, size), "float32") for name in ("image", "edges"))
    sobel = kaas.Kernel(
        kaas.Library.from_file(KERNELS / "sobel.ptx"),
        "sobel",
        grid=(math.ceil(size / 32), math.ceil(size / 8)),
        block=(32, 8),
        args=[kaas.In(image), kaas.Out(edges), kaas.u32(size), kaas.u32(size)],
    )
    return kaas.KTask([sobel], outputs=[edges], name="sobel")


async def serve(find_edges: kaas.Function) -> asyncio.Server:
    """Return a server that replies to every picture on every connection with its edges."""

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                picture = np.frombuffer(await reader.readexactly(PICTURE_BYTES), np.float32).reshape(SIZE, SIZE)
                edges: Picture = await find_edges.call(image=picture)
                writer.write(edges.tobytes())
                await writer.drain()
        except asyncio.IncompleteReadError:
            writer.close()  # the visitor has closed the connection

    return await asyncio.start_server(visit, "127.0.0.1", 0)


async def ask(port: int, pictures: list[Picture]) -> list[Picture]:
    """Send a visitor's pictures, and return their edges."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    replies: list[Picture] = []
    for picture in pictures:
        writer.write(picture.tobytes())
        data = await reader.readexactly(PICTURE_BYTES)
        replies.append(np.frombuffer(data, np.float32).reshape(SIZE, SIZE))
    writer.close()
    return replies


async def serve_visitors(visitors: int, pictures: int) -> int:
    """Return the number of correct replies: a square has edges at its border only."""
    server = await serve(kaas.register(build()))
    port: int = server.sockets[0].getsockname()[1]
    squares: list[list[Picture]] = []
    for visitor in range(visitors):
        squares.append([np.zeros((SIZE, SIZE), np.float32) for _ in range(pictures)])
        for square in squares[-1]:
            square[8 + visitor : 40, 8:40] = 1
    async with server:
        replies = await asyncio.gather(*(ask(port, each) for each in squares))
    for visitor, found in enumerate(replies):
        for edges in found:
            assert edges[8 + visitor, 20] > 0, "the upper border"
            assert edges[30, 20] == 0, "its inside"
    return sum(map(len, replies))


def main(visitors: int = 8, pictures: int = 10) -> None:
    print(f"{visitors} visitors at a time: {asyncio.run(serve_visitors(visitors, pictures))} pictures answered")


if __name__ == "__main__":
    started = kaas.init(ray=False)
    main()
    if started:
        kaas.shutdown()

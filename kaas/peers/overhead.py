"""The cost of a call: 4 KB go in, 4 KB come back, one request and 64 requests at a time.

KaaS runs a kernel on a software GPU; the peers return the array that they take, and so do no work at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from importlib import import_module
from queue import SimpleQueue
from statistics import median
from threading import Thread
from typing import Any

import numpy as np

from kaas.api import program
from kaas.api.function import call
from kaas.code.kernels import library
from kaas.config import Device
from kaas.futures import Future
from kaas.ktask.arguments import Buffer, In, Out, u32
from kaas.ktask.graph import KTask
from kaas.ktask.library import Kernel
from kaas.peers.serving import EchoApplication, free_port, quiet_ray, serving
from kaas.peers.systems import PeerSystem, part_of
from kaas.peers.turns import MeasuredSide, latencies_s, rates_per_s

ELEMENTS = 1024
DEVICE_BYTES = 256 << 20
OUTSTANDING = 64
PEERS = {
    **dict.fromkeys(("Ray actor", "Ray actor, bytes"), PeerSystem.ACTOR),
    "Ray compiled graph": PeerSystem.COMPILED,
    **dict.fromkeys(("Serve, handle", "Serve, HTTP", "Serve, gRPC"), PeerSystem.SERVE),
}
"""The systems of the sides that are not KaaS's."""


def subtraction() -> KTask:
    """Return the kTask of out = x - x, 4 KB each."""
    x, out = Buffer("x", ELEMENTS, "float32"), Buffer("out", ELEMENTS, "float32")
    args: list[Any] = [In(x), In(x), Out(out), u32(ELEMENTS)]
    return KTask([Kernel(library("nearest_neighbours"), "vsub", ELEMENTS // 256, 256, args)], [out])


def measure(peers: tuple[PeerSystem, ...], rounds: int, requests: int) -> dict[str, dict[str, float]]:
    """Return the median seconds of a call and the requests a second of each side.

    Args:
        peers: those that are installed.
        rounds: calls of each side, one at a time.
        requests: of each side, 64 at a time.

    Raises:
        PeerFailed
    """
    with sides(peers) as found:
        one = latencies_s({name: each.call for name, each in found.items()}, rounds, 50, PEERS)
        many = rates_per_s(found, requests, OUTSTANDING, 3, PEERS)
    return {name: {"call_s": median(one[name]), "rate_per_s": many[name]} for name in found}


@contextmanager
def sides(peers: tuple[PeerSystem, ...]) -> Iterator[Mapping[str, MeasuredSide]]:
    """Give the sides by name while a Ray runs with a pool, an actor and an application of Serve."""
    import ray

    task, x = subtraction(), np.zeros(ELEMENTS, np.float32)
    found: dict[str, MeasuredSide] = {}
    with ExitStack() as closing:
        closing.enter_context(quiet_ray())
        program.init(devices=[Device("software", DEVICE_BYTES)])
        closing.callback(program.shutdown)
        found["kaas.call"] = MeasuredSide(lambda: call(task, {"x": x}), Future.result)
        found["kaas.invoke"] = MeasuredSide(lambda: program.invoke(task, {"x": x}), ray.get)
        if PeerSystem.ACTOR in peers:
            actor: Any = ray.remote(num_cpus=0)(EchoActor).remote()
            data = x.tobytes()  # Ray moves bytes faster than an array, which its caller makes of them
            found["Ray actor"] = MeasuredSide(lambda: actor.run.remote(x), ray.get)
            found["Ray actor, bytes"] = MeasuredSide(lambda: actor.run.remote(data), ray.get)
        if PeerSystem.COMPILED in peers:
            with part_of(PeerSystem.COMPILED):
                found["Ray compiled graph"] = closing.enter_context(_compiled(x))
        if PeerSystem.SERVE in peers:
            port, grpc_port = free_port(), free_port()
            with part_of(PeerSystem.SERVE):
                (handle,) = closing.enter_context(serving(EchoApplication, port, grpc_port))
                found["Serve, handle"] = MeasuredSide(lambda: handle.echo.remote(x), lambda sent: sent.result())
                found["Serve, HTTP"] = closing.enter_context(_http(port, x.tobytes()))
                found["Serve, gRPC"] = closing.enter_context(_grpc(grpc_port, "x" * x.nbytes))
        yield found


class EchoActor:
    """An actor that returns its argument."""

    def run(self, data: Any) -> Any:
        """Return the argument."""
        return data


@contextmanager
def _compiled(x: Any) -> Iterator[MeasuredSide]:
    import ray
    from ray.dag import InputNode

    actor: Any = ray.remote(num_cpus=0)(EchoActor).remote()
    with InputNode() as given:
        graph = actor.run.bind(given)
    compiled = graph.experimental_compile(_max_inflight_executions=2 * OUTSTANDING)
    try:
        yield MeasuredSide(lambda: compiled.execute(x), ray.get)
    finally:
        with part_of(PeerSystem.COMPILED):
            compiled.teardown()


@contextmanager
def _http(port: int, body: bytes) -> Iterator[MeasuredSide]:
    """Give a client with a connection for each outstanding request, each kept open."""
    jobs, threads = SimpleQueue[SimpleQueue[bytes | Exception] | None](), []

    def work() -> None:
        connection = HTTPConnection("127.0.0.1", port)
        while (answer := jobs.get()) is not None:
            try:
                connection.request("POST", "/", body)
                answer.put(connection.getresponse().read())
            except (OSError, HTTPException) as error:  # for the caller, who waits
                connection.close()
                answer.put(error)
        connection.close()

    for _ in range(OUTSTANDING):
        threads.append(Thread(target=work, daemon=True))
        threads[-1].start()

    def send() -> SimpleQueue[bytes | Exception]:
        answer = SimpleQueue[bytes | Exception]()
        jobs.put(answer)
        return answer

    def result(answer: SimpleQueue[bytes | Exception]) -> bytes:
        if isinstance(got := answer.get(), Exception):
            raise got
        return got

    try:
        yield MeasuredSide(send, result)
    finally:
        for _ in threads:
            jobs.put(None)


@contextmanager
def _grpc(port: int, text: str) -> Iterator[MeasuredSide]:
    grpc: Any = import_module("grpc")
    messages: Any = import_module("ray.serve.generated.serve_pb2")
    services: Any = import_module("ray.serve.generated.serve_pb2_grpc")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = services.UserDefinedServiceStub(channel)
        message = messages.UserDefinedMessage(name=text)
        yield MeasuredSide(lambda: stub.__call__.future(message), lambda sent: sent.result())

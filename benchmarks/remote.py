"""The cost of a remote client's request: a warm kTask of one kernel through CURVE, over a bare Ray actor call.

    python -m benchmarks.remote [--json] [--rounds N] [--connections N]

4 KB go in and 4 KB come back: between a program and `kaas serve` on a software GPU, over TCP, and from an actor that
returns the same array; a second actor does so with bytes, which Ray moves faster. The kinds take turns of ten requests;
figures are medians. The rate is that of 64 outstanding requests, of which the server runs four at a time (`slots`). The
cost of an idle connection is the growth of the server's resident memory while many more connect, each with CURVE's
handshake and a Hello.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import zmq

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # Ray reads it when it is imported

import ray

import kaas
from benchmarks.path import RATE_REQUESTS, RATE_ROUNDS, WARM_UP, Calls
from benchmarks.report import parser, positive, report
from benchmarks.served import Server, resident_bytes
from kaas.peers.overhead import ELEMENTS, OUTSTANDING, EchoActor, subtraction
from kaas.peers.turns import MeasuredSide, latencies_s, rates_per_s
from kaas.wire import protocol
from kaas.wire.key_files import own_keys

CLIENT = "ada"
SLOTS = 4
"""Outstanding small requests keep the device busy only if the next one is there when one ends."""
CONNECTIONS, FIRST_CONNECTIONS = 500, 50
AT_ONCE = 50
"""The number of connections at a time: a server limits connections that have no key yet."""
PATIENCE_MS = 30_000


def main() -> None:
    options = parser(__doc__.partition("\n")[0] if __doc__ else "")
    options.add_argument("--rounds", type=positive, default=1000, help="requests of each kind, one at a time")
    options.add_argument("--rate-rounds", type=positive, default=RATE_ROUNDS, help="rounds of 1000 requests of a kind")
    options.add_argument("--connections", type=positive, default=CONNECTIONS, help="number of idle connections")
    chosen = options.parse_args()
    task, x = subtraction(), np.zeros(ELEMENTS, np.float32)
    raw = x.tobytes()
    ray.init("local", include_dashboard=False, log_to_driver=False)
    empty: Any = ray.remote(num_cpus=0)(EchoActor)
    target = empty.remote()
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), [CLIENT], slots=SLOTS) as server:
        idle_kb = idle_connection_kb(server, chosen.connections)
        with kaas.Client(server.address, keys=server.keys(CLIENT)) as client:
            function = client.register(task)
            one: Calls = {
                "actor": lambda: ray.get(target.run.remote(x)),
                "actor_of_bytes": lambda: ray.get(target.run.remote(raw)),
                "remote": lambda: client.call(function, {"x": x}).result(),
            }
            seconds = latencies_s(one, chosen.rounds, WARM_UP)
            sides = {
                "actor": MeasuredSide(lambda: target.run.remote(x), ray.get),
                "actor_of_bytes": MeasuredSide(lambda: target.run.remote(raw), ray.get),
                "remote": MeasuredSide(lambda: client.call(function, {"x": x}), kaas.Future.result),
            }
            per_s = rates_per_s(sides, RATE_REQUESTS, OUTSTANDING, chosen.rate_rounds)
            if (client.call(function, {"x": np.ones(ELEMENTS, np.float32)}).result() != 0).any():
                raise SystemExit("x - x is not 0: this measured something else")
    ray.shutdown()
    p50 = {name: float(np.median(values)) for name, values in seconds.items()}
    bars = {
        "remote_over_actor": (p50["remote"] / p50["actor"], "<=", 0.6),
        "remote_rate_over_actor": (per_s["remote"] / per_s["actor"], ">=", 1.2),
        "idle_connection_kb": (idle_kb, "<=", 100),
    }
    detail: dict[str, Any] = {f"{name}_p50_us": round(value * 1e6, 1) for name, value in p50.items()}
    detail |= {f"{name}_p99_us": round(float(np.quantile(values, 0.99)) * 1e6, 1) for name, values in seconds.items()}
    detail |= {f"{name}_per_s": round(value, 1) for name, value in per_s.items()}
    detail |= {"remote_over_actor_of_bytes": round(p50["remote"] / p50["actor_of_bytes"], 3)}
    detail |= {"remote_rate_over_actor_of_bytes": round(per_s["remote"] / per_s["actor_of_bytes"], 3)}
    report("remote", bars, detail | {"rounds": chosen.rounds, "connections": chosen.connections}, chosen.json)


def idle_connection_kb(server: Server, count: int) -> float:
    """Return the growth of the server's memory for each connection, after the first ones."""
    with connections(server, FIRST_CONNECTIONS):
        before = resident_bytes(server.pid)
        with connections(server, count):
            return (resident_bytes(server.pid) - before) / count / 1024


@contextmanager
def connections(server: Server, count: int) -> Iterator[None]:
    """Yield connections that have sent Hello and received Welcome."""
    keys = own_keys(server.keys(CLIENT))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.max_sockets = count + 10
    sockets: list[zmq.Socket[bytes]] = []
    try:
        while len(sockets) < count:
            some = [context.socket(zmq.DEALER) for _ in range(min(AT_ONCE, count - len(sockets)))]
            sockets += some
            for socket in some:
                socket.linger = 0
                socket.rcvtimeo = PATIENCE_MS
                socket.curve_serverkey = keys.server_key.encode()
                socket.curve_publickey = keys.public_key.encode()
                socket.curve_secretkey = keys.secret_key.encode()
                socket.connect(server.address)
                socket.send(protocol.encode(protocol.Hello(protocol.VERSION, token_hex(16))))
            welcome(some)
        yield
    finally:
        for socket in sockets:
            socket.close()
        context.term()


def welcome(sockets: Sequence[zmq.Socket[bytes]]) -> None:
    for socket in sockets:
        answer = protocol.decode_from_server(socket.recv())
        if not isinstance(answer, protocol.Welcome):
            raise SystemExit(f"{answer}: this measured something else")


if __name__ == "__main__":
    main()

"""The promise: while a client registers the largest allowed function, others get their replies; a server with such
functions starts without building them; and the build time of a client is limited and named."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

import kaas
from kaas.errors import QuotaExceeded
from kaas.wire import protocol
from kaas.wire.sent_ktasks import encode_task
from tests.server.servers import STEPS, WIDTH, Server, scaled
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

Serve = Callable[..., Server]

LARGE = 60_000
"""Kernels of a kTask that takes seconds to build."""
MANY = 1_000
"""Kernels of a kTask that is also built in the separate process, in a short time."""


def chain(kernels: int, factor: float = 2.0) -> kaas.KTask:
    """y = factor * x, so many times."""
    x, y = kaas.Buffer("x", WIDTH, "float32"), kaas.Buffer("y", WIDTH, "float32")
    kernel = kaas.Kernel(
        STEPS, "scale", WIDTH // 256, 256, [kaas.In(x), kaas.Out(y), kaas.f32(factor), kaas.u32(WIDTH)]
    )
    return kaas.KTask([kernel] * kernels, [y])


def client_of(server: Server, name: str) -> kaas.Client:
    return kaas.Client(server.endpoint, keys=server.folder / f"{name}.keys", patience_s=TIMEOUT_S)


def is_answered(client: kaas.Client, function: kaas.KTask | str, factor: float = 2.0) -> None:
    x = np.arange(WIDTH, dtype=np.float32)
    np.testing.assert_array_equal(client.call(function, {"x": x}).result(TIMEOUT_S), factor * x)


def of_many_buffers() -> bytes:
    """A kTask of one kernel, and of many buffers that no kernel reads."""
    content = msgspec.msgpack.decode(encode_task(scaled()))
    strange = [{"name": f"buffer {index}", "shape": [1], "dtype": "float32"} for index in range(LARGE)]
    return msgspec.msgpack.encode({**content, "buffers": content["buffers"] + strange})


def builders(server: Server) -> list[int]:
    """Return the processes that build. One that is starting has its parent's command line, and the parent waits."""
    return [pid for pid in server.children() if b"step_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.parametrize("what", [pytest.param("kernels", marks=pytest.mark.full), "buffers"])
def test_others_are_answered_while_the_largest_registration_is_built(serve: Serve, what: str) -> None:
    server = serve({"limits": {"quotas": {"task_kernels": LARGE}}})
    mallory = server.speaker("alice")
    mallory.register(scaled())  # its library is there
    task = encode_task(chain(LARGE)) if what == "kernels" else of_many_buffers()
    with client_of(server, "bob") as bob:
        is_answered(bob, scaled())
        mallory.send(protocol.Register(mallory.number(), "large"), task)
        while not (building := builders(server)):
            is_answered(bob, scaled())
            assert not mallory.socket.poll(0), "it is built where all are answered"
        for pid in building:
            os.kill(pid, signal.SIGSTOP)  # from here on it takes for ever
        bob.register(chain(8), name="small")
        for _ in range(20):
            is_answered(bob, scaled())
            is_answered(bob, "small")
        assert not mallory.socket.poll(0)
        for pid in building:
            os.kill(pid, signal.SIGCONT)
        answer, _ = mallory.receive()
        if what == "kernels":
            assert isinstance(answer, protocol.Registered), answer
            assert list(answer.inputs) == ["x"]
    mallory.close()


def test_a_large_function_is_there_again_after_a_restart(serve: Serve) -> None:
    first = serve()
    with client_of(first, "alice") as alice:
        function = alice.register(chain(MANY), name="chain")
        assert alice.register(chain(MANY), name="chain").keys == function.keys
        (listed,) = alice.functions()
        is_answered(alice, "chain")
    first.terminate()
    assert first.wait() == 0
    second = serve()
    with client_of(second, "alice") as alice:
        assert alice.functions() == [listed]
        is_answered(alice, "chain")


def test_how_much_a_client_has_built_is_limited_and_the_error_names_the_limit(serve: Serve) -> None:
    quotas = {"task_kernels": 600, "kernels": 700}
    server = serve({"limits": {"quotas": quotas}})
    with client_of(server, "alice") as mallory, client_of(server, "bob") as bob:
        with pytest.raises(QuotaExceeded, match="task_kernels of 600, and this kTask has 601") as raised:
            mallory.register(chain(601))
        assert (raised.value.quota, raised.value.limit) == ("task_kernels", 600)
        mallory.register(chain(500), name="one")
        with pytest.raises(QuotaExceeded, match="kernels of 700 and has 500") as raised:
            mallory.register(chain(201), name="two")
        assert (raised.value.quota, raised.value.limit, raised.value.used) == ("kernels", 700, 500)
        mallory.register(chain(600), name="one")  # instead of the other one
        mallory.unregister("one")
        mallory.register(chain(201), name="two")
        bob.register(chain(600), name="own")
        is_answered(bob, "own")


def test_time_that_building_takes_is_charged_to_its_client(serve: Serve) -> None:
    server = serve({"limits": {"quotas": {"build_s_per_minute": 1e-3}}})
    mallory = server.speaker("alice")
    mallory.register(chain(MANY), "first")
    answer, _ = mallory.reply_to(
        protocol.Failure, protocol.Register(mallory.number(), "second"), encode_task(chain(MANY, 3.0))
    )
    assert answer.error == "QuotaExceeded"
    assert answer.fields["quota"] == "build_s_per_minute"
    assert answer.fields["used"] >= answer.fields["limit"] == 1e-3
    assert answer.fields["retry_s"] > 0
    mallory.register(chain(MANY), "first")  # is there, and built no more
    mallory.close()
    with client_of(server, "alice") as alice, client_of(server, "bob") as bob:
        is_answered(alice, "first")
        is_answered(bob, scaled())


def test_a_server_is_secure_by_default(serve: Serve) -> None:
    server = serve()
    with client_of(server, "alice") as mallory:
        with pytest.raises(QuotaExceeded) as raised:
            mallory.register(chain(8193))
        assert raised.value.quota == "task_kernels"

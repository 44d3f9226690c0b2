"""kaas.Client and kaas.AsyncClient: each call runs once for their users, whatever happens to connections."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.client import remote_calls
from kaas.errors import (
    DeadlineExceeded,
    InvalidConfig,
    InvalidRequest,
    MissingProvider,
    QueueFull,
    RequestTooLarge,
    UnknownObject,
    WrongShape,
    WrongSize,
)
from kaas.wire import protocol
from kaas.wire.key_files import OwnKeys
from kaas.wire.rpc.credit import PART
from tests.client.client_setting import LIBRARY, ONES, TASK, WIDTH, client, server, small, wait_for_invokes
from tests.client.fake_server import LIMITS, FakeServer
from tests.timeouts import TIMEOUT_S

__all__ = ["client", "server"]


# --- calls


def test_a_call_returns_its_outputs(client: kaas.Client) -> None:
    x = ONES.copy()
    function = client.register(TASK)
    future = client.call(function, {"x": x})
    x[:] = 7
    assert (future.result(TIMEOUT_S) == 2).all()
    assert not future.result().flags.writeable
    assert (function.call(ONES).result(TIMEOUT_S) == 2).all()
    assert (function.call(x=x).result(TIMEOUT_S) == 14).all()
    assert (client.call(TASK, {"x": ONES}).result(TIMEOUT_S) == 2).all()


def test_an_input_of_another_shape_is_refused_here(client: kaas.Client) -> None:
    x, y = (kaas.Buffer(name, (2, 4), "float32") for name in "xy")
    task = kaas.KTask([kaas.Kernel(LIBRARY, "f", 1, 1, [kaas.In(x), kaas.Out(y)])], [y])
    function = client.register(task)
    turned = ONES.reshape(4, 2)
    for given in (turned, client.put("turned", turned)):
        with pytest.raises(WrongShape):
            function.call(given)
        assert (function.call(kaas.View(given)).result(TIMEOUT_S) == 2).all()
    with pytest.raises(WrongShape):
        client.register(task, constants={"x": turned})
    with pytest.raises(InvalidRequest, match="None was given"):
        function.call(None)


def test_inputs_are_checked_here(server: FakeServer, client: kaas.Client) -> None:
    function = client.register(TASK, name="f")
    for wrong in ({"x": ONES[:3]}, {"y": ONES}, {}):
        with pytest.raises(InvalidRequest):
            client.call(function, wrong)
    wrong_options: list[dict[str, Any]] = [
        {"deadline_s": -1},
        {"key": "k" * 65},
        {"key": "\ud800"},
        {"trace": 7},
        {"store": {"z": "there"}},
        {"store": {"y": 7}},
        {"store": ["y"]},
    ]
    for options in wrong_options:
        with pytest.raises(InvalidRequest):
            client.call("f", {"x": ONES}, **options)
    with pytest.raises(InvalidRequest):
        client.call(7, {})  # type: ignore[arg-type]
    assert not server.of(protocol.Invoke)


def test_names_and_values_of_objects_are_checked_here(server: FakeServer, client: kaas.Client) -> None:
    names: tuple[Any, ...] = ("", "\ud800", "\0", 7)
    for name in names:
        for use in (lambda name: client.put(name, ONES), client.get, client.delete):
            with pytest.raises(InvalidRequest):
                use(name)
    with pytest.raises(InvalidRequest):
        client.put("when", np.zeros(2, "datetime64[s]"))
    assert not server.of(protocol.Put)


def test_an_object_is_found_by_another_program(server: FakeServer, client: kaas.Client) -> None:
    client.put("there", ONES)
    with kaas.Client(server.address, patience_s=TIMEOUT_S) as other:
        assert (other.call(TASK, {"x": other.object("there")}).result(TIMEOUT_S) == 2).all()
        with pytest.raises(UnknownObject):
            other.object("nowhere")


def test_a_client_stays_in_its_process(client: kaas.Client) -> None:
    for each in (client, client.register(TASK)):
        with pytest.raises(InvalidRequest):
            pickle.dumps(each)


def test_objects_are_inputs_and_outputs(server: FakeServer, client: kaas.Client) -> None:
    values = np.arange(2 * WIDTH, dtype=np.float32)
    there = client.put("values", values)
    assert client.call(TASK, {"x": kaas.View(there, 4 * WIDTH)}).result(TIMEOUT_S)[0] == 2 * WIDTH
    with pytest.raises(WrongSize):
        client.call(TASK, {"x": there})
    stored = client.call(TASK, {"x": ONES}, store={"y": "twice"}).result(TIMEOUT_S)
    assert (stored.name, stored.shape, stored.dtype) == ("twice", (WIDTH,), "float32")
    assert (client.get(stored) == 2).all()
    assert {entry["name"] for entry in client.objects()} == {"values", "twice"}
    assert server.of(protocol.Invoke)[0].inputs["x"] == protocol.Input(object="values", offset=4 * WIDTH)


def test_an_error_is_of_its_class_with_its_fields(server: FakeServer, client: kaas.Client) -> None:
    server.failing = [
        protocol.Failure(0, "MissingProvider", "nobody", {"installed": ["a", "b"], "later": 1}),
        protocol.Failure(0, "OfTheFuture", "who knows"),
    ]
    with pytest.raises(MissingProvider) as raised:
        client.call(TASK, {"x": ONES}).result(TIMEOUT_S)
    assert raised.value.fields == {"installed": ("a", "b")}
    with pytest.raises(kaas.KaasError, match="OfTheFuture: who knows"):
        client.call(TASK, {"x": ONES}).result(TIMEOUT_S)


def test_a_call_is_retried_under_the_same_key_after_queue_full(server: FakeServer, client: kaas.Client) -> None:
    server.failing = [protocol.Failure(0, "QueueFull", "full", {"limit": 1}, 0.01) for _ in range(3)]
    assert (client.call(TASK, {"x": ONES}, key="mine").result(TIMEOUT_S) == 2).all()
    invokes = server.of(protocol.Invoke)
    assert {invoke.key for invoke in invokes} == {"mine"}
    assert len({invoke.number for invoke in invokes}) == 4


def test_a_call_is_not_retried_beyond_its_deadline(server: FakeServer, client: kaas.Client) -> None:
    server.failing = [protocol.Failure(0, "QueueFull", "full", {"limit": 1}, 60.0)]
    with pytest.raises(QueueFull) as raised:
        client.call(TASK, {"x": ONES}, deadline_s=5).result(TIMEOUT_S)
    assert raised.value.limit == 1


def awaited(future: kaas.Future) -> Any:
    async def patient() -> Any:
        return await asyncio.wait_for(future, TIMEOUT_S)

    return asyncio.run(patient())


def waited(future: kaas.Future) -> Any:
    assert wait([future], TIMEOUT_S).done
    return future.result(0)


@pytest.mark.parametrize("value_of", [kaas.Future.result, awaited, waited], ids=lambda way: str(way.__name__))
def test_a_call_to_a_silent_server_ends_at_its_deadline(
    value_of: Callable[[kaas.Future], Any], server: FakeServer, client: kaas.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_calls, "GRACE_S", 0.0)
    server.silent = True
    with pytest.raises(DeadlineExceeded) as raised:
        value_of(client.call(TASK, {"x": ONES}, deadline_s=0.05))
    assert raised.value.deadline_s == 0.05
    server.until(lambda: bool(server.of(protocol.Cancel)))


def test_a_cancelled_call_is_cancelled_at_the_server(server: FakeServer, client: kaas.Client) -> None:
    server.silent = True
    future = client.call(TASK, {"x": ONES})
    assert future.cancel()
    server.until(lambda: bool(server.of(protocol.Cancel)))
    assert server.of(protocol.Cancel)[0].number == server.of(protocol.Invoke)[0].number
    with pytest.raises(CancelledError):
        future.result(TIMEOUT_S)


def test_threads_share_a_client(server: FakeServer, client: kaas.Client) -> None:
    function = client.register(TASK)

    def ask(number: int) -> bool:
        return bool((client.call(function, {"x": ONES * number}).result(TIMEOUT_S) == 2 * number).all())

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(400)))
    assert len(server.of(protocol.Hello)) == 1


def test_no_more_is_open_than_may_be(server: FakeServer, client: kaas.Client) -> None:
    server.limits, server.silent = small(2), True
    futures = [client.call(TASK, {"x": ONES}) for _ in range(2)]
    third = ThreadPoolExecutor(1).submit(client.call, TASK, {"x": ONES})
    wait_for_invokes(server, 2)
    with pytest.raises(DeadlineExceeded):
        client.call(TASK, {"x": ONES}, deadline_s=0.05)
    assert len(server.of(protocol.Invoke)) == 2
    server.answer_all()
    assert (third.result(TIMEOUT_S).result(TIMEOUT_S) == 2).all()
    assert all((future.result(TIMEOUT_S) == 2).all() for future in futures)


def test_a_call_beyond_all_credit_is_refused(server: FakeServer, client: kaas.Client) -> None:
    server.limits = protocol.Limits(4, 8 * WIDTH - 1, LIMITS.frame_bytes)
    with pytest.raises(RequestTooLarge) as raised:
        client.call(TASK, {"x": ONES})
    assert (raised.value.needed_bytes, raised.value.capacity_bytes) == (8 * WIDTH, 8 * WIDTH - 1)


def test_an_input_that_no_message_carries_is_refused(server: FakeServer, client: kaas.Client) -> None:
    server.limits = protocol.Limits(1, LIMITS.credit_bytes, 4 * WIDTH - 1)
    for _ in range(2):  # a refused call takes no credit
        with pytest.raises(RequestTooLarge, match="put it there first"):
            client.call(TASK, {"x": ONES})


def test_answers_are_acknowledged_in_batches(server: FakeServer, client: kaas.Client) -> None:
    calls = 4 * LIMITS.requests
    for _ in range(calls):
        client.call(TASK, {"x": ONES}).result(TIMEOUT_S)
    numbers = {invoke.number for invoke in server.of(protocol.Invoke)}
    server.until(lambda: {n for message in server.of(protocol.Received) for n in message.numbers} == numbers)
    assert len(server.of(protocol.Received)) <= 2 * calls * PART // LIMITS.requests


def test_an_unexpected_reply_is_acknowledged(server: FakeServer, client: kaas.Client) -> None:
    client.call(TASK, {"x": ONES}).result(TIMEOUT_S)
    server.send(protocol.Result(12345, ("y",)))
    future = client.call(TASK, {"x": ONES})
    assert (future.result(TIMEOUT_S) == 2).all()
    server.until(lambda: any(12345 in message.numbers for message in server.of(protocol.Received)))


# --- needs of a client


@pytest.mark.processes
def test_a_client_is_light() -> None:
    program = (
        "import sys, kaas; kaas.Client; kaas.AsyncClient; print(*{n.partition('.')[0] for n in sys.modules});"
        "print('kaas.pool.service' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names, service = ended.stdout.splitlines()
    assert not set(names.split()) & {"cuda", "llvmlite", "ray", "rich", "typer"}
    assert service == "False"


@pytest.mark.parametrize(
    ("address", "field"), [("ipc:///somewhere", "address"), ("tcp://192.0.2.1:1", "keys"), (7, "address")]
)
def test_addresses_and_keys_that_make_no_sense(address: Any, field: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        kaas.Client(address)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"keys": 7}, "keys"),
        ({"keys": "/"}, ""),
        ({"keys": OwnKeys("ada", "k" * 40, "k" * 40, "k" * 40), "server_key": "k"}, "server_key"),
        ({"patience_s": -1}, "patience_s"),
        ({"patience_s": "long"}, "patience_s"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        kaas.Client("tcp://127.0.0.1:1", **options)
    assert raised.value.fields.get("field", "") == field

"""kaas.Client and kaas.AsyncClient: what they ask runs once to their users' eyes, whatever becomes of connections."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest

import kaas
from kaas import receiving
from kaas.errors import (
    DeadlineExceeded,
    InvalidConfig,
    InvalidRequest,
    MissingProvider,
    NotInitialized,
    QueueFull,
    RequestTooLarge,
    UnknownObject,
    Unreachable,
    WrongShape,
    WrongSize,
)
from kaas.remote import later, remote_calls, wire
from kaas.remote.credit import PART
from kaas.remote.keys import OwnKeys
from kaas.remote.open_calls import Call
from kaas.remote.remote_calls import RemoteCalls
from tests.patience import PATIENCE_S
from tests.remote.fake_server import LIMITS, FakeServer

WIDTH = 8
LIBRARY = kaas.Library.from_ptx(".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry f() { ret; }\n")
X, W, Y = (kaas.Buffer(name, WIDTH, "float32") for name in "xwy")
TASK = kaas.KTask([kaas.Kernel(LIBRARY, "f", 1, 1, [kaas.In(X), kaas.Out(Y)])], [Y])
WEIGHED = kaas.KTask([kaas.Kernel(LIBRARY, "f", 1, 1, [kaas.In(X), kaas.In(W), kaas.Out(Y)])], [Y])
ONES = np.ones(WIDTH, np.float32)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.close()


@pytest.fixture
def client(server: FakeServer) -> Iterator[kaas.Client]:
    with kaas.Client(server.address, patience_s=PATIENCE_S) as client:
        yield client


def asked(server: FakeServer, number: int) -> None:
    """So many Invokes have come."""
    server.until(lambda: len(server.of(wire.Invoke)) >= number)


# --- calls


def test_a_call_gives_what_comes_back(client: kaas.Client) -> None:
    x = ONES.copy()
    function = client.register(TASK)
    future = client.call(function, {"x": x})
    x[:] = 7
    assert (future.result(PATIENCE_S) == 2).all()
    assert not future.result().flags.writeable
    assert (function.call(ONES).result(PATIENCE_S) == 2).all()
    assert (function.call(x=x).result(PATIENCE_S) == 14).all()
    assert (client.call(TASK, {"x": ONES}).result(PATIENCE_S) == 2).all()


def test_an_input_of_another_shape_is_refused_here(client: kaas.Client) -> None:
    x, y = (kaas.Buffer(name, (2, 4), "float32") for name in "xy")
    task = kaas.KTask([kaas.Kernel(LIBRARY, "f", 1, 1, [kaas.In(x), kaas.Out(y)])], [y])
    function = client.register(task)
    turned = ONES.reshape(4, 2)
    for given in (turned, client.put("turned", turned)):
        with pytest.raises(WrongShape):
            function.call(given)
        assert (function.call(kaas.View(given)).result(PATIENCE_S) == 2).all()
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
    assert not server.of(wire.Invoke)


def test_names_and_values_of_objects_are_checked_here(server: FakeServer, client: kaas.Client) -> None:
    names: tuple[Any, ...] = ("", "\ud800", "\0", 7)
    for name in names:
        for use in (lambda name: client.put(name, ONES), client.get, client.delete):
            with pytest.raises(InvalidRequest):
                use(name)
    with pytest.raises(InvalidRequest):
        client.put("when", np.zeros(2, "datetime64[s]"))
    assert not server.of(wire.Put)


def test_an_object_is_found_by_another_program(server: FakeServer, client: kaas.Client) -> None:
    client.put("there", ONES)
    with kaas.Client(server.address, patience_s=PATIENCE_S) as other:
        assert (other.call(TASK, {"x": other.object("there")}).result(PATIENCE_S) == 2).all()
        with pytest.raises(UnknownObject):
            other.object("nowhere")


def test_a_client_stays_in_its_process(client: kaas.Client) -> None:
    for each in (client, client.register(TASK)):
        with pytest.raises(InvalidRequest):
            pickle.dumps(each)


def test_objects_are_inputs_and_outputs(server: FakeServer, client: kaas.Client) -> None:
    values = np.arange(2 * WIDTH, dtype=np.float32)
    there = client.put("values", values)
    assert client.call(TASK, {"x": kaas.View(there, 4 * WIDTH)}).result(PATIENCE_S)[0] == 2 * WIDTH
    with pytest.raises(WrongSize):
        client.call(TASK, {"x": there})
    stored = client.call(TASK, {"x": ONES}, store={"y": "twice"}).result(PATIENCE_S)
    assert (stored.name, stored.shape, stored.dtype) == ("twice", (WIDTH,), "float32")
    assert (client.get(stored) == 2).all()
    assert {entry["name"] for entry in client.objects()} == {"values", "twice"}
    assert server.of(wire.Invoke)[0].inputs["x"] == wire.Input(object="values", offset=4 * WIDTH)


def test_an_error_is_of_its_class_with_its_fields(server: FakeServer, client: kaas.Client) -> None:
    server.failing = [
        wire.Failure(0, "MissingProvider", "nobody", {"installed": ["a", "b"], "later": 1}),
        wire.Failure(0, "OfTheFuture", "who knows"),
    ]
    with pytest.raises(MissingProvider) as raised:
        client.call(TASK, {"x": ONES}).result(PATIENCE_S)
    assert raised.value.fields == {"installed": ("a", "b")}
    with pytest.raises(kaas.KaasError, match="OfTheFuture: who knows"):
        client.call(TASK, {"x": ONES}).result(PATIENCE_S)


def test_what_is_put_off_is_asked_again_as_the_same_request(server: FakeServer, client: kaas.Client) -> None:
    server.failing = [wire.Failure(0, "QueueFull", "full", {"limit": 1}, 0.01) for _ in range(3)]
    assert (client.call(TASK, {"x": ONES}, key="mine").result(PATIENCE_S) == 2).all()
    invokes = server.of(wire.Invoke)
    assert {invoke.key for invoke in invokes} == {"mine"}
    assert len({invoke.number for invoke in invokes}) == 4


def test_it_is_put_off_no_longer_than_its_deadline(server: FakeServer, client: kaas.Client) -> None:
    server.failing = [wire.Failure(0, "QueueFull", "full", {"limit": 1}, 60.0)]
    with pytest.raises(QueueFull) as raised:
        client.call(TASK, {"x": ONES}, deadline_s=5).result(PATIENCE_S)
    assert raised.value.limit == 1


def awaited(future: kaas.Future) -> Any:
    async def patient() -> Any:
        return await asyncio.wait_for(future, PATIENCE_S)

    return asyncio.run(patient())


def waited(future: kaas.Future) -> Any:
    assert wait([future], PATIENCE_S).done
    return future.result(0)


@pytest.mark.parametrize("value_of", [kaas.Future.result, awaited, waited], ids=lambda way: str(way.__name__))
def test_a_server_that_says_nothing_does_not_outlast_the_deadline(
    value_of: Callable[[kaas.Future], Any], server: FakeServer, client: kaas.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_calls, "GRACE_S", 0.0)
    server.silent = True
    with pytest.raises(DeadlineExceeded) as raised:
        value_of(client.call(TASK, {"x": ONES}, deadline_s=0.05))
    assert raised.value.deadline_s == 0.05
    server.until(lambda: bool(server.of(wire.Cancel)))


def test_a_cancelled_call_is_cancelled_there(server: FakeServer, client: kaas.Client) -> None:
    server.silent = True
    future = client.call(TASK, {"x": ONES})
    assert future.cancel()
    server.until(lambda: bool(server.of(wire.Cancel)))
    assert server.of(wire.Cancel)[0].number == server.of(wire.Invoke)[0].number
    with pytest.raises(CancelledError):
        future.result(PATIENCE_S)


def test_threads_share_a_client(server: FakeServer, client: kaas.Client) -> None:
    function = client.register(TASK)

    def ask(number: int) -> bool:
        return bool((client.call(function, {"x": ONES * number}).result(PATIENCE_S) == 2 * number).all())

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(400)))
    assert len(server.of(wire.Hello)) == 1


# --- credit


def small(requests: int) -> wire.Limits:
    return wire.Limits(requests, LIMITS.credit_bytes, LIMITS.frame_bytes)


def test_no_more_is_open_than_may_be(server: FakeServer, client: kaas.Client) -> None:
    server.limits, server.silent = small(2), True
    futures = [client.call(TASK, {"x": ONES}) for _ in range(2)]
    third = ThreadPoolExecutor(1).submit(client.call, TASK, {"x": ONES})
    asked(server, 2)
    with pytest.raises(DeadlineExceeded):
        client.call(TASK, {"x": ONES}, deadline_s=0.05)
    assert len(server.of(wire.Invoke)) == 2
    server.answer_all()
    assert (third.result(PATIENCE_S).result(PATIENCE_S) == 2).all()
    assert all((future.result(PATIENCE_S) == 2).all() for future in futures)


def test_what_could_never_be_open_is_refused(server: FakeServer, client: kaas.Client) -> None:
    server.limits = wire.Limits(4, 8 * WIDTH - 1, LIMITS.frame_bytes)
    with pytest.raises(RequestTooLarge) as raised:
        client.call(TASK, {"x": ONES})
    assert (raised.value.needed_bytes, raised.value.capacity_bytes) == (8 * WIDTH, 8 * WIDTH - 1)


def test_an_input_that_no_message_carries_is_refused(server: FakeServer, client: kaas.Client) -> None:
    server.limits = wire.Limits(1, LIMITS.credit_bytes, 4 * WIDTH - 1)
    for _ in range(2):  # and takes no credit
        with pytest.raises(RequestTooLarge, match="put it there first"):
            client.call(TASK, {"x": ONES})


def test_answers_are_acknowledged_in_batches(server: FakeServer, client: kaas.Client) -> None:
    calls = 4 * LIMITS.requests
    for _ in range(calls):
        client.call(TASK, {"x": ONES}).result(PATIENCE_S)
    numbers = {invoke.number for invoke in server.of(wire.Invoke)}
    server.until(lambda: {n for message in server.of(wire.Received) for n in message.numbers} == numbers)
    assert len(server.of(wire.Received)) <= 2 * calls * PART // LIMITS.requests


def test_an_answer_that_nobody_waits_for_is_acknowledged(server: FakeServer, client: kaas.Client) -> None:
    client.call(TASK, {"x": ONES}).result(PATIENCE_S)
    server.say(wire.Result(12345, ("y",)))
    future = client.call(TASK, {"x": ONES})
    assert (future.result(PATIENCE_S) == 2).all()
    server.until(lambda: any(12345 in message.numbers for message in server.of(wire.Received)))


# --- connections and lives


@pytest.mark.parametrize("life", ["first", "second"])
def test_what_has_no_answer_is_asked_again(server: FakeServer, client: kaas.Client, life: str) -> None:
    function = client.register(TASK)
    server.silent = True
    futures = [client.call(function, {"x": ONES * n}, deadline_s=60.0) for n in range(3)]
    asked(server, 3)
    server.silent = False
    server.again(life)
    assert [future.result(PATIENCE_S)[0] for future in futures] == [0, 2, 4]
    first, second = server.of(wire.Invoke)[:3], server.of(wire.Invoke)[3:]
    assert [(invoke.number, invoke.key) for invoke in first] == [(invoke.number, invoke.key) for invoke in second]
    assert all(0 < invoke.deadline_s < 60.0 for invoke in second)
    assert len({hello.session for hello in server.of(wire.Hello)}) == 1


def test_calls_wait_for_a_server_that_is_coming(server: FakeServer, client: kaas.Client) -> None:
    function = client.register(TASK)
    server.stop()
    futures = [client.call(function, {"x": ONES}) for _ in range(3)]
    server.start()
    assert all((future.result(PATIENCE_S) == 2).all() for future in futures)


def test_a_cancelled_call_is_not_asked_again(server: FakeServer, client: kaas.Client) -> None:
    function = client.register(TASK)
    server.silent = True
    future = client.call(function, {"x": ONES})
    asked(server, 1)
    server.stop()
    assert future.cancel()
    server.start()
    server.silent = False
    client.call(function, {"x": ONES}).result(PATIENCE_S)
    assert len(server.of(wire.Invoke)) == 2


def test_nothing_new_goes_to_a_server_that_ends(server: FakeServer, client: kaas.Client) -> None:
    function = client.register(TASK)
    server.silent = True
    before = client.call(function, {"x": ONES})
    asked(server, 1)
    server.say(wire.Goodbye("it ends"))
    assert client.status() == {"asked": "status"}  # Goodbye came before its answer
    after = client.call(function, {"x": 2 * ONES})
    server.answer_all()
    assert (before.result(PATIENCE_S) == 2).all()
    assert len(server.of(wire.Invoke)) == 1
    server.again("second")
    assert (after.result(PATIENCE_S) == 4).all()


def test_a_server_that_has_forgotten_the_session_is_greeted_again(server: FakeServer, client: kaas.Client) -> None:
    function = client.register(TASK)
    server.failing = [wire.Failure(0, "UnknownSession", "who is there?")]
    assert (client.call(function, {"x": ONES}).result(PATIENCE_S) == 2).all()
    assert len(server.of(wire.Hello)) == 2


def test_where_nobody_is_a_call_says_so(server: FakeServer) -> None:
    server.stop()
    with kaas.Client(server.address, patience_s=0.1) as client:
        with pytest.raises(Unreachable) as raised:
            client.register(TASK)
        assert raised.value.address == server.address
        server.start()
        function = client.register(TASK)
        server.stop()
        server.silent = True
        future = client.call(function, {"x": ONES})
        with pytest.raises(Unreachable):
            future.result(PATIENCE_S)


def test_a_deadline_ends_while_nobody_is_there(server: FakeServer, client: kaas.Client) -> None:
    function = client.register(TASK)
    server.stop()
    ended = threading.Event()
    future = client.call(function, {"x": ONES}, deadline_s=0.05)
    future.add_done_callback(lambda _: ended.set())  # nobody waits for it
    assert ended.wait(PATIENCE_S)
    assert isinstance(future.exception(), DeadlineExceeded)


def test_a_closed_client_ends_what_is_open(server: FakeServer) -> None:
    server.silent = True
    client = kaas.Client(server.address)
    future = client.call(TASK, {"x": ONES})
    asked(server, 1)
    client.close()
    client.close()
    with pytest.raises(NotInitialized):
        future.result(PATIENCE_S)
    with pytest.raises(NotInitialized):
        client.call(TASK, {"x": ONES})
    server.until(lambda: bool(server.of(wire.Cancel)))


def test_what_is_asked_while_a_client_closes_ends(client: kaas.Client) -> None:
    def make(number: int) -> wire.Ask:
        client.close()
        return wire.Ask(number, "status")

    question = client.calls.ask(make)
    assert isinstance(question.error, NotInitialized)


def test_who_has_no_credit_while_a_client_closes_waits_for_none(
    client: kaas.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = client.calls

    def no_credit(*_: Any, **__: Any) -> bool:
        client.close()
        return False

    monkeypatch.setattr(calls, "_entered", no_credit)
    with pytest.raises(NotInitialized):
        calls.submit(Call(calls, wire.Invoke(1, "f"), (), 10, tuple, "f"))


def test_a_forked_process_needs_a_client_of_its_own(client: kaas.Client) -> None:
    function = client.register(TASK)
    child = os.fork()
    if child == 0:
        try:
            client.call(function, {"x": ONES})
        except NotInitialized:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_process_may_close_what_is_not_its_own(server: FakeServer, client: kaas.Client) -> None:
    function = client.register(TASK)
    server.silent = True
    future = client.call(function, {"x": ONES})
    asked(server, 1)
    child = os.fork()
    if child == 0:
        client.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    server.answer_all()
    assert (future.result(PATIENCE_S) == 2).all()
    assert not server.of(wire.Cancel)


def assert_rid_of(calls: weakref.ref[RemoteCalls]) -> None:
    """Nobody has them any more, once threads that have nothing to do have ended: each may still begin the next."""
    for name in ("kaas-connection", "kaas-answers", "kaas-later"):
        for thread in threading.enumerate():
            if thread.name == name:
                thread.join(PATIENCE_S)
    gc.collect()
    assert calls() is None


def test_a_client_that_is_forgotten_is_closed(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (receiving, later):
        monkeypatch.setattr(module, "LINGER_S", 0.01)

    def used() -> weakref.ref[RemoteCalls]:
        client, done = kaas.Client(server.address), threading.Event()
        client.call(TASK, {"x": ONES}).add_done_callback(lambda _: done.set())
        assert done.wait(PATIENCE_S)
        return weakref.ref(client.calls)

    assert_rid_of(used())


def test_whose_cancellation_is_interrupted_is_watched_until_its_answer_comes(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (receiving, later):
        monkeypatch.setattr(module, "LINGER_S", 0.01)

    def interrupt(_: kaas.Future) -> None:
        raise KeyboardInterrupt

    def used() -> weakref.ref[RemoteCalls]:
        client = kaas.Client(server.address)
        server.silent = True
        future = client.call(TASK, {"x": ONES})
        future.add_done_callback(interrupt)
        with pytest.raises(KeyboardInterrupt):
            future.cancel()
        asked(server, 1)
        server.answer_all()
        return weakref.ref(client.calls)

    assert_rid_of(used())


# --- registering and values


def test_only_what_the_server_lacks_is_sent(server: FakeServer, client: kaas.Client) -> None:
    told: list[tuple[int, int]] = []
    weights = np.arange(WIDTH, dtype=np.float32)
    client.register(WEIGHED, {"w": weights}, progress=lambda *there: told.append(there))
    assert told[-1] == (told[-1][1],) * 2
    chunks, puts = len(server.of(wire.Chunk)), len(server.of(wire.Put))
    assert (chunks, puts) == (1, 1)
    function = client.register(WEIGHED, {"w": weights})
    assert (len(server.of(wire.Chunk)), len(server.of(wire.Put))) == (chunks, puts)
    assert (function.call(ONES).result(PATIENCE_S) == 2).all()
    other = client.put("other", weights)
    client.register(WEIGHED, {"w": other})
    assert server.of(wire.Register)[-1].constants == {"w": "other"}
    with pytest.raises(InvalidRequest):
        client.register(WEIGHED, {"w": ONES[:3]})


def test_a_signed_task_goes_with_its_signature(server: FakeServer) -> None:
    with kaas.Client(server.address, signatures={TASK.key: b"signed"}) as client:
        client.register(TASK)
    assert [register.signature for register in server.of(wire.Register)] == [b"signed"]


def test_a_value_that_is_replaced_while_it_is_read_is_not_mixed(server: FakeServer, client: kaas.Client) -> None:
    before, after = (np.full(4 * wire.CHUNK_BYTES // 8, number, np.float64) for number in (1, 2))
    client.put("values", before)
    server.putting = [after.tobytes()]
    assert (client.get("values") == after).all()


def test_an_upload_goes_on_where_it_broke_off(server: FakeServer, client: kaas.Client) -> None:
    values = np.random.default_rng(0).random(6 * wire.CHUNK_BYTES // 8)
    server.breaks_after = 3 * wire.CHUNK_BYTES
    told: list[int] = []
    client.put("values", values, progress=lambda there, _: told.append(there))
    assert len(server.of(wire.Upload)) == 2
    assert told[-1] == values.nbytes
    assert (client.get("values") == values).all()
    offsets = [chunk.offset for chunk in server.of(wire.Chunk)]
    assert offsets.count(0) == offsets.count(wire.CHUNK_BYTES) == 1


def test_a_model_is_called_by_the_shapes_of_its_inputs(server: FakeServer, client: kaas.Client) -> None:
    def variant(rows: int) -> kaas.Variant:
        x, y = kaas.Buffer("x", (rows, WIDTH), "float32"), kaas.Buffer("y", (rows, WIDTH), "float32")
        task = kaas.KTask([kaas.Kernel(LIBRARY, "f", 1, 1, [kaas.In(x), kaas.In(W), kaas.Out(y)])], [y])
        return kaas.Variant(task, (x, kaas.Buffer("unread", rows, "float32")))

    model = kaas.CompiledModel("m", [variant(1), variant(2)], {"w": ONES})
    function = client.register(model)
    assert len(server.of(wire.Put)) == 1
    for rows in (1, 2):
        inputs = {"x": np.ones((rows, WIDTH), np.float32), "unread": np.ones(rows, np.float32)}
        assert client.call(function, inputs).result(PATIENCE_S).shape == (rows, WIDTH)
    assert {invoke.function for invoke in server.of(wire.Invoke)} == set(function.keys)
    there = client.put("there", np.ones((2, WIDTH), np.float32))
    assert function.variant(x=(2, WIDTH)).call(there, np.ones(2, np.float32)).result(PATIENCE_S).shape == (2, WIDTH)
    with pytest.raises(InvalidRequest, match="by name"):
        client.call(function, [there])  # type: ignore[arg-type]


# --- asyncio


def test_calls_are_awaited(server: FakeServer) -> None:
    server.limits = small(4)

    async def main() -> None:
        async with kaas.AsyncClient(server.address, patience_s=PATIENCE_S) as client:
            function = await client.register(TASK)
            values = await asyncio.gather(*(client.call(function, {"x": ONES * n}) for n in range(64)))
            assert [value[0] for value in values] == [2 * n for n in range(64)]
            assert (await function.call(ONES) == 2).all()
            there = await client.put("there", ONES)
            assert (await client.call(TASK, {"x": there}) == 2).all()
            assert (await client.get("there") == 1).all()
            assert await client.health() == {"asked": "health"}

    asyncio.run(main())


def test_who_is_cancelled_takes_no_credit(server: FakeServer) -> None:
    server.limits, server.silent = small(1), True

    async def main() -> None:
        async with kaas.AsyncClient(server.address, patience_s=PATIENCE_S) as client:
            function = await client.register(TASK)
            first = asyncio.create_task(client.call(function, {"x": ONES}))
            await asyncio.to_thread(asked, server, 1)
            waits = asyncio.create_task(client.call(function, {"x": ONES}))
            with pytest.raises(DeadlineExceeded):
                await client.call(function, {"x": ONES}, deadline_s=0.05)
            for task in (waits, first):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            server.silent = False
            assert (await client.call(function, {"x": ONES}) == 2).all()

    asyncio.run(main())


def test_an_event_loop_never_waits_for_credit(server: FakeServer) -> None:
    server.limits, server.silent = small(1), True

    async def main() -> None:
        with kaas.Client(server.address, patience_s=PATIENCE_S) as client:
            function = await asyncio.to_thread(client.register, TASK)
            first = client.call(function, {"x": ONES})
            late = client.call(function, {"x": ONES}, deadline_s=0.05)
            with pytest.raises(DeadlineExceeded):
                await late
            waits = client.call(function, {"x": ONES})
            waits.cancel()
            first.cancel()
            server.silent = False
            many = [client.call(function, {"x": ONES * n}) for n in range(300)]
            for n, future in enumerate(many):
                assert (await future)[0] == 2 * n

    asyncio.run(main())


# --- what it needs


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

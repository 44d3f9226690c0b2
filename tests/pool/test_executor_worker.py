"""An executor's worker on a software device, at the end of a real line; the test is its pool."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import Queue
from typing import Any, TypeVar

import numpy as np
import pytest

from kaas.config import Device
from kaas.error_codec import decode_error, encode_error
from kaas.errors import DeviceLost, InputFailed, KaasError, ProviderFailed
from kaas.executor.device import open_device
from kaas.executor.executor import Executor, Result, RunStats
from kaas.pool import executor_worker, messages, wire
from kaas.pool.blocks import Outbox, open_file
from kaas.pool.exchange import Exchange, Peer
from kaas.pool.executor_worker import ExecutorWorker
from kaas.pool.loop import PoolLoop
from kaas.pool.lost import InputLost, Lost
from kaas.pool.messages import Done, Filed, Framed, FromPeer, Hello, Named, Need, Orphaned, ToPeer, Written
from kaas.pool.packing import Caller, Signature, constant_key, pack
from tests.api.conftest import add_task, both_task, crash_task, numbers, scale_task
from tests.patience import PATIENCE_S

CACHE_BYTES = 16 << 20
DEVICE = Device("software", CACHE_BYTES)

T = TypeVar("T")


class Pool:
    """One life of a pool: an exchange on a loop in a thread, and what the worker says to it."""

    def __init__(self) -> None:
        self.heard: Queue[tuple[FromPeer, Sequence[Any]]] = Queue()
        self.peers: list[Peer] = []
        self.came = threading.Event()
        self._last = 0
        self._loop = PoolLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._exchange = Exchange(self._loop, "here")
        self._on_loop(lambda: self._exchange.open(lambda _, *said: self.heard.put(said), self._greet))
        self.address = self._exchange.address

    def _greet(self, peer: Peer, hello: Hello) -> None:
        assert (hello.role, hello.name) == ("executor", "3")
        self.peers.append(peer)
        self.came.set()

    def _on_loop(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(PATIENCE_S)

    def tell(self, header: ToPeer, *frames: Any, files: Sequence[int] = ()) -> None:
        self._on_loop(lambda: self._exchange.send(self.peers[-1], header, frames, files))

    def number(self) -> int:
        self._last += 1
        return self._last

    def meet(self, signature: Signature) -> None:
        self.tell(messages.Meet(), wire.encode(signature.spec), signature.task.to_msgpack())

    def run(
        self,
        message: bytes,
        beside: Sequence[messages.Attached] = (),
        *frames: Any,
        files: Sequence[int] = (),
        **options: Any,
    ) -> int:
        number = self.number()
        header = messages.Run(number, options.pop("slot", 0), beside=beside, **options)
        self.tell(header, message, *frames, files=files)
        return number

    def next(self) -> tuple[FromPeer, Sequence[Any]]:
        return self.heard.get(timeout=PATIENCE_S)

    def done(self, number: int) -> tuple[Done, Sequence[Any]]:
        header, frames = self.next()
        assert isinstance(header, Done)
        assert header.number == number
        return header, frames

    def error(self, number: int) -> KaasError:
        header, (error,) = self.done(number)
        assert header.failed
        return decode_error(error)

    def outputs(self, number: int) -> list[np.ndarray[Any, Any]]:
        header, frames = self.done(number)
        assert not header.failed, decode_error(frames[0])
        return [np.frombuffer(frame, np.float32) for frame in frames]

    def end(self) -> None:
        self._on_loop(self._exchange.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


class Ref:
    """A reference to an object in a store that is this process."""

    def __init__(self, key: bytes, value: Any) -> None:
        self.key = key
        self.value = value

    def binary(self) -> bytes:
        return self.key


class Values:
    """How a worker gets objects: those of references, once they may be had."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.asked = threading.Semaphore(0)

    def __call__(self, value: Any, made: Mapping[bytes, Any]) -> Any:
        if not isinstance(value, Ref):
            return value
        self.asked.release()
        assert self.open.wait(PATIENCE_S)
        if isinstance(value.value, InputLost):
            if value.value.key not in made:
                raise value.value
            return made[value.value.key]
        if isinstance(value.value, Exception):
            raise value.value
        return value.value


class Setting:
    """A worker with the pool that it serves."""

    def __init__(self, slots: int = 1) -> None:
        self.values = Values()
        self.left = threading.Event()
        self.told: dict[str, tuple[bytes, bytes]] = {}
        self.worker = ExecutorWorker(
            DEVICE,
            {"slots": slots},
            "3",
            "here",
            get=self.values,
            introduce=self.told.__getitem__,
            line_lost=self.left.set,
        )
        self.executor = Executor(
            open_device("software", 1),
            slots=slots,
            cache_bytes=CACHE_BYTES,
            host_cache_bytes=0,
            on_write_back=self.worker.written,
        )
        self.pool = Pool()
        self.worker.serve(self.executor, self.pool.address)

    def close(self) -> None:
        self.values.open.set()
        self.pool.end()
        assert self.left.wait(PATIENCE_S)
        self.executor.close()


@pytest.fixture
def setting(softgpu: tuple[int, ...]) -> Iterator[Setting]:  # noqa: ARG001 - its devices are in this process
    made = Setting()
    yield made
    made.close()


class NoStore:
    def is_ref(self, value: Any) -> bool:
        return isinstance(value, Ref)

    def put(self, value: Any) -> Ref:
        return Ref(b"unnamed" + bytes(21), value)

    def set_aside(self, data: Any) -> Ref:
        return self.put(np.frombuffer(data, np.uint8))

    def put_all(self, values: Sequence[Any]) -> Ref:
        return self.put(tuple(values))

    def complete(self, refs: Sequence[Any]) -> bool:  # noqa: ARG002 - as a Store's
        return True


SCALE, ADD = Signature.of(scale_task()), Signature.of(add_task())


def packed(
    signature: Signature, inputs: Mapping[str, Any], scalars: Mapping[str, Any] | None = None, **options: Any
) -> tuple[bytes, list[Named], list[Any]]:
    """An invocation, what it names, and the references."""
    constants = options.pop("constants", None)
    message, refs = pack(signature, inputs, scalars, Caller("alice", **options), NoStore(), constants)
    return message, [Named(ref.binary()) for ref in refs], refs


def named(number: int, value: Any) -> Ref:
    return Ref(number.to_bytes(28, "big"), value)


# --- values


def test_small_values_come_and_go_in_frames(setting: Setting) -> None:
    pool, x = setting.pool, numbers()
    pool.meet(SCALE)
    for factor in (2.0, 3.0):
        message, _, _ = packed(SCALE, {"x": x}, {"factor": factor})
        header, (y,) = pool.done(pool.run(message))
        np.testing.assert_array_equal(np.frombuffer(y, np.float32), x * np.float32(factor))
        assert header.lost == ""
        assert header.record is not None
        assert header.record.stages["total"] > 0


def test_several_outputs_come_in_declared_order(setting: Setting) -> None:
    pool, x, both = setting.pool, numbers(), Signature.of(both_task())
    pool.meet(both)
    quadruple, double = pool.outputs(pool.run(packed(both, {"x": x})[0]))
    np.testing.assert_array_equal(quadruple, x + x + x + x)
    np.testing.assert_array_equal(double, x + x)


def test_large_values_come_in_frames_or_shared_memory(setting: Setting) -> None:
    n = wire.INLINE_INPUT_BYTES // 4
    pool, a, b, large = setting.pool, numbers(n), numbers(n, 1), Signature.of(add_task(n))
    pool.meet(large)
    message, _, refs = packed(large, {"a": a, "b": b})
    assert len(refs) == 1
    lease = Outbox().put(b)
    (c,) = pool.outputs(pool.run(message, [Framed(2)], b))
    np.testing.assert_array_equal(c, a + b)
    for _ in range(2):  # the second time it is mapped already
        (c,) = pool.outputs(pool.run(message, [Filed(0, 0, b.nbytes)], files=[open_file(lease.block)]))
        np.testing.assert_array_equal(c, a + b)
    lease.release()


def test_a_value_beyond_the_end_of_its_memory(setting: Setting) -> None:
    n = wire.INLINE_INPUT_BYTES // 4
    large = Signature.of(add_task(n))
    setting.pool.meet(large)
    message, _, _ = packed(large, {"a": numbers(n), "b": numbers(n)})
    lease = Outbox().put(numbers(n))
    error = setting.pool.error(setting.pool.run(message, [Filed(0, 4 * n, 4 * n)], files=[open_file(lease.block)]))
    assert isinstance(error, InputFailed)
    assert error.buffer == "b"
    assert error.task == large.task.label


# --- objects


def test_objects_are_asked_for_once_in_a_request_and_then_named(setting: Setting) -> None:
    pool, a, b = setting.pool, named(1, numbers()), named(2, numbers(seed=1))
    pool.meet(ADD)
    message, beside, refs = packed(ADD, {"a": a, "b": b})
    number = pool.run(message, beside)
    assert pool.next() == (Need(number), [])
    setting.worker.supply(pool.address.life, number, refs)
    np.testing.assert_array_equal(pool.outputs(number)[0], a.value + b.value)
    np.testing.assert_array_equal(pool.outputs(pool.run(message, beside))[0], a.value + b.value)
    assert setting.executor.cached() == {a.key, b.key}


def test_objects_come_over_the_line(setting: Setting) -> None:
    weights, x = numbers(seed=1), numbers()
    pool, constants = setting.pool, named(1, (weights,))
    bound = Signature.of(add_task(), [wire.Binding("b", 0)])
    pool.meet(bound)
    message, beside, _ = packed(bound, {"a": named(2, x)}, constants=constants)
    number = pool.run(message, beside)
    assert pool.next() == (Need(number), [])
    lease = Outbox().put(weights)
    supply = messages.Supply(number, [[Framed(1)], [Filed(0, 0, weights.nbytes)]])
    pool.tell(supply, x, files=[open_file(lease.block)])
    np.testing.assert_array_equal(pool.outputs(number)[0], x + weights)
    assert setting.executor.cached() == {named(2, x).key, constant_key(constants, 0)}
    lease.release()


def test_objects_that_cannot_be_had(setting: Setting) -> None:
    pool, x = setting.pool, named(1, ValueError("its task failed"))
    pool.meet(SCALE)
    message, beside, refs = packed(SCALE, {"x": x}, {"factor": 2.0})
    number = pool.run(message, beside)
    pool.next()
    setting.worker.supply(pool.address.life, number, refs)
    error = pool.error(number)
    assert isinstance(error, InputFailed)
    assert isinstance(error.__cause__, ValueError)
    number = pool.run(message, beside)
    pool.next()
    pool.tell(messages.Supply(number, error=True), encode_error(KaasError("nobody holds it")))
    error = pool.error(number)
    assert isinstance(error, InputFailed)
    assert "nobody holds it" in error.reason


def test_a_lost_input_is_made_anew(setting: Setting) -> None:
    pool, x = setting.pool, named(1, numbers())
    message, _, refs = packed(SCALE, {"x": x}, {"factor": 2.0})
    setting.told[SCALE.key] = wire.encode(SCALE.spec), SCALE.task.to_msgpack()
    lost = named(2, InputLost(b"kept", Lost(message, refs, 0, 1)))
    pool.meet(ADD)
    message, beside, refs = packed(ADD, {"a": lost, "b": lost})
    number = pool.run(message, beside)
    assert pool.next() == (Need(number), [])
    setting.worker.supply(pool.address.life, number, refs)
    np.testing.assert_array_equal(pool.outputs(number)[0], x.value * 4)


# --- outputs that do not come in frames


def test_large_outputs_wait_as_a_parcel(setting: Setting) -> None:
    pool, x, both = setting.pool, numbers(), Signature.of(both_task())
    pool.meet(both)
    header, frames = pool.done(pool.run(packed(both, {"x": x})[0], parcel=True))
    assert header.parcel is not None
    assert list(frames) == []
    quadruple, double = setting.worker.collect(pool.address.life, header.parcel)
    np.testing.assert_array_equal(quadruple, double + double)
    with pytest.raises(KeyError):
        setting.worker.collect(pool.address.life, header.parcel)


def test_kept_outputs_stay_until_they_are_written_back(setting: Setting) -> None:
    pool, x, both = setting.pool, numbers(), Signature.of(both_task())
    pool.meet(both)
    message, _, _ = packed(both, {"x": x}, keep=("double",))
    header, _ = pool.done(pool.run(message, keep=[b"kept"], parcel=True))
    assert header.parcel is not None
    assert len(setting.worker.collect(pool.address.life, header.parcel)) == 1
    pool.tell(messages.WriteBack(9, [b"kept"]))
    written, _ = pool.next()
    assert isinstance(written, Written)
    assert written.key == b"kept"
    pool.done(9)
    np.testing.assert_array_equal(setting.worker.collect(pool.address.life, written.parcel)[0], x + x)


def test_kept_outputs_may_come_too(setting: Setting) -> None:
    pool, x = setting.pool, numbers()
    pool.meet(SCALE)
    message, _, _ = packed(SCALE, {"x": x}, {"factor": 2.0}, keep=True)
    np.testing.assert_array_equal(pool.outputs(pool.run(message, keep=[b"kept"]))[0], x * 2)
    pool.tell(messages.WriteBack(9, [b"kept"]))
    pool.done(9)  # it came already
    pool.tell(messages.Discard(10, [b"kept"]))
    header, _ = pool.done(10)
    assert header.record is not None
    assert header.record.evicted == [b"kept"]


def test_nothing_comes_if_all_stays(setting: Setting) -> None:
    setting.pool.meet(SCALE)
    message, _, _ = packed(SCALE, {"x": numbers()}, {"factor": 2.0}, keep=True)
    header, frames = setting.pool.done(setting.pool.run(message, keep=[b"kept"], parcel=True))
    assert (header.parcel, header.failed, list(frames)) == (None, False, [])


def test_outputs_of_no_bytes_come_too(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"some": np.arange(6, dtype=np.uint8), "empty": np.empty(0, np.uint8)}
    result = Result(scale_task(), data, RunStats({"plan": 0.0, "total": 0.0}, {}, (), (), 0.0))
    monkeypatch.setattr(setting.executor, "run", lambda *_: result)
    setting.pool.meet(SCALE)
    message, _, _ = packed(SCALE, {"x": numbers()}, {"factor": 2.0})
    _, frames = setting.pool.done(setting.pool.run(message))
    assert [bytes(frame) for frame in frames] == [data["some"].tobytes(), b""]


# --- functions and errors


def test_functions_that_are_unknown_or_broken(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = setting.pool
    message, _, _ = packed(SCALE, {"x": numbers()}, {"factor": 2.0})
    assert isinstance(pool.error(pool.run(message)), KaasError)
    pool.tell(messages.Meet(), wire.encode(SCALE.spec), b"no kTask")
    assert isinstance(pool.error(pool.run(message)), KaasError)

    class Theirs(ProviderFailed):
        pass

    def fail(*_: Any) -> None:
        raise Theirs("it would not")

    pool.meet(ADD)
    monkeypatch.setattr(setting.executor, "run", fail)
    message, _, _ = packed(ADD, {"a": numbers(), "b": numbers()})
    assert isinstance(pool.error(pool.run(message)), ProviderFailed)


def test_a_function_is_forgotten_once_it_does_not_run(two_slots: Setting) -> None:
    pool, x = two_slots.pool, named(1, numbers())
    pool.meet(SCALE)
    message, beside, refs = packed(SCALE, {"x": x}, {"factor": 2.0})
    running = pool.run(message, beside, slot=1)
    pool.next()
    pool.tell(messages.Forget(SCALE.key))
    small, _, _ = packed(SCALE, {"x": x.value}, {"factor": 3.0})
    pool.outputs(pool.run(small))
    two_slots.worker.supply(pool.address.life, running, refs)
    pool.outputs(running)
    pool.tell(messages.Forget(ADD.key))
    assert isinstance(pool.error(pool.run(small)), KaasError)
    pool.meet(SCALE)
    pool.tell(messages.Forget(ADD.key))
    np.testing.assert_array_equal(pool.outputs(pool.run(small))[0], x.value * 3)


def test_whatever_fails_fails_its_request_only(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, x = setting.pool, numbers()
    pool.meet(SCALE)
    message, _, _ = packed(SCALE, {"x": x}, {"factor": 2.0})
    with monkeypatch.context() as broken:
        broken.setattr(setting.executor, "run", lambda *_: [][0])
        assert "IndexError" in pool.error(pool.run(message)).message
    np.testing.assert_array_equal(pool.outputs(pool.run(message))[0], x * 2)


PROCESS = """
import os, sys, threading
from kaas.config import Device
from kaas.pool.executor_worker import ExecutorWorker
from kaas.pool.messages import Address

worker = ExecutorWorker(Device("software", 16 << 20), {"slots": 1}, "3", "here", line_lost=lambda: os._exit(1))
worker.start(Address(*sys.argv[1:]))
threading.Event().wait()
"""


def test_a_process_whose_device_is_lost_says_so_and_ends_by_itself() -> None:
    pool, crash = Pool(), Signature.of(crash_task())
    address = pool.address
    process = subprocess.Popen([sys.executable, "-c", PROCESS, address.life, address.node, address.path])
    assert pool.came.wait(PATIENCE_S)
    pool.meet(crash)
    answers = [pool.done(pool.run(packed(crash, {})[0])) for _ in range(3)]
    pool.tell(messages.Upkeep(90), order("flush"))
    answers.append(pool.done(90))
    for header, (frame,) in answers:
        error = decode_error(frame)
        assert isinstance(error, DeviceLost)
        assert (header.failed, header.lost) == (True, error.message)
        assert error.kernel == "crash"
    assert process.wait(PATIENCE_S) == executor_worker.LOST_STATUS
    pool.end()


# --- orders


def order(action: str, *functions: str, objects: bool = False) -> bytes:
    return wire.encode(wire.Upkeep(action, None, functions, objects, True, "alice"))


def test_orders_wait_for_no_run(setting: Setting) -> None:
    pool, x = setting.pool, named(1, numbers())
    pool.meet(SCALE)
    message, beside, refs = packed(SCALE, {"x": x}, {"factor": 2.0})
    number = pool.run(message, beside)
    assert pool.next() == (Need(number), [])
    pool.tell(messages.Upkeep(90), order("flush"))
    pool.done(90)
    pool.tell(messages.WriteBack(91, []))
    pool.done(91)
    setting.worker.supply(pool.address.life, number, refs)
    pool.outputs(number)


def test_objects_and_constants_are_loaded_pinned_and_let_go(setting: Setting) -> None:
    pool, weights = setting.pool, numbers(seed=1)
    bound = Signature.of(add_task(), [wire.Binding("b", 0)])
    pool.meet(bound)
    constants, x = named(1, (named(2, weights),)), named(3, numbers())
    for number, ref, functions in ((90, constants, [bound.key]), (91, x, [])):
        pool.tell(messages.Upkeep(number, [Named(ref.key)]), order("pin", *functions, objects=True))
        assert pool.next() == (Need(number), [])
        setting.worker.supply(pool.address.life, number, [ref])
        header, _ = pool.done(number)
        assert header.record is not None
        assert len(header.record.loaded) == 1
    keys = {constant_key(constants, 0), x.key}
    assert setting.executor.cached() == keys
    pool.tell(messages.Upkeep(92), order("flush"))
    pool.done(92)
    assert setting.executor.cached() == keys
    pool.tell(messages.Upkeep(93), order("unpin"))
    pool.tell(messages.Follow(94), wire.encode(wire.Decided([], [x.key])))
    pool.done(93)
    header, _ = pool.done(94)
    assert header.record is not None
    assert header.record.evicted == [x.key]


def test_what_the_policy_wants_is_loaded(setting: Setting) -> None:
    pool, x, constants = setting.pool, named(1, numbers()), named(2, (numbers(seed=1),))
    loads = [wire.KeyedObject(x.key, 0, None), wire.KeyedObject(constant_key(constants, 0), 1, 0)]
    pool.tell(messages.Follow(90, [Named(x.key), Named(constants.key)]), wire.encode(wire.Decided(loads, [])))
    assert pool.next() == (Need(90), [])
    pool.tell(messages.Supply(90, [[Framed(1)], [Framed(2)]]), x.value, constants.value[0])
    pool.done(90)
    assert setting.executor.cached() == {x.key, constant_key(constants, 0)}


# --- lives


@pytest.fixture
def two_slots(softgpu: tuple[int, ...]) -> Iterator[Setting]:  # noqa: ARG001 - as above
    made = Setting(slots=2)
    yield made
    made.close()


def test_slots_run_beside_each_other(two_slots: Setting) -> None:
    pool, x, y = two_slots.pool, named(1, numbers()), numbers(seed=1)
    pool.meet(SCALE)
    message, beside, refs = packed(SCALE, {"x": x}, {"factor": 2.0})
    number = pool.run(message, beside, slot=1)
    pool.next()
    small, _, _ = packed(SCALE, {"x": y}, {"factor": 3.0})
    for _ in range(3):
        np.testing.assert_array_equal(pool.outputs(pool.run(small))[0], y * 3)
    two_slots.worker.supply(pool.address.life, number, refs)
    np.testing.assert_array_equal(pool.outputs(number)[0], x.value * 2)


def test_runs_outlive_their_pool_and_the_next_hears_of_their_end(two_slots: Setting) -> None:
    former, x = two_slots.pool, named(1, numbers())
    watch = threading.Thread(target=two_slots.worker.wait, args=(former.address.life,), daemon=True)
    watch.start()
    former.meet(SCALE)
    message, beside, refs = packed(SCALE, {"x": x}, {"factor": 2.0})
    two_slots.values.open.clear()
    number = former.run(message, beside, slot=1)
    former.next()
    two_slots.worker.supply(former.address.life, number, refs)
    assert two_slots.values.asked.acquire(timeout=PATIENCE_S)
    former.end()
    assert two_slots.left.wait(PATIENCE_S)
    two_slots.left.clear()
    assert watch.is_alive()

    two_slots.pool = pool = Pool()
    assert [*two_slots.worker.begin(pool.address)] == [1]
    watch.join(PATIENCE_S)
    assert not watch.is_alive()
    small, _, _ = packed(SCALE, {"x": x.value}, {"factor": 3.0})
    np.testing.assert_array_equal(pool.outputs(pool.run(small))[0], x.value * 3)  # it knows the function
    two_slots.values.open.set()
    orphaned, _ = pool.next()
    assert isinstance(orphaned, Orphaned)
    assert orphaned.slot == 1
    assert orphaned.record is not None
    assert orphaned.record.loaded == [x.key]


def test_what_comes_late_from_an_earlier_life_is_nothing_to_the_next(setting: Setting) -> None:
    former, x, both = setting.pool.address.life, named(1, numbers()), Signature.of(both_task())
    setting.pool.end()
    assert setting.left.wait(PATIENCE_S)
    setting.left.clear()
    setting.pool = pool = Pool()
    setting.worker.begin(pool.address)
    pool.meet(both)
    message, beside, refs = packed(both, {"x": x})
    number = pool.run(message, beside, parcel=True)
    assert pool.next() == (Need(number), [])
    setting.worker.supply(former, number, [named(2, numbers(seed=1))])
    setting.worker.supply(pool.address.life, number, refs)
    header, _ = pool.done(number)
    assert header.parcel is not None
    with pytest.raises(KeyError):
        setting.worker.collect(former, header.parcel)
    np.testing.assert_array_equal(setting.worker.collect(pool.address.life, header.parcel)[1], x.value + x.value)


def test_what_waits_for_a_pool_that_ends_fails(setting: Setting) -> None:
    former, x = setting.pool, named(1, numbers())
    former.meet(SCALE)
    message, beside, _ = packed(SCALE, {"x": x}, {"factor": 2.0})
    former.run(message, beside)
    former.next()
    setting.pool = pool = Pool()
    assert [*setting.worker.begin(pool.address)] == [0]
    assert pool.next() == (Orphaned(0), [])
    former.end()
    setting.left.set()  # it has gone to the next pool before

"""An executor's worker on a software device, at the end of a real connection; the test is its pool."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from kaas.errors import DeviceLost, InputFailed, KaasError, OutOfHostMemory, ProviderFailed
from kaas.executor.executor import RunResult, RunStats
from kaas.wire import messages, specs
from kaas.wire.connections import stream
from kaas.wire.connections.shared_memory import Outbox, open_file
from kaas.wire.error_codec import decode_error, encode_error
from kaas.wire.messages import Filed, Framed, RequestObjects, WrittenBack
from kaas.wire.outputs import InputLost, Lost
from kaas.wire.packing import FunctionSignature, constant_key
from kaas.worker import executor_worker
from tests.api.conftest import add_task, both_task, crash_task, numbers, scale_task
from tests.timeouts import TIMEOUT_S
from tests.worker.worker_setting import ADD, SCALE, Pool, Setting, named, order, packed, setting, two_slots

__all__ = ["setting", "two_slots"]


# --- values


def test_small_values_are_sent_in_frames_both_ways(setting: Setting) -> None:
    pool, x = setting.pool, numbers()
    pool.register(SCALE)
    for factor in (2.0, 3.0):
        message, _, _ = packed(SCALE, {"x": x}, {"factor": factor})
        header, (y,) = pool.done(pool.run(message))
        np.testing.assert_array_equal(np.frombuffer(y, np.float32), x * np.float32(factor))
        assert header.lost == ""
        assert header.record is not None
        assert header.record.stages["total"] > 0


def test_several_outputs_are_sent_in_declared_order(setting: Setting) -> None:
    pool, x, both = setting.pool, numbers(), FunctionSignature.of(both_task())
    pool.register(both)
    quadruple, double = pool.outputs(pool.run(packed(both, {"x": x})[0]))
    np.testing.assert_array_equal(quadruple, x + x + x + x)
    np.testing.assert_array_equal(double, x + x)


def test_large_values_arrive_in_frames_or_shared_memory(setting: Setting) -> None:
    n = specs.INLINE_INPUT_BYTES // 4
    pool, a, b, large = setting.pool, numbers(n), numbers(n, 1), FunctionSignature.of(add_task(n))
    pool.register(large)
    message, _, refs = packed(large, {"a": a, "b": b})
    assert len(refs) == 1
    lease = Outbox().put(b)
    (c,) = pool.outputs(pool.run(message, [Framed(2)], b))
    np.testing.assert_array_equal(c, a + b)
    for _ in range(2):  # the second time the file is mapped already
        (c,) = pool.outputs(pool.run(message, [Filed(0, 0, b.nbytes)], files=[open_file(lease.block)]))
        np.testing.assert_array_equal(c, a + b)
    lease.release()


def test_a_value_beyond_the_end_of_its_memory(setting: Setting) -> None:
    n = specs.INLINE_INPUT_BYTES // 4
    large = FunctionSignature.of(add_task(n))
    setting.pool.register(large)
    message, _, _ = packed(large, {"a": numbers(n), "b": numbers(n)})
    lease = Outbox().put(numbers(n))
    error = setting.pool.error(setting.pool.run(message, [Filed(0, 4 * n, 4 * n)], files=[open_file(lease.block)]))
    assert isinstance(error, InputFailed)
    assert error.buffer == "b"
    assert error.task == large.task.label


def test_memory_that_the_executor_cannot_map_fails_its_request_alone(setting: Setting) -> None:
    n = specs.INLINE_INPUT_BYTES // 4
    pool, a, b, large = setting.pool, numbers(n), numbers(n, 1), FunctionSignature.of(add_task(n))
    pool.register(large)
    message, _, _ = packed(large, {"a": a, "b": b})
    error = pool.error(pool.run(message, [Filed(0, 0, b.nbytes)], files=[file_beyond_memory()]))
    assert isinstance(error, InputFailed)
    assert (error.task, error.buffer) == (large.task.label, "b")
    assert os.strerror(errno.ENOMEM) in error.reason
    (c,) = pool.outputs(pool.run(message, [Framed(2)], b))
    np.testing.assert_array_equal(c, a + b)


def test_a_message_that_the_executor_has_no_memory_for_fails_its_request_alone(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = specs.INLINE_INPUT_BYTES
    pool, x, large = setting.pool, numbers(n), FunctionSignature.of(scale_task(n))
    pool.register(large)
    message, _, _ = packed(large, {"x": x}, {"factor": 2.0})
    with monkeypatch.context() as patched:
        patched.setattr(stream, "_large", stream._Skipped)
        assert isinstance(pool.error(pool.run(message, [Framed(2)], x)), OutOfHostMemory)
    (y,) = pool.outputs(pool.run(message, [Framed(2)], x))
    np.testing.assert_array_equal(y, x * np.float32(2))


def file_beyond_memory() -> int:
    """Return a sealed memory file that no process has the address space for."""
    file = os.memfd_create("huge", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, 1 << 60)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return file


# --- objects


def test_objects_are_requested_once_and_then_named(setting: Setting) -> None:
    pool, a, b = setting.pool, named(1, numbers()), named(2, numbers(seed=1))
    pool.register(ADD)
    message, attached, refs = packed(ADD, {"a": a, "b": b})
    number = pool.run(message, attached)
    assert pool.next() == (RequestObjects(number), [])
    setting.worker.provide(pool.address.epoch, number, refs)
    np.testing.assert_array_equal(pool.outputs(number)[0], a.value + b.value)
    np.testing.assert_array_equal(pool.outputs(pool.run(message, attached))[0], a.value + b.value)
    assert setting.executor.cached() == {a.key, b.key}


def test_objects_arrive_over_the_connection(setting: Setting) -> None:
    weights, x = numbers(seed=1), numbers()
    pool, constants = setting.pool, named(1, (weights,))
    bound = FunctionSignature.of(add_task(), [specs.Binding("b", 0)])
    pool.register(bound)
    message, attached, _ = packed(bound, {"a": named(2, x)}, constants=constants)
    number = pool.run(message, attached)
    assert pool.next() == (RequestObjects(number), [])
    lease = Outbox().put(weights)
    provide = messages.ProvideObjects(number, [[Framed(1)], [Filed(0, 0, weights.nbytes)]])
    pool.send(provide, x, files=[open_file(lease.block)])
    np.testing.assert_array_equal(pool.outputs(number)[0], x + weights)
    assert setting.executor.cached() == {named(2, x).key, constant_key(constants, 0)}
    lease.release()


def test_objects_that_cannot_be_had(setting: Setting) -> None:
    pool, x = setting.pool, named(1, ValueError("its task failed"))
    pool.register(SCALE)
    message, attached, refs = packed(SCALE, {"x": x}, {"factor": 2.0})
    number = pool.run(message, attached)
    pool.next()
    setting.worker.provide(pool.address.epoch, number, refs)
    error = pool.error(number)
    assert isinstance(error, InputFailed)
    assert isinstance(error.__cause__, ValueError)
    number = pool.run(message, attached)
    pool.next()
    pool.send(messages.ProvideObjects(number, error=True), encode_error(KaasError("nobody holds it")))
    error = pool.error(number)
    assert isinstance(error, InputFailed)
    assert "nobody holds it" in error.reason


def test_an_object_that_the_executor_cannot_map_is_requested_again(setting: Setting) -> None:
    pool, x, lease = setting.pool, named(1, numbers()), Outbox().put(numbers())
    pool.register(SCALE)
    message, attached, _ = packed(SCALE, {"x": x}, {"factor": 2.0})

    def run_with(file: int) -> int:
        number = pool.run(message, attached)
        assert pool.next() == (RequestObjects(number), [])
        pool.send(messages.ProvideObjects(number, [[Filed(0, 0, x.value.nbytes)]]), files=[file])
        return number

    error = pool.error(run_with(file_beyond_memory()))
    assert isinstance(error, InputFailed)
    assert os.strerror(errno.ENOMEM) in error.reason
    np.testing.assert_array_equal(pool.outputs(run_with(open_file(lease.block)))[0], x.value * np.float32(2))
    lease.release()


def test_a_lost_input_is_made_anew(setting: Setting) -> None:
    pool, x = setting.pool, named(1, numbers())
    message, _, refs = packed(SCALE, {"x": x}, {"factor": 2.0})
    setting.introductions[SCALE.key] = specs.encode(SCALE.spec), SCALE.task.to_msgpack()
    lost = named(2, InputLost(b"kept", Lost(message, refs, 0, 1)))
    pool.register(ADD)
    message, attached, refs = packed(ADD, {"a": lost, "b": lost})
    number = pool.run(message, attached)
    assert pool.next() == (RequestObjects(number), [])
    setting.worker.provide(pool.address.epoch, number, refs)
    np.testing.assert_array_equal(pool.outputs(number)[0], x.value * 4)


# --- outputs that do not come in frames


def test_large_outputs_wait_as_a_deferred(setting: Setting) -> None:
    pool, x, both = setting.pool, numbers(), FunctionSignature.of(both_task())
    pool.register(both)
    header, frames = pool.done(pool.run(packed(both, {"x": x})[0], deferred=True))
    assert header.deferred is not None
    assert list(frames) == []
    quadruple, double = setting.worker.collect(pool.address.epoch, header.deferred)
    np.testing.assert_array_equal(quadruple, double + double)
    with pytest.raises(KeyError):
        setting.worker.collect(pool.address.epoch, header.deferred)


def test_kept_outputs_stay_until_they_are_written_back(setting: Setting) -> None:
    pool, x, both = setting.pool, numbers(), FunctionSignature.of(both_task())
    pool.register(both)
    message, _, _ = packed(both, {"x": x}, keep=("double",))
    header, _ = pool.done(pool.run(message, keep=[b"kept"], deferred=True))
    assert header.deferred is not None
    assert len(setting.worker.collect(pool.address.epoch, header.deferred)) == 1
    pool.send(messages.WriteBackOutput(9, [b"kept"]))
    written, _ = pool.next()
    assert isinstance(written, WrittenBack)
    assert written.key == b"kept"
    pool.done(9)
    np.testing.assert_array_equal(setting.worker.collect(pool.address.epoch, written.deferred)[0], x + x)


def test_the_reply_has_kept_outputs_that_are_not_deferred(setting: Setting) -> None:
    pool, x = setting.pool, numbers()
    pool.register(SCALE)
    message, _, _ = packed(SCALE, {"x": x}, {"factor": 2.0}, keep=True)
    np.testing.assert_array_equal(pool.outputs(pool.run(message, keep=[b"kept"]))[0], x * 2)
    pool.send(messages.WriteBackOutput(9, [b"kept"]))
    pool.done(9)  # the reply has come already
    pool.send(messages.Discard(10, [b"kept"]))
    header, _ = pool.done(10)
    assert header.record is not None
    assert header.record.evicted == [b"kept"]


def test_the_reply_has_no_frames_if_all_outputs_stay(setting: Setting) -> None:
    setting.pool.register(SCALE)
    message, _, _ = packed(SCALE, {"x": numbers()}, {"factor": 2.0}, keep=True)
    header, frames = setting.pool.done(setting.pool.run(message, keep=[b"kept"], deferred=True))
    assert (header.deferred, header.failed, list(frames)) == (None, False, [])


def test_outputs_of_no_bytes_are_sent(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"some": np.arange(6, dtype=np.uint8), "empty": np.empty(0, np.uint8)}
    result = RunResult(scale_task(), data, RunStats({"plan": 0.0, "total": 0.0}, {}, (), (), 0.0))
    monkeypatch.setattr(setting.executor, "run", lambda *_: result)
    setting.pool.register(SCALE)
    message, _, _ = packed(SCALE, {"x": numbers()}, {"factor": 2.0})
    _, frames = setting.pool.done(setting.pool.run(message))
    assert [bytes(frame) for frame in frames] == [data["some"].tobytes(), b""]


# --- functions and errors


def test_functions_that_are_unknown_or_broken(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = setting.pool
    message, _, _ = packed(SCALE, {"x": numbers()}, {"factor": 2.0})
    assert isinstance(pool.error(pool.run(message)), KaasError)
    pool.send(messages.RegisterFunction(), specs.encode(SCALE.spec), b"no kTask")
    assert isinstance(pool.error(pool.run(message)), KaasError)

    class Theirs(ProviderFailed):
        pass

    def fail(*_: Any) -> None:
        raise Theirs("it would not")

    pool.register(ADD)
    monkeypatch.setattr(setting.executor, "run", fail)
    message, _, _ = packed(ADD, {"a": numbers(), "b": numbers()})
    assert isinstance(pool.error(pool.run(message)), ProviderFailed)


def test_a_function_is_forgotten_once_it_does_not_run(two_slots: Setting) -> None:
    pool, x = two_slots.pool, named(1, numbers())
    pool.register(SCALE)
    message, attached, refs = packed(SCALE, {"x": x}, {"factor": 2.0})
    running = pool.run(message, attached, slot=1)
    pool.next()
    pool.send(messages.ForgetFunction(SCALE.key))
    small, _, _ = packed(SCALE, {"x": x.value}, {"factor": 3.0})
    pool.outputs(pool.run(small))
    two_slots.worker.provide(pool.address.epoch, running, refs)
    pool.outputs(running)
    pool.send(messages.ForgetFunction(ADD.key))
    assert isinstance(pool.error(pool.run(small)), KaasError)
    pool.register(SCALE)
    pool.send(messages.ForgetFunction(ADD.key))
    np.testing.assert_array_equal(pool.outputs(pool.run(small))[0], x.value * 3)


def test_a_failure_fails_its_request_only(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, x = setting.pool, numbers()
    pool.register(SCALE)
    message, _, _ = packed(SCALE, {"x": x}, {"factor": 2.0})
    with monkeypatch.context() as broken:
        broken.setattr(setting.executor, "run", lambda *_: [][0])
        assert "IndexError" in pool.error(pool.run(message)).message
    np.testing.assert_array_equal(pool.outputs(pool.run(message))[0], x * 2)


PROCESS = """
import os, sys, threading
from kaas.config import Device
from kaas.worker.executor_worker import ExecutorWorker
from kaas.wire.messages import Address

worker = ExecutorWorker(Device("software", 16 << 20), {"slots": 1}, "3", "here", connection_lost=lambda: os._exit(1))
worker.start(Address(*sys.argv[1:]))
threading.Event().wait()
"""


@pytest.mark.processes
def test_a_process_whose_device_is_lost_reports_it_and_ends_by_itself() -> None:
    pool, crash = Pool(), FunctionSignature.of(crash_task())
    address = pool.address
    process = subprocess.Popen([sys.executable, "-c", PROCESS, address.epoch, address.node, address.path])
    assert pool.came.wait(TIMEOUT_S)
    pool.register(crash)
    answers = [pool.done(pool.run(packed(crash, {})[0])) for _ in range(3)]
    pool.send(messages.CacheCommand(90), order("flush"))
    answers.append(pool.done(90))
    for header, (frame,) in answers:
        error = decode_error(frame)
        assert isinstance(error, DeviceLost)
        assert (header.failed, header.lost) == (True, error.message)
        assert error.kernel == "crash"
    assert process.wait(TIMEOUT_S) == executor_worker.LOST_STATUS
    pool.end()

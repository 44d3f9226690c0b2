"""Orders to an executor's worker, in parallel with its runs and across the epochs of its pool."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from kaas.wire import messages, specs
from kaas.wire.messages import Framed, Named, Orphaned, RequestObjects
from kaas.wire.packing import FunctionSignature, constant_key
from tests.api.conftest import add_task, both_task, numbers
from tests.timeouts import TIMEOUT_S
from tests.worker.worker_setting import SCALE, Pool, Setting, named, order, packed, setting, two_slots

__all__ = ["setting", "two_slots"]


def test_orders_wait_for_no_run(setting: Setting) -> None:
    pool, x = setting.pool, named(1, numbers())
    pool.register(SCALE)
    message, attached, refs = packed(SCALE, {"x": x}, {"factor": 2.0})
    number = pool.run(message, attached)
    assert pool.next() == (RequestObjects(number), [])
    pool.send(messages.CacheCommand(90), order("flush"))
    pool.done(90)
    pool.send(messages.WriteBackOutput(91, []))
    pool.done(91)
    setting.worker.provide(pool.address.epoch, number, refs)
    pool.outputs(number)


def test_objects_and_constants_are_loaded_pinned_and_unpinned(setting: Setting) -> None:
    pool, weights = setting.pool, numbers(seed=1)
    bound = FunctionSignature.of(add_task(), [specs.Binding("b", 0)])
    pool.register(bound)
    constants, x = named(1, (named(2, weights),)), named(3, numbers())
    for number, ref, functions in ((90, constants, [bound.key]), (91, x, [])):
        pool.send(messages.CacheCommand(number, [Named(ref.key)]), order("pin", *functions, objects=True))
        assert pool.next() == (RequestObjects(number), [])
        setting.worker.provide(pool.address.epoch, number, [ref])
        header, _ = pool.done(number)
        assert header.record is not None
        assert len(header.record.loaded) == 1
    keys = {constant_key(constants, 0), x.key}
    assert setting.executor.cached() == keys
    pool.send(messages.CacheCommand(92), order("flush"))
    pool.done(92)
    assert setting.executor.cached() == keys
    pool.send(messages.CacheCommand(93), order("unpin"))
    pool.send(messages.CacheDecision(94), specs.encode(specs.CacheDecisionSpec([], [x.key])))
    pool.done(93)
    header, _ = pool.done(94)
    assert header.record is not None
    assert header.record.evicted == [x.key]


def test_objects_of_a_cache_decision_are_loaded(setting: Setting) -> None:
    pool, x, constants = setting.pool, named(1, numbers()), named(2, (numbers(seed=1),))
    loads = [specs.KeyedObject(x.key, 0, None), specs.KeyedObject(constant_key(constants, 0), 1, 0)]
    pool.send(
        messages.CacheDecision(90, [Named(x.key), Named(constants.key)]),
        specs.encode(specs.CacheDecisionSpec(loads, [])),
    )
    assert pool.next() == (RequestObjects(90), [])
    pool.send(messages.ProvideObjects(90, [[Framed(1)], [Framed(2)]]), x.value, constants.value[0])
    pool.done(90)
    assert setting.executor.cached() == {x.key, constant_key(constants, 0)}


def test_slots_run_in_parallel(two_slots: Setting) -> None:
    pool, x, y = two_slots.pool, named(1, numbers()), numbers(seed=1)
    pool.register(SCALE)
    message, attached, refs = packed(SCALE, {"x": x}, {"factor": 2.0})
    number = pool.run(message, attached, slot=1)
    pool.next()
    small, _, _ = packed(SCALE, {"x": y}, {"factor": 3.0})
    for _ in range(3):
        np.testing.assert_array_equal(pool.outputs(pool.run(small))[0], y * 3)
    two_slots.worker.provide(pool.address.epoch, number, refs)
    np.testing.assert_array_equal(pool.outputs(number)[0], x.value * 2)


def test_runs_outlive_their_pool_and_the_next_pool_receives_their_end(two_slots: Setting) -> None:
    former, x = two_slots.pool, named(1, numbers())
    watch = threading.Thread(target=two_slots.worker.wait, args=(former.address.epoch,), daemon=True)
    watch.start()
    former.register(SCALE)
    message, attached, refs = packed(SCALE, {"x": x}, {"factor": 2.0})
    two_slots.values.open.clear()
    number = former.run(message, attached, slot=1)
    former.next()
    two_slots.worker.provide(former.address.epoch, number, refs)
    assert two_slots.values.requested.acquire(timeout=TIMEOUT_S)
    former.end()
    assert two_slots.left.wait(TIMEOUT_S)
    two_slots.left.clear()
    assert watch.is_alive()

    two_slots.pool = pool = Pool()
    assert [*two_slots.worker.begin(pool.address)] == [1]
    watch.join(TIMEOUT_S)
    assert not watch.is_alive()
    small, _, _ = packed(SCALE, {"x": x.value}, {"factor": 3.0})
    np.testing.assert_array_equal(pool.outputs(pool.run(small))[0], x.value * 3)  # the worker knows the function
    two_slots.values.open.set()
    orphaned, _ = pool.next()
    assert isinstance(orphaned, Orphaned)
    assert orphaned.slot == 1
    assert orphaned.record is not None
    assert orphaned.record.loaded == [x.key]


def test_late_objects_of_an_earlier_epoch_are_ignored(setting: Setting) -> None:
    former, x, both = setting.pool.address.epoch, named(1, numbers()), FunctionSignature.of(both_task())
    setting.pool.end()
    assert setting.left.wait(TIMEOUT_S)
    setting.left.clear()
    setting.pool = pool = Pool()
    setting.worker.begin(pool.address)
    pool.register(both)
    message, attached, refs = packed(both, {"x": x})
    number = pool.run(message, attached, deferred=True)
    assert pool.next() == (RequestObjects(number), [])
    setting.worker.provide(former, number, [named(2, numbers(seed=1))])
    setting.worker.provide(pool.address.epoch, number, refs)
    header, _ = pool.done(number)
    assert header.deferred is not None
    with pytest.raises(KeyError):
        setting.worker.collect(former, header.deferred)
    np.testing.assert_array_equal(setting.worker.collect(pool.address.epoch, header.deferred)[1], x.value + x.value)


def test_a_run_that_waits_for_a_pool_that_ends_fails(setting: Setting) -> None:
    former, x = setting.pool, named(1, numbers())
    former.register(SCALE)
    message, attached, _ = packed(SCALE, {"x": x}, {"factor": 2.0})
    former.run(message, attached)
    former.next()
    setting.pool = pool = Pool()
    assert [*setting.worker.begin(pool.address)] == [0]
    assert pool.next() == (Orphaned(0), [])
    former.end()
    setting.left.set()  # the worker has joined the next pool before

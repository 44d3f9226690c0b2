"""Objects that a pool without Ray holds: each exists once, as long as there is a reference to it."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import resource
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from kaas.config import Config, Device
from kaas.errors import InvalidRequest, OutOfHostMemory
from kaas.pool.executors.residents import Residents
from kaas.pool.on_processes.hosts import ProcessHosts, visible_gpu
from kaas.pool.on_processes.objects import AT_ONCE_BYTES, HeldObjects, KeepObjects, encode_keep, key_of, key_of_all
from kaas.pool.on_processes.process_pool import Machine
from kaas.pool.on_ray.hosts import parts_of
from kaas.wire.connections.router import Channel, Peer, Router
from kaas.wire.connections.shared_memory import BlockLease, Inbox, Outbox
from kaas.wire.messages import VERSION, Block, Framed, Named, PeerHello
from kaas.worker.invocation_runner import Attachments, same
from tests.limits import limited
from tests.timeouts import TIMEOUT_S

SMALL = b"small value"
OTHER = b"another one"
LARGE = np.random.default_rng(0).bytes(AT_ONCE_BYTES + 1)


def keep(objects: HeldObjects, session: str, *values: bytes | Named, together: bool = False, block: Block | None = None
) -> bytes:  # fmt: skip
    """Let the pool hold values, from frames or a Block; return the last key."""
    keys = [value.key if isinstance(value, Named) else key_of(value) for value in values]
    whole = key_of_all(keys) if together else None
    frames: list[Any] = [encode_keep(KeepObjects(keys, whole))]
    attached: list[Any] = []
    for value in values:
        if isinstance(value, Named):
            attached.append(value)
        elif block is not None:
            attached.append(block)
        else:
            frames.append(value)
            attached.append(Framed(len(frames)))
    asyncio.run(objects.keep(session, attached, frames))
    return whole or keys[-1]


def values(objects: HeldObjects, key: bytes) -> list[bytes]:
    inbox = Inbox()
    return [bytes(inbox.view(block)) for block in objects.ref("any", Named(key)).blocks]


def gone(objects: HeldObjects, *keys: bytes) -> bool:
    gc.collect()
    for key in keys:
        with pytest.raises(InvalidRequest, match="holds no object"):
            objects.ref("any", Named(key))
    return True


def test_a_value_is_held_once_and_freed_with_its_last_reference() -> None:
    objects = HeldObjects(Inbox())
    key = keep(objects, "a", SMALL)
    first = objects.ref("a", Named(key))
    assert keep(objects, "b", SMALL) == key
    assert keep(objects, "a", Named(key)) == key
    assert objects.ref("b", Named(key)) is first
    assert values(objects, key) == [SMALL]
    objects.drop("a", [key])
    objects.session_ended("b")
    assert values(objects, key) == [SMALL]
    objects.drop("a", [key, key_of(b"never there")])
    used = weakref.ref(first)
    assert values(objects, key) == [SMALL]  # for example by a request
    del first
    assert gone(objects, key)
    assert used() is None


def test_constants_are_held_together() -> None:
    objects = HeldObjects(Inbox())
    own = keep(objects, "a", SMALL)
    keep(objects, "a", OTHER, LARGE)
    together = keep(objects, "a", Named(own), Named(key_of(LARGE)), Named(key_of(OTHER)), together=True)
    assert values(objects, together) == [SMALL, LARGE, OTHER]
    objects.drop("a", [own, key_of(OTHER), key_of(LARGE)])
    assert values(objects, together) == [SMALL, LARGE, OTHER]
    objects.drop("a", [together])
    assert gone(objects, together, own, key_of(OTHER), key_of(LARGE))


def test_values_may_arrive_in_shared_memory() -> None:
    objects, outbox = HeldObjects(Inbox()), Outbox()
    lease = outbox.put(LARGE)
    key = keep(objects, "a", LARGE, block=lease.block)
    lease.release()
    outbox.put(bytes(len(LARGE)))  # overwrites released memory
    assert values(objects, key) == [LARGE]


def test_memory_of_a_program_that_has_ended_is_no_longer_mapped() -> None:
    hello = PeerHello(VERSION, "client", "a", "1", os.getpid())

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        router, machine = Router(loop, "here"), Machine(Config(devices=(SOFTWARE,)))
        machine.workers(router, Residents(loop))
        lease, key = Outbox().put(SMALL), key_of(LARGE)
        before = mapped()
        await machine.objects.keep("a", [lease.block], [encode_keep(KeepObjects([key]))])
        assert mapped() == before + 2  # the program's memory, and the pool's
        router.forget(Peer(cast(Channel, None), hello, shares=True))
        assert mapped() == before + 1
        assert values(machine.objects, key) == [SMALL]
        lease.release()

    asyncio.run(scenario())


def mapped() -> int:
    """Return the number of mappings of shared memory in this process."""
    gc.collect()
    return sum("memfd:kaas" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_a_pool_without_room_for_an_object() -> None:
    objects = HeldObjects(Inbox())
    with limited(resource.RLIMIT_FSIZE, len(LARGE) // 2), pytest.raises(OutOfHostMemory, match=f"{os.getpid()}"):
        keep(objects, "a", LARGE)
    assert values(objects, keep(objects, "a", LARGE)) == [LARGE]


@pytest.mark.parametrize("by_program", [True, False])
def test_a_copy_that_is_cancelled_leaves_no_memory_leased(by_program: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    objects, began, go = HeldObjects(Inbox()), threading.Event(), threading.Event()
    put_all = objects._outbox.put_all

    def waiting(data: Sequence[Any]) -> BlockLease:
        began.set()
        assert go.wait(TIMEOUT_S)
        return put_all(data)

    async def scenario() -> None:
        key = key_of(LARGE)
        frames = [encode_keep(KeepObjects([key])), LARGE]
        copy = objects.keep("a", [Framed(2)], frames) if by_program else objects.hold(key, LARGE)
        copying = asyncio.ensure_future(copy)
        assert await asyncio.to_thread(began.wait, TIMEOUT_S)
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying
        go.set()

    monkeypatch.setattr(objects._outbox, "put_all", waiting)
    asyncio.run(scenario())
    gc.collect()
    assert objects._outbox._leased == 0


def test_an_object_that_no_client_holds_cannot_be_named() -> None:
    objects = HeldObjects(Inbox())
    with pytest.raises(InvalidRequest, match="holds no object"):
        keep(objects, "a", Named(key_of(SMALL)))


def test_executors_get_the_blocks_of_objects_they_lack() -> None:
    objects = HeldObjects(Inbox())
    ref = objects.ref("a", Named(keep(objects, "a", SMALL)))
    hosts = ProcessHosts(Config(devices=(Device(),)), "here")
    assert hosts.provide(0, 1, [None, ref]) == [(), ref.blocks]


GPU, SOFTWARE = Device("gpu"), Device()


@pytest.mark.parametrize(
    ("named", "devices", "seen"),
    [
        (None, (GPU, SOFTWARE, GPU), ["0", "", "1"]),
        ("2,GPU-5", (GPU, GPU, GPU), ["2", "GPU-5", ""]),
        ("", (GPU,), [""]),
    ],
)
def test_each_executor_sees_its_own_gpu(
    monkeypatch: pytest.MonkeyPatch, named: str | None, devices: Sequence[Device], seen: list[str]
) -> None:
    if named is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert [visible_gpu(devices, index) for index in range(len(devices))] == seen


def test_a_held_object_may_travel_by_ray() -> None:
    """An executor of Ray gets held objects too, if a call has objects of both kinds."""
    objects, inbox = HeldObjects(Inbox()), Inbox()
    one = asyncio.run(objects.hold(key_of(SMALL), SMALL))
    both = objects.together([one, asyncio.run(objects.hold(key_of(OTHER), OTHER))])
    items = [Named(b"of Ray"), Named(one.binary()), Named(both.binary())]
    sent = pickle.loads(pickle.dumps(["a value", parts_of(one, inbox), parts_of(both, inbox)]))
    found = Attachments(items, (), lambda: sent, same, (2,))
    assert found(items[0]) == "a value"
    assert bytes(found(items[1])) == SMALL
    assert list(map(bytes, found(items[2]))) == [SMALL, OTHER]

"""The program of test_every_write.py: runs a scenario again and again, each time with another failing system call.

Run with `failing_writes.c` preloaded: `python -m tests.outcomes.every_write SCENARIO FOLDER STRIDE`. It prints as JSON
the number of runs of each way in which a disk fails, and the runs in which a promise was broken.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import logging
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from kaas.config import Config, Device
from kaas.errors import KaasError, Quarantined
from kaas.pool import service as pool_service
from kaas.pool.core.accounts import ClientAccounts
from kaas.pool.core.quarantine import Quarantine
from kaas.pool.executors.transport import WorkerCall, WorkerReply
from kaas.pool.functions import Registry
from kaas.pool.on_processes.names import PoolName, PoolNotice
from kaas.pool.on_processes.objects import HeldObjects
from kaas.pool.service import Service
from kaas.server.clients.keys import new_client
from kaas.server.clients.revoking import keys_of_folder, revoke, rotate
from kaas.server.state import reserve
from kaas.server.state.client_store import ClientStore
from kaas.server.state.object_store import NewObject
from kaas.server.usage.metering import Meter
from kaas.server.usage.quotas import Quotas
from kaas.store import SqliteStore, opened
from kaas.wire import protocol
from kaas.wire.connections.shared_memory import Inbox
from kaas.wire.messages import Address
from kaas.wire.sent_ktasks import encode_library, encode_task
from softgpu.disk_cache import DiskCache
from tests.api.conftest import add_task, scale_task
from tests.pool.fake_workers import LOST, begin, failure_of, settle
from tests.pool.program_stage import SPEC, TASK_BYTES, FakeGround, FakeRouter
from tests.server.state.states import ANY, hash_of
from tests.timeouts import TIMEOUT_S

ROOM, SYNC, NAMES, CUT, PARTIAL, RESERVED = (1 << bit for bit in range(6))
EVER = -1


@dataclass(frozen=True, slots=True)
class Way:
    """How the disk fails: `count` calls of these kinds."""

    count: int
    error: int
    kinds: int


WAYS = {
    "full until the reserve is released": Way(EVER, errno.ENOSPC, ROOM | PARTIAL | RESERVED),
    "full": Way(EVER, errno.ENOSPC, ROOM | PARTIAL),
    "one call finds no room": Way(1, errno.ENOSPC, ROOM),
    "one call fails": Way(1, errno.EIO, ROOM | SYNC | NAMES | CUT),
}


class Disk:
    """The preloaded functions."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._begin, self._end = library.failing_begin, library.failing_end
        self._begin.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_int]
        self._end.restype = ctypes.c_long
        self.failed = 0

    @contextmanager
    def failing(self, folder: Path, at: int, way: Way) -> Iterator[bool]:
        """Let calls on files of a folder fail, from the at-th on. `failed` is then their number. Gives True for a disk
        that only has no room."""
        self._begin(os.fsencode(folder), at, way.count, way.error, way.kinds)
        try:
            yield way.error == errno.ENOSPC
        finally:
            self.failed = self._end()


class Broken(Exception):
    """A promise was broken."""


# --- a server's state


@dataclass
class Promised:
    """What a server has acknowledged. A change that was refused with an error may not be there."""

    values: dict[str, bytes] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)
    charges: int = 0
    answers: set[str] = field(default_factory=set)


class ServerState:
    """All of a server that writes files."""

    def __init__(self, folder: Path) -> None:
        self.objects = HeldObjects(Inbox())
        store = SqliteStore(":memory:")
        store.open()
        self.meter = Meter(folder)
        self.stores = ClientStore(
            folder,
            Registry(store),
            self.objects,
            lambda _: Quotas(),  # type: ignore[arg-type,return-value]
            ANY,
            (),
            self.meter.holds,
            reserve=self.meter.reserve,
        )

    async def open(self) -> ServerState:
        try:
            self.meter.open()
            await self.stores.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        try:
            self.stores.close()
            await self.meter.close()
        finally:
            self.objects.close()

    async def put(self, promised: Promised, name: str, value: np.ndarray) -> None:
        message = protocol.Put(1, name, value.dtype.name, value.shape)
        await self.stores.objects.put("ada", message, value.tobytes())
        promised.values[name] = value.tobytes()

    async def put_in_chunks(self, promised: Promised, name: str, value: np.ndarray) -> None:
        await self.upload(value.tobytes(), "value")
        message = protocol.Put(1, name, value.dtype.name, value.shape, hash_of(value.tobytes()))
        await self.stores.objects.put("ada", message, None)
        promised.values[name] = value.tobytes()

    async def delete(self, promised: Promised, name: str) -> None:
        await self.stores.objects.delete("ada", protocol.Delete(1, name))
        del promised.values[name]

    async def store(self, promised: Promised, key: str, name: str, value: np.ndarray) -> None:
        """Store an output with a durable reply."""
        new = NewObject(name, value.dtype.name, value.shape, value.tobytes())
        await self.stores.objects.store("ada", [new], {"answers": {key: b"reply"}})
        promised.values[name] = value.tobytes()
        promised.answers.add(key)

    async def upload(self, data: bytes, kind: str) -> None:
        sha256 = hash_of(data)
        uploads = self.stores._uploads
        offset = (await uploads.offer("ada", protocol.Upload(1, sha256, len(data), kind))).offset
        while offset < len(data):
            chunk = data[offset : offset + (64 << 10)]
            offset = (await uploads.chunk("ada", protocol.Chunk(2, sha256, offset), chunk)).offset

    async def register(self, promised: Promised, name: str, task: Any) -> None:
        for library in task.libraries:
            await self.upload(encode_library(library), "library")
        await self.stores.functions.register("ada", protocol.Register(3, name), encode_task(task))
        promised.functions.add(name)

    async def unregister(self, promised: Promised, name: str) -> None:
        await self.stores.functions.unregister("ada", protocol.Unregister(1, name))
        promised.functions.remove(name)

    async def charge(self, promised: Promised, key: str) -> None:
        self.meter.admit("ada")
        promised.charges += self.meter.ended("ada", "f", key, "succeeded", 1, 1, 2, None)

    async def fold(self) -> None:
        """Have the charges written into the SQLite file, as once a second."""
        self.meter._write()
        assert self.meter._writing is not None
        await asyncio.wait([self.meter._writing])
        await asyncio.sleep(0)

    def check(self, promised: Promised, where: str) -> None:
        requests = sum(flow.requests for flow in self.meter.usage("ada").flows)
        if requests != promised.charges:
            raise Broken(f"{where}: {requests} requests are charged, not {promised.charges}")
        listed = self.stores.objects.list("ada", protocol.Objects(1)).entries
        if (names := {entry["name"] for entry in listed}) != promised.values.keys():
            raise Broken(f"{where}: objects {sorted(names)}, not {sorted(promised.values)}")
        for name, value in promised.values.items():
            if bytes(self.stores.objects.view(self.stores.objects.named("ada", name).ref)) != value:
                raise Broken(f"{where}: {name} has another value")
        functions = set(self.stores.functions._clients.get("ada", {}))
        if functions != promised.functions:
            raise Broken(f"{where}: functions {sorted(functions)}, not {sorted(promised.functions)}")
        for name in functions:
            self.stores.functions.named("ada", name)
        answers = {key.rpartition("/")[2] for key in self.stores._state._store.read("answers")}
        if answers != promised.answers:
            raise Broken(f"{where}: replies {sorted(answers)}, not {sorted(promised.answers)}")
        if stories := [*self.stores.set_aside.stories, *self.meter.set_aside.stories]:
            raise Broken(f"{where}: {stories}")


SMALL, LARGE = np.full(16, 1, np.float32), np.arange(50_000, dtype=np.float32)


async def server_made(folder: Path) -> Promised:
    """Make a state, and leave it as a killed server does."""
    promised = Promised()
    state = await ServerState(folder / "live").open()
    await state.put(promised, "x", SMALL)
    await state.put(promised, "y", LARGE)
    await state.register(promised, "f", add_task())
    await state.charge(promised, "k0")
    await state.fold()
    await state.charge(promised, "k1")
    shutil.copytree(folder / "live", folder / "made")
    await state.close()
    return promised


def steps(state: ServerState, promised: Promised) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
    return (
        lambda: state.charge(promised, "k2"),
        lambda: state.put(promised, "z", SMALL + 1),
        lambda: state.put(promised, "x", SMALL + 2),
        lambda: state.put_in_chunks(promised, "y", LARGE + 1),
        lambda: state.register(promised, "g", scale_task()),
        lambda: state.fold(),
        lambda: state.charge(promised, "k3"),
        lambda: state.store(promised, "k4", "x", SMALL + 4),
        lambda: state.fold(),
        lambda: state.charge(promised, "k5"),
        lambda: state.delete(promised, "y"),
        lambda: state.unregister(promised, "f"),
    )


async def server_run(folder: Path, made: Promised, failing: Callable[[], Any]) -> None:
    promised = Promised(dict(made.values), set(made.functions), made.charges)
    state: ServerState | None = None
    with failing():
        with suppress(KaasError):
            state = await ServerState(folder).open()
        if state is not None:
            for step in steps(state, promised):
                try:
                    await step()
                except KaasError:
                    state.check(promised, "after a refusal")
    if state is None:
        state = await ServerState(folder).open()
    state.check(promised, "with room again")
    for key in ("k2", "k3", "k6"):
        await state.charge(promised, key)
    state.meter.reserve.full()
    await state.put(promised, "x", SMALL + 5)
    await state.put(promised, "new", LARGE + 2)
    await state.register(promised, "h", add_task(64))
    state.check(promised, "after further requests")
    killed = folder.with_name(folder.name + " killed")
    shutil.copytree(folder, killed)
    await state.close()
    for left in (killed, folder):
        again = await ServerState(left).open()
        again.check(promised, f"after a restart{' of a killed server' if left is killed else ''}")
        await again.close()
    shutil.rmtree(killed)


# --- a pool's store


async def pool_at(folder: Path) -> tuple[Service, FakeGround]:
    ground = FakeGround()
    config = Config(devices=(Device(),), store=str(folder / "store"))
    return await Service.open("pool", config, cast(Any, ground), opened(str(folder / "store"))), ground


async def pool_made(folder: Path) -> None:
    service, _ = await pool_at(folder / "live")
    shutil.copytree(folder / "live", folder / "made")
    await service.stop()


async def pool_run(folder: Path, _: None, failing: Callable[[], Any]) -> None:
    service: Service | None = None
    with failing():
        with suppress(KaasError):
            service, ground = await pool_at(folder)
        if service is not None:
            await pool_works(service, ground)
            if folder.stat().st_ino % 2:
                await asyncio.wait_for(service.stop(), TIMEOUT_S)
                return
    if service is None:
        service, ground = await pool_at(folder)
        await pool_works(service, ground)
    service._store._change({})  # as a few seconds later
    assert service.pool._accounts is not None
    kept = (set(service.registry._functions), service.pool.quarantine.records, service.pool._accounts.charged_s())
    killed = folder.with_name(folder.name + " killed")
    shutil.copytree(folder, killed)
    await asyncio.wait_for(service.stop(), TIMEOUT_S)
    store = opened(str(killed / "store"))
    accounts = ClientAccounts(store, asyncio.get_running_loop()).charged_s()
    again = (set(Registry(store)._functions), Quarantine(1, store).records, accounts)
    store.close()
    if kept != again:
        raise Broken(f"after a restart: {again}, not {kept}")


async def pool_works(service: Service, ground: FakeGround) -> None:
    service.registry.register(SPEC, TASK_BYTES, "s")
    await settle()
    answer = await begin(service.pool.submit(WorkerCall("f", "ada", None, 0, session="s", function="f")))
    ground.transport.reply("value")
    if await answer != "value":
        raise Broken("another value")
    for _ in range(2):
        await settle()
        answer = await begin(service.pool.submit(WorkerCall("poison", "bob", None, 0, function="poison")))
        ground.transport.reply(WorkerReply(error=LOST))
        if await failure_of(answer) is not LOST:
            raise Broken("another error")
    await settle()
    if not isinstance(error := await failure_of(await begin(service.pool.submit(
        WorkerCall("poison", "bob", None, 0, function="poison")))), Quarantined):  # fmt: skip
        raise Broken(f"not in quarantine: {error}")
    if service.pool._accounts is not None:
        service.pool._accounts.write()
    service.pool._profiles.write()
    service.session_ended("s")


# --- single files


async def files_made(folder: Path) -> None:
    for made in (folder / "made", folder / "made" / "pools"):
        made.mkdir(mode=0o700)
    new_client(folder / "made", "ada", folder / "made" / "ada.toml")
    DiskCache(folder / "made" / "kernels", 1 << 20).put("old", b"old")


async def files_run(folder: Path, _: None, failing: Callable[[], Any]) -> None:
    os.environ["XDG_RUNTIME_DIR"] = str(folder / "pools")
    known = keys_of_folder(folder)[0]
    cache = DiskCache(folder / "kernels", 1 << 20)
    notice = PoolNotice(Address("life", "node", "ipc://nowhere"), "node", {})
    done = set[str]()
    steps: dict[str, Callable[[], object]] = {
        "new": lambda: new_client(folder, "bob", folder / "bob.toml"),
        "rotate": lambda: rotate(folder, "ada", folder / "newer.toml"),
        "revoke": lambda: revoke(folder, "bob", purge=False),
        "announce": lambda: PoolName("pool").announce(notice),
    }

    with failing() as full:
        for name, step in steps.items():
            with suppress(KaasError):
                step()
                done.add(name)
        cache.put("new", b"new")
        cache.put("old", b"newer")
    if cache.get("new") not in (None, b"new") or cache.get("old") not in (b"old", b"newer"):
        raise Broken("the cache has another value")
    names = {client.name for client in keys_of_folder(folder)[0]}
    if "ada" not in names or (
        "rotate" not in done and known != [each for each in keys_of_folder(folder)[0] if each.name == "ada"]
    ):
        raise Broken(f"clients: {names}")
    for name in steps:
        if name not in done:
            if name == "new" and "bob" in names:
                continue
            steps[name]()
    left = [*(folder / "clients").glob(".*"), *(folder / "kernels").glob(".*")]
    if left and full:
        raise Broken(f"left: {left}")


SCENARIOS: dict[str, Any] = {
    "server": (server_made, server_run),
    "pool": (pool_made, pool_run),
    "files": (files_made, files_run),
}


async def main(scenario: str, folder: Path, stride: int) -> None:
    """Run a scenario until no call fails any more, for each way and for each stride-th call."""
    cast(Any, pool_service).Router = FakeRouter
    made, run = SCENARIOS[scenario]
    reserve.RESERVE_BYTES = 128 << 10
    disk, broken, runs = Disk(), list[str](), dict[str, int]()
    promised = await made(folder)
    for number, (name, way) in enumerate(WAYS.items()):
        at = 1 + number % stride
        while True:
            state = folder / "state"
            shutil.copytree(folder / "made", state)
            try:
                await run(state, promised, lambda: disk.failing(state, at, way))  # noqa: B023
            except Exception as error:  # noqa: BLE001 - each broken promise is reported
                last = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{Path(last.filename).name}:{last.lineno}"
                broken.append(f"{name}, call {at}: {type(error).__name__}: {error} ({place})")
                if os.environ.get("TRACE"):
                    traceback.print_exc()
            shutil.rmtree(state)
            shutil.rmtree(folder / "state killed", ignore_errors=True)
            runs[name] = runs.get(name, 0) + 1
            if not disk.failed:
                break
            at += stride
    print(json.dumps({"runs": runs, "broken": broken}))


if __name__ == "__main__":
    logging.disable()
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
    os._exit(0)

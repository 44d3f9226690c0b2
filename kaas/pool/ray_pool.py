"""The pool on Ray: one asyncio actor that drives the core, and one executor actor on each device."""

from __future__ import annotations

import asyncio
import contextvars
import os
import secrets
import sqlite3
import warnings
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import ray
from ray.exceptions import RayActorError, RayError

from kaas.config import Config
from kaas.errors import ConfigMismatch, InvalidConfig, KaasError, PoolStopped
from kaas.pool import wire
from kaas.pool.core import Pool
from kaas.pool.etasks import ETasks
from kaas.pool.functions import RegisteredFunction
from kaas.pool.ray_transport import Orders, Payload, RayTransport
from kaas.pool.readiness import Readiness
from kaas.pool.registry import Registry
from kaas.pool.resident import Resident
from kaas.pool.residents import Placed, Residents
from kaas.pool.stats import Stats
from kaas.pool.status import Status
from kaas.pool.transport import Call, Order
from kaas.pool.turns import Turns
from kaas.store import ACCOUNTS, FAULTS, FUNCTIONS, TASKS, SqliteStore, Store

KEPT_PER_SWEEP = 64
"""How many outputs on the devices are looked at for each that is kept: whether somebody can still name them."""


class PoolActor:
    """What drivers talk to: the core behind Ray calls."""

    def __init__(self, name: str, config: Config) -> None:
        self._name = name
        self._config = config
        self._life = secrets.token_hex(8)
        self._attached = False
        self._again = started_again()
        self._passing = (ACCOUNTS,) if config.store is not None else (ACCOUNTS, FAULTS, FUNCTIONS, TASKS)
        self._store: Store | None = None
        self._registry: Registry | None = None
        self._opening: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._etasks = ETasks()
        self._turns = Turns()
        self._pool: Pool | None = None
        self._readiness: Readiness | None = None
        self._residents: Residents | None = None
        self._kept = 0  # since it was last asked who can be named
        self._sessions: dict[str, asyncio.Event] = {}
        self._waits: set[asyncio.Future[Any]] = set()  # for what `upkeep` is about
        self._open_calls = 0
        self._all_answered = asyncio.Event()

    async def attach(self, wanted: Config | None) -> bool:
        """Open the pool with the first driver, which is told so; compare configurations with later ones.

        Raises:
            ConfigMismatch; PoolStopped: it is about to end.
        """
        if self._stopping.is_set():
            await self._silence()
            raise PoolStopped(f"pool {self._name!r} is shut down", pool=self._name)
        differences = wanted.differences(self._config) if wanted is not None else ()
        if differences:
            raise ConfigMismatch(
                f"pool {self._name!r} runs with another configuration: {', '.join(differences)} differ",
                pool=self._name,
                differences=differences,
            )
        await self._opened()
        first = not (self._attached or self._again)
        self._attached = True
        return first

    async def next_life(self, known: str | None = None) -> str:
        """Returns "" when the pool stops, and fails when it ends without that. Who says which of its lives is known is
        told of another one at once."""
        await self._opened()
        if known not in (None, self._life):
            return self._life
        await self._stopping.wait()
        return ""

    async def attended(self, session: str) -> None:
        """Returns when a session has ended, or the pool stops; its reference belongs to the session's process."""
        await self._sessions.setdefault(session, asyncio.Event()).wait()

    async def attend(self, session: str, alive: Sequence[Any]) -> None:
        """Returns when a session has ended, or the pool stops. alive: what `attended` gave it: waiting for that fails
        with its owner."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        owner = asyncio.ensure_future(_existence(alive[0]))
        await asyncio.wait((owner, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not owner.done():
            owner.cancel()
            return
        try:
            await owner
        except RayActorError:
            pass  # it is the pool that had ended: nobody knows more of the session
        except RayError:
            self._sessions.pop(session, asyncio.Event()).set()
            (await self._opened()).session_ended(session)

    async def _opened(self) -> Pool:
        """The core, which the first call makes: not __init__, which Ray runs outside the event loop."""
        if self._pool is None:
            if self._opening is None:  # not in the context of that call: Ray cancels what a cancelled one has begun
                context = contextvars.Context()
                self._opening = asyncio.get_running_loop().create_task(self._open(), context=context)
            await asyncio.shield(self._opening)
        assert self._pool is not None, "opened"
        return self._pool

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        self._readiness = Readiness(loop, existing)
        self._residents = Residents(loop)
        own = ray.get_runtime_context().current_actor
        transport = RayTransport(self._config, self._readiness, self._residents, self._etasks, self._name, own)
        pool = Pool(self._name, self._config, transport)
        self._store = store = opened_store(self._config.store, self._name)
        if not self._again:
            store.clear(*self._passing)
        self._registry = Registry(store, ray.put)
        pool.open(await transport.survivors() if self._again else (), store)
        self._pool = pool

    async def register(self, spec: bytes, task: bytes) -> None:
        """Make a function known; once more changes nothing."""
        await self._opened()
        assert self._registry is not None, "made together with the pool"
        self._registry.register(spec, task)

    async def invoke(self, message: bytes, refs: Sequence[Any] = ()) -> Any:
        """Run one invocation: the output's value, or a tuple of several in declared order."""
        self._open_calls += 1
        task = ray.get_runtime_context().get_task_id
        try:
            return await self._invoke(message, refs, task)
        finally:
            self._answered()

    async def register_etask(self, spec: bytes, code: bytes) -> None:
        """Make an eTask known; once more changes nothing."""
        self._etasks.register(spec, code)

    @ray.method(max_task_retries=0)  # what it runs may change the world
    async def call(self, message: bytes, refs: Sequence[Any] = ()) -> Any:
        """Run one call of an eTask: what it returned."""
        self._open_calls += 1
        try:
            header = wire.decode_etask_call(message)
            await self._turns.take(header.caller, header.number)
            etask = await self._etasks.get(header.function)
            pool = await self._opened()
            assert self._readiness is not None, "made together with the pool"
            ready = None if header.ready else self._readiness.of(refs)
            return await pool.submit(etask.call(header, message, refs), ready)
        finally:
            self._answered()

    async def upkeep(self, message: bytes, refs: Sequence[Any]) -> None:
        """Do something to the caches, once what it is about is complete."""
        self._open_calls += 1
        try:
            upkeep = wire.decode_upkeep(message)
            pool = await self._opened()
            functions = [await self._function(key) for key in upkeep.functions]
            assert self._readiness is not None, "made together with the pool"
            incomplete = None if upkeep.ready else self._readiness.of(refs)
            if incomplete is not None:
                await self._unless_stopped(incomplete)
            target = refs[0].binary() if upkeep.objects else "".join(upkeep.functions).encode()
            label = ", ".join(dict.fromkeys(function.label for function in functions))
            order = Order(Orders(functions, message, refs), label, upkeep.client)
            if upkeep.action == "unpin":
                pool.unpin(target or None, upkeep.device)
            if upkeep.action == "pin":
                await pool.pin(target, order, upkeep.device)
            else:
                await pool.upkeep(order, upkeep.device)
        finally:
            self._answered()

    async def _unless_stopped(self, wait: asyncio.Future[Any]) -> None:
        """
        Raises:
            PoolStopped: nobody waits for it any more.
        """
        self._waits.add(wait)
        try:
            await asyncio.wait([wait])
        finally:
            self._waits.discard(wait)
        if wait.cancelled() or isinstance(wait.exception(), asyncio.CancelledError):
            raise PoolStopped(f"pool {self._name!r} was shut down", pool=self._name)
        wait.result()

    def _answered(self) -> None:
        self._open_calls -= 1
        if not self._open_calls:
            self._all_answered.set()

    async def _invoke(self, message: bytes, refs: Sequence[Any], task: Callable[[], str | None]) -> Any:
        invocation = wire.decode_invocation(message)
        keep = output_ids(bytes.fromhex(task() or ""), invocation.keep) if invocation.keep else {}
        pool = self._pool or await self._opened()
        function = await self._function(invocation.function)
        assert self._readiness is not None, "made together with the pool"
        ready = None if invocation.ready else self._readiness.of(refs)
        call = Call(
            label=function.label,
            client=invocation.client,
            deadline_s=invocation.deadline_s,
            retries=invocation.retries,
            uses=function.uses(invocation, refs),
            payload=Payload(function, message, refs, keep),
            function=function.key,
            session=invocation.session,
        )
        outputs = await (self._submit_keeping(pool, call, ready) if keep else pool.submit(call, ready))
        return outputs[0] if len(outputs) == 1 else outputs

    # --- outputs that stay on devices

    async def _submit_keeping(self, pool: Pool, call: Call, ready: Awaitable[Any] | None) -> tuple[Any, ...]:
        assert self._residents is not None, "made together with the pool"
        payload: Payload = call.payload
        keys = () if payload.function.inline else payload.keep.values()
        for key in keys:
            self._residents.expect(key, payload)
        try:
            outputs = await pool.submit(call, ready)
        except BaseException:
            self._residents.forget(keys)
            raise
        own = ray.get_runtime_context().current_actor
        self._tidy(pool, own, len(keys))
        function = payload.function
        layouts = zip(outputs, function.outputs, function.output_bytes, strict=True)
        return tuple(
            self._resident(own, value, dtype, shape, nbytes) if isinstance(value, Placed) else value
            for value, (dtype, shape), nbytes in layouts
        )

    def _resident(self, own: Any, placed: Placed, dtype: str, shape: tuple[int, ...], nbytes: int) -> Resident:
        assert self._residents is not None, "made together with the pool"
        value = own.materialise.remote(placed.key)
        self._residents.named(placed.key, value.hex())
        return Resident(shape, dtype, nbytes, placed.device, placed.key, value, own)

    def _tidy(self, pool: Pool, own: Any, kept: int) -> None:
        """Has forgotten what nobody can name any more, now and then, and written back what is too much."""
        assert self._residents is not None, "made together with the pool"
        self._kept += kept
        if self._kept > len(self._residents) // KEPT_PER_SWEEP:
            self._kept = 0
            for worker, keys in self._residents.nameless(references()).items():
                pool.discard(worker, keys)
        surplus = self._residents.surplus()
        if surplus is not None:
            own.wanted.remote(surplus)

    async def materialise(self, key: bytes) -> Any:
        """The array of an output that stays on a device, once somebody has asked for it or it had to leave. The pool
        calls this itself, so that it owns the result, and Ray knows who can name it."""
        assert self._residents is not None, "made together with the pool"
        return await self._residents.value(key)

    async def wanted(self, key: bytes) -> None:
        """Somebody waits for what `materialise` gives."""
        worker = None if self._residents is None else self._residents.ask(key)
        if worker is None:
            return
        assert self._residents is not None, "it knew the worker"
        try:
            await (await self._opened()).write_back(worker, key)
        except KaasError:
            self._residents.lost(key)  # whatever is wrong with the device, it can be computed anew

    async def _function(self, key: str) -> RegisteredFunction:
        assert self._registry is not None, "made together with the pool"
        return self._registry.get(key) or await self._registry.registered(key)

    async def status(self) -> Status:
        pool = await self._opened()
        assert self._registry is not None, "made together with the pool"
        return replace(pool.status(self._registry.labels), pid=os.getpid())

    async def pardon(self, function: str) -> bool:
        return (await self._opened()).pardon(function)

    async def stats(self, reset: bool) -> Stats:
        return (await self._opened()).stats(reset)

    async def stop(self) -> None:
        """Answer all who wait, end the executors and forget. The caller then ends this actor."""
        pool = await self._opened()
        self._stopping.set()
        for ended in self._sessions.values():
            ended.set()
        await pool.close()
        for wait in self._waits:
            wait.cancel()
        assert self._store is not None, "made together with the pool"
        self._store.clear(*self._passing)
        await self._silence()

    async def _silence(self) -> None:
        """Until all who wait are answered."""
        if self._open_calls:
            self._all_answered.clear()
            await self._all_answered.wait()


async def _existence(ref: Any) -> None:
    """Until a reference has a value; raises what it has instead."""
    await ref


def output_ids(task: bytes, positions: Iterable[int]) -> dict[int, bytes]:
    """Ids of the objects that a Ray task gives, by position: caches know an output by that of its ObjectRef."""
    return {position: task + (position + 1).to_bytes(4, "little") for position in positions}


def references() -> dict[str, Any]:
    """The objects of this process's references, and those that it owns and others refer to. Ray has no public call that
    says when an object goes; this is what `ray memory` asks."""
    worker: Any = ray._private.worker.global_worker
    known: dict[bytes, Any] = worker.core_worker.get_all_reference_counts()
    return {name.decode(): counts for name, counts in known.items()}


def started_again() -> bool:
    """Whether this actor's process replaces one that ended."""
    with warnings.catch_warnings():  # Ray's own use of what it deprecates
        warnings.simplefilter("ignore")
        again: bool = ray.get_runtime_context().was_current_actor_reconstructed
    return again


def opened_store(wanted: str | Store | None, pool: str) -> Store:
    """What `Config.store` means on this machine.

    Raises:
        InvalidConfig
    """
    if wanted is None:
        node: Any = ray._private.worker._global_node
        wanted = str(Path(node.get_session_dir_path(), "kaas", f"{quote(pool, safe='')}.sqlite"))
    store = SqliteStore(wanted) if isinstance(wanted, str) else wanted
    try:
        store.open()
    except (OSError, sqlite3.Error) as error:
        raise InvalidConfig(f"store {wanted!r} cannot be opened: {error}", field="store") from error
    return store


def existing(refs: Sequence[Any], enough: int, timeout_s: float) -> tuple[list[Any], list[Any]]:
    """The references whose objects exist, or whose tasks failed, and the others. Nothing is fetched."""
    done, rest = ray.wait(list(refs), num_returns=enough, timeout=timeout_s, fetch_local=False)
    return done, rest

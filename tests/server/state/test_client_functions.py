"""Functions that remote clients have registered: their own, with constants, and there again after a restart."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import kaas
from kaas.errors import (
    InvalidGraph,
    InvalidRequest,
    KaasError,
    MissingContent,
    NotAllowed,
    QuotaExceeded,
    UnexpectedInput,
    UnknownFunction,
    UnknownObject,
    WrongDtype,
    WrongSize,
)
from kaas.ktask.graph import KTask
from kaas.server.building import function_builder
from kaas.server.clients.allow import Allowed
from kaas.server.replies import plain
from kaas.server.state import client_functions as functions_module
from kaas.server.usage.quotas import Quotas
from kaas.store import SqliteStore
from kaas.wire import protocol
from kaas.wire import specs as pool_wire
from kaas.wire.sent_ktasks import encode_library, encode_task
from tests.api.conftest import STEPS, N, add_task, both_task, numbers, scale_task
from tests.server.building.test_uploads import files
from tests.server.state.states import Had

A, B = numbers(seed=1), numbers(seed=2)
OTHER = kaas.Library.from_ptx(STEPS.images[0].data + b"\n// another\n")
FLOATS = ("float32", (N,))


def listed(had: Had, client: str) -> list[dict[str, Any]]:
    told = protocol.decode_from_server(protocol.encode(had.functions.list(client, protocol.Functions(8))))
    assert isinstance(told, protocol.Listed)
    return told.entries


def names(had: Had, client: str) -> list[str]:
    return [entry["name"] for entry in listed(had, client)]


def test_a_function_is_known_by_name_and_key_after_a_restart(tmp_path: Path) -> None:
    task = scale_task()

    async def restart_scenario() -> None:
        async with Had(tmp_path) as had:
            registered = await had.register("ada", task, "scale")
            assert registered == protocol.Registered(3, task.key, {"x": FLOATS}, {"y": FLOATS}, {"factor": "f32"})
        async with Had(tmp_path) as had:
            function = had.functions.named("ada", "scale")
            assert function is had.functions.named("ada", task.key)
            assert (function.name, function.key, function.constants) == ("scale", task.key, None)
            assert (list(function.given), function.outputs, function.iterations) == (["x"], ("y",), "")
            known = had.registry.get(function.function.key)
            assert known is function.function
            assert known.introduction[1] == task.to_msgpack()
            for client, name in (("bob", "scale"), ("bob", task.key), ("ada", "Scale"), ("ada", "x" * 10_000)):
                with pytest.raises(UnknownFunction) as caught:
                    had.functions.named(client, name)
                assert len(caught.value.function) <= 200
            assert listed(had, "bob") == []
            (entry,) = listed(had, "ada")
            assert entry == {
                "name": "scale",
                "function": task.key,
                "task": task.key,
                "label": task.label,
                "inputs": {"x": [*map(plain, FLOATS)]},
                "outputs": {"y": [*map(plain, FLOATS)]},
                "scalars": {"factor": "f32"},
                "constants": {},
                "before": "",
                "after": "",
                "bytes": len(task.to_msgpack()),
            }
            assert had.held["ada", "libraries"] > len(task.to_msgpack())

    asyncio.run(restart_scenario())


def test_constants_are_bound_by_their_value(tmp_path: Path) -> None:
    """They outlive their names, and a function has those of its registration."""

    async def restart_scenario() -> None:
        async with Had(tmp_path) as had:
            await had.put("ada", "first", A)
            registered = await had.register("ada", add_task(), "plus", {"b": "first"})
            assert (list(registered.inputs), registered.function != add_task().key) == (["a"], True)
            await had.put("ada", "first", B)
            await had.values.delete("ada", protocol.Delete(1, "first"))
            await had.put("ada", "first", B)
            other = await had.register("ada", add_task(), "other", {"b": "first"})
            assert other.function != registered.function
            stored = had.held["ada", "objects"]
            assert stored == 2 * (64 << 10)
        async with Had(tmp_path) as had:
            for name, value in (("plus", A), ("other", B)):
                function = had.functions.named("ada", name)
                assert function.constants is not None
                assert bytes(had.objects.view(function.constants)) == value.tobytes()
                assert function.function.spec.bindings == (pool_wire.Binding("b", 0),)
                assert list(function.given) == ["a"]
            assert had.held["ada", "objects"] == stored
            await had.functions.unregister("ada", protocol.Unregister(9, "plus"))
            assert had.held["ada", "objects"] == 64 << 10

    asyncio.run(restart_scenario())


def test_one_value_for_two_inputs_is_held_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path) as had:
            await had.put("ada", "x", A)
            await had.put("ada", "again", A)
            await had.register("ada", add_task(), "double", {"a": "x", "b": "again"})
            function = had.functions.named("ada", "double")
            assert [binding.entry for binding in function.function.spec.bindings] == [0, 0]
            assert function.constants is not None
            assert len(function.constants.blocks) == 1
            assert function.given == {}

    asyncio.run(scenario())


def test_a_name_can_be_given_to_another_function(tmp_path: Path) -> None:
    async def restart_scenario() -> None:
        async with Had(tmp_path) as had:
            await had.register("ada", scale_task(), "f")
            await had.register("ada", add_task(), "f")
            assert had.functions.named("ada", "f").function.spec.task_key == add_task().key
            assert list(had.registry.labels) == ["f of ada"]
            with pytest.raises(UnknownFunction):
                had.functions.named("ada", scale_task().key)
        async with Had(tmp_path) as had:
            assert names(had, "ada") == ["f"]
            assert had.functions.named("ada", "f").function.spec.task_key == add_task().key

    asyncio.run(restart_scenario())


def test_functions_are_unregistered_by_name_or_key(tmp_path: Path) -> None:
    async def restart_scenario() -> None:
        async with Had(tmp_path) as had:
            for name in ("", "f", "g"):
                await had.register("ada", scale_task(), name)
            await had.register("bob", scale_task(), "f")
            charged = had.held["ada", "libraries"]
            assert await had.functions.unregister("ada", protocol.Unregister(9, "f")) == protocol.Done(9)
            assert names(had, "ada") == ["", "g"]
            assert had.held["ada", "libraries"] == charged - len(scale_task().to_msgpack())
            await had.functions.unregister("ada", protocol.Unregister(9, scale_task().key))
            assert names(had, "ada") == []
            for name in ("f", scale_task().key):
                with pytest.raises(UnknownFunction):
                    await had.functions.unregister("ada", protocol.Unregister(9, name))
            assert list(had.registry.labels) == ["f of bob"]  # bob has it
            await had.functions.unregister("bob", protocol.Unregister(9, "f"))
            assert not had.registry.labels
        async with Had(tmp_path) as had:
            assert names(had, "ada") == names(had, "bob") == []

    asyncio.run(restart_scenario())


def test_functions_of_the_same_task_are_each_their_owners(tmp_path: Path) -> None:
    """Otherwise one client's inputs could bring it into quarantine for all. Its bytes are stored once."""
    task = scale_task()

    async def scenario() -> None:
        async with Had(tmp_path) as had:
            for client in ("ada", "bob"):
                await had.register(client, task, "f")
            had.registry.register(pool_wire.encode(pool_wire.FunctionSpec(task.key)), task.to_msgpack())
            ada, bob = (had.functions.named(client, "f").function for client in ("ada", "bob"))
            assert len({ada.key, bob.key, task.key}) == 3
            assert ada.introduction[1] is bob.introduction[1]
            for client in ("ada", "bob"):
                await had.functions.unregister(client, protocol.Unregister(9, "f"))
            assert (had.registry.get(ada.key), had.registry.get(bob.key)) == (None, None)
            assert had.registry.get(task.key) is not None

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (protocol.Register(1, "a\0b"), InvalidRequest),
        (protocol.Register(1, "x" * 101), InvalidRequest),
        (protocol.Register(1, "../../etc/passwd"), InvalidRequest),
        (protocol.Register(1, "name\n"), InvalidRequest),
        (protocol.Register(1, "0123456789abcdef" * 4), InvalidRequest),
        (protocol.Register(1, "f", before="os:system"), InvalidRequest),
        (protocol.Register(1, "f", after="../step"), InvalidRequest),
        (protocol.Register(1, "f", {"b": "unknown"}), UnknownObject),
        (protocol.Register(1, "f", {"strange": "x"}), UnexpectedInput),
        (protocol.Register(1, "f", {"c": "x"}), UnexpectedInput),
        (protocol.Register(1, "f", {"b": "short"}), WrongSize),
        (protocol.Register(1, "f", {"b": "ints"}), WrongDtype),
    ],
)
def test_senseless_registrations(message: protocol.Register, error: type[KaasError], tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path, steps=frozenset({"known"})) as had:
            await had.upload("ada", encode_library(STEPS), "library")
            for name, value in (("x", A), ("short", A[1:]), ("ints", A.astype(np.int32))):
                await had.put("ada", name, value)
            held = dict(had.held)
            with pytest.raises(error) as caught:
                await had.functions.register("ada", message, encode_task(add_task()))
            assert len(caught.value.message) < 1000
            assert (had.held, listed(had, "ada"), had.registry.labels) == (held, [], ())
            await had.functions.register("ada", protocol.Register(1, before="known"), encode_task(add_task()))

    asyncio.run(scenario())


def test_each_client_uploads_the_libraries_that_it_uses(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path) as had:
            await had.register("ada", add_task(), "f")
            with pytest.raises(MissingContent) as caught:
                await had.functions.register("bob", protocol.Register(1, "f"), encode_task(add_task()))
            assert caught.value.hashes == (STEPS.hash,)
            await had.upload("bob", encode_library(STEPS), "library")
            await had.functions.register("bob", protocol.Register(1, "f"), encode_task(add_task()))
            with pytest.raises(InvalidGraph):
                await had.functions.register("bob", protocol.Register(1, "f"), b"nothing")
            value = await had.upload("ada", encode_library(OTHER))
            x = kaas.Buffer("x", 4, "float32")
            task = kaas.KTask([kaas.Kernel(OTHER, "add", 1, 4, [kaas.InOut(x)])], [x])
            assert value == OTHER.hash
            with pytest.raises(MissingContent):  # it is there, but as a value
                await had.functions.register("ada", protocol.Register(1), encode_task(task))

    asyncio.run(scenario())


def test_code_that_is_no_longer_allowed_does_not_run(tmp_path: Path) -> None:
    async def restart_scenario() -> None:
        async with Had(tmp_path, allowed=Allowed(hashes=frozenset({add_task().key}))) as had:
            await had.register("ada", add_task(), "f")
        async with Had(tmp_path, allowed=Allowed()) as had:
            with pytest.raises(NotAllowed):
                had.functions.named("ada", "f")
            assert not had.registry.labels
            (entry,) = listed(had, "ada")
            assert "list of code" in entry["error"]
            with pytest.raises(NotAllowed):
                await had.functions.register("ada", protocol.Register(1, "g"), encode_task(add_task()))
        async with Had(tmp_path) as had:
            assert had.functions.named("ada", "f").function.spec.task_key == add_task().key
        async with Had(tmp_path, allowed=Allowed()) as had:
            await had.functions.unregister("ada", protocol.Unregister(1, "f"))
            assert listed(had, "ada") == []

    asyncio.run(restart_scenario())


def test_libraries_in_use_do_not_give_way(tmp_path: Path) -> None:
    code, task = encode_library(STEPS), both_task()
    enough = 2 * (64 << 10) + len(task.to_msgpack())

    async def scenario() -> None:
        async with Had(tmp_path, {"ada": Quotas(library_bytes=enough)}) as had:
            await had.upload("ada", encode_library(OTHER), "library")
            await had.register("ada", task, "f")
            assert had.held["ada", "libraries"] == enough
            await had.upload("ada", code + b"", "library")
            third = kaas.Library.from_ptx(STEPS.images[0].data + b"\n// a third\n")
            await had.upload("ada", encode_library(third), "library")
            assert files(tmp_path) == sorted((STEPS.hash, third.hash))
            room = (enough - had.held["ada", "libraries"] + (64 << 10)) // len(add_task().to_msgpack())
            for number in range(room):
                await had.register("ada", add_task(N * (2 + number)), f"g{number}")
            with pytest.raises(QuotaExceeded) as caught:
                await had.register("ada", add_task(), "one-more")
            assert caught.value.quota == "library_bytes"
            assert had.functions.named("ada", "f").function.spec.task_key == task.key
            assert had.held["ada", "libraries"] <= enough

    asyncio.run(scenario())


def test_a_client_has_a_limited_number_of_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions_module, "MOST_FUNCTIONS", 2)

    async def scenario() -> None:
        async with Had(tmp_path) as had:
            for name in "ab":
                await had.register("ada", scale_task(), name)
            held = dict(had.held)
            with pytest.raises(QuotaExceeded):
                await had.register("ada", add_task(), "c")
            assert (had.held, list(had.registry.labels)) == (held, ["a of ada", "b of ada"])
            await had.register("ada", add_task(), "a")

    asyncio.run(scenario())


def test_concurrent_registrations_of_one_name_make_one_function(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path) as had:
            await asyncio.gather(*(had.register("ada", scale_task(), "f") for _ in range(5)))
            assert names(had, "ada") == ["f"]
            await had.functions.unregister("ada", protocol.Unregister(1, "f"))
            assert not had.registry.labels

    asyncio.run(scenario())


@pytest.mark.processes
def test_unused_buffers_of_a_sent_task_are_not_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path) as had:
            plain = await had.register("ada", add_task(), "f")
            sent = msgspec.msgpack.decode(encode_task(add_task()))
            sent["buffers"] += [{"name": f"unused {number}", "shape": [1], "dtype": "int8"} for number in range(10_000)]
            more = protocol.Register(3, "g")
            assert (await had.functions.register("ada", more, msgspec.msgpack.encode(sent))).function == plain.function
            f, g = had.state.read("remote functions", functions_module._decode)
            assert f.task == g.task

    asyncio.run(scenario())


def test_a_scalar_can_set_the_number_of_iterations(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path) as had:
            await had.register("ada", scale_task(iterations=kaas.Scalar("times", "i32")), "f")
            function = had.functions.named("ada", "f")
            assert (function.iterations, set(function.scalars)) == ("times", {"times", "factor"})

    asyncio.run(scenario())


def test_a_change_that_cannot_be_stored_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async def scenario() -> None:
        async with Had(tmp_path) as had:
            await had.put("ada", "x", A)
            await had.upload("ada", encode_library(STEPS), "library")
            await had.register("ada", scale_task(), "f")
            held = dict(had.held)
            with monkeypatch.context() as patch:
                patch.setattr(SqliteStore, "put_all", full)
                patch.setattr(SqliteStore, "remove", full)
                for doing in (
                    had.functions.register("ada", protocol.Register(1, "g"), encode_task(add_task())),
                    had.functions.unregister("ada", protocol.Unregister(1, "f")),
                    had.put("ada", "y", B),
                    had.put("ada", "x", A),
                    had.values.delete("ada", protocol.Delete(1, "x")),
                ):
                    with pytest.raises(KaasError, match="disk is full"):
                        await doing
            assert (had.held, names(had, "ada"), len(had.registry.labels)) == (held, ["f"], 1)
            assert await had.get("ada", "x") == A.tobytes()

    asyncio.run(scenario())


def test_a_registered_function_is_not_built_again_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither listing nor looking up builds it: its facts are stored."""
    task = both_task()

    def built(*_: object) -> KTask:
        raise AssertionError("a kTask is built again")

    async def restart_scenario() -> None:
        async with Had(tmp_path) as had:
            await had.put("ada", "b", B)
            await had.register("ada", task, "both")
            await had.register("ada", add_task(), "bound", {"b": "b"})
            before = listed(had, "ada")
        monkeypatch.setattr(KTask, "__init__", built)
        async with Had(tmp_path) as had:
            assert listed(had, "ada") == before
            function = had.functions.named("ada", "both")
            assert function.function.introduction[1] == task.to_msgpack()
            assert had.functions.named("ada", "bound").function.spec.bindings == (pool_wire.Binding("b", 0),)

    asyncio.run(restart_scenario())


def test_a_function_that_an_earlier_version_has_kept_is_built_once_more(tmp_path: Path) -> None:
    async def restart_scenario() -> None:
        async with Had(tmp_path) as had:
            await had.register("ada", scale_task(), "scale")
            (kept,) = had.state.read(
                functions_module.KIND, msgspec.msgpack.Decoder(function_builder.FunctionRow).decode
            )
            old = msgspec.msgpack.encode(msgspec.msgpack.decode(msgspec.msgpack.encode(kept))[:-1])
            had.state.put(functions_module.KIND, "ada", "scale", old)
        for _ in range(2):
            async with Had(tmp_path) as had:
                assert had.functions.named("ada", "scale").function.spec.task_key == scale_task().key
                (kept,) = had.state.read(
                    functions_module.KIND, msgspec.msgpack.Decoder(function_builder.FunctionRow).decode
                )
                assert kept.facts is not None

    asyncio.run(restart_scenario())

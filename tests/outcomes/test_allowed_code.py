"""A list of allowed code names whole kTasks: with one on the list, a client runs that one and no other launch."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import kaas
from kaas.errors import NotAllowed
from kaas.server.clients.allow import Allowed
from kaas.wire.signing import public_key, sign
from tests.api.conftest import STEPS, add_task, scale_task
from tests.server.state.states import Had

N = 1000
TASK = scale_task(N)
SECRET, OTHERS = (Ed25519PrivateKey.from_private_bytes(bytes([value]) * 32) for value in range(2))


def launched(grid: int = 4, count: Any = N, n: int = N, name: str | None = None) -> kaas.KTask:
    """TASK with one change that a client might choose."""
    x, y = kaas.Buffer("x", n, "float32"), kaas.Buffer("y", n, "float32")
    args: list[Any] = [kaas.In(x), kaas.Out(y), kaas.Scalar("factor", "f32"), kaas.i32(count)]
    return kaas.KTask([kaas.Kernel(STEPS, "scale", grid, 256, args)], [y], name=name)


OTHER_LAUNCHES = {
    "another grid": launched(grid=400),
    "another literal": launched(count=1 << 20),
    "smaller buffers": launched(n=1),
    "another kernel": add_task(),
    "another name": launched(name="mine"),
}


def registered(folder: Path, allowed: Allowed, task: kaas.KTask, signature: bytes = b"") -> str:
    async def scenario() -> str:
        async with Had(folder, allowed=allowed) as had:
            return (await had.register("ada", task, signature=signature)).function

    return asyncio.run(scenario())


def test_a_listed_ktask_is_registered(tmp_path: Path) -> None:
    assert launched().key == TASK.key
    assert registered(tmp_path, Allowed(hashes=frozenset({TASK.key})), launched()) == TASK.key


@pytest.mark.parametrize("task", OTHER_LAUNCHES.values(), ids=OTHER_LAUNCHES)
def test_another_launch_of_a_listed_ktasks_library_needs_a_signature(tmp_path: Path, task: kaas.KTask) -> None:
    allowed = Allowed(hashes=frozenset({TASK.key}), signers=(public_key(SECRET),))
    for signature in (b"", sign(SECRET, TASK.key), sign(OTHERS, task.key), sign(SECRET, STEPS.hash), b"short"):
        with pytest.raises(NotAllowed) as caught:
            registered(tmp_path, allowed, task, signature)
        assert caught.value.task == task.key
    assert registered(tmp_path, allowed, task, sign(SECRET, task.key)) == task.key


def test_the_hash_of_a_library_allows_nothing_and_the_error_names_the_key(tmp_path: Path) -> None:
    for hashes in (STEPS.hash, "0" * 64):
        with pytest.raises(NotAllowed, match=rf"Its key is {TASK.key}: the operator lists that under code.hashes"):
            registered(tmp_path, Allowed(hashes=frozenset({hashes})), TASK)


def test_libraries_are_allowed_for_any_launch_by_their_own_option(tmp_path: Path) -> None:
    for task in OTHER_LAUNCHES.values():
        assert registered(tmp_path, Allowed(libraries=frozenset({STEPS.hash})), task) == task.key

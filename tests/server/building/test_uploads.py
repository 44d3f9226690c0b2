"""Uploads of remote clients are resumed, verified, counted, and separate for each client."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from kaas.errors import (
    CorruptImage,
    InvalidConfig,
    InvalidRequest,
    KaasError,
    MissingContent,
    NotAllowed,
    QueueFull,
    QuotaExceeded,
    WrongContent,
)
from kaas.ktask.images import Image, Provided
from kaas.ktask.library import Library
from kaas.server.building.uploads import MOST_WAITING
from kaas.server.clients.allow import Allowed
from kaas.server.state.blob_store import GRAIN_BYTES, MOST_CONTENTS
from kaas.server.state.state_folder import State
from kaas.server.usage.quotas import Quotas
from kaas.wire import protocol
from kaas.wire.sent_ktasks import encode_library
from kaas.wire.signing import public_key
from tests.api.conftest import STEPS
from tests.server.state.states import Had, hash_of

LARGE = np.random.default_rng(0).bytes(300_000)
SECRET = Ed25519PrivateKey.from_private_bytes(bytes(32))


async def offered(had: Had, client: str, data: bytes, kind: str = "value") -> int:
    return (await had.uploads.offer(client, protocol.Upload(1, hash_of(data), len(data), kind))).offset


async def chunk(had: Had, client: str, data: bytes, begin: int, end: int) -> int:
    answer = await had.uploads.chunk(client, protocol.Chunk(2, hash_of(data), begin), memoryview(data)[begin:end])
    assert answer.number == 2
    return answer.offset


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "contents").rglob("*") if path.is_file())


def test_an_upload_resumes_at_its_offset_after_a_restart(tmp_path: Path) -> None:
    async def first() -> None:
        async with Had(tmp_path) as had:
            assert await offered(had, "ada", LARGE) == 0
            assert await chunk(had, "ada", LARGE, 0, 100_000) == 100_000
            assert await chunk(had, "ada", LARGE, 100_000, 100_001) == 100_001
            assert await offered(had, "ada", LARGE) == 100_001

    async def second() -> None:
        async with Had(tmp_path) as had:
            assert had.held == {("ada", "objects"): len(LARGE)}
            assert await offered(had, "ada", LARGE) == 100_001
            assert await chunk(had, "ada", LARGE, 100_001, len(LARGE)) == len(LARGE)
            assert await offered(had, "ada", LARGE) == len(LARGE)
            assert files(tmp_path) == [hash_of(LARGE)]

    asyncio.run(first())
    asyncio.run(second())


def test_a_full_but_unverified_upload_waits_for_its_last_byte_after_a_restart(tmp_path: Path) -> None:
    async def restart_scenario() -> None:
        async with Had(tmp_path) as had:
            await offered(had, "ada", LARGE)
            part = had.uploads.blobs.find("ada", hash_of(LARGE))
            assert part is not None
            part.part.write_bytes(LARGE[:-1] + b"!")
        async with Had(tmp_path) as had:
            assert await offered(had, "ada", LARGE) == len(LARGE) - 1
            await chunk(had, "ada", LARGE, len(LARGE) - 1, len(LARGE))
            assert part.path.read_bytes() == LARGE

    asyncio.run(restart_scenario())


@given(st.data())
def test_a_complete_upload_is_right_after_any_chunks(data: st.DataObject) -> None:
    """In any order, over each other, beyond the end: right or refused."""
    whole = data.draw(st.binary(min_size=1, max_size=200))

    async def scenario(folder: Path) -> None:
        async with Had(folder) as had:
            have = await offered(had, "ada", whole)
            for _ in range(data.draw(st.integers(0, 12))):
                begin = data.draw(st.integers(-1, len(whole) + 1))
                end = data.draw(st.integers(max(0, begin), len(whole) + 3))
                part = (whole + b"beyond")[max(0, begin) : end]
                message = protocol.Chunk(2, hash_of(whole), begin)
                if begin == have and end > max(begin, len(whole)):
                    with pytest.raises(InvalidRequest, match="go beyond"):
                        await had.uploads.chunk("ada", message, part)
                else:
                    now = (await had.uploads.chunk("ada", message, part)).offset
                    assert now == (begin + len(part) if begin == have else have)
                    have = now
                assert await offered(had, "ada", whole) == have
            await chunk(had, "ada", whole, have, len(whole))
            content = had.uploads.blobs.complete("ada", hash_of(whole), "value")
            assert content is not None
            assert content.path.read_bytes() == whole

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(scenario(Path(folder)))


def test_concurrent_chunks_are_kept_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path) as had:
            await offered(had, "ada", LARGE)
            step = len(LARGE) // 10
            coming = [chunk(had, "ada", LARGE, begin, begin + step) for begin in range(0, len(LARGE), step)]
            assert await asyncio.gather(*coming) == list(range(step, len(LARGE) + 1, step))

    asyncio.run(scenario())


def test_an_upload_continues_after_the_wait_for_a_chunk_is_cancelled(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path) as had:
            await offered(had, "ada", LARGE)
            first = asyncio.ensure_future(chunk(had, "ada", LARGE, 0, 200_000))
            await asyncio.sleep(0)
            first.cancel()
            assert await chunk(had, "ada", LARGE, 200_000, len(LARGE)) == len(LARGE)

    asyncio.run(scenario())


def test_too_many_chunks_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path) as had:
            await offered(had, "ada", LARGE)
            coming = [chunk(had, "ada", LARGE, 0, 1000) for _ in range(MOST_WAITING + 1)]
            answers = await asyncio.gather(*coming, return_exceptions=True)
            assert answers[:-1] == [1000] * MOST_WAITING
            assert isinstance(answers[-1], QueueFull)
            assert await chunk(had, "ada", LARGE, 0, 1000) == 1000

    asyncio.run(scenario())


def test_other_bytes_than_announced_are_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path) as had:
            await had.uploads.offer("ada", protocol.Upload(1, hash_of(b"good"), 4, "value"))
            with pytest.raises(WrongContent) as caught:
                await had.uploads.chunk("ada", protocol.Chunk(2, hash_of(b"good"), 0), b"evil")
            assert (caught.value.hash, caught.value.found) == (hash_of(b"good"), hash_of(b"evil"))
            assert files(tmp_path) == []
            assert had.held["ada", "objects"] == 0
            with pytest.raises(MissingContent):
                await had.uploads.chunk("ada", protocol.Chunk(2, hash_of(b"good"), 0), b"good")
            assert await offered(had, "ada", b"good") == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "change",
    [
        {"hash": "../../etc/passwd"},
        {"hash": hash_of(b"").upper()},
        {"hash": hash_of(b"") + "\n"},
        {"hash": ""},
        {"kind": "file"},
        {"bytes": 0},
        {"bytes": -1},
        {"bytes": 1 << 62},
        {"kind": "library", "signature": bytes(65)},
    ],
)
def test_senseless_offers(change: dict[str, Any], tmp_path: Path) -> None:
    fields: dict[str, Any] = {"number": 1, "hash": hash_of(LARGE), "bytes": len(LARGE), "kind": "value"} | change

    async def scenario() -> None:
        async with Had(tmp_path) as had:
            with pytest.raises(InvalidRequest):
                await had.uploads.offer("ada", protocol.Upload(**fields))
            assert files(tmp_path) == []

    asyncio.run(scenario())


def test_an_upload_cannot_change_its_kind_or_size(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path) as had:
            await offered(had, "ada", LARGE)
            with pytest.raises(InvalidRequest, match="has begun as"):
                await had.uploads.offer("ada", protocol.Upload(1, hash_of(LARGE), len(LARGE), "library"))
            await had.upload("ada", LARGE)
            with pytest.raises(InvalidRequest, match="has begun as"):
                await had.uploads.offer("ada", protocol.Upload(1, hash_of(LARGE), len(LARGE) + 1, "value"))

    asyncio.run(scenario())


@pytest.mark.parametrize("announced", [1 << 16, len(LARGE) + 1])
def test_a_client_can_begin_anew_after_it_announced_a_wrong_size(announced: int, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path) as had:
            offer = protocol.Upload(1, hash_of(LARGE), announced, "value")
            await had.uploads.offer("ada", offer)
            await had.uploads.chunk("ada", protocol.Chunk(2, hash_of(LARGE), 0), LARGE[:1000])
            assert await had.upload("ada", LARGE) == hash_of(LARGE)
            assert had.held["ada", "objects"] == len(LARGE)

    asyncio.run(scenario())


def test_a_name_of_a_client_is_no_path(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path / "state") as had:
            for client in ("../../outside", "/root", "a/b", ".", "ada\0"):
                await had.upload(client, LARGE)

    asyncio.run(scenario())
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert len(files(tmp_path / "state")) == 5


# --- clients learn nothing about others


def test_a_client_does_not_see_another_clients_uploads(tmp_path: Path) -> None:
    """Offers, errors and counts do not depend on other clients' uploads."""

    async def scenario() -> None:
        async with Had(tmp_path) as had:
            await had.upload("ada", LARGE)
            assert await offered(had, "bob", LARGE) == 0
            assert had.uploads.blobs.complete("bob", hash_of(LARGE), "value") is None
            with pytest.raises(MissingContent) as missing:
                await had.values.put("bob", protocol.Put(1, "x", "uint8", (len(LARGE),), hash_of(LARGE)), None)
            with pytest.raises(MissingContent) as unknown:
                await had.values.put("bob", protocol.Put(1, "x", "uint8", (3,), hash_of(b"???")), None)
            assert missing.value.message.replace(hash_of(LARGE), "") == unknown.value.message.replace(
                hash_of(b"???"), ""
            )
            await had.upload("bob", LARGE)
            assert had.held["ada", "objects"] == had.held["bob", "objects"] == len(LARGE)

    asyncio.run(scenario())


# --- quotas


def test_unused_uploads_give_way_and_used_ones_do_not(tmp_path: Path) -> None:
    a, b, c = (bytes([value]) * GRAIN_BYTES for value in range(3))

    async def scenario() -> None:
        async with Had(tmp_path, {"ada": Quotas(stored_bytes=2 * GRAIN_BYTES)}) as had:
            await had.upload("ada", a)
            await had.upload("ada", b)
            await offered(had, "ada", a)  # so that b is the oldest
            await had.upload("ada", c)
            assert files(tmp_path) == sorted(map(hash_of, (a, c)))
            for name, data in (("a", a), ("c", c)):
                await had.values.put("ada", protocol.Put(1, name, "uint8", (GRAIN_BYTES,), hash_of(data)), None)
            with pytest.raises(QuotaExceeded) as caught:
                await offered(had, "ada", b)
            error = caught.value
            assert (error.client, error.quota, error.limit, error.used) == (
                "ada",
                "stored_bytes",
                2 * GRAIN_BYTES,
                2 * GRAIN_BYTES,
            )
            assert files(tmp_path) == sorted(map(hash_of, (a, c)))
            await had.upload("bob", b)
            assert await offered(had, "ada", encode_library(STEPS), "library") == 0

    asyncio.run(scenario())


def test_an_upload_beyond_the_quota_evicts_no_other_upload(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path, {"ada": Quotas(stored_bytes=2 * GRAIN_BYTES)}) as had:
            await had.upload("ada", b"small")
            with pytest.raises(QuotaExceeded):
                await offered(had, "ada", bytes(2 * GRAIN_BYTES + 1))
            assert files(tmp_path) == [hash_of(b"small")]
            assert await offered(had, "ada", bytes(2 * GRAIN_BYTES)) == 0
            assert files(tmp_path) == []

    asyncio.run(scenario())


def test_a_client_has_a_limited_number_of_uploads(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path) as had:
            for number in range(MOST_CONTENTS + 1):
                await offered(had, "ada", str(number).encode())
            assert await offered(had, "ada", b"1") == 0
            with pytest.raises(MissingContent):
                await chunk(had, "ada", b"0", 0, 1)
            assert had.held["ada", "objects"] == MOST_CONTENTS * GRAIN_BYTES

    asyncio.run(scenario())


@pytest.mark.parametrize(("number", "goes_on"), [(5, True), (28, False)])
def test_the_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, goes_on: bool) -> None:
    """The error names no file of the server's. The upload can go on; on a full disk it has given its room back."""

    def failed(*_: object) -> int:
        raise OSError(number, os.strerror(number), str(tmp_path))

    async def scenario() -> None:
        async with Had(tmp_path) as had:
            await offered(had, "ada", LARGE)
            await chunk(had, "ada", LARGE, 0, 1000)
            with monkeypatch.context() as patch:
                patch.setattr(os, "pwrite", failed)
                with pytest.raises(KaasError) as caught:
                    await chunk(had, "ada", LARGE, 1000, 2000)
            assert os.strerror(number) in caught.value.message
            assert str(tmp_path) not in caught.value.message
            if goes_on:
                assert await chunk(had, "ada", LARGE, 1000, len(LARGE)) == len(LARGE)
            else:
                assert files(tmp_path) == []
                assert await had.upload("ada", LARGE)

    asyncio.run(scenario())


# --- libraries


def test_a_library_is_uploaded_as_the_bytes_that_its_hash_covers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path) as had:
            assert await had.upload("ada", encode_library(STEPS), "library") == STEPS.hash
            assert await had.uploads.library("ada", STEPS.hash) == STEPS
            with pytest.raises(MissingContent):
                await had.uploads.library("bob", STEPS.hash)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "data",
    [
        b"no library at all",
        b"ptx:3:abc",
        b"ptx:99:.version .target",
        b"exe:3:abc",
        b"ptx:",
        b":::",
        b"cubin:4:\x7fELF",
        encode_library(STEPS) + b"more",
        encode_library(STEPS).replace(b"ptx:", b"ptx:0", 1),
        b"ptx:17:.version .target\n" * 65,
    ],
)
def test_bytes_that_are_no_library_are_refused(data: bytes, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path) as had:
            with pytest.raises(CorruptImage):
                await had.upload("ada", data, "library")
            assert files(tmp_path) == []

    asyncio.run(scenario())


def test_unterminated_comments_are_read_once() -> None:
    """Two million bytes, each pair of which could begin a comment: looked through once, not once for each."""
    assert Library.from_ptx(b".version .target" + b"/*" * 1_000_000).nbytes == 2_000_016


OTHER = Library.from_ptx(STEPS.images[0].data + b"\n// another\n")
BOTH = OTHER | STEPS
NAMED = Library.provided("kaas", "blas", "1")
STEPS_IMAGE = hash_of(STEPS.images[0].data)


@pytest.mark.parametrize(
    ("allowed", "library", "taken"),
    [
        (Allowed(), STEPS, False),
        (Allowed(any=True), STEPS, True),
        (Allowed(libraries=frozenset({STEPS.hash})), STEPS, True),
        (Allowed(libraries=frozenset({STEPS_IMAGE})), STEPS, True),
        (Allowed(libraries=frozenset({STEPS.hash})), OTHER, False),
        (Allowed(libraries=frozenset({STEPS_IMAGE})), BOTH, False),
        (Allowed(hashes=frozenset({"0" * 64})), STEPS, True),
        (Allowed(signers=(public_key(SECRET),)), STEPS, True),
        (Allowed(any=True), NAMED, False),
        (Allowed(any=True, providers=frozenset({"other"})), NAMED, False),
        (Allowed(providers=frozenset({"kaas"})), NAMED, True),
        (Allowed(providers=frozenset({"kaas"})), NAMED | STEPS, False),
        (Allowed(libraries=frozenset({NAMED.hash})), NAMED, False),
        (Allowed(hashes=frozenset({"0" * 64})), NAMED, False),
    ],
)
def test_only_allowed_libraries_are_accepted(allowed: Allowed, library: Library, taken: bool, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path, allowed=allowed) as had:
            if taken:
                await had.upload("ada", encode_library(library), "library")
                assert await had.uploads.library("ada", library.hash) == library
                return
            with pytest.raises(NotAllowed) as caught:
                await had.upload("ada", encode_library(library), "library")
            assert caught.value.library == library.hash
            assert files(tmp_path) == []

    asyncio.run(scenario())


def test_a_provider_is_not_reached_by_another_spelling(tmp_path: Path) -> None:
    """The checked library is the one that an executor requests."""
    image = Provided("kaas", "blas", "1").image()
    strange = Image("provided", image.data + b"\0more")

    async def scenario() -> None:
        async with Had(tmp_path, allowed=Allowed(any=True, providers=frozenset({"kaas"}))) as had:
            data = f"provided:{len(strange.data)}:".encode() + strange.data
            with pytest.raises(CorruptImage):
                await had.upload("ada", data, "library")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "wrong", [{"hashes": frozenset({"ABC"})}, {"libraries": frozenset({"ABC"})}, {"signers": (b"short",)}]
)
def test_malformed_permissions_of_code_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        Allowed(**wrong)


# --- the folder


def test_a_state_folder_has_one_server_and_is_private_to_its_user(tmp_path: Path) -> None:
    first = State(tmp_path / "state")
    first.open()
    with pytest.raises(InvalidConfig, match="another server"):
        State(tmp_path / "state").open()
    first.close()
    again = State(tmp_path / "state")
    again.open()
    again.close()
    for mode in (0o755, 0o750, 0o701):
        (tmp_path / "state").chmod(mode)
        with pytest.raises(InvalidConfig, match="open to other users"):
            State(tmp_path / "state").open()
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidConfig, match="cannot be used"):
        State(tmp_path / "file" / "state").open()


def test_unknown_files_are_removed_at_a_restart(tmp_path: Path) -> None:
    async def restart_scenario() -> None:
        async with Had(tmp_path) as had:
            await had.upload("ada", LARGE)
            content = had.uploads.blobs.find("ada", hash_of(LARGE))
            assert content is not None
            content.path.with_name("strange").write_text("left by nobody")
            await had.upload("bob", LARGE)
            had.state.folder_of("bob").joinpath(hash_of(LARGE)).unlink()
        async with Had(tmp_path) as had:
            assert files(tmp_path) == [hash_of(LARGE)]
            assert await offered(had, "ada", LARGE) == len(LARGE)
            assert await offered(had, "bob", LARGE) == 0

    asyncio.run(restart_scenario())

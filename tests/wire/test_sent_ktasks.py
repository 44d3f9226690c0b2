"""kTasks and libraries as remote clients send them."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kaas
from kaas.errors import CorruptImage, InvalidGraph, KaasError
from kaas.ktask import codec
from kaas.ktask.images import Image
from kaas.ktask.library import Library
from kaas.wire.sent_ktasks import (
    MOST_DIMENSIONS,
    MOST_IMAGES,
    MOST_OUTPUTS,
    TASK_BYTES,
    decode_images,
    decode_task,
    encode_library,
    encode_task,
)
from tests.api.conftest import STEPS, add_task, both_task, scale_task

OTHER = Library.from_ptx(STEPS.images[0].data + b"\n// another\n")


def test_a_task_travels_without_its_code() -> None:
    for task in (add_task(), both_task(), scale_task(name="a name"), scale_task(iterations=kaas.Scalar("n", "i32"))):
        data = encode_task(task)
        assert len(data) < 2000 < STEPS.nbytes
        sent = decode_task(memoryview(data))
        assert sent.libraries == (STEPS.hash,)
        built = sent.built({STEPS.hash: STEPS})
        assert (built, built.libraries, built.to_msgpack()) == (task, (STEPS,), task.to_msgpack())


def test_a_task_of_several_libraries_names_each_once() -> None:
    x, y, z = (kaas.Buffer(name, 4, "float32") for name in "xyz")
    kernels = [
        kaas.Kernel(library, "add", 1, 4, [kaas.In(a), kaas.In(a), kaas.Out(b), kaas.i32(4)])
        for library, a, b in ((STEPS, x, y), (OTHER, y, z), (STEPS, z, x))
    ]
    sent = decode_task(encode_task(kaas.KTask(kernels, ["x"])))
    assert sent.libraries == (STEPS.hash, OTHER.hash)


def changed(**fields: Any) -> bytes:
    content: dict[str, Any] = {"kaas": codec.FORMAT, **codec.content(add_task()), **fields}
    return msgspec.msgpack.encode({name: value for name, value in content.items() if value is not None})


def shaped(shape: list[int]) -> bytes:
    buffers = [dict(buffer, shape=shape) for buffer in codec.content(add_task())["buffers"]]
    return changed(buffers=buffers)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        msgspec.msgpack.encode([1, 2]),
        msgspec.msgpack.encode({}),
        changed(kaas=2),
        changed(kernels=None),
        changed(kernels=[{"kernel": {}}]),
        changed(kernels=[]),
        changed(outputs=["c"] * (MOST_OUTPUTS + 1)),
        changed(outputs=["c", "c"]),
        changed(outputs=["unknown"]),
        changed(outputs=[7]),
        changed(buffers=[]),
        changed(iterations=-1),
        changed(name=""),
        changed(name=7),
        changed(later="field"),
        changed(libraries={}),
        shaped([1 << 61, 1 << 61]),
        shaped([-1]),
        shaped([1] * (MOST_DIMENSIONS + 1)),
        shaped([(1 << 64) - 1] * 1000),
    ],
)
def test_a_malformed_ktask_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidGraph):
        decode_task(data).built({STEPS.hash: STEPS})


def test_a_task_has_a_limit() -> None:
    with pytest.raises(InvalidGraph, match="at most"):
        decode_task(bytes(TASK_BYTES + 1))


@given(st.data())
def test_any_change_is_a_task_or_an_error_of_ours(data: st.DataObject) -> None:
    whole = bytearray(encode_task(data.draw(st.sampled_from([add_task(), both_task(), scale_task(name="x")]))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = whole[: data.draw(st.integers(len(whole) - 3, len(whole)))]
    try:
        sent = decode_task(bytes(cut))
        built = sent.built(dict.fromkeys(sent.libraries, STEPS))
    except KaasError:
        return
    assert isinstance(built, kaas.KTask)


# --- libraries


def test_a_library_is_encoded_as_the_bytes_of_its_hash() -> None:
    for library in (STEPS, OTHER | STEPS, Library.provided("kaas", "blas", "1")):
        data = encode_library(library)
        assert hashlib.sha256(data).hexdigest() == library.hash
        assert decode_images(data) == library.images


kinds = st.text("abcdefgh", min_size=1, max_size=8)


@given(st.lists(st.tuples(kinds, st.binary(max_size=20)), min_size=1, max_size=5))
def test_images_of_any_bytes_are_decoded_unchanged(parts: list[tuple[str, bytes]]) -> None:
    data = b"".join(f"{kind}:{len(part)}:".encode() + part for kind, part in parts)
    assert decode_images(memoryview(data)) == tuple(Image(kind, part) for kind, part in parts)


@given(st.binary(max_size=60) | st.text(":0123456789ptx", max_size=40).map(str.encode))
def test_any_bytes_are_images_of_this_hash_or_none(data: bytes) -> None:
    """Nothing is read in two ways: what is taken is encoded to the same bytes again."""
    try:
        images = decode_images(data)
    except CorruptImage:
        return
    assert b"".join(f"{image.kind}:{len(image.data)}:".encode() + image.data for image in images) == data


@pytest.mark.parametrize("data", [b"a:0:" * (MOST_IMAGES + 1), b"a:1:", b"a:99999999999999999999999:x", b"a:-1:", b"a"])
def test_senseless_libraries(data: bytes) -> None:
    with pytest.raises(CorruptImage):
        decode_images(data)

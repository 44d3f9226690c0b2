"""A kTask survives every encoding, and its content hash is frozen."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kaas
from kaas.errors import DuplicateBuffer, InvalidGraph, KaasError
from tests.ktask.strategies import PTX, ktasks

LIBRARY = kaas.Library.from_ptx(PTX)
A, B, C = (kaas.Buffer(name, (4, 4), "float32") for name in "ABC")

ROUND_TRIPS: dict[str, Callable[[kaas.KTask], kaas.KTask]] = {
    "pickle": lambda task: pickle.loads(pickle.dumps(task)),
    "copy": copy.deepcopy,
    "dict": lambda task: kaas.KTask.from_dict(task.to_dict()),
    "json": lambda task: kaas.KTask.from_json(task.to_json()),
    "msgpack": lambda task: kaas.KTask.from_msgpack(task.to_msgpack()),
}


@pytest.mark.parametrize("way", ROUND_TRIPS)
@given(task=ktasks())
def test_round_trip(way: str, task: kaas.KTask) -> None:
    back = ROUND_TRIPS[way](task)
    assert back == task
    assert hash(back) == hash(task)
    parts = (
        "kernels",
        "outputs",
        "iterations",
        "name",
        "inputs",
        "temporaries",
        "edges",
        "scalars",
        "key",
        "libraries",
    )
    for part in parts:
        assert getattr(back, part) == getattr(task, part)
    assert [lib.images for lib in back.libraries] == [lib.images for lib in task.libraries]


def simple() -> kaas.KTask:
    return kaas.KTask([kaas.Kernel(LIBRARY, "k", 2, 64, [kaas.In(A), kaas.Out(B), kaas.i32(-7)])], [B])


def everything() -> kaas.KTask:
    """Return a kTask with every kind of argument, and with no field at its default."""
    zero = kaas.Buffer("zero", (), "float64", init="zero")
    table = kaas.Pointers([kaas.In(A), kaas.Out(C)])
    struct = kaas.Struct(bytes(range(64)), {0: kaas.In(A, 16), 8: table}, {40: kaas.Scalar("beta", "f64")}, align=64)
    values = [kaas.Null, kaas.boolean(True), kaas.bf16(1.5), kaas.c64(1 - 2j), kaas.f16(0.1), kaas.u8(255)]
    kernels = [
        kaas.Kernel(LIBRARY, "first", (2, 3, 4), (8, 4, 2), [struct, kaas.Scalar("alpha", "f32"), *values], 4096),
        kaas.Kernel(LIBRARY, "second", 1, 32, [kaas.InOut(zero), kaas.Pointers([kaas.In(C, 4), kaas.InOut(B)])]),
    ]
    return kaas.KTask(kernels, [zero, B, "C"], kaas.Scalar("n", "u16"), "everything · ✓")


def repeated() -> kaas.KTask:
    return kaas.KTask([kaas.Kernel(LIBRARY, "k", 1, 32, [kaas.InOut(A)])], ["A"], iterations=3, name="repeated")


GOLDEN = {
    simple: "b01b9e1a51f32f2392658d98545fc0aac1997614e58406297c96f418e564013d",
    everything: "7ddb8d93b0b158983b9fb309488807308e2e0a0029d4d6a8ffc9823aa9fbcc99",
    repeated: "fa2790009d85ec93586e4f810158239109583ad51fd1b2edbb7c51358be654e1",
}
"""Content hashes as first released. They are the keys of caches and stores: a change here loses what users stored."""


@pytest.mark.parametrize("make", GOLDEN, ids=lambda make: str(make.__name__))
def test_hash_is_frozen(make: Callable[[], kaas.KTask]) -> None:
    assert make().key == GOLDEN[make]


def test_hash_covers_everything_that_matters() -> None:
    k = LIBRARY
    other = kaas.Library.from_ptx(PTX + "//")
    args = [kaas.In(A), kaas.Out(B)]
    tasks = [
        kaas.KTask([kaas.Kernel(k, "k", 1, 32, args)], [B]),
        kaas.KTask([kaas.Kernel(other, "k", 1, 32, args)], [B]),
        kaas.KTask([kaas.Kernel(k, "l", 1, 32, args)], [B]),
        kaas.KTask([kaas.Kernel(k, "k", 2, 32, args)], [B]),
        kaas.KTask([kaas.Kernel(k, "k", 1, 64, args)], [B]),
        kaas.KTask([kaas.Kernel(k, "k", 1, 32, args, 16)], [B]),
        kaas.KTask([kaas.Kernel(k, "k", 1, 32, [kaas.In(A, 4), kaas.Out(B)])], [B]),
        kaas.KTask([kaas.Kernel(k, "k", 1, 32, [kaas.In(A), kaas.InOut(B)])], [B]),
        kaas.KTask([kaas.Kernel(k, "k", 1, 32, [*args, kaas.i32(1)])], [B]),
        kaas.KTask([kaas.Kernel(k, "k", 1, 32, [*args, kaas.u32(1)])], [B]),
        kaas.KTask([kaas.Kernel(k, "k", 1, 32, args)], [B], iterations=2),
        kaas.KTask([kaas.Kernel(k, "k", 1, 32, args)], [B], name="named"),
    ]
    assert len({task.key for task in tasks}) == len(tasks)


def test_patched_bytes_of_a_struct_do_not_count() -> None:
    def task(garbage: bytes, rest: bytes) -> kaas.KTask:
        struct = kaas.Struct(garbage + rest, {0: kaas.Out(A)}, {8: kaas.Scalar("x", "f32")})
        return kaas.KTask([kaas.Kernel(LIBRARY, "k", 1, 32, [struct])], [A])

    assert task(b"\1" * 12, b"rest") == task(b"\2" * 12, b"rest")
    assert task(b"\1" * 12, b"rest") != task(b"\1" * 12, b"REST")


def test_json_is_json_with_images_in_base64() -> None:
    data = json.loads(everything().to_json())
    assert data["kaas"] == 1
    assert set(data) == {"kaas", "buffers", "kernels", "outputs", "name", "iterations", "libraries"}
    (images,) = data["libraries"].values()
    assert images[0]["kind"] == "ptx"
    assert isinstance(images[0]["data"], str)


def broken(**changes: Any) -> dict[str, Any]:
    return simple().to_dict() | changes


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        broken(kaas=2),
        broken(kernels=None),
        broken(kernels=[{"loop": {}}]),
        broken(later="field"),
        broken(buffers=[{"name": "A"}]),
        broken(libraries={}),
        broken(outputs=3),
        broken(iterations={"scalar": "n"}),
        broken(iterations="many"),
        broken(libraries={LIBRARY.hash: [{"kind": "ptx", "data": PTX.encode() + b"//other"}]}),
        broken(libraries={LIBRARY.hash: [{"kind": "ptx", "data": PTX}]}),
    ],
    ids=str,
)
def test_malformed_dicts_are_refused_by_type(data: Any) -> None:
    with pytest.raises(InvalidGraph):
        kaas.KTask.from_dict(data)


@pytest.mark.parametrize(
    "argument",
    ["x", None, {"nothing": 1}, {"in": "no such buffer"}, {"struct": "zz"}, {"literal": "i32", "hex": "00"}],
    ids=str,
)
def test_malformed_arguments_are_refused_by_type(argument: Any) -> None:
    data = simple().to_dict()
    data["kernels"][0]["kernel"]["args"] = [argument]
    with pytest.raises(InvalidGraph):
        kaas.KTask.from_dict(data)


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[]", "{}", '{"kaas": 1, "libraries": {"x": [{"data": "?"}]}}', b"\xff", '{"a":' * 100_000],
    ids=lambda text: repr(text[:20]),
)
def test_malformed_json_is_refused_by_type(text: str | bytes) -> None:
    with pytest.raises(InvalidGraph):
        kaas.KTask.from_json(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "it has no 'kaas', no 'buffers', no 'kernels', no 'outputs', no 'libraries'"),
        ("[]", "not a list"),
        ('{"kaas": 9}', "written in format 9"),
        ('{"kaas":1,"buffers":[{"name":"a"}],"kernels":[],"outputs":[],"libraries":{}}', "'shape' is missing"),
    ],
)
def test_a_malformed_file_is_refused_with_its_missing_fields(text: str, words: str) -> None:
    with pytest.raises(InvalidGraph, match=words):
        kaas.KTask.from_json(text)


@pytest.mark.parametrize("cut", [0, 1, 10, -1])
def test_truncated_msgpack_is_refused_by_type(cut: int) -> None:
    with pytest.raises(InvalidGraph):
        kaas.KTask.from_msgpack(simple().to_msgpack()[:cut])


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3),
    st.builds(list), st.builds(dict), st.builds(lambda: [[1]]), st.builds(lambda: {"in": "A"}),
)  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """Yield every (container, key) inside nested dicts and lists."""
    keys: list[Any] = (
        list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    )
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


@given(data=st.data())
def test_any_damage_gives_a_task_or_a_typed_error(data: st.DataObject) -> None:
    encoded = everything().to_dict()
    for _ in range(data.draw(st.integers(1, 2))):
        container, key = data.draw(st.sampled_from(places(encoded)))
        if isinstance(container, dict) and data.draw(st.booleans()):
            del container[key]
        else:
            container[key] = data.draw(JUNK)
    try:
        task = kaas.KTask.from_dict(encoded)
    except KaasError:
        return
    assert kaas.KTask.from_json(task.to_json()) == task


def test_two_buffers_of_one_name_in_a_file() -> None:
    kernel = kaas.Kernel(LIBRARY, "k", 1, 1, [kaas.In(A), kaas.Out(B)])
    data = kaas.KTask([kernel], [B]).to_dict()
    data["buffers"].append({**data["buffers"][0], "shape": [12345]})
    with pytest.raises(DuplicateBuffer):
        kaas.KTask.from_dict(data)

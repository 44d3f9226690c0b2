"""Invocations as messages: inline values, references, and the same inputs at the executor as at the driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import (
    InvalidRequest,
    MissingInput,
    MissingScalar,
    NotContiguous,
    UnexpectedInput,
    WrongDtype,
    WrongScalar,
    WrongSize,
)
from kaas.executor.device.device import open_device
from kaas.executor.inputs import InputSource
from kaas.wire import specs
from kaas.wire.packing import (
    CallOptions,
    FunctionSignature,
    bind,
    bind_variants,
    choose_signature,
    constant_key,
    pack,
    unpack,
)
from tests.api.conftest import N, add_task, numbers, scale_task
from tests.api.models import LARGEST, adder, inputs
from tests.exporters import DeviceArray, Exporter


@dataclass(frozen=True, eq=False)
class Ref:
    """A reference to a value in this process."""

    number: int
    value: Any
    complete: bool = True

    def binary(self) -> bytes:
        return self.number.to_bytes(28, "little")


class FakeStore:
    def __init__(self) -> None:
        self.stored: list[Any] = []

    def is_ref(self, value: Any) -> bool:
        return isinstance(value, Ref)

    def put(self, value: Any) -> Ref:
        self.stored.append(value)
        return Ref(1000 + len(self.stored), value)

    def complete(self, refs: Sequence[Ref]) -> bool:
        return all(ref.complete for ref in refs)


def get(value: Any) -> Any:
    return value.value if isinstance(value, Ref) else value


ALICE = CallOptions("alice", deadline_s=2.5, retries=1)


def sent(
    signature: FunctionSignature,
    inputs: dict[str, Any],
    *,
    constants: Any = None,
    awaited: Sequence[Ref] = (),
    **scalars: Any,
) -> tuple[specs.Invocation, list[Any], FakeStore]:
    store = FakeStore()
    message, refs = pack(signature, inputs, scalars, ALICE, store, constants, awaited)
    return specs.decode_invocation(message), refs, store


def received(signature: FunctionSignature, invocation: specs.Invocation, refs: list[Any]) -> dict[str, InputSource]:
    return unpack(invocation, signature.spec, refs, get)


def test_small_values_travel_inside() -> None:
    signature = FunctionSignature.of(scale_task())
    invocation, refs, store = sent(signature, {"x": numbers()}, factor=2.0)
    assert (refs, store.stored) == ([], [])
    assert invocation.scalars == {"factor": np.float32(2).tobytes()}
    assert (invocation.client, invocation.deadline_s, invocation.retries) == ("alice", 2.5, 1)
    source = received(signature, invocation, refs)["x"]
    assert source == InputSource(value=numbers().tobytes())


def test_large_values_pass_through_the_store_without_a_name() -> None:
    n = specs.INLINE_INPUT_BYTES // 4 + 1
    signature = FunctionSignature.of(add_task(n))
    small = np.ones(n, np.float32)[: n - 2]
    with pytest.raises(WrongSize):
        sent(signature, {"a": small, "b": small})
    invocation, refs, store = sent(signature, {"a": numbers(n), "b": kaas.View(numbers(n + 1), 4)})
    assert len(store.stored) == len(refs) == 2
    sources = received(signature, invocation, refs)
    assert sources["a"].key is None
    assert bytes(sources["a"].value) == numbers(n).tobytes()
    assert bytes(sources["b"].value) == numbers(n + 1)[1:].tobytes()
    assert sources["b"].offset_bytes is None
    assert invocation.ready


@pytest.fixture
def exporters(softgpu: tuple[int, ...]) -> Iterator[list[Exporter]]:  # noqa: ARG001
    """The same numbers as another library's, on the host and on a device."""
    device = open_device("software", 0)
    yield [Exporter(numbers()), DeviceArray(device, 0, numbers())]
    device.close()


def test_arrays_of_other_libraries_travel_as_their_bytes(exporters: list[Exporter]) -> None:
    signature = FunctionSignature.of(scale_task())
    for value in exporters:
        invocation, refs, _ = sent(signature, {"x": value}, factor=2.0)
        assert received(signature, invocation, refs)["x"] == InputSource(value=numbers().tobytes())
        with pytest.raises(WrongSize):
            sent(signature, {"x": kaas.View(value, 4)}, factor=2.0)


def test_arrays_of_other_libraries_are_kept_as_numpy_arrays(exporters: list[Exporter]) -> None:
    for value in exporters:
        signature, objects = bind(add_task(), {"a": value, "b": kaas.View(value)}, FakeStore())
        (kept,) = objects
        assert isinstance(kept, np.ndarray)
        np.testing.assert_array_equal(kept, numbers())
        assert [binding.entry for binding in signature.spec.bindings] == [0, 0]
    with pytest.raises(WrongDtype):
        bind(add_task(), {"a": Exporter(numbers().astype(np.float64)), "b": Ref(1, None)}, FakeStore())


def test_references_are_named_and_sent_once() -> None:
    signature = FunctionSignature.of(add_task())
    shared = Ref(1, numbers(2 * N))
    views = {"a": kaas.View(shared), "b": kaas.View(shared, 4 * N)}
    invocation, refs, _ = sent(signature, views)
    assert refs == [shared]
    sources = received(signature, invocation, refs)
    assert [sources[name].key for name in "ab"] == [shared.binary()] * 2
    assert [sources[name].offset_bytes for name in "ab"] == [0, 4 * N]
    fetch = sources["b"].fetch
    assert fetch is not None
    assert fetch() is shared.value


@pytest.mark.parametrize("complete", [True, False])
def test_the_driver_reports_whether_references_are_complete(complete: bool) -> None:
    signature = FunctionSignature.of(scale_task())
    assert sent(signature, {"x": Ref(1, numbers(), complete)}, factor=1.0)[0].ready is complete


def test_constants_travel_as_one_reference() -> None:
    weights, bias = numbers(2 * N), Ref(7, numbers())
    signature, objects = bind(add_task(), {"a": kaas.View(weights, 4 * N), "b": bias}, FakeStore())
    assert objects == (weights, bias)
    assert signature.given == {}
    constants = Ref(9, objects)
    invocation, refs, _ = sent(signature, {}, constants=constants)
    assert refs == [constants]
    sources = received(signature, invocation, refs)
    assert sources["a"].key == constant_key(constants, 0) != sources["b"].key
    assert sources["a"].offset_bytes == 4 * N
    fetched = [sources[name].fetch for name in "ab"]
    assert [fetch() is value for fetch, value in zip(fetched, (weights, bias.value), strict=True) if fetch] == [
        True
    ] * 2


def test_constant_for_two_buffers_is_one_object() -> None:
    shared = numbers(2 * N)
    signature, objects = bind(add_task(), {"a": kaas.View(shared), "b": kaas.View(shared, 4 * N)}, FakeStore())
    assert len(objects) == 1
    assert [binding.entry for binding in signature.spec.bindings] == [0, 0]


def test_constants_that_are_not_complete_are_awaited() -> None:
    late = Ref(7, numbers(), complete=False)
    signature, objects = bind(scale_task(), {"x": late}, FakeStore())
    constants = Ref(9, objects)
    invocation, refs, _ = sent(signature, {}, constants=constants, awaited=[late], factor=1.0)
    assert not invocation.ready
    assert refs == [constants, late]


def test_functions_are_known_by_kernels_and_constants_names() -> None:
    store = FakeStore()
    plain = FunctionSignature.of(add_task())
    one, _ = bind(add_task(), {"a": numbers(seed=1)}, store)
    same, _ = bind(add_task(), {"a": numbers(seed=2)}, store)
    other, _ = bind(add_task(), {"b": numbers()}, store)
    assert plain.key == add_task().key
    assert one.key == same.key
    assert len({plain.key, one.key, other.key}) == 3
    assert specs.decode_function(specs.encode(one.spec)) == one.spec


def test_variants_find_their_constants_in_one_tuple() -> None:
    model = adder(1, LARGEST)
    signatures, objects = bind_variants(model.variants, model.constants, FakeStore())
    bindings = [{b.buffer: b.entry for b in signature.spec.bindings} for signature in signatures]
    assert [set(entries) for entries in bindings] == [{"w"}, {"w", "v"}]
    assert bindings[0]["w"] == bindings[1]["w"]
    assert len(objects) == 2
    for batch, expected in zip((1, LARGEST), signatures, strict=True):
        given = inputs(batch)
        chosen, read = choose_signature("adder", signatures, [given["x"]], {"mask": given["mask"]}, FakeStore())
        assert chosen is expected
        assert read.keys() == {"x"} == chosen.given.keys()  # no kernel reads the mask
    with pytest.raises(NotContiguous, match="'mask'"):
        choose_signature("adder", signatures, [given["x"], np.zeros((LARGEST, 2), np.bool_)[:, 0]], {}, FakeStore())


BAD: list[tuple[dict[str, Any], dict[str, Any], type[InvalidRequest], dict[str, Any]]] = [
    ({}, {"factor": 1.0}, MissingInput, {"buffer": "x"}),
    ({"x": numbers(), "z": 1}, {"factor": 1.0}, UnexpectedInput, {"buffer": "z"}),
    ({"xx": numbers()}, {"factor": 1.0}, UnexpectedInput, {"near": ("x",)}),
    ({"x": numbers(N - 1)}, {"factor": 1.0}, WrongSize, {"expected_bytes": 4 * N, "given_bytes": 4 * N - 4}),
    ({"x": kaas.View(numbers(), 8)}, {"factor": 1.0}, WrongSize, {"given_bytes": 4 * N - 8}),
    ({"x": numbers().astype(np.float64)}, {"factor": 1.0}, WrongDtype, {"expected": "float32", "given": "float64"}),
    ({"x": numbers(2 * N)[::2]}, {"factor": 1.0}, NotContiguous, {"buffer": "x"}),
    ({"x": object()}, {"factor": 1.0}, NotContiguous, {"buffer": "x"}),
    ({"x": numbers()}, {}, MissingScalar, {"scalar": "factor"}),
    ({"x": numbers()}, {"factor": "two"}, WrongScalar, {"scalar": "factor", "kind": "f32"}),
    ({"x": numbers()}, {"factor": 1.0, "other": 1}, WrongScalar, {"scalar": "other"}),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[2].__name__)
def test_faults_that_the_driver_sees(
    case: tuple[dict[str, Any], dict[str, Any], type[InvalidRequest], dict[str, Any]],
) -> None:
    inputs, scalars, expected, fields = case
    with pytest.raises(expected) as caught:
        sent(FunctionSignature.of(scale_task()), inputs, **scalars)
    assert fields.items() <= caught.value.fields.items()


def test_faults_in_constants() -> None:
    with pytest.raises(UnexpectedInput):
        bind(add_task(), {"q": numbers()}, FakeStore())
    with pytest.raises(WrongSize):
        bind(add_task(), {"a": numbers(3)}, FakeStore())
    signature, _ = bind(add_task(), {"a": numbers()}, FakeStore())
    with pytest.raises(UnexpectedInput, match="bound to a constant"):
        sent(signature, {"a": numbers(), "b": numbers()})
    with pytest.raises(MissingInput):
        sent(signature, {})

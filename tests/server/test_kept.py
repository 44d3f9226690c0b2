"""Functions, objects and uploads at a server: kept when it is killed, each client's own, and only allowed code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as replaced

import kaas
from kaas.client.client import Client
from kaas.errors import NotAllowed
from kaas.wire import protocol
from kaas.wire.sent_ktasks import encode_library, encode_task
from kaas.wire.signing import new_signer, sign, signer
from tests.api.conftest import STEPS, N, add_task, numbers
from tests.server.servers import Server, Speaker
from tests.server.state.states import hash_of

pytestmark = pytest.mark.processes

A, B = numbers(seed=1), numbers(seed=2)
LARGE = np.random.default_rng(0).bytes(3 << 20)
CODE = encode_library(STEPS)


def put(speaker: Speaker, name: str, array: Any) -> None:
    speaker.reply_to(
        protocol.Done,
        protocol.Put(speaker.number(), name, array.dtype.name, array.shape),
        array.tobytes(),
    )


def upload(speaker: Speaker, data: bytes, begin: int, end: int, kind: str = "value") -> int:
    """A part of it; where it stands then."""
    at = speaker.reply_to(protocol.Uploaded, protocol.Upload(speaker.number(), hash_of(data), len(data), kind))[
        0
    ].offset
    assert at == begin
    message = protocol.Chunk(speaker.number(), hash_of(data), begin)
    return speaker.reply_to(protocol.Uploaded, message, data[begin:end])[0].offset


def error(speaker: Speaker, message: protocol.FromClient, *frames: Any) -> str:
    return speaker.reply_to(protocol.Failure, message, *frames)[0].error


def results(speaker: Speaker, message: protocol.Invoke, *frames: Any) -> list[Any]:
    return [np.frombuffer(frame, np.float32) for frame in speaker.reply_to(protocol.Result, message, *frames)[1]]


def test_a_killed_server_keeps_its_clients_functions_objects_and_uploads(serve: Callable[..., Server]) -> None:
    first = serve()
    alice = first.speaker("alice")
    upload(alice, CODE, 0, len(CODE), "library")
    put(alice, "b", B)
    told, _ = alice.reply_to(
        protocol.Registered,
        protocol.Register(alice.number(), "plus", {"b": "b"}),
        encode_task(add_task()),
    )
    plain, _ = alice.reply_to(protocol.Registered, protocol.Register(alice.number()), encode_task(add_task()))
    assert plain.function == add_task().key != told.function
    put(alice, "b", A)  # the function keeps its earlier constant
    assert upload(alice, LARGE, 0, 2 << 20) == 2 << 20
    first.process.kill()
    first.wait()
    alice.close()

    second = serve()
    alice, bob = second.speaker("alice"), second.speaker("bob")
    given = {"a": protocol.Input(frame=1)}
    for function in ("plus", told.function):
        (c,) = results(alice, protocol.Invoke(alice.number(), function, given), A.tobytes())
        np.testing.assert_array_equal(c, A + B)
    named = {"a": protocol.Input(object="b"), "b": protocol.Input(object="b")}
    (c,) = results(alice, protocol.Invoke(alice.number(), plain.function, named))
    np.testing.assert_array_equal(c, A + A)
    assert upload(alice, LARGE, 2 << 20, len(LARGE)) == len(LARGE)

    for function in ("plus", told.function):
        assert error(bob, protocol.Invoke(bob.number(), function, given), A.tobytes()) == "UnknownFunction"
    assert error(bob, protocol.Get(bob.number(), "b")) == "UnknownObject"
    assert error(bob, protocol.Put(bob.number(), "mine", "uint8", (len(LARGE),), hash_of(LARGE))) == "MissingContent"
    assert error(bob, protocol.Register(bob.number()), encode_task(add_task())) == "MissingContent"
    offset = bob.reply_to(protocol.Uploaded, protocol.Upload(bob.number(), hash_of(LARGE), len(LARGE), "value"))[
        0
    ].offset
    assert offset == 0
    assert bob.reply_to(protocol.Listed, protocol.Objects(bob.number()))[0].entries == []
    assert bob.reply_to(protocol.Listed, protocol.Functions(bob.number()))[0].entries == []
    alice.close()
    bob.close()


def test_code_that_is_not_allowed_is_refused(serve: Callable[..., Server]) -> None:
    server = serve({"code": {"libraries": [hash_of(STEPS.images[0].data)], "providers": []}})
    alice = server.speaker("alice")
    assert upload(alice, CODE, 0, len(CODE), "library") == len(CODE)
    other = kaas.Library((replace(STEPS.images[0], data=STEPS.images[0].data + b"\n// mine\n"),))
    for library in (other, kaas.Library.provided("kaas", "shapes", "1.0")):
        data = encode_library(library)
        alice.reply_to(protocol.Uploaded, protocol.Upload(alice.number(), library.hash, len(data), "library"))
        assert error(alice, protocol.Chunk(alice.number(), library.hash, 0), data) == "NotAllowed"
        x, y = kaas.Buffer("x", N, "float32"), kaas.Buffer("y", N, "float32")
        task = kaas.KTask([kaas.Kernel(library, "scale", 4, 256, [kaas.In(x), kaas.Out(y)])], [y])
        assert error(alice, protocol.Register(alice.number()), encode_task(task)) == "MissingContent"
    alice.close()


def test_signed_code_is_accepted_from_a_client_with_its_signature(serve: Callable[..., Server], tmp_path: Path) -> None:
    signer_file = tmp_path / "signer.pem"
    server = serve({"code": {"signers": [new_signer(signer_file).hex()]}})
    signatures = {add_task().key: sign(signer(signer_file), add_task().key)}
    with Client(server.endpoint, keys=server.key_of("alice")) as client, pytest.raises(NotAllowed):
        client.register(add_task())
    with Client(server.endpoint, keys=server.key_of("alice"), signatures=signatures) as client:
        np.testing.assert_array_equal(client.register(add_task()).call(a=A, b=B).result(), A + B)


@pytest.mark.parametrize("quota", ["stored_bytes", "library_bytes"])
def test_quotas_hold(serve: Callable[..., Server], quota: str) -> None:
    server = serve({"limits": {"quotas": {quota: 100_000}}})
    alice = server.speaker("alice")
    kind = {"stored_bytes": "value", "library_bytes": "library"}[quota]
    failure, _ = alice.reply_to(protocol.Failure, protocol.Upload(alice.number(), hash_of(LARGE), len(LARGE), kind))
    assert (failure.error, failure.fields["quota"], failure.fields["limit"]) == ("QuotaExceeded", quota, 100_000)
    alice.close()


@pytest.mark.parametrize("received", [True, False])
def test_a_request_that_changes_an_object_is_not_run_again_after_a_restart(
    serve: Callable[..., Server], received: bool
) -> None:
    first = serve()
    alice = first.speaker("alice")
    plus = alice.register(add_task()).function
    put(alice, "sum", A)
    adds = {"a": protocol.Input(object="sum"), "b": protocol.Input(frame=1)}
    one, two = (protocol.Invoke(alice.number(), plus, adds, key=key, store={"c": "sum"}) for key in ("one", "two"))
    for message in (one, two):
        assert alice.reply_to(protocol.Result, message, B.tobytes())[1] == []
    if received:
        alice.received((one.number, two.number))
    charged = alice.ask("usage")["flows"]
    first.process.kill()
    first.wait()
    alice.close()

    second = serve()
    alice = second.speaker("alice")
    for message in (two, one, two):
        again = replaced(message, number=alice.number())
        assert alice.reply_to(protocol.Result, again, B.tobytes()) == (protocol.Result(again.number), [])
    assert alice.reply_to(protocol.Value, protocol.Get(alice.number(), "sum"))[1] == [(A + B + B).tobytes()]
    assert alice.ask("usage")["flows"] == charged
    alice.close()

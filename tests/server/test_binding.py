"""The digest of a request is that of its values, and takes time in proportion to the bytes that came."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.server import binding
from kaas.server.binding import InvocationDigest, bound, request_digest
from kaas.server.state.durable_replies import DurableReply, entry
from kaas.wire.protocol import Input, Invoke

NAMES = st.text("abc", min_size=1, max_size=2)
VALUES = st.binary(max_size=2)


def test_each_frame_is_hashed_once_however_many_inputs_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    frame, hashed = bytes(1 << 20), list[int]()

    class Counted:
        def __init__(self, data: Any) -> None:
            self._digest = hashlib.sha256()
            self.update(data)

        def update(self, data: Any) -> None:
            hashed.append(len(data))
            self._digest.update(data)

        def digest(self) -> bytes:
            return self._digest.digest()

        def hexdigest(self) -> str:
            return self._digest.hexdigest()

    monkeypatch.setattr(binding, "hashlib", SimpleNamespace(sha256=Counted))
    message = Invoke(1, "f", {f"{number:x}": Input(frame=1) for number in range(1000)}, key="k")
    request_digest(message, [b"", frame])
    assert sum(hashed) < len(frame) + 100 * len(message.inputs)


@given(st.dictionaries(NAMES, VALUES), st.dictionaries(NAMES, VALUES), st.randoms(use_true_random=False))
def test_two_requests_have_one_digest_if_they_give_the_same_values(
    one: dict[str, bytes], other: dict[str, bytes], random: Any
) -> None:
    assert (digest(one, shared=True, random=random) == digest(other, shared=False, random=random)) == (one == other)


def digest(values: dict[str, bytes], *, shared: bool, random: Any) -> str:
    """Return the digest of a request whose frames are in any order; shared: equal values come in one frame."""
    frames = [*{*values.values()}] if shared else [*values.values()]
    random.shuffle(frames)
    inputs = {name: Input(frame=1 + frames.index(value)) for name, value in values.items()}
    return request_digest(Invoke(1, "f", inputs), [b"", *frames])


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": {}},
        {"inputs": {"x": Input(frame=1)}},
        {"inputs": {"x": Input(object="o", offset=4)}},
        {"scalars": {"s": b"2"}},
        {"store": {"y": "there"}},
    ],
)
def test_another_input_scalar_or_stored_output_is_another_request(change: dict[str, Any]) -> None:
    message = Invoke(1, "f", {"x": Input(object="o")}, {"s": b"1"}, key="k")
    again = msgspec.structs.replace(message, number=2, deadline_s=1.0, trace="00-ab")
    assert request_digest(again, [b""]) == request_digest(message, [b""])
    assert request_digest(msgspec.structs.replace(message, **change), [b"", b"1"]) != request_digest(message, [b""])


def test_the_charge_differs_by_key_function_and_contents() -> None:
    message = Invoke(1, "f", {"x": Input(object="o")}, key="k")
    first = bound(message, [b""], "f", {"o": "hash"}.__getitem__)
    others = [
        bound(msgspec.structs.replace(message, key="other"), [b""], "f", {"o": "hash"}.__getitem__),
        bound(message, [b""], "other", {"o": "hash"}.__getitem__),
        bound(message, [b""], "f", {"o": "other"}.__getitem__),
    ]
    assert len({first.charge, *(each.charge for each in others)}) == 4
    assert {each.request for each in others} == {first.request}


def test_a_durable_reply_keeps_its_digests_and_those_of_an_earlier_version_are_not_compared() -> None:
    stored = entry("ada", "k", "f", "f", ("y",), [b"1"], InvocationDigest("request", "charge"))
    reply = msgspec.msgpack.decode(stored, type=DurableReply)
    assert (reply.request, reply.charge) == ("request", "charge")
    earlier = msgspec.msgpack.encode(["ada", "k", "f", "f", ["y"], [b"1"], "hashed otherwise", "charge"])
    assert msgspec.msgpack.decode(earlier, type=DurableReply).request == ""

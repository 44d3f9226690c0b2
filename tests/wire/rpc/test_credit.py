"""A client's credit: its use stays within the limits, no call overtakes, and replies are acknowledged in time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kaas.wire.protocol import Limits
from kaas.wire.rpc.credit import PART, Credit

LIMITS = Limits(requests=4, credit_bytes=100, frame_bytes=100)


def credit(limits: Limits = LIMITS) -> Credit[str]:
    found: Credit[str] = Credit()
    found.renew(limits)
    return found


def test_before_the_server_has_sent_its_limits_there_is_no_room() -> None:
    found: Credit[str] = Credit()
    assert not found.take(0)
    found.replied(1)
    assert found.due() == ()
    found.renew(LIMITS)
    assert found.take(0)


def test_requests_and_bytes_are_bounded_and_given_back() -> None:
    found = credit()
    assert all(found.take(1) for _ in range(4))
    assert not found.take(1)
    found.give(1)
    assert found.take(1)
    large = credit()
    assert large.take(60)
    assert not large.take(41)
    large.give(60)
    assert (large.take(41), large.requests, large.nbytes) == (True, 1, 41)


def test_no_call_overtakes_those_that_wait() -> None:
    found = credit()
    found.take(60)
    found.waiting.append(("large", 50))
    assert not found.take(1)
    found.waiting.append(("small", 1))
    assert found.granted() == []
    found.give(60)
    assert found.granted() == [("large", 50), ("small", 1)]
    assert (found.requests, found.nbytes, [*found.waiting]) == (2, 51, [])


def test_calls_that_never_fit_are_removed() -> None:
    found = credit()
    found.waiting.extend([("never", 101), ("later", 100)])
    assert found.hopeless() == [("never", 101)]
    assert [*found.waiting] == [("later", 100)]
    found.leave("later")
    assert not found.waiting


def test_replies_are_acknowledged_together_and_before_they_take_the_room_of_requests() -> None:
    found = credit(Limits(requests=10 * PART, credit_bytes=10_000, frame_bytes=10_000))
    assert found.replied(1)
    assert not found.replied(2)
    assert found.due() == ()
    for number in range(3, 11):
        found.replied(number)
    assert found.due() == tuple(range(1, 11))
    assert found.due() == ()
    assert found.replied(11, 10_000 // PART)
    assert found.due() == (11,)
    found.replied(12, 1)
    assert found.due() == (), "the bytes of acknowledged replies count no more"


def test_with_little_room_a_reply_is_acknowledged_at_once() -> None:
    found = credit(Limits(requests=100, credit_bytes=1000, frame_bytes=1000))
    for _ in range(100):
        found.take(1)
    found.replied(1, 1)
    assert found.due() == (1,)
    large = credit(Limits(requests=100, credit_bytes=1000, frame_bytes=1000))
    large.take(1000)
    large.replied(2, 1)
    assert large.due() == (2,)


def test_a_new_connection_gets_no_acknowledgement_of_replies_that_it_repeats() -> None:
    found = credit()
    found.replied(1)
    found.renew(LIMITS)
    assert found.all_due() == ()
    found.replied(1)
    assert found.all_due() == (1,)


@given(st.lists(st.tuples(st.sampled_from(["take", "give", "wait"]), st.integers(0, 60))))
def test_the_credit_in_use_never_exceeds_the_limits(moves: list[tuple[str, int]]) -> None:
    found, held, waiting = credit(), list[int](), list[int]()
    for move, nbytes in moves:
        if move == "take" and found.take(nbytes):
            held.append(nbytes)
        elif move == "wait":
            found.waiting.append((str(nbytes), nbytes))
            waiting.append(nbytes)
        elif move == "give" and held:
            found.give(held.pop())
        granted = [size for _, size in found.granted()]
        assert granted == waiting[: len(granted)]
        del waiting[: len(granted)]
        held += granted
        assert (found.requests, found.nbytes) == (len(held), sum(held))
        assert found.requests <= LIMITS.requests
        assert found.nbytes <= LIMITS.credit_bytes


def test_credit_is_counted_anew_from_what_is_open_and_what_is_promised() -> None:
    found = Credit[str](LIMITS)
    found.waiting.extend([("first", 20), ("second", 30)])
    assert [room for room, _ in found.granted()] == ["first", "second"]
    found.recount([5, 6])
    assert (found.requests, found.nbytes) == (4, 61)
    found.leave("second")
    assert (found.requests, found.nbytes, found.promised) == (3, 31, {"first": 20})

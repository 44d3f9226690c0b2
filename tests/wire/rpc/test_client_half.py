"""The client half: each call is in one state, and the leases that it holds are given back once."""

from __future__ import annotations

from dataclasses import dataclass

from kaas.wire.rpc.client_half import CallState, ClientHalf


@dataclass(eq=False)
class Call:
    repeatable: bool = True


def opened(*numbers: int) -> tuple[ClientHalf[Call, int], list[Call]]:
    half: ClientHalf[Call, int] = ClientHalf()
    calls = [Call() for _ in numbers]
    for number, call in zip(numbers, calls, strict=True):
        half.begin(number, call)
    return half, calls


def test_a_reply_counts_once() -> None:
    half, (first, second) = opened(1, 2)
    assert half.replied(1) == (first, None)
    assert half.replied(1) == (None, None)
    assert half.open == {2: second}
    assert half.state(1) is CallState.ENDED


def test_a_call_that_is_put_off_rests_until_it_is_repeated_under_a_new_number() -> None:
    half, (first,) = opened(1)
    assert half.put_off(1, 1) is first
    assert half.put_off(1, 1) is None
    assert (half.open, half.state(1)) == ({}, CallState.RESTING)
    assert half.repeat(1, 5) is first
    assert half.repeat(1, 6) is None
    assert half.open == {5: first}


def test_a_resting_call_is_abandoned_without_a_word_to_the_server() -> None:
    half, (first,) = opened(1)
    half.put_off(1, 1)
    assert half.abandon(1, 1, 10) == (first, False)
    assert half.repeat(1, 5) is None
    assert half.failed() == ([], [])


def test_an_abandoned_call_keeps_its_leases_until_its_reply() -> None:
    half, (first, _) = opened(1, 2)
    assert half.abandon(1, 1, 10) == (first, True)
    assert half.abandon(2, 2, None)[1]
    assert half.abandoned == {1: 10}
    assert half.state(1) is CallState.ABANDONED
    assert half.replied(1) == (None, 10)
    assert half.replied(2) == (None, None)


def test_memory_that_the_server_still_reads_is_held_after_the_reply() -> None:
    half, (first,) = opened(1)
    assert half.held(1, lambda _: 10) is first
    assert half.released(1) == 10
    assert half.released(1) is None


def test_an_abandoned_call_keeps_its_lease_when_held_and_a_call_with_its_reply_has_none() -> None:
    half, _ = opened(1, 2)
    half.abandon(1, 1, 10)
    half.replied(2)
    assert half.held(1, lambda _: 11) is None
    assert half.held(2, lambda _: 20) is None
    assert half.abandoned == {1: 10}


def test_a_new_connection_gets_open_calls_in_their_order_and_abandoned_ones() -> None:
    half, (first, second, third) = opened(1, 2, 3)
    half.abandon(2, 2, 20)
    assert half.lost() == []
    assert half.renewed() == ({2: 20}, [first, third])
    assert half.renewed() == ({}, [first, third])
    assert second not in half.open.values()


def test_a_call_that_is_not_repeatable_ends_with_its_connection() -> None:
    half, (first,) = opened(1)
    question = Call(repeatable=False)
    half.begin(2, question)
    assert half.lost() == [question]
    assert half.renewed() == ({}, [first])


def test_nothing_stays_where_there_will_be_no_connection() -> None:
    half, (first, second, _) = opened(1, 2, 3)
    half.put_off(2, 2)
    half.abandon(3, 3, 30)
    assert half.failed() == ([first, second], [30])
    assert half.renewed() == ({}, [])

"""Kept replies: within bytes and time, the newest of a key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kaas.wire.rpc.idempotency_cache import IdempotencyCache


def test_the_oldest_replies_are_evicted_first() -> None:
    finished: IdempotencyCache[str] = IdempotencyCache(10, 100.0)
    finished.add("a", "A", 4, 0.0)
    finished.add("b", "B", 4, 1.0)
    finished.add("c", "C", 4, 2.0)
    assert [finished.get(key) for key in "abc"] == [None, "B", "C"]


def test_they_are_kept_for_a_time() -> None:
    finished: IdempotencyCache[str] = IdempotencyCache(10, 100.0)
    finished.add("a", "A", 4, 0.0)
    finished.add("b", "B", 4, 50.0)
    finished.expire(99.0)
    assert finished.get("a") == "A"
    finished.expire(100.0)
    assert finished.get("a") is None
    assert len(finished) == 1


def test_the_callback_receives_each_reply_that_is_evicted() -> None:
    gone: list[tuple[str, str]] = []
    finished = IdempotencyCache[str](10, 100.0, lambda key, ended: gone.append((key, ended)))
    for number, (key, nbytes) in enumerate((("a", 4), ("b", 4), ("a", 4), ("c", 4), ("d", 11))):
        finished.add(key, key + str(number), nbytes, float(number))
    assert gone == [("a", "a0"), ("b", "b1"), ("d", "d4")]
    finished.expire(102.0)
    assert gone[3:] == [("a", "a2")]


def test_a_reply_that_is_too_large_is_not_kept() -> None:
    finished: IdempotencyCache[str] = IdempotencyCache(10, 100.0)
    finished.add("a", "A", 4, 0.0)
    finished.add("b", "B", 11, 0.0)
    assert finished.get("a") == "A"
    assert finished.get("b") is None


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 12), st.integers(0, 30))))
def test_the_cache_never_keeps_more_than_its_bytes(entries: list[tuple[str, int, int]]) -> None:
    finished: IdempotencyCache[int] = IdempotencyCache(20, 10.0)
    sizes: dict[str, int] = {}
    now_s = 0.0
    for key, nbytes, wait_s in entries:
        now_s += wait_s
        finished.expire(now_s)
        finished.add(key, nbytes, nbytes, now_s)
        sizes[key] = nbytes
        kept = {key: found for key in "abcd" if (found := finished.get(key)) is not None}
        assert sum(kept.values()) <= 20
        assert kept.items() <= sizes.items()
        assert kept.get(key) == nbytes

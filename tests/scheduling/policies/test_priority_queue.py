"""The sorted queue of the orders: equal to a sorted list after any sequence of puts and removals, in any blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.scheduling.policies import orders
from kaas.scheduling.policies.orders import PriorityQueue

ITEMS, KEYS = st.integers(0, 30), st.tuples(st.integers(0, 3), st.integers(0, 6))
CHANGES = st.lists(st.tuples(ITEMS, st.none() | KEYS), max_size=120)
"""An item with its new key, or None: it is removed."""


@given(changes=CHANGES, bound=KEYS)
def test_the_queue_is_a_list_sorted_by_key_and_then_by_put(
    changes: list[tuple[int, tuple[int, int] | None]], bound: tuple[int, int]
) -> None:
    queue: PriorityQueue[int] = PriorityQueue()
    expected: dict[int, tuple[int, int]] = {}  # in the order of the puts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders, "MOST_IN_A_BLOCK", 4)
        for item, key in changes:
            if key is None:
                queue.discard(item)
                expected.pop(item, None)
            else:
                queue.put(item, key)
                if expected.get(item) != key:
                    expected.pop(item, None)
                    expected[item] = key
            in_order = sorted(expected, key=expected.__getitem__)
            assert list(queue) == in_order
            assert queue.first() == (in_order[0] if in_order else None)
            assert len(queue) == len(expected)
    assert all((item in queue) == (item in expected) for item in range(31))
    assert {item: queue.key(item) for item in expected} == expected
    if expected:
        assert queue.least()[-1] == in_order[0]
    below = [item for item in sorted(expected, key=expected.__getitem__) if expected[item] < bound]
    assert [entry[-1] for entry in queue.before(bound)] == below[::-1]
    above = [item for item in sorted(expected, key=expected.__getitem__) if expected[item] >= bound]
    assert [entry[-1] for entry in queue.after(bound)] == above

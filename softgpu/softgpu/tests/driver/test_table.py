"""The table of driver calls: every call has a test that shows what becomes of it."""

from __future__ import annotations

from softgpu.tests.driver import table


def test_every_row_has_a_test() -> None:
    rows = table.rows()
    assert len({name for name, _, _ in rows}) == len(rows) > 400
    assert [name for name, _, test in rows if not test] == []


def test_no_call_both_works_and_is_refused() -> None:
    assert set(table.works()).isdisjoint(table.refused())

"""Several clients get requests in proportion to their weights, or Jain's index says how far they are from it."""

from __future__ import annotations

import pytest

from kaas.bench.shares import fairness, parse
from kaas.errors import InvalidRequest


def test_weights_of_clients() -> None:
    assert parse(["ann=2", "bob", "cy=0.5"]) == {"ann": 2.0, "bob": 1.0, "cy": 0.5}
    assert parse(None) == {}


@pytest.mark.parametrize("entry", ["=1", "ann=", "ann=none", "ann=0", "ann=-1", "ann=inf", "ann=nan", ""])
def test_a_wrong_weight_is_shown(entry: str) -> None:
    with pytest.raises(InvalidRequest, match=f"not {entry!r}"):
        parse(["bob", entry])


def test_a_client_is_named_once() -> None:
    with pytest.raises(InvalidRequest, match="'ann' is given twice"):
        parse(["ann", "ann=2"])


def test_jains_index() -> None:
    assert fairness({"ann": 20, "bob": 10}, {"ann": 2.0, "bob": 1.0}) == 1.0
    assert fairness({"ann": 30, "bob": 0, "cy": 0}, {"ann": 1.0, "bob": 1.0, "cy": 1.0}) == pytest.approx(1 / 3)
    assert fairness({"ann": 0}, {"ann": 1.0}) == 1.0

"""Several clients get requests in proportion to their weights, or Jain's index says how far they are from it."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from kaas.bench import rows as rows_module
from kaas.bench.loops import Arrivals, loops
from kaas.bench.measure import Measurement, complete
from kaas.bench.rows import rows
from kaas.bench.service import LoadedService
from kaas.bench.shares import fairness, judged, parse
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


class Immediate:
    """Answers at once."""

    def call(self) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(None)
        return done


@pytest.mark.parametrize(("load", "shared"), [({"concurrency": "2"}, True), ({"rate": "200"}, False)])
def test_clients_that_all_get_what_they_ask_for_are_not_judged(load: dict[str, str], *, shared: bool) -> None:
    clients = {"ann": Immediate(), "bob": Immediate()}
    service = LoadedService(clients, list, devices=(), weights={}, inputs=())
    asked = loops(load.get("concurrency"), load.get("rate"), None, Arrivals.CONSTANT)
    (row,) = rows(service, {}, asked, window_s=0.05, limit_s=0.2)
    assert row["clients"]["ann"] == pytest.approx(row["clients"]["bob"], abs=1)
    assert row["jain"] == (pytest.approx(1.0) if shared else None)
    assert ("keeps up" in judged(row["jain"])) is not shared


class Overloaded:
    """Answers half of the requests, three of bob's for each of ann's, and the others once no more come."""

    def __init__(self) -> None:
        self.came = 0
        self.waiting: dict[str, deque[Future[None]]] = {"ann": deque(), "bob": deque()}

    def request(self, client: str) -> Future[None]:
        future: Future[None] = Future()
        if self.came < 2:  # the first of each function is sent alone
            future.set_result(None)
        else:
            self.waiting[client].append(future)
            if self.came % 2:
                self.answer("ann" if self.came % 8 == 1 else "bob")
        self.came += 1
        return future

    def answer(self, client: str) -> None:
        own = self.waiting[client]
        (own or self.waiting["ann"]).popleft().set_result(None)

    def rest(self, found: Measurement, *others: Any) -> Measurement:
        for client, own in self.waiting.items():
            while own:
                self.answer(client)
        return complete(found, *others)


class Client:
    def __init__(self, service: Overloaded, name: str) -> None:
        self.call = partial(service.request, name)


def test_shares_are_those_that_clients_get_while_they_compete(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the load an overloaded service answers all that is left, to each client as much as it has sent."""
    overloaded = Overloaded()
    monkeypatch.setattr(rows_module, "complete", overloaded.rest)
    clients = {name: Client(overloaded, name) for name in ("ann", "bob")}
    service = LoadedService(clients, list, devices=(), weights={"ann": 1.0, "bob": 3.0}, inputs=())
    asked = loops(None, "400", None, Arrivals.CONSTANT)
    (row,) = rows(service, {}, asked, window_s=0.05, limit_s=10.0)
    assert row["state"] == "unstable"
    assert sum(row["clients"].values()) < 0.7 * overloaded.came
    assert row["clients"]["bob"] > 1.5 * row["clients"]["ann"]
    assert row["jain"] > 0.9

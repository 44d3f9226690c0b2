"""The shares of a pool: promises fit a device together, programs take theirs along, and the configuration's stay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kaas.config import ClientSettings
from kaas.errors import InvalidShare
from kaas.pool.core.core import Pool
from kaas.pool.core.shares import PoolShares
from kaas.pool.executors.transport import WorkerCall
from kaas.scheduling.events import Event, ShareGone, ShareKnown
from kaas.share import Share
from kaas.wire.specs import ShareSpec
from tests.pool.fake_workers import FakeWorkers, begin, play
from tests.pool.fake_workers import call as request


def played(scenario: Callable[[PoolShares, list[Event]], None], slots: int = 8) -> None:
    """Let a scenario use the shares of a pool, and see what the policy is told."""

    async def main() -> None:
        told: list[Event] = []
        scenario(PoolShares(told.append, slots, lambda *_: (), lambda *_: None), told)

    asyncio.run(main())


def spec(name: str, sms: float = 1.0, least: float = 0.0, most: float = 1.0) -> ShareSpec:
    return ShareSpec((f"key of {name}",), "", name, (sms, least, most, None))


def call(function: str = "f", client: str = "alice", bound: str = "") -> WorkerCall:
    return WorkerCall(function, client, None, 0, function=f"key of {function}", bound=bound)


def granted(**shares: Share) -> dict[str, ClientSettings]:
    return {client: ClientSettings(share=share) for client, share in shares.items()}


def names(told: list[Event]) -> list[tuple[str, str]]:
    return [(type(each).__name__, each.share) for each in told if isinstance(each, ShareKnown | ShareGone)]


def test_a_functions_share_comes_before_its_clients() -> None:
    def scenario(shares: PoolShares, _: list[Event]) -> None:
        assert shares.of(call()) == ""
        shares.regrant(granted(alice=Share(0.5)))
        shares.set(spec("f"), "program")
        assert shares.of(call()) == "function key of f"
        assert shares.of(call("g")) == "client alice"
        assert shares.of(call("g", "bob")) == ""
        assert shares.of(call(bound="key of f@constants")) == "client alice", "with constants it is another function"

    played(scenario)


def test_a_program_takes_its_shares_along_and_no_others() -> None:
    def scenario(shares: PoolShares, told: list[Event]) -> None:
        shares.regrant(granted(alice=Share(0.5, (0.5, 1.0))))
        shares.set(spec("f", 0.5, 0.5), "one")
        shares.set(spec("g", 0.5, 0.5), "two")
        shares.session_ended("one")
        assert names(told)[-1] == ("ShareGone", "function key of f")
        assert [each.of for each in shares.status(())] == ["client 'alice'", "function 'g'"]
        assert shares.of(call(client="bob")) == ""

    played(scenario)


def test_a_share_that_several_programs_give_stays_until_the_last_of_them_ends() -> None:
    def scenario(shares: PoolShares, told: list[Event]) -> None:
        for program, least in (("one", 0.5), ("two", 0.25)):
            shares.set(spec("f", 0.5, least), program)
        shares.session_ended("two")
        assert [each.quota for each in shares.status(())] == [(0.25, 1.0)]
        shares.session_ended("one")
        assert (names(told)[-1], shares.status(())) == (("ShareGone", "function key of f"), ())

    played(scenario)


@pytest.mark.parametrize("share", [(1.0, 0.0, 1.0, 1 << 20), None])
def test_no_program_changes_a_share_of_the_configuration(share: tuple[float, float, float, int] | None) -> None:
    def scenario(shares: PoolShares, _: list[Event]) -> None:
        shares.regrant(granted(alice=Share(0.5, (0.5, 1.0))))
        with pytest.raises(InvalidShare, match="client 'alice' has the share of the pool's configuration"):
            shares.set(ShareSpec((), "alice", "", share), "program")
        shares.session_ended("program")
        assert [(each.of, each.sms) for each in shares.status(())] == [("client 'alice'", 0.5)]

    played(scenario)


def test_what_does_not_fit_changes_nothing() -> None:
    def scenario(shares: PoolShares, told: list[Event]) -> None:
        shares.set(spec("f", 0.6, 0.6), "program")
        shares.regrant(granted(alice=Share(0.4, (1.0, 1.0))))
        before = shares.status(())
        count = len(told)
        with pytest.raises(InvalidShare, match=r"with client 'bob': function 'f'") as refused:
            shares.regrant(granted(alice=Share(0.4), bob=Share(1.0, (0.5, 1.0)), carol=Share(1.0, (0.1, 1.0))))
        assert refused.value.of == "client 'bob'"
        with pytest.raises(InvalidShare, match="function 'f'") as refused:
            shares.set(spec("g", 0.5, 0.5), "program")
        assert refused.value.others == ("function 'f'", "client 'alice'")
        assert (shares.status(()), len(told)) == (before, count)

    played(scenario)


def test_shares_that_need_more_slots_than_a_device_has_are_told_so() -> None:
    def scenario(shares: PoolShares, _: list[Event]) -> None:
        shares.set(spec("f", 0.5, 0.6), "program")
        with pytest.raises(InvalidShare, match=r"function 'g', which runs 1 at a time \(Config.slots\)"):
            shares.set(spec("g", 0.5, 0.5), "program")
        shares.set(spec("g", 0.5, 0.4), "program")

    played(scenario, slots=1)


def test_a_changed_configuration_changes_its_shares() -> None:
    def scenario(shares: PoolShares, told: list[Event]) -> None:
        shares.regrant(granted(alice=Share(0.5, (0.5, 1.0)), bob=Share(1.0, (0.5, 1.0))))
        shares.regrant(granted(bob=Share(1.0, (1.0, 1.0))))
        assert names(told)[-2:] == [("ShareGone", "client alice"), ("ShareKnown", "client bob")]
        assert [(each.of, each.quota) for each in shares.status(())] == [("client 'bob'", (1.0, 1.0))]

    played(scenario)


def test_a_share_that_is_taken_away_twice() -> None:
    def scenario(shares: PoolShares, told: list[Event]) -> None:
        shares.set(spec("f"), "program")
        for _ in range(2):
            shares.set(ShareSpec(("key of f",), "", "f", None), "program")
        assert names(told) == [("ShareKnown", "function key of f"), ("ShareGone", "function key of f")]
        assert shares.of(call()) == ""

    played(scenario)


def test_a_pool_whose_configuration_has_shares_answers() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        asked = await begin(pool.submit(request()))
        workers.reply()
        await asked
        assert [each.of for each in pool.status().shares] == ["client 'alice'"]

    play(scenario, clients=granted(alice=Share(0.5, (0.5, 1.0))))

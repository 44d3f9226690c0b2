"""The times that a pool tells its policy before a function's first request: given, measured, and kept."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kaas.config import Config, Device, FunctionProfile
from kaas.errors import InvalidConfig, InvalidShare
from kaas.executor.cache.tiers import TierUse
from kaas.pool.core import profiles
from kaas.pool.core.core import Pool
from kaas.pool.executors.transport import WorkerCall, WorkerReply
from kaas.scheduling.events import Event, FunctionKnown, ObjectUse, RequestArrived
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.scheduling.sharing.scaling import Configuration
from kaas.share import ProfilePoint
from kaas.store import PROFILES, SqliteStore, Store
from kaas.wire.specs import RunRecord, ShareSpec, decode_share
from kaas.wire.specs import encode as encode_spec
from kaas.wire.status.stats import Stats
from kaas.wire.status.status_codec import decode, encode
from tests.pool.fake_workers import FakeWorkers, begin, settle
from tests.timeouts import TIMEOUT_S

WEIGHTS = ObjectUse(b"weights", 1000, constant=True)


class Told(FirstComeFirstServed):
    """Keeps its events."""

    def __init__(self, story: list[Event], devices: Sequence[Any]) -> None:
        super().__init__(devices)
        self._story = story

    def handle(self, event: Event) -> list[Any]:
        self._story.append(event)
        return super().handle(event)


Scenario = Callable[[Pool, FakeWorkers], Awaitable[None]]


def play(scenario: Scenario, store: Store | None = None, speed: float = 1.0, **config: Any) -> list[Event]:
    """Run a scenario in a pool of one device; return what its policy was told of functions and their requests."""
    story: list[Event] = []

    async def main() -> None:
        workers, devices = FakeWorkers(), (Device(speed=speed),)
        pool = Pool("test", Config(devices=devices, policy=partial(Told, story), **config), workers)
        pool.open((), store)
        await settle()
        await scenario(pool, workers)
        await pool.close()

    asyncio.run(asyncio.wait_for(main(), timeout=TIMEOUT_S))
    return [event for event in story if isinstance(event, FunctionKnown | RequestArrived)]


def call(label: str = "f", constants: str = "1", key: str = "") -> WorkerCall:
    key = key or f"the key of {label}"
    return WorkerCall(label, "alice", None, 0, (WEIGHTS,), function=key, bound=f"{key}@{constants}")


async def ran(pool: Pool, workers: FakeWorkers, one: WorkerCall, run_s: float, load_s: float = 0.0) -> None:
    """Let a request run, with a load of its weights if that takes time."""
    answer = await begin(pool.submit(one))
    tiers = {"store": TierUse(1, WEIGHTS.nbytes)} if load_s else {}
    workers.reply(WorkerReply("value", record=RunRecord({}, tiers, [], [], run_s, (), (), run_s + load_s, load_s)))
    await answer


def known(event: Event) -> tuple[Any, ...]:
    assert isinstance(event, FunctionKnown)
    return event.function, event.kind, event.run_s, event.load_s, event.nbytes, event.observations


def test_the_largest_profile_is_told_and_measured_within_the_limits_of_profiles() -> None:
    largest = FunctionProfile("f", "software", 1e12, 1e12, 1, 1 << 60)

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await ran(pool, workers, call(), 1e12)
        await ran(pool, workers, call(constants="2"), 1e12)
        (measured,) = pool.stats().profiles
        assert (measured.load_s, measured.nbytes, measured.observations) == (1e12, WEIGHTS.nbytes, 1 << 60)

    story = play(scenario, profiles=(largest,))
    assert known(story[2]) == ("the key of f@2", "software", 1e12, 1e12, WEIGHTS.nbytes, 1 << 60)


def test_a_given_profile_is_told_before_the_first_request_of_each_function_with_its_label() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        for one in (call("other"), call(), call(), call(constants="2")):
            await ran(pool, workers, one, 1.0)

    given = (FunctionProfile("f", "gpu", 2.0, 1.0, 500, 20, "fs", 4.0), FunctionProfile("never called", "gpu", 1.0))
    story = play(scenario, profiles=given)
    names = [(type(event).__name__, event.function) for event in story]  # type: ignore[union-attr]
    assert names == [
        ("RequestArrived", "the key of other@1"),
        ("FunctionKnown", "the key of f@1"),
        ("RequestArrived", "the key of f@1"),
        ("RequestArrived", "the key of f@1"),
        ("FunctionKnown", "the key of f@2"),
        ("FunctionKnown", "the key of f@2"),  # by now it has run on the software device too
        ("RequestArrived", "the key of f@2"),
    ]
    assert known(story[1]) == ("the key of f@1", "gpu", 2.0, 1.0, 500, 20)
    assert isinstance(story[1], FunctionKnown)
    assert (story[1].family, story[1].batch, story[1].time_s) == ("fs", 4.0, story[2].time_s)
    assert known(story[5]) == ("the key of f@2", "software", 1.0, 0.0, 1000, 2)


def test_a_profile_may_name_a_function_by_its_key() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await ran(pool, workers, call(), 1.0)

    given = [FunctionProfile("f", "gpu", 1.0), FunctionProfile("the key of f", "gpu", 2.0)]
    assert known(play(scenario, profiles=given)[0])[2] == 2.0


def reopened(store: SqliteStore) -> SqliteStore:
    again: SqliteStore = pickle.loads(pickle.dumps(store))
    again.open()
    return again


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return reopened(SqliteStore(str(tmp_path / "store")))


def test_measured_times_outlive_the_pool(store: SqliteStore) -> None:
    async def first(pool: Pool, workers: FakeWorkers) -> None:
        await ran(pool, workers, call(), 1.0, load_s=0.5)
        await ran(pool, workers, call(), 2.0)
        assert store.read(PROFILES) == {}  # not with each request
        failed = await begin(pool.submit(call()))
        workers.runs[-1][2].set_exception(RuntimeError("it failed"))
        with pytest.raises(Exception, match="it failed"):
            await failed

    async def second(pool: Pool, workers: FakeWorkers) -> None:
        await ran(pool, workers, call(constants="2"), 3.0)
        mine = (FunctionProfile("f", "software", 4.0, 0.5, 1000, 3),)
        assert (pool.stats().profiles, pool.stats(reset=True).profiles, pool.stats().profiles) == (mine, mine, mine)

    play(first, store, speed=2.0)
    story = play(second, reopened(store), speed=2.0, profiles=[FunctionProfile("f", "software", 100.0)])
    # on a device of speed 2 the runs took half as long as on one of speed 1
    assert known(story[0]) == ("the key of f@2", "software", 3.0, 0.5, 1000, 2)


def test_measurements_begin_from_the_given_profile(store: SqliteStore) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await ran(pool, workers, call(), 2.0, load_s=2.0)
        assert pool.stats().profiles == (FunctionProfile("f", "software", 2.75, 1.25, 1000, 4),)

    play(scenario, store, profiles=[FunctionProfile("f", "software", 3.0, 0.5, 500, 3)])


def test_functions_with_one_label_are_named_by_their_keys() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        for one in (call(key="k1"), call(key="k2"), call("g")):
            await ran(pool, workers, one, 1.0)
        assert [each.function for each in pool.stats().profiles] == ["k1", "k2", "g"]
        Config(profiles=pool.stats().profiles)  # can be given to the next pool

    play(scenario)


def test_measurements_are_written_after_a_while(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "WRITE_EVERY_S", 0)

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await ran(pool, workers, call(), 1.0)
        await settle()
        assert len(store.read(PROFILES)) == 1

    play(scenario, store)


def test_the_function_called_longest_ago_is_forgotten(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "MOST_FUNCTIONS", 2)

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        for label in ("a", "b", "a", "c"):
            await ran(pool, workers, call(label), 1.0)
            pool._profiles.write()
        assert [each.function for each in pool.stats().profiles] == ["a", "c"]

    play(scenario, store)
    assert sorted(store.read(PROFILES)) == ["software the key of a", "software the key of c"]


def test_what_a_function_does_with_shares_is_told_to_the_policy_and_kept(store: SqliteStore) -> None:
    points = (ProfilePoint(0.25, 0.5, 40.0, 0.1, 4, 0.02, 1000, 60), ProfilePoint(1.0, 1.0, 100.0, 0.02))
    given = FunctionProfile("the key of f", "software", 1.0, points=points)

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await ran(pool, workers, call(), 1.0)
        assert pool.stats().profiles[0].points == points
        assert decode(encode(pool.stats()), Stats).profiles == pool.stats().profiles

    for known in ([given], None, [given]):  # in the second and third epoch the store has it
        told = play(scenario, reopened(store), profiles=known)[0]
        assert isinstance(told, FunctionKnown)
        assert told.points == (Configuration(0.25, 0.5, 40.0, 0.1, 4), Configuration(1.0, 1.0, 100.0, 0.02))


def test_points_that_are_given_later_take_the_place_of_those_in_the_store(store: SqliteStore) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await ran(pool, workers, call(), 2.0)

    play(scenario, reopened(store))
    later = FunctionProfile("f", "software", 100.0, points=(ProfilePoint(1.0, 1.0, 100.0, 0.02),))
    told = play(scenario, reopened(store), profiles=[later])[0]
    assert isinstance(told, FunctionKnown)
    assert (told.run_s, told.points) == (2.0, (Configuration(1.0, 1.0, 100.0, 0.02),))


def test_a_store_from_before_points_is_still_read(store: SqliteStore) -> None:
    old = ["the key of f", "software", "f", 2.0, 3, 0.0, 0, 1000, "", 0.0]
    store.put(PROFILES, {"software the key of f": msgspec.msgpack.encode(old)})

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await ran(pool, workers, call(), 2.0)

    told = play(scenario, reopened(store))[0]
    assert isinstance(told, FunctionKnown)
    assert (told.run_s, told.observations, told.points) == (2.0, 3, ())


def test_a_promise_that_no_measured_share_keeps_is_refused(store: SqliteStore) -> None:
    points = (ProfilePoint(0.25, 0.5, 40.0, 0.1), ProfilePoint(1.0, 1.0, 100.0, 0.02))
    given = [
        FunctionProfile("the key of f", "software", 1.0, points=points),
        FunctionProfile("g", "gpu", 1.0, points=points),
    ]

    def promise(pool: Pool, key: str, slo_s: float) -> None:
        pool.shares.set(ShareSpec((f"{key}@1",), "", key[-1], None, slo_s), "")

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        with pytest.raises(InvalidShare, match=r"no share of function 'f' keeps 0.01 s: .* 0.02 s, with 1 of the SMs"):
            promise(pool, "the key of f", 0.01)
        with pytest.raises(InvalidShare, match="seconds from 1e-06 on"):
            promise(pool, "the key of g", 1e-320)
        promise(pool, "the key of f", 0.02)
        promise(pool, "the key of g", 0.01)  # its profile is of another kind of device
        await ran(pool, workers, call(), 1.0)

    play(scenario, reopened(store), profiles=given)
    play(scenario, reopened(store))  # the store has it


def test_what_a_program_measures_in_a_running_pool_is_told_with_the_next_request_and_kept(store: SqliteStore) -> None:
    points = (ProfilePoint(0.25, 0.5, 40.0, 0.1),)
    spec = ShareSpec(("the key of f@1",), "", "f", None, points=points)

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        for one in (call("g"), call(), call(constants="2")):
            await ran(pool, workers, one, 1.0)
        pool.shares.set(ShareSpec(("the key of f@1",), "", "f", (0.5, 0.5, 1.0, None)), "")
        pool.shares.set(decode_share(encode_spec(spec)), "")
        assert [each.of for each in pool.status().shares] == ["function 'f'"], "its share stays as it is"
        for one in (call("g"), call(), call(constants="2"), call()):
            await ran(pool, workers, one, 1.0)
        pool.shares.set(spec, "")
        assert {each.function: each.points for each in pool.stats().profiles} == {"f": points, "g": ()}

    story = play(scenario, reopened(store))
    told = [(each.function, each.points) for each in story if isinstance(each, FunctionKnown)]
    configuration = (Configuration(0.25, 0.5, 40.0, 0.1),)
    assert told == [("the key of f@2", ()), ("the key of f@1", configuration), ("the key of f@2", configuration)]

    async def next_epoch(pool: Pool, workers: FakeWorkers) -> None:
        await ran(pool, workers, call(), 1.0)

    (known, _) = play(next_epoch, reopened(store))
    assert isinstance(known, FunctionKnown)
    assert known.points == configuration


def test_what_a_program_measures_of_a_function_that_never_ran_is_nothing() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        twice = (ProfilePoint(0.25, 0.5, 40.0, 0.1), ProfilePoint(0.25, 0.5, 41.0, 0.1))
        with pytest.raises(InvalidConfig, match="two of one share"):
            pool.shares.set(ShareSpec(("the key of f",), "", "f", None, points=twice), "")
        pool.shares.set(ShareSpec(("h",), "", "h", None, points=(ProfilePoint(0.25, 0.5, 40.0, 0.1),)), "")
        await ran(pool, workers, call(), 1.0)
        assert [each.points for each in pool.stats().profiles] == [()]

    play(scenario)

"""Metering: every answered request is charged, none twice, wherever the server's process ends."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kaas.errors import QuotaExceeded, UsageUnavailable
from kaas.executor.cache.tiers import TierUse
from kaas.pool.observing.ledger import OTHERS
from kaas.server.usage import usage, usage_file
from kaas.server.usage.journal import SEGMENT, Gap, Journal, charges
from kaas.server.usage.metering import Meter
from kaas.server.usage.quotas import Quotas
from kaas.server.usage.usage import KEYS_PER_CLIENT, FlowUsage, KeptByClient, Usage
from kaas.server.usage.usage_file import read_usage
from kaas.wire.specs import RunRecord
from tests.lanes import spread
from tests.timeouts import TIMEOUT_S


def ran(device_s: float, **tiers: int) -> RunRecord:
    return RunRecord({}, {tier: TierUse(1, nbytes) for tier, nbytes in tiers.items()}, [], [], device_s)


def killed(meter: Meter) -> None:
    """Leave a meter as its process's end leaves it: with its files, and without its lock."""
    if meter._timer is not None:
        meter._timer.cancel()
    meter._end()
    meter._file.close()
    if meter._thread is not None:
        meter._thread.shutdown()


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s + 1.7e9


def opened(folder: Path, clock: Clock | None = None) -> Meter:
    meter = Meter(folder, clock, clock.wall) if clock is not None else Meter(folder)
    meter.open()
    return meter


def in_loop(test: Callable[..., Any]) -> Callable[..., Any]:
    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path / "state"))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@in_loop
async def test_charges_are_summed_by_client_and_function(folder: Path) -> None:
    meter = opened(folder)
    meter.admit("a")
    assert meter.ended("a", "f", "k1", "succeeded", 10, 20, 30, ran(0.25, device=1000, host=100, store=50))
    meter.admit("a")
    assert meter.ended("a", "f", "", "DeviceError", 10, 0, 10, None)
    meter.admit("b")
    assert meter.ended("b", "f", "k1", "succeeded", 1, 2, 3, ran(0.5))
    meter.refused("a", "g", "UnknownFunction")
    expected = (
        FlowUsage("a", "f", 2, {"succeeded": 1, "DeviceError": 1}, 0, 250_000_000, 20, 20, 180, 250_000_000),
        FlowUsage("a", "g", 0, {"UnknownFunction": 1}),
        FlowUsage("b", "f", 1, {"succeeded": 1}, 0, 500_000_000, 1, 2, 3, 500_000_000),
    )
    assert meter.usage().flows == expected
    assert meter.usage("b").flows == expected[2:]
    await meter.close()
    assert read_usage(folder).flows == expected
    meter = opened(folder)
    assert meter.usage().flows == expected
    await meter.close()


@in_loop
async def test_a_request_on_a_quarter_of_the_sms_costs_a_quarter_of_sm_seconds(folder: Path) -> None:
    meter = opened(folder)
    for part in (0.25, 1.0):
        meter.admit("a")
        meter.ended("a", "f", "", "succeeded", 0, 0, 0, msgspec.structs.replace(ran(2.0), part=part))
    for seen in (meter.usage(), read_usage(folder)):  # in the journal only
        assert [(flow.device_s, flow.sm_s) for flow in seen.flows] == [(4.0, 2.5)]
    await meter.close()
    assert [(flow.device_s, flow.sm_s) for flow in read_usage(folder).flows] == [(4.0, 2.5)]
    with closing(sqlite3.connect(folder / "usage.sqlite")) as connection:  # as of a version without shares
        connection.execute("DROP TABLE sm_time")
    assert [(flow.device_s, flow.sm_s) for flow in read_usage(folder).flows] == [(4.0, 4.0)]
    meter = opened(folder)
    meter.admit("a")
    meter.ended("a", "f", "", "succeeded", 0, 0, 0, msgspec.structs.replace(ran(2.0), part=0.5))
    await meter.close()
    assert [(flow.device_s, flow.sm_s) for flow in read_usage(folder).flows] == [(6.0, 5.0)]


def test_a_charge_of_a_version_without_shares_is_of_all_sms() -> None:
    before = msgspec.to_builtins(usage.Charge("a", "f", "k", "succeeded", 7, 0, 0, 0, 1))[:-1]
    assert msgspec.convert(before, usage.Charge).part == 1.0


@in_loop
async def test_a_key_is_charged_once_across_restarts(folder: Path) -> None:
    meter = opened(folder)
    for charged in (True, False):
        meter.admit("a")
        assert meter.ended("a", "f", "k", "succeeded", 1, 1, 2, ran(1.0)) is charged
    killed(meter)
    for _ in range(2):  # out of the journal, then out of the file
        meter = opened(folder)
        meter.admit("a")
        assert not meter.ended("a", "f", "k", "succeeded", 1, 1, 2, ran(1.0))
        await meter.close()
    (flow,) = read_usage(folder).flows
    assert (flow.requests, flow.outcomes, flow.device_s, flow.bytes_in) == (1, {"succeeded": 1}, 1.0, 1)
    assert flow.repeats >= 2  # those of the killed run may be missing


@in_loop
async def test_a_key_is_charged_again_after_its_reply_is_received(folder: Path) -> None:
    meter = opened(folder)
    for _ in range(2):
        for charged in (True, False):
            meter.admit("a")
            assert meter.ended("a", "f", "k", "succeeded", 1, 1, 2, ran(1.0)) is charged
        meter.received("a", "k")
    await meter.close()
    (flow,) = read_usage(folder).flows
    assert (flow.requests, flow.device_s, flow.repeats) == (2, 2.0, 2)


@in_loop
async def test_a_received_reply_is_remembered_after_a_restart(folder: Path) -> None:
    for _ in range(2):
        meter = opened(folder)
        for key in "kl":
            meter.admit("a")
            assert meter.ended("a", "f", key, "succeeded", 1, 1, 2, ran(1.0))
        meter.received("a", "k")
        await meter.close()
        meter = opened(folder)  # it has written l down, and now unlearns it
        meter.received("a", "l")
        await meter.close()


@in_loop
async def test_a_retryable_request_is_charged_only_when_it_ran(folder: Path) -> None:
    meter = opened(folder)
    for outcome in ("QueueFull", "DeviceUnavailable", "PoolStopped", "succeeded"):
        meter.admit("a")
        assert meter.ended("a", "f", "k", outcome, 0, 0, 0, ran(1.0) if outcome == "succeeded" else None)
    (flow,) = meter.usage().flows
    assert (flow.requests, flow.device_s, flow.repeats) == (1, 1.0, 0)
    assert flow.outcomes == {"QueueFull": 1, "DeviceUnavailable": 1, "PoolStopped": 1, "succeeded": 1}


@in_loop
async def test_a_request_that_fails_after_its_charge_is_not_charged_although_the_server_is_killed(folder: Path) -> None:
    meter = opened(folder)
    for _ in range(2):  # as long as the disk is full, its client repeats it
        meter.admit("a")
        assert meter.ended("a", "f", "k", "succeeded", 1, 1, 2, ran(1.0))
        meter.failed("a", "f", "k", "succeeded", "StateUnavailable")
    killed(meter)
    for _ in range(2):  # out of the journal, then out of the file
        meter = opened(folder)
        (flow,) = meter.usage().flows
        assert (flow.requests, flow.outcomes, flow.device_s) == (0, {"StateUnavailable": 2}, 2.0)
        await meter.close()
    meter = opened(folder)
    meter.admit("a")
    assert meter.ended("a", "f", "k", "succeeded", 1, 1, 2, ran(1.0))
    await meter.close()
    (flow,) = read_usage(folder).flows
    assert (flow.requests, flow.outcomes) == (1, {"StateUnavailable": 2, "succeeded": 1})


@in_loop
async def test_a_failure_whose_charge_is_damaged_takes_nothing_back(folder: Path) -> None:
    meter = opened(folder)
    meter.failed("a", "f", "k", "succeeded", "StateUnavailable")
    await meter.close()
    (flow,) = read_usage(folder).flows
    assert (flow.requests, flow.outcomes) == (0, {"StateUnavailable": 1})


@in_loop
async def test_a_request_that_was_refused_after_all_gives_its_place_back(folder: Path) -> None:
    meter = opened(folder)
    meter.grant("a", Quotas(concurrent_requests=1))
    for _ in range(3):
        meter.admit("a")
        meter.refused("a", "f", "QueueFull", admitted=True)
    assert meter.outcomes() == {("a", "QueueFull"): 3}
    await meter.close()
    assert read_usage(folder).flows == (FlowUsage("a", "f", 0, {"QueueFull": 3}),)


@in_loop
async def test_bytes_times_seconds(folder: Path) -> None:
    clock = Clock()
    meter = opened(folder, clock)
    meter.holds("a", "objects", 100)
    clock.now_s += 2
    meter.holds("a", "objects", 10)
    meter.holds("a", "libraries", 1)
    clock.now_s += 3
    assert meter.usage("a").holdings == (
        KeptByClient("a", "libraries", 1, 3.0),
        KeptByClient("a", "objects", 10, 230.0),
    )
    await meter.close()
    clock.now_s += 1000  # no server is up
    meter = opened(folder, clock)
    meter.holds("a", "objects", 10)
    clock.now_s += 1
    assert meter.usage("a").byte_s("a") == 3.0 + 240.0
    await meter.close()


@in_loop
async def test_quotas_are_read_from_the_usage(folder: Path) -> None:
    clock = Clock()
    meter = opened(folder, clock)
    limits = Quotas(device_s_per_minute=1.0, stored_bytes=10, concurrent_requests=2)
    meter.grant("a", limits)
    meter.admit("a")
    meter.admit("a")
    with pytest.raises(QuotaExceeded) as raised:
        meter.admit("a")
    assert raised.value.fields.keys() == {"client", "quota", "limit", "used", "retry_s"}
    assert (raised.value.client, raised.value.quota, raised.value.used) == ("a", "concurrent_requests", 2)
    meter.ended("a", "f", "k", "succeeded", 0, 0, 0, ran(0.6))
    meter.ended("a", "f", "l", "succeeded", 0, 0, 0, ran(0.6))
    for life in range(3):
        with pytest.raises(QuotaExceeded) as raised:
            meter.admit("a")
        assert raised.value.quota == "device_s_per_minute"
        assert 60 - 3 <= raised.value.retry_s + clock.now_s - 1000 <= 63
        meter.admit("b")
        meter.ended("b", "f", "", "succeeded", 0, 0, 0, ran(0.6))
        if life == 0:
            killed(meter)
        else:
            await meter.close()
        clock.now_s += 5
        meter = opened(folder, clock)
        meter.grant("a", limits)
    clock.now_s += 60
    meter.admit("a")
    await meter.close()


operations = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 8), st.integers(1, 10**12)),
        st.tuples(st.just("answer lost"), st.integers(0, 8), st.integers(1, 10**12)),
        st.tuples(st.just("not stored"), st.integers(0, 8), st.integers(1, 10**12)),
        st.tuples(st.just("torn"), st.integers(0, 8), st.integers(1, 60)),
        st.sampled_from([("fold",), ("killed",), ("killed before commit",), ("killed before delete",), ("closed",)]),
    ),
    max_size=25,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=operations)
def test_charges_are_exact_wherever_the_process_ends(steps: list[tuple[Any, ...]], tmp_path: Path) -> None:
    """Requests have keys and are repeated where the reply was lost; the process ends between any two steps of the
    handling of a charge."""
    folder = tmp_path / "state"
    shutil.rmtree(folder, ignore_errors=True)
    expected: dict[str, int] = {}  # device time by key
    failed: list[int] = []  # device time of those whose outputs could not be stored

    async def run() -> None:
        meter = opened(folder)
        for step in steps:
            match step:
                case ("ask" | "answer lost", number, nanoseconds):
                    key = f"key {number}"
                    meter.admit("a")
                    charged = meter.ended("a", "f", key, "succeeded", 3, 5, 8, ran(nanoseconds / 1e9))
                    assert charged == (key not in expected)
                    expected.setdefault(key, nanoseconds)
                    if step[0] == "ask":
                        continue
                    killed(meter)
                case ("not stored", number, nanoseconds):
                    key = f"key {number}"
                    meter.admit("a")
                    if meter.ended("a", "f", key, "succeeded", 3, 5, 8, ran(nanoseconds / 1e9)):
                        meter.failed("a", "f", key, "succeeded", "StateUnavailable")
                        failed.append(nanoseconds)
                    continue
                case ("torn", number, cut):  # killed in the system call, before the reply
                    journal = meter._journal or meter._begin()
                    whole = journal.size_bytes
                    journal.write(usage.Charge("a", "f", f"key {number}", "succeeded", 1, 1, 1, 1, 1))
                    os.truncate(journal.path, max(whole, journal.size_bytes - cut))
                    killed(meter)
                case ("fold",):
                    meter._file.apply(meter._taken())
                    continue
                case ("killed before commit",):
                    meter._taken()
                    killed(meter)
                case ("killed before delete",):
                    changes = meter._taken()
                    segments = {path: path.read_bytes() for path in folder.glob(SEGMENT + "*")}
                    meter._file.apply(changes)
                    for path, content in segments.items():
                        path.write_bytes(content)
                    killed(meter)
                case ("closed",):
                    await meter.close()
                case _:
                    killed(meter)
            seen = read_usage(folder)  # by another process, while no server is up
            meter = opened(folder)
            assert meter.usage().flows == seen.flows
        for flow in meter.usage().flows:
            ended = {"succeeded": len(expected), "StateUnavailable": len(failed)}
            assert (flow.requests, Counter(flow.outcomes)) == (len(expected), Counter(ended))
            assert flow.device_ns == sum(expected.values()) + sum(failed)
            ran_count = len(expected) + len(failed)
            assert (flow.bytes_in, flow.bytes_out) == (3 * ran_count, 5 * ran_count)
        await meter.close()

    asyncio.run(run())


SERVER = """
import asyncio, sys
from pathlib import Path
from kaas.wire.specs import RunRecord
from kaas.server.usage import metering
metering.WRITE_EVERY_S = 0.002
async def main():
    meter = metering.Meter(Path(sys.argv[1]))
    meter.open()
    record = RunRecord({}, {}, [], [], 1e-9)
    for line in sys.stdin:
        client, key = line.split()
        meter.admit(client)
        meter.ended(client, "f", key, "succeeded", 1, 1, 2, record)
        print(client, key, flush=True)
        await asyncio.sleep(0)
asyncio.run(main())
"""


@pytest.mark.processes
@pytest.mark.parametrize("answers", spread([1, 300, 40], 2))
def test_a_killed_server_has_charged_the_requests_that_it_answered(tmp_path: Path, answers: int) -> None:
    """Two runs of a real process; the first is killed at some point after so many replies."""
    asked = [(f"client{number % 3}", f"key{number}") for number in range(answers + 200)]
    answered: list[tuple[str, str]] = []
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write("".join(f"{client} {key}\n" for client, key in asked))
        with suppress(BrokenPipeError):
            server.stdin.flush()
        for _ in range(answers):
            client, key = server.stdout.readline().split()
            answered.append((client, key))
        server.send_signal(signal.SIGKILL)
        answered += [(line.split()[0], line.split()[1]) for line in server.stdout if line.endswith("\n")]
        server.stdin.close()
    charged = sum(flow.requests for flow in read_usage(tmp_path).flows)
    assert len(answered) <= charged <= len(answered) + 1  # the one that it was about to answer
    again = "".join(f"{client} {key}\n" for client, key in [*asked, *asked])
    subprocess.run(
        [sys.executable, "-c", SERVER, str(tmp_path)], input=again, text=True, check=True, capture_output=True
    )
    expected = Counter(client for client, _ in asked)
    assert {flow.client: flow.requests for flow in read_usage(tmp_path).flows} == expected
    assert {flow.client: flow.device_ns for flow in read_usage(tmp_path).flows} == expected


@in_loop
async def test_a_charge_is_durable_and_counted_before_its_reply_even_if_sending_fails(
    folder: Path,
) -> None:
    meter = opened(folder)
    durable: list[int] = []

    def answer() -> None:
        durable.append(sum(flow.requests for flow in read_usage(folder).flows))
        raise ConnectionError

    for key, charged in (("k", 1), ("l", 2), ("l", 2)):
        meter.admit("a")
        with pytest.raises(ConnectionError):
            meter.ended("a", "f", key, "succeeded", 1, 1, 2, ran(1.0), answer)
        assert durable.pop() == charged
        assert meter.usage().flows[0].requests == charged
    assert meter.usage().flows[0].repeats == 1
    await meter.close()


@pytest.mark.slow
@in_loop
async def test_charges_reach_the_file_by_themselves(folder: Path) -> None:
    meter = opened(folder)
    meter.admit("a")
    meter.ended("a", "f", "k", "succeeded", 1, 1, 2, ran(1.0))
    assert [path.name for path in folder.glob(SEGMENT + "*")] == [SEGMENT + "1"]
    async with asyncio.timeout(TIMEOUT_S):
        while list(folder.glob(SEGMENT + "*")):
            await asyncio.sleep(0.01)
    assert read_usage(folder).flows == meter.usage().flows
    await meter.close()


@pytest.mark.slow
@in_loop
async def test_a_full_disk_is_reported_and_loses_no_charge(folder: Path) -> None:
    meter = opened(folder)
    apply = meter._file.apply

    def full(_: Any) -> None:
        raise OSError("no space left on device")

    meter._file.apply = full  # type: ignore[method-assign,assignment]
    meter.admit("a")
    meter.ended("a", "f", "k", "succeeded", 1, 1, 2, ran(1.0))
    async with asyncio.timeout(TIMEOUT_S):
        while not meter.trouble:
            await asyncio.sleep(0.01)
    assert "no space left" in meter.trouble
    assert read_usage(folder).flows == meter.usage().flows
    meter.admit("a")
    meter.ended("a", "f", "l", "succeeded", 1, 1, 2, ran(1.0))
    meter._file.apply = apply  # type: ignore[method-assign]
    async with asyncio.timeout(TIMEOUT_S):
        while meter.trouble or list(folder.glob(SEGMENT + "*")):
            await asyncio.sleep(0.01)
    killed(meter)
    meter = opened(folder)
    assert meter.usage().flows[0].requests == 2
    for key in ("k", "l"):
        meter.admit("a")
        assert not meter.ended("a", "f", key, "succeeded", 1, 1, 2, ran(1.0))
    await meter.close()


@in_loop
async def test_a_reply_that_cannot_be_charged_is_not_sent(folder: Path) -> None:
    meter = opened(folder)
    meter.admit("a")
    meter.ended("a", "f", "k", "succeeded", 1, 1, 2, None)
    assert meter._journal is not None
    journal, meter._journal = meter._journal, Broken(meter._journal)
    meter.grant("a", Quotas(concurrent_requests=1))
    meter.admit("a")
    with pytest.raises(UsageUnavailable) as raised:
        meter.ended("a", "f", "l", "succeeded", 1, 1, 2, None, lambda: pytest.fail("it was answered"))
    assert raised.value.path == str(folder)
    meter._journal = journal
    meter.admit("a")  # its place was given back
    assert meter.ended("a", "f", "l", "succeeded", 1, 1, 2, None)
    killed(meter)
    assert read_usage(folder).flows[0].requests == 2


class Broken(Journal):
    def __init__(self, journal: Journal) -> None:
        self._fd = os.open(journal.path, os.O_RDONLY)
        self.path, self.number, self.size_bytes, self.torn = journal.path, journal.number, journal.size_bytes, False


def test_of_a_journal_that_is_cut_or_damaged_all_else_is_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 1)
    written = [usage.Charge("a", "f", f"k{number}", "succeeded", number, 1, 1, 1, 1) for number in range(5)]
    ends = []
    for charge in written:
        journal.write(charge)
        ends.append(journal.size_bytes)
    journal.close()
    content = journal.path.read_bytes()
    for size in range(len(content) + 1):
        whole = sum(end <= size for end in ends)
        end = ends[whole - 1] if whole else 0
        assert list(charges(content[:size])) == [*written[:whole], *([Gap(end, size)] if end < size else [])]
    for at in range(len(content)):
        damaged = content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :]
        hit = sum(end <= at for end in ends)
        found = list(charges(damaged))
        assert [each for each in found if isinstance(each, usage.Charge)] == written[:hit] + written[hit + 1 :]
        gap = Gap(ends[hit - 1] if hit else 0, ends[hit])
        assert [each for each in found if isinstance(each, Gap)] == [gap]


@in_loop
async def test_a_usage_folder_has_one_server(folder: Path) -> None:
    meter = opened(folder)
    with pytest.raises(UsageUnavailable, match="another server"):
        opened(folder)
    await meter.close()
    await opened(folder).close()


@in_loop
async def test_usage_files_are_private_to_their_user(folder: Path) -> None:
    meter = opened(folder)
    meter.admit("a")
    meter.ended("a", "f", "k", "succeeded", 1, 1, 2, None)
    assert all(path.stat().st_mode & 0o077 == 0 for path in (folder, *folder.iterdir()))
    await meter.close()


def test_a_folder_without_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageUnavailable):
        read_usage(tmp_path)
    (tmp_path / usage_file.NAME).write_bytes(b"something else" * 1000)
    with pytest.raises(UsageUnavailable):
        read_usage(tmp_path)


@in_loop
async def test_a_file_that_is_no_usage_is_set_aside(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / usage_file.NAME).write_bytes(b"something else" * 1000)
    meter = opened(folder)
    assert usage_file.NAME in meter.set_aside.stories[0]
    assert meter.usage().flows == ()
    await meter.close()


@in_loop
async def test_files_that_are_no_segments_are_set_aside(folder: Path) -> None:
    await opened(folder).close()
    strays = [f"{SEGMENT}{name}" for name in ("99999999999999999999", "9223372036854775807", "-1", "\u0663", "bak")]
    for name in strays:
        (folder / name).write_bytes(b"?")
    (folder / f"{SEGMENT}1").mkdir()
    assert read_usage(folder) == Usage((), ())
    meter = opened(folder)
    assert (meter.set_aside.count, [*folder.glob(SEGMENT + "*")]) == (len(strays) + 1, [])
    meter.admit("a")
    assert meter.ended("a", "f", "", "succeeded", 1, 1, 2, ran(1.0))
    killed(meter)
    meter = opened(folder)
    assert (meter.set_aside.count, meter.usage().flows[0].requests) == (0, 1)
    await meter.close()


def test_functions_and_keys_kept_for_a_client_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "FUNCTIONS_PER_CLIENT", 3)
    totals = usage.Totals()
    for number in range(KEYS_PER_CLIENT + 10):
        totals.add(usage.Charge("a", f"f{number % 7}", f"k{number}", "succeeded", 1, 0, 0, 0, 0))
    totals.add(usage.Charge("b", "f6", "k0", "succeeded", 1, 0, 0, 0, 0))
    assert sorted(totals.flows) == [("a", OTHERS), ("a", "f0"), ("a", "f1"), ("a", "f2"), ("b", "f6")]
    assert sum(flow.device_ns for flow in totals.flows.values()) == KEYS_PER_CLIENT + 11
    assert len(totals.keys["a"]) == KEYS_PER_CLIENT
    assert not totals.charged("a", "k9")
    assert totals.charged("a", "k10")


def test_sums() -> None:
    flows = (
        FlowUsage("a", "f", 1, {"succeeded": 1}, 0, 10, 1, 2, 3),
        FlowUsage("a", "g", 2, {"succeeded": 1, "X": 1}, 1, 20, 1, 2, 3),
        FlowUsage("b", "f", 4, {"X": 4}, 0, 30, 1, 2, 3),
    )
    held = Usage(flows, (KeptByClient("a", "objects", 1, 2.0),))
    assert held.by("client") == (
        FlowUsage("a", "", 3, {"succeeded": 2, "X": 1}, 1, 30, 2, 4, 6),
        *held.by("client")[1:],
    )
    assert [(flow.function, flow.requests) for flow in held.by("function")] == [("f", 5), ("g", 2)]
    assert json.loads(json.dumps(usage.reported(held)))["holdings"] == [
        {"client": "a", "what": "objects", "nbytes": 1, "byte_s": 2.0}
    ]

"""The tables of states say exactly which moves the halves make: no other, and each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from kaas.wire.rpc import client_half, server_half
from kaas.wire.rpc.client_half import CallEvent, CallState, ClientHalf
from kaas.wire.rpc.idempotency_cache import IdempotencyCache
from kaas.wire.rpc.server_half import KeyOwner, ServerHalf, Wait, WaitEvent, WaitingSession, WaitState
from tests.wire.rpc.network import Account, SimulatedRun

# --- the client half: variants are calls that hold something or nothing, and are repeated or not


@dataclass(eq=False)
class Call:
    holding: int | None
    repeatable: bool


Half = ClientHalf[Call, int]
NUMBER, LATER = 1, 2
"""The first number of the call, and the number under which it is sent again."""


def open_call(half: Half, call: Call) -> None:
    half.begin(NUMBER, call)


def resting_call(half: Half, call: Call) -> None:
    half.begin(NUMBER, call)
    half.put_off(NUMBER, NUMBER)


def abandoned_call(half: Half, call: Call) -> None:
    half.begin(NUMBER, call)
    half.abandon(NUMBER, NUMBER, 10)


def ended_call(half: Half, call: Call) -> None:
    half.begin(NUMBER, call)
    half.replied(NUMBER)


CALLS: dict[CallState, Callable[[Half, Call], None]] = {
    CallState.OPEN: open_call,
    CallState.RESTING: resting_call,
    CallState.ABANDONED: abandoned_call,
    CallState.ENDED: ended_call,
}
CALL_EVENTS: dict[CallEvent, Callable[[Half, Call], Any]] = {
    CallEvent.REPLIED: lambda half, _: half.replied(NUMBER),
    CallEvent.HELD: lambda half, _: half.held(NUMBER, lambda _: 10),
    CallEvent.PUT_OFF: lambda half, _: half.put_off(NUMBER, NUMBER),
    CallEvent.REPEAT: lambda half, _: half.repeat(NUMBER, LATER),
    CallEvent.ABANDON: lambda half, call: half.abandon(NUMBER, NUMBER, call.holding),
    CallEvent.RELEASED: lambda half, _: half.released(NUMBER),
    CallEvent.LOST: lambda half, _: half.lost(),
    CallEvent.RENEWED: lambda half, _: half.renewed(),
    CallEvent.FAILED: lambda half, _: half.failed(),
}


@pytest.mark.parametrize(("state", "event"), [*product(CallState, CallEvent)], ids=lambda each: each.name)
def test_calls_move_as_in_the_table(state: CallState, event: CallEvent) -> None:
    reached = set()
    for holding, repeatable in product((10, None), (True, False)):
        half, call = Half(), Call(holding, repeatable)
        CALLS[state](half, call)
        assert half.state(NUMBER) is state
        CALL_EVENTS[event](half, call)
        reached.add(half.state(LATER if LATER in half.open else NUMBER))
    assert reached == client_half.TRANSITIONS.get((state, event), {state})


# --- the server half: variants are runs with or without a key, sessions with or without a connection


@dataclass(eq=False)
class Setting:
    """One session and its wait, as an adapter has them. A channel is True while it carries messages."""

    half: ServerHalf[SimulatedRun]
    session: WaitingSession
    run: SimulatedRun
    wait: Wait

    def send(self, wait: Wait | None) -> None:
        if wait is not None:
            self.half.sent(wait, through=wait.session.channel[0] and not wait.session.lost)

    def end(self) -> None:
        waits = self.half.ended(self.run)
        for wait in waits:
            if not wait.session.lost:
                self.send(wait)
        self.half.settle(self.run, waits, 0.0)

    def greet(self, *, carries: bool) -> None:
        for wait in self.half.greeted(self.session, [carries]):
            self.send(wait)

    def cancel(self) -> None:
        cancelled = SimulatedRun(client=self.session.client, key="", name="cancelled", done=True)
        wait, _ = self.half.cancel(self.session, NUMBER, cancelled)
        if wait is not None and not wait.session.lost:
            self.send(wait)


def setting(key: str) -> Setting:
    cache: IdempotencyCache[SimulatedRun] = IdempotencyCache(10, 1e9)
    caller: KeyOwner[SimulatedRun] = KeyOwner(finished=cache, requests=Account())
    session = WaitingSession(caller, [True])
    run = SimulatedRun(client=caller, key=key, name="run")
    if key:
        caller.runs[key] = run
    half: ServerHalf[SimulatedRun] = ServerHalf()
    half.wait(session, NUMBER, run, 1)
    return Setting(half, session, run, session.waits[NUMBER])


def waits_in(state: WaitState, key: str) -> Iterator[Setting]:
    """Yield settings whose wait is in a state, one for each way to it."""
    found = setting(key)
    if state is WaitState.RUNNING:
        yield found
        lost = setting(key)
        lost.half.lost(lost.session)
        yield lost
        broken = setting(key)
        broken.session.channel[0] = False
        yield broken
        committed = setting(key)
        committed.run.committed = True
        yield committed
    elif state is WaitState.READY:
        found.session.channel[0] = False
        found.end()
        yield found
        if not key:
            lost = setting(key)
            lost.half.lost(lost.session)
            lost.end()
            yield lost
    elif state is WaitState.SENT:
        found.end()
        yield found
    else:
        found.end()
        found.half.received(found.session, [NUMBER])
        yield found


WAIT_EVENTS: dict[WaitEvent, tuple[Callable[[Setting], Any], ...]] = {
    WaitEvent.ENDED: (Setting.end,),
    WaitEvent.CANCEL: (Setting.cancel,),
    WaitEvent.RECEIVED: (lambda found: found.half.received(found.session, [NUMBER]),),
    WaitEvent.GREETED: (lambda found: found.greet(carries=True), lambda found: found.greet(carries=False)),
    WaitEvent.LOST: (lambda found: found.half.lost(found.session),),
    WaitEvent.FORGET: (lambda found: found.half.forget(found.session),),
    WaitEvent.WITHDRAW: (lambda found: found.half.withdraw(found.wait),),
}


ENDS_ONCE = ((WaitState.READY, WaitEvent.ENDED), (WaitState.SENT, WaitEvent.ENDED))
"""These cannot happen: an adapter ends a run once."""


@pytest.mark.parametrize(
    ("state", "event"),
    [each for each in product(WaitState, WaitEvent) if each not in ENDS_ONCE],
    ids=lambda each: each.name,
)
def test_waits_move_as_in_the_table(state: WaitState, event: WaitEvent) -> None:
    reached = set()
    for key, act in product(("", "key"), WAIT_EVENTS[event]):
        for found in waits_in(state, key):
            assert found.wait.state is state
            act(found)
            reached.add(found.wait.state)
    assert reached == server_half.TRANSITIONS.get((state, event), {state})

"""A network in one thread: programs with a client half each, a server half, and connections that delay, repeat, cut and
restart. Calls are submitted at random; `Network.settle` heals it, and then each call must have had one reply."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kaas.wire.protocol import Limits
from kaas.wire.rpc import client_half, server_half
from kaas.wire.rpc.client_half import CallEvent, ClientHalf
from kaas.wire.rpc.credit import Credit
from kaas.wire.rpc.idempotency_cache import IdempotencyCache
from kaas.wire.rpc.server_half import KeyOwner, Run, ServerHalf, Wait, WaitEvent, WaitingSession

KEPT_BYTES = 1 << 40
LIMITS = Limits(requests=12, credit_bytes=12, frame_bytes=12)
"""Of each program. A call takes one byte."""


@dataclass(slots=True)
class Account:
    """The credit of a caller's waits, as the server counts it: number of waits, and their bytes."""

    count: int = 0
    nbytes: int = 0

    def take(self, nbytes: int) -> None:
        self.count += 1
        self.nbytes += nbytes

    def give_back(self, nbytes: int) -> None:
        self.count -= 1
        self.nbytes -= nbytes


class SimulatedRun(Run):
    """A run whose reply is its own name. busy: the reply is that the call may be sent again."""

    nbytes: int = 1
    name: str = ""
    busy: bool = False

    @property
    def final(self) -> bool:
        return not self.busy


@dataclass(slots=True, eq=False)
class SimulatedCall:
    """first: its first number. key: "" for none. replies: that its program was given. abandoned: no caller waits."""

    first: int
    number: int
    key: str
    repeatable: bool = True
    replies: list[str] = field(default_factory=list)
    abandoned: bool = False


@dataclass(slots=True, eq=False)
class Pipe:
    """A connection: messages on their way there and back, in order. open: neither end has noticed that it ended."""

    up: deque[tuple[Any, ...]] = field(default_factory=deque)
    down: deque[tuple[Any, ...]] = field(default_factory=deque)
    open: bool = True


class Program:
    """A client half with its credit and its connection."""

    def __init__(self, network: Network, name: str, owner: str) -> None:
        self.network, self.name, self.owner = network, name, owner
        self.half: ClientHalf[SimulatedCall, int] = ClientHalf()
        self.pipe: Pipe | None = None
        self.epoch = ""
        self.next = 0
        self.credit: Credit[SimulatedCall] = Credit()
        self.calls: list[SimulatedCall] = []

    def submit(self, key: str) -> None:
        self.next += 1
        call = SimulatedCall(self.next, self.next, key)
        self.calls.append(call)
        if self.credit.take(1):
            self.begin(call)
        else:
            self.credit.waiting.append((call, 1))

    def begin(self, call: SimulatedCall) -> None:
        self.half.begin(call.number, call)
        if self.pipe is not None:
            due = self.credit.due()
            if due:
                self.send("received", due)
            self.send("invoke", call.number, call.key)

    def give_back(self) -> None:
        """Give the credit of a call back, and begin the calls that have room now."""
        self.credit.give(1)
        for call, _ in self.credit.granted():
            self.begin(call)

    def send(self, *message: Any) -> None:
        if self.pipe is not None:
            self.pipe.up.append(message)

    def take(self, message: tuple[Any, ...]) -> None:
        kind, number, *rest = message
        half = self.half
        self.credit.replied(number, 1)
        call = half.open.get(number)
        if kind == "busy" and call is not None:
            first = call.first
            self.network.moved(CallEvent.PUT_OFF, half, number, lambda: half.put_off(number, first))
            return
        call, abandoned = self.network.moved(CallEvent.REPLIED, half, number, lambda: half.replied(number))
        if call is not None:
            call.replies.append(rest[0] if rest else kind)
        if call is not None or abandoned is not None:
            self.give_back()

    def acknowledge(self) -> None:
        if self.pipe is not None:
            self.send("received", self.credit.all_due())

    def repeat_one(self) -> None:
        first = next(iter(self.half.resting), None)
        if first is not None:
            self.next += 1
            call = self.half.repeat(first, self.next)
            assert call is not None
            call.number = self.next
            self.send("invoke", call.number, call.key)

    def abandon(self, call: SimulatedCall) -> None:
        number, half = call.number, self.half
        found, cancels = self.network.moved(
            CallEvent.ABANDON, half, number, lambda: half.abandon(number, call.first, number), rests=call.first
        )
        if found is not None:
            call.abandoned = True
        if cancels:
            self.send("cancel", number)
        elif found is not None:
            self.give_back()

    def connect(self) -> None:
        pipe, epoch = self.network.accept(self)
        same, self.epoch = epoch == self.epoch, epoch
        self.pipe = pipe
        self.credit.renew(LIMITS)
        abandoned, calls = self.half.renewed()
        for number in abandoned if same else ():
            self.send("cancel", number)
        for call in calls:
            self.send("invoke", call.number, call.key)
        for _ in abandoned:
            self.credit.give(1)
        for call, _ in self.credit.granted():
            self.begin(call)

    def close(self) -> None:
        """Give all calls up, as a client that is closed does."""
        calls, _ = self.half.failed()
        for call in (*calls, *(call for call, _ in self.credit.waiting)):
            call.replies.append("closed")
        self.credit = Credit()

    def disconnected(self) -> None:
        self.pipe = None
        for call in self.half.lost():
            call.replies.append("lost")


class Network:
    """Steps of everything that may happen, chosen by `random`.

    Fields:
        steps: so far. twice: runs that were carried out twice under one key, or twice for one call in one epoch of the
            server. checked: compare each move with the tables of states.
    """

    def __init__(self, random: Random, programs: int = 3, *, checked: bool = False) -> None:
        self.random = random
        self.checked = checked
        self.steps = self.twice = self.epochs = 0
        self.disk: dict[tuple[str, str], str] = {}  # durable replies, by owner and key
        self.done: dict[Any, int] = {}
        self.names = 0
        self.sessions: dict[str, WaitingSession] = {}
        self.running: list[SimulatedRun] = []
        self.restart()
        # two programs of one owner use the same keys
        self.programs = [Program(self, f"program {n}", f"owner {n // 2}") for n in range(programs)]
        self.left: list[Program] = []
        self.moves: tuple[tuple[Callable[[], None], int], ...] = (
            (self.submit, 20), (self.up, 34), (self.down, 34), (self.end_run, 18), (self.acknowledge, 10),
            (self.repeat, 6), (self.abandon, 2), (self.connect, 6), (self.cut, 1), (self.repeat_message, 1),
            (self.leave, 1), (self.find, 4), (self.commit, 6),
        )  # fmt: skip
        self._choices = [move for move, weight in self.moves for _ in range(weight)]

    def step(self) -> None:
        self.steps += 1
        if not self.steps % 5000:
            self.restart()
        self._choices[int(self.random.random() * len(self._choices))]()

    def program(self) -> Program:
        return self.programs[int(self.random.random() * len(self.programs))]

    # --- moves

    def submit(self) -> None:
        program = self.program()
        if len(program.credit.waiting) < 4:
            chance = self.random.random()
            if chance < 0.4:
                key = ""
            else:  # one of few, which others have too, or its own
                key = f"key {int(chance * 1e9) % 997}" if chance < 0.6 else f"{program.name} {program.next}"
            program.submit(key)

    def up(self) -> None:
        program = self.program()
        if program.pipe is not None and program.pipe.up:
            self.serve(program, program.pipe.up.popleft())

    def down(self) -> None:
        program = self.program()
        if program.pipe is not None and program.pipe.down:
            program.take(program.pipe.down.popleft())

    def repeat_message(self) -> None:
        program = self.program()
        if program.pipe is not None and program.pipe.up:
            self.serve(program, program.pipe.up[0])

    def acknowledge(self) -> None:
        self.program().acknowledge()

    def repeat(self) -> None:
        self.program().repeat_one()

    def abandon(self) -> None:
        program = self.program()
        calls = program.half.resting if self.random.random() < 0.3 else program.half.open
        if calls:
            program.abandon(next(iter(calls.values())))

    def leave(self) -> None:
        """Close a program, one time in eight, and let another of the same owner take its place."""
        program = self.program()
        if self.random.random() < 0.875:
            return
        self.cut_off(program)
        program.close()
        session = self.sessions.pop(program.name, None)
        for run in () if session is None else self.server_left(session):
            self.stop(run)
        self.names += 1
        self.left.append(program)
        self.programs[self.programs.index(program)] = Program(self, f"later program {self.names}", program.owner)

    def server_left(self, session: WaitingSession) -> list[SimulatedRun]:
        """Forget a session; return the runs for which no caller waits any longer."""
        runs: list[SimulatedRun] = self.server_moved(WaitEvent.FORGET, session, lambda: self.half.forget(session))
        return runs

    def connect(self) -> None:
        program = self.program()
        if program.pipe is None:
            program.connect()

    def cut(self) -> None:
        self.cut_off(self.program())

    def cut_off(self, program: Program) -> None:
        """Both ends notice; messages on their way are lost."""
        if program.pipe is not None:
            session = self.sessions.get(program.name)
            if session is not None:
                self.server_moved(WaitEvent.LOST, session, lambda: self.half.lost(session))
            program.disconnected()

    def restart(self) -> None:
        """Kill the server: all but its disk is lost."""
        self.epochs += 1
        self.half: ServerHalf[SimulatedRun] = ServerHalf()
        self.callers: dict[str, KeyOwner[SimulatedRun]] = {}
        self.sessions.clear()
        self.running.clear()
        self.sought: list[tuple[Wait, Program, str]] = []  # waits of calls whose run the server still seeks
        for program in getattr(self, "programs", ()):
            program.pipe = None
            for call in program.half.lost():
                call.replies.append("lost")
        for (owner, key), name in self.disk.items():
            caller = self.caller(owner)
            run = SimulatedRun(client=caller, key=key, name=name, done=True, durable=True)
            caller.finished.add(key, run, 1, 0.0)

    # --- the server

    def caller(self, owner: str) -> KeyOwner[SimulatedRun]:
        caller = self.callers.get(owner)
        if caller is None:
            cache: IdempotencyCache[SimulatedRun] = IdempotencyCache(KEPT_BYTES, 1e9)
            caller = self.callers[owner] = KeyOwner(finished=cache, requests=Account())
        return caller

    def accept(self, program: Program) -> tuple[Pipe, str]:
        pipe = Pipe()
        session = self.sessions.get(program.name)
        if session is None:
            session = self.sessions[program.name] = WaitingSession(self.caller(program.owner), pipe)
        for wait in self.server_moved(WaitEvent.GREETED, session, lambda: self.half.greeted(session, pipe)):
            self.send(wait)
        return pipe, str(self.epochs)

    def send(self, wait: Wait) -> None:
        run: SimulatedRun = wait.run
        through = not wait.session.lost
        if through:
            pipe: Pipe = wait.session.channel
            pipe.down.append(("busy", wait.number) if run.busy else ("result", wait.number, run.name))
        self.half.sent(wait, through=through)

    def serve(self, program: Program, message: tuple[Any, ...]) -> None:
        session = self.sessions[program.name]
        match message:
            case ("invoke", number, key):
                self.invoke(program, session, number, key)
            case ("cancel", number):
                cancelled = SimulatedRun(client=session.client, key="", name="cancelled", done=True)
                wait, alone = self.half.cancel(session, number, cancelled)
                if wait is not None:
                    self.send(wait)
                if alone is not None:
                    self.stop(alone)
            case ("received", numbers):
                self.half.received(session, numbers)

    def invoke(self, program: Program, session: WaitingSession, number: int, key: str) -> None:
        wait = session.waits.get(number)
        if wait is not None:
            if wait.run.done:
                self.send(wait)
            return
        run = session.client.known(key)
        if run is not None and self.random.random() < 0.2:  # the server first compares the call with the run
            sought = SimulatedRun(client=session.client, name="sought")
            self.half.wait(session, number, sought, 1)
            self.sought.append((session.waits[number], program, key))
            return
        if run is None:
            run = SimulatedRun(client=session.client, key=key, name=key or f"{self.epochs} {program.name} {number}")
            if key:
                session.client.runs[key] = run
            self.running.append(run)
        ready = self.half.wait(session, number, run, 1)
        if ready is not None:
            self.send(ready)

    def find(self) -> None:
        """Find the run of a call that was compared with it, or refuse the call, one time in eight."""
        if not self.sought:
            return
        wait, program, key = self.sought.pop(int(self.random.random() * len(self.sought)))
        session = wait.session
        if not self.half.withdraw(wait):
            return
        if self.random.random() < 0.125:
            if not session.lost:
                session.channel.down.append(("busy", wait.number))
        else:
            self.invoke(program, session, wait.number, key)

    def commit(self) -> None:
        """Carry out a run whose reply comes later: it is no longer stopped."""
        if self.running:
            run = self.running[int(self.random.random() * len(self.running))]
            if not run.committed:
                run.committed = True
                self.carry_out(run)

    def end_run(self) -> None:
        if self.running:
            place = int(self.random.random() * len(self.running))
            run = self.running[place]
            self.running[place] = self.running[-1]
            self.running.pop()
            self.end(run, busy=self.random.random() < 0.1)

    def end(self, run: SimulatedRun, *, busy: bool) -> None:
        run.busy = busy and not run.committed
        if not run.busy and not run.committed:
            self.carry_out(run)
        waits = self.half.ended(run)
        for wait in waits:
            if not wait.session.lost:
                self.send(wait)
        self.half.settle(run, waits, 0.0)

    def carry_out(self, run: SimulatedRun) -> None:
        """Carry out a run, which must not happen twice. Its reply is written to the disk with it."""
        owner = next(name for name, caller in self.callers.items() if caller is run.client)
        what = (owner, run.key) if run.key else run.name
        self.twice += self.done.get(what, 0)
        self.done[what] = 1
        if run.key:
            run.durable = True
            self.disk[owner, run.key] = run.name

    def stop(self, run: SimulatedRun) -> None:
        """End a run without a caller as cancelled; it is not carried out."""
        assert not run.committed, "it was carried out"
        if run in self.running:
            self.running.remove(run)
            if run.client.runs.get(run.key) is run:
                del run.client.runs[run.key]

    # --- the end

    def settle(self) -> tuple[int, int]:
        """Heal the network, and let all end. Return how many calls have no reply, and how many a wrong one."""
        for _ in range(1000):
            for program in self.programs:
                if program.pipe is None:
                    program.connect()
                pipe = program.pipe
                assert pipe is not None
                while pipe.up:
                    self.serve(program, pipe.up.popleft())
                while pipe.down:
                    program.take(pipe.down.popleft())
                program.repeat_one()
                program.acknowledge()
            while self.sought:
                self.find()
            for run in list(self.running):
                self.running.remove(run)
                self.end(run, busy=False)
            if not any(p.half.open or p.half.resting or (p.pipe and (p.pipe.up or p.pipe.down)) for p in self.programs):
                break
        calls = [call for program in self.all_programs() for call in program.calls if not call.abandoned]
        lost = sum(not call.replies for call in calls)
        wrong = sum(
            len(call.replies) > 1 or (bool(call.key) and not {call.key, "cancelled", "closed"} >= {*call.replies})
            for call in calls
        )
        return lost, wrong

    def all_programs(self) -> list[Program]:
        """Return the programs of now, and those that have left."""
        return [*self.left, *self.programs]

    # --- the tables

    def moved(
        self, event: CallEvent, half: ClientHalf[Any, Any], number: int, act: Callable[[], Any], rests: int = 0
    ) -> Any:
        if not self.checked:
            return act()
        before = half.state(number if rests not in half.resting else rests)
        result = act()
        after = half.state(number)
        allowed = client_half.TRANSITIONS.get((before, event), frozenset({before}))
        if (
            after is not client_half.CallState.ENDED or event is not CallEvent.PUT_OFF
        ):  # it rests under its first number
            assert after in allowed, (before, event, after)
        return result

    def server_moved(self, event: WaitEvent, session: WaitingSession, act: Callable[[], Any]) -> Any:
        if not self.checked:
            return act()
        before = [(wait, wait.state) for wait in session.waits.values()]
        result = act()
        for wait, state in before:
            allowed = server_half.TRANSITIONS.get((state, event), frozenset({state}))
            after = wait.state
            if event is WaitEvent.GREETED and after is server_half.WaitState.READY:
                continue  # it is sent by the caller
            assert after in allowed, (state, event, after)
        return result

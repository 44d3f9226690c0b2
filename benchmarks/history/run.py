"""A run of the history, inside its namespaces: `python -m benchmarks.history` makes them, and starts this."""

from __future__ import annotations

import argparse
import heapq
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

import kaas
from benchmarks.history import nemesis
from benchmarks.history.checker import Violation, violations
from benchmarks.history.events import (
    Answered,
    AnyEvent,
    Charged,
    Fault,
    Invoked,
    Recorder,
    Rest,
    Served,
    now_s,
    read,
    write,
)
from benchmarks.history.nemesis import REST_S, PlannedFault
from benchmarks.history.network import SERVER, Network
from benchmarks.history.operations import STEP
from benchmarks.history.supervising import START_S, WORDS, WORKERS, Programs, Servers
from benchmarks.report import report
from benchmarks.served import ADMINISTRATOR, Server

CLIENTS = ("ada", "bob", "cyd", "dan")
DEVICES = 2
KERNEL_S = 0.004
DISK_BYTES = 192 << 20
"""More than all kept answers take."""
ISOLATION = ("fence", "process")
CLOCK = Path(__file__).parent / "clock" / "sitecustomize.py"
AUDIT_S = 2.0
SEEDS = 100_000
SHOWN = 20
"""The violations that are printed."""


class Auditor:
    """Reads the usage of all clients again and again, as the administrator does.

    Fields:
        answered_s: when it had its last answer.
    """

    def __init__(self, client: kaas.Client, history: Recorder) -> None:
        self._client, self._history = client, history
        self.answered_s = now_s()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._audit, daemon=True)

    def __enter__(self) -> Auditor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _audit(self) -> None:
        while not self._ended.wait(AUDIT_S):
            self.look()

    def look(self) -> None:
        """Note the requests of each client."""
        asked_s = now_s()
        try:
            flows = self._client.usage()["flows"]
        except kaas.KaasError:
            return  # the next look has an answer
        self.answered_s = at_s = now_s()
        for client in CLIENTS:
            requests = {flow["function"]: flow["requests"] for flow in flows if flow["client"] == client}
            self._history.add(Charged(at_s=at_s, client=client, asked_s=asked_s, requests=requests))


Undo = Callable[[], None]
Act = tuple[float, int, Callable[[], Undo | None], float]
"""Seconds from the beginning, an order of equal ones, the act, and how long it lasts."""


class Harm:
    """Does what the nemesis has planned, and undoes it."""

    def __init__(
        self,
        servers: Servers,
        programs: Sequence[Programs],
        network: Network,
        state: Path,
        clock: Path,
        auditor: Auditor,
        file: Recorder,
    ) -> None:
        self._servers, self._programs, self._network = servers, programs, network
        self._state, self._clock, self._auditor, self._history = state, clock, auditor, file
        self._cut: set[str] = set()
        self._rests_s = 0.0

    def wreak(self, seconds: float, seed: int) -> None:
        """Do all of a plan."""
        order = count()
        acts: list[Act] = []

        def plan(at_s: float, act: Callable[[], Undo | None], for_s: float = 0.0) -> None:
            heapq.heappush(acts, (at_s, next(order), act, for_s))

        for fault in nemesis.plan(seed, seconds):
            plan(fault.at_s, partial(self._do, fault), fault.for_s)
        for at_s in nemesis.rests(seconds):
            plan(at_s, self._rest)
            plan(at_s + REST_S, self._look)
        began_s = monotonic()
        while acts:
            at_s, _, act, for_s = heapq.heappop(acts)
            ahead_s = began_s + at_s - monotonic()
            if ahead_s > 0:
                threading.Event().wait(ahead_s)
            else:
                began_s -= ahead_s  # the plan stands still meanwhile: what comes late would otherwise end a rest
            undo = act()
            if undo is not None:
                plan(at_s + for_s, undo)

    def _rest(self) -> None:
        self._rests_s = now_s()
        self._history.add(Rest(at_s=self._rests_s, until_s=self._rests_s + REST_S))

    def _look(self) -> None:
        """Look at the server at the end of a rest."""
        self._servers.look_for_strays()
        if self._auditor.answered_s < self._rests_s:
            self._servers.abort()

    def _do(self, fault: PlannedFault) -> Undo | None:
        """Do a fault, if it finds its victim. Return a function that undoes it."""
        verb, _, victim = fault.what.partition(" ")
        match verb:
            case "kill" | "stop":
                pid, whom = self._victim(victim, fault.whom)
                if pid is None:
                    return None
                self._note(fault, whom)
                if verb == "stop":
                    return nemesis.stop(pid)
                nemesis.kill(pid)
                return None
            case "cut":
                client = CLIENTS[fault.whom % len(CLIENTS)]
                if client in self._cut:
                    return None
                self._cut.add(client)
                self._note(fault, f"{client}, {fault.way}")
                self._network.cut(client, fault.way)
                return partial(self._heal, client, fault.way)
            case "fill":
                self._note(fault)
                return nemesis.fill(self._state / "another program's")
            case _:
                self._note(fault, f"{fault.ahead_s:+.0f} s")
                nemesis.step(self._clock, fault.ahead_s)
                return None

    def _heal(self, client: str, way: str) -> None:
        self._network.heal(client, way)
        self._cut.remove(client)

    def _note(self, fault: PlannedFault, whom: str = "") -> None:
        self._history.add(Fault(at_s=now_s(), what=fault.what, whom=whom, for_s=fault.for_s))

    def _victim(self, victim: str, whom: int) -> tuple[int | None, str]:
        """Return a process, None if there is none, and the client whose program it is."""
        if victim == "a program":
            program = self._programs[whom % len(self._programs)]
            return program.pid, program.client
        if victim == "the server":
            return self._servers.server.pid, ""
        return nemesis.one_of(self._servers.server.workers(WORKERS[victim]), whom), ""


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    from benchmarks.report import parser

    options = parser("Random faults, and a checker over the history of all requests.")
    options.add_argument("--minutes", type=float, default=20.0, help="length of the run with faults")
    drawn = secrets.randbelow(SEEDS)
    options.add_argument("--seed", type=int, default=drawn, help="of the operations and faults; by default another one")
    options.add_argument("--isolation", choices=ISOLATION, help="by default fence for even seeds, process for others")
    options.add_argument("--folder", type=Path, help="where history.jsonl and logs stay; by default a temporary one")
    return options.parse_args(argv)


def small_disk(folder: Path) -> None:
    """Mount a disk in memory, for this namespace only."""
    folder.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "none", str(folder)], check=True)


def history_of(folder: Path, seed: int, seconds: float, isolation: str) -> list[AnyEvent]:
    """Run programs and a server under faults. Return the events."""
    state, clock = folder / "state", folder / "clock"
    small_disk(state)
    clock.mkdir()
    shutil.copy(CLOCK, clock)
    (clock / "ahead").write_bytes(bytes(8))
    network = Network(CLIENTS)
    os.environ["PYTHONFAULTHANDLER"] = "1"  # for `Servers.abort`
    server = Server(
        folder,
        CLIENTS,
        host=SERVER,
        devices=DEVICES,
        kernels_s={"advance": KERNEL_S},
        isolation=isolation,
        settings={"steps": {"widened": STEP}},
        paths=[clock],
    )
    recorder = Recorder(folder / "nemesis.jsonl")
    servers = Servers(server, recorder)
    servers.start()
    programs = []
    for client in CLIENTS:
        command = [*network.prefix(client), sys.executable, "-m", "benchmarks.history.program", server.address,
                   str(server.keys(client)), client, str(seed), str(folder / f"{client}.jsonl")]  # fmt: skip
        programs.append(Programs(client, command, folder / f"{client}.errors", recorder, clock))
    for program in programs:
        program.start()
    files = [folder / "nemesis.jsonl", *(folder / f"{client}.jsonl" for client in CLIENTS)]
    await_answers(files)
    administrator = kaas.Client(server.address, keys=server.keys(ADMINISTRATOR))
    with administrator, Auditor(administrator, recorder) as auditor:
        Harm(servers, programs, network, state, clock / "ahead", auditor, recorder).wreak(seconds, seed)
        for program in programs:
            program.end()
        for program in programs:
            program.join()
        auditor.look()
    servers.end()
    check_state(state, recorder)
    return read(files)


def await_answers(files: Sequence[Path]) -> None:
    """Wait until each client has an answer."""
    until_s = monotonic() + START_S
    while {event.name.partition("/")[0] for event in read(files) if isinstance(event, Answered)} != {*CLIENTS}:
        if monotonic() > until_s:
            raise SystemExit("a client has no answer although nothing is wrong yet")
        threading.Event().wait(0.5)


def check_state(state: Path, recorder: Recorder) -> None:
    """Have `kaas state check` read the whole state."""
    command = [sys.executable, "-m", "kaas.cli", "state", "check", str(state)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    if checked.returncode:
        recorder.add(
            Served(at_s=now_s(), what="left a damaged state", words=(checked.stdout + checked.stderr)[-WORDS:])
        )


def detail_of(events: Sequence[AnyEvent]) -> Mapping[str, Any]:
    """Return counts of operations, outcomes and faults."""
    operations = {event.operation.name: event.operation.do for event in events if isinstance(event, Invoked)}
    outcomes = Counter(event.outcome for event in events if isinstance(event, Answered))
    faults = Counter(event.what for event in events if isinstance(event, Fault))
    return {
        "operations": len(operations),
        **{f"operations: {do}": number for do, number in sorted(Counter(operations.values()).items())},
        **{f"answers: {outcome}": number for outcome, number in sorted(outcomes.items())},
        **{f"faults: {what}": number for what, number in sorted(faults.items())},
        "longest_outage_s": max(outages_s(events), default=0.0),
        "looks_at_usage": sum(isinstance(event, Charged) for event in events),
    }


def outages_s(events: Sequence[AnyEvent]) -> Iterator[float]:
    """Yield the seconds from the end of each server that was killed until another one is ready."""
    killed_s = None
    for event in events:
        match event:
            case Served(what="killed", at_s=at_s) if killed_s is None:
                killed_s = at_s
            case Served(what="ready", at_s=at_s) if killed_s is not None:
                yield at_s - killed_s
                killed_s = None
            case _:
                pass


def show(found: Sequence[Violation], events: Sequence[AnyEvent], file: Path, seed: int) -> None:
    """Print violations, with the events of the operations concerned."""
    print(f"{len(found)} violations with --seed {seed}; the history is {file}", file=sys.stderr)
    for violation in found[:SHOWN]:
        print(f"- {violation.promise}, at {violation.at_s:.3f} s: {violation.words}", file=sys.stderr)
        for event in events:
            name = event.operation.name if isinstance(event, Invoked) else getattr(event, "name", "")
            if name in violation.names:
                print(f"    {event}", file=sys.stderr)


def main() -> None:
    given = arguments()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="kaas-history-"))
    folder.mkdir(exist_ok=True)
    isolation = given.isolation or ISOLATION[given.seed % len(ISOLATION)]
    print(f"seed {given.seed}, isolation {isolation}, in {folder}", file=sys.stderr, flush=True)
    events = history_of(folder, given.seed, 60 * given.minutes, isolation)
    write(events, folder / "history.jsonl")
    found = violations(events)
    tracebacks = (folder / "log").read_text().count("Traceback")
    if found:
        shutil.copytree(folder / "state", folder / "state at the end")  # the disk goes with the namespace
        show(found, events, folder / "history.jsonl", given.seed)
    elif given.folder is None:
        subprocess.run(["umount", str(folder / "state")], check=True)
        shutil.rmtree(folder)
    by_promise = Counter(violation.promise for violation in found)
    detail = {"seed": given.seed, "isolation": isolation, "minutes": given.minutes, **detail_of(events)}
    detail |= {"errors_in_the_log": tracebacks, **{f"violations: {name}": by_promise[name] for name in by_promise}}
    report("history", {"violations": (len(found), "<=", 0)}, detail, given.json)


if __name__ == "__main__":
    main()

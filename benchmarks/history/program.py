"""A program of one client, which carries out its operations and writes them down: the history starts and kills it.

    python -m benchmarks.history.program ADDRESS KEYS CLIENT SEED FILE

The program goes on after the last events of FILE, which the client's earlier programs have written: it repeats an
unanswered call under its idempotency key. It ends after its operations when its standard input closes.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import kaas
from benchmarks.history.events import Answered, AnyEvent, Charged, Invoked, Program, Recorder, now_s, read
from benchmarks.history.operations import CALLS, ELEMENTS, THREADS, Operation, array, drawn, number_of, task
from kaas.client.remote_function import RemoteFunction, RemoteObject
from kaas.server.usage.usage import ASK_AGAIN

UNSURE = ASK_AGAIN | {"DeadlineExceeded", "NotInitialized", "Unreachable"}
"""Errors after which an operation may yet have its effect: its attempt was put off, given up, or lost."""
USAGE_EVERY = 25
"""Operations of a thread from one look at the usage to the next."""
AGAIN_S = 0.2


class Running:
    """A program: its connection, and its threads."""

    def __init__(self, client: kaas.Client, name: str, seed: int, file: Path) -> None:
        self.client, self.name, self.seed = client, name, seed
        self.ended = threading.Event()
        events = read([file])
        self.history = Recorder(file)
        self.threads = [Thread(self, index, events) for index in range(THREADS)]
        self.functions: dict[tuple[str, int], RemoteFunction] = {}

    def register(self) -> None:
        """Register the functions, which the server may know already."""
        for index, elements in enumerate(ELEMENTS):
            for name in CALLS:
                before = "widened" if name == "stepped" else ""
                register = partial(self.client.register, task(name, elements), name=f"{name}-{index}", before=before)
                self.functions[name, index] = until_sure(register)

    def look_at_usage(self) -> None:
        asked_s = now_s()
        try:
            flows = self.client.usage()["flows"]
        except kaas.KaasError:
            return  # the next look has an answer
        requests = {flow["function"]: flow["requests"] for flow in flows}
        self.history.add(Charged(at_s=now_s(), client=self.name, asked_s=asked_s, requests=requests))

    def run(self) -> None:
        """Run until the standard input closes and the last operations have ended."""
        self.register()
        self.history.add(Program(at_s=now_s(), client=self.name, what="ready"))
        threading.Thread(target=self._read, daemon=True).start()
        with ThreadPoolExecutor(len(self.threads)) as pool:
            running = [pool.submit(thread.run) for thread in self.threads]
            for each in wait(running, return_when=FIRST_EXCEPTION).done:
                if each.exception() is not None:
                    traceback.print_exception(each.exception())
                    os._exit(1)  # the other thread may go on for long

    def _read(self) -> None:
        sys.stdin.read()
        self.ended.set()


class Thread:
    """The operations of one thread, one after the other. All its fields follow from its events.

    Fields:
        number: of the next operation. there: its object was put. left: names of its earlier objects, to be deleted.
    """

    def __init__(self, program: Running, index: int, events: Sequence[AnyEvent]) -> None:
        self.program, self.index, self.elements = program, index, ELEMENTS[index]
        self.number, self.there = 0, False
        self.left: list[str] = []
        self._generation = self._attempts = 0
        self._open: Operation | None = None
        self._sure, self._putting = True, False
        own = f"{program.name}/{index}/"
        for event in events:
            match event:
                case Invoked(operation=Operation(name=name)) | Answered(name=name) if name.startswith(own):
                    self._follow(event)
                case _:
                    pass
        if self._putting:
            self._abandon()

    @property
    def object(self) -> str:
        return f"{self.index}.{self._generation}"

    def _note(self, event: Invoked | Answered) -> None:
        self.program.history.add(event)
        self._follow(event)

    def _follow(self, event: Invoked | Answered) -> None:
        match event:
            case Invoked(operation=operation, attempt=attempt):
                if self._open is None or operation.name != self._open.name:
                    if self._putting:
                        self._abandon()
                    self._open, self._sure = operation, False
                    self.number = int(operation.name.rpartition("/")[2]) + 1
                    self._putting = operation.do == "put"
                    if operation.do == "delete":
                        self.left.remove(operation.object)
                self._attempts = attempt
            case Answered(outcome=outcome, sure=sure):
                self._sure = self._sure or sure
                if self._putting and outcome == "ok":
                    self.there, self._putting = True, False
                elif self._putting:
                    self._abandon()

    def _abandon(self) -> None:
        """Take another object: the put may come yet, and change what a call has read meanwhile."""
        self.left.append(self.object)
        self._generation += 1
        self.there = self._putting = False

    def run(self) -> None:
        """Carry out operations until the program is to end."""
        if self._open is not None and self._open.do in CALLS and self._open.do != "timed":
            self._settle(self._open)
        while not self.program.ended.is_set():
            operation = drawn(self.program.seed, self.program.name, self.index, self.number)
            self.program.ended.wait(operation.pause_s)
            self._carry_out(operation)
            if self.number % USAGE_EVERY == 0:
                self.program.look_at_usage()

    def _carry_out(self, operation: Operation) -> None:
        client = self.program.client
        if self.left:
            operation = replace(operation, do="delete", object=self.left[0])
        elif operation.do == "peek":
            operation = replace(operation, object=self.program.threads[1 - self.index].object)
        elif operation.do in ("advance", "get", "put"):
            operation = replace(operation, do=operation.do if self.there else "put", object=self.object)
        match operation.do:
            case "put":
                values = array(operation.value, self.elements)
                self._attempt(operation, partial(client.put, operation.object, values))
            case "get" | "peek":
                self._attempt(operation, lambda: number_of(client.get(operation.object)))
            case "delete":
                self._attempt(operation, partial(client.delete, operation.object))
            case _:
                self._call(operation)

    # --- calls

    def _call(self, operation: Operation) -> None:
        """Call a function, in the operation's way, and then until an answer is sure."""
        match operation.way:
            case "twice":
                for _ in range(2):
                    self._invoke(operation)
                calls = [self._begun(operation) for _ in range(2)]
                for attempt, call in enumerate(calls, 1):
                    self._answer(operation, attempt, call)
            case "deadline" | "cancel":
                self._attempt(operation, lambda: self._begun(operation)(), operation.deadline_s)
            case _:
                self._attempt(operation, lambda: self._begun(operation)())
        if operation.do != "timed":
            self._settle(operation)
        if operation.do == "again":
            self._attempt(operation, lambda: self._begun(operation)())

    def _settle(self, operation: Operation) -> None:
        """Repeat a call under its key until an answer is sure."""
        once = replace(operation, way="once")
        while not self._sure:
            time.sleep(AGAIN_S)
            self._attempt(operation, lambda: self._begun(once)())

    def _begun(self, operation: Operation) -> Callable[[], int]:
        """Begin a call. Return a function that waits for its result, and raises its error."""
        inputs: dict[str, Any] = {"before": array(operation.value, self.elements)}
        store = None
        if operation.do == "stepped":
            inputs = {"text": f"{operation.value} {self.elements}".encode()}
        elif operation.do == "advance":
            held = RemoteObject(operation.object, "uint32", (self.elements,))
            inputs, store = {"before": held}, {"now": operation.object}
        try:
            future = self.program.client.call(
                self.program.functions[operation.do, self.index],
                inputs,
                scalars={"w": operation.w},
                deadline_s=operation.deadline_s,
                key=operation.name,
                store=store,
            )
        except kaas.KaasError as error:
            return partial(_raise, error)
        return partial(_result, future, operation)

    def _attempt(self, operation: Operation, act: Callable[[], Any], deadline_s: float | None = None) -> None:
        self._answer(operation, self._invoke(operation, deadline_s), act)

    def _invoke(self, operation: Operation, deadline_s: float | None = None) -> int:
        """Note that an attempt begins. Return its number."""
        new = self._open is None or operation.name != self._open.name
        attempt = 1 if new else self._attempts + 1
        repeat = not new and self._sure
        self._note(Invoked(at_s=now_s(), operation=operation, attempt=attempt, deadline_s=deadline_s, repeat=repeat))
        return attempt

    def _answer(self, operation: Operation, attempt: int, act: Callable[[], Any]) -> None:
        """Note how an attempt ends."""
        outcome, value, words = "ok", None, ""
        try:
            found = act()
            value = found if isinstance(found, int) else None
        except CancelledError:
            outcome = "Cancelled"
        except kaas.KaasError as error:
            outcome, words = type(error).__name__, str(error)[:500]
        kept = outcome == "DeadlineExceeded" and attempt > 1  # a repeat has no deadline of its own
        sure = kept or outcome not in UNSURE
        name = operation.name
        self._note(
            Answered(at_s=now_s(), name=name, attempt=attempt, outcome=outcome, sure=sure, value=value, words=words)
        )


def _raise(error: kaas.KaasError) -> int:
    raise error


def _result(future: kaas.Future, operation: Operation) -> int:
    """Return the number of a call's result; cancel the call after a while if it is to be cancelled.

    Raises:
        KaasError, concurrent.futures.CancelledError
    """
    if operation.way == "cancel":
        try:
            future.result(operation.within_s)
        except kaas.KaasError:
            pass  # raised again below
        except TimeoutError:
            future.cancel()
    found = future.result()
    told = number_of(found.told)
    return told if operation.do == "advance" or told == number_of(found.now) else -1


def until_sure(act: Callable[[], Any]) -> Any:
    """Repeat an action until it has an answer.

    Raises:
        KaasError: the server refuses it.
    """
    while True:
        try:
            return act()
        except kaas.KaasError as error:
            if type(error).__name__ not in UNSURE:
                raise
            time.sleep(AGAIN_S)


def main() -> None:
    address, keys, name, seed, file = sys.argv[1:]
    with kaas.Client(address, keys=keys) as client:
        Running(client, name, int(seed), Path(file)).run()


if __name__ == "__main__":
    main()

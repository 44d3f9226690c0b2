"""Checks a history: every request has one answer and at most one effect, and is charged once; nothing is lost.

The rules for a request depend on its answers. Of an operation none of whose answers is sure, the checker assumes
nothing but that it happens once at most, at any time after its begin.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.history.events import Answered, AnyEvent, Charged, Fault, Invoked, Program, Rest, Served
from benchmarks.history.linear import NEVER_S, ImpossibleError, State, Step, first_misfit
from benchmarks.history.operations import CALLS, Operation, advanced, expected

LIMIT_S = 25.0
"""Seconds of rest after which each request has an answer."""
LATE_S = 10.0
"""Seconds by which an answer may come after its deadline: 1 s by KaaS, the others by a busy machine."""
CONCERNED = 5
"""The operations that a violation names."""
AFTER_FAULTS = {"ExecutorDied", "StepFailed", "DeviceLost", "ResultLost"}
"""Errors of calls that a killed process may cause."""
AT_ITS_START = ("kill an executor", "kill a step's process")
"""Faults by which a server that starts ends."""
NO_RESERVE = "there is no reserve for charges"
"""The log line of a server that finds the disk full, and the reserve of the server before used up."""
IN_RESERVE = "charges and deletions go on in the reserve"
"""The log line of a server that has given up its reserve, whose room another program may take."""
ALLOWED = {
    "stepped": AFTER_FAULTS,
    "get": {"UnknownObject"},
    "peek": {"UnknownObject"},
    "delete": {"UnknownObject"},
    "put": set[str](),
}
"""Sure errors by kind of operation; of a call of another kind AFTER_FAULTS."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken.

    Fields:
        promise: which. words: what is wrong. at_s: when. names: of the operations concerned.
    """

    promise: str
    words: str
    at_s: float
    names: tuple[str, ...] = ()


@dataclass(slots=True)
class Story:
    """An operation with its attempts, and the answers to them by the attempt's number."""

    operation: Operation
    attempts: list[Invoked] = field(default_factory=list)
    answers: dict[int, Answered] = field(default_factory=dict)

    @property
    def sure(self) -> list[Answered]:
        """The sure answers, in the order in which they came."""
        return sorted((answer for answer in self.answers.values() if answer.sure), key=lambda answer: answer.at_s)

    @property
    def begins_s(self) -> float:
        return self.attempts[0].at_s

    @property
    def result(self) -> Answered | None:
        """The first result, None if there is none."""
        return next((answer for answer in self.sure if answer.outcome == "ok"), None)


class History:
    """The events of a run, by what they are of."""

    def __init__(self, events: Iterable[AnyEvent]) -> None:
        self.stories: dict[str, Story] = {}
        self.double: list[Answered] = []
        """Answers that are not the first to their attempt."""
        self.charged: list[Charged] = []
        self.programs: dict[str, list[Program]] = defaultdict(list)
        self.served: list[Served] = []
        self.faults: list[Fault] = []
        self.rests: list[Rest] = []
        self.ends_s = 0.0
        for event in sorted(events, key=lambda event: event.at_s):
            self.ends_s = event.at_s
            match event:
                case Invoked(operation=operation):
                    self.stories.setdefault(operation.name, Story(operation)).attempts.append(event)
                case Answered(name=name, attempt=attempt):
                    answers = self.stories[name].answers
                    if attempt in answers:
                        self.double.append(event)
                    answers.setdefault(attempt, event)
                case Charged():
                    self.charged.append(event)
                case Program(client=client):
                    self.programs[client].append(event)
                case Served():
                    self.served.append(event)
                case Fault():
                    self.faults.append(event)
                case Rest():
                    self.rests.append(event)

    def ended_s(self, client: str, after_s: float) -> float:
        """Return when the program that ran at a time was killed or has ended; the history's end if it was not."""
        ends = (event.at_s for event in self.programs[client] if event.what in ("killed", "ended"))
        return next((at_s for at_s in ends if at_s >= after_s), self.ends_s)

    def killed(self, client: str, begins_s: float, ends_s: float) -> bool:
        return any(event.what == "killed" and begins_s <= event.at_s <= ends_s for event in self.programs[client])

    def restarted(self, begins_s: float, ends_s: float) -> bool:
        """Return whether the server was killed in this time."""
        return any(event.what == "killed" and begins_s <= event.at_s <= ends_s for event in self.served)


def violations(events: Iterable[AnyEvent]) -> list[Violation]:
    """Return all that is wrong with a history, in the order of time."""
    history = History(events)
    checks = (one_answer, same_answers, results, errors, objects, charges, deadlines, liveness, processes)
    return sorted((found for check in checks for found in check(history)), key=lambda found: found.at_s)


def one_answer(history: History) -> Iterator[Violation]:
    """Each attempt has one answer, unless its program was killed before."""
    for answer in history.double:
        yield Violation("one answer", f"attempt {answer.attempt} has two", answer.at_s, (answer.name,))
    for name, story in history.stories.items():
        client = story.operation.client
        for attempt in story.attempts:
            if attempt.attempt not in story.answers and not history.killed(client, attempt.at_s, NEVER_S):
                yield Violation("one answer", f"attempt {attempt.attempt} has none", attempt.at_s, (name,))


def same_answers(history: History) -> Iterator[Violation]:
    """Calls with one idempotency key get one answer.

    The server keeps answers that changed objects; others it computes again if it was killed, as long as nobody has had
    them, and then a fault may change a result to an error.
    """
    for name, story in history.stories.items():
        if story.operation.do not in CALLS:
            continue
        for first, second in pairwise(story.sure):
            if (first.outcome, first.value) == (second.outcome, second.value):
                continue
            begins_s = story.attempts[first.attempt - 1].at_s
            again = history.restarted(begins_s, second.at_s)
            kept = first.outcome == "ok" and (second.outcome == "ok" or story.operation.do == "advance")
            if kept or not again:
                words = f"{first.outcome} {first.value}, then {second.outcome} {second.value} {second.words}"
                yield Violation("one answer", words, second.at_s, (name,))


def results(history: History) -> Iterator[Violation]:
    """Results equal the model's, where no object decides them."""
    for name, story in history.stories.items():
        for answer in story.answers.values():
            value = answer.value
            if answer.outcome != "ok" or value is None:
                continue
            if value == -1:
                yield Violation("results", "elements of different values", answer.at_s, (name,))
            elif story.operation.do in CALLS and story.operation.do != "advance":
                wanted = expected(story.operation)
                if value != wanted:
                    yield Violation("results", f"{value}, not {wanted}", answer.at_s, (name,))


def errors(history: History) -> Iterator[Violation]:
    """No request fails but by a fault."""
    for name, story in history.stories.items():
        allowed = ALLOWED.get(story.operation.do, AFTER_FAULTS)
        if story.operation.way == "deadline" and story.operation.do in CALLS:
            allowed = allowed | {"DeadlineExceeded"}
        for answer in story.sure:
            if answer.outcome != "ok" and answer.outcome not in allowed:
                yield Violation("errors", f"{answer.outcome}: {answer.words}", answer.at_s, (name,))


# --- objects


def objects(history: History) -> Iterator[Violation]:
    """The operations on each object are linearizable: no acknowledged value is lost, and no effect comes twice."""
    of: dict[tuple[str, str], list[Step]] = defaultdict(list)
    for story in history.stories.values():
        operation = story.operation
        step = step_of(story) if operation.object else None
        if step is not None:
            of[operation.client, operation.object].append(step)
    for (client, name), steps in of.items():
        misfit = first_misfit(steps)
        if misfit is not None:
            before = sorted((step for step in steps if step.begins_s <= misfit.ends_s), key=lambda step: step.ends_s)
            names = tuple(step.name for step in before[-CONCERNED:])
            words = f"object {name} of {client}: no order of its operations explains the answer to {misfit.name}"
            yield Violation("objects", words, misfit.ends_s, (misfit.name, *names))


def step_of(story: Story) -> Step | None:
    """Return an operation on an object; None if it has changed and read nothing."""
    operation, result = story.operation, story.result
    error = story.sure[0] if story.sure and result is None else None
    if error is not None and error.outcome != "UnknownObject":
        return None
    answer = result or error
    if answer is None and operation.do in ("get", "peek"):
        return None
    told = result.value if result is not None else None

    def after(state: State) -> State:
        if error is not None:
            return _fits(state, state is None)
        match operation.do:
            case "put":
                return operation.value
            case "delete":
                return _fits(None, state is not None)
            case "advance" if state is not None:
                value = advanced(state, operation.w)
                return _fits(value, told in (None, value))
            case "advance":
                raise ImpossibleError
        return _fits(state, state == told)

    return Step(operation.name, story.begins_s, NEVER_S if answer is None else answer.at_s, after)


def _fits(state: State, does: bool) -> State:
    if not does:
        raise ImpossibleError
    return state


# --- charges


class Bounds:
    """The least and the most requests of one function in a client's usage, at any time."""

    def __init__(self, history: History, stories: Sequence[Story]) -> None:
        self._least_s = sorted(story.result.at_s for story in stories if story.result is not None)
        self._most_s = sorted(
            attempt.at_s
            for story in stories
            for attempt in story.attempts
            if attempt.attempt == 1 or _again(history, story, attempt)
        )

    def at(self, asked_s: float, answered_s: float) -> tuple[int, int]:
        """Return both for a look: results that had come before it, and requests that had begun by its end."""
        return bisect_left(self._least_s, asked_s), bisect_left(self._most_s, answered_s)


def charges(history: History) -> Iterator[Violation]:
    """Each client's requests in the usage are those with a result, each once.

    A request with an error may be charged, or not, as its kernels have run or not. A look may find a charge that is
    taken back later, as the outputs could not be stored.
    """
    stories: dict[tuple[str, str], list[Story]] = defaultdict(list)
    for story in history.stories.values():
        _, thread, _ = story.operation.name.split("/")
        if story.operation.do in CALLS:
            stories[story.operation.client, f"{story.operation.do}-{thread}"].append(story)
    bounds = {of: Bounds(history, found) for of, found in stories.items()}
    for of, bound in bounds.items():
        client, function = of
        for event in history.charged:
            if event.client != client:
                continue
            charged = event.requests.get(function, 0)
            least, most = bound.at(event.asked_s, event.at_s)
            if not least <= charged <= most:
                words = f"{function} of {client}: {charged} requests, not {least} to {most}"
                yield Violation("charges", words, event.at_s, _unusual(stories[of], event.at_s))
                break  # later looks say the same


def _unusual(stories: Sequence[Story], until_s: float) -> tuple[str, ...]:
    """Return the last operations before a look that had another end than one attempt with a result."""
    begun = (story for story in stories if story.begins_s < until_s)
    return tuple(story.operation.name for story in begun if len(story.attempts) > 1 or story.result is None)[
        -CONCERNED:
    ]


def _again(history: History, story: Story, attempt: Invoked) -> bool:
    """Return whether an attempt may be a request of its own: an earlier one had its answer, and the server, which was
    killed since, has forgotten it."""
    ended = story.answers.get(attempt.attempt)
    until_s = history.ends_s if ended is None else ended.at_s
    earlier = [answer.attempt for answer in story.answers.values() if answer.at_s < attempt.at_s]
    return any(history.restarted(story.attempts[number - 1].at_s, until_s) for number in earlier)


# --- time


def deadlines(history: History) -> Iterator[Violation]:
    """A call with a deadline has an answer soon after it, whatever happens to the server."""
    for name, story in history.stories.items():
        for attempt in story.attempts:
            answer = story.answers.get(attempt.attempt)
            if answer is None or attempt.deadline_s is None:
                continue
            stopped_s = sum(
                fault.for_s
                for fault in history.faults
                if (fault.what, fault.whom) == ("stop a program", story.operation.client)
                and attempt.at_s - fault.for_s <= fault.at_s <= answer.at_s
            )
            late_s = answer.at_s - attempt.at_s - attempt.deadline_s - stopped_s
            if late_s > LATE_S:
                yield Violation("deadlines", f"{late_s:.1f} s late: {answer.outcome}", answer.at_s, (name,))


def liveness(history: History) -> Iterator[Violation]:
    """Each request has an answer soon after the nemesis has begun to rest, and each client gets some."""
    for rest in history.rests:
        limit_s = rest.at_s + LIMIT_S
        if limit_s > rest.until_s:
            continue
        for name, story in history.stories.items():
            for attempt in story.attempts:
                answer = story.answers.get(attempt.attempt)
                ended_s = history.ended_s(story.operation.client, attempt.at_s) if answer is None else answer.at_s
                if attempt.at_s < rest.at_s and ended_s > limit_s:
                    words = f"attempt {attempt.attempt} has no answer {LIMIT_S:.0f} s after the last fault"
                    yield Violation("liveness", words, limit_s, (name,))
        answered = {
            story.operation.client
            for story in history.stories.values()
            for answer in story.sure
            if rest.at_s <= answer.at_s <= rest.until_s
        }
        for client in history.programs.keys() - answered:
            yield Violation("liveness", f"{client} has no answer in {LIMIT_S:.0f} s without faults", limit_s)


def processes(history: History) -> Iterator[Violation]:
    """Programs and servers end only when they are to, and start again.

    Two kinds of faults may end a server that starts, and it says so: its executor, or its step's process, is killed;
    or the disk is full, and the server before was killed while it used the reserve, or another program takes the room
    that the reserve has given up.
    """
    for events in history.programs.values():
        for event in events:
            if event.status or event.what == "did not end":
                yield Violation("processes", f"a program of {event.client} {event.what}: {event.words}", event.at_s)
    before_s = 0.0
    for served in history.served:
        hurt = any(
            fault.what in AT_ITS_START
            or (fault.what == "fill the disk" and NO_RESERVE in served.words)
            or (fault.what == "fill the disk" and IN_RESERVE in served.words and fault.at_s >= before_s)
            for fault in history.faults
            if fault.at_s <= served.at_s and before_s <= fault.at_s + fault.for_s
        )
        before_s = served.at_s
        if served.what not in ("ready", "killed") and not (served.what == "did not start" and hurt):
            yield Violation("processes", f"the server {served.what}: {served.words}", served.at_s)

"""A pool's events and its policy's decisions as lines of JSON, and their replay through a fresh policy.

A record has one line for each epoch of the pool, with the policy and its options, and one for each event, with the
decisions about it. Each line is written before the decisions are carried out, so the record of a pool that was
killed is whole up to its last line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, get_args

import msgspec

from kaas.config import LARGEST, MOST, SMALLEST
from kaas.errors import InvalidConfig, InvalidRecord, KaasError, PolicyError
from kaas.scheduling.checks import CheckedPolicy
from kaas.scheduling.decisions import Decision, PolicyFactory
from kaas.scheduling.events import (
    ClientKnown,
    Event,
    FunctionKnown,
    ObjectUse,
    PhysicalDevice,
    RequestArrived,
    RequestDone,
    Running,
    ShareKnown,
    WorkerAdopted,
    WorkerReady,
)
from kaas.scheduling.policies import factory
from kaas.scheduling.policy_choice import policy_parts
from kaas.scheduling.process_isolation import isolated
from kaas.scheduling.sharing.scaling import Configuration
from kaas.scheduling.simulation.recorded import Recorded
from kaas.scheduling.simulation.scenario_file import MOST_SLOTS, MOST_SMS

VERSION = 2
"""Of the records that are written. Records of version 1 have fewer events, and events with fewer fields."""
EPOCH = b'{"version"'
"""The beginning of an epoch's line."""
LINE_BYTES = 64 << 20
"""The longest line of a record."""
OWN = "module:Class"
"""Stands for a policy of the user's own that has no module."""
TYPES: dict[str, type] = {each.__name__: each for each in (*get_args(Event), *get_args(Decision))}

SECONDS, BYTES, FACTOR = (0.0, LARGEST), (0, MOST), (SMALLEST, LARGEST)
SMS, PART = (1, MOST_SMS), (0.001, 1.0)
LIMITS: dict[type, dict[str, tuple[float, float]]] = {
    PhysicalDevice: {"memory_bytes": BYTES, "speed": FACTOR, "window_s": (0.001, 60.0)},
    RequestDone: {"device_s": SECONDS, "run_s": SECONDS, "load_s": SECONDS},
    WorkerReady: {"slots": (1, MOST_SLOTS), "memory_bytes": BYTES, "sms": SMS, "sm_step": SMS},
    WorkerAdopted: {"sms": SMS, "sm_step": SMS},
    ShareKnown: {"sms": PART, "least": (0.0, 1.0), "most": PART},
    ClientKnown: {"weight": FACTOR},
    FunctionKnown: {
        "run_s": SECONDS,
        "load_s": SECONDS,
        "nbytes": BYTES,
        "observations": (1, MOST),
        "batch": (0.0, LARGEST),
    },
    ObjectUse: {"nbytes": BYTES},
    Configuration: {"rate_per_s": SECONDS, "p99_s": SECONDS, "batch": (1, MOST)},
}
"""The least and the most that numbers of a record may be."""
PARTS = {"devices": PhysicalDevice, "inputs": ObjectUse, "running": Running, "points": Configuration}
"""The types of the objects in fields of epochs and events."""


@dataclass(frozen=True, slots=True)
class PoolEpoch:
    """The first line of an epoch.

    Fields:
        policy: its name, None for one of the user's own. options: of the policy. own: module:Class of the user's own,
            "" if it has no module: for errors and options, since no record makes a reader import code.
    """

    version: int
    policy: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    devices: tuple[PhysicalDevice, ...] = ()
    own: str = ""


FIELDS = {kind: frozenset(signature(kind).parameters) for kind in (*TYPES.values(), *PARTS.values(), PoolEpoch)}


class Typed(NamedTuple):
    """An event or decision, with the name of its type."""

    type: str
    value: Any


class _TypedJson(NamedTuple):
    type: str
    value: msgspec.Raw


class _RecordedEvent(msgspec.Struct, forbid_unknown_fields=True):
    event: _TypedJson
    decisions: tuple[_TypedJson, ...]
    raised: bool = False


class Recorder:
    """Writes a record, at the end of a file."""

    def __init__(self, path: str, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._encode = msgspec.json.Encoder().encode

    @classmethod
    def open(cls, path: str, policy: str | PolicyFactory, devices: Sequence[PhysicalDevice]) -> Recorder:
        """Begin an epoch.

        Raises:
            InvalidConfig: the file cannot be written, or a record cannot hold the policy's options.
        """
        try:
            file = Path(path).open("a+b", buffering=0)  # noqa: SIM115 - until close()
            file.seek(0)
            known = file.read(len(EPOCH))
        except OSError as error:
            raise InvalidConfig(f"record: {path} cannot be written: {error}", field="record") from error
        if known not in (b"", EPOCH):
            file.close()
            raise InvalidConfig(
                f"record: {path} is another file, and no record, which would go on there", field="record"
            )
        file.seek(0, os.SEEK_END)
        recorder = cls(path, file)
        if file.tell():
            recorder._write(b"")  # the last line of an earlier epoch may have no end
        name, options, own = policy_parts(policy)
        try:
            epoch = recorder._encode(PoolEpoch(VERSION, name, options, tuple(devices), own))
        except TypeError as error:
            raise InvalidConfig(f"record: it cannot hold the policy's options: {error}", field="record") from error
        recorder._write(epoch)
        return recorder

    def write(self, event: Event, decisions: Sequence[Decision], *, raised: bool = False) -> None:
        """Write an event and the policy's decisions about it; raised: the policy raised instead.

        Raises:
            InvalidConfig: the file cannot be written any more.
        """
        line = {"event": _typed(event), "decisions": [_typed(decision) for decision in decisions]}
        self._write(self._encode(line | {"raised": True} if raised else line))

    def close(self) -> None:
        """Close the record."""
        self._file.close()

    def _write(self, line: bytes) -> None:
        whole = line + b"\n"
        try:
            written = self._file.write(whole)
        except OSError as error:
            raise InvalidConfig(f"record: {self._path} cannot be written: {error}", field="record") from error
        if written != len(whole):
            raise InvalidConfig(f"record: {self._path} takes no more than a part of a line", field="record")


def _typed(value: Event | Decision) -> Typed:
    return Typed(type(value).__name__, value)


# --- replay


@dataclass(frozen=True, slots=True)
class Difference:
    """The first event with other decisions in a replay.

    Fields:
        line: of the record, from 1. expected, got: decisions; None if the policy raised, or broke a rule. error: the
            message of the new policy's error; "" if there is none.
    """

    line: int
    event: Event
    expected: tuple[Decision, ...] | None
    got: tuple[Decision, ...] | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The counts of a replay up to its first difference."""

    epochs: int
    events: int
    decisions: int
    difference: Difference | None = None


def replay(path: str | Path, policy: str | PolicyFactory | None = None) -> Replayed:
    """Give a new policy the events of a record, and compare its decisions with the recorded ones.

    Args:
        path: of the record.
        policy: replaces the recorded one; needed if that is the user's own. It is used `as_recorded`.

    Raises:
        InvalidRecord: the file is no record, or its policy is one of the user's own.
    """
    epochs, events, decisions, replaying = 0, 0, 0, None
    for number, entry in read(Path(path)):
        if isinstance(entry, PoolEpoch):
            epochs += 1
            replaying = new_policy(path, number, entry, policy)
            continue
        if replaying is None:
            raise InvalidRecord(f"{path}: an event before the first epoch", path=str(path), line=number)
        event, expected = entry
        if (found := difference(replaying, number, event, expected)) is not None:
            return Replayed(epochs, events, decisions, found)
        events += 1
        decisions += len(expected or ())
    if not epochs:
        raise InvalidRecord(f"{path}: no epoch of a pool in it", path=str(path), line=0)
    return Replayed(epochs, events, decisions)


def recorded(path: str | Path) -> Recorded:
    """Return the requests of a record, to be run on other devices or by another policy.

    Raises:
        InvalidRecord: the file is no record.
    """
    requests = Recorded()
    for number, entry in read(Path(path)):
        if isinstance(entry, PoolEpoch):
            requests.begin(entry.policy, entry.options, entry.devices, entry.own)
        elif not requests.devices:
            raise InvalidRecord(f"{path}: an event before the first epoch", path=str(path), line=number)
        else:
            requests.add(entry[0], entry[1] or ())
    if not requests.devices:
        raise InvalidRecord(f"{path}: no epoch of a pool in it", path=str(path), line=0)
    return requests


def difference(
    policy: CheckedPolicy, line: int, event: Event, expected: tuple[Decision, ...] | None
) -> Difference | None:
    """Give a policy an event of a record. Return how its decisions differ from the recorded ones, if they do."""
    got: tuple[Decision, ...] | None = None
    error = ""
    try:
        got = tuple(policy.handle(event))
    except PolicyError as raised:
        error = raised.message
    return None if got == expected else Difference(line, event, expected, got, error)


def new_policy(path: str | Path, line: int, epoch: PoolEpoch, policy: str | PolicyFactory | None) -> CheckedPolicy:
    """Return a new policy for an epoch of a record. policy: replaces the recorded one.

    Raises:
        InvalidRecord: the recorded policy is one of the user's own, or cannot be made.
    """
    chosen = epoch.policy if policy is None else as_recorded(policy, epoch.own, epoch.options)
    if chosen is None:
        raise own_policy(path, line, epoch.own)
    name, options, own = (chosen, epoch.options, "") if policy is None else policy_parts(chosen)
    try:
        return CheckedPolicy(isolated(factory(chosen)(epoch.devices, **options), epoch.devices), epoch.devices)
    except (KaasError, TypeError, ValueError, LookupError) as error:
        message = f"{path}, line {line}: policy {name or own or OWN!r} with {options} cannot be made: {error}"
        raise InvalidRecord(message, path=str(path), line=line) from error


def as_recorded(policy: str | PolicyFactory, own: str, options: Mapping[str, Any]) -> str | PolicyFactory:
    """Return a policy with the options of a record, if it is the record's `own` one and was given none."""
    _, given, named = policy_parts(policy)
    return partial(policy, **options) if callable(policy) and named and named == own and not given else policy


def own_policy(path: str | Path, line: int, own: str) -> InvalidRecord:
    """Return the error of a record whose policy is one of the user's own. own: its module:Class, if it has one."""
    message = f"{path}: the policy was one of your own, and no record brings it: --policy {own or OWN} does"
    return InvalidRecord(message, path=str(path), line=line)


def read(path: Path) -> Iterator[tuple[int, PoolEpoch | tuple[Event, tuple[Decision, ...] | None]]]:
    """Yield the content of each line of a record, with its number; decisions are None where the policy raised.

    A line without an end, the last one of an epoch, is left out. Time goes on from event to event in each epoch.

    Raises:
        InvalidRecord
    """
    last_s = 0.0
    for (number, line), (_, following) in pairwise(chain(_lines(path), [(0, b"")])):
        try:
            entry = _decode(line)
            if isinstance(entry, PoolEpoch):
                last_s = 0.0
            else:
                _check_number("time_s", entry[0].time_s, last_s, LARGEST)
                last_s = entry[0].time_s
            yield number, entry
        except msgspec.DecodeError as error:
            cut = not isinstance(error, msgspec.ValidationError)
            if cut and (not following or following.startswith(EPOCH)):
                continue  # the end of an epoch
            raise InvalidRecord(f"{path}, line {number}: {error}", path=str(path), line=number) from error


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not empty, with their numbers."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(partial(file.readline, LINE_BYTES + 1), b""), 1):
                if len(line) > LINE_BYTES:
                    message = f"{path}, line {number}: longer than {LINE_BYTES:,} bytes"
                    raise InvalidRecord(message, path=str(path), line=number)
                if stripped := line.rstrip(b"\n"):
                    yield number, stripped
    except OSError as error:
        raise InvalidRecord(f"{path} cannot be read: {error}", path=str(path), line=0) from error


def _decode(line: bytes) -> PoolEpoch | tuple[Event, tuple[Decision, ...] | None]:
    if line.startswith(EPOCH):
        epoch: PoolEpoch = msgspec.json.decode(line, type=PoolEpoch)
        if not 1 <= epoch.version <= VERSION:
            raise msgspec.ValidationError(f"version {epoch.version}, not 1 to {VERSION}")
        if not epoch.devices:
            raise msgspec.ValidationError("an epoch without devices")
        for device in epoch.devices:
            _check_numbers(device)
        _check_names(msgspec.json.decode(line), PoolEpoch)
        return epoch
    entry = msgspec.json.decode(line, type=_RecordedEvent)
    decisions = None if entry.raised else tuple(_value(decision) for decision in entry.decisions)
    return _value(entry.event), decisions


def _value(typed: _TypedJson) -> Any:
    if typed.type not in TYPES:
        raise msgspec.ValidationError(f"no event or decision has the name {typed.type!r}")
    value: Any = msgspec.json.decode(typed.value, type=TYPES[typed.type])
    _check_numbers(value)
    _check_names(msgspec.json.decode(typed.value), TYPES[typed.type])
    return value


def _check_numbers(value: Any) -> None:
    """Check the numbers by which the requests of a record can run again.

    Raises:
        msgspec.ValidationError: a number that no pool writes.
    """
    for name, (least, most) in LIMITS.get(type(value), {}).items():
        if (number := getattr(value, name)) is not None:
            _check_number(name, number, least, most)
    parts = {RequestArrived: "inputs", FunctionKnown: "points"}.get(type(value))
    for part in getattr(value, parts) if parts else ():
        _check_numbers(part)


def _check_number(name: str, number: float, least: float, most: float) -> None:
    if not least <= number <= most:
        raise msgspec.ValidationError(f"{name} is a number from {least:g} to {most:g}, not {number!r}")


def _check_names(given: Mapping[str, Any], kind: type) -> None:
    """Refuse a name that is no field of a type, nor of the objects in it: a replay would leave its value out.

    Raises:
        msgspec.ValidationError: there is such a name.
    """
    for name, value in given.items():
        if name not in FIELDS[kind]:
            raise msgspec.ValidationError(f"{kind.__name__} has no field {name!r}")
        for each in value if name in PARTS and isinstance(value, list) else ():
            if isinstance(each, dict):
                _check_names(each, PARTS[name])

"""The times and memory of a pool's functions, for its policy: given by the configuration, measured, and kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from kaas.config import LARGEST, MOST, FunctionProfile
from kaas.pool.core.requests import Request
from kaas.scheduling.events import FunctionKnown, ObjectUse, PhysicalDevice, RequestDone
from kaas.scheduling.policies.estimates import MOST_FUNCTIONS, moved
from kaas.scheduling.sharing.scaling import Configuration
from kaas.share import ProfilePoint, as_points
from kaas.store import PROFILES, Store, decoded

WRITE_EVERY_S = 5.0
"""Profiles are written this late. A pool that ends by a crash loses the measurements of this time."""
BATCH = 64
"""Requests that are added up at once, since other requests wait meanwhile."""


class MeasuredTimes(msgspec.Struct, array_like=True):
    """The times of a function on one kind of device, as the store has them.

    Fields:
        identity: the function in the pool (`WorkerCall.identity`). label: for people. run_s, load_s: means, of a
            request without loads on a device of speed 1, and of the load of one byte. runs, loads: requests in them.
        nbytes: of the objects that the last request read from caches. points: what it does with shares, as given.
    """

    identity: str
    kind: str
    label: str
    run_s: float
    runs: int
    load_s: float = 0.0
    loads: int = 0
    nbytes: int = 0
    family: str = ""
    batch: float = 0.0
    points: tuple[ProfilePoint, ...] = ()

    def add(self, done: RequestDone, speed: float, nbytes: int) -> None:
        """Take in a request that succeeded on a device of this speed, as policies do. nbytes: as in the fields."""
        self.nbytes = nbytes
        self.runs += 1
        self.run_s = moved(self.run_s, self.runs, done.run_s * speed)
        if done.loaded_bytes:
            self.loads += 1
            self.load_s = moved(self.load_s, self.loads, done.load_s / done.loaded_bytes)

    def profile(self, function: str) -> FunctionProfile:
        """Return the times under a name of the function, within the limits of a profile."""
        run_s, load_s, runs = min(self.run_s, LARGEST), min(self.load_s * self.nbytes, LARGEST), min(self.runs, MOST)
        own = (self.family, self.batch, self.points)
        return FunctionProfile(function, self.kind, run_s, load_s, self.nbytes, runs, *own)


_decode = msgspec.msgpack.Decoder(MeasuredTimes).decode


class Profiles:
    """The profiles of a pool's functions. Use an object of this class from one event loop only.

    A function is told to the policy with its first request, since only then its name is known to policies: that has
    the constants in it. Measurements replace what the configuration says, and begin from it.
    """

    def __init__(self, given: Iterable[FunctionProfile], devices: Sequence[PhysicalDevice]) -> None:
        self._given: dict[str, list[FunctionProfile]] = {}
        for profile in given:
            self._given.setdefault(profile.function, []).append(profile)
        self._devices = devices
        self._times: dict[str, dict[str, MeasuredTimes]] = {}  # by identity, that called last at the end; then by kind
        self.told: set[str] = set()
        self._store: Store | None = None
        self._unwritten: dict[tuple[str, str], MeasuredTimes] = {}  # by kind and identity
        self._ended: list[tuple[str, str, int, Sequence[ObjectUse], RequestDone]] = []  # not added up yet
        self._writes = False
        self._loop = asyncio.get_running_loop()

    def open(self, store: Store) -> None:
        """Take in what earlier epochs of the pool have measured, and keep later measurements."""
        self._store = store
        for times in decoded(store, PROFILES, _decode).values():
            self._times.setdefault(times.identity, {})[times.kind] = times
            for given in self._given_of(times.identity, times.label):
                if given.kind == times.kind and given.points:  # a pool does not measure points
                    times.points = given.points

    def tell(self, request: Request, now_s: float) -> list[FunctionKnown]:
        """Return the events that tell a policy of a request's function, which it was not told before."""
        if len(self.told) >= MOST_FUNCTIONS:  # a policy remembers no more either
            self.told.clear()
        self.told.add(request.flow)
        self._add_up()
        known = (times.profile(request.flow) for times in self._of(request.call.identity, request.call.label).values())
        return [
            FunctionKnown(
                now_s, each.function, each.kind, each.run_s, each.load_s, each.nbytes, each.observations, each.family,
                each.batch, tuple(_configuration(point) for point in each.points),
            )
            for each in known
        ]  # fmt: skip

    def points(self, functions: Iterable[str], label: str) -> tuple[Configuration, ...]:
        """Return what is known of a function with shares of the pool's devices.

        Args:
            functions: keys of its kTasks, also with constants, as policies know them.
            label: of the function.
        """
        kinds = {device.kind for device in self._devices}
        found: dict[Configuration, None] = {}
        for identity in (each.partition("@")[0] for each in functions):
            known: Iterable[MeasuredTimes | FunctionProfile] = self._times.get(identity, {}).values()
            for each in known or self._given_of(identity, label):
                found |= dict.fromkeys(map(_configuration, each.points if each.kind in kinds else ()))
        return tuple(found)

    def keep(self, functions: Iterable[str], points: tuple[ProfilePoint, ...]) -> None:
        """Take in what a program has measured of a function that has run here. Its next requests tell the policy.

        Args:
            functions: as of `points`.
            points: on the devices of the pool, which are of one kind.

        Raises:
            InvalidConfig: two points are of one share, or there are too many.
        """
        points = as_points(points)
        self._add_up()
        kinds = {device.kind for device in self._devices}
        identities = {each.partition("@")[0] for each in functions}
        for times in [each for identity in identities for each in self._times.get(identity, {}).values()]:
            if times.kind in kinds:
                times.points = points
                if self._store is not None:
                    self._unwritten[times.kind, times.identity] = times
        self.told -= {flow for flow in self.told if flow.partition("@")[0] in identities}
        self._write_later()

    def add(self, request: Request, done: RequestDone) -> None:
        """Take in a request that succeeded."""
        assert request.device is not None, "it has run"
        call = request.call
        self._ended.append((call.identity, call.label, request.device, call.uses, done))  # not the payload
        if len(self._ended) >= BATCH:
            self._add_up()
        self._write_later()

    def _write_later(self) -> None:
        if self._store is not None and not self._writes:
            self._writes = True
            self._loop.call_later(WRITE_EVERY_S, self.write)

    def _add_up(self) -> None:
        for identity, label, index, uses, done in self._ended:
            device = self._devices[index]
            known = self._of(identity, label)
            times = known.get(device.kind)
            if times is None:
                times = known[device.kind] = MeasuredTimes(identity, device.kind, label, 0.0, 0)
            times.add(done, device.speed, sum(use.nbytes for use in uses if use.key is not None))
            if self._store is not None:
                self._unwritten[device.kind, identity] = times
        self._ended.clear()

    def _of(self, identity: str, label: str) -> dict[str, MeasuredTimes]:
        """Return the times of a function by kind of device, as those of the function called last."""
        known = self._times.pop(identity, None)
        if known is None:
            if len(self._times) >= MOST_FUNCTIONS:
                self._forget(next(iter(self._times)))
            known = {each.kind: _begun(identity, label, each) for each in self._given_of(identity, label)}
        self._times[identity] = known
        return known

    def _given_of(self, identity: str, label: str) -> Sequence[FunctionProfile]:
        return self._given.get(identity) or self._given.get(label) or ()

    def _forget(self, identity: str) -> None:
        kinds = self._times.pop(identity)
        for kind in kinds:
            self._unwritten.pop((kind, identity), None)
        if self._store is not None:
            self._store.remove(PROFILES, [_key(kind, identity) for kind in kinds])

    def measured(self) -> tuple[FunctionProfile, ...]:
        """Return the profiles of all functions, by label, or by key where several have one label."""
        self._add_up()
        labels = Counter(label for known in self._times.values() for label in {each.label for each in known.values()})
        return tuple(
            times.profile(times.label if times.label and labels[times.label] == 1 else times.identity)
            for known in self._times.values()
            for times in known.values()
        )

    def write(self) -> None:
        """Write the measurements that are not written yet."""
        self._writes = False
        self._add_up()
        if self._store is not None and self._unwritten:
            unwritten, self._unwritten = self._unwritten, {}
            encode = msgspec.msgpack.encode
            self._store.put(PROFILES, {_key(*place): encode(times) for place, times in unwritten.items()})


def _key(kind: str, identity: str) -> str:
    return f"{kind} {identity}"


def _begun(identity: str, label: str, given: FunctionProfile) -> MeasuredTimes:
    """Return the times of a function before its first request here."""
    load_s = given.load_s / given.nbytes if given.nbytes else 0.0
    loads = given.observations if given.nbytes else 0
    own = (given.run_s, given.observations, load_s, loads, given.nbytes, given.family, given.batch, given.points)
    return MeasuredTimes(identity, given.kind, label, *own)


def _configuration(point: ProfilePoint) -> Configuration:
    return Configuration(point.sms, point.quota, point.rate_per_s, point.p99_s, point.batch)

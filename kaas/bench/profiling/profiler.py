"""Profiles of functions: the pool that measures, the shares that it gives, and the points that are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

from kaas.api import program
from kaas.api.function import Function, known_to_the_pool, signatures_and_constants, variants_of
from kaas.api.registration import set_share, tell_profile
from kaas.bench.profiling.grid import Place, ProfileGrid
from kaas.bench.profiling.measuring import measure
from kaas.config import Config, Device, FunctionProfile
from kaas.errors import InvalidRequest
from kaas.executor.plan.plan import arena_bytes
from kaas.profiles import keep_profile, read_profiles
from kaas.scheduling.sharing.rectangles import DeviceExtent
from kaas.share import ProfilePoint, Share

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ProfiledVariant:
    """A kTask of a function.

    Fields:
        function: calls it alone. key: its name in every pool, by code and shapes. label: for people. family: the name
            of the model of which it is a variant; "" of a kTask alone.
        batch: the first dimension of a variant's first input; 1 of a kTask alone.
        device_bytes: of its constants, and of a request's other memory.
    """

    function: Function
    key: str
    label: str
    family: str
    batch: int
    device_bytes: int


@dataclass(frozen=True, slots=True)
class ProfiledDevices:
    """The devices of the pool, which are alike. window_s: of the time of shares."""

    kind: str
    count: int
    extent: DeviceExtent
    window_s: float

    def granted(self, parts: Sequence[float], tell: Tell) -> tuple[float, ...]:
        """Return parts of the SMs as the devices grant them. tell: hears of parts that are rounded up by much."""
        sms, step = self.extent.sms, self.extent.step
        found = {part: self.extent.size(part, 1.0)[1] for part in parts}
        if sms == 1:
            tell("the device cannot be divided: each share has all of its SMs")
        elif small := [f"{part:g}" for part in parts if part * sms < step * (1 - 1e-9)]:
            tell(f"{', '.join(small)} of {sms} SMs is rounded up to {step}, the least partition of the device")
        return tuple(sorted({count / sms for count in found.values()}))


@contextmanager
def pool_of(device: Device | None, name: str | None, *, ray: bool) -> Iterator[None]:
    """Be in the running pool of this name, or in a pool of plain processes with this device, which ends again.

    Raises:
        NotInitialized: no pool has the name.
    """
    if device is None:
        program.attach(name or "kaas", ray=ray)
        yield
        return
    program.init(ray=False, name=f"profile-{token_hex(4)}", config=Config(devices=(device,), slots=2))
    try:
        yield
    finally:
        program.shutdown()


def devices_here() -> ProfiledDevices:
    """Return the devices of this program's pool, at least one of which has run a request.

    Raises:
        InvalidRequest: they differ.
    """
    status = program.status()
    known = {DeviceExtent(each.info.sms, each.info.sm_step) for each in status.devices if each.info is not None}
    kinds = {each.kind for each in status.devices}
    if len(known) != 1 or len(kinds) != 1:
        raise InvalidRequest("the devices of the pool differ, and a profile is of one kind of device")
    return ProfiledDevices(kinds.pop(), len(status.devices), known.pop(), status.config.window_s)


def profiled_variants(function: Function, batches: Sequence[int] | None) -> list[ProfiledVariant]:
    """Return the kTasks of a function, those with the smallest inputs first.

    Args:
        function: of a kTask, or of a model.
        batches: of the kTasks; None for all.

    Raises:
        InvalidRequest: no kTask is for one of the batches.
    """
    name, _ = known_to_the_pool(function)
    each_alone = variants_of(function)
    found = [_variant(each, name if len(each_alone) > 1 else "") for each in each_alone]
    there = sorted({each.batch for each in found})
    for batch in batches or ():
        if batch in there:
            continue
        if len(found) == 1:
            raise InvalidRequest(f"--batch {batch}: a kTask has its own batch only, {name!r} too: leave out --batch")
        raise InvalidRequest(f"--batch {batch}: model {name!r} has variants for {', '.join(map(str, there))}")
    return [each for each in found if batches is None or each.batch in batches]


def _variant(function: Function, family: str) -> ProfiledVariant:
    ((signature,), _) = signatures_and_constants(function)
    task, bound = signature.task, {binding.buffer for binding in signature.spec.bindings}
    constants = [buffer for buffer in task.inputs if buffer.name in bound]
    nbytes = sum(buffer.nbytes for buffer in constants) + arena_bytes(task, constants)
    shape = function.inputs[0].shape if family and function.inputs else ()
    return ProfiledVariant(function, signature.key, task.label, family, shape[0] if shape else 1, nbytes)


@dataclass(frozen=True, slots=True)
class Profiler:
    """Measures functions of this program's pool, and keeps each point in a file as soon as it is measured.

    Args:
        file: of profiles. A point that is in it is not measured again.
        devices: of the pool.
        grid: the shares.
        fresh: all of them are measured, and take the place of the points in the file.
        stop: asks for an early end.
        tell: hears of each point.
    """

    file: Path
    devices: ProfiledDevices
    grid: ProfileGrid
    fresh: bool
    stop: Callable[[], bool]
    tell: Tell

    def run(self, variant: ProfiledVariant, inputs: Mapping[str, Any]) -> FunctionProfile | None:
        """Measure what the file lacks of a kTask, and return its profile; None if there is no point.

        Its requests are those of a client of their own, which has the share: others may call the same function.

        Raises:
            InvalidRequest: the function has a share itself, which comes before its client's.
            KaasError: a request failed, or others are promised what a share needs. The file has the points so far.
        """
        name, _ = known_to_the_pool(variant.function)
        if any(each.of == f"function {name!r}" for each in program.status().shares):
            raise InvalidRequest(
                f"function {name!r} has a share in this pool, which would be measured: profile it in another"
            )
        client = f"profile-{token_hex(4)}"
        kept = self._kept(variant)
        known = kept.points if kept is not None and not self.fresh else ()
        points = {(each.sms, each.quota): each for each in known if each.batch == variant.batch}
        send = partial(_sent, partial(variant.function.options(client=client).call, **inputs))
        try:
            while (place := self.grid.next(_measured(points))) is not None and not self.stop():
                sms, quota = place
                set_share(client, Share(sms, (quota, quota)))
                figures = measure(send, self.devices.window_s, self.devices.count, self.stop)
                if figures is None:
                    break
                rate, p50_s, p99_s, count = figures
                points[place] = ProfilePoint(sms, quota, rate, p99_s, variant.batch, p50_s, variant.device_bytes, count)
                self._keep(variant, kept, points)
                self.tell(f"{variant.label}: {self.shown(sms)} SMs, {quota:g} of the time: {rate:.4g} requests/s")
        finally:
            set_share(client, None)  # else others could not be promised what it had
        if not _measured(points):
            return None
        profile = self._keep(variant, kept, points)
        tell_profile(variant.function, profile.points)
        return profile

    def shown(self, sms: float) -> str:
        """Return a part of the SMs as a number of them."""
        return f"{round(sms * self.devices.extent.sms)} of {self.devices.extent.sms}"

    def _kept(self, variant: ProfiledVariant) -> FunctionProfile | None:
        """Return the profile of a kTask in the file: by its key, or else by its label, as a configuration has it."""
        profiles = read_profiles(self.file) if self.file.exists() else ()
        mine = {each.function: each for each in profiles if each.kind == self.devices.kind}
        return mine.get(variant.key) or mine.get(variant.label)

    def _keep(
        self, variant: ProfiledVariant, kept: FunctionProfile | None, points: dict[Place, ProfilePoint]
    ) -> FunctionProfile:
        """Write the profile with these points, and with those on the lines between them."""
        measured = _measured(points)
        points |= {(each.sms, each.quota): each for each in self.grid.between(measured)}
        fastest = max(measured.values(), key=lambda each: each.rate_per_s / each.quota)
        seen = (each for each in program.stats().profiles if each.function in (variant.key, variant.label))
        times = next((each for each in seen if each.kind == self.devices.kind), None)
        others = [each for each in (kept.points if kept else ()) if each.batch != variant.batch]
        profile = FunctionProfile(
            variant.key if kept is None else kept.function,
            self.devices.kind,
            fastest.quota / fastest.rate_per_s,
            times.load_s if times else 0.0,
            times.nbytes if times else 0,
            sum(each.requests for each in measured.values()),
            variant.family,
            float(variant.batch) if variant.family else 0.0,
            (*others, *(points[place] for place in sorted(points))),
        )
        keep_profile(self.file, profile)
        return profile


def _measured(points: Mapping[Place, ProfilePoint]) -> dict[Place, ProfilePoint]:
    return {place: each for place, each in points.items() if each.requests}


def _sent(call: Callable[[], Any], _: int) -> Any:
    return call()

"""The shares of a pool's functions and clients: those that fit a device together are told to the policy."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kaas.config import ClientSettings
from kaas.errors import AdmissionRefused, DeviceUnavailable, InvalidShare, KaasError
from kaas.pool.core.requests import Request
from kaas.pool.executors.transport import WorkerCall
from kaas.scheduling.decisions import Granted, Reject
from kaas.scheduling.events import Event, PromiseKnown, ShareGone, ShareKnown
from kaas.scheduling.sharing.packing import DevicePacking
from kaas.scheduling.sharing.rectangles import DeviceExtent
from kaas.scheduling.sharing.scaling import Configuration, SloUnmet, choices_of
from kaas.share import LEAST_SLO_S, ProfilePoint, Share
from kaas.wire.specs import ShareSpec
from kaas.wire.status.status import DeviceStatus, PromiseStatus, ShareStatus


@dataclass(slots=True, eq=False)
class _Promise:
    """A promise of latency, and what came of it.

    Fields:
        granted: the policy's last word.
    """

    slo_s: float
    best_effort: bool
    granted: Granted
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _GivenShare:
    """A share, or a promise, and what it is of.

    sessions: of the programs that gave it; none: the configuration has it.
    """

    share: Share | _Promise
    label: str
    functions: tuple[str, ...] = ()
    sessions: frozenset[str] = frozenset()

    @property
    def least(self) -> tuple[float, float] | None:
        """The part of the SMs and of the time that is promised; None if none is, or the pool chooses it."""
        share = self.share
        return (share.sms, share.quota[0]) if isinstance(share, Share) and share.quota[0] > 0 else None


@dataclass(slots=True, eq=False)
class _ShareUse:
    """The time that a share has had, as `ShareStatus` has it."""

    device_s: float = 0.0
    sm_s: float = 0.0


class PoolShares:
    """The shares of a pool. Use an object of this class from one event loop only.

    Args:
        tell: gives an event to the policy.
        slots: requests that a device runs at a time.
        profile: returns what is measured of a function with a share, by the keys of its kTasks and its label.
        keep: takes what a program has measured of it, after these keys.
        missed: returns how many windows each share has missed, by the policy's count.

    Fields:
        given: the shares by name.
    """

    def __init__(
        self,
        tell: Callable[[Event], None],
        slots: int,
        profile: Callable[[Sequence[str], str], tuple[Configuration, ...]],
        keep: Callable[[Sequence[str], tuple[ProfilePoint, ...]], None],
        missed: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._tell, self._slots = tell, slots
        self._profile, self._keep, self._missed = profile, keep, missed
        self._loop = asyncio.get_running_loop()
        self.given: dict[str, _GivenShare] = {}
        self._functions: dict[str, str] = {}  # the share of each function
        self._used: dict[str, _ShareUse] = {}

    def of(self, call: WorkerCall) -> str:
        """Return the name of the share of a request: its function's, else its client's; "" if there is none."""
        function = self._functions.get(call.bound or call.function or call.label)
        client = _of_client(call.client)
        return function or (client if client in self.given else "")

    def set(self, spec: ShareSpec, session: str) -> None:
        """Give a function or client a share, change it, or take it away, from the next dispatch on; or keep a profile.

        Raises:
            InvalidShare: it is none, the leasts of all shares do not fit a device together, or the configuration has
                the client's share. InvalidConfig: the profile is none.
        """
        if spec.points:
            self._keep(spec.functions, spec.points)
            return
        name = f"function {spec.functions[0]}" if spec.functions else _of_client(spec.client)
        label = f"function {spec.label!r}" if spec.functions else f"client {spec.client!r}"
        before = self.given.get(name)
        if before is not None and not before.sessions:
            raise InvalidShare(
                f"{label} has the share of the pool's configuration, which programs do not change", others=()
            )
        if spec.slo_s is None and spec.share is None:
            self._remove(name)
            return
        sessions = frozenset({session} if before is None else before.sessions | {session})
        share: Share | _Promise
        if spec.slo_s is not None:
            self._check_promise(spec, spec.slo_s, label)
            share = _Promise(spec.slo_s, spec.best_effort, Granted(name))
        else:
            assert spec.share is not None, "as above"
            sms, least, most, memory_bytes = spec.share
            share = Share(sms, (least, most), memory_bytes)
        given = _GivenShare(share, label, spec.functions, sessions)
        _check({**self.given, name: given}, [name], self._slots)
        self._give(name, given)

    def _check_promise(self, spec: ShareSpec, slo_s: float, label: str) -> None:
        """Check a promise against the function's profile, if it has one.

        Raises:
            InvalidShare: no share keeps the promise.
        """
        if not spec.functions:
            raise InvalidShare(f"a promise is made for a function, not for {label}")
        if not LEAST_SLO_S <= slo_s < math.inf:
            raise InvalidShare(f"slo_s is a number of seconds from {LEAST_SLO_S:g} on, not {slo_s!r}")
        points = self._profile(spec.functions, spec.label)
        unmet = choices_of(points, slo_s) if points else None
        if isinstance(unmet, SloUnmet) and unmet.best is not None:
            best = unmet.best
            raise InvalidShare(
                f"no share of {label} keeps {slo_s:g} s: its profile's least p99 is {best.p99_s:.3g} s, with "
                f"{best.sms:g} of the SMs and {best.quota:g} of the time",
                best_s=best.p99_s,
            )

    def regrant(self, clients: Mapping[str, ClientSettings]) -> None:
        """Give clients the shares of their settings, and no others of the settings before.

        Raises:
            InvalidShare: as of `set`.
        """
        wanted = _of_settings(clients)
        by_programs = {name: given for name, given in self.given.items() if given.sessions and name not in wanted}
        _check({**by_programs, **wanted}, list(wanted), self._slots)
        for name in [name for name, given in self.given.items() if not given.sessions and name not in wanted]:
            self._remove(name)
        for name, given in wanted.items():
            self._give(name, given)

    def granted(self, decision: Granted) -> None:
        """Take in what the policy has granted for a promise."""
        given = self.given.get(decision.share)
        if given is not None and isinstance(given.share, _Promise):
            given.share.granted = decision

    def refusal(self, request: Request, decision: Reject, pool: str) -> KaasError:
        """Return the error of a request that the policy rejects: it would end too late, or for another reason."""
        if decision.late_s is None:
            return DeviceUnavailable(f"pool {pool!r}: {decision.reason}")
        promise, label = self._promise_of(request), request.call.label
        slo_s = math.nan if promise is None else promise.slo_s
        message = f"{label!r} was refused: it would end after {decision.late_s:.3g} s, and {slo_s:g} s are promised"
        return AdmissionRefused(message, slo_s=slo_s, expected_s=decision.late_s, task=label)

    def answered(self, request: Request, error: KaasError | None) -> None:
        """Count a request with a share, which has its answer."""
        if (promise := self._promise_of(request)) is None:
            return
        if isinstance(error, AdmissionRefused):
            promise.counts["refused"] += 1
        elif error is None:
            took_s = self._loop.time() - request.arrived_s
            promise.counts["kept" if took_s <= promise.slo_s else "late"] += 1
            promise.counts["best_effort"] += request.best_effort

    def _promise_of(self, request: Request) -> _Promise | None:
        given = self.given.get(request.share)
        return given.share if given is not None and isinstance(given.share, _Promise) else None

    def charge(self, share: str, device_s: float, part: float) -> None:
        """Add the device seconds of a request to what its share has had. part: of the SMs on which it was."""
        if (used := self._used.get(share)) is not None:
            used.device_s += device_s
            used.sm_s += device_s * part

    def status(self, devices: Iterable[DeviceStatus]) -> tuple[ShareStatus, ...]:
        """Return the shares as `kaas.status()` shows them. devices: likewise."""
        up = [
            (device.index, DeviceExtent(device.info.sms, device.info.sm_step))
            for device in devices
            if device.info is not None
        ]
        missed = self._missed()
        return tuple(_status(given, up, self._used[name], missed.get(name, 0)) for name, given in self.given.items())

    def session_ended(self, session: str) -> None:
        """Take away the shares that a program has given, and no other one that is there."""
        for name, given in list(self.given.items()):
            if given.sessions == {session}:
                self._remove(name)
            else:
                self.given[name] = replace(given, sessions=given.sessions - {session})

    def _give(self, name: str, given: _GivenShare) -> None:
        for function in given.functions:
            self._functions[function] = name
        self.given[name] = given
        self._used.setdefault(name, _ShareUse())
        now_s, share = self._loop.time(), given.share
        if isinstance(share, _Promise):
            self._tell(PromiseKnown(now_s, name, share.slo_s, share.best_effort))
        else:
            self._tell(ShareKnown(now_s, name, share.sms, *share.quota, share.memory_bytes))

    def _remove(self, name: str) -> None:
        given = self.given.pop(name, None)
        if given is None:
            return
        for function in given.functions:
            self._functions.pop(function, None)
        del self._used[name]
        self._tell(ShareGone(self._loop.time(), name))


def check_clients(clients: Mapping[str, ClientSettings], slots: int) -> None:
    """Check that the shares of clients fit a device together, which runs so many requests at a time.

    Raises:
        InvalidShare: they do not.
    """
    wanted = _of_settings(clients)
    _check(wanted, list(wanted), slots)


def _of_settings(clients: Mapping[str, ClientSettings]) -> dict[str, _GivenShare]:
    return {
        _of_client(client): _GivenShare(settings.share, f"client {client!r}")
        for client, settings in clients.items()
        if settings.share is not None
    }


def _check(shares: Mapping[str, _GivenShare], newest: Sequence[str], slots: int) -> None:
    """Check that the leasts of all shares fit a device together: as rectangles of SMs and time.

    Args:
        shares: by their names.
        newest: names of new ones. The error is about the first of them that does not fit with those before it.
        slots: requests that a device runs at a time.

    Raises:
        InvalidShare: they do not.
    """
    if not newest or _fit(shares, slots):
        return
    kept = {name: given for name, given in shares.items() if name not in newest}
    for name in newest:
        kept[name] = shares[name]
        if not _fit(kept, slots):
            break
    label, promised = shares[name].label, [(each, given) for each, given in kept.items() if given.least]
    others = tuple(given.label for each, given in promised if each != name)
    listed = "; ".join(f"{given.label} has {given.share}" for _, given in promised)
    fits = f"the leasts of all shares do not fit a device together with {label}"
    few = f", which runs {slots} at a time (Config.slots)" if _fit(kept, slots=len(kept)) else ""
    message = f"{fits}{few}: {listed}"
    raise InvalidShare(message, of=label, others=others)


def _fit(shares: Mapping[str, _GivenShare], slots: int) -> bool:
    """Return True if the leasts fit a device together, in thousandths of its SMs and of its time."""
    promised: dict[Hashable, tuple[float, float]] = {
        name: given.least for name, given in shares.items() if given.least is not None
    }
    return None not in DevicePacking({0: DeviceExtent(1000, 1, slots)}).place_all(promised).values()


def _status(
    given: _GivenShare, devices: Sequence[tuple[int, DeviceExtent]], used: _ShareUse, missed: int
) -> ShareStatus:
    share = given.share
    if isinstance(share, Share):
        granted = tuple((index, extent.size(share.sms, 1.0)[1]) for index, extent in devices)
        parts = given.label, share.sms, share.quota, granted
        return ShareStatus(*parts, used.device_s, used.sm_s, missed, memory_bytes=share.memory_bytes)
    told, counts = share.granted, share.counts
    promise = PromiseStatus(
        share.slo_s,
        tuple((each.device, each.sms, each.quota) for each in told.instances),
        told.missing_per_s,
        told.trial_sms,
        told.unmet_s,
        *(counts[each] for each in ("kept", "late", "best_effort", "refused")),
    )
    return ShareStatus(given.label, 1.0, (0.0, 1.0), (), used.device_s, used.sm_s, missed, promise)


def _of_client(client: str) -> str:
    return f"client {client}"

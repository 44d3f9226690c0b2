"""The shares of a pool's functions and clients: those that fit a device together are told to the policy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass

from kaas.config import ClientSettings
from kaas.errors import InvalidShare
from kaas.pool.executors.transport import WorkerCall
from kaas.scheduling.events import Event, ShareGone, ShareKnown
from kaas.scheduling.sharing.packing import DevicePacking
from kaas.scheduling.sharing.rectangles import DeviceExtent
from kaas.share import Share
from kaas.wire.specs import ShareSpec
from kaas.wire.status.status import DeviceStatus, ShareStatus

SPACE = DeviceExtent(1000, 1)
"""A device as promises are checked: in thousandths of its SMs and of its time."""


@dataclass(frozen=True, slots=True)
class _GivenShare:
    """A share, and what it is of. session: the program that gave it, whose end takes it away; "" for the pool's own."""

    share: Share
    label: str
    functions: tuple[str, ...] = ()
    session: str = ""


class PoolShares:
    """The shares of a pool. Use an object of this class from one event loop only.

    Args:
        tell: gives an event to the policy.

    Fields:
        given: the shares by name.
    """

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self.given: dict[str, _GivenShare] = {}
        self._functions: dict[str, str] = {}  # the share of each function

    def of(self, call: WorkerCall) -> str:
        """Return the name of the share of a request: its function's, else its client's; "" if there is none."""
        function = self._functions.get(call.bound or call.function or call.label)
        client = _of_client(call.client)
        return function or (client if client in self.given else "")

    def set(self, spec: ShareSpec, session: str) -> None:
        """Give a function or a client a share, change it, or take it away, from the next dispatch on.

        Raises:
            InvalidShare: it is none, or the leasts of all shares do not fit a device together.
        """
        name = f"function {spec.functions[0]}" if spec.functions else _of_client(spec.client)
        if spec.share is None:
            self._remove(name)
            return
        sms, least, most = spec.share
        label = f"function {spec.label!r}" if spec.functions else f"client {spec.client!r}"
        given = _GivenShare(Share(sms, (least, most)), label, spec.functions, session)
        _check({**self.given, name: given}, name, label)
        self._give(name, given)

    def regrant(self, clients: Mapping[str, ClientSettings]) -> None:
        """Give clients the shares of their settings, and no others of the settings before.

        Raises:
            InvalidShare: as of `set`.
        """
        wanted = {
            _of_client(client): _GivenShare(settings.share, f"client {client!r}")
            for client, settings in clients.items()
            if settings.share is not None
        }
        by_programs = {name: given for name, given in self.given.items() if given.session and name not in wanted}
        for name, given in wanted.items():
            _check({**by_programs, **wanted}, name, given.label)
        for name in [name for name, given in self.given.items() if not given.session and name not in wanted]:
            self._remove(name)
        for name, given in wanted.items():
            self._give(name, given)

    def status(self, devices: Iterable[DeviceStatus]) -> tuple[ShareStatus, ...]:
        """Return the shares as `kaas.status()` shows them. devices: likewise."""
        up = [
            (device.index, DeviceExtent(device.info.sms, device.info.sm_step))
            for device in devices
            if device.info is not None
        ]
        return tuple(
            ShareStatus(
                given.label,
                given.share.sms,
                given.share.quota,
                tuple((index, extent.size(given.share.sms, 1.0)[1]) for index, extent in up),
            )
            for given in self.given.values()
        )

    def session_ended(self, session: str) -> None:
        """Take away the shares that a program has given."""
        for name in [name for name, given in self.given.items() if given.session == session]:
            self._remove(name)

    def _give(self, name: str, given: _GivenShare) -> None:
        for function in given.functions:
            self._functions[function] = name
        self.given[name] = given
        least, most = given.share.quota
        self._tell(ShareKnown(self._loop.time(), name, given.share.sms, least, most))

    def _remove(self, name: str) -> None:
        given = self.given.pop(name, None)
        if given is None:
            return
        for function in given.functions:
            self._functions.pop(function, None)
        self._tell(ShareGone(self._loop.time(), name))


def _check(shares: Mapping[str, _GivenShare], name: str, label: str) -> None:
    """Check that the leasts of all shares fit a device together: as rectangles of SMs and time.

    Args:
        shares: by their names.
        name: of the new one. label: for people.

    Raises:
        InvalidShare: they do not.
    """
    promised: dict[Hashable, tuple[float, float]] = {
        each: (given.share.sms, given.share.quota[0]) for each, given in shares.items() if given.share.quota[0] > 0
    }
    if None not in DevicePacking({0: SPACE}).place_all(promised).values():
        return
    others = tuple(given.label for each, given in shares.items() if each in promised and each != name)
    listed = "; ".join(f"{given.label} has {given.share}" for each, given in shares.items() if each in promised)
    raise InvalidShare(f"the leasts of all shares do not fit a device together with {label}: {listed}", others=others)


def _of_client(client: str) -> str:
    return f"client {client}"

"""Metering: charges each request of a remote client exactly once, and applies quotas.

A charge is durable before its reply is sent, so that each request with a reply was charged, even if the server's
process is killed in between. A charged request without a reply is repeated under its idempotency key, and not charged
again. Some usage may be lost, in the clients' favor. With the process: runs that had not ended after their reply (a
deadline, a cancellation), refusals of the last `WRITE_EVERY_S`, and bytes times seconds of that time (`HOLD_EVERY_S`
without calls). With the machine's power: charges of the last second or two. Its files: `kaas.server.usage.usage_file`.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import floor
from pathlib import Path

from kaas.errors import QuotaExceeded, UsageUnavailable
from kaas.server.state.reserve import Reserve
from kaas.server.usage.journal import Journal
from kaas.server.usage.quotas import Allowance, Quotas
from kaas.server.usage.stored_bytes import StoredBytes, StoredKind
from kaas.server.usage.usage import ASK_AGAIN, COMPILED, Charge, Totals, Usage, measured
from kaas.server.usage.usage_file import Changes, UsageFile
from kaas.wire.specs import RunRecord

WRITE_EVERY_S = 1.0
"""Seconds for which charges may be in the journal only."""
HOLD_EVERY_S = 10.0
"""Seconds between writes while clients store data and make no calls."""

_log = logging.getLogger(__name__)


def unanswered() -> None:
    """Send no reply: the reply went out before, or goes out later."""


class Meter:
    """The usage of all clients. Use it from one event loop only, from `open` to `close`. Only these two wait."""

    def __init__(
        self, folder: Path, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        """folder: the server's state."""
        self._folder = folder
        self._clock, self._wall = clock, wall
        self._wall_offset_s = 0.0
        self.reserve = Reserve(folder)
        """Room on the disk, from `open` to `close`."""
        self._file = UsageFile(folder, self.reserve)
        self.set_aside = self._file.set_aside
        """Damaged parts of earlier epochs."""
        self.unable = ""
        """Why requests cannot be charged; "" if they can."""
        self._journal: Journal | None = None
        self._number = 0
        self._totals = Totals()
        self._allowances: dict[str, Allowance] = {}
        self._stored = StoredBytes()
        self._changed: set[tuple[str, str]] = set()
        self._new_keys: dict[tuple[str, str], None] = {}  # charged since the last write of the file
        self._old_keys: set[tuple[str, str]] = set()  # in the file, and received since
        self._used: set[str] = set()  # clients with new device time
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None
        self._thread: ThreadPoolExecutor | None = None
        self.trouble = ""
        """Why charges cannot be written to the SQLite file; "" if they can."""

    def open(self) -> None:
        """Load the usage of earlier epochs, and write the journal's charges to the SQLite file.

        Raises:
            UsageUnavailable: another server uses the folder, or it cannot be used.
        """
        kept = self._file.open()
        self._wall_offset_s = self._wall() - self._clock()
        self._totals = kept.totals
        now_s = self._clock()
        for held in kept.holdings:  # 0 bytes until `holds` is called
            self._stored.restore(held.client, held.what, held.byte_s, now_s)
        for client, seconds in kept.recent.items():
            for second, nanoseconds in seconds:
                self._spent(client, self._allowance(client), self._since(second), nanoseconds)
        for charge in kept.journal:
            self._count(charge)
            self._spent(charge.client, self._allowance(charge.client), self._since(charge.second), charge.device_ns)
        self._number = kept.newest
        try:
            self._file.apply(self._taken())
        except (OSError, sqlite3.Error) as error:
            self._file.close()
            raise self._unavailable(error) from error
        self._thread = ThreadPoolExecutor(1, "usage")

    def _since(self, second: int) -> float:
        """Return the end of a second of an earlier epoch, on this clock, and at most now."""
        return min(second + 1 - self._wall_offset_s, self._clock())

    async def close(self) -> None:
        """Write all charges to the SQLite file.

        Raises:
            UsageUnavailable: they cannot be written, and stay in the journal.
        """
        if self._thread is None:
            return
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if self._timer is not None:
            self._timer.cancel()
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._file.apply, self._taken())
        except (OSError, sqlite3.Error) as error:
            raise self._unavailable(error) from error
        finally:
            self._thread.shutdown()
            self._thread = None
            self._file.close()

    # --- requests

    def grant(self, client: str, quotas: Quotas) -> None:
        """Set the quotas of a client."""
        self._allowance(client).change(quotas, self._clock())

    def _allowance(self, client: str) -> Allowance:
        allowance = self._allowances.get(client)
        if allowance is None:
            allowance = self._allowances[client] = Allowance()
        return allowance

    def admit(self, client: str) -> None:
        """Admit a request: a call of `ended` or `refused` must follow.

        Raises:
            QuotaExceeded: it is refused.
        """
        allowance = self._allowance(client)
        if allowance.unlimited:
            allowance.open += 1
            return
        refusal = allowance.admit(self._clock())
        if refusal is not None:
            self.refused(client, "", QuotaExceeded.__name__)
            raise refusal.error(client)

    def ended(
        self,
        client: str,
        function: str,
        key: str,
        outcome: str,
        input_bytes: int,
        output_bytes: int,
        moved_bytes: int,
        record: RunRecord | None,
        answer: Callable[[], object] = unanswered,
    ) -> bool:
        """Charge an admitted request at the end of its run, which may be after its reply, for example with a deadline.
        Return True if it was charged. A repeat is not charged: a request with this key was charged in this or an
        earlier epoch of the server, and no reply to it was sent in this one.

        Args:
            client, function: the names to count under. key: of idempotency, "" for none. outcome: "succeeded",
                "cancelled", or the error's class.
            input_bytes, output_bytes: received and sent. moved_bytes: of the kTask's inputs and outputs, without those
                of objects.
            record: the measurements, if it has run. answer: sends the reply. It is called as soon as the charge is
                durable, before the counting here.

        Raises:
            UsageUnavailable: the charge cannot be written. answer was not called, and the outputs must not be sent.
        """
        allowance = self._allowances[client]
        allowance.leave()
        now_s = self._clock()
        device_ns, copied_bytes, part = measured(record, moved_bytes)
        repeated = bool(key) and self._totals.charged(client, key)
        charge = Charge(
            client,
            function,
            "" if outcome in ASK_AGAIN else key,
            outcome,
            device_ns,
            input_bytes,
            output_bytes,
            copied_bytes,
            floor(now_s + self._wall_offset_s),
            part=part,
        )
        if not repeated:
            self._write_durably(charge)
            if charge.key:
                self._totals.remember(client, charge.key)
        try:
            answer()
        finally:
            if repeated:
                self._count_repeat(client, function)
            else:
                self._count(charge)
            self._spent(client, allowance, now_s, device_ns)  # the device time was used in any case
        return not repeated

    def compiled(self, client: str, function: str, processor_s: float) -> None:
        """Charge for compiling a function's code. If that cannot be written, the next request has the error."""
        now_s, nanoseconds = self._clock(), int(processor_s * 1e9)
        charge = Charge(client, function, "", COMPILED, nanoseconds, 0, 0, 0, floor(now_s + self._wall_offset_s))
        with suppress(UsageUnavailable):
            self._write_durably(charge)
        self._count(charge)
        self._spent(client, self._allowance(client), now_s, nanoseconds)

    def _write_durably(self, charge: Charge) -> None:
        """Write a charge; on a full disk, once more with the reserve released.

        Raises:
            UsageUnavailable: the charge cannot be written.
        """
        try:
            self.reserve.with_room(lambda: self._write_charge(charge))
        except OSError as error:
            self.unable = str(error)
            raise self._unavailable(error) from error
        self.unable = ""

    def _write_charge(self, charge: Charge) -> None:
        """Append a charge to the journal.

        Raises:
            OSError
        """
        if self._journal is not None and self._journal.torn:
            self._end()
        (self._journal or self._begin()).write(charge)

    def able(self) -> bool:
        """Return True if the last charge could be written, or if one can be written again since."""
        if self.unable and self.reserve.held:
            with suppress(OSError):
                (self._journal or self._begin()).probe()
                self.unable = ""
        return not self.unable

    def delivered(self, client: str, key: str) -> None:
        """Note that a reply to the request charged under this key was sent: another run of it is charged. This is not
        stored for a restart, since a reply on its way may then be lost."""
        self._totals.deliver(client, key)

    def received(self, client: str, key: str) -> None:
        """Note that the reply to the request charged under this key was received: another run, after the reply is
        forgotten, counts as another request."""
        self._totals.forget(client, key)
        self._forget_key((client, key))

    def forget_keys(self, client: str) -> None:
        """Forget the idempotency keys of a client, because another client gets its name."""
        for key in self._totals.forget_all(client):
            self._forget_key((client, key))

    def _forget_key(self, name: tuple[str, str]) -> None:
        if name in self._new_keys:
            del self._new_keys[name]
        else:
            self._old_keys.add(name)

    def failed(self, client: str, function: str, key: str, outcome: str, other: str) -> None:
        """Count a charged request with another outcome: it failed after its charge. Another run of it is charged."""
        charge = Charge(client, function, key, other, 0, 0, 0, 0, 0, outcome)
        with suppress(UsageUnavailable):  # it is logged; only a server that is killed at once keeps the former charge
            self._write_durably(charge)
        self._count(charge)

    def refused(self, client: str, function: str, outcome: str, admitted: bool = False) -> None:
        """Count a request that ended without a run. admitted: True if `admit` was called for it."""
        if admitted:
            self._allowances[client].leave()
        name, flow = self._totals.flow(client, function)
        flow.outcomes[outcome] = flow.outcomes.get(outcome, 0) + 1
        self._changes(name)

    def _count(self, charge: Charge) -> None:
        self._changes(self._totals.add(charge))
        if charge.instead_of:
            self._forget_key((charge.client, charge.key))
        elif charge.key:
            self._new_keys[charge.client, charge.key] = None

    def _count_repeat(self, client: str, function: str) -> None:
        name, flow = self._totals.flow(client, function)
        flow.repeats += 1
        self._changes(name)

    def _spent(self, client: str, allowance: Allowance, at_s: float, nanoseconds: int) -> None:
        if nanoseconds:
            allowance.window.add(at_s, nanoseconds)
            self._used.add(client)

    def _begin(self) -> Journal:
        """Begin a segment of the journal.

        Raises:
            OSError
        """
        self._number += 1
        self._journal = Journal(self._folder, self._number)
        return self._journal

    def _end(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    # --- storage

    def holds(self, client: str, what: StoredKind, nbytes: int) -> None:
        """Set the number of bytes that a client stores of a kind."""
        self._stored.change(client, what, nbytes, self._clock())
        self._write_within(WRITE_EVERY_S)

    def usage(self, client: str | None = None) -> Usage:
        """Return the usage of a client, or of all."""
        return Usage(self._totals.usage(client), self._stored.kept(self._clock())).of(client)

    def outcomes(self) -> dict[tuple[str, str], int]:
        """Return the number of requests by client and outcome."""
        return self._totals.outcomes()

    # --- into the SQLite file

    def _changes(self, name: tuple[str, str]) -> None:
        self._changed.add(name)
        if self._timer is None:
            self._write_within(WRITE_EVERY_S)

    def _write_within(self, seconds: float) -> None:
        if self._thread is None or self._writing is not None:
            return  # not open yet, or `_written` schedules the next write
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._write)

    def _write(self) -> None:
        assert self._thread is not None, "it is open"
        self._timer = None
        changes = self._taken()
        writing = asyncio.get_running_loop().run_in_executor(self._thread, self._file.apply, changes)
        self._writing = writing
        writing.add_done_callback(lambda done: self._written(changes, done))

    def _written(self, changes: Changes, writing: asyncio.Future[None]) -> None:
        self._writing = None
        error = writing.exception()
        trouble = "" if error is None else f"{type(error).__name__}: {error}"
        if trouble:
            where = {"path": str(self._folder), "reason": trouble, "limit_by": trouble}
            _log.error("usage is in the journal only: its SQLite file cannot be written", extra=where)
        elif self.trouble:
            _log.info("usage reaches its SQLite file again", extra={"path": str(self._folder)})
        self.trouble = trouble
        if error is not None:
            self._changed.update((flow.client, flow.function) for flow in changes.flows)
            self._new_keys = dict.fromkeys(changes.keys) | self._new_keys
            self._old_keys |= changes.old_keys
            self._used.update(changes.recent)
        if self._changed or self._used:
            self._write_within(WRITE_EVERY_S)
        elif self._stored.any:
            self._write_within(HOLD_EVERY_S)

    def _taken(self) -> Changes:
        """Return the changes since the last call. Later charges go to another segment."""
        self._end()
        flows = [self._totals.flows[name].usage(*name) for name in sorted(self._changed)]
        keys, old_keys = list(self._new_keys), self._old_keys
        recent = {client: self._recent(client) for client in self._used}
        self._changed, self._new_keys, self._old_keys, self._used = set(), {}, set(), set()
        return Changes(self._number, flows, self._stored.kept(self._clock()), keys, old_keys, recent)

    def _recent(self, client: str) -> list[tuple[int, int]]:
        """Return a client's device time by second of the wall clock."""
        seconds = self._allowances[client].window.seconds()
        return [(floor(second + self._wall_offset_s), nanoseconds) for second, nanoseconds in seconds]

    def _unavailable(self, error: Exception) -> UsageUnavailable:
        where = {"path": str(self._folder), "reason": str(error), "limit_by": str(error)}
        _log.error("usage cannot be written down, so that no request is answered", extra=where)
        message = f"the usage of clients cannot be written in {self._folder}: {error}"
        return UsageUnavailable(message, path=str(self._folder), reason=str(error))

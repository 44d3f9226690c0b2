"""The multi-token scheduler of one device (FaST-GShare, section 3.3.2): which shares may run on it now.

A share has a part of the SMs, and a least and a most part of the time of each window. To run a request, a share takes
tokens for its SMs, and gives them back when the request ends. Shares that have had their most wait for the next window.
Of the others, the share goes first that misses most of its least: as a part of it, where the paper compares seconds.
Beside runs as long as three windows, a share with a tenth of the time would lose a quarter of it to one with the rest,
which lacks more seconds at once. Tokens are handed out while SMs are left.

All requests without a share stand for one more, `OTHERS`: no time is promised to them, and they may have all that is
left over. Several of them may run at a time, on the same SMs, unless a share here has a least of the time: then they go
one by one, as the paper's pods do. Kernels that fill the device end the later the more of them run, and a share would
wait for all of them.

The paper hands out tokens in this order until one share does not fit. Then small shares would wait, though the SMs that
are left are of no use to the one that does not fit. Here a later share may go if it does not delay that one (EASY
backfilling). The paper says nothing of a graph that runs beyond the end of its window: here, what it had beyond its
share counts in the next windows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kaas.scheduling.sharing.rectangles import DeviceExtent

OTHERS = ""
"""The name under which requests without a share take tokens."""
ROUNDING_S = 1e-9
"""Below it, a difference of seconds is rounding."""


class Tokens(NamedTuple):
    """The tokens that a share takes to run a request: tokens for so many SMs."""

    share: str
    sms: int


class _FirstInLine(NamedTuple):
    """The place of the first share that does not fit now.

    Fields:
        ready_s: when its SMs are expected to be free. spare: the SMs that are free beside them then. after_others:
            requests without a share end before.
    """

    ready_s: float
    spare: int
    after_others: bool

    def delayed(self, sms: int, ends_s: float) -> bool:
        """Return True if the share would wait longer for a request on so many SMs that is expected to end then."""
        return sms > self.spare and ends_s > self.ready_s


class _HeldTokens(NamedTuple):
    """The tokens of a running request, since when it has them."""

    sms: int
    since_s: float


@dataclass(slots=True, eq=False)
class _TokenAccount:
    """The part of a device that a share may have, and has had.

    Fields:
        sms: of the device. least, most: parts of the time of each window. used_s: what counts towards the least in this
            window: the time in it, and of the windows before what a run took too much, or others' runs kept from it.
            spent_s: likewise, towards the most.
        running: the requests that run. since_s: the time up to which they are counted. ends_s: the time at which the
            last of them is expected to end. owed: they began while the share missed a part of its least. longest_s: the
            longest time that a request has had tokens at the start of a window.
        wants_s: since when the share has always had a request; None if it has none. idle_s: when the last one ended,
            until another is seen; None while one is.
    """

    sms: int
    least: float
    most: float
    used_s: float = 0.0
    spent_s: float = 0.0
    running: dict[int, _HeldTokens] = field(default_factory=dict)
    since_s: float = 0.0
    ends_s: float = 0.0
    owed: bool = False
    longest_s: float = 0.0
    wants_s: float | None = None
    idle_s: float | None = None

    @property
    def held_sms(self) -> int:
        """The SMs that its requests hold: they run on the same ones."""
        return max((held.sms for held in self.running.values()), default=0)


class TokenScheduler:
    """The shares of one device. Times are seconds on one clock, which does not go back.

    Args:
        extent: its SMs, and their least partition.
        window_s: the length of the windows, which follow each other from time 0.
        missed: counts the windows that each share has missed. Such a share always had requests, and at the window's end
            it lacked more than its least of a window and of the longest requests: that time is never given back.
    """

    def __init__(self, extent: DeviceExtent, window_s: float, missed: Counter[str] | None = None) -> None:
        self.missed: Counter[str] = Counter() if missed is None else missed
        self._extent, self._sms, self._window_s = extent, extent.sms, window_s
        self._window = 0
        self._accounts = {OTHERS: _TokenAccount(extent.sms, 0.0, 1.0)}
        self._one_by_one = False

    # --- shares

    def size_of(self, share: str) -> int:
        """Return the SMs of a share that is here."""
        return self._accounts[share].sms

    def sms_of(self, part: float) -> int:
        """Return the SMs for a part of them, more than 0 and at most 1: as many partitions as the part needs."""
        return self._extent.size(part, 1.0)[1]

    def give(self, share: str, part: float, least: float, most: float) -> None:
        """Give a share its part of the SMs, and its least and most of the time. What it has had stays."""
        account = self._accounts.get(share)
        if account is None:
            self._accounts[share] = _TokenAccount(self.sms_of(part), least, most)
        else:
            account.sms, account.least, account.most = self.sms_of(part), least, most
        self._changed()

    def take(self, share: str) -> None:
        """Take a share away. Its running requests go on, as others that have no share."""
        account, others = self._accounts.pop(share), self._accounts[OTHERS]
        self._changed()
        if account.running:
            if not others.running:
                others.since_s = account.since_s
            others.running |= account.running
            others.ends_s = max(others.ends_s, account.ends_s)

    def _changed(self) -> None:
        self._one_by_one = any(account.least > 0.0 for account in self._accounts.values())

    def used_s(self, share: str, now_s: float) -> float:
        """Return the seconds of this window that count as had by a share."""
        self._advance(now_s)
        return self._accounts[share].used_s

    @property
    def held_sms(self) -> int:
        """The SMs for which tokens are out."""
        return sum(account.held_sms for account in self._accounts.values())

    # --- tokens

    def next(self, waiting: Mapping[str, float], now_s: float) -> Tokens | None:
        """Return the share that runs a request next, or None if none may run one now.

        Args:
            waiting: shares with a request that could run, by the seconds that the request is expected to take.
            now_s: the time.
        """
        self._advance(now_s)
        for name, account in self._accounts.items():
            if not account.running and name not in waiting:
                account.wants_s = None
            elif account.wants_s is None or (account.idle_s is not None and account.idle_s < now_s):
                account.wants_s = now_s
            account.idle_s = None
        able = [(name, account) for name in waiting if self._may_run(name, account := self._accounts[name])]
        able.sort(key=lambda each: self._late_s(each[1]), reverse=True)
        free, first = self._sms - self.held_sms, None
        for name, account in able:
            sms = self._for_others(free, first) if name == OTHERS else account.sms
            if 0 < sms <= free or (sms and name == OTHERS):
                if first is None or name == OTHERS or not first.delayed(sms, now_s + waiting[name]):
                    return Tokens(name, sms)
            elif first is None:
                first = self._reserve(sms, now_s)
        return None

    def begin(self, request: int, grant: Tokens, now_s: float, expected_s: float = 0.0) -> None:
        """Give a request the tokens of a grant. expected_s: the seconds for which it is expected to hold them."""
        self._advance(now_s)
        account = self._accounts[grant.share]
        if not account.running:
            account.since_s = now_s
            account.owed = self._missing_s(account) > ROUNDING_S
        account.running[request] = _HeldTokens(grant.sms, now_s)
        account.ends_s = max(account.ends_s, now_s + expected_s)

    def end(self, request: int, now_s: float) -> None:
        """Take the tokens of a request back, if it has any. Its share has had them until now."""
        self._advance(now_s)
        for account in self._accounts.values():
            if request in account.running:
                self._count(account, now_s)
                del account.running[request]
                if not account.running:
                    account.ends_s, account.idle_s = 0.0, now_s

    def wakes_s(self, waiting: Mapping[str, float], now_s: float) -> float | None:
        """Return the start of the next window if a share waits for it that had its most; else None."""
        self._advance(now_s)
        held = any(self._spent_up(self._accounts[name]) for name in waiting)
        return (self._window + 1) * self._window_s if held else None

    # --- rules

    def _missing_s(self, account: _TokenAccount) -> float:
        """Return the paper's Q_miss: seconds of this window that the share lacks of its least; negative beyond it."""
        return account.least * self._window_s - account.used_s

    def _late_s(self, account: _TokenAccount) -> float:
        """Return the seconds in which a share should have had what it lacks of its least; what it had beyond if not."""
        missing_s = self._missing_s(account)
        return missing_s / account.least if missing_s > 0.0 else missing_s

    def _spent_up(self, account: _TokenAccount) -> bool:
        """Return True if the paper's Q_remain is 0 or less: the share has had its most of this window."""
        return account.most < 1.0 and account.spent_s >= account.most * self._window_s - ROUNDING_S

    def _may_run(self, name: str, account: _TokenAccount) -> bool:
        beside = name == OTHERS and not self._one_by_one
        return beside or not (account.running or self._spent_up(account))

    def _for_others(self, free: int, first: _FirstInLine | None) -> int:
        """Return the SMs that a request without a share gets, 0 if too few are left: whole partitions, or all SMs."""
        held = self._accounts[OTHERS].held_sms
        left = free + held
        if first is not None:
            left = min(left, first.spare if first.after_others else first.spare + held)
        return left if left == self._sms else left - left % self._extent.step

    def _reserve(self, sms: int, now_s: float) -> _FirstInLine:
        """Return the time at which so many SMs are expected to be free, and what is free beside them."""
        free, ready_s, after_others = self._sms - self.held_sms, now_s, False
        for name, account in sorted(self._accounts.items(), key=lambda each: each[1].ends_s):
            if free >= sms:
                break
            if account.running:
                free += account.held_sms
                ready_s = max(now_s, account.ends_s)
                after_others = after_others or name == OTHERS
        return _FirstInLine(ready_s, free - sms, after_others)

    # --- time

    def _count(self, account: _TokenAccount, now_s: float) -> None:
        """Count the time that the share holds tokens, up to now."""
        seconds = max(0.0, now_s - account.since_s)
        account.used_s += seconds
        account.spent_s += seconds
        account.since_s = now_s

    def _advance(self, now_s: float) -> None:
        """Begin the windows that have begun since."""
        window = int(now_s / self._window_s + ROUNDING_S)  # the start of a window is part of it
        if window <= self._window:
            return
        windows = window - self._window
        began_s, passed_s = window * self._window_s, windows * self._window_s
        for account in self._accounts.values():
            if account.running:
                self._count(account, began_s)
                first_s = min(held.since_s for held in account.running.values())
                account.longest_s = max(account.longest_s, began_s - first_s)
            elif account.idle_s is not None and account.idle_s < began_s:
                account.wants_s = None
        taken_s = self._window_s + sum(account.longest_s for account in self._accounts.values())
        for name, account in self._accounts.items():
            wanted_s = 0.0 if account.wants_s is None else min(passed_s, began_s - account.wants_s)
            kept_s = 0.0 if self._spent_up(account) else account.least * wanted_s - account.used_s  # by others' runs
            account.spent_s = max(0.0, account.spent_s - account.most * passed_s)
            if kept_s > 0.0:
                most_s, least_s = account.least * taken_s, account.least * self._window_s
                if least_s and kept_s > most_s + ROUNDING_S:
                    self.missed[name] += min(windows, math.ceil((kept_s - most_s - ROUNDING_S) / least_s))
                account.used_s = -min(kept_s, most_s)  # the device may have been away
                account.spent_s += account.used_s
            else:  # what a share had of the time that others left over takes nothing of its next least
                account.used_s = max(0.0, account.used_s - account.least * passed_s) if account.owed else 0.0
        self._window = window

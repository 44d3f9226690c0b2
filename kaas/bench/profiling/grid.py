"""The shares with which a function is measured: which one comes next, and which are known without a measurement.

Throughput over SMs saturates, so a row over SMs ends where it is flat. Throughput over time is a line, so of each row
over time the ends are measured first, and the rest only if the ends do not lie on a line through zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from kaas.errors import InvalidRequest
from kaas.share import LEAST, ProfilePoint

GAIN = 1.03
"""A row over SMs is flat if twice the SMs do not give this many times the throughput: steps below come from waves of
blocks, which fill some numbers of SMs better than others."""
ON_LINE = 0.15
"""Throughput for the time may differ by this part along a line: between two requests there is time that none has."""
MOST_VALUES = 1000

Place = tuple[float, float]
"""SMs and time, as parts of a device."""


def parts(text: str, option: str, *, doubling: bool = False) -> tuple[float, ...]:
    """Return the parts of a device that an option names, ascending: "0.2..1", or "0.12,0.24".

    A range goes from its first to its last value in steps of the first. doubling: it doubles instead.

    Raises:
        InvalidRequest: the text is neither, or names a value that no share has, or one twice.
    """
    first, dots, last = text.partition("..")
    values = [_part(each, text, option) for each in ((first, last) if dots else text.split(","))]
    if dots:
        if values[0] >= values[1]:
            raise InvalidRequest(f"{option}: a range goes from a part to a larger one, as 0.2..1, not {text!r}")
        if values[1] / values[0] > MOST_VALUES and not doubling:
            raise InvalidRequest(f"{option}: {text!r} has more than {MOST_VALUES} values")
        values = [*_doubled(*values), values[1]] if doubling else [*_stepped(*values), values[1]]
    if twice := [value for place, value in enumerate(values) if value in values[:place]]:
        raise InvalidRequest(f"{option}: the part {twice[0]:g} stands there twice")
    return tuple(sorted(values))


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """Return the whole numbers from 1 on that an option names: "1,2,4".

    Raises:
        InvalidRequest: it names something else, or one of them twice.
    """
    found = [each.strip() for each in text.split(",")]
    if not all(each.isdecimal() and each.isascii() and 0 < int(each) < 1 << 31 for each in found):
        raise InvalidRequest(f"{option} takes whole numbers, as 1,2,4, not {text!r}")
    if len({int(each) for each in found}) < len(found):
        raise InvalidRequest(f"{option}: a number stands there twice: {text!r}")
    return tuple(sorted(int(each) for each in found))


def _part(text: str, whole: str, option: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (isfinite(value) and LEAST <= value <= 1):
        taken = f"parts of a device from {LEAST:g} to 1"
        raise InvalidRequest(f"{option} takes {taken}, as 0.2..1 or 0.25,0.5,1, not {whole!r}")
    return value


def _stepped(first: float, last: float) -> Iterator[float]:
    number = 1
    while (value := float(f"{number * first:.12g}")) < last:
        yield value
        number += 1


def _doubled(first: float, last: float) -> Iterator[float]:
    """Yield the first value and its doubles, but for one that is close to the last."""
    yield first
    while 3 * first <= last:
        first = float(f"{2 * first:.12g}")
        yield first


@dataclass(frozen=True, slots=True)
class ProfileGrid:
    """The shares of a profile.

    Fields:
        sms: parts of the SMs that the device grants, ascending. quotas: parts of the time, ascending.
    """

    sms: Sequence[float]
    quotas: Sequence[float]

    def next(self, measured: Mapping[Place, ProfilePoint]) -> Place | None:
        """Return the share to measure next, if there is one.

        Args:
            measured: the points that there are, by SMs and time.
        """
        least, most = self.quotas[0], self.quotas[-1]
        row: list[ProfilePoint] = []
        for sms in self.sms:
            if _flat(row):
                break
            if (sms, most) not in measured:
                return sms, most
            row.append(measured[sms, most])
        for whole in row:
            if (whole.sms, least) not in measured:
                return whole.sms, least
            if not _on_line(measured[whole.sms, least], whole):
                for quota in self.quotas:
                    if (whole.sms, quota) not in measured:
                        return whole.sms, quota
        return None

    def between(self, measured: Mapping[Place, ProfilePoint]) -> list[ProfilePoint]:
        """Return the points on the lines between those that were measured.

        Their latencies lie on the lines, too. There they are no less than what a measurement would give: a request
        waits for the rest of a window at most, which shrinks with the time, and the fewer requests a window has, the
        more of them wait.
        """
        found = []
        for sms in self.sms:
            low, high = measured.get((sms, self.quotas[0])), measured.get((sms, self.quotas[-1]))
            if low is None or high is None or not _on_line(low, high):
                continue
            found += [_between(low, high, quota) for quota in self.quotas if (sms, quota) not in measured]
        return found


def _flat(row: Sequence[ProfilePoint]) -> bool:
    """Return True if the last point of a row over SMs has hardly more throughput than one with half of its SMs."""
    return bool(row) and any(
        2 * each.sms <= row[-1].sms * (1 + 1e-9) and row[-1].rate_per_s < GAIN * each.rate_per_s for each in row
    )


def _on_line(low: ProfilePoint, high: ProfilePoint) -> bool:
    """Return True if throughput is proportional to time."""
    expected = high.rate_per_s * low.quota / high.quota
    return abs(low.rate_per_s - expected) <= ON_LINE * expected


def _between(low: ProfilePoint, high: ProfilePoint, quota: float) -> ProfilePoint:
    along = (quota - low.quota) / (high.quota - low.quota)
    rate, p99_s, p50_s = (
        first + along * (last - first)
        for first, last in (
            (low.rate_per_s, high.rate_per_s),
            (low.p99_s, high.p99_s),
            (low.p50_s, high.p50_s),
        )
    )
    return ProfilePoint(low.sms, quota, rate, p99_s, low.batch, p50_s, low.device_bytes)

"""Faults that a software device is to have: what comes, and when."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

__all__ = ["FAULTS", "Fault", "forgive_faults", "inject_fault"]

FAULTS = ("out_of_memory", "launch_failure", "illegal_address", "hang", "slow_copy", "ecc", "device_lost")
"""The kinds, in the order in which the driver numbers them (faults.c).

out_of_memory: an allocation of device memory fails; nothing else does. launch_failure, illegal_address, ecc: a kernel
ends with this error, which sticks to its context. hang: a kernel does not end before its context dies or the faults are
taken back; then its context has timed out. slow_copy: a copy takes `seconds` more. device_lost: every call of every
context of the device fails from that kernel on, and it gets no new ones.
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a device.

    Args:
        kind: one of `FAULTS`.
        at: it comes once, at the at-th allocation, kernel or copy from now, whichever it concerns.
        rate: instead of `at`: it comes at each of these with this probability, by a generator begun with seed.
        seed: of that generator.
        seconds: what a slow copy takes more.
    """

    kind: str
    at: int = 1
    rate: float | None = None
    seed: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in FAULTS:
            raise ValueError(f"a fault is one of {', '.join(FAULTS)}, not {self.kind!r}")
        if type(self.at) is not int or type(self.seed) is not int or self.seed < 0:
            raise ValueError(f"at and seed are whole numbers, a seed is not negative: {self}")
        if self.at < 1 or (self.rate is not None and not 0 < self.rate <= 1) or not self.seconds >= 0:
            raise ValueError(f"at counts from 1, a rate is more than 0 and at most 1, seconds are not negative: {self}")


def inject_fault(library: ctypes.CDLL, ordinal: int, fault: Fault) -> int:
    """Makes a fault come on a device of the driver; a CUresult."""
    call = library.softgpu_inject
    call.argtypes = [ctypes.c_uint32] * 2 + [ctypes.c_uint64, ctypes.c_double, ctypes.c_uint64, ctypes.c_double]
    return int(call(ordinal, FAULTS.index(fault.kind), fault.at, fault.rate or 0.0, fault.seed, fault.seconds))


def forgive_faults(library: ctypes.CDLL) -> None:
    """Takes back the faults that have not come, ends hangs, and finds lost devices again."""
    library.softgpu_forgive.restype = None
    library.softgpu_forgive()

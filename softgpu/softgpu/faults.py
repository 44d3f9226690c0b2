"""Faults that a program injects into a software device: their kinds, and when they come."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

__all__ = ["FAULTS", "Fault", "forgive_faults", "inject_fault"]

FAULTS = ("out_of_memory", "launch_failure", "illegal_address", "hang", "slow_copy", "ecc", "device_lost")
"""The kinds, in the order in which the driver numbers them (faults.c).

out_of_memory: an allocation of device memory fails; nothing else fails. launch_failure, illegal_address, ecc: a kernel
ends with this error, which sticks to its context. hang: a kernel runs until its context dies or the faults are removed;
then its context has timed out. slow_copy: a copy takes `seconds` more. device_lost: from that kernel on, every call of
every context of the device fails, and the device gets no new contexts.
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a device.

    Args:
        kind: one of `FAULTS`.
        at: the fault comes once, at the at-th allocation, kernel or copy from now, depending on the kind.
        rate: instead of `at`: the probability that the fault comes at each allocation, kernel or copy.
        seed: the seed of the random generator for `rate`.
        seconds: the additional seconds of a slow copy.
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
    """Add a fault to a device of the driver, and return a CUresult."""
    call = library.softgpu_inject
    call.argtypes = [ctypes.c_uint32] * 2 + [ctypes.c_uint64, ctypes.c_double, ctypes.c_uint64, ctypes.c_double]
    return int(call(ordinal, FAULTS.index(fault.kind), fault.at, fault.rate or 0.0, fault.seed, fault.seconds))


def forgive_faults(library: ctypes.CDLL) -> None:
    """Remove the faults that have not come yet, end hangs, and bring lost devices back."""
    library.softgpu_forgive.restype = None
    library.softgpu_forgive()

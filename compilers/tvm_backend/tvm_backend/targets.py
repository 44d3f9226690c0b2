"""Target names, "sm_80+ptx" and their like: what TVM generates code for, and what images the library gets."""

from __future__ import annotations

import re
from dataclasses import dataclass

import tvm

from kaas.errors import InvalidTarget

LIMITS = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 48 << 10, "thread_warp_size": 32}
"""What every kernel may use on each of the architectures without asking for more."""

OLDEST = 75
"""Turing: what NVRTC 13 still compiles for."""

_PART = re.compile(r"(?:sm|compute)_(\d{2,3})[af]?|ptx")


@dataclass(frozen=True, slots=True)
class Target:
    """
    Fields:
        name: as `kaas.Library.from_cuda` takes it.
        architecture: the oldest of those named, for which the one source of all images is made.
    """

    name: str
    architecture: str

    @property
    def tvm(self) -> tvm.target.Target:
        host = {"kind": "llvm"}
        return tvm.target.Target({"kind": "cuda", "arch": self.architecture, "host": host, **LIMITS})


def parsed(name: str) -> Target:
    """ "sm_80+ptx", "sm_90", "sm_80+sm_90+ptx", "compute_80": machine code for each architecture named, PTX for what
    is newer.

    Raises:
        InvalidTarget
    """
    matches = [_PART.fullmatch(part.strip()) for part in str(name).split("+")]
    numbers = [int(match[1]) for match in matches if match is not None and match[1]]
    if None in matches or (numbers and min(numbers) < OLDEST):
        raise InvalidTarget(
            f'no target {name!r}: a target is sm_N, compute_N and ptx joined by "+", as "sm_80+ptx", with N from '
            f"{OLDEST} on",
            target=str(name),
        )
    return Target(str(name), f"sm_{min(numbers, default=80)}")

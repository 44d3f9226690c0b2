"""Target names such as "sm_80+ptx": the architecture that TVM generates code for, and the images of the library."""

from __future__ import annotations

import re
from dataclasses import dataclass

import tvm

from kaas.errors import InvalidTarget

LIMITS = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 48 << 10, "thread_warp_size": 32}
"""The resources that every kernel may use on each architecture without a request for more."""

OLDEST = 75
"""Turing: the oldest architecture that NVRTC 13 compiles for."""

_PART = re.compile(r"(?:sm|compute)_(\d{2,3})[af]?|ptx")


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a compilation.

    Fields:
        name: as `kaas.Library.from_cuda` takes it.
        architecture: the oldest one named; the one source of all images is generated for it.
    """

    name: str
    architecture: str

    @property
    def tvm(self) -> tvm.target.Target:
        """The same target for TVM, with LLVM as its host."""
        host = {"kind": "llvm"}
        return tvm.target.Target({"kind": "cuda", "arch": self.architecture, "host": host, **LIMITS})


def parsed(name: str) -> Target:
    """Return the target of a name: machine code for each architecture named, PTX for newer ones.

    Names are "sm_80+ptx", "sm_90", "sm_80+sm_90+ptx", "compute_80" and the like.

    Raises:
        InvalidTarget: the name has another form, or an architecture is too old.
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

"""Target names, "sm_80+ptx" and their like: what TVM generates code for, and what images the library gets."""

from __future__ import annotations

import re
from dataclasses import dataclass

import tvm

from tvm_backend.errors import InvalidOption

LIMITS = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 48 << 10, "thread_warp_size": 32}
"""What every kernel may use on each of the architectures without asking for more."""

OLDEST = 75
"""Turing: what NVRTC 13 still compiles for."""


@dataclass(frozen=True, slots=True)
class Target:
    """One or more architectures, and whether newer GPUs get PTX to compile."""

    architectures: tuple[str, ...]
    ptx: bool

    @property
    def tvm(self) -> tvm.target.Target:
        """The oldest of the architectures, since one source is compiled for all."""
        host = {"kind": "llvm"}
        return tvm.target.Target({"kind": "cuda", "arch": self.architectures[0], "host": host, **LIMITS})

    def __str__(self) -> str:
        return "+".join((*self.architectures, *(("ptx",) if self.ptx else ())))


def parsed(name: str) -> Target:
    """ "sm_80+ptx", "sm_90", "sm_80+sm_90+ptx": machine code for each architecture named, PTX for what is newer.

    Raises:
        InvalidOption
    """
    *before, last = name.split("+") if isinstance(name, str) else ["?"]
    architectures = before if last == "ptx" else [*before, last]
    if not architectures or not all(_known(architecture) for architecture in architectures):
        raise InvalidOption(
            f'no target {name!r}: targets are GPU architectures from sm_{OLDEST} on, joined by "+", and "ptx" after '
            'the last where newer GPUs are to run it too, as in "sm_80+ptx"',
            option="target",
        )
    return Target(tuple(sorted(set(architectures), key=_number)), last == "ptx")


def _number(architecture: str) -> int:
    return int(re.sub(r"\D", "", architecture))


def _known(architecture: str) -> bool:
    return re.fullmatch(r"sm_\d{2,3}[af]?", architecture) is not None and _number(architecture) >= OLDEST
